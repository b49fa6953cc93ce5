//! Toolchains: what turns a model into a plan, exactly enough that the plan means something.

use serde::{Deserialize, Serialize};
use std::{cmp::Ordering, collections::BTreeMap, fmt, str::FromStr};

/// An exact toolchain. Every field is part of the engine key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Toolchain {
    /// `native`, `tensorrt`, `onnxruntime`.
    pub backend: String,
    /// Dotted numbers; for `native` the compiler revision, raised whenever output changes.
    pub version: String,
    /// Other key-forming versions by name (`cuda`, `cudnn`, `cublaslt`, `driver_branch`), major.minor.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub components: BTreeMap<String, String>,
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.backend, self.version)?;
        for (name, version) in &self.components {
            write!(f, ", {name} {version}")?;
        }
        Ok(())
    }
}

/// What a request asks of the toolchain: `native`, `tensorrt=10.3`, `tensorrt>=10.3,<11`. The default matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ToolchainConstraint {
    /// Backend asked for; `None` matches every backend.
    backend: Option<String>,
    /// All must hold.
    bounds: Vec<(Bound, Vec<u64>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Bound {
    /// `=10.3` also matches 10.3.0.26: the given parts must be equal.
    Prefix,
    AtLeast,
    Above,
    AtMost,
    Below,
}

/// A text that is no toolchain constraint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a toolchain constraint: {reason}; write for example 'native', 'tensorrt=10.3' or 'tensorrt>=10.3,<11'"
)]
pub struct ConstraintParseError {
    text: String,
    reason: &'static str,
}

/// Splits a dotted version into numbers; anything after the first part that is no number is dropped.
fn version_parts(text: &str) -> Vec<u64> {
    text.split('.').map_while(|part| part.parse().ok()).collect()
}

/// Orders dotted versions by number, missing parts counting as zero.
pub fn compare_versions(left: &str, right: &str) -> Ordering {
    compare_parts(&version_parts(left), &version_parts(right))
}

fn compare_parts(left: &[u64], right: &[u64]) -> Ordering {
    let parts = left.len().max(right.len());
    let at = |v: &[u64], i: usize| v.get(i).copied().unwrap_or(0);
    (0..parts).map(|i| at(left, i).cmp(&at(right, i))).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

impl ToolchainConstraint {
    /// Whether `toolchain` satisfies every part of the constraint.
    pub fn matches(&self, toolchain: &Toolchain) -> bool {
        if self.backend.as_ref().is_some_and(|b| *b != toolchain.backend) {
            return false;
        }
        let have = version_parts(&toolchain.version);
        self.bounds.iter().all(|(bound, want)| {
            let order = compare_parts(&have, want);
            match bound {
                Bound::Prefix => have.len() >= want.len() && have[..want.len()] == want[..],
                Bound::AtLeast => order.is_ge(),
                Bound::Above => order.is_gt(),
                Bound::AtMost => order.is_le(),
                Bound::Below => order.is_lt(),
            }
        })
    }

    /// The backend asked for, when one is.
    pub fn backend(&self) -> Option<&str> {
        self.backend.as_deref()
    }
}

impl fmt::Display for ToolchainConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.backend.as_deref().unwrap_or(""))?;
        for (index, (bound, parts)) in self.bounds.iter().enumerate() {
            let sign = match bound {
                Bound::Prefix => "=",
                Bound::AtLeast => ">=",
                Bound::Above => ">",
                Bound::AtMost => "<=",
                Bound::Below => "<",
            };
            let version = parts.iter().map(u64::to_string).collect::<Vec<_>>().join(".");
            write!(f, "{}{sign}{version}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for ToolchainConstraint {
    type Err = ConstraintParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |reason| ConstraintParseError { text: text.chars().take(80).collect(), reason };
        let trimmed = text.trim();
        let name_end = trimmed.find(['<', '>', '=', ',']).unwrap_or(trimmed.len());
        let (name, mut rest) = trimmed.split_at(name_end);
        let name = name.trim();
        if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
            return Err(fail("the backend's name has a character that no backend has"));
        }
        let backend = (!name.is_empty()).then(|| name.to_ascii_lowercase());
        let mut bounds = Vec::new();
        while !rest.is_empty() {
            rest = rest.trim_start_matches([',', ' ']);
            let (bound, after) = match rest {
                r if r.starts_with(">=") => (Bound::AtLeast, &r[2..]),
                r if r.starts_with("<=") => (Bound::AtMost, &r[2..]),
                r if r.starts_with("==") => (Bound::Prefix, &r[2..]),
                r if r.starts_with('>') => (Bound::Above, &r[1..]),
                r if r.starts_with('<') => (Bound::Below, &r[1..]),
                r if r.starts_with('=') => (Bound::Prefix, &r[1..]),
                _ => return Err(fail("a version bound begins with =, <, <=, > or >=")),
            };
            let end = after.find(',').unwrap_or(after.len());
            let version = after[..end].trim();
            let parts = version_parts(version);
            if parts.is_empty() || parts.len() != version.split('.').count() {
                return Err(fail("a version is dotted numbers"));
            }
            bounds.push((bound, parts));
            rest = &after[end..];
        }
        if backend.is_none() && !bounds.is_empty() {
            return Err(fail("a version bound needs a backend before it"));
        }
        Ok(Self { backend, bounds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensorrt(version: &str) -> Toolchain {
        Toolchain { backend: "tensorrt".into(), version: version.into(), components: BTreeMap::new() }
    }

    #[test]
    fn bounds_compare_by_number() {
        let constraint: ToolchainConstraint = "tensorrt>=10.3,<11".parse().unwrap();
        assert!(constraint.matches(&tensorrt("10.3.0.26")));
        assert!(constraint.matches(&tensorrt("10.14.1")));
        assert!(!constraint.matches(&tensorrt("10.2.9")));
        assert!(!constraint.matches(&tensorrt("11.0")));
        let exact: ToolchainConstraint = "tensorrt=10.1".parse().unwrap();
        assert!(exact.matches(&tensorrt("10.1.0.27")));
        assert!(!exact.matches(&tensorrt("10.13")));
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["tensorrt>=", ">=10", "tensorrt~10", "tensorrt>=x", "a b"] {
            assert!(bad.parse::<ToolchainConstraint>().is_err(), "{bad}");
        }
        assert!("".parse::<ToolchainConstraint>().unwrap().matches(&tensorrt("8.4")));
    }
}
