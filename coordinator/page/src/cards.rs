//! Devices as cards: what each is, offers, does now, and did within a day.

use crate::{
    day::{Day, DayChart},
    format,
    rows::{Pill, time, toolchain},
};
use planforge_proto::v1;
use planforge_tensorrt_rules::{
    Version,
    hardware::{self, Board},
    preflight,
};
use planforge_types::{Toolchain, fingerprint::GpuFacts};
use serde::Deserialize;

/// A device as a card.
#[derive(Clone, Debug)]
pub struct DeviceCard {
    pub name: String,
    pub id: String,
    pub agent: String,
    pub pill: Pill,
    pub skus: Vec<String>,
    pub toolchains: Vec<String>,
    /// Toolchains that are of no use on this device, and why.
    pub doubts: Vec<String>,
    pub facts: Vec<String>,
    /// What its agent was started with, for jobs that ask for it.
    pub labels: Vec<String>,
    /// What is live of it: clocks, temperature, power, memory; and while it measures, that nothing is asked of it.
    pub live: Vec<String>,
    /// When what it was measured from and to, as the agent says.
    pub measured: Option<(Option<String>, Option<String>)>,
    pub day: DayChart,
    pub job: Option<String>,
    pub last_seen: Option<String>,
    pub note: String,
    pub simulated: bool,
}

/// The parts of a fingerprint and of telemetry that a card shows.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Fingerprint {
    name: String,
    memory_mib: u64,
    gpu: Option<GpuFacts>,
}

impl Fingerprint {
    fn board(&self) -> Option<Board<'_>> {
        self.gpu.as_ref().and_then(Board::of)
    }
}

/// TensorRT versions of a device that do not know its GPU, or that nothing is known of.
fn doubts(device: &v1::Device, board: Option<&Board<'_>>) -> Vec<String> {
    let offers = device.offers.iter().filter_map(|offer| serde_json::from_str::<Toolchain>(&offer.toolchain_json).ok());
    let versions = offers.filter(|offer| offer.backend == planforge_tensorrt_rules::BACKEND);
    let versions = versions.filter_map(|offer| offer.version.parse::<Version>().ok());
    let refused = |version: Version| {
        let known = preflight::known(version, false).map(drop);
        known.and_then(|()| board.map_or(Ok(()), |board| hardware::knows(version, board.capability))).err()
    };
    versions.filter_map(refused).map(|refusal| refusal.to_string()).collect()
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Telemetry {
    sm_clock_mhz: Option<u32>,
    memory_clock_mhz: Option<u32>,
    cpu_mhz: Option<u32>,
    temperature_c: Option<f64>,
    power_w: Option<f64>,
    power_limit_w: Option<f64>,
    utilization_percent: Option<f64>,
    memory_used_mib: Option<u64>,
    ecc_uncorrected: Option<u64>,
    load_1m: Option<f64>,
    throttle: Vec<String>,
    /// A timed window goes on since then: nothing is asked of the device meanwhile.
    measuring_from_unix_ms: Option<u64>,
    /// The last measurement, by its windows.
    measured_unix_ms: Option<(u64, u64)>,
}

impl Telemetry {
    fn words(&self) -> Vec<String> {
        let mhz = |mhz: u32| format::grouped(u64::from(mhz));
        let clocks = match (self.sm_clock_mhz, self.memory_clock_mhz) {
            (Some(sm), Some(memory)) => Some(format!("clocks {} and {} MHz", mhz(sm), mhz(memory))),
            (Some(one), None) | (None, Some(one)) => Some(format!("clock {} MHz", mhz(one))),
            (None, None) => self.cpu_mhz.map(|cpu| format!("clock {} MHz", mhz(cpu))),
        };
        let power = self.power_w.map(|watts| match self.power_limit_w {
            Some(limit) => format!("{watts:.0} of {limit:.0} W"),
            None => format!("{watts:.0} W"),
        });
        let ecc = self.ecc_uncorrected.filter(|errors| *errors > 0);
        let words = [
            clocks,
            self.temperature_c.map(|celsius| format!("{celsius:.0} °C")),
            power,
            self.memory_used_mib.map(|mib| format!("{} in use", format::bytes(mib << 20))),
            self.utilization_percent.map(|percent| format!("{percent:.0} % busy")),
            self.load_1m.map(|load| format!("load {load:.1}")),
            (!self.throttle.is_empty()).then(|| format!("throttled: {}", self.throttle.join(", "))),
            ecc.map(|errors| format!("{errors} uncorrected memory errors")),
        ];
        words.into_iter().flatten().collect()
    }
}

impl DeviceCard {
    pub fn new(device: &v1::Device, day: &Day) -> Self {
        let fingerprint: Fingerprint = serde_json::from_str(&device.fingerprint_json).unwrap_or_default();
        let telemetry: Telemetry = serde_json::from_str(&device.telemetry_json).unwrap_or_default();
        let measured = match (telemetry.measuring_from_unix_ms, telemetry.measured_unix_ms) {
            (Some(from_ms), _) => Some((time(from_ms), None)),
            (None, Some((from_ms, to_ms))) => Some((time(from_ms), time(to_ms))),
            (None, None) => None,
        };
        let pill = match device {
            device if device.quarantined => Pill::new("quarantined", "✕", "bad"),
            device if !device.online => Pill::new("offline", "○", "off"),
            device if device.draining => Pill::new("draining", "⇣", "warn"),
            device if device.busy => Pill::new("busy", "▶", "go"),
            _ => Pill::new("idle", "●", "good"),
        };
        let memory = (fingerprint.memory_mib > 0).then(|| format::bytes(fingerprint.memory_mib << 20));
        let board = fingerprint.board();
        let doubts = doubts(device, board.as_ref());
        let gpu = fingerprint.gpu.as_ref();
        let driver = gpu.map(|gpu| &gpu.driver).filter(|driver| !driver.is_empty());
        let mig = gpu.and_then(|gpu| gpu.mig.as_ref());
        let facts = [
            memory,
            board.map(|b| {
                format!("compute capability {}: {}", b.capability, hardware::precisions(b.capability).join(", "))
            }),
            (device.threads > 0).then(|| format!("{} cores", device.threads)),
            driver.map(|driver| format!("driver {driver}")),
            mig.map(|profile| format!("MIG slice {profile}")),
        ];
        Self {
            name: if fingerprint.name.is_empty() { device.id.clone() } else { fingerprint.name },
            id: device.id.clone(),
            agent: device.agent.clone(),
            pill,
            skus: device.skus.clone(),
            doubts,
            toolchains: device.offers.iter().map(|offer| toolchain(&offer.toolchain_json, "")).collect(),
            facts: facts.into_iter().flatten().collect(),
            labels: device.labels.clone(),
            // What an agent said that is away says nothing of now.
            live: if device.online { telemetry.words() } else { Vec::new() },
            measured: measured.filter(|_| device.online),
            day: DayChart::of(day),
            job: (!device.busy_job.is_empty()).then(|| device.busy_job.clone()),
            last_seen: time(device.last_seen_ms).filter(|_| !device.online),
            note: device.quarantine_reason.clone(),
            simulated: device.simulated,
        }
    }
}
