//! Parallel loops: every task once, panics passed on, nonsense refused.

use planforge_kernels_cpu::pool::{THREADS_MAX, ThreadPool};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

#[test]
fn every_task_runs_once_and_no_two_share_a_thread_slot() {
    for threads in [1, 2, 3, 8] {
        let pool = ThreadPool::new(threads).unwrap();
        let busy: Vec<AtomicBool> = (0..threads).map(|_| AtomicBool::new(false)).collect();
        for tasks in [0, 1, 2, 7, 100] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, |task, thread| {
                assert!(!busy[thread].swap(true, Ordering::SeqCst));
                counts[task].fetch_add(1, Ordering::Relaxed);
                busy[thread].store(false, Ordering::SeqCst);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let pool = ThreadPool::new(2).unwrap();
    let failed = catch_unwind(AssertUnwindSafe(|| pool.run(64, |task, _| assert!(task != 33, "planted"))));
    assert!(failed.is_err());
    let sum = AtomicUsize::new(0);
    pool.run(10, |task, _| {
        sum.fetch_add(task, Ordering::Relaxed);
    });
    assert_eq!(sum.load(Ordering::Relaxed), 45);
}

#[test]
fn nonsense_thread_counts_are_refused() {
    assert!(ThreadPool::new(0).is_err());
    assert!(ThreadPool::new(THREADS_MAX + 1).is_err());
}

#[test]
fn more_tasks_than_can_be_counted_are_refused() {
    let pool = ThreadPool::new(2).unwrap();
    let run = AtomicUsize::new(0);
    let failed = catch_unwind(AssertUnwindSafe(|| {
        pool.run(usize::MAX, |_, _| {
            // Ends the loop of a pool that takes it.
            assert!(run.fetch_add(1, Ordering::Relaxed) < 100, "planted");
        })
    }));
    assert!(failed.is_err());
    assert_eq!(run.load(Ordering::Relaxed), 0, "tasks ran");
}
