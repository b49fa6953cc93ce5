//! The steps of an attempt: fetch files, take the device, run the worker, upload, report.
//!
//! The plan is uploaded while the worker waits, so that nothing disturbs the measurement that follows. The device is
//! given back as soon as the worker and everything it started are dead, before report and log are uploaded.

use super::{
    Failed, Note, Stop,
    log::AttemptLog,
    models::ModelCache,
    order::{JobOrder, OrderPaths, Scratch},
    process::{Spawner, Worker, WorkerLimits, WorkerStart, describe},
};
use crate::{
    AttemptKey, Limits,
    host::{
        lock::{self, DeviceLock, Holder, Taken},
        proc::{self, ProcessId},
        state::{Outbox, new_id},
    },
};
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture};
use nix::sys::signal::Signal;
use planforge_client::{BlobError, Blobs, backoff::Backoff};
use planforge_engine_core::{
    device::{DeviceKind, DiscoveredDevice},
    identity::Digest,
    worker::{FailureClass, WorkCommand, WorkEvent, WorkOrder},
};
use planforge_proto::v1;
use std::{
    ffi::OsString,
    future::Future,
    io,
    os::unix::process::ExitStatusExt as _,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::{Mutex, mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::codec::{FramedRead, LinesCodec};

/// Longest line a worker may write; the longest real one is a failure message.
const EVENT_MAX_BYTES: usize = 1 << 20;
/// Longest texts that are passed on; the log has the rest.
const PHASE_MAX_BYTES: usize = 64;
const DETAIL_MAX_BYTES: usize = 1 << 10;
const MESSAGE_MAX_BYTES: usize = 16 << 10;
/// Largest card and report that are read into memory.
const DOCUMENT_MAX_BYTES: u64 = 64 << 20;
/// How often a held device is tried again, and how soon after its orphans were killed.
const DEVICE_RETRY: Duration = Duration::from_millis(500);
const ORPHAN_RETRY: Duration = Duration::from_millis(20);
/// How long output of an ended worker is still read; its pipes are closed by then, stray holders apart.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// How long a worker may take to exit after its last word.
const EXIT_GRACE: Duration = Duration::from_secs(20);
/// Waits between tries while the blob store is away.
const STORE_RETRY_FIRST: Duration = Duration::from_secs(1);
const STORE_RETRY_LONGEST: Duration = Duration::from_secs(20);

/// What all attempts of an agent share.
#[derive(Debug)]
pub struct Shared {
    pub agent_name: String,
    pub process: ProcessId,
    pub worker_command: Vec<OsString>,
    pub blobs: Blobs,
    pub models: ModelCache,
    pub scratch: PathBuf,
    pub tactics: PathBuf,
    pub outbox: Outbox,
    pub lock_folder: PathBuf,
    pub spawner: Spawner,
    pub limits: Limits,
}

/// One attempt, ready to run.
#[derive(Debug)]
pub struct Attempt {
    pub shared: Arc<Shared>,
    pub key: AttemptKey,
    pub lease: v1::Lease,
    pub job: v1::Job,
    pub device: DiscoveredDevice,
    /// This agent's own attempts on the device take turns here, before they ask for the host's lock.
    pub turn: Arc<Mutex<()>>,
    pub stop: watch::Receiver<Option<Stop>>,
    pub notes: mpsc::Sender<(AttemptKey, Note)>,
}

/// How the work ended, other than well.
enum Ended {
    Failed(Failed),
    Stopped(Stop),
}

impl<E: Into<Failed>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A finished measurement.
struct Measured {
    report: Bytes,
    accurate: bool,
}

/// Waits until the attempt is to stop. An agent that is gone stops it too.
async fn stopped(stop: &mut watch::Receiver<Option<Stop>>) -> Stop {
    match stop.wait_for(Option::is_some).await {
        Ok(reason) => reason.clone().expect("waited for it"),
        Err(_) => Stop::LeaseLost { reason: "the agent has ended".into() },
    }
}

impl Attempt {
    /// Runs the attempt to its end and says how it ended.
    pub async fn run(mut self) {
        let caught = AssertUnwindSafe(self.run_inner()).catch_unwind().await;
        let ended = caught.unwrap_or_else(|_| {
            tracing::error!(attempt = %self.key, "a bug ended an attempt");
            let failed =
                Failed::infrastructure(format!("agent {} has a bug; its log tells where", self.shared.agent_name));
            Some(v1::Finished {
                lease: Some(self.lease.clone()),
                outcome: "failed".into(),
                failure: Some(failed.to_wire()),
                ..v1::Finished::default()
            })
        });
        if let Some(finished) = ended.clone() {
            let (outbox, key) = (self.shared.outbox.clone(), self.key.clone());
            let kept = blocking(move || outbox.end(&key, &finished)).await;
            if let Err(error) = kept {
                tracing::error!(attempt = %self.key, %error, "cannot keep the end of an attempt; it is only in memory");
            }
        }
        let (key, notes) = (self.key.clone(), self.notes.clone());
        // The agent that would hear it is gone only when the process is ending.
        let _ = notes.send((key, Note::Ended(ended))).await;
    }

    async fn run_inner(&mut self) -> Option<v1::Finished> {
        let (root, key) = (self.shared.scratch.clone(), self.key.clone());
        let prepared = blocking(move || Scratch::create(&root, &key)).await;
        let mut finished = v1::Finished { lease: Some(self.lease.clone()), ..v1::Finished::default() };
        let scratch = match prepared {
            Ok(scratch) => scratch,
            Err(error) => {
                finished.outcome = "failed".into();
                finished.failure = Some(Failed::disk("make a scratch folder", &error).to_wire());
                return Some(finished);
            }
        };
        let log = match AttemptLog::create(&scratch.folder.join("log"), self.shared.limits.log_bytes) {
            Ok(log) => Arc::new(log),
            Err(error) => {
                finished.outcome = "failed".into();
                finished.failure = Some(Failed::disk("write the attempt's log", &error).to_wire());
                return Some(finished);
            }
        };
        self.note(Note::Log(log.clone())).await;
        let mut built = None;
        let mut result = self.work(&scratch, &log, &mut built).await;
        if let Some(built) = built {
            finished.plan_digest = built.plan_digest;
            finished.plan_bytes = built.plan_bytes;
            finished.card_digest = built.card_digest;
            finished.builds = built.builds;
        }
        if let Ok(measured) = &result {
            match self.upload_report(measured).await {
                Ok(digest) => {
                    finished.report_digest = digest.to_string();
                    finished.accurate = measured.accurate;
                }
                Err(ended) => result = Err(ended),
            }
        }
        match result {
            Ok(_) => finished.outcome = "succeeded".into(),
            Err(Ended::Stopped(Stop::LeaseLost { reason })) => {
                tracing::warn!(attempt = %self.key, reason, "lease lost, attempt dropped");
                remove_scratch(scratch).await;
                return None;
            }
            Err(Ended::Stopped(Stop::Cancelled { reason })) => {
                log.note(&format!("cancelled: {reason}"));
                finished.outcome = "cancelled".into();
            }
            Err(Ended::Stopped(Stop::Drained)) => {
                let message = format!("agent {} was shut down before the job ended", self.shared.agent_name);
                log.note(&message);
                finished.outcome = "failed".into();
                finished.failure = Some(Failed::infrastructure(message).to_wire());
            }
            Err(Ended::Failed(failed)) => {
                log.note(&format!("failed: {failed}"));
                finished.outcome = "failed".into();
                finished.failure = Some(failed.to_wire());
            }
        }
        finished.log_digest = self.upload_log(&log).await.map(|digest| digest.to_string()).unwrap_or_default();
        remove_scratch(scratch).await;
        Some(finished)
    }

    async fn note(&self, note: Note) {
        let _ = self.notes.send((self.key.clone(), note)).await;
    }

    async fn phase(&self, phase: &str, fraction: f32, detail: impl Into<String>) {
        self.note(Note::Progress { phase: phase.into(), fraction, detail: detail.into() }).await;
    }

    /// Runs `work`, unless the attempt is stopped first.
    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, Stop> {
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            reason = stopped(&mut stop) => Err(reason),
            value = work => Ok(value),
        }
    }

    async fn work(
        &self,
        scratch: &Scratch,
        log: &Arc<AttemptLog>,
        built: &mut Option<v1::Built>,
    ) -> Result<Measured, Ended> {
        let order = JobOrder::read(&self.job)?;
        let cache_name = order.cache_name(&self.device);
        let prepared = self.unless_stopped(self.fetch(&order, scratch)).await.map_err(Ended::Stopped)?;
        let (model, plan, eval) = prepared?;
        let work = scratch.folder.join("work");
        let paths =
            OrderPaths { model, scratch: work.clone(), cache: self.shared.tactics.join(cache_name), plan, eval };
        let budget_ms = self.shared.limits.measure_budget_ms;
        // The limit is that of one build and its measurement.
        let limit_ms = self.shared.limits.job_ms.saturating_mul(order.builds.into());
        let order =
            order.into_work(&self.key, &self.shared.agent_name, &self.job, &self.device, limit_ms, budget_ms, paths);

        let _turn = self.unless_stopped(self.turn.lock()).await.map_err(Ended::Stopped)?;
        let marker = format!("{}.{}", self.key, new_id());
        let lock = self.unless_stopped(self.take_device(&marker)).await.map_err(Ended::Stopped)??;
        let start = WorkerStart {
            command: self.shared.worker_command.clone(),
            scratch: work,
            marker: marker.clone(),
            limits: WorkerLimits {
                file_bytes: self.shared.limits.file_bytes,
                address_space_bytes: match self.device.fingerprint.kind {
                    DeviceKind::Cpu => self.shared.limits.cpu_address_space_bytes,
                    DeviceKind::Gpu => None,
                },
            },
        };
        let worker = self.shared.spawner.spawn(start, &lock).await.map_err(|error| {
            let program = self.shared.worker_command.first().map(|p| p.to_string_lossy().into_owned());
            Failed::infrastructure(format!("cannot start the worker {}: {error}", program.unwrap_or_default()))
        })?;
        lock.name_holder(&Holder { worker: Some(worker.id), ..self.holder(&marker) })?;
        self.note(Note::Started).await;
        let result = Supervision::new(self, worker, log.clone(), built).run(&order).await;
        drop(lock);
        result
    }

    /// Model, plan and test set, laid out for the worker.
    async fn fetch(
        &self,
        order: &JobOrder,
        scratch: &Scratch,
    ) -> Result<(PathBuf, Option<PathBuf>, Option<PathBuf>), Failed> {
        let files = self.job.model.as_ref().map(|model| model.files.as_slice()).unwrap_or_default();
        let notes = self.notes.clone();
        let key = self.key.clone();
        let told = move |done: usize, of: usize| {
            let fraction = done as f32 / of as f32;
            let note =
                Note::Progress { phase: "fetch".into(), fraction, detail: format!("model file {} of {of}", done + 1) };
            // Progress that finds no room is replaced by the next.
            let _ = notes.try_send((key.clone(), note));
        };
        let models = &self.shared.models;
        let blobs = &self.shared.blobs;
        let inputs = scratch.folder.join("inputs");
        let model_folder = inputs.join("model");
        let model = self.patiently(|| models.lay_out(blobs, files, &model_folder, &told)).await?;
        let place = async |digest: Option<Digest>, name: &str| -> Result<Option<PathBuf>, Failed> {
            let Some(digest) = digest else { return Ok(None) };
            let path = inputs.join(name);
            self.patiently(|| models.place(blobs, digest, &path)).await?;
            Ok(Some(path))
        };
        let plan = place(order.plan, "engine.plan").await?;
        let eval = place(order.eval, "eval.npz").await?;
        Ok((model, plan, eval))
    }

    /// Repeats store work while the coordinator is away: a restart must not cost a finished build.
    async fn patiently<T, E: Into<Failed> + Retryable, F: Future<Output = Result<T, E>>>(
        &self,
        mut work: impl FnMut() -> F,
    ) -> Result<T, Failed> {
        let give_up = Instant::now() + Duration::from_millis(self.shared.limits.store_patience_ms);
        let mut backoff = Backoff::new(STORE_RETRY_FIRST, STORE_RETRY_LONGEST);
        loop {
            match work().await {
                Ok(value) => return Ok(value),
                Err(error) if error.is_retryable() && Instant::now() < give_up => sleep(backoff.next_delay()).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn holder(&self, marker: &str) -> Holder {
        Holder {
            agent: self.shared.process,
            agent_name: self.shared.agent_name.clone(),
            job: self.key.job.clone(),
            marker: marker.to_owned(),
            worker: None,
        }
    }

    /// Waits for the device's lock on this host; what a dead agent left on it is killed.
    async fn take_device(&self, marker: &str) -> Result<DeviceLock, Failed> {
        let give_up = Instant::now() + Duration::from_millis(self.shared.limits.device_wait_ms);
        loop {
            let (folder, device) = (self.shared.lock_folder.clone(), self.device.id.clone());
            let taken = blocking(move || {
                let taken = lock::try_take(&folder, &device)?;
                let orphaned = matches!(&taken, Taken::Held(Some(holder)) if holder.kill_if_orphaned());
                Ok::<_, lock::LockError>((taken, orphaned))
            });
            let pause = match taken.await? {
                (Taken::Ours(lock), _) => {
                    lock.name_holder(&self.holder(marker))?;
                    return Ok(lock);
                }
                (Taken::Held(holder), orphaned) => {
                    let by = holder.map_or_else(
                        || "another process".to_owned(),
                        |holder| format!("agent {} (pid {}), job {}", holder.agent_name, holder.agent.pid, holder.job),
                    );
                    let detail = format!("device {} of this host is used by {by}", self.device.id);
                    if Instant::now() >= give_up {
                        let hint = "end that process, or wait until it is done and submit again";
                        return Err(Failed::infrastructure(detail).with_hint(hint));
                    }
                    self.phase("wait", 0.0, detail).await;
                    if orphaned { ORPHAN_RETRY } else { DEVICE_RETRY }
                }
            };
            sleep(pause).await;
        }
    }

    /// Uploads plan and card; the worker waits meanwhile.
    async fn upload_built(
        &self,
        plan: PathBuf,
        plan_digest: Digest,
        plan_bytes: u64,
        card: PathBuf,
        builds: u32,
    ) -> Result<v1::Built, Failed> {
        let blobs = &self.shared.blobs;
        self.phase("upload", 0.0, format!("plan of {plan_bytes} bytes")).await;
        let card = read_document(&card).await?;
        self.patiently(|| blobs.upload(&plan, plan_digest)).await?;
        let card_digest = self.patiently(|| blobs.put_bytes(card.clone())).await?;
        Ok(v1::Built {
            lease: Some(self.lease.clone()),
            plan_digest: plan_digest.to_string(),
            plan_bytes,
            card_digest: card_digest.to_string(),
            builds,
        })
    }

    async fn upload_report(&self, measured: &Measured) -> Result<Digest, Ended> {
        let put = self.patiently(|| self.shared.blobs.put_bytes(measured.report.clone()));
        Ok(self.unless_stopped(put).await.map_err(Ended::Stopped)??)
    }

    /// The sealed log. A log that cannot be stored never fails an attempt.
    async fn upload_log(&self, log: &Arc<AttemptLog>) -> Option<Digest> {
        let sealed = log.clone();
        let read = blocking(move || {
            sealed.seal()?;
            std::fs::read(sealed.path())
        });
        let bytes = match read.await {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) => {
                tracing::warn!(attempt = %self.key, %error, "cannot read an attempt's log");
                return None;
            }
        };
        match self.shared.blobs.put_bytes(bytes).await {
            Ok(digest) => Some(digest),
            Err(error) => {
                tracing::warn!(attempt = %self.key, %error, "cannot store an attempt's log");
                None
            }
        }
    }
}

/// Errors of which some are worth another try.
trait Retryable {
    fn is_retryable(&self) -> bool;
}

impl Retryable for BlobError {
    fn is_retryable(&self) -> bool {
        Self::is_retryable(self)
    }
}

impl Retryable for super::models::ModelError {
    fn is_retryable(&self) -> bool {
        matches!(self, Self::Blob(error) if error.is_retryable())
    }
}

/// A running worker and everything that is watched about it.
struct Supervision<'a> {
    attempt: &'a Attempt,
    log: Arc<AttemptLog>,
    built: &'a mut Option<v1::Built>,
    worker: WorkerHandle,
}

/// Kills the worker's group should its attempt be dropped.
struct WorkerHandle {
    id: ProcessId,
    stdin: Option<tokio::process::ChildStdin>,
    lines: FramedRead<tokio::process::ChildStdout, LinesCodec>,
    ended: tokio::sync::oneshot::Receiver<io::Result<ExitStatus>>,
    has_ended: bool,
    stderr: tokio::task::JoinHandle<()>,
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        if !self.has_ended {
            proc::signal_group(self.id.pid, Signal::SIGKILL);
        }
        self.stderr.abort();
    }
}

/// What a line of the worker's output asks of its attempt.
enum Heard {
    Built { plan: PathBuf, plan_digest: Digest, plan_bytes: u64, card: PathBuf },
    LastWord(LastWord),
    Other,
}

/// What the worker said last.
enum LastWord {
    Done { report: PathBuf, accurate: bool },
    Failed(Failed),
}

impl<'a> Supervision<'a> {
    fn new(attempt: &'a Attempt, worker: Worker, log: Arc<AttemptLog>, built: &'a mut Option<v1::Built>) -> Self {
        let into_log = log.clone();
        let stderr = tokio::process::ChildStderr::from_std(worker.stderr);
        let stderr = tokio::spawn(async move {
            let Ok(mut stderr) = stderr else { return };
            let mut buffer = vec![0; 16 << 10];
            while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
                into_log.append(&buffer[..read]);
            }
        });
        let stdin = tokio::process::ChildStdin::from_std(worker.stdin).ok();
        let stdout = tokio::process::ChildStdout::from_std(worker.stdout).expect("a fresh pipe can be polled");
        let lines = FramedRead::new(stdout, LinesCodec::new_with_max_length(EVENT_MAX_BYTES));
        let worker = WorkerHandle { id: worker.id, stdin, lines, ended: worker.ended, has_ended: false, stderr };
        Self { attempt, log, built, worker }
    }

    /// Drives the worker to its end; whatever happened, nothing of it runs afterwards.
    async fn run(mut self, order: &WorkOrder) -> Result<Measured, Ended> {
        let watched = self.watch(order).await;
        if !self.worker.has_ended {
            self.terminate().await;
        }
        match watched? {
            LastWord::Failed(failed) => Err(failed.into()),
            LastWord::Done { report, accurate } => Ok(Measured { report: read_document(&report).await?, accurate }),
        }
    }

    async fn watch(&mut self, order: &WorkOrder) -> Result<LastWord, Ended> {
        self.send(order).await;
        let limit_ms = order.limit_ms;
        let mut deadline = Instant::now() + Duration::from_millis(limit_ms);
        let attempt = self.attempt;
        let mut stop = attempt.stop.clone();
        let mut last_word = None;
        let mut upload: Option<BoxFuture<'_, Result<v1::Built, Failed>>> = None;
        let mut output_open = true;
        let status = loop {
            tokio::select! {
                biased;
                reason = stopped(&mut stop) => return Err(Ended::Stopped(reason)),
                () = sleep_until(deadline) => {
                    if let Some(last_word) = last_word {
                        self.log.note("the worker did not exit after its last word and was killed");
                        return Ok(last_word);
                    }
                    let message = format!("the worker took longer than the limit of {} s and was killed", limit_ms / 1000);
                    let hint = "raise the agent's time limit for a job, or lower the optimization level";
                    return Err(Failed::new(FailureClass::Resource, message).with_hint(hint).into());
                }
                result = async { upload.as_mut().expect("guarded").await }, if upload.is_some() => {
                    upload = None;
                    let built = result?;
                    *self.built = Some(built.clone());
                    attempt.note(Note::Built(built)).await;
                    self.send(&WorkCommand::Continue).await;
                }
                line = self.worker.lines.next(), if output_open => match line {
                    None => output_open = false,
                    Some(Err(error)) => {
                        return Err(Failed::infrastructure(format!("the worker's output cannot be read: {error}")).into());
                    }
                    Some(Ok(line)) => match self.event(order, &line).await? {
                        Heard::Built { plan, plan_digest, plan_bytes, card } => {
                            upload = Some(attempt.upload_built(plan, plan_digest, plan_bytes, card, order.builds).boxed());
                        }
                        Heard::LastWord(word) => {
                            last_word = Some(word);
                            self.worker.stdin = None;
                            deadline = deadline.min(Instant::now() + EXIT_GRACE);
                        }
                        Heard::Other => {}
                    },
                },
                status = &mut self.worker.ended => {
                    self.worker.has_ended = true;
                    break status.map_err(|_| Failed::infrastructure("the worker's end was not seen"))?;
                }
            }
        };
        drop(upload);
        let _ = timeout(LAST_OUTPUT, &mut self.worker.stderr).await;
        while output_open {
            match timeout(LAST_OUTPUT, self.worker.lines.next()).await {
                Ok(Some(Ok(line))) => {
                    if let Heard::LastWord(word) = self.event(order, &line).await? {
                        last_word = Some(word);
                    }
                }
                _ => output_open = false,
            }
        }
        let status = status.map_err(|error| Failed::infrastructure(format!("cannot wait for the worker: {error}")))?;
        match last_word {
            // Libraries may crash while they unload: the result was complete before.
            Some(word) => {
                if !status.success() {
                    self.log.note(&format!("the worker ended with {} after its last word", describe(status)));
                }
                Ok(word)
            }
            None => Err(self.death(status).into()),
        }
    }

    /// The failure of a worker that ended without a last word.
    fn death(&self, status: ExitStatus) -> Failed {
        if status.signal() == Some(Signal::SIGXFSZ as i32) {
            let limit = self.attempt.shared.limits.file_bytes;
            return Failed::new(FailureClass::Resource, format!("the worker wrote a file of more than {limit} bytes"));
        }
        let ended = match status.success() {
            true => "ended without a result".into(),
            false => format!("died with {}", describe(status)),
        };
        let quote = self.log.last_lines();
        let message = match quote.is_empty() {
            true => format!("the worker {ended} and said nothing"),
            false => format!("the worker {ended}; its last words: {quote}"),
        };
        let hint = match status.signal() == Some(Signal::SIGKILL as i32) {
            true => "the kernel kills the largest process when memory runs out; see the host's kernel log",
            false => "",
        };
        Failed::infrastructure(message).with_hint(hint)
    }

    /// Reads one line of the worker's output and tells the agent what it says.
    async fn event(&self, order: &WorkOrder, line: &str) -> Result<Heard, Failed> {
        let Ok(event) = serde_json::from_str(line) else {
            // A library that prints to standard output is no reason to fail.
            self.log.append(format!("{line}\n").as_bytes());
            return Ok(Heard::Other);
        };
        match event {
            WorkEvent::Progress { phase, fraction, detail } => {
                let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
                self.attempt.phase(&bounded(phase, PHASE_MAX_BYTES), fraction, bounded(detail, DETAIL_MAX_BYTES)).await;
            }
            WorkEvent::WindowBegin => self.attempt.note(Note::Window(true)).await,
            WorkEvent::WindowEnd => self.attempt.note(Note::Window(false)).await,
            WorkEvent::Built { plan, plan_digest, plan_bytes, card } => {
                let (plan, card) = (own_file(order, &plan)?, own_file(order, &card)?);
                return Ok(Heard::Built { plan, plan_digest, plan_bytes, card });
            }
            WorkEvent::Done { report, accurate, .. } => {
                let report = own_file(order, &report)?;
                return Ok(Heard::LastWord(LastWord::Done { report, accurate }));
            }
            WorkEvent::Failed { class, message, hint } => {
                let (message, hint) = (bounded(message, MESSAGE_MAX_BYTES), bounded(hint, MESSAGE_MAX_BYTES));
                return Ok(Heard::LastWord(LastWord::Failed(Failed { class, message, hint })));
            }
        }
        Ok(Heard::Other)
    }

    async fn send(&mut self, message: &impl serde::Serialize) {
        let mut line = serde_json::to_vec(message).expect("orders and commands have only JSON types");
        line.push(b'\n');
        if let Some(stdin) = &mut self.worker.stdin {
            let sent = async {
                stdin.write_all(&line).await?;
                stdin.flush().await
            };
            // A worker that no longer reads is reported by how it ends.
            if let Err(error) = sent.await {
                tracing::debug!(%error, "a worker no longer reads");
                self.worker.stdin = None;
            }
        }
    }

    /// Ends the worker's whole group: politely, then for certain. Returns when nothing of it runs.
    async fn terminate(&mut self) {
        let pid = self.worker.id.pid;
        proc::signal_group(pid, Signal::SIGTERM);
        let grace = Duration::from_millis(self.attempt.shared.limits.kill_grace_ms);
        if timeout(grace, &mut self.worker.ended).await.is_err() {
            proc::signal_group(pid, Signal::SIGKILL);
            let _ = (&mut self.worker.ended).await;
        }
        self.worker.has_ended = true;
        let _ = timeout(LAST_OUTPUT, &mut self.worker.stderr).await;
    }
}

