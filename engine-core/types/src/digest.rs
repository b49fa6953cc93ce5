//! SHA-256 digests: the identity of every blob, model and plan.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::{fmt, fs::File, io, path::Path, str::FromStr};

/// A SHA-256, written as 64 lower-case hex digits (what `sha256sum` prints).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// A text that is no digest.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("'{text}' is not a SHA-256 digest (64 hex digits)")]
pub struct DigestParseError {
    text: String,
}

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Wraps the 32 raw bytes of a SHA-256.
    pub fn from_raw(raw: [u8; 32]) -> Self {
        Self(raw)
    }

    /// The 32 raw bytes.
    pub fn as_raw(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first twelve hex digits, for people.
    pub fn short(&self) -> String {
        hex::encode(&self.0[..6])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = DigestParseError;

    /// Accepts 64 hex digits, with or without a leading `sha256:`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        let mut raw = [0; 32];
        hex::decode_to_slice(digits, &mut raw)
            .map_err(|_| DigestParseError { text: text.chars().take(80).collect() })?;
        Ok(Self(raw))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Hashes everything written to it and counts the bytes.
#[derive(Default, Clone, Debug)]
pub struct DigestWriter {
    hasher: Sha256,
    /// Bytes hashed so far.
    bytes: u64,
}

impl DigestWriter {
    /// Starts an empty hash.
    pub fn new() -> Self {
        Self::default()
    }

    /// The digest of a file's bytes, and how many there are.
    ///
    /// # Errors
    /// When the file cannot be opened or read.
    pub fn of_file(path: &Path) -> io::Result<(Digest, u64)> {
        let mut writer = Self::new();
        let bytes = io::copy(&mut File::open(path)?, &mut writer)?;
        Ok((writer.finish(), bytes))
    }

    /// Adds `bytes` to the hash.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// How many bytes were hashed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The digest of everything added.
    pub fn finish(self) -> Digest {
        Digest(self.hasher.finalize().into())
    }
}

impl io::Write for DigestWriter {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.update(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_sha256sum() {
        assert_eq!(Digest::of(b"abc").to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn parses_what_it_prints_and_refuses_the_rest() {
        let digest = Digest::of(b"x");
        assert_eq!(digest.to_string().parse::<Digest>(), Ok(digest));
        assert_eq!(format!("sha256:{digest}").parse::<Digest>(), Ok(digest));
        for bad in ["", "abc", &"g".repeat(64), &"a".repeat(63)] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
