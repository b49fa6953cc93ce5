//! A pool that nobody uses takes no processor time. In a process of its own, because it counts that of all threads.

#![cfg(target_os = "linux")]

use planforge_kernels_cpu::pool::ThreadPool;
use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// How long the pool is watched.
const WINDOW: Duration = Duration::from_millis(500);

/// Nanoseconds that every thread of this process has run.
fn processor_ns() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let of = |task: fs::DirEntry| -> Option<u64> {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    tasks.flatten().filter_map(of).sum()
}

#[test]
fn an_idle_pool_takes_no_processor_time() {
    let pool = ThreadPool::pinned(2).unwrap();
    let done = AtomicUsize::new(0);
    for _ in 0..100 {
        pool.run(8, |_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        });
    }
    assert_eq!(done.load(Ordering::Relaxed), 800);
    let (before, start) = (processor_ns(), Instant::now());
    while start.elapsed() < WINDOW {
        std::thread::park_timeout(WINDOW - start.elapsed().min(WINDOW));
    }
    let spent = processor_ns() - before;
    // A thread that spins would take the whole window; one that sleeps takes none but for what it looks for first.
    assert!(spent < WINDOW.as_nanos() as u64 / 10, "an idle pool took {spent} ns of processor time");
}
