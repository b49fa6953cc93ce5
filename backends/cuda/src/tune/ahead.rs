//! What candidates take to compile, done on the host's cores while those that are compiled are timed.

use super::{Effort, Learned, Times, recalled, refine, rounds, target_of};
use crate::{
    codegen::{
        candidates::{after, kernels_of, tiles_of},
        gemm,
    },
    program::{Program, Work},
    runtime::{self, Device, End, nvrtc_source},
    signature::signature,
    source::{Source, source_digest},
};
use planforge_kernels_cuda::{
    compilers::Compilers,
    device::Gpu,
    dnn::{self, Engine, Pattern},
    nvrtc::{self, CubinCache},
};
use planforge_types::Digest;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    num::NonZero,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Most threads; a compiler takes some 100 MiB.
const MAX_THREADS: usize = 32;

/// A host of so many cores leaves one to who times candidates.
const CORES_TO_SPARE: usize = 4;

/// One thing to compile.
#[derive(Debug)]
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
#[derive(Debug)]
enum Compiled {
    Kernel { source: Digest, code: Vec<u8> },
    Plan { key: String, text: String },
}

/// What the steps of a program may be computed by, compiled by threads of `scope` while the first of them are timed.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    device: &'a Device,
    queue: Arc<Queue>,
    /// By signature of a step: what it waits for.
    needs: BTreeMap<String, Vec<usize>>,
    steps: usize,
    plans: usize,
    kernels: usize,
    began: Instant,
    /// Time that a step waited.
    waited: Duration,
}

impl<'a> Ahead<'a> {
    /// Begins with the steps of `program` whose times are not known, those that are searched `later` or the others, and with
    /// what it needs in any case; last come candidates of those that are known, which are compared with the others'. What
    /// does not compile is left out and told again when it is tried.
    pub fn begin<'scope>(
        scope: &'scope thread::Scope<'scope, 'a>,
        device: &'a Device,
        program: &mut Program,
        known: &Times,
        effort: Effort,
        learned: &Learned,
        later: bool,
    ) -> Self {
        let mut ahead = Self {
            device,
            queue: Arc::default(),
            needs: BTreeMap::new(),
            steps: 0,
            plans: 0,
            kernels: 0,
            began: Instant::now(),
            waited: Duration::ZERO,
        };
        let wanted = |signature: &str| learned.is_later(signature) == later;
        let tiles = |program: &Program, work: &Work| learned.tiles(program, work);
        let found = sources_of(target_of(device), program, known, &wanted, &tiles);
        // The slowest first, so that no thread is left with one at the end.
        let compilers = Arc::new(Compilers::here());
        let mut threads = 0;
        for (signature, work, _) in &found.works {
            for job in plans_of(device, program, work, learned.effort(effort, program, work)) {
                ahead.plans += 1;
                ahead.add(scope, &compilers, &mut threads, job, &[signature]);
            }
        }
        let mut of_source: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
        for (signature, _, texts) in &found.works {
            texts.iter().for_each(|text| of_source.entry(text).or_default().push(signature));
        }
        for source in &found.sources {
            if device.has_code(source) {
                continue;
            }
            ahead.kernels += 1;
            let of = of_source.get(source.text.as_str()).map(Vec::as_slice).unwrap_or_default();
            ahead.add(scope, &compilers, &mut threads, Job::Kernel(source.clone()), of);
        }
        // Where nothing is found out nothing is compared.
        let compared = effort.compares && !found.works.is_empty();
        for source in found.known.into_iter().filter(|source| compared && !device.has_code(source)) {
            ahead.kernels += 1;
            ahead.add(scope, &compilers, &mut threads, Job::Kernel(source), &[]);
        }
        ahead.steps = found.works.len();
        ahead.queue.change(|state| state.closed = true);
        ahead
    }

    /// One more thing to compile, which such steps wait for, and a thread for it where there may be one more.
    fn add<'scope>(
        &mut self,
        scope: &'scope thread::Scope<'scope, 'a>,
        compilers: &Arc<Compilers>,
        threads: &mut usize,
        job: Job,
        of: &[&String],
    ) {
        let number = self.plans + self.kernels - 1;
        self.queue.change(|state| {
            state.waiting.push_back((number, job));
            state.done.push(false);
        });
        for signature in of {
            self.needs.entry((*signature).clone()).or_default().push(number);
        }
        if *threads < threads_of(thread::available_parallelism().map_or(1, NonZero::get)) {
            *threads += 1;
            let (gpu, cubins) = (&self.device.gpu, self.device.cubin_cache());
            let (queue, compilers) = (self.queue.clone(), compilers.clone());
            scope.spawn(move || work_off(&queue, gpu, cubins, &compilers));
        }
    }

    /// Returns when what a step of this signature may be computed by is compiled.
    pub fn wait_for(&mut self, signature: &str) {
        let needs = self.needs.remove(signature).unwrap_or_default();
        self.wait_until(|state| needs.iter().all(|number| state.done[*number]));
    }

    /// Returns when all is.
    pub fn finish(mut self) {
        self.wait_until(|state| state.done.iter().all(|done| *done));
        let (seconds, waited_s) = (self.began.elapsed().as_secs_f32(), self.waited.as_secs_f32());
        let (steps, kernels, plans) = (self.steps, self.kernels, self.plans);
        if kernels + plans > 0 {
            tracing::info!(steps, kernels, plans, seconds, waited_s, "candidates are compiled");
        }
    }

    fn wait_until(&mut self, is_done: impl Fn(&State) -> bool) {
        let began = Instant::now();
        let mut state = self.queue.lock();
        while !is_done(&state) {
            state = self.queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let results = std::mem::take(&mut state.results);
        drop(state);
        self.waited += began.elapsed();
        for result in results {
            match result {
                Compiled::Kernel { source, code } => self.device.add_code(source, code),
                Compiled::Plan { key, text } => self.device.add_library_plans([(key, text)]),
            }
        }
    }
}

