//! The few vector operations a GEMM microkernel is made of, per instruction set.

/// A register of f32 lanes.
///
/// Every function is `unsafe` because it may use its instruction set: callers run where it exists. Pointers are
/// read or written for `LANES` elements and need no alignment.
pub(super) trait Vector: Copy {
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
}

/// Lanes that the compiler maps to whatever the base target has.
#[derive(Clone, Copy)]
pub(super) struct Lanes4([f32; 4]);

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
}

/// Implements [`Vector`] by intrinsics; `$fma` is an expression over `sum`, `a` and `b`.
macro_rules! intrinsics {
    ($(#[$meta:meta])* $name:ident, $register:ty, $lanes:literal, $arch:ident,
     $zero:expr, $splat:ident, $load:ident, $store:ident, $add:ident, $mul:ident, $min:ident, $max:ident,
     |$sum:ident, $a:ident, $b:ident| $fma:expr) => {
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
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

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
        |sum, a, b| _mm_add_ps(sum, _mm_mul_ps(a, b))
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
        |sum, a, b| _mm256_fmadd_ps(a, b, sum)
    );
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
        |sum, a, b| _mm512_fmadd_ps(a, b, sum)
    );
}
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512, Sse};

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
        |sum, a, b| vfmaq_f32(sum, a, b)
    );
}
#[cfg(target_arch = "aarch64")]
pub(super) use arm::Neon;
