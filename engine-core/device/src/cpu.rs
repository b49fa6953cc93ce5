//! Finding this host's CPU: what it is, what it can run, how many cores this process may use.

use super::CpuLevel;
use planforge_types::fingerprint::{CpuFacts, DeviceFingerprint, DeviceKind, HostFacts};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    thread::available_parallelism,
};

/// Extensions whose presence decides which code an engine may hold.
const RELEVANT_FEATURES: [&str; 32] = [
    "amx_bf16",
    "amx_int8",
    "amx_tile",
    "asimd",
    "asimddp",
    "asimdhp",
    "avx",
    "avx2",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512f",
    "avx512vbmi",
    "avx512vl",
    "avx_vnni",
    "bf16",
    "bmi1",
    "bmi2",
    "f16c",
    "fma",
    "i8mm",
    "movbe",
    "popcnt",
    "sse4_1",
    "sse4_2",
    "ssse3",
    "sve",
    "sve2",
    "vnni",
];

/// Highest processor number looked at; larger lists are cut.
const MAX_CPUS: usize = 8192;

/// Where the kernel's files are; another folder in tests.
#[derive(Clone, Debug)]
pub(crate) struct KernelFiles {
    pub proc: PathBuf,
    pub sys: PathBuf,
}

impl Default for KernelFiles {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into() }
    }
}

impl KernelFiles {
    fn text(&self, path: PathBuf) -> Option<String> {
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, path: PathBuf) -> Option<u64> {
        self.text(path)?.parse().ok()
    }
}

/// The CPU of this host as a device, and the levels it can run, best last.
pub fn detect(host: &HostFacts) -> (DeviceFingerprint, Vec<CpuLevel>) {
    let parallelism = available_parallelism().map_or(1, |n| n.get() as u32);
    (describe(&KernelFiles::default(), host, parallelism), CpuLevel::detect())
}

/// The host around its devices.
pub fn host_facts() -> HostFacts {
    let files = KernelFiles::default();
    let release = files.text(files.proc.join("sys/kernel/osrelease")).unwrap_or_default();
    let os = fs::read_to_string("/etc/os-release").ok().as_deref().and_then(pretty_name);
    HostFacts { os: os.unwrap_or_else(|| std::env::consts::OS.to_owned()), kernel: release }
}

fn pretty_name(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"').to_owned())
}

/// `parallelism`: processors this process may keep busy, by affinity and control-group quota.
fn describe(files: &KernelFiles, host: &HostFacts, parallelism: u32) -> DeviceFingerprint {
    let cpuinfo = files.text(files.proc.join("cpuinfo")).unwrap_or_default();
    // The first block describes the first processor; further blocks repeat it.
    let field = |names: &[&str]| {
        names.iter().find_map(|name| {
            cpuinfo
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.trim() == *name)
                .map(|(_, v)| v.trim())
        })
    };
    let number = |name: &str| field(&[name]).and_then(|value| value.parse().ok());
    let flags: BTreeSet<&str> = field(&["flags", "Features"]).unwrap_or_default().split_whitespace().collect();
    let online = files.text(files.sys.join("devices/system/cpu/online")).map(|list| parse_list(&list));
    let online = online.filter(|list| !list.is_empty()).unwrap_or_else(|| (0..parallelism).collect());
    let allowed = files.text(files.proc.join("self/status")).and_then(|status| {
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(parse_list(list.trim()))
    });
    let usable: BTreeSet<u32> = match allowed {
        Some(allowed) if !allowed.is_empty() => online.intersection(&allowed).copied().collect(),
        _ => online.clone(),
    };
    let cores =
        |cpus: &BTreeSet<u32>| cpus.iter().map(|cpu| core_of(files, *cpu)).collect::<BTreeSet<_>>().len() as u32;
    let sockets: BTreeSet<u32> = online.iter().map(|cpu| core_of(files, *cpu).0).collect();
    let cache = |level: u64, kind: &str| cache_kib(files, level, kind);
    let facts = CpuFacts {
        architecture: std::env::consts::ARCH.to_owned(),
        vendor: field(&["vendor_id", "CPU implementer"]).unwrap_or_default().to_owned(),
        family: number("cpu family"),
        model: number("model"),
        stepping: number("stepping"),
        microcode: field(&["microcode"]).map(str::to_owned),
        features: RELEVANT_FEATURES
            .iter()
            .filter(|name| flags.contains(*name))
            .map(|name| (*name).to_owned())
            .collect(),
        physical_cores: cores(&online).max(1),
        logical_cpus: online.len() as u32,
        usable_cores: cores(&usable).min(parallelism).max(1),
        sockets: sockets.len().max(1) as u32,
        numa_nodes: files
            .text(files.sys.join("devices/system/node/online"))
            .map_or(1, |l| parse_list(&l).len().max(1) as u32),
        l1d_kib: cache(1, "Data"),
        l2_kib: cache(2, "Unified"),
        l3_kib: cache(3, "Unified"),
        max_mhz: files
            .number(files.sys.join("devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"))
            .map(|khz| (khz / 1000) as u32),
        hypervisor: flags.contains("hypervisor"),
    };
    let memory = files.text(files.proc.join("meminfo")).unwrap_or_default();
    DeviceFingerprint {
        kind: DeviceKind::Cpu,
        name: field(&["model name", "CPU part"]).unwrap_or(std::env::consts::ARCH).to_owned(),
        memory_mib: memory_total_mib(&memory).unwrap_or(0),
        gpu: None,
        cpu: Some(facts),
        host: host.clone(),
    }
}

