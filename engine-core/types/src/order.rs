//! What an agent tells a worker process and hears from it.
//!
//! The agent starts `planforge worker`, writes one [`WorkOrder`] as a line of JSON to its standard input, and reads
//! [`WorkEvent`]s, one JSON object a line, from its standard output; standard error is the attempt's log. After a
//! [`WorkEvent::Built`] the worker waits for a [`WorkCommand::Continue`] line, so that the plan's upload never
//! disturbs a measurement. End of standard input means the agent is gone: the worker exits.

use crate::{
    BuildSpec, Digest, EngineKey, FailureClass, Reason, Sku, Toolchain, TraceContext,
    preparation::{PrepareAsk, PreparedFrom},
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What the worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkKind {
    /// Compile, verify, wait for the upload, measure.
    Build,
    /// Verify and measure the plan at `plan`.
    Benchmark,
    /// Compile, verify, wait for the upload; measure nothing.
    Compile,
    /// Make ready what can be without the device that `fingerprint` describes, which is elsewhere.
    Ahead,
    /// Make a model of other number types of the order's, as `prepare` says; needs no device.
    Prepare,
}

/// One job for one worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkOrder {
    pub kind: WorkKind,
    pub job: String,
    pub attempt: u32,
    pub agent: String,
    pub engine_key: EngineKey,
    pub model: PathBuf,
    pub model_name: String,
    pub model_digest: Digest,
    pub graph_digest: Option<Digest>,
    pub structure_digest: Option<Digest>,
    pub sku: Sku,
    pub toolchain: Toolchain,
    pub spec: BuildSpec,
    /// The device as its agent sees it (`DeviceFingerprint` as JSON), copied into card and report.
    pub fingerprint: serde_json::Value,
    pub scratch: PathBuf,
    /// For `build`: file of the timing or tactic cache, this attempt's own copy. It may not exist yet; what it holds
    /// after a success is published.
    pub cache: Option<PathBuf>,
    /// For `build`: what a compile job prepared for it elsewhere.
    #[serde(default)]
    pub prepared: Option<PathBuf>,
    /// Where `cache` came from; `None`: it begins empty, the build is cold.
    #[serde(default)]
    pub cache_origin: Option<CacheOrigin>,
    /// Folder of this host with the rates that its devices were measured to reach; `None`: layers are not held against
    /// any.
    #[serde(default)]
    pub ceilings: Option<PathBuf>,
    /// Folder of this host with what independent runtimes said of models; `None`: nothing is remembered.
    #[serde(default)]
    pub oracles: Option<PathBuf>,
    /// For `prepare`: what the model is to become, and the data for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare: Option<PrepareOrder>,
    /// Where the model comes from, if a job prepared it: copied into the card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_from: Option<PreparedFrom>,
    /// For `benchmark`: the plan to measure.
    pub plan: Option<PathBuf>,
    /// What is measured beside the engine, in the order of `measure.baselines`.
    #[serde(default)]
    pub baselines: Vec<BaselineOrder>,
    /// For `benchmark`: what the plan was built for, where that may differ from `sku`; its results are then marked.
    #[serde(default)]
    pub built_for: Option<Sku>,
    /// Labelled test set for top-1 accuracy.
    pub eval: Option<PathBuf>,
    /// Real inputs by name (`.npz`), which outputs are compared on in place of made ones.
    #[serde(default)]
    pub inputs: Option<PathBuf>,
    /// Calibration cache that the spec names by digest.
    #[serde(default)]
    pub calibration: Option<PathBuf>,
    /// Plugin libraries, in the order of the spec's digests; only ones that the farm's operator allows.
    #[serde(default)]
    pub plugins: Vec<PathBuf>,
    /// How often the engine is built and measured; the fastest accurate plan is kept.
    #[serde(default = "one_build")]
    pub builds: u32,
    /// What is measured beside the latency at every profile's shapes.
    #[serde(default)]
    pub measure: MeasureAsk,
    /// Longest the whole order may take, all its builds together: the agent kills the worker then. 0: unknown.
    #[serde(default)]
    pub limit_ms: u64,
    /// Longest the measurement may take, but for what it needs to be comparable.
    pub measure_budget_ms: u64,
    /// Somebody asked for just this budget: it ends a measurement even before it can be compared.
    #[serde(default)]
    pub strict_measure_budget: bool,
    /// A plan with wrong outputs is an error unless this is set; its report says inaccurate either way.
    pub allow_inaccurate: bool,
    /// The device is a scripted double: marked wherever the report is shown.
    pub simulated: bool,
    /// The attempt's place in a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceContext>,
}

