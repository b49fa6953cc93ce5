//! The tensors at a plan's edge: names, types and shapes as the model has them, and types as the plan's files need.

use crate::tensors;
use planforge_onnx::Model;
use planforge_tensorrt_rules::{model::ModelFacts, options::Options, version::Version};
use planforge_types::{BackendError, BuildSpec, ElementType, FailureClass, HostTensor, NamedTensors, Port};
use std::path::Path;

/// First version that has 64-bit integers; before it, they are 32 bits wide at the edge too.
const WITH_INT64: Version = Version::new(10, 0, 0);

/// Inputs and outputs, in the model's order.
#[derive(Debug)]
pub(super) struct Edges {
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// Types in which the tool reads each input.
    raw: Vec<ElementType>,
}

fn model_error(message: String) -> BackendError {
    BackendError::new(FailureClass::Model, message)
}

impl Edges {
    /// Reads the model; `spec` may give the plan's edge other types than the model's.
    pub fn of(model: &Path, spec: &BuildSpec, version: Version) -> Result<Self, BackendError> {
        let opened = Model::open(model).map_err(|error| {
            model_error(format!("a TensorRT plan is run with its model's inputs: {error}")).with_hint(error.hint())
        })?;
        let facts = ModelFacts::of(&opened);
        let port = |edge: &planforge_tensorrt_rules::model::Edge| {
            let element = edge.element.and_then(tensors::element);
            let element = element.ok_or_else(|| {
                let name = edge.element.unwrap_or("unknown to TensorRT");
                model_error(format!("the type of '{}' is {name}, which cannot be read from a file", edge.name))
            })?;
            Ok(Port { name: edge.name.clone(), element, shape: edge.dims.clone() })
        };
        let inputs = facts.inputs.iter().map(port).collect::<Result<Vec<_>, BackendError>>()?;
        let outputs = facts.outputs.iter().map(port).collect::<Result<Vec<_>, BackendError>>()?;
        let formats = Options::parse(&spec.options)?.input_formats;
        let raw = inputs.iter().enumerate().map(|(index, port)| {
            // One format is meant for every input.
            let format = if formats.len() == 1 { formats.first() } else { formats.get(index) };
            let named = format.and_then(|format| format.element.as_deref()).and_then(tensors::element);
            match named.unwrap_or(port.element) {
                ElementType::I64 if version < WITH_INT64 => ElementType::I32,
                element => element,
            }
        });
        Ok(Self { raw: raw.collect(), inputs, outputs })
    }

    /// The type in which the tool reads the input at `index`.
    pub fn raw_type(&self, index: usize) -> ElementType {
        self.raw[index]
    }

    /// The tensor given for `port`, of its type and of a shape that the profile holds.
    pub fn take<'a>(
        &self,
        given: &'a NamedTensors,
        port: &Port,
        spec: &BuildSpec,
        profile: usize,
    ) -> Result<&'a HostTensor, BackendError> {
        let name = &port.name;
        let tensor = given.get(name).ok_or_else(|| {
            let names: Vec<_> = self.inputs.iter().map(|input| input.name.as_str()).collect();
            model_error(format!("input '{name}' is not given; the plan takes {}", names.join(", ")))
        })?;
        let fits = tensor.shape.len() == port.shape.len()
            && tensor
                .shape
                .iter()
                .zip(&port.shape)
                .all(|(size, fixed)| fixed.is_none_or(|fixed| fixed == *size as u64));
        if tensor.element != port.element || !fits {
            return Err(model_error(format!(
                "input '{name}' is {} {:?}, but the model has {} [{}]",
                tensor.element,
                tensor.shape,
                port.element,
                port.sizes()
            )));
        }
        let ranges = spec.profiles.get(profile).and_then(|profile| profile.inputs.get(name));
        for (axis, (range, size)) in ranges.into_iter().flatten().zip(&tensor.shape).enumerate() {
            if !(range.min..=range.max).contains(&(*size as u64)) {
                return Err(model_error(format!(
                    "dimension {axis} of input '{name}' is {size}, outside profile {profile}'s {} to {}",
                    range.min, range.max
                ))
                .with_hint("build the model with a profile that holds it"));
            }
        }
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::{DimRange, OptimizationProfile};
    use std::collections::BTreeMap;

    fn edges() -> Edges {
        let port = Port { name: "x".into(), element: ElementType::F32, shape: vec![None, Some(4)] };
        Edges { inputs: vec![port.clone()], outputs: vec![port], raw: vec![ElementType::F32] }
    }

    #[test]
    fn what_is_given_must_fit_model_and_profile() {
        let edges = edges();
        let range = |min, max| DimRange { min, opt: max, max };
        let inputs = BTreeMap::from([("x".to_owned(), vec![range(1, 8), range(4, 4)])]);
        let spec = BuildSpec { profiles: vec![OptimizationProfile { inputs }], ..BuildSpec::default() };
        let taken = |element, shape: &[usize]| {
            let bytes = vec![0; shape.iter().product::<usize>() * 4];
            let given = NamedTensors::from([("x".to_owned(), HostTensor { element, shape: shape.to_vec(), bytes })]);
            edges.take(&given, &edges.inputs[0], &spec, 0).map(|tensor| tensor.shape.clone()).map_err(|e| e.message)
        };
        assert_eq!(taken(ElementType::F32, &[8, 4]), Ok(vec![8, 4]));
        assert!(taken(ElementType::F32, &[9, 4]).unwrap_err().contains("outside profile 0's 1 to 8"));
        assert!(taken(ElementType::F32, &[8, 5]).unwrap_err().contains("the model has"));
        assert!(taken(ElementType::I32, &[8, 4]).unwrap_err().contains("i32"));
        let none = edges.take(&NamedTensors::new(), &edges.inputs[0], &spec, 0).unwrap_err();
        assert_eq!(none.message, "input 'x' is not given; the plan takes x");
    }
}
