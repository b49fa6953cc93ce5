//! The plan file: a header, a table of sections, and the sections, each at a page.
//!
//! ```text
//! 0   magic "PLANFORG"
//! 8   major u16, minor u16, number of sections u32
//! 16  SHA-256 of the 16 bytes before and the table after
//! 48  per section: kind u32, flags u32, offset u64, length u64, SHA-256
//! ```
//! Numbers are little-endian. A reader takes any minor version of its major version, skips sections it does not know
//! and refuses those among them that are required. Every byte of a file is either covered by a digest or must be
//! zero, so no damage goes unseen. Which kinds there are, and of which device they are, is listed here once.

use bytes::Bytes;
use planforge_types::Digest;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::File,
    io::{self, BufWriter, Seek, SeekFrom, Write},
    path::Path,
};

/// First bytes of every plan file.
pub const MAGIC: [u8; 8] = *b"PLANFORG";
/// Format version; readers take any minor of their major.
pub const MAJOR: u16 = 1;
pub const MINOR: u16 = 0;
/// Sections begin at multiples of this, so that they can be mapped.
pub const SECTION_ALIGNMENT: u64 = 4096;
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 56;
/// Most sections of a file; bounds what a damaged header can ask for.
const SECTIONS_MAX: usize = 64;
const FLAG_REQUIRED: u32 = 1;

/// Kinds of sections. What a CPU's plan says of itself, and packed constants of any plan.
pub const KIND_MANIFEST: u32 = 1;
pub const KIND_WEIGHTS: u32 = 2;
/// The model of a CPU's plan of varying shapes: its message and its weights.
pub const KIND_MODEL: u32 = 3;
pub const KIND_MODEL_WEIGHTS: u32 = 4;
/// What a plan for an NVIDIA device says of itself, its machine code, the library's own plans, and the model it can make
/// graphs of other shapes from: whole, as plans had it up to revision 6, or as its message and its weights.
pub const KIND_CUDA_MANIFEST: u32 = 16;
pub const KIND_CUDA_CODE: u32 = 17;
pub const KIND_CUDA_LIBRARY_PLANS: u32 = 18;
pub const KIND_CUDA_MODEL: u32 = 19;
pub const KIND_CUDA_MODEL_MESSAGE: u32 = 20;
pub const KIND_CUDA_MODEL_WEIGHTS: u32 = 21;

/// Kinds that say which device a plan is for.
const MANIFESTS: [(u32, &str); 2] = [(KIND_MANIFEST, "a CPU"), (KIND_CUDA_MANIFEST, "an NVIDIA device")];

/// Why a file is no plan that can be read.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error("it is no plan file of the native compiler (its first bytes are not '{}')", String::from_utf8_lossy(&MAGIC))]
    Magic,
    #[error("it has format version {major}.{minor}; this program reads {MAJOR}.x")]
    Version { major: u16, minor: u16 },
    #[error("it ends after {actual} bytes, {expected} were expected")]
    Truncated { expected: u64, actual: u64 },
    #[error("it is damaged: {what} does not match its digest")]
    Damaged { what: String },
    #[error("it is damaged: {what}")]
    Malformed { what: String },
    #[error("it needs a section of kind {kind}, which this program does not know")]
    UnknownSection { kind: u32 },
    #[error("it is a plan for {device}")]
    OtherDevice { device: &'static str },
    #[error("it lacks its {what}")]
    Missing { what: &'static str },
    #[error("the plan could not be written")]
    Write(#[from] io::Error),
}

/// A section's place in the file.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    pub kind: u32,
    /// In bytes from the file's begin; a multiple of [`SECTION_ALIGNMENT`].
    pub offset: u64,
    /// In bytes.
    pub length: u64,
    flags: u32,
    digest: Digest,
}

impl Section {
    /// What the section's bytes have to be.
    pub fn digest(self) -> Digest {
        self.digest
    }

    /// The section's bytes in `file`, which is the one it was read from; shared with it.
    pub fn part(self, file: &Bytes) -> Bytes {
        file.slice(self.offset as usize..(self.offset + self.length) as usize)
    }

    /// The section's bytes in `file`, which is the one it was read from.
    pub fn bytes(self, file: &[u8]) -> &[u8] {
        &file[self.offset as usize..][..self.length as usize]
    }
}

fn header(sections: &[Section]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(MAJOR.to_le_bytes());
    bytes.extend(MINOR.to_le_bytes());
    bytes.extend((sections.len() as u32).to_le_bytes());
    let mut table = Vec::new();
    for section in sections {
        table.extend(section.kind.to_le_bytes());
        table.extend(section.flags.to_le_bytes());
        table.extend(section.offset.to_le_bytes());
        table.extend(section.length.to_le_bytes());
        table.extend(section.digest.as_raw());
    }
    let digest = Digest::of(&[&bytes[..], &table].concat());
    bytes.extend(digest.as_raw());
    bytes.extend(table);
    bytes
}

/// Writes sections one after another and the header last, so that a file that was not finished is no plan.
#[derive(Debug)]
pub struct Writer {
    file: BufWriter<File>,
    sections: Vec<Section>,
    at: u64,
}

impl Writer {
    /// Begins a file of `sections` sections.
    pub fn create(path: &Path, sections: usize) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let at = ((HEADER_BYTES + ENTRY_BYTES * sections) as u64).next_multiple_of(SECTION_ALIGNMENT);
        file.seek(SeekFrom::Start(at))?;
        Ok(Self { file, sections: Vec::new(), at })
    }

    /// Writes a required section through `body`.
    pub fn section<E: From<io::Error>>(
        &mut self,
        kind: u32,
        body: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<(), E> {
        self.append(kind, FLAG_REQUIRED, body)
    }

    /// Writes a section that a reader may do without.
    pub fn optional_section<E: From<io::Error>>(
        &mut self,
        kind: u32,
        body: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<(), E> {
        self.append(kind, 0, body)
    }

    fn append<E: From<io::Error>>(
        &mut self,
        kind: u32,
        flags: u32,
        body: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<(), E> {
        struct Hashed<'a> {
            file: &'a mut BufWriter<File>,
            digest: planforge_types::DigestWriter,
        }
        impl Write for Hashed<'_> {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let count = self.file.write(bytes)?;
                self.digest.update(&bytes[..count]);
                Ok(count)
            }
            fn flush(&mut self) -> io::Result<()> {
                self.file.flush()
            }
        }
        let padding = self.at.next_multiple_of(SECTION_ALIGNMENT) - self.at;
        self.file.write_all(&[0; SECTION_ALIGNMENT as usize][..padding as usize])?;
        self.at += padding;
        let mut hashed = Hashed { file: &mut self.file, digest: planforge_types::DigestWriter::new() };
        body(&mut hashed)?;
        let (offset, length) = (self.at, hashed.digest.bytes());
        let digest = hashed.digest.finish();
        self.sections.push(Section { kind, offset, length, flags, digest });
        self.at += length;
        Ok(())
    }

    /// Writes the header and waits until the file is on disk.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&header(&self.sections))?;
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.set_len(self.at)?;
        file.sync_all()
    }
}

