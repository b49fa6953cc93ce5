//! Walks a TOML document: every value is asked for by name and kind, and what is wrong with it has a line.

use crate::error::DeclarationError;
use std::collections::BTreeMap;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A value and the line that says it, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said<T> {
    pub value: T,
    pub line: usize,
}

/// One table of the document.
#[derive(Clone, Debug)]
pub struct Section<'a> {
    text: &'a str,
    /// As its header says it; empty for the document itself.
    name: String,
    /// Of its header.
    pub line: usize,
    entries: &'a DeTable<'a>,
}

/// The line, from 1, in which the byte at `offset` lies.
pub fn line_at(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

impl<'a> Section<'a> {
    /// The whole document.
    pub fn document(text: &'a str, entries: &'a DeTable<'a>) -> Self {
        Self { text, name: String::new(), line: 1, entries }
    }

    fn line_of<T>(&self, spanned: &Spanned<T>) -> usize {
        line_at(self.text, spanned.span().start)
    }

    fn entry(&self, key: &str) -> Option<(usize, &'a DeValue<'a>)> {
        let (name, value) = self.entries.iter().find(|(name, _)| name.get_ref().as_ref() == key)?;
        Some((self.line_of(name), value.get_ref()))
    }

    /// `specs.fast.precision`, for messages.
    fn place(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn wrong(&self, line: usize, key: &str, wanted: &str) -> DeclarationError {
        DeclarationError::new(line, format!("'{}' must be {wanted}", self.place(key)))
    }

    /// Refuses keys that are none of `known`.
    pub fn only(&self, known: &[&str]) -> Result<(), DeclarationError> {
        let unknown = self.entries.iter().find(|(name, _)| !known.contains(&name.get_ref().as_ref()));
        let Some((name, _)) = unknown else { return Ok(()) };
        let message = format!("unknown key '{}'", self.place(name.get_ref()));
        Err(DeclarationError::new(self.line_of(name), message).hint(format!("keys are {}", known.join(", "))))
    }

    pub fn text(&self, key: &str) -> Result<Option<Said<String>>, DeclarationError> {
        let Some((line, value)) = self.entry(key) else { return Ok(None) };
        let value = value.as_str().ok_or_else(|| self.wrong(line, key, "a text"))?;
        Ok(Some(Said { value: value.to_owned(), line }))
    }

    /// A list of texts, each with its own line.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<Said<String>>>, DeclarationError> {
        let Some((line, value)) = self.entry(key) else { return Ok(None) };
        let items = value.as_array().ok_or_else(|| self.wrong(line, key, "a list of texts"))?;
        let item = |item: &Spanned<DeValue<'_>>| {
            let line = self.line_of(item);
            let text = item.get_ref().as_str().ok_or_else(|| self.wrong(line, key, "a list of texts"))?;
            Ok(Said { value: text.to_owned(), line })
        };
        items.iter().map(item).collect::<Result<Vec<_>, _>>().map(Some)
    }

    pub fn switch(&self, key: &str) -> Result<Option<bool>, DeclarationError> {
        let Some((line, value)) = self.entry(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(line, key, "true or false"))
    }

    /// A whole number of `least` to `most`.
    pub fn integer(&self, key: &str, least: u64, most: u64) -> Result<Option<u64>, DeclarationError> {
        let Some((line, value)) = self.entry(key) else { return Ok(None) };
        let number = value.as_integer().and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok());
        let number = number.filter(|number| (least..=most).contains(number));
        let wanted = || format!("a whole number from {least} to {most}");
        number.map(Some).ok_or_else(|| self.wrong(line, key, &wanted()))
    }

    /// A number of 0 to `most`.
    pub fn number(&self, key: &str, most: f64) -> Result<Option<Said<f64>>, DeclarationError> {
        let Some((line, value)) = self.entry(key) else { return Ok(None) };
        let text = value.as_float().map(|n| n.as_str()).or_else(|| value.as_integer().map(|n| n.as_str()));
        let number = text.and_then(|text| text.parse::<f64>().ok()).filter(|number| (0.0..=most).contains(number));
        let value = number.ok_or_else(|| self.wrong(line, key, &format!("a number from 0 to {most}")))?;
        Ok(Some(Said { value, line }))
    }

    /// The table under `key`.
    pub fn section(&self, key: &str) -> Result<Option<Self>, DeclarationError> {
        let Some((line, value)) = self.entry(key) else { return Ok(None) };
        let entries = value.as_table().ok_or_else(|| self.wrong(line, key, "a table"))?;
        Ok(Some(Self { text: self.text, name: self.place(key), line, entries }))
    }

    /// Every table in this one with its name, in the order of names.
    pub fn sections(&self) -> Result<Vec<(String, Self)>, DeclarationError> {
        let mut found = Vec::new();
        for (name, value) in self.entries {
            let line = self.line_of(name);
            let name = name.get_ref().as_ref();
            let entries = value.get_ref().as_table().ok_or_else(|| self.wrong(line, name, "a table"))?;
            found.push((name.to_owned(), Self { text: self.text, name: self.place(name), line, entries }));
        }
        Ok(found)
    }

    /// A table of texts.
    pub fn pairs(&self) -> Result<BTreeMap<String, String>, DeclarationError> {
        let mut pairs = BTreeMap::new();
        for (name, value) in self.entries {
            let line = self.line_of(name);
            let name = name.get_ref().as_ref();
            let value = value.get_ref().as_str().ok_or_else(|| self.wrong(line, name, "a text"))?;
            pairs.insert(name.to_owned(), value.to_owned());
        }
        Ok(pairs)
    }
}
