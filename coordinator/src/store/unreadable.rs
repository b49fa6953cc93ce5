//! Rows that cannot be decoded. One of them hides itself and nothing else: it is left out, told once, and counted.

use super::{StoreError, tables::Row};
use planforge_types::Digest;
use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

/// Rows that are told apart; a database with more of them has other troubles.
const KNOWN_MAX: usize = 10_000;

/// The rows that were met so far, by what their first column holds.
#[derive(Debug, Default)]
pub(super) struct Unreadable {
    known: Mutex<BTreeSet<Digest>>,
}

impl Unreadable {
    /// Notes a row that no answer has.
    pub fn left_out(&self, row: &Row, error: &StoreError) {
        let first: Vec<u8> = row.first_bytes();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < KNOWN_MAX && known.insert(Digest::of(&first)) {
            let begins: String = String::from_utf8_lossy(&first).chars().take(80).collect();
            tracing::error!(%error, row = begins, "a row is left out; planforge admin check names every such row");
        }
    }

    pub fn count(&self) -> u64 {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}
