//! What a shared library says of itself in its ELF headers, read without loading it.

use object::{
    Endianness,
    elf::{DT_NEEDED, FileHeader64},
    read::elf::{Dyn as _, FileHeader as _},
};
use std::{fs::File, path::Path};

/// Largest library that is mapped; CUDA providers are below 1 GiB.
const LIBRARY_MAX_BYTES: u64 = 8 << 30;
/// Most entries that are looked at in either table.
const ENTRIES_MAX: usize = 4096;

/// Facts of one library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ElfFacts {
    /// Symbol versions it defines, such as `VERS_1.31.1`.
    pub versions: Vec<String>,
    /// Libraries it needs, such as `libcudart.so.12`.
    pub needed: Vec<String>,
}

/// Reads a 64-bit library's facts; `None` when it is no such file.
pub(crate) fn facts(path: &Path) -> Option<ElfFacts> {
    let file = File::open(path).ok()?;
    let size = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
    if size > LIBRARY_MAX_BYTES {
        return None;
    }
    // SAFETY: the mapping is only read, and every offset in it is checked by the parser; a library that is replaced in
    // place while we read may give wrong facts, which the loaded library's own version then contradicts.
    let data = unsafe { memmap2::Mmap::map(&file) }.ok()?;
    parse(&data).ok()
}

fn parse(data: &[u8]) -> object::read::Result<ElfFacts> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut found = ElfFacts::default();
    if let Some((definitions, link)) = sections.gnu_verdef(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        let mut definitions = definitions;
        while let Some((_, mut names)) = definitions.next()? {
            while let Some(name) = names.next()? {
                if found.versions.len() < ENTRIES_MAX {
                    found.versions.push(String::from_utf8_lossy(name.name(endian, strings)?).into_owned());
                }
            }
        }
    }
    if let Some((entries, link)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for entry in
            entries.iter().take(ENTRIES_MAX).filter(|entry| entry.tag32(endian).map(i64::from) == Some(DT_NEEDED))
        {
            found.needed.push(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned());
        }
    }
    Ok(found)
}