/// A file the worker names must lie in its scratch folder: nothing else is read for it.
fn own_file(order: &WorkOrder, path: &Path) -> Result<PathBuf, Failed> {
    let refuse =
        |reason: String| Failed::infrastructure(format!("the worker named the file {}, {reason}", path.display()));
    let real = path.canonicalize().map_err(|error| refuse(format!("which cannot be read: {error}")))?;
    let scratch =
        order.scratch.canonicalize().map_err(|error| refuse(format!("but its scratch folder is gone: {error}")))?;
    if real.starts_with(&scratch) { Ok(real) } else { Err(refuse("which is not in its scratch folder".into())) }
}

/// `text`, cut at a character where it exceeds `limit` bytes.
fn bounded(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push('…');
    }
    text
}

async fn read_document(path: &Path) -> Result<Bytes, Failed> {
    let path = path.to_owned();
    blocking(move || {
        let read = || -> io::Result<Vec<u8>> {
            let size = std::fs::metadata(&path)?.len();
            if size > DOCUMENT_MAX_BYTES {
                return Err(io::Error::other(format!("it has {size} bytes, more than {DOCUMENT_MAX_BYTES}")));
            }
            std::fs::read(&path)
        };
        read().map(Bytes::from).map_err(|error| Failed::disk(&format!("read {}", path.display()), &error))
    })
    .await
}

async fn remove_scratch(scratch: Scratch) {
    blocking(move || drop(scratch)).await;
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("disk work does not panic")
}
