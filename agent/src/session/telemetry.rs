//! Device telemetry for heartbeats, read beside the agent's loop and never inside a timed window.

use crate::host::devices::DeviceSource;
use planforge_device::telemetry::contention::device_lost;
use planforge_proto::v1;
use planforge_types::telemetry::TelemetrySample;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Reads devices on a thread of its own, one round at a time: a driver that hangs delays no heartbeat.
#[derive(Clone)]
pub struct Sampler {
    source: Arc<dyn DeviceSource>,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    /// Devices inside a timed window.
    windows: BTreeSet<String>,
    /// The newest sample of each device, as JSON.
    latest: BTreeMap<String, String>,
    /// What was told before, for comparison; windows in between do not matter.
    before: BTreeMap<String, TelemetrySample>,
    /// Devices that may be lost, and why; until they are asked for.
    suspects: BTreeMap<String, String>,
    /// A round is being read.
    busy: bool,
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
        let mut inner = self.lock();
        if begins {
            inner.windows.insert(device.to_owned());
            inner.latest.remove(device);
        } else {
            inner.windows.remove(device);
        }
    }

    /// The newest samples, devices inside a window left out.
    pub fn latest(&self) -> Vec<v1::DeviceTelemetry> {
        let inner = self.lock();
        let samples = inner.latest.iter().filter(|(device, _)| !inner.windows.contains(*device));
        samples.map(|(device, json)| v1::DeviceTelemetry { device: device.clone(), json: json.clone() }).collect()
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
                if sampler.lock().windows.contains(&device) {
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
                    Some(json) if !inner.windows.contains(&device) => inner.latest.insert(device, json),
                    _ => inner.latest.remove(&device),
                };
            }
            sampler.lock().busy = false;
        });
    }
}
