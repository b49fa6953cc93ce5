//! The benchmark as an experiment with a record, once for every backend.
//!
//! Warm-up → timed windows until the median's confidence interval is tight or the budget ends → statistics. The usual
//! budget never ends it before there are windows enough to be compared; one that somebody asked for does. The
//! device's state is read between windows, never inside one, and so is the pace of the CPU cores that the engine runs on
//! (what a fixed piece of work takes there). A window that was disturbed is discarded and measured again, a bounded
//! number of times, and the record says so (`record.rs`).
//!
//! The stopping rule is that of a sequential interval of fixed relative width (Chow and Robbins, *On the Asymptotic Theory
//! of Fixed-Width Sequential Confidence Intervals for the Mean*, 1965), with floors on windows, samples and time. Looking
//! again and again favours a width that is small by chance: intervals narrow enough to end a measurement pay for the looks
//! (`planforge_stats::interval`). Where windows resemble each other so much that there is no interval, the measurement
//! goes on as where it is too wide.
//!
//! Windows, and their parts, begin at places all over a page of the stack: where a process's stack lies by chance would
//! else be measured with the engine ([`planforge_backend::stack`]).
//!
//! Windows are long enough for what disturbs neighbours alike to pass, however quick the engine: of more executions
//! than a report has room for, evenly spread ones are kept of each window, and the record says of how many. Where every
//! window is a process of its own ([`Pacing::Process`]), it warms up by itself and decides how many executions fit.

mod record;
pub mod sweep;

use planforge_backend::{Cancel, Meter, Pacing, Window, stack::Places};
use planforge_device::telemetry::{Telemetry, contention};
use planforge_report::{
    Experiment, Finding, Seen, TelemetryPair, WindowRecord, disturbance,
    samples::{MAX_SAMPLES, whole_ns_ms},
};
use planforge_stats::{COMPARABLE_WINDOWS, LatencyStats};
use planforge_types::{BackendError, FailureClass, telemetry::TelemetrySample};
use record::{Measured, Record, Span};
use std::time::Instant;

/// A clock that only moves forward.
pub trait Clock {
    /// Milliseconds since some fixed moment.
    fn now_ms(&self) -> f64;
}

/// The monotonic clock of this machine.
#[derive(Debug)]
pub struct MonotonicClock(Instant);

impl Default for MonotonicClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for MonotonicClock {
    fn now_ms(&self) -> f64 {
        self.0.elapsed().as_secs_f64() * 1e3
    }
}

/// How an experiment is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasureConfig {
    /// Untimed executions go on at least this long, so that caches, clocks and threads settle.
    pub warm_up_ms: f64,
    pub warm_up_iterations: u64,
    /// Least warm-up that somebody asked for, however few executions that is of a slow engine, or many of a quick one.
    pub asked_warm_up_ms: f64,
    /// Usual length of one timed window.
    pub window_ms: f64,
    pub min_windows: usize,
    pub min_samples: u64,
    /// Timed executions go on at least this long, unless the sample limit comes first.
    pub min_duration_ms: f64,
    /// Half-width of the median's confidence interval, relative to the median, that ends the experiment.
    pub target_relative_ci: f64,
    /// Longest the whole experiment may take; a window that has begun is finished.
    pub budget_ms: f64,
    /// The budget ends the experiment even where it is too little for a comparison.
    pub strict_budget: bool,
    /// Disturbed windows that are measured again before they are taken as they are.
    pub max_discarded_windows: usize,
    /// Threads the engine runs on; decides how much waiting counts as disturbance.
    pub threads: u32,
}

impl MeasureConfig {
    /// The usual experiment within `budget_ms`, and for as long as it takes to be worth comparing, for an engine of
    /// `threads` CPU threads (1 for a GPU).
    pub fn within(budget_ms: f64, threads: u32) -> Self {
        Self {
            warm_up_ms: (budget_ms * 0.1).min(200.0),
            warm_up_iterations: 3,
            asked_warm_up_ms: 0.0,
            window_ms: 100.0,
            min_windows: COMPARABLE_WINDOWS,
            min_samples: 20,
            min_duration_ms: (budget_ms * 0.25).min(1000.0),
            target_relative_ci: planforge_stats::NARROW,
            budget_ms,
            strict_budget: false,
            max_discarded_windows: 8,
            threads,
        }
    }

