//! `--sweep AXIS=V,V,...`: one request for every combination of values.

use super::{parse_hardware, parse_precision, parse_switch};
use crate::failure::Failure;
use planforge_types::{BuildSpec, OptimizationProfile, Precision, spec::OptimizationLevel};
use std::collections::HashSet;

/// Specs that one request may come to; the coordinator bounds jobs.
const SPECS_MAX: usize = 4096;

/// What a spec can be swept over. Device kinds and toolchains are swept by naming several, batches and streams of one
/// engine by `--sweep-batch` and `--sweep-streams`.
#[derive(Clone, Debug, PartialEq)]
pub enum Axis {
    Precision(Vec<Precision>),
    Threads(Vec<u32>),
    Workspace(Vec<u64>),
    Level(Vec<u8>),
    HardwareCompatibility(Vec<String>),
    VersionCompatible(Vec<bool>),
    /// Sizes of the first dimension of every input that `--shapes` names.
    Batch(Vec<u64>),
    /// A backend's option.
    Option(String, Vec<String>),
}

const NAMES: &str = "precision, threads, workspace (MiB), level, hardware-compatibility, version-compatible, batch (with \
                     --shapes), or option.NAME";

impl Axis {
    /// Reads `threads=1,2,4`.
    ///
    /// # Errors
    /// For an axis that is none, and values that it cannot have.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, values) =
            text.split_once('=').ok_or_else(|| format!("'{text}' is no axis with values: such as threads=1,2,4"))?;
        let values: Vec<&str> = values.split(',').map(str::trim).collect();
        if values.iter().any(|value| value.is_empty()) {
            return Err(format!("'{text}' has an empty value"));
        }
        match name {
            "precision" => each(&values, parse_precision).map(Self::Precision),
            "threads" => each(&values, |text| number(text, 1, 1024)).map(Self::Threads),
            "workspace" => each(&values, |text| number(text, 1, u64::MAX)).map(Self::Workspace),
            "level" => each(&values, |text| number(text, 0, 5)).map(Self::Level),
            "hardware-compatibility" => each(&values, parse_hardware).map(Self::HardwareCompatibility),
            "version-compatible" => each(&values, parse_switch).map(Self::VersionCompatible),
            "batch" => each(&values, |text| number(text, 1, 1 << 20)).map(Self::Batch),
            _ => match name.strip_prefix("option.").filter(|name| !name.is_empty()) {
                Some(option) => {
                    each(&values, |text| Ok(text.to_owned())).map(|all| Self::Option(option.to_owned(), all))
                }
                None => Err(format!("'{name}' is no axis: name one of {NAMES}")),
            },
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Precision(_) => "precision".into(),
            Self::Threads(_) => "threads".into(),
            Self::Workspace(_) => "workspace".into(),
            Self::Level(_) => "level".into(),
            Self::HardwareCompatibility(_) => "hardware-compatibility".into(),
            Self::VersionCompatible(_) => "version-compatible".into(),
            Self::Batch(_) => "batch".into(),
            Self::Option(name, _) => format!("option.{name}"),
        }
    }

    /// `spec` at each value of the axis.
    fn over(&self, spec: &BuildSpec) -> Result<Vec<BuildSpec>, Failure> {
        let with = |change: &dyn Fn(&mut BuildSpec)| {
            let mut spec = spec.clone();
            change(&mut spec);
            spec.canonical()
        };
        Ok(match self {
            Self::Precision(all) => all.iter().map(|one| with(&|spec| spec.precision = *one)).collect(),
            Self::Threads(all) => all.iter().map(|one| with(&|spec| spec.threads = Some(*one))).collect(),
            Self::Workspace(all) => all.iter().map(|one| with(&|spec| spec.workspace_mib = Some(*one))).collect(),
            Self::Level(all) => {
                all.iter().map(|one| with(&|spec| spec.optimization_level = OptimizationLevel(*one))).collect()
            }
            Self::HardwareCompatibility(all) => {
                all.iter().map(|one| with(&|spec| spec.hardware_compatibility = Some(one.clone()))).collect()
            }
            Self::VersionCompatible(all) => {
                all.iter().map(|one| with(&|spec| spec.version_compatible = *one)).collect()
            }
            Self::Option(name, all) => {
                all.iter().map(|one| with(&|spec| drop(spec.options.insert(name.clone(), one.clone())))).collect()
            }
            Self::Batch(all) => {
                let has_batch = |profile: &OptimizationProfile| profile.inputs.values().any(|dims| !dims.is_empty());
                if spec.profiles.is_empty() || !spec.profiles.iter().all(has_batch) {
                    return Err(Failure::usage("--sweep batch has no shapes whose first dimension it could set")
                        .hint("add --shapes, such as --shapes images:1x3x224x224"));
                }
                let of_batch = |spec: &mut BuildSpec, batch: u64| {
                    for dims in spec.profiles.iter_mut().flat_map(|profile| profile.inputs.values_mut()) {
                        if let Some(first) = dims.first_mut() {
                            (first.min, first.opt, first.max) = (batch, batch, batch);
                        }
                    }
                };
                all.iter().map(|one| with(&|spec| of_batch(spec, *one))).collect()
            }
        })
    }
}

