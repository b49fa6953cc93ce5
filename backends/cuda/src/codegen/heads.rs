//! A head of a decoder's step in one kernel: its query, new key and new value, and attention of them over its cache.
//!
//! The blocks of a cluster share a head: each computes some columns of the three, as [`super::staged`] does, tells them to
//! the others through their shared memory, and goes over some of the keys by tensor cores; what each warp found goes the
//! same way. Between the row and the head's result nothing is in device memory but what is appended to the caches.

use super::{Generated, c_float, c_type, gemm, matvec::Problem, staged};
use crate::{
    program::{HeadsWork, OneTokenWork},
    source::Source,
    view::View,
};
use std::fmt::Write as _;

/// Blocks of a cluster, as many as any device with clusters has at least room for.
pub(super) const RANKS: u64 = 8;
/// Each of which tells one block.
const WARPS: u64 = RANKS;
/// Elements of a head: each block has an even part of them, for two are told at once.
const SIZES: [u64; 3] = [16, 32, 64];
/// Keys that go through tensor cores at once.
const TILE: u64 = 16;
/// Most tiles of keys for each warp.
const MAX_PASSES: u64 = 8;
/// Elements of which copies begin and rows are multiples.
const VECTOR: u64 = 8;

fn size_of(attention: &OneTokenWork) -> (u64, u64, u64) {
    (attention.k.dims[1], attention.k.dims[2], attention.k.dims[3])
}

/// Tiles of keys that a block goes over.
fn tiles_of(places: u64) -> u64 {
    places.div_ceil(RANKS).div_ceil(TILE)
}

/// Bytes of shared memory of keys, values and what is told.
fn cache_bytes(attention: &OneTokenWork) -> u64 {
    let (_, places, size) = size_of(attention);
    let tiles = tiles_of(places);
    let copied = 2 * TILE * (tiles * size + VECTOR) * 2;
    let told = 3 * size * 2 + (RANKS + WARPS) * (size + 2) * 4;
    // Three counts, and where the parts begin.
    copied + told + 3 * 8 + 40
}

/// How a head is computed.
pub(super) struct Head {
    pub problem: Problem,
    pub tile: staged::Tile,
    /// Where queries, keys and values are among the columns.
    columns: [u64; 3],
}

/// None on devices without clusters or for heads that there is no kernel for.
pub(super) fn head(work: &HeadsWork, device: gemm::Device) -> Option<Head> {
    let attention = &work.attention;
    let (heads, places, size) = size_of(attention);
    let dense = |view: &View| {
        view.strides[2] == size
            && view.offset.is_multiple_of(VECTOR)
            && (heads == 1 || view.strides[1].is_multiple_of(VECTOR))
    };
    let clusters = u64::from(device.sm_count) / RANKS;
    let tiles = tiles_of(places);
    let fits = device.capability >= gemm::CLUSTERS_SINCE
        && heads <= clusters
        && SIZES.contains(&size)
        && (tiles <= WARPS || tiles.is_multiple_of(WARPS) && tiles <= WARPS * MAX_PASSES)
        && attention.k.kind.bytes() == 2
        && dense(&attention.k)
        && dense(&attention.v);
    let problem = staged::problem_of(&work.product);
    let (problem, true, columns) = (problem?, fits, work.columns()?) else { return None };
    let each = 3 * size / RANKS;
    let used = (staged::used_bytes(&problem, each, WARPS, 1) + cache_bytes(attention)).next_multiple_of(32);
    let tile = staged::Tile { columns: each, warps: WARPS, blocks: clusters, stages: 1, shared_bytes: used as u32 };
    (used <= u64::from(device.shared_block_bytes)).then_some(Head { problem, tile, columns })
}

/// The kernel that computes a step, where there is one.
pub fn kernels(work: &HeadsWork, device: gemm::Device) -> Vec<Generated> {
    let kernel =
        |head: Head| generate(work, &head, "#define TAIL 0\n#define TAIL_PARAMETER\n#define READS_SUMS 0\n", "");
    head(work, device).map(kernel).into_iter().collect()
}

/// Behind what else is `defined`, and before what else needs that. Arguments: x, w, bias?, scale?, shift?, k, v, place, o.
pub(super) fn generate(work: &HeadsWork, head: &Head, defined: &str, after: &str) -> Generated {
    let (attention, &Head { ref problem, tile, columns }) = (&work.attention, head);
    let (heads, places, size) = size_of(attention);
    let place = attention.append.as_ref().map_or("i64", |append| c_type(append.place.kind));
    let mut defined = defined.to_owned();
    let mut define = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(defined, "#define {name} {value}");
    };
    define("HEADS", &1);
    define("PLACE", &place);
    define("FINITE", &u8::from(attention.seen.is_some_and(|seen| seen.finite)));
    define("NOTHING", if attention.guarded { &"0.0f" } else { &"__int_as_float(0x7fffffff)" });
    define("QUERY_SCALE", &c_float(attention.scale));
    let stride = |view: &View| if view.dims[1] == 1 { 0 } else { view.strides[1] };
    for (name, value) in [
        ("HEAD_COUNT", heads),
        ("RANKS", RANKS),
        ("SIZE", size),
        ("PLACES", places),
        ("K_HEAD", stride(&attention.k)),
        ("V_HEAD", stride(&attention.v)),
        ("O_HEAD", stride(&work.o)),
        ("Q_COLUMN", columns[0]),
        ("K_COLUMN", columns[1]),
        ("V_COLUMN", columns[2]),
    ] {
        define(name, &value);
    }
    defined += include_str!("heads.cuh");
    defined += after;
    Generated {
        source: Source { name: "heads".into(), text: staged::text(problem, tile, &defined) },
        grid: [tile.blocks as u32, RANKS as u32, 1],
        block: [(tile.warps * staged::WARP) as u32, 1, 1],
        shared_bytes: tile.shared_bytes,
    }
}
