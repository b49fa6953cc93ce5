//! Manifests and compose files: rendered by `kubectl kustomize`, held to the schemas of Kubernetes and of Compose, and to
//! the flags that the program has.

use planforge_tests::{
    process::planforge,
    release::{ran, root},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A program that `test.sh` brings; nothing, and a word, where it is not.
fn program(path: &str) -> Option<PathBuf> {
    let found = Some(root().join("target").join(path)).filter(|path| path.exists());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "test.sh brings {path}");
        planforge_skipped::skipped(format_args!("{path} is not there: ./test.sh brings it"));
    }
    found
}

fn manifests() -> PathBuf {
    root().join("deploy/kubernetes")
}

fn kustomizations(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(kustomizations(&entry));
        } else if entry.ends_with("kustomization.yaml") {
            found.push(folder.to_owned());
        }
    }
    found.sort();
    found
}

#[test]
fn every_kustomization_renders_to_what_kubernetes_takes() {
    let (Some(kubectl), Some(validate)) =
        (program("kubernetes-client-package/usr/bin/kubectl"), program("onnx-venv/bin/kubernetes-validate"))
    else {
        return;
    };
    let work = tempfile::tempdir().unwrap();
    let check = |text: &str, name: &str| {
        let file = work.path().join(format!("{name}.yaml"));
        fs::write(&file, text).unwrap();
        // What a schema does not know is an error: a field with a typing mistake would be ignored by a cluster.
        Command::new(&validate).arg("--strict").arg(&file).output().unwrap()
    };
    let folders = kustomizations(&manifests());
    assert!(folders.len() >= 9, "{folders:?}");
    let mut rendered = String::new();
    for folder in &folders {
        let name = folder.strip_prefix(manifests()).unwrap().to_string_lossy().replace('/', "-");
        let text = ran(Command::new(&kubectl).arg("kustomize").arg(folder).env("HOME", work.path()));
        let output = check(&text, &name);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stdout));
        rendered += &text;
    }
    // Two kinds of GPU meet in one namespace: neither takes the other's pods for its own.
    for sku in ["t4", "h200"] {
        assert!(rendered.contains(&format!("name: agent-{sku}")), "{sku}");
        assert!(rendered.matches(&format!("planforge.dev/sku: {sku}")).count() >= 3, "labels and selectors of {sku}");
    }
    // A typing mistake is found.
    let base = ran(Command::new(&kubectl).arg("kustomize").arg(manifests().join("base")).env("HOME", work.path()));
    let wrong = base.replace("readOnlyRootFilesystem", "readOnlyRootFileSystem");
    assert_ne!(wrong, base);
    assert!(!check(&wrong, "wrong").status.success());
}

#[test]
fn the_compose_files_are_what_compose_takes() {
    let Some(checker) = program("onnx-venv/bin/check-jsonschema") else { return };
    let check = |file: &Path| {
        let output =
            Command::new(&checker).args(["--builtin-schema", "vendor.compose-spec"]).arg(file).output().unwrap();
        (output.status.success(), format!("{output:?}"))
    };
    let work = tempfile::tempdir().unwrap();
    for name in ["compose.yaml", "compose-several.yaml"] {
        let file = root().join("deploy").join(name);
        let (good, said) = check(&file);
        assert!(good, "{name}: {said}");
        let wrong = work.path().join(name);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&wrong, text.replace("read_only", "readonly")).unwrap();
        assert!(!check(&wrong).0, "{name}: a typing mistake is found");
    }
}

/// The arguments of each coordinator, as files say them: the program takes them, up to what only a cluster has.
#[test]
fn coordinators_are_started_with_flags_that_the_program_knows() {
    let help = ran(Command::new(planforge()).args(["coordinator", "--help"]));
    let files = [
        "compose.yaml",
        "compose-several.yaml",
        "kubernetes/base/coordinator.yaml",
        "kubernetes/several/coordinator.yaml",
    ];
    for file in files {
        let text = fs::read_to_string(root().join("deploy").join(file)).unwrap();
        let text: String =
            text.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        let flags: Vec<&str> = words.filter(|word| word.starts_with("--") && *word != "---").collect();
        assert!(flags.len() >= 3, "{file}: {flags:?}");
        for flag in flags.into_iter().filter(|flag| !["--state", "--drain-s", "--name"].contains(flag)) {
            assert!(help.contains(&format!("{flag} ")) || help.contains(&format!("{flag}\n")), "{file}: {flag}");
        }
    }
}
