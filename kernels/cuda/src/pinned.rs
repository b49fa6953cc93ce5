//! Host memory that the device copies from and to by itself, and copies in stream order.

use super::device::{Buffer, DeviceError, Gpu, Stream, doing};
use cudarc::driver::{CudaContext, result, sys};
use std::{fmt, slice, sync::Arc};

/// Page-locked host memory of one owner.
pub struct Pinned {
    start: *mut u8,
    bytes: usize,
    context: Arc<CudaContext>,
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} bytes)", self.bytes)
    }
}

impl Gpu {
    /// Page-locked host memory, zeroed.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, DeviceError> {
        let context = self.context();
        doing("use the device", context.bind_to_thread())?;
        let bytes = bytes.max(1);
        // SAFETY: the memory is owned by what is returned and freed once.
        let start = doing("lock host memory", unsafe { result::malloc_host(bytes, 0) })?.cast::<u8>();
        // SAFETY: exactly the memory that was just allocated.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { start, bytes, context: context.clone() })
    }
}

impl Pinned {
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// What lies there; nothing queued may still be writing it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is this owner's and was initialised.
        unsafe { slice::from_raw_parts(self.start, self.bytes) }
    }

    /// As [`Pinned::bytes`], to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has it.
        unsafe { slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let freed = self.context.bind_to_thread().and_then(|()| {
            // SAFETY: allocated by `Gpu::pinned`, freed once; copies from or to it were waited for, as their callers vouch.
            unsafe { result::free_host(self.start.cast()) }
        });
        if let Err(error) = freed {
            tracing::debug!(%error, "locked host memory was not freed");
        }
    }
}

impl Stream {
    /// Copies all of `from` to the beginning of `to` in stream order.
    ///
    /// # Safety
    /// Both live and nobody changes `from` until the copy is done.
    pub unsafe fn copy_in(&self, to: &Buffer, from: &Pinned) -> Result<(), DeviceError> {
        assert!(from.len_bytes() <= to.len_bytes(), "{from:?} into {to:?}");
        // SAFETY: the range lies in the buffer, as checked; the rest is the caller's word.
        let queued = unsafe { result::memcpy_htod_async(to.address(), from.bytes(), self.handle()) };
        doing("copy to the device", queued)
    }

    /// Fills all of `to` from the beginning of `from` in stream order.
    ///
    /// # Safety
    /// Both live and nobody touches `to` until the copy is done.
    pub unsafe fn copy_out(&self, to: &mut Pinned, from: &Buffer) -> Result<(), DeviceError> {
        assert!(to.len_bytes() <= from.len_bytes(), "{from:?} into {to:?}");
        let handle: sys::CUstream = self.handle();
        // SAFETY: as above.
        doing("copy from the device", unsafe { result::memcpy_dtoh_async(to.bytes_mut(), from.address(), handle) })
    }
}
