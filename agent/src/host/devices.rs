//! The devices of this host.

use super::abilities::{Known, abilities};
use planforge_backend::Compiler;
use planforge_device::telemetry::{self, Telemetry};
use planforge_proto::v1;
use planforge_types::{
    Sku, Toolchain,
    fingerprint::{DeviceFingerprint, DeviceKind, DiscoveredDevice},
    telemetry::TelemetrySample,
};
use planforge_worker::preparation;
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

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

    /// What a toolchain can do at all on a device; `None`: nobody can say, and everything is tried.
    fn abilities(&self, device: &DiscoveredDevice, toolchain: &Toolchain) -> Option<v1::Abilities> {
        let _ = (device, toolchain);
        None
    }

    /// Toolchains for which this host prepares what can be had without the device, and by which it prepares models.
    fn prepares(&self) -> Vec<Toolchain> {
        Vec::new()
    }

    /// Adds to the cache file `into`, which a build of `backend` for `sku` left, what `from` knows beyond it; `false` where
    /// such caches cannot be joined.
    fn join_caches(&self, backend: &str, sku: &Sku, into: &Path, from: &Path) -> io::Result<bool> {
        let _ = (backend, sku, into, from);
        Ok(false)
    }
}

/// The devices that are really here, with what the compilers of this build offer for each.
pub struct HostDevices {
    compilers: Vec<Box<dyn Compiler>>,
    /// Folder where slow findings are kept.
    cache: Option<PathBuf>,
    /// Each with a lock of its own: one that hangs must not keep the others from being read, or devices from being
    /// listed.
    readers: Mutex<BTreeMap<String, Arc<Mutex<Reader>>>>,
    abilities: Mutex<Known>,
    /// Also without a GPU here: somebody asked for it.
    compiles_ahead: bool,
    /// When devices were found last.
    has_gpu: AtomicBool,
}

/// A device's telemetry, opened when it is first read and kept: opening a GPU's costs far more than reading it.
struct Reader {
    fingerprint: DeviceFingerprint,
    open: Option<Box<dyn Telemetry>>,
}

impl std::fmt::Debug for HostDevices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let backends: Vec<_> = self.compilers.iter().map(|compiler| compiler.backend()).collect();
        f.debug_struct("HostDevices").field("backends", &backends).field("cache", &self.cache).finish_non_exhaustive()
    }
}

impl HostDevices {
    /// This host, with `compilers`; `cache` is a folder that may be absent.
    pub fn new(compilers: Vec<Box<dyn Compiler>>, cache: Option<PathBuf>) -> Self {
        Self {
            compilers,
            cache,
            readers: Mutex::default(),
            abilities: Mutex::default(),
            compiles_ahead: false,
            has_gpu: AtomicBool::new(false),
        }
    }

    /// Prepares for devices that are elsewhere, too, where this host has none of their kind.
    pub fn compiling_ahead(self, compiles_ahead: bool) -> Self {
        Self { compiles_ahead, ..self }
    }

    /// Every device with what can be built for it now.
    pub fn discover(&self) -> Vec<DiscoveredDevice> {
        let mut devices = planforge_device::discover(self.cache.as_deref());
        for device in &mut devices {
            device.offers = self.compilers.iter().flat_map(|compiler| compiler.toolchains(device)).collect();
        }
        let has_gpu = devices.iter().any(|device| device.fingerprint.kind == DeviceKind::Gpu);
        self.has_gpu.store(has_gpu, Ordering::Relaxed);
        devices
    }

    /// The devices that are here now, as a coordinator hears of them from an agent called `agent` that is connected and
    /// idle.
    pub fn describe(&self, agent: &str) -> Vec<v1::Device> {
        let described = by_id(self.discover()).into_values().map(|device| to_wire(self, &device, false, None));
        described.map(|device| v1::Device { agent: agent.to_owned(), online: true, ..device }).collect()
    }
}

impl DeviceSource for HostDevices {
    fn devices(&self) -> Result<Vec<DiscoveredDevice>, DeviceError> {
        let devices = self.discover();
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|id, _| devices.iter().any(|device| device.id == *id));
        for device in &devices {
            let new = || Arc::new(Mutex::new(Reader { fingerprint: device.fingerprint.clone(), open: None }));
            readers.entry(device.id.clone()).or_insert_with(new);
        }
        Ok(devices)
    }

    fn telemetry(&self, device: &str) -> Option<TelemetrySample> {
        let reader = self.readers.lock().unwrap_or_else(PoisonError::into_inner).get(device)?.clone();
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        let Reader { fingerprint, open } = &mut *reader;
        let open = open.get_or_insert_with(|| telemetry::for_device(fingerprint));
        Some(open.sample())
    }

    /// Models are prepared on any processor. Kernels, where a GPU is: the libraries are open there anyhow; elsewhere nobody
    /// opens them unasked.
    fn prepares(&self) -> Vec<Toolchain> {
        let mut prepares = vec![preparation::toolchain()];
        if self.compiles_ahead || self.has_gpu.load(Ordering::Relaxed) {
            prepares.extend(self.compilers.iter().flat_map(|compiler| compiler.prepares()));
        }
        prepares
    }

    fn abilities(&self, device: &DiscoveredDevice, toolchain: &Toolchain) -> Option<v1::Abilities> {
        let compiler = self.compilers.iter().find(|compiler| compiler.backend() == toolchain.backend)?;
        let sku = device.skus.last()?;
        let mut known = self.abilities.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(device, toolchain, || abilities(compiler.as_ref(), device, sku, toolchain))
    }

    fn join_caches(&self, backend: &str, sku: &Sku, into: &Path, from: &Path) -> io::Result<bool> {
        let compiler = self.compilers.iter().find(|compiler| compiler.backend() == backend);
        compiler.map_or(Ok(false), |compiler| compiler.join_caches(sku, into, from))
    }
}

/// A device as a coordinator hears of it; `unusable` says why nothing can run on it.
pub(crate) fn to_wire(
    source: &dyn DeviceSource,
    device: &DiscoveredDevice,
    draining: bool,
    unusable: Option<&String>,
) -> v1::Device {
    let offer = |toolchain: &Toolchain| v1::Offer {
        toolchain_json: json(toolchain),
        abilities: source.abilities(device, toolchain),
    };
    let offers = device.offers.iter().map(offer).collect();
    // On the cores that compilers run on.
    let prepares = if device.fingerprint.kind == DeviceKind::Cpu { source.prepares() } else { Vec::new() };
    v1::Device {
        prepares_json: prepares.iter().map(json).collect(),
        id: device.id.clone(),
        skus: device.skus.iter().map(ToString::to_string).collect(),
        fingerprint_json: json(&device.fingerprint),
        offers,
        draining,
        simulated: device.simulated,
        threads: device.threads,
        quarantined: unusable.is_some(),
        quarantine_reason: unusable.cloned().unwrap_or_default(),
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
