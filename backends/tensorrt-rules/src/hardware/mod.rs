//! What a GPU can do with a version of TensorRT, from its compute capability alone.
//!
//! What is known for sure is refused before anything runs, with the versions or devices that can; what TensorRT works
//! around (tf32 as fp32, slow fp16) is a warning. A capability that the table does not have is let through: it is newer
//! than the table.

pub mod table;

use crate::{
    model::{ModelFacts, ModelType},
    options::{Fallback, Options},
    refusal::Refusal,
    version::Version,
};
use planforge_types::{BuildSpec, Precision, fingerprint::GpuFacts};
use std::{fmt, str::FromStr};
use table::{ARCHITECTURES, DRIVERS, NEEDS, TOOLKITS};

/// A compute capability, `8.6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Capability {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A text that is no compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a compute capability such as 8.6")]
pub struct CapabilityError;

impl FromStr for Capability {
    type Err = CapabilityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (major, minor) = text.split_once('.').ok_or(CapabilityError)?;
        let number = |digits: &str| digits.parse().map_err(|_| CapabilityError);
        Ok(Self { major: number(major)?, minor: number(minor)? })
    }
}

/// What is known of the GPU that a plan is built on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Board<'a> {
    pub capability: Capability,
    /// `580.65.06`, where it is known.
    pub driver: Option<&'a str>,
}

impl<'a> Board<'a> {
    /// `None` where the GPU's description does not say its capability.
    pub fn of(gpu: &'a GpuFacts) -> Option<Self> {
        let capability = gpu.compute_capability.parse().ok()?;
        Some(Self { capability, driver: Some(gpu.driver.as_str()).filter(|driver| !driver.is_empty()) })
    }
}

/// One compute capability and the versions of TensorRT that know it.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    pub capability: Capability,
    pub name: &'static str,
    /// First version; `None`: older than every version that is used here.
    pub since: Option<Version>,
    /// First version without it.
    pub until: Option<Version>,
    pub source: &'static str,
}

impl Architecture {
    fn is_in(&self, release: Version) -> bool {
        self.since.is_none_or(|since| since <= release) && self.until.is_none_or(|until| release < until)
    }

    /// `8.5.1 and newer do`, `versions before 10.5 do`.
    fn able(&self) -> String {
        match (self.since, self.until) {
            (Some(since), None) => format!("{since} and newer do"),
            (Some(since), Some(until)) => format!("{since} and newer, before {}.{}, do", until.major, until.minor),
            (None, Some(until)) => format!("versions before {}.{} do", until.major, until.minor),
            (None, None) => "every version does".to_owned(),
        }
    }

    /// What to ask for instead.
    fn constraint(&self) -> String {
        match (self.since, self.until) {
            (Some(since), _) => format!("--toolchain 'tensorrt>={since}'"),
            (None, Some(until)) => format!("--toolchain 'tensorrt<{}.{}'", until.major, until.minor),
            (None, None) => "another toolchain".to_owned(),
        }
    }
}

/// What not every board has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Bf16,
    Fp8,
    Tf32,
    FastFp16,
    FastInt8,
    Sparsity,
    AmperePlus,
    SameComputeCapability,
}

/// Since which capability boards have something.
#[derive(Clone, Copy, Debug)]
pub struct NeedRow {
    pub need: Need,
    pub name: &'static str,
    pub first: Capability,
    /// Without it nothing is built; else TensorRT makes do, and it is a warning.
    pub refused: bool,
    pub source: &'static str,
}

/// Oldest driver branch for a CUDA generation.
#[derive(Clone, Copy, Debug)]
pub struct CudaDriver {
    pub cuda_major: u32,
    pub branch: u32,
    pub source: &'static str,
}

/// Oldest CUDA generation of the versions from `since` on.
#[derive(Clone, Copy, Debug)]
pub struct Toolkit {
    pub since: Version,
    pub cuda_major: u32,
    pub source: &'static str,
}

