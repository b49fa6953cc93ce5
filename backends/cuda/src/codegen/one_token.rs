//! Attention of one query in each head over cached keys and values, which are read once; in parts over the keys, and what
//! puts the parts together, always in the same order.
//!
//! How many keys there are is data: keys whose mask says so are not read, and a block without any other ends at once. One
//! captured graph serves every length up to the room of the cache.

use super::{BLOCK, Generated, PRELUDE, TENSOR_PRELUDE, c_float, c_type, gemm, kernel, staged::RESIDENT};
use crate::{
    program::{OneTokenWork, Seen},
    source::{Source, WAIT},
    view::{Kind, View},
};
use std::fmt::Write as _;

/// Elements of a key that a lane reads at once.
const VECTOR: u64 = 8;
const WARP: u64 = 32;
const WARPS: u64 = 4;
/// Most keys that a lane has on their way at once.
const MAX_PASSES: u64 = 8;
/// Most heads of queries that share keys: their sums lie in registers.
const MAX_SHARES: u64 = 8;
/// Most elements of all heads of queries that share keys: sums of every warp lie in shared memory.
const MAX_WIDTH: u64 = 2048;
/// Blocks that keep a large device busy: where each multiprocessor has one, none has two while another has none. Of several
/// heads of queries for each of keys there is more to compute, for which there are two.
const BLOCKS: u64 = 132;

/// Keys that the warps of a block read at once.
fn keys_at_once(size: u64) -> u64 {
    WARPS * (WARP / (size / VECTOR))
}

/// Keys of one block, where so many heads with keys of their own, each for so many heads of queries, have `places` of this
/// `size`.
pub fn keys_of_block(heads: u64, shares: u64, places: u64, size: u64) -> u64 {
    let once = keys_at_once(size);
    let wanted = (places * heads).div_ceil(BLOCKS * shares.min(2));
    let passes = wanted.div_ceil(once).clamp(1, MAX_PASSES);
    // A block of fewer keys than lanes of a warp would leave some of them idle while weights are made.
    (once * passes).max(WARP)
}

/// Whether heads of this size, and so many queries for each head of keys, have a kernel.
pub fn fits(size: u64, shares: u64) -> bool {
    (VECTOR..=WARP * VECTOR).contains(&size)
        && size.is_power_of_two()
        && (1..=MAX_SHARES).contains(&shares)
        && shares * size <= MAX_WIDTH
}

/// A size of 1 may carry any stride.
fn stride(view: &View, axis: usize) -> u64 {
    if view.dims[axis] == 1 { 0 } else { view.strides[axis] }
}

/// Most that a block stages of keys and values; with more they go to registers right away.
const MAX_STAGED_BYTES: u64 = 32 << 10;

/// The kernel of a step, by itself and where a multiprocessor holds no more than some of its blocks.
pub fn kernels(work: &OneTokenWork, device: gemm::Device) -> Vec<Generated> {
    let plain = generate(work);
    let [_, heads, _, size] = [0, 1, 2, 3].map(|axis| work.q.dims[axis]);
    let shares = heads / work.k.dims[1];
    let own_bytes = WARPS * shares * (size + 2) * 4;
    let used = u64::from(plain.shared_bytes);
    let asked = RESIDENT.into_iter().map(|resident| device.shared_of_one_among(resident, own_bytes));
    let fits = |bytes: &u64| *bytes >= used && bytes + own_bytes <= device.shared_block_bytes.into();
    let padded: Vec<Generated> =
        asked.filter(fits).map(|bytes| Generated { shared_bytes: bytes as u32, ..plain.clone() }).collect();
    [plain].into_iter().chain(padded).collect()
}

