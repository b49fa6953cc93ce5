//! Asking a program for its help, within bounds.

use super::{Answer, OLDEST, Problem};
use crate::{
    flags::{Capabilities, help::MAX_HELP_BYTES},
    version::Version,
};
use std::{
    ffi::OsString,
    fs::File,
    io::Read as _,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Loading CUDA and every library of TensorRT takes seconds from a cold disk.
const LIMIT: Duration = Duration::from_secs(60);
/// Between looks at a program that is still running.
const POLL: Duration = Duration::from_millis(10);
/// Last words that are kept of a program that does not work.
const MAX_PRINTED_BYTES: usize = 4096;
/// A program that is being written cannot be started for a moment.
const BUSY_TRIES: u32 = 20;

/// Runs `trtexec --help` in a process group of its own and reads what it says.
pub(super) fn ask(trtexec: &Path, variable: Option<(&'static str, OsString)>) -> Answer {
    match run(trtexec, variable) {
        Ok((end, output)) => understand(end, &output),
        Err(error) => Answer { result: Err(Problem::Start { reason: error.to_string() }), printed: String::new() },
    }
}

/// How it ended; `None` when it had to be killed.
type End = Option<ExitStatus>;

/// Its output goes to a file, which bounds nothing but needs no reader: what is read from it is bounded, and a flood
/// ends with the time limit.
fn run(trtexec: &Path, variable: Option<(&'static str, OsString)>) -> std::io::Result<(End, String)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("help");
    let output = File::create(&path)?;
    let mut command = Command::new(trtexec);
    command
        .arg("--help")
        .envs(variable)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0);
    let mut child = start(&mut command)?;
    let end = wait(&mut child, &path);
    // Children it may have left, too.
    kill_group(&child);
    let end = match end {
        Ok(Some(status)) => Some(status),
        _ => {
            child.wait()?;
            None
        }
    };
    let mut bytes = Vec::new();
    File::open(&path)?.take(MAX_HELP_BYTES as u64).read_to_end(&mut bytes)?;
    Ok((end, String::from_utf8_lossy(&bytes).into_owned()))
}

fn start(command: &mut Command) -> std::io::Result<Child> {
    for _ in 0..BUSY_TRIES {
        match command.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => thread::sleep(POLL),
            other => return other,
        }
    }
    command.spawn()
}

/// Its status, or `None` when it ran too long or wrote too much.
fn wait(child: &mut Child, output: &Path) -> std::io::Result<End> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let flood = std::fs::metadata(output).is_ok_and(|facts| facts.len() > MAX_HELP_BYTES as u64);
        if flood || Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

fn kill_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // Gone already is what is wanted.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

fn understand(end: End, output: &str) -> Answer {
    let version = output.lines().find_map(Version::from_banner);
    let fault = |problem| Answer { result: Err(problem), printed: last_words(output) };
    match (end, version) {
        (None, _) => fault(Problem::Hangs { limit_s: LIMIT.as_secs() }),
        (Some(status), Some(version)) if status.success() => match version >= OLDEST {
            true => Answer { result: Ok(Capabilities::of_help(version, output)), printed: String::new() },
            false => fault(Problem::TooOld { version }),
        },
        (Some(status), _) => fault(Problem::NoVersion { status: status.to_string() }),
    }
}

/// The end of what was printed, whole lines where possible.
fn last_words(output: &str) -> String {
    let text = output.trim();
    if text.len() <= MAX_PRINTED_BYTES {
        return text.to_owned();
    }
    let from = text.ceil_char_boundary(text.len() - MAX_PRINTED_BYTES);
    let tail = &text[from..];
    tail.split_once('\n').map_or(tail, |(_, rest)| rest).to_owned()
}
