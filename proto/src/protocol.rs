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

use std::fmt;

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

/// Why two sides do not work together; names the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skew {
    /// It speaks nothing that is old enough for this release.
    TooNew(String),
    /// It speaks nothing that is new enough for this release.
    TooOld(String),
    /// What it says of itself cannot be understood.
    Unreadable(String),
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooNew(what) => write!(f, "{what}, which is too new for this release ({RELEASE}); {}", range()),
            Self::TooOld(what) => write!(f, "{what}, which is too old for this release ({RELEASE}); {}", range()),
            Self::Unreadable(what) => f.write_str(what),
        }
    }
}

fn range() -> String {
    let (major, minor) = OLDEST_RELEASE;
    let (own_major, own_minor) = own();
    format!(
        "it works with releases {major}.{minor} to {own_major}.{} and protocols {OLDEST_PROTOCOL} to {PROTOCOL}",
        own_minor + 1
    )
}

fn own() -> (u64, u64) {
    release(RELEASE).unwrap_or(OLDEST_RELEASE)
}

/// Major and minor of a release such as `0.1.0` or `0.2.0-rc.1`.
fn release(text: &str) -> Option<(u64, u64)> {
    let plain = text.split_once(['-', '+']).map_or(text, |(plain, _)| plain);
    let mut parts = plain.split('.').map(|part| part.parse::<u64>().ok());
    let (major, minor, patch) = (parts.next()??, parts.next()??, parts.next()??);
    (parts.next().is_none() && patch < u64::MAX).then_some((major, minor))
}

/// Whether the release that somebody says it is works with this one.
pub fn check_release(version: &str) -> Result<(), Skew> {
    let Some(theirs) = release(version) else {
        return Err(Skew::Unreadable(format!(
            "it calls its release '{}', which is no version",
            version.escape_debug()
        )));
    };
    let (major, minor) = own();
    let next = theirs == (major + 1, 0);
    match theirs {
        theirs if theirs < OLDEST_RELEASE => Err(Skew::TooOld(format!("it is release {version}"))),
        theirs if theirs > (major, minor + 1) && !next => Err(Skew::TooNew(format!("it is release {version}"))),
        _ => Ok(()),
    }
}

/// The newest protocol that both sides speak, given what the other says of itself; 0 says nothing.
pub fn common(oldest: u32, newest: u32) -> Result<u32, Skew> {
    let newest = newest.max(UNNUMBERED);
    let oldest = oldest.clamp(UNNUMBERED, newest);
    if oldest > PROTOCOL {
        return Err(Skew::TooNew(format!("it speaks protocol {oldest} at the oldest")));
    }
    if newest < OLDEST_PROTOCOL {
        return Err(Skew::TooOld(format!("it speaks protocol {newest} at the newest")));
    }
    Ok(newest.min(PROTOCOL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_before_and_the_one_after_are_welcome() {
        let (major, minor) = own();
        for fine in [RELEASE.to_owned(), format!("{major}.{}.7", minor + 1), format!("{}.0.0-rc.1", major + 1)] {
            assert_eq!(check_release(&fine), Ok(()), "{fine}");
        }
        for (wrong, word) in [("0.0.1", "too old"), ("99.0.0", "too new"), ("", "no version"), ("0", "no version")] {
            let said = check_release(wrong).unwrap_err().to_string();
            assert!(said.contains(word), "{wrong}: {said}");
        }
        assert!(check_release(&format!("{major}.{}.0", minor + 2)).is_err(), "one release of skew");
    }

    #[test]
    fn the_newest_that_both_speak_is_spoken() {
        assert_eq!(common(0, 0), Ok(1), "before protocols were numbered");
        assert_eq!(common(1, PROTOCOL), Ok(PROTOCOL));
        assert_eq!(common(PROTOCOL, PROTOCOL + 1), Ok(PROTOCOL), "a newer one that still speaks ours");
        assert!(matches!(common(PROTOCOL + 1, PROTOCOL + 2), Err(Skew::TooNew(_))));
        assert_eq!(common(9, 2), Ok(2), "an oldest above the newest is none");
    }
}
