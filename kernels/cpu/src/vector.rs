//! The few vector operations that microkernels are made of, per instruction set.

/// A register of f32 lanes.
///
/// Every function is `unsafe` because it may use its instruction set: callers run where it exists. Pointers are
/// read or written for `LANES` elements and need no alignment.
pub(crate) trait Vector: Copy {
    const LANES: usize;
    unsafe fn zero() -> Self;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// `self + a * b`.
    unsafe fn multiply_add(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn multiply(self, other: Self) -> Self;
    unsafe fn min(self, other: Self) -> Self;
    unsafe fn max(self, other: Self) -> Self;
    /// The first `count` (up to LANES) elements, zeros behind them; nothing else is read.
    unsafe fn load_part(from: *const f32, count: usize) -> Self;
    /// Writes the first `count` (up to LANES) elements.
    unsafe fn store_part(self, to: *mut f32, count: usize);
    /// Asks for the cache line at `address`, which need not be valid.
    #[inline(always)]
    unsafe fn prefetch(address: *const f32) {
        let _ = address;
    }
}

/// Partial loads and stores by way of a whole register in memory, for instruction sets without masks.
macro_rules! parts_through_memory {
    () => {
        #[inline(always)]
        unsafe fn load_part(from: *const f32, count: usize) -> Self {
            let mut whole = [0.0f32; Self::LANES];
            // SAFETY: the caller vouches for `count` elements, at most LANES.
            unsafe {
                whole.as_mut_ptr().copy_from_nonoverlapping(from, count);
                Self::load(whole.as_ptr())
            }
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f32, count: usize) {
            let mut whole = [0.0f32; Self::LANES];
            // SAFETY: as above.
            unsafe {
                self.store(whole.as_mut_ptr());
                to.copy_from_nonoverlapping(whole.as_ptr(), count);
            }
        }
    };
}

/// Most rows and vectors of any kernel: the sizes that [`each_row`] and [`each_vector`] write out.
pub(crate) const ROWS_MAX: usize = 14;
pub(crate) const VECTORS_MAX: usize = 4;

/// Repeats a block for each row with the row's number as a constant, so that sums stay in registers: an array
/// indexed in a loop that the compiler does not unroll would live in memory.
macro_rules! each_row {
    ($count:expr, $row:ident, $body:block) => {
        each_row!(@ $count, $row, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
    };
    (@ $count:expr, $row:ident, $body:block, $($n:literal)*) => {
        {
            $({
                const $row: usize = $n;
                if $row < $count $body
            })*
        }
    };
}

/// As [`each_row`], for the vectors of a row.
macro_rules! each_vector {
    ($count:expr, $vector:ident, $body:block) => {
        each_row!(@ $count, $vector, $body, 0 1 2 3)
    };
}
pub(crate) use {each_row, each_vector};

/// Lanes that the compiler maps to whatever the base target has.
#[derive(Clone, Copy)]
pub(crate) struct Lanes4([f32; 4]);

impl Lanes4 {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Vector for Lanes4 {
    const LANES: usize = 4;
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; 4])
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 4])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for four elements.
        Self(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller vouches for four elements.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn multiply_add(self, a: Self, b: Self) -> Self {
        self.zip(a.zip(b, |x, y| x * y), |x, y| x + y)
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |x, y| x + y)
    }
    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        self.zip(other, |x, y| x * y)
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        self.zip(other, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |x, y| if x > y { x } else { y })
    }
    parts_through_memory!();
}

