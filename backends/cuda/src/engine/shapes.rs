//! Which shapes fit a profile, and which of them the captured graph computes.

pub use crate::build::Shapes;
use crate::{failure::model, program::Program};
use planforge_types::{BackendError, DimRange, ElementType, NamedTensors, OptimizationProfile, Port};

/// How inputs are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// By the captured graph as it is.
    Whole,
    /// By the captured graph, of whose rows this many count.
    Rows(u64),
    /// By a graph of exactly these shapes.
    Other,
}

/// Why inputs cannot be bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapesError {
    #[error("the engine has no input {name}; it takes {takes}")]
    Unknown { name: String, takes: String },
    #[error("input {name} is not given; the engine takes {takes}")]
    Missing { name: String, takes: String },
    #[error("input {name} is {given} of {bytes} bytes, but the engine takes {wanted} in shape {shape:?}")]
    Tensor { name: String, given: ElementType, bytes: usize, wanted: ElementType, shape: Vec<usize> },
    #[error("input {name} has shape {given:?}, but the engine was built for {built}")]
    Outside { name: String, given: Vec<u64>, built: String },
}

impl From<ShapesError> for BackendError {
    fn from(error: ShapesError) -> Self {
        let hint = match &error {
            ShapesError::Outside { .. } => "build the model with a profile that covers that shape",
            _ => "`planforge inspect` lists the engine's inputs",
        };
        model(error.to_string(), hint)
    }
}

/// The shapes of `inputs`, which are exactly the engine's.
pub fn given(ports: &[Port], inputs: &NamedTensors) -> Result<Shapes, ShapesError> {
    let takes = || ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(name) = inputs.keys().find(|name| !ports.iter().any(|port| port.name == **name)) {
        return Err(ShapesError::Unknown { name: name.clone(), takes: takes() });
    }
    let mut shapes = Shapes::new();
    for port in ports {
        let tensor =
            inputs.get(&port.name).ok_or_else(|| ShapesError::Missing { name: port.name.clone(), takes: takes() })?;
        let elements = tensor.shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
        let bytes = elements.and_then(|count| count.checked_mul(tensor.element.bytes()));
        if tensor.element != port.element || bytes != Some(tensor.bytes.len()) {
            return Err(ShapesError::Tensor {
                name: port.name.clone(),
                given: tensor.element,
                bytes: tensor.bytes.len(),
                wanted: port.element,
                shape: tensor.shape.clone(),
            });
        }
        shapes.insert(port.name.clone(), tensor.shape.iter().map(|&size| size as u64).collect());
    }
    Ok(shapes)
}

/// The shapes a program was made for.
pub fn of_program(program: &Program) -> Shapes {
    program.inputs.iter().map(|edge| (edge.name.clone(), edge.shape.clone())).collect()
}

/// How inputs of the shapes `given` are computed by an engine of these profiles, of which the one numbered `current` has
/// a captured graph of the shapes `usual`.
pub fn fit(
    given: &Shapes,
    usual: &Shapes,
    profiles: &[OptimizationProfile],
    current: usize,
    rows_apart: bool,
) -> Result<Fit, ShapesError> {
    let profile = profiles.get(current);
    let fewer_rows = fewer_rows(given, usual).filter(|_| rows_apart);
    if let Some(rows) = fewer_rows.filter(|_| profile.is_some_and(OptimizationProfile::varies)) {
        // Also where the profile begins at more rows: those that are there do not know of any other.
        return Ok(Fit::Rows(rows));
    }
    for (name, shape) in given {
        let built = &usual[name];
        let ranges = profile.and_then(|profile| profile.inputs.get(name));
        let inside = match ranges {
            Some(ranges) => {
                ranges.len() == shape.len()
                    && ranges.iter().zip(shape).all(|(range, size)| (range.min..=range.max).contains(size))
            }
            // An input that the profile does not name follows the others; its own sizes are checked when a graph is made.
            None => {
                shape == built
                    || (profile.is_some_and(|profile| !profile.inputs.is_empty()) && shape.len() == built.len())
            }
        };
        if !inside {
            let built = match (ranges, profiles.len()) {
                (Some(ranges), ..=1) => told(ranges),
                (Some(_), _) => told_by_profile(profiles, name, current),
                (None, _) => format!("{built:?}"),
            };
            return Err(ShapesError::Outside { name: name.clone(), given: shape.clone(), built });
        }
    }
    if given == usual {
        return Ok(Fit::Whole);
    }
    Ok(fewer_rows.map_or(Fit::Other, Fit::Rows))
}

/// How many rows every input has, where these are fewer than in the shapes `usual` and nothing else differs.
fn fewer_rows(given: &Shapes, usual: &Shapes) -> Option<u64> {
    let rows = given.values().next().and_then(|shape| shape.first().copied()).filter(|&rows| rows > 0)?;
    let fewer = |(name, shape): (&String, &Vec<u64>)| {
        let built = &usual[name];
        let first = shape.first().copied();
        first == Some(rows) && first < built.first().copied() && shape.get(1..) == built.get(1..)
    };
    given.iter().all(fewer).then_some(rows)
}

