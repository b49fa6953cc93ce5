//! The host's memory: what the kernel counts, and what the firmware lists where it may be read.

use super::Root;
use planforge_types::host::{MemoryFacts, MemoryModule};
use std::{collections::BTreeMap, fs};

pub(super) fn facts(root: &Root) -> MemoryFacts {
    let meminfo = root.text("/proc/meminfo").unwrap_or_default();
    let mib = |name: &str| kib(&meminfo, name).map(|kib| kib >> 10);
    let node = |name: String| {
        let text = root.text(&format!("/sys/devices/system/node/{name}/meminfo"))?;
        // `Node 0 MemTotal:  65536 kB`.
        let line = text.lines().find_map(|line| line.split_once(" MemTotal:"))?.1;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? >> 10)
    };
    let numa_mib: Vec<u64> = root.names("/sys/devices/system/node", "node").into_iter().filter_map(node).collect();
    MemoryFacts {
        total_mib: mib("MemTotal").unwrap_or(0),
        available_mib: mib("MemAvailable"),
        swap_mib: mib("SwapTotal"),
        numa_mib: if numa_mib.len() > 1 { numa_mib } else { Vec::new() },
        modules: modules(root),
        ecc: ecc(root),
    }
}

fn kib(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The first controller's first module's mode; a driver that corrects nothing says `None`.
fn ecc(root: &Root) -> Option<String> {
    const CONTROLLERS: &str = "/sys/devices/system/edac/mc";
    root.names(CONTROLLERS, "mc").iter().find_map(|controller| {
        let folder = format!("{CONTROLLERS}/{controller}");
        root.names(&folder, "dimm").iter().find_map(|dimm| root.text(&format!("{folder}/{dimm}/dimm_edac_mode")))
    })
}

/// Modules as the firmware's table lists them (SMBIOS, structures of type 17), alike ones counted.
fn modules(root: &Root) -> Vec<MemoryModule> {
    const ENTRIES: &str = "/sys/firmware/dmi/entries";
    let mut found: BTreeMap<MemoryModule, u32> = BTreeMap::new();
    for entry in root.names(ENTRIES, "17-") {
        let bytes = fs::read(root.at(&format!("{ENTRIES}/{entry}/raw"))).unwrap_or_default();
        if let Some(module) = module(&bytes) {
            *found.entry(module).or_default() += 1;
        }
    }
    found.into_iter().map(|(module, count)| MemoryModule { count, ..module }).collect()
}

/// One module; `None` for an empty slot.
fn module(raw: &[u8]) -> Option<MemoryModule> {
    let word = |at: usize| Some(u16::from_le_bytes(raw.get(at..at + 2)?.try_into().ok()?));
    let known = |value: u16| (value != 0 && value != 0xffff).then_some(value);
    let size = known(word(0x0c)?)?;
    let size_mib = match size {
        // Larger than the field has room for: in a field of its own.
        0x7fff => u64::from(u32::from_le_bytes(raw.get(0x1c..0x20)?.try_into().ok()?) & 0x7fff_ffff),
        kib if kib & 0x8000 != 0 => u64::from(kib & 0x7fff) >> 10,
        mib => u64::from(mib),
    };
    let kind = match raw.get(0x12)? {
        0x18 => Some("DDR3"),
        0x1a => Some("DDR4"),
        0x1e => Some("LPDDR4"),
        0x20 => Some("HBM"),
        0x21 => Some("HBM2"),
        0x22 => Some("DDR5"),
        0x23 => Some("LPDDR5"),
        0x24 => Some("HBM3"),
        _ => None,
    };
    // As configured, else as the module could.
    let speed = word(0x20).and_then(known).or_else(|| word(0x15).and_then(known));
    Some(MemoryModule { count: 0, size_mib, kind: kind.map(str::to_owned), mt_per_s: speed.map(u32::from) })
}

#[cfg(test)]
mod tests {
    use super::{super::tests::system, *};

    #[test]
    fn memory_is_counted_by_nodes() {
        let (_folder, root) = system(&[
            ("/proc/meminfo", "MemTotal:  131072 kB\nMemFree: 9 kB\nMemAvailable:  65536 kB\nSwapTotal: 0 kB\n"),
            ("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       65536 kB\nNode 0 MemFree: 1 kB\n"),
            ("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       65536 kB\n"),
            ("/sys/devices/system/edac/mc/mc0/dimm0/dimm_edac_mode", "S4ECD4ED\n"),
        ]);
        let told = MemoryFacts {
            total_mib: 128,
            available_mib: Some(64),
            swap_mib: Some(0),
            numa_mib: vec![64, 64],
            modules: Vec::new(),
            ecc: Some("S4ECD4ED".into()),
        };
        assert_eq!(facts(&root), told);
        let (_folder, nothing) = system(&[]);
        assert_eq!(facts(&nothing), MemoryFacts::default());
    }

    /// A structure of type 17 as SMBIOS 3 lays it out.
    fn raw(size: u16, extended_mib: u32, kind: u8, speed: u16, configured: u16) -> Vec<u8> {
        let mut raw = vec![0; 0x28];
        (raw[0], raw[1], raw[0x12]) = (17, 0x28, kind);
        raw[0x0c..0x0e].copy_from_slice(&size.to_le_bytes());
        raw[0x15..0x17].copy_from_slice(&speed.to_le_bytes());
        raw[0x1c..0x20].copy_from_slice(&extended_mib.to_le_bytes());
        raw[0x20..0x22].copy_from_slice(&configured.to_le_bytes());
        raw
    }

    #[test]
    fn modules_are_read_from_the_firmware() {
        let of = |size_mib, kind: &str, mt_per_s| {
            Some(MemoryModule { count: 0, size_mib, kind: Some(kind.into()), mt_per_s: Some(mt_per_s) })
        };
        assert_eq!(module(&raw(0x7fff, 65_536, 0x22, 5600, 4800)), of(65_536, "DDR5", 4800));
        assert_eq!(module(&raw(16_384, 0, 0x1a, 3200, 0)), of(16_384, "DDR4", 3200));
        assert_eq!(module(&raw(0, 0, 0x1a, 3200, 0)), None, "an empty slot");
        assert_eq!(module(&[17, 4]), None);
        let (folder, root) = system(&[]);
        for slot in 0..3u16 {
            let path = folder.path().join(format!("sys/firmware/dmi/entries/17-{slot}/raw"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, raw(if slot == 2 { 0 } else { 32_767 }, 32_768, 0x22, 5600, 5600)).unwrap();
        }
        assert_eq!(modules(&root), [MemoryModule { count: 2, ..of(32_768, "DDR5", 5600).unwrap() }]);
    }
}
