//! SKU names: what kind of device an engine is built for.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Longest SKU name; longer ones are refused so that names stay usable as path and label.
pub const SKU_MAX_BYTES: usize = 64;

/// A stable device-kind name such as `h100-sxm` or `cpu-x86-64-v3`: lower-case letters, digits, `-` and `.`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sku(String);

/// A text that cannot be a SKU name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a SKU name (lower-case letters, digits, '-' and '.', at most {SKU_MAX_BYTES} bytes)")]
pub struct SkuParseError {
    text: String,
}

impl Sku {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is a CPU instruction-set level.
    pub fn is_cpu(&self) -> bool {
        self.0.starts_with("cpu-")
    }
}

impl FromStr for Sku {
    type Err = SkuParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fine = !text.is_empty()
            && text.len() <= SKU_MAX_BYTES
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
            && text.as_bytes()[0].is_ascii_alphanumeric();
        if fine { Ok(Self(text.to_owned())) } else { Err(SkuParseError { text: text.chars().take(80).collect() }) }
    }
}

impl TryFrom<String> for Sku {
    type Error = SkuParseError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Sku> for String {
    fn from(sku: Sku) -> Self {
        sku.0
    }
}

impl fmt::Display for Sku {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Sku {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sku({})", self.0)
    }
}
