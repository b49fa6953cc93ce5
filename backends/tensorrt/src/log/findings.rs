//! What trtexec and the library say that a reader of the report should know, as findings with stable codes.
//!
//! A sentence is recognised by the part of it that has not changed between versions; the advice printed under it has.

use crate::log::{Level, Summary};
use planforge_report::{Finding, Severity};

/// How a sentence is recognised.
struct Rule {
    code: &'static str,
    severity: Severity,
    /// Least level the sentence is printed at; below it, it is an explanation.
    level: Level,
    /// All of these occur in the line, whatever the case.
    all: &'static [&'static str],
    message: &'static str,
}

/// Longest part of a line that a finding quotes.
const MAX_QUOTE_BYTES: usize = 400;

/// Every rule; the first that matches a line counts.
const RULES: &[Rule] = &[
    Rule {
        code: "unstable-compute",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["gpu compute time is unstable"],
        message: "compute times varied more than trtexec finds normal; clocks may not be steady",
    },
    Rule {
        code: "enqueue-bound",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["throughput may be bound by enqueue time"],
        message: "enqueuing took most of the compute time: the device waits for the host",
    },
    Rule {
        code: "transfer-in-bound",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["throughput may be bound by host-to-device"],
        message: "copying inputs to the device took as long as computing",
    },
    Rule {
        code: "transfer-out-bound",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["throughput may be bound by device-to-host"],
        message: "copying outputs to the host took as long as computing",
    },
    Rule {
        code: "several-streams",
        severity: Severity::Note,
        level: Level::Warning,
        all: &["multiple inference streams are used"],
        message: "several streams ran at once: throughput counts, single latencies do not compare",
    },
    Rule {
        code: "workspace-too-small",
        severity: Severity::Warning,
        level: Level::Info,
        all: &["tactics do not have sufficient workspace"],
        message: "some tactics were left out for want of workspace; a larger workspace may give a faster engine",
    },
    Rule {
        code: "workspace-too-small",
        severity: Severity::Warning,
        level: Level::Info,
        all: &["insufficient workspace"],
        message: "some tactics were left out for want of workspace; a larger workspace may give a faster engine",
    },
    Rule {
        code: "tactics-skipped-memory",
        severity: Severity::Warning,
        level: Level::Info,
        all: &["skipping tactic", "insufficient memory"],
        message: "tactics were skipped because the device had too little memory for them",
    },
    Rule {
        code: "tactics-skipped-memory",
        severity: Severity::Warning,
        level: Level::Info,
        all: &["memory is insufficient to use tactic"],
        message: "tactics were skipped because the device had too little memory for them",
    },
    Rule {
        code: "tactics-skipped-memory",
        severity: Severity::Warning,
        level: Level::Info,
        all: &["tactic device request", "available"],
        message: "tactics were skipped because the device had too little memory for them",
    },
    Rule {
        code: "weak-typing-deprecated",
        severity: Severity::Note,
        level: Level::Warning,
        all: &["weakly", "typed networks", "deprecated"],
        message: "precision flags are deprecated here and gone in TensorRT 11: type the model itself",
    },
    Rule {
        code: "application-clocks",
        severity: Severity::Note,
        level: Level::Info,
        all: &["application clock rates do not reflect the actual clock rates"],
        message: "the clock rates in the log are nominal, not what the device ran at",
    },
    Rule {
        code: "auxiliary-streams",
        severity: Severity::Note,
        level: Level::Warning,
        all: &["auxiliary streams", "may have run in parallel"],
        message: "layers ran in parallel on auxiliary streams: their times add up to more than the latency",
    },
    Rule {
        code: "shape-assumed",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["dynamic dimensions required for input", "no shapes were provided"],
        message: "an input with dynamic dimensions was built without shapes; unknown dimensions became 1",
    },
    Rule {
        code: "shape-assumed",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["shape missing for input with dynamic shape"],
        message: "an input with dynamic dimensions was run without a shape; unknown dimensions became 1",
    },
    Rule {
        code: "other-device-model",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["engine plan file across different models of devices"],
        message: "the plan was built on another model of device; it may be slower or fail here",
    },
    Rule {
        code: "plan-made-with-other-libraries",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["was linked against", "but loaded"],
        message: "a CUDA library is another version than the one this TensorRT was made with",
    },
    Rule {
        code: "lazy-loading-off",
        severity: Severity::Note,
        level: Level::Warning,
        all: &["cuda lazy loading is not enabled"],
        message: "CUDA loads every kernel at start; device memory use is higher than it need be",
    },
    Rule {
        code: "weights-beyond-half",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["weights", "converted to fp16"],
        message: "some weights do not fit half precision: subnormal, zero or overflowing after conversion",
    },
    Rule {
        code: "weights-beyond-half",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["weights", "affected by this issue", "fp16"],
        message: "some weights do not fit half precision: subnormal, zero or overflowing after conversion",
    },
    Rule {
        code: "half-overflow-risk",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["running layernorm", "fp16", "overflow"],
        message: "a normalisation runs in half precision after a reduction and may overflow",
    },
    Rule {
        code: "calibration-incomplete",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["missing scale and zero-point"],
        message: "tensors have no int8 scale; they run in another precision or with invented scales",
    },
    Rule {
        code: "calibration-invented",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["calibrator is not being used", "dynamic range"],
        message: "int8 ranges were not calibrated: outputs of this engine mean nothing, its times do",
    },
    Rule {
        code: "int64-narrowed",
        severity: Severity::Note,
        level: Level::Warning,
        all: &["int64 weights", "does not natively support int64"],
        message: "64-bit integer weights were narrowed to 32 bits",
    },
    Rule {
        code: "timing-cache-other-device",
        severity: Severity::Warning,
        level: Level::Warning,
        all: &["timing cache", "different"],
        message: "the timing cache was made on another kind of device; its timings may mislead the builder",
    },
    Rule {
        code: "weight-streaming",
        severity: Severity::Note,
        level: Level::Warning,
        all: &["weight streaming", "budget"],
        message: "weights are streamed from the host; latency includes their transfer",
    },
];