/// Canonical JSON of a manifest, which reads back as the same manifest.
pub fn canonical<M: Serialize + DeserializeOwned + PartialEq>(manifest: &M) -> io::Result<Vec<u8>> {
    let bytes = serde_json_canonicalizer::to_vec(manifest).map_err(io::Error::other)?;
    // A number JSON cannot hold (an infinite bound, say) must fail here, not when the plan is loaded.
    match serde_json::from_slice::<M>(&bytes) {
        Ok(back) if back == *manifest => Ok(bytes),
        Ok(_) => Err(io::Error::other("the manifest does not read back as it was written")),
        Err(error) => Err(io::Error::other(format!("the manifest does not read back: {error}"))),
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// The kind of a plan's first section, which says what device it is for, from the file's first
/// `planforge_backend::PLAN_HEAD_BYTES`; `None` when it is no plan. Nothing is checked.
pub fn first_kind(head: &[u8]) -> Option<u32> {
    head.starts_with(&MAGIC).then(|| head.get(HEADER_BYTES..HEADER_BYTES + 4).map(|kind| number(kind) as u32))?
}

/// The header and the longest table.
pub const HEAD_MAX_BYTES: u64 = (HEADER_BYTES + SECTIONS_MAX * ENTRY_BYTES) as u64;

/// Reads and checks header and table from the first bytes (up to [`HEAD_MAX_BYTES`]) of a file of `actual` bytes: every
/// section lies where it should, and the last one ends with the file. Nothing is said of what the sections hold.
pub fn table(first: &[u8], actual: u64) -> Result<Vec<Section>, ContainerError> {
    if !first.starts_with(&MAGIC) {
        return Err(ContainerError::Magic);
    }
    let truncated = |expected: u64| ContainerError::Truncated { expected, actual };
    let head = first.get(..HEADER_BYTES).ok_or_else(|| truncated(HEADER_BYTES as u64))?;
    let (major, minor) = (number(&head[8..10]) as u16, number(&head[10..12]) as u16);
    if major != MAJOR {
        return Err(ContainerError::Version { major, minor });
    }
    let count = number(&head[12..16]) as usize;
    if count > SECTIONS_MAX {
        return Err(ContainerError::Malformed {
            what: format!("it lists {count} sections, at most {SECTIONS_MAX} are allowed"),
        });
    }
    let table_end = HEADER_BYTES + count * ENTRY_BYTES;
    let table = first.get(HEADER_BYTES..table_end).ok_or_else(|| truncated(table_end as u64))?;
    if Digest::of(&[&head[..16], table].concat()).as_raw() != &head[16..48] {
        return Err(ContainerError::Damaged { what: "the header".into() });
    }
    let mut sections = Vec::with_capacity(count);
    let mut end = table_end as u64;
    for entry in table.chunks_exact(ENTRY_BYTES) {
        let mut raw = [0; 32];
        raw.copy_from_slice(&entry[24..56]);
        let section = Section {
            kind: number(&entry[..4]) as u32,
            flags: number(&entry[4..8]) as u32,
            offset: number(&entry[8..16]),
            length: number(&entry[16..24]),
            digest: Digest::from_raw(raw),
        };
        let kind = section.kind;
        if section.offset != end.next_multiple_of(SECTION_ALIGNMENT) {
            return Err(ContainerError::Malformed { what: format!("section {kind} is not where it should be") });
        }
        let section_end = section.offset.checked_add(section.length).filter(|&end| end <= actual);
        let Some(section_end) = section_end else {
            return Err(truncated(section.offset.saturating_add(section.length)));
        };
        end = section_end;
        sections.push(section);
    }
    if end != actual {
        return Err(ContainerError::Malformed { what: format!("it goes on for {} bytes after its end", actual - end) });
    }
    Ok(sections)
}

/// Reads and checks the whole file: header, table, every section's digest, and the zeros between. Required sections
/// must be of a `known` kind.
pub fn read(file: &[u8], known: &[u32]) -> Result<Vec<Section>, ContainerError> {
    let sections = table(file, file.len() as u64)?;
    let mut end = HEADER_BYTES + sections.len() * ENTRY_BYTES;
    for section in &sections {
        let kind = section.kind;
        if file[end..section.offset as usize].iter().any(|&byte| byte != 0) {
            return Err(ContainerError::Malformed { what: format!("bytes before section {kind} are not zero") });
        }
        if !known.contains(&kind) && section.flags & FLAG_REQUIRED != 0 {
            let other = MANIFESTS.iter().find(|(manifest, _)| *manifest == kind);
            return Err(match other {
                Some((_, device)) => ContainerError::OtherDevice { device },
                None => ContainerError::UnknownSection { kind },
            });
        }
        if Digest::of(section.bytes(file)) != section.digest {
            return Err(ContainerError::Damaged { what: format!("section {kind}") });
        }
        end = (section.offset + section.length) as usize;
    }
    Ok(sections)
}

/// The one section of `kind`; `what` is what people call it.
pub fn only(sections: &[Section], kind: u32, what: &'static str) -> Result<Section, ContainerError> {
    let mut found = sections.iter().filter(|section| section.kind == kind);
    match (found.next(), found.next()) {
        (Some(section), None) => Ok(*section),
        (None, _) => Err(ContainerError::Missing { what }),
        _ => Err(ContainerError::Malformed { what: format!("it has more than one {what}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [u32; 2] = [KIND_MANIFEST, KIND_WEIGHTS];

    fn small() -> (tempfile::TempDir, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan");
        let mut writer = Writer::create(&path, 2).unwrap();
        writer.section::<io::Error>(KIND_MANIFEST, |out| out.write_all(b"{\"a\":1}")).unwrap();
        writer.section::<io::Error>(KIND_WEIGHTS, |out| out.write_all(&[7; 5000])).unwrap();
        writer.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        (folder, bytes)
    }

    #[test]
    fn what_is_written_is_read() {
        let (_folder, file) = small();
        let sections = read(&file, &KNOWN).unwrap();
        assert_eq!((first_kind(&file[..64]), first_kind(&file[1..])), (Some(KIND_MANIFEST), None));
        assert_eq!(sections[0].bytes(&file), b"{\"a\":1}");
        assert_eq!(sections[1].bytes(&file), [7; 5000]);
        assert!(sections.iter().all(|section| section.offset % SECTION_ALIGNMENT == 0));
    }

    #[test]
    fn every_flipped_byte_and_every_cut_is_noticed() {
        let (_folder, file) = small();
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(read(&damaged, &KNOWN).is_err(), "byte {at} was flipped unnoticed");
        }
        for len in 0..file.len() {
            assert!(read(&file[..len], &KNOWN).is_err(), "a cut to {len} bytes went unnoticed");
        }
        assert!(read(&[&file[..], &[0]].concat(), &KNOWN).is_err());
    }

    #[test]
    fn versions_and_required_sections_of_the_future_are_refused() {
        let (_folder, file) = small();
        let mut newer = file.clone();
        newer[8] = 2;
        let message = read(&newer, &KNOWN).unwrap_err().to_string();
        assert!(message.contains("2.0") && message.contains("1.x"), "{message}");
        let sections = [Section { kind: 99, offset: 4096, length: 0, flags: FLAG_REQUIRED, digest: Digest::of(b"") }];
        let mut unknown = header(&sections);
        unknown.resize(4096, 0);
        assert!(matches!(read(&unknown, &KNOWN), Err(ContainerError::UnknownSection { kind: 99 })));
        let other = read(&file, &[KIND_CUDA_MANIFEST, KIND_WEIGHTS]).unwrap_err().to_string();
        assert_eq!(other, "it is a plan for a CPU");
        let optional = [Section { flags: 0, ..sections[0] }];
        let mut unknown = header(&optional);
        unknown.resize(4096, 0);
        assert!(read(&unknown, &KNOWN).is_ok());
    }
}
