//! The microkernels: one register tile of a product, over the whole of its depth or a part of it.
//!
//! A tile has up to MR rows and NR columns. The rows of A are given by pointers (so that a convolution needs no
//! im2col copy) or packed (`MR` values of each depth step together). B is packed in panels of NR columns.

use super::bf16::bf16_kernels;
use crate::{isa::IsaLevel, vector::*};

/// One call of a microkernel. All lengths are in elements.
pub(super) struct Tile {
    /// Pointers to rows: for each tap, one per row of the tile. Packed: a single pointer, to values of each step together,
    /// or for products of bf16 to whole rows one behind the other.
    pub a: *const *const f32,
    /// Added to every row pointer.
    pub a_offset: usize,
    /// The depth is `taps` pieces of `tap_len` steps, contiguous in A. Packed: 1.
    pub taps: usize,
    pub tap_len: usize,
    /// Packed for bf16: steps from a row to the next.
    pub a_stride: usize,
    /// `taps * tap_len` rows of NR elements.
    pub b: *const f32,
    pub c: *mut f32,
    /// From one row of C to the next.
    pub c_stride: usize,
    /// Columns of C that exist, 1..=NR.
    pub columns: usize,
    /// C holds the sum over the depth before this part.
    pub accumulate: bool,
    /// This is the last part of the depth: what follows the product is applied.
    pub finish: Option<Finish>,
}

impl Tile {
    /// One of its rows, as a tile whose sums are known.
    pub(super) fn row(&self, row: usize) -> Self {
        let finish = self.finish.map(|last| {
            let residual = match last.residual.is_null() {
                true => last.residual,
                false => last.residual.wrapping_add(row * last.residual_stride),
            };
            Finish { residual, ..last }
        });
        Self { c: self.c.wrapping_add(row * self.c_stride), finish, ..*self }
    }
}

/// What a microkernel does to its sums before it stores them.
#[derive(Clone, Copy)]
pub(super) struct Finish {
    pub alpha: f32,
    /// NR elements (padded), or null.
    pub bias: *const f32,
    /// First element of the tile's residual, or null.
    pub residual: *const f32,
    pub residual_stride: usize,
    /// Bounds of the result; unbounded when `clip` is false.
    pub clip: bool,
    pub low: f32,
    pub high: f32,
}

/// A microkernel for a certain number of rows.
pub(super) type TileFn = unsafe fn(&Tile);

/// Computes a tile of MR rows and `NV` vectors of columns.
///
/// # Safety
/// The instruction set of `V` exists; every pointer of `tile` is valid for what its documentation says.
#[inline(always)]
unsafe fn compute<V: Vector, const MR: usize, const NV: usize, const PACKED: bool>(tile: &Tile) {
    const { assert!(MR <= ROWS_MAX && NV <= VECTORS_MAX) };
    // SAFETY: the caller's promise covers every access; offsets stay within MR rows, `taps * tap_len` depth steps
    // and `columns` columns.
    unsafe {
        let mut sums = [[V::zero(); VECTORS_MAX]; ROWS_MAX];
        let mut columns = [V::zero(); VECTORS_MAX];
        let mut b = tile.b;
        prefetch_ends::<V, MR, NV>(tile);
        for tap in 0..tile.taps {
            let mut rows = [std::ptr::null::<f32>(); ROWS_MAX];
            if PACKED {
                rows[0] = in_register((*tile.a).add(tile.a_offset));
            } else {
                each_row!(MR, R, { rows[R] = in_register((*tile.a.add(tap * MR + R)).add(tile.a_offset)) });
            }
            for step in 0..tile.tap_len {
                each_vector!(NV, J, { columns[J] = V::load(b.add(J * V::LANES)) });
                each_row!(MR, R, {
                    let a = V::splat(if PACKED { *rows[0].add(step * MR + R) } else { *rows[R].add(step) });
                    each_vector!(NV, J, { sums[R][J] = sums[R][J].multiply_add(a, columns[J]) });
                });
                b = b.add(NV * V::LANES);
            }
        }
        conclude::<V, MR, NV>(tile, &mut sums);
    }
}

