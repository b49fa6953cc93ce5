//! Tools that misbehave, as shell scripts. Limits are short; nothing is judged by how long it took.

use super::*;
use std::{fs, os::unix::fs::PermissionsExt as _};

/// Long enough for any of these on a busy machine; reached only by a failing test.
const PATIENCE: Duration = Duration::from_secs(60);

struct Script {
    folder: tempfile::TempDir,
    limits: Limits,
}

impl Script {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder, limits: Limits { wall: PATIENCE, silence: PATIENCE, memory_bytes: None } }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn invocation(&self) -> Invocation {
        Invocation {
            program: self.path("tool"),
            args: vec!["--one=1".into()],
            folder: self.folder.path().to_owned(),
            environment: Environment::new(Some("GPU-test"), &[] as &[&str], self.folder.path()),
            limits: self.limits,
        }
    }

    fn run(&self) -> (Finished, Vec<String>) {
        self.run_until(&Cancel::default())
    }

    fn run_until(&self, cancel: &Cancel) -> (Finished, Vec<String>) {
        let mut lines = Vec::new();
        let finished = run(&self.invocation(), &mut |line| lines.push(line.to_owned()), cancel).unwrap();
        (finished, lines)
    }
}

/// Whether the process whose number stands in `file` still runs.
fn runs(file: &Path) -> bool {
    let pid: i32 = fs::read_to_string(file).unwrap().trim().parse().unwrap();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn both_streams_arguments_folder_and_environment_arrive() {
    let script = Script::new(
        r#"echo "arg $1 in $(pwd) on $CUDA_VISIBLE_DEVICES"; echo "[06/01/2024-10:00:00] [E] broken" >&2; exit 3"#,
    );
    let (finished, lines) = script.run();
    assert_eq!((finished.status.code(), finished.end(), finished.stopped), (Some(3), "exit code 3".into(), None));
    let folder = script.folder.path().display();
    assert!(lines.contains(&format!("arg --one=1 in {folder} on GPU-test")), "{lines:?}");
    assert_eq!(finished.log.errors.iter().map(|error| error.text.as_str()).collect::<Vec<_>>(), ["broken"]);
}

#[test]
fn a_hang_that_ignores_sigterm_is_killed() {
    let mut script = Script::new("trap '' TERM; echo $$ > pid; while :; do sleep 1000; done");
    script.limits.silence = Duration::from_millis(400);
    let (finished, _) = script.run();
    assert!(matches!(finished.stopped, Some(Stopped::Hang { .. })), "{finished:?}");
    assert_eq!(finished.end(), "SIGKILL");
    assert!(!runs(&script.path("pid")));
}

#[test]
fn computing_in_silence_is_no_hang() {
    // Twice the silence, which is long enough for a starved machine to give it some processor time.
    let count = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let script = format!("end=$(($(date +%s) + 4)); while [ $(date +%s) -lt $end ]; do {count}; done");
    let mut script = Script::new(&script);
    script.limits.silence = Duration::from_secs(2);
    let (finished, _) = script.run();
    assert_eq!((finished.stopped, finished.status.code()), (None, Some(0)));
}

#[test]
fn time_runs_out_for_a_chatty_tool_too() {
    let mut script = Script::new("while :; do echo still here; done");
    script.limits.wall = Duration::from_millis(300);
    let (finished, lines) = script.run();
    assert!(matches!(finished.stopped, Some(Stopped::WallTime { .. })));
    assert_eq!(finished.end(), "SIGTERM");
    assert_eq!(lines[0], "still here");
}

#[test]
fn a_flood_on_both_streams_is_read_to_its_end_and_kept_within_bounds() {
    let script = Script::new(
        "head -c 64000000 /dev/zero | tr '\\0' 'x' | fold -w 200 & \
         head -c 64000000 /dev/zero | tr '\\0' 'y' | fold -w 200 >&2; wait; echo; echo '&&&& the end'",
    );
    let (finished, lines) = script.run();
    assert_eq!((finished.stopped, finished.status.code()), (None, Some(0)));
    assert!(lines.iter().map(String::len).sum::<usize>() < 1 << 20);
    // What was left in the other pipe may come after it.
    assert!(lines.iter().any(|line| line == "&&&& the end"));
}

#[test]
fn children_left_behind_are_ended_and_counted() {
    let script = Script::new("sleep 1000 & echo $! > pid; echo done");
    let (finished, _) = script.run();
    assert_eq!((finished.status.code(), finished.left_behind), (Some(0), 1));
    // A killed orphan is reaped by init, not by us.
    let until = Instant::now() + PATIENCE;
    while runs(&script.path("pid")) && Instant::now() < until {
        thread::park_timeout(POLL);
    }
    assert!(!runs(&script.path("pid")));
}

#[test]
fn cancelling_ends_the_whole_group() {
    let script = Script::new("sleep 1000 & echo $! > child; touch ready; wait");
    let cancel = Cancel::default();
    let ready = script.path("ready");
    let canceller = thread::spawn({
        let cancel = cancel.clone();
        move || {
            let until = Instant::now() + PATIENCE;
            while !ready.exists() && Instant::now() < until {
                thread::park_timeout(POLL);
            }
            cancel.cancel();
        }
    });
    let (finished, _) = script.run_until(&cancel);
    canceller.join().unwrap();
    assert_eq!(finished.stopped, Some(Stopped::Cancelled));
}

#[test]
fn memory_of_the_whole_group_is_bounded() {
    // A variable of many megabytes in a child of the script.
    let mut script =
        Script::new(r#"sh -c 'x=$(head -c 60000000 /dev/zero | tr "\0" x); echo full; sleep 1000' & wait"#);
    script.limits.memory_bytes = Some(40_000_000);
    let (finished, _) = script.run();
    let Some(Stopped::Memory { used_bytes, limit_bytes }) = finished.stopped else { panic!("{finished:?}") };
    assert!(used_bytes > limit_bytes && finished.peak_bytes >= used_bytes);
}

#[test]
fn a_crash_is_told_by_its_signal() {
    let (finished, _) = Script::new("kill -ABRT $$").run();
    assert_eq!((finished.end(), finished.stopped), ("SIGABRT".into(), None));
}

#[test]
fn what_cannot_be_started_is_named() {
    let script = Script::new("");
    let mut invocation = script.invocation();
    invocation.program = script.path("absent");
    let error = run(&invocation, &mut |_| {}, &Cancel::default()).unwrap_err();
    assert!(matches!(error, ProcessError::Start { .. }) && error.to_string().ends_with("absent"), "{error}");
    assert!(is_program(&script.path("tool")) && !is_program(&script.path("absent")));
}
