//! How an engine does under load: requests that arrive by themselves, several instances, hours of it.
//!
//! A document of its own. Its latencies are other figures than a report's: they count from when a request *was to* arrive,
//! waiting included, so that an engine that falls behind cannot hide it (coordinated omission: Tene, *How NOT to Measure
//! Latency*, 2013).

use crate::Finding;
use planforge_stats::{CI_CONFIDENCE, Place, quantile};
use planforge_types::{Digest, Sku, fingerprint::DeviceFingerprint};
use serde::{Deserialize, Serialize};

/// Raised whenever a field changes its meaning or goes away.
pub const LOAD_SCHEMA_VERSION: u32 = 1;

/// Parts of a run, by arrival, that the interval of a tail counts.
const PARTS: usize = 20;

/// Everything that was asked of an engine under load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    pub schema_version: u32,
    pub model: String,
    pub plan: Digest,
    pub sku: Sku,
    pub toolchain: String,
    pub precision: String,
    /// Of each instance; absent on GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Instances of the engine that served side by side.
    pub concurrency: usize,
    /// Items of one request.
    pub batch: u64,
    pub device: DeviceFingerprint,
    /// Decides when requests arrive.
    pub seed: u64,
    pub measured_unix_ms: u64,
    /// In the order run.
    pub points: Vec<LoadPoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<ObjectiveFound>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak: Option<Soak>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
}

/// Where latencies lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    pub mean: f64,
    pub median: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Tail {
    /// Of `values` in any order; `None` of none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let max = *sorted.last()?;
        let at = |share: f64| quantile(&sorted, share);
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        Some(Self { mean, median: at(0.5), p90: at(0.9), p95: at(0.95), p99: at(0.99), p999: at(0.999), max })
    }
}

/// One run at one rate, or as fast as the instances go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadPoint {
    /// Requests a second that were to arrive, by a Poisson process; absent where each instance took the next at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// How long requests arrived.
    pub duration_ms: f64,
    /// Requests that were served.
    pub requests: u64,
    /// Requests that had arrived and were given up, because the run had fallen too far behind.
    #[serde(default)]
    pub unserved: u64,
    pub served_per_s: f64,
    /// From the scheduled arrival to the end, in milliseconds.
    pub latency_ms: Tail,
    /// Where the 99th percentile lies, with 95 % confidence; absent where the samples do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ci_ms: Option<(f64, f64)>,
    /// Of execution alone.
    pub service_ms: Tail,
    /// Share of the instances' time that they executed.
    pub busy_share: f64,
    /// Requests waited longer and longer: the figures say more of the run's length than of the engine.
    pub fell_behind: bool,
    /// What disturbed the device meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbed: Vec<String>,
}

/// A request as it was served, in milliseconds since the run began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    pub scheduled_ms: f64,
    pub began_ms: f64,
    pub ended_ms: f64,
}

/// Requests are still being served this share of the run's length after the last arrived: it fell behind.
const BEHIND_SHARE: f64 = 0.05;

impl LoadPoint {
    /// What `served` says; `None` where nothing was.
    pub fn of(
        served: &[Served],
        unserved: u64,
        rate_per_s: Option<f64>,
        duration_ms: f64,
        concurrency: usize,
    ) -> Option<Self> {
        let mut by_arrival = served.to_vec();
        by_arrival.sort_unstable_by(|a, b| a.scheduled_ms.total_cmp(&b.scheduled_ms));
        let latencies: Vec<f64> = by_arrival.iter().map(|one| one.ended_ms - one.scheduled_ms).collect();
        let service: Vec<f64> = by_arrival.iter().map(|one| one.ended_ms - one.began_ms).collect();
        let last_ms = by_arrival.iter().map(|one| one.ended_ms).fold(0.0, f64::max);
        let elapsed_ms = last_ms.max(duration_ms);
        let part = latencies.len().div_ceil(PARTS).max(1);
        let sizes: Vec<usize> = latencies.chunks(part).map(<[f64]>::len).collect();
        let p99 = Place::of_quantile(&latencies, &sizes, 0.99, CI_CONFIDENCE).ok();
        Some(Self {
            rate_per_s,
            duration_ms,
            requests: served.len() as u64,
            unserved,
            served_per_s: served.len() as f64 / elapsed_ms * 1e3,
            latency_ms: Tail::of(&latencies)?,
            p99_ci_ms: p99.map(|place| (place.low, place.high)),
            service_ms: Tail::of(&service)?,
            busy_share: service.iter().sum::<f64>() / (elapsed_ms * concurrency.max(1) as f64),
            fell_behind: unserved > 0 || (rate_per_s.is_some() && last_ms - duration_ms > duration_ms * BEHIND_SHARE),
            disturbed: Vec::new(),
        })
    }
}

