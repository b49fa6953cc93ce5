//! A timeline of one benchmark by Nsight Systems, where it is installed.

use super::{TensorRtSession, tell};
use crate::{acceptance, failure::Step, process, tool::name_of};
use planforge_backend::KeptFile;
use planforge_tensorrt_rules::{
    command::{self, Benchmark, Mode},
    preflight::WARM_UP_MS,
};
use planforge_types::{BackendError, FailureClass};
use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

/// The recorder's program, looked for in `PATH` and where its packages put it.
const PROGRAM: &str = "nsys";
const FOLDERS: [&str; 2] = ["/usr/local/bin", "/usr/local/cuda/bin"];

/// Executions that are recorded: a timeline of more is larger, not clearer.
const ITERATIONS: u32 = 20;

/// Name of the kept timeline; the recorder adds the ending.
const NAME: &str = "timeline";
const ENDING: &str = "nsys-rep";

/// Runs one benchmark under the recorder.
pub(super) fn record(meter: &mut TensorRtSession) -> Result<(), BackendError> {
    let program = find().ok_or_else(|| {
        BackendError::new(FailureClass::Infrastructure, "nsys is not installed on this host")
            .with_hint("install Nsight Systems where the agent runs")
    })?;
    let line = meter.describe(|run| {
        let benchmark = Benchmark {
            mode: Mode::default(),
            warm_up_ms: WARM_UP_MS,
            iterations: ITERATIONS,
            duration_s: 0,
            streams: 1,
            times: None,
        };
        command::benchmark(&meter.tool.installation.capabilities, &meter.spec, run, &benchmark)
    })?;
    let path = meter.tool.folder.join(NAME);
    let mut args: Vec<OsString> =
        ["profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true", "--output"]
            .map(OsString::from)
            .to_vec();
    args.push(path.clone().into());
    args.push(meter.tool.installation.trtexec.clone().into());
    args.extend(line.args.iter().cloned());
    let ran = meter.tool.run_program(&program, args, &mut tell)?;
    let plan = name_of(&meter.plan);
    acceptance::judge_run(ran.exit, &ran.facts)
        .map_err(|rejected| meter.tool.diagnose(Step::Run, &ran, &rejected, &plan))?;
    let path = path.with_extension(ENDING);
    if !path.is_file() {
        return Err(BackendError::new(FailureClass::Infrastructure, "nsys ended well and wrote no timeline"));
    }
    meter.aside.files.push(KeptFile { name: format!("{NAME}.{ENDING}"), path });
    Ok(())
}

fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    folders
        .map(|folder: PathBuf| folder.join(PROGRAM))
        .find(|program: &PathBuf| process::is_program(Path::new(program)))
}
