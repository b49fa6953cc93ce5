//! The header of a serialized engine: is this file whole, and what wrote it?
//!
//! Only the first bytes are looked at; nothing in a plan is run or trusted. The layout is an observation on real files,
//! not a contract, so one that is not known is reported as such, never refused.

use crate::version::Version;
use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

/// Magic of plans from 8.6 on.
const FRAME_MAGIC: &[u8; 4] = b"ftrt";
/// Magic of older plans, and of the archive inside newer ones.
const ARCHIVE_MAGIC: &[u8; 4] = b"ptrt";
/// Up to and with the four version bytes.
const FRAME_BYTES: usize = 28;
/// Where the inner archive's tag stands.
const INNER_TAG_AT: usize = 64;
const INNER_ARCHIVE_AT: usize = 56;
/// Longest description that a wrapped plan may carry in front.
const MAX_WRAPPER_BYTES: usize = 1 << 20;
/// All that is ever read of a file.
pub const HEAD_MAX_BYTES: u64 = (4 + MAX_WRAPPER_BYTES + INNER_TAG_AT + 4) as u64;

/// How a plan is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanLayout {
    /// 8.6 and later: length and version in front.
    Framed,
    /// Up to 8.5: a magic and a tag; whether the file is whole cannot be told.
    Bare,
    /// Neither: a later layout, or no plan at all.
    Unknown,
}

/// What the first bytes of a plan say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanHeader {
    pub layout: PlanLayout,
    pub file_bytes: u64,
    /// Major, minor, patch and the build number modulo 256.
    pub version: Option<[u8; 4]>,
    /// Number of the serialization format; a runtime loads only its own.
    pub tag: Option<u32>,
    /// Length of the JSON description that another tool put in front, as Ultralytics' exporter does. TensorRT does not
    /// load such a file; the plan follows the description.
    pub wrapper_bytes: Option<u64>,
}

/// Why a file is no plan to accept.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("cannot read the plan")]
    Io(#[from] io::Error),
    #[error("the plan is empty")]
    Empty,
    #[error("the plan ends inside its header, after {bytes} bytes")]
    Truncated { bytes: u64 },
    #[error("the plan says it has {stated} bytes, the file has {actual}")]
    Length { stated: u64, actual: u64 },
}

impl PlanHeader {
    /// Reads the header of the file at `path`.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let file = File::open(path)?;
        let file_bytes = file.metadata()?.len();
        let mut head = Vec::new();
        file.take(HEAD_MAX_BYTES).read_to_end(&mut head)?;
        Self::parse(&head, file_bytes)
    }

    /// Reads a header from the first bytes of a file of `file_bytes`.
    pub fn parse(head: &[u8], file_bytes: u64) -> Result<Self, PlanError> {
        if file_bytes == 0 || head.is_empty() {
            return Err(PlanError::Empty);
        }
        match wrapper(head, file_bytes) {
            Some(length) => {
                let inner = file_bytes - length as u64;
                if inner == 0 {
                    return Err(PlanError::Truncated { bytes: file_bytes });
                }
                let header = Self::unwrapped(&head[length.min(head.len())..], inner)?;
                Ok(Self { wrapper_bytes: Some(length as u64), file_bytes, ..header })
            }
            None => Self::unwrapped(head, file_bytes),
        }
    }

    fn unwrapped(head: &[u8], file_bytes: u64) -> Result<Self, PlanError> {
        let unknown = Self { layout: PlanLayout::Unknown, file_bytes, version: None, tag: None, wrapper_bytes: None };
        let truncated = || PlanError::Truncated { bytes: file_bytes };
        if head.len() < FRAME_MAGIC.len() {
            return Err(truncated());
        }
        if head.starts_with(ARCHIVE_MAGIC) {
            let tag = u32_at(head, 4).ok_or_else(truncated)?;
            return Ok(Self { layout: PlanLayout::Bare, tag: Some(tag), ..unknown });
        }
        if !head.starts_with(FRAME_MAGIC) {
            return Ok(unknown);
        }
        let frame: [u32; 2] = [u32_at(head, 4).ok_or_else(truncated)?, u32_at(head, 8).ok_or_else(truncated)?];
        if frame != [0, 1] {
            return Ok(unknown);
        }
        if head.len() < FRAME_BYTES {
            return Err(truncated());
        }
        let stated = u64_at(head, 16).ok_or_else(truncated)?;
        if stated != file_bytes {
            return Err(PlanError::Length { stated, actual: file_bytes });
        }
        let version = head[24..FRAME_BYTES].try_into().ok();
        let inner = head.get(INNER_ARCHIVE_AT..).is_some_and(|inner| inner.starts_with(ARCHIVE_MAGIC));
        let tag = u32_at(head, INNER_TAG_AT).filter(|_| inner);
        Ok(Self { layout: PlanLayout::Framed, version, tag, ..unknown })
    }

    /// Whether this plan was written by `version`; `None` where the header does not say.
    pub fn is_of(&self, version: Version) -> Option<bool> {
        let [major, minor, patch, low_build] = self.version?.map(u32::from);
        let same_build = version.build.is_none_or(|build| build % 256 == low_build);
        Some(version.release() == Version::new(major, minor, patch) && same_build)
    }

    /// `10.5.0.18`; the last number is the build modulo 256. No TensorRT that writes its version is older than 8.6: lower
    /// ones are TensorRT for RTX's.
    pub fn version_text(&self) -> Option<String> {
        const FIRST_MAJOR: u8 = 8;
        self.version.map(|[major, minor, patch, build]| {
            let product = if major < FIRST_MAJOR { "for RTX " } else { "" };
            format!("{product}{major}.{minor}.{patch}.{build}")
        })
    }
}

