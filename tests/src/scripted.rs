//! An agent whose GPUs are a script: how the farm meets a fleet that is not there.
//!
//! Its devices come from a [`Script`] instead of the host, its workers are this very program, and their telemetry
//! follows the script too. Everything it makes is marked as simulated. Only a test binary holds it; nothing of the
//! product leads here.

use crate::boards::{Board, board_of};
use planforge_agent::{AgentConfig, DeviceError, DeviceSource, worker_main};
use planforge_backend::Compiler;
use planforge_client::{Endpoint, EndpointOptions, Token};
use planforge_cpu::CpuCompiler;
use planforge_device::{
    catalogue,
    telemetry::{Telemetry, unix_ms},
};
use planforge_tensorrt::TensorRtCompiler;
use planforge_types::{
    fingerprint::{DeviceFingerprint, DeviceKind, DiscoveredDevice, GpuFacts, HostFacts},
    telemetry::{ForeignProcess, TelemetrySample},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

/// The agent's devices and what happens on them: a JSON file that is read again whenever they are looked at.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Script {
    /// SKUs of the boards that are plugged in; one that goes is gone at the next look, as after an Xid 79.
    pub boards: Vec<String>,
    pub driver: String,
    /// Highest CUDA version of the driver.
    pub cuda: String,
    /// What each sample tells, in order; the last step goes on for ever. None: all is quiet.
    #[serde(default)]
    pub telemetry: Vec<Step>,
    /// Boards that cannot be used when they are looked at, by SKU, and what is said of them.
    #[serde(default)]
    pub broken: BTreeMap<String, String>,
}

/// Some samples that tell the same.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    /// How many samples; ignored for the last step.
    pub samples: u32,
    /// Names of processes that are not ours.
    pub foreign: Vec<String>,
    /// Numbers of errors that the driver reports.
    pub xids: Vec<u64>,
    /// The driver answers nothing.
    pub silent: bool,
    /// `thermal`, `power-cap`, `hardware-slowdown`, ...
    pub throttle: Vec<String>,
    pub ecc_uncorrected: u64,
    /// Share of the board's highest clock; 0 stands for all of it.
    pub clock_share: f64,
}

impl Script {
    /// One board on which all is quiet.
    pub fn healthy(sku: &str) -> Self {
        Self { boards: vec![sku.into()], driver: "570.86.15".into(), cuda: "12.8".into(), ..Self::default() }
    }

    /// Writes the script, whole or not at all.
    pub fn write(&self, path: &Path) {
        let staged = path.with_extension("staged");
        let text = serde_json::to_vec_pretty(self).expect("a script has only JSON types");
        fs::write(&staged, text).and_then(|()| fs::rename(&staged, path)).expect("the test's folder is writable");
    }

    fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    fn step(&self, sample: u32) -> Step {
        let mut left = sample;
        for step in &self.telemetry {
            match left.checked_sub(step.samples) {
                Some(rest) => left = rest,
                None => return step.clone(),
            }
        }
        self.telemetry.last().cloned().unwrap_or_default()
    }
}

fn fingerprint(board: Board, script: &Script) -> DeviceFingerprint {
    let (major, minor) = board.compute_capability;
    let gpu = GpuFacts {
        uuid: board.uuid(),
        pci_id: format!("10de:{:04x}", board.pci),
        pci_bus: Some("00000000:3b:00.0".into()),
        sm_count: Some(board.sms),
        compute_capability: format!("{major}.{minor}"),
        memory_bus_bits: Some(board.bus_bits),
        max_sm_clock_mhz: Some(board.clock_mhz),
        max_memory_clock_mhz: Some(board.memory_clock_mhz),
        power_limit_w: Some(board.power_w),
        ecc: Some(true),
        driver: script.driver.clone(),
        cuda_driver: script.cuda.clone(),
        ..GpuFacts::default()
    };
    DeviceFingerprint {
        kind: DeviceKind::Gpu,
        name: board.name.into(),
        memory_mib: board.memory_mib,
        gpu: Some(gpu),
        cpu: None,
        host: HostFacts { os: "Linux".into(), kernel: "scripted".into() },
    }
}

