//! Whether this process meets the rest of its host on the locks of devices and cores.
//!
//! Lock files end where the mount namespace ends: two containers that were given no common folder use one device at
//! once and pin the same cores. From inside, the others cannot be seen; what can be seen is that this is a container, and
//! whether the lock folder comes from outside of it.

use super::Check;
use planforge_types::host_lock::{self, LockError};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

const AREA: &str = "host";
/// Number of the first process namespace of every Linux kernel.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Files that container engines leave for those inside.
const CONTAINER_FILES: [&str; 3] = ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"];
/// What they write into the path of a control group.
const CONTAINER_GROUPS: [&str; 6] = ["docker", "kubepods", "libpod", "containerd", "lxc", "machine.slice"];

/// What tells of a container.
#[derive(Debug, Default)]
struct World {
    /// Those of [`CONTAINER_FILES`] that exist.
    files: Vec<&'static str>,
    /// `/proc/self/cgroup`.
    groups: String,
    pid_namespace: Option<u64>,
    /// Kinds of namespaces in which the first process that can be seen is not: an engine's, or `unshare`'s.
    apart_from_first: Vec<&'static str>,
    /// `/proc/self/mountinfo`.
    mounts: String,
    /// Named by `PLANFORGE_LOCK_DIR`.
    named: bool,
}

pub fn check() -> Check {
    judge(host_lock::host_folder(), &World::here())
}

impl World {
    fn here() -> Self {
        let own = |kind: &str| fs::metadata(format!("/proc/self/ns/{kind}")).map(|facts| facts.ino()).ok();
        // Another user's first process shows nothing.
        let first = |kind: &str| fs::metadata(format!("/proc/1/ns/{kind}")).map(|facts| facts.ino()).ok();
        let apart = |kind: &&str| matches!((own(kind), first(kind)), (Some(own), Some(first)) if own != first);
        Self {
            files: CONTAINER_FILES.into_iter().filter(|file| Path::new(file).exists()).collect(),
            groups: fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
            pid_namespace: own("pid"),
            apart_from_first: ["mnt", "net"].into_iter().filter(apart).collect(),
            mounts: fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(),
            named: host_lock::named_folder().is_some(),
        }
    }

    /// How it is seen that others of this host may look elsewhere.
    fn signs(&self) -> Vec<String> {
        let mut signs: Vec<String> = self.files.iter().map(|file| format!("{file} exists")).collect();
        let group = CONTAINER_GROUPS.into_iter().find(|name| self.groups.contains(name));
        signs.extend(group.map(|name| format!("the control group names {name}")));
        if self.pid_namespace.is_some_and(|namespace| namespace != FIRST_PID_NAMESPACE) {
            signs.push("processes are numbered apart from the host's".into());
        }
        for kind in &self.apart_from_first {
            signs.push(match *kind {
                "mnt" => "mounts are apart from the first process's".into(),
                _ => "the network is apart from the first process's".into(),
            });
        }
        signs
    }

    /// Whether the folder was mounted from outside: its mount is neither the root of this container nor a fresh memory
    /// file system.
    fn is_from_outside(&self, folder: &Path) -> bool {
        let mounts = self.mounts.lines().filter_map(Mount::read).filter(|mount| folder.starts_with(&mount.at));
        mounts
            .max_by_key(|mount| mount.at.as_os_str().len())
            .is_some_and(|mount| mount.at != Path::new("/") && !(mount.kind == "tmpfs" && mount.root == "/"))
    }
}

/// One line of mountinfo.
struct Mount<'a> {
    /// Which part of the file system lies there.
    root: &'a str,
    at: PathBuf,
    kind: &'a str,
}

impl<'a> Mount<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        Some(Self { root: fields.next()?, at: fields.next()?.into(), kind: after.split(' ').next()? })
    }
}

