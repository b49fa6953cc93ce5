//! Machine code as it is handed to the driver.
//!
//! The driver takes an address and no length: it reads what the headers of the image (ELF, 64 bits) tell it to, and a
//! launch reads as many arguments, of such sizes, as the image says its kernel has. A [`Cubin`] is an image all of whose
//! tables were walked: whatever they name lies inside of it. [`Gpu::load`](super::device::Gpu::load) takes nothing else,
//! and a launch is held to the parameters that were found.
//!
//! What is checked: the header; that segments, sections and the tables themselves lie within the image, where their
//! alignment wants them; entry sizes; names, which end within their string table; symbols and relocations, which name
//! sections and symbols that exist; notes and attributes, whose lengths stay within their section; memory without bytes
//! in the file, which is bounded. What instructions do when they run is beyond any check: a plan is executable code.

use std::collections::BTreeMap;

/// Largest image that is looked at; generated kernels stay far below.
const IMAGE_MAX_BYTES: usize = 64 << 20;
/// Most memory that a segment or a section without bytes may ask for.
const MEMORY_MAX_BYTES: u64 = 1 << 30;
/// Most bytes that all parameters of one kernel take.
const PARAMETERS_MAX_BYTES: u32 = 32_764;

const HEADER_BYTES: usize = 64;
const SECTION_HEADER_BYTES: usize = 64;
const SEGMENT_HEADER_BYTES: usize = 56;
/// 64 bits, little endian, first version of the format.
const IDENTITY: &[u8] = b"\x7fELF\x02\x01\x01";
/// Linked, to be run.
const TYPE_EXECUTABLE: u16 = 2;
const MACHINE_CUDA: u16 = 190;
/// The two layouts of the header's flags that are known: where they have the compute capability.
const ABI_UNTIL_CUDA_12: [u8; 2] = [0x33, 7];
const ABI_SINCE_CUDA_13: [u8; 2] = [0x41, 8];

const SEGMENT_OF_TABLE: u32 = 6;

const SYMBOLS: u32 = 2;
const STRINGS: u32 = 3;
const RELOCATIONS_WITH_ADDENDS: u32 = 4;
const NOTES: u32 = 7;
/// Has a size and no bytes.
const NO_BITS: u32 = 8;
const RELOCATIONS: u32 = 9;
/// NVIDIA's own: attributes of the whole image, or of the kernel that the section's name ends with.
const ATTRIBUTES: u32 = 0x7000_0000;
const ATTRIBUTES_OF: &[u8] = b".nv.info.";
/// `sh_info` is the number of a section.
const FLAG_INFO_IS_SECTION: u64 = 0x40;
/// Section numbers of symbols from here on mean something else than a section.
const FIRST_RESERVED: u16 = 0xff00;

/// An attribute with bytes of its own; every other form has its value in the four bytes of the entry.
const ATTRIBUTE_WITH_BYTES: u8 = 4;
/// Describes one parameter of a kernel: its number, and where among all parameters it lies.
const ATTRIBUTE_PARAMETER: u8 = 0x17;
/// Bytes of all parameters of a kernel together.
const ATTRIBUTE_PARAMETERS_BYTES: u8 = 0x19;

