//! Sums of a depthwise convolution in registers: a block of channels side by side, two taps at a step.
//!
//! An instruction multiplies pairs of 16-bit numbers and adds both products: of each channel the bytes that two taps meet,
//! by their weights. Bytes are widened as they are read, and pairs are made by interleaving two registers.

use crate::isa::IsaLevel;

/// What a tap meets: bytes of consecutive channels, for each pixel `step` bytes further on.
#[derive(Clone, Copy)]
pub(super) struct Tap {
    pub at: *const u8,
    pub step: usize,
}

/// One call: a block of channels over some pixels.
pub(super) struct Block<'a> {
    pub taps: &'a [Tap],
    /// Those of the first tap; the others lie `stride` numbers apart.
    pub weights: *const i16,
    pub stride: usize,
    pub pixels: usize,
    /// As many sums for each pixel as the block has channels.
    pub sums: *mut i32,
}

/// Computes a block.
type BlockFn = unsafe fn(&Block<'_>);

/// A way to compute a block of that many channels.
pub(super) struct Kernel {
    pub channels: usize,
    unsigned: BlockFn,
    signed: BlockFn,
}

impl Kernel {
    /// Adds up a block, whose bytes are `signed` or not.
    ///
    /// # Safety
    /// The kernel is one of a level that this machine runs. Each tap has bytes of all channels for each pixel, weights are
    /// there for every tap, and sums have their place.
    pub unsafe fn run(&self, signed: bool, block: &Block<'_>) {
        let run = if signed { self.signed } else { self.unsigned };
        // SAFETY: the caller's promise.
        unsafe { run(block) }
    }
}

/// The kernels of a level, widest first; none for levels without such instructions.
pub(super) fn kernels(level: IsaLevel) -> &'static [Kernel] {
    match level {
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V2 => &x86::V2,
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V3 => &x86::V3,
        #[cfg(target_arch = "x86_64")]
        IsaLevel::X86V4 | IsaLevel::X86V4Vnni | IsaLevel::X86V4Bf16 | IsaLevel::X86V4Amx => &x86::V4,
        _ => &[],
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Block, Kernel, Tap};
    use std::arch::x86_64::*;

    /// A register, as many 16-bit numbers as a block has channels; two of them hold sums.
    ///
    /// Every function is `unsafe` because it may use its instruction set: callers run where it exists.
    trait Register: Copy {
        const CHANNELS: usize;
        unsafe fn zero() -> Self;
        unsafe fn numbers(from: *const i16) -> Self;
        unsafe fn unsigned(from: *const u8) -> Self;
        unsafe fn signed(from: *const u8) -> Self;
        /// Numbers of both side by side, in the register's own order.
        unsafe fn pairs(self, other: Self) -> [Self; 2];
        unsafe fn add_products(self, pairs: Self, by: Self) -> Self;
        /// Stores both registers of sums in the order of channels.
        unsafe fn store(sums: [Self; 2], to: *mut i32);
    }

    /// Implements [`Register`] by intrinsics.
    macro_rules! register {
        ($register:ty, $channels:literal, $zero:ident, $load:expr, $unsigned:expr, $signed:expr, $low:ident, $high:ident,
         $multiply:ident, $add:ident, $store:ident, |$sums:ident| $ordered:expr) => {
            impl Register for $register {
                const CHANNELS: usize = $channels;
                #[inline(always)]
                unsafe fn zero() -> Self {
                    // SAFETY: the caller runs where the instruction set exists; so below.
                    unsafe { $zero() }
                }
                #[inline(always)]
                unsafe fn numbers(from: *const i16) -> Self {
                    // SAFETY: the caller vouches for a register of numbers.
                    unsafe { $load(from.cast()) }
                }
                #[inline(always)]
                unsafe fn unsigned(from: *const u8) -> Self {
                    // SAFETY: the caller vouches for a byte for each channel; so below.
                    unsafe { $unsigned(from) }
                }
                #[inline(always)]
                unsafe fn signed(from: *const u8) -> Self {
                    // SAFETY: as above.
                    unsafe { $signed(from) }
                }
                #[inline(always)]
                unsafe fn pairs(self, other: Self) -> [Self; 2] {
                    // SAFETY: as above.
                    unsafe { [$low(self, other), $high(self, other)] }
                }
                #[inline(always)]
                unsafe fn add_products(self, pairs: Self, by: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $add(self, $multiply(pairs, by)) }
                }
                #[inline(always)]
                unsafe fn store($sums: [Self; 2], to: *mut i32) {
                    // SAFETY: the caller vouches for a sum for each channel.
                    unsafe {
                        let [first, second] = $ordered;
                        $store(to.cast(), first);
                        $store(to.add($channels / 2).cast(), second);
                    }
                }
            }
        };
    }

    register!(
        __m128i,
        8,
        _mm_setzero_si128,
        _mm_loadu_si128,
        |from: *const u8| _mm_cvtepu8_epi16(_mm_loadl_epi64(from.cast())),
        |from: *const u8| _mm_cvtepi8_epi16(_mm_loadl_epi64(from.cast())),
        _mm_unpacklo_epi16,
        _mm_unpackhi_epi16,
        _mm_madd_epi16,
        _mm_add_epi32,
        _mm_storeu_si128,
        |sums| sums
    );
    register!(
        __m256i,
        16,
        _mm256_setzero_si256,
        _mm256_loadu_si256,
        |from: *const u8| _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast())),
        |from: *const u8| _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())),
        _mm256_unpacklo_epi16,
        _mm256_unpackhi_epi16,
        _mm256_madd_epi16,
        _mm256_add_epi32,
        _mm256_storeu_si256,
        |sums| [
            _mm256_permute2x128_si256::<0x20>(sums[0], sums[1]),
            _mm256_permute2x128_si256::<0x31>(sums[0], sums[1])
        ]
    );
    register!(
        __m512i,
        32,
        _mm512_setzero_si512,
        _mm512_loadu_si512,
        |from: *const u8| _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.cast())),
        |from: *const u8| _mm512_cvtepi8_epi16(_mm256_loadu_si256(from.cast())),
        _mm512_unpacklo_epi16,
        _mm512_unpackhi_epi16,
        _mm512_madd_epi16,
        _mm512_add_epi32,
        _mm512_storeu_si512,
        |sums| [
            _mm512_permutex2var_epi64(sums[0], _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), sums[1]),
            _mm512_permutex2var_epi64(sums[0], _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), sums[1])
        ]
    );

    /// Pixels whose sums registers hold at once.
    const TOGETHER: usize = 4;

    /// The bytes that a tap meets at pixel `at`.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn met<R: Register, const SIGNED: bool>(tap: Tap, at: usize) -> R {
        // SAFETY: the caller's promise.
        unsafe {
            let from = tap.at.add(at * tap.step);
            if SIGNED { R::signed(from) } else { R::unsigned(from) }
        }
    }

    /// `PIXELS` of a block from pixel `at` on.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn pixels<R: Register, const SIGNED: bool, const PIXELS: usize>(block: &Block<'_>, at: usize) {
        // SAFETY: the caller's promise: the taps, their weights and the sums of these pixels are there.
        unsafe {
            let mut sums = [[R::zero(); 2]; PIXELS];
            let mut weights = block.weights;
            let (taps, odd) = block.taps.as_chunks::<2>();
            for &[one, other] in taps {
                let by = R::numbers(weights).pairs(R::numbers(weights.add(block.stride)));
                weights = weights.wrapping_add(2 * block.stride);
                for (pixel, sums) in sums.iter_mut().enumerate() {
                    let pairs = met::<R, SIGNED>(one, at + pixel).pairs(met::<R, SIGNED>(other, at + pixel));
                    sums[0] = sums[0].add_products(pairs[0], by[0]);
                    sums[1] = sums[1].add_products(pairs[1], by[1]);
                }
            }
            for &one in odd {
                let by = R::numbers(weights).pairs(R::zero());
                for (pixel, sums) in sums.iter_mut().enumerate() {
                    let pairs = met::<R, SIGNED>(one, at + pixel).pairs(R::zero());
                    sums[0] = sums[0].add_products(pairs[0], by[0]);
                    sums[1] = sums[1].add_products(pairs[1], by[1]);
                }
            }
            for (pixel, sums) in sums.into_iter().enumerate() {
                R::store(sums, block.sums.add((at + pixel) * R::CHANNELS));
            }
        }
    }

    /// # Safety
    /// As [`Kernel::run`], where the instruction set of `R` exists.
    #[inline(always)]
    unsafe fn block<R: Register, const SIGNED: bool>(block: &Block<'_>) {
        let whole = block.pixels / TOGETHER * TOGETHER;
        // SAFETY: the caller's promise.
        unsafe {
            for at in (0..whole).step_by(TOGETHER) {
                pixels::<R, SIGNED, TOGETHER>(block, at);
            }
            for at in whole..block.pixels {
                pixels::<R, SIGNED, 1>(block, at);
            }
        }
    }

    /// A kernel of a register, compiled for an instruction set.
    macro_rules! kernel {
        ($features:literal, $register:ty) => {{
            /// # Safety
            /// As [`block`].
            #[target_feature(enable = $features)]
            unsafe fn at_level<const SIGNED: bool>(of: &Block<'_>) {
                // SAFETY: the caller's promise.
                unsafe { block::<$register, SIGNED>(of) }
            }
            Kernel { channels: <$register>::CHANNELS, unsigned: at_level::<false>, signed: at_level::<true> }
        }};
    }

    pub(super) static V2: [Kernel; 1] = [kernel!("sse4.2,popcnt", __m128i)];
    pub(super) static V3: [Kernel; 2] = [kernel!("avx2,fma,bmi2", __m256i), kernel!("avx2,fma,bmi2", __m128i)];
    pub(super) static V4: [Kernel; 3] = [
        kernel!("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2", __m512i),
        kernel!("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2", __m256i),
        kernel!("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2", __m128i),
    ];
}
