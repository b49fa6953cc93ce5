//! README.md is typed by people as it stands: its commands, in a home that has nothing of Planforge but the wheel.

use planforge_tests::{
    process::planforge,
    release::{pack, python, ran, root, stripped},
};
use std::{fs, path::Path, process::Command};

/// What commands of this machine are found in, beside the wheel's.
const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

fn copy(from: &Path, to: &Path) {
    ran(Command::new("cp").arg("-r").arg(from).arg(to));
}

#[test]
fn every_tried_command_of_the_readme_does_what_is_printed() {
    let work = tempfile::tempdir().unwrap();
    let (here, home) = (work.path().join("here"), work.path().join("home"));
    fs::create_dir_all(&here).unwrap();
    fs::create_dir_all(&home).unwrap();
    let sbom = work.path().join("sbom.json");
    fs::write(&sbom, "{}\n").unwrap();
    ran(&mut pack(&stripped(work.path(), planforge()), &here, "1700000000", &sbom));
    copy(&root().join("examples"), &here);

    let mut readme = Command::new("python3");
    readme.arg("-B").arg(root().join("deploy/release/readme.py")).current_dir(&here).env_clear();
    readme.env("HOME", &home).env("PATH", SYSTEM_PATH).env("PIP_NO_INDEX", "1");
    if std::env::var_os("PLANFORGE_BLESS").is_some() {
        readme.arg("--write");
    }
    let told = ran(&mut readme);
    assert!(told.contains("do what README.md says"), "{told}");
}

#[test]
fn a_readme_that_promises_something_else_is_told() {
    let work = tempfile::tempdir().unwrap();
    let script = root().join("deploy/release/readme.py");
    let tell = |page: &str| {
        let file = work.path().join("README.md");
        fs::write(&file, page).unwrap();
        let output = python(&[]).arg(&script).arg("--readme").arg(&file).current_dir(work.path()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let good = "# x\n\n```console tried\n$ echo 1.25 ms\n3.5 ms\n```\n\n```sh tried\ntrue\nfalse   # exit code 1: as it is\n```\n";
    assert_eq!(tell(good), (true, String::new()));
    for (bad, why) in [
        ("```sh tried\nfalse\n```\n", "`false` ended with exit code 1"),
        ("```sh tried\nfalse   # exit code 3: not so\n```\n", "ended with exit code 1"),
        ("```console tried\n$ echo 3.5 ms\n3.5 us and more\n```\n", "does not print what README.md says"),
        ("```console tried\n$ true\n3.5 us\n```\n", "does not print what README.md says"),
        ("```sh tried\nexit 0\n```\n", "ended the shell"),
        ("```sh\ntrue\n```\n", "nothing was tried"),
    ] {
        let (passed, said) = tell(bad);
        assert!(!passed && said.contains(why) && !said.contains("Traceback"), "{bad}: {said}");
    }
}
