//! Pauses, as JSON.

use crate::v1;
use serde::{Deserialize, Serialize};

/// A device kind, project or agent that gets no more jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PauseView {
    /// `sku`, `project` or `agent`.
    pub kind: String,
    /// A device kind, a project, or an agent's id.
    pub name: String,
    /// As people know it.
    pub shown: String,
    pub reason: Option<String>,
    /// Name of the token that made it, or `local`.
    pub actor: String,
    pub since_ms: u64,
    /// `null`: until it is resumed.
    pub until_ms: Option<u64>,
    /// `null`: all the time.
    pub window: Option<PauseWindowView>,
    /// Whether it holds now.
    pub holds: bool,
}

/// A time that comes again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PauseWindowView {
    /// On which it begins, 1 Monday to 7 Sunday.
    pub days: Vec<u32>,
    /// Of the day, UTC.
    pub start_minute: u32,
    pub minutes: u32,
}

impl From<v1::Pause> for PauseView {
    fn from(pause: v1::Pause) -> Self {
        let window = |v1::PauseWindow { days, start_minute, minutes }| PauseWindowView { days, start_minute, minutes };
        Self {
            kind: pause.kind,
            name: pause.name,
            shown: pause.shown,
            reason: super::some_text(pause.reason),
            actor: pause.actor,
            since_ms: pause.since_ms,
            until_ms: super::some_number(pause.until_ms),
            window: pause.window.map(window),
            holds: pause.holds,
        }
    }
}
