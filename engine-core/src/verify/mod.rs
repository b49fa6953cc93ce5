//! Correctness travels with speed: is what a plan computes right, and how right?
//!
//! Two questions, answered apart. *Numerics*: do the outputs on made-up inputs agree with the reference operators,
//! as far as the precision allows? *Accuracy*: on labelled rows, how often is the first guess right?

pub mod accuracy;
mod check;
pub mod inputs;
pub mod numerics;

pub use check::{Check, Verdict};

use crate::{
    backend::{BackendError, Cancel, HostTensor, Meter, NamedTensors},
    identity::Precision,
    ir::{Graph, Tensor},
    measure::Clock,
    ops::{self, OpError},
    report::Numerics,
    worker::FailureClass,
};
use std::ops::ControlFlow;

/// What the reference operators are called in reports.
pub const ORACLE: &str = "reference operators";

/// Longest the reference may take on one set of inputs. It computes plainly, one element after another: beyond this
/// the check is left out and the report says so.
pub const ORACLE_BUDGET_MS: f64 = 60_000.0;

/// How the reference's run ended.
#[derive(Debug)]
pub enum OracleEnd {
    Outputs(NamedTensors),
    /// It could not say what is right, for this reason.
    Silent(String),
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
    let tensors = inputs.iter().map(|(name, tensor)| Ok((name.clone(), Tensor::try_from(tensor.clone())?)));
    let tensors = match tensors.collect::<Result<_, crate::ir::TensorError>>() {
        Ok(tensors) => tensors,
        Err(error) => return Ok(OracleEnd::Silent(error.to_string())),
    };
    let mut observer = |_, _: &Tensor| match cancel.is_cancelled() || over() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    match ops::execute_observed(graph, &tensors, &mut observer) {
        Ok(outputs) => Ok(OracleEnd::Outputs(
            outputs.iter().map(|(name, tensor)| (name.clone(), HostTensor::from(tensor))).collect(),
        )),
        Err(OpError::Stopped) if cancel.is_cancelled() => {
            Err(BackendError::new(FailureClass::Infrastructure, "verification was cancelled"))
        }
        Err(OpError::Stopped) => {
            Ok(OracleEnd::Silent(format!("the {ORACLE} took longer than {:.0} s", budget_ms / 1e3)))
        }
        Err(error) => Ok(OracleEnd::Silent(format!("the {ORACLE} failed: {error}"))),
    }
}

/// Compares one run of `meter` on `inputs`, which are bound already, with the reference.
pub fn numerics(
    meter: &mut dyn Meter,
    graph: &Graph,
    inputs: &NamedTensors,
    precision: Precision,
    clock: &dyn Clock,
    cancel: &Cancel,
) -> Result<Numerics, BackendError> {
    let began_ms = clock.now_ms();
    let end = reference(graph, inputs, ORACLE_BUDGET_MS, clock, cancel)?;
    let oracle_ms = clock.now_ms() - began_ms;
    let threshold = numerics::threshold(precision);
    let expected = match end {
        OracleEnd::Outputs(expected) => expected,
        OracleEnd::Silent(reason) => return Ok(Numerics { oracle_ms, ..unverified(meter, reason, precision)? }),
    };
    let outputs = numerics::compare(&meter.run()?, &expected, &numerics::final_softmaxes(graph));
    let passed = numerics::passes(&outputs, threshold);
    let max_error = outputs.iter().map(|output| output.max_error).fold(0.0, f64::max);
    Ok(Numerics { oracle_ms, outputs, max_error, passed, skipped: None, ..not_compared(String::new(), threshold) })
}

/// One run of `meter` on inputs that are bound already, where nothing says what is right: its outputs are only
/// searched for values that are NaN or infinite.
pub fn unverified(meter: &mut dyn Meter, reason: String, precision: Precision) -> Result<Numerics, BackendError> {
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
    }
}
