//! The microkernels: unsigned rows by signed columns, in registers of 32-bit sums, over the whole depth.
//!
//! A step takes a group of depth from each row, as one word of four bytes: two 16-bit numbers where an instruction
//! multiplies pairs of those exactly (8-bit ones would saturate), four bytes where it takes bytes as they are.

use crate::{
    gemm::in_register,
    isa::IsaLevel,
    vector::{ROWS_MAX, VECTORS_MAX, each_row, each_vector},
};

/// One call of a microkernel.
pub(super) struct Tile {
    /// The first row; rows lie `a_stride` bytes apart and have `steps` words.
    pub a: *const u8,
    pub a_stride: usize,
    pub steps: usize,
    /// `steps` groups of NR columns.
    pub b: *const u8,
    /// Rows of NR sums.
    pub sums: *mut i32,
}

/// A microkernel for a certain number of rows.
pub(super) type TileFn = unsafe fn(&Tile);

/// A register of 32-bit sums, and the instructions that add products to them.
///
/// Every function is `unsafe` because it may use its instruction set: callers run where it exists. Pointers need no
/// alignment.
trait Sums: Copy {
    const LANES: usize;
    /// Depth of a step.
    const GROUP: usize;
    type Left: Copy;
    type Right: Copy;
    unsafe fn zero() -> Self;
    /// A word of a row, for every lane.
    unsafe fn left(from: *const u8) -> Self::Left;
    /// The groups of `LANES` columns.
    unsafe fn right(from: *const u8) -> Self::Right;
    unsafe fn add_products(self, left: Self::Left, right: Self::Right) -> Self;
    unsafe fn store(self, to: *mut i32);
}

/// Lanes that the compiler maps to whatever the base target has.
#[derive(Clone, Copy)]
struct Lanes4([i32; 4]);

