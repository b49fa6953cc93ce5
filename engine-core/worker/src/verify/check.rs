//! Both checks of one engine, and what follows from them.

use super::{Independent, Second, accuracy, numerics};
use crate::measure::Clock;
use planforge_backend::{Cancel, Meter};
use planforge_graph::ir::Graph;
use planforge_report::{Accuracy, Finding, Numerics, OutputNumerics, Severity};
use planforge_types::{BackendError, FailureClass, NamedTensors, Precision, Reason};
use std::path::Path;

/// Code of the finding that the reference and an independent runtime disagree.
const DISAGREEMENT: &str = "oracles-disagree";

/// What there is to check an engine with.
#[derive(Clone, Copy)]
pub struct Check<'a> {
    /// The model as imported, or why it could not be.
    pub graph: Result<&'a Graph, &'a str>,
    /// Says what is right when the reference operators do not.
    pub independent: Option<Independent<'a>>,
    /// What the reference operators are held against, once per model; `None`: nobody asks.
    pub second: Option<Second<'a>>,
    /// Reference inputs, bound already.
    pub inputs: &'a NamedTensors,
    /// Labelled test set.
    pub eval: Option<&'a Path>,
    pub precision: Precision,
    /// Longest an oracle may take.
    pub budget_ms: f64,
    pub clock: &'a dyn Clock,
    pub cancel: &'a Cancel,
}

impl std::fmt::Debug for Check<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check").field("eval", &self.eval).field("precision", &self.precision).finish_non_exhaustive()
    }
}

/// What is known of an engine's outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub numerics: Option<Numerics>,
    pub accuracy: Option<Accuracy>,
    /// Nothing that was checked found the outputs wrong.
    pub accurate: bool,
    pub findings: Vec<Finding>,
}

impl Check<'_> {
    /// Checks the engine behind `meter`. Wrong outputs are a verdict, not an error; the accuracy check leaves the
    /// meter bound to other inputs.
    pub fn run(&self, meter: &mut dyn Meter) -> Result<Verdict, BackendError> {
        let mut verdict = Verdict { numerics: None, accuracy: None, accurate: true, findings: Vec::new() };
        let (numerics, instead) = super::numerics(meter, self)?;
        if let Some(reason) = instead {
            let message = format!("outputs were compared with {}: {reason}", numerics.oracle);
            verdict.add("oracle", Severity::Note, message);
        }
        verdict.judge_numerics(&numerics);
        verdict.judge_reference(&numerics, "");
        verdict.numerics = Some(numerics);
        if let Some(eval) = self.eval {
            match accuracy::TestSet::read(eval, &meter.inputs(), self.inputs) {
                Ok(set) => {
                    let accuracy = accuracy::measure(meter, &set, self.graph.ok(), self.clock, self.cancel)?;
                    verdict.judge_accuracy(&accuracy, self.precision);
                    verdict.accuracy = Some(accuracy);
                }
                // The engine is not to blame, and its key does not name the test set: the job goes on.
                Err(error) => verdict.add("test-set", Severity::Error, BackendError::from(error).message),
            }
        }
        Ok(verdict)
    }

    /// Checks the engine at other shapes, whose inputs are bound already; what comes of it is added to `verdict`. `at`
    /// names the shapes.
    pub fn also(&self, meter: &mut dyn Meter, at: &str, verdict: &mut Verdict) -> Result<(), BackendError> {
        let (numerics, _) = super::numerics(meter, self)?;
        verdict.judge_reference(&numerics, &format!("{at}: "));
        let fine = numerics::passes(&numerics.outputs, numerics.threshold);
        match &numerics.skipped {
            _ if !fine => {
                verdict.accurate = false;
                verdict.add("inaccurate", Severity::Error, format!("{at}: {}", describe(&numerics)));
            }
            Some(reason) => verdict.unverified_at(at, reason),
            None => {
                let (error, oracle) = (numerics.max_error, &numerics.oracle);
                let message = format!("{at}: outputs are right, off by {error:.1e} of their scale ({oracle})");
                verdict.add("verified", Severity::Note, message);
                verdict.note_allowances(&numerics, &format!("{at}: "));
            }
        }
        Ok(())
    }
}