/// Package and core of a processor; a core of its own where the kernel does not tell.
fn core_of(files: &KernelFiles, cpu: u32) -> (u32, u32) {
    let topology = files.sys.join(format!("devices/system/cpu/cpu{cpu}/topology"));
    let read = |name: &str| files.number(topology.join(name)).map(|n| n as u32);
    (read("physical_package_id").unwrap_or(0), read("core_id").unwrap_or(cpu))
}

fn cache_kib(files: &KernelFiles, level: u64, kind: &str) -> Option<u32> {
    let folder = files.sys.join("devices/system/cpu/cpu0/cache");
    let index = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).find(|path: &PathBuf| {
        files.number(path.join("level")) == Some(level) && files.text(path.join("type")).as_deref() == Some(kind)
    })?;
    parse_kib(&files.text(Path::new(&index).join("size"))?)
}

/// `32768K` or `32M`.
fn parse_kib(size: &str) -> Option<u32> {
    match size.strip_suffix('M') {
        Some(mib) => mib.parse::<u32>().ok()?.checked_mul(1024),
        None => size.strip_suffix('K')?.parse().ok(),
    }
}

fn memory_total_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

/// `0-3,8` as the kernel writes lists of processors; nonsense is skipped.
fn parse_list(text: &str) -> BTreeSet<u32> {
    let bounds = |part: &str| -> Option<(u32, u32)> {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        Some((low.trim().parse().ok()?, high.trim().parse().ok()?))
    };
    text.split(',').filter_map(bounds).flat_map(|(low, high)| low..=high.min(MAX_CPUS as u32)).take(MAX_CPUS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up host: `cpus` processors, two hardware threads a core, two packages.
    fn host(cpus: u32, allowed: &str) -> (tempfile::TempDir, KernelFiles) {
        let folder = tempfile::tempdir().unwrap();
        let files = KernelFiles { proc: folder.path().join("proc"), sys: folder.path().join("sys") };
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            files.proc.join("cpuinfo"),
            "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Some CPU @ 2.00GHz\nstepping\t: 8\n\
             flags\t\t: fpu avx2 hypervisor fma avx512_vnni\n\nprocessor: 1\nmodel name\t: other\n",
        );
        write(files.proc.join("meminfo"), "MemTotal: 2097152 kB\n");
        write(files.proc.join("self/status"), &format!("Name:\tx\nCpus_allowed_list:\t{allowed}\n"));
        write(files.sys.join("devices/system/cpu/online"), &format!("0-{}\n", cpus - 1));
        for cpu in 0..cpus {
            let topology = files.sys.join(format!("devices/system/cpu/cpu{cpu}/topology"));
            write(topology.join("physical_package_id"), &(cpu % 2).to_string());
            write(topology.join("core_id"), &(cpu / 4).to_string());
        }
        let cache = files.sys.join("devices/system/cpu/cpu0/cache/index3");
        write(cache.join("level"), "3\n");
        write(cache.join("type"), "Unified\n");
        write(cache.join("size"), "32M\n");
        (folder, files)
    }

    #[test]
    fn a_host_is_described() {
        let (_folder, files) = host(16, "0-15");
        let fingerprint = describe(&files, &HostFacts::default(), 16);
        let cpu = fingerprint.cpu.unwrap();
        assert_eq!((fingerprint.name.as_str(), fingerprint.memory_mib), ("Some CPU @ 2.00GHz", 2048));
        assert_eq!((cpu.physical_cores, cpu.logical_cpus, cpu.usable_cores, cpu.sockets), (8, 16, 8, 2));
        assert_eq!((cpu.family, cpu.model, cpu.stepping), (Some(6), Some(143), Some(8)));
        assert_eq!(cpu.features, ["avx2", "avx512_vnni", "fma"]);
        assert_eq!((cpu.l3_kib, cpu.l2_kib, cpu.hypervisor), (Some(32 * 1024), None, true));
    }

    #[test]
    fn affinity_and_quota_bound_the_cores() {
        // Processors 0, 4, 8 and 2, 6: package 0, cores 0, 1, 2.
        let (_folder, files) = host(16, "0,4,8,2,6");
        assert_eq!(describe(&files, &HostFacts::default(), 5).cpu.unwrap().usable_cores, 3);
        assert_eq!(describe(&files, &HostFacts::default(), 2).cpu.unwrap().usable_cores, 2);
    }

    #[test]
    fn a_host_that_tells_nothing_is_one_core() {
        let nowhere = KernelFiles { proc: "/nonexistent".into(), sys: "/nonexistent".into() };
        let cpu = describe(&nowhere, &HostFacts::default(), 1).cpu.unwrap();
        assert_eq!((cpu.physical_cores, cpu.usable_cores, cpu.sockets), (1, 1, 1));
    }

    #[test]
    fn lists_are_parsed_and_bounded() {
        assert_eq!(parse_list("0-2,5, 7-x,"), BTreeSet::from([0, 1, 2, 5]));
        assert_eq!(parse_list("0-4294967295").len(), MAX_CPUS);
    }

    #[test]
    fn this_host_offers_what_it_can_run() {
        let (fingerprint, levels) = detect(&host_facts());
        let cpu = fingerprint.cpu.unwrap();
        assert!(cpu.usable_cores >= 1 && cpu.usable_cores <= cpu.logical_cpus.max(1));
        assert!(levels.iter().all(|level| level.architecture() == cpu.architecture));
    }
}
