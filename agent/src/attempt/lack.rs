//! What this host has too little of: told from how workers die, and from what tools say when they fail.
//!
//! Another host may have it, so the coordinator is told: a full disk or too little memory is no fault of the job.

use planforge_types::{FailureClass, Lack};
use std::fs;

use super::Failed;

/// What the words of a failure, whoever chose them, say that the host lacked.
pub fn said(words: &str) -> Option<Lack> {
    // The C library's words for ENOSPC and EDQUOT; then those of Rust's and C++'s allocators before they end a process.
    let disk = ["No space left on device", "Disk quota exceeded"];
    let memory = words.contains("memory allocation of ") && words.contains(" bytes failed");
    if disk.iter().any(|said| words.contains(said)) {
        Some(Lack::Disk)
    } else if memory || words.contains("std::bad_alloc") {
        Some(Lack::Memory)
    } else {
        None
    }
}

/// The failure of a worker that died because memory ran out; `how` is how it did.
pub fn out_of_memory(how: &str) -> Failed {
    let limit = match memory_bytes() {
        0 => "this host has no more of it for workers".to_owned(),
        bytes => format!("this host has {} MiB of it for workers", bytes >> 20),
    };
    let mut failed = Failed::new(FailureClass::Resource, format!("memory ran out: {how}; {limit}"));
    failed.lacked = Some(Lack::Memory);
    failed
        .with_hint("run the job where an agent of this device kind has more memory, or lower the batch or the threads")
}

/// Processes that the kernel has killed because memory ran out, since it was started. `None`: it does not say.
pub fn oom_kills() -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Bytes of memory that this agent's workers may use together: the machine's, or what its control groups allow. 0: unknown.
pub fn memory_bytes() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_total(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").ok();
    let group = groups.and_then(|text| group_limit(&text, |file| fs::read_to_string(file).ok()));
    [machine, group].into_iter().flatten().min().unwrap_or(0)
}

fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest limit of a process's control groups, of either version, and of those around them. `groups` is what the
/// kernel says of the process: a line each, `NUMBER:CONTROLLERS:PATH`.
fn group_limit(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let mut smallest = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = Some(path.trim_end_matches('/'));
        while let Some(at) = path {
            let limit = read(&format!("{root}{at}/{file}")).and_then(|text| text.trim().parse::<u64>().ok());
            smallest = [smallest, limit].into_iter().flatten().min();
            path = at.rsplit_once('/').map(|(around, _)| around);
        }
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_say_is_understood() {
        for (words, lack) in [
            ("cannot write x.plan: No space left on device (os error 28)", Some(Lack::Disk)),
            ("[E] write failed: Disk quota exceeded", Some(Lack::Disk)),
            (
                "the worker died with signal SIGABRT; its last words: memory allocation of 7 bytes failed",
                Some(Lack::Memory),
            ),
            ("terminate called after throwing an instance of 'std::bad_alloc'", Some(Lack::Memory)),
            ("CUDA out of memory: 9 GiB are missing", None),
            ("operator Foo is not known", None),
        ] {
            assert_eq!(said(words), lack, "{words}");
        }
    }

    #[test]
    fn the_smallest_limit_around_a_worker_holds() {
        let meminfo = "MemTotal:       24576000 kB\nMemFree:        1 kB\n";
        assert_eq!(mem_total(meminfo), Some(24_576_000 * 1024));
        let read = |file: &str| match file {
            "/sys/fs/cgroup/a/b/memory.max" => Some("max\n".to_owned()),
            "/sys/fs/cgroup/a/memory.max" => Some("1000\n".to_owned()),
            "/sys/fs/cgroup/memory/c/memory.limit_in_bytes" => Some("900\n".to_owned()),
            "/sys/fs/cgroup/memory/memory.limit_in_bytes" => Some("9223372036854771712\n".to_owned()),
            _ => None,
        };
        assert_eq!(group_limit("0::/a/b\n", read), Some(1_000));
        assert_eq!(group_limit("0::/\n3:cpuset:/a\n", read), None);
        assert_eq!(group_limit("4:cpu,memory:/c/d\n0::/\n", read), Some(900), "the older kind of groups");
        assert!(memory_bytes() > 0, "this machine says how much it has");
    }
}