/// Length of a JSON description with its own length in front, where there is one.
fn wrapper(head: &[u8], file_bytes: u64) -> Option<usize> {
    let length = u32_at(head, 0)? as usize;
    let fits = length <= MAX_WRAPPER_BYTES && (length as u64 + 4) <= file_bytes;
    let first = head.get(4)?;
    let last = head.get(3 + length)?;
    (fits && length >= 2 && *first == b'{' && *last == b'}').then_some(4 + length)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(total: u64) -> Vec<u8> {
        let mut bytes = vec![0; total as usize];
        bytes[..4].copy_from_slice(FRAME_MAGIC);
        bytes[8] = 1;
        bytes[16..24].copy_from_slice(&total.to_le_bytes());
        bytes[24..28].copy_from_slice(&[10, 14, 1, 48]);
        bytes[28..36].copy_from_slice(b"rtrtNGNE");
        bytes[56..60].copy_from_slice(ARCHIVE_MAGIC);
        bytes[64] = 240;
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<PlanHeader, PlanError> {
        PlanHeader::parse(bytes, bytes.len() as u64)
    }

    #[test]
    fn a_framed_plan_is_whole_when_its_length_is_the_files() {
        let bytes = framed(200);
        let header = parse(&bytes).unwrap();
        assert_eq!((header.layout, header.tag), (PlanLayout::Framed, Some(240)));
        assert_eq!(header.version_text().as_deref(), Some("10.14.1.48"));
        assert_eq!(header.is_of(Version { build: Some(48), ..Version::new(10, 14, 1) }), Some(true));
        assert_eq!(header.is_of(Version { build: Some(48 + 256), ..Version::new(10, 14, 1) }), Some(true));
        assert_eq!(header.is_of(Version { build: Some(47), ..Version::new(10, 14, 1) }), Some(false));
        assert_eq!(header.is_of(Version::new(10, 14, 2)), Some(false));
        for length in 1..200 {
            let error = parse(&bytes[..length]).unwrap_err();
            assert!(matches!(error, PlanError::Truncated { .. } | PlanError::Length { .. }), "{length}: {error}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(matches!(parse(&longer), Err(PlanError::Length { stated: 200, actual: 201 })));
        assert!(matches!(parse(&[]), Err(PlanError::Empty)));
    }

    #[test]
    fn a_plan_of_the_other_product_says_so() {
        let mut bytes = framed(100);
        bytes[24..28].copy_from_slice(&[1, 7, 1, 39]);
        let header = parse(&bytes).unwrap();
        assert_eq!(header.version_text().as_deref(), Some("for RTX 1.7.1.39"));
        assert_eq!(header.is_of(Version::new(10, 7, 1)), Some(false));
    }

    #[test]
    fn an_old_plan_has_a_tag_and_no_length() {
        let header = parse(b"ptrt\xe8\0\0\0rest").unwrap();
        assert_eq!((header.layout, header.tag, header.version), (PlanLayout::Bare, Some(232), None));
        assert_eq!(header.is_of(Version::new(8, 5, 2)), None);
        assert!(matches!(parse(b"ptrt\xe8"), Err(PlanError::Truncated { bytes: 5 })));
    }

    #[test]
    fn other_layouts_are_flagged() {
        assert_eq!(parse(b"something else").unwrap().layout, PlanLayout::Unknown);
        let mut later = framed(100);
        later[4] = 7;
        assert_eq!(parse(&later).unwrap().layout, PlanLayout::Unknown);
    }

    #[test]
    fn a_description_in_front_is_seen_through() {
        let description = br#"{"task": "detect"}"#;
        let mut bytes = (description.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(description);
        let wrapper = bytes.len() as u64;
        bytes.extend_from_slice(&framed(100));
        let header = parse(&bytes).unwrap();
        assert_eq!((header.layout, header.wrapper_bytes), (PlanLayout::Framed, Some(wrapper)));
        bytes.pop();
        assert!(matches!(parse(&bytes), Err(PlanError::Length { stated: 100, actual: 99 })));
        bytes.truncate(wrapper as usize);
        assert!(matches!(parse(&bytes), Err(PlanError::Truncated { .. })));
    }

    #[test]
    fn a_file_is_read_by_its_head() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.plan");
        std::fs::write(&path, framed(5000)).unwrap();
        assert_eq!(PlanHeader::read(&path).unwrap().file_bytes, 5000);
        assert!(matches!(PlanHeader::read(&folder.path().join("b.plan")), Err(PlanError::Io(_))));
    }
}
