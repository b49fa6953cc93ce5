//! Reports: one measurement of one plan on one device, complete enough that every printed number can be re-derived.
//!
//! A report is a document of its own that names the plan's digest: measurements keep coming after the build.

mod agreement;
mod baseline;
pub mod best;
pub mod card;
mod ceilings;
pub mod check;
pub mod compare;
mod detail;
pub mod disturbance;
pub mod figures;
pub mod format;
pub mod gelu;
mod given;
pub mod history;
pub mod imported;
mod layer;
pub mod load;
pub mod matrix;
mod read;
pub mod samples;
pub mod schema;
mod state;
pub mod sweep;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use agreement::Agreement;
pub use baseline::Baseline;
pub use ceilings::{Bound, Ceilings, Rates, Roofline};
pub use check::Contradiction;
pub use detail::{
    ArtifactRef, BatchPoint, BatchSweep, BuildSelection, BuildTrial, CacheState, CacheUse, LatencySplit, ModeSplit,
    PartStats, ProfilePoint, ProfileSwitch, ShapePoint, StreamPoint, StreamSweep, Sweep,
};
pub use given::GivenInputs;
pub use layer::{LayerCounters, LayerTime};
pub use read::ReadError;
pub use samples::{Samples, SamplesError};
pub use state::{Seen, Spread, TelemetryPair};

use planforge_stats::{LatencyStats, MedianInterval, NoInterval};
use planforge_types::{
    BuildSpec, Digest, EngineKey, Port, Sku, Toolchain, fingerprint::DeviceFingerprint, host::HostRecord,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Raised whenever a field changes its meaning or goes away; new optional fields do not raise it.
pub const REPORT_SCHEMA_VERSION: u32 = 1;

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema_version: u32,
    /// Measured on a scripted double: no number in here is real.
    pub simulated: bool,
    pub provenance: Provenance,
    pub model: ModelRef,
    pub engine_key: EngineKey,
    pub plan: PlanRef,
    /// What the job was for: what the plan was built for, unless it is foreign; see [`Report::built_for`].
    pub sku: Sku,
    /// What it was measured on, and whose toolchain built it.
    pub device: DeviceFingerprint,
    pub toolchain: Toolchain,
    pub spec: BuildSpec,
    /// Set when the plan was built for another SKU than the device's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<Foreign>,
    /// Inputs as they were bound for the measurement, every dimension fixed.
    pub inputs: Vec<Port>,
    /// Real inputs that outputs were compared on; absent where made ones were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_inputs: Option<GivenInputs>,
    /// First dimension that all bound inputs share; 1 when they share none.
    pub batch: u64,
    pub latency_ms: LatencyStats,
    /// Items per second: batch over the mean latency.
    pub throughput_per_s: f64,
    pub experiment: Experiment,
    pub windows: Vec<WindowRecord>,
    /// Every latency that counted, in the order measured.
    pub samples: Samples,
    /// Profiled apart from the samples; empty where the backend cannot tell.
    #[serde(default)]
    pub layers: Vec<LayerTime>,
    /// What the device reaches, to hold the layers against; absent where that was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceilings: Option<Ceilings>,
    /// Share of the layers' time by the type they compute in; empty where the engine does not tell.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub precision_time: BTreeMap<String, f64>,
    /// Bytes of the plan's weights by element type; empty where the backend does not tell.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weight_bytes: BTreeMap<String, u64>,
    /// How many of the engine's GELUs are computed in which form, by the words of [`gelu`]; empty where it has none, or
    /// the backend does not tell.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gelu: BTreeMap<String, u64>,
    /// Where the latency goes; absent where the backend cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<LatencySplit>,
    /// Every optimization profile at its smallest, usual and largest shapes; empty when the shapes are fixed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<ProfilePoint>,
    /// What a change to each profile after the first takes; empty where there is one, or an engine cannot change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<ProfileSwitch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamSweep>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batches: Option<BatchSweep>,
    /// Other runtimes on the same device and inputs, measured under the same lease.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<Baseline>,
    /// Set when the engine was built more than once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "lottery")]
    pub selection: Option<BuildSelection>,
    /// The cache the kept plan was built with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheUse>,
    /// Files kept beside this report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactRef>,
    /// Compilation alone; absent when the plan was only measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_ms: Option<f64>,
    /// Wall time of each phase of the job, in milliseconds: `compile`, `verify`, `upload`, `measure`.
    #[serde(default)]
    pub phases_ms: BTreeMap<String, f64>,
    /// Highest resident memory of the worker process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Of building alone, in whichever process that was; absent when the plan was only measured, or nobody could tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_memory_bytes: Option<u64>,
    /// Of loading the engine and running it for the headline, inputs and whatever the worker held before included; absent
    /// where nobody could tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_memory_bytes: Option<u64>,
    /// Weights, activations and scratch the loaded engine holds.
    pub engine_memory_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numerics: Option<Numerics>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Accuracy>,
    /// Nothing that was checked found the outputs wrong.
    pub accurate: bool,
    pub telemetry: TelemetryPair,
    /// The machine around the device; absent in reports of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostRecord>,
    /// The command that compiled the plan, where a tool of its own did; absent when the plan was only measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub build_argv: Vec<String>,
    /// What a reader should know before trusting or comparing the numbers.
    #[serde(default)]
    pub findings: Vec<Finding>,
}

