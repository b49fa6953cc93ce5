//! From an ONNX file to the programs of an engine, before and on the device.
//!
//! Everything up to [`draft`] needs no device: import at each profile's usual shapes, passes, lowering, constants of
//! all profiles in one pool, and the same at the ends of what varies, so that a profile that does not suit the model is
//! refused before anything is timed. [`held_model`] is what a plan needs to make graphs of other shapes, by
//! [`at_shapes`]. [`finish`] then searches tactics on the device and makes every step ready once.

use crate::{
    cache::{TacticCache, trimmed},
    failure::model,
    lower::{changes_inputs, lower},
    plan::{
        ProfileProgram, Tried, rows,
        weights::{self, Pool},
    },
    program::Program,
    runtime::{Constants, Device, RuntimeError, plans_of},
    source::source_digest,
    tune::{Effort, GoOn, Knowledge, ReadyProgram, apart, quickest},
    versions::Versions,
    view::Kind,
};
use planforge_graph::ir::Graph;
use planforge_kernels_cuda::cubin::Cubin;
use planforge_onnx::{Detached, Model};
use planforge_passes::{
    Target,
    frontend::{self, Note, Optimized},
};
use planforge_plan::{GraphSummary, PassSummary};
use planforge_types::{
    BackendError, BuildSpec, Digest, DimRange, OptimizationProfile, Port, Precision, failure::chain,
};
use std::collections::BTreeMap;

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
    /// What the report says of the import.
    pub notes: Vec<Note>,
}

/// What kernels here can do that decides which passes pay.
const TARGET: Target = Target {
    integer_products: false,
    channel_slices: false,
    halves: true,
    exact_f32: false,
    integer_steps: false,
    unfused: false,
};

/// The same where a graph changes inputs in place: one row goes through it at every step, parts of which are read where
/// they lie, so that products of it are computed together.
pub fn target(graph: &Graph) -> Target {
    Target { channel_slices: changes_inputs(graph), ..TARGET }
}

/// Shapes of all inputs, by name.
pub type Shapes = BTreeMap<String, Vec<u64>>;

/// One size of a range.
type Pick = fn(&DimRange) -> u64;

/// Both ends of a profile.
const ENDS: [(&str, Pick); 2] = [("smallest", |range| range.min), ("largest", |range| range.max)];

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

fn optimized(imported: Graph) -> Result<Optimized, BackendError> {
    let target = target(&imported);
    frontend::optimize(imported, target)
}

/// Imports, optimises and lowers `model` for every profile of `spec`.
pub fn draft(model: &Model, spec: &BuildSpec) -> Result<Draft, BackendError> {
    let profiles: Vec<Option<&OptimizationProfile>> = match spec.profiles.is_empty() {
        true => vec![None],
        false => spec.profiles.iter().map(Some).collect(),
    };
    let mut pool = Pool::default();
    let mut found: Option<Found> = None;
    let (mut programs, mut rows_apart, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for profile in profiles {
        let imported = match &found {
            None => {
                let (graph, noted) = frontend::import_first(model, spec)?;
                notes = noted;
                graph
            }
            Some(_) => frontend::import(model, profile)?,
        };
        let (inputs, outputs) = (frontend::inputs(&imported), frontend::outputs(&imported));
        let Optimized { graph, summary, passes } = optimized(imported)?;
        rows_apart.push(rows::computed_apart(&graph));
        programs.push(lowered(&graph, spec, &mut pool)?);
        match &mut found {
            None => found = Some(Found { graph: summary, passes, inputs, outputs }),
            Some(known) => {
                vary_where_different(&mut known.inputs, &inputs);
                vary_where_different(&mut known.outputs, &outputs);
            }
        }
    }
    let Found { graph, passes, mut inputs, mut outputs } = found.expect("there is at least one profile");
    // What varies within a profile shows at its ends.
    for (index, profile) in spec.profiles.iter().enumerate().filter(|_| spec.varies()) {
        for (end, pick) in ENDS {
            let place = |error: BackendError| BackendError {
                message: format!("at the {end} shapes of profile {index}: {}", error.message),
                ..error
            };
            let imported = frontend::import(model, Some(&profile.fixed(pick))).map_err(place)?;
            vary_where_different(&mut inputs, &frontend::inputs(&imported));
            vary_where_different(&mut outputs, &frontend::outputs(&imported));
            if let Some((kind, _)) = storage(spec.precision).filter(|_| profile.varies()) {
                let Optimized { graph, .. } = optimized(imported).map_err(place)?;
                lower(&graph, kind).map_err(|error| place(error.into()))?;
            }
        }
    }
    let weights = pool.into_bytes(&mut programs);
    Ok(Draft { programs, rows_apart, weights, inputs, outputs, graph, passes, notes })
}

/// The model as the plan of a draft holds it: what is equal to a constant of the engine points there, so that no weight
/// lies in the plan twice.
pub fn held_model(model: &Model, draft: &Draft) -> Result<Detached, BackendError> {
    let places = weights::places(&draft.programs, &draft.weights);
    let held = model.detach_inside(&|bytes| places.get(&Digest::of(bytes)).copied());
    held.map_err(|error| BackendError::model(chain(&error)).with_hint(error.hint()))
}

/// The program of a model at exactly these shapes of its inputs, its constants in `pool`.
pub fn at_shapes(model: &Model, shapes: &Shapes, spec: &BuildSpec, pool: &mut Pool) -> Result<Program, BackendError> {
    let fixed = OptimizationProfile::of_shapes(shapes.iter().map(|(name, shape)| (name.as_str(), &shape[..])));
    let Optimized { graph, .. } = optimized(frontend::import(model, Some(&fixed))?)?;
    lowered(&graph, spec, pool)
}

/// The program of a graph as `spec` asks for it, its constants in `pool`.
pub fn lowered(graph: &Graph, spec: &BuildSpec, pool: &mut Pool) -> Result<Program, BackendError> {
    let (kind, tf32) = storage(spec.precision)
        .ok_or_else(|| model(format!("there is no {} engine yet", spec.precision), "choose another precision"))?;
    let mut program = pool.add(lower(graph, kind)?);
    program.tf32 = tf32;
    program.approximate_gelu = spec.approximate_gelu;
    Ok(program)
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
    /// What was compiled elsewhere before, and how much of it the engine uses.
    pub prepared: PreparedCount,
    pub prepared_used: PreparedCount,
    /// Memory of one context of every program, weights counted once.
    pub device_bytes: u64,
}

/// How much was compiled elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreparedCount {
    pub kernels: usize,
    /// cuDNN's.
    pub plans: usize,
}

