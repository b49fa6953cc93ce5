//! Can a device still be used? Asked after something failed on it.

use super::device::{DeviceError, Gpu};

/// Bytes that are copied there, on the device, and back.
const PATTERN_BYTES: usize = 1 << 20;

/// Opens the device, allocates, copies on it and looks at what comes back.
pub fn check(uuid: &str) -> Result<(), DeviceError> {
    let gpu = Gpu::open_uuid(uuid)?;
    let pattern: Vec<u8> = (0..PATTERN_BYTES).map(|index| (index * 31 + index / 255) as u8).collect();
    let (from, to) = (gpu.upload(&pattern)?, gpu.alloc(PATTERN_BYTES)?);
    let stream = gpu.stream()?;
    // SAFETY: both buffers are that long and live until the stream was waited for.
    unsafe { stream.copy(to.address(), from.address(), PATTERN_BYTES)? };
    stream.synchronize()?;
    let mut back = vec![0; PATTERN_BYTES];
    to.read(0, &mut back)?;
    match back == pattern {
        true => Ok(()),
        false => {
            let what = "copy memory on the device".to_owned();
            Err(DeviceError::Driver { what, reason: "other bytes came back".into() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a driver, or with one that has no such device, the reason is told and nothing breaks.
    #[test]
    fn a_device_that_is_not_there_is_no_success() {
        let error = check("GPU-00000000-0000-0000-0000-000000000000").unwrap_err();
        assert!(!error.to_string().is_empty());
    }
}
