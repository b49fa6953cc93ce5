//! What the device counts while each step runs, read by NVIDIA's profiler (Nsight Compute's `ncu`) where it is installed
//! and the driver lets it count.
//!
//! The profiler runs a program of its own: this one once more, which loads the plan, zeroes its inputs and runs every step
//! once in a named range ([`run_steps`]). Each kernel is replayed as often as its counters need, so the times that come
//! with them are the profiler's and stand beside no measurement.

use crate::{engine::Engine, runtime::RuntimeError};
use planforge_backend::LoadOptions;
use planforge_kernels_cuda::{device::profiled, nvtx::range};
use planforge_report::LayerCounters;
use planforge_types::BackendError;
use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The hidden command that runs a plan's steps for the profiler: `planforge run-steps PLAN PROFILE`.
pub const COMMAND: &str = "run-steps";

/// Longest that the profiler may take; it replays every kernel some ten times.
const LIMIT: Duration = Duration::from_secs(180);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Every range's name is this and the step's number.
const RANGE: &str = "planforge step ";

const SM: &str = "sm__throughput.avg.pct_of_peak_sustained_elapsed";
const DRAM: &str = "dram__throughput.avg.pct_of_peak_sustained_elapsed";
const L2: &str = "lts__throughput.avg.pct_of_peak_sustained_elapsed";
const OCCUPANCY: &str = "sm__warps_active.avg.pct_of_peak_sustained_active";
const TENSOR: &str = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active";
const TIME: &str = "gpu__time_duration.sum";
const METRICS: [&str; 6] = [SM, DRAM, L2, OCCUPANCY, TENSOR, TIME];

/// Runs every step of a plan once, each in its range and under the profiler's eyes.
///
/// # Errors
/// When the plan does not load here or the device fails.
pub fn run_steps(plan: &Path, profile: usize) -> Result<(), BackendError> {
    let engine = Engine::load(plan, &LoadOptions { profile, allow_foreign: true, ..LoadOptions::default() })?;
    let captured = engine.usual()?;
    let failed = |error: planforge_kernels_cuda::device::DeviceError| BackendError::from(RuntimeError::from(error));
    for buffer in &captured.context.memory.inputs {
        buffer.write(0, &vec![0; buffer.len_bytes()]).map_err(failed)?;
    }
    engine.device.gpu.synchronize().map_err(failed)?;
    profiled(|| {
        for index in 0..captured.program.steps.len() {
            let _range = range(&format!("{RANGE}{index}"));
            captured.context.launch_step(index)?;
        }
        captured.context.stream().synchronize().map_err(RuntimeError::from)
    })
    .map_err(failed)?
    .map_err(BackendError::from)
}

/// Counters of each of `steps` steps of a plan at one of its profiles; `None` of a step that launched no kernel.
///
/// # Errors
/// In words: no profiler, no right to count, or what it wrote cannot be read.
pub(super) fn count(
    plan: &Path,
    profile: usize,
    steps: usize,
    scratch: &Path,
) -> Result<Vec<Option<LayerCounters>>, String> {
    let profiler = profiler().ok_or("Nsight Compute (ncu) is not installed on this host")?;
    let program = env::current_exe().map_err(|error| format!("this program does not know where it lies: {error}"))?;
    let log = scratch.join("counters.csv");
    let mut command = Command::new(&profiler);
    command
        .args(["--csv", "--page", "raw", "--nvtx", "--profile-from-start", "off", "--clock-control", "none"])
        .args(["--target-processes", "application-only", "--metrics", &METRICS.join(","), "--log-file"])
        .arg(&log)
        .arg(program)
        .args([OsStr::new(COMMAND), plan.as_os_str(), &OsString::from(profile.to_string())])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let ended = run(command).map_err(|error| format!("{}: {error}", profiler.display()))?;
    let text = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    parsed(&text, steps).map_err(|why| match ended {
        true => why,
        false => format!("{why}; it was ended after {} s", LIMIT.as_secs()),
    })
}

/// Waits for a program; `false` where it took too long and was ended.
#[expect(clippy::disallowed_methods, reason = "looks at another program until a deadline")]
fn run(mut command: Command) -> std::io::Result<bool> {
    let mut child = command.spawn()?;
    let deadline = Instant::now() + LIMIT;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(true)
}

/// The profiler: on the path, or where toolkits lie.
fn profiler() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let homes = env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin"));
    let usual = ["/usr/local/cuda/bin", "/opt/nvidia/nsight-compute"].map(PathBuf::from);
    let folders = env::split_paths(&path).chain(homes).chain(usual);
    folders.map(|folder| folder.join("ncu")).find(|file| file.is_file())
}

