//! What a test wants of the stand-in: a JSON file beside the program, or named by [`SCENARIO_VARIABLE`].

use super::version::Version;
use serde::{Deserialize, Serialize};
use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
};

/// Environment variable that names a scenario file; without it the file beside the program counts.
pub const SCENARIO_VARIABLE: &str = "STANDIN_TRTEXEC_SCENARIO";

/// Name of the scenario file beside the program.
pub const SCENARIO_FILE: &str = "scenario.json";

/// Every run's process id and arguments, a JSON object a line, in the scenario's folder.
pub const CALLS_FILE: &str = "calls.jsonl";

/// A GPU as the tool describes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Gpu {
    pub name: String,
    pub uuid: String,
    pub compute_capability: (u32, u32),
    pub sms: u32,
    pub memory_mib: u64,
    pub shared_kib: u32,
    pub bus_bits: u32,
    pub ecc: bool,
    pub clock_ghz: f64,
    pub memory_ghz: f64,
}

/// How long things would take.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Timing {
    /// Usual GPU compute time at the usual shapes.
    pub compute_ms: f64,
    /// Standard deviation of one query, relative.
    pub spread: f64,
    /// Share of queries that take half as long again.
    pub outliers: f64,
    /// Standard deviation between plans of one model, relative: what tactic choice does.
    pub between_builds: f64,
    pub h2d_ms: f64,
    pub d2h_ms: f64,
    pub enqueue_ms: f64,
    /// Streams from which more of them bring nothing.
    pub stream_knee: u32,
    /// Seconds that a build says it took, without and with a timing cache that knows the model.
    pub build_s: f64,
    pub warm_build_s: f64,
    pub seed: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            compute_ms: 1.0,
            spread: 0.004,
            outliers: 0.005,
            between_builds: 0.0,
            h2d_ms: 0.05,
            d2h_ms: 0.02,
            enqueue_ms: 0.03,
            stream_knee: 3,
            build_s: 24.0,
            warm_build_s: 6.0,
            seed: 1,
        }
    }
}

/// When something happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Before a word is said, `--help` included.
    Start,
    /// While a model is built.
    Build,
    /// While a plan is loaded or run.
    Load,
    #[default]
    Any,
}

/// What happens.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Behaviour {
    /// Every output is off by a part of its size.
    WrongOutputs,
    NanOutputs,
    ParseError {
        node: String,
    },
    UnsupportedOperator {
        operator: String,
    },
    NoImplementation {
        node: String,
    },
    /// As above, after tactics were skipped for want of memory.
    NoImplementationForMemory {
        node: String,
        requested_mib: u64,
    },
    OutOfMemory {
        requested_bytes: u64,
    },
    /// The plan's layout is another version's.
    VersionTag {
        plan_tag: u32,
    },
    /// The plan is for another compute capability.
    WrongDevice {
        plan: (u32, u32),
    },
    BadShape {
        input: String,
    },
    CalibrationMissing,
    /// Sleeps for ever and ignores SIGTERM.
    Hang,
    /// Takes that long for the work, really.
    Slow {
        ms: u64,
    },
    /// Ends by a signal, without a verdict.
    Crash,
    /// The builder fails unnoticed and leaves a file of no bytes.
    EmptyEngine,
    /// The builder says this, and the tool goes its usual way out.
    Fails {
        text: String,
    },
    /// The build passes, and the disk keeps half of the plan.
    CutPlan,
    /// Exports are cut off in the middle.
    GarbageExports,
    HugeLog {
        bytes: u64,
    },
    MissingLibrary {
        library: String,
    },
    /// The plan does not load, and the run ends PASSED all the same.
    UnreadableYetPassed,
}

/// One thing that happens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rule {
    /// Only for models whose graph's name holds this; empty: for every one.
    #[serde(default)]
    pub graph: String,
    #[serde(default)]
    pub phase: Phase,
    /// Only so many times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    #[serde(flatten)]
    pub behaviour: Behaviour,
}

/// Which GPU a run selects, and whether it says so.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Selects {
    /// Of runs that build: this one, whatever they are shown.
    pub building: Option<Gpu>,
    /// The same of runs that load a plan.
    pub loading: Option<Gpu>,
    /// The log has no device section, as if a version had worded it anew.
    pub unsaid: bool,
}

/// A whole scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scenario {
    pub version: Version,
    pub gpus: Vec<Gpu>,
    #[serde(default)]
    pub selects: Selects,
    #[serde(default)]
    pub timing: Timing,
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// Outputs to export instead of those computed: `{"name": [values]}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<PathBuf>,
}

impl Scenario {
    /// The scenario of this process, with the folder it lies in.
    pub fn find(program: &str) -> Result<(Self, PathBuf), String> {
        let file = match env::var_os(SCENARIO_VARIABLE) {
            Some(file) => PathBuf::from(file),
            None => {
                // The name it was called by first: a link stands for the folder it lies in.
                let by_name = Path::new(program).parent().filter(|p| !p.as_os_str().is_empty()).map(Path::to_owned);
                let itself = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
                let folders = [by_name, itself];
                let found = folders.into_iter().flatten().map(|f| f.join(SCENARIO_FILE)).find(|f| f.is_file());
                found.ok_or_else(|| format!("no {SCENARIO_FILE} beside {program}, and no {SCENARIO_VARIABLE}"))?
            }
        };
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let scenario = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let folder = file.parent().unwrap_or(Path::new(".")).to_owned();
        Ok((scenario, folder))
    }

    /// Writes the scenario beside a program in `folder`, whole or not at all.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        let staged = folder.join("scenario.staged");
        fs::write(&staged, serde_json::to_vec_pretty(self)?)?;
        fs::rename(staged, folder.join(SCENARIO_FILE))
    }

    /// What happens to `graph` in `phase`; counts rules that happen only so many times.
    pub fn rule(&self, graph: &str, phase: Phase, folder: &Path) -> Option<Behaviour> {
        for (index, rule) in self.rules.iter().enumerate() {
            // Nothing that concerns a model happens before there is one.
            let fits = rule.phase == phase || (rule.phase == Phase::Any && phase != Phase::Start);
            if !fits || !graph.contains(&rule.graph) {
                continue;
            }
            let Some(times) = rule.times else { return Some(rule.behaviour.clone()) };
            let count = folder.join(format!("rule-{index}.count"));
            let before = fs::metadata(&count).map_or(0, |facts| facts.len());
            if before < u64::from(times) {
                let appended =
                    fs::File::options().create(true).append(true).open(&count).and_then(|mut f| f.write_all(b"x"));
                if appended.is_ok() {
                    return Some(rule.behaviour.clone());
                }
            }
        }
        None
    }
}

/// Notes this run and says how many came before.
pub fn record_call(folder: &Path, arguments: &[String]) -> u64 {
    let file = folder.join(CALLS_FILE);
    let before = fs::read_to_string(&file).map_or(0, |text| text.lines().count() as u64);
    let line = serde_json::json!({ "pid": std::process::id(), "arguments": arguments });
    let appended = fs::File::options()
        .create(true)
        .append(true)
        .open(&file)
        .and_then(|mut f| f.write_all(format!("{line}\n").as_bytes()));
    // A folder that cannot be written to only costs the test its record.
    let _ = appended;
    before
}
