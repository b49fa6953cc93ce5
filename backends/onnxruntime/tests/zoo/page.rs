//! `docs/models.md`: what became of each model, between two marks.

use crate::{
    drawn::{self, Entry},
    run::Outcome,
};
use std::{collections::BTreeMap, fs, path::PathBuf};

const BEGIN: &str = "<!-- found by the zoo's test: begin -->";
const END: &str = "<!-- found by the zoo's test: end -->";

/// What a row says where nothing was measured.
const NOT_MEASURED: &str = "not measured";

fn path() -> PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md")
}

/// The rows of the page by title: what each says in its column of results.
pub fn known() -> BTreeMap<String, String> {
    let page = fs::read_to_string(path()).unwrap_or_default();
    let rows = page.lines().filter(|line| line.starts_with("| ") && line.matches(" | ").count() >= 6);
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        Some((format!("{}.{}", cells.first()?, exporter(cells.get(2)?)), (*cells.get(5)?).to_owned()))
    };
    rows.filter_map(row).collect()
}

fn exporter(word: &str) -> &'static str {
    match word {
        "dynamo" => "dynamo",
        _ => "ts",
    }
}

/// The word for what became of a model.
fn word(outcome: &Outcome) -> &'static str {
    match (&outcome.refused, &outcome.wrong, &outcome.peer_refused) {
        (Some(_), ..) => "refused",
        (_, Some(_), _) => "wrong",
        (.., Some(_)) => "built, not compared",
        _ => "right",
    }
}

/// Whether what the page says of a model is what became of it.
pub fn agrees(known: &BTreeMap<String, String>, outcome: &Outcome) -> bool {
    known.get(&outcome.title).is_some_and(|said| said == word(outcome))
}

fn ratio(outcome: &Outcome, threads: u32) -> String {
    match outcome.times_ms.get(&threads) {
        Some([own, peer]) if *peer > 0.0 => format!("{:.2}", own / peer),
        _ => NOT_MEASURED.into(),
    }
}

fn row(entry: &Entry, outcome: &Outcome) -> String {
    let shapes = if entry.dynamic { "open" } else { "fixed" };
    let exporter = if entry.exporter == "ts" { "TorchScript" } else { "dynamo" };
    let mut why: Vec<String> =
        [&outcome.refused, &outcome.wrong, &outcome.peer_refused].into_iter().flatten().cloned().collect();
    if outcome.others_of_ties > 0 {
        why.push(format!("{} of its boxes another of a tie", outcome.others_of_ties));
    }
    if outcome.behind > 0 {
        why.push(format!("{} nodes of sizes that data decides", outcome.behind));
    }
    if outcome.reference_share > 0.05 {
        why.push(format!(
            "{:.0} % of its time by reference: {}",
            outcome.reference_share * 100.0,
            outcome.reference_kinds.join(", ")
        ));
    }
    format!(
        "| {} | {} | {exporter} | {} | {shapes} | {} | {} | {} | {} |",
        entry.name,
        entry.library,
        entry.opset,
        word(outcome),
        ratio(outcome, 1),
        ratio(outcome, 2),
        why.join("; ").replace('|', "\\|"),
    )
}

/// Writes the page's table anew; models that were not run are left out, so all have to be.
pub fn write(outcomes: &[Outcome]) {
    let page = fs::read_to_string(path()).expect("the page is there");
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the table");
    let (_, after) = rest.split_once(END).expect("the page has a place for the table");
    let entries: BTreeMap<String, Entry> = drawn::entries().into_iter().map(|entry| (entry.title(), entry)).collect();
    let count = |of: &str| outcomes.iter().filter(|outcome| word(outcome) == of).count();
    let names: std::collections::BTreeSet<&str> =
        outcomes.iter().filter_map(|outcome| entries.get(&outcome.title)).map(|entry| entry.name.as_str()).collect();
    let mut table = format!(
        "{} files of {} architectures: {} right, {} refused, {} wrong, {} built and not compared.\n\n",
        outcomes.len(),
        names.len(),
        count("right"),
        count("refused"),
        count("wrong"),
        count("built, not compared"),
    );
    table.push_str(
        "| model | library | exporter | opset | shapes | outputs | × ONNX Runtime, 1 thread | 2 threads | remarks |\n",
    );
    table.push_str("|---|---|---|---:|---|---|---|---|---|\n");
    for outcome in outcomes {
        if let Some(entry) = entries.get(&outcome.title) {
            table.push_str(&row(entry, outcome));
            table.push('\n');
        }
    }
    fs::write(path(), format!("{before}{BEGIN}\n\n{table}\n{END}{after}")).expect("the page is written");
}
