//! Real inputs that somebody gives: one array per input in an `.npz`, by the input's name.
//!
//! They are looked at twice: where a request is made, against the model's own inputs, so that no device is taken for a
//! file that does not fit; and by the worker, before anything is built and again for the engine at hand.

use planforge_graph::{ir::Tensor, shape::DeclaredDim};
use planforge_identity::npz::{self, NpzError};
use planforge_import::declared_dim;
use planforge_onnx::{
    Model,
    proto::{tensor_shape_proto::Dimension, type_proto::Value as Type},
};
use planforge_types::{BackendError, ElementType, FailureClass, HostTensor, NamedTensors, OptimizationProfile, Port};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Largest whole number that an f64 holds beside all smaller ones; what is larger is not converted.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Why given inputs are none of the engine's.
#[derive(Debug, thiserror::Error)]
pub enum GivenError {
    #[error(transparent)]
    Npz(#[from] NpzError),
    #[error("the file of given inputs holds no array; the inputs are {inputs}")]
    NoArrays { inputs: String },
    #[error("array '{array}' of the given inputs is no input; the inputs are {inputs}")]
    Unknown { array: String, inputs: String },
    #[error("the given inputs have no array for input '{input}' of {wanted}; they have {found}")]
    Missing { input: String, wanted: String, found: String },
    #[error("input '{input}' takes {wanted}, but the given array is {found}")]
    Differs { input: String, wanted: String, found: String, samples: Option<(u64, u64)> },
    #[error(
        "input '{input}' takes {min} to {max} along axis {axis} in the first profile, but the given array has {size}"
    )]
    Outside { input: String, axis: usize, min: u64, max: u64, size: u64 },
    #[error("dimension '{name}' is {size} of given input '{input}', but {other_size} of '{other}'")]
    Named { name: String, input: String, size: u64, other: String, other_size: u64 },
    #[error("the given array of input '{input}' is empty: {found}")]
    Empty { input: String, found: String },
    #[error("the given array of input '{input}' is NaN at {at:?}")]
    NotANumber { input: String, at: Vec<usize> },
    #[error("input '{input}' is {element}, which cannot hold the given {value} at {at:?}")]
    Lost { input: String, element: String, value: f64, at: Vec<usize> },
}

