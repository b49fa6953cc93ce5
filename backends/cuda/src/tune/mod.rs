//! Candidates for every step, timed on the device in the state the engine has; equal steps are timed once.

mod again;
mod agree;
mod ahead;
pub mod apart;
mod climb;
mod forms;
mod late;
mod learned;
mod proof;
mod refine;
mod screen;
mod streams;
mod whole;

use crate::{
    codegen::{
        Generated,
        candidates::{after, kernels_of, tiles_of},
        gemm,
    },
    program::{After, MAX_WORKSPACE_BYTES, Program, Step, Tactic, Work},
    runtime::{self, Constants, Device, End, Kernels, Memory, RuntimeError, bind, prepare, time_us},
    signature::signature,
    source::Source,
    tune::{agree::Trial, ahead::Ahead, apart::Apart, learned::Learned},
    view::View,
};
use planforge_kernels_cuda::{
    blaslt::{Prepared, Product},
    dnn::Engine,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, thread, time::Instant};

pub use ahead::{compiled_engines, own_sources};
pub use forms::{ReadyProgram, forms, quickest};
pub use late::waits;
pub use streams::Streams;
use streams::choose as choose_streams;

/// A candidate with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    pub tactic: Tactic,
    /// Device time of one run.
    pub us: f64,
    /// The source of a generated kernel: its index in the tactic means something in one program only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// Times by step signature, fastest first; what the tactic cache keeps.
pub type Times = BTreeMap<String, Vec<Timed>>;

/// What is known and what learns: candidates' times, programs' streams, and which of the times are new.
#[derive(Debug, Default)]
pub struct Knowledge {
    pub times: Times,
    pub streams: Streams,
    pub apart: Apart,
}

/// What a search found, by step.
#[derive(Clone, Debug, Default)]
pub struct Tuned {
    /// All candidates of every step with a choice, fastest first.
    pub tried: BTreeMap<String, Vec<Timed>>,
    /// Steps that were timed, and steps whose times were known.
    pub timed: usize,
    pub known: usize,
}

/// How hard is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Engines that compile when a plan is made of them, per step.
    pub compiled: usize,
    pub algorithms: usize,
    /// Libraries' kernels are tried at all, where we have one of our own.
    pub libraries: bool,
    /// Tiles of our own products, per step.
    pub tiles: usize,
    /// The best are compared once more inside of the whole graph.
    pub compares: bool,
    /// Libraries' kernels are tried behind one that is late (`late`); they wait for all ahead of them otherwise.
    pub tries_late: bool,
}

impl Effort {
    /// By TensorRT's scale of 0 to 5.
    pub fn of_level(level: u8) -> Self {
        match level {
            0 => Self { compiled: 1, algorithms: 1, libraries: true, tiles: 2, compares: false, tries_late: false },
            1 => Self { compiled: 3, algorithms: 4, libraries: true, tiles: 4, compares: false, tries_late: true },
            2 => Self { compiled: 5, algorithms: 8, libraries: true, tiles: 6, compares: false, tries_late: true },
            3 => Self { compiled: 3, algorithms: 16, libraries: true, tiles: 14, compares: true, tries_late: true },
            4 => Self { compiled: 10, algorithms: 32, libraries: true, tiles: 20, compares: true, tries_late: true },
            _ => Self { compiled: 64, algorithms: 64, libraries: true, tiles: 60, compares: true, tries_late: true },
        }
    }
}

/// Asked before every step with its number, how many there are, and its name.
pub type GoOn<'a> = dyn FnMut(usize, usize, &str) -> bool + 'a;

/// Gives every step of `program` that has a choice its fastest tactic.
pub fn tune(
    device: &Device,
    program: &mut Program,
    weights: &Constants,
    effort: Effort,
    known: &mut Times,
    go_on: &mut GoOn<'_>,
) -> Result<Tuned, RuntimeError> {
    tune_rest(device, program, weights, effort, known, &mut Apart::default(), go_on)
}

