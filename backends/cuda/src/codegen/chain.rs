//! Links of a chain over one row ([`crate::program::ChainWork`]): columns that [`super::staged`] has in shared memory, or a
//! head's, whose result the blocks of a cluster tell each other and multiply by a second matrix. What comes out they add to
//! sums, which the next link reads: two kernels for each layer of a decoder, where there were four.

use super::{
    Generated, PRELUDE, gemm,
    heads::{self, RANKS},
    staged::{self, Tile},
};
use crate::{
    program::{ChainWork, First, HeadsWork, ProductWork, Tail},
    source::Source,
    view::View,
};

/// Columns over which a part of the second sum goes come in whole steps of tensor cores, and are copied in whole vectors.
const STEP: u64 = 16;
const VECTOR: u64 = 8;
/// Warps of a pair of products, and most columns of a block's first: four lanes finish each.
const WARPS: u64 = 12;
const MAX_COLUMNS: u64 = 64;
/// Most elements of the row that a block adds, a lane each.
const MAX_ADDS: u64 = 32;
/// Most clusters: two warps of each add to one sum, and one adds the row, of at most 63 (`sums.cuh`).
const MAX_CLUSTERS: u64 = 31;
/// Bytes of a vector of sums, and threads that clear them.
const SUM_BYTES: u64 = 8;
const CLEARED_BYTES: u64 = 16;
const CLEARING: u32 = 256;

/// Kernels that compute a link; none on devices without clusters.
pub fn kernels(work: &ChainWork, device: gemm::Device) -> Vec<Generated> {
    if device.capability < gemm::CLUSTERS_SINCE {
        return Vec::new();
    }
    let sums = format!("#define READS_SUMS {}\n{}", u8::from(work.sums.is_some()), include_str!("sums.cuh"));
    match (&work.first, &work.tail) {
        (First::Heads(first), Some(tail)) => heads_and_tail(first, tail, &sums, device).into_iter().collect(),
        (First::Product(first), Some(tail)) => pair(first, tail, &sums, device).into_iter().collect(),
        (First::Product(first), None) => {
            let Some(problem) = staged::problem_of(first) else { return Vec::new() };
            let defined = format!("#define HEADS 0\n#define TAIL 0\n{sums}");
            let tiles = staged::tiles(&problem, device).into_iter();
            tiles.map(|tile| staged::generated(&problem, tile, staged::text(&problem, tile, &defined))).collect()
        }
        (First::Heads(_), None) => Vec::new(),
    }
}

/// The kernel that clears sums before anything is added to them.
pub fn cleared(sums: &View) -> Generated {
    let count = (sums.elements() * SUM_BYTES).div_ceil(CLEARED_BYTES);
    let text = format!(
        "{PRELUDE}extern \"C\" __global__ void clear_sums(uint4* __restrict__ y) {{
    LET_OTHERS_BEGIN;
    AFTER_OTHERS;
    const u32 i = blockIdx.x * {CLEARING} + threadIdx.x;
    if (i < {count}u) y[i] = make_uint4(0, 0, 0, 0);
}}
"
    );
    Generated {
        source: Source { name: "clear_sums".into(), text },
        grid: [count.div_ceil(u64::from(CLEARING)) as u32, 1, 1],
        block: [CLEARING, 1, 1],
        shared_bytes: 0,
    }
}

/// Arguments: of the head, but its result; w2, bias2?, y.
fn heads_and_tail(work: &HeadsWork, tail: &Tail, sums: &str, device: gemm::Device) -> Option<Generated> {
    let mut head = heads::head(work, device)?;
    let [clusters, size] = [1, 3].map(|axis| work.o.dims[axis]);
    let second = Second::of(tail, clusters, size, head.tile.warps)?;
    head.tile.shared_bytes = with_tail(head.tile, &second, head.tile.warps, device)?;
    Some(heads::generate(work, &head, &format!("{sums}{}", second.text()), include_str!("tail.cuh")))
}

