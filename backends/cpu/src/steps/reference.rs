//! Any operator, by its reference implementation.

use super::{
    Operands, Prepared, Ready,
    checker::{Checker, product},
};
use crate::{error::EngineError, program::TypeOf};
use bytes::Bytes;
use planforge_graph::{
    infer::infer,
    interpreter,
    ir::{Op, Tensor},
    shape::{TensorType, check_size},
};

#[derive(Debug)]
struct Reference {
    op: Op,
    inputs: Vec<Option<TypeOf>>,
    outputs: Vec<TypeOf>,
}

pub(super) fn reference(check: &Checker<'_>, op: &Op, inputs: &[Option<TypeOf>], outputs: &[TypeOf]) -> Prepared {
    let step = check.step;
    if inputs.len() != step.inputs.len() || outputs.len() != step.outputs.len() {
        return Err("its types are not as many as its buffers".to_owned());
    }
    for (of, id) in inputs.iter().zip(&step.inputs) {
        if let Some(of) = of {
            check.holds("input", *id, product(&of.shape)?, of.element.bytes())?;
        } else if id.is_some() {
            return Err("an input has no type".to_owned());
        }
    }
    for (of, id) in outputs.iter().zip(&step.outputs) {
        check.holds("output", Some(*id), product(&of.shape)?, of.element.bytes())?;
    }
    for of in inputs.iter().flatten().chain(outputs) {
        let sizes: Vec<i128> = of.shape.iter().map(|&size| size as i128).collect();
        check_size("a value", &sizes).map_err(|error| error.to_string())?;
    }
    let types: Vec<Option<TensorType>> = inputs.iter().map(|of| of.as_ref().map(TensorType::from)).collect();
    let given: Vec<Option<&TensorType>> = types.iter().map(Option::as_ref).collect();
    let wanted: Vec<Vec<usize>> = outputs.iter().map(|of| of.shape.clone()).collect();
    let inferred = infer(op, &given, &wanted).map_err(|error| error.to_string())?;
    if !outputs.iter().map(TensorType::from).eq(inferred) {
        return Err("its results are not of the types it says".to_owned());
    }
    Ok(Box::new(Reference { op: op.clone(), inputs: inputs.to_vec(), outputs: outputs.to_vec() }))
}

impl Ready for Reference {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let step = on.step;
        let failed = |source| EngineError::Reference { step: step.origins.join(" + "), source };
        let mut tensors = Vec::with_capacity(self.inputs.len());
        for (position, of) in self.inputs.iter().enumerate() {
            tensors.push(match (of, on.input(position)) {
                (Some(of), Some(bytes)) => {
                    let bytes = Bytes::copy_from_slice(bytes);
                    Some(Tensor::new(of.element, of.shape.clone(), bytes).map_err(|e| failed(e.into()))?)
                }
                _ => None,
            });
        }
        let given: Vec<Option<&Tensor>> = tensors.iter().map(Option::as_ref).collect();
        let types: Vec<TensorType> = self.outputs.iter().map(TensorType::from).collect();
        let results = interpreter::run(&self.op, &given, &types).map_err(failed)?;
        for (index, tensor) in results.iter().enumerate().take(types.len()) {
            on.output(index).copy_from_slice(tensor.bytes());
        }
        Ok(())
    }
}
