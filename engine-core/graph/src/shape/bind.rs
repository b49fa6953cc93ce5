//! Binding what a model leaves open to the usual sizes of a profile.

use planforge_types::{DimRange, OptimizationProfile};
use std::collections::BTreeMap;

/// Most elements one value may have: 8 GiB of f32, more than any activation of a model this compiler is for.
pub const MAX_ELEMENTS: usize = 1 << 31;

/// Most dimensions a value may have; index arithmetic recurses once per dimension.
pub const MAX_RANK: usize = 16;

/// A dimension as a model declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeclaredDim {
    Size(i64),
    Symbol(String),
    Unknown,
}

/// Why an input's shape cannot be bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    #[error("input {input} has open dimensions whose sizes are not given: [{declared}]")]
    Unknown { input: String, declared: String },
    #[error("input {input} does not say its rank, and no shape is given for it")]
    NoRank { input: String },
    #[error("the profile gives input {input} {given} dimensions, but the model declares {declared}")]
    Rank { input: String, given: usize, declared: usize },
    #[error("the profile gives dimension {axis} of input {input} size {given}, but the model fixes it to {declared}")]
    Fixed { input: String, axis: usize, given: u64, declared: i64 },
    #[error("dimension {symbol} is {first} in one input and {second} in input {input}")]
    SymbolTwice { symbol: String, input: String, first: u64, second: u64 },
    #[error("{place} has the impossible shape {shape}: {reason}")]
    Impossible { place: String, shape: String, reason: &'static str },
}

/// Refuses shapes with negative, too many or too large dimensions.
///
/// # Errors
///
/// When there are too many axes or elements.
pub fn check_size(place: &str, shape: &[i128]) -> Result<Vec<usize>, BindError> {
    let impossible = |reason| BindError::Impossible { place: place.into(), shape: format!("{shape:?}"), reason };
    if shape.len() > MAX_RANK {
        return Err(impossible("more dimensions than 16"));
    }
    if shape.iter().any(|&size| size < 0) {
        return Err(impossible("a dimension is negative"));
    }
    let mut count = 1usize;
    for &size in shape {
        // A dimension of zero makes the others no smaller: parts of the shape are multiplied on their own, too.
        count = usize::try_from(size)
            .ok()
            .and_then(|size| count.checked_mul(size.max(1)))
            .filter(|&count| count <= MAX_ELEMENTS)
            .ok_or_else(|| impossible("more than 2^31 elements"))?;
    }
    Ok(shape.iter().map(|&size| size as usize).collect())
}

/// The shape of one model input at the profile's usual sizes. `symbols` collects what each named dimension became.
///
/// # Errors
///
/// When a dimension is not known, or does not fit the profile.
pub fn bind_input(
    input: &str,
    declared: Option<&[DeclaredDim]>,
    profile: Option<&OptimizationProfile>,
    symbols: &mut BTreeMap<String, u64>,
) -> Result<Vec<usize>, BindError> {
    let given: Option<&Vec<DimRange>> = profile.and_then(|profile| profile.inputs.get(input));
    let mut shape = Vec::new();
    match (declared, given) {
        (None, None) => return Err(BindError::NoRank { input: input.into() }),
        (None, Some(given)) => shape.extend(given.iter().map(|range| i128::from(range.opt))),
        (Some(declared), given) => {
            if let Some(given) = given.filter(|given| given.len() != declared.len()) {
                let (given, declared) = (given.len(), declared.len());
                return Err(BindError::Rank { input: input.into(), given, declared });
            }
            for (axis, dim) in declared.iter().enumerate() {
                let opt = given.map(|given| given[axis].opt);
                shape.push(match (dim, opt) {
                    (DeclaredDim::Size(size), None) => i128::from(*size),
                    (&DeclaredDim::Size(size), Some(opt)) if i128::from(size) == i128::from(opt) => opt.into(),
                    (&DeclaredDim::Size(declared), Some(given)) => {
                        return Err(BindError::Fixed { input: input.into(), axis, given, declared });
                    }
                    (_, None) => match dim {
                        // Another input may have said what this name stands for.
                        DeclaredDim::Symbol(symbol) if symbols.contains_key(symbol) => symbols[symbol].into(),
                        DeclaredDim::Symbol(symbol) => match sum(symbol, symbols) {
                            Some(size) => size.into(),
                            None => return Err(unknown(input, declared)),
                        },
                        _ => return Err(unknown(input, declared)),
                    },
                    (DeclaredDim::Unknown, Some(opt)) => opt.into(),
                    (DeclaredDim::Symbol(symbol), Some(opt)) => {
                        let first = *symbols.entry(symbol.clone()).or_insert(opt);
                        if first != opt {
                            let (symbol, input) = (symbol.clone(), input.into());
                            return Err(BindError::SymbolTwice { symbol, input, first, second: opt });
                        }
                        opt.into()
                    }
                });
            }
        }
    }
    check_size(&format!("input {input}"), &shape)
}

