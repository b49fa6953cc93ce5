//! What can be said before anything runs: refusals, and warnings where it is not certain.
//!
//! A spec is checked by writing every command line that its job would run. Operators and opsets are NVIDIA's own lists
//! (the importers and `docs/operators.md` of onnx-tensorrt, branches 8.2 to 10.1): what those versions lack is refused,
//! what only newer versions could have learned is a warning.

use crate::{
    command::{self, Benchmark, BuildFiles, CommandLine, Mode, Outputs, Profile, Run},
    flags::Capabilities,
    model::ModelFacts,
    options::Options,
    refusal::Refusal,
    version::Version,
};
use planforge_stats::COMPARABLE_WINDOWS;
use planforge_types::{BuildSpec, OptimizationProfile, Toolchain};
use std::path::{Path, PathBuf};

/// A command line with what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// `build`, `benchmark profile 0 at opt`, `profile`, `outputs`.
    pub name: String,
    pub command: CommandLine,
}

/// Files of the steps as they are named before a job exists.
const PLAN: &str = "engine.plan";
const TIMING_CACHE: &str = "timing.cache";
const CALIBRATION: &str = "calibration.cache";
/// What one measurement asks for before anything was measured.
const ITERATIONS: u32 = 10;

/// How long each process warms up before it times.
pub const WARM_UP_MS: u32 = 200;

/// Shortest window: the tool counts whole seconds, and starting a process costs more than that.
pub const WINDOW_MS: f64 = 1_000.0;

/// Timed processes that a report has at least where it can be compared.
pub const TIMED_PROCESSES: usize = COMPARABLE_WINDOWS;

/// Seconds that they take at least, warming up and timing; loading the engine in each comes on top.
pub fn timed_processes_s() -> f64 {
    (WINDOW_MS + f64::from(WARM_UP_MS)) * TIMED_PROCESSES as f64 / 1e3
}

/// Every command line that a job of `spec` runs, with relative names for the files of its scratch folder.
pub fn steps(
    capabilities: &Capabilities,
    spec: &BuildSpec,
    model_path: &Path,
    model: Option<&ModelFacts>,
) -> Result<Vec<Step>, Refusal> {
    let plugins: Vec<PathBuf> = (0..spec.plugins.len()).map(|index| format!("plugin-{index}.so").into()).collect();
    let files = BuildFiles {
        model: model_path,
        plan: Path::new(PLAN),
        timing_cache: capabilities.has("--timingCacheFile").then(|| Path::new(TIMING_CACHE)),
        calibration: spec.calibration.is_some().then(|| Path::new(CALIBRATION)),
        plugins: &plugins,
    };
    let mut steps = vec![Step { name: "build".into(), command: command::build(capabilities, spec, &files, model)? }];
    let fixed = [OptimizationProfile::default()];
    let profiles = if spec.profiles.is_empty() { &fixed[..] } else { &spec.profiles };
    for (index, profile) in profiles.iter().enumerate() {
        let varying = command::varying(profile, model);
        for point in command::distinct_points(&varying) {
            let shapes = point.shapes(&varying);
            let run = Run {
                plan: Path::new(PLAN),
                plugins: &plugins,
                model: Some(model_path),
                profile: index,
                shapes: &shapes,
                inputs: &[],
            };
            let name = |what: &str| match (profiles.len(), varying.inputs.is_empty()) {
                (1, true) => what.to_owned(),
                (1, false) => format!("{what} at {}", point.name()),
                _ => format!("{what} of profile {index} at {}", point.name()),
            };
            let outputs = Outputs { outputs: Path::new("outputs.json") };
            let benchmark = Benchmark {
                mode: Mode::default(),
                warm_up_ms: WARM_UP_MS,
                iterations: ITERATIONS,
                duration_s: 0,
                streams: 1,
                times: Some(Path::new("times.json")),
            };
            let profile = Profile {
                warm_up_ms: WARM_UP_MS,
                iterations: ITERATIONS,
                layer_times: Path::new("profile.json"),
                layer_info: Path::new("layers.json"),
            };
            steps.push(Step { name: name("outputs"), command: command::outputs(capabilities, spec, &run, &outputs)? });
            steps.push(Step {
                name: name("benchmark"),
                command: command::benchmark(capabilities, spec, &run, &benchmark)?,
            });
            steps.push(Step { name: name("profile"), command: command::profile(capabilities, spec, &run, &profile)? });
        }
    }
    Ok(steps)
}