/// Stores the sums of a tile, with what is to follow them.
///
/// # Safety
/// As [`compute`], of C, bias and residual.
#[inline(always)]
pub(super) unsafe fn conclude<V: Vector, const MR: usize, const NV: usize>(
    tile: &Tile,
    sums: &mut [[V; VECTORS_MAX]; ROWS_MAX],
) {
    // SAFETY: the caller's promise; offsets stay within MR rows and `columns` columns.
    unsafe {
        let mut columns = [V::zero(); VECTORS_MAX];
        // A panel at the edge is read and written in part.
        let whole = tile.columns == NV * V::LANES;
        let width = |vector: usize| tile.columns.saturating_sub(vector * V::LANES).min(V::LANES);
        if tile.accumulate {
            each_row!(MR, R, {
                each_vector!(NV, J, {
                    let c = tile.c.wrapping_add(R * tile.c_stride + J * V::LANES);
                    sums[R][J] = sums[R][J].add(if whole { V::load(c) } else { V::load_part(c, width(J)) });
                });
            });
        }
        if let Some(last) = &tile.finish {
            if last.alpha != 1.0 {
                let alpha = V::splat(last.alpha);
                each_row!(MR, R, { each_vector!(NV, J, { sums[R][J] = sums[R][J].multiply(alpha) }) });
            }
            if !last.bias.is_null() {
                each_vector!(NV, J, { columns[J] = V::load(last.bias.add(J * V::LANES)) });
                each_row!(MR, R, { each_vector!(NV, J, { sums[R][J] = sums[R][J].add(columns[J]) }) });
            }
            if !last.residual.is_null() {
                each_row!(MR, R, {
                    each_vector!(NV, J, {
                        let from = last.residual.wrapping_add(R * last.residual_stride + J * V::LANES);
                        sums[R][J] = sums[R][J].add(if whole { V::load(from) } else { V::load_part(from, width(J)) });
                    });
                });
            }
            if last.clip {
                let (low, high) = (V::splat(last.low), V::splat(last.high));
                // In this order a NaN stays one: of two operands the second is given when either is.
                each_row!(MR, R, { each_vector!(NV, J, { sums[R][J] = high.min(low.max(sums[R][J])) }) });
            }
        }
        if whole {
            each_row!(MR, R, {
                each_vector!(NV, J, { sums[R][J].store(tile.c.add(R * tile.c_stride + J * V::LANES)) })
            });
        } else {
            each_row!(MR, R, {
                each_vector!(NV, J, {
                    sums[R][J].store_part(tile.c.wrapping_add(R * tile.c_stride + J * V::LANES), width(J))
                })
            });
        }
    }
}

/// Asks for the lines that a tile will end in, so that they are there when its sums are. Worth it only where the
/// product is long enough to wait for them and nothing else brought them in.
///
/// # Safety
/// `tile` is one whose `c` and residual hold MR rows.
#[inline(always)]
unsafe fn prefetch_ends<V: Vector, const MR: usize, const NV: usize>(tile: &Tile) {
    let Some(last) = &tile.finish else { return };
    each_row!(MR, R, {
        each_vector!(NV, J, {
            // SAFETY: prefetching reads nothing.
            unsafe {
                V::prefetch(tile.c.wrapping_add(R * tile.c_stride + J * V::LANES));
                if !last.residual.is_null() {
                    V::prefetch(last.residual.wrapping_add(R * last.residual_stride + J * V::LANES));
                }
            }
        });
    });
}

/// `pointer`, which the compiler must hold by itself: it would else gather the row pointers into vector registers
/// and take them out again at every step, or work one out of another.
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "the empty assembly reads nothing through the pointer")]
pub(crate) fn in_register<T>(mut pointer: *const T) -> *const T {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: the assembly is empty.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) pointer, options(pure, nomem, nostack, preserves_flags));
    }
    pointer
}

/// In which numbers a kernel multiplies. Sums are f32 always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    F32,
    /// f32 rounded to bf16, two in the place of one. Rows are always packed, each by itself.
    Bf16,
}

impl Factors {
    /// As precisions are named.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "fp32",
            Self::Bf16 => "bf16",
        }
    }
}

/// A family of microkernels with the same panel width, one per number of rows.
pub struct Kernel {
    /// Begins with the instruction set: `avx512_14x32`.
    pub name: &'static str,
    pub factors: Factors,
    /// Steps of depth, each of one f32 or a pair of bf16 numbers, that are taken together: their number is rounded up to a
    /// multiple, by zeros.
    pub together: usize,
    /// Lowest level that runs it.
    pub level: IsaLevel,
    /// Most rows of a tile.
    pub mr: usize,
    /// Columns of a panel.
    pub nr: usize,
    /// By `rows - 1`.
    pub(super) by_rows: &'static [TileFn],
    /// By `rows - 1`.
    pub(super) packed_by_rows: &'static [TileFn],
}