/// How a model is to be prepared, with the files that the ask names by digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrepareOrder {
    pub ask: PrepareAsk,
    /// In the order of `ask.data`.
    pub data: Vec<PathBuf>,
    pub eval: Option<PathBuf>,
}

/// Another runtime that is to be measured beside the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaselineOrder {
    pub name: String,
    /// The program that answers to this name at the agent; `None`: it has none of that name, a backend may.
    pub program: Option<PathBuf>,
    /// Why its program is not run.
    #[serde(default)]
    pub problem: Option<String>,
    /// The model in the form that the program takes.
    pub module: Option<PathBuf>,
}

fn one_build() -> u32 {
    1
}

/// Most builds of one order: more say nothing new about how much builds differ.
pub const BUILDS_MAX: u32 = 32;

/// Most points of one sweep, and the most streams.
pub const SWEEP_POINTS_MAX: usize = 16;

pub const STREAMS_MAX: u32 = 64;

/// Longest warm-up that somebody may ask for.
pub const WARM_UP_MAX_MS: u32 = 60_000;

/// Most timed windows that somebody may ask for.
pub const WINDOWS_MAX: u32 = 100;

/// Largest batch of a sweep.
pub const BATCH_MAX: u32 = 65_536;

/// Largest timing or tactic cache that is kept; real ones stay in the tens of MiB.
pub const TUNING_CACHE_MAX_BYTES: u64 = 256 << 20;

/// Most that a compile job prepares for a device elsewhere: every kernel that a large model's steps may be computed by.
pub const PREPARED_MAX_BYTES: u64 = 256 << 20;

/// Where a build's timing or tactic cache came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheOrigin {
    pub digest: Digest,
    pub bytes: u64,
    /// Job and agent whose build left it; empty when this host's own copy says no more.
    pub job: String,
    pub agent: String,
    /// 0 when unknown.
    pub published_unix_ms: u64,
}

/// What a request asks to be measured beside the usual; no part of the engine key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeasureAsk {
    /// Numbers of parallel streams (inference contexts) to sweep, ascending; empty: no sweep.
    pub streams: Vec<u32>,
    /// Record a timeline of one benchmark window and keep it as an artifact.
    pub trace: bool,
    /// Batches to sweep within the first optimization profile, ascending; empty: no sweep.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub batches: Vec<u32>,
    /// Least time that the headline warms up, in milliseconds; 0: the usual.
    #[serde(skip_serializing_if = "is_usual")]
    pub warm_up_ms: u32,
    /// Least number of timed windows that the headline counts; 0: the usual.
    #[serde(skip_serializing_if = "is_usual")]
    pub min_windows: u32,
    /// Real inputs by name (an `.npz`), which outputs are compared on in place of made ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Digest>,
    /// Those inputs are what is timed, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub time_inputs: bool,
    /// Other runtimes that are measured on the same device under the same lease, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<BaselineAsk>,
}

/// Another runtime that somebody wants to see beside the engine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaselineAsk {
    /// A backend (`onnxruntime`), or what the agent's host calls a program of its own (`torch-compile`).
    pub name: String,
    /// The model in the form that the program takes, such as an exported module of PyTorch's; none: the ONNX file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<Digest>,
}

/// Most baselines of one measurement.
pub const BASELINES_MAX: usize = 8;

/// Longest name of a baseline.
const BASELINE_NAME_MAX: usize = 64;