fn judge(folder: Result<PathBuf, LockError>, world: &World) -> Check {
    let variable = host_lock::FOLDER_VARIABLE;
    let folder = match folder {
        Ok(folder) => folder,
        Err(error) => {
            return Check::ok(AREA, "locks", error.to_string()).problem(
                "agents do not start here, and engines of other containers pin the same cores",
                format!("let every user write there, or name another folder with {variable}"),
            );
        }
    };
    let signs = world.signs();
    let seen = folder.display().to_string();
    if signs.is_empty() {
        return Check::ok(AREA, "locks", seen).meaning("devices and cores are claimed there, for the whole host");
    }
    let check =
        Check::ok(AREA, "locks", format!("{seen}, in a container or namespace of its own ({})", signs.join("; ")));
    if world.named {
        return check.meaning(format!("{variable} names it: it has to be one folder for all containers of this host"));
    }
    if world.is_from_outside(&folder) {
        return check.meaning("it is mounted from outside: others who mount it claim devices and cores there too");
    }
    check.warning(
        "other containers of this host see no lock of this one: two may use one device at once and pin the same cores",
        format!("mount one folder into all of them, as in -v {seen}:{seen}, and name it with {variable}={seen}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    const ROOT: &str = "27 1 254:0 / / rw,relatime - overlay overlay rw\n";

    fn judged(world: World) -> Check {
        judge(Ok("/run/lock/planforge".into()), &world)
    }

    fn host() -> World {
        World {
            groups: "0::/user.slice/user-1000.slice\n".into(),
            pid_namespace: Some(FIRST_PID_NAMESPACE),
            mounts: ROOT.into(),
            ..World::default()
        }
    }

    fn container() -> World {
        World { files: vec!["/.dockerenv"], pid_namespace: Some(4_026_532_001), ..host() }
    }

    #[test]
    fn a_host_claims_for_itself() {
        assert_eq!(judged(host()).state, State::Ok);
    }

    #[test]
    fn every_sign_of_a_container_is_a_warning_that_says_what_to_share() {
        let check = judged(container());
        assert_eq!(check.state, State::Warning);
        assert!(check.seen.contains("/.dockerenv exists") && check.seen.contains("numbered apart"), "{check:?}");
        assert!(check.action.contains("-v /run/lock/planforge:/run/lock/planforge"), "{check:?}");
        assert!(check.action.contains("PLANFORGE_LOCK_DIR=/run/lock/planforge"), "{check:?}");
        for world in [
            World { groups: "0::/system.slice/docker-0123.scope\n".into(), ..host() },
            World { pid_namespace: Some(4_026_532_001), ..host() },
            World { apart_from_first: vec!["net"], ..host() },
            World { apart_from_first: vec!["mnt"], ..host() },
        ] {
            let check = judged(world);
            assert_eq!(check.state, State::Warning, "{check:?}");
        }
    }

    #[test]
    fn a_folder_from_outside_is_shared_and_a_fresh_one_is_not() {
        let with = |line: &str| judged(World { mounts: format!("{ROOT}{line}"), ..container() }).state;
        let bound = "40 27 0:24 /lock/planforge /run/lock/planforge rw - tmpfs tmpfs rw\n";
        let disk = "41 27 254:0 /srv/locks /run/lock/planforge rw,relatime shared:7 - ext4 /dev/vda rw\n";
        assert_eq!([with(bound), with(disk)], [State::Ok, State::Ok]);
        let fresh = "42 27 0:30 / /run rw - tmpfs tmpfs rw\n";
        let elsewhere = "43 27 254:0 /srv/x /run/lock/planforge-other rw - ext4 /dev/vda rw\n";
        assert_eq!([with(fresh), with(elsewhere)], [State::Warning, State::Warning]);
    }

    #[test]
    fn who_names_the_folder_is_believed_and_told_what_it_has_to_be() {
        let check = judged(World { named: true, ..container() });
        assert_eq!(check.state, State::Ok);
        assert!(check.meaning.contains("one folder for all containers"), "{check:?}");
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_a_problem() {
        let error = host_lock::prepare_folder(Path::new("/proc/nowhere/locks")).unwrap_err();
        let check = judge(Err(error), &host());
        assert_eq!(check.state, State::Problem);
        assert!(check.seen.contains("/proc/nowhere/locks"), "{check:?}");
    }
}
