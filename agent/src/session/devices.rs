//! Devices as the agent sees them: which there are, which cannot be used, and looking at them again.

use super::Agent;
use crate::{
    attempt::device_check,
    host::{
        devices::{DeviceError, by_id, to_wire},
        lock::{self, Holder, Taken},
    },
};
use planforge_client::blocking::blocking;
use planforge_proto::v1::{self, agent_message::Kind as Say};
use planforge_types::fingerprint::DiscoveredDevice;
use std::{collections::BTreeMap, path::Path, time::Duration};
use tokio::sync::mpsc;

/// Rounds of killing orphans at the start and the pause between them; what survives is met again when a job comes.
const ORPHAN_ROUNDS: usize = 400;
const ORPHAN_PAUSE: Duration = Duration::from_millis(5);

/// A device that was looked at, and why nothing can run on it where that is so.
pub type Checked = (String, Result<(), String>);

/// Kills what dead agents left on devices before the coordinator hears that they are free.
pub fn clear_orphans(folder: &Path, devices: &BTreeMap<String, DiscoveredDevice>) -> Result<(), lock::LockError> {
    for device in devices.keys() {
        for _ in 0..ORPHAN_ROUNDS {
            match lock::try_take(folder, device)? {
                Taken::Busy(busy) if busy.holder.as_ref().is_some_and(Holder::kill_if_orphaned) => {
                    std::thread::park_timeout(ORPHAN_PAUSE);
                }
                _ => break,
            }
        }
    }
    Ok(())
}

impl Agent {
    pub(super) fn wire_devices(&self) -> Vec<v1::Device> {
        let source = self.config.devices.as_ref();
        let wire = |device: &DiscoveredDevice| to_wire(source, device, self.draining, self.unusable.get(&device.id));
        self.devices.values().map(wire).collect()
    }

    /// Takes over which devices the driver told of.
    pub(super) fn hear_of_suspects(&mut self) {
        for (device, reason) in self.sampler.take_suspects() {
            if self.devices.get(&device).is_some_and(device_check::can_break) && self.suspects.insert(device.clone()) {
                tracing::warn!(device, reason, "a device will be looked at");
            }
        }
    }

    pub(super) fn on_devices(&mut self, found: Result<Vec<DiscoveredDevice>, DeviceError>) {
        match found {
            Ok(devices) => {
                let devices = by_id(devices);
                if devices != self.devices {
                    let names: Vec<&str> = devices.keys().map(String::as_str).collect();
                    tracing::info!(devices = names.join(" "), "devices or toolchains changed");
                    self.devices = devices;
                    self.say(Say::Inventory(v1::Inventory { devices: self.wire_devices() }));
                }
            }
            Err(error) => tracing::warn!(%error, "keeping the devices found before"),
        }
    }

    /// A device was looked at; the coordinator hears of it where that changed anything.
    pub(super) fn on_checked(&mut self, device: &str, result: Result<(), String>) {
        self.suspects.remove(device);
        let changed = match result {
            Ok(()) => {
                let was = self.unusable.remove(device);
                was.iter().for_each(|reason| tracing::info!(device, was = reason, "a device can be used again"));
                was.is_some()
            }
            Err(reason) => {
                let same = self.unusable.get(device) == Some(&reason);
                if !same {
                    tracing::error!(device, reason, "a device cannot be used; it gets no jobs until it can");
                    self.unusable.insert(device.to_owned(), reason);
                }
                !same
            }
        };
        if changed {
            self.say(Say::Inventory(v1::Inventory { devices: self.wire_devices() }));
        }
    }

    /// Looks at devices, those apart on which something runs: that looks itself when it fails, and the next round will.
    pub(super) fn look_at(&mut self, devices: Vec<String>, checked: &mpsc::Sender<Checked>) {
        for device in devices.iter().filter_map(|id| self.devices.get(id)).cloned() {
            let (shared, checked) = (self.shared.clone(), checked.clone());
            let turn = self.turns.entry(device.id.clone()).or_default().clone();
            self.attempts.spawn(async move {
                let Ok(_turn) = turn.try_lock() else { return };
                let (folder, id) = (shared.lock_folder.clone(), device.id.clone());
                let lock = match blocking(move || lock::try_take(&folder, &id)).await {
                    Ok(Taken::Ours(lock)) => lock,
                    Ok(Taken::Busy(_)) => return,
                    Err(error) => return tracing::warn!(device = device.id, %error, "cannot look at a device again"),
                };
                let result = device_check::check(&shared, &device, &lock).await;
                drop(lock);
                // The agent that would hear it is gone only when the process is ending.
                let _ = checked.send((device.id, result)).await;
            });
        }
    }
}
