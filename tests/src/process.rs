//! One started program: its log, its death, its whole group.

use crate::eventually;
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use std::{
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::OnceLock,
};

/// The real binary, built from this workspace on first use when the test command has not built it already.
pub fn planforge() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(given) = std::env::var_os("PLANFORGE_BIN") {
            return given.into();
        }
        built(&["-p", "planforge"], "planforge")
    })
}

/// The program that takes another release's place (`cli/examples/other-release.rs`), built as [`planforge`] is.
pub fn other_release() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let binary = profile_folder().join("examples/other-release");
        if std::env::var_os("PLANFORGE_BIN").is_some() && binary.exists() {
            return binary;
        }
        // With the features that the tests have: nothing else is built a second time.
        built(&["--workspace", "--example", "other-release"], "examples/other-release")
    })
}

/// `<target>/<profile>`.
fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it lies");
    test.ancestors().nth(2).expect("tests lie in <target>/<profile>/deps").to_owned()
}

fn built(what: &[&str], lies: &str) -> PathBuf {
    let profile_folder = profile_folder();
    let binary = profile_folder.join(lies);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "-q", "--manifest-path"]).arg(workspace).arg("--target-dir");
    build.arg(profile_folder.parent().expect("a profile lies in a target folder")).args(what);
    assert!(build.status().is_ok_and(|s| s.success()) && binary.exists(), "cannot build {}", binary.display());
    binary
}

/// A command of the real binary that inherits nothing of the caller's settings.
pub fn command(home: &Path) -> Command {
    command_of(planforge(), home)
}

/// The same of another program that takes the same command lines.
pub fn command_of(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    let settings = ["PLANFORGE_", "XDG_", "OTEL_", "TRACEPARENT"];
    for (name, _) in std::env::vars().filter(|(name, _)| settings.iter().any(|start| name.starts_with(start))) {
        command.env_remove(name);
    }
    command.env("HOME", home).env("NO_COLOR", "1").current_dir(home).stdin(Stdio::null());
    command
}

/// A started program in a process group of its own; killed with the group when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with standard output and error going to `folder/<name>.log`.
    pub fn start(name: &str, folder: &Path, mut command: Command) -> Self {
        let log = folder.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log).expect("the test's folder is writable");
        let err = out.try_clone().expect("a file handle can be cloned");
        command.process_group(0).stdout(out).stderr(err);
        let child = command.spawn().unwrap_or_else(|error| panic!("start {name}: {error}"));
        Self { child, name: name.into(), log }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Everything it printed so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits for a line that holds `text` and returns it.
    pub fn wait_for_line(&mut self, text: &str) -> String {
        let what = format!("{} prints '{text}'", self.name);
        eventually(&what, || {
            let log = self.log();
            if let Some(line) = log.lines().find(|line| line.contains(text)) {
                return Ok(line.to_owned());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("{} ended with {status} before it printed '{text}':\n{log}", self.name);
            }
            Err(log)
        })
    }

    /// SIGKILL to the program alone, as the out-of-memory killer does; its children live on.
    pub fn kill_9(&mut self) {
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGKILL);
        let _ = self.child.wait();
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap_or_else(|error| panic!("signal {}: {error}", self.name));
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let what = format!("{} ends", self.name);
        eventually(&what, || match self.child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("still running".into()),
            Err(error) => Err(error.to_string()),
        })
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(self.pid()), Signal::SIGKILL);
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprint_log(&self.name, &self.log());
        }
    }
}

/// A failing run shows what its programs said.
#[expect(clippy::print_stderr, reason = "a failing test's evidence")]
fn eprint_log(name: &str, log: &str) {
    let tail: Vec<&str> = log.lines().rev().take(60).collect();
    eprintln!("---- {name}");
    for line in tail.iter().rev() {
        eprintln!("{line}");
    }
}

/// Runs to the end and returns status, output and error.
pub fn run(mut command: Command) -> Output {
    let shown = format!("{command:?}");
    command.output().unwrap_or_else(|error| panic!("run {shown}: {error}"))
}

/// Runs, expects success, and reads standard output as one JSON document.
pub fn run_json(command: Command) -> serde_json::Value {
    let shown = format!("{command:?}");
    let output = run(command);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{shown}: {}\n{out}\n{err}", output.status);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{shown}: not JSON: {error}\n{out}\n{err}"))
}

/// Ids of the running processes whose command line holds every one of `texts`.
pub fn processes_with(texts: &[&str]) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let zombie = state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'));
        !zombie && !line.is_empty() && texts.iter().all(|text| line.contains(text))
    })
    .collect()
}

/// Ids of the living children of `pid`, and theirs.
pub fn descendants(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut found: Vec<i32> = tasks
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .chain([children])
        .flat_map(|text| text.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<i32>>())
        .collect();
    found.sort_unstable();
    found.dedup();
    let deeper: Vec<i32> = found.iter().flat_map(|child| descendants(*child)).collect();
    found.extend(deeper);
    found
}
