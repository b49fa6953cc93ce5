//! Which releases work together: the number of the protocol that agents and coordinators speak, and the range of releases.
//!
//! A release works with the one before it and the one after it, so that a farm can be upgraded host by host. A change of
//! the contract that the other side has to know of raises [`PROTOCOL`] and says so in CHANGELOG.md; a release that stops
//! speaking an old number raises [`OLDEST_PROTOCOL`], and refuses what speaks nothing newer by name.
//!
//! | number | since | what is new |
//! |---|---|---|
//! | 1 | 0.1.0 | what was spoken before protocols were numbered: a hello or welcome without a number |
//! | 2 | 0.1.0 | numbers in hello and welcome; refusals say whether they last |
//! | 3 | 0.1.0 | jobs of kind compile |
//!
//! What is said and with whom is worked together is one value, [`Spoken`]: a program of the tests takes another release's
//! ([`speak_as`]), so that both sides of a skew run as processes.

use std::{fmt, sync::OnceLock};

/// Newest protocol that this release speaks.
pub const PROTOCOL: u32 = 3;
/// Oldest protocol that this release speaks.
pub const OLDEST_PROTOCOL: u32 = 1;
/// From here on agents know jobs of kind compile.
pub const COMPILES_SINCE: u32 = 3;
/// What is spoken by who names no number.
const UNNUMBERED: u32 = 1;

/// This release.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// Oldest release that this one works with, as major and minor: the one before it, and there was none before 0.1.
const OLDEST_RELEASE: (u64, u64) = (0, 1);

/// What a program says of itself, and what it works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spoken {
    pub release: &'static str,
    /// Oldest release that it works with, as major and minor.
    pub oldest_release: (u64, u64),
    /// Oldest and newest protocol that it speaks; 0: it is of before they were numbered, and names none.
    pub oldest: u32,
    pub newest: u32,
}

/// This release's.
pub const OWN: Spoken =
    Spoken { release: RELEASE, oldest_release: OLDEST_RELEASE, oldest: OLDEST_PROTOCOL, newest: PROTOCOL };

static SPOKEN: OnceLock<Spoken> = OnceLock::new();

/// What this program speaks.
pub fn spoken() -> Spoken {
    *SPOKEN.get_or_init(|| OWN)
}

/// Takes the place of another release, for as long as the program runs; whether it could, which is before anything was said.
/// Only the tests' program `other-release` does.
pub fn speak_as(other: Spoken) -> bool {
    SPOKEN.set(other).is_ok()
}

/// Why two sides do not work together; names the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skew {
    /// It speaks nothing that is old enough for this release.
    TooNew { what: String, here: Spoken },
    /// It speaks nothing that is new enough for this release.
    TooOld { what: String, here: Spoken },
    /// What it says of itself cannot be understood.
    Unreadable(String),
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, age, here) = match self {
            Self::TooNew { what, here } => (what, "new", here),
            Self::TooOld { what, here } => (what, "old", here),
            Self::Unreadable(what) => return f.write_str(what),
        };
        write!(f, "{what}, which is too {age} for this release ({}); {}", here.release, here.range())
    }
}

/// Major and minor of a release such as `0.1.0` or `0.2.0-rc.1`.
fn release(text: &str) -> Option<(u64, u64)> {
    let plain = text.split_once(['-', '+']).map_or(text, |(plain, _)| plain);
    let mut parts = plain.split('.').map(|part| part.parse::<u64>().ok());
    let (major, minor, patch) = (parts.next()??, parts.next()??, parts.next()??);
    (parts.next().is_none() && patch < u64::MAX).then_some((major, minor))
}

impl Spoken {
    fn range(&self) -> String {
        let ((major, minor), (own_major, own_minor)) = (self.oldest_release, self.own());
        format!(
            "it works with releases {major}.{minor} to {own_major}.{} and protocols {} to {}",
            own_minor + 1,
            self.oldest.max(UNNUMBERED),
            self.newest.max(UNNUMBERED)
        )
    }

    fn own(&self) -> (u64, u64) {
        release(self.release).unwrap_or(self.oldest_release)
    }

