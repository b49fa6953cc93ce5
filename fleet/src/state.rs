//! What is to be said of a cell, by the declaration, the lock and what was found on the farm.

use crate::{
    Cell, Locked,
    cell::{is_of_spec, spec_difference},
    gate::Judged,
};
use planforge_types::{BuildSpec, Toolchain};
use serde::Serialize;

/// How a cell stands; all but the first say why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "why", rename_all = "snake_case")]
pub enum State {
    Present,
    /// There is no engine to fetch.
    Missing(String),
    /// The locked engine is not what is declared now.
    Stale(String),
    /// It is what is declared, and a build now would make another.
    Outdated(String),
    GateFailed(String),
    /// An engine was asked for and could not be built.
    Failed(String),
}

impl State {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Missing(_) => "missing",
            Self::Stale(_) => "stale",
            Self::Outdated(_) => "outdated",
            Self::GateFailed(_) => "gate failed",
            Self::Failed(_) => "failed",
        }
    }

    /// Empty for what is present.
    pub fn why(&self) -> &str {
        match self {
            Self::Present => "",
            Self::Missing(why) | Self::Stale(why) | Self::Outdated(why) | Self::GateFailed(why) | Self::Failed(why) => {
                why
            }
        }
    }

    /// Whether a pipeline may go on; `strict` wants the newest that is declared.
    pub fn is_fine(&self, strict: bool) -> bool {
        match self {
            Self::Present => true,
            Self::Outdated(_) => !strict,
            _ => false,
        }
    }

    /// Whether a build is needed for the cell to have its engine.
    pub fn wants_build(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::Stale(_) | Self::Failed(_))
    }
}

/// What the farm has of a locked plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    Yes,
    /// With the reason.
    No(String),
}

/// What was found out about a cell; what nobody looked at is taken to be in order.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub plan: Option<Held>,
    /// What a build would resolve to now.
    pub newest: Option<(Toolchain, BuildSpec)>,
    pub gate: Option<Judged>,
}

/// How the cell stands.
pub fn assess(cell: &Cell, locked: Option<&Locked>, seen: &Seen) -> State {
    let Some(locked) = locked else { return State::Missing("engines.lock has no engine for it".into()) };
    if locked.model != cell.model {
        let (locked, now) = (locked.model.short(), cell.model.short());
        return State::Stale(format!("the model changed: sha256:{locked} is locked, sha256:{now} is here"));
    }
    if !is_of_spec(&cell.spec, &locked.spec) {
        let asked = BuildSpec { threads: cell.spec.threads.or(locked.spec.threads), ..cell.spec.clone() };
        return State::Stale(format!("the spec changed: {}", spec_difference(&locked.spec, &asked).join(", ")));
    }
    if !cell.toolchain.matches(&locked.toolchain) {
        return State::Stale(format!("{} is outside of '{}'", locked.toolchain, cell.toolchain));
    }
    if let Some(Held::No(why)) = &seen.plan {
        return State::Missing(why.clone());
    }
    if let Some(objection) = seen.gate.as_ref().and_then(|judged| judged.objection()) {
        return State::GateFailed(objection);
    }
    if let Some((toolchain, spec)) = &seen.newest {
        if *toolchain != locked.toolchain {
            return State::Outdated(format!("built with {}; {toolchain} would build it now", locked.toolchain));
        }
        let differs = spec_difference(&locked.spec, spec);
        if !differs.is_empty() {
            return State::Outdated(format!("the farm would choose otherwise now: {}", differs.join(", ")));
        }
    }
    State::Present
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::tests::{id, locked};
    use planforge_types::{Digest, Precision};

    fn cell() -> Cell {
        let id = id("a", "t4");
        Cell { model: Digest::of(b"a"), spec: BuildSpec::default(), toolchain: "tensorrt>=10,<11".parse().unwrap(), id }
    }

    #[test]
    fn every_state_has_its_reason() {
        let locked = locked(&cell().id, "plan");
        let say = |cell: &Cell, seen: &Seen| assess(cell, Some(&locked), seen);
        let nothing = Seen::default();
        assert_eq!(say(&cell(), &nothing), State::Present);
        assert!(matches!(assess(&cell(), None, &nothing), State::Missing(_)));
        let model = Cell { model: Digest::of(b"changed"), ..cell() };
        assert!(say(&model, &nothing).why().starts_with("the model changed"));
        let spec = Cell { spec: BuildSpec { precision: Precision::Fp16, ..BuildSpec::default() }, ..cell() };
        assert_eq!(say(&spec, &nothing), State::Stale("the spec changed: precision fp32 to fp16".into()));
        let range = Cell { toolchain: "tensorrt>=10.5".parse().unwrap(), ..cell() };
        assert_eq!(
            say(&range, &nothing),
            State::Stale("tensorrt 10.3.0, cuda 12.4 is outside of 'tensorrt>=10.5'".into())
        );
        let gone = Seen { plan: Some(Held::No("gone".into())), ..Seen::default() };
        assert_eq!(say(&cell(), &gone), State::Missing("gone".into()));
        let slow = Seen { gate: Some(Judged::Failed("slow".into())), ..Seen::default() };
        assert_eq!(say(&cell(), &slow).name(), "gate failed");
        let newer = Toolchain { version: "10.4.0".into(), ..locked.toolchain.clone() };
        let outdated = say(&cell(), &Seen { newest: Some((newer, BuildSpec::default())), ..Seen::default() });
        assert!(outdated.is_fine(false) && !outdated.is_fine(true) && !outdated.wants_build(), "{outdated:?}");
        let same = Seen { newest: Some((locked.toolchain.clone(), BuildSpec::default())), ..Seen::default() };
        assert_eq!(say(&cell(), &same), State::Present);
    }
}
