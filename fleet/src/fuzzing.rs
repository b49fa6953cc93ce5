//! What the fuzz targets and the replay of their corpora do with any bytes. No part of the interface.

use crate::{Boards, Declaration, Diff, Lock, LockError};
use planforge_types::Sku;
use std::collections::BTreeSet;

/// Device kinds that a farm has, each with its compute capability; none is a processor's.
const BOARDS: [(&str, &str); 4] = [("t4", "7.5"), ("l4", "8.9"), ("h100-sxm", "9.0"), ("b200", "10.0")];
const CPUS: [&str; 2] = ["cpu-x86-64-v2", "cpu-x86-64-v3"];

fn sku(name: &str) -> Sku {
    name.parse().expect("a device kind")
}

/// Lines of a text; one that ends with a line break has another one behind it.
fn lines(text: &str) -> usize {
    1 + text.bytes().filter(|byte| *byte == b'\n').count()
}

/// As `engines.lock`: refused with a line that is there, or read, and written again as what was read.
pub fn lock(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    match Lock::parse(text) {
        Ok(lock) => {
            let written = lock.render();
            let again = Lock::parse(&written).expect("what is written can be read");
            assert_eq!(again, lock, "what is written is what was read");
            assert_eq!(again.render(), written, "equal cells are equal text");
            assert!(Diff::of(&lock, &again).is_empty());
            let _ = Diff::of(&Lock::default(), &lock).summary();
        }
        Err(error) => {
            assert!(!error.to_string().is_empty() && !error.hint().is_empty());
            let (first, last) = match error {
                LockError::Conflict { first, last } => (first, last),
                LockError::Duplicate { first, second, .. } => (first, second),
                LockError::Newer { line, .. } | LockError::Edited { line, .. } | LockError::Malformed { line, .. } => {
                    (line, line)
                }
            };
            assert!(0 < first && first <= last && last <= lines(text), "{first}, {last} of {}", lines(text));
        }
    }
}

/// As `planforge.toml`: refused with a line that is there, or read, and told what it comes to.
pub fn declaration(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let boards = Boards::new(BOARDS.map(|(name, capability)| (sku(name), capability)), CPUS.map(sku));
    let fleet: BTreeSet<Sku> = BOARDS.iter().map(|(name, _)| *name).chain(CPUS).map(sku).collect();
    match Declaration::parse(text, &["server"], &boards) {
        Ok(declared) => {
            // A class of which nobody has a device is refused, in words.
            let cells = match declared.cells(&fleet, &boards) {
                Ok(cells) => cells,
                Err(error) => return assert!(!error.to_string().is_empty() && !error.hint().is_empty()),
            };
            for id in &cells {
                assert!(declared.target_of(id, &fleet, &boards).is_some(), "{id} is meant by a target");
                let file = declared.layout.file(id);
                assert!(!file.starts_with('/') && file.split('/').all(|part| part != ".."), "{file} leads elsewhere");
            }
            let _ = (declared.layout.collision(&cells), declared.names_every_sku());
        }
        Err(error) => {
            assert!(!error.message.is_empty());
            assert!(0 < error.line && error.line <= lines(text), "{} of {}", error.line, lines(text));
        }
    }
}
