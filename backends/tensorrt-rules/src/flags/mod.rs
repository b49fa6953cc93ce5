//! Which long options which `trtexec` has.
//!
//! | part | says |
//! |---|---|
//! | [`table`] | every option with its first and last version, from NVIDIA's published sources |
//! | [`help`] | the options that an installed program lists |
//! | [`Capabilities`] | both together: what one installation can be asked |

mod capabilities;
pub mod help;
pub mod table;

pub use capabilities::Capabilities;

use crate::version::Version;
use table::{COLUMNS, FLAGS};

/// What follows `--name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing: present means on. The parser ignores a value, so `--fp16=false` turns fp16 on.
    Presence,
    Number,
    /// One word of a few.
    Choice,
    /// Items, mostly separated by commas.
    List,
    Path,
}

/// One long option.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// With its dashes.
    pub name: &'static str,
    pub since: Version,
    /// Last column that has it; `None` while the newest does.
    pub until: Option<Version>,
    /// Columns between the two that lack it.
    pub missing: &'static [Version],
    pub value: Value,
    /// May be given more than once.
    pub repeats: bool,
    /// What does the same where it is missing; empty when nothing does.
    pub instead: &'static str,
}

const fn flag(name: &'static str, since: Version, until: Option<Version>, value: Value) -> Flag {
    Flag { name, since, until, missing: &[], value, repeats: false, instead: "" }
}

impl Flag {
    const fn missing(self, missing: &'static [Version]) -> Self {
        Self { missing, ..self }
    }

    const fn repeats(self) -> Self {
        Self { repeats: true, ..self }
    }

    const fn instead(self, instead: &'static str) -> Self {
        Self { instead, ..self }
    }

    /// Whether the sources of `version` parse it; a version between columns has the older column's.
    pub fn is_in(&self, version: Version) -> bool {
        let column = column(version);
        self.spans(version) && !self.missing.contains(&column)
    }

    /// Whether `version` lies between its first and last, gaps apart: a gap may be a fault of the published sources.
    pub fn spans(&self, version: Version) -> bool {
        let column = column(version);
        self.since <= column && self.until.is_none_or(|until| column <= until)
    }

    /// The versions that have it, for people: `8.6.0 to 10.16`, `10.4 and newer`.
    pub fn versions(&self) -> String {
        match self.until {
            Some(until) => format!("{} to {}.{}", self.since, until.major, until.minor),
            None => format!("{} and newer", self.since),
        }
    }
}

/// The newest column that is not newer than `version`; the oldest for what is older than all.
pub fn column(version: Version) -> Version {
    let release = version.release();
    COLUMNS.iter().rev().find(|column| **column <= release).copied().unwrap_or(COLUMNS[0])
}

/// The table's entry for `name`, dashes included.
pub fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_between_columns_have_the_older_ones_flags() {
        for (version, expected) in
            [("8.4.2", "8.4.1"), ("8.0.0", "8.2.1"), ("10.16.1.11", "10.16.0"), ("12.3", "11.1.0"), ("9.9", "9.3.0")]
        {
            assert_eq!(column(version.parse().unwrap()), expected.parse().unwrap(), "{version}");
        }
    }

    #[test]
    fn columns_ascend_and_every_flag_lives_within_them() {
        assert!(COLUMNS.is_sorted());
        for flag in FLAGS {
            let ends = [Some(flag.since), flag.until].into_iter().flatten().chain(flag.missing.iter().copied());
            for version in ends {
                assert!(COLUMNS.contains(&version), "{} {version}", flag.name);
            }
            assert_eq!(FLAGS.iter().filter(|other| other.name == flag.name).count(), 1, "{}", flag.name);
        }
    }

    #[test]
    fn people_are_told_the_versions() {
        assert_eq!(find("--fp16").unwrap().versions(), "8.2.1 to 10.16");
        assert_eq!(find("--maxTactics").unwrap().versions(), "10.4.0 and newer");
    }
}
