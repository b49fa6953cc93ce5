//! Where two engines of one model spend their time differently, part by part.
//!
//! Steps of the two engines belong together where they compute the same nodes of the model. Engines fuse differently, so
//! a *part* is the least set of steps of both that share their nodes with no step outside it: one convolution here and the
//! same one there; or one fused step here and the three there that do its work. Times of steps come from runs that were
//! profiled apart from the latencies, and have no interval: they say where to look, and no verdict rests on them.

use crate::{LayerTime, Report};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Joins the names of nodes in a step's name.
const JOINED: &str = " + ";

/// What a part does otherwise in the second engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The same nodes in other steps.
    Fusion,
    Tactic,
    /// Another type to compute in.
    Precision,
    /// Other memory formats.
    Formats,
    /// The other engine has no step for these nodes, or the first has none.
    OnlyOne,
}

impl Change {
    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Fusion => "fused differently",
            Self::Tactic => "other tactic",
            Self::Precision => "other precision",
            Self::Formats => "other formats",
            Self::OnlyOne => "in one engine only",
        }
    }
}

/// A step of one engine, as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub name: String,
    pub kind: String,
    pub tactic: String,
    pub median_ms: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
}

/// Steps of both engines that do the same work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub base: Vec<Step>,
    pub other: Vec<Step>,
    /// Together.
    pub base_ms: f64,
    pub other_ms: f64,
    /// What differs beside the time; empty where nothing does.
    pub changes: BTreeSet<Change>,
}

impl Part {
    /// How much longer the second engine takes; negative where it is faster.
    pub fn more_ms(&self) -> f64 {
        self.other_ms - self.base_ms
    }

    /// Its first step, and how many more there are, as people read it.
    pub fn name_words(&self) -> String {
        let name = self.base.first().or(self.other.first()).map_or("", |step| step.name.as_str());
        match self.base.len().max(self.other.len()).saturating_sub(1) {
            0 => name.to_owned(),
            more => format!("{name} and {more} more"),
        }
    }

    /// What differs beside the time, as people read it.
    pub fn change_words(&self) -> String {
        if self.changes.is_empty() {
            return "no other tactic".to_owned();
        }
        self.changes.iter().map(|change| change.words()).collect::<Vec<_>>().join(", ")
    }

    /// The tactics of both, as people read them.
    pub fn tactic_words(&self) -> String {
        let tactics = |steps: &[Step]| {
            let mut names: Vec<&str> = steps.iter().map(|step| step.tactic.as_str()).collect();
            names.dedup();
            if names.is_empty() { "nothing".to_owned() } else { names.join(" + ") }
        };
        let (was, is) = (tactics(&self.base), tactics(&self.other));
        if was == is { was } else { format!("{was} -> {is}") }
    }
}

/// Two engines of one model, part by part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerDifference {
    /// Indices of the comparison's rows.
    pub base: usize,
    pub other: usize,
    /// All steps together.
    pub base_ms: f64,
    pub other_ms: f64,
    /// The one whose time differs most first.
    pub parts: Vec<Part>,
}

/// The parts of two engines of one model; `None` where one of the reports has no steps.
pub fn difference(rows: (usize, usize), left: &Report, right: &Report) -> Option<LayerDifference> {
    if left.layers.is_empty() || right.layers.is_empty() {
        return None;
    }
    let mut parts: Vec<Part> = matched(&left.layers, &right.layers).into_iter().map(part).collect();
    parts.sort_by(|a, b| b.more_ms().abs().total_cmp(&a.more_ms().abs()));
    let sum = |layers: &[LayerTime]| layers.iter().map(|layer| layer.median_ms).sum();
    Some(LayerDifference {
        base: rows.0,
        other: rows.1,
        base_ms: sum(&left.layers),
        other_ms: sum(&right.layers),
        parts,
    })
}

/// The model's nodes that a step computes.
fn nodes(layer: &LayerTime) -> Vec<&str> {
    match layer.nodes.is_empty() {
        true => layer.name.split(JOINED).collect(),
        false => layer.nodes.iter().map(String::as_str).collect(),
    }
}

/// What a step says of itself, where it does.
type Fact = fn(&LayerTime) -> Option<&str>;

type Matched<'a> = (Vec<&'a LayerTime>, Vec<&'a LayerTime>);

/// Steps that share nodes, directly or through others, in the order of the first engine.
fn matched<'a>(left: &'a [LayerTime], right: &'a [LayerTime]) -> Vec<Matched<'a>> {
    let all: Vec<(bool, &LayerTime)> =
        left.iter().map(|layer| (true, layer)).chain(right.iter().map(|layer| (false, layer))).collect();
    let mut parent: Vec<usize> = (0..all.len()).collect();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, (_, layer)) in all.iter().enumerate() {
        for node in nodes(layer) {
            let first = *seen.entry(node).or_insert(index);
            let (a, b) = (root(&mut parent, first), root(&mut parent, index));
            parent[a.max(b)] = a.min(b);
        }
    }
    let mut parts: BTreeMap<usize, Matched<'a>> = BTreeMap::new();
    for (index, (is_left, layer)) in all.iter().enumerate() {
        let (first, second) = parts.entry(root(&mut parent, index)).or_default();
        if *is_left { first.push(layer) } else { second.push(layer) }
    }
    parts.into_values().collect()
}

