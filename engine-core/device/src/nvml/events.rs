//! What a device's driver reports by itself: errors, to whoever asked before they happened.

use super::{Device, Nvml, NvmlError, ffi};
use std::{fmt, ptr};

/// Hears of the errors (Xids) of one device from when it was made on.
pub struct XidEvents {
    nvml: Nvml,
    events: ffi::EventSetHandle,
}

// SAFETY: the handle belongs to no thread: NVIDIA says of every function that any thread may call it, and this value is
// used by one at a time.
unsafe impl Send for XidEvents {}

impl fmt::Debug for XidEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("XidEvents")
    }
}

impl XidEvents {
    pub fn of(device: &Device<'_>) -> Result<Self, NvmlError> {
        let (nvml, mut events) = (device.nvml().clone(), ptr::null_mut());
        // SAFETY: writes one handle.
        unsafe { nvml.library.nvmlEventSetCreate(&mut events)? };
        // Freed with this value from here on, also when the device has no such events.
        let this = Self { nvml, events };
        // SAFETY: both handles come from this library, which both hold.
        unsafe { this.nvml.library.nvmlDeviceRegisterEvents(device.handle(), ffi::EVENT_XID, this.events)? };
        Ok(this)
    }

    /// An error that was reported and not yet taken; `None` where there is none, or none can be had any more.
    pub fn take(&self) -> Option<u64> {
        let mut event = ffi::EventData {
            device: ptr::null_mut(),
            event_type: 0,
            event_data: 0,
            gpu_instance_id: 0,
            compute_instance_id: 0,
        };
        // SAFETY: the set is ours; writes one event. Without waiting: what is not there ends as a time-out.
        unsafe { self.nvml.library.nvmlEventSetWait_v2(self.events, &mut event, 0).ok()? };
        Some(event.event_data)
    }
}

impl Drop for XidEvents {
    fn drop(&mut self) {
        // SAFETY: made once, freed once.
        let _ = unsafe { self.nvml.library.nvmlEventSetFree(self.events) };
    }
}
