//! Convolutions and matrix products as one implicit product, of halves on tensor cores and of f32 on ordinary ones, with
//! any activation at its end and, on architectures with clusters, the sum over channels shared by several blocks: for
//! what leaves most of a device idle.

use super::{
    ALONE_BYTES, Generated, PRELUDE, TENSOR_PRELUDE, blocks, c_float, c_type,
    expr::{Digits, activation},
};
use crate::{
    program::{ConvWork, ProductWork},
    source::Source,
    view::{Kind, View},
};
use planforge_graph::ir::Activation;
use std::fmt::Write as _;

/// What is copied at once.
const CHUNK_BYTES: u64 = 16;
/// First architecture whose blocks form clusters.
pub(super) const CLUSTERS_SINCE: u32 = 90;
/// First architecture that multiplies bf16.
pub(super) const BF16_SINCE: u32 = 80;
/// Element offsets are 32-bit in the kernel.
const MAX_ELEMENTS: u64 = 1 << 31;
/// Most blocks that share a sum: the largest cluster that every device with clusters has.
const SPLITS: [u64; 4] = [1, 2, 4, 8];

/// What is computed, in the kernel's terms: `y[m][n] = activation(alpha sum_k x[m][k] w[n][k] + bias + residual)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    kind: Kind,
    m: u64,
    n: u64,
    k: u64,
    x_pitch: u64,
    w_pitch: u64,
    y_pitch: u64,
    residual_pitch: Option<u64>,
    bias: bool,
    alpha: f32,
    activation: Option<Activation>,
    /// The weights are written by no kernel.
    w_is_constant: bool,
    /// Where the rows of x come from, unless they simply follow each other.
    image: Option<Image>,
}

/// A convolution's geometry; sizes are height, then width.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Image {
    input: [u64; 2],
    output: [u64; 2],
    channels: u64,
    taps: [u64; 2],
    strides: [u64; 2],
    pads: [u64; 2],
    dilations: [u64; 2],
}

/// Channels that are copied at once.
fn chunk(kind: Kind) -> u64 {
    CHUNK_BYTES / kind.bytes()
}

fn aligned(view: &View, pitch: u64) -> bool {
    let chunk = chunk(view.kind);
    view.offset.is_multiple_of(chunk) && pitch.is_multiple_of(chunk)
}

impl Problem {
    /// `None` for what the kernel does not compute.
    pub fn of_conv(conv: &ConvWork) -> Option<Self> {
        let [n, k_out, oh, ow] = [0, 1, 2, 3].map(|axis| conv.y.dims[axis]);
        let [c, taps_h, taps_w] = [1, 2, 3].map(|axis| conv.w.dims[axis]);
        let problem = Self {
            kind: conv.x.kind,
            m: n * oh * ow,
            n: k_out,
            k: c * taps_h * taps_w,
            x_pitch: conv.x.pixel_pitch(),
            w_pitch: c * taps_h * taps_w,
            y_pitch: conv.y.pixel_pitch(),
            residual_pitch: conv.residual.as_ref().map(View::pixel_pitch),
            bias: conv.bias.is_some(),
            alpha: 1.0,
            activation: conv.activation,
            w_is_constant: true,
            image: (!conv.is_pointwise()).then_some(Image {
                input: [conv.x.dims[2], conv.x.dims[3]],
                output: [oh, ow],
                channels: c,
                taps: [taps_h, taps_w],
                strides: conv.strides,
                pads: conv.pads_before,
                dilations: conv.dilations,
            }),
        };
        let images = [Some(&conv.x), Some(&conv.y), conv.residual.as_ref()];
        let fits = conv.groups == 1
            && c.is_multiple_of(chunk(conv.x.kind))
            && c == conv.x.dims[1]
            && images.into_iter().flatten().all(|view| view.is_channels_last() && aligned(view, view.pixel_pitch()));
        (fits && problem.is_possible(&[&conv.x, &conv.w, &conv.y])).then_some(problem)
    }