/// Refuses what cannot be built, and says what may go wrong. Without `model`, what depends on it is left open.
pub fn check(
    capabilities: &Capabilities,
    spec: &BuildSpec,
    model: Option<&ModelFacts>,
) -> Result<Vec<String>, Refusal> {
    Options::parse(&spec.options)?;
    steps(capabilities, spec, Path::new("model.onnx"), model)?;
    match model {
        Some(model) => operators(capabilities.version(), model, !spec.plugins.is_empty()),
        None => Ok(Vec::new()),
    }
}

/// What the table says of a toolchain of this backend; `None` for a version that cannot be read.
pub fn capabilities_of(toolchain: &Toolchain) -> Option<Capabilities> {
    toolchain.version.parse().ok().map(Capabilities::of_version)
}

/// Whether the table refuses `spec` on `toolchain`, for where neither installation nor model are at hand. Toolchains of
/// other backends, and versions that cannot be read, are not for this to judge.
pub fn admit(toolchain: &Toolchain, spec: &BuildSpec) -> Result<(), Refusal> {
    if toolchain.backend != crate::BACKEND {
        return Ok(());
    }
    match capabilities_of(toolchain) {
        Some(capabilities) => check(&capabilities, spec, None).map(drop),
        None => Ok(()),
    }
}

/// Newest opset that a version documents.
const OPSETS: [(Version, i64); 4] = [
    (Version::new(8, 0, 0), 13),
    (Version::new(8, 4, 0), 17),
    (Version::new(9, 0, 0), 19),
    (Version::new(10, 0, 0), 20),
];
/// Oldest opset, documented from 10.0 on.
const OLDEST_OPSET: (Version, i64) = (Version::new(10, 0, 0), 9);
/// The newest version whose lists are known.
const NEWEST_LISTED: Version = Version::new(10, 1, 99);

/// Operators of the standard domain that a version learned.
const LEARNED: [(&str, Version); 22] = [
    ("HardSwish", Version::new(8, 4, 0)),
    ("Shrink", Version::new(8, 4, 0)),
    ("Xor", Version::new(8, 4, 0)),
    ("GridSample", Version::new(8, 5, 0)),
    ("MeanVarianceNormalization", Version::new(8, 5, 0)),
    ("Mod", Version::new(8, 5, 0)),
    ("NonZero", Version::new(8, 5, 0)),
    ("OneHot", Version::new(8, 5, 0)),
    ("RandomNormal", Version::new(8, 5, 0)),
    ("RandomNormalLike", Version::new(8, 5, 0)),
    ("RoiAlign", Version::new(8, 5, 0)),
    ("Trilu", Version::new(8, 5, 0)),
    ("GroupNormalization", Version::new(8, 6, 0)),
    ("IsInf", Version::new(8, 6, 0)),
    ("LayerNormalization", Version::new(8, 6, 0)),
    ("CastLike", Version::new(9, 1, 0)),
    ("Hardmax", Version::new(9, 2, 0)),
    ("Gelu", Version::new(10, 0, 0)),
    ("Mish", Version::new(10, 0, 0)),
    ("DeformConv", Version::new(10, 1, 0)),
    ("TRT_FP8QuantizeLinear", Version::new(8, 6, 0)),
    ("TRT_FP8DequantizeLinear", Version::new(8, 6, 0)),
];

/// Operators that no listed version has.
const UNKNOWN: [&str; 46] = [
    "AffineGrid",
    "Bernoulli",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "BlackmanWindow",
    "CenterCropPad",
    "Col2Im",
    "Compress",
    "ConcatFromSequence",
    "ConvInteger",
    "DFT",
    "Det",
    "DynamicQuantizeLinear",
    "HammingWindow",
    "HannWindow",
    "ImageDecoder",
    "MatMulInteger",
    "MaxRoiPool",
    "MaxUnpool",
    "MelWeightMatrix",
    "Multinomial",
    "NegativeLogLikelihoodLoss",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "QLinearConv",
    "QLinearMatMul",
    "RegexFullMatch",
    "STFT",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "SoftmaxCrossEntropyLoss",
    "SplitToSequence",
    "StringConcat",
    "StringNormalizer",
    "StringSplit",
    "TfIdfVectorizer",
    "Unique",
];

/// From here on functions that a model defines are unfolded.
const FUNCTIONS_SINCE: Version = Version::new(9, 0, 0);

