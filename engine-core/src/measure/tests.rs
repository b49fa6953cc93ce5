//! Experiments on a scripted engine, clock and device state: nothing here depends on real time.

use super::*;
use crate::{
    backend::{LayerTime, NamedTensors, Port},
    report::Samples,
    telemetry::{CpuTime, TelemetrySample},
};
use std::{
    cell::Cell,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Time that passes only when a scripted execution takes it.
#[derive(Clone, Default)]
struct ScriptedClock(Rc<Cell<f64>>);

impl Clock for ScriptedClock {
    fn now_ms(&self) -> f64 {
        self.0.get()
    }
}

/// An engine whose n-th execution takes `latency(n)`.
struct ScriptedMeter<F> {
    clock: ScriptedClock,
    latency: F,
    executions: u64,
    windows: Arc<AtomicUsize>,
}

impl<F: FnMut(u64) -> f64> Meter for ScriptedMeter<F> {
    fn inputs(&self) -> Vec<Port> {
        Vec::new()
    }
    fn outputs(&self) -> Vec<Port> {
        Vec::new()
    }
    fn bind(&mut self, _: &NamedTensors) -> Result<(), BackendError> {
        Ok(())
    }
    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        Ok(NamedTensors::new())
    }
    fn window(&mut self, window: Window) -> Result<crate::backend::WindowSamples, BackendError> {
        self.windows.fetch_add(1, Ordering::Relaxed);
        let mut latency_ms = Vec::new();
        for _ in 0..window.iterations {
            let latency = (self.latency)(self.executions);
            self.executions += 1;
            self.clock.0.set(self.clock.0.get() + latency.max(0.0));
            latency_ms.push(latency);
        }
        Ok(crate::backend::WindowSamples { latency_ms })
    }
    fn layers(&mut self, _: u32) -> Result<Vec<LayerTime>, BackendError> {
        Ok(Vec::new())
    }
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// A device whose n-th sample says that the engine had waited in the window before it, when `disturbed(n)`.
struct ScriptedTelemetry<F> {
    disturbed: F,
    taken: usize,
    waited_ms: f64,
}

impl<F: FnMut(usize) -> bool + Send> Telemetry for ScriptedTelemetry<F> {
    fn sample(&mut self) -> TelemetrySample {
        if (self.disturbed)(self.taken) {
            self.waited_ms += 50.0;
        }
        self.taken += 1;
        let time = CpuTime { own_wait_ms: self.waited_ms, ..CpuTime::default() };
        TelemetrySample { cpu_time: Some(time), ..TelemetrySample::default() }
    }
}

fn quiet() -> ScriptedTelemetry<impl FnMut(usize) -> bool + Send> {
    disturbed_when(|_| false)
}

fn disturbed_when<F: FnMut(usize) -> bool + Send>(disturbed: F) -> ScriptedTelemetry<F> {
    ScriptedTelemetry { disturbed, taken: 0, waited_ms: 0.0 }
}

fn meter<F: FnMut(u64) -> f64>(latency: F) -> ScriptedMeter<F> {
    ScriptedMeter { clock: ScriptedClock::default(), latency, executions: 0, windows: Arc::default() }
}

fn experiment<F: FnMut(u64) -> f64>(
    mut meter: ScriptedMeter<F>,
    telemetry: &mut dyn Telemetry,
    budget_ms: f64,
) -> Result<Measurement, BackendError> {
    let clock = meter.clock.clone();
    measure(&mut meter, telemetry, &clock, &MeasureConfig::within(budget_ms, 1), &Cancel::default())
}

/// Latencies around `centre` that repeat without drifting.
fn steady(centre: f64) -> impl FnMut(u64) -> f64 {
    move |n| centre * (1.0 + ((n * 7919) % 101) as f64 / 10_000.0)
}

#[test]
fn a_steady_engine_is_measured_until_confident() {
    let found = experiment(meter(steady(2.0)), &mut quiet(), 60_000.0).unwrap();
    assert_eq!(found.experiment.stop, StopReason::Confident);
    assert!((found.stats.median - 2.01).abs() < 0.001, "{:?}", found.stats);
    assert!(found.samples.iter().sum::<f64>() >= found.experiment.min_duration_ms);
    assert!(found.experiment.warm_up_ms >= 200.0 && found.experiment.warm_up_iterations >= 3);
    assert!(found.experiment.elapsed_ms < 3_000.0, "tight at once: {}", found.experiment.elapsed_ms);
    assert_eq!(found.findings, []);
}

#[test]
fn the_slow_first_executions_never_count() {
    let mut warm = steady(1.0);
    let found = experiment(meter(move |n| if n < 5 { 30.0 } else { warm(n) }), &mut quiet(), 60_000.0).unwrap();
    assert!(found.stats.max < 2.0, "{:?}", found.stats);
}

#[test]
fn every_number_can_be_derived_again_from_the_samples() {
    let disturbed = |n| n % 3 == 1;
    let found = experiment(meter(|n| 1.0 + (n % 17) as f64 / 7.0), &mut disturbed_when(disturbed), 20_000.0).unwrap();
    let kept = Samples::encode(&found.samples).decode().unwrap();
    let counted = found.windows.iter().filter(|w| w.tainted.is_empty() || w.kept_tainted);
    let sizes: Vec<usize> = counted.map(|w| w.iterations as usize).collect();
    assert!(sizes.len() < found.windows.len());
    assert_eq!(stats::latency_stats(&kept, &sizes), Some(found.stats));
}

#[test]
fn a_noisy_engine_ends_with_its_budget_and_says_so() {
    // Windows of alternating speed: the median stays unknown.
    let found = experiment(meter(|n| if (n / 40) % 2 == 0 { 1.0 } else { 3.0 }), &mut quiet(), 2_000.0).unwrap();
    assert_eq!(found.experiment.stop, StopReason::BudgetSpent);
    assert!(found.experiment.elapsed_ms < 2_400.0, "one window past the budget at most");
    assert_eq!(found.findings.iter().map(|f| f.code.as_str()).collect::<Vec<_>>(), ["not-confident"]);
}

#[test]
fn an_execution_longer_than_the_budget_still_gives_a_sample() {
    let found = experiment(meter(|_| 5_000.0), &mut quiet(), 1_000.0).unwrap();
    assert_eq!((found.stats.count, found.experiment.stop), (1, StopReason::BudgetSpent));
    assert_eq!(found.experiment.warm_up_iterations, 1);
}

#[test]
fn a_very_fast_engine_stops_at_the_sample_limit() {
    let found = experiment(meter(|n| if n % 1000 < 500 { 0.001 } else { 0.002 }), &mut quiet(), 60_000.0).unwrap();
    assert!(found.samples.len() <= MAX_SAMPLES);
    assert_ne!(found.experiment.stop, StopReason::BudgetSpent);
}

#[test]
fn disturbed_windows_are_measured_again() {
    let found = experiment(meter(steady(2.0)), &mut disturbed_when(|n| n == 2 || n == 4), 60_000.0).unwrap();
    let tainted: Vec<bool> = found.windows.iter().map(|w| !w.tainted.is_empty()).collect();
    assert_eq!(&tainted[..4], [false, true, false, true]);
    assert!(found.windows.iter().all(|w| !w.kept_tainted));
    let counted: usize = found.windows.iter().filter(|w| w.tainted.is_empty()).map(|w| w.iterations as usize).sum();
    assert_eq!(counted, found.samples.len());
    assert_eq!(found.findings.iter().map(|f| f.code.as_str()).collect::<Vec<_>>(), ["remeasured"]);
}

#[test]
fn a_device_that_is_always_disturbed_is_measured_a_bounded_number_of_times() {
    let meter = meter(steady(2.0));
    let windows = meter.windows.clone();
    let found = experiment(meter, &mut disturbed_when(|_| true), 60_000.0).unwrap();
    let discarded = found.windows.iter().filter(|w| !w.tainted.is_empty() && !w.kept_tainted).count();
    assert_eq!(discarded, 8);
    assert!(windows.load(Ordering::Relaxed) < 60);
    assert_eq!(found.findings[0].code, "contention");
    assert_eq!(found.findings[0].severity, Severity::Warning);
}

#[test]
fn disturbance_does_not_outlast_the_budget() {
    let found = experiment(meter(|_| 400.0), &mut disturbed_when(|_| true), 2_000.0).unwrap();
    assert_eq!(found.experiment.stop, StopReason::BudgetSpent);
    assert!(found.experiment.elapsed_ms < 3_000.0, "{}", found.experiment.elapsed_ms);
    assert!(found.stats.count >= 1 && found.windows.iter().any(|w| w.kept_tainted));
}

#[test]
fn unsound_latencies_are_refused() {
    let error = experiment(meter(|n| if n == 5 { f64::NAN } else { 1.0 }), &mut quiet(), 1_000.0).unwrap_err();
    assert!(error.message.contains("not all of them sound"), "{error}");
}

#[test]
fn cancelling_ends_the_measurement() {
    let cancel = Cancel::default();
    let mut scripted = meter({
        let cancel = cancel.clone();
        move |n| {
            if n == 30 {
                cancel.cancel();
            }
            1.0
        }
    });
    let clock = scripted.clock.clone();
    let config = MeasureConfig::within(60_000.0, 1);
    let error = measure(&mut scripted, &mut quiet(), &clock, &config, &cancel).unwrap_err();
    assert!(error.message.contains("cancelled"));
    assert!(scripted.executions < 200);
}

/// An engine whose every window is a process: it runs as long as asked, in steps of one millisecond.
struct ProcessMeter<M>(M);

impl<F: FnMut(u64) -> f64> Meter for ProcessMeter<ScriptedMeter<F>> {
    fn inputs(&self) -> Vec<Port> {
        Vec::new()
    }
    fn outputs(&self) -> Vec<Port> {
        Vec::new()
    }
    fn bind(&mut self, _: &NamedTensors) -> Result<(), BackendError> {
        Ok(())
    }
    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        Ok(NamedTensors::new())
    }
    fn window(&mut self, window: Window) -> Result<crate::backend::WindowSamples, BackendError> {
        let until_ms = self.0.clock.now_ms() + window.duration_ms;
        let mut latency_ms = Vec::new();
        while latency_ms.len() < window.iterations as usize || self.0.clock.now_ms() < until_ms {
            let one = self.0.window(Window { iterations: 1, duration_ms: 0.0 })?;
            latency_ms.extend(one.latency_ms);
        }
        Ok(crate::backend::WindowSamples { latency_ms })
    }
    fn layers(&mut self, _: u32) -> Result<Vec<LayerTime>, BackendError> {
        Ok(Vec::new())
    }
    fn memory_bytes(&self) -> u64 {
        0
    }
    fn pacing(&self) -> Pacing {
        Pacing::Process { window_ms: 500.0, min_windows: 3, warm_up_ms: 200.0 }
    }
}

#[test]
fn windows_that_are_processes_warm_themselves_and_keep_evenly_spread_samples() {
    let inner = meter(|n| if n % 2 == 0 { 0.1 } else { 0.1001 });
    let clock = inner.clock.clone();
    let mut paced = ProcessMeter(inner);
    let config = MeasureConfig::within(20_000.0, 1);
    let found = measure(&mut paced, &mut quiet(), &clock, &config, &Cancel::default()).unwrap();
    assert_eq!(found.experiment.stop, StopReason::Confident);
    assert_eq!((found.experiment.warm_up_iterations, found.experiment.warm_up_ms), (0, 200.0));
    assert!(found.windows.len() >= 3);
    let window = &found.windows[0];
    // 500 ms of 0.1 ms are thousands of executions; a tenth of the room for samples is kept of each window.
    assert!(window.thinned_from.is_some_and(|all| all > 4900), "{window:?}");
    assert_eq!(window.iterations, MAX_WINDOW_ITERATIONS);
    assert_eq!(found.samples.len(), found.windows.len() * MAX_WINDOW_ITERATIONS as usize);
}