impl BaselineAsk {
    /// Refuses what is no name: it is looked for among the files of a folder.
    fn validate(&self) -> Result<(), String> {
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        let begins = self.name.starts_with(|c: char| c.is_ascii_lowercase());
        if !begins || self.name.len() > BASELINE_NAME_MAX || !self.name.chars().all(letters) {
            let name = self.name.escape_debug();
            return Err(format!(
                "'{name}' is no name of a baseline: small letters, digits, - and _, {BASELINE_NAME_MAX} at most"
            ));
        }
        Ok(())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_usual(least: &u32) -> bool {
    *least == 0
}

/// Names of what not every device can be measured by, as agents and compilers spell them.
pub mod extras {
    pub const SWEEP_STREAMS: &str = "sweep_streams";
    pub const TRACE: &str = "trace";
}

impl MeasureAsk {
    /// What of it not every device can do: its name, what it is for people, and the flag that asks for it.
    pub fn extras(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        let all = [
            (!self.streams.is_empty(), (extras::SWEEP_STREAMS, "parallel streams", "--sweep-streams")),
            (self.trace, (extras::TRACE, "timelines", "--trace")),
        ];
        all.into_iter().filter(|(asked, _)| *asked).map(|(_, extra)| extra).collect()
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = Digest> {
        self.inputs.into_iter().chain(self.baselines.iter().filter_map(|baseline| baseline.module))
    }

    /// Whether nothing beside the usual is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a measurement made for this ask has everything that `other` asks for.
    pub fn covers(&self, other: &Self) -> bool {
        let has = |own: &[u32], asked: &[u32]| asked.iter().all(|number| own.contains(number));
        let long_enough = self.warm_up_ms >= other.warm_up_ms && self.min_windows >= other.min_windows;
        let swept = has(&self.streams, &other.streams) && has(&self.batches, &other.batches);
        let beside = other.baselines.iter().all(|baseline| self.baselines.contains(baseline));
        (self.trace || !other.trace) && swept && beside && long_enough && self.same_inputs(other)
    }

    /// Whether both compare, and time, the same inputs: what was found right, wrong or fast on some says nothing of
    /// others.
    pub fn same_inputs(&self, other: &Self) -> bool {
        (self.inputs, self.time_inputs) == (other.inputs, other.time_inputs)
    }

    /// Everything that either asks for; `None` when no single measurement has it.
    pub fn joined(&self, other: &Self) -> Option<Self> {
        let both = self.same_inputs(other).then(|| self.union(other))?;
        both.validate().is_ok().then_some(both)
    }

    fn union(&self, other: &Self) -> Self {
        let both = |own: &[u32], others: &[u32]| in_order([own, others].concat());
        Self {
            streams: both(&self.streams, &other.streams),
            trace: self.trace || other.trace,
            batches: both(&self.batches, &other.batches),
            warm_up_ms: self.warm_up_ms.max(other.warm_up_ms),
            min_windows: self.min_windows.max(other.min_windows),
            inputs: self.inputs,
            time_inputs: self.time_inputs,
            baselines: {
                let mut all = [self.baselines.clone(), other.baselines.clone()].concat();
                all.sort();
                all.dedup();
                all
            },
        }
    }

    /// Refuses sweeps that are too long, too wide or out of order, and a headline that would take too long.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn validate(&self) -> Result<(), String> {
        if self.time_inputs && self.inputs.is_none() {
            return Err("inputs are to be timed, but none are given".into());
        }
        let sweeps = [("stream", "streams", &self.streams, STREAMS_MAX), ("batch", "items", &self.batches, BATCH_MAX)];
        for (name, what, numbers, most) in sweeps {
            if numbers.len() > SWEEP_POINTS_MAX {
                return Err(format!("a {name} sweep has at most {SWEEP_POINTS_MAX} points, not {}", numbers.len()));
            }
            if numbers.iter().any(|number| !(1..=most).contains(number)) {
                return Err(format!("a {name} sweep counts 1 to {most} {what}"));
            }
            if !numbers.windows(2).all(|pair| pair[0] < pair[1]) {
                return Err(format!("a {name} sweep names each number once, in ascending order"));
            }
        }
        if self.baselines.len() > BASELINES_MAX {
            return Err(format!("a measurement has at most {BASELINES_MAX} baselines, not {}", self.baselines.len()));
        }
        self.baselines.iter().try_for_each(BaselineAsk::validate)?;
        if !self.baselines.windows(2).all(|pair| pair[0].name < pair[1].name) {
            return Err("a measurement names each baseline once, in alphabetical order".into());
        }
        if self.warm_up_ms > WARM_UP_MAX_MS {
            return Err(format!("a warm-up takes at most {WARM_UP_MAX_MS} ms, not {}", self.warm_up_ms));
        }
        if self.min_windows > WINDOWS_MAX {
            return Err(format!("a measurement takes at most {WINDOWS_MAX} windows, not {}", self.min_windows));
        }
        Ok(())
    }
}

/// The numbers of a sweep, each once, ascending.
pub fn in_order(mut numbers: Vec<u32>) -> Vec<u32> {
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// A file beside plan and report that is worth keeping: a profile export, a timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// File name for people, `timeline.nsys-rep`.
    pub name: String,
    pub path: PathBuf,
    pub digest: Digest,
    pub bytes: u64,
}

/// What a worker tells its agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum WorkEvent {
    Progress {
        phase: String,
        fraction: f32,
        detail: String,
    },
    /// The plan lies at `plan` with its card at `card`: upload both, then answer `continue`. Said once, after all builds
    /// of the order, of the plan that is kept.
    Built {
        plan: PathBuf,
        plan_digest: Digest,
        plan_bytes: u64,
        card: PathBuf,
    },
    /// The last event of an order that measures nothing, after [`Self::Built`].
    Compiled {
        accurate: bool,
    },
    /// The last event of an order to compile ahead: what it made ready lies in this file.
    Prepared {
        file: PathBuf,
        digest: Digest,
        bytes: u64,
    },
    /// The last event of an order to prepare a model: its files, the ONNX file first, and what became of which layer.
    Made {
        files: Vec<Artifact>,
        graph_digest: Digest,
        structure_digest: Digest,
        document: Artifact,
    },
    /// A timed window begins: stop sampling telemetry.
    WindowBegin,
    WindowEnd,
    /// The last event of a success. `report` is a JSON file, which names the artifacts by digest.
    Done {
        report: PathBuf,
        accurate: bool,
        #[serde(default)]
        artifacts: Vec<Artifact>,
    },
    /// The last event of a failure.
    Failed {
        class: FailureClass,
        message: String,
        hint: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Reason>,
    },
}

/// What an agent tells its worker after the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum WorkCommand {
    Continue,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn least(warm_up_ms: u32, min_windows: u32) -> MeasureAsk {
        MeasureAsk { warm_up_ms, min_windows, ..MeasureAsk::default() }
    }

