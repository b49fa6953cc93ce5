//! Correctness travels with speed: is what a plan computes right, and how right?
//!
//! Two questions, answered apart. *Numerics*: do the outputs on made-up inputs agree with what is right, as far as the
//! precision allows? *Accuracy*: on labelled rows, how often is the first guess right?
//!
//! What is right say the reference operators; where they refuse the model or are too slow, another backend that has an
//! oracle says it. Outputs that differ by more than the precision explains are held against the same oracle rounded in
//! other ways (`rounding`): what those runs differ by among themselves is no fault of the engine's (`spread`). That the
//! reference reads the model as others do is compared once per model, where an independent runtime is present
//! (`agreement`).

pub mod accuracy;
mod agreement;
mod check;
#[cfg(test)]
mod every_element_tests;
pub mod given;
pub mod inputs;
pub mod numerics;
mod places;
#[cfg(test)]
mod quantized_tests;
mod rounding;
mod spread;

pub use agreement::{Agreements, Second};
pub use check::{Check, Verdict};

use crate::measure::Clock;
use planforge_backend::{Cancel, Meter, Oracle};
use planforge_graph::{
    interpreter,
    ir::{Graph, Tensor, TensorError},
    reference::OpError,
};
use planforge_report::Numerics;
use planforge_types::{BackendError, FailureClass, HostTensor, NamedTensors, Precision};
use spread::Spread;
use std::{collections::BTreeMap, ops::ControlFlow, path::Path, time::Duration};

/// What the reference operators are called in reports.
pub const ORACLE: &str = "reference operators";

/// Longest the reference may take on one set of inputs. It computes plainly, one element after another: beyond this
/// the check is left out and the report says so.
pub const ORACLE_BUDGET_MS: f64 = 60_000.0;

/// Longest the reference may take where another oracle, which is faster, is there for when it is too slow.
const QUICK_BUDGET_MS: f64 = 5_000.0;

/// Another backend's oracle, and the model it is to run.
#[derive(Clone, Copy)]
pub struct Independent<'a> {
    pub oracle: &'a dyn Oracle,
    /// The ONNX file.
    pub model: &'a Path,
}

impl std::fmt::Debug for Independent<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Independent").field("oracle", &self.oracle.name()).field("model", &self.model).finish()
    }
}

fn cancelled() -> BackendError {
    BackendError::new(FailureClass::Infrastructure, "verification was cancelled")
}

/// How the reference's run ended.
#[derive(Debug)]
pub enum OracleEnd {
    Outputs(NamedTensors),
    /// It could not say what is right, for this reason.
    Silent(String),
}

/// As the reference operators take them.
fn tensors(inputs: &NamedTensors) -> Result<BTreeMap<String, Tensor>, TensorError> {
    inputs.iter().map(|(name, tensor)| Ok((name.clone(), Tensor::try_from(tensor.clone())?))).collect()
}

/// Runs the reference operators on `inputs`, for at most `budget_ms`.
pub fn reference(
    graph: &Graph,
    inputs: &NamedTensors,
    budget_ms: f64,
    clock: &dyn Clock,
    cancel: &Cancel,
) -> Result<OracleEnd, BackendError> {
    let began_ms = clock.now_ms();
    let over = || clock.now_ms() - began_ms > budget_ms;
    let tensors = match tensors(inputs) {
        Ok(tensors) => tensors,
        Err(error) => return Ok(OracleEnd::Silent(error.to_string())),
    };
    let mut observer = |_, _: &Tensor| match cancel.is_cancelled() || over() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    match interpreter::execute_observed(graph, &tensors, &mut observer) {
        Ok(outputs) => Ok(OracleEnd::Outputs(
            outputs.iter().map(|(name, tensor)| (name.clone(), HostTensor::from(tensor))).collect(),
        )),
        Err(OpError::Stopped) if cancel.is_cancelled() => Err(cancelled()),
        Err(OpError::Stopped) => {
            Ok(OracleEnd::Silent(format!("the {ORACLE} took longer than {:.0} s", budget_ms / 1e3)))
        }
        Err(error) => Ok(OracleEnd::Silent(format!("the {ORACLE} failed: {error}"))),
    }
}

/// What there is to compare an engine's outputs with.
struct Expected {
    /// Who says it.
    oracle: String,
    end: OracleEnd,
    /// Why it was not the reference operators.
    instead: Option<String>,
}

