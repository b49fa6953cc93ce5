//! Pooling and spatial means over images with channels last.

use super::{BLOCK, Generated, blocks, c_float, c_type, kernel};
use crate::view::View;

/// A pooling window; sizes are height, then width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub is_max: bool,
    /// Padding counts in an average's divisor.
    pub count_pad: bool,
    pub kernel: [u64; 2],
    pub strides: [u64; 2],
    pub pads_before: [u64; 2],
    /// Ends of what counts as padded input, for averages that count padding.
    pub padded: [u64; 2],
    pub dilations: [u64; 2],
}

fn vector_of(views: &[&View]) -> u64 {
    let fits =
        |v: &u64| views.iter().all(|view| view.dims[1] % v == 0 && view.pixel_pitch() % v == 0 && view.offset % v == 0);
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// Arguments: in, out.
pub fn window(from: &View, to: &View, window: Window) -> Generated {
    let vector = vector_of(&[from, to]);
    let [n, c, oh, ow] = [0, 1, 2, 3].map(|axis| to.dims[axis]);
    let [ih, iw] = [from.dims[2], from.dims[3]];
    let (input, output) = (c_type(from.kind), c_type(to.kind));
    let runs = c / vector;
    let total = n * oh * ow * runs;
    let Window { kernel: [kh, kw], strides: [sh, sw], pads_before: [ph, pw], dilations: [dh, dw], .. } = window;
    let start = if window.is_max { c_float(f32::NEG_INFINITY) } else { "0.0f".into() };
    let join = if window.is_max { "fmaxf(acc[j], to_f(v.v[j]))" } else { "acc[j] + to_f(v.v[j])" };
    let count = if window.count_pad {
        let [eh, ew] = window.padded;
        format!("if (y < {eh} && x < {ew}) count += 1.0f;\n")
    } else {
        String::new()
    };
    let count_inside = if window.count_pad { "" } else { "count += 1.0f;" };
    let finish = if window.is_max { "acc[j]" } else { "acc[j] / count" };
    let body = format!(
        "u32 i = blockIdx.x * {BLOCK}u + threadIdx.x;\nif (i >= {total}u) return;\n\
         u32 k = i % {runs}u; i /= {runs}u;\nu32 ox = i % {ow}u, r = i / {ow}u, oy = r % {oh}u, n = r / {oh}u;\n\
         float acc[{vector}]; float count = 0.0f;\n#pragma unroll\nfor (int j = 0; j < {vector}; j++) acc[j] = {start};\n\
         #pragma unroll\nfor (int ky = 0; ky < {kh}; ky++) {{\n#pragma unroll\nfor (int kx = 0; kx < {kw}; kx++) {{\n\
         int y = (int)(oy * {sh}) - {ph} + ky * {dh}, x = (int)(ox * {sw}) - {pw} + kx * {dw};\n{count}\
         if (y < 0 || y >= {ih} || x < 0 || x >= {iw}) continue;\n{count_inside}\n\
         Vec<{input}, {vector}> v; v.load(in + ((i64)(n * {ih}u + y) * {iw} + x) * {pitch} + k * {vector});\n\
         #pragma unroll\nfor (int j = 0; j < {vector}; j++) acc[j] = {join};\n}} }}\n\
         Vec<{output}, {vector}> o;\n#pragma unroll\nfor (int j = 0; j < {vector}; j++) put(o.v[j], {finish});\n\
         o.store(out + ((i64)(n * {oh}u + oy) * {ow} + ox) * {out_pitch} + k * {vector});",
        pitch = from.pixel_pitch(),
        out_pitch = to.pixel_pitch(),
    );
    let parameters = [format!("const {input}* __restrict__ in"), format!("{output}* __restrict__ out")];
    Generated {
        source: kernel("pool", &parameters, BLOCK, &body),
        grid: [blocks(total, BLOCK.into()), 1, 1],
        block: [BLOCK, 1, 1],
        shared_bytes: 0,
    }
}

/// Threads over pixels that share one run of channels.
const MEAN_ROWS: u64 = 32;
const MEAN_RUNS: u64 = 8;
/// Blocks that share an image's pixels where there are clusters, the largest that every device with clusters has.
const MEAN_PARTS: u64 = 8;
/// Pixels from which on that pays, and blocks that fill a device by themselves.
const MEAN_PIXELS: u64 = 8 * MEAN_ROWS;
const MEAN_BLOCKS: u64 = 100;

/// The mean over height and width. Arguments: in, out (`n`, `c` and any dimensions of 1, dense).
pub fn spatial_mean(from: &View, to: &View) -> Generated {
    let [n, c, h, w] = [0, 1, 2, 3].map(|axis| from.dims[axis]);
    let vector = [8u64, 4, 2]
        .into_iter()
        .find(|v| c % v == 0 && from.pixel_pitch().is_multiple_of(*v) && from.offset.is_multiple_of(*v))
        .unwrap_or(1);
    let (input, output) = (c_type(from.kind), c_type(to.kind));
    let (runs, pixels, pitch) = (c / vector, h * w, from.pixel_pitch());
    let parts = if pixels >= MEAN_PIXELS && n * runs.div_ceil(MEAN_RUNS) < MEAN_BLOCKS { MEAN_PARTS } else { 1 };
    // Without clusters the first block does everything.
    let head = format!(
        "#define PARTS {parts}\n#if PARTS > 1 && __CUDA_ARCH__ >= 900\n#define CLUSTER __cluster_dims__(1, 1, PARTS)\n\
         #define CLUSTER_WAIT asm volatile(\"barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;\" ::: \"memory\")\n\
         #else\n#define CLUSTER\n#endif\n"
    );
    let body = format!(
        "__shared__ float part[{MEAN_ROWS}][{MEAN_RUNS} * {vector} + 1];\n\
         #ifdef CLUSTER_WAIT\n__shared__ float total[{MEAN_RUNS} * {vector}];\n\
         u32 first = blockIdx.z * {MEAN_ROWS} + threadIdx.y, step = PARTS * {MEAN_ROWS};\n\
         #else\nif (blockIdx.z > 0) return;\nu32 first = threadIdx.y, step = {MEAN_ROWS};\n#endif\n\
         u32 run = blockIdx.x * {MEAN_RUNS}u + threadIdx.x, n = blockIdx.y;\n\
         float acc[{vector}];\n#pragma unroll\nfor (int j = 0; j < {vector}; j++) acc[j] = 0.0f;\n\
         if (run < {runs}u)\n#pragma unroll 4\nfor (u32 p = first; p < {pixels}u; p += step) {{\n\
         Vec<{input}, {vector}> v; v.load(in + ((i64)n * {pixels} + p) * {pitch} + run * {vector});\n\
         #pragma unroll\nfor (int j = 0; j < {vector}; j++) acc[j] += to_f(v.v[j]);\n}}\n\
         #pragma unroll\nfor (int j = 0; j < {vector}; j++) part[threadIdx.y][threadIdx.x * {vector} + j] = acc[j];\n\
         __syncthreads();\n\
         u32 t = threadIdx.y * {MEAN_RUNS} + threadIdx.x, channel = blockIdx.x * {MEAN_RUNS} * {vector} + t;\n\
         float sum = 0.0f;\n\
         if (t < {MEAN_RUNS} * {vector})\n#pragma unroll\nfor (int y = 0; y < {MEAN_ROWS}; y++) sum += part[y][t];\n\
         #ifdef CLUSTER_WAIT\nif (t < {MEAN_RUNS} * {vector}) total[t] = sum;\nCLUSTER_WAIT;\n\
         if (blockIdx.z == 0 && t < {MEAN_RUNS} * {vector}) {{ sum = 0.0f;\n#pragma unroll\nfor (int other = 0; other < PARTS; other++) {{\n\
         u32 here = (u32)__cvta_generic_to_shared(&total[t]), there; float f;\n\
         asm volatile(\"mapa.shared::cluster.u32 %0, %1, %2;\" : \"=r\"(there) : \"r\"(here), \"r\"(other));\n\
         asm volatile(\"ld.shared::cluster.f32 %0, [%1];\" : \"=f\"(f) : \"r\"(there));\nsum += f; }} }}\n\
         if (blockIdx.z == 0)\n#endif\n\
         if (t < {MEAN_RUNS} * {vector} && channel < {c}u) put(out[(i64)n * {c} + channel], sum * {mean});\n\
         #ifdef CLUSTER_WAIT\nCLUSTER_WAIT;\n#endif",
        mean = c_float(1.0 / pixels as f32),
    );
    let parameters = [format!("const {input}* __restrict__ in"), format!("{output}* __restrict__ out")];
    let threads = (MEAN_ROWS * MEAN_RUNS) as u32;
    let mut source = kernel("spatial_mean", &parameters, threads, &body);
    source.text =
        source.text.replacen("extern \"C\" __global__ void", &format!("{head}extern \"C\" __global__ void CLUSTER"), 1);
    Generated {
        source,
        grid: [blocks(runs, MEAN_RUNS), u32::try_from(n).unwrap_or(u32::MAX), parts as u32],
        block: [MEAN_RUNS as u32, MEAN_ROWS as u32, 1],
        shared_bytes: 0,
    }
}
