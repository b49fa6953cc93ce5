//! One side of a pair of measurements, and what is said of a pair, for `tests/bench/statistics/run.py`.
//!
//!     statistics measure PLAN REPORT [SLOWER_PERCENT [BUDGET_S]]
//!     statistics judge BASE_REPORT OTHER_REPORT
//!     statistics stack PLAN
//!
//! `measure` runs the product's own job on the plan in this process. Executions are timed one at a time, on either side
//! alike. Where it is to be slower, a loop that does nothing follows every execution until the percentage of that
//! execution's latency has passed, and what the loop really took by the clock is added: the slowdown is lived through, by
//! the same cores and under the same disturbance. Such reports are marked simulated, so that nobody takes them for an
//! engine's; two of them are compared with each other as any are.
//!
//! `judge` prints a line of JSON: the verdict, and what gates of several allowances say.
//!
//! `stack` prints what an execution takes in this process, in microseconds (the best of three times the 10th percentile
//! of 2,000), and where in its page a local variable lies: a process whose stack lies elsewhere may take longer.

use planforge_agent::HostDevices;
use planforge_backend::{
    Cancel, CompileRequest, CompiledPlan, Compiler, Events, LoadOptions, Meter, PlanIdentity, Window, WindowSamples,
};
use planforge_cpu::CpuCompiler;
use planforge_cuda::CudaCompiler;
use planforge_device::telemetry;
use planforge_report::{
    LayerTime, Report,
    compare::{compare, gate},
};
use planforge_types::{
    BackendError, EngineKey, HostTensor, NamedTensors, Port, Toolchain,
    fingerprint::{DeviceKind, DiscoveredDevice},
    order::{MeasureAsk, WorkEvent, WorkKind, WorkOrder},
};
use planforge_worker::job::{RunEnd, run};
use std::{
    error::Error,
    fs,
    hint::spin_loop,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const USAGE: &str =
    "statistics measure PLAN REPORT [SLOWER_PERCENT [BUDGET_S]] | judge BASE_REPORT OTHER_REPORT | stack PLAN";

/// Budget of one side where none is named: processes of about two seconds.
const BUDGET_S: u64 = 2;

/// Percent that gates allow.
const ALLOWED: [f64; 4] = [1.0, 2.0, 5.0, 10.0];

/// A native backend whose engines are slower than they are.
struct Slowed {
    inner: Box<dyn Compiler>,
    share: f64,
}

impl Compiler for Slowed {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn toolchains(&self, device: &DiscoveredDevice) -> Vec<Toolchain> {
        self.inner.toolchains(device)
    }

    fn check(&self, request: &CompileRequest) -> Result<(), BackendError> {
        self.inner.check(request)
    }

    fn compile(
        &self,
        request: &CompileRequest,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<CompiledPlan, BackendError> {
        self.inner.compile(request, events, cancel)
    }

    fn recognises(&self, head: &[u8]) -> bool {
        self.inner.recognises(head)
    }

    fn identify(&self, plan: &Path) -> Result<PlanIdentity, BackendError> {
        self.inner.identify(plan)
    }

    fn load(&self, plan: &Path, options: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        Ok(Box::new(SlowedMeter { inner: self.inner.load(plan, options)?, share: self.share }))
    }
}

struct SlowedMeter {
    inner: Box<dyn Meter>,
    share: f64,
}

impl Meter for SlowedMeter {
    fn inputs(&self) -> Vec<Port> {
        self.inner.inputs()
    }

    fn outputs(&self) -> Vec<Port> {
        self.inner.outputs()
    }

    fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError> {
        self.inner.bind(inputs)
    }

    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        self.inner.run()
    }

    fn window(&mut self, window: Window) -> Result<WindowSamples, BackendError> {
        let mut latency_ms = Vec::with_capacity(window.iterations as usize);
        for _ in 0..window.iterations {
            let one = self.inner.window(Window { iterations: 1, duration_ms: 0.0 })?;
            for took_ms in one.latency_ms {
                let began = Instant::now();
                let longer_ms = took_ms * self.share;
                while self.share > 0.0 && began.elapsed().as_secs_f64() * 1e3 < longer_ms {
                    spin_loop();
                }
                let spun_ms = if self.share > 0.0 { began.elapsed().as_secs_f64() * 1e3 } else { 0.0 };
                latency_ms.push(took_ms + spun_ms);
            }
        }
        Ok(WindowSamples { latency_ms })
    }

    fn pace_ns(&mut self) -> Option<f64> {
        self.inner.pace_ns()
    }

    fn layers(&mut self, _: u32) -> Result<Vec<LayerTime>, BackendError> {
        Ok(Vec::new())
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }
}

/// The native half whose plan it is, and the kind of device it is for.
fn compiler_of(plan: &Path) -> Outcome<(Box<dyn Compiler>, DeviceKind)> {
    let halves: [(Box<dyn Compiler>, DeviceKind); 2] =
        [(Box::new(CpuCompiler), DeviceKind::Cpu), (Box::new(CudaCompiler), DeviceKind::Gpu)];
    // Both know plans by the same container: whose it is stands inside.
    let found = halves.into_iter().find(|(compiler, _)| compiler.identify(plan).is_ok());
    found.ok_or_else(|| format!("{} is no native plan", plan.display()).into())
}

fn measure(plan: &Path, report: &Path, slower_percent: f64, budget_s: u64) -> Outcome<()> {
    let (inner, kind) = compiler_of(plan)?;
    let (again, _) = compiler_of(plan)?;
    let devices = HostDevices::new(vec![again], None).discover();
    let device = devices.into_iter().find(|device| device.fingerprint.kind == kind).ok_or("no device for the plan")?;
    let identity = inner.identify(plan)?;
    let scratch = PathBuf::from(format!("{}.scratch", report.display()));
    fs::create_dir_all(&scratch)?;
    let mut spec = identity.spec;
    spec.threads = spec.threads.or(identity.threads);
    let order = WorkOrder {
        kind: WorkKind::Benchmark,
        job: "statistics".into(),
        attempt: 1,
        agent: "this machine".into(),
        engine_key: EngineKey::new(&identity.model_digest, &identity.sku, &identity.toolchain, &spec),
        model: PathBuf::new(),
        model_name: identity.model_name,
        model_digest: identity.model_digest,
        graph_digest: None,
        structure_digest: None,
        sku: identity.sku,
        toolchain: identity.toolchain,
        spec,
        fingerprint: serde_json::to_value(&device.fingerprint)?,
        scratch: scratch.clone(),
        cache: None,
        cache_origin: None,
        prepared: None,
        prepare: None,
        prepared_from: None,
        ceilings: None,
        oracles: None,
        plan: Some(std::path::absolute(plan)?),
        built_for: None,
        eval: None,
        inputs: None,
        baselines: Vec::new(),
        calibration: None,
        plugins: Vec::new(),
        builds: 1,
        measure: MeasureAsk::default(),
        limit_ms: 0,
        measure_budget_ms: budget_s * 1000,
        strict_measure_budget: false,
        allow_inaccurate: true,
        simulated: true,
        trace: None,
    };
    let compilers: Vec<Box<dyn Compiler>> = vec![Box::new(Slowed { inner, share: slower_percent / 100.0 })];
    let mut last = None;
    let end = run(
        &order,
        &compilers,
        &telemetry::for_device,
        &mut |event| last = Some(event),
        &mut || Ok(()),
        &Cancel::default(),
    );
    match (end, last) {
        (RunEnd::Succeeded, Some(WorkEvent::Done { report: written, .. })) => {
            fs::copy(written, report)?;
            fs::remove_dir_all(scratch)?;
            Ok(())
        }
        (_, last) => Err(format!("the measurement ended with {last:?}").into()),
    }
}

fn judge(base: &Path, other: &Path) -> Outcome<()> {
    let read = |path: &Path| -> Outcome<Report> { Ok(serde_json::from_slice(&fs::read(path)?)?) };
    let reports = [read(base)?, read(other)?];
    let comparison = compare(&reports)?;
    let pair = &comparison.pairs[0];
    let gates: serde_json::Map<String, serde_json::Value> = ALLOWED
        .iter()
        .map(|allowed| {
            let limit = gate::Limit::of_median(*allowed);
            let outcome = gate::judge(&comparison, &reports, &[limit]).lines.first().map(|line| line.outcome);
            (allowed.to_string(), serde_json::json!(outcome))
        })
        .collect();
    let sides: Vec<serde_json::Value> = reports
        .iter()
        .map(|report| {
            let counted = report.windows.iter().filter(|window| window.tainted.is_empty() || window.kept_tainted);
            serde_json::json!({
                "median_ms": report.latency_ms.median,
                "low_ms": report.interval().ok().map(|interval| interval.low),
                "high_ms": report.interval().ok().map(|interval| interval.high),
                "windows": report.window_count(),
                "tainted": counted.filter(|window| window.kept_tainted).count(),
                "stop": report.experiment.stop,
                "elapsed_ms": report.experiment.elapsed_ms,
            })
        })
        .collect();
    let line = serde_json::json!({
        "verdict": pair.verdict, "ratio": pair.ratio, "low": pair.ratio_low, "high": pair.ratio_high,
        "reason": pair.reason, "gates": gates, "sides": sides,
    });
    Ok(writeln!(io::stdout(), "{line}")?)
}

fn stack(plan: &Path) -> Outcome<()> {
    let mut meter = CpuCompiler.load(plan, &LoadOptions::default())?;
    let inputs = meter.inputs().into_iter().map(|port| {
        let shape: Vec<usize> = port.shape.iter().map(|size| size.unwrap_or(1) as usize).collect();
        let values = vec![0.5; shape.iter().product()];
        (port.name, HostTensor::of_values(port.element, shape, &values))
    });
    meter.bind(&inputs.collect())?;
    let mut best_ms = f64::INFINITY;
    // The first round warms it up.
    for round in 0..4 {
        let mut took_ms = Vec::with_capacity(2000);
        for _ in 0..2000 {
            took_ms.extend(meter.window(Window { iterations: 1, duration_ms: 0.0 })?.latency_ms);
        }
        took_ms.sort_by(f64::total_cmp);
        best_ms = if round == 0 { best_ms } else { best_ms.min(took_ms[took_ms.len() / 10]) };
    }
    let local = 0u8;
    let offset = std::ptr::from_ref(std::hint::black_box(&local)).addr() % 4096;
    Ok(writeln!(io::stdout(), "{:.3} {offset:#05x}", best_ms * 1e3)?)
}

fn done(words: &[String]) -> Outcome<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["measure", plan, report, ref rest @ ..] if rest.len() <= 2 => {
            let slower = rest.first().map_or(Ok(0.0), |text| text.parse())?;
            let budget_s = rest.get(1).map_or(Ok(BUDGET_S), |text| text.parse())?;
            measure(Path::new(plan), Path::new(report), slower, budget_s)
        }
        ["judge", base, other] => judge(Path::new(base), Path::new(other)),
        ["stack", plan] => stack(Path::new(plan)),
        _ => Err(USAGE.into()),
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match done(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "statistics: {error}");
            ExitCode::FAILURE
        }
    }
}