/// Asks the reference operators, and when they are silent the independent oracle.
fn expected(check: &Check<'_>) -> Result<Expected, BackendError> {
    let budget_ms = if check.independent.is_some() { QUICK_BUDGET_MS.min(check.budget_ms) } else { check.budget_ms };
    let end = match check.graph {
        Ok(graph) => reference(graph, check.inputs, budget_ms, check.clock, check.cancel)?,
        Err(reason) => OracleEnd::Silent(reason.to_owned()),
    };
    let (reason, Independent { oracle, model }) = match (end, check.independent) {
        (OracleEnd::Silent(reason), Some(independent)) => (reason, independent),
        (end, _) => return Ok(Expected { oracle: ORACLE.into(), end, instead: None }),
    };
    let limit = Duration::from_secs_f64(check.budget_ms.max(0.0) / 1e3);
    match oracle.outputs(model, check.inputs, limit, check.cancel) {
        Ok(outputs) => Ok(Expected { oracle: oracle.name(), end: OracleEnd::Outputs(outputs), instead: Some(reason) }),
        Err(_) if check.cancel.is_cancelled() => Err(cancelled()),
        Err(error) => {
            let reason = format!("{reason}; nor could {} say: {error}", oracle.name());
            Ok(Expected { oracle: ORACLE.into(), end: OracleEnd::Silent(reason), instead: None })
        }
    }
}

/// Compares one run of `meter`, whose inputs are bound already, with what is right. Also why that was not said by the
/// reference operators, where it was not.
pub(crate) fn numerics(meter: &mut dyn Meter, check: &Check<'_>) -> Result<(Numerics, Option<String>), BackendError> {
    let began_ms = check.clock.now_ms();
    let Expected { oracle, end, instead } = expected(check)?;
    let oracle_ms = check.clock.now_ms() - began_ms;
    let threshold = numerics::threshold(check.precision);
    let expected = match end {
        OracleEnd::Outputs(expected) => expected,
        OracleEnd::Silent(reason) => {
            return Ok((Numerics { oracle_ms, ..unverified(meter, reason, check.precision)? }, None));
        }
    };
    let softmaxes = check.graph.map(numerics::final_softmaxes).unwrap_or_default();
    // Where the runtime itself says what is right, there is nothing to hold it against.
    let independent = match (&instead, &check.second) {
        (None, Some(second)) => Some(agreement::held(check, second, &expected, &softmaxes)?),
        _ => None,
    };
    let given = meter.run()?;
    let mut outputs = numerics::compare(&given, &expected, &softmaxes);
    if let (Ok(graph), None, Ok(inputs)) = (check.graph, &instead, tensors(check.inputs)) {
        let until_ms = began_ms + check.budget_ms;
        let stop = || check.cancel.is_cancelled() || check.clock.now_ms() > until_ms;
        places::judge(&mut outputs, graph, &inputs, [&given, &expected], threshold, &stop);
    }
    if !numerics::passes(&outputs, threshold) {
        let spread = spread(check, instead.is_some(), false, &expected, &softmaxes)?;
        spread.judge(&mut outputs, &given, &expected, &softmaxes, threshold);
    }
    let passed = numerics::passes(&outputs, threshold);
    let max_error = outputs.iter().map(|output| output.max_error).fold(0.0, f64::max);
    let compared = Numerics {
        oracle,
        oracle_ms,
        outputs,
        max_error,
        passed,
        skipped: None,
        independent,
        ..not_compared(String::new(), threshold)
    };
    Ok((compared, instead))
}

/// By how much an independent oracle's inputs are moved, of themselves: it lets nobody into what it does with them.
const NUDGE: f64 = 4e-6;

/// Asks whoever said what is right how far apart outputs may lie that are all right, for as long as an oracle may take.
fn spread(
    check: &Check<'_>,
    independently: bool,
    integer_softmax: bool,
    reference: &NamedTensors,
    softmaxes: &BTreeMap<String, usize>,
) -> Result<Spread, BackendError> {
    let began_ms = check.clock.now_ms();
    let left_ms = || check.budget_ms - (check.clock.now_ms() - began_ms);
    let graph = check.graph.ok();
    let mut spread = Spread::new(
        if independently {
            "the oracle on inputs moved by their last digits"
        } else {
            "the reference, rounded otherwise"
        },
        graph.is_some_and(rounding::is_quantized),
        graph.map(rounding::output_steps).unwrap_or_default(),
    );
    let Ok(tensors) = tensors(check.inputs) else { return Ok(spread) };
    for run in 0..spread::RUNS {
        let seed = inputs::REFERENCE_SEED.wrapping_add(run);
        let outputs = match (check.independent.filter(|_| independently), graph) {
            (Some(Independent { oracle, model }), _) => {
                let noise = rounding::noise(check.precision).max(NUDGE);
                let limit = Duration::from_secs_f64(left_ms().max(0.0) / 1e3);
                let moved = rounding::nudged(check.inputs, noise, seed);
                moved.ok().and_then(|inputs| oracle.outputs(model, &inputs, limit, check.cancel).ok())
            }
            (None, Some(graph)) => {
                let stop = || check.cancel.is_cancelled() || left_ms() <= 0.0;
                rounding::outputs(graph, &tensors, check.precision, integer_softmax, seed, &stop).ok()
            }
            (None, None) => None,
        };
        if check.cancel.is_cancelled() {
            return Err(cancelled());
        }
        match outputs {
            Some(outputs) => spread.add(&outputs, reference, softmaxes),
            None if left_ms() <= 0.0 => break,
            None => {}
        }
    }
    Ok(spread)
}