/// Arguments: q, k, v, mask?, (new k, new v, place)?, (cosines, sines)?, parts.
pub fn generate(work: &OneTokenWork) -> Generated {
    let [batch, heads, _, size] = [0, 1, 2, 3].map(|axis| work.q.dims[axis]);
    let [shared, places] = [1, 2].map(|axis| work.k.dims[axis]);
    let mut text = format!("{PRELUDE}{TENSOR_PRELUDE}\n");
    let mut define = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "#define {name} {value}");
    };
    define("QUERY", &c_type(work.q.kind));
    define("CACHED", &c_type(work.k.kind));
    define("SCALE", &c_float(work.scale));
    for (name, value) in [
        ("VECTOR", VECTOR),
        ("WARPS", WARPS),
        ("SIZE", size),
        ("HEADS", shared),
        ("SHARES", heads / shared),
        ("PLACES", places),
        ("KEYS", work.keys),
        ("PARTS", work.parts.dims[2]),
    ] {
        define(name, &value);
    }
    // Of whole vectors or not, each operand as it lies.
    for (name, view) in [("Q", &work.q), ("K", &work.k), ("V", &work.v)] {
        for (axis, part) in ["BATCH", "HEAD", "PLACE"].into_iter().enumerate() {
            define(&format!("{name}_{part}"), &stride(view, axis));
        }
        let whole = view.offset.is_multiple_of(VECTOR) && (0..3).all(|axis| stride(view, axis).is_multiple_of(VECTOR));
        define(&format!("{name}_STEP"), &if whole { VECTOR } else { 1 });
    }
    define("HAS_MASK", &u8::from(work.mask.is_some()));
    match &work.mask {
        Some(mask) => {
            define("MASK_PARAMETER", &format!(", const {}* __restrict__ mask", c_type(mask.kind)));
            for (axis, part) in ["BATCH", "HEAD", "ROW", "PLACE"].into_iter().enumerate() {
                define(&format!("MASK_{part}"), &stride(mask, axis));
            }
        }
        None => define("MASK_PARAMETER", &""),
    }
    define("APPENDS", &u8::from(work.append.is_some()));
    match &work.append {
        Some(append) => {
            let (row, place) = (c_type(append.k.kind), c_type(append.place.kind));
            let parameters = format!(
                ", const {row}* __restrict__ new_k, const {row}* __restrict__ new_v, const {place}* __restrict__ place"
            );
            define("APPEND_PARAMETERS", &parameters);
            for (name, view) in [("NEW_K", &append.k), ("NEW_V", &append.v)] {
                define(&format!("{name}_HEAD"), &stride(view, 1));
                let whole = view.offset.is_multiple_of(VECTOR) && stride(view, 1).is_multiple_of(VECTOR);
                define(&format!("{name}_STEP"), &if whole { VECTOR } else { 1 });
            }
        }
        None => define("APPEND_PARAMETERS", &""),
    }
    define("TURNS", &u8::from(work.turn.is_some()));
    let turn = format!(", const {0}* __restrict__ cosines, const {0}* __restrict__ sines", c_type(work.q.kind));
    define("TURN_PARAMETERS", if work.turn.is_some() { &turn } else { &"" });
    let whole = work.turn.iter().flatten().all(|view| view.offset.is_multiple_of(VECTOR));
    define("TURN_STEP", &if whole { VECTOR } else { 1 });
    define("LIMITED", &u8::from(work.seen.is_some()));
    define("FINITE", &u8::from(work.seen.is_some_and(|seen| seen.finite)));
    define("EARLY", &u8::from(work.seen.is_some_and(|seen| seen.early)));
    // Keys and values that each lane has on their way.
    let passes = work.keys.div_ceil(keys_at_once(size));
    let staged_bytes = 2 * passes * WARPS * WARP * VECTOR * work.k.kind.bytes();
    let stages = staged_bytes <= MAX_STAGED_BYTES;
    define("STAGES", &u8::from(stages));
    text += include_str!("one_token.cu");
    let size32 = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
    Generated {
        source: Source { name: "one_token".into(), text },
        grid: [size32(work.parts.dims[2]), size32(shared), size32(batch)],
        block: [size32(WARPS * WARP), 1, 1],
        shared_bytes: if stages { staged_bytes as u32 } else { 0 },
    }
}