/// The same where some of what is known was timed `apart` for it.
fn tune_rest(
    device: &Device,
    program: &mut Program,
    weights: &Constants,
    effort: Effort,
    known: &mut Times,
    apart: &mut Apart,
    go_on: &mut GoOn<'_>,
) -> Result<Tuned, RuntimeError> {
    let since = apart.began();
    let memory = Memory::new(device, program, weights.clone(), &[MAX_WORKSPACE_BYTES])?;
    let mut kernels = Kernels::new();
    let mut tuned = time_steps(device, program, &memory, effort, known, &mut kernels, go_on)?;
    let apart = program.steps.iter().filter(|step| apart.takes(&signature(program, &step.work))).count();
    (tuned.timed, tuned.known) = (tuned.timed + apart, tuned.known.saturating_sub(apart));
    if tuned.timed > 0 && effort.compares {
        // Where nothing was timed here, nothing has written to it: kernels take less time on zeros.
        memory.fill_with_noise()?;
        refine::refine(device, program, &memory, &mut tuned, known, &mut kernels, since)?;
    }
    Ok(tuned)
}

/// The same by the steps' own times alone.
fn time_steps(
    device: &Device,
    program: &mut Program,
    memory: &Memory,
    effort: Effort,
    known: &mut Times,
    kernels: &mut Kernels,
    go_on: &mut GoOn<'_>,
) -> Result<Tuned, RuntimeError> {
    let since = Instant::now();
    let mut tuned = Tuned::default();
    let count = program.steps.len();
    let is_known = |signature: &str| known.get(signature).is_some_and(|timed| is_complete(timed));
    let mut learned = Learned::of(target_of(device), program, effort, is_known);
    let mut number = 0;
    for later in [false, true] {
        thread::scope(|scope| {
            let mut ahead = Ahead::begin(scope, device, program, known, effort, &learned, later);
            for index in 0..count {
                let step = program.steps[index].clone();
                let signature = signature(program, &step.work);
                if matches!(step.work, Work::Kernel(_)) || learned.is_later(&signature) != later {
                    continue;
                }
                if !go_on(number, count, &step.name) {
                    return Err(RuntimeError::Cancelled);
                }
                number += 1;
                if recall(program, index, known, &mut tuned) {
                    continue;
                }
                ahead.wait_for(&signature);
                if tuned.timed == 0 {
                    memory.fill_with_noise()?;
                }
                let tiles = learned.tiles(program, &step.work);
                let least = learned.effort(effort, program, &step.work);
                let mut found = time_candidates(device, program, &step, memory, least, &tiles, kernels)?;
                if found.timed.is_empty() && later {
                    // What did best on its like does not run here: then everything is tried.
                    let tiles = tiles_of(target_of(device), program, &step.work, effort.tiles);
                    found = time_candidates(device, program, &step, memory, effort, &tiles, kernels)?;
                }
                let Found { timed, by_tile, library_us, compiled_us } = found;
                learned.note(program, &step.work, by_tile, library_us, compiled_us);
                known.insert(signature, timed.clone());
                tuned.timed += 1;
                let best = timed.first().ok_or_else(|| RuntimeError::NoTactic { step: step.name.clone() })?;
                program.steps[index].tactic = Some(best.tactic.clone());
                tuned.tried.insert(step.name, timed);
            }
            ahead.finish();
            Ok(())
        })?;
    }
    if tuned.timed > 0 {
        tracing::info!(steps = tuned.timed, seconds = since.elapsed().as_secs_f32(), "candidates are timed");
    }
    Ok(tuned)
}

/// Gives a step the tactic that is known of its like, where one is. Needs no device.
pub fn recall(program: &mut Program, step: usize, known: &Times, tuned: &mut Tuned) -> bool {
    let signature = signature(program, &program.steps[step].work);
    let Some(timed) = known.get(&signature).and_then(|timed| recalled(program, timed)) else { return false };
    tuned.known += 1;
    program.steps[step].tactic = timed.first().map(|best| best.tactic.clone());
    tuned.tried.insert(program.steps[step].name.clone(), timed);
    true
}

/// Whether something is known, and of kernels all that it takes to use them.
fn is_complete(timed: &[Timed]) -> bool {
    let complete = |timed: &Timed| timed.source.is_some() || timed.tactic.source().is_none();
    !timed.is_empty() && timed.iter().all(complete)
}

/// Known candidates as `program` names them; `None` when nothing is known, or of a kernel too little.
fn recalled(program: &mut Program, timed: &[Timed]) -> Option<Vec<Timed>> {
    if !is_complete(timed) {
        return None;
    }
    let mut timed = timed.to_vec();
    for one in &mut timed {
        if let (Some(source), Some(text)) = (one.tactic.source_mut(), &one.source) {
            *source = source_index(program, text);
        }
    }
    Some(timed)
}

