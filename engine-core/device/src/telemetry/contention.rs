//! Was a timed window disturbed? Judged from the samples taken before and after it.

use super::xid;
use planforge_types::telemetry::{CpuTime, PassedProcess, TelemetrySample};

/// Share of a window that the engine's threads may spend waiting for a processor: timer ticks and kernel threads
/// stay below it on an idle machine.
const MAX_WAIT_SHARE: f64 = 0.02;

/// Share of a window the hypervisor may take away.
const MAX_STEAL_SHARE: f64 = 0.02;

/// Share of all processors other processes may use before they are felt through memory bandwidth and boost clocks.
const MAX_OTHERS_SHARE: f64 = 0.25;

/// How much longer than at best a fixed piece of work may take on the cores.
const MAX_PACE_SHARE: f64 = 0.05;

/// The kernel counts busy time in steps of 10 ms a processor: shorter windows say nothing about others.
const MIN_CAPACITY_MS: f64 = 150.0;

/// Reasons to hold clocks down that spoil a measurement. A software power cap is not among them: many boards reach it
/// in normal use, so it belongs to how fast they are.
const DISTURBING_THROTTLES: [&str; 4] = ["thermal", "hardware-thermal", "hardware-slowdown", "power-brake"];

/// Why the window between `before` and `after` should not count; empty when nothing speaks against it. Each reason
/// begins with its kind and a colon. `threads` is how many the engine runs on.
pub fn assess(before: &TelemetrySample, after: &TelemetrySample, duration_ms: f64, threads: u32) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some(process) = after.foreign_processes.iter().chain(&before.foreign_processes).next() {
        let name = if process.name.is_empty() { "unknown" } else { &process.name };
        reasons.push(format!("foreign process: {name} (pid {}) uses the device", process.pid));
    }
    for process in &after.passed_processes {
        if process.may_have_met(before.at_unix_ms, after.at_unix_ms) {
            reasons.push(passed(process));
        }
    }
    for reason in DISTURBING_THROTTLES {
        if [before, after].iter().any(|sample| sample.throttle.iter().any(|have| have == reason)) {
            reasons.push(format!("throttled: {reason}"));
        }
    }
    if let (Some(earlier), Some(later)) = (before.ecc_uncorrected, after.ecc_uncorrected)
        && later > earlier
    {
        reasons.push(format!("memory errors: {} uncorrected", later - earlier));
    }
    reasons.extend(after.xids.iter().map(|number| format!("driver error: {}", xid::words(*number))));
    if fell_silent(before, after) {
        reasons.push(format!("driver lost: {SILENT}"));
    }
    if let (Some(earlier), Some(later)) = (&before.cpu_time, &after.cpu_time) {
        cpu_reasons(earlier, later, duration_ms, threads, &mut reasons);
    }
    reasons
}

/// Why a window should not count around which the cores took `pace_ns` for what they had done in `best_ns`.
pub fn slow_cores(best_ns: f64, pace_ns: f64) -> Option<String> {
    (pace_ns > best_ns * (1.0 + MAX_PACE_SHARE)).then(|| {
        let times = pace_ns / best_ns;
        format!(
            "cores ran slower: a fixed piece of work took {times:.2} x its best time (a neighbour on the same cores, or a \
             lower clock)"
        )
    })
}

/// What is said of a process that the driver's buffers tell of afterwards.
pub fn passed(process: &PassedProcess) -> String {
    let name = if process.name.is_empty() { "unknown" } else { &process.name };
    format!("passing process: {name} (pid {}) used the device meanwhile", process.pid)
}

/// Why nothing more can be measured on the device, if so; told by the samples around a window.
pub fn device_lost(before: &TelemetrySample, after: &TelemetrySample) -> Option<String> {
    let error = after.xids.iter().find(|number| xid::loses_device(**number));
    error.map(|number| xid::words(*number)).or_else(|| fell_silent(before, after).then(|| SILENT.to_owned()))
}

const SILENT: &str = "the device told its state before the window and no longer does";

fn fell_silent(before: &TelemetrySample, after: &TelemetrySample) -> bool {
    tells_of_device(before) && !tells_of_device(after)
}

/// Whether a GPU's driver answered anything.
fn tells_of_device(sample: &TelemetrySample) -> bool {
    sample.sm_clock_mhz.is_some() || sample.memory_used_mib.is_some() || sample.ecc_uncorrected.is_some()
}

