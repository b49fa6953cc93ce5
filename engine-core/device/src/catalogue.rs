//! The SKU catalogue: which boards are one and the same target, and what it is called.
//!
//! A row matches on PCI id, memory, SM count and compute capability together. PCI ids alone are not enough (the two
//! GH200 share one, so do A2 and A16), and names alone are not either ("H100 80GB HBM3" is the SXM board). Memory is
//! given as a range because drivers report less than is on the label. A board that no row matches, and every MIG
//! slice and virtual GPU, gets a name derived from its own description.

use planforge_types::{
    Sku,
    fingerprint::{DeviceFingerprint, GpuFacts},
    sku::SKU_MAX_BYTES,
};

/// One target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub sku: &'static str,
    /// PCI device ids of NVIDIA (vendor 10de).
    pub pci: &'static [u16],
    /// A part of the reported name that must be there, where the id is shared; lower-case.
    pub name_has: &'static str,
    /// Lowest and highest memory that the driver may report.
    pub memory_gib: (u64, u64),
    /// 0: not known for sure, so not compared.
    pub sm_count: u32,
    pub compute_capability: &'static str,
}

macro_rules! entry {
    ($sku:literal, [$($pci:literal),+], $low:literal..=$high:literal GiB, $sms:literal SMs, $cc:literal $(, name $name:literal)?) => {
        Entry {
            sku: $sku,
            pci: &[$($pci),+],
            name_has: concat!($($name)?),
            memory_gib: ($low, $high),
            sm_count: $sms,
            compute_capability: $cc,
        }
    };
}

