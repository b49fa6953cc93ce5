//! Ranges as a profiler gets them: a recorder built here takes the place of one.

use planforge_kernels_cuda::nvtx::{self, INJECTION_VARIABLE};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Names the file that the recorder writes to, for it and for the process that makes ranges.
const RECORD: &str = "NVTX_RECORD";

fn recorder(folder: &Path) -> PathBuf {
    let library = folder.join("librecorder.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvtx_recorder.c");
    let status =
        Command::new("cc").args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).arg(source).status();
    assert!(status.expect("a C compiler").success());
    library
}

/// What the recorder wrote while a process made the ranges of [`makes_ranges`] with `injected` as its profiler.
fn recorded(folder: &Path, injected: &Path) -> Option<String> {
    let record = folder.join("record");
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "makes_ranges"])
        .env(INJECTION_VARIABLE, injected)
        .env(RECORD, &record)
        .status()
        .unwrap();
    assert!(status.success(), "ranges never end a program");
    fs::read_to_string(record).ok()
}

/// Makes ranges; of interest in the processes that the other tests start.
#[test]
fn makes_ranges() {
    let _build = nvtx::range("build");
    {
        let _import = nvtx::range("import");
    }
    let tune = nvtx::range("tune");
    let step = nvtx::range("step \0conv1");
    drop(step);
    drop(tune);
    std::thread::spawn(|| drop(nvtx::range("elsewhere"))).join().unwrap();
}

#[test]
fn a_profiler_gets_names_and_nesting() {
    let folder = tempfile::tempdir().unwrap();
    let library = recorder(folder.path());
    let text = recorded(folder.path(), &library).expect("the recorder was called");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "push build",
            "  push import",
            "  pop",
            "  push tune",
            "    push step conv1",
            "    pop",
            "  pop",
            // A thread has ranges of its own.
            "push elsewhere",
            "pop",
            "pop",
        ]
    );
}

#[test]
fn a_library_that_is_no_profilers_is_done_without() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(recorded(folder.path(), &folder.path().join("absent.so")), None);
    assert_eq!(recorded(folder.path(), Path::new("libc.so.6")), None, "it lacks the function");
}