    /// `None` for what the kernel does not compute: batches, and factors whose sums do not run along their rows.
    /// `w_is_constant`: no kernel writes the second factor.
    pub fn of_product(product: &ProductWork, w_is_constant: bool) -> Option<Self> {
        let [batch, m, k] = [0, 1, 2].map(|axis| product.a.dims[axis]);
        let n = product.y.dims[2];
        let pitch = |view: &View, row: usize, column: usize| {
            let dense = view.strides[column] == 1 || view.dims[column] == 1;
            let pitch = if view.dims[row] == 1 { view.dims[column] } else { view.strides[row] };
            (dense && aligned(view, pitch)).then_some(pitch)
        };
        let problem = Self {
            kind: product.a.kind,
            m,
            n,
            k,
            x_pitch: pitch(&product.a, 1, 2)?,
            w_pitch: pitch(&product.b, 2, 1)?,
            y_pitch: pitch(&product.y, 1, 2)?,
            residual_pitch: match &product.residual {
                Some(view) => Some(pitch(view, 1, 2)?),
                None => None,
            },
            bias: product.bias.is_some(),
            alpha: product.alpha,
            activation: product.activation,
            w_is_constant,
            image: None,
        };
        let fits = batch == 1 && k.is_multiple_of(chunk(product.a.kind));
        (fits && problem.is_possible(&[&product.a, &product.b, &product.y])).then_some(problem)
    }

    /// Rows and columns of the result, and the length of its sums.
    pub fn sizes(&self) -> [u64; 3] {
        [self.m, self.n, self.k]
    }

    /// Whether both read their factors alike, whatever their sizes.
    pub fn is_like(&self, other: &Self) -> bool {
        let windows = |problem: &Self| problem.image.map(|image| (image.taps, image.strides, image.dilations));
        (self.kind, self.w_is_constant, windows(self)) == (other.kind, other.w_is_constant, windows(other))
    }

    fn is_possible(&self, views: &[&View]) -> bool {
        matches!(self.kind, Kind::F32 | Kind::F16 | Kind::Bf16)
            && self.n.is_multiple_of(chunk(self.kind))
            && views.iter().all(|view| {
                let end = view.end_bytes().is_some_and(|end| end / view.kind.bytes() < MAX_ELEMENTS);
                view.kind == self.kind && end
            })
    }
}

/// What a block computes, by how many warps, and how many blocks share a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    m: u64,
    n: u64,
    k: u64,
    stages: u64,
    warps_m: u64,
    warps_n: u64,
    split: u64,
}

const fn tile(m: u64, n: u64, k: u64, stages: u64, warps_m: u64, warps_n: u64) -> Tile {
    Tile { m, n, k, stages, warps_m, warps_n, split: 1 }
}

/// Longest sum whose windows are kept in the nearest cache: measured to pay for stems, not for inner convolutions.
const READ_AGAIN_UP_TO: u64 = 512;
/// Shared memory that the system keeps of every block.
const RESERVED_BYTES: u64 = 1 << 10;

/// Of f32: a warp's threads lie eight by four, and compute at most eight by eight sums each.
const TILES_F32: [Tile; 13] = [
    tile(128, 128, 32, 2, 2, 4),
    tile(128, 128, 32, 3, 2, 4),
    tile(128, 64, 32, 3, 2, 2),
    tile(128, 64, 16, 4, 2, 2),
    tile(64, 128, 32, 3, 1, 4),
    tile(64, 128, 16, 4, 1, 4),
    tile(128, 32, 32, 3, 2, 1),
    tile(64, 64, 32, 3, 1, 2),
    tile(64, 64, 16, 4, 1, 2),
    tile(64, 64, 32, 3, 2, 2),
    tile(64, 32, 32, 3, 2, 1),
    tile(32, 64, 32, 4, 1, 2),
    tile(32, 32, 32, 4, 1, 1),
];

/// Tiles with 32 columns or more to a warp. Small pipelines are for short sums, where several blocks must be in flight;
/// deep ones for long sums of few blocks.
const TILES: [Tile; 31] = [
    tile(128, 128, 64, 4, 2, 4),
    tile(128, 128, 32, 5, 2, 2),
    tile(128, 64, 64, 6, 2, 2),
    tile(128, 64, 64, 4, 4, 2),
    tile(64, 128, 64, 6, 2, 2),
    tile(64, 64, 64, 8, 2, 2),
    tile(64, 32, 64, 10, 4, 1),
    tile(32, 64, 64, 10, 2, 2),
    tile(16, 64, 64, 12, 1, 2),
    tile(128, 128, 32, 3, 2, 4),
    tile(128, 128, 32, 3, 2, 2),
    tile(128, 128, 32, 2, 2, 4),
    tile(128, 64, 32, 4, 4, 2),
    tile(128, 64, 32, 4, 2, 2),
    tile(128, 64, 32, 2, 4, 2),
    tile(64, 128, 32, 4, 2, 2),
    tile(128, 32, 32, 4, 4, 1),
    tile(128, 32, 32, 3, 2, 1),
    tile(128, 32, 32, 2, 4, 1),
    tile(128, 32, 64, 2, 4, 1),
    tile(64, 64, 64, 3, 2, 2),
    tile(64, 64, 32, 6, 2, 2),
    tile(64, 64, 32, 3, 2, 2),
    tile(64, 32, 64, 4, 4, 1),
    tile(64, 32, 64, 4, 2, 1),
    tile(64, 32, 32, 3, 2, 1),
    tile(32, 64, 64, 4, 2, 2),
    tile(32, 128, 64, 2, 2, 2),
    tile(32, 32, 64, 6, 2, 1),
    tile(16, 64, 64, 4, 1, 2),
    tile(16, 32, 64, 8, 1, 1),
];

