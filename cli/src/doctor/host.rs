//! The machine: processor, neighbours, limits.

use super::Check;
use planforge_coordinator::server::{Budget, CONNECTIONS_MAX};
use planforge_device::telemetry::{CpuTelemetry, Telemetry as _};
use planforge_types::{
    fingerprint::DeviceFingerprint,
    open_files::{self, OpenFiles},
};
use rustix::process::{Resource, getrlimit};
use std::{collections::BTreeSet, fs, path::Path};

const AREA: &str = "host";
/// Files an agent, its workers and trtexec have open at once, with room.
const LEAST_OPEN_FILES: u64 = 1024;
/// Memory a build of a middling model wants.
const LEAST_MEMORY_MIB: u64 = 2048;
/// More processors than a host has.
const MAX_CPUS: usize = 4096;

/// Checks the machine around `cpu`.
pub fn checks(cpu: Option<&DeviceFingerprint>, has_gpu: bool) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(cpu) = cpu {
        checks.push(Check::ok(AREA, "system", format!("{} {}", cpu.host.os, cpu.host.kernel)));
        checks.extend(processor(cpu));
    }
    checks.push(governor(&governors(Path::new("/sys/devices/system/cpu"))));
    checks.push(smt(fs::read_to_string("/sys/devices/system/cpu/smt/active").ok().as_deref()));
    checks.extend(load(cpu));
    checks.extend(memory(fs::read_to_string("/proc/meminfo").ok().as_deref()));
    checks.extend(limits(has_gpu));
    checks
}

fn processor(cpu: &DeviceFingerprint) -> Vec<Check> {
    let Some(facts) = &cpu.cpu else { return Vec::new() };
    let cores = format!("{}, {} of {} cores usable", cpu.name, facts.usable_cores, facts.physical_cores);
    let hypervisor = Check::ok(AREA, "hypervisor", if facts.hypervisor { "a virtual machine" } else { "none seen" });
    let hypervisor = if facts.hypervisor {
        hypervisor.warning(
            "other guests may slow measurements down unseen",
            "measure on hardware of its own where numbers matter; reports mark what was stolen",
        )
    } else {
        hypervisor
    };
    vec![Check::ok(AREA, "processor", cores), hypervisor]
}

/// The distinct frequency governors of all processors.
fn governors(folder: &Path) -> BTreeSet<String> {
    let cpus = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_CPUS);
    let files = cpus.map(|entry| entry.path().join("cpufreq/scaling_governor"));
    files.filter_map(|file| fs::read_to_string(file).ok()).map(|text| text.trim().to_owned()).collect()
}

fn governor(found: &BTreeSet<String>) -> Check {
    let seen = found.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    if found.is_empty() {
        return Check::ok(AREA, "governor", "not told").meaning("the kernel or the hypervisor decides about clocks");
    }
    let check = Check::ok(AREA, "governor", seen);
    if found.iter().all(|governor| governor == "performance") {
        return check;
    }
    check.warning(
        "clocks rise only under load: short measurements vary",
        "an administrator can set it: cpupower frequency-set -g performance",
    )
}

fn smt(active: Option<&str>) -> Check {
    match active.map(str::trim) {
        Some("1") => Check::ok(AREA, "smt", "on").meaning("engines use one thread a core; a busy sibling slows it"),
        Some("0") => Check::ok(AREA, "smt", "off"),
        _ => Check::ok(AREA, "smt", "not told"),
    }
}

fn load(cpu: Option<&DeviceFingerprint>) -> Option<Check> {
    let load = CpuTelemetry::default().sample().load_1m?;
    let cores = cpu.and_then(|cpu| cpu.cpu.as_ref()).map_or(1, |facts| facts.usable_cores.max(1));
    let check = Check::ok(AREA, "load", format!("{load:.2} over one minute, {cores} cores"));
    let busy = load > f64::from(cores) * 0.5;
    Some(if busy {
        check.warning("something else works here: measurements on the processor vary", "stop it, or measure later")
    } else {
        check
    })
}

fn memory(meminfo: Option<&str>) -> Option<Check> {
    let kib = |name: &str| {
        let line = meminfo?.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()
    };
    let (total, available) = (kib("MemTotal")? / 1024, kib("MemAvailable")? / 1024);
    let check = Check::ok(AREA, "memory", format!("{available} of {total} MiB available"));
    Some(if available < LEAST_MEMORY_MIB {
        check.warning("builds of large models end for want of memory", "free memory, or add some")
    } else {
        check
    })
}

