//! What a native plan says of itself, and reading it back with every check.

use super::{
    assemble::WeightPlan,
    program::{Program, ProgramPort},
};
use bytes::Bytes;
use memmap2::Mmap;
use planforge_backend::Cache;
use planforge_device::CpuLevel;
use planforge_kernels_cpu::isa::IsaLevel;
use planforge_onnx::Detached;
use planforge_plan::{
    GraphSummary, PassSummary,
    container::{self, ContainerError, KIND_MANIFEST, KIND_MODEL, KIND_MODEL_WEIGHTS, KIND_WEIGHTS, Section, Writer},
    signature::InputSignature,
};
use planforge_types::{BuildSpec, Digest, Port, Sku, Toolchain, spec::MAX_PROFILES};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::{Path, PathBuf},
};

/// Largest manifest that is parsed.
const MANIFEST_MAX_BYTES: u64 = 256 << 20;

/// Everything a plan says of itself: how it came about and how it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub model_digest: Digest,
    pub sku: Sku,
    pub toolchain: Toolchain,
    pub spec: BuildSpec,
    /// Class of the device that timed the tactics.
    pub device_class: Digest,
    pub threads: u32,
    pub graph: GraphSummary,
    pub passes: Vec<PassSummary>,
    /// At the usual shapes of profile 0.
    pub program: Program,
    /// What engines of varying shapes, or of several profiles, have besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<Dynamic>,
    /// What follows the program, where only data decides some sizes. Without `dynamic` the plan's model is those nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<TailSummary>,
    /// Inputs that an output takes the place of at the next run, in plans of fixed shapes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<Cache>,
}

/// What a plan says of the shapes it is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dynamic {
    /// The inputs of each profile, in the program's order.
    pub profiles: Vec<Vec<InputSignature>>,
    /// Programs at the usual shapes of the profiles after the first.
    pub programs: Vec<Program>,
    /// Which dimensions of each output vary.
    pub outputs: Vec<Vec<bool>>,
    /// Offset and bytes of what lies in the weights section, by what decides it.
    pub packed: BTreeMap<Digest, [u64; 2]>,
}

/// What a plan says of the nodes that follow its program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TailSummary {
    /// How many nodes of the model they are.
    pub nodes: u64,
    /// Why they cannot be in the program, in words.
    pub reasons: Vec<String>,
    /// Names of the program's outputs that they read.
    pub handed: Vec<String>,
    /// What they give; a dimension without size is open.
    pub outputs: Vec<Port>,
    /// Names of all outputs of the model, in its order.
    pub order: Vec<String>,
}

impl TailSummary {
    /// Whether what is said of outputs fits a program's.
    fn fits(&self, outputs: &[ProgramPort]) -> bool {
        let own = |name: &String| outputs.iter().any(|port| port.name == *name);
        let behind = |name: &String| self.outputs.iter().any(|port| port.name == *name);
        self.handed.iter().all(own) && self.order.iter().all(|name| own(name) || behind(name))
    }
}

impl Manifest {
    /// How many optimization profiles it has; one of fixed shapes counts.
    pub fn profiles(&self) -> usize {
        self.dynamic.as_ref().map_or(1, |dynamic| dynamic.profiles.len())
    }

    /// The program at the usual shapes of a profile.
    pub fn program_of(&self, profile: usize) -> Option<&Program> {
        match (profile, &self.dynamic) {
            (0, _) => Some(&self.program),
            (_, Some(dynamic)) => dynamic.programs.get(profile - 1),
            _ => None,
        }
    }

    /// What the engine takes under a profile.
    pub fn signature(&self, profile: usize) -> Option<Vec<InputSignature>> {
        match &self.dynamic {
            Some(dynamic) => dynamic.profiles.get(profile).cloned(),
            None if profile == 0 => {
                let ports = self.program.inputs.iter();
                Some(ports.map(|port| InputSignature::fixed(&port.name, port.element, &port.shape)).collect())
            }
            None => None,
        }
    }