impl Report {
    /// Sizes of the windows whose samples count, in the order of [`Report::samples`].
    pub fn counted_windows(&self) -> Vec<usize> {
        let counted = self.windows.iter().filter(|window| window.tainted.is_empty() || window.kept_tainted);
        counted.map(|window| window.iterations as usize).collect()
    }

    /// The device kind that the plan was built for.
    pub fn built_for(&self) -> &Sku {
        self.foreign.as_ref().map_or(&self.sku, |foreign| &foreign.built_for)
    }

    /// The device kind that it was measured on.
    pub fn measured_on(&self) -> &Sku {
        self.foreign.as_ref().map_or(&self.sku, |foreign| &foreign.measured_on)
    }

    /// Whether the numbers are those of the raw samples; see [`mod@check`].
    pub fn is_consistent(&self) -> Result<bool, SamplesError> {
        Ok(self.contradiction()?.is_none())
    }

    /// The median's interval. Reports of old have one for a single window too; it told nothing, and is left out.
    pub fn interval(&self) -> Result<MedianInterval, NoInterval> {
        if self.window_count() > 1 { self.latency_ms.interval } else { Err(NoInterval::OneWindow) }
    }

    /// Microjoules of one execution, over all windows that count; `None` where one of them does not tell. What the device
    /// uses when it does nothing is part of it, and so is whatever else runs on it.
    pub fn energy_per_execution_uj(&self) -> Option<f64> {
        let counts = |window: &&WindowRecord| window.tainted.is_empty() || window.kept_tainted;
        let (mut used_uj, mut executions) = (0, 0);
        for window in self.windows.iter().filter(counts) {
            used_uj += window.energy_uj?;
            executions += window.thinned_from.unwrap_or(u64::from(window.iterations));
        }
        (executions > 0).then(|| used_uj as f64 / executions as f64)
    }

    /// Windows whose samples count.
    pub fn window_count(&self) -> usize {
        self.counted_windows().iter().filter(|size| **size > 0).count()
    }
}

/// Who measured, for which job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    pub job: String,
    pub attempt: u32,
    pub agent: String,
    pub planforge_version: String,
    /// Unix milliseconds of the agent's clock when the measurement began.
    pub measured_unix_ms: u64,
}

/// The model an engine was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRef {
    pub name: String,
    pub digest: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph_digest: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structure_digest: Option<Digest>,
}

/// The artifact that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanRef {
    pub digest: Digest,
    pub bytes: u64,
}

/// A plan on a device that is not its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    pub built_for: Sku,
    pub measured_on: Sku,
}

/// How the measurement was run, and why it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    pub warm_up_iterations: u64,
    pub warm_up_ms: f64,
    pub min_samples: u64,
    pub min_duration_ms: f64,
    /// Least time it had to warm up, unless an engine this slow is warm before; absent: an older version measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_warm_up_ms: Option<f64>,
    /// Least number of windows that had to count; absent: an older version measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_windows: Option<u64>,
    /// Half-width of the median's confidence interval, relative to the median, that was aimed for.
    pub target_relative_ci: f64,
    pub budget_ms: f64,
    /// Timed and untimed parts together.
    pub elapsed_ms: f64,
    pub stop: StopReason,
}

