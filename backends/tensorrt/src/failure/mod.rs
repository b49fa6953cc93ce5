//! What went wrong in a run of trtexec, from how it ended and what it said.
//!
//! A log of a failure holds many errors: the cause, what follows from it, and messages that are normal in runs that
//! succeed. The cause is looked for in order of certainty, so that "no implementation" after "out of memory" is a
//! want of memory, and "empty engine" is told with the error before it.

mod device;
mod load;
mod model;
mod onnx;
mod process;
mod text;

use crate::{
    acceptance::{Exit, Rejected},
    log::{LogFacts, Message},
};
use planforge_types::{BackendError, FailureClass, Reason};

/// What the run was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A model was to become a plan.
    Build,
    /// A plan was to be loaded and run.
    Run,
}

/// A run that failed, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    pub step: Step,
    pub exit: Exit,
    /// What was wrong with the run or its result, where that was judged.
    pub rejected: Option<&'a Rejected>,
    pub facts: &'a LogFacts,
    /// The model's or plan's name, for the message.
    pub file: &'a str,
    /// The device's name, for the message.
    pub device: &'a str,
}

/// What kind of failure it was, with what the messages tell of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The ONNX parser gave up, at `node` where it said so.
    Parse {
        node: Option<Node>,
    },
    /// An operator that this version has no importer for.
    UnsupportedOperator {
        node: Node,
    },
    /// A plugin that is not there; with its name where it was said.
    PluginMissing {
        plugin: Option<String>,
    },
    /// No tactic for a node; `memory` when tactics had been left out for want of memory.
    NoImplementation {
        node: String,
        memory: bool,
    },
    DeviceMemory {
        requested_bytes: Option<u64>,
    },
    HostMemory {
        requested_bytes: Option<u64>,
    },
    /// The scratch disk was full or failed.
    Disk,
    /// The plan could not be written, for a reason that the tool does not tell.
    WritingPlan,
    /// This TensorRT has no code for the GPU, whose compute capability it may tell.
    UnknownGpu {
        capability: Option<String>,
    },
    /// The GPU has no hardware for a precision.
    Precision {
        precision: Option<String>,
    },
    /// Weights outside of the model's file, or inside in a form that is not read.
    MissingWeights,
    /// The plan's format or library version is another one's.
    PlanVersion {
        runtime: Option<String>,
        plan: Option<String>,
    },
    /// Not a plan, or a damaged one.
    PlanDamaged,
    /// The plan is for another compute capability.
    WrongDevice {
        device: Option<String>,
        plan: Option<String>,
    },
    /// An optimization profile that is none, or does not fit the network.
    InvalidProfile {
        tensor: Option<String>,
    },
    /// The shapes given make a dimension of the network negative.
    NegativeDimension {
        tensor: Option<String>,
    },
    /// Shapes that the model or the plan's profiles do not take.
    Shape {
        tensor: Option<String>,
    },
    Calibration,
    UnknownOption {
        option: String,
    },
    /// A shared library that the loader did not find or could not use.
    MissingLibrary {
        library: String,
    },
    /// The CUDA driver is missing, too old, or sees no such device.
    Driver,
    /// CUDA itself failed while running.
    Cuda,
    /// A kernel of the engine, or one that was timed for it, failed while running.
    Kernel,
    TimingCache,
    /// TensorRT's graph compiler gave up.
    Myelin,
    /// The library's own.
    Assertion,
    /// The tool's own, by the C library: it says nothing of what came before.
    ToolAssertion,
    EmptyEngine,
    /// The log holds what trtexec prints when a load failed, and no reason.
    Load,
    TimedOut,
    Hung,
    /// A signal from elsewhere.
    Killed {
        signal: i32,
    },
    /// Crashed by itself.
    Crashed {
        signal: i32,
    },
    /// None of the above; the message quotes the last error.
    Other,
}

/// A node of the model, as the parser names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub index: Option<u64>,
    pub name: String,
    pub operator: String,
    /// Operator set's domain where it is not the standard one.
    pub domain: String,
}

/// Whether and where trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same input fails the same way everywhere.
    Never,
    /// It may well work here the next time.
    Again,
    /// It may work on another host or after this one was repaired.
    Elsewhere,
    /// It may work with more memory, or with less asked for.
    WithMoreMemory,
    /// It may work with another TensorRT version.
    OtherVersion,
}

/// A failure with all that a user is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    pub class: FailureClass,
    pub retry: Retry,
    /// What happened, to which node, file or device.
    pub message: String,
    /// What to do next.
    pub hint: String,
    /// The line that it was told from.
    pub evidence: String,
}

impl From<Failure> for BackendError {
    fn from(failure: Failure) -> Self {
        let unsupported = failure.kind.is_unsupported();
        let told = Self::new(failure.class, failure.message).with_hint(failure.hint);
        if unsupported { told.because(Reason::Unsupported) } else { told }
    }
}

impl FailureKind {
    /// Whether it says of TensorRT what it cannot build, and nothing against the model.
    fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Self::UnsupportedOperator { .. }
                | Self::PluginMissing { .. }
                | Self::Parse { node: Some(_) }
                | Self::NoImplementation { memory: false, .. }
                | Self::Myelin
                | Self::Assertion
        )
    }
}

