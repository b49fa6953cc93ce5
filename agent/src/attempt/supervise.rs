//! A running worker: its order, its words, its limits and its end.

use super::{
    Attempt, Ended, Facts, Failed, Made, Measured, Note,
    lack::{oom_kills, out_of_memory, said},
    log::AttemptLog,
    process::{KILLED_HINT, Worker, describe},
    stopped,
    uploads::{self, own_file, read_document},
};
use crate::host::proc::ProcessId;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture};
use nix::sys::signal::Signal;
use planforge_proto::v1;
use planforge_types::{
    Digest, FailureClass, Lack,
    order::{Artifact, WorkCommand, WorkEvent, WorkKind, WorkOrder},
};
use std::{io, os::unix::process::ExitStatusExt as _, path::PathBuf, process::ExitStatus, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::codec::{FramedRead, LinesCodec};

/// Longest line a worker may write; the longest real one is a failure message.
const EVENT_MAX_BYTES: usize = 1 << 20;
/// Longest texts that are passed on; the log has the rest.
const PHASE_MAX_BYTES: usize = 64;
const DETAIL_MAX_BYTES: usize = 1 << 10;
const MESSAGE_MAX_BYTES: usize = 16 << 10;
/// How long output of an ended worker is still read; its pipes are closed by then, stray holders apart.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// How long a killed worker may take to go; one that the driver holds never goes.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// How long a worker may take to exit after its last word.
const EXIT_GRACE: Duration = Duration::from_secs(20);

/// A running worker and everything that is watched about it.
pub(super) struct Supervision<'a> {
    attempt: &'a Attempt,
    log: Arc<AttemptLog>,
    facts: &'a mut Facts,
    worker: WorkerHandle,
    /// Before the worker began.
    oom_kills: Option<u64>,
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
            self.id.signal_group(Signal::SIGKILL);
        }
        self.stderr.abort();
    }
}

/// What a line of the worker's output asks of its attempt.
enum WorkerMessage {
    Built { plan: PathBuf, plan_digest: Digest, plan_bytes: u64, card: PathBuf },
    LastWord(LastWord),
    Other,
}

/// What the worker said last.
enum LastWord {
    Done { report: PathBuf, accurate: bool, artifacts: Vec<Artifact> },
    Compiled { accurate: bool },
    Prepared { file: PathBuf, digest: Digest, bytes: u64 },
    Made(Made),
    Failed(Failed),
}

impl<'a> Supervision<'a> {
    pub fn new(attempt: &'a Attempt, worker: Worker, log: Arc<AttemptLog>, facts: &'a mut Facts) -> Self {
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
        Self { attempt, log, facts, worker, oom_kills: oom_kills() }
    }

    /// Drives the worker to its end; whatever happened, nothing of it runs afterwards.
    pub async fn run(mut self, order: &WorkOrder) -> Result<Measured, Ended> {
        let watched = self.watch(order).await;
        let is_infrastructure = |failed: &Failed| failed.class == FailureClass::Infrastructure;
        self.facts.suspects_device |= match &watched {
            Ok(LastWord::Failed(failed)) | Err(Ended::Failed(failed)) => is_infrastructure(failed),
            _ => false,
        };
        if !self.worker.has_ended {
            self.terminate().await;
        }
        match watched? {
            LastWord::Failed(failed)
                if self.was_killed_for_memory() && failed.message.contains(Signal::SIGKILL.as_str()) =>
            {
                self.facts.broke_down = true;
                Err(out_of_memory(&failed.message).into())
            }
            LastWord::Failed(failed) => {
                self.facts.broke_down = failed.class == FailureClass::Infrastructure;
                Err(failed.into())
            }
            LastWord::Done { report, accurate, artifacts } => {
                let report = Some(read_document(&report).await?);
                Ok(Measured { report, accurate, artifacts, ..Measured::default() })
            }
            LastWord::Compiled { accurate } => Ok(Measured { accurate, ..Measured::default() }),
            LastWord::Prepared { file, digest, bytes } => {
                Ok(Measured { prepared: Some((file, digest, bytes)), ..Measured::default() })
            }
            LastWord::Made(made) => Ok(Measured { made: Some(made), ..Measured::default() }),
        }
    }

