//! Programs of our own that answer as good and broken installations do.

use super::*;
use std::{fs, os::unix::fs::PermissionsExt as _};

/// A folder with a program that counts its runs in `asked` and then does what `script` says.
fn program(folder: &Path, script: &str) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let path = folder.join("trtexec");
    let asked = folder.join("asked");
    fs::write(&path, format!("#!/bin/sh\necho x >> '{}'\n{script}\n", asked.display())).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn asked(folder: &Path) -> usize {
    fs::read_to_string(folder.join("asked")).map_or(0, |text| text.lines().count())
}

fn answering(code: &str, options: &str) -> String {
    format!("echo '&&&& RUNNING TensorRT.trtexec [TensorRT v{code}] # trtexec --help'\nprintf '{options}'")
}

fn only(programs: &[&PathBuf]) -> Places {
    Places { programs: Some(programs.iter().map(|p| (*p).clone()).collect()), ..Places::default() }
}

#[test]
fn versions_lie_side_by_side_and_links_count_once() {
    let root = tempfile::tempdir().unwrap();
    let old = program(&root.path().join("old"), &answering("8601", "  --onnx=<file>\\n  --fp16\\n"));
    let new = program(&root.path().join("new"), &answering("101601] [b11", "  --onnx=<file>\\n  --maxTactics\\n"));
    let link = root.path().join("link");
    std::os::unix::fs::symlink(&new, &link).unwrap();
    let found = Discovery::new(only(&[&old, &link, &new]), None).findings();
    assert_eq!(found.faults, []);
    let versions: Vec<_> = found.installations.iter().map(|i| i.version().to_string()).collect();
    assert_eq!(versions, ["10.16.1.11", "8.6.1"]);
    assert!(found.installations[0].capabilities.has("--maxTactics"));
    assert!(!found.installations[1].capabilities.has("--maxTactics"));
    let toolchain = found.installations[0].toolchain(Some("580.1.2"));
    assert_eq!(toolchain.to_string(), "tensorrt 10.16.1.11, driver_branch 580");
    let discovery = Discovery::new(only(&[&old, &new]), None);
    assert_eq!(discovery.find(&toolchain, Some("580.3")).map(|i| i.trtexec), new.canonicalize().ok());
    assert_eq!(discovery.find(&toolchain, Some("570.3")), None);
}

#[test]
fn a_program_is_asked_once_until_it_changes() {
    let root = tempfile::tempdir().unwrap();
    let home = root.path().join("home");
    let trtexec = program(&home, &answering("100300", "  --onnx=<file>\\n"));
    for _ in 0..2 {
        let discovery = Discovery::new(only(&[&trtexec]), Some(root.path()));
        assert_eq!(discovery.findings(), discovery.findings());
        assert_eq!(asked(&home), 1);
    }
    program(&home, &answering("100400", "  --onnx=<file>\\n  --fp16\\n"));
    let found = Discovery::new(only(&[&trtexec]), Some(root.path())).findings();
    assert_eq!(found.installations[0].version().to_string(), "10.4.0");
    assert_eq!(asked(&home), 2);
    // A spoilt cache only costs time.
    fs::write(root.path().join("trtexec.json"), "{").unwrap();
    assert_eq!(Discovery::new(only(&[&trtexec]), Some(root.path())).findings(), found);
    assert_eq!(asked(&home), 3);
}

#[test]
fn broken_programs_are_faults_with_their_words() {
    let root = tempfile::tempdir().unwrap();
    let lib = "error while loading shared libraries: libnvinfer.so.8: cannot open shared object file";
    let cases = [
        ("missing", format!("echo 'trtexec: {lib}' >&2; exit 127"), "exit code 127", "LD_LIBRARY_PATH"),
        (
            "cuda",
            "echo 'Cuda failure: no CUDA-capable device is detected'; kill -ABRT $$".into(),
            "SIGABRT",
            "nvidia-smi",
        ),
        ("other", "echo hello".into(), "does not name its version", "by hand"),
        ("failing", format!("{}\nexit 1", answering("100300", "")), "exit code 1", "by hand"),
        ("ancient", answering("8201", "  --onnx=<file>\\n"), "8.2.1, older than 8.4", "8.4 or newer"),
        (
            "flood",
            "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done".into(),
            "did not answer",
            "by hand",
        ),
    ];
    for (name, script, said, hint) in cases {
        let trtexec = program(&root.path().join(name), &script);
        let found = Discovery::new(only(&[&trtexec]), None).findings();
        assert_eq!(found.installations, [], "{name}");
        let fault = &found.faults[0];
        assert!(fault.problem.to_string().contains(said), "{name}: {}", fault.problem);
        assert!(fault.hint().contains(hint), "{name}: {}", fault.hint());
        assert!(fault.printed.len() <= 4096, "{name}");
    }
    let text = root.path().join("text");
    fs::write(&text, "no program").unwrap();
    let found = Discovery::new(only(&[&text, &root.path().join("absent")]), None).findings();
    assert!(matches!(found.faults[..], [Fault { problem: Problem::Start { .. }, .. }]), "{found:?}");
}

#[test]
fn the_tool_of_the_other_product_is_not_offered() {
    let root = tempfile::tempdir().unwrap();
    let trtexec = program(&root.path().join("rtx"), &answering("10701", "  --onnx=<file>"));
    let found = Discovery::new(only(&[&trtexec]), None).findings();
    assert_eq!(found.installations, []);
    assert_eq!(found.faults[0].problem, Problem::Rtx { version: "1.7.1".into() });
    assert!(found.faults[0].hint().contains("PLANFORGE_TRTEXEC"), "{}", found.faults[0].hint());
}

#[test]
fn an_archives_libraries_are_put_before_the_programs_own() {
    let root = tempfile::tempdir().unwrap();
    let home = root.path().join("TensorRT-10.3.0.26");
    fs::create_dir_all(home.join("lib")).unwrap();
    fs::write(home.join("lib/libnvinfer.so.10"), "").unwrap();
    let script = format!(
        "case \"$LD_LIBRARY_PATH\" in *TensorRT-10.3.0.26/lib*) ;; *) exit 9;; esac\n{}",
        answering("100300", "")
    );
    program(&home.join("bin"), &script);
    let places = Places { parents: vec![root.path().to_owned()], ..Places::default() };
    let found = Discovery::new(places, None).findings();
    assert_eq!(found.faults, []);
    assert_eq!(found.installations[0].library_path, [home.canonicalize().unwrap().join("lib")]);
}
