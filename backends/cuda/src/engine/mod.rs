//! A loaded plan: its graphs on a device, and which of them computes inputs of given shapes.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | loading, and the choice of a graph for what is bound |
//! | `shapes` | which shapes fit a profile, and which may be padded |
//! | `exact` | graphs of other shapes, made when they are first met |
//!
//! Each optimization profile has one captured graph, at its usual shapes. Fewer rows of a batch run in it when rows are
//! computed apart; every other shape within the profile gets a graph of its own, of which a bounded number is kept.

mod exact;
mod shapes;

pub use shapes::{Fit, Shapes, ShapesError};

use crate::{
    failure::model,
    plan::{self, CheckedPlan, Manifest},
    program::{Edge, MAX_WORKSPACE_BYTES, Place, Program, Tactic, Work},
    runtime::{Constants, Context, Device, Kernels, Memory, RuntimeError, prepare},
    tune::first_working,
    versions::Versions,
};
use exact::ExactGraphs;
use planforge_backend::LoadOptions;
use planforge_report::{Finding, OTHER_LIBRARIES};
use planforge_types::{BackendError, HostTensor, NamedTensors, Port};
use std::{collections::BTreeMap, path::Path};

/// A program captured on the device.
#[derive(Debug)]
pub struct Captured {
    pub program: Program,
    pub context: Context,
    /// What its constants lie in.
    pub weights: Constants,
}

impl Captured {
    fn new(device: &Device, program: Program, weights: Constants) -> Result<Self, RuntimeError> {
        let context = Context::new(device, &program, weights.clone(), &mut Kernels::new())?;
        Ok(Self { program, context, weights })
    }

    /// Another context of the same engine, with its own memory and stream; the constants are shared.
    pub fn another_context(&self, device: &Device) -> Result<Context, RuntimeError> {
        Context::new(device, &self.program, self.weights.clone(), &mut Kernels::new())
    }

    /// Copies an input to where it lies.
    fn put(&self, number: usize, tensor: &HostTensor) -> Result<(), BackendError> {
        let buffer = &self.context.memory.inputs[number];
        let written = match self.program.places_of_input(number) {
            None => buffer.write(0, &tensor.bytes),
            Some(places) => buffer.write(0, &places.spread(&tensor.bytes)),
        };
        Ok(written.map_err(RuntimeError::from)?)
    }

    /// Device memory apart from the constants that all graphs share.
    fn own_bytes(&self) -> u64 {
        self.context.memory.bytes() - self.weights.shared_bytes()
    }
}

/// What is bound: which graph computes it, and how many of its rows count.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    graph: Which,
    /// Rows that were given, where fewer than the graph has.
    rows: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    Profile,
    Exact(Shapes),
}

/// A plan on a device.
#[derive(Debug)]
pub struct Engine {
    pub device: Device,
    plan: CheckedPlan,
    profile: usize,
    weights: Constants,
    /// Graphs at the usual shapes of the profiles that were current once.
    captured: BTreeMap<usize, Captured>,
    exact: ExactGraphs,
    bound: Option<Bound>,
    findings: Vec<Finding>,
}

