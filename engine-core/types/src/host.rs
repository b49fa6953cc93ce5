//! The machine around a measurement, as data. What it does not tell is left out, never guessed.

use crate::fingerprint::CpuFacts;
use serde::{Deserialize, Serialize};

/// Everything around the device, as the process that measured saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostRecord {
    /// The processor; absent where it is the device itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuFacts>,
    pub scaling: ScalingFacts,
    pub memory: MemoryFacts,
    /// Of the folder that the job worked in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageFacts>,
    /// What contains the process: `docker`, `podman`, `kubernetes`; absent where nothing was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_group: Option<ControlGroup>,
}

/// How the kernel sets the processor's clocks and threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScalingFacts {
    /// `performance`, `powersave`, ... of the first processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// Clocks above the nominal one are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boost: Option<bool>,
    /// Several hardware threads of a core are in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smt: Option<bool>,
    /// Where the kernel backs memory by huge pages: `always`, `madvise`, `never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<String>,
}

/// The host's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryFacts {
    pub total_mib: u64,
    /// What could be had without swapping when the measurement began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_mib: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_mib: Option<u64>,
    /// Of each NUMA node, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub numa_mib: Vec<u64>,
    /// As the firmware lists them; empty where only the administrator may read it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<MemoryModule>,
    /// How errors are corrected, as the memory controller's driver tells: `S4ECD4ED`, `SECDED`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<String>,
}

/// Modules of memory that are alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryModule {
    pub count: u32,
    pub size_mib: u64,
    /// `DDR5`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Millions of transfers a second, as configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mt_per_s: Option<u32>,
}

/// What a folder lies on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StorageFacts {
    /// `ext4`, `overlay`, `tmpfs`.
    pub filesystem: String,
    /// What the file system is on, as the kernel names it: `/dev/nvme0n1p2`.
    pub source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// The drive's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drive: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
}

/// The limits of a process's control groups, the tightest of its own and those around it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControlGroup {
    /// 1 or 2.
    pub version: u32,
    /// As the process sees it.
    pub path: String,
    /// Processors whose time it may use; absent: no quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<f64>,
    /// Processors that it may run on, as the kernel writes lists; absent where it was not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_max_bytes: Option<u64>,
}