    /// At least as long a warm-up and as many windows as somebody asked for.
    pub fn at_least(mut self, warm_up_ms: u32, windows: u32) -> Self {
        self.asked_warm_up_ms = f64::from(warm_up_ms);
        self.warm_up_ms = self.warm_up_ms.max(self.asked_warm_up_ms);
        self.min_windows = self.min_windows.max(windows as usize);
        self
    }

    /// Most samples kept of one window: the sample limit then has room for windows enough to know the median by.
    fn max_kept(&self) -> usize {
        (MAX_SAMPLES / self.min_windows.max(USUAL_MOST_WINDOWS)).max(1)
    }
}

/// Windows that the sample limit has room for, where nobody asks for more.
const USUAL_MOST_WINDOWS: usize = 50;

/// Most executions of one window, so that what is thinned out of the quickest engine's takes some MiB at most.
const MAX_WINDOW_ITERATIONS: u32 = 1_000_000;

/// Executions that a window of a slow engine has at least, where the window's length is a time.
const MIN_PROCESS_ITERATIONS: u32 = 10;

/// Share of the budget that warming up may take; slow engines are warm after one execution.
const WARM_UP_SHARE: f64 = 0.25;

/// How often the cores' pace is taken before the first window, so that one disturbance does not pass for their best.
const PACES_BEFORE: usize = 5;

/// Parts of a window between which the cores' pace is taken: neighbours come and go within tenths of a second.
const PACED_PARTS: u32 = 4;

/// How long quiet windows are waited for while disturbed ones count, where the budget allows.
const QUIET_WAIT_MS: f64 = 3000.0;

/// Share of the budget after which disturbed windows are taken as they are.
const DISCARD_SHARE: f64 = 0.5;

/// What an experiment found.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    pub stats: LatencyStats,
    /// Every counted latency in milliseconds, whole nanoseconds, in the order measured.
    pub samples: Vec<f64>,
    pub windows: Vec<WindowRecord>,
    pub experiment: Experiment,
    pub telemetry: TelemetryPair,
    pub findings: Vec<Finding>,
}

impl Measurement {
    /// Whether not one of the windows that count was quiet.
    pub fn wholly_disturbed(&self) -> bool {
        disturbance::first_reason(&self.windows).is_some()
    }
}

/// What to tell before an experiment whose windows cost more than their time: how long the least of it takes.
pub fn announced(pacing: Pacing, config: &MeasureConfig) -> Option<String> {
    let Pacing::Process { window_ms, warm_up_ms } = pacing else { return None };
    let each_s = (window_ms.max(config.window_ms) + warm_up_ms) / 1e3;
    let least_s = each_s * config.min_windows as f64;
    let (windows, budget_s) = (config.min_windows, config.budget_ms / 1e3);
    let ends = match config.strict_budget {
        true => format!("the {budget_s:.0} s that were asked for may end it before, and then nothing can be compared"),
        false => format!("also where that is more than the usual budget of {budget_s:.0} s"),
    };
    Some(format!(
        "every timed window is a process of its own: the {windows} that a comparison takes need at least {least_s:.0} s, and \
         loading the engine {windows} times, {ends}"
    ))
}

