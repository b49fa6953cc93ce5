//! The plan file of an NVIDIA device: written, and read back with every check.
//!
//! | section | holds |
//! |---|---|
//! | manifest | canonical JSON: how the engine came about, its programs, the recipe of every tactic |
//! | weights | constants of all programs, packed as the device reads them; mapped and uploaded as they are |
//! | code | machine code of every kernel, so that loading needs no compiler |
//! | library plans (optional) | what cuDNN compiled, so that loading compiles nothing; the recipe is enough without |
//! | model's message, model's weights (optional) | the model, of engines whose shapes vary: graphs of other shapes are made from it, wherever its weights lay |
//! | model (optional) | the ONNX file itself: in plans of revision 6 and before |
//!
//! | file | holds |
//! |---|---|
//! | `mod` | the manifest, writing, reading |
//! | `weights` | constants that several programs share |
//! | `rows` | whether rows of a batch are computed apart |
//!
//! Invariant: whatever a plan file holds, reading it is an error or a plan whose programs pass
//! [`Program::check`](crate::program::Program::check) and whose machine code is a [`Cubin`] of the architecture it says.

pub mod rows;
pub mod weights;

use crate::{program::Program, source::source_digest, tune::Timed, versions::Versions};
use bytes::Bytes;
use memmap2::Mmap;
use planforge_kernels_cuda::{
    cubin::Cubin,
    nvrtc::{Arch, ArchParseError},
};
use planforge_onnx::{Detached, Model, OnnxError};
use planforge_plan::{
    GraphSummary, PassSummary,
    container::{
        self, ContainerError, KIND_CUDA_CODE, KIND_CUDA_LIBRARY_PLANS, KIND_CUDA_MANIFEST, KIND_CUDA_MODEL,
        KIND_CUDA_MODEL_MESSAGE, KIND_CUDA_MODEL_WEIGHTS, KIND_WEIGHTS, Section, Writer,
    },
};
use planforge_types::{BuildSpec, Digest, Port, Sku, Toolchain};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    path::{Path, PathBuf},
};

/// Largest manifest and largest text of library plans that are parsed.
const MANIFEST_MAX_BYTES: u64 = 256 << 20;
const LIBRARY_PLANS_MAX_BYTES: u64 = 512 << 20;
/// As many programs as a spec may have profiles.
const PROGRAMS_MAX: usize = planforge_types::spec::MAX_PROFILES;
/// Machine code begins at multiples of this within its section.
const CODE_ALIGNMENT: usize = 64;

/// The device that timed the tactics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedOn {
    pub name: String,
    /// `sm_90a`: what its kernels run on.
    pub architecture: String,
    pub sm_count: u32,
}

/// The engine for one optimization profile, at its usual shapes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileProgram {
    pub program: Program,
    /// Rows of the first dimension are computed apart, so that fewer of them may run in this program.
    pub rows_apart: bool,
    /// What was tried for steps with a choice, fastest first; by step.
    pub tried: BTreeMap<String, Vec<Tried>>,
}

/// A candidate that was timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tried {
    pub tactic: String,
    pub us: f64,
}

impl From<&Timed> for Tried {
    fn from(timed: &Timed) -> Self {
        Self { tactic: timed.tactic.name(), us: timed.us }
    }
}

/// One kernel's machine code within the code section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelCode {
    /// Digest of its source.
    pub source: Digest,
    pub architecture: String,
    pub offset: u64,
    pub bytes: u64,
}

/// Everything a plan says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub model_digest: Digest,
    pub sku: Sku,
    pub toolchain: Toolchain,
    /// Exact versions that the recipes were made with.
    pub versions: Versions,
    pub spec: BuildSpec,
    /// Class of the device that timed the tactics.
    pub device_class: Digest,
    pub tuned_on: TunedOn,
    pub graph: GraphSummary,
    pub passes: Vec<PassSummary>,
    /// Edges as the model has them; a dimension of `None` varies.
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// One per optimization profile; one when the spec names none.
    pub programs: Vec<ProfileProgram>,
    pub kernels: Vec<KernelCode>,
}

/// Why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("cannot open plan {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("plan {}: {source}", path.display())]
    Container { path: PathBuf, source: ContainerError },
    #[error("plan {}: its manifest cannot be read: {reason}", path.display())]
    Manifest { path: PathBuf, reason: String },
}

/// What goes into a plan beside its manifest.
#[derive(Debug, Default)]
pub struct Parts<'a> {
    pub weights: &'a [u8],
    /// Machine code by digest of its source.
    pub code: BTreeMap<Digest, Vec<u8>>,
    pub library_plans: BTreeMap<String, String>,
    /// What is equal to a constant among `weights` points there; see [`weights::places`].
    pub model: Option<&'a Detached>,
}

