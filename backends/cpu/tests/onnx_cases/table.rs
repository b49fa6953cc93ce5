//! The committed table: what passes, and why the rest is refused.

use crate::{
    case::{Case, Failure},
    family::{families, family},
    run::Outcome,
};
use std::{collections::BTreeMap, fmt::Write as _};

const BEGIN: &str = "<!-- found by the conformance test: begin -->";
const END: &str = "<!-- found by the conformance test: end -->";

#[derive(Default)]
struct Count {
    passed: usize,
    constants: usize,
    refused: usize,
}

impl Count {
    fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed { constants } => {
                self.passed += 1;
                self.constants += usize::from(*constants);
            }
            Outcome::Refused { .. } => self.refused += 1,
            Outcome::Wrong(_) => {}
        }
    }

    fn cells(&self) -> String {
        format!("{} | {} | {}", self.passed, self.constants, self.refused)
    }
}

/// Two tables as Markdown.
pub fn render(outcomes: &[(&Case, Outcome)]) -> String {
    let mut by_family: BTreeMap<&str, (Count, Count)> = BTreeMap::new();
    let mut total = (Count::default(), Count::default());
    for (case, outcome) in outcomes {
        let (filtered, all) = by_family.entry(family(case)).or_default();
        all.add(outcome);
        total.1.add(outcome);
        if case.in_filter() {
            filtered.add(outcome);
            total.0.add(outcome);
        }
    }
    let mut text = String::new();
    let head = "| family | filter: passed | with constants | refused | all: passed | with constants | refused |";
    let _ = writeln!(text, "{head}\n|---|---:|---:|---:|---:|---:|---:|");
    for family in families() {
        if let Some((filtered, all)) = by_family.get(family) {
            let _ = writeln!(text, "| {family} | {} | {} |", filtered.cells(), all.cells());
        }
    }
    let _ = writeln!(text, "| **all** | {} | {} |", total.0.cells(), total.1.cells());
    let mut reasons: BTreeMap<(&str, &str), BTreeMap<&str, usize>> = BTreeMap::new();
    for (case, outcome) in outcomes {
        if let Outcome::Refused { reason, .. } = outcome {
            let scope = if case.in_filter() { "filter" } else { "rest" };
            *reasons.entry((scope, reason)).or_default().entry(family(case)).or_default() += 1;
        }
    }
    let _ = writeln!(text, "\n| refused | why | cases |\n|---|---|---|");
    for ((scope, reason), by_family) in reasons {
        let cases: Vec<String> = by_family.iter().map(|(family, count)| format!("{count} {family}")).collect();
        let _ = writeln!(text, "| {scope} | {} | {} |", reason.replace('|', "/").replace('\n', " "), cases.join(", "));
    }
    text
}

/// The page with its tables replaced.
pub fn replace(page: &str, found: &str) -> Result<String, Failure> {
    let missing = "docs/conformance.md has lost the marks around its tables";
    let (head, rest) = page.split_once(BEGIN).ok_or(missing)?;
    let (_, tail) = rest.split_once(END).ok_or(missing)?;
    Ok(format!("{head}{BEGIN}\n\n{found}\n{END}{tail}"))
}
