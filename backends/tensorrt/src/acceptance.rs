//! When a build counts: exit status, verdict line, log and plan must all say so.
//!
//! None of them is enough alone. Some versions end with success although the engine does not load, others leave an
//! empty or partial file where a plan should be, and assertions end a run without any verdict line.

use crate::{
    log::{Level, LogFacts, Message, Verdict},
    plan::{PlanError, PlanHeader, PlanLayout},
    plugins,
};
use planforge_report::{Finding, Severity};
use planforge_tensorrt_rules::version::Version;

/// How the process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    /// Ended by a signal that this program did not send.
    Signal(i32),
    /// Ended by this program: its time was up.
    TimedOut {
        limit_ms: u64,
    },
    /// Ended by this program: it printed nothing and used no processor for this long.
    Hung {
        silent_ms: u64,
    },
    /// Ended by this program: it used more of the host's memory than allowed.
    OverMemory {
        limit_bytes: u64,
    },
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::TimedOut { limit_ms } => write!(f, "stopped after {} s", limit_ms / 1000),
            Self::Hung { silent_ms } => write!(f, "stopped after {} s without any sign of life", silent_ms / 1000),
            Self::OverMemory { limit_bytes } => write!(f, "stopped above {} MiB of memory", limit_bytes >> 20),
        }
    }
}

/// Why a build does not count although something may lie where its plan should be.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    #[error("trtexec ended with {0}")]
    Exit(Exit),
    #[error("trtexec's verdict is FAILED")]
    Failed,
    #[error("trtexec ended without a verdict line, as it does when it crashes")]
    NoVerdict,
    #[error("trtexec passed although the engine does not load: {0}")]
    NotLoadable(String),
    #[error("trtexec passed although a plugin library was not loaded: {0}")]
    PluginNotLoaded(String),
    #[error("trtexec made an empty engine")]
    EmptyEngine,
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("the plan was written by TensorRT {found}, not by the {expected} that was run")]
    OtherVersion { found: String, expected: Version },
}

/// A plan that counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    pub header: PlanHeader,
    /// What is odd about it all the same.
    pub findings: Vec<Finding>,
}

/// Judges a run that only measured or loaded: exit status, verdict and log.
pub fn judge_run(exit: Exit, facts: &LogFacts) -> Result<(), Rejected> {
    if exit != Exit::Code(0) {
        return Err(Rejected::Exit(exit));
    }
    match facts.verdict.as_ref().map(|line| line.verdict) {
        Some(Verdict::Passed) => {}
        Some(Verdict::Failed) => return Err(Rejected::Failed),
        None => return Err(Rejected::NoVerdict),
    }
    if let Some(message) = plugins::lost_plugin(facts) {
        return Err(Rejected::PluginNotLoaded(message.text.clone()));
    }
    match facts.errors.iter().find(|message| is_load_error(message)) {
        Some(message) => Err(Rejected::NotLoadable(message.text.clone())),
        None => Ok(()),
    }
}

/// Judges a build: the run, and the header of the plan it wrote.
pub fn judge_build(exit: Exit, facts: &LogFacts, plan: Result<PlanHeader, PlanError>) -> Result<Accepted, Rejected> {
    judge_run(exit, facts)?;
    if facts.engine.size_mib == Some(0.0) {
        return Err(Rejected::EmptyEngine);
    }
    let header = plan?;
    if let Some(expected) = facts.version()
        && header.is_of(expected) == Some(false)
    {
        let found = header.version_text().unwrap_or_default();
        return Err(Rejected::OtherVersion { found, expected });
    }
    let mut findings = Vec::new();
    let mut add = |code: &str, message: String| {
        findings.push(Finding { code: code.to_owned(), severity: Severity::Warning, message });
    };
    if header.layout == PlanLayout::Unknown {
        add(
            "plan-layout-unknown",
            "the plan's header has a layout that is not known: whether it is whole was not checked".into(),
        );
    }
    if header.wrapper_bytes.is_some() {
        add(
            "plan-wrapped",
            "a description lies in front of the plan; TensorRT itself does not load such a file".into(),
        );
    }
    if facts.errors.seen() > 0 {
        let first = facts.errors.iter().next().map_or("", |message| first_line(&message.text));
        add(
            "errors-in-log",
            format!("the build passed with {} error lines in its log; the first: {first}", facts.errors.seen()),
        );
    }
    Ok(Accepted { header, findings })
}