/// Writes a plan; `path` is complete on disk when this returns. Fills in where the kernels lie.
pub fn write(path: &Path, manifest: &mut Manifest, parts: &Parts<'_>) -> Result<(), ContainerError> {
    let mut code = Vec::new();
    manifest.kernels.clear();
    for (&source, image) in &parts.code {
        code.resize(code.len().next_multiple_of(CODE_ALIGNMENT), 0);
        manifest.kernels.push(KernelCode {
            source,
            architecture: manifest.tuned_on.architecture.clone(),
            offset: code.len() as u64,
            bytes: image.len() as u64,
        });
        code.extend(image);
    }
    let text = container::canonical(manifest)?;
    let sections = 3 + usize::from(!parts.library_plans.is_empty()) + 2 * usize::from(parts.model.is_some());
    let mut writer = Writer::create(path, sections)?;
    let mut required = |kind, bytes: &[u8]| writer.section::<io::Error>(kind, |out| out.write_all(bytes));
    required(KIND_CUDA_MANIFEST, &text)?;
    required(KIND_WEIGHTS, parts.weights)?;
    required(KIND_CUDA_CODE, &code)?;
    let mut optional = |kind, bytes: &[u8]| writer.optional_section::<io::Error>(kind, |out| out.write_all(bytes));
    if !parts.library_plans.is_empty() {
        optional(KIND_CUDA_LIBRARY_PLANS, &serde_json::to_vec(&parts.library_plans).map_err(io::Error::other)?)?;
    }
    if let Some(model) = parts.model {
        optional(KIND_CUDA_MODEL_MESSAGE, &model.proto)?;
        writer.optional_section::<io::Error>(KIND_CUDA_MODEL_WEIGHTS, |out| model.write_weights(out))?;
    }
    Ok(writer.finish()?)
}

/// Where a plan holds the model it was built from.
#[derive(Clone, Copy, Debug)]
enum HeldModel {
    File(Section),
    Parts { message: Section, weights: Section },
}

/// A plan whose every byte was checked.
#[derive(Debug)]
pub struct CheckedPlan {
    pub manifest: Manifest,
    /// The whole file, mapped.
    map: Bytes,
    weights: Section,
    code: Section,
    library_plans: Option<Section>,
    model: Option<HeldModel>,
}

impl CheckedPlan {
    pub fn weights(&self) -> &[u8] {
        self.weights.bytes(&self.map)
    }

    /// The same, shared with the plan.
    pub fn shared_weights(&self) -> Bytes {
        self.weights.part(&self.map)
    }

    /// Machine code by digest of its source.
    pub fn code(&self) -> impl Iterator<Item = (Digest, &[u8])> {
        let code = self.code.bytes(&self.map);
        self.manifest
            .kernels
            .iter()
            .map(move |kernel| (kernel.source, &code[kernel.offset as usize..][..kernel.bytes as usize]))
    }

    /// The library's own plans; none when they cannot be read, for the recipes are enough.
    pub fn library_plans(&self) -> BTreeMap<String, String> {
        let section = self.library_plans.filter(|section| section.length <= LIBRARY_PLANS_MAX_BYTES);
        let texts = section.map(|section| serde_json::from_slice(section.bytes(&self.map)));
        texts.and_then(Result::ok).unwrap_or_default()
    }

    pub fn holds_model(&self) -> bool {
        self.model.is_some()
    }

    /// The model it was built from, of engines whose shapes vary; its weights are shared with the plan, not copied.
    ///
    /// # Errors
    /// When what the plan holds is no model.
    pub fn model(&self) -> Result<Option<Model>, OnnxError> {
        let part = |section: Section| section.part(&self.map);
        match self.model {
            None => Ok(None),
            Some(HeldModel::File(file)) => Model::from_bytes(part(file)).map(Some),
            Some(HeldModel::Parts { message, weights }) => {
                Model::attach_inside(part(message), part(weights), self.shared_weights()).map(Some)
            }
        }
    }
}