impl GivenError {
    /// The message with what caused it.
    pub fn words(&self) -> String {
        match std::error::Error::source(self) {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        let cut = |least: u64, most: u64, size: u64| {
            let takes = if least == most { most.to_string() } else { format!("{least} to {most}") };
            format!("the engine takes {takes} at once: give a part of the {size}, such as array[:{most}]")
        };
        match self {
            Self::Outside { axis: 0, min, max, size, .. } if size > max => cut(*min, *max, *size),
            Self::Differs { samples: Some((size, takes)), .. } => cut(*takes, *takes, *size),
            Self::Outside { .. } => {
                "give arrays of shapes that the first profile has, or build for others (--shapes)".into()
            }
            _ => "give --inputs an .npz with one array per input, of its name, type and shape (numpy.savez)".into(),
        }
    }
}

impl From<GivenError> for BackendError {
    /// Not the model's fault, whose key would be remembered for it, and not the host's, which would be tried again.
    fn from(error: GivenError) -> Self {
        Self::new(FailureClass::Resource, error.words()).with_hint(error.hint())
    }
}

/// Reads the inputs of an engine with these ports, whose dimensions vary within `profile`.
pub fn read(path: &Path, ports: &[Port], profile: Option<&OptimizationProfile>) -> Result<NamedTensors, GivenError> {
    fit(npz::read(path)?, ports, profile)
}

/// Whether the file can be read, has arrays, and numbers in them: all that can be told where no model is at hand.
pub fn readable(path: &Path) -> Result<(), GivenError> {
    let arrays = npz::read(path)?;
    if arrays.is_empty() {
        return Err(GivenError::NoArrays { inputs: "not known here".into() });
    }
    for (name, array) in &arrays {
        let port = |size: &usize| Some(*size as u64);
        let shape = array.shape.iter().map(port).collect();
        of_port(&Port { name: name.clone(), element: array.element, shape }, array, None)?;
    }
    Ok(())
}

/// Whether the file at `path` has what `model`, built for `profile`, takes. What of the model cannot be read is not
/// held against the file.
pub fn check(path: &Path, model: &Path, profile: Option<&OptimizationProfile>) -> Result<(), GivenError> {
    let arrays = npz::read(path)?;
    let Ok(model) = Model::open(model) else { return Ok(()) };
    let sizes = |array: &HostTensor| array.shape.iter().map(|size| *size as u64).collect::<Vec<_>>();
    let given: BTreeMap<String, Vec<u64>> = arrays.iter().map(|(name, array)| (name.clone(), sizes(array))).collect();
    let Some(inputs) = inputs(&model) else { return Ok(()) };
    let ports: Vec<Port> = inputs.iter().map(|input| input.port.clone()).collect();
    fit(arrays, &ports, profile)?;
    named_alike(&inputs, &given)
}

/// An input of a model.
struct Input {
    port: Port,
    /// Names of its dimensions, by axis; of a fixed one there is none.
    names: Vec<Option<String>>,
}

/// The inputs that a model has to be given; `None` where one of them is no tensor that we know, or has no rank.
fn inputs(model: &Model) -> Option<Vec<Input>> {
    let graph = model.graph();
    let initialised: BTreeSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    let wanted = graph.input.iter().filter(|input| !initialised.contains(input.name.as_str()));
    let input = |info: &planforge_onnx::proto::ValueInfoProto| {
        let Some(Type::TensorType(tensor)) = &info.r#type.as_ref()?.value else { return None };
        let element = planforge_import::element_type(tensor.elem_type).ok()?;
        let dims = &tensor.shape.as_ref()?.dim;
        let size = |dim: &Dimension| match declared_dim(dim) {
            DeclaredDim::Size(size) => u64::try_from(size).ok(),
            _ => None,
        };
        let name = |dim: &Dimension| match declared_dim(dim) {
            DeclaredDim::Symbol(name) => Some(name),
            _ => None,
        };
        let shape = dims.iter().map(size).collect();
        let names = dims.iter().map(name).collect();
        Some(Input { port: Port { name: info.name.clone(), element, shape }, names })
    };
    wanted.map(input).collect()
}

/// Dimensions of one name have one size.
fn named_alike(inputs: &[Input], given: &BTreeMap<String, Vec<u64>>) -> Result<(), GivenError> {
    let mut known: BTreeMap<&str, (&str, u64)> = BTreeMap::new();
    for input in inputs {
        let sizes = given.get(&input.port.name).into_iter().flatten();
        for (name, size) in input.names.iter().zip(sizes).filter_map(|(name, size)| Some((name.as_ref()?, *size))) {
            let (other, other_size) = *known.entry(name).or_insert((&input.port.name, size));
            if other_size != size {
                let (name, input, other) = (name.clone(), input.port.name.clone(), other.to_owned());
                return Err(GivenError::Named { name, input, size, other, other_size });
            }
        }
    }
    Ok(())
}

fn fit(
    mut arrays: NamedTensors,
    ports: &[Port],
    profile: Option<&OptimizationProfile>,
) -> Result<NamedTensors, GivenError> {
    let inputs = ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
    if arrays.is_empty() {
        return Err(GivenError::NoArrays { inputs });
    }
    if let Some(array) = arrays.keys().find(|name| ports.iter().all(|port| port.name != **name)) {
        return Err(GivenError::Unknown { array: array.clone(), inputs });
    }
    let found = arrays.keys().cloned().collect::<Vec<_>>().join(", ");
    let take = |port: &Port| {
        let array = arrays.remove(&port.name).ok_or_else(|| GivenError::Missing {
            input: port.name.clone(),
            wanted: described(port.element, port.shape.iter().copied()),
            found: found.clone(),
        })?;
        of_port(port, &array, profile).map(|array| (port.name.clone(), array))
    };
    ports.iter().map(take).collect()
}

/// The array as its input takes it.
fn of_port(port: &Port, array: &HostTensor, profile: Option<&OptimizationProfile>) -> Result<HostTensor, GivenError> {
    let input = || port.name.clone();
    let sizes: Vec<u64> = array.shape.iter().map(|size| *size as u64).collect();
    let found = || described(array.element, sizes.iter().map(|size| Some(*size)));
    let fixed = |axis: usize| port.shape.get(axis).copied().flatten();
    let off: Vec<usize> =
        (0..sizes.len()).filter(|axis| fixed(*axis).is_some_and(|size| size != sizes[*axis])).collect();
    if sizes.len() != port.shape.len() || !off.is_empty() || kind(array.element) != kind(port.element) {
        // More rows than are taken at once, and nothing else amiss.
        let more = (off == [0] && sizes.len() == port.shape.len()).then(|| (sizes[0], fixed(0).unwrap_or(0)));
        let samples = more.filter(|(size, takes)| size > takes);
        let wanted = described(port.element, port.shape.iter().copied());
        return Err(GivenError::Differs { input: input(), wanted, found: found(), samples });
    }
    let ranges = profile.and_then(|profile| profile.inputs.get(&port.name)).filter(|dims| dims.len() == sizes.len());
    for (axis, (range, &size)) in ranges.into_iter().flatten().zip(&sizes).enumerate() {
        let (min, max) = (range.min, range.max);
        if !(min..=max).contains(&size) {
            return Err(GivenError::Outside { input: input(), axis, min, max, size });
        }
    }
    if sizes.contains(&0) {
        return Err(GivenError::Empty { input: input(), found: found() });
    }
    converted(port, array)
}

#[derive(PartialEq, Eq)]
enum Kind {
    Float,
    Whole,
}

fn kind(element: ElementType) -> Kind {
    match element {
        ElementType::F16 | ElementType::Bf16 | ElementType::F32 | ElementType::F64 => Kind::Float,
        _ => Kind::Whole,
    }
}

/// The array as the input's type: numpy makes doubles and 64-bit integers where nobody asks for others. Floats are
/// rounded; a value that the type cannot hold is refused, and so is what is no number.
fn converted(port: &Port, array: &HostTensor) -> Result<HostTensor, GivenError> {
    let values =
        |tensor: &HostTensor| Tensor::try_from(tensor.clone()).map(|tensor| tensor.to_f64s()).unwrap_or_default();
    let given = values(array);
    let place = |index: usize| place(index, &array.shape);
    if let Some(index) = given.iter().position(|value| value.is_nan()) {
        return Err(GivenError::NotANumber { input: port.name.clone(), at: place(index) });
    }
    if array.element == port.element {
        return Ok(array.clone());
    }
    let made = HostTensor::of_values(port.element, array.shape.clone(), &given);
    let lost = |(given, made): (&f64, f64)| match kind(port.element) {
        Kind::Float => given.is_finite() && !made.is_finite(),
        Kind::Whole => *given != made || given.abs() > EXACT_MAX,
    };
    match given.iter().zip(values(&made)).position(lost) {
        Some(index) => Err(GivenError::Lost {
            input: port.name.clone(),
            element: port.element.to_string(),
            value: given[index],
            at: place(index),
        }),
        None => Ok(made),
    }
}

/// Where the element stands, by axis.
pub(super) fn place(mut index: usize, shape: &[usize]) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for (axis, size) in shape.iter().enumerate().rev() {
        (at[axis], index) = (index % size.max(&1), index / size.max(&1));
    }
    at
}