    #[test]
    fn a_longer_measurement_answers_a_shorter_one() {
        assert!(least(0, 0).is_empty() && !least(1, 0).is_empty());
        assert!(least(500, 20).covers(&least(200, 20)) && least(500, 20).covers(&least(0, 0)));
        assert!(!least(500, 20).covers(&least(501, 0)) && !least(500, 20).covers(&least(0, 21)));
        assert_eq!(least(500, 5).union(&least(200, 20)), least(500, 20));
    }

    #[test]
    fn how_long_a_headline_takes_is_bounded() {
        least(WARM_UP_MAX_MS, WINDOWS_MAX).validate().unwrap();
        assert!(least(WARM_UP_MAX_MS + 1, 0).validate().unwrap_err().contains("60000 ms"));
        assert!(least(0, WINDOWS_MAX + 1).validate().unwrap_err().contains("100 windows"));
    }

    #[test]
    fn asks_of_older_versions_are_read_and_the_usual_is_written_as_they_write_it() {
        let older = r#"{"streams":[1,4],"trace":true}"#;
        let ask: MeasureAsk = serde_json::from_str(older).unwrap();
        assert_eq!((ask.warm_up_ms, ask.min_windows), (0, 0));
        assert_eq!(serde_json::to_string(&ask).unwrap(), older);
        let asked = least(500, 20);
        assert_eq!(serde_json::from_str::<MeasureAsk>(&serde_json::to_string(&asked).unwrap()).unwrap(), asked);
    }
}