/// Where a source stands in the program, which it joins when it is new there.
fn source_index(program: &mut Program, source: &Source) -> usize {
    program.sources.iter().position(|known| known == source).unwrap_or_else(|| {
        program.sources.push(source.clone());
        program.sources.len() - 1
    })
}

/// What timing a step's candidates gives.
struct Found {
    /// Fastest first.
    timed: Vec<Timed>,
    /// Microseconds by tile, of those that ran.
    by_tile: Vec<(gemm::Tile, f64)>,
    /// The fastest of a library, and of those that compile; infinite without any.
    library_us: f64,
    compiled_us: f64,
}

/// Times every candidate of a step, of products those with such `tiles`.
fn time_candidates(
    device: &Device,
    program: &mut Program,
    step: &Step,
    memory: &Memory,
    effort: Effort,
    tiles: &[gemm::Tile],
    kernels: &mut Kernels,
) -> Result<Found, RuntimeError> {
    let mut trial = Trial::new(device, step);
    let mut by_tile = Vec::new();
    let (mut best_us, mut compiled_us) = (f64::INFINITY, f64::INFINITY);
    if effort.libraries
        && let Some(handle) = &device.dnn
        && let Some(pattern) = runtime::pattern(handle, &step.work)
    {
        match pattern.and_then(|pattern| pattern.engines().map(|engines| (pattern, engines))) {
            Ok((pattern, engines)) => {
                let mut compiled = 0;
                for engine in engines {
                    if rounds(program, &step.work, &engine) {
                        continue;
                    }
                    if engine.compiles {
                        compiled += 1;
                        if compiled > effort.compiled {
                            continue;
                        }
                    }
                    // An engine that does not build or run here is no candidate.
                    let ahead = engine.compiles.then(|| device.kept_plan(handle, program, &step.work, &engine));
                    let Some(plan) = ahead.flatten().or_else(|| pattern.plan(&engine).ok()) else { continue };
                    let workspace_bytes = plan.workspace_bytes as u64;
                    if workspace_bytes > MAX_WORKSPACE_BYTES {
                        continue;
                    }
                    device.remember_plan(program, &step.work, &engine, &plan);
                    let tactic =
                        Tactic::Dnn { engine: engine.index, knobs: engine.knobs.clone(), workspace_bytes, waits: None };
                    let address = |view: &View| memory.address_of(program, view);
                    let ready = bind(plan.into(), &step.work, &address, memory.workspace_address(step.stream), false);
                    let time = ready.and_then(|ready| time_us(device, &ready, best_us));
                    best_us = time.as_ref().map_or(best_us, |us| us.min(best_us));
                    if engine.compiles {
                        compiled_us = time.as_ref().map_or(compiled_us, |us| us.min(compiled_us));
                    }
                    trial.keep(program, memory, tactic, time)?;
                }
            }
            Err(error) => tracing::debug!(step = step.name, %error, "no cuDNN engines"),
        }
    }
    if effort.libraries
        && let Some(handle) = &device.blas
        && let Some((product, after)) = blas_product(program, &step.work)
    {
        let prepared = Prepared::new(handle, product)?;
        for algorithm in prepared.algorithms(MAX_WORKSPACE_BYTES as usize, effort.algorithms)? {
            let workspace_bytes = algorithm.workspace_bytes as u64;
            let after = after.clone();
            let tactic = Tactic::Blas { words: algorithm.words, workspace_bytes, waits: None, after };
            let ready = prepare(device, program, step, Some(&tactic), memory, kernels);
            let time = ready.and_then(|ready| time_us(device, &ready, best_us));
            best_us = time.as_ref().map_or(best_us, |us| us.min(best_us));
            trial.keep(program, memory, tactic, time)?;
        }
    }
    let library_us = best_us;
    for (at, generated) in kernels_of(target_of(device), program, &step.work, tiles).into_iter().enumerate() {
        let source = source_index(program, &generated.source);
        let tactic = Tactic::Kernel {
            source,
            grid: generated.grid,
            block: generated.block,
            shared_bytes: generated.shared_bytes,
        };
        let ready = prepare(device, program, step, Some(&tactic), memory, kernels);
        let time = ready.and_then(|ready| time_us(device, &ready, best_us));
        best_us = time.as_ref().map_or(best_us, |us| us.min(best_us));
        by_tile.extend(tiles.get(at).copied().zip(time.as_ref().ok().copied()));
        trial.keep(program, memory, tactic, time)?;
    }
    let mut timed = trial.agreed(program.tf32);
    timed.sort_by(|a, b| a.us.total_cmp(&b.us));
    for one in &mut timed {
        one.source = one.tactic.source().and_then(|source| program.sources.get(source).cloned());
    }
    if effort.tries_late {
        let may_be_used = may_be_used(program, effort, &timed);
        late::note(device, program, step, memory, &mut timed[..may_be_used], kernels)?;
    }
    Ok(Found { timed, by_tile, library_us, compiled_us })
}

