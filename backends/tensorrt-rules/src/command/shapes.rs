//! Shapes as the parser reads them: `name:1x3x224x224,other:8x128`.
//!
//! The parser cuts at every `,`, then at the last `:`; quotes and one `*` in a name mean something to it and cannot be
//! escaped. So names that hold `,`, `'` or `*` are refused, and no name is ever quoted. Sizes are read as signed 32-bit
//! numbers: one beyond that ends the process with an uncaught exception.

use crate::{
    model::{Edge, ModelFacts},
    refusal::Refusal,
};
use planforge_types::{DimRange, OptimizationProfile};
use std::collections::BTreeMap;

/// Input shapes of one execution, by input name.
pub type Shapes = BTreeMap<String, Vec<u64>>;

/// One end or the middle of an optimization profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    Min,
    Opt,
    Max,
}

impl Point {
    pub const ALL: [Self; 3] = [Self::Min, Self::Opt, Self::Max];

    /// `min`, `opt`, `max`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Opt => "opt",
            Self::Max => "max",
        }
    }

    fn of(self, range: DimRange) -> u64 {
        match self {
            Self::Min => range.min,
            Self::Opt => range.opt,
            Self::Max => range.max,
        }
    }

    /// Every input's shape at this point of `profile`.
    pub fn shapes(self, profile: &OptimizationProfile) -> Shapes {
        let shape = |dims: &Vec<DimRange>| dims.iter().map(|range| self.of(*range)).collect();
        profile.inputs.iter().map(|(name, dims)| (name.clone(), shape(dims))).collect()
    }
}

/// The points of a profile that differ, so that nothing is measured twice.
pub fn distinct_points(profile: &OptimizationProfile) -> Vec<Point> {
    let mut points = vec![Point::Opt];
    for point in [Point::Min, Point::Max] {
        if points.iter().all(|other| other.shapes(profile) != point.shapes(profile)) {
            points.push(point);
        }
    }
    points.sort_unstable();
    points
}

/// The part of `profile` that must be said: inputs that vary. The tool refuses shapes for a model without any.
pub fn varying(profile: &OptimizationProfile, model: Option<&ModelFacts>) -> OptimizationProfile {
    let says = |name: &str| model.is_none_or(|model| model.input(name).is_some_and(Edge::is_dynamic));
    let inputs = profile.inputs.iter().filter(|(name, dims)| !dims.is_empty() && says(name));
    OptimizationProfile { inputs: inputs.map(|(name, dims)| (name.clone(), dims.clone())).collect() }
}

/// Refuses profiles that do not fit the model's inputs; what TensorRT would fill in by guessing is refused too.
pub(super) fn check_profiles(profiles: &[OptimizationProfile], model: &ModelFacts) -> Result<(), Refusal> {
    let dynamic: Vec<&Edge> = model.inputs.iter().filter(|edge| edge.is_dynamic()).collect();
    if let (true, Some(edge)) = (profiles.is_empty(), dynamic.first()) {
        return Err(Refusal::model(
            format!("the shape of input '{}' is {}, and the spec gives no size", edge.name, dims_text(&edge.dims)),
            format!("give shapes for the dynamic inputs, such as --shapes {}:{}", edge.name, example(&edge.dims)),
        ));
    }
    for (index, profile) in profiles.iter().enumerate() {
        for (name, ranges) in &profile.inputs {
            let Some(edge) = model.input(name) else {
                let names: Vec<_> = model.inputs.iter().map(|edge| edge.name.as_str()).collect();
                return Err(Refusal::model(
                    format!("profile {index} gives a shape for '{name}', which is no input of the model"),
                    format!("its inputs are {}", names.join(", ")),
                ));
            };
            fits(index, edge, ranges)?;
        }
        if let Some(edge) = dynamic.iter().find(|edge| !profile.inputs.contains_key(&edge.name)) {
            return Err(Refusal::model(
                format!("profile {index} gives no shape for the dynamic input '{}'", edge.name),
                format!("add {}:{} to it", edge.name, example(&edge.dims)),
            ));
        }
    }
    Ok(())
}

fn fits(profile: usize, edge: &Edge, ranges: &[DimRange]) -> Result<(), Refusal> {
    let hint = format!("the model says {}:{}", edge.name, dims_text(&edge.dims));
    if ranges.len() != edge.dims.len() {
        return Err(Refusal::model(
            format!(
                "profile {profile} gives input '{}' {} dimensions, the model {}",
                edge.name,
                ranges.len(),
                edge.dims.len()
            ),
            hint,
        ));
    }
    for (axis, (range, dim)) in ranges.iter().zip(&edge.dims).enumerate() {
        if let Some(size) = dim
            && (range.min, range.opt, range.max) != (*size, *size, *size)
        {
            return Err(Refusal::model(
                format!(
                    "profile {profile} gives dimension {axis} of input '{}' the sizes {}..{}..{}, but the model fixes it at {size}",
                    edge.name, range.min, range.opt, range.max
                ),
                hint,
            ));
        }
    }
    Ok(())
}

fn dims_text(dims: &[Option<u64>]) -> String {
    dims.iter().map(|dim| dim.map_or_else(|| "?".to_owned(), |size| size.to_string())).collect::<Vec<_>>().join("x")
}