    /// Checks that every program holds together and that what is said of shapes fits them.
    fn check(&self, weight_bytes: u64) -> Result<(), String> {
        let held = 1 + self.dynamic.as_ref().map_or(0, |dynamic| dynamic.programs.len());
        let wanted = self.spec.profiles.len().max(1);
        if (self.profiles(), held) != (wanted, wanted) || wanted > MAX_PROFILES {
            return Err(format!("it has {held} programs for {wanted} profiles"));
        }
        let programs = (0..self.profiles()).map(|profile| self.program_of(profile));
        for (index, program) in programs.enumerate() {
            let program = program.ok_or_else(|| format!("profile {index} has no program"))?;
            program.check().map_err(|error| error.to_string())?;
            if program.weight_bytes != weight_bytes {
                return Err("its weights are not as long as it says".into());
            }
            let takes = self.signature(index).unwrap_or_default();
            let fits = takes.len() == program.inputs.len()
                && takes.iter().zip(&program.inputs).all(|(takes, port)| {
                    let usual = takes.dims.iter().map(|dim| dim.range.opt as usize);
                    takes.name == port.name && takes.element == port.element && usual.eq(port.shape.iter().copied())
                });
            if !fits {
                return Err(format!("the inputs of profile {index} are not those of its program"));
            }
        }
        if self.tail.as_ref().is_some_and(|tail| !tail.fits(&self.program.outputs)) {
            return Err("what it says of the nodes behind its program does not fit it".into());
        }
        let Some(dynamic) = &self.dynamic else { return Ok(()) };
        let ranks = self.program.outputs.iter().map(|port| port.shape.len());
        if !ranks.eq(dynamic.outputs.iter().map(Vec::len)) {
            return Err("what it says of its outputs does not fit them".into());
        }
        let inside = |[offset, bytes]: &[u64; 2]| offset.checked_add(*bytes).is_some_and(|end| end <= weight_bytes);
        if !dynamic.packed.values().all(inside) {
            return Err("a packed constant lies outside of its weights".into());
        }
        Ok(())
    }
}

/// Why a plan cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("cannot open plan {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("plan {}: {source}", path.display())]
    Container { path: PathBuf, source: ContainerError },
    #[error("plan {}: its manifest cannot be read: {reason}", path.display())]
    Manifest { path: PathBuf, reason: String },
    #[error("the plan is for {sku}, which is no instruction-set level this program knows")]
    Sku { sku: Sku },
    #[error("the plan is for {sku} and needs {needs}; this CPU offers {here}")]
    Instructions { sku: Sku, needs: &'static str, here: String },
}

/// The kernels' level behind a CPU SKU.
pub(crate) fn isa_level(level: CpuLevel) -> IsaLevel {
    match level {
        CpuLevel::X86V2 => IsaLevel::X86V2,
        CpuLevel::X86V3 => IsaLevel::X86V3,
        CpuLevel::X86V4 => IsaLevel::X86V4,
        CpuLevel::X86V4Vnni => IsaLevel::X86V4Vnni,
        CpuLevel::X86V4Bf16 => IsaLevel::X86V4Bf16,
        CpuLevel::X86V4Amx => IsaLevel::X86V4Amx,
        CpuLevel::Aarch64Neon | CpuLevel::Aarch64NeonDotprod => IsaLevel::Neon,
    }
}

/// The class of this host's CPU: whose timings may be used again.
pub(crate) fn device_class() -> Digest {
    planforge_device::cpu::detect(&planforge_device::cpu::host_facts()).0.class_digest()
}

/// The SKUs of this CPU, for messages.
pub(crate) fn levels_here() -> String {
    let names: Vec<&str> = CpuLevel::detect().into_iter().map(CpuLevel::name).collect();
    if names.is_empty() { "none of the known levels".to_owned() } else { names.join(", ") }
}

/// Writes a plan; `path` is complete on disk when this returns. Plans of varying shapes hold their model, others what of it
/// follows their program.
pub(crate) fn write(
    path: &Path,
    manifest: &Manifest,
    weights: &WeightPlan,
    model: Option<&Detached>,
) -> Result<(), ContainerError> {
    let mut writer = Writer::create(path, if model.is_some() { 4 } else { 2 })?;
    writer.section::<io::Error>(KIND_MANIFEST, |out| out.write_all(&container::canonical(manifest)?))?;
    writer.section::<io::Error>(KIND_WEIGHTS, |out| weights.write(out))?;
    if let Some(model) = model {
        writer.section::<io::Error>(KIND_MODEL, |out| out.write_all(&model.proto))?;
        writer.section::<io::Error>(KIND_MODEL_WEIGHTS, |out| model.write_weights(out))?;
    }
    Ok(writer.finish()?)
}