/// Implements [`Vector`] by intrinsics; `$fma` is an expression over `sum`, `a` and `b`.
macro_rules! intrinsics {
    ($(#[$meta:meta])* $name:ident, $register:ty, $lanes:literal, $arch:ident,
     $zero:expr, $splat:ident, $load:ident, $store:ident, $add:ident, $mul:ident, $min:ident, $max:ident,
     |$sum:ident, $a:ident, $b:ident| $fma:expr, { $($more:tt)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub struct $name($register);

        $(#[$meta])*
        impl Vector for $name {
            const LANES: usize = $lanes;
            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the caller runs where this instruction set exists; so below.
                Self(unsafe { $zero })
            }
            #[inline(always)]
            unsafe fn splat(value: f32) -> Self {
                // SAFETY: as above.
                Self(unsafe { std::arch::$arch::$splat(value) })
            }
            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: as above; the caller vouches for the elements.
                Self(unsafe { std::arch::$arch::$load(from) })
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: as above.
                unsafe { std::arch::$arch::$store(to, self.0) }
            }
            #[inline(always)]
            unsafe fn multiply_add(self, a: Self, b: Self) -> Self {
                let ($sum, $a, $b) = (self.0, a.0, b.0);
                // SAFETY: as above.
                Self(unsafe { $fma })
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { std::arch::$arch::$add(self.0, other.0) })
            }
            #[inline(always)]
            unsafe fn multiply(self, other: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { std::arch::$arch::$mul(self.0, other.0) })
            }
            #[inline(always)]
            unsafe fn min(self, other: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { std::arch::$arch::$min(self.0, other.0) })
            }
            #[inline(always)]
            unsafe fn max(self, other: Self) -> Self {
                // SAFETY: as above.
                Self(unsafe { std::arch::$arch::$max(self.0, other.0) })
            }
            $($more)*
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    /// A mask of the first `count` of eight lanes.
    ///
    /// # Safety
    /// AVX2 exists.
    #[inline(always)]
    unsafe fn first_lanes(count: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes)
        }
    }

    intrinsics!(
        Sse,
        __m128,
        4,
        x86_64,
        _mm_setzero_ps(),
        _mm_set1_ps,
        _mm_loadu_ps,
        _mm_storeu_ps,
        _mm_add_ps,
        _mm_mul_ps,
        _mm_min_ps,
        _mm_max_ps,
        |sum, a, b| _mm_add_ps(sum, _mm_mul_ps(a, b)),
        {
            parts_through_memory!();
            #[inline(always)]
            unsafe fn prefetch(address: *const f32) {
                // SAFETY: a prefetch of any address is harmless.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
            }
        }
    );
    intrinsics!(
        Avx2,
        __m256,
        8,
        x86_64,
        _mm256_setzero_ps(),
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_add_ps,
        _mm256_mul_ps,
        _mm256_min_ps,
        _mm256_max_ps,
        |sum, a, b| _mm256_fmadd_ps(a, b, sum),
        {
            #[inline(always)]
            unsafe fn load_part(from: *const f32, count: usize) -> Self {
                // SAFETY: as above; lanes beyond `count` are not read.
                Self(unsafe { _mm256_maskload_ps(from, first_lanes(count)) })
            }
            #[inline(always)]
            unsafe fn store_part(self, to: *mut f32, count: usize) {
                // SAFETY: as above; lanes beyond `count` are not written.
                unsafe { _mm256_maskstore_ps(to, first_lanes(count), self.0) }
            }
            #[inline(always)]
            unsafe fn prefetch(address: *const f32) {
                // SAFETY: a prefetch of any address is harmless.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
            }
        }
    );
    impl From<__m512> for Avx512 {
        fn from(register: __m512) -> Self {
            Self(register)
        }
    }
    intrinsics!(
        Avx512,
        __m512,
        16,
        x86_64,
        _mm512_setzero_ps(),
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_add_ps,
        _mm512_mul_ps,
        _mm512_min_ps,
        _mm512_max_ps,
        |sum, a, b| _mm512_fmadd_ps(a, b, sum),
        {
            #[inline(always)]
            unsafe fn load_part(from: *const f32, count: usize) -> Self {
                // SAFETY: as above; lanes beyond `count` are not read.
                Self(unsafe { _mm512_maskz_loadu_ps(((1u32 << count) - 1) as u16, from) })
            }
            #[inline(always)]
            unsafe fn store_part(self, to: *mut f32, count: usize) {
                // SAFETY: as above; lanes beyond `count` are not written.
                unsafe { _mm512_mask_storeu_ps(to, ((1u32 << count) - 1) as u16, self.0) }
            }
            #[inline(always)]
            unsafe fn prefetch(address: *const f32) {
                // SAFETY: a prefetch of any address is harmless.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
            }
        }
    );
}
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512, Sse};

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::Vector;
    use std::arch::aarch64::*;

    intrinsics!(
        Neon,
        float32x4_t,
        4,
        aarch64,
        vdupq_n_f32(0.0),
        vdupq_n_f32,
        vld1q_f32,
        vst1q_f32,
        vaddq_f32,
        vmulq_f32,
        vminq_f32,
        vmaxq_f32,
        |sum, a, b| vfmaq_f32(sum, a, b),
        {
            parts_through_memory!();
        }
    );
}
#[cfg(target_arch = "aarch64")]
pub(crate) use arm::Neon;
