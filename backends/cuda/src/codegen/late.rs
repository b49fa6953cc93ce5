//! A kernel that lets the one behind it begin at once, and only later writes what that one reads.

use super::{BLOCK, Generated, PRELUDE};
use crate::source::Source;

/// Copies that one launch makes.
pub const COPIES: usize = 6;
/// Few blocks, so that those of the next kernel find room beside them.
const BLOCKS: u32 = 8;
/// Far longer than a launch takes.
const LATE_NS: u32 = 40_000;

/// Arguments: `to`, `from` and how many times 16 bytes, for each of the copies.
pub fn generate() -> Generated {
    let parameters: Vec<String> =
        (0..COPIES).map(|copy| format!("uint4* to{copy}, const uint4* from{copy}, i64 count{copy}")).collect();
    let copies: String = (0..COPIES)
        .map(|copy| {
            format!("for (i64 i = thread; i < count{copy}; i += {BLOCKS} * {BLOCK}) to{copy}[i] = from{copy}[i];\n")
        })
        .collect();
    let text = format!(
        "{PRELUDE}\nextern \"C\" __global__ void __launch_bounds__({BLOCK}) late({})\n{{\nLET_OTHERS_BEGIN;\n\
         unsigned long long begin, now;\nasm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(begin));\n\
         do asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(now)); while (now - begin < {LATE_NS}ull);\n\
         i64 thread = (i64)blockIdx.x * {BLOCK} + threadIdx.x;\n{copies}}}\n",
        parameters.join(", ")
    );
    Generated {
        source: Source { name: "late".into(), text },
        grid: [BLOCKS, 1, 1],
        block: [BLOCK, 1, 1],
        shared_bytes: 0,
    }
}