/// Searches tactics for every program, and makes each ready once.
pub fn finish(
    device: &Device,
    draft: &Draft,
    level: u8,
    cache: &mut TacticCache,
    go_on: &mut GoOn<'_>,
) -> Result<Finished, RuntimeError> {
    device.add_library_plans(cache.library_plans());
    // Code that does not hold together is as good as absent.
    let known = cache.code().filter(|(_, code)| Cubin::parse(code).is_ok());
    known.for_each(|(source, code)| device.add_code(source, code));
    let nvrtc = Versions::here().nvrtc;
    let mut ahead = cache.prepared(device.gpu.properties().arch, &nvrtc);
    ahead.code.retain(|_, code| Cubin::parse(code).is_ok());
    ahead.code.iter().for_each(|(source, code)| device.add_code(*source, code.clone()));
    device.add_library_plans(ahead.plans.clone());
    let (mut times, streams) = (cache.times(), cache.streams());
    // Ahead of the weights, which that process has on the device too.
    let apart = apart::time(device, &draft.programs, &draft.weights, level, &mut times, go_on)?;
    let mut known = Knowledge { times, streams, apart };
    let weights = Constants::upload(device, &draft.weights)?;
    let mut finished = Finished {
        programs: Vec::new(),
        code: BTreeMap::new(),
        library_plans: BTreeMap::new(),
        timed: 0,
        known: 0,
        prepared: PreparedCount { kernels: ahead.code.len(), plans: ahead.plans.len() },
        prepared_used: PreparedCount::default(),
        device_bytes: weights.len_bytes(),
    };
    for (program, &rows_apart) in draft.programs.iter().zip(&draft.rows_apart) {
        let ready = quickest(device, program, &weights, Effort::of_level(level), &mut known, go_on)?;
        let ReadyProgram { program, tuned, context, .. } = ready;
        finished.timed += tuned.timed;
        finished.known += tuned.known;
        finished.device_bytes += context.memory.bytes() - weights.len_bytes();
        for source in &program.sources {
            finished.code.insert(source_digest(source), device.cubin(source)?);
        }
        let tried =
            tuned.tried.iter().map(|(step, timed)| (step.clone(), trimmed(timed).iter().map(Tried::from).collect()));
        finished.programs.push(ProfileProgram { tried: tried.collect(), rows_apart, program });
    }
    // What was compared and not taken is the cache's: an engine does not carry it.
    let used = device.used_library_plans();
    finished.library_plans = finished.programs.iter().flat_map(|of| plans_of(&of.program, &used)).collect();
    finished.prepared_used = PreparedCount {
        kernels: finished.code.keys().filter(|source| ahead.code.contains_key(source)).count(),
        plans: finished.library_plans.keys().filter(|key| ahead.plans.contains_key(*key)).count(),
    };
    cache.learn(&known.times, known.streams, used);
    cache.keep_code(&finished.code);
    Ok(finished)
}
