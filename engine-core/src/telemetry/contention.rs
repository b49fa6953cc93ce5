//! Was a timed window disturbed? Judged from the samples taken before and after it.

use super::{CpuTime, TelemetrySample};

/// Share of a window that the engine's threads may spend waiting for a processor: timer ticks and kernel threads
/// stay below it on an idle machine.
const MAX_WAIT_SHARE: f64 = 0.02;

/// Share of a window the hypervisor may take away.
const MAX_STEAL_SHARE: f64 = 0.02;

/// Share of all processors other processes may use before they are felt through memory bandwidth and boost clocks.
const MAX_OTHERS_SHARE: f64 = 0.25;

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
    if tells_of_device(before) && !tells_of_device(after) {
        reasons.push("driver lost: the device told its state before the window and no longer does".to_owned());
    }
    if let (Some(earlier), Some(later)) = (&before.cpu_time, &after.cpu_time) {
        cpu_reasons(earlier, later, duration_ms, threads, &mut reasons);
    }
    reasons
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
    use crate::telemetry::ForeignProcess;

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
        assert!(assess(&told, &told, 100.0, 1).is_empty());
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
}
