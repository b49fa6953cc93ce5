//! Attention in one kernel, with or without a mask that is added: for what the library's does not cover.

use super::{Generated, PRELUDE, TENSOR_PRELUDE, blocks, c_float, c_type};
use crate::{
    program::AttentionWork,
    source::Source,
    view::{Kind, View},
};
use std::fmt::Write as _;

/// Elements that are copied at once.
const CHUNK: u64 = 8;
/// Largest head that a warp holds in registers.
const MAX_SIZE: u64 = 128;
/// First architecture that multiplies bf16.
const BF16_SINCE: u32 = 80;
/// Static shared memory of a block.
const POOL_BYTES: u64 = 48 << 10;

/// Warps over queries, warps over keys, keys of a step, steps in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    warps_m: u64,
    warps_n: u64,
    keys: u64,
    stages: u64,
}

const fn tile(warps_m: u64, warps_n: u64, keys: u64, stages: u64) -> Tile {
    Tile { warps_m, warps_n, keys, stages }
}

const TILES: [Tile; 12] = [
    tile(4, 1, 64, 2),
    tile(4, 1, 64, 1),
    tile(2, 1, 64, 2),
    tile(8, 1, 64, 2),
    tile(4, 2, 128, 1),
    tile(2, 2, 64, 2),
    tile(2, 2, 128, 1),
    tile(1, 4, 128, 1),
    tile(1, 4, 64, 2),
    tile(1, 2, 64, 2),
    tile(4, 1, 32, 2),
    tile(2, 2, 32, 2),
];

/// Whether the kernel computes this; the architecture is judged by [`tiles`].
pub fn fits(work: &AttentionWork) -> bool {
    let size = work.q.dims[3];
    let rows = |view: &View| {
        view.kind == work.q.kind
            && view.dims[3] == size
            && view.strides[3] == 1
            && view.offset.is_multiple_of(CHUNK)
            && view.strides[..3].iter().all(|stride| stride.is_multiple_of(CHUNK))
    };
    matches!(work.q.kind, Kind::F16 | Kind::Bf16)
        && size.is_multiple_of(CHUNK)
        && size <= MAX_SIZE
        && [&work.q, &work.k, &work.v, &work.o].into_iter().all(rows)
        && work.mask.as_ref().is_none_or(|mask| mask.kind.is_float())
}

/// Tiles that are worth timing.
pub fn tiles(work: &AttentionWork, capability: u32) -> Vec<Tile> {
    if !fits(work) || (work.q.kind == Kind::Bf16 && capability < BF16_SINCE) {
        return Vec::new();
    }
    let (queries, keys, size) = (work.q.dims[2], work.k.dims[2], work.q.dims[3].next_multiple_of(16));
    let runs = |t: &&Tile| {
        let pipeline = t.stages * 4 * t.keys * (size + 8);
        let join = if t.warps_n > 1 { t.warps_n * t.warps_m * 16 * (size + 2) * 4 } else { 0 };
        pipeline.max(join) <= POOL_BYTES && (t.keys / t.warps_n).is_multiple_of(16)
    };
    let is_mostly_full =
        |t: &Tile| t.keys < 2 * keys.next_multiple_of(32) && t.warps_m * 16 < 2 * queries.next_multiple_of(16);
    let tiles: Vec<Tile> = TILES.iter().filter(runs).copied().collect();
    let full: Vec<Tile> = tiles.iter().copied().filter(is_mostly_full).collect();
    // Of a few queries and keys none is full: then the smallest.
    let smallest = || tiles.into_iter().min_by_key(|t| (t.keys, t.warps_m)).into_iter().collect();
    if full.is_empty() { smallest() } else { full }
}

/// Arguments: q, k, v, mask?, o.
pub fn generate(work: &AttentionWork, tile: Tile) -> Generated {
    let [batch, heads, queries, size] = [0, 1, 2, 3].map(|axis| work.q.dims[axis]);
    let element = c_type(work.q.kind);
    let mut text = format!("{PRELUDE}{TENSOR_PRELUDE}\n");
    let mut define = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "#define {name} {value}");
    };
    define("ELEMENT", &element);
    define("SCALE", &c_float(work.scale));
    for (name, value) in [
        ("WARPS_M", tile.warps_m),
        ("WARPS_N", tile.warps_n),
        ("BN", tile.keys),
        ("STAGES", tile.stages),
        ("QUERIES", queries),
        ("KEYS", work.k.dims[2]),
        ("SIZE", size),
    ] {
        define(name, &value);
    }
    // A size of 1 may carry any stride.
    let stride = |view: &View, axis: usize| if view.dims[axis] == 1 { 0 } else { view.strides[axis] };
    for (name, view) in [("Q", &work.q), ("K", &work.k), ("V", &work.v), ("O", &work.o)] {
        for (axis, part) in ["BATCH", "HEAD", "ROW"].into_iter().enumerate() {
            define(&format!("{name}_{part}"), &stride(view, axis));
        }
    }
    define("HAS_MASK", &u8::from(work.mask.is_some()));
    match &work.mask {
        Some(mask) => {
            define("MASK_PARAMETER", &format!(", const {}* __restrict__ mask", c_type(mask.kind)));
            for (axis, part) in ["BATCH", "HEAD", "ROW", "KEY"].into_iter().enumerate() {
                define(&format!("MASK_{part}"), &stride(mask, axis));
            }
        }
        None => define("MASK_PARAMETER", &""),
    }
    text += include_str!("attention.cu");
    let size32 = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
    Generated {
        source: Source { name: "attention".into(), text },
        grid: [blocks(queries, tile.warps_m * 16), size32(heads), size32(batch)],
        block: [size32(tile.warps_m * tile.warps_n * 32), 1, 1],
        shared_bytes: 0,
    }
}