/// What the profiler's table says of each step. Lines before its head are the profiler's words.
fn parsed(text: &str, steps: usize) -> Result<Vec<Option<LayerCounters>>, String> {
    let Some(begin) = text.lines().position(|line| line.starts_with("\"ID\"")) else {
        if text.contains("ERR_NVGPUCTRPERM") {
            return Err("the driver lets only administrators count (NVreg_RestrictProfilingToAdminUsers)".into());
        }
        let last = text.lines().rfind(|line| !line.trim().is_empty());
        return Err(format!(
            "ncu counted nothing: {}",
            last.unwrap_or("it said nothing").trim_start_matches("==ERROR== ")
        ));
    };
    let table: String =
        text.lines().skip(begin).filter(|line| line.starts_with('"')).map(|line| format!("{line}\n")).collect();
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(table.as_bytes());
    let head = reader.headers().map_err(|error| error.to_string())?.clone();
    let columns: BTreeMap<&str, usize> =
        METRICS.iter().filter_map(|metric| Some((*metric, head.iter().position(|name| name == *metric)?))).collect();
    let mut units: BTreeMap<&str, String> = BTreeMap::new();
    let mut counted = vec![Vec::new(); steps];
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let cell = |metric: &str| columns.get(metric).and_then(|column| record.get(*column)).unwrap_or_default();
        // The line of units has no number of a kernel.
        if record.get(0).is_none_or(str::is_empty) {
            units = METRICS.map(|metric| (metric, cell(metric).to_owned())).into();
            continue;
        }
        let Some(step) = record.iter().find_map(step_of).filter(|step| *step < steps) else { continue };
        let number = |metric: &str| cell(metric).replace(',', "").parse::<f64>().ok().filter(|value| value.is_finite());
        let to_ms = match units.get(TIME).map(String::as_str) {
            Some("s" | "second") => 1e3,
            Some("ms" | "msecond") => 1.0,
            Some("us" | "usecond") => 1e-3,
            _ => 1e-6,
        };
        counted[step].push(Kernel {
            time_ms: number(TIME).unwrap_or_default() * to_ms,
            percents: [SM, DRAM, L2, OCCUPANCY, TENSOR].map(number),
        });
    }
    Ok(counted.iter().map(|kernels| of_kernels(kernels)).collect())
}

/// The step whose range a cell names.
fn step_of(cell: &str) -> Option<usize> {
    let behind = &cell[cell.find(RANGE)? + RANGE.len()..];
    let end = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
    behind[..end].parse().ok()
}

/// One kernel's counters.
#[derive(Clone, Debug)]
struct Kernel {
    time_ms: f64,
    /// Multiprocessors, memory, second-level cache, occupancy, tensor cores.
    percents: [Option<f64>; 5],
}

/// A step's counters: means over its kernels, by the time of each.
fn of_kernels(kernels: &[Kernel]) -> Option<LayerCounters> {
    let time_ms: f64 = kernels.iter().map(|kernel| kernel.time_ms).sum();
    let mean = |index: usize| {
        let known = kernels.iter().filter_map(|kernel| Some((kernel.percents[index]?, kernel.time_ms)));
        let (sum, weight) = known.fold((0.0, 0.0), |(sum, weight), (value, ms)| (sum + value * ms, weight + ms));
        (weight > 0.0).then(|| sum / weight)
    };
    (!kernels.is_empty()).then(|| LayerCounters {
        kernels: kernels.len() as u64,
        time_ms,
        sm_percent: mean(0),
        memory_percent: mean(1),
        l2_percent: mean(2),
        occupancy_percent: mean(3),
        tensor_percent: mean(4),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `ncu` 2025.3 writes it: its words, a head, units, a line a kernel.
    fn table(kernels: &[(&str, &str, [&str; 6])]) -> String {
        let quoted = |cells: &[&str]| cells.iter().map(|cell| format!("\"{cell}\"")).collect::<Vec<_>>().join(",");
        let head = [&["ID", "Kernel Name", "thread Domain:Push/Pop_Range:PL_Type"][..], &METRICS].concat();
        let units = ["", "", "", "%", "%", "%", "%", "%", "ns"];
        let mut text = format!("==PROF== Connected to process 584\n{}\n{}\n", quoted(&head), quoted(&units));
        for (index, (name, range, cells)) in kernels.iter().enumerate() {
            let index = index.to_string();
            text += &format!("{}\n", quoted(&[&[index.as_str(), name, range][..], cells].concat()));
        }
        text + "==PROF== Disconnected from process 584\n"
    }

    #[test]
    fn kernels_are_told_by_the_range_of_their_step_and_weighed_by_their_time() {
        let text = table(&[
            ("a, \"\"quoted\"\"", "<default domain>:planforge step 0:none", ["80.00", "10", "20", "50", "60", "3,000"]),
            ("b", "<default domain>:planforge step 0:none", ["40.00", "30", "40", "50", "n/a", "1,000"]),
            ("c", "<default domain>:planforge step 12:none", ["1", "2", "3", "4", "0", "5,000"]),
            ("d", "none", ["9", "9", "9", "9", "9", "9"]),
        ]);
        let counted = parsed(&text, 13).unwrap();
        assert_eq!(counted.iter().filter(|step| step.is_some()).count(), 2);
        let first = counted[0].clone().unwrap();
        assert_eq!(
            (first.kernels, first.describe().as_str()),
            (2, "SM 70 %, memory 15 %, L2 25 %, tensor cores 60 %, occupancy 50 %")
        );
        assert!((first.time_ms - 0.004).abs() < 1e-12);
        assert_eq!(counted[12].clone().unwrap().tensor_percent, Some(0.0));
        // A step beyond the plan's is none of it.
        assert!(parsed(&text, 12).unwrap().iter().skip(1).all(Option::is_none));
    }

    #[test]
    fn what_keeps_the_profiler_from_counting_is_said() {
        let right = parsed("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", 1).unwrap_err();
        assert!(right.contains("administrators"), "{right}");
        let other =
            parsed("==PROF== Connected\n==ERROR== The application returned an error code (3).\n", 1).unwrap_err();
        assert_eq!(other, "ncu counted nothing: The application returned an error code (3).");
        assert!(parsed("", 1).unwrap_err().ends_with("it said nothing"));
    }
}
