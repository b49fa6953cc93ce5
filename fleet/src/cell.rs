//! One engine that is wanted: a model, for a device kind, by a spec.

use planforge_types::{BuildSpec, Digest, Sku, ToolchainConstraint};
use serde::Serialize;
use std::fmt;

/// A cell's name. Its order is that of blocks in a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct CellId {
    /// As the declaration calls it.
    pub model: String,
    pub sku: Sku,
    /// As the declaration calls it.
    pub spec: String,
}

impl fmt::Display for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} / {} / {}", self.model, self.sku, self.spec)
    }
}

/// A cell with what decides its engine, as the declaration has it now.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub id: CellId,
    pub model: Digest,
    /// As declared: without threads where those are left to the farm.
    pub spec: BuildSpec,
    pub toolchain: ToolchainConstraint,
}

/// Whether an engine of the spec `built` is one of what was `asked`: threads that nobody named were chosen by the farm.
pub fn is_of_spec(asked: &BuildSpec, built: &BuildSpec) -> bool {
    let threads = asked.threads.or(built.threads);
    BuildSpec { threads, ..asked.clone() }.canonical() == built.clone().canonical()
}

/// What of a spec differs, in few words: `precision fp32 to fp16`.
pub fn spec_difference(old: &BuildSpec, new: &BuildSpec) -> Vec<String> {
    let document = |spec: &BuildSpec| serde_json::to_value(spec.clone().canonical()).unwrap_or_default();
    let (old, new) = (document(old), document(new));
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return Vec::new() };
    let none = serde_json::Value::Null;
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let word = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => "none".into(),
        other => other.to_string(),
    };
    let differs = names.into_iter().filter_map(|name| {
        let (before, after) = (old.get(name).unwrap_or(&none), new.get(name).unwrap_or(&none));
        (before != after).then(|| format!("{name} {} to {}", word(before), word(after)))
    });
    differs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::Precision;

    #[test]
    fn threads_that_nobody_named_are_no_difference() {
        let built = BuildSpec { threads: Some(4), ..BuildSpec::default() };
        assert!(is_of_spec(&BuildSpec::default(), &built));
        assert!(!is_of_spec(&BuildSpec { threads: Some(2), ..BuildSpec::default() }, &built));
        assert!(!is_of_spec(&BuildSpec { precision: Precision::Fp16, ..BuildSpec::default() }, &built));
    }

    #[test]
    fn differences_are_named() {
        let old = BuildSpec::default();
        let new = BuildSpec { precision: Precision::Fp16, threads: Some(2), ..BuildSpec::default() };
        assert_eq!(spec_difference(&old, &new), ["precision fp32 to fp16", "threads none to 2"]);
        assert!(spec_difference(&new, &new).is_empty());
    }
}
