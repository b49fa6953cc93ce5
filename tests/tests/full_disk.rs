//! A coordinator whose disk is full for a while: a small tmpfs in a mount namespace of its own, filled while a job
//! runs. What runs is not lost, and with room on the disk the farm goes on by itself.

use planforge_tests::{
    eventually,
    farm::{Farm, Link, id_of, is_ended},
    models, process,
};
use std::{
    env,
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::Command,
};

const NAME: &str = "a_farm_whose_disk_was_full_goes_on_by_itself";
/// Set in the inner run, which has a mount namespace of its own.
const INNER: &str = "PLANFORGE_TEST_MAY_MOUNT";
/// Room for blobs, beside what is kept free for the database.
const DISK: &str = "size=160m";
/// What the CLI ends with when disk, queue or quota is full.
const EXIT_FULL: i32 = 8;

#[test]
fn a_farm_whose_disk_was_full_goes_on_by_itself() {
    if env::var_os(INNER).is_some() {
        return fill_and_free();
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let probe = Command::new("unshare")
        .args(["-rm", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs \"$1\"", "sh"])
        .arg(folder.path())
        .output();
    if !probe.as_ref().is_ok_and(|output| output.status.success()) {
        return planforge_skipped::skipped(format_args!("no small disk can be mounted here: {probe:?}"));
    }
    let output = Command::new("unshare")
        .arg("-rm")
        .arg(env::current_exe().expect("a test knows where it lies"))
        .args(["--exact", NAME, "--nocapture"])
        .env(INNER, "1")
        .env("PLANFORGE_BIN", process::planforge())
        .output()
        .expect("unshare runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "the inner run did not run: {text}");
}

fn shell(script: &str, folders: [&Path; 2]) {
    let status = Command::new("sh").args(["-e", "-c", script, "sh"]).args(folders).status().expect("a shell");
    assert!(status.success(), "{script}");
}

/// Takes the disk's last byte.
fn fill(file: &Path) {
    let mut filler = File::options().create(true).append(true).open(file).expect("a file on the small disk");
    for piece in [1 << 20, 4096, 1] {
        while filler.write_all(&vec![0x5a; piece]).is_ok() {}
    }
}

fn fill_and_free() {
    let mut farm = Farm::start(Link::Loopback);
    farm.kill_coordinator();
    // The data folder as it is, on a small disk.
    let (data, disk) = (farm.data(), farm.path().join("disk"));
    fs::create_dir(&disk).expect("the test's folder is writable");
    let script = format!("mount -t tmpfs -o {DISK} tmpfs \"$2\"; cp -a \"$1/.\" \"$2/\"; mount --bind \"$2\" \"$1\"");
    shell(&script, [&data, &disk]);
    farm.restart_coordinator();
    let mut agent = farm.start_agent("one", "host", None);
    farm.wait_agents(1);

    let model = models::convolutions(&farm.path().join("m.onnx"), 6, 64, 28, 7);
    let id = id_of(&farm.submit(&model, &["--sku", "cpu-x86-64-v2", "--threads", "1"])[0]);
    farm.wait_job(&id, "runs", |job| is_ended(job) || job["state"] == "running");
    let filler = disk.join("filler");
    fill(&filler);

    let refused = |arguments: &[&str]| {
        let output = process::run(farm.cli(arguments));
        assert_eq!(output.status.code(), Some(EXIT_FULL), "{output:?}");
    };
    refused(&["token", "create", "during", "--role", "read"]);
    let other = models::convolutions(&farm.path().join("other.onnx"), 1, 8, 8, 8);
    refused(&["submit", other.to_str().expect("a UTF-8 path"), "--sku", "cpu-x86-64-v2"]);
    // The plan is built, and there is no room for it.
    agent.wait_for_line("the blob store is away or full");
    refused(&["token", "create", "during", "--role", "read"]);

    fs::remove_file(&filler).expect("the filler is there");
    eventually("the farm takes writes again", || {
        let output = process::run(farm.cli(&["token", "create", "after", "--role", "read"]));
        if output.status.success() { Ok(()) } else { Err(format!("{output:?}")) }
    });
    let job = farm.wait_ended(&id);
    assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)), "{job}");
    let log = process::run(farm.cli(&["logs", &id]));
    assert!(log.status.success() && !log.stdout.is_empty(), "{log:?}");
    assert!(farm.coordinator.is_running(), "it was never started again");
    let next = id_of(&farm.submit(&other, &["--sku", "cpu-x86-64-v2", "--threads", "1"])[0]);
    assert_eq!(farm.wait_ended(&next)["state"], "succeeded");
    ends_are_kept_while_new_work_is_refused(&farm, &disk);
}

/// Leaves only `bytes` free.
fn fill_but(file: &Path, bytes: u64) {
    let script = "stat -f -c '%a * %S' \"$1\"";
    let output = Command::new("sh").args(["-c", script, "sh"]).arg(file.parent().expect("a folder")).output();
    let text = String::from_utf8(output.expect("stat runs").stdout).expect("numbers");
    let numbers: Vec<u64> = text.trim().split(" * ").map(|number| number.parse().expect("a number")).collect();
    let size = (numbers[0] * numbers[1]).checked_sub(bytes).expect("there is more room than that");
    fs::write(file, vec![0x5a; size as usize]).expect("the filler fits");
}

/// With less left than the reserve, what runs is stored to its end, and nothing new is taken.
fn ends_are_kept_while_new_work_is_refused(farm: &Farm, disk: &Path) {
    let model = models::convolutions(&farm.path().join("last.onnx"), 6, 64, 28, 9);
    let id = id_of(&farm.submit(&model, &["--sku", "cpu-x86-64-v2", "--threads", "1"])[0]);
    farm.wait_job(&id, "runs", |job| is_ended(job) || job["state"] == "running");
    let filler = disk.join("filler");
    // Of the disk's 160 MiB a twentieth is the reserve, above the 64 MiB that the database may need.
    fill_but(&filler, 70 << 20);
    let fresh = models::convolutions(&farm.path().join("fresh.onnx"), 1, 8, 8, 10);
    let output = process::run(farm.cli(&["submit", fresh.to_str().expect("a UTF-8 path"), "--sku", "cpu-x86-64-v2"]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(EXIT_FULL), "{said}");
    assert!(said.contains("kept for the ends of jobs that run") && !said.contains("command again"), "{said}");
    let job = farm.wait_ended(&id);
    assert_eq!(job["state"], "succeeded", "{job}");
    // What is stored is answered, whatever is left.
    let stored = process::run(farm.cli(&[
        "submit",
        model.to_str().expect("a UTF-8 path"),
        "--sku",
        "cpu-x86-64-v2",
        "--threads",
        "1",
    ]));
    assert!(stored.status.success(), "{stored:?}");
    fs::remove_file(&filler).expect("the filler is there");
    let next = id_of(&farm.submit(&fresh, &["--sku", "cpu-x86-64-v2", "--threads", "1"])[0]);
    assert_eq!(farm.wait_ended(&next)["state"], "succeeded");
}
