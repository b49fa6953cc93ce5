//! What the manifests ask for is used, and tests that leave something out are counted.

use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace has a folder")
}

/// The packages of a workspace, as cargo reads its manifests.
fn packages(manifest: &Path) -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    told["packages"].as_array().expect("a list of packages").clone()
}

/// Every Rust source under a folder, without build outputs and packages inside.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there").flatten() {
        let path = entry.path();
        if path.is_dir() {
            if entry.file_name() != "target" && !path.join("Cargo.toml").exists() {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The sources' text, without lines of comment, by whether they are the build script.
fn texts(folder: &Path) -> [String; 2] {
    let mut found = Vec::new();
    sources(folder, &mut found);
    let mut texts = [String::new(), String::new()];
    for path in found {
        let text = fs::read_to_string(&path).expect("sources are text");
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        texts[usize::from(path == folder.join("build.rs"))].extend(lines.flat_map(|line| [line, "\n"]));
    }
    texts
}

/// Whether code names a crate: at the head of a path, or where it is brought in.
fn names(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        let brought_in = ["use ", "extern crate ", "use ::"].iter().any(|word| before.ends_with(word));
        let at_head = !before.ends_with(is_word) && (!before.ends_with("::") || before.ends_with(" ::"));
        (at_head && after.starts_with("::")) || (brought_in && !after.starts_with(is_word))
    })
}

/// Dependencies that no source of their package names; `package.metadata.unnamed-dependencies` lists those that are
/// there for their features, or are named by generated code.
fn unused(manifest: &Path) -> Vec<String> {
    let mut unused = Vec::new();
    for package in packages(manifest) {
        let folder =
            Path::new(package["manifest_path"].as_str().expect("a path")).parent().expect("a folder").to_owned();
        let [code, build] = texts(&folder);
        let unnamed = package["metadata"]["unnamed-dependencies"].as_array().cloned().unwrap_or_default();
        for dependency in package["dependencies"].as_array().expect("a list") {
            let name = dependency["rename"].as_str().or(dependency["name"].as_str()).expect("a name");
            let text = if dependency["kind"] == "build" { &build } else { &code };
            let is_named = names(text, &name.replace('-', "_"));
            let is_listed = unnamed.iter().any(|listed| listed == name);
            if is_named == is_listed {
                let what = if is_listed { "is listed as unnamed, and named" } else { "is named by no source" };
                unused.push(format!("{}: {name} {what}", package["name"].as_str().unwrap_or_default()));
            }
        }
    }
    unused
}

#[test]
fn every_dependency_is_used() {
    let root = root();
    assert_eq!(unused(&root.join("Cargo.toml")), [""; 0], "drop them, or list them in package.metadata");
    assert_eq!(unused(&root.join("fuzz/Cargo.toml")), [""; 0], "drop them, or list them in package.metadata");
}

#[test]
fn every_shared_version_is_asked_for() {
    let text = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    let shared = text.split("[workspace.dependencies]").nth(1).expect("shared versions");
    let shared = shared.split("\n[").next().unwrap_or_default().lines();
    let shared: BTreeSet<&str> =
        shared.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.trim()).collect();
    assert!(shared.len() > 20, "{shared:?}");
    let asked: Vec<Value> = packages(&root().join("Cargo.toml"));
    let asked: BTreeSet<&str> = asked
        .iter()
        .flat_map(|package| package["dependencies"].as_array().expect("a list"))
        .filter_map(|dependency| dependency["rename"].as_str().or(dependency["name"].as_str()))
        .collect();
    let idle: Vec<_> = shared.difference(&asked).collect();
    assert!(idle.is_empty(), "no package asks for {idle:?}");
}

#[test]
fn crates_are_found_where_code_names_them() {
    for text in
        ["use bytes::Bytes;", "let x: ::bytes::Bytes;", "(bytes::Bytes::new)", "use bytes;", "extern crate bytes;"]
    {
        assert!(names(text, "bytes"), "{text}");
    }
    for text in ["let bytes = 1;", "crate::bytes::read()", "use bytes_more::X;", "megabytes::X", "use crate::bytes;"] {
        assert!(!names(text, "bytes"), "{text}");
    }
}

/// What a test leaves out is recorded by `planforge_skipped::skipped` alone, which `test.sh` counts.
#[test]
fn no_test_skips_unseen() {
    let mut found = Vec::new();
    for package in packages(&root().join("Cargo.toml")) {
        let manifest = PathBuf::from(package["manifest_path"].as_str().expect("a path"));
        if package["name"] != "planforge-skipped" {
            sources(manifest.parent().expect("a folder"), &mut found);
        }
    }
    let own = Path::new(file!()).file_name();
    assert!(found.len() > 100, "{} sources", found.len());
    for path in found.iter().filter(|path| path.file_name() != own) {
        let text = fs::read_to_string(path).expect("sources are text");
        let by_hand =
            text.lines().find(|line| line.contains("println!(\"SKIPPED") || line.contains("println!(\"skipped"));
        assert_eq!(by_hand, None, "{} says so by itself: call planforge_skipped::skipped", path.display());
    }
}
