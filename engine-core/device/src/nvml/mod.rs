//! NVIDIA's management library (NVML), loaded where there is one. Only what is read here is declared; nothing is ever set.
//!
//! | module | holds |
//! |---|---|
//! | `device` | a device and what is asked of it |
//! | `processes` | who uses a device, or has |
//! | `events` | what a device's driver reports by itself |
//! | `error` | an error by the function that gave it, and its name |
//! | `library` | the functions: loaded, looked up by name, their return codes judged |
//! | `ffi` | the structures of the header |
//!
//! A function that the driver is too old or too new to have is an error of its call, not of the library: each question
//! that a driver cannot answer leaves one answer out.

mod device;
mod error;
mod events;
#[cfg(test)]
pub(crate) mod fake;
mod ffi;
mod library;
mod processes;
#[cfg(test)]
mod tests;

pub use device::{Clock, ComputeMode, Device, Ecc, Memory, Pci, SliceAttributes, Virtualization};
pub use error::NvmlError;
pub use events::XidEvents;
pub use ffi::ThrottleReasons;
pub use processes::{Account, RunningProcess, UtilizationSample};

use library::Initialised;
use std::{
    ffi::{CString, OsStr, c_int, c_uint},
    fmt,
    sync::Arc,
};

/// What the loader is asked for.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// The library, initialised; shut down with the last clone. Its functions may be called by any thread.
#[derive(Clone)]
pub struct Nvml {
    library: Arc<Initialised>,
    /// Bytes of an entry in the newest form of the lists of running processes.
    process_bytes: usize,
}

impl fmt::Debug for Nvml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nvml")
    }
}

impl Nvml {
    /// Opens the library of this host's driver.
    pub fn open() -> Result<Self, NvmlError> {
        Self::open_at(LIBRARY.as_ref())
    }

    /// Opens a library by name or path.
    pub(crate) fn open_at(library: &OsStr) -> Result<Self, NvmlError> {
        let mut nvml = Self { library: Arc::new(Initialised::open(library)?), process_bytes: ffi::PROCESS_V2_BYTES };
        if nvml.driver_version().is_ok_and(|version| ffi::wide_processes(&version)) {
            nvml.process_bytes = ffi::PROCESS_WIDE_BYTES;
        }
        Ok(nvml)
    }

    pub fn driver_version(&self) -> Result<String, NvmlError> {
        // SAFETY: the buffer is as long as the function is told.
        library::text("nvmlSystemGetDriverVersion", ffi::VERSION_BYTES, |buffer, length| unsafe {
            self.library.nvmlSystemGetDriverVersion(buffer, length)
        })
    }

    /// The newest CUDA that the driver is for, as `major * 1000 + minor * 10`.
    pub fn cuda_driver_version(&self) -> Result<i32, NvmlError> {
        let mut version: c_int = 0;
        // SAFETY: writes one `int`.
        unsafe { self.library.nvmlSystemGetCudaDriverVersion_v2(&mut version)? };
        Ok(version)
    }

    pub fn device_count(&self) -> Result<u32, NvmlError> {
        let mut count: c_uint = 0;
        // SAFETY: writes one `unsigned int`.
        unsafe { self.library.nvmlDeviceGetCount_v2(&mut count)? };
        Ok(count)
    }

    /// The device with this number, in the order of the PCI bus.
    pub fn device_by_index(&self, index: u32) -> Result<Device<'_>, NvmlError> {
        // SAFETY: writes one handle.
        Device::found(self, |handle| unsafe { self.library.nvmlDeviceGetHandleByIndex_v2(index, handle) })
    }

    /// The device, or the slice of one, with this UUID.
    pub fn device_by_uuid(&self, uuid: &str) -> Result<Device<'_>, NvmlError> {
        let no_such = |_| NvmlError::Call { function: "nvmlDeviceGetHandleByUUID", code: error::INVALID_ARGUMENT };
        let uuid = CString::new(uuid).map_err(no_such)?;
        // SAFETY: reads a text that ends, writes one handle.
        Device::found(self, |handle| unsafe { self.library.nvmlDeviceGetHandleByUUID(uuid.as_ptr(), handle) })
    }
}
