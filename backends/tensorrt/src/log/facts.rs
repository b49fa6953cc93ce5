//! What a log can say. Everything is optional: an old version, a crash or a load-only run leaves parts out.

use super::{
    kept::{Kept, Message},
    table::ProfileTable,
};
use planforge_report::Finding;
use planforge_tensorrt_rules::version::Version;
use std::collections::BTreeMap;

/// Everything read from one run's log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogFacts {
    /// The line a run begins with.
    pub running: Option<Banner>,
    /// The line a run ends with. Its absence means a crash, an abort or a kill, whatever the exit status.
    pub verdict: Option<VerdictLine>,
    pub device: DeviceFacts,
    /// `10.14.1`, as the `TensorRT version:` line has it; no build number.
    pub tensorrt_version: Option<String>,
    pub engine: EngineFacts,
    pub run: RunFacts,
    pub summary: Summary,
    pub timing_cache: TimingCacheFacts,
    /// Of `--dumpProfile`.
    pub profile: Option<ProfileTable>,
    /// What trtexec warned of and what its notes say, as findings; one of each kind.
    pub findings: Vec<Finding>,
    pub warnings: Kept<Message>,
    /// Levels `E` and `F`, with their continuation lines.
    pub errors: Kept<Message>,
    /// Lines without prefix that continue nothing: the dynamic linker, the C++ runtime, plugins.
    pub loose: Kept<Message>,
    /// Lines fed, both streams.
    pub lines: u64,
    /// Lines longer than the reader's bound, of which only the beginning was looked at.
    pub cut_lines: u64,
}

impl LogFacts {
    /// The number in `[TensorRT vNNNN]`, wherever it stood.
    pub fn version_code(&self) -> Option<u32> {
        self.banner().map(|banner| banner.version_code)
    }

    /// The number in `[bN]`; printed from 10.4 on.
    pub fn build_number(&self) -> Option<u32> {
        self.banner().and_then(|banner| banner.build_number)
    }

    /// The version that ran, with its build number where it is printed.
    pub fn version(&self) -> Option<Version> {
        self.banner().and_then(|banner| Version::from_code(banner.version_code, banner.build_number))
    }

    /// First line of the run, or its last where the first is missing.
    pub fn banner(&self) -> Option<&Banner> {
        self.running.as_ref().or(self.verdict.as_ref().map(|line| &line.banner))
    }

    /// The run ended with a `PASSED` line.
    pub fn passed(&self) -> bool {
        self.verdict.as_ref().is_some_and(|line| line.verdict == Verdict::Passed)
    }
}

/// `&&&& ... TensorRT.trtexec [TensorRT v101601] [b11] # ...`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Banner {
    pub version_code: u32,
    pub build_number: Option<u32>,
    /// Arguments joined by blanks, unquoted.
    pub command: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictLine {
    pub verdict: Verdict,
    pub banner: Banner,
}

/// The block `=== Device Information ===`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceFacts {
    pub available: Vec<ListedDevice>,
    pub name: Option<String>,
    /// From 10.0 on.
    pub id: Option<u32>,
    /// `GPU-...`, from 10.0 on.
    pub uuid: Option<String>,
    /// Major and minor.
    pub compute_capability: Option<(u32, u32)>,
    pub sm_count: Option<u32>,
    pub global_memory_mib: Option<u64>,
    pub shared_memory_per_sm_kib: Option<u64>,
    pub memory_bus_bits: Option<u32>,
    pub ecc: Option<bool>,
    /// From 8.6 on the application clock, not the one the device runs at.
    pub compute_clock_ghz: Option<f64>,
    pub memory_clock_ghz: Option<f64>,
}

/// A line under `Available Devices:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDevice {
    pub id: u32,
    pub name: String,
    pub uuid: String,
}

/// What became of the engine, and how long it took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineFacts {
    /// `Finished parsing network model. Parse time:`, late versions only.
    pub parse_s: Option<f64>,
    /// The library's `Engine generation completed in`.
    pub generation_s: Option<f64>,
    /// `Engine built in`: parsing, building and saving up to 9.x; building alone from 10.0 on.
    pub built_s: Option<f64>,
    /// `Engine loaded in`.
    pub loaded_s: Option<f64>,
    /// `Engine deserialized in`.
    pub deserialized_s: Option<f64>,
    /// `Created engine with size:`, from 10.0 on.
    pub size_mib: Option<f64>,
    /// The library's `Loaded engine size:`.
    pub loaded_size_mib: Option<f64>,
    /// `Created execution context with device memory size:`.
    pub context_memory_mib: Option<f64>,
    /// `Peak memory usage of TRT CPU/GPU memory allocators:` while building.
    pub peak_host_mib: Option<f64>,
    pub peak_device_mib: Option<f64>,
    /// Auxiliary streams that layers run on in parallel.
    pub aux_streams: Option<u32>,
}

/// The run itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFacts {
    pub warm_up_queries: Option<u64>,
    pub warm_up_ms: Option<f64>,
    pub trace_queries: Option<u64>,
    pub trace_s: Option<f64>,
    /// The first of them; late versions print at most 400, old ones all.
    pub averages: Vec<Average>,
    /// How many there were.
    pub averages_seen: u64,
    /// Said instead of a summary when the profiler ran in the same run.
    pub summary_withheld: bool,
}

/// `Average on N runs`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Average {
    pub runs: u32,
    pub gpu_ms: f64,
    pub host_ms: f64,
    pub enqueue_ms: f64,
}

/// The block `=== Performance summary ===`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Queries per second of wall time; the batch is not multiplied in.
    pub throughput_qps: Option<f64>,
    /// By the names trtexec prints: `Latency`, `Enqueue Time`, `H2D Latency`, `GPU Compute Time`, `D2H Latency`.
    pub rows: BTreeMap<&'static str, LatencyRow>,
    pub host_walltime_s: Option<f64>,
    pub gpu_compute_s: Option<f64>,
    /// Of the compute time, where it was worth a warning.
    pub coefficient_of_variance_percent: Option<f64>,
}

impl Summary {
    pub const LATENCY: &'static str = "Latency";
    pub const ENQUEUE: &'static str = "Enqueue Time";
    pub const HOST_TO_DEVICE: &'static str = "H2D Latency";
    pub const COMPUTE: &'static str = "GPU Compute Time";
    pub const DEVICE_TO_HOST: &'static str = "D2H Latency";
    pub const ROWS: [&'static str; 5] =
        [Self::LATENCY, Self::ENQUEUE, Self::HOST_TO_DEVICE, Self::COMPUTE, Self::DEVICE_TO_HOST];
}

/// One row of the summary, in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyRow {
    pub min_ms: f64,
    pub max_ms: f64,
    pub mean_ms: f64,
    pub median_ms: f64,
    /// Percent and milliseconds, in the order printed. 8.4 prints one.
    pub percentiles: Vec<(f64, f64)>,
}

/// What was read from and written to the timing cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimingCacheFacts {
    pub loaded_bytes: Option<u64>,
    pub saved_bytes: Option<u64>,
    /// The file was not there or not readable, and a new one begins.
    pub missing: bool,
    /// What was wrong with it, where something was.
    pub problem: Option<String>,
}
