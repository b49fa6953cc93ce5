//! What a store in a cloud has to remember beside its objects, kept where the farm keeps everything else: parts of uploads
//! that go on, when a blob was last announced, what was set aside.

use futures::future::BoxFuture;
use planforge_proto::ApiError;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// One thing remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Of what kind; with the name its key.
    pub kind: &'static str,
    pub name: String,
    pub text: String,
    /// When that was, Unix milliseconds.
    pub at_ms: u64,
}

/// A note that is written, or goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoteChange {
    /// In place of the one of that kind and name.
    Write(Note),
    Remove {
        kind: &'static str,
        name: String,
    },
}

/// Keeps notes. What was written is durable when the answer comes.
pub trait Notes: Send + Sync + 'static {
    /// All notes of a kind, in the order of their names.
    fn of_kind(&self, kind: &'static str) -> BoxFuture<'_, Result<Vec<Note>, ApiError>>;

    /// All changes, or none.
    fn change(&self, changes: Vec<NoteChange>) -> BoxFuture<'_, Result<(), ApiError>>;
}

/// Notes in memory: for tests, and for a move between stores, which ends with its process.
#[derive(Debug, Default)]
pub struct MemoryNotes {
    notes: Mutex<BTreeMap<(&'static str, String), Note>>,
}

impl Notes for MemoryNotes {
    fn of_kind(&self, kind: &'static str) -> BoxFuture<'_, Result<Vec<Note>, ApiError>> {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let found = notes.values().filter(|note| note.kind == kind).cloned().collect();
        Box::pin(std::future::ready(Ok(found)))
    }

    fn change(&self, changes: Vec<NoteChange>) -> BoxFuture<'_, Result<(), ApiError>> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        for change in changes {
            match change {
                NoteChange::Write(note) => drop(notes.insert((note.kind, note.name.clone()), note)),
                NoteChange::Remove { kind, name } => drop(notes.remove(&(kind, name))),
            }
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