/// Limits that end or break work without saying why.
fn limits(has_gpu: bool) -> Vec<Check> {
    let limit = |resource| getrlimit(resource).current;
    let text = |limit: Option<u64>, unit: &str| match limit {
        Some(limit) => format!("at most {limit}{unit}"),
        None => "no limit".to_owned(),
    };
    let time = limit(Resource::Cpu);
    let mut processor_time = Check::ok(AREA, "processor time", text(time, " s"));
    if time.is_some() {
        processor_time = processor_time
            .problem("the kernel kills long builds", "ulimit -t unlimited, or LimitCPU=infinity of the service");
    }
    let space = limit(Resource::As).map(|bytes| bytes >> 20);
    let address_space = Check::ok(AREA, "address space", text(space, " MiB"));
    let address_space = match space {
        Some(_) if has_gpu => {
            address_space.problem("CUDA reserves more than that and does not start", "ulimit -v unlimited")
        }
        Some(_) => address_space.warning("large models do not fit", "ulimit -v unlimited"),
        None => address_space,
    };
    vec![open_files(open_files::limits()), processor_time, address_space]
}

/// How many files may be open, and for how many connections that is enough.
fn open_files(limits: OpenFiles) -> Check {
    let raised = limits.raised();
    let text = |limit: Option<u64>| limit.map_or_else(|| "any number".to_owned(), |limit| limit.to_string());
    let seen = match raised == limits.soft {
        true => format!("at most {}", text(limits.soft)),
        false => format!("at most {}, which a coordinator raises to {}", text(limits.soft), text(raised)),
    };
    let places = Budget::of(raised, CONNECTIONS_MAX).places;
    let check = Check::ok(AREA, "open files", seen).meaning(format!(
        "a coordinator here has room for {} connections that have shown a token (an agent has one or two), and {} others",
        places.known, places.strangers
    ));
    if places.all() < CONNECTIONS_MAX {
        let action = "more: raise the hard limit (ulimit -Hn, LimitNOFILE= of the service) to 16384";
        return match raised.is_some_and(|limit| limit < LEAST_OPEN_FILES) {
            true => check.warning("many jobs at once run out of files", action),
            false => Check { action: action.into(), ..check },
        };
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn a_governor_that_saves_power_is_a_warning() {
        let state = |names: &[&str]| governor(&names.iter().map(|name| (*name).to_owned()).collect()).state;
        assert_eq!(state(&[]), State::Ok);
        assert_eq!(state(&["performance"]), State::Ok);
        assert_eq!(state(&["performance", "powersave"]), State::Warning);
    }

    #[test]
    fn few_open_files_are_told_with_what_they_are_enough_for() {
        let seen = |soft, hard| open_files(OpenFiles { soft: Some(soft), hard: Some(hard) });
        let usual = seen(1024, 524_288);
        assert_eq!((usual.state, usual.action.as_str()), (State::Ok, ""));
        assert!(usual.seen.contains("1024, which a coordinator raises to 65536"), "{}", usual.seen);
        assert!(usual.meaning.contains("7168 connections"), "{}", usual.meaning);
        let bound = seen(1024, 1024);
        assert!(bound.meaning.contains("672 connections") && bound.action.contains("LimitNOFILE"), "{}", bound.meaning);
        assert_eq!(seen(256, 256).state, State::Warning);
    }

    #[test]
    fn little_memory_is_a_warning() {
        let state = |kib: u64| memory(Some(&format!("MemTotal: 9000000 kB\nMemAvailable: {kib} kB\n"))).unwrap().state;
        assert_eq!(state(8 << 20), State::Ok);
        assert_eq!(state(1 << 20), State::Warning);
        assert!(memory(Some("odd")).is_none());
    }

    #[test]
    fn governors_are_read_from_the_kernels_files() {
        let folder = tempfile::tempdir().unwrap();
        for (cpu, governor) in [("cpu0", "performance\n"), ("cpu1", "powersave\n")] {
            let place = folder.path().join(cpu).join("cpufreq");
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("scaling_governor"), governor).unwrap();
        }
        assert_eq!(governors(folder.path()).len(), 2);
        assert!(governors(&folder.path().join("none")).is_empty());
    }
}
