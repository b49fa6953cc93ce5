//! Instruction-set levels: which instructions a kernel may use.
//!
//! A level can be chosen below what the machine has; kernels then stay below it. [`Isa`] is the proof that this
//! machine runs a level: it can only be had through [`Isa::new`], so the `unsafe` calls of vector code behind it
//! are sound.

use std::fmt;

/// A set of vector instructions, named after the x86-64 micro-architecture levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IsaLevel {
    /// Plain Rust, whatever the compiler's base target has.
    Portable,
    /// SSE4.2.
    X86V2,
    /// AVX2 and FMA.
    X86V3,
    /// AVX-512 F, BW, DQ, VL.
    X86V4,
    /// X86V4 with AVX-512 VNNI. Its f32 kernels are those of X86V4.
    X86V4Vnni,
    /// X86V4Vnni with products of bf16 pairs.
    X86V4Bf16,
    /// X86V4Bf16 with tiles: products of bf16 pairs and of bytes in a matrix unit.
    X86V4Amx,
    /// Advanced SIMD of AArch64.
    Neon,
}

impl IsaLevel {
    /// Every level, lowest first.
    pub const ALL: [Self; 8] = [
        Self::Portable,
        Self::X86V2,
        Self::X86V3,
        Self::X86V4,
        Self::X86V4Vnni,
        Self::X86V4Bf16,
        Self::X86V4Amx,
        Self::Neon,
    ];

    /// Short stable name, as kernel names begin with.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::X86V2 => "sse42",
            Self::X86V3 => "avx2",
            Self::X86V4 => "avx512",
            Self::X86V4Vnni => "avx512vnni",
            Self::X86V4Bf16 => "avx512bf16",
            Self::X86V4Amx => "amx",
            Self::Neon => "neon",
        }
    }

    /// The instructions in words, for messages.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Portable => "no vector instructions",
            Self::X86V2 => "SSE4.2",
            Self::X86V3 => "AVX2 and FMA",
            Self::X86V4 => "AVX-512 F, BW, DQ and VL",
            Self::X86V4Vnni => "AVX-512 F, BW, DQ, VL and VNNI",
            Self::X86V4Bf16 => "AVX-512 F, BW, DQ, VL, VNNI and BF16",
            Self::X86V4Amx => "AVX-512 F, BW, DQ, VL, VNNI and BF16, and AMX tiles for bytes and bf16",
            Self::Neon => "NEON",
        }
    }

    /// Whether it contains X86V4.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_avx512(self) -> bool {
        matches!(self, Self::X86V4 | Self::X86V4Vnni | Self::X86V4Bf16 | Self::X86V4Amx)
    }

    /// Whether this machine runs the level's instructions.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::X86V2 => is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("popcnt"),
            #[cfg(target_arch = "x86_64")]
            Self::X86V3 => {
                Self::X86V2.is_available()
                    && is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("bmi1")
                    && is_x86_feature_detected!("bmi2")
            }
            #[cfg(target_arch = "x86_64")]
            Self::X86V4 => {
                Self::X86V3.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Self::X86V4Vnni => Self::X86V4.is_available() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Self::X86V4Bf16 => Self::X86V4Vnni.is_available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "x86_64")]
            Self::X86V4Amx => Self::X86V4Bf16.is_available() && crate::tiles::are_permitted(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            _ => false,
        }
    }
}

impl fmt::Display for IsaLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Proof that this machine runs a level. Every vectorised kernel asks for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(IsaLevel);

impl Isa {
    /// The token of `level`, or `None` when this machine lacks its instructions.
    pub fn new(level: IsaLevel) -> Option<Self> {
        level.is_available().then_some(Self(level))
    }

    /// Tokens of every level this machine runs, lowest first.
    pub fn available() -> Vec<Self> {
        IsaLevel::ALL.into_iter().filter_map(Self::new).collect()
    }

    /// The highest level of this machine.
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self(IsaLevel::Portable))
    }

    /// The level.
    pub fn level(self) -> IsaLevel {
        self.0
    }
}

/// `a * b + c`, rounded once where `FUSED`: only for functions compiled for a level that has the instruction, or each
/// call would be one of a library.
#[inline(always)]
pub(crate) fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Defines a safe function whose body is compiled once per level and chosen by its first argument, an [`Isa`].
///
/// The body is plain Rust: it is inlined into one wrapper per level, where the compiler vectorises it with that
/// level's instructions. Within it the constant `FUSED` says whether the level multiplies and adds with one rounding;
/// see [`multiply_add`].
macro_rules! per_level {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) {
            #[inline(always)]
            fn body<const FUSED: bool>($($arg: $ty),*) $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "sse4.2,popcnt")]
            fn v2($($arg: $ty),*) { body::<false>($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2")]
            fn v3($($arg: $ty),*) { body::<true>($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
            fn v4($($arg: $ty),*) { body::<true>($($arg),*) }
            match isa.level() {
                // SAFETY: an `Isa` of this level exists only where its instructions do.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::IsaLevel::X86V2 => unsafe { v2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::IsaLevel::X86V3 => unsafe { v3($($arg),*) },
                // SAFETY: as above; the later levels contain X86V4.
                #[cfg(target_arch = "x86_64")]
                level if level.has_avx512() => unsafe { v4($($arg),*) },
                _ => body::<{ cfg!(target_arch = "aarch64") }>($($arg),*),
            }
        }
    };
}
pub(crate) use per_level;
