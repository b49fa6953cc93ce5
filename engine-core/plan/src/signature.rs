//! What an engine takes: its inputs' names, types and the sizes each dimension may have. What is given is compared with
//! that before anything is made or run, so that a wrong shape is an error at once.

use planforge_types::{BackendError, DimRange, ElementType, HostTensor, NamedTensors, element_count};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One dimension of an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DimSignature {
    pub range: DimRange,
    /// The model's name for it; dimensions of one name have one size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
}

/// One input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSignature {
    pub name: String,
    pub element: ElementType,
    pub dims: Vec<DimSignature>,
}

impl InputSignature {
    /// An input of one shape.
    pub fn fixed(name: &str, element: ElementType, shape: &[usize]) -> Self {
        let dim = |&size: &usize| {
            let size = size as u64;
            DimSignature { range: DimRange { min: size, opt: size, max: size }, symbol: None }
        };
        Self { name: name.into(), element, dims: shape.iter().map(dim).collect() }
    }
}

/// Why inputs cannot be bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    #[error("the engine has no input {input}; it takes {takes}")]
    Unknown { input: String, takes: String },
    #[error("input {input} is not given; the engine takes {takes}")]
    Missing { input: String, takes: String },
    #[error("input {input} has elements of type {given}, the engine takes {wanted}")]
    Element { input: String, given: ElementType, wanted: ElementType },
    #[error("input {input} has {given} dimensions, the engine takes {wanted}")]
    Rank { input: String, given: usize, wanted: usize },
    #[error("dimension {axis} of input {input} is {given}, the engine takes {}", range(*.min, *.max))]
    Size { input: String, axis: usize, given: usize, min: u64, max: u64 },
    #[error(
        "dimension {axis} of input {input} is {given}, but {symbol} is {first} in input {first_input}: they must agree"
    )]
    Symbol { symbol: String, input: String, axis: usize, given: usize, first_input: String, first: usize },
    #[error("input {input} of shape {shape:?} has {given} bytes, not {wanted}")]
    Bytes { input: String, shape: Vec<usize>, given: usize, wanted: String },
}

fn range(min: u64, max: u64) -> String {
    if min == max { min.to_string() } else { format!("{min} to {max}") }
}

impl InputError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Size { .. } => "give a size inside the profile, or build the model with a profile of that shape",
            Self::Rank { .. } | Self::Element { .. } => "`planforge inspect` shows what the engine takes",
            Self::Symbol { .. } => "give both inputs the same size there",
            Self::Unknown { .. } | Self::Missing { .. } | Self::Bytes { .. } => "",
        }
    }
}

impl From<InputError> for BackendError {
    fn from(error: InputError) -> Self {
        let hint = error.hint();
        BackendError::model(error.to_string()).with_hint(hint)
    }
}

/// Compares what is given with what an engine takes; the tensors in the engine's order.
pub fn check<'a>(takes: &[InputSignature], given: &'a NamedTensors) -> Result<Vec<&'a HostTensor>, InputError> {
    let names = || takes.iter().map(|input| input.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(name) = given.keys().find(|name| !takes.iter().any(|input| input.name == **name)) {
        return Err(InputError::Unknown { input: name.clone(), takes: names() });
    }
    let mut symbols: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    let mut tensors = Vec::with_capacity(takes.len());
    for wanted in takes {
        let input = || wanted.name.clone();
        let tensor = given.get(&wanted.name).ok_or_else(|| InputError::Missing { input: input(), takes: names() })?;
        if tensor.element != wanted.element {
            return Err(InputError::Element { input: input(), given: tensor.element, wanted: wanted.element });
        }
        if tensor.shape.len() != wanted.dims.len() {
            return Err(InputError::Rank { input: input(), given: tensor.shape.len(), wanted: wanted.dims.len() });
        }
        for (axis, (&given, dim)) in tensor.shape.iter().zip(&wanted.dims).enumerate() {
            let DimRange { min, max, .. } = dim.range;
            if !(min..=max).contains(&(given as u64)) {
                return Err(InputError::Size { input: input(), axis, given, min, max });
            }
            let Some(symbol) = &dim.symbol else { continue };
            let (first_input, first) = *symbols.entry(symbol).or_insert((&wanted.name, given));
            if first != given {
                let (symbol, first_input) = (symbol.clone(), first_input.to_owned());
                return Err(InputError::Symbol { symbol, input: input(), axis, given, first_input, first });
            }
        }
        let bytes = element_count(&tensor.shape).and_then(|count| count.checked_mul(tensor.element.bytes()));
        if bytes != Some(tensor.bytes.len()) {
            let wanted = bytes.map_or_else(|| "any number this machine can hold".into(), |bytes| bytes.to_string());
            let (shape, given) = (tensor.shape.clone(), tensor.bytes.len());
            return Err(InputError::Bytes { input: input(), shape, given, wanted });
        }
        tensors.push(tensor);
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dim(min: u64, max: u64, symbol: Option<&str>) -> DimSignature {
        DimSignature { range: DimRange { min, opt: min, max }, symbol: symbol.map(str::to_owned) }
    }

    fn takes() -> Vec<InputSignature> {
        let input = |name: &str, dims| InputSignature { name: name.into(), element: ElementType::F32, dims };
        vec![input("x", vec![dim(1, 8, Some("batch")), dim(3, 3, None)]), input("y", vec![dim(1, 8, Some("batch"))])]
    }

    fn given(x: &[usize], y: &[usize]) -> NamedTensors {
        let tensor = |shape: &[usize]| {
            let count = shape.iter().product::<usize>();
            HostTensor { element: ElementType::F32, shape: shape.to_vec(), bytes: vec![0; count * 4] }
        };
        NamedTensors::from([("x".into(), tensor(x)), ("y".into(), tensor(y))])
    }

    #[test]
    fn every_wrong_shape_names_input_dimension_and_what_is_allowed() {
        for batch in [1, 5, 8] {
            assert_eq!(check(&takes(), &given(&[batch, 3], &[batch])).map(|tensors| tensors.len()), Ok(2));
        }
        for (x, y, words) in [
            (&[9, 3][..], &[9][..], "dimension 0 of input x is 9, the engine takes 1 to 8"),
            (&[0, 3], &[0], "dimension 0 of input x is 0, the engine takes 1 to 8"),
            (&[2, 4], &[2], "dimension 1 of input x is 4, the engine takes 3"),
            (&[2, 3], &[3], "dimension 0 of input y is 3, but batch is 2 in input x: they must agree"),
            (&[2], &[2], "input x has 1 dimensions, the engine takes 2"),
        ] {
            assert_eq!(check(&takes(), &given(x, y)).unwrap_err().to_string(), words);
        }
    }

    #[test]
    fn names_types_and_lengths_are_compared() {
        let mut tensors = given(&[2, 3], &[2]);
        tensors.insert("z".into(), tensors["y"].clone());
        assert!(matches!(check(&takes(), &tensors), Err(InputError::Unknown { .. })));
        tensors.remove("z");
        let y = tensors.remove("y");
        assert!(matches!(check(&takes(), &tensors), Err(InputError::Missing { .. })));
        tensors.extend(y.map(|y| ("y".to_owned(), HostTensor { element: ElementType::I32, ..y })));
        assert!(matches!(check(&takes(), &tensors), Err(InputError::Element { .. })));
        let mut tensors = given(&[2, 3], &[2]);
        tensors.entry("x".into()).and_modify(|x| x.bytes.truncate(23));
        assert!(matches!(check(&takes(), &tensors), Err(InputError::Bytes { given: 23, .. })));
    }
}