/// Every board known by name.
pub const CATALOGUE: &[Entry] = &[
    entry!("t4", [0x1eb8], 14..=16 GiB, 40 SMs, "7.5"),
    entry!("t4g", [0x1eb4], 14..=16 GiB, 40 SMs, "7.5"),
    entry!("v100-16gb", [0x1db1, 0x1db4], 15..=16 GiB, 80 SMs, "7.0"),
    entry!("v100-32gb", [0x1db5, 0x1db6], 30..=32 GiB, 80 SMs, "7.0"),
    entry!("v100-fhhl-16gb", [0x1db3], 15..=16 GiB, 80 SMs, "7.0"),
    entry!("v100-sxm3-32gb", [0x1db8], 30..=32 GiB, 80 SMs, "7.0"),
    entry!("v100s-32gb", [0x1df6], 30..=32 GiB, 80 SMs, "7.0"),
    entry!("a100-sxm4-40gb", [0x20b0], 38..=40 GiB, 108 SMs, "8.0"),
    entry!("a100-sxm4-80gb", [0x20b2], 76..=80 GiB, 108 SMs, "8.0"),
    entry!("a100-pcie-40gb", [0x20f1, 0x20b1], 38..=40 GiB, 108 SMs, "8.0"),
    entry!("a100-pcie-80gb", [0x20b5], 76..=80 GiB, 108 SMs, "8.0"),
    entry!("a100x", [0x20b8], 76..=80 GiB, 108 SMs, "8.0"),
    entry!("a800-sxm4-40gb", [0x20bd], 38..=40 GiB, 108 SMs, "8.0"),
    entry!("a800-sxm4-80gb", [0x20f3], 76..=80 GiB, 108 SMs, "8.0"),
    entry!("a800-pcie-80gb", [0x20f5], 76..=80 GiB, 108 SMs, "8.0"),
    entry!("a800-pcie-40gb", [0x20f6], 38..=40 GiB, 108 SMs, "8.0"),
    entry!("a30", [0x20b7], 22..=24 GiB, 56 SMs, "8.0"),
    entry!("a2", [0x25b6], 14..=16 GiB, 0 SMs, "8.6", name "a2"),
    entry!("a10", [0x2236], 21..=24 GiB, 72 SMs, "8.6"),
    entry!("a10g", [0x2237], 21..=24 GiB, 0 SMs, "8.6"),
    entry!("a10m", [0x2238], 19..=24 GiB, 0 SMs, "8.6"),
    entry!("a16", [0x25b6], 14..=16 GiB, 0 SMs, "8.6", name "a16"),
    entry!("a40", [0x2235], 44..=48 GiB, 0 SMs, "8.6"),
    entry!("rtx3080", [0x2206, 0x2216], 9..=10 GiB, 68 SMs, "8.6"),
    entry!("rtx3080-12gb", [0x220a], 11..=12 GiB, 70 SMs, "8.6"),
    entry!("rtx3090", [0x2204], 23..=24 GiB, 82 SMs, "8.6"),
    entry!("rtx-a6000", [0x2230], 44..=48 GiB, 84 SMs, "8.6"),
    entry!("l4", [0x27b8], 21..=24 GiB, 58 SMs, "8.9"),
    entry!("l2", [0x27b6], 21..=24 GiB, 0 SMs, "8.9"),
    entry!("l20", [0x26ba], 44..=48 GiB, 0 SMs, "8.9"),
    entry!("l40", [0x26b5], 44..=48 GiB, 142 SMs, "8.9"),
    entry!("l40g", [0x26b8], 22..=24 GiB, 142 SMs, "8.9"),
    entry!("l40s", [0x26b9], 44..=48 GiB, 142 SMs, "8.9"),
    entry!("rtx4090", [0x2684], 23..=24 GiB, 128 SMs, "8.9"),
    entry!("rtx6000-ada", [0x26b1], 44..=48 GiB, 142 SMs, "8.9"),
    entry!("h100-pcie", [0x2331], 78..=80 GiB, 114 SMs, "9.0"),
    entry!("h100-sxm", [0x2330], 78..=80 GiB, 132 SMs, "9.0"),
    entry!("h100-nvl", [0x2321], 92..=94 GiB, 132 SMs, "9.0"),
    entry!("h100-sxm-64gb", [0x2339], 62..=64 GiB, 0 SMs, "9.0"),
    entry!("h100-sxm-96gb", [0x2339], 93..=96 GiB, 0 SMs, "9.0"),
    entry!("h800-sxm", [0x2324], 78..=80 GiB, 132 SMs, "9.0"),
    entry!("h800-pcie", [0x2322], 78..=80 GiB, 114 SMs, "9.0"),
    entry!("h20", [0x2329], 93..=96 GiB, 0 SMs, "9.0"),
    entry!("h200-sxm", [0x2335], 138..=141 GiB, 132 SMs, "9.0"),
    entry!("h200-nvl", [0x233b], 138..=141 GiB, 132 SMs, "9.0"),
    entry!("gh200-96gb", [0x2342], 93..=96 GiB, 132 SMs, "9.0"),
    entry!("gh200-144gb", [0x2348], 138..=144 GiB, 132 SMs, "9.0"),
    entry!("b200", [0x2901], 175..=192 GiB, 148 SMs, "10.0"),
    entry!("gb200", [0x2941], 175..=192 GiB, 0 SMs, "10.0"),
    entry!("b300-sxm6", [0x3182], 260..=288 GiB, 0 SMs, "10.3"),
    entry!("gb300", [0x31c2], 260..=288 GiB, 0 SMs, "10.3"),
    entry!("rtx5090", [0x2b85], 31..=32 GiB, 170 SMs, "12.0"),
    entry!("rtx-pro-6000-server", [0x2bb5], 93..=96 GiB, 0 SMs, "12.0"),
];

const NVIDIA: &str = "10de:";
const MIB_PER_GIB: u64 = 1024;

/// The SKU of a GPU: its catalogue name, or one derived from its description. Never refuses.
pub fn gpu_sku(fingerprint: &DeviceFingerprint) -> Sku {
    let Some(gpu) = &fingerprint.gpu else {
        return derived(&fingerprint.name, &GpuFacts::default(), fingerprint.memory_mib);
    };
    let base = CATALOGUE.iter().find(|entry| matches(entry, gpu, &fingerprint.name, fingerprint.memory_mib));
    if let Some(profile) = &gpu.mig {
        // The board's name with the slice's profile: its own memory and SMs belong to the slice, not to the board.
        let board = CATALOGUE.iter().find(|entry| matches_board(entry, gpu, &fingerprint.name));
        let board = board.map_or_else(|| slug(&fingerprint.name), |entry| entry.sku.to_owned());
        return name(&format!("{board}-mig-{}", slug(profile)));
    }
    match base {
        Some(entry) if gpu.virtualization.as_deref() != Some("vgpu") => name(entry.sku),
        _ => derived(&fingerprint.name, gpu, fingerprint.memory_mib),
    }
}

/// What the catalogue says of a SKU.
pub fn entry(sku: &Sku) -> Option<&'static Entry> {
    CATALOGUE.iter().find(|entry| entry.sku == sku.as_str())
}