/// Whoever does not wait for the end wants nothing of what was not begun.
impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        self.queue.change(|state| {
            state.waiting.clear();
            state.closed = true;
        });
    }
}

/// Threads that compile on a host of so many cores: of many one is left to who times meanwhile.
fn threads_of(cores: usize) -> usize {
    let left = usize::from(cores >= CORES_TO_SPARE);
    (cores - left).min(MAX_THREADS)
}

/// What is to be compiled, and what became of it.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(usize, Job)>,
    /// By number.
    done: Vec<bool>,
    /// What nobody has taken yet.
    results: Vec<Compiled>,
    /// No more will come.
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// The next one, which may have to be waited for; `None` when no more will come.
    fn next(&self) -> Option<(Taken<'_>, Job)> {
        let mut state = self.lock();
        loop {
            if let Some((number, job)) = state.waiting.pop_front() {
                return Some((Taken { queue: self, number, result: None }, job));
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One that somebody compiles. It is done when this goes, also where whoever had it panics: nobody waits for it then.
struct Taken<'a> {
    queue: &'a Queue,
    number: usize,
    result: Option<Compiled>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.queue.change(|state| {
            state.done[self.number] = true;
            state.results.extend(self.result.take());
        });
    }
}

/// Compiles one after the other.
fn work_off(queue: &Queue, gpu: &Gpu, cubins: &CubinCache, compilers: &Compilers) {
    // Each thread has a library handle of its own: one must not be used by two at a time.
    let mut handle = None;
    while let Some((mut taken, job)) = queue.next() {
        let result = match job {
            Job::Kernel(source) => {
                let compile = |source: nvrtc::Source<'_>, arch| compilers.compile(source, arch);
                let code = cubins.compile_by(nvrtc_source(&source), gpu.properties().arch, compile);
                code.map(|code| Compiled::Kernel { source: source_digest(&source), code })
                    .map_err(|error| error.to_string())
            }
            Job::Plan { key, work, engine, knobs } => {
                if handle.is_none() {
                    handle = gpu.use_here().ok().and_then(|()| dnn::Handle::new().ok());
                }
                let handle = handle.as_ref().ok_or_else(|| "a thread has no library".to_owned());
                let text =
                    handle.and_then(|it| plan_text(it, &work, engine, &knobs).map_err(|error| error.to_string()));
                text.map(|text| Compiled::Plan { key, text })
            }
        };
        taken.result = result.inspect_err(|error| tracing::debug!(error, "a candidate does not compile")).ok();
    }
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
    let found = sources_of(target, program, known, &|_| true, &tiles);
    (found.sources, found.works.into_iter().map(|(_, work, _)| work).collect())
}

/// What is to be compiled of our own, in the order of the steps.
struct Found {
    sources: Vec<Source>,
    /// What is to be found out, each once: signature, work, and texts of its sources.
    works: Vec<(String, Work, Vec<String>)>,
    /// Sources beside those, of candidates that are known and compared in the whole.
    known: Vec<Source>,
}

/// The same of the steps whose signature is `wanted`, products with such tiles.
fn sources_of(
    target: gemm::Device,
    program: &mut Program,
    known: &Times,
    wanted: &dyn Fn(&str) -> bool,
    tiles: &dyn Fn(&Program, &Work) -> Vec<gemm::Tile>,
) -> Found {
    let (mut sources, mut texts_seen) = (Vec::new(), BTreeSet::new());
    let mut add = |source: Source| {
        if texts_seen.insert(source.text.clone()) {
            sources.push(source);
        }
    };
    let (mut works, mut known_sources) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    for index in 0..program.steps.len() {
        let work = program.steps[index].work.clone();
        if let Work::Kernel(kernel) = &work {
            add(program.sources[kernel.source].clone());
            continue;
        }
        let signature = signature(program, &work);
        if !seen.insert(signature.clone()) {
            continue;
        }
        if let Some(timed) = known.get(&signature).and_then(|timed| recalled(program, timed)) {
            known_sources.extend(refine::finalists(program, &timed).filter_map(|one| one.source.clone()));
            continue;
        }
        if !wanted(&signature) {
            continue;
        }
        let behind = (runtime::end(program, &work) == End::Kernel).then(|| after(&work)).flatten();
        let own = kernels_of(target, program, &work, &tiles(program, &work));
        let mut texts = Vec::new();
        for generated in own.into_iter().chain(behind) {
            texts.push(generated.source.text.clone());
            add(generated.source);
        }
        works.push((signature, work, texts));
    }
    known_sources.retain(|source| texts_seen.insert(source.text.clone()));
    Found { sources, works, known: known_sources }
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

fn plan_text(handle: &dnn::Handle, work: &Work, engine: i64, knobs: &[(u32, i64)]) -> Result<String, dnn::DnnError> {
    let unsupported = || dnn::DnnError::Unsupported { what: "compute a step", reason: "it has no pattern".into() };
    let pattern = runtime::pattern(handle, work).ok_or_else(unsupported)??;
    pattern.plan_text(&pattern.engine(engine, knobs)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        program::{Buffer, Place, ProductWork, Step, Tactic},
        tune::Timed,
        view::{BufferId, Kind, View},
    };

    fn job() -> Job {
        Job::Kernel(Source { name: String::new(), text: String::new() })
    }

    #[test]
    fn what_is_added_meanwhile_is_taken_once_and_who_compiles_ends_when_no_more_comes() {
        let queue = Queue::default();
        let mut taken = thread::scope(|scope| {
            let take = || std::iter::from_fn(|| queue.next()).map(|(taken, _)| taken.number).collect::<Vec<_>>();
            let threads = [scope.spawn(take), scope.spawn(take)];
            for number in 0..100 {
                queue.change(|state| {
                    state.waiting.push_back((number, job()));
                    state.done.push(false);
                });
            }
            queue.change(|state| state.closed = true);
            threads.map(|thread| thread.join().expect("it ends")).concat()
        });
        taken.sort_unstable();
        assert_eq!(taken, (0..100).collect::<Vec<_>>());
        assert!(queue.next().is_none() && queue.lock().done.iter().all(|done| *done));
    }

    /// Of a network of which one step is new the others' candidates are compared with its, and would be compiled one after
    /// the other by who makes them ready.
    #[test]
    fn candidates_of_known_steps_are_compiled_too_where_others_are_found_out() {
        let product = |columns: u64| {
            let rows = |dims: &[u64]| View::rows(BufferId(0), Kind::F16, dims);
            let (a, b, y) = (rows(&[1, 64, 64]), rows(&[1, 64, columns]), rows(&[1, 64, columns]));
            let product = ProductWork { a, b, bias: None, residual: None, y, alpha: 1.0, activation: None, norm: None };
            let (name, work) = (format!("product {columns}"), Work::Product(product));
            Step { name, origins: Vec::new(), work, tactic: None, stream: 0, flops: 0, bytes: 0 }
        };
        let buffer = Buffer { name: "all".into(), bytes: 1 << 20, place: Place::Arena(0) };
        let steps = vec![product(64), product(64), product(128)];
        let mut program = Program { buffers: vec![buffer], steps, ..Program::default() };
        let candidate = |name: &str, us: f64| Timed {
            tactic: Tactic::Kernel { source: 0, grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 },
            us,
            source: Some(Source { name: name.into(), text: name.into() }),
        };
        let timed = vec![candidate("best", 1.0), candidate("near", 1.2), candidate("far", 9.0)];
        let known = Times::from([(signature(&program, &program.steps[0].work), timed)]);
        let target = gemm::Device { capability: 90, sm_count: 132, shared_block_bytes: 227 << 10 };
        let tiles = |program: &Program, work: &Work| tiles_of(target, program, work, 2);
        let found = sources_of(target, &mut program, &known, &|_| true, &tiles);
        let names: Vec<&str> = found.known.iter().map(|source| source.name.as_str()).collect();
        assert_eq!(names, ["best", "near"]);
        assert_eq!(found.works.len(), 1, "one is to be found out");
        assert!(!found.sources.is_empty() && found.sources.iter().all(|source| !found.known.contains(source)));
    }

    #[test]
    fn what_somebody_panics_over_is_done() {
        let queue = Queue::default();
        queue.change(|state| {
            state.waiting.push_back((0, job()));
            state.done.push(false);
        });
        let compiled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _taken = queue.next();
            panic!("over a source");
        }));
        assert!(compiled.is_err());
        let state = queue.lock();
        assert!(state.done[0] && state.results.is_empty());
    }

    #[test]
    fn a_host_of_many_cores_leaves_one_to_who_times() {
        assert_eq!([1, 2, 4, 16, 200].map(threads_of), [1, 2, 3, 15, MAX_THREADS]);
    }
}