/// Opens a plan and checks its digests, manifest and programs. Needs no device.
pub fn read(path: &Path) -> Result<CheckedPlan, PlanError> {
    let open = |source| PlanError::Open { path: path.to_owned(), source };
    let file = File::open(path).map_err(open)?;
    // SAFETY: plans lie in content-addressed stores, which replace files and never change them in place; a file cut
    // short while mapped kills this process, which is why engines run in a worker of their own.
    let map = unsafe { Mmap::map(&file) }.map_err(open)?;
    let contained = |source| PlanError::Container { path: path.to_owned(), source };
    const KNOWN: [u32; 7] = [
        KIND_CUDA_MANIFEST,
        KIND_WEIGHTS,
        KIND_CUDA_CODE,
        KIND_CUDA_LIBRARY_PLANS,
        KIND_CUDA_MODEL,
        KIND_CUDA_MODEL_MESSAGE,
        KIND_CUDA_MODEL_WEIGHTS,
    ];
    let sections = container::read(&map, &KNOWN).map_err(contained)?;
    let only = |kind, what| container::only(&sections, kind, what).map_err(contained);
    let text = only(KIND_CUDA_MANIFEST, "manifest")?;
    let (weights, code) = (only(KIND_WEIGHTS, "weights")?, only(KIND_CUDA_CODE, "machine code")?);
    let optional = |kind| sections.iter().find(|section| section.kind == kind).copied();
    let library_plans = optional(KIND_CUDA_LIBRARY_PLANS);
    let model = match optional(KIND_CUDA_MODEL_MESSAGE) {
        Some(message) => {
            let weights = only(KIND_CUDA_MODEL_WEIGHTS, "weights of the model")?;
            Some(HeldModel::Parts { message, weights })
        }
        None => optional(KIND_CUDA_MODEL).map(HeldModel::File),
    };
    let broken = |reason: String| PlanError::Manifest { path: path.to_owned(), reason };
    if text.length > MANIFEST_MAX_BYTES {
        return Err(broken(format!("it is longer than {MANIFEST_MAX_BYTES} bytes")));
    }
    let manifest: Manifest = serde_json::from_slice(text.bytes(&map)).map_err(|error| broken(error.to_string()))?;
    check(&manifest, weights.length, code.bytes(&map)).map_err(broken)?;
    let map = Bytes::from_owner(map);
    Ok(CheckedPlan { manifest, map, weights, code, library_plans, model })
}

/// Whether machine code holds together and is for the architecture that the manifest says.
fn check_code(kernel: &KernelCode, image: &[u8]) -> Result<(), String> {
    let of = |what: String| format!("kernel {} {what}", kernel.source);
    let arch: Arch = kernel.architecture.parse().map_err(|error: ArchParseError| of(error.to_string()))?;
    let cubin = Cubin::parse(image).map_err(|why| of(format!("is no machine code: {why}")))?;
    match cubin.capability().filter(|capability| *capability != arch.capability) {
        Some(other) => Err(of(format!("is for sm_{other}, not for {arch}"))),
        None => Ok(()),
    }
}

/// What the programs and lists of a manifest promise each other, and what the machine code says of itself.
fn check(manifest: &Manifest, weight_bytes: u64, code: &[u8]) -> Result<(), String> {
    let programs = &manifest.programs;
    if programs.is_empty() || programs.len() > PROGRAMS_MAX || programs.len() != manifest.spec.profiles.len().max(1) {
        return Err(format!("it has {} programs for {} profiles", programs.len(), manifest.spec.profiles.len()));
    }
    let mut coded = BTreeSet::new();
    // As many bytes of machine code are kept as there are, however many kernels are listed.
    let mut previous_end = 0;
    for kernel in &manifest.kernels {
        let end = kernel.offset.checked_add(kernel.bytes).filter(|end| *end <= code.len() as u64);
        let Some(end) = end else {
            return Err(format!("kernel {} lies outside of the machine code", kernel.source));
        };
        if kernel.offset < previous_end {
            return Err(format!("kernel {} lies within another", kernel.source));
        }
        previous_end = end;
        let image = &code[kernel.offset as usize..end as usize];
        check_code(kernel, image)?;
        if kernel.architecture == manifest.tuned_on.architecture {
            coded.insert(kernel.source);
        }
    }
    for profile in programs {
        let program = &profile.program;
        program.check().map_err(|error| error.to_string())?;
        if program.weight_bytes != weight_bytes {
            return Err("its weights are not as long as it says".into());
        }
        for (edges, ports) in [(&program.inputs, &manifest.inputs), (&program.outputs, &manifest.outputs)] {
            let fits = |(edge, port): (&crate::program::Edge, &Port)| {
                let sizes = edge.shape.iter().zip(&port.shape);
                edge.name == port.name
                    && edge.element == port.element
                    && edge.shape.len() == port.shape.len()
                    && sizes.into_iter().all(|(size, port)| port.is_none_or(|port| port == *size))
            };
            if edges.len() != ports.len() || !edges.iter().zip(ports).all(fits) {
                return Err("a program's inputs or outputs are not the engine's".into());
            }
        }
        for step in &program.steps {
            let source = step.source().map(|index| &program.sources[index]);
            if source.is_some_and(|source| !coded.contains(&source_digest(source))) {
                return Err(format!("step '{}' has no machine code", step.name));
            }
        }
    }
    Ok(())
}

/// Writes a plan whose manifest is any text, with digests that fit: for tests of what such a plan can do.
#[doc(hidden)]
pub fn seal(path: &Path, manifest: &[u8], plan: &CheckedPlan) -> Result<(), ContainerError> {
    let mut writer = Writer::create(path, 3)?;
    writer.section::<io::Error>(KIND_CUDA_MANIFEST, |out| out.write_all(manifest))?;
    writer.section::<io::Error>(KIND_WEIGHTS, |out| out.write_all(plan.weights()))?;
    writer.section::<io::Error>(KIND_CUDA_CODE, |out| out.write_all(plan.code.bytes(&plan.map)))?;
    Ok(writer.finish()?)
}
