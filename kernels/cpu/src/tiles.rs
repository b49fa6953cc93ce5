//! The matrix unit of x86 processors (AMX): whether this process may use it, and the product that it makes.
//!
//! It multiplies a tile of 16 rows by one of 16 columns, 16 words of four bytes deep, into 16 x 16 sums of 32 bits. A word
//! is two bf16 numbers or four bytes of a row or of a column. The kernels here take two tiles of rows by two of columns, so
//! that each tile that is loaded is used twice.
//!
//! Tiles are registers that the kernel of the operating system saves for a process only once that has asked. They are set
//! up, used and given back within one block of assembly, so that nothing else ever meets them in use.

use std::{arch::asm, sync::OnceLock};

/// Most rows of a product.
pub(crate) const ROWS: usize = 2 * TILE;
/// Columns of a panel.
pub(crate) const COLUMNS: usize = 2 * TILE;
/// Words of depth of a tile.
pub(crate) const STEPS: usize = TILE;
/// Rows, columns and words of depth of a tile.
const TILE: usize = 16;

/// `arch_prctl`, by its number.
const SYS_ARCH_PRCTL: i64 = 158;
/// What it is asked: the use of a part of the registers.
const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
/// The contents of tiles, among those parts.
const XFEATURE_XTILEDATA: u64 = 18;

/// Whether the processor has tiles for bf16 and bytes, and the operating system lets this process use them; asked once.
pub(crate) fn are_permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| cfg!(target_os = "linux") && are_there() && ask())
}

/// By the processor's own word.
fn are_there() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    // Leaf 7 is there where the first leaf says so.
    let wanted = BF16 | TILES | INT8;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & wanted == wanted
}

/// Asks the operating system; a kernel that knows nothing of tiles, or keeps them from this process, refuses.
fn ask() -> bool {
    let answer: i64;
    // SAFETY: the call only widens what the kernel saves for this process.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

/// What the words hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factors {
    /// Two bf16 numbers each; sums are f32.
    Bf16,
    /// Four bytes each, unsigned ones of rows and signed ones of columns; sums are i32.
    Bytes,
}

/// Sizes of the eight tiles, as the processor reads them.
#[repr(C, align(64))]
struct Sizes([u8; 64]);

impl Sizes {
    /// For a product of `rows` rows: sums in tiles 0 to 3, rows in 4 and 5, columns in 6 and 7.
    const fn of(rows: usize) -> Self {
        let (top, bottom) = if rows > TILE { (TILE, rows - TILE) } else { (rows, 0) };
        let lines = [top, top, bottom, bottom, top, bottom, TILE, TILE];
        let mut bytes = [0; 64];
        // The only palette there is.
        bytes[0] = 1;
        let mut tile = 0;
        while tile < lines.len() {
            if lines[tile] > 0 {
                bytes[16 + 2 * tile] = (4 * TILE) as u8;
                bytes[48 + tile] = lines[tile] as u8;
            }
            tile += 1;
        }
        Self(bytes)
    }
}

/// The product over one block of assembly; `$bottom` for more than one tile of rows.
macro_rules! product {
    ($instruction:literal, $sizes:expr, $a:expr, $stride:expr, $b:expr, $rounds:expr, $sums:expr, $($bottom:literal)?) => {
        asm!(
            "ldtilecfg [{sizes}]",
            "tilezero tmm0",
            "tilezero tmm1",
            $(concat!("tilezero tmm2 /*", $bottom, "*/"), "tilezero tmm3",)?
            "2:",
            "tileloadd tmm6, [{b} + {line}]",
            "tileloadd tmm4, [{a} + {stride}]",
            concat!($instruction, " tmm0, tmm4, tmm6"),
            "tileloadd tmm7, [{b} + {line} + 64]",
            concat!($instruction, " tmm1, tmm4, tmm7"),
            $(
                concat!("tileloadd tmm5, [{below} + {stride}] /*", $bottom, "*/"),
                concat!($instruction, " tmm2, tmm5, tmm6"),
                concat!($instruction, " tmm3, tmm5, tmm7"),
            )?
            "add {a}, 64",
            "add {below}, 64",
            "add {b}, 2048",
            "dec {rounds}",
            "jnz 2b",
            "tilestored [{sums} + {line}], tmm0",
            "tilestored [{sums} + {line} + 64], tmm1",
            $(
                concat!("tilestored [{sums} + {line} + 2048], tmm2 /*", $bottom, "*/"),
                "tilestored [{sums} + {line} + 2112], tmm3",
            )?
            "tilerelease",
            sizes = in(reg) $sizes,
            a = inout(reg) $a => _,
            below = inout(reg) $a.wrapping_add(TILE * $stride) => _,
            stride = in(reg) $stride,
            b = inout(reg) $b => _,
            line = in(reg) 4 * COLUMNS,
            rounds = inout(reg) $rounds => _,
            sums = in(reg) $sums,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        )
    };
}

/// Multiplies `MR` rows, `stride` bytes apart, by a panel of [`COLUMNS`] columns: `steps` lines of a word for each. The
/// sums, f32 or i32 by `factors`, go to `sums`, [`COLUMNS`] for each row.
///
/// # Safety
/// [`are_permitted`]; `steps` is a multiple of [`STEPS`]; there are as many words in each row and lines in the panel, and
/// room for `MR` rows of sums.
pub(crate) unsafe fn multiply<const MR: usize>(
    factors: Factors,
    (a, stride): (*const u8, usize),
    b: *const u8,
    steps: usize,
    sums: *mut u32,
) {
    const { assert!(MR > 0 && MR <= ROWS) };
    let sizes = const { &Sizes::of(MR) };
    debug_assert!(steps.is_multiple_of(STEPS));
    let rounds = steps / STEPS;
    if rounds == 0 {
        // SAFETY: the caller vouches for these sums; none of them is anything but zero, of either type.
        return unsafe { sums.write_bytes(0, MR * COLUMNS) };
    }
    // SAFETY: tiles have no more lines than there are rows, and the loads and stores are those that the caller vouches for.
    unsafe {
        match (factors, MR > TILE) {
            (Factors::Bf16, true) => product!("tdpbf16ps", sizes, a, stride, b, rounds, sums, "below"),
            (Factors::Bf16, false) => product!("tdpbf16ps", sizes, a, stride, b, rounds, sums,),
            (Factors::Bytes, true) => product!("tdpbusd", sizes, a, stride, b, rounds, sums, "below"),
            (Factors::Bytes, false) => product!("tdpbusd", sizes, a, stride, b, rounds, sums,),
        }
    }
}

/// A function of a number of rows for each number of rows.
macro_rules! each_row_count {
    ($function:ident) => {
        $crate::tiles::each_row_count!($function, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)
    };
    ($function:ident, $($rows:literal)*) => { [$($function::<$rows>),*] };
}
pub(crate) use each_row_count;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_say_how_many_lines_each_tile_has() {
        let lines = |rows| Sizes::of(rows).0[48..56].to_vec();
        assert_eq!(lines(1), [1, 1, 0, 0, 1, 0, 16, 16]);
        assert_eq!(lines(16), [16, 16, 0, 0, 16, 0, 16, 16]);
        assert_eq!(lines(21), [16, 16, 5, 5, 16, 5, 16, 16]);
        assert_eq!(lines(32), [16; 8]);
        assert_eq!(Sizes::of(7).0[16..32], [64, 0, 64, 0, 0, 0, 0, 0, 64, 0, 0, 0, 64, 0, 64, 0]);
    }
}
