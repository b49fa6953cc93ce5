//! `--sweep AXIS=V,V,...`: one request for every combination of values.

use super::{parse_hardware, parse_precision, parse_switch};
use crate::failure::Failure;
use planforge_types::{
    BuildSpec, OptimizationProfile, Precision, Sku,
    order::{BUILDS_MAX, STREAMS_MAX},
    spec::OptimizationLevel,
};
use std::collections::HashSet;

/// Specs that one request may come to; the coordinator bounds jobs.
const SPECS_MAX: usize = 4096;

/// What can be swept. Device kinds and toolchains are swept by naming several, batches of one engine by `--sweep-batch`.
///
/// Most axes make engines of their own. What one engine is measured at (streams), what one job makes (builds) and what every
/// measurement has both ways (CUDA graphs) are axes of the same engines: nothing is built twice for them.
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
    /// Shapes as `--shapes` names them, of their usual size alone, or both.
    Shapes(Vec<Shapes>),
    /// Of so many builds the fastest is kept.
    Builds(Vec<u32>),
    /// Parallel streams; on a processor instances on cores of their own.
    Streams(Vec<u32>),
    CudaGraph(Vec<bool>),
    /// A backend's option.
    Option(String, Vec<String>),
}

/// What an engine takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shapes {
    Static,
    Dynamic,
}

const NAMES: &str = "precision, threads, workspace (MiB), level, hardware-compatibility, version-compatible, batch (with \
                     --shapes), shapes (static, dynamic), builds, streams, cuda-graph, or option.NAME";

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
            "shapes" => each(&values, parse_shapes).map(Self::Shapes),
            "builds" => each(&values, |text| number(text, 1, BUILDS_MAX.into())).map(Self::Builds),
            "streams" => each(&values, |text| number(text, 1, STREAMS_MAX.into())).map(Self::Streams),
            "cuda-graph" => each(&values, parse_switch).map(Self::CudaGraph),
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
            Self::Shapes(_) => "shapes".into(),
            Self::Builds(_) => "builds".into(),
            Self::Streams(_) => "streams".into(),
            Self::CudaGraph(_) => "cuda-graph".into(),
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
            Self::Builds(_) | Self::Streams(_) | Self::CudaGraph(_) => vec![spec.clone()],
            Self::Shapes(all) => {
                if !spec.varies() {
                    return Err(Failure::usage("--sweep shapes has no shapes that vary")
                        .hint("add --shapes with a range, such as --shapes images:1..8..32x3x224x224"));
                }
                let usual = |spec: &mut BuildSpec| {
                    spec.profiles = spec.profiles.iter().map(|profile| profile.fixed(|range| range.opt)).collect();
                };
                all.iter().map(|one| if *one == Shapes::Static { with(&usual) } else { with(&|_| ()) }).collect()
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

fn parse_shapes(text: &str) -> Result<Shapes, String> {
    match text {
        "static" => Ok(Shapes::Static),
        "dynamic" => Ok(Shapes::Dynamic),
        _ => Err(format!("'{text}' is neither static nor dynamic")),
    }
}

/// How often each engine is built: as often as the largest value asks, for the first few builds say what fewer had given;
/// `None` where no axis says.
///
/// # Errors
/// When `--builds` says something else.
pub fn builds(asked: Option<u32>, axes: &[Axis]) -> Result<Option<u32>, Failure> {
    let swept = axes.iter().find_map(|axis| if let Axis::Builds(all) = axis { all.iter().max() } else { None });
    match (asked, swept) {
        (Some(_), Some(_)) => Err(Failure::usage("--builds and --sweep builds both say how often to build")
            .hint("leave one of them out: --sweep builds=1,2,4 builds four times")),
        (asked, swept) => Ok(asked.or(swept.copied())),
    }
}

/// Streams that axes ask to be measured.
pub fn streams(axes: &[Axis]) -> impl Iterator<Item = u32> {
    axes.iter().filter_map(|axis| if let Axis::Streams(all) = axis { Some(all) } else { None }).flatten().copied()
}

/// Refuses what devices of `skus` have none of; where nobody named any, the farm's devices decide.
///
/// # Errors
/// For CUDA graphs on processors.
pub fn suit(axes: &[Axis], skus: &[String]) -> Result<(), Failure> {
    let is_cpu = |sku: &String| sku.parse::<Sku>().is_ok_and(|sku| sku.is_cpu());
    let graphs = axes.iter().any(|axis| matches!(axis, Axis::CudaGraph(_)));
    if graphs && !skus.is_empty() && skus.iter().all(is_cpu) {
        return Err(Failure::usage(format!("{} has no CUDA graphs to sweep", skus.join(", ")))
            .hint("leave --sweep cuda-graph out, or name an NVIDIA device with --sku"));
    }
    Ok(())
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
    fn shapes_are_built_as_they_vary_and_of_their_usual_size() {
        let profile = planforge_fleet::shapes::parse("x:1..4..8x3x8x8").unwrap();
        let spec = BuildSpec { profiles: vec![profile], ..BuildSpec::default() };
        let all = combinations(vec![spec.clone()], &axes(&["shapes=static,dynamic"])).unwrap();
        let told: Vec<String> = all.iter().map(|spec| spec.profiles[0].to_string()).collect();
        assert_eq!(told, ["x:4x3x8x8", "x:1..4..8x3x8x8"]);
        let with_batches = combinations(vec![spec], &axes(&["shapes=static,dynamic", "batch=1,8"])).unwrap();
        assert_eq!(with_batches.len(), 2, "of one batch there is nothing left to vary");
        let failure = combinations(vec![BuildSpec::default()], &axes(&["shapes=static"])).unwrap_err();
        assert!(failure.hint.contains("--shapes with a range"), "{failure}");
    }

    #[test]
    fn builds_and_streams_are_axes_of_the_same_engines() {
        let swept = axes(&["builds=1,4,2", "streams=4,1", "cuda-graph=on,off"]);
        assert_eq!(combinations(vec![BuildSpec::default()], &swept).unwrap(), [BuildSpec::default()]);
        assert_eq!((builds(None, &swept).unwrap(), builds(Some(3), &[]).unwrap()), (Some(4), Some(3)));
        assert_eq!(builds(None, &[]).unwrap(), None);
        assert!(builds(Some(3), &swept).unwrap_err().to_string().contains("both say how often"));
        assert_eq!(streams(&swept).collect::<Vec<_>>(), [4, 1]);
        let skus = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(suit(&swept, &skus(&["cpu-x86-64-v3"])).unwrap_err().to_string().contains("no CUDA graphs"));
        assert!(suit(&swept, &skus(&["cpu-x86-64-v3", "t4"])).is_ok() && suit(&swept, &[]).is_ok());
        assert!(suit(&axes(&["streams=2"]), &skus(&["cpu-x86-64-v3"])).is_ok());
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
            ("builds=33", "'33' is no number from 1 to 32"),
            ("streams=0", "'0' is no number from 1 to 64"),
            ("shapes=open", "'open' is neither static nor dynamic"),
            ("cuda-graph=maybe", "neither on nor off"),
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
