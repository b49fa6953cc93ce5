//! Limits of control groups, versions 1 and 2: those of the process's own group and of all around it, the tightest.

use super::Root;
use planforge_types::host::ControlGroup;

/// From here on a limit of version 1 means none: its files hold the largest number that the kernel counts pages in.
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// A hierarchy of groups as it is mounted here.
struct Mount {
    /// Which of its groups the mount shows as its root; another than `/` in containers of version 1.
    shows: String,
    point: String,
    controllers: Vec<String>,
    version: u32,
}

/// What the process's groups allow; `None` where the kernel tells of none.
pub(super) fn limits(root: &Root) -> Option<ControlGroup> {
    let groups = root.text("/proc/self/cgroup")?;
    let mounts = mounts(&root.text("/proc/self/mountinfo")?);
    let mut found: Option<ControlGroup> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let version = if controllers.is_empty() { 2 } else { 1 };
        let serves = |mount: &&Mount| {
            let names = || controllers.split(',').any(|name| mount.controllers.iter().any(|have| have == name));
            mount.version == version && (version == 2 || names())
        };
        let Some(mount) = mounts.iter().find(serves) else { continue };
        let group = found.get_or_insert_with(ControlGroup::default);
        let folders = folders(root, mount, path);
        let told = if version == 2 { of_two(root, &folders, group) } else { of_one(root, &folders, group) };
        // With both, the version whose files are there is the one that limits.
        if told || group.version == 0 {
            (group.version, group.path) = (version, path.to_owned());
        }
    }
    found
}