impl Engine {
    /// Loads a plan file on the device that `options` name, else on the first, checking all of it.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, BackendError> {
        let plan = plan::read(path)?;
        let manifest = &plan.manifest;
        program_of(manifest, options.profile)?;
        let uuid = options.site.as_ref().and_then(|site| site.device.gpu.as_ref()).map(|gpu| gpu.uuid.as_str());
        let device = Device::open(uuid, None)?;
        let mut findings = Vec::new();
        fits_device(manifest, &device, options.allow_foreign, &mut findings)?;
        for (source, code) in plan.code() {
            device.add_code(source, code.to_vec());
        }
        if manifest.versions.same_tactics(&Versions::here()) {
            device.add_library_plans(plan.library_plans());
        } else {
            device.expect_other_libraries();
        }
        let weights = Constants::upload(&device, plan.weights())?;
        let (captured, exact) = (BTreeMap::new(), ExactGraphs::default());
        let mut engine =
            Self { device, plan, profile: options.profile, weights, captured, exact, bound: None, findings };
        engine.switch_profile(options.profile)?;
        Ok(engine)
    }

    /// Number of the current profile.
    pub fn profile(&self) -> usize {
        self.profile
    }

    /// Makes another profile current, and captures its graph where that was not done yet; nothing is bound then.
    pub fn switch_profile(&mut self, profile: usize) -> Result<(), BackendError> {
        let manifest = &self.plan.manifest;
        let mut program = program_of(manifest, profile)?;
        self.bound = None;
        if !self.captured.contains_key(&profile) {
            let here = Versions::here();
            let mut rebuilt;
            if !manifest.versions.same_tactics(&here) {
                rebuilt = program.clone();
                self.findings.push(rebuild(&self.device, &mut rebuilt, &self.weights, &manifest.versions, &here)?);
                program = &rebuilt;
            }
            self.captured.insert(profile, Captured::new(&self.device, program.clone(), self.weights.clone())?);
        }
        self.profile = profile;
        Ok(())
    }

    pub fn manifest(&self) -> &Manifest {
        &self.plan.manifest
    }

    pub fn inputs(&self) -> Vec<Port> {
        self.manifest().inputs.clone()
    }

    pub fn outputs(&self) -> Vec<Port> {
        self.manifest().outputs.clone()
    }

    /// What was noticed since this was last asked.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.findings)
    }

    /// Constants, and every graph's own memory.
    pub fn memory_bytes(&self) -> u64 {
        let captured: u64 = self.captured.values().map(Captured::own_bytes).sum();
        self.weights.shared_bytes() + captured + self.exact.own_bytes()
    }

    /// Copies `inputs` to the device and chooses the graph that computes them.
    pub fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError> {
        self.bound = None;
        let manifest = &self.plan.manifest;
        let shapes = shapes::given(&manifest.inputs, inputs)?;
        let profile = &manifest.programs[self.profile];
        let usual = shapes::of_program(&profile.program);
        let fit = shapes::fit(&shapes, &usual, &manifest.spec.profiles, self.profile, profile.rows_apart)?;
        let bound = match fit {
            Fit::Whole => Bound { graph: Which::Profile, rows: None },
            Fit::Rows(rows) => Bound { graph: Which::Profile, rows: Some(rows) },
            Fit::Other => {
                let finding = self.exact.ready(&self.device, &self.plan, &self.weights, &shapes)?;
                self.findings.extend(finding);
                Bound { graph: Which::Exact(shapes), rows: None }
            }
        };
        let captured = self.which(&bound.graph)?;
        for (number, edge) in captured.program.inputs.iter().enumerate() {
            if bound.rows.is_some() {
                // Rows that are thrown away are computed on zeros, whatever was bound before.
                captured.context.memory.inputs[number].fill(0).map_err(RuntimeError::from)?;
            }
            captured.put(number, &inputs[&edge.name])?;
        }
        self.device.gpu.synchronize().map_err(RuntimeError::from)?;
        self.bound = Some(bound);
        Ok(())
    }

    fn which(&self, graph: &Which) -> Result<&Captured, BackendError> {
        match graph {
            Which::Profile => self.captured.get(&self.profile).ok_or_else(|| RuntimeError::NotBound.into()),
            Which::Exact(shapes) => self.exact.get(shapes).ok_or_else(|| RuntimeError::NotBound.into()),
        }
    }

    /// The graph that computes what is bound.
    pub fn current(&self) -> Result<&Captured, BackendError> {
        let bound = self.bound.as_ref().ok_or(RuntimeError::NotBound)?;
        self.which(&bound.graph)
    }

    /// The current profile's program at its usual shapes, whatever is bound.
    pub(crate) fn usual(&self) -> Result<&Captured, BackendError> {
        self.which(&Which::Profile)
    }

    /// Names of the inputs that are changed in place, each with its output's: those whose output has one place more, or
    /// the others. Of what is bound, or else of the current profile.
    pub fn states(&self, grow: bool) -> Vec<(String, String)> {
        let usual = &self.plan.manifest.programs[self.profile].program;
        let program = self.current().map_or(usual, |captured| &captured.program);
        program.state_names(grow).collect()
    }

    /// How many runs each of them has places for, by input, where that is known.
    pub fn state_places(&self) -> BTreeMap<String, u64> {
        let program = &self.plan.manifest.programs[self.profile].program;
        program.state_places().map(|(input, places)| (input.to_owned(), places)).collect()
    }

    /// Copies some inputs over those that are bound, runs once, and copies the outputs that are named back.
    pub fn step(&self, inputs: &NamedTensors, wanted: &[String]) -> Result<NamedTensors, BackendError> {
        let captured = self.current()?;
        for (name, tensor) in inputs {
            let like = |edge: &Edge| {
                edge.name == *name
                    && edge.element == tensor.element
                    && edge.shape.iter().copied().eq(tensor.shape.iter().map(|&size| size as u64))
            };
            let Some(number) = captured.program.inputs.iter().position(like) else {
                let what = format!("{name} {} {:?} is no input like one that is bound", tensor.element, tensor.shape);
                return Err(model(what, "keep the shapes of the first step"));
            };
            captured.put(number, tensor)?;
        }
        self.launched(Some(wanted))
    }

    /// Lays what the last run put behind each cache that grows at this place of its input.
    pub fn keep(&self, place: u64) -> Result<(), BackendError> {
        let captured = self.current()?;
        let Captured { program, context, .. } = captured;
        for (number, edge) in program.inputs.iter().enumerate() {
            let Some(places) = program.places_of_input(number) else { continue };
            let at = usize::try_from(place).ok().filter(|place| *place < places.before).ok_or_else(|| {
                model(format!("'{}' has {} places, and no place {place}", edge.name, places.before), "count from 0")
            })?;
            let begin = context.memory.inputs[number].address();
            let [to, from] = [at, places.before].map(|place| begin + (place * places.place_bytes) as u64);
            let pitch_bytes = (places.before + 1) * places.place_bytes;
            // SAFETY: both lie in this input's memory, a place of every row of it, and the memory lives in the context.
            let copied = unsafe { context.stream().copy_rows(to, from, places.place_bytes, pitch_bytes, places.rows) };
            copied.map_err(RuntimeError::from)?;
        }
        Ok(())
    }

    /// Runs once on what is bound, and copies every output back.
    pub fn run(&self) -> Result<NamedTensors, BackendError> {
        self.launched(None)
    }

    /// Runs once, and copies back every output, or those that are wanted.
    fn launched(&self, wanted: Option<&[String]>) -> Result<NamedTensors, BackendError> {
        let captured = self.current()?;
        captured.context.launch()?;
        captured.context.stream().synchronize().map_err(RuntimeError::from)?;
        let rows = self.bound.as_ref().and_then(|bound| bound.rows);
        let mut outputs = NamedTensors::new();
        let is_wanted = |edge: &Edge| wanted.is_none_or(|names| names.contains(&edge.name));
        for (edge, buffer) in captured.program.outputs.iter().zip(&captured.context.memory.outputs) {
            if !is_wanted(edge) {
                continue;
            }
            let mut shape: Vec<usize> = edge.shape.iter().map(|&size| size as usize).collect();
            if let (Some(rows), Some(first)) = (rows, shape.first_mut()) {
                *first = rows as usize;
            }
            let length = shape.iter().product::<usize>() * edge.element.bytes();
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(length).map_err(|_| RuntimeError::HostMemory { bytes: length as u64 })?;
            bytes.resize(length, 0);
            buffer.read(0, &mut bytes).map_err(RuntimeError::from)?;
            outputs.insert(edge.name.clone(), HostTensor { element: edge.element, shape, bytes });
        }
        Ok(outputs)
    }

    /// How many GELUs are computed in which form.
    pub fn gelus(&self) -> BTreeMap<String, u64> {
        self.plan.manifest.programs[self.profile].program.gelus()
    }

    /// Bytes of the constants by how they are stored.
    pub fn weight_bytes(&self) -> BTreeMap<String, u64> {
        let program = &self.plan.manifest.programs[self.profile].program;
        let mut kinds = BTreeMap::new();
        for step in &program.steps {
            for view in step.work.views().0 {
                kinds.entry(view.buffer).or_insert(view.kind);
            }
        }
        let mut bytes = BTreeMap::new();
        for (id, kind) in kinds {
            let buffer = program.buffer(id);
            if matches!(buffer.place, Place::Weights(_)) {
                *bytes.entry(kind.name().to_owned()).or_default() += buffer.bytes;
            }
        }
        bytes
    }
}

