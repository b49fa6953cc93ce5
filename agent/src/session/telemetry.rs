//! Device telemetry for heartbeats, read beside the agent's loop and never inside a timed window.

use crate::host::devices::DeviceSource;
use planforge_device::telemetry::{contention::device_lost, unix_ms};
use planforge_proto::v1;
use planforge_types::telemetry::TelemetrySample;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Windows with pauses up to this between them are parts of one measurement.
const PAUSE_MS: u64 = 20_000;

/// Reads devices on a thread of its own, one round at a time: a driver that hangs delays no heartbeat.
#[derive(Clone)]
pub struct Sampler {
    source: Arc<dyn DeviceSource>,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    /// Devices inside a timed window, and when it began, Unix milliseconds of this host.
    windows: BTreeMap<String, u64>,
    /// From when to when each device was measured last: windows with short pauses between them are one measurement.
    measured: BTreeMap<String, (u64, u64)>,
    /// The newest sample of each device, as JSON.
    latest: BTreeMap<String, String>,
    /// What was told before, for comparison; windows in between do not matter.
    before: BTreeMap<String, TelemetrySample>,
    /// Devices that may be lost, and why; until they are asked for.
    suspects: BTreeMap<String, String>,
    /// A round is being read.
    busy: bool,
}

impl Inner {
    fn window(&mut self, device: &str, begins: bool, now_ms: u64) {
        if begins {
            self.windows.entry(device.to_owned()).or_insert(now_ms);
            self.latest.remove(device);
        } else if let Some(from_ms) = self.windows.remove(device) {
            let before = self.measured.get(device).filter(|(_, to_ms)| to_ms + PAUSE_MS >= from_ms);
            let from_ms = before.map_or(from_ms, |(first_ms, _)| *first_ms);
            self.measured.insert(device.to_owned(), (from_ms, now_ms.max(from_ms)));
        }
    }

    fn told(&self) -> Vec<v1::DeviceTelemetry> {
        let measuring = self.windows.iter().map(|(device, from_ms)| {
            // Since the measurement began, not the latest of its windows.
            let before = self.measured.get(device).filter(|(_, to_ms)| to_ms + PAUSE_MS >= *from_ms);
            let from_ms = before.map_or(*from_ms, |(first_ms, _)| *first_ms);
            (device, serde_json::json!({ "measuring_from_unix_ms": from_ms }).to_string())
        });
        let samples = self.latest.iter().filter(|(device, _)| !self.windows.contains_key(*device));
        let samples = samples.map(|(device, json)| (device, self.with_measured(device, json)));
        let told = measuring.chain(samples);
        told.map(|(device, json)| v1::DeviceTelemetry { device: device.clone(), json }).collect()
    }

    /// A sample, with when the device was measured last.
    fn with_measured(&self, device: &str, json: &str) -> String {
        let sample = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(json);
        match (self.measured.get(device), sample) {
            (Some((from_ms, to_ms)), Ok(mut sample)) => {
                sample.insert("measured_unix_ms".into(), serde_json::json!([from_ms, to_ms]));
                serde_json::Value::Object(sample).to_string()
            }
            _ => json.to_owned(),
        }
    }
}

impl Sampler {
    pub fn new(source: Arc<dyn DeviceSource>) -> Self {
        Self { source, inner: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A timed window begins or ends on a device. Its old sample is dropped: it says nothing of the time after.
    pub fn window(&self, device: &str, begins: bool) {
        self.lock().window(device, begins, unix_ms());
    }

    /// The newest samples, each with when its device was measured last; of devices inside a window only since when.
    pub fn latest(&self) -> Vec<v1::DeviceTelemetry> {
        self.lock().told()
    }

    /// Devices of which the driver told, outside of windows, what may make them unusable; each is told of once.
    pub fn take_suspects(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.lock().suspects)
    }

    /// Begins another round over `devices`, unless one is being read.
    pub fn start_round(&self, devices: Vec<String>) {
        if std::mem::replace(&mut self.lock().busy, true) {
            return;
        }
        let sampler = self.clone();
        tokio::task::spawn_blocking(move || {
            for device in devices {
                if sampler.lock().windows.contains_key(&device) {
                    continue;
                }
                let sample = sampler.source.telemetry(&device);
                let mut inner = sampler.lock();
                if let Some(sample) = &sample {
                    let before = inner.before.insert(device.clone(), sample.clone()).unwrap_or_default();
                    if let Some(reason) = device_lost(&before, sample) {
                        inner.suspects.insert(device.clone(), reason);
                    }
                }
                match sample.and_then(|sample| serde_json::to_string(&sample).ok()) {
                    Some(json) if !inner.windows.contains_key(&device) => inner.latest.insert(device, json),
                    _ => inner.latest.remove(&device),
                };
            }
            sampler.lock().busy = false;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_one_measurement_are_told_as_one_and_nothing_is_told_inside_of_them() {
        let mut inner = Inner::default();
        inner.latest.insert("gpu".into(), r#"{"temperature_c":54.0}"#.into());
        inner.latest.insert("other".into(), r#"{"temperature_c":40.0}"#.into());
        let told = |inner: &Inner, device: &str| {
            let sample = inner.told().into_iter().find(|sample| sample.device == device);
            sample.map(|sample| sample.json).unwrap_or_default()
        };
        inner.window("gpu", true, 1_000);
        assert_eq!(told(&inner, "gpu"), r#"{"measuring_from_unix_ms":1000}"#);
        assert_eq!(told(&inner, "other"), r#"{"temperature_c":40.0}"#, "it is measured on neither");
        inner.window("gpu", false, 2_000);
        assert_eq!(told(&inner, "gpu"), "", "the sample before says nothing of the time after");
        inner.window("gpu", true, 2_500);
        assert_eq!(told(&inner, "gpu"), r#"{"measuring_from_unix_ms":1000}"#);
        inner.window("gpu", false, 3_000);
        inner.window("gpu", false, 9_000);
        inner.latest.insert("gpu".into(), r#"{"temperature_c":61.0}"#.into());
        assert_eq!(told(&inner, "gpu"), r#"{"measured_unix_ms":[1000,3000],"temperature_c":61.0}"#);
        inner.window("gpu", true, 3_000 + PAUSE_MS + 1);
        assert_eq!(told(&inner, "gpu"), format!(r#"{{"measuring_from_unix_ms":{}}}"#, 3_001 + PAUSE_MS));
    }
}