/// The backends of the product.
fn compilers() -> Vec<Box<dyn Compiler>> {
    vec![Box::new(CpuCompiler), Box::new(TensorRtCompiler::default())]
}

/// Devices as the script has them.
struct ScriptedDevices {
    script: PathBuf,
    compilers: Vec<Box<dyn Compiler>>,
}

impl DeviceSource for ScriptedDevices {
    fn devices(&self) -> Result<Vec<DiscoveredDevice>, DeviceError> {
        let script = Script::read(&self.script).map_err(|reason| DeviceError { reason })?;
        let device = |sku: &String| {
            let fingerprint = fingerprint(board_of(sku), &script);
            let mut device = DiscoveredDevice {
                id: fingerprint.gpu.as_ref().map(|gpu| gpu.uuid.clone()).unwrap_or_default(),
                skus: vec![catalogue::gpu_sku(&fingerprint)],
                fingerprint,
                threads: 0,
                offers: Vec::new(),
                simulated: true,
            };
            device.offers = self.compilers.iter().flat_map(|compiler| compiler.toolchains(&device)).collect();
            device
        };
        Ok(script.boards.iter().map(device).collect())
    }

    fn telemetry(&self, device: &str) -> Option<TelemetrySample> {
        let script = Script::read(&self.script).ok()?;
        let board = script.boards.iter().map(|sku| board_of(sku)).find(|board| board.uuid() == device)?;
        Some(sample(&board, &script.step(0)))
    }
}

/// A worker's telemetry: each sample is the script's next.
struct ScriptedTelemetry {
    script: Script,
    board: Option<Board>,
    taken: u32,
}

impl Telemetry for ScriptedTelemetry {
    fn sample(&mut self) -> TelemetrySample {
        let step = self.script.step(self.taken);
        self.taken += 1;
        self.board.map(|board| sample(&board, &step)).unwrap_or_default()
    }

    /// The script is of windows.
    fn outside(&mut self) -> TelemetrySample {
        TelemetrySample { utilization_percent: Some(0.0), ..TelemetrySample::default() }
    }
}

fn sample(board: &Board, step: &Step) -> TelemetrySample {
    if step.silent {
        return TelemetrySample { at_unix_ms: unix_ms(), ..TelemetrySample::default() };
    }
    let share = if step.clock_share > 0.0 { step.clock_share } else { 1.0 };
    let foreign = |(index, name): (usize, &String)| ForeignProcess {
        pid: 40_000 + index as u32,
        name: name.clone(),
        memory_mib: Some(512),
    };
    TelemetrySample {
        at_unix_ms: unix_ms(),
        foreign_processes: step.foreign.iter().enumerate().map(foreign).collect(),
        xids: step.xids.clone(),
        sm_clock_mhz: Some((f64::from(board.clock_mhz) * share) as u32),
        memory_clock_mhz: Some(board.memory_clock_mhz),
        temperature_c: Some(54.0),
        power_w: Some(board.power_w * 0.8),
        power_limit_w: Some(board.power_w),
        throttle: step.throttle.clone(),
        ecc_uncorrected: Some(step.ecc_uncorrected),
        utilization_percent: Some(0.0),
        memory_used_mib: Some(600),
        ..TelemetrySample::default()
    }
}

/// `scripted-agent --script FILE --server URL --state DIR --lock-dir DIR --name NAME --measure-budget-ms N ...`; with
/// `worker --script FILE` for one job; with `check-device --script FILE ID` for one look at a device.
pub fn main() -> ExitCode {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let is = |name: &str| arguments.first().is_some_and(|first| first == name);
    let (is_worker, is_check) = (is("worker"), is("check-device"));
    if is_worker || is_check {
        arguments.remove(0);
    }
    let flags: BTreeMap<String, String> = arguments
        .chunks_exact(2)
        .filter_map(|pair| Some((pair[0].strip_prefix("--")?.to_owned(), pair[1].clone())))
        .collect();
    let result = match arguments.last() {
        Some(device) if is_check => look(&flags, device),
        _ if is_worker => work(&flags),
        _ => serve(&flags),
    };
    result.unwrap_or_else(|problem| {
        crate::standin::console::complain(&format!("scripted-agent: {problem}"));
        ExitCode::from(2)
    })
}

