//! Storing the log of an attempt whose agent did not: it was lost, or found no room for it.
//!
//! Nothing here is given up because a disk is full: a log is tried until it is stored or the farm ends, and stays
//! readable as a live one meanwhile.

use super::{
    leader::{Message, Shared},
    logs::LOG_MAX_BYTES,
};
use crate::{
    blobs::BlobStore,
    core::{Input, JobId, Reply, SessionId},
    store::Store,
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::Digest;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::sync::{Mutex, mpsc, oneshot};

/// Waits between tries: the first, and the longest that doubling leads to.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LONGEST: Duration = Duration::from_secs(10);
/// No session: they are numbered from 1 on.
const NOBODY: SessionId = 0;

#[derive(Clone)]
pub(super) struct Sealer {
    shared: Arc<Shared>,
    blobs: Arc<dyn BlobStore>,
    store: Arc<dyn Store>,
    /// To tell the leader what was stored.
    own: mpsc::WeakSender<Message>,
    /// A job that has ended is read from the store and written back whole: one at a time, or the log of one attempt
    /// would be lost to that of another.
    amending: Arc<Mutex<()>>,
}

impl Sealer {
    pub fn new(
        shared: &Arc<Shared>,
        blobs: &Arc<dyn BlobStore>,
        store: &Arc<dyn Store>,
        own: mpsc::WeakSender<Message>,
    ) -> Self {
        Self { shared: shared.clone(), blobs: blobs.clone(), store: store.clone(), own, amending: Arc::default() }
    }

    /// Stores the log of an attempt that has ended, however long that takes, and closes the live one.
    pub fn begin(&self, job: JobId, attempt: u32) {
        let sealer = self.clone();
        sealer.shared.logs.end(&job, attempt);
        tokio::spawn(async move {
            let mut pause = RETRY_FIRST;
            while let Err(error) = sealer.seal(&job, attempt).await {
                if pause == RETRY_FIRST {
                    tracing::warn!(%job, attempt, %error, "the log of a lost attempt cannot be stored yet, trying again");
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_LONGEST);
            }
            sealer.shared.logs.close(&job, attempt);
        });
    }

    /// Takes away the logs that an earlier process left of attempts that have ended: what is not stored yet is stored first.
    /// `running` are the attempts that their agents may come back with.
    pub async fn sweep(self, left: Vec<(JobId, u32)>, running: BTreeSet<(JobId, u32)>) {
        for (id, number) in left.into_iter().filter(|left| !running.contains(left)) {
            let job = match self.store.job(&id).await {
                Ok(job) => job,
                // The next start looks again.
                Err(error) => return tracing::warn!(job = %id, %error, "logs of earlier attempts stay where they are"),
            };
            let attempt = job.and_then(|job| job.attempts.into_iter().find(|attempt| attempt.number == number));
            self.shared.logs.open(&id, number, NOBODY);
            match attempt {
                Some(attempt) if attempt.log.is_none() => self.begin(id, number),
                // It is stored, or nobody knows what it was of.
                _ => self.shared.logs.close(&id, number),
            }
        }
    }

    /// One try; also done when there is nothing to store, or no farm any more to store it for.
    async fn seal(&self, job: &JobId, attempt: u32) -> Result<(), ApiError> {
        if self.own.upgrade().is_none_or(|own| own.is_closed()) {
            return Ok(());
        }
        if let Some(trouble) = self.shared.trouble() {
            return Err(trouble);
        }
        self.shared.logs.tell_loss(job, attempt).await;
        let bytes = match self.shared.logs.read(job, attempt, 0, LOG_MAX_BYTES as usize).await {
            Some(Ok(bytes)) if !bytes.is_empty() => bytes,
            Some(Err(error)) => {
                let message = format!("the live log of job {job} cannot be read: {error}");
                return Err(ApiError::new(ErrorCode::Internal, message));
            }
            _ => return Ok(()),
        };
        let log = self.blobs.put(bytes.into()).await?;
        let _amending = self.amending.lock().await;
        self.name(job, attempt, log).await
    }

    /// Names the stored log in its attempt.
    async fn name(&self, job: &JobId, attempt: u32, log: Digest) -> Result<(), ApiError> {
        let stored = self.store.job(job).await?;
        let Some(own) = self.own.upgrade() else { return Ok(()) };
        let (answer, done) = oneshot::channel();
        let ended = stored.filter(|job| job.state.is_terminal()).map(Box::new);
        let input = Input::LogSealed { job: job.clone(), attempt, log, ended };
        if own.send(Message::Input { input, answer: Some(answer) }).await.is_err() {
            return Ok(());
        }
        match done.await {
            Ok(Ok(Reply::Unknown)) => {
                // It ended between the look into the store and now.
                Err(ApiError::new(ErrorCode::Unavailable, format!("the end of job {job} is not stored yet")))
            }
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(()),
        }
    }
}
