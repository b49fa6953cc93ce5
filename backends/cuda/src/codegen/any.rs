//! Convolutions and products of any type, size, grouping and arrangement, on ordinary cores: what is computed where
//! tensor cores and libraries have nothing, and products of few rows, which only read their weights once.

use super::{
    Generated, PRELUDE, c_float, c_type,
    expr::{Digits, activation},
};
use crate::{
    program::{ConvWork, ProductWork},
    source::Source,
    view::{Kind, View},
};
use planforge_graph::ir::Activation;
use std::fmt::Write as _;

/// Elements that are read at once where they lie so.
const VECTOR: u64 = 8;
/// Threads of a block.
const THREADS: u64 = 256;
/// Rows up to which each column is a sum of one warp.
const FEW_ROWS: u64 = 16;
/// Indices are 32-bit in the kernel.
const MAX_SIZE: u64 = 1 << 30;

/// What is computed: `y[g][m][n] = activation(alpha sum_k x[g][m][k] w[g][k][n] + bias + residual)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    kind: Kind,
    groups: u64,
    m: u64,
    n: u64,
    k: u64,
    alpha: f32,
    activation: Option<Activation>,
    bias: bool,
    residual: bool,
    /// Bodies of the functions that find an element.
    x_at: String,
    w_at: String,
    y_at: String,
    z_at: String,
    bias_at: &'static str,
    /// Whether neighbours along the sum are neighbours in memory.
    x_along_k: bool,
    w_along_k: bool,
    /// Whether aligned vectors of both factors can be read along the sum.
    vectors: bool,
}

/// A stride as it matters: of one element there is no next.
fn stride(view: &View, axis: usize) -> u64 {
    if view.dims[axis] == 1 { 0 } else { view.strides[axis] }
}

/// Whether vectors along `axis` are aligned wherever they begin.
fn in_vectors(view: &View, axis: usize) -> bool {
    let others = (0..view.rank()).filter(|&other| other != axis);
    view.strides[axis] == 1
        && view.dims[axis].is_multiple_of(VECTOR)
        && view.offset.is_multiple_of(VECTOR)
        && others.into_iter().all(|other| stride(view, other).is_multiple_of(VECTOR))
}

impl Problem {
    /// `None` for what is too large, or mixes types.
    pub fn of_conv(conv: &ConvWork) -> Option<Self> {
        let [n, k_out, oh, ow] = [0, 1, 2, 3].map(|axis| conv.y.dims[axis]);
        let [c, taps_h, taps_w] = [1, 2, 3].map(|axis| conv.w.dims[axis]);
        let groups = conv.groups;
        let columns = k_out / groups;
        let [ih, iw] = [conv.x.dims[2], conv.x.dims[3]];
        let image = |view: &View| {
            let [sn, sc, sh, sw] = [0, 1, 2, 3].map(|axis| stride(view, axis));
            format!(
                "const int ox = m % {ow}, r = m / {ow}, oy = r % {oh}, i = r / {oh}; \
                 return i * {sn}ll + (g * {columns} + n) * {sc}ll + oy * {sh}ll + ox * {sw}ll;"
            )
        };
        let [xn, xc, xh, xw] = [0, 1, 2, 3].map(|axis| stride(&conv.x, axis));
        let [wk, wc, wr, ws] = [0, 1, 2, 3].map(|axis| stride(&conv.w, axis));
        let ([sh, sw], [ph, pw], [dh, dw]) = (conv.strides, conv.pads_before, conv.dilations);
        let tap = format!("const int c = k % {c}, t = k / {c}, s = t % {taps_w}, r = t / {taps_w};");
        Self {
            kind: conv.x.kind,
            groups,
            m: n * oh * ow,
            n: columns,
            k: c * taps_h * taps_w,
            alpha: 1.0,
            activation: conv.activation,
            bias: conv.bias.is_some(),
            residual: conv.residual.is_some(),
            x_at: format!(
                "{tap} const int ox = m % {ow}, q = m / {ow}, oy = q % {oh}, i = q / {oh}; \
                 const int iy = oy * {sh} - {ph} + r * {dh}, ix = ox * {sw} - {pw} + s * {dw}; \
                 if ((u32)iy >= {ih}u || (u32)ix >= {iw}u) return -1; \
                 return i * {xn}ll + (g * {c} + c) * {xc}ll + iy * {xh}ll + ix * {xw}ll;"
            ),
            w_at: format!("{tap} return (g * {columns} + n) * {wk}ll + c * {wc}ll + r * {wr}ll + s * {ws}ll;"),
            y_at: image(&conv.y),
            z_at: conv.residual.as_ref().map(image).unwrap_or_default(),
            bias_at: "g * N + n",
            x_along_k: conv.x.strides[1] == 1,
            w_along_k: conv.w.strides[1] == 1,
            vectors: in_vectors(&conv.x, 1) && in_vectors(&conv.w, 1),
        }
        .checked(&[Some(&conv.x), Some(&conv.w), Some(&conv.y), conv.bias.as_ref(), conv.residual.as_ref()])
    }

