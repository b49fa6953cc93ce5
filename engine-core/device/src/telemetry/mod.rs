//! The device's state around a timed window: read before and after it, never inside.
//!
//! Clocks, persistence and compute mode are only read, never set.

mod conditions;
pub mod contention;
mod cpu;
mod nvml;
mod rapl;
pub mod xid;

pub use conditions::{Conditions, conditions};
pub use cpu::CpuTelemetry;
pub use nvml::NvmlTelemetry;

use planforge_types::{fingerprint::DeviceFingerprint, telemetry::TelemetrySample};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where samples come from: the product's own readers, or a script in tests.
pub trait Telemetry: Send {
    /// Reads the device's state now; takes a few milliseconds at most and never fails.
    fn sample(&mut self) -> TelemetrySample;

    /// The state before anything of a measurement runs, its warm-up included.
    fn outside(&mut self) -> TelemetrySample {
        self.sample()
    }

    /// Waits until buffers that are filled with a delay tell of everything that was.
    fn settle(&mut self) {}
}

/// Opens the reader of a device: [`for_device`] in the product, a script in tests.
pub type OpenTelemetry<'a> = dyn Fn(&DeviceFingerprint) -> Box<dyn Telemetry> + 'a;

/// The reader for a device: NVML for a GPU, the kernel's files for a CPU.
pub fn for_device(fingerprint: &DeviceFingerprint) -> Box<dyn Telemetry> {
    match fingerprint.gpu.as_ref().map(|gpu| NvmlTelemetry::open(&gpu.uuid)) {
        Some(Ok(telemetry)) => Box::new(telemetry),
        Some(Err(error)) => {
            tracing::warn!(device = fingerprint.name, %error, "GPU state cannot be read; the host's is recorded instead");
            Box::<CpuTelemetry>::default()
        }
        None => Box::<CpuTelemetry>::default(),
    }
}

/// Unix milliseconds of this host's clock.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
