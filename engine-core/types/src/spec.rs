//! Build specs: what is asked of an engine, with every default filled in before it is hashed.

use super::Digest;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// Arithmetic the engine may use for weights and activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    #[default]
    Fp32,
    Tf32,
    Fp16,
    Bf16,
    Int8,
    Fp8,
    /// Whatever the backend finds fastest.
    Best,
}

impl fmt::Display for Precision {
    /// As build specs and flags spell it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Fp8 => "fp8",
            Self::Best => "best",
        })
    }
}

/// Smallest, usual and largest size of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DimRange {
    pub min: u64,
    pub opt: u64,
    pub max: u64,
}

/// Shapes one engine context is tuned for: every dimension of every input, by input name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OptimizationProfile {
    pub inputs: BTreeMap<String, Vec<DimRange>>,
}

impl fmt::Display for DimRange {
    /// `8`, or `1..8..32` where it varies.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.min, self.opt, self.max) {
            (min, opt, max) if min == opt && opt == max => write!(f, "{opt}"),
            (min, opt, max) => write!(f, "{min}..{opt}..{max}"),
        }
    }
}

impl fmt::Display for OptimizationProfile {
    /// As `--shapes` takes it: `images:1..8..32x3x224x224,ids:1x128`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, dims)) in self.inputs.iter().enumerate() {
            let dims = dims.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
            write!(f, "{}{name}:{dims}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl OptimizationProfile {
    /// The profile with every dimension fixed at the size that `pick` takes.
    pub fn fixed(&self, pick: impl Fn(&DimRange) -> u64) -> Self {
        let one = |range: &DimRange| {
            let size = pick(range);
            DimRange { min: size, opt: size, max: size }
        };
        let inputs = self.inputs.iter().map(|(name, dims)| (name.clone(), dims.iter().map(one).collect()));
        Self { inputs: inputs.collect() }
    }

    /// Whether it leaves any dimension open.
    pub fn varies(&self) -> bool {
        self.inputs.values().flatten().any(|range| range.min != range.max)
    }

    /// The profile of exactly these shapes.
    pub fn of_shapes<'a, S: Copy + TryInto<u64> + 'a>(shapes: impl IntoIterator<Item = (&'a str, &'a [S])>) -> Self {
        let range = |&size: &S| {
            // No machine addresses more than 64 bits.
            let size = size.try_into().unwrap_or(u64::MAX);
            DimRange { min: size, opt: size, max: size }
        };
        let shapes = shapes.into_iter().map(|(name, shape)| (name.to_owned(), shape.iter().map(range).collect()));
        Self { inputs: shapes.collect() }
    }
}

/// What is asked of an engine. Every field is part of the engine key; in a request, fields may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BuildSpec {
    pub precision: Precision,
    /// Empty: the shapes the model itself fixes. Order matters (profile 0 first).
    pub profiles: Vec<OptimizationProfile>,
    /// Most scratch memory a tactic may use; `None`: what the device has.
    pub workspace_mib: Option<u64>,
    /// 0..=5, higher tries more tactics.
    pub optimization_level: OptimizationLevel,
    /// TensorRT's hardware compatibility level (`none`, `ampere+`, `same_compute_capability`).
    pub hardware_compatibility: Option<String>,
    pub version_compatible: bool,
    /// GELU by tanh may stand in for GELU by erf where that is quicker. Written down only where it is asked for, so that
    /// keys of other specs stay what they were.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub approximate_gelu: bool,
    /// A model whose declared outputs contradict its nodes is refused. Written down only where it is asked for, as above.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Calibration cache or table that int8 scales come from.
    pub calibration: Option<Digest>,
    /// Plugin libraries, sorted.
    pub plugins: Vec<Digest>,
    /// CPU threads the engine runs on. `None` only in a request: resolved, per SKU, to the cores of the smallest
    /// known device that offers it. Always `None` for GPUs.
    pub threads: Option<u32>,
    /// Backend options by allow-listed name.
    pub options: BTreeMap<String, String>,
}

/// How hard the compiler searches for tactics, 0 (first that works) to 5 (everything).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OptimizationLevel(pub u8);

impl Default for OptimizationLevel {
    fn default() -> Self {
        Self(3)
    }
}