fn cpu_reasons(before: &CpuTime, after: &CpuTime, duration_ms: f64, threads: u32, reasons: &mut Vec<String>) {
    let window_ms = duration_ms.max(f64::MIN_POSITIVE);
    let grown = |field: fn(&CpuTime) -> f64| (field(after) - field(before)).max(0.0);
    let wait = grown(|t| t.own_wait_ms) / (window_ms * f64::from(threads.max(1)));
    if wait > MAX_WAIT_SHARE {
        reasons.push(format!("waited for a processor: {:.0} % of the window", wait * 100.0));
    }
    let capacity_ms = grown(|t| t.capacity_ms);
    if capacity_ms < MIN_CAPACITY_MS {
        return;
    }
    let steal = grown(|t| t.steal_ms) / capacity_ms;
    if steal > MAX_STEAL_SHARE {
        reasons.push(format!("hypervisor took: {:.0} % of the processors", steal * 100.0));
    }
    let others = (grown(|t| t.busy_ms) - grown(|t| t.own_busy_ms)) / capacity_ms;
    if others > MAX_OTHERS_SHARE {
        reasons.push(format!("other processes used: {:.0} % of the processors", others * 100.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::telemetry::ForeignProcess;

    fn cpu(capacity_ms: f64, busy_ms: f64, steal_ms: f64, own_busy_ms: f64, own_wait_ms: f64) -> TelemetrySample {
        let time = CpuTime { capacity_ms, busy_ms, steal_ms, own_busy_ms, own_wait_ms };
        TelemetrySample { cpu_time: Some(time), ..TelemetrySample::default() }
    }

    #[test]
    fn a_quiet_window_counts() {
        let before = cpu(10_000.0, 500.0, 3.0, 400.0, 7.0);
        assert_eq!(assess(&before, &cpu(10_200.0, 700.0, 3.0, 600.0, 8.0), 100.0, 2), Vec::<String>::new());
    }

    #[test]
    fn cores_that_are_slower_than_they_can_be_taint() {
        assert_eq!(slow_cores(30_000.0, 31_000.0), None);
        let reason = slow_cores(30_000.0, 45_000.0).unwrap();
        assert!(reason.starts_with("cores ran slower: a fixed piece of work took 1.50 x"), "{reason}");
    }

    #[test]
    fn waiting_stealing_and_others_each_taint() {
        let before = cpu(0.0, 0.0, 0.0, 0.0, 0.0);
        let kinds = |after| {
            assess(&before, &after, 100.0, 2)
                .iter()
                .map(|r| r.split(':').next().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(kinds(cpu(200.0, 200.0, 0.0, 200.0, 5.0)), ["waited for a processor"]);
        assert_eq!(kinds(cpu(200.0, 200.0, 10.0, 200.0, 0.0)), ["hypervisor took"]);
        assert_eq!(kinds(cpu(200.0, 200.0, 0.0, 120.0, 0.0)), ["other processes used"]);
        // Too short a window to judge others by 10 ms ticks.
        assert!(kinds(cpu(20.0, 20.0, 10.0, 10.0, 0.0)).is_empty());
    }

    #[test]
    fn a_driver_that_falls_silent_taints() {
        let told =
            TelemetrySample { sm_clock_mhz: Some(1980), memory_used_mib: Some(750), ..TelemetrySample::default() };
        let silent = TelemetrySample::default();
        let reasons = assess(&told, &silent, 100.0, 1);
        assert!(reasons.len() == 1 && reasons[0].starts_with("driver lost:"), "{reasons:?}");
        assert!(device_lost(&told, &silent).is_some());
        assert!(assess(&told, &told, 100.0, 1).is_empty());
        assert_eq!(device_lost(&told, &told), None);
        // A CPU's samples never tell these.
        assert!(assess(&silent, &silent, 100.0, 1).is_empty());
    }

    #[test]
    fn gpu_disturbances_taint_but_a_power_cap_does_not() {
        let quiet = TelemetrySample { ecc_uncorrected: Some(1), ..TelemetrySample::default() };
        let capped = TelemetrySample { throttle: vec!["power-cap".into()], ..quiet.clone() };
        assert!(assess(&quiet, &capped, 100.0, 1).is_empty());
        let foreign = ForeignProcess { pid: 7, name: "python3".into(), memory_mib: None };
        let bad = TelemetrySample {
            foreign_processes: vec![foreign],
            throttle: vec!["thermal".into()],
            ecc_uncorrected: Some(3),
            ..quiet.clone()
        };
        let reasons = assess(&quiet, &bad, 100.0, 1);
        assert_eq!(
            reasons,
            ["foreign process: python3 (pid 7) uses the device", "throttled: thermal", "memory errors: 2 uncorrected"]
        );
    }

    #[test]
    fn who_came_and_went_taints_the_window_it_may_have_met() {
        let at = |at_unix_ms| TelemetrySample { at_unix_ms, ..TelemetrySample::default() };
        let gone = |from_unix_ms, to_unix_ms| PassedProcess { pid: 9, name: String::new(), from_unix_ms, to_unix_ms };
        let judged = |process: PassedProcess| {
            let after = TelemetrySample { passed_processes: vec![process], ..at(1100) };
            assess(&at(1000), &after, 100.0, 1)
        };
        assert_eq!(judged(gone(1050, 1060)), ["passing process: unknown (pid 9) used the device meanwhile"]);
        // A sample of the driver covers some time: any of it may lie inside.
        assert_eq!((judged(gone(900, 1001)).len(), judged(gone(1099, 1300)).len()), (1, 1));
        assert_eq!((judged(gone(900, 1000)).len(), judged(gone(1100, 1300)).len()), (0, 0));
    }

    #[test]
    fn errors_of_the_driver_taint_and_some_lose_the_device() {
        let quiet = TelemetrySample::default();
        let with = |xids: &[u64]| TelemetrySample { xids: xids.to_vec(), ..TelemetrySample::default() };
        // A fault of somebody's kernel: the window is spoilt, the device goes on.
        assert_eq!(
            assess(&quiet, &with(&[31]), 100.0, 1),
            ["driver error: Xid 31, a kernel touched memory it must not"]
        );
        assert_eq!(device_lost(&quiet, &with(&[31])), None);
        assert_eq!(assess(&quiet, &with(&[79, 31]), 100.0, 1).len(), 2);
        assert_eq!(device_lost(&quiet, &with(&[31, 79])).as_deref(), Some("Xid 79, the GPU fell off the bus"));
        assert_eq!(assess(&quiet, &with(&[7777]), 100.0, 1), ["driver error: Xid 7777"]);
    }
}
