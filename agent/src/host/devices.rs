//! The devices of this host.

use planforge_engine_core::{device::DiscoveredDevice, telemetry::TelemetrySample};
use planforge_proto::v1;
use std::collections::BTreeMap;

/// Why a host's devices are not known.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot find this host's devices: {reason}")]
pub struct DeviceError {
    pub reason: String,
}

/// Where an agent's devices come from: the host itself, or a script in tests.
pub trait DeviceSource: Send + Sync + 'static {
    /// Finds the devices and what can be built for them now. May block for seconds.
    fn devices(&self) -> Result<Vec<DiscoveredDevice>, DeviceError>;

    /// Reads a device's state, `None` when it tells nothing. Never called inside the device's timed windows.
    fn telemetry(&self, device: &str) -> Option<TelemetrySample>;
}

/// A device as a coordinator hears of it.
pub(crate) fn to_wire(device: &DiscoveredDevice, draining: bool) -> v1::Device {
    let offers = device.offers.iter().map(|toolchain| v1::Offer { toolchain_json: json(toolchain) }).collect();
    v1::Device {
        id: device.id.clone(),
        skus: device.skus.iter().map(ToString::to_string).collect(),
        fingerprint_json: json(&device.fingerprint),
        offers,
        draining,
        simulated: device.simulated,
        threads: device.threads,
        ..v1::Device::default()
    }
}

/// Devices by id; a repeated id keeps the first.
pub(crate) fn by_id(devices: Vec<DiscoveredDevice>) -> BTreeMap<String, DiscoveredDevice> {
    let mut found = BTreeMap::new();
    for device in devices {
        found.entry(device.id.clone()).or_insert(device);
    }
    found
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("identity types have only JSON types")
}
