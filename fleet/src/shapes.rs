//! The input shapes an engine is tuned for, as people write them: `--shapes`, and `shapes` of a spec.
//!
//! `images:1x3x224x224` fixes every dimension; `ids:1..8x128` lets the first one vary and tunes for the largest;
//! `ids:1..4..8x128` tunes for 4. Inputs are separated by commas; each `--shapes` is one optimization profile.

use planforge_types::{DimRange, OptimizationProfile};

/// Most dimensions of one input: no device runs more.
const MAX_RANK: usize = 8;
/// Largest size of one dimension.
const MAX_DIM: u64 = 1 << 31;

/// Reads one profile.
///
/// # Errors
/// What is wrong with which part, in words.
pub fn parse(text: &str) -> Result<OptimizationProfile, String> {
    let mut profile = OptimizationProfile::default();
    for part in text.split(',') {
        // Names of inputs may have colons of their own ("serving_default_x:0"), shapes have none.
        let Some((name, shape)) = part.rsplit_once(':').filter(|(name, _)| !name.is_empty()) else {
            return Err(format!("'{part}' has no input name: write NAME:SHAPE, such as images:1x3x224x224"));
        };
        let dims = shape.split('x').map(|dim| parse_dim(dim, part)).collect::<Result<Vec<_>, _>>()?;
        if dims.len() > MAX_RANK {
            return Err(format!("'{part}' has {} dimensions, at most {MAX_RANK} are possible", dims.len()));
        }
        if profile.inputs.insert(name.to_owned(), dims).is_some() {
            return Err(format!("input '{name}' has two shapes; give a second profile its own --shapes"));
        }
    }
    Ok(profile)
}

fn parse_dim(text: &str, part: &str) -> Result<DimRange, String> {
    let sizes = text.split("..").map(str::parse).collect::<Result<Vec<u64>, _>>();
    let range = match sizes.as_deref() {
        Ok([size]) => DimRange { min: *size, opt: *size, max: *size },
        Ok([min, max]) => DimRange { min: *min, opt: *max, max: *max },
        Ok([min, opt, max]) => DimRange { min: *min, opt: *opt, max: *max },
        _ => return Err(format!("'{text}' in '{part}' is no dimension: write N, MIN..MAX or MIN..OPT..MAX")),
    };
    if range.min == 0 || range.max > MAX_DIM {
        return Err(format!("'{text}' in '{part}' is out of range: dimensions go from 1 to {MAX_DIM}"));
    }
    if range.min > range.opt || range.opt > range.max {
        return Err(format!("'{text}' in '{part}' does not go from small to large"));
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_as_people_write_them() {
        let profile = parse("images:1x3x224x224,serving:0:1..8x128,c:1..4..8").unwrap();
        let dims = |name: &str| profile.inputs[name].iter().map(|d| (d.min, d.opt, d.max)).collect::<Vec<_>>();
        assert_eq!(dims("images"), [(1, 1, 1), (3, 3, 3), (224, 224, 224), (224, 224, 224)]);
        assert_eq!(dims("serving:0"), [(1, 8, 8), (128, 128, 128)]);
        assert_eq!(dims("c"), [(1, 4, 8)]);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, said) in [
            ("1x3", "no input name"),
            (":1x3", "no input name"),
            ("a:1xb", "'b' in 'a:1xb' is no dimension"),
            ("a:", "is no dimension"),
            ("a:0x3", "out of range"),
            ("a:8..1", "small to large"),
            ("a:1..2..3..4", "is no dimension"),
            ("a:1,a:2", "two shapes"),
            ("a:1x1x1x1x1x1x1x1x1", "9 dimensions"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
