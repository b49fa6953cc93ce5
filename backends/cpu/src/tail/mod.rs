//! Engines of models whose sizes only data decides: the program computes what has one size, and what follows from the
//! others is run behind it as its nodes are, with every size known (`planforge_import::Fragment`).
//!
//! | module | holds |
//! |---|---|
//! | [`kernels`] | the operators of what follows, by the engine's own kernels where they are large |
//! | [`trial`] | one run while an engine is built, which tells what its outputs are |

mod kernels;
mod trial;

pub(crate) use kernels::TailKernels;
pub(crate) use trial::{Trial, outputs as trial_outputs, ports as trial_ports};

use super::{engine::Engine, plan::TailSummary, program::ProgramPort};
use bytes::Bytes;
use planforge_graph::ir::{Computer, Remainder, TailError, Tensor};
use planforge_import::{Bounds, Fragment};
use planforge_onnx::Model;
use planforge_types::{BackendError, FailureClass, HostTensor, NamedTensors, Reason, failure::chain};
use std::{collections::BTreeMap, sync::Arc};

/// Option of the build spec: how large values may become of which only data decides the size, `NAME:SIZE` with commas
/// between.
pub const OPTION_BOUNDS: &str = "bounds";

/// The sizes that a spec bounds values by.
///
/// # Errors
///
/// The part that says none.
pub(crate) fn bounds(text: Option<&String>) -> Result<Bounds, String> {
    let parts = text.into_iter().flat_map(|text| text.split(',')).filter(|part| !part.is_empty());
    let bound = |part: &str| {
        let (name, size) = part.rsplit_once(':').ok_or_else(|| part.to_owned())?;
        Ok((name.to_owned(), size.parse().map_err(|_| part.to_owned())?))
    };
    parts.map(bound).collect()
}

/// The nodes that a plan of fixed shapes holds.
pub(crate) fn fragment(bounds: Bounds, model: Option<&(Bytes, Bytes)>) -> Result<Arc<Fragment>, BackendError> {
    let broken = |reason: String| BackendError::model(reason).with_hint("fetch or build the plan again");
    let (message, weights) = model.ok_or_else(|| broken("the plan lacks the nodes behind its program".into()))?;
    let model = Model::attach(message.clone(), weights.clone())
        .map_err(|error| broken(format!("the nodes behind the plan's program cannot be read: {}", chain(&error))))?;
    let fragment = Fragment::new(model, bounds);
    fragment.map(Arc::new).map_err(|error| broken(format!("the nodes behind the plan's program: {error}")))
}

/// What an engine gives, after its program ran.
pub(crate) fn finish(
    engine: &Engine,
    summary: Option<&TailSummary>,
    computer: &Arc<dyn Computer>,
) -> Result<NamedTensors, BackendError> {
    let outputs = engine.program().outputs.iter().enumerate();
    let (Some(summary), Some(fragment)) = (summary, engine.fragment()) else {
        let host = |(index, port): (usize, &ProgramPort)| {
            let bytes = engine.output(index).to_vec();
            (port.name.clone(), HostTensor { element: port.element, shape: port.shape.clone(), bytes })
        };
        return Ok(outputs.map(host).collect());
    };
    let mut made = run_fragment(engine, fragment, computer).map_err(|error| refused(&error))?;
    for (index, port) in outputs {
        if summary.order.contains(&port.name) && !made.contains_key(&port.name) {
            made.insert(port.name.clone(), tensor(engine, index, port));
        }
    }
    Ok(made.iter().map(|(name, tensor)| (name.clone(), HostTensor::from(tensor))).collect())
}

/// The outputs of the nodes behind a program that ran.
pub(super) fn run_fragment(
    engine: &Engine,
    fragment: &Fragment,
    computer: &Arc<dyn Computer>,
) -> Result<BTreeMap<String, Tensor>, TailError> {
    let read: Vec<&str> = fragment.model().graph().input.iter().map(|input| input.name.as_str()).collect();
    let outputs = engine.program().outputs.iter().enumerate();
    let given = outputs.filter(|(_, port)| read.contains(&port.name.as_str()));
    let given = given.map(|(index, port)| (port.name.clone(), tensor(engine, index, port))).collect();
    fragment.run(&given, computer)
}

fn tensor(engine: &Engine, index: usize, port: &ProgramPort) -> Tensor {
    let bytes = Bytes::copy_from_slice(engine.output(index));
    // `Program::check` compared the port with its buffer.
    Tensor::new(port.element, port.shape.clone(), bytes).expect("a port is as long as its buffer")
}

/// What is said of a run that nodes behind the program ended.
pub(super) fn refused(error: &TailError) -> BackendError {
    let failed = BackendError::new(FailureClass::Model, error.message.clone());
    match error.unsupported {
        true => failed.because(Reason::Unsupported),
        false => failed.with_hint("these inputs lead to sizes that the model or its bounds do not take"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_names_with_sizes() {
        let bounds = |text: &str| bounds(Some(&text.to_owned()));
        assert_eq!(bounds("keep:100,a:b:7"), Ok(Bounds::from([("keep".into(), 100), ("a:b".into(), 7)])));
        assert_eq!(bounds("keep"), Err("keep".into()));
        assert_eq!(bounds("keep:many"), Err("keep:many".into()));
        assert_eq!(super::bounds(None), Ok(Bounds::new()));
    }
}
