//! Machine code is checked before a driver sees it: a small image by hand and what NVRTC compiles, whole, cut and changed.

#[expect(dead_code, reason = "kernels of other tests")]
mod common;
#[path = "common/elf.rs"]
mod elf;

use elf::{
    ATTRIBUTES, NAMES, NOTE, Places, RELOCATIONS, SECTION_BYTES, SEGMENT_BYTES, SHARED, STRINGS, SYMBOLS, TEXT, image,
};
use planforge_cuda::{
    codegen::{
        expr::{Expr, Load},
        pointwise,
    },
    view::Kind,
};
use planforge_graph::ir::Binary;
use planforge_kernels_cuda::{
    cubin::{Cubin, CubinError},
    nvrtc::{self, Arch, Source},
};
use std::{env, fs, path::Path};

fn whole() -> (Vec<u8>, Places) {
    image(90, "scale", 3, &[7; 256])
}

#[test]
fn an_image_says_what_its_kernels_take() {
    let (whole, _) = whole();
    let cubin = Cubin::parse(&whole).expect("it holds together");
    assert_eq!((cubin.capability(), cubin.bytes()), (Some(90), &whole[..]));
    assert_eq!(cubin.parameters()["scale"], [8, 8, 8]);
    let (none, _) = image(75, "f", 0, &[1]);
    assert_eq!(Cubin::parse(&none).expect("whole").parameters()["f"], [0u32; 0]);
    // Until CUDA 12 the flags lay otherwise; of a layout to come nothing is known.
    let mut older = whole.clone();
    older[7..9].copy_from_slice(&[0x33, 7]);
    older[48..52].copy_from_slice(&0x5a_0d5au32.to_le_bytes());
    assert_eq!(Cubin::parse(&older).expect("whole").capability(), Some(90));
    older[8] = 9;
    assert_eq!(Cubin::parse(&older).expect("whole").capability(), None);
}

#[test]
fn every_cut_is_noticed() {
    let (whole, _) = whole();
    for length in 0..whole.len() {
        assert!(Cubin::parse(&whole[..length]).is_err(), "cut to {length} bytes");
    }
}

/// Each of them once made a driver read or write where nothing is.
#[test]
fn whatever_names_something_outside_is_refused() {
    let (whole, places) = whole();
    let section = |number: usize, field: usize| places.sections + number * SECTION_BYTES + field;
    let segment = |number: usize, field: usize| places.segments + number * SEGMENT_BYTES + field;
    let u64s = |value: u64| value.to_le_bytes().to_vec();
    let (end, huge) = (u64s(whole.len() as u64 + 8), u64s(u64::MAX - 7));
    let cases: Vec<(usize, Vec<u8>, &str)> = vec![
        (0, b"\x7fELG".into(), "is not ELF"),
        (4, vec![1], "is not ELF"),
        (6, vec![2], "is not ELF"),
        (16, vec![1], "ready to run"),
        (18, vec![62], "is for machine 62"),
        // Tables.
        (32, end.clone(), "program headers reach beyond"),
        (32, huge.clone(), "program headers reach beyond"),
        (32, vec![places.segments as u8 ^ 4], "program headers are not aligned"),
        (54, vec![64], "entries of 64 bytes, not 56"),
        (56, vec![255, 255], "program headers reach beyond"),
        (40, end.clone(), "section headers reach beyond"),
        (40, huge.clone(), "section headers reach beyond"),
        (40, vec![places.sections as u8 ^ 1], "section headers are not aligned"),
        (58, vec![63], "entries of 63 bytes, not 64"),
        (58, vec![0, 0], "entries of 0 bytes, not 64"),
        (60, vec![255, 255], "section headers reach beyond"),
        (60, vec![0, 0], "too few"),
        (62, vec![9], "too few"),
        (62, vec![0], "too few"),
        // Segments: their own place and size.
        (segment(1, 8), end.clone(), "segment 1 reaches beyond"),
        (segment(1, 8), huge.clone(), "segment 1 reaches beyond"),
        (segment(1, 32), huge.clone(), "segment 1 reaches beyond"),
        (segment(1, 40), u64s(255), "segment 1 has a size in memory"),
        (segment(1, 40), huge.clone(), "segment 1 has a size in memory"),
        (segment(1, 48), u64s(3), "segment 1 is not aligned"),
        (segment(1, 48), u64s(1 << 40), "segment 1 is not aligned"),
        (segment(0, 32), u64s(56), "segment 0 is not the program headers"),
        (segment(0, 8), u64s(64), "segment 0 is not the program headers"),
        // Sections.
        (section(TEXT, 24), end.clone(), "section 6 reaches beyond"),
        (section(TEXT, 24), huge.clone(), "section 6 reaches beyond"),
        (section(TEXT, 32), huge.clone(), "section 6 reaches beyond"),
        (section(SHARED, 24), end, "section 8 reaches beyond"),
        (section(SHARED, 4), vec![1], "section 8 reaches beyond"),
        (section(SHARED, 32), huge, "section 8 asks for more memory"),
        (section(TEXT, 48), u64s(1 << 20), "section 6 is not aligned"),
        (section(TEXT, 48), u64s(96), "section 6 is not aligned"),
        (section(TEXT, 40), vec![9], "section 6 is linked"),
        (section(ATTRIBUTES, 44), vec![9], "section 4 belongs"),
        (section(SYMBOLS, 56), u64s(7), "section 3 does not hold whole entries"),
        (section(SYMBOLS, 56), u64s(48), "symbols of another size"),
        (section(SYMBOLS, 56), u64s(0), "symbols of another size"),
        (section(TEXT, 0), vec![255, 255, 255, 255], "section 6 has a name without an end"),
        // Strings, symbols, relocations.
        (section(STRINGS, 32), u64s(4), "section 2 is no table of strings"),
        (section(STRINGS, 32), u64s(0), "section 2 is no table of strings"),
        (section(NAMES, 4), vec![1], "section 0 has a name without an end"),
        (section(SYMBOLS, 40), vec![NAMES as u8 + 3], "symbols without names"),
        (places.symbols + 24, vec![255], "a symbol whose name lies elsewhere"),
        (places.symbols + 30, vec![9], "a symbol of a section that does not exist"),
        (places.symbols + 32, u64s(1), "a symbol that reaches beyond its section"),
        (places.symbols + 40, u64s(u64::MAX), "a symbol that reaches beyond its section"),
        (section(RELOCATIONS, 4), vec![9], "relocations of a size"),
        (section(RELOCATIONS, 40), vec![STRINGS as u8], "relocations without symbols"),
        (places.relocations, u64s(256), "a relocation beyond its section"),
        (places.relocations + 12, vec![2], "a relocation by a symbol that does not exist"),
        // Notes and attributes.
        (places.note, vec![255], "section 7 has a note that reaches beyond"),
        (places.note + 4, vec![255, 255, 255, 255], "section 7 has a note that reaches beyond"),
        (section(NOTE, 32), u64s(8), "section 7 has a note that reaches beyond"),
        (places.attributes + 2, vec![255], "section 4 has an attribute that reaches beyond"),
        // A parameter as large as half of the memory, one twice, one that is missing, one behind all others.
        (places.attributes + 14, vec![255, 255], "describes parameters that no kernel has"),
        (places.attributes + 8, vec![1], "describes parameters that no kernel has"),
        (places.attributes + 8, vec![3], "describes parameters that no kernel has"),
        (places.attributes + 10, vec![0, 200], "describes parameters that no kernel has"),
    ];
    for (at, bytes, reason) in cases {
        let mut broken = whole.clone();
        broken[at..][..bytes.len()].copy_from_slice(&bytes);
        let error = Cubin::parse(&broken).expect_err(reason).to_string();
        assert!(error.contains(reason), "{reason}: {error}");
    }
}