    /// `None` for what is too large, or mixes types.
    pub fn of_product(product: &ProductWork) -> Option<Self> {
        let [batch, m, k] = [0, 1, 2].map(|axis| product.a.dims[axis]);
        let at = |view: &View, row: &str, column: &str| {
            let [sg, sr, sc] = [0, 1, 2].map(|axis| stride(view, axis));
            format!("return g * {sg}ll + {row} * {sr}ll + {column} * {sc}ll;")
        };
        Self {
            kind: product.a.kind,
            groups: batch,
            m,
            n: product.y.dims[2],
            k,
            alpha: product.alpha,
            activation: product.activation,
            bias: product.bias.is_some(),
            residual: product.residual.is_some(),
            x_at: at(&product.a, "m", "k"),
            w_at: at(&product.b, "k", "n"),
            y_at: at(&product.y, "m", "n"),
            z_at: product.residual.as_ref().map(|view| at(view, "m", "n")).unwrap_or_default(),
            bias_at: "n",
            x_along_k: product.a.strides[2] == 1,
            w_along_k: product.b.strides[1] == 1,
            vectors: in_vectors(&product.a, 2) && in_vectors(&product.b, 1),
        }
        .checked(&[
            Some(&product.a),
            Some(&product.b),
            Some(&product.y),
            product.bias.as_ref(),
            product.residual.as_ref(),
        ])
    }

    fn checked(self, views: &[Option<&View>]) -> Option<Self> {
        let one_kind = views.iter().flatten().all(|view| view.kind == self.kind);
        let sizes = [self.groups, self.m, self.n, self.k];
        let all = sizes[..3].iter().try_fold(1u64, |all, &size| all.checked_mul(size))?;
        let fits = sizes.iter().all(|&size| (1..MAX_SIZE).contains(&size)) && all < MAX_SIZE * THREADS;
        (one_kind && self.kind.is_float() && fits).then_some(self)
    }

    /// Whether rows are so few that reading the weights is all there is to do.
    pub fn is_of_few_rows(&self) -> bool {
        self.m <= FEW_ROWS
    }
}

/// How the work is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tile {
    /// A warp sums up one column of so many rows.
    Rows(u64),
    /// A block computes so many rows and columns.
    Block { m: u64, n: u64 },
}

/// Tiles that are worth timing.
pub fn tiles(problem: &Problem) -> Vec<Tile> {
    if problem.is_of_few_rows() {
        let all = problem.m.next_power_of_two();
        let mut rows = vec![Tile::Rows(all)];
        if all > 2 {
            rows.push(Tile::Rows(all / 2));
        }
        return rows;
    }
    let mut blocks = vec![Tile::Block { m: 64, n: 64 }, Tile::Block { m: 32, n: 32 }];
    if problem.n <= 32 {
        blocks[0] = Tile::Block { m: 128, n: 32 };
    } else if problem.m >= 128 {
        // Eight by eight sums of a thread read each factor half as often as four by four.
        blocks.insert(0, Tile::Block { m: 128, n: if problem.n > 64 { 128 } else { 64 } });
    }
    blocks
}

/// Arguments: x, w, bias?, residual?, y.
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
    define("VECTOR", &if problem.vectors { VECTOR } else { 1 });
    let (rows, block) = match tile {
        Tile::Rows(rows) => (rows, [1, 1]),
        Tile::Block { m, n } => (0, [m, n]),
    };
    for (name, value) in [
        ("THREADS", THREADS),
        ("GROUPS", problem.groups),
        ("M", problem.m),
        ("N", problem.n),
        ("K", problem.k),
        ("ROWS", rows),
        ("BM", block[0]),
        ("BN", block[1]),
        ("X_ALONG_K", problem.x_along_k.into()),
        ("W_ALONG_K", problem.w_along_k.into()),
    ] {
        define(name, &value);
    }
    for (name, has) in [("BIAS", problem.bias), ("RESIDUAL", problem.residual)] {
        let lower = name.to_lowercase();
        define(&format!("HAS_{name}"), &u8::from(has));
        let parameter = if has { format!(", const {element}* __restrict__ {lower}") } else { String::new() };
        define(&format!("{name}_PARAMETER"), &parameter);
        define(&format!("{name}_ARGUMENT"), &if has { format!(", {lower}") } else { String::new() });
    }
    let mut function = |head: &str, body: &str| {
        let _ = writeln!(text, "__device__ __forceinline__ {head} {{ {body} }}");
    };
    function("i64 x_at(int g, int m, int k)", &problem.x_at);
    function("i64 w_at(int g, int k, int n)", &problem.w_at);
    function("i64 y_at(int g, int m, int n)", &problem.y_at);
    if problem.residual {
        function("i64 z_at(int g, int m, int n)", &problem.z_at);
    }
    function("int bias_at(int g, int n)", &format!("return {};", problem.bias_at));
    text += include_str!("any.cu");
    let blocks = match tile {
        Tile::Rows(rows) => (problem.groups * problem.n * problem.m.div_ceil(rows)).div_ceil(THREADS / 32),
        Tile::Block { m, n } => problem.groups * problem.m.div_ceil(m) * problem.n.div_ceil(n),
    };
    Generated {
        source: Source { name: "any".into(), text },
        grid: [super::blocks(blocks, 1), 1, 1],
        block: [THREADS as u32, 1, 1],
        shared_bytes: 0,
    }
}
