//! Normalisation and softmax over dense rows: one warp a row, or one block for long ones.

use super::{Generated, blocks, c_float, c_type, expr::Digits, kernel};
use crate::view::View;

/// Longest row that one warp holds in registers: 32 lanes of 4 vectors of 8.
const WARP_ROW: u64 = 1024;
const WARPS: u32 = 4;

/// What is done to every row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Row {
    /// `(x - mean) / sqrt(variance + epsilon)`, then scale and bias where given.
    LayerNorm {
        epsilon: f32,
        scale: bool,
        bias: bool,
    },
    Softmax {
        /// A row without a softmax becomes zeros.
        guarded: bool,
    },
    LogSoftmax,
}

/// Arguments: in, scale?, bias?, out; in and out are dense rows of the last dimension.
pub fn rows(from: &View, to: &View, parameters: &[&View], row: Row) -> Generated {
    let length = *from.dims.last().expect("rows have a dimension");
    let count = from.elements() / length.max(1);
    let all = || parameters.iter().copied().chain([from, to]);
    let vector = [8u64, 4, 2]
        .into_iter()
        .find(|v| length.is_multiple_of(*v) && all().all(|view| view.offset % v == 0))
        .unwrap_or(1);
    let (input, output) = (c_type(from.kind), c_type(to.kind));
    // A row is spread over `lanes` threads, each with `each` vectors.
    let (lanes, warps) = if length <= WARP_ROW { (32u64, WARPS) } else { (256, 1) };
    let each = length.div_ceil(lanes * vector);
    let threads = if lanes == 32 { 32 * warps } else { 256 };
    let mut body = format!(
        "u32 lane = threadIdx.x % {lanes}u;\nu32 row = blockIdx.x * {warps}u + threadIdx.x / {lanes}u;\nif (row >= {count}u) return;\n\
         const {input}* p = in + (i64)row * {length};\n{output}* q = out + (i64)row * {length};\n\
         float x[{each} * {vector}];\n\
         #pragma unroll\nfor (int t = 0; t < {each}; t++) {{ u32 at = (t * {lanes}u + lane) * {vector}u;\n\
         if (at < {length}u) {{ Vec<{input}, {vector}> v; v.load(p + at);\n#pragma unroll\nfor (int j = 0; j < {vector}; j++) x[t * {vector} + j] = to_f(v.v[j]); }}\n\
         else {{\n#pragma unroll\nfor (int j = 0; j < {vector}; j++) x[t * {vector} + j] = FILL; }} }}\n"
    );
    let (fill, work, result) = match row {
        Row::LayerNorm { epsilon, scale, bias } => {
            let mut result = "(x[t * V + j] - mean) * inv".to_owned();
            if scale {
                result = format!("{result} * to_f(s.v[j])");
            }
            if bias {
                result = format!("{result} + to_f(b.v[j])");
            }
            let work = format!(
                "float sum = 0.0f;\n#pragma unroll\nfor (int t = 0; t < {each} * {vector}; t++) sum += x[t];\n\
                 float mean = all_sum(sum) * {inverse};\nfloat squares = 0.0f;\n\
                 #pragma unroll\nfor (int t = 0; t < {each}; t++) {{ u32 at = (t * {lanes}u + lane) * {vector}u; if (at < {length}u)\n\
                 #pragma unroll\nfor (int j = 0; j < {vector}; j++) {{ float d = x[t * {vector} + j] - mean; squares += d * d; }} }}\n\
                 float inv = rsqrtf(all_sum(squares) * {inverse} + {});\n",
                c_float(epsilon),
                inverse = c_float(1.0 / length as f32),
            );
            ("0.0f".to_owned(), work, result)
        }
        Row::Softmax { .. } | Row::LogSoftmax => {
            let exp = Digits::of(from.kind).exp();
            // A row of -inf alone gives NaN, or zeros where that is guarded against.
            let result = match row {
                Row::Softmax { guarded: true } => format!("sum > 0.0f ? {exp}(x[t * V + j] - top) * inv : 0.0f"),
                Row::LogSoftmax => "x[t * V + j] - shift".into(),
                _ => format!("{exp}(x[t * V + j] - top) * inv"),
            };
            let work = format!(
                "float top = {lowest};\n#pragma unroll\nfor (int t = 0; t < {each} * {vector}; t++) top = fmaxf(top, x[t]);\n\
                 top = all_max(top);\nfloat sum = 0.0f;\n\
                 #pragma unroll\nfor (int t = 0; t < {each} * {vector}; t++) sum += {exp}(x[t] - top);\n\
                 sum = all_sum(sum);\nfloat inv = 1.0f / sum, shift = top + logf(sum);\n",
                lowest = c_float(f32::NEG_INFINITY),
            );
            (c_float(f32::NEG_INFINITY), work, result)
        }
    };
    body = body.replace("FILL", &fill);
    body += &work;
    let result = result.replace('V', &vector.to_string());
    let mut inputs = vec![format!("const {input}* __restrict__ in")];
    let mut extra = String::new();
    if let Row::LayerNorm { scale, bias, .. } = row {
        let mut given = parameters.iter();
        for (present, name) in [(scale, "s"), (bias, "b")] {
            if let (true, Some(view)) = (present, if present { given.next() } else { None }) {
                let kind = c_type(view.kind);
                inputs.push(format!("const {kind}* __restrict__ p{name}"));
                extra += &format!("Vec<{kind}, {vector}> {name}; {name}.load(p{name} + at);\n");
            }
        }
    }
    inputs.push(format!("{output}* __restrict__ out"));
    body += &format!(
        "#pragma unroll\nfor (int t = 0; t < {each}; t++) {{ u32 at = (t * {lanes}u + lane) * {vector}u; if (at < {length}u) {{\n{extra}\
         Vec<{output}, {vector}> o;\n#pragma unroll\nfor (int j = 0; j < {vector}; j++) put(o.v[j], {result});\no.store(q + at); }} }}"
    );
    let mut source =
        kernel(if matches!(row, Row::LayerNorm { .. }) { "layer_norm" } else { "softmax" }, &inputs, threads, &body);
    source.text = source.text.replacen("extern \"C\"", &format!("{}\nextern \"C\"", reductions(lanes)), 1);
    Generated { source, grid: [blocks(count, warps.into()), 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
}

/// `all_sum` and `all_max` over the threads of one row, every thread getting the result.
fn reductions(lanes: u64) -> String {
    let warp = |name: &str, join: &str| {
        format!(
            "__device__ __forceinline__ float warp_{name}(float a) {{\n#pragma unroll\nfor (int s = 16; s > 0; s >>= 1) {{ float b = __shfl_xor_sync(0xffffffffu, a, s); a = {join}; }} return a; }}\n"
        )
    };
    let mut text = warp("sum", "a + b") + &warp("max", "fmaxf(a, b)");
    for name in ["sum", "max"] {
        text += &if lanes == 32 {
            format!("__device__ __forceinline__ float all_{name}(float a) {{ return warp_{name}(a); }}\n")
        } else {
            format!(
                "__device__ __forceinline__ float all_{name}(float a) {{\n__shared__ float part[8];\na = warp_{name}(a);\n__syncthreads();\n\
                 if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = a;\n__syncthreads();\nreturn warp_{name}(part[threadIdx.x % 8]){};\n}}\n",
                // Eight partial sums are repeated four times over the lanes of a warp.
                if name == "sum" { " * 0.25f" } else { "" }
            )
        };
    }
    text
}
