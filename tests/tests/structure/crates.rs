//! The workspace's crates: who uses whom, how long each is, and the table of them in ARCHITECTURE.md.

use crate::modules::Uses;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// No crate is longer than this share of all of them.
const LARGEST_SHARE: f64 = 0.15;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
pub struct Package {
    pub name: String,
    manifest_path: PathBuf,
    description: Option<String>,
    dependencies: Vec<Dependency>,
    metadata: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    path: Option<PathBuf>,
    /// `dev` and `build`; none for what the crate itself uses.
    kind: Option<String>,
}

impl Package {
    pub fn folder(&self) -> &Path {
        self.manifest_path.parent().expect("a manifest lies in a folder")
    }

    /// Other crates of the workspace that it names, those of its tests among them where they are asked for.
    fn uses(&self, tests_too: bool) -> BTreeSet<&str> {
        let own = self.dependencies.iter().filter(|dependency| dependency.path.is_some());
        own.filter(|dependency| tests_too || dependency.kind.is_none())
            .map(|dependency| dependency.name.as_str())
            .collect()
    }

    fn must_not_know(&self) -> Option<&str> {
        self.metadata.as_ref()?.get("planforge")?.get("must-not-know")?.as_str()
    }

    /// Lines of its sources.
    fn lines(&self) -> usize {
        rust_files(&self.folder().join("src")).iter().map(|file| read(file).lines().count()).sum()
    }
}

pub fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a folder's entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

fn cargo(arguments: &[&str]) -> Vec<u8> {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo).args(arguments).current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

pub fn packages() -> Vec<Package> {
    let told = cargo(&["metadata", "--locked", "--no-deps", "--format-version", "1"]);
    let metadata: Metadata = serde_json::from_slice(&told).expect("cargo's metadata");
    assert!(metadata.packages.len() > 20, "{} packages", metadata.packages.len());
    metadata.packages
}

#[test]
fn no_crate_leads_back_to_itself() {
    let packages = packages();
    let uses: BTreeMap<&str, BTreeSet<&str>> =
        packages.iter().map(|package| (package.name.as_str(), package.uses(true))).collect();
    for &start in uses.keys() {
        let mut reached = BTreeSet::new();
        let mut queue = vec![start];
        while let Some(name) = queue.pop() {
            for &next in uses.get(name).into_iter().flatten() {
                assert_ne!(next, start, "{start} leads back to itself by way of {name}");
                if reached.insert(next) {
                    queue.push(next);
                }
            }
        }
    }
}

#[test]
fn no_module_leads_back_to_itself() {
    let circles = packages().into_iter().filter_map(|package| {
        let circle = Uses::of(&package.folder().join("src")).circle()?;
        Some(format!("{}: {circle}", package.name).replace(&format!("{}/", root().display()), ""))
    });
    let circles: Vec<String> = circles.collect();
    assert!(circles.is_empty(), "modules in a circle:\n{}", circles.join("\n"));
}

#[test]
fn no_crate_is_a_large_part_of_all() {
    let lengths: BTreeMap<String, usize> = packages().iter().map(|p| (p.name.clone(), p.lines())).collect();
    let all: usize = lengths.values().sum();
    for (name, &lines) in &lengths {
        let share = lines as f64 / all as f64;
        println!("{lines:>7} lines  {:>4.1} %  {name}", share * 100.0);
        assert!(share <= LARGEST_SHARE, "{name} is {lines} of {all} lines: part it");
    }
}

/// Begins and ends the table in ARCHITECTURE.md.
const BEGIN: &str =
    "<!-- crates: written by PLANFORGE_BLESS=1 cargo nextest run -p planforge-tests the_table_of_crates -->\n";
const END: &str = "<!-- /crates -->\n";

#[test]
fn the_table_of_crates_is_what_their_manifests_say() {
    let root = root();
    let mut table = String::from("| folder | crate | for | must not know | uses |\n|---|---|---|---|---|\n");
    for package in packages() {
        let description = package.description.as_deref().unwrap_or_else(|| panic!("{} is for nothing", package.name));
        let must_not_know = package.must_not_know().unwrap_or("–");
        let short = |name: &str| name.trim_start_matches("planforge-").to_owned();
        let uses: Vec<String> = package.uses(false).into_iter().map(short).collect();
        let folder = package.folder().strip_prefix(&root).expect("a folder of the workspace").display().to_string();
        let name = &package.name;
        table += &format!(
            "| `{folder}/` | `{name}` | {description} | {must_not_know} | {} |\n",
            if uses.is_empty() { "–".into() } else { uses.join(", ") }
        );
    }
    println!("{table}");
    let path = root.join("ARCHITECTURE.md");
    let page = read(&path);
    let (before, rest) = page.split_once(BEGIN).expect("ARCHITECTURE.md says where its table of crates begins");
    let (shown, after) = rest.split_once(END).expect("ARCHITECTURE.md says where its table of crates ends");
    if env::var_os("PLANFORGE_BLESS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).expect("ARCHITECTURE.md is written");
    } else {
        assert!(shown == table, "ARCHITECTURE.md shows another table of crates; PLANFORGE_BLESS=1 writes it anew");
    }
}

