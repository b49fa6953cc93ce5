//! The machine around a measurement: processor, memory, storage, container, limits. Only reads.
//!
//! Read by the process that measures, for that is whose limits count: an agent in one control group may start workers
//! in another.

mod control_group;
mod memory;
mod storage;

use crate::cpu;
use planforge_types::{
    fingerprint::{DeviceFingerprint, HostFacts},
    host::{HostRecord, ScalingFacts},
};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// The host as this process sees it; `device` is what is measured, `scratch` the folder that the job works in.
pub fn record(device: &DeviceFingerprint, scratch: &Path) -> HostRecord {
    let root = Root::default();
    // A GPU's fingerprint tells nothing of the processor that feeds it.
    let cpu = device.cpu.is_none().then(|| cpu::detect(&HostFacts::default()).0);
    HostRecord {
        cpu_name: cpu.as_ref().map(|cpu| cpu.name.clone()),
        cpu: cpu.and_then(|cpu| cpu.cpu),
        scaling: scaling(&root),
        memory: memory::facts(&root),
        storage: storage::facts(&root, scratch),
        container: container(&root, |name| env::var_os(name).is_some()),
        control_group: control_group::limits(&root),
    }
}

/// Where the system's files are; another folder in tests.
struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self("/".into())
    }
}

impl Root {
    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    fn exists(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.at(path)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Names in a folder that begin so, sorted.
    fn names(&self, folder: &str, begin: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(folder)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name.starts_with(begin)).take(MOST_NAMES).collect();
        names.sort_unstable();
        names
    }
}

/// Most entries of one folder that are looked at.
const MOST_NAMES: usize = 1024;

fn scaling(root: &Root) -> ScalingFacts {
    let on = |path: &str| root.number(path).map(|value| value != 0);
    let no_turbo = on("/sys/devices/system/cpu/intel_pstate/no_turbo").map(|off| !off);
    let huge = root.text("/sys/kernel/mm/transparent_hugepage/enabled");
    ScalingFacts {
        governor: root.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        boost: on("/sys/devices/system/cpu/cpufreq/boost").or(no_turbo),
        smt: on("/sys/devices/system/cpu/smt/active"),
        huge_pages: huge.as_deref().and_then(chosen),
    }
}

/// `madvise` of `always [madvise] never`.
fn chosen(choices: &str) -> Option<String> {
    Some(choices.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// What contains this process, from what each leaves where.
fn container(root: &Root, has_variable: impl Fn(&str) -> bool) -> Option<String> {
    let groups = root.text("/proc/self/cgroup").unwrap_or_default();
    let named = |names: &[&str]| names.iter().any(|name| groups.contains(name));
    if has_variable("KUBERNETES_SERVICE_HOST") || named(&["kubepods"]) {
        return Some("kubernetes".into());
    }
    if root.exists("/run/.containerenv") {
        return Some("podman".into());
    }
    if root.exists("/.dockerenv") || named(&["/docker/", "docker-"]) {
        return Some("docker".into());
    }
    // systemd's own word for it, which nspawn, LXC and others write: `lxc`, `systemd-nspawn`.
    root.text("/run/systemd/container").or_else(|| named(&["/lxc/", "/lxc."]).then(|| "lxc".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::detect;

    /// A made-up system of these files.
    pub(super) fn system(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root(folder.path().to_owned());
        for (path, text) in files {
            let path = root.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        (folder, root)
    }

    #[test]
    fn this_host_is_recorded() {
        let (device, _) = detect(&HostFacts::default());
        let folder = tempfile::tempdir().unwrap();
        let record = record(&device, folder.path());
        assert!(record.cpu.is_none() && record.cpu_name.is_none(), "they are the device's");
        assert!(record.memory.total_mib > 0 && record.memory.available_mib.is_some());
        let storage = record.storage.unwrap();
        assert!(!storage.filesystem.is_empty() && storage.total_bytes.is_some_and(|bytes| bytes > 0), "{storage:?}");
        let gpu = DeviceFingerprint { cpu: None, ..device };
        assert!(super::record(&gpu, folder.path()).cpu.is_some_and(|cpu| cpu.physical_cores > 0));
    }

    #[test]
    fn clocks_and_threads_are_read_where_the_kernel_tells() {
        let (_folder, root) = system(&[
            ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("/sys/devices/system/cpu/intel_pstate/no_turbo", "1\n"),
            ("/sys/devices/system/cpu/smt/active", "1\n"),
            ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ]);
        let told = ScalingFacts {
            governor: Some("performance".into()),
            boost: Some(false),
            smt: Some(true),
            huge_pages: Some("madvise".into()),
        };
        assert_eq!(scaling(&root), told);
        let (_folder, nothing) = system(&[]);
        assert_eq!(scaling(&nothing), ScalingFacts::default());
    }

    #[test]
    fn containers_are_told_by_what_they_leave() {
        let told = |files: &[(&str, &str)], variable: bool| {
            let (_folder, root) = system(files);
            container(&root, |name| variable && name == "KUBERNETES_SERVICE_HOST")
        };
        let docker = [("/.dockerenv", ""), ("/proc/self/cgroup", "0::/\n")];
        assert_eq!(told(&docker, false).as_deref(), Some("docker"));
        assert_eq!(told(&docker, true).as_deref(), Some("kubernetes"));
        assert_eq!(told(&[("/proc/self/cgroup", "0::/kubepods.slice/pod1\n")], false).as_deref(), Some("kubernetes"));
        assert_eq!(told(&[("/run/.containerenv", "")], false).as_deref(), Some("podman"));
        assert_eq!(told(&[("/run/systemd/container", "lxc\n")], false).as_deref(), Some("lxc"));
        assert_eq!(told(&[("/proc/self/cgroup", "0::/user.slice/session-1.scope\n")], false), None);
    }
}