/// How far an engine's accuracy may fall below the reference's on the same rows before it counts as wrong.
fn allowed_drop(precision: Precision) -> f64 {
    match precision {
        Precision::Fp32 | Precision::Tf32 => 0.005,
        Precision::Fp16 | Precision::Bf16 => 0.01,
        Precision::Int8 | Precision::Fp8 | Precision::Best => 0.02,
    }
}

impl Verdict {
    fn add(&mut self, code: &str, severity: Severity, message: String) {
        self.findings.push(Finding { code: code.into(), severity, message });
    }

    /// Notes that nothing said what is right at these shapes.
    pub(crate) fn unverified_at(&mut self, at: &str, reason: &str) {
        let message = format!("{at}: outputs were not compared with a reference: {reason}");
        self.add("unverified", Severity::Warning, message);
    }

    fn judge_numerics(&mut self, numerics: &Numerics) {
        if let Some(reason) = &numerics.skipped {
            self.add("unverified", Severity::Warning, format!("outputs were not compared with a reference: {reason}"));
            // Right or not, nobody can use such an output; zero is within every threshold.
            if !numerics::passes(&numerics.outputs, numerics.threshold) {
                self.accurate = false;
                self.add("inaccurate", Severity::Error, describe(numerics));
            }
        } else if !numerics.passed {
            self.accurate = false;
            self.add("inaccurate", Severity::Error, describe(numerics));
        } else {
            self.note_allowances(numerics, "");
        }
    }

    /// An engine is right by a reference that an independent runtime contradicts: nobody knows then whether it is.
    fn judge_reference(&mut self, numerics: &Numerics, at: &str) {
        let Some(agreement) = numerics.independent.as_ref().filter(|agreement| agreement.agrees == Some(false)) else {
            return;
        };
        self.accurate = false;
        let message = format!("{at}{}: {}", agreement.words(), agreement.disagreements.join("; "));
        self.add(DISAGREEMENT, Severity::Error, message);
    }

    /// Says which outputs are right only because of what their model does to small errors, and of what nothing can be
    /// said.
    fn note_allowances(&mut self, numerics: &Numerics, at: &str) {
        for output in &numerics.outputs {
            let Some(allowed) = &output.allowed else { continue };
            let (name, elements) = (&output.name, output.elements);
            match allowed.unjudged {
                0 => {
                    let off = off_by(output);
                    let message = format!("{at}output '{name}' {off}, which counts as right: {}", allowed.reason);
                    self.add("allowance", Severity::Note, message);
                }
                unjudged => {
                    let message = format!(
                        "{at}{unjudged} of the {elements} elements of output '{name}' cannot be judged on these inputs: {}; \
                         others may tell more (--inputs)",
                        allowed.reason
                    );
                    self.add("unverified", Severity::Warning, message);
                }
            }
        }
    }

    fn judge_accuracy(&mut self, accuracy: &Accuracy, precision: Precision) {
        let Some(reference) = accuracy.reference_top1 else { return };
        // One row is never proof.
        let allowed = allowed_drop(precision).max(1.0 / accuracy.rows.max(1) as f64);
        if accuracy.top1 < reference - allowed - 1e-12 {
            self.accurate = false;
            let message = format!(
                "top-1 accuracy is {:.2} %, where the reference reaches {:.2} % on the same {} rows",
                accuracy.top1 * 100.0,
                reference * 100.0,
                accuracy.rows
            );
            self.add("inaccurate", Severity::Error, message);
        }
    }

    /// The error an inaccurate engine ends its job with.
    pub fn refusal(&self) -> BackendError {
        let of = |code: &str| -> Vec<&str> {
            self.findings.iter().filter(|f| f.code == code).map(|f| f.message.as_str()).collect()
        };
        let (wrong, unknown) = (of("inaccurate"), of(DISAGREEMENT));
        let what = if wrong.is_empty() {
            "nobody knows whether the engine's outputs are right"
        } else {
            "the engine's outputs are wrong"
        };
        BackendError::new(FailureClass::Model, format!("{what}: {}", [wrong, unknown].concat().join("; ")))
            .with_hint("pass --allow-inaccurate to keep it; its report will say that it is inaccurate")
            .because(Reason::Inaccurate)
    }
}

