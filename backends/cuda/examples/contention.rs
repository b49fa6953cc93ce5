//! Provokes contention around timed windows on a GPU, and says whether the measurement saw it.
//!
//!     contention PLAN [FOREIGN COMMAND...]
//!     contention --case start|end|inside PLAN [FOREIGN COMMAND...]
//!     contention --burn
//!
//! PLAN is measured by the product's own experiment, with the driver's own state around each window, three times: a
//! foreign process is there when a window starts, when one ends, and only inside one. Each time the disturbed windows
//! have to be measured again and what counts has to be clean. The foreign process is this program with `--burn`, or the
//! command that is given: it keeps the first GPU busy, says `ready` once it does, and ends when its input does.
//!
//! Each case is a process of its own, as the product's workers are. Prints `ok` or `FAILED` per case; the one inside is `unseen` where the driver keeps nothing of it, with what it told.

use planforge_backend::{Cancel, Compiler as _, LoadOptions, Meter, Window, WindowSamples};
use planforge_cuda::CudaCompiler;
use planforge_device::{
    nvml::{Nvml, UtilizationSample},
    telemetry::{NvmlTelemetry, Telemetry},
};
use planforge_kernels_cuda::device::Gpu;
use planforge_report::LayerTime;
use planforge_types::{BackendError, NamedTensors, Port, telemetry::TelemetrySample};
use planforge_worker::{
    measure::{MeasureConfig, Measurement, MonotonicClock, measure},
    verify::inputs,
};
use std::{
    error::Error,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The disturbed window.
const WINDOW: usize = 2;
/// How long the process that lives inside one window keeps the device busy: several of the driver's samples.
const INSIDE: Duration = Duration::from_millis(1500);
/// How long a foreign process may take to begin, and to be gone.
const PATIENCE: Duration = Duration::from_secs(20);
/// Executions between two looks at the foreign process.
const STRIDE: u32 = 200;

/// Keeps the first GPU busy until the input ends.
fn burn() -> Outcome<()> {
    let gpu = Gpu::open(0)?;
    let (from, to) = (gpu.alloc(256 << 20)?, gpu.alloc(256 << 20)?);
    let stream = gpu.stream()?;
    let over = Arc::new(AtomicBool::new(false));
    let told = over.clone();
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Relaxed);
    });
    writeln!(io::stdout(), "ready")?;
    while !over.load(Ordering::Relaxed) {
        for _ in 0..20 {
            // SAFETY: both buffers are that long and live until the stream was waited for.
            unsafe { stream.copy(to.address(), from.address(), from.len_bytes())? };
        }
        stream.synchronize()?;
    }
    Ok(())
}

/// A foreign process that is on the device.
struct Foreign(Child);

impl Foreign {
    fn start(command: &[String]) -> Outcome<Self> {
        let mut child =
            Command::new(&command[0]).args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().ok_or("the foreign process has no output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        if line.trim() != "ready" {
            let _ = child.kill();
            return Err(format!("the foreign process said {line:?} instead of \"ready\"").into());
        }
        Ok(Self(child))
    }

    fn end(mut self) -> Outcome<()> {
        drop(self.0.stdin.take());
        self.0.wait()?;
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Start,
    End,
    Inside,
}

/// The engine, with a foreign process that comes and goes during its windows.
struct Provoked<'a> {
    meter: Box<dyn Meter>,
    case: Case,
    command: &'a [String],
    /// Samples that the experiment took: none during warm-up, one before the first timed window.
    samples: Arc<AtomicUsize>,
    foreign: Option<Foreign>,
    observer: NvmlTelemetry,
    /// The driver's words on the process that lived inside the window.
    raw: String,
}

