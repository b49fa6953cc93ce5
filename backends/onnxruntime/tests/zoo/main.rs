//! The zoo: architectures from the code of several libraries, exported by both of PyTorch's exporters (`tests/zoo`), each
//! built by the native compiler and held against ONNX Runtime.
//!
//! At every push those that are marked fast are run. `PLANFORGE_ZOO` says otherwise: `all`, or names with commas between.
//! `PLANFORGE_WRITE_ZOO=1` writes what was found of them into `docs/models.md`, `PLANFORGE_ZOO_TIMES=1` with times. See
//! `tests/zoo.sh`. `PLANFORGE_ZOO_FILES` names a folder that takes the models' files, for other programs; nothing is run.

#![expect(clippy::print_stdout, reason = "what became of each model, for whoever reads the log")]

mod drawn;
mod finds;
mod page;
mod run;

use drawn::Entry;
use planforge_onnxruntime::OnnxRuntimeCompiler;
use run::Outcome;
use std::{
    collections::BTreeMap,
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
};

/// Largest share of an engine's time that steps by reference may take before the list says so.
const REFERENCE_SHARE_MAX: f64 = 0.05;

/// The models that are asked for.
fn chosen() -> Vec<Entry> {
    let all = drawn::entries();
    match env::var("PLANFORGE_ZOO").ok().filter(|names| !names.is_empty()) {
        None => all.into_iter().filter(|entry| entry.fast).collect(),
        Some(names) if names == "all" => all,
        Some(names) => {
            let names: Vec<&str> = names.split(',').collect();
            all.into_iter()
                .filter(|entry| names.iter().any(|name| *name == entry.name || *name == entry.title()))
                .collect()
        }
    }
}

fn told(outcome: &Outcome) -> String {
    let Outcome { title, refused, wrong, peer_refused, max_error, .. } = outcome;
    let Outcome { others_of_ties, behind, reference_share, reference_kinds, times_ms, .. } = outcome;
    let mut line = match (refused, wrong, peer_refused) {
        (Some(why), ..) => format!("{title}: refused: {why}"),
        (_, Some(why), _) => format!("{title}: WRONG: {why}"),
        (.., Some(why)) => format!("{title}: not compared: {why}"),
        _ => format!("{title}: right, {max_error:.1e}"),
    };
    if *others_of_ties > 0 {
        line.push_str(&format!(", {others_of_ties} others of a tie"));
    }
    if *behind > 0 {
        line.push_str(&format!(", {behind} nodes behind"));
    }
    if *reference_share > REFERENCE_SHARE_MAX {
        line.push_str(&format!(", {:.0} % by reference ({})", reference_share * 100.0, reference_kinds.join(", ")));
    }
    for (threads, [own, peer]) in times_ms {
        line.push_str(&format!(", {threads} threads {own:.2} / {peer:.2} ms"));
    }
    line
}

/// With what earlier runs found of other models, where `PLANFORGE_ZOO_RESULTS` keeps it; by library and title.
fn with_earlier(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let text = env::var_os("PLANFORGE_ZOO_RESULTS").and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let earlier = text.lines().filter_map(|line| serde_json::from_str::<Outcome>(line).ok());
    // The last of a title counts.
    let by_title: BTreeMap<String, Outcome> =
        earlier.chain(outcomes).map(|outcome| (outcome.title.clone(), outcome)).collect();
    drawn::entries().iter().filter_map(|entry| by_title.get(&entry.title()).cloned()).collect()
}

#[test]
fn models_of_the_zoo_are_built_and_right() {
    if let Some(folder) = env::var_os("PLANFORGE_ZOO_FILES").map(PathBuf::from) {
        for entry in chosen() {
            let path = folder.join(format!("{}.onnx", entry.title()));
            drawn::write(&entry, &path).expect("a folder takes files");
            println!("{}", path.display());
        }
        return;
    }
    let runtime = OnnxRuntimeCompiler::of_environment();
    if let Err(error) = runtime.library() {
        let needed = env::var_os("PLANFORGE_TEST_ONNXRUNTIME").is_some_and(|value| value == "required");
        assert!(!needed, "{error} {}", error.hint);
        planforge_skipped::skipped(error);
        return;
    }
    let timed = env::var_os("PLANFORGE_ZOO_TIMES").is_some();
    let known = page::known();
    let results = env::var_os("PLANFORGE_ZOO_RESULTS").map(|path| {
        fs::OpenOptions::new().create(true).append(true).open(Path::new(&path)).expect("a file for results")
    });
    let mut outcomes = Vec::new();
    for entry in chosen() {
        let outcome = run::entry(&entry, timed);
        println!("{}", told(&outcome));
        if let Some(mut results) = results.as_ref() {
            let line = serde_json::to_string(&outcome).expect("an outcome is JSON");
            writeln!(results, "{line}").expect("a result is written");
        }
        outcomes.push(outcome);
    }
    if env::var_os("PLANFORGE_WRITE_ZOO").is_some() {
        page::write(&with_earlier(outcomes));
        return;
    }
    // What the page says of a model holds.
    let broken: Vec<String> = outcomes.iter().filter(|outcome| !page::agrees(&known, outcome)).map(told).collect();
    assert!(broken.is_empty(), "docs/models.md says otherwise:\n{}", broken.join("\n"));
}