/// A kind that was found, before it is put into words.
#[derive(Debug)]
struct Found {
    kind: FailureKind,
    evidence: String,
}

impl Found {
    fn new(kind: FailureKind, evidence: &str) -> Self {
        // Enough of a line to recognise it by.
        const MAX_EVIDENCE_BYTES: usize = 600;
        let evidence = evidence.trim();
        Self { kind, evidence: evidence[..evidence.floor_char_boundary(MAX_EVIDENCE_BYTES)].to_owned() }
    }
}

/// Says why a run failed. Call it only for runs that did.
pub fn diagnose(ended: &Ended<'_>) -> Failure {
    let messages = Messages::of(ended.facts);
    let looked_for = [
        process::stopped,
        device::disk,
        load::not_whole,
        process::missing_library,
        process::unknown_option,
        device::unknown_gpu,
        device::precision,
        onnx::missing_weights,
        onnx::parse,
        model::negative_dimension,
        model::invalid_profile,
        model::shape,
        model::calibration,
        load::incompatible,
        device::driver,
        device::memory,
        model::myelin_exception,
        model::no_implementation,
        load::timing_cache,
        device::kernel,
        device::cuda,
        model::myelin,
        load::damaged,
        load::empty_engine,
        process::tool_assertion,
        process::assertion,
        load::unexplained,
        load::writing,
        process::signalled,
    ];
    let found = looked_for.iter().find_map(|look| look(ended, &messages));
    let found = found.unwrap_or_else(|| Found::new(FailureKind::Other, &messages.first_cause()));
    text::describe(ended, found)
}

/// Everything a run said that may tell why it failed.
#[derive(Debug)]
struct Messages<'a> {
    errors: Vec<&'a Message>,
    warnings: Vec<&'a Message>,
}

impl<'a> Messages<'a> {
    fn of(facts: &'a LogFacts) -> Self {
        Self {
            errors: facts.errors.iter().chain(facts.loose.iter()).collect(),
            warnings: facts.warnings.iter().collect(),
        }
    }

    /// The first error with any of `parts` in it, whatever the case.
    fn error(&self, parts: &[&str]) -> Option<&'a Message> {
        first_with(&self.errors, parts)
    }

    fn warning(&self, parts: &[&str]) -> Option<&'a Message> {
        first_with(&self.warnings, parts)
    }

    /// The first error that is more than the tool's way out; else the first of those.
    fn first_cause(&self) -> String {
        let telling = self.errors.iter().find(|message| !is_way_out(&message.text));
        telling.or(self.errors.first()).map(|message| message.text.clone()).unwrap_or_default()
    }
}

/// What the tool prints on its way out of whatever went wrong.
fn is_way_out(text: &str) -> bool {
    const WAY_OUT: [&str; 22] = [
        "engine set up failed",
        "failed to create engine from model or file",
        "building engine failed",
        "engine could not be created from network",
        "engine creation failed",
        "parsing model failed",
        "failed to parse onnx file",
        "network and config setup failed",
        "network creation failed",
        "inference set up failed",
        "error occurred during inference",
        "inference enqueue failed",
        "unable to create execution context",
        "got invalid engine",
        "got invalid safeengine",
        "engine deserialization failed",
        "safeengine deserialization failed",
        "saving engine to file failed",
        "engine refit failed",
        "runtime creation failed",
        "assertion failure: false && \"attempting to access an empty engine",
        "cuda stream creation failed",
    ];
    let text = text.trim().to_ascii_lowercase();
    WAY_OUT.iter().any(|words| text.starts_with(words))
}

/// What a name in a message ends with, and what it is quoted in.
fn tensor_name(name: &str) -> Option<String> {
    let name = name.trim_matches(['"', '\'', '.', ',', ':', ' ', '(', ')', '`']);
    (!name.is_empty() && name.len() <= 512).then(|| name.to_owned())
}

fn first_with<'a>(messages: &[&'a Message], parts: &[&str]) -> Option<&'a Message> {
    messages.iter().copied().find(|message| {
        let text = message.text.to_ascii_lowercase();
        parts.iter().any(|part| text.contains(part))
    })
}

/// The number before ` bytes` or a memory unit, in bytes.
fn bytes_in(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 7] = [
        ("bytes", 1),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("KB", 1 << 10),
        ("MB", 1 << 20),
        ("GB", 1 << 30),
    ];
    let starts = text.char_indices().filter(|(at, first)| {
        first.is_ascii_digit() && !text[..*at].ends_with(|before: char| before.is_ascii_alphanumeric() || before == '.')
    });
    for (start, _) in starts {
        let digits = text[start..].split(|c: char| !c.is_ascii_digit()).next()?;
        let rest = text[start + digits.len()..].trim_start();
        let unit = UNITS.iter().find(|(unit, _)| rest.starts_with(unit));
        if let (Ok(number), Some((_, scale))) = (digits.parse::<u64>(), unit) {
            return number.checked_mul(*scale);
        }
    }
    None
}

/// What stands between `before` and `after` in `text`.
fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let rest = text.split_once(before)?.1;
    Some(rest.split_once(after).map_or(rest, |(inside, _)| inside))
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod sources;
