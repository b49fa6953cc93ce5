//! Everything this host offers, fast: opening the GPU library can take a second, so what it said is kept in a file
//! and used again as long as nothing about library, driver, boot or partitioning has changed.

use super::{CpuLevel, catalogue, cpu};
#[cfg(feature = "nvml")]
use planforge_types::durable;
use planforge_types::{
    Digest,
    fingerprint::{DeviceFingerprint, DiscoveredDevice, HostFacts},
};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// File in the cache folder that keeps what was found.
const CACHE_FILE: &str = "gpus.json";

/// Raised whenever the kept form or the way GPUs are described changes.
const CACHE_VERSION: u32 = 1;

/// Where the management library is looked for to stamp it; the loader may know further folders, then the driver's own
/// version file and the boot still tell of a change.
const LIBRARIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/lib/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
];

/// Entries of the driver's folders that are looked at.
const MAX_ENTRIES: usize = 4096;

#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    stamp: Digest,
    gpus: Vec<DeviceFingerprint>,
}

/// Finds this host's devices; GPUs first, then the CPU as `cpu0`. Their `offers` are still empty: which toolchains
/// there are is the backends' to say. `cache` is a folder that may be absent.
pub fn discover(cache: Option<&Path>) -> Vec<DiscoveredDevice> {
    let host = cpu::host_facts();
    let gpus = gpus(&host, cache.map(|folder| folder.join(CACHE_FILE)).as_deref());
    let mut devices: Vec<DiscoveredDevice> = gpus.into_iter().map(|gpu| gpu_device(gpu, &host)).collect();
    let (fingerprint, levels) = cpu::detect(&host);
    devices.push(cpu_device(fingerprint, &levels));
    devices
}

#[cfg(feature = "nvml")]
fn gpus(host: &HostFacts, kept: Option<&Path>) -> Vec<DeviceFingerprint> {
    let detect = || crate::gpu::detect(host);
    match kept {
        Some(file) => kept_or(file, stamp(), detect),
        None => detect(),
    }
}

/// A program that opens no library at run time knows what another one kept.
#[cfg(not(feature = "nvml"))]
fn gpus(_: &HostFacts, kept: Option<&Path>) -> Vec<DeviceFingerprint> {
    kept.and_then(|file| read(file, stamp())).unwrap_or_default()
}

fn gpu_device(mut fingerprint: DeviceFingerprint, host: &HostFacts) -> DiscoveredDevice {
    fingerprint.host.clone_from(host);
    let id = fingerprint.gpu.as_ref().map(|gpu| gpu.uuid.clone()).unwrap_or_default();
    let skus = vec![catalogue::gpu_sku(&fingerprint)];
    DiscoveredDevice { id, fingerprint, skus, threads: 0, offers: Vec::new(), simulated: false }
}

fn cpu_device(fingerprint: DeviceFingerprint, levels: &[CpuLevel]) -> DiscoveredDevice {
    let threads = fingerprint.cpu.as_ref().map_or(1, |cpu| cpu.usable_cores);
    let skus = levels.iter().map(|level| level.sku()).collect();
    DiscoveredDevice { id: "cpu0".into(), fingerprint, skus, threads, offers: Vec::new(), simulated: false }
}

/// What was kept under `stamp`.
fn read(file: &Path, stamp: Digest) -> Option<Vec<DeviceFingerprint>> {
    let kept = fs::read(file).ok().and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok())?;
    (kept.version == CACHE_VERSION && kept.stamp == stamp).then_some(kept.gpus)
}

/// What was kept under `stamp`, else what `detect` finds, which is then kept. A cache that cannot be read or written
/// only costs time.
#[cfg(feature = "nvml")]
fn kept_or(file: &Path, stamp: Digest, detect: impl FnOnce() -> Vec<DeviceFingerprint>) -> Vec<DeviceFingerprint> {
    if let Some(gpus) = read(file, stamp) {
        return gpus;
    }
    let gpus = detect();
    let kept = Kept { version: CACHE_VERSION, stamp, gpus: gpus.clone() };
    if let Err(error) = keep(file, &kept) {
        tracing::debug!(file = %file.display(), %error, "found GPUs are not kept");
    }
    gpus
}

#[cfg(feature = "nvml")]
fn keep(file: &Path, kept: &Kept) -> std::io::Result<()> {
    durable::write_cache(file, &serde_json::to_vec(kept)?)
}

/// Everything that can change which GPUs there are, without opening the library.
fn stamp() -> Digest {
    let mut text = String::new();
    for library in LIBRARIES {
        if let Ok(facts) = fs::metadata(library) {
            text += &format!("{library} {} {}.{}\n", facts.size(), facts.mtime(), facts.mtime_nsec());
        }
    }
    for file in ["/proc/driver/nvidia/version", "/proc/sys/kernel/random/boot_id"] {
        text += &fs::read_to_string(file).unwrap_or_default();
    }
    for variable in ["LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES"] {
        text += &format!("{variable}={}\n", std::env::var_os(variable).unwrap_or_default().display());
    }
    for folder in ["/proc/driver/nvidia/gpus", "/proc/driver/nvidia/capabilities"] {
        text += &tree(Path::new(folder));
    }
    text += &device_nodes();
    Digest::of(text.as_bytes())
}

fn device_nodes() -> String {
    let names = fs::read_dir("/dev").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut nodes: Vec<String> =
        names.map(|n| n.to_string_lossy().into_owned()).filter(|n| n.starts_with("nvidia")).collect();
    nodes.sort_unstable();
    nodes.join(" ")
}

/// Every path under `folder`, one a line: partitions of a GPU come and go as folders there.
fn tree(folder: &Path) -> String {
    let mut open = vec![folder.to_owned()];
    let mut seen: Vec<PathBuf> = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if seen.len() >= MAX_ENTRIES {
                break;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
            seen.push(entry.path());
        }
    }
    seen.sort_unstable();
    seen.iter().map(|path| format!("{}\n", path.display())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_was_found_is_used_again_until_the_stamp_changes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(CACHE_FILE);
        let (fingerprint, _) = cpu::detect(&HostFacts::default());
        let asked = Cell::new(0);
        let detect = || {
            asked.set(asked.get() + 1);
            vec![fingerprint.clone()]
        };
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        assert_eq!(kept_or(&file, one, detect), kept_or(&file, one, detect));
        assert_eq!(asked.get(), 1);
        kept_or(&file, two, detect);
        assert_eq!(asked.get(), 2);
        fs::write(&file, b"{").unwrap();
        kept_or(&file, two, detect);
        assert_eq!(asked.get(), 3);
        // Nowhere to keep it: found all the same.
        assert_eq!(kept_or(Path::new("/nonexistent/x/gpus.json"), one, detect).len(), 1);
    }

    #[test]
    fn this_host_is_found_alike_with_and_without_a_cache() {
        let folder = tempfile::tempdir().unwrap();
        let fresh = discover(None);
        for _ in 0..2 {
            let cached = discover(Some(folder.path()));
            assert_eq!(cached, fresh);
        }
        let cpu = fresh.last().unwrap();
        assert_eq!(cpu.id, "cpu0");
        assert!(cpu.threads >= 1);
    }
}