/// What is known of the device when tiles are proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub capability: u32,
    pub sm_count: u32,
    /// Most shared memory that one block may ask for.
    pub shared_block_bytes: u32,
}

impl Device {
    /// Dynamic shared memory that a block asks for so that so many fit onto a multiprocessor, and no more, where each has
    /// `own_bytes` besides; the bit that lets no kernel behind begin early is none of it.
    pub(super) fn shared_of_one_among(self, resident: u64, own_bytes: u64) -> u64 {
        let whole = u64::from(self.shared_block_bytes) + RESERVED_BYTES;
        (whole / resident).saturating_sub(RESERVED_BYTES + own_bytes) / 32 * 32
    }
}

impl Tile {
    fn threads(self) -> u64 {
        self.warps_m * self.warps_n * 32
    }

    fn shared_bytes(self, kind: Kind) -> u64 {
        let pipeline = self.stages * (self.m + self.n) * self.k * kind.bytes();
        let sums = if self.split > 1 { self.m * self.n * 4 } else { 0 };
        pipeline.max(sums)
    }

    /// Whether the steps of a stage stay a loop, and of how many blocks a multiprocessor has to hold the registers. For f32
    /// as measured: 64 sums of a thread over 32 channels are faster in a loop, where three warps share a scheduler; of
    /// less, two warps that have everything laid out before them.
    fn registers(self, kind: Kind) -> (bool, u64) {
        if kind != Kind::F32 {
            return (false, 1);
        }
        let rolled = self.threads() <= 128 && self.k == 32 && self.m / self.warps_m == 64;
        let warps = if rolled { 12 } else { 8 };
        (rolled, (warps * 32 / self.threads()).max(1))
    }

    /// Operations in f32 a cycle and multiprocessor where it holds so many blocks: of more sums a thread reads less for
    /// each, and each of the four schedulers needs two warps. Fitted to times on an H200, for ordering only.
    fn math_f32(self, resident: u64) -> u64 {
        let sums = self.m * self.n / self.threads();
        let most = if sums >= 64 { 190 } else { 165 };
        most * (resident * self.warps_m * self.warps_n).min(8) / 8
    }

    /// A rough count of cycles, good for ordering only.
    pub fn cycles(self, problem: &Problem, device: Device) -> u64 {
        /// Operations a cycle and multiprocessor, bytes a cycle and multiprocessor, and what a step and a start cost.
        const MATH: u64 = 2400;
        const BYTES: u64 = 48;
        const LATENCY: u64 = 900;
        const START: u64 = 900;
        const JOIN: u64 = 900;
        let sms = u64::from(device.sm_count.max(1));
        let blocks = problem.m.div_ceil(self.m) * problem.n.div_ceil(self.n) * self.split;
        let steps = problem.k.div_ceil(self.k).div_ceil(self.split);
        let shared = u64::from(device.shared_block_bytes) + RESERVED_BYTES;
        let most = (shared / (self.shared_bytes(problem.kind) + RESERVED_BYTES)).min(1536 / self.threads());
        let resident = blocks.div_ceil(sms).clamp(1, most.max(1));
        let waves = blocks.div_ceil(sms * resident);
        let math = if problem.kind == Kind::F32 { self.math_f32(resident) } else { MATH };
        let read = (self.m + self.n) * self.k * problem.kind.bytes();
        let each = (2 * self.m * self.n * self.k / math).max(read / BYTES);
        let join = if self.split > 1 { JOIN } else { 0 };
        let wait = LATENCY / (self.stages - 1);
        waves * ((steps * each * resident).max(steps * wait) + START) + join
    }
}