/// The size that a name such as `past_length + 1` says, when its parts are known.
#[must_use]
pub fn sum(symbol: &str, symbols: &BTreeMap<String, u64>) -> Option<u64> {
    let size = |part: &str| part.parse().ok().or_else(|| symbols.get(part).copied());
    let mut parts = symbol.split('+').map(str::trim);
    if symbol.contains('+') { parts.try_fold(0u64, |total, part| total.checked_add(size(part)?)) } else { None }
}

fn unknown(input: &str, declared: &[DeclaredDim]) -> BindError {
    let declared = declared.iter().map(|dim| match dim {
        DeclaredDim::Size(size) => size.to_string(),
        DeclaredDim::Symbol(symbol) => symbol.clone(),
        DeclaredDim::Unknown => "?".into(),
    });
    BindError::Unknown { input: input.into(), declared: declared.collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(input: &str, sizes: &[u64]) -> OptimizationProfile {
        let ranges = sizes.iter().map(|&size| DimRange { min: 1, opt: size, max: size }).collect();
        OptimizationProfile { inputs: BTreeMap::from([(input.to_owned(), ranges)]) }
    }

    fn declared() -> Vec<DeclaredDim> {
        vec![DeclaredDim::Symbol("batch".into()), DeclaredDim::Size(3)]
    }

    #[test]
    fn an_open_dimension_takes_the_usual_size() {
        let mut symbols = BTreeMap::new();
        let shape = bind_input("x", Some(&declared()), Some(&profile("x", &[8, 3])), &mut symbols);
        assert_eq!(shape, Ok(vec![8, 3]));
        assert_eq!(bind_input("y", Some(&declared()), None, &mut symbols), Ok(vec![8, 3]));
    }

    #[test]
    fn what_is_not_given_is_refused_by_name() {
        let error = bind_input("x", Some(&declared()), None, &mut BTreeMap::new()).unwrap_err();
        assert!(error.to_string().contains("input x") && error.to_string().contains("[batch, 3]"), "{error}");
        let error = bind_input("x", None, None, &mut BTreeMap::new()).unwrap_err();
        assert_eq!(error, BindError::NoRank { input: "x".into() });
    }

    #[test]
    fn a_name_that_is_a_sum_follows_from_its_parts() {
        let declared = |name: &str| [DeclaredDim::Size(1), DeclaredDim::Symbol(name.into())];
        let mut symbols = BTreeMap::from([("past".to_owned(), 15), ("new".to_owned(), 2)]);
        let mut bound = |name: &str| bind_input("mask", Some(&declared(name)), None, &mut symbols);
        assert_eq!(bound("past + new"), Ok(vec![1, 17]));
        assert_eq!(bound("past+1"), Ok(vec![1, 16]));
        assert!(matches!(bound("past + other"), Err(BindError::Unknown { .. })));
        assert!(matches!(bound("5"), Err(BindError::Unknown { .. })), "a name alone is no number");
    }

    #[test]
    fn a_profile_cannot_contradict_the_model_or_itself() {
        let mut symbols = BTreeMap::new();
        let fixed = bind_input("x", Some(&declared()), Some(&profile("x", &[8, 4])), &mut symbols);
        assert!(matches!(fixed, Err(BindError::Fixed { axis: 1, given: 4, declared: 3, .. })));
        let rank = bind_input("x", Some(&declared()), Some(&profile("x", &[8])), &mut symbols);
        assert!(matches!(rank, Err(BindError::Rank { given: 1, declared: 2, .. })));
        let twice = bind_input("y", Some(&declared()), Some(&profile("y", &[9, 3])), &mut symbols);
        assert!(matches!(twice, Err(BindError::SymbolTwice { first: 8, second: 9, .. })));
    }

    #[test]
    fn huge_and_negative_dimensions_are_impossible() {
        for shape in [&[-1i64, 3][..], &[1 << 31, 2], &[i64::MAX, i64::MAX, i64::MAX]] {
            let declared: Vec<_> = shape.iter().map(|&size| DeclaredDim::Size(size)).collect();
            let error = bind_input("x", Some(&declared), None, &mut BTreeMap::new()).unwrap_err();
            assert!(matches!(error, BindError::Impossible { .. }), "{shape:?}: {error}");
        }
        assert!(check_size("value", &[1; 17]).is_err());
    }
}
