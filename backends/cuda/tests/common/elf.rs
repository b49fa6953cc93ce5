//! A small image of machine code by hand, with a section of every kind that NVRTC writes.

/// Where parts of [`image`] lie, for tests that change them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    /// Section headers, by number; see [`SECTIONS`].
    pub sections: usize,
    pub segments: usize,
    pub symbols: usize,
    pub attributes: usize,
    pub relocations: usize,
    pub note: usize,
}

/// Bytes of a section's header and of a segment's.
pub const SECTION_BYTES: usize = 64;
pub const SEGMENT_BYTES: usize = 56;

/// Numbers of the sections.
pub const NAMES: usize = 1;
pub const STRINGS: usize = 2;
pub const SYMBOLS: usize = 3;
pub const ATTRIBUTES: usize = 4;
pub const RELOCATIONS: usize = 5;
pub const TEXT: usize = 6;
pub const NOTE: usize = 7;
pub const SHARED: usize = 8;
const SECTIONS: usize = 9;

/// Two segments: the table itself, and the instructions.
pub const SEGMENTS: usize = 2;

struct Section {
    name: usize,
    kind: u32,
    flags: u64,
    at: usize,
    bytes: usize,
    link: usize,
    info: usize,
    alignment: u64,
    entry_bytes: u64,
}

/// Instructions `code` of one kernel, which takes so many addresses, for a compute capability.
pub fn image(capability: u32, kernel: &str, addresses: usize, code: &[u8]) -> (Vec<u8>, Places) {
    let mut image = vec![0; 64];
    let mut names = vec![0];
    let mut name = |text: String| {
        let at = names.len();
        names.extend(text.into_bytes());
        names.push(0);
        at
    };
    let named = [
        0,
        name(".shstrtab".into()),
        name(".strtab".into()),
        name(".symtab".into()),
        name(format!(".nv.info.{kernel}")),
        name(format!(".rela.text.{kernel}")),
        name(format!(".text.{kernel}")),
        name(".note.nv.tkinfo".into()),
        name(format!(".nv.shared.{kernel}")),
    ];
    let strings = [&[0], kernel.as_bytes(), &[0]].concat();
    // Nothing, and the kernel: its name, that it is a function for all, its section, where in it, how large.
    let mut symbols = vec![0; 24];
    symbols.extend(1u32.to_le_bytes());
    symbols.extend([0x12, 0, TEXT as u8, 0]);
    symbols.extend([0u64.to_le_bytes(), (code.len() as u64).to_le_bytes()].concat());
    let mut attributes = Vec::new();
    for number in (0..addresses as u16).rev() {
        attributes.extend([4, 0x17, 12, 0, 0, 0, 0, 0]);
        attributes.extend([number.to_le_bytes(), (number * 8).to_le_bytes()].concat());
        attributes.extend((8u32 << 18 | 0x1_f000).to_le_bytes());
    }
    attributes.extend([3, 0x19, (addresses * 8) as u8, ((addresses * 8) >> 8) as u8]);
    // The first bytes of the instructions, by the kernel's own address.
    let relocations = [0u64.to_le_bytes(), (1u64 << 32 | 2).to_le_bytes(), 0u64.to_le_bytes()].concat();
    let note = [&4u32.to_le_bytes()[..], &3u32.to_le_bytes(), &1u32.to_le_bytes(), b"tool", b"1.0\0"].concat();
    let mut put = |bytes: &[u8], alignment: usize| {
        image.resize(image.len().next_multiple_of(alignment), 0);
        image.extend(bytes);
        image.len() - bytes.len()
    };
    let at = [
        0,
        put(&names, 1),
        put(&strings, 1),
        put(&symbols, 8),
        put(&attributes, 4),
        put(&relocations, 8),
        put(code, 128),
        put(&note, 4),
        put(&[], 16),
    ];
    let bytes = [
        0,
        names.len(),
        strings.len(),
        symbols.len(),
        attributes.len(),
        relocations.len(),
        code.len(),
        note.len(),
        1024,
    ];
    let section = |number: usize, kind, flags, link, info, alignment, entry_bytes| Section {
        name: named[number],
        kind,
        flags,
        at: at[number],
        bytes: bytes[number],
        link,
        info,
        alignment,
        entry_bytes,
    };
    let sections = [
        section(0, 0, 0, 0, 0, 0, 0),
        section(NAMES, 3, 0, 0, 0, 1, 0),
        section(STRINGS, 3, 0, 0, 0, 1, 0),
        section(SYMBOLS, 2, 0, STRINGS, 1, 8, 24),
        section(ATTRIBUTES, 0x7000_0000, 0x40, SYMBOLS, TEXT, 4, 0),
        section(RELOCATIONS, 4, 0x40, SYMBOLS, TEXT, 8, 24),
        section(TEXT, 1, 6, SYMBOLS, 0x1800_0001, 128, 0),
        section(NOTE, 7, 0, 0, 0, 4, 0),
        section(SHARED, 8, 0x43, 0, TEXT, 16, 0),
    ];
    assert_eq!(sections.len(), SECTIONS);
    let mut headers = Vec::new();
    for of in sections {
        headers.extend([of.name as u32, of.kind].map(u32::to_le_bytes).concat());
        headers.extend([of.flags, 0, of.at as u64, of.bytes as u64].map(u64::to_le_bytes).concat());
        headers.extend([of.link as u32, of.info as u32].map(u32::to_le_bytes).concat());
        headers.extend([of.alignment, of.entry_bytes].map(u64::to_le_bytes).concat());
    }
    let section_headers = put(&headers, 8);
    let segment_headers = section_headers + headers.len();
    let mut table = Vec::new();
    let own_bytes = (SEGMENTS * SEGMENT_BYTES) as u64;
    for (kind, at, bytes) in [(6u32, segment_headers as u64, own_bytes), (1, at[TEXT] as u64, code.len() as u64)] {
        table.extend([kind, 5].map(u32::to_le_bytes).concat());
        table.extend([at, 0, 0, bytes, bytes, 8].map(u64::to_le_bytes).concat());
    }
    put(&table, 8);
    let mut set = |at: usize, bytes: &[u8]| image[at..][..bytes.len()].copy_from_slice(bytes);
    set(0, b"\x7fELF\x02\x01\x01\x41\x08");
    set(16, &[2, 0, 190, 0, 1, 0, 0, 0]);
    set(32, &[segment_headers as u64, section_headers as u64].map(u64::to_le_bytes).concat());
    set(48, &(0x600_0004 | capability << 8).to_le_bytes());
    set(52, &[64, SEGMENT_BYTES as u16, SEGMENTS as u16].map(u16::to_le_bytes).concat());
    set(58, &[SECTION_BYTES as u16, SECTIONS as u16, NAMES as u16].map(u16::to_le_bytes).concat());
    let places = Places {
        sections: section_headers,
        segments: segment_headers,
        symbols: at[SYMBOLS],
        attributes: at[ATTRIBUTES],
        relocations: at[RELOCATIONS],
        note: at[NOTE],
    };
    (image, places)
}
