//! What `planforge doctor` looks at: one file per area, each giving checks.
//!
//! Nothing is ever set, started for others or repaired; what a self-test builds lies in a folder of its own and goes.

pub mod farm;
pub mod gpu;
pub mod host;
pub mod libraries;
pub mod locks;
pub mod room;
pub mod selftest;
pub mod toolchains;

use serde::Serialize;

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// It works, but slower, less exactly or less safely than it could.
    Warning,
    /// Something that this host needs does not work.
    Problem,
}

/// One line of the doctor's report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// `host`, `disk`, `gpu`, `libraries`, `toolchains`, `farm`, `self-test`.
    pub area: &'static str,
    pub name: String,
    pub state: State,
    /// What is there.
    pub seen: String,
    /// What follows from it; empty where nothing does.
    pub meaning: String,
    /// What to do; empty where nothing is.
    pub action: String,
}

impl Check {
    pub fn ok(area: &'static str, name: impl Into<String>, seen: impl Into<String>) -> Self {
        let (meaning, action) = (String::new(), String::new());
        Self { area, name: name.into(), state: State::Ok, seen: seen.into(), meaning, action }
    }

    /// What follows, where all is well.
    pub fn meaning(mut self, meaning: impl Into<String>) -> Self {
        self.meaning = meaning.into();
        self
    }

    pub fn warning(self, meaning: impl Into<String>, action: impl Into<String>) -> Self {
        Self { state: State::Warning, meaning: meaning.into(), action: action.into(), ..self }
    }

    pub fn problem(self, meaning: impl Into<String>, action: impl Into<String>) -> Self {
        Self { state: State::Problem, meaning: meaning.into(), action: action.into(), ..self }
    }
}
