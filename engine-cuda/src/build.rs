//! From an ONNX file to the programs of an engine, before and on the device.
//!
//! Everything up to [`draft`] needs no device: import at each profile's usual shapes, passes, lowering, constants of
//! all profiles in one pool. [`finish`] then searches tactics on the device and makes every step ready once.

use crate::{
    cache::{TacticCache, trimmed},
    failure::model,
    lower::lower,
    plan::{self, ProfileProgram, Tried, rows, weights::Pool},
    program::Program,
    runtime::{Context, Device, Kernels, RuntimeError},
    tune::{Effort, Times, tune},
    view::Kind,
};
use planforge_engine_core::{
    backend::{BackendError, Port},
    identity::{BuildSpec, Digest, DimRange, OptimizationProfile, Precision},
    import,
    ir::{self, Dim, Graph},
    native::{GraphSummary, PassSummary},
    passes::{self, Target},
};
use planforge_onnx::Model;
use std::{collections::BTreeMap, rc::Rc};

/// Programs of every profile, without tactics, and all there is to say of the graph.
#[derive(Debug)]
pub struct Draft {
    pub programs: Vec<Program>,
    /// By program: rows of a batch are computed apart.
    pub rows_apart: Vec<bool>,
    pub weights: Vec<u8>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub graph: GraphSummary,
    pub passes: Vec<PassSummary>,
}

