//! Products of one row by tensor cores, a block's columns of the matrix in its shared memory before it waits.
//!
//! What a kernel has read ahead in registers it waits for before it may wait for others, and several kernels ahead of each
//! other then wait for memory one by one. Copies to shared memory go on meanwhile: so a block for each multiprocessor, and
//! of two to four kernels at once, read while one computes. How many there are is set by the shared memory that a launch
//! asks for, and there are blocks that do nothing but wait for as many multiprocessors as would be left: where more blocks
//! fit, some multiprocessors get two of one kernel and others none.

use super::{
    Generated, PRELUDE, TENSOR_PRELUDE, c_float, c_type,
    expr::{Digits, activation},
    gemm,
    matvec::{self, Problem},
};
use crate::{program::ProductWork, source::Source, view::Kind};
use std::fmt::Write as _;

/// The sum over this many elements is a piece that a warp takes; of halves of a row each has some.
pub(super) const PIECE: u64 = 32;
pub(super) const WARP: u64 = 32;
const WARPS: [u64; 3] = [12, 8, 4];
/// Most columns of a block: each is finished by four lanes, and a block has four warps at least.
const MAX_COLUMNS: u64 = 32;
/// Columns of a block where there are more than one for each multiprocessor.
const COLUMNS_OF_MANY: [u64; 2] = [24, 16];
/// Where a block stays while there are columns: how many of them it has in its memory at once, in groups, and how many such
/// blocks a multiprocessor has.
const STAYING: [(u64, u64); 3] = [(2, 2), (3, 1), (4, 1)];
/// Blocks of which a multiprocessor holds no more.
pub(super) const RESIDENT: [u64; 2] = [2, 4];
/// Registers of a thread that hold columns.
const MAX_HELD: u64 = 48;

/// How the work is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Columns of a block.
    pub(super) columns: u64,
    pub(super) warps: u64,
    /// Blocks, some of which may have no columns.
    pub(super) blocks: u64,
    /// Groups of so many columns that a block has in its memory: with more than one it goes on to further ones.
    pub(super) stages: u64,
    /// Dynamic shared memory that is asked for, which may be more than is used.
    pub(super) shared_bytes: u32,
}

/// Bytes of shared memory that a block uses.
pub(super) fn used_bytes(problem: &Problem, columns: u64, warps: u64, stages: u64) -> u64 {
    let (rows, sums) = if problem.norm.is_some() { (4, 3) } else { (1, 1) };
    let k = problem.k;
    let counts = 16 + 8 * stages;
    let sums = stages.min(2) * sums * columns * warps * 4;
    stages * columns * (k + PIECE) * 2 + rows * (k / 2 + 16) * 4 + sums + warps * 8 + columns * 4 + counts
}

/// Matrices of sixteen columns, and whether one of eight over both halves of K is left.
fn matrices(columns: u64) -> (u64, bool) {
    let rest = columns % 16;
    (columns / 16 + u64::from(rest > 8), (1..=8).contains(&rest))
}

/// Whether a thread's part of the columns fits into its registers.
fn is_held(problem: &Problem, tile: Tile) -> bool {
    let (full, half) = matrices(tile.columns);
    let own = |pieces: u64| pieces.div_ceil(tile.warps) * 8;
    let pieces = problem.k / PIECE;
    tile.stages == 1 && full * own(pieces) + u64::from(half) * own(pieces / 2) <= MAX_HELD
}

/// A product whose matrix and bias are constants and whose sums are whole pieces, which it has to be for what goes on behind
/// its columns.
pub(super) fn problem_of(product: &ProductWork) -> Option<Problem> {
    Problem::of(product, |_| true).filter(|problem| problem.k.is_multiple_of(2 * PIECE))
}