/// Every byte of everything but instructions, in several ways: an error, or an image whose parts still lie inside.
#[test]
fn no_byte_makes_the_check_panic() {
    let (whole, places) = whole();
    let mut refused = 0;
    for at in (0..whole.len()).filter(|at| *at < places.relocations || *at >= places.note) {
        for change in [0x01, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[at] ^= change;
            refused += usize::from(Cubin::parse(&changed).is_err());
        }
    }
    assert!(refused > 500, "only {refused} changes were noticed");
}

#[test]
fn an_image_beyond_any_kernel_is_not_looked_at() {
    let mut long = whole().0;
    long.resize((64 << 20) + 1, 0);
    assert!(matches!(Cubin::parse(&long), Err(CubinError::Long { .. })));
}

/// The fuzz target begins with it. PLANFORGE_WRITE_CORPUS=1 writes it.
#[test]
fn the_seed_of_the_fuzz_target_holds_together() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/read_plan/ok-cubin");
    if env::var_os("PLANFORGE_WRITE_CORPUS").is_some() {
        fs::write(&path, whole().0).expect("written");
    }
    assert_eq!(fs::read(&path).expect("the seed is there"), whole().0);
}

/// What NVRTC writes is taken for every architecture, and its headers are held to the same.
#[test]
fn compiled_kernels_hold_together_and_their_mutants_do_not() {
    let x = common::rows(Kind::F16, &[64, 3]);
    let load = || Box::new(Expr::Load(Load { view: x.clone(), index: None }));
    let sum = Expr::Binary(Binary::Add, load(), load());
    let source = pointwise::generate(&sum, &x).expect("it has a kernel").source;
    for capability in common::supported() {
        let arch = Arch { capability, specific: capability >= 90 };
        let source = Source { name: &source.name, text: &source.text, options: &[] };
        let compiled = nvrtc::compile(source, arch).expect("it compiles").bytes;
        let cubin = Cubin::parse(&compiled).expect("it holds together");
        assert_eq!(cubin.capability(), Some(capability));
        assert!(!cubin.parameters()[source.name].is_empty(), "{arch}");
        let field = |at: usize| u64::from_le_bytes(compiled[at..][..8].try_into().expect("eight bytes")) as usize;
        let number = |at: usize| usize::from(u16::from_le_bytes([compiled[at], compiled[at + 1]]));
        let (segments, sections) = (field(32), field(40));
        let beyond = (compiled.len() as u64 + 128).to_le_bytes();
        let mut tried = 0;
        let mut refuse = |at: usize| {
            let mut broken = compiled.clone();
            broken[at..][..8].copy_from_slice(&beyond);
            assert!(Cubin::parse(&broken).is_err(), "{arch}: byte {at}");
            tried += 1;
        };
        for segment in (0..number(56)).map(|index| segments + index * SEGMENT_BYTES) {
            refuse(segment + 8);
            refuse(segment + 32);
        }
        for section in (1..number(60)).map(|index| sections + index * SECTION_BYTES) {
            refuse(section + 24);
            if compiled[section + 4] != 8 {
                refuse(section + 32);
            }
        }
        assert!(tried > 20, "{arch}");
        for length in (0..compiled.len()).step_by(61).chain([compiled.len() - 1]) {
            assert!(Cubin::parse(&compiled[..length]).is_err(), "{arch}: cut to {length} bytes");
        }
    }
}