/// Most profiles, inputs per profile and dimensions per input; far above what any model needs.
pub const MAX_PROFILES: usize = 64;
pub const MAX_PROFILE_INPUTS: usize = 1024;
pub const MAX_RANK: usize = 16;
/// Largest size of one dimension: more elements than any device addresses.
pub const MAX_DIM: u64 = 1 << 40;
/// More CPU threads than any machine has.
pub const MAX_THREADS: u32 = 4096;
/// Largest workspace, 16 TiB.
pub const MAX_WORKSPACE_MIB: u64 = 1 << 24;
const MAX_OPTIMIZATION_LEVEL: u8 = 5;
const MAX_PLUGINS: usize = 64;
const MAX_OPTIONS: usize = 64;
/// Longest name or value of an option or input.
const MAX_TEXT_BYTES: usize = 1024;

/// What [`BuildSpec::hardware_compatibility`] may say.
const HARDWARE_COMPATIBILITY: [&str; 2] = ["ampere+", "same_compute_capability"];

/// What is wrong with a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("not a build spec: {0}")]
    Json(String),
    #[error("dimension {axis} of input '{input}' in profile {profile} has size 0")]
    ZeroDim { profile: usize, input: String, axis: usize },
    #[error(
        "dimension {axis} of input '{input}' in profile {profile} is min {}, opt {}, max {}; it must hold that min <= opt <= max",
        range.min, range.opt, range.max
    )]
    DimOrder { profile: usize, input: String, axis: usize, range: DimRange },
    #[error("{what} is {found}, more than the {most} possible")]
    TooMany { what: &'static str, found: u64, most: u64 },
    #[error("the number of threads is 0; leave it out for all cores, or name at least 1")]
    ZeroThreads,
    #[error("the workspace is 0 MiB; leave it out for what the device has")]
    ZeroWorkspace,
    #[error("hardware compatibility '{level}' is unknown; known: none, {}", HARDWARE_COMPATIBILITY.join(", "))]
    HardwareCompatibility { level: String },
    #[error("an option has no name")]
    UnnamedOption,
}

/// Refuses `found` above `most`.
fn bounded(what: &'static str, found: u64, most: u64) -> Result<(), SpecError> {
    if found > most { Err(SpecError::TooMany { what, found, most }) } else { Ok(()) }
}

impl BuildSpec {
    /// Reads a spec document, in which fields may be left out, into its one canonical form.
    ///
    /// # Errors
    /// [`SpecError::Json`] when it is no such document, else as [`Self::validate`].
    pub fn parse(json: &str) -> Result<Self, SpecError> {
        let spec: Self = serde_json::from_str(json).map_err(|error| SpecError::Json(error.to_string()))?;
        let spec = spec.canonical();
        spec.validate()?;
        Ok(spec)
    }

    /// The spec as canonical JSON (RFC 8785): equal specs are equal bytes.
    pub fn to_canonical_json(&self) -> String {
        serde_json_canonicalizer::to_string(&self.clone().canonical()).expect("a spec has only JSON types")
    }

    /// Brings equal meanings to one form. Plugins are a set; profiles that fix no input say what leaving them out
    /// says; a compatibility of `none` is none.
    pub fn canonical(mut self) -> Self {
        self.plugins.sort_unstable();
        self.plugins.dedup();
        if self.profiles.iter().all(|profile| profile.inputs.is_empty()) {
            self.profiles.clear();
        }
        self.hardware_compatibility = self
            .hardware_compatibility
            .map(|level| level.trim().to_ascii_lowercase().replace('-', "_"))
            .filter(|level| !level.is_empty() && level != "none");
        self
    }

    /// Whether any of its profiles leaves a dimension open.
    pub fn varies(&self) -> bool {
        self.profiles.iter().any(OptimizationProfile::varies)
    }

