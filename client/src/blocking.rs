//! Work that may wait for a disk, off the threads that everything else runs on.

use std::{future, panic};
use tokio::task::{self, JoinHandle};

/// Runs `work` where it may block. It runs to its end even if nobody waits for it any more; where it panics, so does who
/// waits.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    joined(task::spawn_blocking(work)).await
}

/// What such work gives that was begun before.
pub(crate) async fn joined<T>(work: JoinHandle<T>) -> T {
    match work.await {
        Ok(done) => done,
        Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
        // The process ends, and did not begin it: nothing comes after that.
        Err(_) => future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        pin::pin,
        task::{Context, Waker},
    };
    use tokio::runtime::Builder;

    #[test]
    fn work_that_a_process_which_ends_did_not_begin_is_waited_for_without_a_word() {
        let ends = Builder::new_current_thread().build().expect("a runtime");
        let still = ends.handle().clone();
        ends.shutdown_background();
        let work = still.spawn_blocking(|| "begun");
        assert!(work.is_finished());
        assert!(pin!(joined(work)).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }

    #[tokio::test]
    async fn a_panic_is_passed_on() {
        let waited = task::spawn(blocking(|| panic!("at work"))).await.expect_err("it panics");
        assert_eq!(waited.into_panic().downcast_ref::<&str>(), Some(&"at work"));
    }
}
