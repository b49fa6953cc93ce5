//! Boards that are not there, as their driver and the stand-in would describe them.

use crate::standin::scenario::{Gpu, Scenario, Selects, Timing};

/// A board as its driver would describe it.
#[derive(Clone, Copy, Debug)]
pub struct Board {
    pub sku: &'static str,
    pub name: &'static str,
    /// Device id of NVIDIA.
    pub pci: u16,
    pub compute_capability: (u32, u32),
    pub sms: u32,
    pub memory_mib: u64,
    pub bus_bits: u32,
    pub shared_kib: u32,
    pub clock_mhz: u32,
    pub memory_clock_mhz: u32,
    pub power_w: f64,
    /// Compute time of the stand-in on this board.
    pub compute_ms: f64,
}

const fn board(
    sku: &'static str,
    name: &'static str,
    pci: u16,
    compute_capability: (u32, u32),
    (sms, memory_mib, bus_bits, shared_kib): (u32, u64, u32, u32),
    (clock_mhz, memory_clock_mhz): (u32, u32),
    (power_w, compute_ms): (f64, f64),
) -> Board {
    Board {
        sku,
        name,
        pci,
        compute_capability,
        sms,
        memory_mib,
        bus_bits,
        shared_kib,
        clock_mhz,
        memory_clock_mhz,
        power_w,
        compute_ms,
    }
}

/// The fleet of the user's scenario.
pub const BOARDS: [Board; 5] = [
    board("t4", "Tesla T4", 0x1eb8, (7, 5), (40, 15_109, 256, 64), (1590, 5001), (70.0, 4.2)),
    board(
        "a100-pcie-40gb",
        "NVIDIA A100-PCIE-40GB",
        0x20f1,
        (8, 0),
        (108, 40_326, 5120, 164),
        (1410, 1215),
        (250.0, 1.3),
    ),
    board(
        "a100-sxm4-80gb",
        "NVIDIA A100-SXM4-80GB",
        0x20b2,
        (8, 0),
        (108, 81_153, 5120, 164),
        (1410, 1593),
        (400.0, 1.1),
    ),
    board("h100-pcie", "NVIDIA H100 PCIe", 0x2331, (9, 0), (114, 81_081, 5120, 228), (1755, 1593), (350.0, 0.8)),
    board("h100-sxm", "NVIDIA H100 80GB HBM3", 0x2330, (9, 0), (132, 81_559, 5120, 228), (1980, 2619), (700.0, 0.55)),
];

/// The board of that SKU.
pub fn board_of(sku: &str) -> Board {
    *BOARDS.iter().find(|board| board.sku == sku).unwrap_or_else(|| panic!("no scripted board {sku}"))
}

impl Board {
    /// The same for every specimen that a test makes.
    pub fn uuid(&self) -> String {
        format!("GPU-{:08x}-0000-4000-8000-{:012x}", self.pci, self.sms)
    }

    /// As the stand-in describes it.
    pub fn gpu(&self) -> Gpu {
        Gpu {
            name: self.name.into(),
            uuid: self.uuid(),
            compute_capability: self.compute_capability,
            sms: self.sms,
            memory_mib: self.memory_mib,
            shared_kib: self.shared_kib,
            bus_bits: self.bus_bits,
            ecc: true,
            clock_ghz: f64::from(self.clock_mhz) / 1e3,
            memory_ghz: f64::from(self.memory_clock_mhz) / 1e3,
        }
    }

    /// A toolchain of `version` on a host with this board, where all goes well.
    pub fn scenario(&self, version: &str) -> Scenario {
        Scenario {
            version: version.parse().unwrap_or_else(|e| panic!("{e}")),
            gpus: vec![self.gpu()],
            selects: Selects::default(),
            timing: Timing { compute_ms: self.compute_ms, seed: u64::from(self.pci), ..Timing::default() },
            rules: Vec::new(),
            outputs: None,
        }
    }
}
