//! Depthwise convolution over images with channels last, with bias and activation.

use super::{
    Generated, blocks, c_type,
    expr::{Digits, activation},
    kernel,
};
use crate::view::View;
use planforge_graph::ir::Activation;

/// A depthwise convolution; sizes are height, then width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Depthwise {
    pub kernel: [u64; 2],
    pub strides: [u64; 2],
    pub pads_before: [u64; 2],
    pub dilations: [u64; 2],
    pub bias: bool,
    pub activation: Option<Activation>,
}

/// Outputs of one row that a thread computes: neighbours share what they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    pub vector: u64,
    pub columns: u64,
    pub threads: u32,
}

/// Tiles that are worth timing for these views.
pub fn tiles(x: &View, residual: Option<&View>, y: &View) -> Vec<Tile> {
    let in_vectors = |view: &View, v: u64| [view.dims[1], view.pixel_pitch(), view.offset].iter().all(|at| at % v == 0);
    let fits = |v: u64| [Some(x), residual, Some(y)].into_iter().flatten().all(|view| in_vectors(view, v));
    let vectors: Vec<u64> = [8, 4, 2, 1].into_iter().filter(|&v| fits(v)).take(2).collect();
    let mut found = Vec::new();
    for vector in vectors {
        for columns in [1u64, 2, 4] {
            if columns <= y.dims[3] {
                found.extend([64, 128, 256].map(|threads| Tile { vector, columns, threads }));
            }
        }
    }
    found
}

/// Arguments: x, w (`[kernel height][kernel width][channels]`), bias?, residual?, y.
pub fn generate(x: &View, residual: Option<&View>, y: &View, conv: Depthwise, tile: Tile) -> Generated {
    let [n, c, oh, ow] = [0, 1, 2, 3].map(|axis| y.dims[axis]);
    let [ih, iw] = [x.dims[2], x.dims[3]];
    let (input, output) = (c_type(x.kind), c_type(y.kind));
    let Tile { vector, columns, threads } = tile;
    let (runs, tiles) = (c / vector, ow.div_ceil(columns));
    let total = n * oh * tiles * runs;
    let Depthwise { kernel: [kh, kw], strides: [sh, sw], pads_before: [ph, pw], dilations: [dh, dw], .. } = conv;
    let mut parameters = vec![format!("const {input}* __restrict__ x"), format!("const {input}* __restrict__ w")];
    let mut finish = "acc[o][j]".to_owned();
    let mut extra = String::new();
    if conv.bias {
        parameters.push(format!("const {input}* __restrict__ bias"));
        finish = "acc[o][j] + to_f(b.v[j])".into();
    }
    let at = |view: &View| {
        format!("((i64)(n * {oh}u + oy) * {ow} + ox0 + o) * {pitch} + run * {vector}", pitch = view.pixel_pitch())
    };
    if let Some(residual) = residual {
        parameters.push(format!("const {output}* __restrict__ residual"));
        extra = format!("Vec<{output}, {vector}> z; z.load(residual + {});\n", at(residual));
        finish = format!("{finish} + to_f(z.v[j])");
    }
    parameters.push(format!("{output}* __restrict__ y"));
    let value = conv.activation.map_or("f".to_owned(), |op| activation(op, Digits::of(y.kind), "f"));
    let bias =
        if conv.bias { format!("Vec<{input}, {vector}> b; b.load(bias + run * {vector});\n") } else { String::new() };
    // Every input column of the tile is read once per kernel row.
    let span = (columns - 1) * sw + (kw - 1) * dw + 1;
    let body = format!(
        "u32 i = blockIdx.x * {threads}u + threadIdx.x;\nif (i >= {total}u) return;\n\
         u32 run = i % {runs}u; i /= {runs}u;\nu32 tx = i % {tiles}u, r = i / {tiles}u, oy = r % {oh}u, n = r / {oh}u;\n\
         u32 ox0 = tx * {columns};\nfloat acc[{columns}][{vector}];\n\
         #pragma unroll\nfor (int o = 0; o < {columns}; o++)\n#pragma unroll\nfor (int j = 0; j < {vector}; j++) acc[o][j] = 0.0f;\n\
         #pragma unroll\nfor (int ky = 0; ky < {kh}; ky++) {{\n\
         int iy = (int)(oy * {sh}) - {ph} + ky * {dh}; if (iy < 0 || iy >= {ih}) continue;\n\
         const {input}* row = x + ((i64)(n * {ih}u + iy) * {iw}) * {x_pitch} + run * {vector};\n\
         Vec<{input}, {vector}> k[{kw}];\n#pragma unroll\nfor (int kx = 0; kx < {kw}; kx++) k[kx].load(w + (ky * {kw} + kx) * {c} + run * {vector});\n\
         #pragma unroll\nfor (int s = 0; s < {span}; s++) {{ int ix = (int)(ox0 * {sw}) - {pw} + s;\n\
         if (ix < 0 || ix >= {iw}) continue;\n\
         Vec<{input}, {vector}> v; v.load(row + (i64)ix * {x_pitch});\n\
         #pragma unroll\nfor (int o = 0; o < {columns}; o++) {{\n#pragma unroll\nfor (int kx = 0; kx < {kw}; kx++) if (s == o * {sw} + kx * {dw}) {{\n\
         #pragma unroll\nfor (int j = 0; j < {vector}; j++) acc[o][j] += to_f(v.v[j]) * to_f(k[kx].v[j]); }} }} }} }}\n\
         {bias}#pragma unroll\nfor (int o = 0; o < {columns}; o++) {{ if (ox0 + o >= {ow}u) break;\n{extra}\
         Vec<{output}, {vector}> q;\n#pragma unroll\nfor (int j = 0; j < {vector}; j++) {{ float f = {finish}; put(q.v[j], {value}); }}\n\
         q.store(y + {y_at}); }}",
        x_pitch = x.pixel_pitch(),
        y_at = at(y),
    );
    Generated {
        source: kernel("depthwise", &parameters, threads, &body),
        grid: [blocks(total, threads.into()), 1, 1],
        block: [threads, 1, 1],
        shared_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{BufferId, Kind};

    #[test]
    fn a_residual_is_read_as_it_lies() {
        let image = |channels: u64| View::channels_last(BufferId(0), Kind::F16, &[1, channels, 6, 6]);
        let (x, wide) = (image(16), image(40));
        let conv = Depthwise {
            kernel: [3, 3],
            strides: [1, 1],
            pads_before: [1, 1],
            dilations: [1, 1],
            bias: false,
            activation: None,
        };
        let part = wide.slice(1, 8, 16);
        let tile = tiles(&x, Some(&part), &x)[0];
        assert_eq!(tile.vector, 8);
        let text = generate(&x, Some(&part), &x, conv, tile).source.text;
        assert!(text.contains("z.load(residual + ((i64)(n * 6u + oy) * 6 + ox0 + o) * 40 + run * 8)"), "{text}");
        assert!(text.contains("q.store(y + ((i64)(n * 6u + oy) * 6 + ox0 + o) * 16 + run * 8)"), "{text}");
        let odd = wide.slice(1, 1, 16);
        assert!(tiles(&x, Some(&odd), &x).iter().all(|tile| tile.vector == 1));
    }
}
