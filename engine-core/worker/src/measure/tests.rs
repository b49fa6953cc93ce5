//! Experiments on a scripted engine, clock and device state: nothing here depends on real time.

use super::*;
use planforge_report::{LayerTime, Samples, Severity, StopReason};
use planforge_types::{
    NamedTensors, Port,
    telemetry::{CpuTime, ForeignProcess, PassedProcess, TelemetrySample},
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
    /// The cores' pace while the n-th part of a window is the last one.
    pace_ns: Option<fn(usize) -> f64>,
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
    fn window(&mut self, window: Window) -> Result<planforge_backend::WindowSamples, BackendError> {
        self.windows.fetch_add(1, Ordering::Relaxed);
        let mut latency_ms = Vec::new();
        for _ in 0..window.iterations {
            let latency = (self.latency)(self.executions);
            self.executions += 1;
            self.clock.0.set(self.clock.0.get() + latency.max(0.0));
            latency_ms.push(latency);
        }
        Ok(planforge_backend::WindowSamples { latency_ms })
    }
    fn layers(&mut self, _: u32) -> Result<Vec<LayerTime>, BackendError> {
        Ok(Vec::new())
    }
    fn memory_bytes(&self) -> u64 {
        0
    }
    fn pace_ns(&mut self) -> Option<f64> {
        self.pace_ns.map(|pace_ns| pace_ns(self.windows.load(Ordering::Relaxed)))
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

    fn outside(&mut self) -> TelemetrySample {
        TelemetrySample::default()
    }
}

fn quiet() -> ScriptedTelemetry<impl FnMut(usize) -> bool + Send> {
    disturbed_when(|_| false)
}

fn disturbed_when<F: FnMut(usize) -> bool + Send>(disturbed: F) -> ScriptedTelemetry<F> {
    ScriptedTelemetry { disturbed, taken: 0, waited_ms: 0.0 }
}

fn meter<F: FnMut(u64) -> f64>(latency: F) -> ScriptedMeter<F> {
    ScriptedMeter { clock: ScriptedClock::default(), latency, executions: 0, windows: Arc::default(), pace_ns: None }
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
fn intervals_hold_the_median_where_windows_resemble_their_neighbours() {
    use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};
    // Twenty executions a window; each window's level is half the one before and something new, 0.6 % of the whole.
    let (trials, centre) = (100, 5.0);
    let held = (0..trials).filter(|seed| {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(*seed);
        let mut normal = move || (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
        let mut level = normal();
        let mut scripted = meter(move |n| {
            if n % 20 == 0 {
                level = 0.5 * level + 0.75f64.sqrt() * normal();
            }
            centre * (1.0 + 0.006 * level + 0.006 * normal())
        });
        let clock = scripted.clock.clone();
        let config = MeasureConfig::within(20_000.0, 1);
        let found = measure(&mut scripted, &mut quiet(), &clock, &config, &Cancel::default()).unwrap();
        found.stats.interval.is_ok_and(|interval| interval.low <= centre && centre <= interval.high)
    });
    let held = held.count();
    assert!(held >= 94, "{held} of {trials}");
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
    assert_eq!(planforge_stats::latency_stats(&kept, &sizes), Some(found.stats));
}

#[test]
fn a_noisy_engine_ends_with_its_budget_and_says_so() {
    // Windows of alternating speed: the median stays unknown.
    let found = experiment(meter(|n| if (n / 40) % 2 == 0 { 1.0 } else { 3.0 }), &mut quiet(), 2_000.0).unwrap();
    assert_eq!(found.experiment.stop, StopReason::BudgetSpent);
    assert!(found.experiment.elapsed_ms < 2_400.0, "one window past the budget at most");
    assert_eq!(found.findings.iter().map(|f| f.code.as_str()).collect::<Vec<_>>(), ["not-confident"]);
}

/// As [`experiment`], where somebody asked for just this budget.
fn strict_experiment<F: FnMut(u64) -> f64>(
    mut meter: ScriptedMeter<F>,
    telemetry: &mut dyn Telemetry,
    budget_ms: f64,
) -> Result<Measurement, BackendError> {
    let clock = meter.clock.clone();
    let config = MeasureConfig { strict_budget: true, ..MeasureConfig::within(budget_ms, 1) };
    measure(&mut meter, telemetry, &clock, &config, &Cancel::default())
}

fn codes(found: &Measurement) -> Vec<&str> {
    found.findings.iter().map(|finding| finding.code.as_str()).collect()
}

#[test]
fn an_execution_longer_than_a_budget_that_was_asked_for_still_gives_a_sample() {
    let found = strict_experiment(meter(|_| 5_000.0), &mut quiet(), 1_000.0).unwrap();
    assert_eq!((found.stats.count, found.experiment.stop), (1, StopReason::BudgetSpent));
    assert_eq!(
        (found.experiment.warm_up_iterations, found.stats.interval),
        (1, Err(planforge_stats::NoInterval::OneWindow))
    );
    assert_eq!(codes(&found), ["not-confident", "too-few-windows"]);
    assert!(found.findings[0].message.starts_with("the median has no interval"), "{:?}", found.findings);
    let words = &found.findings[1].message;
    assert!(words.starts_with("no comparison is possible") && words.contains("1 of the 5 windows"), "{words}");
}

#[test]
fn the_usual_budget_never_ends_before_there_is_something_to_compare() {
    // One execution a window: each of them alone would spend the budget.
    let found = experiment(meter(|n| 5_000.0 + n as f64), &mut quiet(), 1_000.0).unwrap();
    assert_eq!(found.experiment.stop, StopReason::BudgetSpent);
    // Six samples: fewer have no interval worth the name, and cannot be compared either.
    assert_eq!((found.windows.len(), found.stats.count), (6, 6));
    assert!(found.stats.interval.is_ok_and(|interval| interval.confidence >= planforge_stats::CI_CONFIDENCE));
    assert_eq!(codes(&found), ["not-confident"]);
}

#[test]
fn windows_that_are_taken_away_later_do_not_count_for_the_least() {
    // The driver tells only after the sixth window that somebody passed through the first two.
    let passing = |taken: u64, sample: &mut TelemetrySample| {
        if taken == 6 {
            sample.passed_processes.extend([passed_in(0), passed_in(1)]);
        }
    };
    let long = MeasureConfig { budget_ms: 20_000.0, min_duration_ms: 0.0, ..MeasureConfig::within(1.0, 1) };
    let mut scripted = meter(|n| 1_500.0 + n as f64);
    let clock = scripted.clock.clone();
    let found = measure(&mut scripted, &mut gpu(passing), &clock, &long, &Cancel::default()).unwrap();
    let counted = found.windows.iter().filter(|window| window.tainted.is_empty() || window.kept_tainted).count();
    assert!(counted >= COMPARABLE_WINDOWS, "{:?}", found.windows);
    assert_consistent(&found);
}

#[test]
fn a_very_fast_engine_stops_at_the_sample_limit() {
    // Windows of alternating speed: the median stays unknown.
    let windows = Arc::<AtomicUsize>::default();
    let counter = windows.clone();
    let alternating = meter(move |_| if counter.load(Ordering::Relaxed) % 2 == 0 { 0.001 } else { 0.002 });
    let found = experiment(ScriptedMeter { windows, ..alternating }, &mut quiet(), 60_000.0).unwrap();
    assert_eq!(found.experiment.stop, StopReason::SampleLimit);
    assert_eq!((found.samples.len(), found.windows.len()), (MAX_SAMPLES, 50));
    assert_consistent(&found);
}

#[test]
fn windows_of_very_fast_engines_are_as_long_as_any() {
    // A tenth of the executions waits for something: for 8 ms each time, so that short windows would be alike.
    let mut scripted = meter(|n| if n % 16_000 < 1_600 { 0.01 } else { 0.005 });
    let clock = scripted.clock.clone();
    let config = MeasureConfig::within(20_000.0, 1);
    let found = measure(&mut scripted, &mut quiet(), &clock, &config, &Cancel::default()).unwrap();
    let executed: Vec<u64> = found.windows.iter().filter_map(|window| window.thinned_from).collect();
    assert_eq!(executed.len(), found.windows.len());
    assert!(found.windows.iter().all(|window| window.duration_ms >= 80.0), "{:?}", found.windows);
    assert!(found.windows.iter().all(|window| window.iterations as usize == config.max_kept()));
    // What is kept is what there was: a tenth of it slow.
    let slow = found.samples.iter().filter(|ms| **ms > 0.007).count() as f64 / found.samples.len() as f64;
    assert!((0.05..0.15).contains(&slow), "{slow}");
    assert_eq!(found.experiment.stop, StopReason::Confident);
    assert_consistent(&found);
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
    let slow = || meter(|_| 400.0);
    let found = strict_experiment(slow(), &mut disturbed_when(|_| true), 2_000.0).unwrap();
    assert_eq!(found.experiment.stop, StopReason::BudgetSpent);
    assert!(found.experiment.elapsed_ms < 3_000.0, "{}", found.experiment.elapsed_ms);
    assert!(found.stats.count >= 1 && found.windows.iter().any(|w| w.kept_tainted));
    // For a comparison it goes on, and takes every window as it is.
    let found = experiment(slow(), &mut disturbed_when(|_| true), 2_000.0).unwrap();
    assert_eq!((found.experiment.stop, found.stats.count), (StopReason::BudgetSpent, 6));
    assert!(found.experiment.elapsed_ms < 4_000.0, "{}", found.experiment.elapsed_ms);
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

/// A GPU whose samples are a script: what it changes in a healthy one's n-th sample, which is taken at 1000 + 100 n ms.
struct ScriptedGpu<F> {
    change: F,
    taken: u64,
    settled: u32,
}

impl<F: FnMut(u64, &mut TelemetrySample) + Send> Telemetry for ScriptedGpu<F> {
    fn sample(&mut self) -> TelemetrySample {
        let at_unix_ms = SPAN_MS * (10 + self.taken);
        let mut sample = TelemetrySample {
            at_unix_ms,
            sm_clock_mhz: Some(1980),
            memory_used_mib: Some(750),
            ecc_uncorrected: Some(0),
            ..TelemetrySample::default()
        };
        (self.change)(self.taken, &mut sample);
        self.taken += 1;
        sample
    }

    fn outside(&mut self) -> TelemetrySample {
        TelemetrySample { utilization_percent: Some(4.0), ..TelemetrySample::default() }
    }

    fn settle(&mut self) {
        self.settled += 1;
    }
}

const SPAN_MS: u64 = 100;

fn gpu<F: FnMut(u64, &mut TelemetrySample) + Send>(change: F) -> ScriptedGpu<F> {
    ScriptedGpu { change, taken: 0, settled: 0 }
}

/// Somebody used the device at about the middle of the n-th window.
fn passed_in(window: u64) -> PassedProcess {
    let middle = SPAN_MS * (10 + window) + SPAN_MS / 2;
    PassedProcess { pid: 77, name: "python3".into(), from_unix_ms: middle - 10, to_unix_ms: middle + 10 }
}

fn tainted_windows(found: &Measurement) -> Vec<usize> {
    let windows = found.windows.iter().enumerate();
    windows.filter(|(_, window)| !window.tainted.is_empty()).map(|(index, _)| index).collect()
}

#[test]
fn the_record_says_what_was_seen_over_all_windows_and_what_was_used() {
    let script = |taken: u64, sample: &mut TelemetrySample| {
        sample.sm_clock_mhz = Some(if taken == 2 { 1500 } else { 1980 });
        sample.energy_uj = Some(1_000_000 + taken * 700_000);
        sample.pcie_generation = Some(5);
        if taken == 1 {
            sample.throttle = vec!["power-cap".into()];
        }
    };
    let found = experiment(meter(steady(2.0)), &mut gpu(script), 60_000.0).unwrap();
    let seen = found.telemetry.seen.as_ref().unwrap();
    let clock = seen.sm_clock_mhz.unwrap();
    assert_eq!((clock.min, clock.max, seen.outside_utilization_percent), (1500.0, 1980.0, Some(4.0)));
    assert!(clock.mean > 1500.0 && clock.mean < 1980.0, "{clock:?}");
    assert_eq!(seen.readings as usize, found.windows.len() + 1);
    assert_eq!(seen.throttle.get("power-cap"), Some(&1));
    assert!(found.windows.iter().all(|window| window.energy_uj == Some(700_000)), "{:?}", found.windows);
    // A counter that begins anew tells nothing of that window.
    let reset = |taken: u64, sample: &mut TelemetrySample| sample.energy_uj = Some(if taken < 2 { 9_000 } else { 5 });
    let found = experiment(meter(steady(2.0)), &mut gpu(reset), 60_000.0).unwrap();
    assert_eq!((found.windows[0].energy_uj, found.windows[1].energy_uj), (Some(0), None));
}

/// What every measurement holds to, whatever was taken away from it.
fn assert_consistent(found: &Measurement) {
    let counted = found.windows.iter().filter(|w| w.tainted.is_empty() || w.kept_tainted);
    let sizes: Vec<usize> = counted.map(|w| w.iterations as usize).collect();
    assert_eq!(sizes.iter().sum::<usize>(), found.samples.len());
    assert_eq!(planforge_stats::latency_stats(&found.samples, &sizes), Some(found.stats));
}

#[test]
fn a_process_at_the_start_or_end_of_a_window_has_it_measured_again() {
    // Sample n is the end of window n-1 and the start of window n.
    let present = |taken: u64, sample: &mut TelemetrySample| {
        if taken == 0 || taken == 3 {
            let process = ForeignProcess { pid: 77, name: "python3".into(), memory_mib: Some(500) };
            sample.foreign_processes.push(process);
        }
    };
    let found = experiment(meter(steady(2.0)), &mut gpu(present), 60_000.0).unwrap();
    assert_eq!(tainted_windows(&found), [0, 2, 3]);
    assert!(found.windows.iter().all(|window| !window.kept_tainted));
    assert!(found.windows[2].tainted[0].contains("python3 (pid 77)"), "{:?}", found.windows[2]);
    assert_eq!(found.findings.iter().map(|f| f.code.as_str()).collect::<Vec<_>>(), ["remeasured"]);
    assert_consistent(&found);
}

#[test]
fn a_process_that_lived_only_inside_a_window_is_found_afterwards() {
    // Told at once for window 1; told of window 3 only two windows later.
    let passing = |taken: u64, sample: &mut TelemetrySample| match taken {
        2 => sample.passed_processes.push(passed_in(1)),
        6 => sample.passed_processes.push(passed_in(3)),
        _ => {}
    };
    let found = experiment(meter(steady(2.0)), &mut gpu(passing), 60_000.0).unwrap();
    assert_eq!(tainted_windows(&found), [1, 3]);
    assert!(found.windows[3].tainted[0].starts_with("passing process: python3 (pid 77)"), "{:?}", found.windows[3]);
    assert!(found.windows.iter().all(|window| !window.kept_tainted));
    assert_consistent(&found);
}

#[test]
fn the_last_window_is_looked_at_again_before_it_counts() {
    let quiet = experiment(meter(steady(2.0)), &mut gpu(|_, _| {}), 60_000.0).unwrap();
    let last = quiet.windows.len() as u64 - 1;
    // The sample after the one that ended the last window tells of it and of so many before that too few are left.
    let passing = move |taken: u64, sample: &mut TelemetrySample| {
        if taken == last + 2 {
            sample.passed_processes.extend((last - 6..=last).map(passed_in));
        }
    };
    let mut telemetry = gpu(passing);
    let found = experiment(meter(steady(2.0)), &mut telemetry, 60_000.0).unwrap();
    assert_eq!(tainted_windows(&found), (last as usize - 6..=last as usize).collect::<Vec<_>>());
    assert!(found.windows.len() > quiet.windows.len(), "measured again");
    assert_eq!((found.experiment.stop, telemetry.settled), (StopReason::Confident, 2));
    assert_consistent(&found);
}

#[test]
fn passing_processes_take_away_a_bounded_number_of_windows() {
    let passing = |taken: u64, sample: &mut TelemetrySample| {
        sample.passed_processes.extend((0..taken).map(passed_in));
    };
    let found = experiment(meter(steady(2.0)), &mut gpu(passing), 60_000.0).unwrap();
    let discarded = found.windows.iter().filter(|w| !w.tainted.is_empty() && !w.kept_tainted).count();
    assert_eq!(discarded, 8);
    assert_eq!(found.findings[0].code, "contention");
    assert_consistent(&found);
}

#[test]
fn throttling_memory_errors_and_driver_errors_have_their_window_measured_again() {
    let troubles = |taken: u64, sample: &mut TelemetrySample| {
        sample.ecc_uncorrected = Some(if taken >= 4 { 2 } else { 0 });
        match taken {
            2 => sample.throttle = vec!["hardware-thermal".into(), "power-cap".into()],
            7 => sample.xids = vec![31],
            _ => {}
        }
    };
    let found = experiment(meter(steady(2.0)), &mut gpu(troubles), 60_000.0).unwrap();
    let words: Vec<_> = found.windows.iter().flat_map(|window| &window.tainted).map(String::as_str).collect();
    assert_eq!(
        words,
        [
            "throttled: hardware-thermal",
            "throttled: hardware-thermal",
            "memory errors: 2 uncorrected",
            "driver error: Xid 31, a kernel touched memory it must not",
        ]
    );
    assert_eq!(tainted_windows(&found), [1, 2, 3, 6]);
    assert!(found.windows.iter().all(|window| !window.kept_tainted));
    assert_consistent(&found);
}

#[test]
fn a_lost_device_ends_the_measurement() {
    let errors: [fn(u64, &mut TelemetrySample); 2] = [
        |taken, sample| sample.xids = if taken == 2 { vec![13, 79] } else { Vec::new() },
        |taken, sample| {
            if taken >= 2 {
                *sample = TelemetrySample::default();
            }
        },
    ];
    for (change, words) in errors.into_iter().zip(["Xid 79, the GPU fell off the bus", "no longer does"]) {
        let meter = meter(steady(2.0));
        let windows = meter.windows.clone();
        let mut telemetry = gpu(change);
        let error = experiment(meter, &mut telemetry, 60_000.0).unwrap_err();
        assert_eq!(error.class, FailureClass::Infrastructure);
        assert!(error.message.contains("device was lost") && error.message.contains(words), "{error}");
        assert_eq!(telemetry.taken, 3, "no window after it, of {}", windows.load(Ordering::Relaxed));
    }
}

/// An engine whose every window is a process: it runs as long as asked, in steps of one millisecond.
struct ProcessSession<M>(M);

impl<F: FnMut(u64) -> f64> Meter for ProcessSession<ScriptedMeter<F>> {
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
    fn window(&mut self, window: Window) -> Result<planforge_backend::WindowSamples, BackendError> {
        let until_ms = self.0.clock.now_ms() + window.duration_ms;
        let mut latency_ms = Vec::new();
        while latency_ms.len() < window.iterations as usize || self.0.clock.now_ms() < until_ms {
            let one = self.0.window(Window { iterations: 1, duration_ms: 0.0 })?;
            latency_ms.extend(one.latency_ms);
        }
        Ok(planforge_backend::WindowSamples { latency_ms })
    }
    fn layers(&mut self, _: u32) -> Result<Vec<LayerTime>, BackendError> {
        Ok(Vec::new())
    }
    fn memory_bytes(&self) -> u64 {
        0
    }
    fn pacing(&self) -> Pacing {
        Pacing::Process { window_ms: 500.0, warm_up_ms: 200.0 }
    }
}

#[test]
fn windows_that_are_processes_warm_themselves_and_keep_evenly_spread_samples() {
    let inner = meter(|n| if n % 2 == 0 { 0.1 } else { 0.1001 });
    let clock = inner.clock.clone();
    let mut paced = ProcessSession(inner);
    let config = MeasureConfig::within(20_000.0, 1);
    let found = measure(&mut paced, &mut quiet(), &clock, &config, &Cancel::default()).unwrap();
    assert_eq!(found.experiment.stop, StopReason::Confident);
    assert_eq!((found.experiment.warm_up_iterations, found.experiment.warm_up_ms), (0, 200.0));
    assert!(found.windows.len() >= COMPARABLE_WINDOWS);
    let window = &found.windows[0];
    // 500 ms of 0.1 ms are thousands of executions; a fiftieth of the room for samples is kept of each window.
    assert!(window.thinned_from.is_some_and(|all| all > 4900), "{window:?}");
    let most = config.max_kept();
    assert_eq!((window.iterations as usize, most), (most, MAX_SAMPLES / 50));
    assert_eq!(found.samples.len(), found.windows.len() * most);
}

#[test]
fn processes_reach_the_least_beyond_the_usual_budget_and_say_so_before() {
    let run = |strict_budget: bool| {
        let inner = meter(|n| 40.0 + (n % 7) as f64);
        let (clock, mut paced) = (inner.clock.clone(), ProcessSession(inner));
        let config = MeasureConfig { strict_budget, ..MeasureConfig::within(1_000.0, 1) };
        let words = announced(paced.pacing(), &config).unwrap();
        (measure(&mut paced, &mut quiet(), &clock, &config, &Cancel::default()).unwrap(), words)
    };
    let (found, words) = run(false);
    assert_eq!(found.windows.len(), COMPARABLE_WINDOWS);
    assert!(words.contains("the 5 that a comparison takes need at least 4 s"), "{words}");
    assert!(words.ends_with("more than the usual budget of 1 s"), "{words}");
    let (found, words) = run(true);
    assert!(found.windows.len() < COMPARABLE_WINDOWS && codes(&found).contains(&"too-few-windows"));
    assert!(words.contains("the 1 s that were asked for may end it before"), "{words}");
    assert_eq!(announced(Pacing::Iterations, &MeasureConfig::within(1_000.0, 1)), None);
}

#[test]
fn a_windows_own_process_is_not_taken_for_another() {
    let inner = meter(|n| if n % 2 == 0 { 0.1 } else { 0.1001 });
    let clock = inner.clock.clone();
    let passing = |taken: u64, sample: &mut TelemetrySample| {
        sample.looked_in.push("process-utilization".into());
        sample.passed_processes.extend(taken.checked_sub(1).map(passed_in));
    };
    let config = MeasureConfig::within(20_000.0, 1);
    let found = measure(&mut ProcessSession(inner), &mut gpu(passing), &clock, &config, &Cancel::default()).unwrap();
    assert_eq!(tainted_windows(&found), [0; 0]);
    assert!(found.telemetry.after.looked_in.is_empty(), "what was not judged is not said to have been");
}

#[test]
fn a_warm_up_and_windows_that_are_asked_for_are_reached_and_recorded() {
    // A quick engine, whose samples would fill a report before, and one that is slower than the whole budget.
    for latency_ms in [0.01, 2.0, 400.0] {
        let mut meter = meter(steady(latency_ms));
        let clock = meter.clock.clone();
        let config = MeasureConfig::within(1_000.0, 1).at_least(2_000, 30);
        let found = measure(&mut meter, &mut quiet(), &clock, &config, &Cancel::default()).unwrap();
        let told = &found.experiment;
        assert!(told.warm_up_ms >= 2_000.0, "{latency_ms}: {told:?}");
        assert_eq!((told.min_warm_up_ms, told.min_windows), (Some(2_000.0), Some(30)));
        assert!(found.windows.len() >= 30 && found.samples.len() <= MAX_SAMPLES, "{latency_ms}: {told:?}");
    }
    let usual = experiment(meter(steady(2.0)), &mut quiet(), 1_000.0).unwrap().experiment;
    assert_eq!((usual.min_warm_up_ms, usual.min_windows), (Some(100.0), Some(COMPARABLE_WINDOWS as u64)));
    // Asking for less than the usual changes nothing.
    let config = MeasureConfig::within(1_000.0, 1);
    assert_eq!(config.at_least(0, 0), config);
    assert_eq!(config.at_least(1, 1).min_windows, config.min_windows);
}

#[test]
fn windows_on_slower_cores_do_not_count() {
    // For as long as a window has parts, of thrice as many, the cores are slower, and so is the engine; no counter of
    // the system tells.
    fn slow(part: usize) -> bool {
        (part / PACED_PARTS as usize).is_multiple_of(3)
    }
    let windows = Arc::<AtomicUsize>::default();
    let counter = windows.clone();
    let mut usual = steady(2.0);
    let engine = meter(move |n| if slow(counter.load(Ordering::Relaxed)) { 1.5 } else { 1.0 } * usual(n));
    let pace_ns: fn(usize) -> f64 = |part| if slow(part) { 45_000.0 } else { 30_000.0 };
    let engine = ScriptedMeter { windows, pace_ns: Some(pace_ns), ..engine };
    let found = experiment(engine, &mut quiet(), 20_000.0).unwrap();
    assert!(found.stats.max < 2.1, "{:?}", found.stats);
    assert!(found.windows.iter().any(|window| !window.tainted.is_empty()));
    for window in &found.windows {
        assert!(!window.kept_tainted);
        let tainted = window.pace_ns.is_some_and(|pace_ns| pace_ns > 40_000.0);
        assert_eq!(window.tainted.iter().any(|reason| reason.starts_with("cores ran slower: ")), tainted, "{window:?}");
    }
    assert_eq!(codes(&found), ["remeasured"]);
    assert_consistent(&found);
}

#[test]
fn a_better_pace_that_comes_late_taints_what_was_before() {
    let mut engine = meter(steady(2.0));
    engine.pace_ns = Some(|part| if part < 12 { 45_000.0 } else { 30_000.0 });
    let clock = engine.clock.clone();
    let config = MeasureConfig { min_duration_ms: 3_000.0, ..MeasureConfig::within(20_000.0, 1) };
    let found = measure(&mut engine, &mut quiet(), &clock, &config, &Cancel::default()).unwrap();
    let counts = |window: &WindowRecord| window.tainted.is_empty() || window.kept_tainted;
    assert!(found.windows.iter().all(|window| counts(window) == (window.pace_ns == Some(30_000.0))));
    assert!(!found.wholly_disturbed());
    assert_consistent(&found);
}

#[test]
fn quiet_windows_alone_count_once_there_are_enough() {
    // Two of three windows are disturbed, far more than are measured again.
    let found = experiment(meter(|n| 3.0 + (n % 40) as f64 / 10.0), &mut disturbed_when(|n| n % 3 != 0), 60_000.0);
    let found = found.unwrap();
    assert!(found.windows.iter().filter(|window| !window.tainted.is_empty()).count() > 8);
    assert!(found.windows.iter().all(|window| !window.kept_tainted), "{:?}", found.windows);
    assert_consistent(&found);
}
