//! Products of one row with a matrix whose columns each lie in one piece: the matrix is read once, and nothing else counts.
//!
//! A normalisation of the row is made by every warp for itself. What was to be in registers before the kernel waits for what
//! is ahead of it compilers read behind that wait: [`super::staged`] keeps it in shared memory.

use super::{
    Generated, PRELUDE, c_float, c_type,
    expr::{Digits, activation},
};
use crate::{
    program::{Norm, ProductWork},
    source::Source,
    view::{Kind, View},
};
use planforge_graph::ir::Activation;
use std::fmt::Write as _;

/// Bytes that are read at once.
const VECTOR_BYTES: u64 = 16;
const WARP: u64 = 32;
/// Warps of a block.
const WARPS: u64 = 8;
/// Longest row, and longest that a warp holds in registers for a normalisation.
const MAX_ROW: u64 = 1 << 16;
pub const MAX_NORM: u64 = 4096;

/// What is computed: `y[n] = activation(alpha sum_k norm(x)[k] w[n][k] + bias[n] + residual[n])`.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub(super) kind: Kind,
    pub(super) n: u64,
    pub(super) k: u64,
    /// From one column of the matrix to the next.
    pub(super) pitch: u64,
    pub(super) alpha: f32,
    pub(super) activation: Option<Activation>,
    bias: bool,
    residual: bool,
    pub(super) constant: bool,
    pub(super) constant_bias: bool,
    pub(super) norm: Option<Norm>,
}

impl Problem {
    /// `None` for more rows than one, and for what cannot be read in whole vectors.
    pub fn of(product: &ProductWork, is_constant: impl Fn(&View) -> bool) -> Option<Self> {
        let kind = product.a.kind;
        let vector = VECTOR_BYTES / kind.bytes();
        let [batch, m, k] = [0, 1, 2].map(|axis| product.a.dims[axis]);
        let n = product.y.dims[2];
        let pitch = if n == 1 { k } else { product.b.strides[2] };
        let along = |view: &View, axis: usize| view.dims[axis] == 1 || view.strides[axis] == 1;
        let aligned = |view: &View| view.offset.is_multiple_of(vector);
        let norms = product.norm.iter().flat_map(|norm| [&norm.scale, &norm.bias].into_iter().flatten());
        let rows = [&product.bias, &product.residual].into_iter().flatten();
        let fits = kind.is_float()
            && (batch, m) == (1, 1)
            && k.is_multiple_of(vector)
            && (vector..=if product.norm.is_some() { MAX_NORM } else { MAX_ROW }).contains(&k)
            && n < 1 << 31
            && pitch.is_multiple_of(vector)
            && along(&product.a, 2)
            && along(&product.b, 1)
            && along(&product.y, 2)
            && product.residual.iter().all(|view| along(view, 2))
            && [&product.a, &product.b].into_iter().chain(norms.clone()).all(aligned)
            && norms.chain(rows).chain([&product.b, &product.y]).all(|view| view.kind == kind);
        fits.then(|| Self {
            kind,
            n,
            k,
            pitch,
            alpha: product.alpha,
            activation: product.activation,
            bias: product.bias.is_some(),
            residual: product.residual.is_some(),
            constant: is_constant(&product.b),
            constant_bias: product.bias.as_ref().is_some_and(is_constant),
            norm: product.norm.clone(),
        })
    }

    fn vector(&self) -> u64 {
        VECTOR_BYTES / self.kind.bytes()
    }

    /// Vectors of a column for each lane, where so many warps share it.
    fn steps(&self, share: u64) -> u64 {
        self.k.div_ceil(self.vector() * WARP * share)
    }
}

/// How the work is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Columns of a group of warps.
    columns: u64,
    /// Warps that share a column.
    share: u64,
    /// Vectors of a column that a lane has on their way at once.
    ahead: u64,
}

/// Tiles that are worth timing: none of whose warps has nothing to read.
pub fn tiles(problem: &Problem) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for share in [1, 2, 4, 8] {
        let steps = problem.steps(share);
        if share > 1 && problem.steps(share / 2) == 1 {
            break;
        }
        for columns in [1, 2, 4] {
            // Enough blocks for a whole device, or it stays at one column.
            let blocks = problem.n.div_ceil(columns * WARPS / share);
            if columns > 1 && blocks < 132 {
                continue;
            }
            let ahead = steps.min(if columns == 4 { 4 } else { 8 });
            // Loads of one lane at once: as many as registers hold.
            let ahead = ahead.min(16 / columns);
            tiles.push(Tile { columns, share, ahead });
            if ahead == 8 {
                tiles.push(Tile { columns, share, ahead: 4 });
            }
        }
    }
    tiles
}

/// Arguments: x, w, bias?, residual?, scale?, shift?, y.
pub fn generate(problem: &Problem, tile: Tile) -> Generated {
    let element = c_type(problem.kind);
    let mut text = format!("{PRELUDE}\n");
    let mut define = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "#define {name} {value}");
    };
    define("ELEMENT", &element);
    define("ALPHA", &c_float(problem.alpha));
    define(
        "ACTIVATION",
        &problem.activation.map_or("f".to_owned(), |op| activation(op, Digits::of(problem.kind), "f")),
    );
    for (name, value) in [
        ("VECTOR", problem.vector()),
        ("THREADS", WARPS * WARP),
        ("N", problem.n),
        ("K", problem.k),
        ("PITCH", problem.pitch),
        ("COLUMNS", tile.columns),
        ("SHARE", tile.share),
        ("AHEAD", tile.ahead),
        ("STEPS", problem.steps(tile.share)),
        ("WHOLE", problem.steps(1)),
    ] {
        define(name, &value);
    }
    define_operands(problem, &mut define);
    text += include_str!("matvec.cu");
    let blocks = problem.n.div_ceil(tile.columns * WARPS / tile.share);
    Generated {
        source: Source { name: "matvec".into(), text },
        grid: [super::blocks(blocks, 1), 1, 1],
        block: [(WARPS * WARP) as u32, 1, 1],
        shared_bytes: 0,
    }
}

/// Says of each operand that there may be whether there is one, and what of a norm is known.
pub(super) fn define_operands(problem: &Problem, define: &mut dyn FnMut(&str, &dyn std::fmt::Display)) {
    let element = c_type(problem.kind);
    let norm = problem.norm.as_ref();
    define("HAS_NORM", &u8::from(norm.is_some()));
    define("CENTRED", &u8::from(norm.is_some_and(|norm| norm.centred)));
    define("EPSILON", &c_float(norm.map_or(0.0, |norm| norm.epsilon)));
    for (name, has) in [
        ("BIAS", problem.bias),
        ("RESIDUAL", problem.residual),
        ("SCALE", norm.is_some_and(|norm| norm.scale.is_some())),
        ("SHIFT", norm.is_some_and(|norm| norm.bias.is_some())),
    ] {
        let lower = name.to_lowercase();
        define(&format!("HAS_{name}"), &u8::from(has));
        let parameter = if has { format!(", const {element}* __restrict__ {lower}") } else { String::new() };
        define(&format!("{name}_PARAMETER"), &parameter);
    }
}
