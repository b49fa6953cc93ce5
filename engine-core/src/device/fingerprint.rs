//! The full description of one device, kept beside every number that was measured on it.

use crate::identity::Digest;
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

impl DeviceFingerprint {
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
}