fn program_of(manifest: &Manifest, profile: usize) -> Result<&Program, BackendError> {
    let found = manifest.programs.get(profile).map(|profile| &profile.program);
    found.ok_or_else(|| {
        let count = manifest.programs.len();
        model(format!("the plan has {count} profiles, so there is no profile {profile}"), "count profiles from 0")
    })
}

/// Refuses another architecture by name, and another device unless it is allowed, which is then said.
fn fits_device(
    manifest: &Manifest,
    device: &Device,
    allow_foreign: bool,
    findings: &mut Vec<Finding>,
) -> Result<(), BackendError> {
    let (tuned, here) = (&manifest.tuned_on, device.gpu.properties());
    let architecture = here.arch.to_string();
    if tuned.architecture != architecture {
        return Err(model(
            format!(
                "the plan's kernels are for {} ({}); {} is {architecture}",
                tuned.architecture, tuned.name, here.name
            ),
            "build the model for this device",
        ));
    }
    if (&tuned.name, tuned.sm_count) == (&here.name, here.sm_count) {
        return Ok(());
    }
    let what = format!(
        "the plan was tuned on {} ({} multiprocessors), this is {} ({})",
        tuned.name, tuned.sm_count, here.name, here.sm_count
    );
    if !allow_foreign {
        return Err(model(what, "build the model for this device, or allow a plan of another one"));
    }
    findings.push(Finding::warning(
        "foreign-device",
        format!(
            "{what}: it runs; `planforge report` tells what that costs once this device's own engine was measured too"
        ),
    ));
    Ok(())
}