fn is_load_error(message: &Message) -> bool {
    let text = message.text.to_ascii_lowercase();
    message.level.is_some_and(|level| level >= Level::Error)
        && (text.contains("deserializ") || text.contains("got invalid engine"))
}

pub(crate) fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{LogReader, Stream};

    const PASSED: &str = "&&&& PASSED TensorRT.trtexec [TensorRT v101401] [b48] # trtexec\n";

    fn facts(text: &str) -> LogFacts {
        let mut reader = LogReader::new();
        reader.feed(Stream::Merged, text.as_bytes());
        reader.finish()
    }

    fn header(version: [u8; 4]) -> PlanHeader {
        PlanHeader {
            layout: PlanLayout::Framed,
            file_bytes: 100,
            version: Some(version),
            tag: Some(240),
            wrapper_bytes: None,
        }
    }

    const GOOD: [u8; 4] = [10, 14, 1, 48];

    #[test]
    fn everything_must_agree() {
        let accepted = judge_build(Exit::Code(0), &facts(PASSED), Ok(header(GOOD))).unwrap();
        assert!(accepted.findings.is_empty());
        let reject = |exit, text: &str, plan| judge_build(exit, &facts(text), plan).unwrap_err();
        assert!(matches!(reject(Exit::Code(1), PASSED, Ok(header(GOOD))), Rejected::Exit(Exit::Code(1))));
        assert!(matches!(reject(Exit::Signal(6), PASSED, Ok(header(GOOD))), Rejected::Exit(_)));
        assert!(matches!(reject(Exit::Code(0), "", Ok(header(GOOD))), Rejected::NoVerdict));
        let failed = PASSED.replace("PASSED", "FAILED");
        assert!(matches!(reject(Exit::Code(0), &failed, Ok(header(GOOD))), Rejected::Failed));
        assert!(matches!(reject(Exit::Code(0), PASSED, Err(PlanError::Empty)), Rejected::Plan(PlanError::Empty)));
        let other = reject(Exit::Code(0), PASSED, Ok(header([10, 13, 0, 35])));
        assert_eq!(
            other.to_string(),
            "the plan was written by TensorRT 10.13.0.35, not by the 10.14.1.48 that was run"
        );
    }

    #[test]
    fn false_successes_are_seen_through() {
        let text = format!("[E] Engine deserialization failed\n{PASSED}");
        let rejected = judge_build(Exit::Code(0), &facts(&text), Ok(header(GOOD))).unwrap_err();
        assert!(matches!(rejected, Rejected::NotLoadable(_)));
        let text = format!("[I] Created engine with size: 0 MiB\n{PASSED}");
        let rejected = judge_build(Exit::Code(0), &facts(&text), Ok(header(GOOD))).unwrap_err();
        assert!(matches!(rejected, Rejected::EmptyEngine));
    }

    #[test]
    fn a_plugin_that_was_not_loaded_is_no_success() {
        let run = |error: &str| {
            let command = "trtexec --onnx=a.onnx --dynamicPlugins=/p/libmine.so";
            facts(&format!(
                "&&&& RUNNING TensorRT.trtexec [TensorRT v101401] [b48] # {command}\n{error}\n\
                 &&&& PASSED TensorRT.trtexec [TensorRT v101401] [b48] # {command}\n"
            ))
        };
        for error in [
            "[E] Could not load plugin library: /p/libmine.so",
            "[E] Could not load library /p/libmine.so: undefined symbol",
        ] {
            let rejected = judge_run(Exit::Code(0), &run(error)).unwrap_err();
            assert!(matches!(rejected, Rejected::PluginNotLoaded(_)), "{rejected}");
        }
        // Another library than a plugin of this run is the library's own affair.
        assert!(judge_run(Exit::Code(0), &run("[E] [TRT] Unable to load library: libcudnn_ops.so.8")).is_ok());
    }

    #[test]
    fn what_is_odd_is_told() {
        let text = format!("[E] Error[2]: skipped\nmore\n{PASSED}");
        let plan = PlanHeader { layout: PlanLayout::Unknown, version: None, ..header(GOOD) };
        let accepted = judge_build(Exit::Code(0), &facts(&text), Ok(plan)).unwrap();
        let codes: Vec<_> = accepted.findings.iter().map(|finding| finding.code.as_str()).collect();
        assert_eq!(codes, ["plan-layout-unknown", "errors-in-log"]);
    }
}
