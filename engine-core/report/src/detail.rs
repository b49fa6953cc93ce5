//! What a report holds beside the headline: the latency's parts, other shapes, streams, other builds, caches, files.
//!
//! All of it is optional: a backend tells what it can, a request asks for what it wants.

use planforge_stats::LatencyStats;
use planforge_types::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The latency's parts, in each mode of running that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySplit {
    /// The comparable mode first, the one of the headline.
    pub modes: Vec<ModeSplit>,
}

/// One mode of running, and where its time goes. All in milliseconds per execution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModeSplit {
    pub cuda_graph: bool,
    pub spin_wait: bool,
    /// Inputs and outputs are copied for every execution.
    pub transfers: bool,
    /// Every execution has other inputs, which a copy on the device brings; the copy counts as work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rotated_inputs: bool,
    /// Executions the figures are taken from.
    pub executions: u64,
    /// Work on the device alone.
    pub compute: PartStats,
    /// Time the host needs to hand one execution over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enqueue: Option<PartStats>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub h2d: Option<PartStats>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub d2h: Option<PartStats>,
    /// From the first copy's begin to the last one's end, as the host sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<PartStats>,
    /// Executions a second as the tool counts them; several may be in flight at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_executions_per_s: Option<f64>,
}

/// Statistics of one part of the latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartStats {
    pub min: f64,
    pub median: f64,
    pub mean: f64,
    pub max: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
}

impl PartStats {
    /// Of `values` in any order; `None` when there are none, or one is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        Some(Self {
            min: sorted[0],
            median: planforge_stats::quantile(&sorted, 0.5),
            mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
            max: sorted[sorted.len() - 1],
            p99: Some(planforge_stats::quantile(&sorted, 0.99)),
        })
    }
}

/// Which shapes of an optimization profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShapePoint {
    Min,
    Opt,
    Max,
}

impl ShapePoint {
    pub const ALL: [Self; 3] = [Self::Min, Self::Opt, Self::Max];

    pub fn name(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Opt => "opt",
            Self::Max => "max",
        }
    }
}

/// The engine at one set of shapes of one optimization profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfilePoint {
    pub profile: usize,
    pub at: ShapePoint,
    pub shapes: BTreeMap<String, Vec<u64>>,
    /// First dimension that all inputs share; 1 when they share none.
    pub batch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<LatencyStats>,
    /// Items per second: batch over the mean latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput_per_s: Option<f64>,
    /// Every window of it was disturbed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disturbed: bool,
    /// The headline is this very measurement.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub headline: bool,
    /// Why there are no numbers: out of memory at the largest shapes, for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What it takes a loaded engine to change its optimization profile; all as the host sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileSwitch {
    /// What is switched to, from the headline's profile.
    pub profile: usize,
    /// The first time, when whatever the profile needs is made.
    pub first_ms: f64,
    /// Every later time.
    pub again_ms: PartStats,
    /// The first execution after a later switch, outputs included, and the ones that follow it.
    pub first_run_ms: f64,
    pub run_ms: PartStats,
}

/// How latency and throughput grow with one number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep<Point> {
    /// Ascending by that number.
    pub points: Vec<Point>,
    /// The smallest that gives nearly the best throughput: more only adds latency. Absent when fewer than two points
    /// were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knee: Option<u32>,
    /// That of the highest throughput.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<u32>,
}

/// With parallel streams.
pub type StreamSweep = Sweep<StreamPoint>;

/// With the batch, within the first optimization profile.
pub type BatchSweep = Sweep<BatchPoint>;

/// One number of streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamPoint {
    pub streams: u32,
    /// Items per second, all streams together.
    pub throughput_per_s: f64,
    pub median_ms: f64,
    pub p99_ms: f64,
    pub samples: u64,
}

/// One batch, every other dimension at its usual size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchPoint {
    pub batch: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<LatencyStats>,
    /// Items per second: batch over the mean latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput_per_s: Option<f64>,
    /// Every window of it was disturbed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disturbed: bool,
    /// The headline is this very measurement.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub headline: bool,
    /// Why there are no numbers: outside of the profile, out of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One of several builds of the same engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildTrial {
    pub plan_digest: Digest,
    pub bytes: u64,
    pub build_ms: f64,
    pub median_ms: f64,
    /// Where its median lies; absent where the samples do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci_low_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci_high_ms: Option<f64>,
    pub accurate: bool,
    /// This is the plan that was kept.
    pub kept: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheUse>,
}

/// Several builds of the same engine, and how much they differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildSelection {
    /// In the order built.
    pub builds: Vec<BuildTrial>,
    /// Slowest median over the fastest, less one, among the builds judged alike.
    pub spread: f64,
    /// The builds differ by more than their measurements could.
    pub unstable: bool,
    /// Builds whose every window was disturbed: how fast they are says nothing of the builds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub disturbed: usize,
    /// The kept plan was measured once more after the choice, and the report is about that measurement.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remeasured: bool,
    /// Why builds that are missing are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The tactic or timing cache of one build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheUse {
    /// There were timings to start from.
    pub warm: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<CacheState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<CacheState>,
}

/// A cache file's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheState {
    pub digest: Digest,
    pub bytes: u64,
}

/// A file kept beside the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactRef {
    pub name: String,
    pub digest: Digest,
    pub bytes: u64,
}