impl Provoked<'_> {
    /// Runs the engine until `over`, as the window would without this.
    fn run_until(&mut self, mut over: impl FnMut(&mut Self) -> bool) -> Outcome<()> {
        let began = Instant::now();
        while !over(self) {
            if began.elapsed() > PATIENCE {
                return Err("the foreign process neither began nor went in time".into());
            }
            self.meter.window(Window { iterations: STRIDE, duration_ms: 0.0 })?;
        }
        Ok(())
    }

    fn start(&mut self) -> Outcome<()> {
        self.foreign = Some(Foreign::start(self.command)?);
        self.run_until(|this| !this.observer.sample().foreign_processes.is_empty())
    }

    fn end(&mut self) -> Outcome<()> {
        if let Some(foreign) = self.foreign.take() {
            foreign.end()?;
        }
        self.run_until(|this| this.observer.sample().foreign_processes.is_empty())
    }

    fn act(&mut self) -> Outcome<()> {
        let samples = self.samples.load(Ordering::Relaxed);
        let Some(window) = samples.checked_sub(1) else { return Ok(()) };
        match self.case {
            Case::Start if window == 0 => self.end(),
            Case::End if window == WINDOW => self.start(),
            Case::End if window == WINDOW + 1 => self.end(),
            Case::Inside if window == WINDOW => {
                self.start()?;
                let began = Instant::now();
                self.run_until(|_| began.elapsed() > INSIDE)?;
                let during = raw_words().unwrap_or_else(|error| error.to_string());
                self.end()?;
                let after = raw_words().unwrap_or_else(|error| error.to_string());
                self.raw = format!("  while it ran: {during}\n  once it was gone: {after}");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Meter for Provoked<'_> {
    fn inputs(&self) -> Vec<Port> {
        self.meter.inputs()
    }
    fn outputs(&self) -> Vec<Port> {
        self.meter.outputs()
    }
    fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError> {
        self.meter.bind(inputs)
    }
    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        self.meter.run()
    }
    fn window(&mut self, window: Window) -> Result<WindowSamples, BackendError> {
        self.act()
            .map_err(|error| BackendError::new(planforge_types::FailureClass::Infrastructure, error.to_string()))?;
        self.meter.window(window)
    }
    fn layers(&mut self, iterations: u32) -> Result<Vec<LayerTime>, BackendError> {
        self.meter.layers(iterations)
    }
    fn memory_bytes(&self) -> u64 {
        self.meter.memory_bytes()
    }
}

/// Counts the samples of the product's reader.
struct Counted {
    reader: NvmlTelemetry,
    samples: Arc<AtomicUsize>,
}

impl Telemetry for Counted {
    fn sample(&mut self) -> TelemetrySample {
        let sample = self.reader.sample();
        self.samples.fetch_add(1, Ordering::Relaxed);
        sample
    }

    fn settle(&mut self) {
        self.reader.settle();
    }
}

/// What the driver's buffers hold now, unjudged.
fn raw_words() -> Outcome<String> {
    let nvml = Nvml::open()?;
    let device = nvml.device_by_index(0)?;
    let running: Vec<u32> = device.running_compute_processes()?.iter().map(|process| process.pid).collect();
    let used = match device.process_utilization(0) {
        Ok(samples) => {
            let word = |s: &UtilizationSample| {
                format!("pid {} sm {} % mem {} % at {}", s.pid, s.sm_percent, s.memory_percent, s.timestamp_us)
            };
            samples.iter().map(word).collect::<Vec<_>>().join(", ")
        }
        Err(error) => error.to_string(),
    };
    let device_wide = device.utilization_samples_kept().unwrap_or(0);
    Ok(format!(
        "this is pid {}; running {running:?}; process utilization [{used}]; {device_wide} device-wide samples; accounting {:?}",
        std::process::id(),
        device.is_accounting_enabled(),
    ))
}

/// Measures the plan while the case happens.
fn provoke(plan: &Path, case: Case, command: &[String]) -> Outcome<(Measurement, String)> {
    let uuid = Nvml::open()?.device_by_index(0)?.uuid()?;
    // Before this process touches the device, as the product does.
    let (reader, observer) = (NvmlTelemetry::open(&uuid)?, NvmlTelemetry::open(&uuid)?);
    let mut meter = CudaCompiler.load(plan, &LoadOptions { allow_foreign: true, ..LoadOptions::default() })?;
    let bound = inputs::generate(&inputs::of_ports(&meter.inputs(), None), 7);
    meter.bind(&bound)?;
    let samples = Arc::new(AtomicUsize::new(0));
    let mut provoked =
        Provoked { meter, case, command, samples: samples.clone(), foreign: None, observer, raw: String::new() };
    provoked.meter.run()?;
    // It learns which process this is before there is another.
    provoked.observer.sample();
    if case == Case::Start {
        provoked.start()?;
    }
    let config = MeasureConfig::within(60_000.0, 1);
    let mut counted = Counted { reader, samples };
    let found = measure(&mut provoked, &mut counted, &MonotonicClock::default(), &config, &Cancel::default())?;
    Ok((found, provoked.raw))
}

/// Judges a case; `true` unless it failed.
fn judge(case: Case, found: &Measurement, raw: &str, out: &mut impl io::Write) -> io::Result<bool> {
    let tainted: Vec<(usize, &str)> = found
        .windows
        .iter()
        .enumerate()
        .flat_map(|(index, window)| window.tainted.iter().map(move |reason| (index, reason.as_str())))
        .collect();
    let expected = if case == Case::Start { 0 } else { WINDOW };
    let kind = if case == Case::Inside { "passing process" } else { "foreign process" };
    let seen = tainted.iter().any(|(index, reason)| *index == expected && reason.starts_with(kind));
    let clean = found.windows.iter().all(|window| !window.kept_tainted);
    let name = match case {
        Case::Start => "a foreign process when a window starts",
        Case::End => "a foreign process when a window ends",
        Case::Inside => "a foreign process only inside a window",
    };
    let verdict = match (seen, clean) {
        (true, true) => "ok    ",
        (false, true) if case == Case::Inside => "unseen",
        _ => "FAILED",
    };
    writeln!(out, "{verdict} {name}")?;
    writeln!(
        out,
        "  {} windows, median {:.4} ms, {:?}; disturbed: {tainted:?}",
        found.windows.len(),
        found.stats.median,
        found.experiment.stop
    )?;
    if case == Case::Inside {
        let median_ms = found.windows.get(WINDOW).map_or(0.0, |window| window.median_ms);
        writeln!(out, "  the window's own median {median_ms:.4} ms; looked in {:?}", found.telemetry.after.looked_in)?;
        writeln!(out, "{raw}")?;
    }
    Ok(verdict != "FAILED")
}

/// One case in this process.
fn one(name: &str, plan: &str, command: &[String]) -> Outcome<bool> {
    let case = match name {
        "start" => Case::Start,
        "end" => Case::End,
        "inside" => Case::Inside,
        _ => return Err(format!("there is no case {name}").into()),
    };
    let mut out = io::stdout();
    match provoke(Path::new(plan), case, command) {
        Ok((found, raw)) => Ok(judge(case, &found, &raw, &mut out)?),
        Err(error) => {
            writeln!(out, "FAILED {name}: {error}")?;
            Ok(false)
        }
    }
}

fn main() -> Outcome<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let this = std::env::current_exe()?;
    let good = match words.as_slice() {
        ["--burn"] => {
            burn()?;
            true
        }
        ["--case", name, plan] => one(name, plan, &[this.to_string_lossy().into_owned(), "--burn".to_owned()])?,
        ["--case", name, plan, ..] => one(name, plan, &arguments[3..])?,
        [_, ..] => {
            let mut good = true;
            for case in ["start", "end", "inside"] {
                good &= Command::new(&this).args(["--case", case]).args(&arguments).status()?.success();
            }
            good
        }
        [] => return Err("usage: contention PLAN [FOREIGN COMMAND...]".into()),
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
