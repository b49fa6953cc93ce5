//! The engine's own threads: a parallel loop over task indices.
//!
//! The calling thread works too, so a pool of one thread starts none. Between loops a worker looks for the next one
//! for some microseconds (steps of one inference follow each other closely) and then sleeps on a condition variable:
//! an idle engine uses no CPU. The caller, too, looks that long for the last worker to be done. Threads of a pinned
//! pool stay on cores of their own; see [`crate::cores`].
//!
//! `tests/pool_model.rs` takes this file with doubles of locks, atomics and threads in place of `crate::sync` and tries
//! the orders in which they can meet.

use crate::{
    cores::{Cores, Pinned},
    sync::{
        Arc, AtomicBool, AtomicUsize, Builder, Condvar, JoinHandle, LOOKS_BEFORE_SLEEP, Mutex, MutexGuard, Ordering,
        spin_loop,
    },
    watch::{Stint, Watch},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::PoisonError,
};

/// Most threads of one pool: far above any machine this runs on, low enough to refuse nonsense in a plan.
pub const THREADS_MAX: usize = 1024;

/// Most tasks of one loop: every thread counts one beyond the last, and the counter must not come round.
const TASKS_MAX: usize = usize::MAX - THREADS_MAX;

/// A pool that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("an engine runs on 1 to {THREADS_MAX} threads, not {threads}")]
    Threads { threads: usize },
    #[error("thread {index} of the engine's pool did not start")]
    Spawn {
        index: usize,
        #[source]
        source: std::io::Error,
    },
}

/// What one loop runs: `call(context, task, thread)`.
#[derive(Clone, Copy)]
struct Loop {
    context: *const (),
    call: unsafe fn(*const (), usize, usize),
    tasks: usize,
}

// SAFETY: `context` points to a closure that is `Sync` and outlives the loop: `ThreadPool::run` returns, or passes a
// panic on, only when no worker is inside and none can join.
unsafe impl Send for Loop {}

struct State {
    /// The loop now open, if any.
    current: Option<Loop>,
    /// Raised when a loop opens; a worker joins each generation once.
    generation: usize,
    /// Workers inside the current loop.
    inside: usize,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    opened: Condvar,
    left: Condvar,
    /// Copies of `State::generation` and `State::inside` that are looked at without the lock.
    generation: AtomicUsize,
    inside: AtomicUsize,
    /// Next task of the open loop.
    next: AtomicUsize,
    panicked: AtomicBool,
    watch: Watch,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // The state is a few counters that are consistent at every unlock.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fixed set of threads that run parallel loops, one loop at a time.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a loop: callers on several threads take turns.
    turn: Mutex<()>,
    cores: Arc<Cores>,
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish()
    }
}

impl ThreadPool {
    /// A pool of `threads` threads, the caller's included, that run wherever the system puts them.
    pub fn new(threads: usize) -> Result<Self, PoolError> {
        Self::on(threads, Cores::default())
    }

    /// A pool whose threads stay on cores that no other pinned pool of this machine has, where there are enough.
    pub fn pinned(threads: usize) -> Result<Self, PoolError> {
        Self::on(threads, if threads <= THREADS_MAX { Cores::take(threads) } else { Cores::default() })
    }

    /// Keeps the caller, who is thread 0, on the pool's first core until the result is dropped.
    pub fn pin_caller(&self) -> Pinned {
        self.cores.pin(0)
    }

    /// Whether every thread stays on a core that no other pinned pool has.
    pub fn is_pinned(&self) -> bool {
        self.cores.of(0).is_some()
    }

