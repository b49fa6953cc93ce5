//! Following events and logs: replay from the store, then live, without gaps or repeats.

use super::{Farm, Reply, convert, leader::LiveEvent};
use crate::{
    auth::Actor,
    core::{Event, Job, JobId},
    store::{EventFilter, JobFilter},
};
use futures::StreamExt as _;
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_report::format::date;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::sync::{broadcast::error::RecvError, mpsc};
use tokio_stream::wrappers::ReceiverStream;

/// Jobs that one watch may name.
const WATCHED_MAX: usize = 256;
/// Events that are read from the store at once.
const PAGE: usize = 500;
/// Messages that may wait for a slow watcher.
const WATCH_OUTBOX: usize = 64;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// Bytes of a log in one message.
const LOG_CHUNK_BYTES: usize = 64 * 1024;

struct Watch {
    farm: Farm,
    project: Option<String>,
    jobs: BTreeSet<JobId>,
    after: u64,
    until_ended: bool,
    out: mpsc::Sender<Result<v1::JobEvent, ApiError>>,
}

/// The watcher went away or is done.
struct Done;

pub(super) async fn watch(
    farm: &Farm,
    actor: &Actor,
    request: v1::WatchJobsRequest,
) -> Result<Reply<v1::JobEvent>, ApiError> {
    if request.ids.len() > WATCHED_MAX {
        return Err(convert::invalid(format!("a watch names at most {WATCHED_MAX} jobs, not {}", request.ids.len())));
    }
    let project = super::requests::visible_project(actor, &request.project)?;
    let mut jobs = BTreeSet::new();
    for id in &request.ids {
        jobs.insert(farm.find_job(actor, id).await?.id);
    }
    let (out, messages) = mpsc::channel(WATCH_OUTBOX);
    let watch =
        Watch { farm: farm.clone(), project, jobs, after: request.after_event, until_ended: request.until_ended, out };
    tokio::spawn(watch.run());
    Ok(Box::pin(ReceiverStream::new(messages)))
}

impl Watch {
    async fn run(mut self) {
        let out = self.out.clone();
        tokio::select! {
            biased;
            () = out.closed() => {}
            _ = self.follow() => {}
        }
    }

    async fn follow(&mut self) -> Result<(), Done> {
        let mut live = self.farm.shared().events.subscribe();
        loop {
            self.replay().await?;
            loop {
                match live.recv().await {
                    Ok(event) => self.live(&event).await?,
                    // Too slow: what was missed is in the store.
                    Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => return Err(Done),
                }
            }
        }
    }

    async fn send(&self, event: v1::JobEvent) -> Result<(), Done> {
        self.out.send(Ok(event)).await.map_err(|_| Done)
    }

    async fn fail(&self, error: impl Into<ApiError>) -> Done {
        // Nobody may be listening any more; then there is nobody to tell.
        let _ = self.out.send(Err(error.into())).await;
        Done
    }

    async fn replay(&mut self) -> Result<(), Done> {
        loop {
            let filter = EventFilter {
                after: self.after,
                project: self.project.clone(),
                jobs: self.jobs.iter().cloned().collect(),
                limit: PAGE,
            };
            let events = match self.farm.store().events(filter).await {
                Ok(events) => events,
                Err(error) => return Err(self.fail(error).await),
            };
            let full = events.len() == PAGE;
            let jobs = self.load(&events).await?;
            for event in &events {
                self.after = event.seq;
                if let Some(job) = jobs.get(&event.job) {
                    self.send(convert::event_out(event, job, self.project.as_deref())).await?;
                }
            }
            if !full {
                break;
            }
        }
        self.check_ended().await
    }

    async fn load(&self, events: &[Event]) -> Result<BTreeMap<JobId, Job>, Done> {
        let ids: BTreeSet<JobId> = events.iter().map(|event| event.job.clone()).collect();
        let limit = ids.len();
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        match self.farm.store().jobs(JobFilter { ids: ids.into_iter().collect(), limit, ..JobFilter::default() }).await
        {
            Ok(jobs) => Ok(jobs.into_iter().map(|job| (job.id.clone(), job)).collect()),
            Err(error) => Err(self.fail(error).await),
        }
    }

    /// Ends the stream when every named job has ended.
    async fn check_ended(&self) -> Result<(), Done> {
        if !self.until_ended || self.jobs.is_empty() {
            return Ok(());
        }
        let ids: Vec<JobId> = self.jobs.iter().cloned().collect();
        let filter = JobFilter { limit: ids.len(), ids, ..JobFilter::default() };
        match self.farm.store().jobs(filter).await {
            Ok(jobs) if jobs.iter().all(|job| job.state.is_terminal()) => Err(Done),
            Ok(_) => Ok(()),
            Err(error) => Err(self.fail(error).await),
        }
    }

    async fn live(&mut self, live: &Arc<LiveEvent>) -> Result<(), Done> {
        let mine = (self.jobs.is_empty() || self.jobs.contains(&live.job.id))
            && self.project.as_ref().is_none_or(|project| live.job.is_in(project));
        match &live.event {
            Some(event) if event.seq > self.after => {
                self.after = event.seq;
                if mine {
                    self.send(message(live, self.project.as_deref())).await?;
                    if event.state.is_terminal() {
                        self.check_ended().await?;
                    }
                }
                Ok(())
            }
            None if mine => self.send(message(live, self.project.as_deref())).await,
            _ => Ok(()),
        }
    }
}