/// Makes every recipe ready with the libraries that are here; a step whose recipe no longer builds gets the first tactic
/// that works. Says what became of them.
fn rebuild(
    device: &Device,
    program: &mut Program,
    weights: &Constants,
    built_with: &Versions,
    here: &Versions,
) -> Result<Finding, BackendError> {
    let workspaces_bytes = vec![MAX_WORKSPACE_BYTES; program.workspaces_bytes().len()];
    let memory = Memory::new(device, program, weights.clone(), &workspaces_bytes)?;
    let mut kernels = Kernels::new();
    let (mut rebuilt, mut replaced) = (0, Vec::new());
    for index in 0..program.steps.len() {
        let step = program.steps[index].clone();
        if !matches!(step.tactic, Some(Tactic::Dnn { .. } | Tactic::Blas { .. }))
            || matches!(step.work, Work::Kernel(_))
        {
            continue;
        }
        match prepare(device, program, &step, step.tactic.as_ref(), &memory, &mut kernels) {
            Ok(ready) => {
                // A context has as much as its tactics say; another version may want more than the recipe does.
                if let Some(tactic) = &mut program.steps[index].tactic {
                    tactic.set_workspace_bytes(ready.workspace_bytes());
                }
                rebuilt += 1;
            }
            Err(RuntimeError::Device(error)) => return Err(RuntimeError::Device(error).into()),
            Err(error) => {
                tracing::info!(step = step.name, %error, "a recipe no longer builds");
                let tactic = first_working(device, program, &step, &memory, &mut kernels)?;
                program.steps[index].tactic = Some(tactic);
                replaced.push(step.name);
            }
        }
    }
    let libraries = |of: &Versions| format!("cuDNN {}, cuBLASLt {}", told(&of.cudnn), told(&of.cublaslt));
    let replaced = match replaced.as_slice() {
        [] => String::new(),
        [first, rest @ ..] => format!(
            "; of {} steps ('{first}'{}) the recipe no longer builds, they run by the libraries' first proposal",
            replaced.len(),
            if rest.is_empty() { "" } else { ", ..." }
        ),
    };
    Ok(Finding::warning(
        OTHER_LIBRARIES,
        format!(
            "the plan was tuned with {}; here is {}: {rebuilt} steps were rebuilt from their recipes{replaced}",
            libraries(built_with),
            libraries(here)
        ),
    ))
}

fn told(version: &str) -> &str {
    if version.is_empty() { "(none)" } else { version }
}
