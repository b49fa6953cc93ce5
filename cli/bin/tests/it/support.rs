//! Runs the binary in an empty world: its own home, data folder and working folder, no settings from outside.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// An address without a listener.
const NO_PROXY_THERE: &str = "http://127.0.0.1:1";

/// An empty world, removed at the end of the test.
pub struct World {
    root: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        let root = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(root.path().join("here")).expect("a working folder");
        Self { root }
    }

    /// A path in the working folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("here").join(name)
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Writes a file in the working folder.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    /// The binary with these arguments, ready to run.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_planforge"));
        command
            .args(args)
            .current_dir(self.path(""))
            .stdin(Stdio::null())
            .env_clear()
            .env("HOME", self.root.path().join("home"))
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("NO_COLOR", "1")
            // On a machine that others disturb, measuring goes on as long as it may.
            .env("PLANFORGE_MEASURE_BUDGET_S", "1")
            // Nobody listens there: a command that asked a proxy would fail.
            .env("http_proxy", NO_PROXY_THERE)
            .env("https_proxy", NO_PROXY_THERE)
            .env("all_proxy", NO_PROXY_THERE);
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary runs")
    }

    /// Exit code and both outputs as one text, with what differs between runs and versions replaced.
    pub fn transcript(&self, args: &[&str]) -> String {
        transcript(self.root.path(), &self.run(args))
    }
}

pub fn transcript(root: &Path, output: &Output) -> String {
    let mut text = format!("exit code: {}\n", output.status.code().map_or("none".into(), |code| code.to_string()));
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        if !bytes.is_empty() {
            let _ = write!(text, "--- {name}\n{}", String::from_utf8_lossy(bytes));
        }
    }
    text.replace(&*root.to_string_lossy(), "[ROOT]").replace(env!("CARGO_PKG_VERSION"), "[VERSION]")
}
