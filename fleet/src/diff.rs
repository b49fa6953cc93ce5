//! What changed from one lock to another: cells that came, went, and have another engine, with figures and verdicts.

use crate::{
    Lock, Locked,
    cell::{CellId, spec_difference},
    lock::Headline,
};
use planforge_report::{
    compare::Verdict,
    format::{bytes, milliseconds},
};
use serde::Serialize;
use std::fmt::Write as _;

/// A cell that has another engine than before.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    #[serde(flatten)]
    pub id: CellId,
    /// Why: model, spec, toolchain, or the plan alone.
    pub what: Vec<String>,
    pub old: Locked,
    pub new: Locked,
    /// Of the two engines' own measurements, each change for itself; `None` while nobody looked at them.
    pub verdict: Option<Verdict>,
    /// Of the verdict.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A cell that one of the two locks does not have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    #[serde(flatten)]
    pub id: CellId,
    #[serde(flatten)]
    pub locked: Locked,
}

/// Everything that differs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Diff {
    pub added: Vec<Entry>,
    pub removed: Vec<Entry>,
    pub changed: Vec<Change>,
    /// Cells that are what they were.
    pub unchanged: usize,
}

impl Diff {
    /// What leads from `old` to `new`; without verdicts.
    pub fn of(old: &Lock, new: &Lock) -> Self {
        let mut diff = Self::default();
        let entry = |id: &CellId, locked: &Locked| Entry { id: id.clone(), locked: locked.clone() };
        for (id, now) in &new.cells {
            match old.cells.get(id) {
                None => diff.added.push(entry(id, now)),
                Some(before) if before.plan == now.plan && before.engine_key == now.engine_key => diff.unchanged += 1,
                Some(before) => diff.changed.push(Change {
                    id: id.clone(),
                    what: what_changed(before, now),
                    old: before.clone(),
                    new: now.clone(),
                    verdict: None,
                    reason: String::new(),
                }),
            }
        }
        let gone = old.cells.iter().filter(|(id, _)| !new.cells.contains_key(id));
        diff.removed.extend(gone.map(|(id, locked)| entry(id, locked)));
        diff
    }

    /// Whether the two locks have the same engines.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }

    /// `2 added, 1 removed, 3 changed, 4 unchanged`.
    pub fn summary(&self) -> String {
        let Self { added, removed, changed, unchanged } = self;
        format!("{} added, {} removed, {} changed, {unchanged} unchanged", added.len(), removed.len(), changed.len())
    }

    /// A row for each cell that differs: model, SKU, spec, what, median before, median now, verdict.
    pub fn rows(&self) -> Vec<[String; 7]> {
        let row = |id: &CellId, what: String, old: Option<&Headline>, new: Option<&Headline>, verdict: &str| {
            let name = [id.model.clone(), id.sku.to_string(), id.spec.clone()];
            let [model, sku, spec] = name;
            [model, sku, spec, what, median(old), median(new), verdict.to_owned()]
        };
        let mut rows: Vec<[String; 7]> = Vec::new();
        for Entry { id, locked } in &self.added {
            let what = format!("added ({}, {})", locked.toolchain, bytes(locked.plan_bytes));
            rows.push(row(id, what, None, Some(&locked.headline), "-"));
        }
        for Entry { id, locked } in &self.removed {
            rows.push(row(id, "removed".into(), Some(&locked.headline), None, "-"));
        }
        for change in &self.changed {
            let verdict = change.verdict.map_or("-", Verdict::words);
            rows.push(row(
                &change.id,
                change.what.join("; "),
                Some(&change.old.headline),
                Some(&change.new.headline),
                verdict,
            ));
        }
        rows.sort();
        rows
    }

    /// As Markdown, for a pull request or a job's summary.
    pub fn markdown(&self) -> String {
        let mut text = format!("**Engines**: {}\n", self.summary());
        if self.is_empty() {
            return text;
        }
        text.push_str("\n| model | device | spec | what | median before | median now | verdict |\n|---|---|---|---|---:|---:|---|\n");
        for row in self.rows() {
            let _ = writeln!(text, "| {} |", row.map(|cell| escaped(&cell)).join(" | "));
        }
        let reasons: Vec<&Change> = self.changed.iter().filter(|change| !change.reason.is_empty()).collect();
        if !reasons.is_empty() {
            text.push('\n');
        }
        for change in reasons {
            let _ = writeln!(text, "- {}: {}", escaped(&change.id.to_string()), escaped(&change.reason));
        }
        text
    }
}

fn median(headline: Option<&Headline>) -> String {
    headline.and_then(|headline| headline.median_ms).map_or_else(|| "-".into(), milliseconds)
}

/// A text that stays text in Markdown, in one cell of a table.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '~' | '!' => out.extend(['\\', letter]),
            // A mention in a comment calls somebody.
            '@' => out.push_str("&#64;"),
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

fn what_changed(before: &Locked, now: &Locked) -> Vec<String> {
    let mut what = Vec::new();
    if before.model != now.model {
        what.push(format!("model {} to {}", before.model.short(), now.model.short()));
    }
    what.extend(spec_difference(&before.spec, &now.spec));
    if before.toolchain != now.toolchain {
        what.push(format!("{} to {}", before.toolchain, now.toolchain));
    }
    if what.is_empty() {
        what.push("built again".into());
    }
    what
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::tests::{id, locked};
    use planforge_types::Digest;

    #[test]
    fn cells_come_go_and_change() {
        let [same, gone, new, changed] = ["same", "gone", "new", "changed"].map(|model| id(model, "t4"));
        let lock = |ids: &[&CellId]| Lock {
            cells: ids.iter().map(|id| ((*id).clone(), locked(id, "plan"))).collect(),
            ..Lock::default()
        };
        let old = lock(&[&same, &gone, &changed]);
        let mut now = lock(&[&same, &new, &changed]);
        let entry = now.cells.get_mut(&changed).unwrap();
        *entry = Locked { plan: Digest::of(b"another"), ..locked(&changed, "x") };
        let mut diff = Diff::of(&old, &now);
        assert_eq!(diff.summary(), "1 added, 1 removed, 1 changed, 1 unchanged");
        assert_eq!(diff.changed[0].what, ["built again"]);
        (diff.changed[0].verdict, diff.changed[0].reason) = (Some(Verdict::Slower), "1.2 | 1.3".into());
        let markdown = diff.markdown();
        assert!(
            markdown.contains("| changed | t4 | default | built again | 2.000 ms | 2.000 ms | slower |"),
            "{markdown}"
        );
        assert!(markdown.contains("- changed / t4 / default: 1.2 \\| 1.3"), "{markdown}");
        assert_eq!(diff.rows().len(), 3);
        assert!(Diff::of(&old, &old).is_empty());
    }

    #[test]
    fn markdown_holds_no_markup_from_outside() {
        assert_eq!(escaped("a|b @you <b>\n"), "a\\|b &#64;you \\<b\\> ");
    }
}