/// Arguments: x, w, bias?, scale?, shift?, w2, bias2?, y.
fn pair(first: &ProductWork, tail: &Tail, sums: &str, device: gemm::Device) -> Option<Generated> {
    let problem = staged::problem_of(first)?;
    let most = (u64::from(device.sm_count) / RANKS).min(MAX_CLUSTERS);
    // As few columns for each block as all clusters together have room for, and all of them whole.
    let least = problem.n.div_ceil(most.max(1) * RANKS).next_multiple_of(2);
    let columns = (least..=MAX_COLUMNS).step_by(2).find(|columns| problem.n.is_multiple_of(columns * RANKS))?;
    let clusters = problem.n / (columns * RANKS);
    let second = Second::of(tail, clusters, columns * RANKS, WARPS)?;
    let used = staged::used_bytes(&problem, columns, WARPS, 1).next_multiple_of(32) as u32;
    let mut tile = Tile { columns, warps: WARPS, blocks: clusters, stages: 1, shared_bytes: used };
    tile.shared_bytes = with_tail(tile, &second, 1, device)?;
    let defined =
        format!("#define HEADS 0\n#define RANKS {RANKS}\n{sums}{}{}", second.text(), include_str!("tail.cuh"));
    Some(Generated {
        source: Source { name: "pair".into(), text: staged::text(&problem, tile, &defined) },
        grid: [clusters as u32, RANKS as u32, 1],
        block: [(WARPS * staged::WARP) as u32, 1, 1],
        shared_bytes: tile.shared_bytes,
    })
}

/// The second product of a link.
struct Second {
    n: u64,
    /// Length of the sum that a cluster has, of which there are so many.
    k: u64,
    clusters: u64,
    stride: u64,
    bias: bool,
}

impl Second {
    fn of(tail: &Tail, clusters: u64, k: u64, warps: u64) -> Option<Self> {
        let n = tail.b.dims[2];
        let stride = if n == 1 { clusters * k } else { tail.b.strides[2] };
        let second = Self { n, k, clusters, stride, bias: tail.bias.is_some() };
        let fits = k.is_multiple_of(STEP)
            && [stride, tail.b.offset].iter().all(|elements| elements.is_multiple_of(VECTOR))
            && tail.y.offset.is_multiple_of(CLEARED_BYTES / SUM_BYTES)
            && second.adds() <= MAX_ADDS
            && clusters <= MAX_CLUSTERS
            && second.columns() / STEP <= 4 * warps;
        fits.then_some(second)
    }

    /// Columns of a block.
    fn columns(&self) -> u64 {
        self.n.div_ceil(RANKS).next_multiple_of(STEP)
    }

    /// Elements of the row that each block adds.
    fn adds(&self) -> u64 {
        self.n.div_ceil(self.clusters * RANKS)
    }

    fn text(&self) -> String {
        let Self { n, k, clusters, stride, bias } = *self;
        let more = if bias { ", const ELEMENT* __restrict__ bias2" } else { "" };
        format!(
            "#define TAIL 1\n#define TAIL_N {n}\n#define TAIL_K {k}\n#define TAIL_STRIDE {stride}\n#define CLUSTERS {clusters}\n\
             #define HAS_BIAS2 {}\n#define TAIL_PARAMETER , const ELEMENT* __restrict__ w2{more}\n",
            u8::from(bias)
        )
    }
}

/// Bytes of shared memory with what the second product has there, over so many copies of its row.
fn with_tail(tile: Tile, second: &Second, rows: u64, device: gemm::Device) -> Option<u32> {
    let (counts, between) = (16, 32);
    let more = second.columns() * (second.k + VECTOR) * 2 + rows * second.k * 2 + counts + second.adds() * 4 + between;
    let used = (u64::from(tile.shared_bytes) + more).next_multiple_of(32);
    (used <= u64::from(device.shared_block_bytes)).then_some(used as u32)
}