fn matches_board(entry: &Entry, gpu: &GpuFacts, name: &str) -> bool {
    let id = gpu.pci_id.strip_prefix(NVIDIA).and_then(|digits| u16::from_str_radix(digits, 16).ok());
    id.is_some_and(|id| entry.pci.contains(&id))
        && gpu.compute_capability == entry.compute_capability
        && (entry.name_has.is_empty() || words(name).any(|word| word == entry.name_has))
}

fn matches(entry: &Entry, gpu: &GpuFacts, name: &str, memory_mib: u64) -> bool {
    let (low, high) = entry.memory_gib;
    matches_board(entry, gpu, name)
        && (low * MIB_PER_GIB..=high * MIB_PER_GIB).contains(&memory_mib)
        && gpu.sm_count.is_none_or(|sms| entry.sm_count == 0 || sms == entry.sm_count)
}

/// Name, memory, SM count and capability: boards that differ in any of these get different names.
fn derived(reported: &str, gpu: &GpuFacts, memory_mib: u64) -> Sku {
    let gib = memory_mib.div_ceil(MIB_PER_GIB);
    let sms = gpu.sm_count.map(|count| format!("-{count}sm")).unwrap_or_default();
    let virtual_mark = if gpu.virtualization.as_deref() == Some("vgpu") { "-vgpu" } else { "" };
    let tail = format!("-{gib}gb{sms}-cc{}{virtual_mark}", slug(&gpu.compute_capability));
    let mut head = slug(reported);
    head.truncate(SKU_MAX_BYTES.saturating_sub(tail.len()));
    name(&format!("{}{tail}", head.trim_end_matches(['-', '.'])))
}

fn words(name: &str) -> impl Iterator<Item = String> {
    name.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_ascii_lowercase)
}

/// Lower-case letters, digits and dots, everything else a single dash; the maker's name is dropped.
fn slug(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let parts = lower.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let kept: Vec<&str> = parts.filter(|part| !part.is_empty() && *part != "nvidia").collect();
    let joined = kept.join("-");
    if joined.is_empty() { "gpu".into() } else { joined }
}