/// How far an output is from the reference's.
fn off_by(output: &OutputNumerics) -> String {
    match output.whole_difference {
        Some(difference) => {
            format!("has {:.2} % of its elements wrong, by up to {difference}", output.max_error * 100.0)
        }
        None => {
            format!("is off by {:.2e} of its scale, by root mean square {:.2e}", output.max_error, output.relative_rms)
        }
    }
}

/// What an output's error was held against.
fn held_against(output: &OutputNumerics, threshold: f64) -> String {
    match (&output.allowed, output.whole_difference) {
        (Some(allowed), Some(_)) => format!(
            "of integers {:.2} % may differ by what was seen to, and no others: {}",
            allowed.max_error * 100.0,
            allowed.reason
        ),
        (Some(allowed), None) => format!(
            "more than {:.1e} and, on the whole, {:.1e} explain: {}",
            allowed.max_error, allowed.relative_rms, allowed.reason
        ),
        (None, Some(_)) => "integers have to be equal".to_owned(),
        (None, None) => format!("more than {threshold:.0e} explains"),
    }
}

/// The outputs that are wrong, and how.
fn describe(numerics: &Numerics) -> String {
    let wrong =
        numerics.outputs.iter().filter(|output| !numerics::passes(std::slice::from_ref(output), numerics.threshold));
    let lines: Vec<String> = wrong
        .map(|output| match (&output.problem, output.not_finite) {
            (Some(problem), _) => format!("output '{}': {problem}", output.name),
            (None, 0) if output.total_error > numerics.threshold => format!(
                "probabilities of output '{}' add up to a total that is off by {:.2e}: more than {:.0e} explains",
                output.name, output.total_error, numerics.threshold
            ),
            (None, 0) => {
                format!("output '{}' {}: {}", output.name, off_by(output), held_against(output, numerics.threshold))
            }
            (None, count) if numerics.skipped.is_some() => {
                format!("output '{}' has {count} values that are NaN or infinite", output.name)
            }
            (None, count) => format!(
                "output '{}' has {count} values that are NaN or infinite where the reference's are not, or the other way \
                 round",
                output.name
            ),
        })
        .collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accuracy(correct: u64, reference_top1: Option<f64>) -> Accuracy {
        Accuracy { rows: 1000, correct, top1: correct as f64 / 1000.0, reference_top1 }
    }

    #[test]
    fn accuracy_may_fall_a_little_and_no_further() {
        let judge = |correct, reference, precision| {
            let mut verdict = Verdict { numerics: None, accuracy: None, accurate: true, findings: Vec::new() };
            verdict.judge_accuracy(&accuracy(correct, reference), precision);
            verdict.accurate
        };
        assert!(judge(990, Some(0.99), Precision::Fp32));
        assert!(judge(985, Some(0.99), Precision::Fp32));
        assert!(!judge(984, Some(0.99), Precision::Fp32));
        assert!(judge(984, Some(0.99), Precision::Int8));
        assert!(judge(10, None, Precision::Fp32), "nothing to compare with");
    }

    #[test]
    fn a_refusal_says_which_output_and_how_far() {
        let output = planforge_report::OutputNumerics {
            name: "logits".into(),
            elements: 10,
            max_error: 0.31,
            relative_rms: 0.2,
            scale: 4.0,
            before_softmax: false,
            total_error: 0.0,
            ..planforge_report::OutputNumerics::default()
        };
        let numerics =
            Numerics { outputs: vec![output], skipped: None, ..crate::verify::not_compared(String::new(), 1e-3) };
        let mut verdict = Verdict { numerics: None, accuracy: None, accurate: true, findings: Vec::new() };
        verdict.judge_numerics(&numerics);
        assert!(!verdict.accurate);
        let refusal = verdict.refusal();
        assert_eq!(refusal.class, FailureClass::Model);
        assert_eq!(
            refusal.message,
            "the engine's outputs are wrong: output 'logits' is off by 3.10e-1 of its scale, by root mean square 2.00e-1: \
             more than 1e-3 explains"
        );
    }
}