impl Kernel {
    /// Steps that a depth takes.
    pub fn steps(&self, depth: usize) -> Option<usize> {
        let steps = match self.factors {
            Factors::F32 => depth,
            Factors::Bf16 => depth.div_ceil(2),
        };
        steps.checked_next_multiple_of(self.together)
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Defines a module with a kernel family: `$rows` lists 1..=mr.
macro_rules! family {
    ([$(#[$meta:meta])*] $module:ident, $vector:ident, $level:ident, $name:literal, $mr:literal, $vectors:literal, [$($rows:literal)*]) => {
        mod $module {
            use super::*;

            /// # Safety
            /// See [`compute`].
            $(#[$meta])*
            unsafe fn rows<const MR: usize>(tile: &Tile) {
                // SAFETY: the caller's promise.
                unsafe { compute::<$vector, MR, $vectors, false>(tile) }
            }

            /// # Safety
            /// See [`compute`].
            $(#[$meta])*
            unsafe fn packed<const MR: usize>(tile: &Tile) {
                // SAFETY: the caller's promise.
                unsafe { compute::<$vector, MR, $vectors, true>(tile) }
            }

            pub static KERNEL: Kernel = Kernel {
                name: $name,
                factors: Factors::F32,
                together: 1,
                level: IsaLevel::$level,
                mr: $mr,
                nr: $vectors * <$vector as Vector>::LANES,
                by_rows: &[$(rows::<$rows>),*],
                packed_by_rows: &[$(packed::<$rows>),*],
            };
        }
    };
}

family!([] portable_4x8, Lanes4, Portable, "portable_4x8", 4, 2, [1 2 3 4]);
family!([] portable_2x16, Lanes4, Portable, "portable_2x16", 2, 4, [1 2]);
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    family!([#[target_feature(enable = "sse4.2,popcnt")]] sse42_6x8, Sse, X86V2, "sse42_6x8", 6, 2, [1 2 3 4 5 6]);
    family!([#[target_feature(enable = "sse4.2,popcnt")]] sse42_4x12, Sse, X86V2, "sse42_4x12", 4, 3, [1 2 3 4]);
    family!([#[target_feature(enable = "avx2,fma,bmi2")]] avx2_6x16, Avx2, X86V3, "avx2_6x16", 6, 2, [1 2 3 4 5 6]);
    family!([#[target_feature(enable = "avx2,fma,bmi2")]] avx2_4x16, Avx2, X86V3, "avx2_4x16", 4, 2, [1 2 3 4]);
    family!([#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]] avx512_14x32, Avx512, X86V4,
        "avx512_14x32", 14, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]);
    family!([#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]] avx512_9x48, Avx512, X86V4,
        "avx512_9x48", 9, 3, [1 2 3 4 5 6 7 8 9]);
    family!([#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]] avx512_6x64, Avx512, X86V4,
        "avx512_6x64", 6, 4, [1 2 3 4 5 6]);
    family!([#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]] avx512_14x16, Avx512, X86V4,
        "avx512_14x16", 14, 1, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]);
    pub(super) static V2: [&Kernel; 2] = [&sse42_6x8::KERNEL, &sse42_4x12::KERNEL];
    pub(super) static V3: [&Kernel; 2] = [&avx2_6x16::KERNEL, &avx2_4x16::KERNEL];
    pub(super) static V4: [&Kernel; 4] =
        [&avx512_14x32::KERNEL, &avx512_6x64::KERNEL, &avx512_9x48::KERNEL, &avx512_14x16::KERNEL];
}
#[cfg(target_arch = "aarch64")]
mod arm {
    use super::*;
    family!([#[target_feature(enable = "neon")]] neon_6x16, Neon, Neon, "neon_6x16", 6, 4, [1 2 3 4 5 6]);
    family!([#[target_feature(enable = "neon")]] neon_8x8, Neon, Neon, "neon_8x8", 8, 2, [1 2 3 4 5 6 7 8]);
    pub(super) static NEON: [&Kernel; 2] = [&neon_6x16::KERNEL, &neon_8x8::KERNEL];
}

static PORTABLE: [&Kernel; 2] = [&portable_4x8::KERNEL, &portable_2x16::KERNEL];

/// The kernels written for `level` that multiply as f32, the usually best one first. Empty for levels of another
/// architecture.
pub fn kernels(level: IsaLevel) -> &'static [&'static Kernel] {
    match level {
        IsaLevel::Portable => &PORTABLE,
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V2 => &x86::V2,
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V3 => &x86::V3,
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V4 | IsaLevel::X86V4Vnni | IsaLevel::X86V4Bf16 | IsaLevel::X86V4Amx => &x86::V4,
        #[cfg(target_arch = "aarch64")]
        IsaLevel::Neon => &arm::NEON,
        _ => &[],
    }
}

/// The kernel of that name, of any level compiled in.
pub fn kernel_by_name(name: &str) -> Option<&'static Kernel> {
    let of = |level| kernels(level).iter().chain(bf16_kernels(level));
    IsaLevel::ALL.into_iter().flat_map(of).copied().find(|kernel| kernel.name == name)
}