    /// Whether the release that somebody says it is works with this one.
    ///
    /// # Errors
    /// It does not, or what it says is no release.
    pub fn check_release(&self, version: &str) -> Result<(), Skew> {
        let Some(theirs) = release(version) else {
            return Err(Skew::Unreadable(format!(
                "it calls its release '{}', which is no version",
                version.escape_debug()
            )));
        };
        let (major, minor) = self.own();
        let (what, here) = (format!("it is release {version}"), *self);
        let next = theirs == (major + 1, 0);
        match theirs {
            theirs if theirs < self.oldest_release => Err(Skew::TooOld { what, here }),
            theirs if theirs > (major, minor + 1) && !next => Err(Skew::TooNew { what, here }),
            _ => Ok(()),
        }
    }

    /// The newest protocol that both sides speak, given what the other says of itself; 0 says nothing.
    ///
    /// # Errors
    /// There is none.
    pub fn common(&self, oldest: u32, newest: u32) -> Result<u32, Skew> {
        let newest = newest.max(UNNUMBERED);
        let oldest = oldest.clamp(UNNUMBERED, newest);
        if oldest > self.newest.max(UNNUMBERED) {
            return Err(Skew::TooNew { what: format!("it speaks protocol {oldest} at the oldest"), here: *self });
        }
        if newest < self.oldest {
            return Err(Skew::TooOld { what: format!("it speaks protocol {newest} at the newest"), here: *self });
        }
        Ok(newest.min(self.newest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_before_and_the_one_after_are_welcome() {
        let (major, minor) = OWN.own();
        for fine in [RELEASE.to_owned(), format!("{major}.{}.7", minor + 1), format!("{}.0.0-rc.1", major + 1)] {
            assert_eq!(OWN.check_release(&fine), Ok(()), "{fine}");
        }
        for (wrong, word) in [("0.0.1", "too old"), ("99.0.0", "too new"), ("", "no version"), ("0", "no version")] {
            let said = OWN.check_release(wrong).unwrap_err().to_string();
            assert!(said.contains(word), "{wrong}: {said}");
        }
        assert!(OWN.check_release(&format!("{major}.{}.0", minor + 2)).is_err(), "one release of skew");
    }

    #[test]
    fn the_newest_that_both_speak_is_spoken() {
        assert_eq!(OWN.common(0, 0), Ok(1), "before protocols were numbered");
        assert_eq!(OWN.common(1, PROTOCOL), Ok(PROTOCOL));
        assert_eq!(OWN.common(PROTOCOL, PROTOCOL + 1), Ok(PROTOCOL), "a newer one that still speaks ours");
        assert!(matches!(OWN.common(PROTOCOL + 1, PROTOCOL + 2), Err(Skew::TooNew { .. })));
        assert_eq!(OWN.common(9, 2), Ok(2), "an oldest above the newest is none");
    }

    #[test]
    fn both_sides_of_a_skew_come_to_the_same() {
        let program = |oldest, newest| Spoken { oldest, newest, ..OWN };
        let unnumbered = program(0, 0);
        assert_eq!(unnumbered.common(1, 3), Ok(0), "it names none, whatever it is told");
        assert_eq!(OWN.common(0, 0).map(|spoken| spoken.max(1)), Ok(1));
        let later = program(PROTOCOL, PROTOCOL + 1);
        assert_eq!(later.common(OWN.oldest, OWN.newest), OWN.common(later.oldest, later.newest));
        let much_later = program(PROTOCOL + 1, PROTOCOL + 2);
        let said = much_later.common(OWN.oldest, OWN.newest).unwrap_err().to_string();
        let (theirs, ours) =
            (format!("speaks protocol {PROTOCOL} at the newest"), format!("protocols {}", PROTOCOL + 1));
        assert!(said.contains(&theirs) && said.contains("too old") && said.contains(&ours), "{said}");
        let after_that = Spoken { release: "0.9.0", oldest_release: (0, 8), ..OWN };
        let said = after_that.check_release("0.1.0").unwrap_err().to_string();
        assert!(said.contains("it is release 0.1.0, which is too old for this release (0.9.0)"), "{said}");
        assert!(said.contains("releases 0.8 to 0.10"), "{said}");
    }
}
