//! What a process group uses, as `/proc` tells: memory now, processor time so far.

use std::{fs, path::Path};

/// Memory and processor time of every living member of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUse {
    pub resident_bytes: u64,
    /// Of members that live now; a member that ended takes its share along.
    pub cpu_ticks: u64,
    pub members: usize,
}

/// Fields of a stat line after the command: state is 0, so these are the manual's numbers less three.
const FIELD_GROUP: usize = 2;
const FIELD_USER_TICKS: usize = 11;
const FIELD_SYSTEM_TICKS: usize = 12;
const FIELD_RESIDENT_PAGES: usize = 21;

/// Looks at every process of `/proc` once.
pub fn usage(group: i32, page_bytes: u64) -> GroupUse {
    let mut total = GroupUse::default();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_process = entry.file_name().to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()));
        if is_process && let Some(one) = of_stat(&entry.path().join("stat"), group) {
            total.resident_bytes += one.resident_bytes.saturating_mul(page_bytes);
            total.cpu_ticks += one.cpu_ticks;
            total.members += 1;
        }
    }
    total
}

/// One process, its memory still in pages; `None` when it is gone or another group's.
fn of_stat(path: &Path, group: i32) -> Option<GroupUse> {
    parse_stat(&fs::read_to_string(path).ok()?, group)
}

fn parse_stat(stat: &str, group: i32) -> Option<GroupUse> {
    // The command may hold blanks and brackets; the last bracket ends it.
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    if fields.get(FIELD_GROUP)?.parse() != Ok(group) {
        return None;
    }
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    Some(GroupUse {
        resident_bytes: number(FIELD_RESIDENT_PAGES)?,
        cpu_ticks: number(FIELD_USER_TICKS)? + number(FIELD_SYSTEM_TICKS)?,
        members: 1,
    })
}

/// Most memory that one tool may hold: this share of what the host, or its control group, has.
const HOST_SHARE_PERCENT: u64 = 85;

/// The bound on a tool's memory on this host; none where the host does not tell.
pub fn memory_limit_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let host = line.split_whitespace().next()?.parse::<u64>().ok()?.saturating_mul(1024);
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse::<u64>().ok());
    Some(group.map_or(host, |group| group.min(host)) / 100 * HOST_SHARE_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_are_read_for_the_group_asked_for() {
        let line = "12 (a) b (c)) S 1 77 77 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0 777 4096 9 18446744073709551615";
        let found = parse_stat(line, 77).unwrap();
        assert_eq!((found.cpu_ticks, found.resident_bytes), (11, 9));
        assert_eq!(parse_stat(line, 1), None);
        for bad in ["", "12", "12 (a)", "12 (a) S 1 77"] {
            assert_eq!(parse_stat(bad, 77), None, "{bad}");
        }
    }

    #[test]
    fn this_process_is_seen_in_its_group() {
        let group = nix::unistd::getpgrp().as_raw();
        let seen = usage(group, 4096);
        assert!(seen.members >= 1 && seen.resident_bytes > 0);
        assert!(memory_limit_bytes().is_none_or(|bytes| bytes > 1 << 20));
    }
}