fn name(text: &str) -> Sku {
    let mut text = text.trim_start_matches(['-', '.']).to_owned();
    text.truncate(SKU_MAX_BYTES);
    text.parse().unwrap_or_else(|_| "gpu".parse().expect("a fixed name"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::fingerprint::{DeviceKind, HostFacts};
    use std::collections::BTreeSet;

    fn board(name: &str, pci: u16, memory_mib: u64, sms: u32, capability: &str) -> DeviceFingerprint {
        let gpu = GpuFacts {
            pci_id: format!("10de:{pci:04x}"),
            sm_count: Some(sms),
            compute_capability: capability.into(),
            ..GpuFacts::default()
        };
        let host = HostFacts::default();
        DeviceFingerprint { kind: DeviceKind::Gpu, name: name.into(), memory_mib, gpu: Some(gpu), cpu: None, host }
    }

    #[test]
    fn boards_of_real_logs_get_their_names() {
        for (fingerprint, expected) in [
            (board("Tesla T4", 0x1eb8, 15_109, 40, "7.5"), "t4"),
            (board("NVIDIA H100 PCIe", 0x2331, 81_081, 114, "9.0"), "h100-pcie"),
            (board("NVIDIA H100 80GB HBM3", 0x2330, 81_559, 132, "9.0"), "h100-sxm"),
            (board("NVIDIA H100 NVL", 0x2321, 95_830, 132, "9.0"), "h100-nvl"),
            (board("NVIDIA H200", 0x2335, 143_771, 132, "9.0"), "h200-sxm"),
            (board("NVIDIA GeForce RTX 3090", 0x2204, 24_256, 82, "8.6"), "rtx3090"),
            (board("NVIDIA GeForce RTX 4090", 0x2684, 24_207, 128, "8.9"), "rtx4090"),
            (board("NVIDIA RTX 6000 Ada Generation", 0x26b1, 48_501, 142, "8.9"), "rtx6000-ada"),
            (board("NVIDIA A100-PCIE-40GB", 0x20b1, 40_960, 108, "8.0"), "a100-pcie-40gb"),
            (board("NVIDIA A100-PCIE-40GB", 0x20f1, 40_960, 108, "8.0"), "a100-pcie-40gb"),
            (board("Tesla V100S-PCIE-32GB", 0x1df6, 32_768, 80, "7.0"), "v100s-32gb"),
            (board("Tesla V100-SXM3-32GB", 0x1db8, 32_768, 80, "7.0"), "v100-sxm3-32gb"),
            (board("NVIDIA A100X", 0x20b8, 81_920, 108, "8.0"), "a100x"),
            (board("NVIDIA A800-SXM4-80GB", 0x20f3, 81_920, 108, "8.0"), "a800-sxm4-80gb"),
            (board("NVIDIA A800 80GB PCIe", 0x20f5, 81_920, 108, "8.0"), "a800-pcie-80gb"),
            (board("NVIDIA L40G", 0x26b8, 24_576, 142, "8.9"), "l40g"),
            (board("NVIDIA T4G", 0x1eb4, 15_360, 40, "7.5"), "t4g"),
            (board("NVIDIA A10M", 0x2238, 23_028, 72, "8.6"), "a10m"),
            (board("NVIDIA GeForce RTX 3080", 0x220a, 12_288, 70, "8.6"), "rtx3080-12gb"),
        ] {
            assert_eq!(gpu_sku(&fingerprint).as_str(), expected);
        }
    }

    #[test]
    fn shared_ids_are_told_apart_by_name_and_memory() {
        assert_eq!(gpu_sku(&board("NVIDIA A2", 0x25b6, 15_356, 10, "8.6")).as_str(), "a2");
        assert_eq!(gpu_sku(&board("NVIDIA A16", 0x25b6, 15_356, 10, "8.6")).as_str(), "a16");
        assert_eq!(gpu_sku(&board("NVIDIA H100", 0x2339, 65_247, 132, "9.0")).as_str(), "h100-sxm-64gb");
        assert_eq!(gpu_sku(&board("NVIDIA H100", 0x2339, 97_871, 132, "9.0")).as_str(), "h100-sxm-96gb");
    }

    #[test]
    fn what_differs_from_the_full_board_never_gets_its_name() {
        let full = board("NVIDIA H100 80GB HBM3", 0x2330, 81_559, 132, "9.0");
        let with = |change: fn(&mut GpuFacts)| {
            let mut other = full.clone();
            change(other.gpu.as_mut().unwrap());
            gpu_sku(&other)
        };
        let fewer_sms = with(|gpu| gpu.sm_count = Some(114));
        assert_eq!(fewer_sms.as_str(), "h100-80gb-hbm3-80gb-114sm-cc9.0");
        let vgpu = with(|gpu| gpu.virtualization = Some("vgpu".into()));
        assert_eq!(vgpu.as_str(), "h100-80gb-hbm3-80gb-132sm-cc9.0-vgpu");
        let mut slice = board("NVIDIA H100 80GB HBM3", 0x2330, 9_984, 16, "9.0");
        slice.gpu.as_mut().unwrap().mig = Some("1g.10gb".into());
        assert_eq!(gpu_sku(&slice).as_str(), "h100-sxm-mig-1g.10gb");
        let passed_through = with(|gpu| gpu.virtualization = Some("passthrough".into()));
        assert_eq!(passed_through.as_str(), "h100-sxm");
    }

    #[test]
    fn unknown_boards_get_a_valid_name() {
        let unknown =
            board("NVIDIA Quantum Frobnicator Ω 9000 with a very long marketing name indeed ...", 0xffff, 1, 3, "13.0");
        let sku = gpu_sku(&unknown);
        assert!(sku.as_str().len() <= SKU_MAX_BYTES && sku.as_str().ends_with("-1gb-3sm-cc13.0"), "{sku}");
        assert!(gpu_sku(&board("", 0, 0, 0, "")).as_str().parse::<Sku>().is_ok());
    }

    #[test]
    fn the_catalogue_is_consistent() {
        let names: BTreeSet<&str> = CATALOGUE.iter().map(|entry| entry.sku).collect();
        assert_eq!(names.len(), CATALOGUE.len(), "a SKU stands twice");
        for entry in CATALOGUE {
            assert!(entry.sku.parse::<Sku>().is_ok() && entry.memory_gib.0 <= entry.memory_gib.1, "{}", entry.sku);
            for other in CATALOGUE.iter().filter(|other| other.sku != entry.sku) {
                let shared = entry.pci.iter().any(|id| other.pci.contains(id));
                let overlap = entry.memory_gib.0 <= other.memory_gib.1 && other.memory_gib.0 <= entry.memory_gib.1;
                let named = !entry.name_has.is_empty() && entry.name_has != other.name_has;
                assert!(!shared || !overlap || named, "{} and {} cannot be told apart", entry.sku, other.sku);
            }
        }
    }
}