fn operators(version: Version, model: &ModelFacts, plugins: bool) -> Result<Vec<String>, Refusal> {
    let release = version.release();
    let mut warnings = Vec::new();
    let mut missing = Vec::new();
    for (domain, operator) in model.operators.keys() {
        if model.functions.contains(&(domain.clone(), operator.clone())) {
            if release < FUNCTIONS_SINCE {
                missing.push((operator.clone(), "9.0 and newer unfold functions of a model".to_owned()));
            }
            continue;
        }
        if let Some((_, since)) = LEARNED.iter().find(|(name, _)| name == operator) {
            if release < *since {
                missing.push((operator.clone(), format!("{}.{} and newer do", since.major, since.minor)));
            }
        } else if domain.is_empty() && UNKNOWN.contains(&operator.as_str()) {
            if release <= NEWEST_LISTED {
                missing.push((operator.clone(), "no version up to 10.1 does".into()));
            } else {
                warnings
                    .push(format!("operator {operator} was unknown up to TensorRT 10.1, and {version} may lack it"));
            }
        } else if !domain.is_empty() && !plugins {
            warnings.push(format!("operator {domain}::{operator} needs a plugin that TensorRT {version} brings along"));
        }
    }
    // A plugin library may bring any operator.
    if plugins {
        warnings.extend(missing.drain(..).map(|(name, _)| format!("operator {name} must come from a plugin library")));
    }
    if let Some((_, able)) = missing.first() {
        let names: Vec<_> = missing.iter().map(|(name, _)| name.as_str()).collect();
        let kind = if names.len() == 1 { "operator" } else { "operators" };
        return Err(Refusal::Version {
            what: format!("{kind} {}", names.join(", ")),
            version,
            able: able.clone(),
            hint: "ask for a newer toolchain, replace the operator in the model, or bring a plugin that has it".into(),
        });
    }
    warnings.extend(opset(version, model.opset));
    Ok(warnings)
}

/// The parser tries opsets that it does not know, so they are worth a warning only.
fn opset(version: Version, opset: Option<i64>) -> Option<String> {
    let opset = opset?;
    let release = version.release();
    let newest = OPSETS.iter().rev().find(|(since, _)| *since <= release)?.1;
    if opset > newest && release <= NEWEST_LISTED {
        return Some(format!("the model has opset {opset}; TensorRT {version} documents opsets up to {newest}"));
    }
    (release >= OLDEST_OPSET.0 && opset < OLDEST_OPSET.1)
        .then(|| format!("the model has opset {opset}; TensorRT {version} documents opsets from {} on", OLDEST_OPSET.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Edge;

    fn model(operators: &[(&str, &str)], opset: i64) -> ModelFacts {
        let operators = operators.iter().map(|(d, o)| (((*d).to_owned(), (*o).to_owned()), 1)).collect();
        let inputs = vec![Edge { name: "x".into(), element: Some("fp32"), dims: vec![Some(1), Some(3)] }];
        ModelFacts { opset: Some(opset), operators, inputs, ..ModelFacts::default() }
    }

    fn checked(version: &str, model: &ModelFacts) -> Result<Vec<String>, Refusal> {
        check(&Capabilities::of_version(version.parse().unwrap()), &BuildSpec::default(), Some(model))
    }

    #[test]
    fn operators_a_version_lacks_are_refused_with_those_that_have_them() {
        let norm = model(&[("", "LayerNormalization"), ("", "Relu")], 17);
        let refusal = checked("8.5.3", &norm).unwrap_err().to_string();
        assert_eq!(refusal, "TensorRT 8.5.3 does not support operator LayerNormalization; 8.6 and newer do");
        assert_eq!(checked("8.6.1", &norm), Ok(vec![]));
        let qlinear = model(&[("", "QLinearConv")], 13);
        assert!(checked("10.1.0", &qlinear).is_err());
        assert!(checked("10.16.1", &qlinear).unwrap()[0].contains("may lack it"));
    }

    #[test]
    fn what_is_uncertain_is_a_warning() {
        assert!(checked("8.6.1", &model(&[("", "Relu")], 18)).unwrap()[0].contains("opsets up to 17"));
        assert_eq!(checked("11.1.0", &model(&[("", "Relu")], 24)), Ok(vec![]));
        assert!(checked("10.3.0", &model(&[("", "Relu")], 8)).unwrap()[0].contains("from 9 on"));
        assert!(checked("10.3.0", &model(&[("my.ops", "Swirl")], 17)).unwrap()[0].contains("my.ops::Swirl"));
        let mut own = model(&[("local", "Block")], 17);
        own.functions.insert(("local".into(), "Block".into()));
        assert_eq!(checked("9.3.0", &own), Ok(vec![]));
        assert!(checked("8.6.1", &own).is_err());
    }
}
