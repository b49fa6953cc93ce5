//! Work that may wait for a disk, off the threads that everything else runs on.

use std::{future, panic};

/// Runs `work` where it may block. It runs to its end even if nobody waits for it any more.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
        // The process ends, and did not begin it: nothing comes after that.
        Err(_) => future::pending().await,
    }
}
