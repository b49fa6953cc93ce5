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

/// The page's rows, as cells by title.
pub type Rows = BTreeMap<String, Vec<String>>;

/// Which cell says what became of a model, and which what times it took.
const OUTPUTS: usize = 5;
const TIMES: std::ops::RangeInclusive<usize> = 6..=7;

/// The rows of the page as it is.
pub fn known() -> Rows {
    let page = fs::read_to_string(path()).unwrap_or_default();
    let rows = page.lines().filter(|line| line.starts_with("| ") && line.matches(" | ").count() >= 6);
    let row = |line: &str| {
        let inner = line.strip_prefix('|')?.strip_suffix('|')?;
        let cells: Vec<String> = inner.split(" | ").map(|cell| cell.trim().to_owned()).collect();
        Some((format!("{}.{}", cells.first()?, exporter(cells.get(2)?)), cells))
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
pub fn agrees(known: &Rows, outcome: &Outcome) -> bool {
    known.get(&outcome.title).and_then(|cells| cells.get(OUTPUTS)).is_some_and(|said| said == word(outcome))
}

fn ratio(outcome: &Outcome, threads: u32) -> String {
    match outcome.times_ms.get(&threads) {
        Some([own, peer]) if *peer > 0.0 => format!("{:.2}", own / peer),
        _ => NOT_MEASURED.into(),
    }
}

/// The cells of a model that was run. Where it was not timed, `known` may say what it took.
fn row(entry: &Entry, outcome: &Outcome, known: Option<&Vec<String>>) -> Vec<String> {
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
    let why = why.join("; ").replace('|', "\\|");
    let opset = entry.opset.to_string();
    let (times, outputs) = ([ratio(outcome, 1), ratio(outcome, 2)], word(outcome));
    let mut cells: Vec<String> =
        [&entry.name, &entry.library, exporter, &opset, shapes, outputs, &times[0], &times[1], &why]
            .map(str::to_owned)
            .to_vec();
    let earlier =
        known.filter(|_| outcome.times_ms.is_empty() && outputs == "right").and_then(|cells| cells.get(TIMES));
    if let Some(earlier) = earlier {
        cells[TIMES].clone_from_slice(earlier);
    }
    cells
}

/// Writes the page's table anew; what it says of models that were not run stays, and so do times where none were taken.
pub fn write(outcomes: &[Outcome]) {
    let page = fs::read_to_string(path()).expect("the page is there");
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the table");
    let (_, after) = rest.split_once(END).expect("the page has a place for the table");
    let known = known();
    let found: BTreeMap<&str, &Outcome> = outcomes.iter().map(|outcome| (outcome.title.as_str(), outcome)).collect();
    let entries = drawn::entries();
    let rows: Vec<Vec<String>> = entries
        .iter()
        .filter_map(|entry| {
            let known = known.get(&entry.title());
            found.get(entry.title().as_str()).map(|outcome| row(entry, outcome, known)).or_else(|| known.cloned())
        })
        .collect();
    let count = |of: &str| rows.iter().filter(|cells| cells[OUTPUTS] == of).count();
    let names: std::collections::BTreeSet<&str> = rows.iter().map(|cells| cells[0].as_str()).collect();
    let mut table = format!(
        "{} files of {} architectures: {} right, {} refused, {} wrong, {} built and not compared.\n\n",
        rows.len(),
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
    for cells in rows {
        table.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    fs::write(path(), format!("{before}{BEGIN}\n\n{table}\n{END}{after}")).expect("the page is written");
}
