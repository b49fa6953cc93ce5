//! Room on the disks that engines and scratch files go to.

use super::Check;
use rustix::fs::{Access, access, statvfs};
use std::path::{Path, PathBuf};

const AREA: &str = "disk";
/// Below it builds fail.
const NEEDED_MIB: u64 = 1024;
/// Below it a few builds fill the disk.
const WANTED_MIB: u64 = 10 * 1024;

/// Checks each folder that is written to, or the nearest folder above it that exists.
pub fn checks(folders: &[(&str, PathBuf)]) -> Vec<Check> {
    folders.iter().map(|(name, folder)| check(name, folder)).collect()
}

fn check(name: &str, folder: &Path) -> Check {
    let Some(existing) = folder.ancestors().find(|ancestor| ancestor.is_dir()) else {
        return Check::ok(AREA, name, folder.display().to_string())
            .problem("no folder above it exists", "name another folder");
    };
    let room = match statvfs(existing) {
        Ok(room) => room,
        Err(error) => {
            return Check::ok(AREA, name, folder.display().to_string())
                .problem(format!("its disk cannot be asked: {error}"), "name another folder");
        }
    };
    let free_mib = room.f_bavail.saturating_mul(room.f_frsize) >> 20;
    let check = Check::ok(AREA, name, format!("{}: {free_mib} MiB free", folder.display()));
    if access(existing, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return check.problem("this user may not write there", "give it to this user, or name another folder");
    }
    judge(check, free_mib)
}

fn judge(check: Check, free_mib: u64) -> Check {
    if free_mib < NEEDED_MIB {
        check.problem("builds fail for want of room", "free some, or name a folder on another disk")
    } else if free_mib < WANTED_MIB {
        check.warning("a few large engines fill it", "free some, or name a folder on another disk")
    } else {
        check
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn room_is_judged_by_what_builds_need() {
        let state = |mib| judge(Check::ok(AREA, "x", ""), mib).state;
        assert_eq!([state(100), state(5000), state(50_000)], [State::Problem, State::Warning, State::Ok]);
    }

    #[test]
    fn a_folder_to_be_is_judged_by_the_one_above_it() {
        let folder = tempfile::tempdir().unwrap();
        let check = check("data", &folder.path().join("a/b/c"));
        assert!(check.seen.contains("a/b/c") && check.seen.contains("MiB free"), "{check:?}");
    }
}
