//! What candidates take to compile, done before any is timed, on all of the host's cores.

use super::{Effort, Learned, Times, recalled, rounds, target_of};
use crate::{
    codegen::{
        candidates::{after, kernels_of, tiles_of},
        gemm,
    },
    program::{Program, Work},
    runtime::{self, Device, End, RuntimeError, nvrtc_source},
    signature::signature,
    source::{Source, source_digest},
};
use planforge_kernels_cuda::{
    compilers::Compilers,
    dnn::{self, Engine, Pattern},
    nvrtc,
};
use planforge_types::Digest;
use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

/// Most threads; a compiler takes some 100 MiB.
const MAX_THREADS: usize = 32;

/// One thing to compile.
enum Job {
    Kernel(Source),
    /// A plan of a cuDNN engine that compiles, under its key.
    Plan {
        key: String,
        work: Box<Work>,
        engine: i64,
        knobs: Vec<(u32, i64)>,
    },
}

/// What became of one.
enum Done {
    Kernel { source: Digest, code: Vec<u8> },
    Plan { key: String, text: String },
}

/// Compiles what the steps of `program` whose times are not known may be computed by, those that are searched `later` or
/// the others, and what it needs in any case. What does not compile is left out and told again when it is tried.
pub(super) fn compile(
    device: &Device,
    program: &mut Program,
    known: &Times,
    effort: Effort,
    learned: &Learned,
    later: bool,
) -> Result<(), RuntimeError> {
    let wanted = |signature: &str| learned.is_later(signature) == later;
    let tiles = |program: &Program, work: &Work| learned.tiles(program, work);
    let (sources, works) = sources_of(target_of(device), program, known, &wanted, &tiles);
    let plans = works.iter().flat_map(|work| {
        let effort = learned.effort(effort, program, work);
        plans_of(device, program, work, effort)
    });
    // The slowest first, so that no thread is left with one at the end.
    let kernels = sources.into_iter().filter(|source| !device.has_code(source)).map(Job::Kernel);
    let jobs: Vec<Job> = plans.chain(kernels).collect();
    let plans = jobs.iter().filter(|job| matches!(job, Job::Plan { .. })).count();
    let began = Instant::now();
    let done = run(device, &jobs);
    let (steps, kernels, seconds) = (works.len(), jobs.len() - plans, began.elapsed().as_secs_f32());
    tracing::info!(steps, kernels, plans, seconds, "candidates are compiled");
    for done in done {
        match done {
            Done::Kernel { source, code } => device.add_code(source, code),
            Done::Plan { key, text } => device.add_library_plans([(key, text)]),
        }
    }
    Ok(())
}

/// Sources of our own kernels that the steps of `program` whose times are not known may be computed by on such a device,
/// and of those that it needs in any case; and what is to be found out, each once. Needs no device.
pub fn own_sources(
    target: gemm::Device,
    program: &mut Program,
    known: &Times,
    effort: Effort,
) -> (Vec<Source>, Vec<Work>) {
    let tiles = |program: &Program, work: &Work| tiles_of(target, program, work, effort.tiles);
    sources_of(target, program, known, &|_| true, &tiles)
}

/// The same of the steps whose signature is `wanted`, products with such tiles.
fn sources_of(
    target: gemm::Device,
    program: &mut Program,
    known: &Times,
    wanted: &dyn Fn(&str) -> bool,
    tiles: &dyn Fn(&Program, &Work) -> Vec<gemm::Tile>,
) -> (Vec<Source>, Vec<Work>) {
    let mut sources: BTreeMap<String, Source> = BTreeMap::new();
    let mut works = Vec::new();
    let mut seen = BTreeSet::new();
    for index in 0..program.steps.len() {
        let work = program.steps[index].work.clone();
        if let Work::Kernel(kernel) = &work {
            let source = &program.sources[kernel.source];
            sources.insert(source.text.clone(), source.clone());
            continue;
        }
        let signature = signature(program, &work);
        if !wanted(&signature)
            || !seen.insert(signature.clone())
            || known.get(&signature).and_then(|timed| recalled(program, timed)).is_some()
        {
            continue;
        }
        let behind = (runtime::end(program, &work) == End::Kernel).then(|| after(&work)).flatten();
        let own = kernels_of(target, program, &work, &tiles(program, &work));
        for generated in own.into_iter().chain(behind) {
            sources.insert(generated.source.text.clone(), generated.source);
        }
        works.push(work);
    }
    (sources.into_values().collect(), works)
}

/// Engines of a step that compile, as far as the effort goes.
fn plans_of(device: &Device, program: &Program, work: &Work, effort: Effort) -> Vec<Job> {
    if !effort.libraries || effort.compiled == 0 {
        return Vec::new();
    }
    let Some(Ok(pattern)) = device.dnn.as_ref().and_then(|handle| runtime::pattern(handle, work)) else {
        return Vec::new();
    };
    compiled_engines(program, work, &pattern, effort)
        .filter_map(|engine| {
            let key = runtime::plan_key(program, work, engine.index, &engine.knobs);
            let missing = !device.has_library_plan(&key);
            missing.then(|| Job::Plan {
                key,
                work: Box::new(work.clone()),
                engine: engine.index,
                knobs: engine.knobs.clone(),
            })
        })
        .collect()
}

/// Engines for a step's pattern that compile and are tried, the library's best guess first.
pub fn compiled_engines(
    program: &Program,
    work: &Work,
    pattern: &Pattern,
    effort: Effort,
) -> impl Iterator<Item = Engine> {
    let engines = pattern.engines().unwrap_or_default().into_iter();
    let wanted = engines.filter(|engine| !rounds(program, work, engine) && engine.compiles);
    wanted.take(effort.compiled)
}

fn run(device: &Device, jobs: &[Job]) -> Vec<Done> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS).min(jobs.len());
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let (gpu, cubins, compilers) = (&device.gpu, device.cubin_cache(), Compilers::here());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // Each thread has a library handle of its own: one must not be used by two at a time.
                let mut handle = None;
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = match job {
                        Job::Kernel(source) => {
                            let compile = |source: nvrtc::Source<'_>, arch| compilers.compile(source, arch);
                            let code = cubins.compile_by(nvrtc_source(source), gpu.properties().arch, compile);
                            code.map(|code| Done::Kernel { source: source_digest(source), code })
                                .map_err(|error| error.to_string())
                        }
                        Job::Plan { key, work, engine, knobs } => {
                            if handle.is_none() {
                                handle = gpu.use_here().ok().and_then(|()| dnn::Handle::new().ok());
                            }
                            let Some(handle) = &handle else { continue };
                            plan_text(handle, work, *engine, knobs)
                                .map(|text| Done::Plan { key: key.clone(), text })
                                .map_err(|e| e.to_string())
                        }
                    };
                    match result {
                        Ok(one) => done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(one),
                        Err(error) => tracing::debug!(error, "a candidate does not compile"),
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn plan_text(handle: &dnn::Handle, work: &Work, engine: i64, knobs: &[(u32, i64)]) -> Result<String, dnn::DnnError> {
    let unsupported = || dnn::DnnError::Unsupported { what: "compute a step", reason: "it has no pattern".into() };
    let pattern = runtime::pattern(handle, work).ok_or_else(unsupported)??;
    pattern.plan_text(&pattern.engine(engine, knobs)?)
}
