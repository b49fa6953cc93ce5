//! The header of a timing cache: is the file worth handing to a build?
//!
//! trtexec overwrites the file in place, so a kill can leave a torn one, and newer versions end a build badly on it.
//! The offsets are an observation on 11.x files; others are let through and said to be unknown.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

const MAGIC: &[u8; 4] = b"ptrt";
/// Magic, tag and length, and what the length leaves out.
const LENGTH_LEAVES_OUT: u64 = 20;
const FINGERPRINT_AT: usize = 46;
const FINGERPRINT_BYTES: usize = 16;
const BUILD_AT: usize = 88;
const BUILD_DIGITS: usize = 16;
const HEAD_BYTES: u64 = 128;
/// The first tag whose length field is known.
const FIRST_KNOWN_TAG: u32 = 243;

/// What the first bytes of a timing cache say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimingCacheHeader {
    pub file_bytes: u64,
    /// Number of the serialization format; `None`: not a layout that is known.
    pub tag: Option<u32>,
    /// Differs between libraries' versions; recorded, never compared.
    pub fingerprint: Option<String>,
    /// Differs between TensorRT builds; recorded, never compared.
    pub build: Option<String>,
}

/// Why a file is no timing cache to use.
#[derive(Debug, thiserror::Error)]
pub enum TimingCacheError {
    #[error("cannot read the timing cache")]
    Io(#[from] io::Error),
    #[error("the timing cache is empty")]
    Empty,
    #[error("the timing cache says it has {stated} bytes, the file has {actual}: it was torn by a kill or a full disk")]
    Torn { stated: u64, actual: u64 },
}

impl TimingCacheHeader {
    /// Reads the header of the file at `path`.
    pub fn read(path: &Path) -> Result<Self, TimingCacheError> {
        let file = File::open(path)?;
        let file_bytes = file.metadata()?.len();
        let mut head = Vec::new();
        file.take(HEAD_BYTES).read_to_end(&mut head)?;
        Self::parse(&head, file_bytes)
    }

    /// Reads a header from the first bytes of a file of `file_bytes`.
    pub fn parse(head: &[u8], file_bytes: u64) -> Result<Self, TimingCacheError> {
        if head.is_empty() {
            return Err(TimingCacheError::Empty);
        }
        let unknown = Self { file_bytes, tag: None, fingerprint: None, build: None };
        let Some(rest) = head.strip_prefix(MAGIC) else { return Ok(unknown) };
        let torn = |stated| TimingCacheError::Torn { stated, actual: file_bytes };
        let Some((tag, rest)) = rest.split_first_chunk() else { return Err(torn(LENGTH_LEAVES_OUT)) };
        let tag = u32::from_le_bytes(*tag);
        if tag < FIRST_KNOWN_TAG {
            return Ok(Self { tag: Some(tag), ..unknown });
        }
        let Some((length, _)) = rest.split_first_chunk() else { return Err(torn(LENGTH_LEAVES_OUT)) };
        let stated = u64::from_le_bytes(*length).saturating_add(LENGTH_LEAVES_OUT);
        // A later layout may count otherwise: only a file that is too short is certainly torn.
        if stated > file_bytes || (tag == FIRST_KNOWN_TAG && stated != file_bytes) {
            return Err(torn(stated));
        }
        let part = |at: usize, bytes: usize| head.get(at..at + bytes);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let build = part(BUILD_AT, BUILD_DIGITS).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        Ok(Self {
            tag: Some(tag),
            fingerprint: part(FINGERPRINT_AT, FINGERPRINT_BYTES).map(hex),
            build: build.map(|digits| String::from_utf8_lossy(digits).into_owned()),
            ..unknown
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(tag: u32, bytes: usize) -> Vec<u8> {
        let mut cache = vec![0x11; bytes];
        cache[..4].copy_from_slice(MAGIC);
        cache[4..8].copy_from_slice(&tag.to_le_bytes());
        cache[8..16].copy_from_slice(&(bytes as u64 - LENGTH_LEAVES_OUT).to_le_bytes());
        cache[BUILD_AT..BUILD_AT + BUILD_DIGITS].copy_from_slice(b"0123456789abcdef");
        cache
    }

    fn parse(bytes: &[u8]) -> Result<TimingCacheHeader, TimingCacheError> {
        TimingCacheHeader::parse(bytes, bytes.len() as u64)
    }

    #[test]
    fn a_whole_cache_is_told_from_a_torn_one() {
        let whole = cache(243, 300);
        let header = parse(&whole).unwrap();
        assert_eq!((header.tag, header.build.as_deref()), (Some(243), Some("0123456789abcdef")));
        assert_eq!(header.fingerprint, Some("11".repeat(16)));
        for length in 4..300 {
            assert!(matches!(parse(&whole[..length]), Err(TimingCacheError::Torn { .. })), "{length}");
        }
        assert!(matches!(parse(&[]), Err(TimingCacheError::Empty)));
    }

    #[test]
    fn other_layouts_are_let_through() {
        assert_eq!(parse(b"PK\x03\x04").unwrap().tag, None);
        assert_eq!(parse(&cache(205, 200)[..150]).unwrap().tag, Some(205));
        assert_eq!(parse(&cache(250, 200)).unwrap().tag, Some(250));
        assert!(parse(&cache(250, 200)[..150]).is_err());
    }
}
