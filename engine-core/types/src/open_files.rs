//! How many files this process may have open.
//!
//! Shells and service managers start programs with room for 1,024, which a program may raise up to a bound that is
//! usually far higher. A coordinator does, because every agent is a connection. Programs that it starts get back what
//! this one was started with: some look at every number up to the limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{io, sync::OnceLock};

/// As many as a program is let have: beyond, tables of descriptors cost memory for nothing.
const RAISED_MAX: u64 = 65_536;

/// The limit on open files; `None`: any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// What holds.
    pub soft: Option<u64>,
    /// Up to where this process may raise it.
    pub hard: Option<u64>,
}

impl OpenFiles {
    /// What holds once it was raised.
    pub fn raised(self) -> Option<u64> {
        let soft = self.soft?;
        Some(self.hard.unwrap_or(RAISED_MAX).min(RAISED_MAX).max(soft))
    }
}

/// What this process was started with, once it was raised.
static AT_START: OnceLock<OpenFiles> = OnceLock::new();

/// What holds now.
pub fn limits() -> OpenFiles {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    OpenFiles { soft: current, hard: maximum }
}

/// What this process was started with.
pub fn at_start() -> OpenFiles {
    AT_START.get().copied().unwrap_or_else(limits)
}

/// Raises the limit as far as it goes, and says what holds then.
///
/// # Errors
/// What the system says; the limit is what it was then.
pub fn raise() -> io::Result<OpenFiles> {
    let before = limits();
    let _ = AT_START.set(before);
    let wanted = OpenFiles { soft: before.raised(), ..before };
    if wanted != before {
        setrlimit(Resource::Nofile, Rlimit { current: wanted.soft, maximum: before.hard })?;
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_within_its_bound_and_never_lowered() {
        let raised = |soft, hard| OpenFiles { soft, hard }.raised();
        assert_eq!(raised(Some(1024), Some(4096)), Some(4096));
        assert_eq!(raised(Some(1024), Some(1 << 30)), Some(RAISED_MAX));
        assert_eq!(raised(Some(1024), None), Some(RAISED_MAX));
        assert_eq!(raised(Some(1 << 20), Some(1 << 20)), Some(1 << 20));
        assert_eq!(raised(None, None), None);
    }

    #[test]
    fn what_was_there_at_the_start_is_remembered() {
        let before = limits();
        let now = raise().unwrap();
        assert_eq!(limits(), now);
        assert_eq!(at_start(), before);
        assert!(now.soft.unwrap_or(u64::MAX) >= before.soft.unwrap_or(u64::MAX));
        assert_eq!(raise().unwrap(), now);
    }
}