/// Most packages from outside that building the binary compiles, build scripts' and macros' included.
const OUTSIDE_PACKAGES_MAX: usize = 280;

/// Every package that building `package` compiles, itself included, tests and build scripts left out.
fn reached(package: &str) -> BTreeSet<String> {
    over_edges(package, "normal")
}

fn over_edges(package: &str, edges: &str) -> BTreeSet<String> {
    let told =
        cargo(&["tree", "--locked", "--edges", edges, "--prefix", "none", "--format", "{p}", "--package", package]);
    let told = String::from_utf8_lossy(&told);
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
const COMPILERS: [&str; 11] = [
    "planforge-import",
    "planforge-backend",
    "planforge-worker",
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
    reaches_none("planforge-client", &[&COMPILERS[..], &["libloading", "comfy-table", "planforge-report"]].concat());
}

#[test]
fn the_coordinator_reaches_no_compiler() {
    reaches_none("planforge-coordinator", &[&COMPILERS[..], &["libloading", "comfy-table"]].concat());
}

#[test]
fn the_worker_knows_no_backend_by_name() {
    let backends = ["cpu", "cuda", "tensorrt", "onnxruntime", "kernels-cpu", "kernels-cuda"];
    reaches_none("planforge-worker", &backends.map(|name| format!("planforge-{name}")).each_ref().map(String::as_str));
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
    println!("{} packages from outside", outside.len());
    assert!(
        outside.len() <= OUTSIDE_PACKAGES_MAX,
        "{} packages from outside, more than {OUTSIDE_PACKAGES_MAX}: leave features out, or say in CHANGELOG.md what \
         the growth is for and raise the bound: {outside:?}",
        outside.len()
    );
}

#[test]
fn shared_words_know_nothing_of_who_uses_them() {
    for (package, uses) in [
        ("types", &[][..]),
        ("stats", &[]),
        ("kernels-cpu", &["types"]),
        ("kernels-cuda", &["types"]),
        ("plan", &["types"]),
        ("device", &["types"]),
        ("identity", &["onnx", "types"]),
        ("report", &["stats", "types"]),
        ("graph", &["types"]),
        ("import", &["graph", "onnx", "types"]),
        ("backend", &["report", "stats", "types"]),
    ] {
        let name = format!("planforge-{package}");
        let reached = reached(&name);
        let ours: Vec<&str> = reached
            .iter()
            .filter(|other| **other != name)
            .filter_map(|other| other.strip_prefix("planforge-"))
            .collect();
        assert_eq!(ours, uses, "{name}");
    }
}

/// Where a process's own standard output or error is used, and why. All else goes through the printer, which escapes.
const WRITERS: [(&str, &str); 5] = [
    ("cli/src/printer.rs", "the printer"),
    ("cli/src/telemetry.rs", "log lines, whose fields are escaped"),
    ("cli/src/commands/login.rs", "reads a secret without an echo"),
    ("cli/src/compile_kernels.rs", "machine code for the worker that asked"),
    ("agent/src/worker/mod.rs", "log lines and the worker's events"),
];

/// Whether `line` reaches for one of the process's streams, hands them to another process or draws over them. Of methods
/// that are called `stdout` and `stderr`, those of a command are meant for the other process.
fn writes(line: &str) -> bool {
    let calls = |name: &str| {
        line.match_indices(name).any(|(at, _)| {
            !line[..at].ends_with(|before: char| before == '.' || before == '_' || before.is_alphanumeric())
        })
    };
    ["stdout()", "stderr()", "io::stdout", "io::stderr", "stdio::stdout", "stdio::stderr"].into_iter().any(calls)
        || ["Stdio::inherit", "indicatif::", "console::Term", "Cli::parse()", "/dev/tty"]
            .iter()
            .any(|word| line.contains(word))
}

#[test]
fn only_the_printer_writes_to_the_terminal() {
    let mut found = BTreeSet::new();
    let mut others = Vec::new();
    for package in &packages() {
        // Stand-ins for tools, and what says that a test is skipped.
        if ["planforge-tests", "planforge-skipped"].contains(&package.name.as_str()) {
            continue;
        }
        for file in rust_files(&package.folder().join("src")) {
            let name = file.strip_prefix(root()).expect("a file of the workspace").display().to_string();
            for line in read(&file).lines().filter(|line| !line.trim_start().starts_with("//") && writes(line)) {
                match WRITERS.iter().find(|(writer, _)| *writer == name) {
                    Some((writer, _)) => drop(found.insert(*writer)),
                    None => others.push(format!("{name}: {}", line.trim())),
                }
            }
        }
    }
    assert!(others.is_empty(), "use the printer, which escapes what comes from outside:\n{}", others.join("\n"));
    assert_eq!(found.len(), WRITERS.len(), "some of {WRITERS:?} write no more: {found:?}");
}

#[test]
fn a_line_that_writes_is_told_from_one_that_starts_a_process() {
    for line in ["let mut out = io::stdout().lock();", "writeln!(std::io::stderr(), \"\")", ".with_writer(io::stderr)"]
    {
        assert!(writes(line), "{line}");
    }
    for line in [".stdout(Stdio::piped())", "let out = child.stdout.take();", "fn take_stdout() {", ".stderr(file)"] {
        assert!(!writes(line), "{line}");
    }
}
