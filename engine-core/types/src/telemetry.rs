//! A device's state at one moment, as data.

use serde::{Deserialize, Serialize};

/// One reading of a device's state. What the device does not tell is left out, never guessed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TelemetrySample {
    /// Unix milliseconds of this host's clock: for people; durations never come from it.
    pub at_unix_ms: u64,
    /// Processes other than ours that use the device.
    pub foreign_processes: Vec<ForeignProcess>,
    /// Processes other than ours that used the device since the sample before this one, as the driver's buffers tell
    /// afterwards. They may be gone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_processes: Vec<PassedProcess>,
    /// Buffers of the driver that were read for them: `process-utilization`, `accounting`. Empty: none could be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub looked_in: Vec<String>,
    /// Errors that the driver reported for the device since the sample before this one, by number; an Xid.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub xids: Vec<u64>,
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
    /// Generation and width of the link to the host as negotiated now; an idle board may lower both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_generation: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width: Option<u32>,
    /// What the device has used since some moment: the board as its driver counts it, a CPU's packages as they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_uj: Option<u64>,
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

/// Processor time, from which two samples tell what went on in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuTime {
    /// All processors together since boot, idle or not.
    pub capacity_ms: f64,
    /// Spent in any process since boot.
    pub busy_ms: f64,
    /// Taken by the hypervisor for other guests since boot.
    pub steal_ms: f64,
    /// Spent in this process's threads that live now.
    pub own_busy_ms: f64,
    /// Those threads waited while they could have run.
    pub own_wait_ms: f64,
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

/// A process that used the device for a while, known only afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedProcess {
    pub pid: u32,
    /// Empty where it cannot be read, which is usual once the process is gone.
    pub name: String,
    /// It used the device at some time between these two, unix milliseconds of this host's clock.
    pub from_unix_ms: u64,
    pub to_unix_ms: u64,
}

impl PassedProcess {
    /// Whether it may have used the device between two samples.
    pub fn may_have_met(&self, before_unix_ms: u64, after_unix_ms: u64) -> bool {
        self.from_unix_ms < after_unix_ms && before_unix_ms < self.to_unix_ms
    }
}
