//! One run of a tool that may crash, hang, flood its log, eat the host's memory or leave children behind.
//!
//! The tool runs in a process group of its own and in a scratch folder, with a minimal environment. Both pipes are read
//! at once, so that neither can block it; what is kept of them is bounded. It is ended when its time or memory is
//! spent, when it neither prints nor computes for long, and when the job is cancelled: SIGTERM first, SIGKILL soon
//! after, always to the whole group. The kernel kills it should this process die, and whatever still runs of its group
//! when it ends is killed before [`run`] returns.
//!
//! No limit on address space and no control group is set: CUDA reserves far more than it uses. The memory that the
//! group holds is watched instead.

mod environment;
mod group;
mod tail;

pub use environment::{Environment, MARKER_VARIABLE};
pub use group::memory_limit_bytes;

use crate::log::{LogFacts, LogReader, Stream};
use nix::{
    sys::{
        prctl,
        signal::{Signal, killpg},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::{Pid, SysconfVar, sysconf},
};
use planforge_backend::Cancel;
use std::{
    ffi::OsString,
    io::{self, Read},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError, SyncSender},
    thread,
    time::{Duration, Instant},
};
use tail::Forward;

/// How often the group is looked at while it prints nothing.
const POLL: Duration = Duration::from_millis(50);

/// How often memory and processor time are read; each reading walks `/proc`.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// How long a tool may take to end after SIGTERM. Shorter than a worker's own grace once its agent is gone.
const TERMINATE_GRACE: Duration = Duration::from_millis(1000);

/// How long output is still read once the tool has ended: a stray that left the group may hold the pipes open.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// Output is read in pieces of this, and so many of them may wait: together a bound on memory.
const PIECE_BYTES: usize = 64 << 10;
const PIECES_WAITING: usize = 16;

/// Processor time below this share of a silent stretch is no progress: a stuck process still wakes now and then.
const IDLE_SHARE: f64 = 0.005;

/// Clock ticks a second, where the system does not say.
const USUAL_TICKS_PER_S: i64 = 100;
const USUAL_PAGE_BYTES: i64 = 4096;

/// What a tool may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest it may run.
    pub wall: Duration,
    /// Longest it may neither print nor compute.
    pub silence: Duration,
    /// Most resident memory of its group; `None`: unbounded.
    pub memory_bytes: Option<u64>,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Invocation {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Working folder.
    pub folder: PathBuf,
    pub environment: Environment,
    pub limits: Limits,
}

/// Why a tool was ended before its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    Cancelled,
    WallTime { limit: Duration },
    Hang { silence: Duration },
    Memory { used_bytes: u64, limit_bytes: u64 },
}

impl Stopped {
    /// For log lines.
    fn name(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::WallTime { .. } => "too long",
            Self::Hang { .. } => "silent too long",
            Self::Memory { .. } => "too much memory",
        }
    }
}

/// A tool that has ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    /// Set when it did not end by itself.
    pub stopped: Option<Stopped>,
    pub log: LogFacts,
    pub wall: Duration,
    /// Most resident memory that was seen.
    pub peak_bytes: u64,
    /// Processes that the tool left behind in its group, killed since.
    pub left_behind: usize,
}

impl Finished {
    /// How it ended, in words.
    pub fn end(&self) -> String {
        let signal = |number| Signal::try_from(number).map_or(format!("signal {number}"), |s| s.as_str().to_owned());
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(number)) => signal(number),
            (None, None) => "an unknown status".to_owned(),
        }
    }
}

/// A tool that could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("cannot start {}", program.display())]
    Start { program: PathBuf, source: io::Error },
    #[error("cannot wait for {}", program.display())]
    Wait { program: PathBuf, source: io::Error },
}

/// Runs a tool to its end, whatever end that is. Lines go to `tell` as they come, up to a bound.
///
/// Call it from a thread that lives as long as the tool may: the kernel ends the tool with the thread that started it.
pub fn run(invocation: &Invocation, tell: &mut dyn FnMut(&str), cancel: &Cancel) -> Result<Finished, ProcessError> {
    let began = Instant::now();
    let start_error = |source| ProcessError::Start { program: invocation.program.clone(), source };
    let mut child = command(invocation).spawn().map_err(start_error)?;
    let (sender, pieces) = mpsc::sync_channel(PIECES_WAITING);
    let readers = [
        child.stdout.take().map(|pipe| read_pipe(Stream::Stdout, pipe, sender.clone())),
        child.stderr.take().map(|pipe| read_pipe(Stream::Stderr, pipe, sender)),
    ];
    let mut watch = Watch::new(child.id().cast_signed(), invocation.limits, began);
    if readers.into_iter().flatten().any(|started| started.is_err()) {
        watch.end_group(Signal::SIGKILL);
        let _ = child.wait();
        return Err(start_error(io::Error::other("no thread could be started to read its output")));
    }
    let mut log = LogReader::new();
    let mut forward = Forward::new();
    let mut open = true;
    loop {
        match pieces.recv_timeout(POLL) {
            Ok((stream, bytes)) => {
                watch.saw_output();
                log.feed(stream, &bytes);
                forward.feed(stream, &bytes, tell);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                open = false;
                thread::park_timeout(POLL);
            }
        }
        if has_ended(&child).map_err(|source| wait_error(invocation, source))? {
            break;
        }
        watch.look(cancel);
    }
    // The leader is not reaped yet, so the group's number is still its own.
    let left_behind = watch.left_behind();
    watch.end_group(Signal::SIGKILL);
    let status = child.wait().map_err(|source| wait_error(invocation, source))?;
    let until = Instant::now() + LAST_OUTPUT;
    while open && let Some(left) = until.checked_duration_since(Instant::now()) {
        match pieces.recv_timeout(left) {
            Ok((stream, bytes)) => {
                log.feed(stream, &bytes);
                forward.feed(stream, &bytes, tell);
            }
            Err(_) => open = false,
        }
    }
    forward.finish(tell);
    Ok(Finished {
        status,
        stopped: watch.stopped,
        log: log.finish(),
        wall: began.elapsed(),
        peak_bytes: watch.peak_bytes,
        left_behind,
    })
}

