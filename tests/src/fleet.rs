//! Hosts with GPUs that are not there, and toolchains to build for them, put together for a test.

use crate::{
    boards::{Board, board_of},
    farm::Farm,
    process::Process,
    scripted::Script,
    standin::scenario::{CALLS_FILE, Rule, Scenario, Selects, Timing},
};
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A stand-in `trtexec` in a folder laid out as an unpacked TensorRT.
#[derive(Clone, Debug)]
pub struct Toolchain {
    root: PathBuf,
    pub scenario: Scenario,
}

impl Toolchain {
    /// Puts the program `standin` into `root/bin/trtexec`, beside its scenario.
    pub fn install(standin: &Path, root: &Path, scenario: Scenario) -> Self {
        let toolchain = Self { root: root.to_owned(), scenario };
        fs::create_dir_all(toolchain.folder()).expect("the test's folder is writable");
        let program = toolchain.program();
        // A link where it can be one: the program is large.
        if fs::hard_link(standin, &program).is_err() {
            fs::copy(standin, &program).expect("the stand-in can be copied");
        }
        toolchain.write();
        toolchain
    }

    /// What `TENSORRT_HOME` would be.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn folder(&self) -> PathBuf {
        self.root.join("bin")
    }

    pub fn program(&self) -> PathBuf {
        self.folder().join("trtexec")
    }

    fn write(&self) {
        self.scenario.write(&self.folder()).expect("the test's folder is writable");
    }

    /// Changes what happens from now on.
    pub fn set_rules(&mut self, rules: Vec<Rule>) {
        self.scenario.rules = rules;
        self.write();
    }

    /// Changes how long things take from now on.
    pub fn set_timing(&mut self, timing: Timing) {
        self.scenario.timing = timing;
        self.write();
    }

    /// Changes which GPU runs select from now on.
    pub fn set_selects(&mut self, selects: Selects) {
        self.scenario.selects = selects;
        self.write();
    }

    /// Every run so far: `{"pid": ..., "arguments": [...]}`.
    pub fn calls(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder().join(CALLS_FILE)).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The arguments of every run that built.
    pub fn builds(&self) -> Vec<Vec<String>> {
        let arguments = |call: &Value| -> Vec<String> {
            let list = call["arguments"].as_array().into_iter().flatten();
            list.filter_map(|a| a.as_str().map(str::to_owned)).collect()
        };
        let calls = self.calls();
        calls.iter().map(arguments).filter(|a| a.iter().any(|a| a.starts_with("--onnx="))).collect()
    }
}

/// A program of this package, which lies beside the test's own folder.
pub fn program(name: &str) -> PathBuf {
    let test = env::current_exe().expect("a test knows where it lies");
    let program = test.ancestors().nth(2).expect("tests lie in <target>/<profile>/deps").join(name);
    assert!(program.exists(), "{} is not built", program.display());
    program
}

/// A host with one scripted board and its own toolchains.
#[derive(Debug)]
pub struct Host {
    pub board: Board,
    pub toolchains: Vec<Toolchain>,
    pub process: Process,
    pub script: PathBuf,
}

/// Bounds of a scripted agent, kept short so that tests are.
#[derive(Clone, Copy, Debug)]
pub struct HostLimits {
    pub measure_budget_ms: u64,
    /// Nor more where five windows take more.
    pub strict_measure_budget: bool,
    pub job_limit_ms: u64,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self { measure_budget_ms: 1500, strict_measure_budget: false, job_limit_ms: 120_000 }
    }
}

impl Host {
    /// Starts an agent with the board of `sku` and a stand-in of each of `versions`.
    pub fn start(farm: &Farm, sku: &str, versions: &[&str], limits: HostLimits) -> Self {
        let scenarios = versions.iter().map(|version| board_of(sku).scenario(version)).collect();
        Self::start_with(farm, sku, scenarios, limits)
    }

    /// The same with scenarios of the test's own, one a toolchain.
    pub fn start_with(farm: &Farm, sku: &str, scenarios: Vec<Scenario>, limits: HostLimits) -> Self {
        let board = board_of(sku);
        let home = farm.home(&format!("host-{sku}"));
        let standin = program("standin-trtexec");
        let toolchains: Vec<Toolchain> = scenarios
            .into_iter()
            .map(|scenario| {
                let root = home.join(format!("TensorRT-{}", scenario.version));
                Toolchain::install(&standin, &root, scenario)
            })
            .collect();
        let script = home.join("script.json");
        Script::healthy(sku).write(&script);
        let process = Self::launch(farm, sku, &home, &script, &toolchains, limits);
        Self { board, toolchains, process, script }
    }

    /// Starts the agent again after its death.
    pub fn restart(&mut self, farm: &Farm, limits: HostLimits) {
        let sku = self.board.sku;
        let home = farm.home(&format!("host-{sku}"));
        self.process = Self::launch(farm, sku, &home, &self.script, &self.toolchains, limits);
    }

    fn launch(
        farm: &Farm,
        sku: &str,
        home: &Path,
        script: &Path,
        toolchains: &[Toolchain],
        limits: HostLimits,
    ) -> Process {
        let locks = home.join("locks");
        fs::create_dir_all(&locks).expect("a lock folder");
        let mut command = Command::new(program("scripted-agent"));
        for (name, _) in env::vars().filter(|(name, _)| name.starts_with("PLANFORGE_") || name.starts_with("CUDA_")) {
            command.env_remove(name);
        }
        // The first toolchain by its variable, all of them by the path.
        let folders = toolchains.iter().filter_map(|t| Some(t.program().parent()?.to_owned()));
        let path = env::join_paths(folders.chain(["/usr/bin".into(), "/bin".into()])).expect("folders without colons");
        command.env("HOME", home).env("PATH", path).env("PLANFORGE_TOKEN", &farm.admin).current_dir(home);
        command.args(["--server", &farm.url, "--name", &format!("host-{sku}"), "--state"]).arg(home.join("state"));
        command.arg("--lock-dir").arg(locks).arg("--script").arg(script);
        command.args(["--measure-budget-ms", &limits.measure_budget_ms.to_string()]);
        command.args(["--strict-measure-budget", &limits.strict_measure_budget.to_string()]);
        command.args(["--job-limit-ms", &limits.job_limit_ms.to_string(), "--kill-grace-ms", "500"]);
        command.args(["--device-refresh-ms", "1000", "--device-retry-ms", "300"]);
        Process::start(&format!("host-{sku}"), farm.path(), command)
    }
}
