//! Release packages: the same bytes from the same binary, and each installs what it says.

use planforge_tests::{
    process::planforge,
    release::{pack, python, ran, root, stripped},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

fn named<'a>(packed: &'a BTreeMap<String, Vec<u8>>, end: &str) -> &'a str {
    packed.keys().find(|name| name.ends_with(end)).unwrap_or_else(|| panic!("no {end} in {:?}", packed.keys()))
}

#[test]
fn packages_are_the_same_bytes_and_each_installs_a_command_that_runs() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    let binary = stripped(work, planforge());
    let sbom = work.join("sbom.json");
    fs::write(&sbom, "{}\n").unwrap();
    let (one, two) = (work.join("one"), work.join("two"));
    for out in [&one, &two] {
        ran(&mut pack(&binary, out, "1700000000", &sbom));
    }
    let packed = files(&one);
    assert!(packed == files(&two), "two runs differ");
    ran(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&one));
    assert_eq!(packed.len(), 5, "{:?}", packed.keys());

    let version = ran(Command::new(&binary).arg("--version"));
    let says_so = |path: &Path| assert_eq!(ran(Command::new(path).arg("--version")), version, "{}", path.display());
    let manual = |prefix: &Path| {
        let page = prefix.join("share/man/man1/planforge-build.1.gz");
        let text = ran(Command::new("gzip").arg("-dc").arg(&page));
        assert!(text.contains(".TH") && text.contains("\\-\\-precision"), "{text}");
        let complete = fs::read_to_string(prefix.join("share/bash-completion/completions/planforge")).unwrap();
        assert!(complete.contains("testmodel"));
    };

    let unpacked = work.join("tar");
    fs::create_dir(&unpacked).unwrap();
    let tarball = named(&packed, ".tar.gz");
    ran(Command::new("tar").arg("-xzf").arg(one.join(tarball)).arg("-C").arg(&unpacked));
    let prefix = unpacked.join(tarball.strip_suffix(".tar.gz").unwrap());
    says_so(&prefix.join("bin/planforge"));
    manual(&prefix);
    assert!(prefix.join("LICENSE").is_file());

    let installed = work.join("deb");
    let package = one.join(named(&packed, ".deb"));
    ran(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&installed));
    says_so(&installed.join("usr/bin/planforge"));
    manual(&installed.join("usr"));
    for file in ["systemd/system/planforge-coordinator.service", "systemd/system/planforge-agent.service"] {
        assert!(installed.join("usr/lib").join(file).is_file(), "{file}");
    }
    let control = work.join("control");
    ran(Command::new("dpkg-deb").arg("--control").arg(&package).arg(&control));
    // Without systemd there is nothing to do, and nothing fails.
    for (script, word) in [("postinst", "configure"), ("postrm", "remove")] {
        ran(Command::new(control.join(script)).arg(word).env("PATH", "/nowhere"));
    }
    let fields = ran(Command::new("dpkg-deb").arg("--field").arg(&package));
    assert!(fields.contains("Package: planforge") && fields.contains("Depends: libc6 (>= 2."), "{fields}");

    // pip unpacks a wheel as it would install it; nothing is fetched.
    let venv = root().join("target/onnx-venv/bin/python3");
    let pip = if venv.is_file() { venv } else { PathBuf::from("python3") };
    let environment = work.join("venv");
    ran(Command::new(pip).args(["-m", "venv"]).arg(&environment));
    let wheel = one.join(named(&packed, ".whl"));
    let python = environment.join("bin/python3");
    let options = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"];
    ran(Command::new(&python).args(options).arg(&wheel));
    says_so(&environment.join("bin/planforge"));
    manual(&environment);
}

#[test]
fn what_is_no_binary_or_says_no_version_is_refused_by_name() {
    let work = tempfile::tempdir().unwrap();
    let (sbom, text) = (work.path().join("sbom.json"), work.path().join("text"));
    fs::write(&sbom, "{}").unwrap();
    fs::write(&text, "#!/bin/sh\necho planforge 9.9.9\n").unwrap();
    let out = work.path().join("out");
    for (file, reason) in [
        (text.as_path(), "is no 64-bit ELF file"),
        (Path::new("/no/such/file"), "is no file"),
        (Path::new("/bin/true"), "does not say which version of planforge it is"),
    ] {
        let output = pack(file, &out, "0", &sbom).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(reason), "{said}");
        assert!(!said.contains("Traceback"), "{said}");
        assert!(!out.exists(), "nothing half-made stays");
    }
}

#[test]
fn a_program_that_opens_libraries_is_no_small_client() {
    let work = tempfile::tempdir().unwrap();
    let sbom = work.path().join("sbom.json");
    fs::write(&sbom, "{}").unwrap();
    let (whole, out) = (stripped(work.path(), planforge()), work.path().join("out"));
    let output = pack(&whole, &out, "0", &sbom).arg("--client").arg(&whole).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("opens libraries at run time"), "{said}");
    assert!(!out.exists(), "nothing half-made stays");
}

#[test]
fn what_the_binary_is_made_of_is_listed_with_digests_and_licences() {
    let list = || ran(&mut python(&["deploy/release/sbom.py", "--epoch", "0"]));
    let text = list();
    assert_eq!(text, list(), "the same tree gives the same list");
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&told["bomFormat"], &told["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(told["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    let components = told["components"].as_array().unwrap();
    let find = |name: &str| components.iter().find(|entry| entry["name"] == name);
    let scope = |name: &str| find(name).map(|entry| entry["scope"].as_str().unwrap().to_owned());
    assert_eq!(scope("tokio").as_deref(), Some("required"));
    assert_eq!(scope("planforge-coordinator").as_deref(), Some("required"));
    assert_eq!(scope("clap_derive").as_deref(), Some("excluded"), "a macro runs while compiling");
    assert_eq!(scope("insta"), None, "tests are no part of it");
    for entry in components {
        let ours = entry["name"].as_str().unwrap().starts_with("planforge-");
        let digest = entry["hashes"][0]["content"].as_str();
        assert!(ours || digest.is_some_and(|digest| digest.len() == 64), "{entry}");
        assert!(entry["licenses"][0]["expression"].is_string(), "{entry}");
    }
    // Every reference leads somewhere.
    let known: Vec<&str> = components.iter().map(|entry| entry["bom-ref"].as_str().unwrap()).collect();
    for edge in told["dependencies"].as_array().unwrap() {
        for to in edge["dependsOn"].as_array().unwrap() {
            assert!(known.contains(&to.as_str().unwrap()), "{to}");
        }
    }
}