/// Progress has no number of its own: it comes under that of the newest durable event, and is not replayed.
pub(super) fn message(live: &LiveEvent, project: Option<&str>) -> v1::JobEvent {
    if let Some(event) = &live.event {
        return convert::event_out(event, &live.job, project);
    }
    let mut job = convert::job_out(&live.job, project);
    job.attempts.clear();
    v1::JobEvent { seq: live.seq, what: "progress".into(), job: Some(job), ..v1::JobEvent::default() }
}

pub(super) async fn read_log(
    farm: &Farm,
    actor: &Actor,
    request: v1::ReadLogRequest,
) -> Result<Reply<v1::LogChunk>, ApiError> {
    let job = farm.find_job(actor, &request.id).await?;
    let attempt = if request.attempt == 0 { job.attempt() } else { request.attempt };
    if attempt > job.attempt() {
        let message = format!("job {} has {} attempts, there is no attempt {attempt}", job.id, job.attempt());
        return Err(ApiError::new(ErrorCode::NotFound, message));
    }
    if let Some(error) = farm.log_is_gone(&job, attempt).await? {
        return Err(error);
    }
    let (out, messages) = mpsc::channel(WATCH_OUTBOX);
    if attempt > 0 {
        let log = Log { farm: farm.clone(), job: job.id, attempt, at: request.offset_bytes, out };
        tokio::spawn(async move {
            let out = log.out.clone();
            tokio::select! {
                biased;
                () = out.closed() => {}
                _ = log.send_all(request.follow) => {}
            }
        });
    }
    Ok(Box::pin(ReceiverStream::new(messages)))
}

impl Farm {
    /// What to say of a log that is kept no more.
    async fn log_is_gone(&self, job: &Job, number: u32) -> Result<Option<ApiError>, ApiError> {
        let Some(attempt) = job.attempts.iter().find(|attempt| attempt.number == number) else { return Ok(None) };
        let Some(digest) = attempt.log else { return Ok(None) };
        let is_live = self.shared().logs.follow(&job.id, number).is_some();
        if is_live || self.blobs().size(digest).await?.is_some() {
            return Ok(None);
        }
        let policy = &self.config().retention;
        let mut message = format!("the log of attempt {number} of job {} is kept no more", job.id);
        if let Some(kept_ms) = policy.logs_ms.map(|kept_ms| kept_ms.max(policy.grace_ms)) {
            let days = kept_ms.div_ceil(DAY_MS);
            message.push_str(&format!(": logs are kept {days} days"));
            let since_ms = attempt.ended_ms.saturating_add(kept_ms);
            if since_ms <= self.clock().wall_ms() {
                message.push_str(&format!(", and this one could go from {} on", date(since_ms)));
            }
        }
        Ok(Some(ApiError::new(ErrorCode::Gone, message).with_hint(
            "'planforge jobs ID' and 'planforge report ID' still say what came of it; --keep-logs of the coordinator \
             keeps logs longer",
        )))
    }
}

struct Log {
    farm: Farm,
    job: JobId,
    attempt: u32,
    at: u64,
    out: mpsc::Sender<Result<v1::LogChunk, ApiError>>,
}

impl Log {
    async fn send(&mut self, data: Vec<u8>) -> Result<(), Done> {
        let chunk = v1::LogChunk { offset_bytes: self.at, attempt: self.attempt, data };
        self.at += chunk.data.len() as u64;
        self.out.send(Ok(chunk)).await.map_err(|_| Done)
    }

    async fn fail(&self, error: impl Into<ApiError>) -> Done {
        let _ = self.out.send(Err(error.into())).await;
        Done
    }

    async fn send_all(mut self, follow: bool) -> Result<(), Done> {
        let logs = self.farm.shared().logs.clone();
        if let Some(mut growth) = logs.follow(&self.job, self.attempt) {
            loop {
                growth.borrow_and_update();
                match logs.read(&self.job, self.attempt, self.at, LOG_CHUNK_BYTES).await {
                    Some(Ok(bytes)) if !bytes.is_empty() => {
                        self.send(bytes).await?;
                        continue;
                    }
                    Some(Ok(_)) if !follow => return Ok(()),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        let message = format!("the live log of job {} cannot be read: {error}", self.job);
                        return Err(self.fail(ApiError::new(ErrorCode::Internal, message)).await);
                    }
                    // It ended: the rest is in its blob.
                    None => break,
                }
                if growth.changed().await.is_err() {
                    break;
                }
            }
        }
        let job = match self.farm.store().job(&self.job).await {
            Ok(job) => job,
            Err(error) => return Err(self.fail(error).await),
        };
        let attempt = job.and_then(|job| job.attempts.into_iter().find(|attempt| attempt.number == self.attempt));
        let Some(digest) = attempt.and_then(|attempt| attempt.log) else { return Ok(()) };
        let blobs = self.farm.blobs().clone();
        let size = match blobs.size(digest).await {
            Ok(size) => size.unwrap_or(0),
            Err(error) => return Err(self.fail(error).await),
        };
        if self.at >= size {
            return Ok(());
        }
        let mut chunks = match blobs.read(digest, self.at..size).await {
            Ok(chunks) => chunks,
            Err(error) => return Err(self.fail(error).await),
        };
        while let Some(chunk) = chunks.next().await {
            match chunk {
                Ok(bytes) => {
                    for piece in bytes.chunks(LOG_CHUNK_BYTES) {
                        self.send(piece.to_vec()).await?;
                    }
                }
                Err(error) => return Err(self.fail(error).await),
            }
        }
        Ok(())
    }
}
