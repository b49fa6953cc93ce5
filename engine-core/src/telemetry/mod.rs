//! The device's state around a timed window: read before and after it, never inside.
//!
//! Clocks, persistence and compute mode are only read, never set.

use serde::{Deserialize, Serialize};

/// One reading of a device's state. What the device does not tell is left out, never guessed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TelemetrySample {
    /// Unix milliseconds of this host's clock: for people; durations never come from it.
    pub at_unix_ms: u64,
    /// Processes other than ours that use the device.
    pub foreign_processes: Vec<ForeignProcess>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_w: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_w: Option<f64>,
    /// Why clocks are held down now: `thermal`, `power`, `hardware`, ...
    pub throttle: Vec<String>,
    /// Uncorrected memory errors since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// 0..=100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_mib: Option<u64>,
    /// One-minute load average of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_1m: Option<f64>,
    /// Tasks that could run now, this process's own apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runnable_others: Option<u32>,
    /// Counters since boot from which two samples tell what others did in between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_time: Option<CpuTime>,
}

/// Processor time since boot, over all processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuTime {
    /// Spent in any process.
    pub busy_ms: u64,
    /// Spent in this process and its children that were waited for.
    pub own_ms: u64,
    /// Taken by the hypervisor for other guests.
    pub steal_ms: u64,
    /// This process's threads waited while runnable.
    pub own_wait_ms: u64,
}

/// A process that shares the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeignProcess {
    pub pid: u32,
    /// Empty where it cannot be read.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
}

/// Where samples come from: the product's own readers, or a script in tests.
pub trait Telemetry {
    /// Reads the device's state now; takes a few milliseconds at most and never fails.
    fn sample(&mut self) -> TelemetrySample;
}
