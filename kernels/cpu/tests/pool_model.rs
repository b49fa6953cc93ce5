//! The thread pool under a model checker: its own source, with locks, atomics and threads whose every order is tried (up
//! to a number of preemptions), so that a wake-up lost or a result read too early is found and not merely likely.

use loom::{cell::UnsafeCell, sync::Arc};
use pool::ThreadPool;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[path = "../src/pool.rs"]
#[expect(dead_code, reason = "models need a part of it")]
mod pool;

/// What the pool is made of, as `src/sync.rs` names it.
mod sync {
    pub(crate) use loom::{
        hint::spin_loop,
        sync::{
            Arc, Condvar, Mutex, MutexGuard,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        },
        thread::{Builder, JoinHandle},
    };

    /// Once is as good as often: each look is one more point where threads may change over.
    pub(crate) const LOOKS_BEFORE_SLEEP: u32 = 1;
}

/// Nobody watches in the model.
mod watch {
    pub(crate) struct Stint;
    #[derive(Default)]
    pub(crate) struct Watch {}

    impl Watch {
        pub(crate) fn set(&self, _is_on: bool) {}
        pub(crate) fn now(&self) -> Option<()> {
            None
        }
        pub(crate) fn keep(&self, _thread: usize, _tasks: usize, _from: Option<()>) {}
        pub(crate) fn take(&self) -> Vec<Stint> {
            Vec::new()
        }
    }
}

/// Cores are no part of the model.
mod cores {
    #[derive(Default)]
    pub(crate) struct Cores {}
    pub(crate) struct Pinned;

    impl Cores {
        pub(crate) fn take(_threads: usize) -> Self {
            Self {}
        }
        pub(crate) fn pin(&self, _thread: usize) -> Pinned {
            Pinned
        }
        pub(crate) fn of(&self, _thread: usize) -> Option<usize> {
            None
        }
    }
}

/// Places that tasks write without a lock. The checker fails a run in which two accesses to one are not ordered.
struct Places(Vec<UnsafeCell<usize>>);

// SAFETY: this is what the models try: tasks take different places, and the caller looks when all are done.
unsafe impl Sync for Places {}

impl Places {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| UnsafeCell::new(0)).collect())
    }

    fn add(&self, place: usize, more: usize) {
        // SAFETY: see `Sync` above; the checker watches.
        self.0[place].with_mut(|value| unsafe { *value += more });
    }

    fn values(&self) -> Vec<usize> {
        // SAFETY: as above.
        self.0.iter().map(|place| place.with(|value| unsafe { *value })).collect()
    }
}

/// Tries the orders that differ by at most so many preemptions.
fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

#[test]
fn every_task_is_done_once_and_seen_by_the_caller() {
    model(3, || {
        let pool = ThreadPool::new(2).unwrap();
        let (tasks, threads) = (Places::new(2), Places::new(2));
        pool.run(2, |task, thread| {
            tasks.add(task, task + 1);
            threads.add(thread, 1);
        });
        assert_eq!(tasks.values(), [1, 2]);
        assert_eq!(threads.values().iter().sum::<usize>(), 2);
    });
}

#[test]
fn a_loop_begins_only_when_the_one_before_has_ended() {
    model(2, || {
        let pool = ThreadPool::new(2).unwrap();
        let places = Places::new(2);
        // A worker that is late for the first loop must neither miss the second nor run the first again.
        for _ in 0..2 {
            pool.run(2, |task, _| places.add(task, 1));
        }
        assert_eq!(places.values(), [2, 2]);
    });
}

#[test]
fn several_workers_share_a_loop() {
    model(1, || {
        let pool = ThreadPool::new(3).unwrap();
        let (tasks, threads) = (Places::new(3), Places::new(3));
        pool.run(3, |task, thread| {
            tasks.add(task, 1);
            threads.add(thread, 1);
        });
        assert_eq!(tasks.values(), [1, 1, 1]);
    });
}

#[test]
fn callers_take_turns() {
    model(1, || {
        let pool = Arc::new(ThreadPool::new(2).unwrap());
        let places = Arc::new(Places::new(2));
        let other = {
            let (pool, places) = (Arc::clone(&pool), Arc::clone(&places));
            loom::thread::spawn(move || pool.run(2, |task, _| places.add(task, 1)))
        };
        pool.run(2, |task, _| places.add(task, 1));
        other.join().unwrap();
        assert_eq!(places.values(), [2, 2]);
    });
}

#[test]
fn a_panic_waits_for_the_others_and_reaches_the_caller() {
    model(2, || {
        let pool = ThreadPool::new(2).unwrap();
        let places = Places::new(2);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            pool.run(2, |task, _| {
                places.add(task, 1);
                // Not the macro, whose hook would write a line for each of thousands of orders.
                if task == 1 {
                    std::panic::resume_unwind(Box::new("planted"));
                }
            });
        }));
        assert!(failed.is_err());
        assert_eq!(places.values(), [1, 1]);
    });
}
