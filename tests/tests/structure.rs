//! Who may reach whom among the crates, held to what cargo would build.
//!
//! ARCHITECTURE.md says it in words; a dependency that creeps in fails here, with the way it came.

use std::{collections::BTreeSet, path::Path, process::Command};

/// Most packages from outside that building the binary compiles, build scripts' and macros' included.
const OUTSIDE_PACKAGES_MAX: usize = 280;

/// Every package that building `package` compiles, itself included, tests and build scripts left out.
fn reached(package: &str) -> BTreeSet<String> {
    over_edges(package, "normal")
}

fn over_edges(package: &str, edges: &str) -> BTreeSet<String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--edges", edges, "--prefix", "none", "--format", "{p}", "--package", package])
        .arg("--manifest-path")
        .arg(workspace)
        .output()
        .expect("cargo runs");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{package}: {}", String::from_utf8_lossy(&output.stderr));
    let names: BTreeSet<String> = told.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    assert!(names.contains(package) && names.len() > 1, "{package}: {told}");
    names
}

fn reaches_none(package: &str, forbidden: &[&str]) {
    let reached = reached(package);
    let found: Vec<&&str> = forbidden.iter().filter(|name| reached.contains(**name)).collect();
    assert!(
        found.is_empty(),
        "{package} reaches {found:?}, which it must not know; see: cargo tree -e normal -p {package} -i {}",
        found[0]
    );
}

/// What finds devices, compiles or runs engines.
const COMPILERS: [&str; 10] = [
    "planforge-import",
    "planforge-backend",
    "planforge-cpu",
    "planforge-cuda",
    "planforge-tensorrt",
    "planforge-onnxruntime",
    "planforge-kernels-cpu",
    "planforge-kernels-cuda",
    "planforge-device",
    "cudarc",
];

#[test]
fn the_client_knows_neither_devices_nor_compilers_nor_tables() {
    reaches_none("planforge-client", &[&COMPILERS[..], &["nvml-wrapper", "comfy-table", "planforge-report"]].concat());
}

#[test]
fn the_coordinator_reaches_no_compiler() {
    reaches_none("planforge-coordinator", &[&COMPILERS[..], &["nvml-wrapper", "libloading"]].concat());
}

#[test]
fn tables_are_drawn_by_the_command_line_alone() {
    for package in ["planforge-report", "planforge-coordinator", "planforge-agent"] {
        reaches_none(package, &["comfy-table"]);
    }
}

#[test]
fn the_binary_is_made_of_a_bounded_number_of_packages() {
    let all = over_edges("planforge", "normal,build");
    let outside: Vec<_> = all.iter().filter(|name| !name.starts_with("planforge")).collect();
    assert!(
        outside.len() <= OUTSIDE_PACKAGES_MAX,
        "{} packages from outside, more than {OUTSIDE_PACKAGES_MAX}: leave features out, or say in CHANGELOG.md what \
         the growth is for and raise the bound: {outside:?}",
        outside.len()
    );
}

#[test]
fn shared_words_know_nothing_of_who_uses_them() {
    let ours = |package: &str| {
        let reached = reached(package);
        reached.into_iter().filter(|name| name.starts_with("planforge")).collect::<Vec<_>>()
    };
    assert_eq!(ours("planforge-types"), ["planforge-types"]);
    assert_eq!(ours("planforge-stats"), ["planforge-stats"]);
    assert_eq!(ours("planforge-kernels-cpu"), ["planforge-kernels-cpu"]);
    assert_eq!(ours("planforge-kernels-cuda"), ["planforge-kernels-cuda"]);
    assert_eq!(ours("planforge-identity"), ["planforge-identity", "planforge-onnx", "planforge-types"]);
    assert_eq!(ours("planforge-report"), ["planforge-report", "planforge-stats", "planforge-types"]);
    assert_eq!(ours("planforge-device"), ["planforge-device", "planforge-types"]);
}