/// Why bytes are no machine code that the driver is given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CubinError {
    #[error("it is shorter than an ELF header")]
    Short,
    #[error("it has {bytes} bytes, more than the {IMAGE_MAX_BYTES} allowed")]
    Long { bytes: usize },
    #[error("it is not ELF of 64 bits")]
    NotElf,
    #[error("it is for machine {machine}, not for a GPU ({MACHINE_CUDA})")]
    Machine { machine: u16 },
    #[error("it is no image that is ready to run (type {kind})")]
    Kind { kind: u16 },
    #[error("its {table} have entries of {bytes} bytes, not {expected}")]
    EntrySize { table: &'static str, bytes: u64, expected: u64 },
    #[error("its {table} reach beyond it")]
    Beyond { table: &'static str },
    #[error("its {table} are not aligned")]
    Unaligned { table: &'static str },
    #[error("its section headers are too few")]
    NoSections,
    #[error("segment {segment} {problem}")]
    Segment { segment: usize, problem: &'static str },
    #[error("section {section} {problem}")]
    Section { section: usize, problem: &'static str },
}

/// Machine code that was checked from end to end: the only kind that a device loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin<'a> {
    bytes: &'a [u8],
    capability: Option<u32>,
    /// By kernel: how many bytes each of its parameters has.
    parameters: BTreeMap<String, Vec<u32>>,
}

impl<'a> Cubin<'a> {
    /// Checks an image; nothing of it is copied.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, CubinError> {
        if bytes.len() < HEADER_BYTES {
            return Err(CubinError::Short);
        }
        if bytes.len() > IMAGE_MAX_BYTES {
            return Err(CubinError::Long { bytes: bytes.len() });
        }
        if !bytes.starts_with(IDENTITY) {
            return Err(CubinError::NotElf);
        }
        let kind = u16_at(bytes, 16);
        if kind != TYPE_EXECUTABLE {
            return Err(CubinError::Kind { kind });
        }
        let machine = u16_at(bytes, 18);
        if machine != MACHINE_CUDA {
            return Err(CubinError::Machine { machine });
        }
        let flags = u32_at(bytes, 48);
        let capability = match [bytes[7], bytes[8]] {
            ABI_UNTIL_CUDA_12 => Some(flags & 0xff),
            ABI_SINCE_CUDA_13 => Some(flags >> 8 & 0xff),
            _ => None,
        };
        segments(bytes)?;
        let parameters = Sections::of(bytes)?.check()?;
        Ok(Self { bytes, capability, parameters })
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Compute capability that it is for, without its dot; `None` where this program does not know the layout of the
    /// header's flags. The driver refuses what is for another device.
    pub fn capability(&self) -> Option<u32> {
        self.capability
    }

    /// By kernel: how many bytes each of its parameters has.
    pub fn parameters(&self) -> &BTreeMap<String, Vec<u32>> {
        &self.parameters
    }
}

/// Checks the program headers and the segments that they name.
fn segments(image: &[u8]) -> Result<(), CubinError> {
    const TABLE: &str = "program headers";
    let at = u64_at(image, 32);
    let (bytes, count) = (u16_at(image, 54), u16_at(image, 56));
    if count == 0 {
        return Ok(());
    }
    let headers = table(image, TABLE, at, u64::from(count), u64::from(bytes), SEGMENT_HEADER_BYTES)?;
    for (segment, header) in headers.chunks_exact(SEGMENT_HEADER_BYTES).enumerate() {
        let fail = |problem| Err(CubinError::Segment { segment, problem });
        let [offset, file_bytes, memory_bytes, alignment] = [8, 32, 40, 48].map(|field| u64_at(header, field));
        if within(image, offset, file_bytes).is_none() {
            return fail("reaches beyond the image");
        }
        if memory_bytes < file_bytes || memory_bytes > MEMORY_MAX_BYTES {
            return fail("has a size in memory that it cannot have");
        }
        if !is_aligned(offset, alignment) {
            return fail("is not aligned");
        }
        if u32_at(header, 0) == SEGMENT_OF_TABLE && (offset, file_bytes) != (at, headers.len() as u64) {
            return fail("is not the program headers, as it says");
        }
    }
    Ok(())
}

/// A table of entries of the size they must have, aligned to 8 bytes.
fn table<'a>(
    image: &'a [u8],
    table: &'static str,
    at: u64,
    count: u64,
    bytes: u64,
    expected: usize,
) -> Result<&'a [u8], CubinError> {
    let expected = expected as u64;
    if bytes != expected {
        return Err(CubinError::EntrySize { table, bytes, expected });
    }
    if !at.is_multiple_of(8) {
        return Err(CubinError::Unaligned { table });
    }
    // Both are of 16 bits: no overflow.
    within(image, at, count * bytes).ok_or(CubinError::Beyond { table })
}

/// One section's header.
#[derive(Clone, Copy)]
struct Section<'a> {
    name: u32,
    kind: u32,
    flags: u64,
    offset: u64,
    bytes: u64,
    link: u32,
    info: u32,
    alignment: u64,
    entry_bytes: u64,
    /// What lies in the file.
    content: &'a [u8],
}

/// All sections, each within the image.
struct Sections<'a> {
    all: Vec<Section<'a>>,
    /// Names of sections.
    names: usize,
}