/// The table's row for `capability`.
pub fn architecture(capability: Capability) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|row| row.capability == capability)
}

fn described(capability: Capability) -> String {
    match architecture(capability) {
        Some(row) => format!("compute capability {capability} ({})", row.name),
        None => format!("compute capability {capability}"),
    }
}

/// Refuses a version that does not know the GPU at all.
pub fn knows(version: Version, capability: Capability) -> Result<(), Refusal> {
    match architecture(capability) {
        Some(row) if !row.is_in(version.release()) => Err(Refusal::Version {
            what: format!("GPUs of {}", described(capability)),
            version,
            able: row.able(),
            hint: format!("ask with {}, or build for another device kind", row.constraint()),
        }),
        _ => Ok(()),
    }
}

/// Refuses what this GPU cannot do with this version, and says what it does worse than asked.
///
/// With `model`, what its own types need counts too.
pub fn check(
    version: Version,
    board: &Board<'_>,
    spec: &BuildSpec,
    model: Option<&ModelFacts>,
) -> Result<Vec<String>, Refusal> {
    let capability = board.capability;
    knows(version, capability)?;
    let options = Options::parse(&spec.options)?;
    let mut warnings = Vec::new();
    if architecture(capability).is_none() {
        warnings.push(format!(
            "{} is not known here: whether TensorRT {version} has it is not checked",
            described(capability)
        ));
    }
    let typed = version.major >= 11 || options.strongly_typed;
    for (need, what) in needs(spec, &options).into_iter().chain(model.into_iter().flat_map(|m| of_model(m, typed))) {
        let Some(row) = NEEDS.iter().find(|row| row.need == need && capability < row.first) else { continue };
        if row.refused {
            return Err(Refusal::Spec {
                what: format!(
                    "{what} needs a GPU of compute capability {} or newer; this one has {}",
                    row.first,
                    described(capability)
                ),
                hint: instead(need, capability),
            });
        }
        warnings.push(made_do(need, &what, capability));
    }
    warnings.extend(driver(version, None, board));
    Ok(warnings)
}

/// What `spec` asks that not every board has, in the spec's words.
fn needs(spec: &BuildSpec, options: &Options) -> Vec<(Need, String)> {
    let mut needs = Vec::new();
    match spec.precision {
        Precision::Bf16 => needs.push((Need::Bf16, "precision bf16".to_owned())),
        Precision::Fp8 => needs.push((Need::Fp8, "precision fp8".to_owned())),
        Precision::Tf32 => needs.push((Need::Tf32, "precision tf32".to_owned())),
        Precision::Fp16 => needs.push((Need::FastFp16, "precision fp16".to_owned())),
        Precision::Int8 => needs.push((Need::FastInt8, "precision int8".to_owned())),
        Precision::Fp32 | Precision::Best => {}
    }
    let quantized = matches!(spec.precision, Precision::Int8 | Precision::Fp8);
    if quantized && options.quantized_fallback == Fallback::Bf16 {
        needs.push((Need::Bf16, "option quantized_fallback=bf16".to_owned()));
    }
    let layers = [("layer_precisions", &options.layer_precisions), ("layer_output_types", &options.layer_output_types)];
    let of_layers =
        layers.iter().flat_map(|(name, layers)| layers.iter().flat_map(|l| &l.types).map(|t| (*name, t.as_str())));
    let sides = [("input_formats", &options.input_formats), ("output_formats", &options.output_formats)];
    let of_edges =
        sides.iter().flat_map(|(name, formats)| formats.iter().filter_map(|f| Some((*name, f.element.as_deref()?))));
    for (name, element) in of_layers.chain(of_edges) {
        match element {
            "bf16" => needs.push((Need::Bf16, format!("bf16 in option {name}"))),
            "fp8" => needs.push((Need::Fp8, format!("fp8 in option {name}"))),
            _ => {}
        }
    }
    match spec.hardware_compatibility.as_deref() {
        Some("ampere+") => needs.push((Need::AmperePlus, "hardware compatibility ampere+".to_owned())),
        Some("same_compute_capability") => {
            needs.push((Need::SameComputeCapability, "hardware compatibility same_compute_capability".to_owned()));
        }
        _ => {}
    }
    if options.sparsity.as_deref() == Some("enable") {
        needs.push((Need::Sparsity, "option sparsity=enable".to_owned()));
    }
    needs
}