    /// Refuses what no engine could be built from. Whether a model and a backend can do it is theirs to say.
    ///
    /// # Errors
    /// The first thing that is wrong: something above its bound, a size of nothing, a dimension out of order, an option
    /// without a name, a compatibility that no toolchain knows.
    pub fn validate(&self) -> Result<(), SpecError> {
        bounded("the number of profiles", self.profiles.len() as u64, MAX_PROFILES as u64)?;
        for (index, profile) in self.profiles.iter().enumerate() {
            bounded("the number of inputs of a profile", profile.inputs.len() as u64, MAX_PROFILE_INPUTS as u64)?;
            for (input, dims) in &profile.inputs {
                bounded("the length of an input's name", input.len() as u64, MAX_TEXT_BYTES as u64)?;
                bounded("the number of dimensions of an input", dims.len() as u64, MAX_RANK as u64)?;
                for (axis, range) in dims.iter().enumerate() {
                    let place = || (index, input.clone());
                    if range.min == 0 {
                        let (profile, input) = place();
                        return Err(SpecError::ZeroDim { profile, input, axis });
                    }
                    if !(range.min <= range.opt && range.opt <= range.max) {
                        let (profile, input) = place();
                        return Err(SpecError::DimOrder { profile, input, axis, range: *range });
                    }
                    bounded("a dimension", range.max, MAX_DIM)?;
                }
            }
        }
        match self.threads {
            Some(0) => return Err(SpecError::ZeroThreads),
            Some(threads) => bounded("the number of threads", threads.into(), MAX_THREADS.into())?,
            None => {}
        }
        match self.workspace_mib {
            Some(0) => return Err(SpecError::ZeroWorkspace),
            Some(mib) => bounded("the workspace in MiB", mib, MAX_WORKSPACE_MIB)?,
            None => {}
        }
        bounded("the optimization level", self.optimization_level.0.into(), MAX_OPTIMIZATION_LEVEL.into())?;
        bounded("the number of plugins", self.plugins.len() as u64, MAX_PLUGINS as u64)?;
        bounded("the number of options", self.options.len() as u64, MAX_OPTIONS as u64)?;
        for (name, value) in &self.options {
            if name.is_empty() {
                return Err(SpecError::UnnamedOption);
            }
            bounded("the length of an option", name.len().max(value.len()) as u64, MAX_TEXT_BYTES as u64)?;
        }
        match &self.hardware_compatibility {
            Some(level) if !HARDWARE_COMPATIBILITY.contains(&level.as_str()) => {
                Err(SpecError::HardwareCompatibility { level: level.chars().take(80).collect() })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_range(min: u64, opt: u64, max: u64) -> BuildSpec {
        let inputs =
            BTreeMap::from([("x".to_owned(), vec![DimRange { min: 1, opt: 1, max: 1 }, DimRange { min, opt, max }])]);
        BuildSpec { profiles: vec![OptimizationProfile { inputs }], ..BuildSpec::default() }
    }

    #[test]
    fn impossible_dimensions_are_refused_with_their_place() {
        assert_eq!(with_range(1, 4, 8).validate(), Ok(()));
        assert_eq!(
            with_range(0, 4, 8).validate().unwrap_err().to_string(),
            "dimension 1 of input 'x' in profile 0 has size 0"
        );
        for (min, opt, max) in [(4, 2, 8), (1, 9, 8), (9, 9, 8)] {
            let error = with_range(min, opt, max).validate().unwrap_err();
            assert!(matches!(error, SpecError::DimOrder { axis: 1, .. }), "{error}");
        }
        assert!(matches!(with_range(1, 1, u64::MAX).validate(), Err(SpecError::TooMany { what: "a dimension", .. })));
    }

    #[test]
    fn other_impossible_specs_are_refused() {
        for (json, part) in [
            (r#"{"threads": 0}"#, "threads is 0"),
            (r#"{"threads": 5000}"#, "4096"),
            (r#"{"workspace_mib": 0}"#, "0 MiB"),
            (r#"{"optimization_level": 6}"#, "more than the 5"),
            (r#"{"hardware_compatibility": "turing"}"#, "known: none, ampere+"),
            (r#"{"options": {"": "x"}}"#, "no name"),
            (r#"{"precison": "fp16"}"#, "unknown field `precison`"),
            (r#"{"precision": "fp17"}"#, "unknown variant `fp17`"),
            (r#"{"profiles": [{"x": [{"min": 1, "opt": 1}]}]}"#, "missing field `max`"),
            ("[", "not a build spec"),
        ] {
            let error = BuildSpec::parse(json).unwrap_err().to_string();
            assert!(error.contains(part), "{json}: {error}");
        }
    }

    #[test]
    fn every_number_stays_exact_in_canonical_json() {
        // Canonical JSON writes numbers as doubles: a spec that validates has none beyond 2^53.
        let spec = BuildSpec { workspace_mib: Some(MAX_WORKSPACE_MIB), ..with_range(1, MAX_DIM - 1, MAX_DIM) };
        assert_eq!(spec.validate(), Ok(()));
        assert_eq!(BuildSpec::parse(&spec.to_canonical_json()), Ok(spec));
    }
}