impl<'a> Sections<'a> {
    fn of(image: &'a [u8]) -> Result<Self, CubinError> {
        const TABLE: &str = "section headers";
        let (bytes, count, names) = (u16_at(image, 58), u16_at(image, 60), usize::from(u16_at(image, 62)));
        // No sections would mean that their number stands elsewhere.
        if names == 0 || names >= usize::from(count) {
            return Err(CubinError::NoSections);
        }
        let at = u64_at(image, 40);
        let headers = table(image, TABLE, at, u64::from(count), u64::from(bytes), SECTION_HEADER_BYTES)?;
        let all = headers.chunks_exact(SECTION_HEADER_BYTES).enumerate().map(|(section, header)| {
            let (kind, offset, bytes) = (u32_at(header, 4), u64_at(header, 24), u64_at(header, 32));
            let file_bytes = if kind == NO_BITS { 0 } else { bytes };
            let content = within(image, offset, file_bytes)
                .ok_or(CubinError::Section { section, problem: "reaches beyond the image" })?;
            Ok(Section {
                name: u32_at(header, 0),
                kind,
                flags: u64_at(header, 8),
                offset,
                bytes,
                link: u32_at(header, 40),
                info: u32_at(header, 44),
                alignment: u64_at(header, 48),
                entry_bytes: u64_at(header, 56),
                content,
            })
        });
        Ok(Self { all: all.collect::<Result<_, _>>()?, names })
    }