/// How many of a step's candidates, fastest first, a plan may end up with.
fn may_be_used(program: &Program, effort: Effort, timed: &[Timed]) -> usize {
    if effort.compares { refine::finalists(program, timed).count() } else { timed.len().min(1) }
}

/// The cuBLASLt product of a step, and the kernel behind it where the library does not make its activation.
fn blas_product(program: &mut Program, work: &Work) -> Option<(Product, Option<After>)> {
    let end = runtime::end(program, work);
    let product = runtime::product(work, program.tf32, end)?;
    if end == End::Library {
        return Some((product, None));
    }
    let Generated { source, grid, block, .. } = after(work)?;
    Some((product, Some(After { source: source_index(program, &source), grid, block })))
}

/// A tactic for a step by the libraries' first proposals.
pub(crate) fn first_working(
    device: &Device,
    program: &mut Program,
    step: &Step,
    memory: &Memory,
    kernels: &mut Kernels,
) -> Result<Tactic, RuntimeError> {
    let effort = Effort::of_level(0);
    let tiles = tiles_of(target_of(device), program, &step.work, effort.tiles);
    let found = time_candidates(device, program, step, memory, effort, &tiles, kernels)?;
    let best = found.timed.into_iter().next().ok_or_else(|| RuntimeError::NoTactic { step: step.name.clone() })?;
    Ok(best.tactic)
}

/// Whether an engine would round f32 where that was not asked for. Those for products do, whatever they say of it.
fn rounds(program: &Program, work: &Work, engine: &Engine) -> bool {
    !program.tf32 && work.is_f32() && (engine.rounds_f32 || matches!(work, Work::Product(_)))
}

