//! The full description of one device, kept beside every number that was measured on it.

use crate::{Digest, Sku, Toolchain};
use serde::{Deserialize, Serialize};

/// What kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    Cpu,
    Gpu,
}

/// Everything that is known of a device. What could not be read is left out, never guessed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFingerprint {
    pub kind: DeviceKind,
    /// As its driver or processor reports it.
    pub name: String,
    /// Device memory of a GPU, main memory of a CPU's host.
    pub memory_mib: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuFacts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuFacts>,
    #[serde(default)]
    pub host: HostFacts,
}

/// What NVML says of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuFacts {
    pub uuid: String,
    /// Vendor and device, `10de:2330`.
    pub pci_id: String,
    /// Subsystem vendor and device.
    pub pci_subsystem: Option<String>,
    pub pci_bus: Option<String>,
    pub sm_count: Option<u32>,
    /// `9.0`.
    pub compute_capability: String,
    pub memory_bus_bits: Option<u32>,
    pub max_sm_clock_mhz: Option<u32>,
    pub max_memory_clock_mhz: Option<u32>,
    pub power_limit_w: Option<f64>,
    /// Width and generation the board could have.
    pub pcie_max_width: Option<u32>,
    pub pcie_max_generation: Option<u32>,
    pub ecc: Option<bool>,
    pub board_part: Option<String>,
    pub vbios: Option<String>,
    pub driver: String,
    /// Highest CUDA version the driver supports, `12.8`.
    pub cuda_driver: String,
    /// Slice profile such as `1g.10gb`; the slice's own memory and SMs stand in the other fields.
    pub mig: Option<String>,
    /// `vgpu` or `passthrough`, when virtualised.
    pub virtualization: Option<String>,
}

/// What the processor and the kernel say of a CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuFacts {
    /// `x86_64` or `aarch64`.
    pub architecture: String,
    pub vendor: String,
    pub family: Option<u32>,
    pub model: Option<u32>,
    pub stepping: Option<u32>,
    pub microcode: Option<String>,
    /// Instruction-set extensions that matter to engines, sorted.
    pub features: Vec<String>,
    /// Physical cores of the host.
    pub physical_cores: u32,
    /// Hardware threads of the host.
    pub logical_cpus: u32,
    /// Physical cores this process may use: affinity and control-group quota applied.
    pub usable_cores: u32,
    pub sockets: u32,
    pub numa_nodes: u32,
    pub l1d_kib: Option<u32>,
    pub l2_kib: Option<u32>,
    /// One instance of the last-level cache.
    pub l3_kib: Option<u32>,
    pub max_mhz: Option<u32>,
    /// Runs under a hypervisor: neighbours may disturb measurements unseen.
    pub hypervisor: bool,
}

/// The machine around the device; recorded, never part of a key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFacts {
    pub os: String,
    pub kernel: String,
}

/// A device that was found on this host, and what it offers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiscoveredDevice {
    /// Stable on its host: the GPU's UUID, or `cpu0`.
    pub id: String,
    pub fingerprint: DeviceFingerprint,
    /// One for a GPU; one per instruction-set level for a CPU, best last.
    pub skus: Vec<Sku>,
    /// Physical cores a CPU engine may use; 0 for GPUs.
    pub threads: u32,
    /// Toolchains that can build for it now.
    pub offers: Vec<Toolchain>,
    /// A scripted double: everything measured on it is marked.
    pub simulated: bool,
}

/// Names the GPUs that CUDA shows a process.
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

impl DeviceFingerprint {
    /// The environment variable that shows a process this GPU and no other, with its value.
    pub fn visibility(&self) -> Option<(&'static str, String)> {
        self.gpu.as_ref().map(|gpu| (VISIBLE_DEVICES, gpu.uuid.clone()))
    }

