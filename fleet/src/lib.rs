//! Which engines a project declares, which it has locked, and how the two stand to each other.
//!
//! | module | holds |
//! |---|---|
//! | [`declaration`] | `planforge.toml`: models, targets, specs by name, gates, layout |
//! | [`target`] | device kinds, classes of them, and which of a farm's a target means |
//! | [`shapes`] | input shapes as people write them |
//! | [`cell`] | one engine that is wanted: a model, for a device kind, by a spec |
//! | [`lock`] | `engines.lock`: a block per cell, the same text for the same cells |
//! | [`gate`] | whether an engine may take the place of another, as far as speed is concerned |
//! | [`state`] | what is to be said of a cell: present, missing, stale, outdated, ... |
//! | [`diff`] | what changed from one lock to another |
//! | [`schema`] | the JSON Schema of `planforge.toml` |
//!
//! Nothing here asks a farm, reads a file or looks at a clock: whoever does brings what it found.

#![warn(clippy::missing_errors_doc)]

pub mod cell;
pub mod declaration;
pub mod diff;
mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod gate;
pub mod lock;
mod reader;
pub mod schema;
pub mod shapes;
pub mod state;
pub mod target;

pub use cell::{Cell, CellId};
pub use declaration::Declaration;
pub use diff::Diff;
pub use error::DeclarationError;
pub use lock::{Lock, LockError, Locked, Standing};
pub use state::State;
pub use target::{Boards, Target};