    fn on(threads: usize, cores: Cores) -> Result<Self, PoolError> {
        if threads == 0 || threads > THREADS_MAX {
            return Err(PoolError::Threads { threads });
        }
        let shared = Arc::new(Shared {
            state: Mutex::new(State { current: None, generation: 0, inside: 0, stop: false }),
            opened: Condvar::new(),
            left: Condvar::new(),
            generation: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            watch: Watch::default(),
        });
        let cores = Arc::new(cores);
        let mut pool = Self { shared, workers: Vec::with_capacity(threads - 1), turn: Mutex::new(()), cores };
        for index in 1..threads {
            let (shared, cores) = (Arc::clone(&pool.shared), Arc::clone(&pool.cores));
            let worker = Builder::new()
                .name(format!("engine-{index}"))
                .spawn(move || {
                    let _pinned = cores.pin(index);
                    work(&shared, index);
                })
                .map_err(|source| PoolError::Spawn { index, source })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// How many threads work, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Notes from now on, or no longer, when each thread is at work.
    pub fn watch(&self, is_on: bool) {
        self.shared.watch.set(is_on);
    }

    /// What threads did in the loops that ended since this was last asked, while they were watched.
    pub fn stints(&self) -> Vec<Stint> {
        self.shared.watch.take()
    }

    /// Calls `body(task, thread)` for every task in `0..tasks`, spread over the threads, and returns when all are
    /// done. `thread` is below [`Self::threads`] and differs between calls of this loop that run at the same time.
    /// `body` must not call `run` on the same pool, which would wait for itself.
    ///
    /// # Panics
    /// When `body` does: with its panic if it was the caller's own. Also when `tasks` are too many to count.
    pub fn run<F: Fn(usize, usize) + Sync>(&self, tasks: usize, body: F) {
        if tasks == 0 {
            return;
        }
        if self.workers.is_empty() || tasks == 1 {
            let from = self.shared.watch.now();
            (0..tasks).for_each(|task| body(task, 0));
            self.shared.watch.keep(0, tasks, from);
            return;
        }
        unsafe fn call<F: Fn(usize, usize) + Sync>(context: *const (), task: usize, thread: usize) {
            // SAFETY: `context` is the `&F` below, alive until `run` returns or unwinds.
            unsafe { (*context.cast::<F>())(task, thread) }
        }
        assert!(tasks <= TASKS_MAX, "a loop has too many tasks");
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        let current = Loop { context: (&raw const body).cast(), call: call::<F>, tasks };
        {
            let mut state = lock(&shared.state);
            shared.next.store(0, Ordering::Relaxed);
            state.current = Some(current);
            state.generation += 1;
            shared.generation.store(state.generation, Ordering::Release);
            shared.opened.notify_all();
        }
        let mine = catch_unwind(AssertUnwindSafe(|| drain(shared, current, 0)));
        let mut looks = 0;
        while shared.inside.load(Ordering::Acquire) > 0 && looks < LOOKS_BEFORE_SLEEP {
            spin_loop();
            looks += 1;
        }
        // No worker joins after `current` is taken away; those inside are waited for, so `body` outlives its calls.
        let mut state = lock(&shared.state);
        state.current = None;
        while state.inside > 0 {
            state = shared.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let theirs = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = mine {
            resume_unwind(panic);
        }
        assert!(!theirs, "a task of a parallel loop panicked");
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.shared.opened.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of tasks; there is nothing to learn here.
            let _ = worker.join();
        }
    }
}

/// Splits `to` into `size` elements per task and calls `body(task, part)` on the pool.
pub fn for_parts<T: Send>(pool: &ThreadPool, to: &mut [T], size: usize, body: impl Fn(usize, &mut [T]) + Sync) {
    struct Base<T>(*mut T);
    // SAFETY: tasks take disjoint parts, of elements that may go to other threads.
    unsafe impl<T: Send> Sync for Base<T> {}
    impl<T> Base<T> {
        fn at(&self, offset: usize) -> *mut T {
            self.0.wrapping_add(offset)
        }
    }
    let len = to.len();
    let size = size.max(1);
    let base = Base(to.as_mut_ptr());
    pool.run(len.div_ceil(size), |task, _| {
        let start = task * size;
        let end = (start + size).min(len);
        // SAFETY: [start, end) lies within `to`, which is borrowed exclusively, and belongs to this task alone.
        let part = unsafe { std::slice::from_raw_parts_mut(base.at(start), end - start) };
        body(task, part);
    });
}

/// Takes tasks of `current` until none is left.
fn drain(shared: &Shared, current: Loop, thread: usize) {
    let from = shared.watch.now();
    let mut taken = 0;
    loop {
        let task = shared.next.fetch_add(1, Ordering::Relaxed);
        if task >= current.tasks {
            return shared.watch.keep(thread, taken, from);
        }
        // SAFETY: the loop is open (this thread is counted inside it, or is its caller), so its closure is alive.
        unsafe { (current.call)(current.context, task, thread) };
        taken += 1;
    }
}

fn work(shared: &Shared, thread: usize) {
    let mut seen = 0;
    loop {
        let mut looks = 0;
        while shared.generation.load(Ordering::Acquire) == seen && looks < LOOKS_BEFORE_SLEEP {
            spin_loop();
            looks += 1;
        }
        let mut state = lock(&shared.state);
        while state.generation == seen && !state.stop {
            state = shared.opened.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stop {
            return;
        }
        seen = state.generation;
        let Some(current) = state.current else { continue };
        state.inside += 1;
        shared.inside.store(state.inside, Ordering::Release);
        drop(state);
        if catch_unwind(AssertUnwindSafe(|| drain(shared, current, thread))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        let mut state = lock(&shared.state);
        state.inside -= 1;
        shared.inside.store(state.inside, Ordering::Release);
        if state.inside == 0 {
            shared.left.notify_one();
        }
    }
}
