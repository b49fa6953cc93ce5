//! Which TensorRT a `trtexec` belongs to.
//!
//! There is no `--version`. The first line of `--help` (and of every run) carries the number in one of two encodings:
//! `[TensorRT v8601]` is 8.6.1 (thousands and hundreds, up to 9.x), `[TensorRT v101601] [b11]` is 10.16.1 build 11
//! (ten thousands and hundreds, from 10.0 on; the build number from 10.4 on).

use serde::{Deserialize, Serialize};
use std::{cmp::Ordering, fmt, str::FromStr};

/// Codes below this are in the encoding of 8.x and 9.x.
const FIRST_RTX_CODE: u32 = 10_000;
/// Codes from here on are TensorRT's from 10.0 on. What lies between are those of TensorRT for RTX, another product with a
/// tool of the same name: 10701 is its 1.7.1.
const FIRST_WIDE_CODE: u32 = 100_000;

/// A release of TensorRT. Without a build number it orders before every build of its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
    /// Printed by 10.4 and newer.
    pub build: Option<u32>,
}

/// A text or number that names no TensorRT release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a TensorRT version such as 8.6.1 or 10.16.1.11")]
pub struct VersionError {
    text: String,
}

impl Version {
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch, build: None }
    }

    /// From the number after `TensorRT v` and the one after `b`.
    pub fn from_code(code: u32, build: Option<u32>) -> Option<Self> {
        let per_major = match code {
            ..FIRST_RTX_CODE => 1_000,
            FIRST_RTX_CODE..FIRST_WIDE_CODE => return None,
            FIRST_WIDE_CODE.. => 10_000,
        };
        let version = Self { major: code / per_major, minor: code % per_major / 100, patch: code % 100, build };
        // 8.x and 9.x have one digit for the minor number; what says otherwise is no code of theirs.
        (version.major > 0).then_some(version)
    }

    /// From a line such as `&&&& RUNNING TensorRT.trtexec [TensorRT v101601] [b11] # trtexec --help`.
    pub fn from_banner(line: &str) -> Option<Self> {
        let (code, build) = banner(line)?;
        Self::from_code(code, build)
    }

    /// The version of TensorRT for RTX whose tool printed this line, `1.7.1`.
    pub fn rtx_from_banner(line: &str) -> Option<String> {
        let (code, _) = banner(line)?;
        let rtx = (FIRST_RTX_CODE..FIRST_WIDE_CODE).contains(&code);
        rtx.then(|| format!("{}.{}.{}", code / 10_000, code % 10_000 / 100, code % 100))
    }

    /// The release without its build.
    pub fn release(self) -> Self {
        Self { build: None, ..self }
    }

    fn parts(self) -> (u32, u32, u32, Option<u32>) {
        (self.major, self.minor, self.patch, self.build)
    }
}

/// The number after `TensorRT v` and the one after `b`.
fn banner(line: &str) -> Option<(u32, Option<u32>)> {
    let rest = line.trim_start().strip_prefix("&&&& ")?;
    let rest = rest
        .split_once(" [TensorRT v")
        .filter(|(tool, _)| tool.contains(".trtexec") || tool.contains(".tensorrt_rtx"))?
        .1;
    let (code, rest) = rest.split_once(']')?;
    let build = rest.strip_prefix(" [b").and_then(|rest| rest.split_once(']')).and_then(|(b, _)| b.parse().ok());
    Some((code.parse().ok()?, build))
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        self.build.map_or(Ok(()), |build| write!(f, ".{build}"))
    }
}

impl FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || VersionError { text: text.chars().take(40).collect() };
        let parts = text.split('.').map(str::parse).collect::<Result<Vec<u32>, _>>().map_err(|_| fail())?;
        match parts[..] {
            [major, minor] => Ok(Self::new(major, minor, 0)),
            [major, minor, patch] => Ok(Self::new(major, minor, patch)),
            [major, minor, patch, build] => Ok(Self { build: Some(build), ..Self::new(major, minor, patch) }),
            _ => Err(fail()),
        }
    }
}

impl Serialize for Version {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_encodings_are_read() {
        for (line, text) in [
            ("&&&& RUNNING TensorRT.trtexec [TensorRT v101601] [b11] # trtexec --help", "10.16.1.11"),
            ("&&&& RUNNING TensorRT.trtexec [TensorRT v100300] # trtexec --help", "10.3.0"),
            ("&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # /usr/src/tensorrt/bin/trtexec --help", "8.6.1"),
            ("&&&& PASSED TensorRT.trtexec [TensorRT v8401] # trtexec", "8.4.1"),
            ("&&&& FAILED TensorRT.trtexec [TensorRT v9300] # trtexec", "9.3.0"),
            ("&&&& RUNNING TensorRT.trtexec [TensorRT v110100] [b106] # trtexec -h", "11.1.0.106"),
            ("&&&& RUNNING TensorRT.trtexec [TensorRT v8611] # trtexec", "8.6.11"),
        ] {
            assert_eq!(Version::from_banner(line).unwrap().to_string(), text, "{line}");
        }
        for line in [
            "",
            "&&&& RUNNING",
            "TensorRT v101601",
            "&&&& RUNNING TensorRT.trtexec [TensorRT vx] #",
            "&&&& R [TensorRT v8601]",
        ] {
            assert_eq!(Version::from_banner(line), None, "{line}");
        }
    }

    #[test]
    fn the_other_products_tool_is_told_apart() {
        for (code, version) in [("10701", "1.7.1"), ("10300", "1.3.0"), ("19901", "1.99.1"), ("20000", "2.0.0")] {
            let line = format!("&&&& RUNNING TensorRT.trtexec [TensorRT v{code}] [b39] # tensorrt_rtx --help");
            assert_eq!(Version::from_banner(&line), None, "{line}");
            assert_eq!(Version::rtx_from_banner(&line).as_deref(), Some(version));
        }
        for code in ["8601", "9300", "100300", "110100"] {
            let line = format!("&&&& RUNNING TensorRT.trtexec [TensorRT v{code}] # trtexec");
            assert!(Version::from_banner(&line).is_some() && Version::rtx_from_banner(&line).is_none(), "{line}");
        }
    }

    #[test]
    fn versions_order_by_number() {
        let mut versions: Vec<Version> = ["10.3.0", "8.6.1", "10.16.1.11", "10.16.1", "11.0", "9.3.0", "10.16.1.9"]
            .map(|v| v.parse().unwrap())
            .into();
        versions.sort();
        let texts: Vec<_> = versions.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["8.6.1", "9.3.0", "10.3.0", "10.16.1", "10.16.1.9", "10.16.1.11", "11.0.0"]);
        assert!("10".parse::<Version>().is_err() && "10.x".parse::<Version>().is_err());
    }
}
