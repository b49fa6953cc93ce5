//! Instruction-set levels: each is a SKU of its own that bounds what an engine's code may use.

use planforge_types::Sku;
use std::{fmt, str::FromStr};

/// An instruction-set level. Within an architecture, a later level includes every earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CpuLevel {
    /// SSE4.2 and POPCNT.
    X86V2,
    /// AVX2, FMA, F16C, BMI.
    X86V3,
    /// AVX-512 F, BW, CD, DQ, VL.
    X86V4,
    /// v4 with AVX-512 VNNI (8-bit dot products).
    X86V4Vnni,
    /// v4-vnni with AVX-512 BF16 (products of bf16 pairs).
    X86V4Bf16,
    /// v4-bf16 with AMX tiles for bf16 and bytes (a matrix unit).
    X86V4Amx,
    /// Advanced SIMD, which every 64-bit Arm core has.
    Aarch64Neon,
    /// Neon with 8-bit dot products.
    Aarch64NeonDotprod,
}

impl CpuLevel {
    /// Every level, lowest first within its architecture.
    pub const ALL: [Self; 8] = [
        Self::X86V2,
        Self::X86V3,
        Self::X86V4,
        Self::X86V4Vnni,
        Self::X86V4Bf16,
        Self::X86V4Amx,
        Self::Aarch64Neon,
        Self::Aarch64NeonDotprod,
    ];

    /// The SKU's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86V2 => "cpu-x86-64-v2",
            Self::X86V3 => "cpu-x86-64-v3",
            Self::X86V4 => "cpu-x86-64-v4",
            Self::X86V4Vnni => "cpu-x86-64-v4-vnni",
            Self::X86V4Bf16 => "cpu-x86-64-v4-bf16",
            Self::X86V4Amx => "cpu-x86-64-v4-amx",
            Self::Aarch64Neon => "cpu-aarch64-neon",
            Self::Aarch64NeonDotprod => "cpu-aarch64-neon-dotprod",
        }
    }

    /// The level as a SKU.
    pub fn sku(self) -> Sku {
        self.name().parse().expect("level names are SKU names")
    }

    /// The level a SKU names; `None` for GPUs and unknown names.
    pub fn of_sku(sku: &Sku) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == sku.as_str())
    }

    /// `x86_64` or `aarch64`.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Aarch64Neon | Self::Aarch64NeonDotprod => "aarch64",
            _ => "x86_64",
        }
    }

    /// Whether code for `other` runs wherever code for this level runs.
    pub fn includes(self, other: Self) -> bool {
        self.architecture() == other.architecture() && self >= other
    }

    /// Whether the CPU this process runs on can execute the level's code.
    pub fn runs_here(self) -> bool {
        Self::detect().contains(&self)
    }

    /// The levels this CPU can run, best last; empty on a CPU below every level.
    pub fn detect() -> Vec<Self> {
        Self::ALL.into_iter().filter(|level| level.detected()).collect()
    }

    #[cfg(target_arch = "x86_64")]
    fn detected(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        match self {
            Self::X86V2 => {
                has!("cmpxchg16b")
                    && has!("popcnt")
                    && has!("sse3")
                    && has!("ssse3")
                    && has!("sse4.1")
                    && has!("sse4.2")
            }
            Self::X86V3 => {
                Self::X86V2.detected()
                    && has!("avx")
                    && has!("avx2")
                    && has!("bmi1")
                    && has!("bmi2")
                    && has!("f16c")
                    && has!("fma")
                    && has!("lzcnt")
                    && has!("movbe")
            }
            Self::X86V4 => {
                Self::X86V3.detected()
                    && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512cd")
                    && has!("avx512dq")
                    && has!("avx512vl")
            }
            Self::X86V4Vnni => Self::X86V4.detected() && has!("avx512vnni"),
            Self::X86V4Bf16 => Self::X86V4Vnni.detected() && has!("avx512bf16"),
            Self::X86V4Amx => Self::X86V4Bf16.detected() && has_tiles(),
            Self::Aarch64Neon | Self::Aarch64NeonDotprod => false,
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn detected(self) -> bool {
        use std::arch::is_aarch64_feature_detected as has;
        match self {
            Self::Aarch64Neon => has!("neon"),
            Self::Aarch64NeonDotprod => has!("neon") && has!("dotprod"),
            _ => false,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn detected(self) -> bool {
        false
    }
}

/// Whether the processor multiplies tiles of bf16 and of bytes and the kernel knows of it: it leaves out flags of what it
/// does not save for processes.
#[cfg(target_arch = "x86_64")]
fn has_tiles() -> bool {
    static HAS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *HAS.get_or_init(|| {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
        let has = |wanted: &str| flags.is_some_and(|(_, flags)| flags.split_whitespace().any(|flag| flag == wanted));
        ["amx_tile", "amx_bf16", "amx_int8"].into_iter().all(has)
    })
}

/// A SKU that is no instruction-set level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a CPU level; known: {}", CpuLevel::ALL.map(CpuLevel::name).join(", "))]
pub struct LevelParseError {
    text: String,
}

impl FromStr for CpuLevel {
    type Err = LevelParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|level| level.name() == text)
            .ok_or_else(|| LevelParseError { text: text.chars().take(80).collect() })
    }
}

impl fmt::Display for CpuLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_skus_and_come_back() {
        for level in CpuLevel::ALL {
            assert_eq!(CpuLevel::of_sku(&level.sku()), Some(level));
            assert!(level.sku().is_cpu());
            assert_eq!(level.name().parse(), Ok(level));
        }
        assert!("cpu-x86-64-v1".parse::<CpuLevel>().is_err());
    }

    #[test]
    fn levels_nest_within_an_architecture_only() {
        assert!(CpuLevel::X86V4.includes(CpuLevel::X86V2));
        assert!(!CpuLevel::X86V2.includes(CpuLevel::X86V3));
        assert!(!CpuLevel::Aarch64Neon.includes(CpuLevel::X86V2));
    }

    #[test]
    fn detection_never_skips_a_level() {
        let found = CpuLevel::detect();
        for level in CpuLevel::ALL {
            let included = found.last().is_some_and(|best| best.includes(level));
            assert_eq!(found.contains(&level), included, "{level}");
        }
    }
}
