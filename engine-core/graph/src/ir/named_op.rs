//! Operators that are known by name: those with a reference implementation and no kernel of their own.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An operator of the table in [`crate::named`], with its attributes. The table knows which it reads; what is not
/// given has the default that the reading names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedOp {
    pub name: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ints: BTreeMap<String, Vec<i64>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    floats: BTreeMap<String, Vec<f32>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    texts: BTreeMap<String, Vec<String>>,
}

impl NamedOp {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    #[must_use]
    pub fn with_int(self, name: &str, value: i64) -> Self {
        self.with_ints(name, &[value])
    }

    #[must_use]
    pub fn with_ints(mut self, name: &str, values: &[i64]) -> Self {
        self.ints.insert(name.to_owned(), values.to_vec());
        self
    }

    #[must_use]
    pub fn with_sizes(self, name: &str, values: &[usize]) -> Self {
        let values: Vec<i64> = values.iter().map(|&value| value as i64).collect();
        self.with_ints(name, &values)
    }

    #[must_use]
    pub fn with_floats(mut self, name: &str, values: &[f32]) -> Self {
        self.floats.insert(name.to_owned(), values.to_vec());
        self
    }

    #[must_use]
    pub fn with_text(self, name: &str, value: &str) -> Self {
        self.with_texts(name, &[value])
    }

    #[must_use]
    pub fn with_texts(mut self, name: &str, values: &[&str]) -> Self {
        self.texts.insert(name.to_owned(), values.iter().map(|&value| value.to_owned()).collect());
        self
    }

    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.ints(name).first().copied().unwrap_or(default)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.int(name, 0) != 0
    }

    pub fn ints(&self, name: &str) -> &[i64] {
        self.ints.get(name).map_or(&[], Vec::as_slice)
    }

    /// A list of sizes; `None` when one is negative.
    pub fn sizes(&self, name: &str) -> Option<Vec<usize>> {
        self.ints(name).iter().map(|&value| usize::try_from(value).ok()).collect()
    }

    /// A size, such as an axis; one that is missing or negative is larger than any there is.
    pub fn size(&self, name: &str) -> usize {
        usize::try_from(self.int(name, -1)).unwrap_or(usize::MAX)
    }

    pub fn floats(&self, name: &str) -> &[f32] {
        self.floats.get(name).map_or(&[], Vec::as_slice)
    }

    pub fn float(&self, name: &str, default: f32) -> f64 {
        self.floats(name).first().copied().unwrap_or(default).into()
    }

    pub fn text(&self, name: &str) -> &str {
        self.texts(name).first().map_or("", String::as_str)
    }

    pub fn texts(&self, name: &str) -> &[String] {
        self.texts.get(name).map_or(&[], Vec::as_slice)
    }
}
