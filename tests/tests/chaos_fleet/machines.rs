//! Disks that are full and clocks that are wrong, for whoever is meant and nobody else.

use planforge_skipped::skipped;
use planforge_tests::machine::{Clock, Disks};
use std::{fs, process::Command};

#[test]
fn a_clock_is_set_for_whoever_goes_by_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let clock = match Clock::new(folder.path(), "one") {
        Ok(clock) => clock,
        Err(why) => return skipped(why),
    };
    let year = |clock: Option<&Clock>| {
        let mut date = Command::new("date");
        date.arg("+%s");
        if let Some(clock) = clock {
            clock.give(&mut date);
        }
        let text = String::from_utf8(date.output().unwrap().stdout).unwrap();
        text.trim().parse::<i64>().unwrap() / (366 * 86_400)
    };
    let now = year(None);
    assert_eq!(year(Some(&clock)), now);
    clock.set(10 * 366 * 86_400);
    assert_eq!((year(Some(&clock)), year(None)), (now + 10, now));
    clock.set(0);
    assert_eq!(year(Some(&clock)), now);
}

#[test]
fn a_disk_is_full_for_whoever_was_let_in_alone() {
    let folder = tempfile::tempdir().unwrap();
    let disks = match Disks::mount(&[folder.path().to_owned()], 1) {
        Ok(disks) => disks,
        Err(why) => return skipped(why),
    };
    let write = |inside: bool| {
        let mut write = Command::new("sh");
        write.args(["-c", "head -c 5000 /dev/zero > there", "sh"]).current_dir(folder.path());
        let mut write = if inside { disks.enter(&write) } else { write };
        write.output().unwrap().status.success()
    };
    assert!(write(true) && !folder.path().join("there").exists() && disks.seen(&folder.path().join("there")).exists());
    disks.fill(folder.path());
    fs::remove_file(disks.seen(&folder.path().join("there"))).unwrap();
    disks.fill(folder.path());
    assert!(!write(true) && write(false));
    disks.free(folder.path());
    assert!(write(true));
}