/// Warms `meter` up and times it; its inputs are bound already.
pub fn measure(
    meter: &mut dyn Meter,
    telemetry: &mut dyn Telemetry,
    clock: &dyn Clock,
    config: &MeasureConfig,
    cancel: &Cancel,
) -> Result<Measurement, BackendError> {
    let pacing = meter.pacing();
    let places = Places::default();
    let mut run = Run { meter, clock, config, cancel, pacing, places, began_ms: clock.now_ms() };
    let outside = run.judge(telemetry.outside(), &TelemetrySample::default())?;
    let warm_up = run.warm_up()?;
    let window = run.layout(&warm_up);
    let timed_from_ms = clock.now_ms();

    let before = run.look(telemetry, &TelemetrySample::default())?;
    let mut last = before.clone();
    let mut readings = vec![before.clone()];
    let mut record = Record::default();
    let mut pace_ns = None;
    for _ in 0..PACES_BEFORE {
        pace_ns = run.meter.pace_ns();
        record.saw_pace(pace_ns);
    }
    let stop = loop {
        run.check_cancelled()?;
        let (timed, slowest_ns) = run.paced_window(window, &mut pace_ns)?;
        let (timed, thinned_from) = thin(timed, config.max_kept().min(MAX_SAMPLES - record.sample_count()));
        let after = run.look(telemetry, &last)?;
        let tainted = contention::assess(&last, &after, timed.duration_ms, config.threads);
        let energy_uj = run.energy_uj(&last, &after);
        let span = Span { from_unix_ms: last.at_unix_ms, to_unix_ms: after.at_unix_ms };
        let elapsed_ms = clock.now_ms() - run.began_ms;
        // Measuring again needs time: near the end of the budget a disturbed window is better than none.
        let most = if elapsed_ms < config.budget_ms * DISCARD_SHARE { config.max_discarded_windows } else { 0 };
        record.taint_earlier(&after.passed_processes, config, most);
        let measured = Measured { timed, thinned_from, span, tainted, pace_ns: slowest_ns, energy_uj };
        record.add(measured, config, most);
        readings.push(after.clone());
        last = after;
        let stop = |record: &Record| record.stop(config, elapsed_ms, clock.now_ms() - timed_from_ms);
        if stop(&record).is_none() {
            continue;
        }
        // What the driver tells late may still take windows away.
        telemetry.settle();
        last = run.look(telemetry, &last)?;
        record.taint_earlier(&last.passed_processes, config, most);
        if let Some(reason) = stop(&record) {
            break reason;
        }
    };
    let stats = record.stats().ok_or_else(|| {
        BackendError::new(FailureClass::Unstable, "every timed window was disturbed, so nothing was measured")
    })?;
    let experiment = Experiment {
        warm_up_iterations: warm_up.iterations,
        warm_up_ms: warm_up.duration_ms,
        min_samples: config.min_samples,
        min_duration_ms: config.min_duration_ms,
        min_warm_up_ms: Some(warm_up.least_ms),
        min_windows: Some(config.min_windows as u64),
        target_relative_ci: config.target_relative_ci,
        budget_ms: config.budget_ms,
        elapsed_ms: clock.now_ms() - run.began_ms,
        stop,
    };
    let findings = record.findings(&stats, &experiment);
    let telemetry = TelemetryPair { before, after: last, seen: Some(Seen::of(&outside, &readings)) };
    Ok(Measurement { stats, samples: record.samples(), windows: record.windows(), experiment, telemetry, findings })
}

/// One experiment under way.
struct Run<'a> {
    meter: &'a mut dyn Meter,
    clock: &'a dyn Clock,
    config: &'a MeasureConfig,
    cancel: &'a Cancel,
    pacing: Pacing,
    places: Places,
    began_ms: f64,
}

/// One window: its latencies in whole nanoseconds, and how long it took from outside.
struct Timed {
    latencies: Vec<f64>,
    duration_ms: f64,
}

/// At most `most` of a window's latencies, evenly spread, and how many there were if that left any out.
fn thin(timed: Timed, most: usize) -> (Timed, Option<u64>) {
    let executed = timed.latencies.len();
    if executed <= most {
        return (timed, None);
    }
    let latencies = (0..most).map(|index| timed.latencies[index * executed / most]).collect();
    (Timed { latencies, ..timed }, Some(executed as u64))
}

struct WarmUp {
    iterations: u64,
    duration_ms: f64,
    /// What it had to take at least.
    least_ms: f64,
    /// What an execution of the last warm-up window took, with what is spent between two of them.
    each_ms: f64,
}