/// Which figure of the latency has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bounded {
    Median,
    P90,
    P95,
    P99,
    P999,
}

impl Bounded {
    pub const ALL: [Self; 5] = [Self::Median, Self::P90, Self::P95, Self::P99, Self::P999];

    pub fn name(self) -> &'static str {
        match self {
            Self::Median => "median",
            Self::P90 => "p90",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::P999 => "p999",
        }
    }

    /// Requests below which a run says nothing of it: several have to lie beyond.
    pub fn least_requests(self) -> u64 {
        match self {
            Self::Median => 20,
            Self::P90 => 50,
            Self::P95 => 100,
            Self::P99 => 500,
            Self::P999 => 5_000,
        }
    }

    pub fn of(self, tail: &Tail) -> f64 {
        match self {
            Self::Median => tail.median,
            Self::P90 => tail.p90,
            Self::P95 => tail.p95,
            Self::P99 => tail.p99,
            Self::P999 => tail.p999,
        }
    }
}

/// A limit on the latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    pub figure: Bounded,
    pub most_ms: f64,
}

impl Objective {
    /// Whether a run kept it, by requests enough to tell.
    pub fn holds(&self, point: &LoadPoint) -> bool {
        let is_told = point.requests >= self.figure.least_requests();
        is_told && !point.fell_behind && self.figure.of(&point.latency_ms) <= self.most_ms
    }

    /// As people read it.
    pub fn words(&self) -> String {
        format!("{} of at most {}", self.figure.name(), crate::format::milliseconds(self.most_ms))
    }
}

/// The highest rate that keeps an objective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectiveFound {
    pub objective: Objective,
    /// Requests a second when each instance takes the next at once: no rate above it can be kept up.
    pub capacity_per_s: f64,
    /// The highest rate that kept it, in a run longer than those that looked for it; absent: none was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Index of that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<usize>,
    /// The lowest rate that broke it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken_at_per_s: Option<f64>,
}

/// A long run, in slices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Soak {
    pub slice_ms: f64,
    pub slices: Vec<Slice>,
}

/// A part of a long run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Since the soak began.
    pub at_ms: f64,
    pub requests: u64,
    pub served_per_s: f64,
    pub latency_ms: Tail,
    /// Resident memory of the process, at the slice's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
    /// Memory in use on the device, whoever has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory_mib: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptors: Option<u64>,
    /// Nanoseconds that a fixed piece of work took on the slowest of the engine's cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace_ns: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub throttle: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbed: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(scheduled_ms: f64, began_ms: f64, ended_ms: f64) -> Served {
        Served { scheduled_ms, began_ms, ended_ms }
    }

    #[test]
    fn latency_counts_from_the_scheduled_arrival_whoever_was_busy_then() {
        let queue: Vec<Served> = (0..100).map(f64::from).map(|n| served(n * 5.0, n * 10.0, n * 10.0 + 10.0)).collect();
        let point = LoadPoint::of(&queue, 0, Some(200.0), 500.0, 1).unwrap();
        assert_eq!((point.service_ms.median, point.latency_ms.max), (10.0, 505.0));
        assert!(point.fell_behind && point.latency_ms.median > 250.0 && point.busy_share > 0.99, "{point:?}");
        assert!((point.served_per_s - 100.0).abs() < 1e-9, "served while it lasted, not while requests arrived");
        let calm: Vec<Served> = (0..100).map(|n| f64::from(n) * 5.0).map(|at| served(at, at, at + 1.0)).collect();
        let point = LoadPoint::of(&calm, 0, Some(200.0), 500.0, 1).unwrap();
        assert!(!point.fell_behind && point.latency_ms.p99 == 1.0 && point.p99_ci_ms.is_some(), "{point:?}");
        assert_eq!(LoadPoint::of(&[], 3, Some(1.0), 1.0, 1), None);
    }

    #[test]
    fn an_objective_is_not_kept_by_a_run_that_gave_requests_up() {
        let calm: Vec<Served> = (0..50).map(f64::from).map(|at| served(at, at, at + 1.0)).collect();
        let objective = Objective { figure: Bounded::P90, most_ms: 2.0 };
        let point = LoadPoint::of(&calm, 0, Some(1000.0), 50.0, 1).unwrap();
        assert!(objective.holds(&point));
        assert!(!objective.holds(&LoadPoint::of(&calm, 1, Some(1000.0), 50.0, 1).unwrap()));
        assert!(!Objective { most_ms: 0.5, ..objective }.holds(&point));
        assert!(!Objective { figure: Bounded::P99, ..objective }.holds(&point), "of 50 requests nobody knows that");
    }
}