impl Sums for Lanes4 {
    const LANES: usize = 4;
    const GROUP: usize = 2;
    type Left = [i16; 2];
    type Right = [i8; 8];
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0; 4])
    }
    #[inline(always)]
    unsafe fn left(from: *const u8) -> [i16; 2] {
        // SAFETY: the caller vouches for a word.
        unsafe { from.cast::<[i16; 2]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn right(from: *const u8) -> [i8; 8] {
        // SAFETY: the caller vouches for four groups of two.
        unsafe { from.cast::<[i8; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn add_products(self, left: [i16; 2], right: [i8; 8]) -> Self {
        let product = |at: usize| {
            let pair = |step: usize| i32::from(left[step]) * i32::from(right[2 * at + step]);
            pair(0) + pair(1)
        };
        Self(std::array::from_fn(|at| self.0[at].wrapping_add(product(at))))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut i32) {
        // SAFETY: the caller vouches for four sums.
        unsafe { to.cast::<[i32; 4]>().write_unaligned(self.0) }
    }
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use super::Sums;
    use std::arch::x86_64::*;

    /// Implements [`Sums`] by intrinsics; expressions are over the arguments that are named.
    macro_rules! intrinsics {
        ($(#[$meta:meta])* $name:ident, $register:ty, $lanes:literal, $group:literal, $zero:expr, $splat:ident,
         |$from:ident| $right:expr, |$sum:ident, $left:ident, $columns:ident| $add:expr, |$stored:ident, $to:ident| $store:expr) => {
            $(#[$meta])*
            #[derive(Clone, Copy)]
            pub struct $name($register);

            impl Sums for $name {
                const LANES: usize = $lanes;
                const GROUP: usize = $group;
                type Left = $register;
                type Right = $register;
                #[inline(always)]
                unsafe fn zero() -> Self {
                    // SAFETY: the caller runs where the instruction set exists; so below.
                    Self(unsafe { $zero })
                }
                #[inline(always)]
                unsafe fn left(from: *const u8) -> $register {
                    // SAFETY: the caller vouches for a word.
                    unsafe { $splat(from.cast::<i32>().read_unaligned()) }
                }
                #[inline(always)]
                unsafe fn right($from: *const u8) -> $register {
                    // SAFETY: the caller vouches for the groups of all lanes.
                    unsafe { $right }
                }
                #[inline(always)]
                unsafe fn add_products(self, $left: $register, $columns: $register) -> Self {
                    let $sum = self.0;
                    // SAFETY: as above.
                    Self(unsafe { $add })
                }
                #[inline(always)]
                unsafe fn store(self, $to: *mut i32) {
                    let $stored = self.0;
                    // SAFETY: the caller vouches for as many sums as there are lanes.
                    unsafe { $store }
                }
            }
        };
    }

    intrinsics!(
        Sse,
        __m128i,
        4,
        2,
        _mm_setzero_si128(),
        _mm_set1_epi32,
        |from| _mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast())),
        |sum, left, right| _mm_add_epi32(sum, _mm_madd_epi16(left, right)),
        |sum, to| _mm_storeu_si128(to.cast(), sum)
    );
    intrinsics!(
        Avx2,
        __m256i,
        8,
        2,
        _mm256_setzero_si256(),
        _mm256_set1_epi32,
        |from| _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())),
        |sum, left, right| _mm256_add_epi32(sum, _mm256_madd_epi16(left, right)),
        |sum, to| _mm256_storeu_si256(to.cast(), sum)
    );
    intrinsics!(
        Avx512,
        __m512i,
        16,
        2,
        _mm512_setzero_si512(),
        _mm512_set1_epi32,
        |from| _mm512_cvtepi8_epi16(_mm256_loadu_si256(from.cast())),
        |sum, left, right| _mm512_add_epi32(sum, _mm512_madd_epi16(left, right)),
        |sum, to| _mm512_storeu_si512(to.cast(), sum)
    );
    intrinsics!(
        /// Four bytes at once: products of an unsigned and a signed one, which do not saturate.
        Vnni, __m512i, 16, 4, _mm512_setzero_si512(), _mm512_set1_epi32,
        |from| _mm512_loadu_si512(from.cast()),
        |sum, left, right| _mm512_dpbusd_epi32(sum, left, right),
        |sum, to| _mm512_storeu_si512(to.cast(), sum));
}

/// Computes a tile of MR rows and `NV` registers of columns.
///
/// # Safety
/// The instruction set of `S` exists; every pointer of `tile` is valid for what its documentation says.
#[inline(always)]
unsafe fn compute<S: Sums, const MR: usize, const NV: usize>(tile: &Tile) {
    const { assert!(MR <= ROWS_MAX && NV <= VECTORS_MAX) };
    // SAFETY: the caller's promise covers every access: MR rows of `steps` words, `steps` groups of NV registers, MR rows
    // of sums.
    unsafe {
        let mut sums = [[S::zero(); VECTORS_MAX]; ROWS_MAX];
        let stride = tile.a_stride;
        // A pointer for every third row; those between are found by the stride.
        let mut rows = [tile.a; ROWS_MAX.div_ceil(3)];
        each_row!(MR, R, {
            if R.is_multiple_of(3) {
                rows[R / 3] = in_register(tile.a.add(R * stride));
            }
        });
        let mut b = tile.b;
        let width = S::LANES * S::GROUP;
        for _ in 0..tile.steps {
            let mut columns = [S::right(b); VECTORS_MAX];
            each_vector!(NV, J, { columns[J] = S::right(b.add(J * width)) });
            each_row!(MR, R, {
                let left = S::left(rows[R / 3].add(R % 3 * stride));
                each_vector!(NV, J, { sums[R][J] = sums[R][J].add_products(left, columns[J]) });
            });
            each_row!(MR, R, {
                if R.is_multiple_of(3) {
                    rows[R / 3] = rows[R / 3].wrapping_add(4);
                }
            });
            b = b.wrapping_add(NV * width);
        }
        each_row!(MR, R, {
            each_vector!(NV, J, { sums[R][J].store(tile.sums.add((R * NV + J) * S::LANES)) });
        });
    }
}

/// A family of microkernels with the same panel width, one per number of rows.
pub struct Kernel {
    /// Begins with the instruction set, then what it multiplies: `avx512vnni_u8_14x32`.
    pub name: &'static str,
    /// Lowest level that runs it.
    pub level: IsaLevel,
    /// Most rows of a tile.
    pub mr: usize,
    /// Columns of a panel.
    pub nr: usize,
    /// Depth of a step: 2 (rows as 16-bit numbers) or 4 (as bytes).
    pub group: usize,
    /// Steps that are taken together: their number is rounded up to a multiple, by zeros.
    pub together: usize,
    /// By `rows - 1`.
    pub(super) by_rows: &'static [TileFn],
}

/// Widest panel, and largest tile, of any kernel.
pub(super) const COLUMNS_MAX: usize = 64;
pub(super) const TILE_MAX: usize = 32 * 32;

impl Kernel {
    /// Steps that a depth takes.
    pub fn steps(&self, depth: usize) -> Option<usize> {
        depth.div_ceil(self.group).checked_next_multiple_of(self.together)
    }

    /// The depth, rounded up to these steps.
    pub fn padded_depth(&self, depth: usize) -> Option<usize> {
        self.steps(depth)?.checked_mul(self.group)
    }

    /// Bytes of a row of the left operand as the kernel reads it.
    pub fn row_bytes(&self, depth: usize) -> Option<usize> {
        self.steps(depth)?.checked_mul(4)
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Defines a module with a kernel family: `$rows` lists 1..=mr.
macro_rules! family {
    ([$(#[$meta:meta])*] $module:ident, $sums:ty, $level:ident, $name:literal, $mr:literal, $vectors:literal, [$($rows:literal)*]) => {
        mod $module {
            use super::*;

            /// # Safety
            /// See [`compute`].
            $(#[$meta])*
            unsafe fn rows<const MR: usize>(tile: &Tile) {
                // SAFETY: the caller's promise.
                unsafe { compute::<$sums, MR, $vectors>(tile) }
            }

            pub static KERNEL: Kernel = Kernel {
                name: $name,
                level: IsaLevel::$level,
                mr: $mr,
                nr: $vectors * <$sums as Sums>::LANES,
                group: <$sums as Sums>::GROUP,
                together: 1,
                by_rows: &[$(rows::<$rows>),*],
            };
            const _: () = assert!(KERNEL.nr <= COLUMNS_MAX && KERNEL.nr * $mr <= TILE_MAX);
        }
    };
}

family!([] portable_i16_4x8, Lanes4, Portable, "portable_i16_4x8", 4, 2, [1 2 3 4]);
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{registers::*, *};
    family!([#[target_feature(enable = "sse4.2,popcnt")]] sse42_i16_4x8, Sse, X86V2, "sse42_i16_4x8", 4, 2, [1 2 3 4]);
    family!([#[target_feature(enable = "avx2,fma,bmi2")]] avx2_i16_6x16, Avx2, X86V3, "avx2_i16_6x16", 6, 2,
        [1 2 3 4 5 6]);
    family!([#[target_feature(enable = "avx2,fma,bmi2")]] avx2_i16_4x24, Avx2, X86V3, "avx2_i16_4x24", 4, 3, [1 2 3 4]);
    family!([#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]] avx512_i16_12x32, Avx512,
        X86V4, "avx512_i16_12x32", 12, 2, [1 2 3 4 5 6 7 8 9 10 11 12]);
    family!([#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]] avx512_i16_6x64, Avx512,
        X86V4, "avx512_i16_6x64", 6, 4, [1 2 3 4 5 6]);
    family!([#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,bmi2")]]
        avx512vnni_u8_14x32, Vnni, X86V4Vnni, "avx512vnni_u8_14x32", 14, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]);
    family!([#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,bmi2")]]
        avx512vnni_u8_6x64, Vnni, X86V4Vnni, "avx512vnni_u8_6x64", 6, 4, [1 2 3 4 5 6]);
    pub(super) static V2: [&Kernel; 1] = [&sse42_i16_4x8::KERNEL];
    pub(super) static V3: [&Kernel; 2] = [&avx2_i16_6x16::KERNEL, &avx2_i16_4x24::KERNEL];
    pub(super) static V4: [&Kernel; 2] = [&avx512_i16_12x32::KERNEL, &avx512_i16_6x64::KERNEL];
    mod amx_u8_32x32 {
        use super::*;
        use crate::tiles::{COLUMNS, Factors, ROWS, STEPS, multiply};

        /// # Safety
        /// See [`compute`].
        unsafe fn rows<const MR: usize>(tile: &Tile) {
            // SAFETY: the caller's promise; the kernel's `together` makes the steps whole tiles.
            unsafe { multiply::<MR>(Factors::Bytes, (tile.a, tile.a_stride), tile.b, tile.steps, tile.sums.cast()) }
        }

        pub static KERNEL: Kernel = Kernel {
            name: "amx_u8_32x32",
            level: IsaLevel::X86V4Amx,
            mr: ROWS,
            nr: COLUMNS,
            group: 4,
            together: STEPS,
            by_rows: &crate::tiles::each_row_count!(rows),
        };
        const _: () = assert!(COLUMNS <= COLUMNS_MAX && COLUMNS * ROWS <= TILE_MAX);
    }
    pub(super) static V4_VNNI: [&Kernel; 2] = [&avx512vnni_u8_14x32::KERNEL, &avx512vnni_u8_6x64::KERNEL];
    pub(super) static AMX: [&Kernel; 3] =
        [&amx_u8_32x32::KERNEL, &avx512vnni_u8_14x32::KERNEL, &avx512vnni_u8_6x64::KERNEL];
}

static PORTABLE: [&Kernel; 1] = [&portable_i16_4x8::KERNEL];

/// The kernels written for `level`, the usually best one first. Empty for levels of another architecture.
pub fn kernels(level: IsaLevel) -> &'static [&'static Kernel] {
    match level {
        IsaLevel::Portable => &PORTABLE,
        // Plain loops, which the compiler vectorises for the base of that architecture.
        #[cfg(target_arch = "aarch64")]
        IsaLevel::Neon => &PORTABLE,
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V2 => &x86::V2,
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V3 => &x86::V3,
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V4 => &x86::V4,
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V4Vnni | IsaLevel::X86V4Bf16 => &x86::V4_VNNI,
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V4Amx => &x86::AMX,
        _ => &[],
    }
}

/// The kernel of that name, of any level compiled in.
pub fn kernel_by_name(name: &str) -> Option<&'static Kernel> {
    IsaLevel::ALL.into_iter().flat_map(kernels).copied().find(|kernel| kernel.name == name)
}