fn mounts(mountinfo: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (shows, point) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        let mut after = after.split(' ');
        let version = match after.next()? {
            "cgroup" => 1,
            "cgroup2" => 2,
            _ => return None,
        };
        let controllers = after.nth(1).unwrap_or_default().split(',').map(str::to_owned).collect();
        Some(Mount { shows, point, controllers, version })
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// The folders of a group and of those around it, the innermost first.
fn folders(root: &Root, mount: &Mount, path: &str) -> Vec<String> {
    let inside = path.strip_prefix(mount.shows.trim_end_matches('/')).unwrap_or(path).trim_matches('/');
    let mut at = format!("{}/{inside}", mount.point).trim_end_matches('/').to_owned();
    // A container may be told a path that only its host can see: what it sees itself is then its own group.
    if !root.exists(&at) {
        at.clone_from(&mount.point);
    }
    let mut folders = vec![at.clone()];
    while at.len() > mount.point.len() {
        let Some((around, _)) = at.rsplit_once('/') else { break };
        at.truncate(around.len());
        folders.push(at.clone());
    }
    folders
}

fn least<T: PartialOrd>(into: &mut Option<T>, value: Option<T>) {
    if let Some(value) = value
        && into.as_ref().is_none_or(|have| value < *have)
    {
        *into = Some(value);
    }
}

fn of_two(root: &Root, folders: &[String], group: &mut ControlGroup) -> bool {
    let mut told = false;
    for folder in folders {
        // `200000 100000`: microseconds of each period; `max` is no limit.
        if let Some(text) = root.text(&format!("{folder}/cpu.max")) {
            told = true;
            let mut numbers = text.split(' ').map(|word| word.parse::<f64>().ok());
            let quota = numbers.next().flatten().zip(numbers.next().flatten());
            least(
                &mut group.cpu_quota,
                quota.filter(|(_, period)| *period > 0.0).map(|(quota, period)| quota / period),
            );
        }
        let limit = root.text(&format!("{folder}/memory.max"));
        told |= limit.is_some();
        least(&mut group.memory_max_bytes, limit.and_then(|text| text.parse().ok()));
        least(&mut group.swap_max_bytes, root.number(&format!("{folder}/memory.swap.max")));
    }
    let cpus = folders.iter().find_map(|folder| root.text(&format!("{folder}/cpuset.cpus.effective")));
    told |= cpus.is_some();
    group.cpus = cpus.or(group.cpus.take());
    told
}

fn of_one(root: &Root, folders: &[String], group: &mut ControlGroup) -> bool {
    let mut told = false;
    for folder in folders {
        let quota = root.text(&format!("{folder}/cpu.cfs_quota_us")).and_then(|text| text.parse::<f64>().ok());
        let period = root.number(&format!("{folder}/cpu.cfs_period_us")).filter(|period| *period > 0);
        told |= quota.is_some();
        // -1 is no limit.
        let processors = quota.zip(period).filter(|(quota, _)| *quota > 0.0);
        least(&mut group.cpu_quota, processors.map(|(quota, period)| quota / period as f64));
        let limit = root.number(&format!("{folder}/memory.limit_in_bytes"));
        told |= limit.is_some();
        least(&mut group.memory_max_bytes, limit.filter(|bytes| *bytes < NO_LIMIT_BYTES));
    }
    let cpus = |folder: &String| {
        let text = |name: &str| root.text(&format!("{folder}/{name}"));
        text("cpuset.effective_cpus").or_else(|| text("cpuset.cpus"))
    };
    let cpus = folders.iter().find_map(cpus);
    told |= cpus.is_some();
    group.cpus = cpus.or(group.cpus.take());
    told
}

#[cfg(test)]
mod tests {
    use super::{super::tests::system, *};

    #[test]
    fn limits_of_version_two_are_the_tightest_of_all_groups() {
        let (_folder, root) = system(&[
            ("/proc/self/cgroup", "0::/farm.slice/agent.service\n"),
            ("/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"),
            ("/sys/fs/cgroup/farm.slice/cpu.max", "150000 100000\n"),
            ("/sys/fs/cgroup/farm.slice/memory.max", "8589934592\n"),
            ("/sys/fs/cgroup/farm.slice/agent.service/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/farm.slice/agent.service/memory.max", "max\n"),
            ("/sys/fs/cgroup/farm.slice/agent.service/memory.swap.max", "0\n"),
            ("/sys/fs/cgroup/farm.slice/agent.service/cpuset.cpus.effective", "0-3\n"),
        ]);
        let told = ControlGroup {
            version: 2,
            path: "/farm.slice/agent.service".into(),
            cpu_quota: Some(1.5),
            cpus: Some("0-3".into()),
            memory_max_bytes: Some(8 << 30),
            swap_max_bytes: Some(0),
        };
        assert_eq!(limits(&root), Some(told));
    }

    #[test]
    fn limits_of_version_one_are_read_through_a_containers_mounts() {
        let mounts = "31 23 0:28 /docker/ab12 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
                      32 23 0:29 /docker/ab12 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                      33 23 0:30 /docker/ab12 /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n";
        let (_folder, root) = system(&[
            ("/proc/self/cgroup", "4:memory:/docker/ab12\n3:cpuset:/docker/ab12\n2:cpu,cpuacct:/docker/ab12\n0::/\n"),
            ("/proc/self/mountinfo", mounts),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n"),
            ("/sys/fs/cgroup/cpuset/cpuset.cpus", "2,4-5\n"),
        ]);
        let found = limits(&root).unwrap();
        assert_eq!((found.version, found.path.as_str()), (1, "/docker/ab12"));
        assert_eq!((found.cpu_quota, found.memory_max_bytes), (Some(2.0), Some(4 << 30)));
        assert_eq!(found.cpus.as_deref(), Some("2,4-5"));
    }

    #[test]
    fn no_limit_is_no_number() {
        let (_folder, root) = system(&[
            ("/proc/self/cgroup", "4:memory:/a\n1:cpu:/\n"),
            (
                "/proc/self/mountinfo",
                "1 2 0:3 / /g/memory rw - cgroup cgroup rw,memory\n1 2 0:4 / /g/cpu rw - cgroup cgroup rw,cpu\n",
            ),
            ("/g/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/g/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/g/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        let found = limits(&root).unwrap();
        assert_eq!((found.cpu_quota, found.memory_max_bytes, found.cpus), (None, None, None));
        let (_folder, nothing) = system(&[]);
        assert_eq!(limits(&nothing), None);
        let (_folder, damaged) = system(&[("/proc/self/cgroup", "x\n0::\n"), ("/proc/self/mountinfo", "1 2 - \n-\n")]);
        assert_eq!(limits(&damaged), None);
    }
}