/// One run of `meter` on inputs that are bound already, where nothing says what is right: its outputs are only
/// searched for values that are NaN or infinite.
fn unverified(meter: &mut dyn Meter, reason: String, precision: Precision) -> Result<Numerics, BackendError> {
    let outputs = numerics::scan(&meter.run()?);
    Ok(Numerics { outputs, ..not_compared(reason, numerics::threshold(precision)) })
}

/// The record of a check that could not be made; by itself it neither passes nor fails an engine.
fn not_compared(reason: String, threshold: f64) -> Numerics {
    Numerics {
        oracle: ORACLE.into(),
        skipped: Some(reason),
        seed: inputs::REFERENCE_SEED,
        outputs: Vec::new(),
        max_error: 0.0,
        threshold,
        passed: false,
        oracle_ms: 0.0,
        independent: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::MonotonicClock;
    use planforge_backend::{Window, WindowSamples};
    use planforge_report::LayerTime;
    use planforge_types::{ElementType, Port};

    fn outputs(value: f32) -> NamedTensors {
        let bytes = [1.0f32, value].iter().flat_map(|value| value.to_le_bytes()).collect();
        NamedTensors::from([("y".into(), HostTensor { element: ElementType::F32, shape: vec![2], bytes })])
    }

    /// Gives the same outputs whatever it is given.
    struct Fixed(NamedTensors);

    impl Meter for Fixed {
        fn inputs(&self) -> Vec<Port> {
            Vec::new()
        }
        fn outputs(&self) -> Vec<Port> {
            Vec::new()
        }
        fn bind(&mut self, _: &NamedTensors) -> Result<(), BackendError> {
            Ok(())
        }
        fn run(&mut self) -> Result<NamedTensors, BackendError> {
            Ok(self.0.clone())
        }
        fn window(&mut self, _: Window) -> Result<WindowSamples, BackendError> {
            Ok(WindowSamples::default())
        }
        fn layers(&mut self, _: u32) -> Result<Vec<LayerTime>, BackendError> {
            Ok(Vec::new())
        }
        fn memory_bytes(&self) -> u64 {
            0
        }
    }

    /// Knows the outputs, or knows nothing.
    struct Known(Option<NamedTensors>);

    impl Oracle for Known {
        fn name(&self) -> String {
            "oracle 7".into()
        }
        fn outputs(
            &self,
            model: &Path,
            _: &NamedTensors,
            limit: Duration,
            _: &Cancel,
        ) -> Result<NamedTensors, BackendError> {
            assert!(model == Path::new("m.onnx") && limit.as_secs_f64() * 1e3 <= ORACLE_BUDGET_MS, "{limit:?}");
            self.0.clone().ok_or_else(|| BackendError::new(FailureClass::Model, "no Foo here"))
        }
    }

    fn verdict(engine: f32, oracle: Option<&Known>) -> Verdict {
        let independent = oracle.map(|oracle| Independent { oracle, model: Path::new("m.onnx") });
        let check = Check {
            graph: Err("operator Foo is unknown"),
            independent,
            second: None,
            inputs: &NamedTensors::new(),
            eval: None,
            precision: Precision::Fp32,
            budget_ms: ORACLE_BUDGET_MS,
            clock: &MonotonicClock::default(),
            cancel: &Cancel::default(),
        };
        check.run(&mut Fixed(outputs(engine))).unwrap()
    }

    #[test]
    fn another_oracle_judges_what_the_reference_refuses() {
        let known = Known(Some(outputs(2.0)));
        let right = verdict(2.0, Some(&known));
        let numerics = right.numerics.unwrap();
        assert!(right.accurate && numerics.passed && numerics.skipped.is_none());
        assert_eq!(numerics.oracle, "oracle 7");
        assert_eq!(right.findings[0].message, "outputs were compared with oracle 7: operator Foo is unknown");
        let wrong = verdict(2.5, Some(&known));
        assert!(!wrong.accurate && !wrong.numerics.unwrap().passed);
    }

    #[test]
    fn where_nobody_knows_the_report_says_so() {
        for (oracle, reason) in [
            (None, "operator Foo is unknown"),
            (Some(&Known(None)), "operator Foo is unknown; nor could oracle 7 say: no Foo here"),
        ] {
            let unknown = verdict(2.0, oracle);
            assert!(unknown.accurate);
            assert_eq!(unknown.findings[0].code, "unverified");
            let numerics = unknown.numerics.unwrap();
            assert_eq!((&*numerics.oracle, numerics.skipped.as_deref()), (ORACLE, Some(reason)));
        }
    }
}