/// Puts the parts together, a block for each head; `out` is `[batch][heads][1][size]`. A query without any key gets no
/// number, or where `guarded` zeros. Arguments: parts, place?, out.
pub fn joined(work: &OneTokenWork, out: &View) -> Generated {
    let [batch, heads, count, row] = [0, 1, 2, 3].map(|axis| work.parts.dims[axis]);
    let size = row - 2;
    let threads = size.max(WARP);
    let nothing = if work.guarded { "0.0f" } else { "__int_as_float(0x7fffffff)" };
    let mut parameters = vec!["const float* __restrict__ parts".to_owned()];
    // Parts that nothing was read for were not written.
    let live = match (&work.append, work.seen) {
        (Some(append), Some(Seen { finite, .. })) => {
            parameters.push(format!("const {}* __restrict__ place", c_type(append.place.kind)));
            let (last, places) = (work.k.dims[2] - 1, work.k.dims[2]);
            format!(
                "const i64 given = (i64)place[0];\n\
                 const i64 limit = given < 0 ? {} : given >= {places} ? {last} : given;\n\
                 const int live = limit < 0 ? 0 : (int)(limit / {}) + 1;\n",
                if finite { last.to_string() } else { "-1".into() },
                work.keys
            )
        }
        _ => format!("const int live = {count};\n"),
    };
    parameters.push(format!("{}* __restrict__ out", c_type(out.kind)));
    let place = [0, 1, 3].map(|axis| stride(out, axis));
    let body = format!(
        "const int head = blockIdx.x, batch = blockIdx.y, d = threadIdx.x, lane = d % 32;\n\
         const float* p = parts + (i64)(batch * {heads} + head) * {whole};\n\
         const float lowest = -__int_as_float(0x7f800000);\n\
         // As many parts at a time as a warp has lanes, all of them read at once; every warp for itself.\n\
         float top = lowest, all = 0.0f, sum = 0.0f;\n\
         for (int c0 = 0; c0 < live; c0 += 32) {{\n\
         const int c = c0 + lane;\n\
         const float weights = c < live ? p[c * {row} + {size} + 1] : 0.0f;\n\
         const float most = c < live ? p[c * {row} + {size}] : lowest;\n\
         float v[{each}];\n\
         #pragma unroll\nfor (int i = 0; i < {each}; i++) v[i] = c0 + i < live && d < {size} ? p[(c0 + i) * {row} + d] : 0.0f;\n\
         float next = most > top ? most : top;\n\
         #pragma unroll\nfor (int far = 16; far > 0; far /= 2) {{ const float o = __shfl_xor_sync(0xffffffffu, next, far); next = o > next ? o : next; }}\n\
         const float before = top > lowest ? __expf(top - next) : 0.0f;\n\
         const float share = weights > 0.0f ? __expf(most - next) : 0.0f;\n\
         top = next;\nall = all * before + share * weights;\nsum *= before;\n\
         #pragma unroll\nfor (int i = 0; i < {each}; i++) {{\n\
         const float w = __shfl_sync(0xffffffffu, share, i);\n\
         // Of a part without keys nothing else was written.\n\
         if (w > 0.0f) sum += w * v[i];\n}}\n}}\n\
         #pragma unroll\nfor (int far = 16; far > 0; far /= 2) all += __shfl_xor_sync(0xffffffffu, all, far);\n\
         if (d < {size}) put(out[(i64)batch * {} + head * {} + d * {}], all > 0.0f ? __fdividef(sum, all) : {nothing});",
        place[0],
        place[1],
        place[2],
        whole = count * row,
        each = count.min(WARP),
    );
    let threads = u32::try_from(threads).unwrap_or(BLOCK);
    let size32 = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
    debug_assert_eq!(work.parts.kind, Kind::F32);
    let mut source = kernel("join_parts", &parameters, threads, &body);
    // How many parts there are is known before those ahead are done, where the place is an input.
    let early = work.seen.is_some_and(|seen| seen.early);
    let (first, second) = if early { (live.as_str(), WAIT) } else { (WAIT, live.as_str()) };
    source.text = source.text.replacen(
        &format!("LET_OTHERS_BEGIN;\n{WAIT}"),
        &format!("LET_OTHERS_BEGIN;\n{first}\n{second}\nparts = FRESH(parts);"),
        1,
    );
    Generated { source, grid: [size32(heads), size32(batch), 1], block: [threads, 1, 1], shared_bytes: 0 }
}