/// `1 to 16 x 3`
fn told(ranges: &[DimRange]) -> String {
    let range = |range: &DimRange| match range.min == range.max {
        true => range.min.to_string(),
        false => format!("{} to {}", range.min, range.max),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(" x ")
}

/// What every profile takes for one input.
fn told_by_profile(profiles: &[OptimizationProfile], name: &str, current: usize) -> String {
    let of = |(number, profile): (usize, &OptimizationProfile)| {
        let ranges = profile.inputs.get(name).map_or_else(|| "any that follows".to_owned(), |ranges| told(ranges));
        format!("{ranges} in profile {number}{}", if number == current { ", the current one" } else { "" })
    };
    profiles.iter().enumerate().map(of).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::HostTensor;

    fn shapes(list: &[(&str, &[u64])]) -> Shapes {
        list.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect()
    }

    type Sizes = (u64, u64, u64);

    fn profile(list: &[(&str, &[Sizes])]) -> OptimizationProfile {
        let range = |&(min, opt, max): &Sizes| DimRange { min, opt, max };
        let inputs = list.iter().map(|(name, dims)| ((*name).to_owned(), dims.iter().map(range).collect()));
        OptimizationProfile { inputs: inputs.collect() }
    }

    #[test]
    fn only_the_batch_is_padded_and_only_up_to_the_captured_graph() {
        let usual = shapes(&[("x", &[8, 3, 64]), ("m", &[8, 64])]);
        let varied = [profile(&[("x", &[(1, 8, 16), (3, 3, 3), (32, 64, 128)]), ("m", &[(1, 8, 16), (32, 64, 128)])])];
        let fits = |x: &[u64], m: &[u64]| fit(&shapes(&[("x", x), ("m", m)]), &usual, &varied, 0, true);
        assert_eq!(fits(&[8, 3, 64], &[8, 64]), Ok(Fit::Whole));
        assert_eq!(fits(&[5, 3, 64], &[5, 64]), Ok(Fit::Rows(5)));
        assert_eq!(fits(&[16, 3, 64], &[16, 64]), Ok(Fit::Other), "more rows than were captured");
        assert_eq!(fits(&[8, 3, 32], &[8, 32]), Ok(Fit::Other), "another size than the batch");
        assert_eq!(fits(&[5, 3, 64], &[4, 64]), Ok(Fit::Other), "rows that do not belong together");
        assert_eq!(
            fits(&[17, 3, 64], &[17, 64]).unwrap_err().to_string(),
            "input m has shape [17, 64], but the engine was built for 1 to 16 x 32 to 128"
        );
        assert!(fits(&[0, 3, 64], &[0, 64]).is_err());
        assert!(fits(&[8, 3], &[8, 64]).is_err());
        let mixed = fit(&shapes(&[("x", &[5, 3, 64]), ("m", &[5, 64])]), &usual, &varied, 0, false);
        assert_eq!(mixed, Ok(Fit::Other), "rows meet in the model");
    }

    #[test]
    fn fewer_rows_than_a_profile_begins_at_are_padded_where_no_row_knows_of_another() {
        let usual = shapes(&[("x", &[8, 3])]);
        let profiles = [profile(&[("x", &[(4, 8, 16), (3, 3, 3)])]), profile(&[("x", &[(32, 32, 32), (3, 3, 3)])])];
        let fits = |rows: u64, apart: bool| fit(&shapes(&[("x", &[rows, 3])]), &usual, &profiles, 0, apart);
        assert_eq!(fits(1, true), Ok(Fit::Rows(1)));
        let error = |rows: u64, apart: bool| fits(rows, apart).expect_err("it is outside").to_string();
        let built = "but the engine was built for 4 to 16 x 3 in profile 0, the current one; 32 x 3 in profile 1";
        assert_eq!(error(1, false), format!("input x has shape [1, 3], {built}"));
        assert_eq!(error(32, true), format!("input x has shape [32, 3], {built}"));
    }

    #[test]
    fn without_a_profile_there_is_one_shape() {
        let usual = shapes(&[("x", &[2, 3])]);
        assert_eq!(fit(&usual, &usual, &[], 0, true), Ok(Fit::Whole));
        let other = fit(&shapes(&[("x", &[1, 3])]), &usual, &[], 0, true).unwrap_err();
        assert_eq!(other.to_string(), "input x has shape [1, 3], but the engine was built for [2, 3]");
    }

    #[test]
    fn inputs_are_the_engines_by_name_type_and_size() {
        let ports = [Port { name: "x".into(), element: ElementType::F32, shape: vec![None, Some(2)] }];
        let tensor = |element, bytes| HostTensor { element, shape: vec![3, 2], bytes: vec![0; bytes] };
        let give = |name: &str, tensor| given(&ports, &NamedTensors::from([(name.to_owned(), tensor)]));
        assert_eq!(give("x", tensor(ElementType::F32, 24)).unwrap(), shapes(&[("x", &[3, 2])]));
        assert!(matches!(give("y", tensor(ElementType::F32, 24)), Err(ShapesError::Unknown { .. })));
        assert!(matches!(give("x", tensor(ElementType::F16, 12)), Err(ShapesError::Tensor { .. })));
        assert!(matches!(give("x", tensor(ElementType::F32, 23)), Err(ShapesError::Tensor { .. })));
        assert!(matches!(given(&ports, &NamedTensors::new()), Err(ShapesError::Missing { .. })));
    }
}