    /// Digest of what decides which tactic is fastest: the device's make, never which specimen it is or what drives it.
    /// Timings may be shared between devices of one class.
    pub fn class_digest(&self) -> Digest {
        let mut class = self.clone();
        class.host = HostFacts::default();
        if let Some(gpu) = &mut class.gpu {
            gpu.uuid.clear();
            gpu.driver.clear();
            gpu.cuda_driver.clear();
            gpu.pci_bus = None;
            gpu.vbios = None;
            gpu.board_part = None;
        }
        if let Some(cpu) = &mut class.cpu {
            cpu.microcode = None;
            class.memory_mib = 0;
        }
        let mut bytes = b"planforge-device-class-v1\n".to_vec();
        serde_json_canonicalizer::to_writer(&class, &mut bytes).expect("a fingerprint has only JSON types");
        Digest::of(&bytes)
    }

    /// Within this scope, and nowhere else, builds may share timing and tactic caches: the device's class, its driver's
    /// branch, the SKU that is built for (a CPU has several) and the whole toolchain. Newer TensorRT takes another GPU's
    /// cache without a word, so nothing that matters may be left out. What scripted doubles learn stays among them.
    pub fn tuning_scope(&self, sku: &Sku, toolchain: &Toolchain, simulated: bool) -> Digest {
        let driver = self.gpu.as_ref().map_or("", |gpu| gpu.driver.as_str());
        let branch = driver.split('.').next().unwrap_or_default();
        let mut bytes = b"planforge-tuning-scope-v1\n".to_vec();
        let parts = (self.class_digest(), branch, sku, toolchain, simulated);
        serde_json_canonicalizer::to_writer(&parts, &mut bytes).expect("a scope has only JSON types");
        Digest::of(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn toolchain(version: &str, cuda: &str) -> Toolchain {
        let components = BTreeMap::from([("cuda".to_owned(), cuda.to_owned())]);
        Toolchain { backend: "tensorrt".into(), version: version.into(), components }
    }

    fn board(name: &str, capability: &str, driver: &str) -> DeviceFingerprint {
        let gpu = GpuFacts { compute_capability: capability.into(), driver: driver.into(), ..GpuFacts::default() };
        DeviceFingerprint {
            kind: DeviceKind::Gpu,
            name: name.into(),
            memory_mib: 81_081,
            gpu: Some(gpu),
            cpu: None,
            host: HostFacts::default(),
        }
    }

    #[test]
    fn a_tuning_scope_leaves_out_nothing_that_matters() {
        let sku: Sku = "h100-pcie".parse().unwrap();
        let scope = |device: &DeviceFingerprint, version: &str, cuda: &str| {
            device.tuning_scope(&sku, &toolchain(version, cuda), false)
        };
        let device = board("NVIDIA H100 PCIe", "9.0", "580.159.03");
        let own = scope(&device, "10.13.0", "12.9");
        let others = [
            scope(&board("NVIDIA H100 80GB HBM3", "9.0", "580.159.03"), "10.13.0", "12.9"),
            scope(&board("NVIDIA H100 PCIe", "8.9", "580.159.03"), "10.13.0", "12.9"),
            scope(&board("NVIDIA H100 PCIe", "9.0", "570.86.10"), "10.13.0", "12.9"),
            scope(&device, "10.13.2", "12.9"),
            scope(&device, "10.13.0", "13.0"),
            device.tuning_scope(&"h100-nvl".parse().unwrap(), &toolchain("10.13.0", "12.9"), false),
            device.tuning_scope(&sku, &toolchain("10.13.0", "12.9"), true),
        ];
        for (index, other) in others.iter().enumerate() {
            assert_ne!(own, *other, "{index}");
        }
        // Another specimen of the same board, and a patch of the same driver branch, share.
        let mut twin = board("NVIDIA H100 PCIe", "9.0", "580.95.05");
        twin.gpu.as_mut().unwrap().uuid = "GPU-2".into();
        assert_eq!(own, scope(&twin, "10.13.0", "12.9"));
    }
}