fn described(element: ElementType, shape: impl Iterator<Item = Option<u64>>) -> String {
    let sizes: Vec<String> = shape.map(|size| size.map_or_else(|| "?".to_owned(), |size| size.to_string())).collect();
    format!("{element} [{}]", sizes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::DimRange;

    fn port(name: &str, element: ElementType, shape: &[Option<u64>]) -> Port {
        Port { name: name.into(), element, shape: shape.to_vec() }
    }

    fn array(element: ElementType, shape: &[usize], values: &[f64]) -> HostTensor {
        HostTensor::of_values(element, shape.to_vec(), values)
    }

    fn ports() -> [Port; 2] {
        [port("ids", ElementType::I32, &[None, Some(2)]), port("x", ElementType::F32, &[Some(1)])]
    }

    fn with(ids: HostTensor, x: f64) -> Result<NamedTensors, GivenError> {
        let range = |min, max| DimRange { min, opt: max, max };
        let profile = OptimizationProfile { inputs: [("ids".to_owned(), vec![range(1, 4), range(2, 2)])].into() };
        let x = array(ElementType::F64, &[1], &[x]);
        fit([("ids".to_owned(), ids), ("x".to_owned(), x)].into(), &ports(), Some(&profile))
    }

    #[test]
    fn arrays_become_what_their_inputs_take() {
        let fitted = with(array(ElementType::I64, &[2, 2], &[1.0, 2.0, 3.0, 4.0]), 0.1).unwrap();
        assert_eq!(fitted["ids"], array(ElementType::I32, &[2, 2], &[1.0, 2.0, 3.0, 4.0]));
        assert_eq!(fitted["x"], array(ElementType::F32, &[1], &[0.1]));
        // Not a number of its own, but one that masks are made of.
        assert_eq!(
            with(array(ElementType::I32, &[1, 2], &[0.0; 2]), f64::NEG_INFINITY).unwrap()["x"].element,
            ElementType::F32
        );
        let bools = fit(
            [("m".to_owned(), array(ElementType::U8, &[2], &[0.0, 1.0]))].into(),
            &[port("m", ElementType::Bool, &[None])],
            None,
        );
        assert_eq!(bools.unwrap()["m"].bytes, [0, 1]);
    }

    #[test]
    fn what_does_not_fit_is_named_with_what_would() {
        let zeros = |shape: &[usize]| array(ElementType::I64, shape, &vec![0.0; shape.iter().product()]);
        let cases = [
            (zeros(&[2, 3]), 0.0, "input 'ids' takes i32 [?, 2], but the given array is i64 [2, 3]"),
            (zeros(&[2]), 0.0, "input 'ids' takes i32 [?, 2], but the given array is i64 [2]"),
            (
                array(ElementType::F32, &[1, 2], &[0.0; 2]),
                0.0,
                "input 'ids' takes i32 [?, 2], but the given array is f32 [1, 2]",
            ),
            (
                zeros(&[9, 2]),
                0.0,
                "input 'ids' takes 1 to 4 along axis 0 in the first profile, but the given array has 9",
            ),
            (
                array(ElementType::I64, &[1, 2], &[0.0, 3e9]),
                0.0,
                "input 'ids' is i32, which cannot hold the given 3000000000 at [0, 1]",
            ),
            (zeros(&[1, 2]), f64::NAN, "the given array of input 'x' is NaN at [0]"),
            (zeros(&[1, 2]), 1e300, &format!("input 'x' is f32, which cannot hold the given {} at [0]", 1e300)),
        ];
        for (ids, x, message) in cases {
            assert_eq!(with(ids, x).unwrap_err().to_string(), message);
        }
        let hint = with(zeros(&[9, 2]), 0.0).unwrap_err().hint();
        assert_eq!(hint, "the engine takes 1 to 4 at once: give a part of the 9, such as array[:4]");
        let rows = fit([("x".to_owned(), array(ElementType::F32, &[7], &[0.0; 7]))].into(), &ports()[1..], None);
        assert_eq!(rows.unwrap_err().hint(), "the engine takes 1 at once: give a part of the 7, such as array[:1]");
    }

    #[test]
    fn names_have_to_be_those_of_the_inputs() {
        let x = || ("x".to_owned(), array(ElementType::F32, &[1], &[0.0]));
        let told = |arrays: NamedTensors| fit(arrays, &ports(), None).unwrap_err().to_string();
        assert_eq!(told([x()].into()), "the given inputs have no array for input 'ids' of i32 [?, 2]; they have x");
        let extra = [x(), ("labels".to_owned(), array(ElementType::I64, &[1], &[0.0]))].into();
        assert_eq!(told(extra), "array 'labels' of the given inputs is no input; the inputs are ids, x");
        assert_eq!(told(NamedTensors::new()), "the file of given inputs holds no array; the inputs are ids, x");
        let none = fit([("ids".to_owned(), array(ElementType::I32, &[0, 2], &[]))].into(), &ports()[..1], None);
        assert_eq!(none.unwrap_err().to_string(), "the given array of input 'ids' is empty: i32 [0, 2]");
    }

    #[test]
    fn dimensions_of_one_name_have_one_size() {
        let input = |name: &str| Input {
            port: port(name, ElementType::F32, &[None, None]),
            names: vec![Some("batch".into()), None],
        };
        let given = |a: u64, b: u64| [("a".to_owned(), vec![a, 1]), ("b".to_owned(), vec![b, 2])].into();
        named_alike(&[input("a"), input("b")], &given(3, 3)).unwrap();
        let error = named_alike(&[input("a"), input("b")], &given(3, 4)).unwrap_err().to_string();
        assert_eq!(error, "dimension 'batch' is 4 of given input 'b', but 3 of 'a'");
    }

    #[test]
    fn a_file_that_is_no_archive_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty.npz");
        std::fs::write(&path, b"").unwrap();
        let error = BackendError::from(read(&path, &ports(), None).unwrap_err());
        assert_eq!(error.class, FailureClass::Resource);
        assert!(error.message.contains("empty.npz is no readable .npz archive: "), "{}", error.message);
    }
}