/// Why a measurement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The confidence interval of the median is as tight as asked.
    Confident,
    /// Time ran out before that; the interval says how sure the median is.
    BudgetSpent,
    /// As many samples as a report keeps.
    SampleLimit,
}

/// One timed window, counted or discarded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowRecord {
    pub iterations: u32,
    pub duration_ms: f64,
    pub median_ms: f64,
    /// Why the window was discarded; empty when its samples count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tainted: Vec<String>,
    /// Its samples count although it was tainted, because re-measuring had not helped either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept_tainted: bool,
    /// Executions that were timed, when more than the `iterations` whose samples are kept, evenly spread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinned_from: Option<u64>,
    /// Nanoseconds that a fixed piece of work took on the slowest of the engine's cores, before, between the parts of or
    /// after the window, whichever was longest. Absent where the device tells its state itself, and in reports of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace_ns: Option<f64>,
    /// What the device used from the reading before the window to the one after it. Absent where it counts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_uj: Option<u64>,
}

/// Outputs against a reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Numerics {
    /// What the outputs were compared with, `reference operators`.
    pub oracle: String,
    /// Why nothing was compared; of the outputs only `not_finite` is then known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Seed of the inputs.
    pub seed: u64,
    pub outputs: Vec<OutputNumerics>,
    /// Largest of the outputs' `max_error`.
    pub max_error: f64,
    /// What the precision explains, of `max_error` or, while no element is off by five times as much, of `relative_rms`.
    pub threshold: f64,
    pub passed: bool,
    pub oracle_ms: f64,
    /// What was compared with, held against an independent runtime; absent where that runtime was compared with itself,
    /// and in reports of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub independent: Option<Agreement>,
}

/// One output against the reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputNumerics {
    pub name: String,
    pub elements: u64,
    /// Floats: largest absolute difference over `scale`. Integers and bools: share of the elements that differ.
    pub max_error: f64,
    /// Root of the mean squared difference over the reference's root mean square.
    pub relative_rms: f64,
    /// Largest absolute value of the reference output.
    pub scale: f64,
    /// Compared as they were before this final `Softmax`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub before_softmax: bool,
    /// Behind a final `Softmax`: how far the worst row's probabilities add up to another total than the reference's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub total_error: f64,
    /// Elements that are NaN or infinite where the reference is not, or the other way round; all of them where there is
    /// no reference.
    #[serde(default)]
    pub not_finite: u64,
    /// Why nothing could be compared: missing, another shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Integers and bools, which have to be equal: largest difference. Absent for floats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_difference: Option<f64>,
    /// What the output may be off beyond the threshold; absent where it was right without, or nothing could say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Allowed>,
}

/// How far an output may be off on these inputs, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Allowed {
    /// As the output's `max_error`, threshold included; of integers the share that may differ.
    pub max_error: f64,
    /// As the output's `relative_rms`, threshold included; 0 for integers.
    pub relative_rms: f64,
    /// The output is right within this.
    pub within: bool,
    /// Elements that nothing can be said of on these inputs; they are in none of the output's errors.
    pub unjudged: u64,
    pub reason: String,
    /// Largest difference allowed, in steps of the quantization that the output comes out of; absent where it comes out
    /// of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<f64>,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// Top-1 accuracy on labelled rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    pub rows: u64,
    pub correct: u64,
    pub top1: f64,
    /// The reference's accuracy on the same rows, where it was cheap enough to compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_top1: Option<f64>,
}

/// Code of the finding that a plan ran with other libraries than it was tuned with.
pub const OTHER_LIBRARIES: &str = "other-libraries";

/// Something a reader should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable name: `contention`, `budget-spent`, `inaccurate`, ...
    pub code: String,
    pub severity: Severity,
    pub message: String,
}

impl Finding {
    /// Something to know.
    pub fn note(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), severity: Severity::Note, message: message.into() }
    }

    /// Something that may mislead.
    pub fn warning(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), severity: Severity::Warning, message: message.into() }
    }
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Note,
    Warning,
    Error,
}

#[cfg(test)]
mod tests;