    async fn watch(&mut self, order: &WorkOrder) -> Result<LastWord, Ended> {
        let limit_ms = order.limit_ms;
        let mut deadline = Instant::now() + Duration::from_millis(limit_ms);
        let attempt = self.attempt;
        let mut stop = attempt.stop.clone();
        // A worker that does not read it is stopped like any other.
        tokio::select! {
            biased;
            reason = stopped(&mut stop) => return Err(Ended::Stopped(reason)),
            () = sleep_until(deadline) => return Err(self.too_long(limit_ms)),
            () = self.send(order) => {}
        }
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
                    return Err(self.too_long(limit_ms));
                }
                result = async { upload.as_mut().expect("guarded").await }, if upload.is_some() => {
                    upload = None;
                    let built = result?;
                    self.facts.built = Some(built.clone());
                    attempt.note(Note::Built(built)).await;
                    self.send(&WorkCommand::Continue).await;
                }
                line = self.worker.lines.next(), if output_open => match line {
                    None => output_open = false,
                    Some(Err(error)) => {
                        return Err(Failed::infrastructure(format!("the worker's output cannot be read: {error}")).into());
                    }
                    Some(Ok(line)) => match self.event(order, &line).await? {
                        WorkerMessage::Built { plan, plan_digest, plan_bytes, card } => {
                            upload = Some(attempt.upload_built(plan, plan_digest, plan_bytes, card, order.builds).boxed());
                        }
                        WorkerMessage::LastWord(word) => {
                            last_word = Some(word);
                            self.worker.stdin = None;
                            deadline = deadline.min(Instant::now() + EXIT_GRACE);
                        }
                        WorkerMessage::Other => {}
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
                    if let WorkerMessage::LastWord(word) = self.event(order, &line).await? {
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
                match &word {
                    // It exits as a worker that failed does; why it did is what a reader of the log looks for.
                    LastWord::Failed(failed) => {
                        let hint =
                            if failed.hint.is_empty() { String::new() } else { format!("\nhint: {}", failed.hint) };
                        self.log.note(&format!("failed: {}{hint}", failed.message));
                    }
                    _ if !status.success() => {
                        self.log.note(&format!("the worker ended with {} after its last word", describe(status)));
                    }
                    LastWord::Done { .. }
                    | LastWord::Compiled { .. }
                    | LastWord::Prepared { .. }
                    | LastWord::Made(_) => {}
                }
                Ok(word)
            }
            None => {
                self.facts.broke_down = true;
                Err(self.death(status).into())
            }
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
        let killed = status.signal() == Some(Signal::SIGKILL as i32);
        if killed && self.was_killed_for_memory() || said(&quote) == Some(Lack::Memory) {
            return out_of_memory(&message);
        }
        Failed::infrastructure(message).with_hint(if killed { KILLED_HINT } else { "" })
    }

    /// Whether the kernel has killed for want of memory since the worker began: what died by its signal then died of that.
    fn was_killed_for_memory(&self) -> bool {
        matches!((self.oom_kills, oom_kills()), (Some(before), Some(now)) if now > before)
    }

    /// Reads one line of the worker's output and tells the agent what it says.
    async fn event(&self, order: &WorkOrder, line: &str) -> Result<WorkerMessage, Failed> {
        let Ok(event) = serde_json::from_str(line) else {
            // A library that prints to standard output is no reason to fail.
            self.log.append(format!("{line}\n").as_bytes());
            return Ok(WorkerMessage::Other);
        };
        match event {
            WorkEvent::Progress { phase, fraction, detail } => {
                let fraction = if fraction.is_finite() { fraction.clamp(0.0, 1.0) } else { 0.0 };
                self.attempt.phase(&bounded(phase, PHASE_MAX_BYTES), fraction, bounded(detail, DETAIL_MAX_BYTES)).await;
            }
            WorkEvent::WindowBegin => {
                self.attempt.spans.windows(true);
                self.attempt.note(Note::Window(true)).await;
            }
            WorkEvent::WindowEnd => {
                self.attempt.spans.windows(false);
                self.attempt.note(Note::Window(false)).await;
            }
            WorkEvent::Built { plan, plan_digest, plan_bytes, card } => {
                let (plan, card) = (own_file(order, &plan)?, own_file(order, &card)?);
                return Ok(WorkerMessage::Built { plan, plan_digest, plan_bytes, card });
            }
            WorkEvent::Done { report, accurate, artifacts } => {
                let report = own_file(order, &report)?;
                let artifacts = uploads::accepted(order, artifacts, &self.log);
                return Ok(WorkerMessage::LastWord(LastWord::Done { report, accurate, artifacts }));
            }
            WorkEvent::Compiled { accurate } if order.kind == WorkKind::Compile => {
                return Ok(WorkerMessage::LastWord(LastWord::Compiled { accurate }));
            }
            WorkEvent::Prepared { file, digest, bytes } if order.kind == WorkKind::Ahead => {
                let file = own_file(order, &file)?;
                return Ok(WorkerMessage::LastWord(LastWord::Prepared { file, digest, bytes }));
            }
            WorkEvent::Made { mut files, graph_digest, structure_digest, mut document }
                if order.kind == WorkKind::Prepare && !files.is_empty() =>
            {
                for file in files.iter_mut().chain([&mut document]) {
                    file.path = own_file(order, &file.path)?;
                }
                let made = Made { files, graph_digest, structure_digest, document };
                return Ok(WorkerMessage::LastWord(LastWord::Made(made)));
            }
            WorkEvent::Compiled { .. } | WorkEvent::Prepared { .. } | WorkEvent::Made { .. } => {
                return Err(Failed::infrastructure("the worker ended a job of another kind than it was given"));
            }
            WorkEvent::Failed { class, message, hint, reason } => {
                let (message, hint) = (bounded(message, MESSAGE_MAX_BYTES), bounded(hint, MESSAGE_MAX_BYTES));
                let failed = Failed { reason, ..Failed::new(class, message).with_hint(hint) };
                return Ok(WorkerMessage::LastWord(LastWord::Failed(failed)));
            }
        }
        Ok(WorkerMessage::Other)
    }

    /// It may have waited for a device that no longer answers.
    fn too_long(&mut self, limit_ms: u64) -> Ended {
        self.facts.suspects_device = true;
        let message = format!("the worker took longer than the limit of {} s and was killed", limit_ms / 1000);
        let hint = "raise the agent's time limit for a job, or lower the optimization level";
        Failed::new(FailureClass::Resource, message).with_hint(hint).into()
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

    /// Ends the worker's whole group: politely, then for certain. Returns when nothing of it runs, or when the driver holds
    /// it for good: such a process keeps the device locked, and the device has to be looked at.
    async fn terminate(&mut self) {
        let id = self.worker.id;
        id.signal_group(Signal::SIGTERM);
        let grace = Duration::from_millis(self.attempt.shared.limits.kill_grace_ms);
        if timeout(grace, &mut self.worker.ended).await.is_err() {
            id.signal_group(Signal::SIGKILL);
            if timeout(KILL_LIMIT, &mut self.worker.ended).await.is_err() {
                self.facts.suspects_device = true;
                self.log.note("the worker cannot be killed: its driver holds it, and the device stays locked");
                tracing::error!(pid = id.pid, "a worker cannot be killed; its device stays locked");
            }
        }
        self.worker.has_ended = true;
        let _ = timeout(LAST_OUTPUT, &mut self.worker.stderr).await;
    }
}

/// `text`, cut at a character where it exceeds `limit` bytes.
fn bounded(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push('…');
    }
    text
}