/// The finding a line is, quoting the line where its own words say more.
pub(crate) fn of_line(level: Level, body: &str) -> Option<Finding> {
    let body = quoted(body);
    let lower = body.to_ascii_lowercase();
    let rule = RULES.iter().find(|rule| level >= rule.level && rule.all.iter().all(|part| lower.contains(part)))?;
    let quote = body.trim_start_matches(['*', ' ']).trim_end();
    let message = format!("{} (\"{quote}\")", rule.message);
    Some(Finding { code: rule.code.to_owned(), severity: rule.severity, message })
}

/// As much of a line as a finding quotes, to the end of a word where there is one.
fn quoted(body: &str) -> &str {
    if body.len() <= MAX_QUOTE_BYTES {
        return body;
    }
    let begin = &body[..body.floor_char_boundary(MAX_QUOTE_BYTES)];
    if body[begin.len()..].starts_with(' ') {
        return begin;
    }
    begin.rfind(' ').map_or(begin, |end| &begin[..end])
}

/// What the summary's own numbers say where trtexec's thresholds would have spoken: logs lose their standard error.
pub fn of_summary(summary: &Summary) -> Vec<Finding> {
    // trtexec's own threshold.
    const ENQUEUE_SHARE: f64 = 0.8;
    let median = |row| summary.rows.get(row).map(|row| row.median_ms).filter(|median| median.is_finite());
    let Some(compute) = median(Summary::COMPUTE).filter(|compute| *compute > 0.0) else { return Vec::new() };
    let mut findings = Vec::new();
    let mut add = |code: &str, message: String| {
        findings.push(Finding { code: code.to_owned(), severity: Severity::Warning, message });
    };
    if let Some(enqueue) = median(Summary::ENQUEUE).filter(|enqueue| *enqueue > ENQUEUE_SHARE * compute) {
        add("enqueue-bound", format!("enqueuing took {enqueue} ms of the host for {compute} ms of computing"));
    }
    if let Some(time) = median(Summary::HOST_TO_DEVICE).filter(|time| *time >= compute) {
        add("transfer-in-bound", format!("copying inputs took {time} ms, computing {compute} ms"));
    }
    if let Some(time) = median(Summary::DEVICE_TO_HOST).filter(|time| *time >= compute) {
        add("transfer-out-bound", format!("copying outputs took {time} ms, computing {compute} ms"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LatencyRow;

    #[test]
    fn a_quote_ends_with_a_word() {
        let line = format!("Multiple inference streams are used {}", "tactics ".repeat(80));
        let message = of_line(Level::Warning, &line).unwrap().message;
        assert!(message.ends_with("tactics\")") && message.len() < MAX_QUOTE_BYTES + 200, "{message}");
        let endless = "x".repeat(1000);
        assert_eq!(quoted(&endless).len(), MAX_QUOTE_BYTES);
        assert_eq!(quoted("short and whole"), "short and whole");
    }

    fn code(level: Level, body: &str) -> Option<String> {
        of_line(level, body).map(|finding| finding.code)
    }

    #[test]
    fn warnings_of_all_generations_are_named() {
        for (level, body, expected) in [
            (
                Level::Warning,
                "* GPU compute time is unstable, with coefficient of variance = 3.5%.",
                "unstable-compute",
            ),
            (
                Level::Warning,
                "* Throughput may be bound by Enqueue Time rather than GPU Compute and the GPU may be under-utilized.",
                "enqueue-bound",
            ),
            (
                Level::Warning,
                "* Throughput may be bound by host-to-device transfers for the inputs rather than GPU Compute",
                "transfer-in-bound",
            ),
            (
                Level::Warning,
                "* Throughput may be bound by device-to-host transfers for the outputs rather than GPU Compute",
                "transfer-out-bound",
            ),
            (Level::Warning, "* Multiple inference streams are used. Latencies may not be accurate", "several-streams"),
            (
                Level::Info,
                "Some tactics do not have sufficient workspace memory to run. Increasing workspace size will enable",
                "workspace-too-small",
            ),
            (
                Level::Warning,
                "Skipping tactic 3 due to insufficient memory on requested size of 4194304 detected for tactic 0x1.",
                "tactics-skipped-memory",
            ),
            (
                Level::Warning,
                "Tactic Device request: 5000MB Available: 4000MB. Device memory is insufficient to use tactic.",
                "tactics-skipped-memory",
            ),
            (Level::Warning, "Weakly-typed networks have been deprecated. Please migrate", "weak-typing-deprecated"),
            (
                Level::Info,
                "Note: The application clock rates do not reflect the actual clock rates that the GPU is currently",
                "application-clocks",
            ),
        ] {
            assert_eq!(code(level, body).as_deref(), Some(expected), "{body}");
        }
    }

    #[test]
    fn explanations_at_lower_levels_are_not_findings() {
        assert_eq!(code(Level::Info, "* GPU compute time is unstable, with"), None);
        assert_eq!(code(Level::Verbose, "Some tactics do not have sufficient workspace memory to run."), None);
        assert_eq!(code(Level::Warning, "something else"), None);
    }

    #[test]
    fn the_numbers_speak_where_the_warnings_are_lost() {
        let row = |median_ms| LatencyRow { min_ms: 0.0, max_ms: 9.0, mean_ms: 1.0, median_ms, percentiles: vec![] };
        let mut summary = Summary::default();
        summary.rows.insert(Summary::COMPUTE, row(1.0));
        summary.rows.insert(Summary::ENQUEUE, row(0.8));
        summary.rows.insert(Summary::HOST_TO_DEVICE, row(1.0));
        let codes: Vec<_> = of_summary(&summary).into_iter().map(|finding| finding.code).collect();
        assert_eq!(codes, ["transfer-in-bound"]);
        summary.rows.insert(Summary::ENQUEUE, row(0.81));
        summary.rows.insert(Summary::DEVICE_TO_HOST, row(f64::NAN));
        assert_eq!(of_summary(&summary).len(), 2);
        summary.rows.insert(Summary::COMPUTE, row(0.0));
        assert!(of_summary(&summary).is_empty());
    }
}
