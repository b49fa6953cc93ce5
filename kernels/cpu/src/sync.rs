//! What [`crate::pool`] is made of. `tests/pool_model.rs` has a module of this name that a model checker provides.

pub(crate) use std::{
    hint::spin_loop,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{Builder, JoinHandle},
};

/// How many times a thread looks for the next loop, or the end of this one, before it sleeps: some 20 to 50 µs, about
/// what waking it costs. On a machine with fewer cores than threads that is time taken from others, so it is no more.
pub(crate) const LOOKS_BEFORE_SLEEP: u32 = 1000;
