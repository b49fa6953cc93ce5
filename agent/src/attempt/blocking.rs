//! Work that may wait for a disk, off the threads that everything else runs on.

/// Runs `work` where it may block. It runs to its end even if nobody waits for it any more.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("disk work does not panic")
}
