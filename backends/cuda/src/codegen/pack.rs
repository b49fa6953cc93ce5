//! Images from rows to channels last, with channels of zeros added up to what tensor cores want.

use super::{BLOCK, Generated, blocks, c_type, kernel};
use crate::view::View;

/// `out[n][y][x][c] = in[n][c][y][x]`, zero for channels that `from` lacks. Arguments: in, out.
///
/// One thread a pixel: reads are coalesced along a row of each channel, the pixel is written in vectors.
pub fn generate(from: &View, to: &View) -> Generated {
    let [n, c, h, w] = [0, 1, 2, 3].map(|axis| from.dims[axis]);
    let padded = to.dims[1];
    let (input, output) = (c_type(from.kind), c_type(to.kind));
    let [sn, sc, sh, sw] = [0, 1, 2, 3].map(|axis| from.strides[axis]);
    let total = n * h * w;
    let vector = [8u64, 4, 2, 1]
        .into_iter()
        .find(|v| padded.is_multiple_of(*v) && to.pixel_pitch().is_multiple_of(*v) && to.offset.is_multiple_of(*v))
        .unwrap_or(1);
    let mut body = format!(
        "u32 i = blockIdx.x * {BLOCK}u + threadIdx.x;\nif (i >= {total}u) return;\n\
         u32 x = i % {w}u, r = i / {w}u, y = r % {h}u, n = r / {h}u;\n\
         const {input}* p = in + (i64)n * {sn} + (i64)y * {sh} + (i64)x * {sw};\n\
         {output}* q = out + (i64)i * {};\n",
        to.pixel_pitch()
    );
    for first in (0..padded).step_by(usize::try_from(vector).unwrap_or(1)) {
        body += &format!("{{ Vec<{output}, {vector}> v;\n");
        for lane in 0..vector {
            let channel = first + lane;
            body += &if channel < c {
                format!("put(v.v[{lane}], to_f(p[{}]));\n", channel * sc)
            } else {
                format!("put(v.v[{lane}], 0.0f);\n")
            };
        }
        body += &format!("v.store(q + {first}); }}\n");
    }
    let parameters = [format!("const {input}* __restrict__ in"), format!("{output}* __restrict__ out")];
    Generated {
        source: kernel("pack_channels", &parameters, BLOCK, &body),
        grid: [blocks(total, BLOCK.into()), 1, 1],
        block: [BLOCK, 1, 1],
        shared_bytes: 0,
    }
}

/// Columns taken two at a time: `out[n][y][j][4 i + c] = in[n][c][y][2 (j - before) + i]`, zero outside of the image and
/// for channels that `from` lacks. Arguments: in, out (8 channels, dense).
pub fn pairs(from: &View, to: &View, before: u64) -> Generated {
    let [n, c, h, w] = [0, 1, 2, 3].map(|axis| from.dims[axis]);
    let columns = to.dims[3];
    let (input, output) = (c_type(from.kind), c_type(to.kind));
    let [sn, sc, sh, sw] = [0, 1, 2, 3].map(|axis| from.strides[axis]);
    let total = n * h * columns;
    let mut body = format!(
        "u32 i = blockIdx.x * {BLOCK}u + threadIdx.x;\nif (i >= {total}u) return;\n\
         u32 j = i % {columns}u, r = i / {columns}u, y = r % {h}u, n = r / {h}u;\n\
         int x = 2 * ((int)j - {before});\n\
         const {input}* p = in + (i64)n * {sn} + (i64)y * {sh} + (i64)x * {sw};\n\
         bool inside[2] = {{x >= 0 && x < {w}, x + 1 >= 0 && x + 1 < {w}}};\nVec<{output}, 8> v;\n"
    );
    for lane in 0..8 {
        let (column, channel) = (lane / 4, lane % 4);
        body += &if channel < c {
            format!("put(v.v[{lane}], inside[{column}] ? to_f(p[{}]) : 0.0f);\n", channel * sc + column * sw)
        } else {
            format!("put(v.v[{lane}], 0.0f);\n")
        };
    }
    body += "v.store(out + (i64)i * 8);";
    let parameters = [format!("const {input}* __restrict__ in"), format!("{output}* __restrict__ out")];
    Generated {
        source: kernel("pack_pairs", &parameters, BLOCK, &body),
        grid: [blocks(total, BLOCK.into()), 1, 1],
        block: [BLOCK, 1, 1],
        shared_bytes: 0,
    }
}