fn wait_error(invocation: &Invocation, source: io::Error) -> ProcessError {
    ProcessError::Wait { program: invocation.program.clone(), source }
}

fn command(invocation: &Invocation) -> Command {
    let mut command = Command::new(&invocation.program);
    command
        .args(&invocation.args)
        .current_dir(&invocation.folder)
        .env_clear()
        .envs(invocation.environment.variables())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let parent = std::process::id().cast_signed();
    // SAFETY: between fork and exec only two system calls are made (prctl, getppid); nothing allocates or locks.
    unsafe {
        command.pre_exec(move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // The parent may have died before the call above took hold.
            if nix::unistd::getppid() != Pid::from_raw(parent) {
                return Err(io::Error::from_raw_os_error(nix::libc::ESRCH));
            }
            Ok(())
        });
    }
    command
}

type Piece = (Stream, Vec<u8>);

fn read_pipe(
    stream: Stream,
    mut pipe: impl Read + Send + 'static,
    sender: SyncSender<Piece>,
) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name("tool-output".into()).spawn(move || {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    // Nobody listens any more: the tool has ended and its last output was waited for.
                    if sender.send((stream, buffer[..count].to_vec())).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })
}

/// Whether the child has ended; it is not reaped.
fn has_ended(child: &Child) -> io::Result<bool> {
    let id = Id::Pid(Pid::from_raw(child.id().cast_signed()));
    match waitid(id, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG) {
        Ok(WaitStatus::StillAlive) => Ok(false),
        Ok(_) => Ok(true),
        Err(nix::errno::Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Watches a group and ends it when it must.
struct Watch {
    group: i32,
    limits: Limits,
    began: Instant,
    page_bytes: u64,
    ticks_per_s: f64,
    looked: Instant,
    /// Since when nothing was heard or computed, and the processor time at that moment.
    idle_since: Instant,
    idle_ticks: Option<u64>,
    peak_bytes: u64,
    stopped: Option<Stopped>,
    /// When SIGTERM was sent, then whether SIGKILL was.
    terminated: Option<Instant>,
}

impl Watch {
    fn new(group: i32, limits: Limits, began: Instant) -> Self {
        let system = |name, usual| sysconf(name).ok().flatten().filter(|n| *n > 0).unwrap_or(usual);
        Self {
            group,
            limits,
            began,
            page_bytes: system(SysconfVar::PAGE_SIZE, USUAL_PAGE_BYTES).cast_unsigned(),
            ticks_per_s: system(SysconfVar::CLK_TCK, USUAL_TICKS_PER_S) as f64,
            looked: began,
            idle_since: began,
            idle_ticks: None,
            peak_bytes: 0,
            stopped: None,
            terminated: None,
        }
    }

    fn saw_output(&mut self) {
        self.idle_since = Instant::now();
        self.idle_ticks = None;
    }

    /// One look at clock, memory and cancellation.
    fn look(&mut self, cancel: &Cancel) {
        if let Some(since) = self.terminated {
            if since.elapsed() >= TERMINATE_GRACE {
                self.end_group(Signal::SIGKILL);
            }
            return;
        }
        if let Some(reason) = self.reason_to_stop(cancel) {
            tracing::warn!(group = self.group, why = reason.name(), "ending a tool");
            self.stopped = Some(reason);
            self.terminated = Some(Instant::now());
            self.end_group(Signal::SIGTERM);
        }
    }

    fn reason_to_stop(&mut self, cancel: &Cancel) -> Option<Stopped> {
        if cancel.is_cancelled() {
            return Some(Stopped::Cancelled);
        }
        if self.began.elapsed() >= self.limits.wall {
            return Some(Stopped::WallTime { limit: self.limits.wall });
        }
        if self.looked.elapsed() < WATCH_EVERY.min(self.limits.silence / 4) {
            return None;
        }
        self.looked = Instant::now();
        let now = group::usage(self.group, self.page_bytes);
        self.peak_bytes = self.peak_bytes.max(now.resident_bytes);
        if let Some(limit_bytes) = self.limits.memory_bytes.filter(|limit| now.resident_bytes > *limit) {
            return Some(Stopped::Memory { used_bytes: now.resident_bytes, limit_bytes });
        }
        let ticks_before = *self.idle_ticks.get_or_insert(now.cpu_ticks);
        let silence = self.limits.silence;
        let silent = self.idle_since.elapsed();
        if silent < silence {
            return None;
        }
        let computed_s = now.cpu_ticks.abs_diff(ticks_before) as f64 / self.ticks_per_s;
        if computed_s > IDLE_SHARE * silent.as_secs_f64() {
            self.saw_output();
            return None;
        }
        Some(Stopped::Hang { silence })
    }

    /// Members of the group other than its leader, which has ended but is not reaped.
    fn left_behind(&self) -> usize {
        group::usage(self.group, self.page_bytes).members.saturating_sub(1)
    }

    fn end_group(&self, signal: Signal) {
        match killpg(Pid::from_raw(self.group), signal) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
            Err(error) => tracing::warn!(group = self.group, %signal, %error, "cannot signal a tool's process group"),
        }
    }
}

/// Whether `path` is a program that can be started.
pub fn is_program(path: &Path) -> bool {
    path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}

#[cfg(test)]
mod tests;