/// Writes a plan whose sections are anything, with digests that fit.
pub(crate) fn seal(path: &Path, sections: &Sections<'_>) -> Result<(), ContainerError> {
    let (manifest, weights) = (sections.manifest, sections.weights);
    let all = [(KIND_MANIFEST, manifest), (KIND_WEIGHTS, weights)];
    let model = sections.model.map(|(message, weights)| [(KIND_MODEL, message), (KIND_MODEL_WEIGHTS, weights)]);
    let all: Vec<_> = all.into_iter().chain(model.into_iter().flatten()).collect();
    let mut writer = Writer::create(path, all.len())?;
    for (kind, bytes) in all {
        writer.section::<io::Error>(kind, |out| out.write_all(bytes))?;
    }
    Ok(writer.finish()?)
}

/// The sections of a plan, unchecked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sections<'a> {
    pub manifest: &'a [u8],
    pub weights: &'a [u8],
    /// Message and weights.
    pub model: Option<(&'a [u8], &'a [u8])>,
}

/// Calls `body` with the sections of a plan, as [`seal`] takes them.
pub(crate) fn unseal<T>(path: &Path, body: impl FnOnce(&Sections<'_>) -> T) -> Result<T, PlanError> {
    let plan = read(path)?;
    let manifest = serde_json_canonicalizer::to_vec(&plan.manifest);
    let manifest =
        manifest.map_err(|error| PlanError::Manifest { path: path.to_owned(), reason: error.to_string() })?;
    let model = plan.model.as_ref().map(|(message, weights)| (message.as_ref(), weights.as_ref()));
    Ok(body(&Sections { manifest: &manifest, weights: plan.weights.bytes(&plan.map), model }))
}

/// A plan whose every byte was checked.
#[derive(Debug)]
pub(crate) struct CheckedPlan {
    pub manifest: Manifest,
    /// The whole file, mapped.
    pub map: Bytes,
    pub weights: Section,
    /// The model's message and its weights, where it has them.
    pub model: Option<(Bytes, Bytes)>,
}

/// Opens a plan and checks its digests, manifest and program. Does not ask whether it can run here.
pub(crate) fn read(path: &Path) -> Result<CheckedPlan, PlanError> {
    let open = |source| PlanError::Open { path: path.to_owned(), source };
    let file = File::open(path).map_err(open)?;
    // SAFETY: plans lie in content-addressed stores, which replace files and never change them in place; were one
    // changed all the same, digests would fail now or wrong numbers come out later, which the store's user can do
    // anyway. A file cut short while mapped kills this process, which is why engines run in a worker of their own.
    let map = unsafe { Mmap::map(&file) }.map_err(open)?;
    let contained = |source| PlanError::Container { path: path.to_owned(), source };
    let known = [KIND_MANIFEST, KIND_WEIGHTS, KIND_MODEL, KIND_MODEL_WEIGHTS];
    let sections = container::read(&map, &known).map_err(contained)?;
    let section = |kind, what| container::only(&sections, kind, what).map_err(contained);
    let (text, weights) = (section(KIND_MANIFEST, "manifest")?, section(KIND_WEIGHTS, "weights")?);
    let broken = |reason: String| PlanError::Manifest { path: path.to_owned(), reason };
    if text.length > MANIFEST_MAX_BYTES {
        return Err(broken(format!("it is longer than {MANIFEST_MAX_BYTES} bytes")));
    }
    let manifest: Manifest = serde_json::from_slice(text.bytes(&map)).map_err(|error| broken(error.to_string()))?;
    manifest.check(weights.length).map_err(broken)?;
    let map = Bytes::from_owner(map);
    let model = match manifest.dynamic.is_some() || manifest.tail.is_some() {
        true => {
            Some((section(KIND_MODEL, "model")?.part(&map), section(KIND_MODEL_WEIGHTS, "model's weights")?.part(&map)))
        }
        false => None,
    };
    Ok(CheckedPlan { manifest, map, weights, model })
}

/// The kernels' level of a plan, when this CPU runs it.
pub(crate) fn level_of(manifest: &Manifest) -> Result<IsaLevel, PlanError> {
    let sku = &manifest.sku;
    let level = CpuLevel::of_sku(sku).ok_or_else(|| PlanError::Sku { sku: sku.clone() })?;
    let isa = isa_level(level);
    if !level.runs_here() || !isa.is_available() {
        return Err(PlanError::Instructions { sku: sku.clone(), needs: isa.describe(), here: levels_here() });
    }
    Ok(isa)
}
