//! When each thread of a pool was at work, while somebody watches. Nobody does as a rule: then a loop costs one look at a
//! flag a thread.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// One thread's part of one loop, from its first task to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stint {
    pub thread: usize,
    pub tasks: usize,
    pub from: Instant,
    pub to: Instant,
}

/// Most stints that are kept before they are taken away: what a step's loops come to on the largest machines.
const MOST_STINTS: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Watch {
    is_on: AtomicBool,
    stints: Mutex<Vec<Stint>>,
}

impl Watch {
    pub(crate) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// The moment, while somebody watches.
    pub(crate) fn now(&self) -> Option<Instant> {
        self.is_on.load(Ordering::Relaxed).then(Instant::now)
    }

    /// Keeps what a thread did since `from`, unless it came too late for any task.
    pub(crate) fn keep(&self, thread: usize, tasks: usize, from: Option<Instant>) {
        let Some(from) = from.filter(|_| tasks > 0) else { return };
        let to = Instant::now();
        let mut stints = self.stints.lock().unwrap_or_else(PoisonError::into_inner);
        if stints.len() < MOST_STINTS {
            stints.push(Stint { thread, tasks, from, to });
        }
    }

    /// What was kept since this was last asked.
    pub(crate) fn take(&self) -> Vec<Stint> {
        std::mem::take(&mut *self.stints.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
