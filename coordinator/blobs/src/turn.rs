//! The one request that writes to an upload, and what it leaves to the next.

use crate::error::BlobError;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// A writer from whom nothing came for this long gives way to another request for the same upload.
pub(crate) const WRITER_SILENT: Duration = Duration::from_secs(2);
/// A body from which nothing came for this long is cut off; its bytes are kept.
pub(crate) const BODY_SILENT: Duration = Duration::from_secs(60);

/// Whose turn it is. `S` is what one writer leaves to the next.
#[derive(Debug)]
pub(crate) struct Turn<S> {
    state: Mutex<State<S>>,
    /// Told when a writer leaves.
    idle: Notify,
}

#[derive(Debug)]
struct State<S> {
    /// Cancels the request that writes now.
    writer: Option<CancellationToken>,
    /// With the writer while there is one.
    left: Option<S>,
    last_activity: Instant,
    /// It was finished or refused: there is nothing to write to.
    ended: bool,
}

impl<S> Turn<S> {
    /// `age`: how long ago somebody last wrote.
    pub fn new(left: S, age: Duration) -> Arc<Self> {
        let now = Instant::now();
        let last_activity = now.checked_sub(age).unwrap_or(now);
        let state = State { writer: None, left: Some(left), last_activity, ended: false };
        Arc::new(Self { state: Mutex::new(state), idle: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        // A panic while the lock is held leaves an upload at worst without what a writer leaves.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn touch(&self) {
        self.state().last_activity = Instant::now();
    }

    pub fn silent_for(&self, pause: Duration) -> bool {
        self.state().last_activity.elapsed() >= pause
    }

    pub fn is_written_to(&self) -> bool {
        self.state().writer.is_some()
    }

    pub fn end(&self) {
        self.state().ended = true;
    }

    /// Becomes the one writer of the upload `id`, after a silent one was sent away.
    ///
    /// # Errors
    /// Somebody writes, or the upload has ended.
    pub async fn claim(self: &Arc<Self>, id: &str, offset: impl Fn() -> u64) -> Result<Writing<S>, BlobError> {
        loop {
            let gone = self.idle.notified();
            {
                let mut state = self.state();
                if state.ended {
                    return Err(BlobError::UploadUnknown { id: id.to_owned() });
                }
                match &state.writer {
                    None => {
                        let cancel = CancellationToken::new();
                        state.writer = Some(cancel.clone());
                        state.last_activity = Instant::now();
                        return Ok(Writing { turn: self.clone(), cancel, left: state.left.take() });
                    }
                    Some(writer) if state.last_activity.elapsed() >= WRITER_SILENT => writer.cancel(),
                    Some(_) => return Err(BlobError::UploadBusy { id: id.to_owned(), offset: offset() }),
                }
            }
            gone.await;
        }
    }
}

/// The right to write to an upload; dropping it leaves the upload to the next.
#[derive(Debug)]
pub(crate) struct Writing<S> {
    turn: Arc<Turn<S>>,
    /// Says that another request takes over.
    pub cancel: CancellationToken,
    /// `None` only where a writer panicked.
    pub left: Option<S>,
}

impl<S> Drop for Writing<S> {
    fn drop(&mut self) {
        let mut state = self.turn.state();
        state.writer = None;
        state.left = self.left.take();
        state.last_activity = Instant::now();
        drop(state);
        self.turn.idle.notify_waiters();
    }
}
