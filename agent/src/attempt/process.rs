//! Worker processes: started with limits, in a group of their own, and never outliving their agent.
//!
//! A worker dies with its agent because the kernel kills it when the thread that started it ends; that thread
//! therefore lives exactly as long as the agent. Whatever an attempt started carries its marker and is killed when
//! the worker ends, however it ends.

use crate::host::{
    lock::DeviceLock,
    proc::{self, MARKER_VARIABLE, ProcessId},
};
use nix::{
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        signal::Signal,
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};
use planforge_types::{host_lock, open_files};
use std::{
    ffi::OsString,
    io,
    os::{fd::BorrowedFd, unix::process::CommandExt as _},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

/// Bounds of one worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerLimits {
    /// Largest file it may write.
    pub file_bytes: u64,
    /// Address space; `None` for CUDA, which reserves far more than it uses.
    pub address_space_bytes: Option<u64>,
}

/// What to start.
#[derive(Debug)]
pub struct WorkerStart {
    pub command: Vec<OsString>,
    pub scratch: PathBuf,
    /// Carried by every process of the attempt.
    pub marker: String,
    pub limits: WorkerLimits,
    /// Lets CUDA show it its own GPU and no other; needed to use a slice of one at all.
    pub visible: Option<(&'static str, String)>,
    /// Where it finds the locks of this host's cores: where its agent finds those of the devices.
    pub lock_folder: PathBuf,
}

/// A started worker.
#[derive(Debug)]
pub struct Worker {
    pub id: ProcessId,
    pub stdin: std::process::ChildStdin,
    pub stdout: std::process::ChildStdout,
    pub stderr: std::process::ChildStderr,
    /// Resolves when the worker has ended and nothing of its attempt runs any more.
    pub ended: oneshot::Receiver<io::Result<ExitStatus>>,
}

type SpawnRequest = (Command, oneshot::Sender<io::Result<Child>>);

/// The thread that starts workers. Dropping the last handle ends it, and with it every worker.
#[derive(Clone, Debug)]
pub struct Spawner {
    requests: mpsc::Sender<SpawnRequest>,
}

impl Spawner {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let (requests, inbox) = mpsc::channel::<SpawnRequest>();
        thread::Builder::new().name("worker-spawner".into()).spawn(move || {
            while let Ok((mut command, answer)) = inbox.recv() {
                // A caller that went away meanwhile gets no worker.
                if let Err(Ok(mut child)) = answer.send(command.spawn()) {
                    proc::signal_group(child.id().cast_signed(), Signal::SIGKILL);
                    let _ = child.wait();
                }
            }
        })?;
        Ok(Self { requests })
    }

    /// Starts a worker that inherits `lock`.
    pub async fn spawn(&self, start: WorkerStart, lock: &DeviceLock) -> io::Result<Worker> {
        let command = command(&start, lock)?;
        let (answer, spawned) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts workers has ended");
        self.requests.send((command, answer)).map_err(|_| gone())?;
        let mut child = spawned.await.map_err(|_| gone())??;
        let pid = child.id().cast_signed();
        // The child is not reaped before `ended`, so its number is still its own.
        let id = ProcessId::of(pid).unwrap_or(ProcessId { pid, started_ticks: 0 });
        let missing = || io::Error::other("a worker's pipe is missing");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take().ok_or_else(missing)?;
        let (sender, ended) = oneshot::channel();
        thread::Builder::new().name("worker-waiter".into()).spawn(move || {
            let status = wait_and_sweep(child, &start.marker);
            let _ = sender.send(status);
        })?;
        Ok(Worker { id, stdin, stdout, stderr, ended })
    }
}

/// Waits for the worker, then ends whatever of its attempt still runs.
fn wait_and_sweep(mut child: Child, marker: &str) -> io::Result<ExitStatus> {
    let pid = child.id().cast_signed();
    // Without reaping: until then the number of the group cannot be anybody else's.
    let waited = waitid(Id::Pid(Pid::from_raw(pid)), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
    if let Err(error) = waited {
        tracing::warn!(pid, %error, "cannot wait for a worker without reaping it");
    } else {
        proc::signal_group(pid, Signal::SIGKILL);
    }
    let status = child.wait();
    // Processes that left the group carry the marker; each round may meet children born during the last.
    for _ in 0..SWEEP_ROUNDS {
        if proc::kill_marked(marker) == 0 {
            return status;
        }
        thread::park_timeout(SWEEP_PAUSE);
    }
    tracing::error!(marker, "processes of an ended attempt cannot be killed; its device stays locked");
    status
}

/// Rounds of killing strays and the pause between them: a killed process takes a moment to go.
const SWEEP_ROUNDS: usize = 500;
const SWEEP_PAUSE: Duration = Duration::from_millis(5);

/// A limit that holds, and up to where it may be raised.
type Limit = (Resource, u64, u64);

fn bounded(resource: Resource, want: u64) -> io::Result<Limit> {
    let (_, hard) = getrlimit(resource)?;
    let limit = want.min(hard);
    Ok((resource, limit, limit))
}

/// What this process was started with, whatever a coordinator in it has raised that to.
fn open_files_at_start() -> Limit {
    let open_files::OpenFiles { soft, hard } = open_files::at_start();
    let number = |limit: Option<u64>| limit.unwrap_or(nix::libc::RLIM_INFINITY);
    (Resource::RLIMIT_NOFILE, number(soft), number(hard))
}

fn command(start: &WorkerStart, lock: &DeviceLock) -> io::Result<Command> {
    let (program, arguments) =
        start.command.split_first().ok_or_else(|| io::Error::other("the worker command is empty"))?;
    let temporary = start.scratch.join("tmp");
    std::fs::create_dir_all(&temporary)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(&start.scratch)
        .env_remove("PLANFORGE_TOKEN")
        .env(MARKER_VARIABLE, &start.marker)
        .env(host_lock::FOLDER_VARIABLE, std::path::absolute(&start.lock_folder)?)
        .env("TMPDIR", temporary)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .envs(start.visible.iter().map(|(name, value)| (name, value)))
        .process_group(0);
    let mut limits =
        vec![bounded(Resource::RLIMIT_CORE, 0)?, bounded(Resource::RLIMIT_FSIZE, start.limits.file_bytes)?];
    limits.push(open_files_at_start());
    if let Some(bytes) = start.limits.address_space_bytes {
        limits.push(bounded(Resource::RLIMIT_AS, bytes)?);
    }
    let agent = std::process::id().cast_signed();
    let lock_fd = lock.raw_fd();
    // SAFETY: between fork and exec only system calls are made (prctl, getppid, setrlimit, fcntl); nothing allocates
    // or locks. `lock_fd` is open: the caller holds the lock until the spawner has answered.
    unsafe {
        command.pre_exec(move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            if nix::unistd::getppid() != Pid::from_raw(agent) {
                return Err(io::Error::from_raw_os_error(nix::libc::ESRCH));
            }
            for (resource, soft, hard) in &limits {
                setrlimit(*resource, *soft, *hard)?;
            }
            let lock = BorrowedFd::borrow_raw(lock_fd);
            rustix::io::fcntl_setfd(lock, rustix::io::FdFlags::empty())?;
            Ok(())
        });
    }
    Ok(command)
}

/// Where a process was killed and nobody said so.
pub const KILLED_HINT: &str = "the kernel kills the largest process when memory runs out; see the host's kernel log";

/// Exit of a worker in words.
pub fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("signal {}", signal.as_str()),
            Err(_) => format!("signal {number}"),
        },
        (None, None) => "an unknown status".into(),
    }
}