fn example(dims: &[Option<u64>]) -> String {
    dims.iter().map(|dim| dim.map_or_else(|| "1..8".to_owned(), |size| size.to_string())).collect::<Vec<_>>().join("x")
}

/// Shapes as one value of an option. Inputs without dimensions have nothing to say and are left out.
pub(super) fn text(shapes: &Shapes) -> Result<String, Refusal> {
    let items = shapes.iter().filter(|(_, dims)| !dims.is_empty()).map(|(name, dims)| item(name, dims));
    Ok(items.collect::<Result<Vec<_>, _>>()?.join(","))
}

fn item(name: &str, dims: &[u64]) -> Result<String, Refusal> {
    tensor_name(name)?;
    let sizes = dims.iter().map(|size| match i32::try_from(*size) {
        Ok(size) => Ok(size.to_string()),
        Err(_) => Err(Refusal::spec(
            format!("input '{name}' has a dimension of {size}; TensorRT's tool reads at most {}", i32::MAX),
            "give the dimension a size that fits",
        )),
    });
    Ok(format!("{name}:{}", sizes.collect::<Result<Vec<_>, _>>()?.join("x")))
}

/// Refuses a tensor name that the parser would read as something else.
pub(super) fn tensor_name(name: &str) -> Result<(), Refusal> {
    let bad = name.chars().find(|c| matches!(c, ',' | '\'' | '*') || c.is_control());
    let problem = match bad {
        Some(c) => format!("holds '{}'", c.escape_debug()),
        None if name.is_empty() => "is empty".into(),
        None => return Ok(()),
    };
    Err(Refusal::model(
        format!("the tensor name '{}' {problem}, which trtexec cannot take", name.escape_debug()),
        "rename the tensor in the model",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(dims: &[(u64, u64, u64)]) -> OptimizationProfile {
        let ranges = dims.iter().map(|&(min, opt, max)| DimRange { min, opt, max }).collect();
        OptimizationProfile { inputs: BTreeMap::from([("serving:0".to_owned(), ranges)]) }
    }

    #[test]
    fn points_are_what_the_profile_says() {
        let p = profile(&[(1, 4, 8), (128, 128, 128)]);
        let texts = Point::ALL.map(|point| text(&point.shapes(&p)).unwrap());
        assert_eq!(texts, ["serving:0:1x128", "serving:0:4x128", "serving:0:8x128"]);
        assert_eq!(distinct_points(&p), Point::ALL);
        assert_eq!(distinct_points(&profile(&[(1, 8, 8)])), [Point::Min, Point::Opt]);
        assert_eq!(distinct_points(&profile(&[(8, 8, 16)])), [Point::Opt, Point::Max]);
        assert_eq!(distinct_points(&profile(&[(8, 8, 8)])), [Point::Opt]);
    }

    fn ids(dims: &[Option<u64>]) -> ModelFacts {
        let edge = |name: &str, dims: &[Option<u64>]| Edge { name: name.into(), element: None, dims: dims.to_vec() };
        ModelFacts { inputs: vec![edge("serving:0", dims), edge("scale", &[Some(1)])], ..ModelFacts::default() }
    }

    #[test]
    fn profiles_must_fit_the_model() {
        let dynamic = ids(&[None, Some(128)]);
        let good = profile(&[(1, 4, 8), (128, 128, 128)]);
        assert_eq!(check_profiles(std::slice::from_ref(&good), &dynamic), Ok(()));
        // Only what varies is said.
        assert_eq!(varying(&good, Some(&dynamic)), good);
        assert!(varying(&profile(&[(1, 1, 1)]), Some(&ids(&[Some(1)]))).inputs.is_empty());
        assert_eq!(check_profiles(&[], &ids(&[Some(1), Some(128)])), Ok(()));
        let mut other = good.clone();
        other.inputs.insert("mask".into(), Vec::new());
        for (profiles, said) in [
            (vec![], "the shape of input 'serving:0' is ?x128, and the spec gives no size"),
            (vec![profile(&[(1, 4, 8)])], "gives input 'serving:0' 1 dimensions, the model 2"),
            (vec![profile(&[(1, 4, 8), (64, 64, 64)])], "the model fixes it at 128"),
            (vec![good, other], "'mask', which is no input of the model"),
            (vec![OptimizationProfile::default()], "no shape for the dynamic input 'serving:0'"),
        ] {
            let refusal = check_profiles(&profiles, &dynamic).unwrap_err();
            assert!(refusal.to_string().contains(said), "{refusal}");
        }
        assert!(check_profiles(&[], &dynamic).unwrap_err().hint().contains("serving:0:1..8x128"));
    }

    #[test]
    fn names_and_sizes_the_parser_misreads_are_refused() {
        for name in ["a,b", "a'b", "a*", "", "a\nb"] {
            assert!(text(&Shapes::from([(name.to_owned(), vec![1])])).is_err(), "{name:?}");
        }
        assert!(text(&Shapes::from([("x".to_owned(), vec![1 << 31])])).is_err());
        assert_eq!(text(&Shapes::from([("x y".to_owned(), vec![(1 << 31) - 1])])).unwrap(), "x y:2147483647");
        assert_eq!(text(&Shapes::from([("scale".to_owned(), vec![])])).unwrap(), "");
    }
}