/// Tiles that are worth timing; none where the matrix is computed, or of sizes that are not whole pieces.
pub fn tiles(problem: &Problem, device: gemm::Device) -> Vec<Tile> {
    let since = if problem.kind == Kind::Bf16 { gemm::BF16_SINCE } else { 0 };
    let fits = matches!(problem.kind, Kind::F16 | Kind::Bf16)
        && device.capability >= since
        && problem.constant
        && problem.k.is_multiple_of(2 * PIECE);
    if !fits {
        return Vec::new();
    }
    let sms = u64::from(device.sm_count.max(1));
    let each = problem.n.div_ceil(sms);
    let columns = if each <= MAX_COLUMNS { vec![each] } else { COLUMNS_OF_MANY.to_vec() };
    let most = u64::from(device.shared_block_bytes);
    let mut tiles = Vec::new();
    for columns in columns {
        let needed = problem.n.div_ceil(columns);
        let one_each = needed <= sms;
        for warps in WARPS.into_iter().filter(|&warps| warps == WARPS[2] || warps <= problem.k / PIECE) {
            let used = |stages: u64| used_bytes(problem, columns, warps, stages).next_multiple_of(32);
            let asked = |resident: u64| device.shared_of_one_among(resident, 0);
            let mut tile = |bytes: u64, blocks: u64, stages: u64| {
                if (used(stages)..=most).contains(&bytes) {
                    tiles.push(Tile { columns, warps, blocks, stages, shared_bytes: bytes as u32 });
                }
            };
            if one_each {
                RESIDENT.into_iter().for_each(|resident| tile(asked(resident), sms, 1));
                continue;
            }
            tile(used(1), needed, 1);
            let stays = |&(stages, resident): &(u64, u64)| {
                device.capability >= gemm::CLUSTERS_SINCE
                    && used(stages) <= asked(resident)
                    && needed > resident * sms * stages
            };
            STAYING.iter().filter(|how| stays(how)).for_each(|&(stages, resident)| {
                tile(used(stages), resident * sms, stages);
            });
        }
    }
    // Fewer warps are worth a try where a row is short.
    let several = tiles.iter().any(|tile| tile.warps > WARPS[2]);
    tiles.retain(|tile| !several || tile.warps > WARPS[2]);
    tiles
}

/// Arguments: as of [`matvec::generate`].
pub fn generate(problem: &Problem, tile: Tile) -> Generated {
    generated(problem, tile, text(problem, tile, "#define HEADS 0\n#define TAIL 0\n#define READS_SUMS 0\n"))
}

/// A source of columns that nothing comes after.
pub(super) fn generated(problem: &Problem, tile: Tile, text: String) -> Generated {
    debug_assert!(tile.stages > 1 || tile.blocks >= problem.n.div_ceil(tile.columns), "every column has a block");
    Generated {
        source: Source { name: "staged".into(), text },
        grid: [tile.blocks as u32, 1, 1],
        block: [(tile.warps * WARP) as u32, 1, 1],
        shared_bytes: tile.shared_bytes,
    }
}

/// The source behind what else is `defined`.
pub(super) fn text(problem: &Problem, tile: Tile, defined: &str) -> String {
    let mut text =
        format!("{PRELUDE}{TENSOR_PRELUDE}{}\n", concat!(include_str!("pairs.cuh"), include_str!("arrivals.cuh")));
    let mut define = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "#define {name} {value}");
    };
    define("ELEMENT", &c_type(problem.kind));
    define("ONES", if problem.kind == Kind::F16 { &"0x3c003c00u" } else { &"0x3f803f80u" });
    define("ALPHA", &c_float(problem.alpha));
    define(
        "ACTIVATION",
        &problem.activation.map_or("f".to_owned(), |op| activation(op, Digits::of(problem.kind), "f")),
    );
    let (full, half) = matrices(tile.columns);
    for (name, value) in [
        ("FULL", full),
        ("HALF", half.into()),
        ("N", problem.n),
        ("K", problem.k),
        ("STRIDE", problem.pitch),
        ("COLUMNS", tile.columns),
        ("WARPS", tile.warps),
        ("HELD", is_held(problem, tile).into()),
        ("STAGES", tile.stages),
        ("BLOCKS", tile.blocks),
        ("GROUPS", problem.n.div_ceil(tile.columns)),
        ("CONSTANT_BIAS", problem.constant_bias.into()),
    ] {
        define(name, &value);
    }
    matvec::define_operands(problem, &mut define);
    text += defined;
    text += include_str!("staged.cu");
    text
}