impl Run<'_> {
    fn check_cancelled(&self) -> Result<(), BackendError> {
        if self.cancel.is_cancelled() {
            return Err(BackendError::new(FailureClass::Infrastructure, "the measurement was cancelled"));
        }
        Ok(())
    }

    /// Reads the device's state after a window. A device that is lost since `before` ends the measurement.
    fn look(&self, telemetry: &mut dyn Telemetry, before: &TelemetrySample) -> Result<TelemetrySample, BackendError> {
        self.judge(telemetry.sample(), before)
    }

    fn judge(&self, mut sample: TelemetrySample, before: &TelemetrySample) -> Result<TelemetrySample, BackendError> {
        if let Some(reason) = contention::device_lost(before, &sample) {
            return Err(BackendError::device_lost(&reason));
        }
        // Nobody can tell a window's own process from another one once both are gone.
        if let Pacing::Process { .. } = self.pacing {
            sample.passed_processes.clear();
            sample.looked_in.clear();
        }
        Ok(sample)
    }

    /// What the device used between two readings. That of a window's own process would be the loading's, too.
    fn energy_uj(&self, before: &TelemetrySample, after: &TelemetrySample) -> Option<u64> {
        let (from, to) = before.energy_uj.zip(after.energy_uj)?;
        let counts = self.pacing == Pacing::Iterations;
        to.checked_sub(from).filter(|_| counts)
    }

    /// Runs growing windows until both minimums are met; always at least one execution.
    fn warm_up(&mut self) -> Result<WarmUp, BackendError> {
        if let Pacing::Process { warm_up_ms, .. } = self.pacing {
            return Ok(WarmUp { iterations: 0, duration_ms: warm_up_ms, least_ms: warm_up_ms, each_ms: 0.0 });
        }
        let MeasureConfig { asked_warm_up_ms: asked_ms, warm_up_ms: least_ms, .. } = *self.config;
        let limit_ms = self.config.budget_ms * WARM_UP_SHARE;
        let mut iterations = 0;
        let mut size = 1;
        loop {
            self.check_cancelled()?;
            let window = self.window(Window { iterations: size, duration_ms: 0.0 })?;
            let latency_ms = planforge_stats::median(&window.latencies);
            let each_ms = latency_ms.max(window.duration_ms / f64::from(size)).max(1e-6);
            iterations += u64::from(size);
            let duration_ms = self.clock.now_ms() - self.began_ms;
            let warm = iterations >= self.config.warm_up_iterations && duration_ms >= least_ms;
            let is_enough = duration_ms >= limit_ms || iterations >= u64::from(MAX_WINDOW_ITERATIONS);
            if warm || (is_enough && duration_ms >= asked_ms) {
                return Ok(WarmUp { iterations, duration_ms, least_ms, each_ms });
            }
            let fits = (self.config.warm_up_ms / 4.0 / each_ms) as u32;
            size = fits.clamp(1, (size * 2).min(MAX_WINDOW_ITERATIONS));
        }
    }

    /// How long each timed window is.
    fn layout(&self, warm_up: &WarmUp) -> Window {
        match self.pacing {
            Pacing::Iterations => {
                let fits = (self.config.window_ms / warm_up.each_ms) as u32;
                let iterations = fits.clamp(1, MAX_WINDOW_ITERATIONS);
                Window { iterations, duration_ms: self.config.window_ms }
            }
            Pacing::Process { window_ms, .. } => {
                Window { iterations: MIN_PROCESS_ITERATIONS, duration_ms: window_ms.max(self.config.window_ms) }
            }
        }
    }

    /// A timed window, and the slowest pace that the cores had within it, taken between its parts. `pace_ns` is the one
    /// before it, and the last one afterwards.
    fn paced_window(
        &mut self,
        window: Window,
        pace_ns: &mut Option<f64>,
    ) -> Result<(Timed, Option<f64>), BackendError> {
        let Some(mut slowest_ns) = *pace_ns else { return Ok((self.window(window)?, None)) };
        let parts = PACED_PARTS.min(window.iterations);
        let upto = |part: u32| (u64::from(window.iterations) * u64::from(part) / u64::from(parts)) as u32;
        let mut whole = Timed { latencies: Vec::with_capacity(window.iterations as usize), duration_ms: 0.0 };
        for part in 0..parts {
            let timed = self.window(Window { iterations: upto(part + 1) - upto(part), ..window })?;
            whole.latencies.extend(timed.latencies);
            whole.duration_ms += timed.duration_ms;
            *pace_ns = self.meter.pace_ns();
            slowest_ns = slowest_ns.max(pace_ns.unwrap_or_default());
        }
        Ok((whole, Some(slowest_ns)))
    }

    fn window(&mut self, window: Window) -> Result<Timed, BackendError> {
        let iterations = window.iterations;
        let from_ms = self.clock.now_ms();
        let raw = self.places.run(|| self.meter.window(window))?.latency_ms;
        let duration_ms = self.clock.now_ms() - from_ms;
        let count_fits = match self.pacing {
            Pacing::Iterations => raw.len() == iterations as usize,
            Pacing::Process { .. } => !raw.is_empty(),
        };
        if !count_fits || raw.iter().any(|ms| !ms.is_finite() || *ms < 0.0) {
            return Err(BackendError::new(
                FailureClass::Infrastructure,
                format!(
                    "the backend returned {} latencies, not all of them sound, for {iterations} executions",
                    raw.len()
                ),
            ));
        }
        Ok(Timed { latencies: raw.into_iter().map(whole_ns_ms).collect(), duration_ms })
    }
}

/// The part of a reason before its figures, so that a list of reasons names each kind once.
fn reason_kind(reason: &str) -> &str {
    reason.split(':').next().unwrap_or(reason)
}

#[cfg(test)]
mod tests;