/// Tiles that are worth timing, most promising first.
pub fn tiles(problem: &Problem, device: Device, most: usize) -> Vec<Tile> {
    if problem.kind == Kind::Bf16 && device.capability < BF16_SINCE {
        return Vec::new();
    }
    let splits = if device.capability >= CLUSTERS_SINCE { &SPLITS[..] } else { &SPLITS[..1] };
    let all = if problem.kind == Kind::F32 { &TILES_F32[..] } else { &TILES[..] };
    let mut found: Vec<Tile> = all
        .iter()
        .flat_map(|tile| splits.iter().map(|&split| Tile { split, ..*tile }))
        .filter(|t| t.shared_bytes(problem.kind) + u64::from(ALONE_BYTES) <= device.shared_block_bytes.into())
        // A block that shares adds up at least two steps, and no pipeline is deeper than its sum.
        .filter(|t| {
            let steps = problem.k.div_ceil(t.k).div_ceil(t.split);
            (t.split == 1 || steps >= 2) && t.stages <= steps.max(2) + 1
        })
        // No tile that is mostly empty.
        .filter(|t| t.m < 2 * problem.m.next_multiple_of(16) && t.n < 2 * problem.n.next_multiple_of(32))
        .collect();
    found.sort_by_key(|tile| tile.cycles(problem, device));
    // Of f32 they take longer to compile, and differ by less.
    found.truncate(if problem.kind == Kind::F32 { most.div_ceil(2) } else { most });
    found
}

/// Arguments: x, w, bias?, residual?, y.
pub fn generate(problem: &Problem, tile: Tile) -> Generated {
    let element = c_type(problem.kind);
    let mut text = format!("{PRELUDE}{TENSOR_PRELUDE}\n");
    let mut define = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "#define {name} {value}");
    };
    define("ELEMENT", &element);
    define("OUT", &element);
    define("ELEMENT_BYTES", &problem.kind.bytes());
    let (rolled, at_least) = tile.registers(problem.kind);
    define("IS_ROLLED", &u8::from(rolled));
    define("BLOCKS_AT_LEAST", &at_least);
    for (name, value) in [
        ("BM", tile.m),
        ("BN", tile.n),
        ("BK", tile.k),
        ("STAGES", tile.stages),
        ("WARPS_M", tile.warps_m),
        ("WARPS_N", tile.warps_n),
        ("SPLIT", tile.split),
        ("M", problem.m),
        ("N", problem.n),
        ("K", problem.k),
        ("X_PITCH", problem.x_pitch),
        ("W_PITCH", problem.w_pitch),
        ("Y_PITCH", problem.y_pitch),
        ("RESIDUAL_PITCH", problem.residual_pitch.unwrap_or(0)),
    ] {
        define(name, &value);
    }
    define("ALPHA", &c_float(problem.alpha));
    define(
        "ACTIVATION",
        &problem.activation.map_or("f".to_owned(), |op| activation(op, Digits::of(problem.kind), "f")),
    );
    define("W_IS_CONSTANT", &u8::from(problem.w_is_constant));
    // Of few channels, windows that overlap share most of what they read, which the nearest cache then holds.
    let again = problem.image.is_some() && problem.k <= READ_AGAIN_UP_TO;
    define("X_IS_READ_AGAIN", &u8::from(again));
    define("IS_PLAIN", &u8::from(problem.image.is_none()));
    if let Some(image) = problem.image {
        for (names, values) in [
            (["IH", "IW"], image.input),
            (["OH", "OW"], image.output),
            (["KH", "KW"], image.taps),
            (["STRIDE_H", "STRIDE_W"], image.strides),
            (["PAD_H", "PAD_W"], image.pads),
            (["DILATION_H", "DILATION_W"], image.dilations),
        ] {
            define(names[0], &values[0]);
            define(names[1], &values[1]);
        }
        define("C", &image.channels);
    }
    for (name, has) in [("BIAS", problem.bias), ("RESIDUAL", problem.residual_pitch.is_some())] {
        let lower = name.to_lowercase();
        define(&format!("HAS_{name}"), &u8::from(has));
        let parameter = if has { format!(", const {element}* __restrict__ {lower}") } else { String::new() };
        define(&format!("{name}_PARAMETER"), &parameter);
        define(&format!("{name}_ARGUMENT"), &if has { format!(", {lower}") } else { String::new() });
    }
    text += include_str!("gemm.cu");
    let grid = problem.m.div_ceil(tile.m) * problem.n.div_ceil(tile.n);
    Generated {
        source: Source { name: "gemm".into(), text },
        grid: [blocks(grid, 1), tile.split as u32, 1],
        block: [tile.threads() as u32, 1, 1],
        shared_bytes: tile.shared_bytes(problem.kind) as u32,
    }
}
