//! The device's state around the windows: at both ends, and over all readings between them.

use planforge_types::telemetry::{ForeignProcess, TelemetrySample};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// State of the device before the first and after the last window, and over all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TelemetryPair {
    pub before: TelemetrySample,
    pub after: TelemetrySample,
    /// Absent in reports of older versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<Seen>,
}

/// Smallest, mean and largest of a figure over all readings that tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    pub min: f64,
    pub mean: f64,
    pub max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let (min, max) = (values.iter().copied().reduce(f64::min)?, values.iter().copied().reduce(f64::max)?);
        Some(Self { min, mean: values.iter().sum::<f64>() / values.len() as f64, max })
    }
}

/// What the readings before, between and after the windows told: the state the device had while it was measured, for
/// it is read as soon as a window is over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    pub readings: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_mhz: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_w: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_generation: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width: Option<Spread>,
    /// Why clocks were held down, each with the readings in which it was so.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub throttle: BTreeMap<String, u32>,
    /// Everybody else who used the device at one of the readings, once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub foreign_processes: Vec<ForeignProcess>,
    /// The device's utilisation before it was warmed up, when nothing of this measurement ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_utilization_percent: Option<f64>,
    /// Share of all processors' time that others used: during the warm-up, and from the first window to the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others_outside_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others_percent: Option<f64>,
}

/// Most other processes that are named.
const MOST_PROCESSES: usize = 16;

impl Seen {
    /// Of the reading before the warm-up, and of all from before the first window on.
    pub fn of(outside: &TelemetrySample, readings: &[TelemetrySample]) -> Self {
        let spread = |of: &dyn Fn(&TelemetrySample) -> Option<f64>| Spread::of(readings.iter().filter_map(of));
        let mut seen = Self {
            readings: readings.len() as u32,
            sm_clock_mhz: spread(&|s| s.sm_clock_mhz.map(f64::from)),
            memory_clock_mhz: spread(&|s| s.memory_clock_mhz.map(f64::from)),
            cpu_mhz: spread(&|s| s.cpu_mhz.map(f64::from)),
            temperature_c: spread(&|s| s.temperature_c),
            power_w: spread(&|s| s.power_w),
            utilization_percent: spread(&|s| s.utilization_percent),
            pcie_generation: spread(&|s| s.pcie_generation.map(f64::from)),
            pcie_width: spread(&|s| s.pcie_width.map(f64::from)),
            outside_utilization_percent: outside.utilization_percent,
            others_outside_percent: readings.first().and_then(|first| others(outside, first)),
            others_percent: readings.first().zip(readings.last()).and_then(|(first, last)| others(first, last)),
            ..Self::default()
        };
        for reason in readings.iter().flat_map(|reading| &reading.throttle) {
            *seen.throttle.entry(reason.clone()).or_default() += 1;
        }
        for process in readings.iter().flat_map(|reading| &reading.foreign_processes) {
            let known = seen.foreign_processes.iter().any(|known| known.pid == process.pid);
            if !known && seen.foreign_processes.len() < MOST_PROCESSES {
                seen.foreign_processes.push(process.clone());
            }
        }
        seen
    }
}

/// Percent of all processors' time between two readings that went to others; the kernel counts it in steps of 10 ms.
fn others(from: &TelemetrySample, to: &TelemetrySample) -> Option<f64> {
    let (from, to) = (from.cpu_time?, to.cpu_time?);
    let capacity_ms = to.capacity_ms - from.capacity_ms;
    let busy_ms = (to.busy_ms - from.busy_ms) - (to.own_busy_ms - from.own_busy_ms);
    (capacity_ms > 0.0).then(|| (busy_ms / capacity_ms).clamp(0.0, 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::telemetry::CpuTime;

    #[test]
    fn readings_are_summed_up() {
        let process = |pid| ForeignProcess { pid, name: "python3".into(), memory_mib: None };
        let reading = |mhz: u32, throttle: &[&str], pids: &[u32]| TelemetrySample {
            sm_clock_mhz: Some(mhz),
            throttle: throttle.iter().map(|reason| (*reason).to_owned()).collect(),
            foreign_processes: pids.iter().map(|pid| process(*pid)).collect(),
            ..TelemetrySample::default()
        };
        let outside = TelemetrySample { utilization_percent: Some(3.0), ..TelemetrySample::default() };
        let readings = [
            reading(1980, &["power-cap"], &[7]),
            reading(1710, &["power-cap", "thermal"], &[7, 9]),
            reading(1980, &[], &[]),
        ];
        let seen = Seen::of(&outside, &readings);
        assert_eq!((seen.readings, seen.sm_clock_mhz), (3, Some(Spread { min: 1710.0, mean: 1890.0, max: 1980.0 })));
        assert_eq!(seen.throttle, BTreeMap::from([("power-cap".to_owned(), 2), ("thermal".to_owned(), 1)]));
        assert_eq!(seen.foreign_processes, [process(7), process(9)]);
        assert_eq!((seen.outside_utilization_percent, seen.power_w, seen.others_percent), (Some(3.0), None, None));
    }

    #[test]
    fn what_others_used_is_told_from_what_was_used_here() {
        let at = |capacity_ms: f64, busy_ms: f64, own_busy_ms: f64| TelemetrySample {
            cpu_time: Some(CpuTime { capacity_ms, busy_ms, own_busy_ms, ..CpuTime::default() }),
            ..TelemetrySample::default()
        };
        let readings = [at(1000.0, 500.0, 100.0), at(1600.0, 900.0, 400.0), at(2000.0, 1200.0, 600.0)];
        let seen = Seen::of(&at(0.0, 100.0, 0.0), &readings);
        assert_eq!((seen.others_outside_percent, seen.others_percent), (Some(30.0), Some(20.0)));
        assert_eq!(Seen::of(&TelemetrySample::default(), &[]), Seen::default());
    }
}