/// What the first profile tells of the whole engine.
struct Found {
    graph: GraphSummary,
    passes: Vec<PassSummary>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

/// How floats are stored inside an engine of this precision, and whether products of f32 may round.
pub fn storage(precision: Precision) -> Option<(Kind, bool)> {
    match precision {
        Precision::Fp32 => Some((Kind::F32, false)),
        Precision::Tf32 => Some((Kind::F32, true)),
        Precision::Fp16 | Precision::Best => Some((Kind::F16, false)),
        Precision::Bf16 => Some((Kind::Bf16, false)),
        Precision::Int8 | Precision::Fp8 => None,
    }
}

/// Whether any dimension of a profile varies.
pub fn varies(spec: &BuildSpec) -> bool {
    spec.profiles.iter().flat_map(|profile| profile.inputs.values().flatten()).any(|range| range.min != range.max)
}

/// Imports, optimises and lowers `model` for every profile of `spec`.
pub fn draft(model: &Model, spec: &BuildSpec) -> Result<Draft, BackendError> {
    let profiles: Vec<Option<&OptimizationProfile>> = match spec.profiles.is_empty() {
        true => vec![None],
        false => spec.profiles.iter().map(Some).collect(),
    };
    let mut pool = Pool::default();
    let mut found: Option<Found> = None;
    let (mut programs, mut rows_apart) = (Vec::new(), Vec::new());
    for profile in profiles {
        let imported = imported(model, profile)?;
        let (inputs, outputs) = (ports(&imported, imported.inputs.iter().copied()), output_ports(&imported));
        let imported_nodes = imported.nodes.len() as u64;
        let (graph, passes) = optimized(imported)?;
        rows_apart.push(rows::computed_apart(&graph));
        programs.push(lowered(&graph, spec.precision, &mut pool)?);
        match &mut found {
            None => found = Some(Found { graph: summary(&graph, imported_nodes), passes, inputs, outputs }),
            Some(known) => {
                vary_where_different(&mut known.inputs, &inputs);
                vary_where_different(&mut known.outputs, &outputs);
            }
        }
    }
    let Found { graph, passes, mut inputs, mut outputs } = found.expect("there is at least one profile");
    // What varies within a profile shows at its ends.
    for profile in spec.profiles.iter().filter(|_| varies(spec)) {
        for pick in [|range: &DimRange| range.min, |range: &DimRange| range.max] {
            let end = imported(model, Some(&fixed(profile, pick)))?;
            vary_where_different(&mut inputs, &ports(&end, end.inputs.iter().copied()));
            vary_where_different(&mut outputs, &output_ports(&end));
        }
    }
    let weights = pool.into_bytes(&mut programs);
    Ok(Draft { programs, rows_apart, weights, inputs, outputs, graph, passes })
}

/// A profile of one shape.
pub fn fixed(profile: &OptimizationProfile, pick: impl Fn(&DimRange) -> u64) -> OptimizationProfile {
    let one = |range: &DimRange| {
        let size = pick(range);
        DimRange { min: size, opt: size, max: size }
    };
    let inputs = profile.inputs.iter().map(|(name, dims)| (name.clone(), dims.iter().map(one).collect()));
    OptimizationProfile { inputs: inputs.collect() }
}

/// The model's graph at a profile's usual shapes.
pub fn imported(model_file: &Model, profile: Option<&OptimizationProfile>) -> Result<Graph, BackendError> {
    import::import(model_file, profile)
        .map_err(|error| model(error.to_string(), "see the list of supported operators and change the model"))
}

/// The graph after all passes.
pub fn optimized(graph: Graph) -> Result<(Graph, Vec<PassSummary>), BackendError> {
    let optimized = passes::pipeline(graph, Target::default()).map_err(|error| {
        model(error.to_string(), "this is a fault of the compiler: report it with the model's structure")
    })?;
    let summaries = optimized.passes.into_iter().map(|record| PassSummary {
        pass: record.pass.to_owned(),
        nodes_before: record.nodes_before as u64,
        nodes_after: record.nodes_after as u64,
        changes: record.changes,
    });
    Ok((optimized.graph, summaries.collect()))
}

/// The program of a graph, its constants in `pool`.
pub fn lowered(graph: &Graph, precision: Precision, pool: &mut Pool) -> Result<Program, BackendError> {
    let (kind, tf32) = storage(precision).ok_or_else(|| {
        model(format!("there is no {precision:?} engine yet").to_lowercase(), "choose another precision")
    })?;
    let mut program = pool.add(lower(graph, kind)?);
    program.tf32 = tf32;
    Ok(program)
}

fn summary(graph: &Graph, imported_nodes: u64) -> GraphSummary {
    GraphSummary {
        name: graph.name.clone(),
        imported_nodes,
        nodes: graph.nodes.len() as u64,
        parameters: graph.constants.values().map(|tensor| tensor.len() as u64).sum(),
        constant_bytes: graph.constant_bytes(),
    }
}

fn port(graph: &Graph, name: &str, id: ir::ValueId) -> Port {
    let value = graph.value(id);
    let size = |dim: &Dim| match dim {
        Dim::Static(size) => Some(*size),
        Dim::Symbol(_) => None,
    };
    Port { name: name.to_owned(), element: value.element, shape: value.shape.iter().map(size).collect() }
}

fn ports(graph: &Graph, ids: impl Iterator<Item = ir::ValueId>) -> Vec<Port> {
    ids.map(|id| port(graph, &graph.value(id).name, id)).collect()
}

fn output_ports(graph: &Graph) -> Vec<Port> {
    graph.outputs.iter().map(|output| port(graph, &output.name, output.value)).collect()
}

/// Opens every dimension that has another size in `others`.
fn vary_where_different(ports: &mut [Port], others: &[Port]) {
    for (port, other) in ports.iter_mut().zip(others) {
        for (size, other) in port.shape.iter_mut().zip(&other.shape) {
            if size != other {
                *size = None;
            }
        }
    }
}

/// What building on the device gave.
#[derive(Debug)]
pub struct Finished {
    pub programs: Vec<ProfileProgram>,
    /// Machine code of every kernel that is used, by digest of its source.
    pub code: BTreeMap<Digest, Vec<u8>>,
    pub library_plans: BTreeMap<String, String>,
    pub timed: usize,
    pub known: usize,
    /// Memory of one context of every program, weights counted once.
    pub device_bytes: u64,
}

/// Searches tactics for every program, and makes each ready once.
pub fn finish(
    device: &Device,
    draft: &Draft,
    level: u8,
    cache: &mut TacticCache,
    go_on: &mut dyn FnMut(usize, usize, &str) -> bool,
) -> Result<Finished, RuntimeError> {
    device.add_library_plans(cache.library_plans());
    let weights = Rc::new(device.gpu.upload(&draft.weights)?);
    let mut times: Times = cache.times();
    let mut finished = Finished {
        programs: Vec::new(),
        code: BTreeMap::new(),
        library_plans: BTreeMap::new(),
        timed: 0,
        known: 0,
        device_bytes: weights.len_bytes() as u64,
    };
    for (program, &rows_apart) in draft.programs.iter().zip(&draft.rows_apart) {
        let mut program = program.clone();
        device.compile_all(&program.sources)?;
        let tuned = tune(device, &mut program, &weights, Effort::of_level(level), &mut times, go_on)?;
        finished.timed += tuned.timed;
        finished.known += tuned.known;
        plan::drop_unused_sources(&mut program);
        // Found here rather than at the first load, and what cuDNN compiles for it is kept.
        let context = Context::new(device, &program, weights.clone(), &mut Kernels::new())?;
        finished.device_bytes += context.memory.bytes() - weights.len_bytes() as u64;
        for source in &program.sources {
            finished.code.insert(plan::source_digest(source), device.cubin(source)?);
        }
        let tried =
            tuned.tried.iter().map(|(step, timed)| (step.clone(), trimmed(timed).iter().map(Tried::from).collect()));
        finished.programs.push(ProfileProgram { tried: tried.collect(), rows_apart, program });
    }
    finished.library_plans = device.used_library_plans();
    cache.learn(&times, finished.library_plans.clone());
    Ok(finished)
}
