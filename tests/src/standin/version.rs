//! Versions, and what changed between them.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Major, minor, patch, build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version(pub [u32; 4]);

impl Version {
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self([major, minor, patch, 0])
    }

    pub fn major(self) -> u32 {
        self.0[0]
    }

    /// The number in the verdict line: the encoding widened with version 10.
    pub fn code(self) -> u32 {
        let [major, minor, patch, _] = self.0;
        if major >= 10 { major * 10_000 + minor * 100 + patch } else { major * 1000 + minor * 100 + patch }
    }

    /// `[TensorRT v101303] [b9]`; the build is told from 10.4.
    pub fn tag(self) -> String {
        if self >= Self::new(10, 4, 0) {
            format!("[TensorRT v{}] [b{}]", self.code(), self.0[3])
        } else {
            format!("[TensorRT v{}]", self.code())
        }
    }

    /// `10.13.3`.
    pub fn short(self) -> String {
        let [major, minor, patch, _] = self.0;
        format!("{major}.{minor}.{patch}")
    }

    /// The number that plans and timing caches carry for their layout.
    pub fn serialization(self) -> u32 {
        match self {
            v if v >= Self::new(11, 0, 0) => 243,
            v if v >= Self::new(10, 11, 0) => 240,
            v if v >= Self::new(8, 6, 0) => 239,
            v if v >= Self::new(8, 5, 0) => 232,
            _ => 213,
        }
    }

    /// Library errors name the file and line up to 9.x, the interface's method from 10.0.
    pub fn names_methods(self) -> bool {
        self.major() >= 10
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch, build] = self.0;
        write!(f, "{major}.{minor}.{patch}.{build}")
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = [0; 4];
        let given: Vec<&str> = text.split('.').collect();
        if given.len() > parts.len() {
            return Err(format!("'{text}' has more than four numbers"));
        }
        for (part, number) in parts.iter_mut().zip(given) {
            *part = number.parse().map_err(|e| format!("'{text}' is no version: {e}"))?;
        }
        Ok(Self(parts))
    }
}

impl TryFrom<String> for Version {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.to_string()
    }
}