fn root(parent: &mut [usize], mut index: usize) -> usize {
    while parent[index] != index {
        parent[index] = parent[parent[index]];
        index = parent[index];
    }
    index
}

fn part((base, other): Matched<'_>) -> Part {
    let step = |layer: &&LayerTime| Step {
        name: layer.name.clone(),
        kind: layer.kind.clone(),
        tactic: layer.tactic.clone(),
        median_ms: layer.median_ms,
        precision: layer.precision.clone(),
    };
    let sum = |layers: &[&LayerTime]| layers.iter().map(|layer| layer.median_ms).sum();
    Part {
        changes: changes(&base, &other),
        base_ms: sum(&base),
        other_ms: sum(&other),
        base: base.iter().map(step).collect(),
        other: other.iter().map(step).collect(),
    }
}

fn changes(base: &[&LayerTime], other: &[&LayerTime]) -> BTreeSet<Change> {
    if base.is_empty() || other.is_empty() {
        return [Change::OnlyOne].into();
    }
    let work = |layers: &[&LayerTime]| -> BTreeSet<BTreeSet<String>> {
        layers.iter().map(|layer| nodes(layer).into_iter().map(str::to_owned).collect()).collect()
    };
    let mut found = BTreeSet::new();
    if work(base) != work(other) {
        found.insert(Change::Fusion);
    }
    let differ = |of: Fact| {
        let all = |layers: &[&LayerTime]| -> Option<BTreeSet<String>> {
            layers.iter().map(|layer| of(layer).map(str::to_owned)).collect()
        };
        // What one of the engines does not tell differs from nothing.
        matches!((all(base), all(other)), (Some(a), Some(b)) if a != b)
    };
    let facts: [(Change, Fact); 3] = [
        (Change::Tactic, |layer| Some(&layer.tactic)),
        (Change::Precision, |layer| layer.precision.as_deref()),
        (Change::Formats, |layer| layer.formats.as_deref()),
    ];
    found.extend(facts.into_iter().filter(|(_, of)| differ(*of)).map(|(change, _)| change));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample_report;

    fn step(name: &str, tactic: &str, median_ms: f64) -> LayerTime {
        LayerTime { name: name.into(), kind: "conv".into(), tactic: tactic.into(), median_ms, ..LayerTime::default() }
    }

    fn between(left: Vec<LayerTime>, right: Vec<LayerTime>) -> LayerDifference {
        let with = |layers| {
            let mut report = sample_report(1.0);
            report.layers = layers;
            report
        };
        difference((0, 1), &with(left), &with(right)).unwrap()
    }

    #[test]
    fn steps_are_matched_by_what_they_compute() {
        let found = between(
            vec![step("a", "x", 1.0), step("b + c", "x", 2.0), step("d", "x", 1.0), step("gone", "x", 0.1)],
            vec![step("a", "y", 1.5), step("b", "x", 1.0), step("c + d", "x", 2.2), step("new", "x", 0.05)],
        );
        assert!((found.base_ms - 4.1).abs() < 1e-9 && (found.other_ms - 4.75).abs() < 1e-9, "{found:?}");
        let told: Vec<(usize, usize, Vec<Change>)> = found
            .parts
            .iter()
            .map(|part| (part.base.len(), part.other.len(), part.changes.iter().copied().collect()))
            .collect();
        let expected = vec![
            (1, 1, vec![Change::Tactic]),
            (2, 2, vec![Change::Fusion]),
            (1, 0, vec![Change::OnlyOne]),
            (0, 1, vec![Change::OnlyOne]),
        ];
        assert_eq!(told, expected);
        let together: f64 = found.parts.iter().map(Part::more_ms).sum();
        assert!((together - (found.other_ms - found.base_ms)).abs() < 1e-9, "every step is in one part");
    }

    #[test]
    fn equal_engines_differ_in_time_alone_and_the_largest_difference_comes_first() {
        let steps = |scale: f64| vec![step("a", "x", 1.0), step("b", "x", 2.0 * scale), step("c", "x", 3.0 / scale)];
        let found = between(steps(1.0), steps(1.1));
        assert!(found.parts.iter().all(|part| part.changes.is_empty()), "{found:?}");
        assert_eq!(found.parts.iter().map(|part| part.base[0].name.as_str()).collect::<Vec<_>>(), ["c", "b", "a"]);
    }

    #[test]
    fn types_and_formats_count_where_both_engines_tell_them() {
        let typed = |precision: Option<&str>| {
            let mut step = step("a", "x", 1.0);
            step.precision = precision.map(str::to_owned);
            vec![step]
        };
        let changes = |left, right| between(typed(left), typed(right)).parts[0].changes.clone();
        assert_eq!(changes(Some("fp16"), Some("int8")), [Change::Precision].into());
        assert_eq!(changes(Some("fp16"), None), BTreeSet::new());
    }

    #[test]
    fn nodes_that_are_told_apart_from_the_name_count() {
        let mut fused = step("fused_0", "x", 1.0);
        fused.nodes = vec!["a".into(), "b".into()];
        let found = between(vec![step("a + b", "x", 1.0)], vec![fused]);
        assert_eq!((found.parts.len(), found.parts[0].changes.len()), (1, 0), "{found:?}");
    }

    #[test]
    fn without_steps_there_is_nothing_to_tell() {
        let mut bare = sample_report(1.0);
        bare.layers.clear();
        assert_eq!(difference((0, 1), &bare, &sample_report(1.0)), None);
    }
}