fn flag<'a>(flags: &'a BTreeMap<String, String>, name: &str) -> Result<&'a str, String> {
    flags.get(name).map(String::as_str).ok_or_else(|| format!("--{name} is missing"))
}

/// Whether this process is shown the board of that UUID and no other, as every process for one device must be.
fn shown_alone(uuid: &str) -> Result<(), String> {
    let shown = env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    if shown == uuid { Ok(()) } else { Err(format!("a process for {uuid} is shown {shown:?}")) }
}

/// Says what the script says of a device.
fn look(flags: &BTreeMap<String, String>, device: &str) -> Result<ExitCode, String> {
    shown_alone(device)?;
    let script = Script::read(Path::new(flag(flags, "script")?))?;
    let broken = script.broken.iter().find(|(sku, _)| board_of(sku).uuid() == device);
    broken.map_or(Ok(ExitCode::SUCCESS), |(_, reason)| Err(reason.clone()))
}

fn work(flags: &BTreeMap<String, String>) -> Result<ExitCode, String> {
    let script = Script::read(Path::new(flag(flags, "script")?))?;
    let open = move |device: &DeviceFingerprint| -> Box<dyn Telemetry> {
        let uuid = device.gpu.as_ref().map(|gpu| gpu.uuid.clone()).unwrap_or_default();
        shown_alone(&uuid).expect("a worker is shown its own board alone");
        let board = script.boards.iter().map(|sku| board_of(sku)).find(|board| board.uuid() == uuid);
        Box::new(ScriptedTelemetry { script: script.clone(), board, taken: 0 })
    };
    Ok(worker_main(compilers(), &open))
}

fn serve(flags: &BTreeMap<String, String>) -> Result<ExitCode, String> {
    let script = PathBuf::from(flag(flags, "script")?);
    let endpoint = Endpoint::parse(flag(flags, "server")?, &EndpointOptions::default()).map_err(|e| e.to_string())?;
    let devices = Arc::new(ScriptedDevices { script: script.clone(), compilers: compilers() });
    let state = PathBuf::from(flag(flags, "state")?);
    let secret = std::env::var("PLANFORGE_TOKEN").map_err(|e| format!("PLANFORGE_TOKEN: {e}"))?;
    let token = Some(Token::new(&secret).map_err(|e| e.to_string())?);
    let mut config = AgentConfig::new(endpoint, token, state, devices).map_err(|e| e.to_string())?;
    config.name = flag(flags, "name")?.to_owned();
    config.lock_dir = PathBuf::from(flag(flags, "lock-dir")?);
    config.worker_command.extend(["--script".into(), script.clone().into_os_string()]);
    config.check_command.extend(["--script".into(), script.into_os_string()]);
    let number =
        |name: &str| flags.get(name).map(|text| text.parse().map_err(|e| format!("--{name}: {e}"))).transpose();
    if let Some(ms) = number("measure-budget-ms")? {
        config.limits.measure_budget_ms = ms;
    }
    config.limits.strict_measure_budget = flags.get("strict-measure-budget").is_some_and(|strict| strict == "true");
    if let Some(ms) = number("job-limit-ms")? {
        config.limits.job_ms = ms;
    }
    if let Some(ms) = number("kill-grace-ms")? {
        config.limits.kill_grace_ms = ms;
    }
    if let Some(ms) = number("device-refresh-ms")? {
        config.limits.device_refresh_ms = ms;
    }
    if let Some(ms) = number("device-retry-ms")? {
        config.limits.device_retry_ms = ms;
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(planforge_agent::run(config, told_to_end())).map_err(|e| e.to_string())?;
    Ok(ExitCode::SUCCESS)
}

async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            terminate.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}