/// The device as the choice of kernels knows it.
fn target_of(device: &Device) -> gemm::Device {
    let properties = device.gpu.properties();
    gemm::Device {
        capability: properties.arch.capability,
        sm_count: properties.sm_count,
        shared_block_bytes: properties.shared_block_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        program::{self, Place, ProductWork},
        view::{BufferId, Kind},
    };
    use planforge_graph::ir::{Activation, GeluForm};
    use planforge_kernels_cuda::blaslt::Epilogue;

    fn gelu() -> Work {
        let rows = |dims: &[u64]| View::rows(BufferId(0), Kind::F16, dims);
        let (a, b, y) = (rows(&[1, 8, 16]), rows(&[1, 16, 24]), rows(&[1, 8, 24]));
        let activation = Some(Activation::Gelu(GeluForm::Erf));
        Work::Product(ProductWork { a, b, bias: None, residual: None, y, alpha: 1.0, activation, norm: None })
    }

    /// A program with the buffer that the product's views are of.
    fn a_program(approximate_gelu: bool) -> Program {
        let buffer = program::Buffer { name: "all".into(), bytes: 1 << 10, place: Place::Arena(0) };
        Program { buffers: vec![buffer], approximate_gelu, ..Program::default() }
    }

    #[test]
    fn a_gelu_by_erf_has_a_kernel_behind_the_library_unless_the_approximation_is_allowed() {
        let mut exact = a_program(false);
        let (product, after) = blas_product(&mut exact, &gelu()).expect("a product");
        assert_eq!((product.epilogue, after.map(|after| after.source)), (Epilogue::None, Some(0)));
        assert!(exact.sources[0].text.contains("gelu_f16"));
        let mut approximate = a_program(true);
        let (product, after) = blas_product(&mut approximate, &gelu()).expect("a product");
        assert_eq!((product.epilogue, after), (Epilogue::GeluTanh, None));
        assert_ne!(
            signature(&exact, &gelu()),
            signature(&approximate, &gelu()),
            "what is known of one is not the other's"
        );
    }

    /// What a kernel has compiled into it is told apart, or a cache would give one step the kernel of another.
    #[test]
    fn steps_whose_kernels_differ_have_signatures_that_differ() {
        let rows = |buffer: u32, dims: &[u64]| View::rows(BufferId(buffer), Kind::F16, dims);
        let row = |place: Place| {
            let room = |place: Place| program::Buffer { name: "some".into(), bytes: 1 << 20, place };
            let program = Program {
                buffers: vec![room(Place::Weights(0)), room(Place::Arena(0)), room(place)],
                ..Program::default()
            };
            let work = ProductWork {
                a: rows(1, &[1, 1, 64]),
                b: rows(0, &[1, 192, 64]).permuted(&[0, 2, 1]),
                bias: Some(rows(2, &[192])),
                residual: None,
                y: rows(1, &[1, 1, 192]),
                alpha: 1.0,
                activation: None,
                norm: None,
            };
            (program, work)
        };
        let (constant, product) = row(Place::Weights(0));
        let (computed, same) = row(Place::Arena(1 << 20));
        let signatures =
            [(&constant, product.clone()), (&computed, same)].map(|(of, work)| signature(of, &Work::Product(work)));
        assert_ne!(signatures[0], signatures[1], "a bias that steps compute is not read ahead");
        let heads = |of: [u64; 3]| {
            let part = |at: u64| View { offset: at * 64, ..rows(1, &[1, 4, 1, 16]) };
            let cache = rows(1, &[1, 4, 48, 16]);
            let append =
                program::Append { k: part(of[1]), v: part(of[2]), place: View::rows(BufferId(1), Kind::I64, &[1]) };
            let attention = program::OneTokenWork {
                q: part(of[0]),
                k: cache.clone(),
                v: cache,
                mask: None,
                append: Some(append),
                turn: None,
                seen: Some(program::Seen { finite: true, early: true }),
                parts: View::rows(BufferId(1), Kind::F32, &[1, 4, 1, 18]),
                scale: 0.25,
                keys: 48,
                guarded: false,
            };
            let work = program::HeadsWork { product: product.clone(), attention, o: rows(1, &[1, 4, 1, 16]) };
            signature(&constant, &Work::Heads(Box::new(work)))
        };
        assert_ne!(heads([0, 1, 2]), heads([1, 0, 2]), "queries in the place of keys");
    }

    /// A library's kernel that was not tried behind a late one costs the launch ahead of it microseconds, which are not its
    /// own: whether a plan has it must not hang on its place among the quickest by themselves.
    #[test]
    fn every_candidate_that_may_come_into_a_plan_is_tried_behind_a_kernel_that_is_late() {
        let program = a_program(false);
        let tactic = Tactic::Blas { words: [1; 8], workspace_bytes: 0, waits: None, after: None };
        let timed: Vec<Timed> =
            (0..12).map(|at| Timed { tactic: tactic.clone(), us: 8.0 + 0.25 * f64::from(at), source: None }).collect();
        // The last is 1.34 times as slow as the first, too slow to be compared.
        assert_eq!(may_be_used(&program, Effort::of_level(3), &timed), 10);
        assert_eq!(may_be_used(&program, Effort::of_level(2), &timed), 1);
        assert_eq!([2, 3].map(|level| may_be_used(&program, Effort::of_level(level), &[])), [0, 0]);
    }

    /// What is known of a step names its kernel by the source, which stands elsewhere in another program.
    #[test]
    fn a_kernel_behind_the_library_is_recalled_with_its_source() {
        let mut first = Program::default();
        let (_, after) = blas_product(&mut first, &gelu()).expect("a product");
        let tactic = Tactic::Blas { words: [1; 8], workspace_bytes: 0, waits: None, after };
        let timed = Timed { tactic, us: 1.0, source: Some(first.sources[0].clone()) };
        let other = Source { name: "other".into(), text: "other".into() };
        let mut second = Program { sources: vec![other], ..Program::default() };
        let recalled_there = recalled(&mut second, std::slice::from_ref(&timed)).expect("it is complete");
        assert_eq!(recalled_there[0].tactic.source(), Some(1));
        assert_eq!(second.sources[1], first.sources[0]);
        assert!(recalled(&mut second, &[Timed { source: None, ..timed }]).is_none(), "a kernel without its source");
    }
}