/// What a model's own types ask. A weakly typed network may compute bf16 tensors in another type.
fn of_model(model: &ModelFacts, typed: bool) -> Vec<(Need, String)> {
    let mut needs = Vec::new();
    if model.quantizes_to.contains(&ModelType::Fp8) {
        needs.push((Need::Fp8, "the model, which has fp8 Q/DQ nodes,".to_owned()));
    }
    if typed && model.computes_in.contains(&ModelType::Bf16) {
        needs.push((Need::Bf16, "the model, which is typed in bf16,".to_owned()));
    }
    needs
}

fn instead(need: Need, capability: Capability) -> String {
    let here = |need: Need| NEEDS.iter().any(|row| row.need == need && row.first <= capability);
    match need {
        Need::Bf16 => "ask for fp16, or build for an Ampere or newer device".to_owned(),
        Need::Fp8 if here(Need::FastInt8) => {
            "ask for int8 or fp16, or build for an Ada, Hopper or newer device".to_owned()
        }
        Need::Fp8 => "ask for fp32, or build for an Ada, Hopper or newer device".to_owned(),
        Need::AmperePlus if here(Need::SameComputeCapability) => {
            "build on an Ampere or newer device, or ask for same_compute_capability (10.9 and newer)".to_owned()
        }
        Need::AmperePlus => "build on an Ampere or newer device, or leave the compatibility out".to_owned(),
        _ => "leave it out, or build for a newer device".to_owned(),
    }
}

fn made_do(need: Need, what: &str, capability: Capability) -> String {
    let gpu = described(capability);
    match need {
        Need::Tf32 => format!("{what}: {gpu} has no tf32, so the engine computes in fp32"),
        Need::Sparsity => format!("{what}: {gpu} has no sparse tensor cores, so it brings nothing"),
        _ => format!("{what}: {gpu} does it without hardware of its own, slower than fp32 may be"),
    }
}

/// A driver that is older than the version's CUDA takes. CUDA's forward-compatibility packages may lift it, so it is a
/// warning. `cuda` is what the installation was built for, where that is known.
pub fn driver(version: Version, cuda: Option<&str>, board: &Board<'_>) -> Option<String> {
    let driver_text = board.driver?;
    let branch: u32 = driver_text.split('.').next()?.parse().ok()?;
    let release = version.release();
    let stated = cuda.and_then(|cuda| cuda.split('.').next()?.parse().ok());
    let oldest = || TOOLKITS.iter().rev().find(|row| row.since <= release).map(|row| row.cuda_major);
    let major: u32 = stated.or_else(oldest)?;
    let row = DRIVERS.iter().find(|row| row.cuda_major == major)?;
    (branch < row.branch).then(|| {
        format!(
            "driver {driver_text} is older than branch {}, which CUDA {major} of TensorRT {version} takes without a \
             compatibility package",
            row.branch
        )
    })
}

/// Precisions that a GPU has in hardware, for tables.
pub fn precisions(capability: Capability) -> Vec<&'static str> {
    let has = |need: Need| NEEDS.iter().any(|row| row.need == need && row.first <= capability);
    // 6.1 has no fast fp16; the boards before it that have are none of a farm's.
    let all = [
        ("fp32", true),
        ("tf32", has(Need::Tf32)),
        ("fp16", has(Need::FastFp16)),
        ("bf16", has(Need::Bf16)),
        ("int8", has(Need::FastInt8)),
        ("fp8", has(Need::Fp8)),
    ];
    all.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests;