    /// Checks every section and what it says of others; gives the parameters of each kernel.
    fn check(&self) -> Result<BTreeMap<String, Vec<u32>>, CubinError> {
        let mut parameters = BTreeMap::new();
        for (number, section) in self.all.iter().enumerate() {
            let fail = |problem| CubinError::Section { section: number, problem };
            if section.kind == NO_BITS && section.bytes > MEMORY_MAX_BYTES {
                return Err(fail("asks for more memory than any kernel has"));
            }
            if !is_aligned(section.offset, section.alignment) {
                return Err(fail("is not aligned"));
            }
            if section.link as usize >= self.all.len() {
                return Err(fail("is linked to a section that does not exist"));
            }
            if section.flags & FLAG_INFO_IS_SECTION != 0 && section.info as usize >= self.all.len() {
                return Err(fail("belongs to a section that does not exist"));
            }
            if section.entry_bytes != 0 && !section.bytes.is_multiple_of(section.entry_bytes) {
                return Err(fail("does not hold whole entries"));
            }
            let name = self.string(self.names, section.name).ok_or_else(|| fail("has a name without an end"))?;
            match section.kind {
                STRINGS => strings(section.content).map_err(fail)?,
                SYMBOLS => self.symbols(section).map_err(fail)?,
                RELOCATIONS => self.relocations(section, 16).map_err(fail)?,
                RELOCATIONS_WITH_ADDENDS => self.relocations(section, 24).map_err(fail)?,
                NOTES => notes(section.content).map_err(fail)?,
                ATTRIBUTES => {
                    let sizes = attributes(section.content).map_err(fail)?;
                    if let Some(kernel) = name.strip_prefix(ATTRIBUTES_OF) {
                        let kernel = str::from_utf8(kernel).map_err(|_| fail("has a name that is no text"))?;
                        if parameters.insert(kernel.to_owned(), sizes).is_some() {
                            return Err(fail("describes a kernel twice"));
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(parameters)
    }

    /// The section `number`, where it is of that kind.
    fn of_kind(&self, number: u32, kind: u32) -> Option<&Section<'a>> {
        self.all.get(number as usize).filter(|section| section.kind == kind)
    }

    /// The string at a place of a string table, without its end.
    fn string(&self, strings: usize, at: u32) -> Option<&'a [u8]> {
        let section = self.all.get(strings).filter(|section| section.kind == STRINGS)?;
        let rest = section.content.get(at as usize..)?;
        rest.iter().position(|&byte| byte == 0).map(|end| &rest[..end])
    }

    /// Symbols have names, and lie in sections that exist and are large enough for them.
    fn symbols(&self, table: &Section<'_>) -> Result<(), &'static str> {
        if table.entry_bytes != 24 {
            return Err("has symbols of another size than 24 bytes");
        }
        let names = self.of_kind(table.link, STRINGS).ok_or("has symbols without names")?;
        if names.content.last() != Some(&0) {
            return Err("has a name without an end");
        }
        for symbol in table.content.chunks_exact(24) {
            if u32_at(symbol, 0) as usize >= names.content.len() {
                return Err("has a symbol whose name lies elsewhere");
            }
            let number = u16_at(symbol, 6);
            if number == 0 || number >= FIRST_RESERVED {
                continue;
            }
            let section = self.all.get(usize::from(number)).ok_or("has a symbol of a section that does not exist")?;
            let end = u64_at(symbol, 8).checked_add(u64_at(symbol, 16));
            if end.is_none_or(|end| end > section.bytes) {
                return Err("has a symbol that reaches beyond its section");
            }
        }
        Ok(())
    }

    /// Relocations change a section that exists, inside of it, by symbols that exist.
    fn relocations(&self, table: &Section<'_>, entry_bytes: u64) -> Result<(), &'static str> {
        if table.entry_bytes != entry_bytes {
            return Err("has relocations of a size they never have");
        }
        let symbols = self.of_kind(table.link, SYMBOLS).ok_or("has relocations without symbols")?;
        let target = self.all.get(table.info as usize).ok_or("relocates a section that does not exist")?;
        for relocation in table.content.chunks_exact(entry_bytes as usize) {
            let symbol = u64_at(relocation, 8) >> 32;
            if symbol >= symbols.bytes / 24 {
                return Err("has a relocation by a symbol that does not exist");
            }
            if u64_at(relocation, 0) >= target.bytes {
                return Err("has a relocation beyond its section");
            }
        }
        Ok(())
    }
}

/// Begins and ends with the empty string, so that every string in it has an end.
fn strings(content: &[u8]) -> Result<(), &'static str> {
    let ends = |byte: Option<&u8>| byte == Some(&0);
    if ends(content.first()) && ends(content.last()) { Ok(()) } else { Err("is no table of strings") }
}

/// Notes lie one after another to the section's end.
fn notes(mut content: &[u8]) -> Result<(), &'static str> {
    const WRONG: &str = "has a note that reaches beyond it";
    while !content.is_empty() {
        let header = content.get(..12).ok_or(WRONG)?;
        let padded = |at: usize| (u32_at(header, at) as usize).checked_next_multiple_of(4);
        let (Some(name), Some(description)) = (padded(0), padded(4)) else { return Err(WRONG) };
        let bytes = name.checked_add(description).and_then(|bytes| bytes.checked_add(12));
        content = bytes.and_then(|bytes| content.get(bytes..)).ok_or(WRONG)?;
    }
    Ok(())
}

/// Attributes lie one after another to the section's end; gives the bytes of each parameter that they describe.
fn attributes(mut content: &[u8]) -> Result<Vec<u32>, &'static str> {
    const BEYOND: &str = "has an attribute that reaches beyond it";
    const WRONG: &str = "describes parameters that no kernel has";
    // By number: the bytes of a parameter.
    let mut sizes = BTreeMap::new();
    let (mut end, mut all) = (0, None);
    while !content.is_empty() {
        let (entry, rest) = content.split_at_checked(4).ok_or(BEYOND)?;
        let value = u16_at(entry, 2);
        let more = if entry[0] == ATTRIBUTE_WITH_BYTES { usize::from(value) } else { 0 };
        let (bytes, rest) = rest.split_at_checked(more).ok_or(BEYOND)?;
        content = rest;
        match entry[1] {
            ATTRIBUTE_PARAMETER => {
                // An index that is always 0, number, offset, and in the upper bits of the last word the size.
                if entry[0] != ATTRIBUTE_WITH_BYTES || bytes.len() != 12 {
                    return Err(WRONG);
                }
                let (number, offset, size) = (u16_at(bytes, 4), u16_at(bytes, 6), u32_at(bytes, 8) >> 18);
                end = end.max(u32::from(offset) + size);
                if size == 0 || sizes.insert(number, size).is_some() {
                    return Err(WRONG);
                }
            }
            ATTRIBUTE_PARAMETERS_BYTES => all = Some(u32::from(value)),
            _ => {}
        }
    }
    let numbered = sizes.keys().enumerate().all(|(index, &number)| index == usize::from(number));
    let bytes = all.unwrap_or(0);
    if !numbered || end > bytes || bytes > PARAMETERS_MAX_BYTES {
        return Err(WRONG);
    }
    Ok(sizes.into_values().collect())
}

/// A range of the image, where it lies inside.
fn within(image: &[u8], offset: u64, bytes: u64) -> Option<&[u8]> {
    let end = usize::try_from(offset.checked_add(bytes)?).ok()?;
    image.get(usize::try_from(offset).ok()?..end)
}

/// 0 and 1 ask for nothing; what is no power of two is no alignment.
fn is_aligned(offset: u64, alignment: u64) -> bool {
    alignment == 0 || (alignment.is_power_of_two() && offset.is_multiple_of(alignment))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

/// The bytes at a place that lies inside for certain.
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..][..N].try_into().expect("as many bytes")
}
