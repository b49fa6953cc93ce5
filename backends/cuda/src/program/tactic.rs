//! How a step with a choice is computed.

use super::{MAX_WORKSPACE_BYTES, work::check_launch};
use serde::{Deserialize, Serialize};

/// How a step with a choice is computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Tactic {
    /// A cuDNN engine by its number and knobs.
    Dnn {
        engine: i64,
        knobs: Vec<(u32, i64)>,
        workspace_bytes: u64,
        /// Whether it waits for a kernel ahead of it that lets it begin early, where that was tried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waits: Option<bool>,
    },
    /// A cuBLASLt algorithm.
    Blas {
        #[serde(with = "hex_words")]
        words: [u64; 8],
        workspace_bytes: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waits: Option<bool>,
        /// Makes the activation in place behind it. Absent: the library's epilogue makes it, of GELU the form with tanh
        /// whatever form is wanted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<After>,
    },
    /// A generated kernel.
    Kernel {
        source: usize,
        grid: [u32; 3],
        block: [u32; 3],
        /// Dynamic shared memory of one block.
        #[serde(default)]
        shared_bytes: u32,
    },
}

/// A generated kernel behind a library's; its only argument is the step's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct After {
    pub source: usize,
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

impl Tactic {
    /// Index of the source of the generated kernel that it runs, where it runs one.
    pub fn source(&self) -> Option<usize> {
        match self {
            Self::Kernel { source, .. } | Self::Blas { after: Some(After { source, .. }), .. } => Some(*source),
            Self::Dnn { .. } | Self::Blas { .. } => None,
        }
    }

    pub(crate) fn source_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Kernel { source, .. } | Self::Blas { after: Some(After { source, .. }), .. } => Some(source),
            Self::Dnn { .. } | Self::Blas { .. } => None,
        }
    }

    /// Whether the two are one, but for where their sources stand, which differs between programs.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let placeless = |tactic: &Self| {
            let mut tactic = tactic.clone();
            if let Some(source) = tactic.source_mut() {
                *source = 0;
            }
            tactic
        };
        placeless(self) == placeless(other)
    }

    pub fn workspace_bytes(&self) -> u64 {
        match self {
            Self::Dnn { workspace_bytes, .. } | Self::Blas { workspace_bytes, .. } => *workspace_bytes,
            Self::Kernel { .. } => 0,
        }
    }

    /// Of a library's tactic: what that wants now, whatever it wanted when it was chosen.
    pub(crate) fn set_workspace_bytes(&mut self, bytes: u64) {
        match self {
            Self::Dnn { workspace_bytes, .. } | Self::Blas { workspace_bytes, .. } => *workspace_bytes = bytes,
            Self::Kernel { .. } => {}
        }
    }

    pub fn is_library(&self) -> bool {
        !matches!(self, Self::Kernel { .. })
    }

    /// Whether it waits by itself for a kernel ahead of it that lets it begin early.
    pub fn waits(&self) -> bool {
        match self {
            Self::Dnn { waits, .. } | Self::Blas { waits, .. } => *waits == Some(true),
            Self::Kernel { .. } => true,
        }
    }

    /// Of a library's tactic: whether it was seen to wait for what is ahead of it.
    pub(crate) fn set_waits(&mut self, seen: bool) {
        match self {
            Self::Dnn { waits, .. } | Self::Blas { waits, .. } => *waits = Some(seen),
            Self::Kernel { .. } => {}
        }
    }

    /// Whose it is.
    pub fn library(&self) -> &'static str {
        match self {
            Self::Dnn { .. } => "cudnn",
            Self::Blas { after: None, .. } => "cublaslt",
            Self::Blas { after: Some(_), .. } => "cublaslt+kernel",
            Self::Kernel { .. } => "kernel",
        }
    }

    /// For lists and for forcing.
    pub fn name(&self) -> String {
        match self {
            Self::Dnn { engine, knobs, .. } => {
                let knobs: String = knobs.iter().map(|(kind, value)| format!(" k{kind}={value}")).collect();
                format!("cudnn eng{engine}{knobs}")
            }
            Self::Blas { words, after, .. } => {
                let after = if after.is_some() { ", then a kernel" } else { "" };
                format!("cublaslt {:x}{after}", words.iter().fold(0, |a, w| a ^ w))
            }
            Self::Kernel { grid, block, .. } => format!("kernel {}x{}", grid[0], block[0]),
        }
    }
}

/// More shared memory than a block has on any device.
const SHARED_MAX_BYTES: u32 = 256 << 10;

/// Words as one text: JSON numbers do not hold all of 64 bits.
mod hex_words {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(words: &[u64; 8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&words.map(|word| format!("{word:016x}")).concat())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u64; 8], D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || D::Error::custom("an algorithm is 128 hexadecimal digits");
        if text.len() != 128 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut words = [0; 8];
        for (index, word) in words.iter_mut().enumerate() {
            *word = u64::from_str_radix(&text[index * 16..][..16], 16).map_err(|_| wrong())?;
        }
        Ok(words)
    }
}

impl Tactic {
    /// Whether any device runs it.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Kernel { grid, block, shared_bytes, .. } => {
                check_launch(*grid, *block)?;
                if *shared_bytes > SHARED_MAX_BYTES {
                    return Err("more shared memory than a block has");
                }
            }
            Self::Dnn { workspace_bytes, .. } | Self::Blas { workspace_bytes, .. } => {
                if *workspace_bytes > MAX_WORKSPACE_BYTES {
                    return Err("a larger workspace than tactics have");
                }
                if let Self::Blas { after: Some(after), .. } = self {
                    check_launch(after.grid, after.block)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blas(source: Option<usize>) -> Tactic {
        let after = source.map(|source| After { source, grid: [7, 1, 1], block: [256, 1, 1] });
        Tactic::Blas { words: [5; 8], workspace_bytes: 64, waits: Some(true), after }
    }

    #[test]
    fn a_tactic_is_like_another_wherever_its_source_stands() {
        assert!(blas(Some(1)).is_like(&blas(Some(9))) && blas(Some(1)) != blas(Some(9)));
        assert!(!blas(Some(1)).is_like(&blas(None)));
        let mut other = blas(Some(1));
        other.set_waits(false);
        assert!(!blas(Some(1)).is_like(&other));
    }

    #[test]
    fn recipes_of_older_compilers_are_read_and_stay_what_they_were() {
        let words = "0000000000000005".repeat(8);
        let text = format!(r#"{{"by":"blas","words":"{words}","workspace_bytes":64,"waits":true}}"#);
        let tactic: Tactic = serde_json::from_str(&text).unwrap();
        assert_eq!(tactic, blas(None));
        assert_eq!(serde_json::to_string(&tactic).unwrap(), text);
    }
}