fn each<T: PartialEq>(texts: &[&str], parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let mut found = Vec::new();
    for text in texts {
        let value = parse(text)?;
        if !found.contains(&value) {
            found.push(value);
        }
    }
    Ok(found)
}

fn number<T: TryFrom<u64>>(text: &str, least: u64, most: u64) -> Result<T, String> {
    let number = text.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
    let most = if most == u64::MAX { "more".to_owned() } else { most.to_string() };
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("'{text}' is no number from {least} to {most}"))
}

/// Every combination of the axes' values over every spec; equal ones once.
///
/// # Errors
/// When an axis is named twice, an axis does not suit a spec, or there are too many combinations.
pub fn combinations(specs: Vec<BuildSpec>, axes: &[Axis]) -> Result<Vec<BuildSpec>, Failure> {
    let names: Vec<String> = axes.iter().map(Axis::name).collect();
    if let Some(twice) =
        names.iter().enumerate().find_map(|(index, name)| names[..index].contains(name).then_some(name))
    {
        return Err(Failure::usage(format!("--sweep {twice} is given twice")).hint("name all its values in one"));
    }
    let mut all = specs;
    for axis in axes {
        let (mut next, mut seen) = (Vec::new(), HashSet::new());
        for spec in &all {
            for spec in axis.over(spec)? {
                if seen.insert(serde_json::to_string(&spec).unwrap_or_default()) {
                    next.push(spec);
                }
            }
            if next.len() > SPECS_MAX {
                return Err(Failure::usage(format!("the sweep comes to more than {SPECS_MAX} specs"))
                    .hint("sweep fewer values, or in several requests"));
            }
        }
        all = next;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(texts: &[&str]) -> Vec<Axis> {
        texts.iter().map(|text| Axis::parse(text).unwrap()).collect()
    }

    #[test]
    fn every_combination_is_a_spec_and_equal_ones_are_one() {
        let all = combinations(vec![BuildSpec::default()], &axes(&["threads=1,2,2", "precision=fp32,fp16"])).unwrap();
        let told: Vec<_> = all.iter().map(|spec| (spec.threads.unwrap(), spec.precision)).collect();
        use Precision::{Fp16, Fp32};
        assert_eq!(told, [(1, Fp32), (1, Fp16), (2, Fp32), (2, Fp16)]);
        let more = axes(&["workspace=64,128", "level=3,5", "version-compatible=on,off", "option.a=x,y"]);
        assert_eq!(combinations(vec![BuildSpec::default()], &more).unwrap().len(), 16);
        let none = combinations(vec![BuildSpec::default()], &axes(&["hardware-compatibility=none,ampere+"])).unwrap();
        assert_eq!((none.len(), none[0].clone()), (2, BuildSpec::default()), "the default keeps its key");
    }

    #[test]
    fn batches_take_the_shapes_that_are_named() {
        let profile = planforge_fleet::shapes::parse("x:1x3x8x8,m:1x4").unwrap();
        let spec = BuildSpec { profiles: vec![profile], ..BuildSpec::default() };
        let all = combinations(vec![spec], &axes(&["batch=1,8"])).unwrap();
        let told: Vec<String> = all.iter().map(|spec| spec.profiles[0].to_string()).collect();
        assert_eq!(told, ["m:1x4,x:1x3x8x8", "m:8x4,x:8x3x8x8"]);
        let failure = combinations(vec![BuildSpec::default()], &axes(&["batch=1,8"])).unwrap_err();
        assert!(failure.hint.contains("--shapes"), "{failure}");
    }

    #[test]
    fn nonsense_is_named() {
        for (text, why) in [
            ("threads", "no axis with values"),
            ("speed=1", "'speed' is no axis: name one of precision"),
            ("threads=0", "'0' is no number from 1 to 1024"),
            ("threads=1,,2", "an empty value"),
            ("precision=fp33", "is not a precision"),
            ("option.=1", "is no axis"),
        ] {
            let told = Axis::parse(text).unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
        let twice = combinations(vec![BuildSpec::default()], &axes(&["threads=1", "threads=2"])).unwrap_err();
        assert!(twice.to_string().contains("given twice"), "{twice}");
        let many: Vec<String> = (0..5).map(|n| format!("option.o{n}=1,2,3,4,5,6,7,8")).collect();
        let many = axes(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(combinations(vec![BuildSpec::default()], &many).unwrap_err().to_string().contains("more than 4096"));
    }
}
