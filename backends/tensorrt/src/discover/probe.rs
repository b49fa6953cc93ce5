//! Asking a program for its help, within bounds.

use super::{Answer, Problem};
use crate::process::{self, Environment, Finished, Invocation, Limits, ProcessError};
use planforge_backend::Cancel;
use planforge_tensorrt_rules::{flags::Capabilities, preflight::OLDEST, version::Version};
use std::{
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Loading CUDA and every library of TensorRT takes seconds from a cold disk.
const LIMIT: Duration = Duration::from_secs(60);
/// Most that is read of an answer; real ones have 20 to 45 KiB.
const MAX_ANSWER_BYTES: usize = 256 << 10;
/// Last words that are kept of a program that does not work.
const MAX_PRINTED_BYTES: usize = 4096;
/// A program that is being written cannot be started for a moment.
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// Runs `trtexec --help` and reads what it says.
#[expect(clippy::disallowed_methods, reason = "waits a moment for whoever still writes the program, and not often")]
pub(super) fn ask(trtexec: &Path, libraries: &[PathBuf]) -> Answer {
    let mut tries = 0;
    loop {
        let mut output = String::new();
        match run(trtexec, libraries, &mut output) {
            Ok(finished) => return understand(&finished, &output),
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES => {
                tries += 1;
                thread::sleep(BUSY_PAUSE);
            }
            Err(error) => {
                return Answer { result: Err(Problem::Start { reason: error.to_string() }), printed: String::new() };
            }
        }
    }
}

fn run(trtexec: &Path, libraries: &[PathBuf], output: &mut String) -> io::Result<Finished> {
    let folder = tempfile::tempdir()?;
    let invocation = Invocation {
        program: trtexec.to_owned(),
        args: vec!["--help".into()],
        folder: folder.path().to_owned(),
        environment: Environment::new(None, libraries, folder.path()),
        limits: Limits { wall: LIMIT, silence: LIMIT, memory_bytes: None },
    };
    let flood = Cancel::default();
    let stop = flood.clone();
    let mut tell = |line: &str| {
        if output.len() + line.len() > MAX_ANSWER_BYTES {
            return stop.cancel();
        }
        output.push_str(line);
        output.push('\n');
    };
    process::run(&invocation, &mut tell, &flood).map_err(|error| match error {
        ProcessError::Start { source, .. } | ProcessError::Wait { source, .. } => source,
    })
}

fn understand(finished: &Finished, output: &str) -> Answer {
    let version = output.lines().find_map(Version::from_banner);
    let fault = |problem| Answer { result: Err(problem), printed: last_words(output) };
    if finished.stopped.is_some() {
        return fault(Problem::Hangs { limit_s: LIMIT.as_secs() });
    }
    if let Some(version) = output.lines().find_map(Version::rtx_from_banner) {
        return fault(Problem::Rtx { version });
    }
    match version.filter(|_| finished.status.success()) {
        Some(version) if version < OLDEST => fault(Problem::TooOld { version }),
        Some(version) => Answer { result: Ok(Capabilities::of_help(version, output)), printed: String::new() },
        None => fault(Problem::NoVersion { status: finished.end() }),
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
