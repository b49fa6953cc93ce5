//! Convolutions, matrix products and pooling.

use super::{Lowering, Outcome, traffic};
use crate::{
    codegen::{
        expr::{Expr, Load},
        pack,
        pool::{self, Window},
    },
    program::{ConvWork, ProductWork, Work},
    view::{Kind, View},
};
use planforge_graph::ir::{Activation, Conv, MatMul, Node, Pool, PoolKind, Tensor, ValueId};
use rayon::prelude::*;

/// Channels of an image are padded to multiples of this where we lay them out: 16 bytes of halves.
const CHANNEL_STEP: u64 = 8;

/// Activations that a library can compute at the end of a convolution.
pub(crate) fn conv_epilogue(activation: Activation) -> bool {
    matches!(
        activation,
        Activation::Relu | Activation::Silu | Activation::Sigmoid | Activation::Tanh | Activation::Gelu(_)
    )
}

fn pair(sizes: &[usize]) -> Outcome<[u64; 2]> {
    match sizes {
        [height, width] => Ok([*height as u64, *width as u64]),
        other => Err(format!("{} spatial dimensions; 2 are supported", other.len())),
    }
}

impl Lowering<'_> {
    /// `id` as an image with channels last in the engine's floats, its channels padded with zeros to `channels`.
    pub(super) fn image(&mut self, id: ValueId, channels: u64) -> Outcome<View> {
        let view = self.view(id)?;
        if view.rank() != 4 {
            return Err(format!("an operand of {} dimensions; 4 are supported", view.rank()));
        }
        // What an earlier convolution has left in more channels than its result has is as good as zeros to the next.
        if let Some(whole) = self.padded.get(&id).filter(|whole| whole.dims[1] == channels) {
            return Ok(whole.clone());
        }
        if view.is_channels_last() && view.kind == self.float && view.dims[1] == channels && aligned(&view) {
            return Ok(view);
        }
        let mut dims = view.dims.clone();
        dims[1] = channels;
        let buffer = self.temporary("channels last", self.float, &dims);
        let image = View::channels_last(buffer, self.float, &dims);
        if view.dims[1] <= 4 || channels != view.dims[1] {
            let generated = pack::generate(&view, &image);
            self.emit(generated, "pack", vec![view, image.clone()], &[], 0);
        } else {
            self.copy(&view, &image, &[])?;
        }
        Ok(image)
    }

    pub(super) fn conv(&mut self, node: &Node, conv: &Conv) -> Outcome<()> {
        let weights = node.input(1).ok_or("it has no weights")?;
        let shape = self.dims(weights)?;
        if shape.len() != 4 {
            return Err(format!("{} spatial dimensions; 2 are supported", shape.len().saturating_sub(2)));
        }
        let [k, c, r, s] = [0, 1, 2, 3].map(|axis| shape[axis]);
        let groups = conv.groups as u64;
        let x_id = node.input(0).ok_or("it has no input")?;
        let given = self.view(x_id)?;
        let already = given.is_channels_last() && given.kind == self.float;
        if !already && self.patches(node, conv, &given)? {
            return Ok(());
        }
        let out_dims = self.dims(node.outputs[0])?;
        let k_padded = if groups == 1 { k.next_multiple_of(CHANNEL_STEP) } else { k };
        let mut geometry = Geometry {
            strides: pair(&conv.strides)?,
            pads_before: pair(&conv.pads[..conv.pads.len() / 2])?,
            pads_after: pair(&conv.pads[conv.pads.len() / 2..])?,
            dilations: pair(&conv.dilations)?,
        };
        let pairs = if already || groups > 1 { None } else { Pairs::of(&given, &geometry, s, out_dims[3]) };
        // Where the image is laid out here anyway, its channels are padded to what tensor cores read.
        let c_padded = if groups == 1 && !already { c.next_multiple_of(CHANNEL_STEP) } else { c };
        let padded = self.padded.get(&x_id).filter(|_| groups == 1).cloned();
        let (x, w) = match pairs {
            // Weights of zero take what lies in the other channels out again.
            None if let Some(x) = padded => {
                let c_whole = x.dims[1];
                let w = self.constant(weights, self.float, "krsc of more", &[k_padded, r, s, c_whole], |tensor| {
                    arrange_krsc(tensor, [k, c, r, s], k_padded, c_whole)
                })?;
                (x, w)
            }
            Some(pairs) => {
                let dims = [given.dims[0], CHANNEL_STEP, given.dims[2], pairs.columns];
                let image =
                    View::channels_last(self.temporary("pairs of columns", self.float, &dims), self.float, &dims);
                let generated = pack::pairs(&given, &image, pairs.before);
                self.emit(generated, "pack", vec![given, image.clone()], &[], 0);
                geometry.strides[1] = 1;
                (geometry.pads_before[1], geometry.pads_after[1]) = (0, 0);
                let arrangement = if pairs.shift == 0 { "pairs" } else { "shifted pairs" };
                let dims = [k_padded, r, pairs.taps, CHANNEL_STEP];
                let w = self.constant(weights, self.float, arrangement, &dims, |tensor| {
                    arrange_pairs(tensor, [k, c, r, s], k_padded, pairs)
                })?;
                (image, w)
            }
            None => {
                let x = self.image(x_id, c_padded * groups)?;
                let w = self.constant(weights, self.float, "krsc", &[k_padded, r, s, c_padded], |tensor| {
                    arrange_krsc(tensor, [k, c, r, s], k_padded, c_padded)
                })?;
                (x, w)
            }
        };
        let w = w.permuted(&[0, 3, 1, 2]);
        let depthwise = groups > 1 && c == 1 && k == groups;
        let taps = depthwise
            .then(|| self.constant(weights, self.float, "rsc", &[r, s, k], |tensor| arrange_rsc(tensor, [k, r, s])))
            .transpose()?;
        let bias = match node.input(2) {
            Some(id) => Some(self.constant(id, self.float, "padded", &[k_padded], |tensor| {
                let mut values = tensor.to_f64s();
                values.resize(k_padded as usize, 0.0);
                values
            })?),
            None => None,
        };
        let residual = node.input(3).map(|id| self.image(id, k_padded)).transpose()?;
        let activation = conv.epilogue.activation;
        // Our own products end with any of them.
        let own = groups == 1 && self.float != Kind::F32 && aligned(&x);
        let library = |op: Activation| match self.float {
            // Whatever else a library does in one kernel, it rounds.
            Kind::F32 => op == Activation::Relu,
            _ => conv_epilogue(op),
        };
        let fused = activation.filter(|&op| depthwise || own || library(op));
        let after = activation.filter(|_| fused.is_none());

        let out = node.outputs[0];
        let y = if k != k_padded || after.is_some() {
            let mut dims = out_dims.clone();
            dims[1] = k_padded;
            let buffer = self.temporary("convolution", self.float, &dims);
            View::channels_last(buffer, self.float, &dims)
        } else {
            self.place_strictly(out, |view| view.is_channels_last() && aligned(view))?
        };
        let Geometry { strides, pads_before, pads_after, dilations } = geometry;
        let work = ConvWork {
            x,
            w,
            taps,
            bias,
            residual,
            y: y.clone(),
            strides,
            pads_before,
            pads_after,
            dilations,
            groups,
            activation: fused,
        };
        let flops = 2 * out_dims.iter().product::<u64>() * c * r * s;
        self.step(Work::Conv(work), &node.origins, flops);
        let computed = y.slice(1, 0, k);
        match after {
            Some(op) => {
                let place = self.place(out)?;
                let load = Expr::Load(Load { view: computed, index: None });
                self.emit_pointwise(&Expr::Activation(op, Box::new(load)), &place, &node.origins)?;
                self.bind(out, place)
            }
            None => {
                if k != k_padded {
                    self.padded.insert(out, y);
                }
                self.bind(out, computed)
            }
        }
    }

    pub(super) fn product(&mut self, node: &Node, product: &MatMul) -> Outcome<()> {
        let out = node.outputs[0];
        let out_dims = self.dims(out)?;
        let normal = node.input(0).and_then(|id| self.rows.normal(id)).cloned();
        let (mut a, norm) = match &normal {
            Some(normal) => {
                let (row, norm) = self.normalised_row(normal)?;
                let dims = self.dims(node.input(0).ok_or("input 0 is missing")?)?;
                (row.reshaped(&dims).ok_or("a row of another length")?, Some(norm))
            }
            None => (self.input_view(node, 0)?, None),
        };
        let mut b = self.factor(node, product)?;
        if a.rank() < 2 || b.rank() < 2 {
            return Err("an operand of one dimension".into());
        }
        let swap = |view: &View| {
            let mut perm: Vec<usize> = (0..view.rank()).collect();
            perm.swap(view.rank() - 2, view.rank() - 1);
            view.permuted(&perm)
        };
        if product.trans_a {
            a = swap(&a);
        }
        if product.trans_b {
            b = swap(&b);
        }
        let (m, k) = (a.dims[a.rank() - 2], a.dims[a.rank() - 1]);
        let n = b.dims[b.rank() - 1];
        let one_b = b.dims[..b.rank() - 2].iter().product::<u64>() == 1;
        let lead = a.dims[..a.rank() - 2].iter().product::<u64>();
        let (a, b, batch, m) = if one_b {
            let a = self.matrix_rows(a, &[1, lead * m, k], true)?;
            (a, self.matrix_rows(b, &[1, k, n], false)?, 1, lead * m)
        } else {
            let batch: u64 = out_dims[..out_dims.len() - 2].iter().product();
            let mut shape = out_dims[..out_dims.len() - 2].to_vec();
            shape.extend([m, k]);
            let a = a.broadcast(&shape).ok_or("its operands do not broadcast")?;
            let at = shape.len();
            shape[at - 2..].copy_from_slice(&[k, n]);
            let b = b.broadcast(&shape).ok_or("its operands do not broadcast")?;
            (self.matrix_rows(a, &[batch, m, k], true)?, self.matrix_rows(b, &[batch, k, n], false)?, batch, m)
        };
        let bias = node.input(2).map(|id| self.view(id)).transpose()?;
        let bias = bias.map(|view| self.aligned_rows(view)).transpose()?;
        if let Some(view) = bias.as_ref().filter(|view| view.elements() != n) {
            return Err(format!("a bias of {} elements for {n} columns", view.elements()));
        }
        let bias = bias.and_then(|view| view.reshaped(&[n]));
        let shape = [batch, m, n];
        let residual = match node.input(3) {
            Some(id) => {
                let view = self.view(id)?.broadcast(&out_dims).ok_or("its residual does not broadcast")?;
                Some(self.matrix_rows(view, &shape, true)?)
            }
            None => None,
        };
        let activation = product.epilogue.activation;
        // Our own products end with any activation, where sums run along the rows of both factors.
        let own = self.float != Kind::F32
            && batch == 1
            && k.is_multiple_of(CHANNEL_STEP)
            && n.is_multiple_of(CHANNEL_STEP)
            && (b.strides[1] == 1 && b.strides[2].is_multiple_of(CHANNEL_STEP));
        let fused =
            activation.filter(|op| own || norm.is_some() || matches!(op, Activation::Relu | Activation::Gelu(_)));
        let after = activation.filter(|_| fused.is_none());
        let y = match after {
            Some(_) => View::rows(self.temporary("product", self.float, &out_dims), self.float, &out_dims),
            None => self.place_strictly(out, |view| {
                view.offset.is_multiple_of(CHANNEL_STEP) && view.reshaped(&shape).is_some_and(|y| is_row_major(&y))
            })?,
        };
        let work = ProductWork {
            a,
            b,
            bias,
            residual,
            y: y.reshaped(&shape).ok_or("its result does not lie in rows")?,
            alpha: product.alpha,
            activation: fused,
            norm,
        };
        self.step(Work::Product(work), &node.origins, 2 * batch * m * n * k);
        match after {
            Some(op) => {
                let place = self.place(out)?;
                let load = Expr::Load(Load { view: y, index: None });
                self.emit_pointwise(&Expr::Activation(op, Box::new(load)), &place, &node.origins)?;
                self.bind(out, place)
            }
            None => self.bind(out, y),
        }
    }

    /// The second factor; a constant one so that sums run along its rows, which tensor cores read best.
    fn factor(&mut self, node: &Node, product: &MatMul) -> Outcome<View> {
        let id = node.input(1).ok_or("input 1 is missing")?;
        match self.graph.constant(id).map(|tensor| tensor.shape().to_vec()).as_deref() {
            Some(&[rows, columns]) if !product.trans_b && self.kind(id).is_float() => {
                let turned = self.constant(id, self.float, "turned", &[columns as u64, rows as u64], |tensor| {
                    let values = tensor.to_f64s();
                    let mut turned = vec![0.0; values.len()];
                    turned.par_chunks_mut(rows.max(1)).enumerate().for_each(|(column, to)| {
                        to.iter_mut().enumerate().for_each(|(row, to)| *to = values[row * columns + column]);
                    });
                    turned
                })?;
                Ok(turned.permuted(&[1, 0]))
            }
            _ => self.view(id),
        }
    }

    /// A convolution whose windows lie side by side is a product over patches: done when true.
    fn patches(&mut self, node: &Node, conv: &Conv, x: &View) -> Outcome<bool> {
        let weights = node.input(1).ok_or("it has no weights")?;
        let [k, c, r, s] = <[u64; 4]>::try_from(self.dims(weights)?).map_err(|_| "weights of another rank")?;
        let side_by_side = pair(&conv.strides)? == [r, s] && conv.pads.iter().all(|&pad| pad == 0) && r * s > 1;
        let fits = side_by_side
            && conv.groups == 1
            && conv.dilations.iter().all(|&dilation| dilation == 1)
            && conv.epilogue.activation.is_none()
            && node.input(3).is_none()
            && (c * r * s).is_multiple_of(CHANNEL_STEP)
            && k.is_multiple_of(CHANNEL_STEP);
        if !fits {
            return Ok(false);
        }
        let out = node.outputs[0];
        let [n, _, oh, ow] = <[u64; 4]>::try_from(self.dims(out)?).map_err(|_| "a result of another rank")?;
        let [sn, sc, sh, sw] = [0, 1, 2, 3].map(|axis| x.strides[axis]);
        let from = View { dims: vec![n, oh, ow, c, r, s], strides: vec![sn, sh * r, sw * s, sc, sh, sw], ..x.clone() };
        let to = View::rows(self.temporary("patches", self.float, &from.dims), self.float, &from.dims);
        self.copy(&from, &to, &node.origins)?;
        let shape = [1, n * oh * ow, c * r * s];
        let b = self.constant(weights, self.float, "patches", &[1, k, c * r * s], |tensor| tensor.to_f64s())?;
        let bias = match node.input(2) {
            Some(id) => Some(self.constant(id, self.float, "rows", &[k], |tensor| tensor.to_f64s())?),
            None => None,
        };
        let y = self.place_strictly(out, |view| view.is_channels_last() && aligned(view))?;
        let rows = y.permuted(&[0, 2, 3, 1]).reshaped(&[1, n * oh * ow, k]);
        let work = ProductWork {
            a: to.reshaped(&shape).ok_or("its patches do not lie in rows")?,
            b: b.permuted(&[0, 2, 1]),
            bias,
            residual: None,
            y: rows.ok_or("its result does not lie in rows")?,
            alpha: 1.0,
            activation: None,
            norm: None,
        };
        self.step(Work::Product(work), &node.origins, 2 * n * oh * ow * k * c * r * s);
        self.bind(out, y)?;
        Ok(true)
    }

    /// `view` as `[batch][rows][columns]` whose last dimension is dense, or, where `strictly` is not asked for, whose
    /// last but one is.
    pub(super) fn matrix_rows(&mut self, view: View, shape: &[u64; 3], strictly: bool) -> Outcome<View> {
        if view.kind == self.float
            && let Some(matrix) = view.reshaped(shape)
            && matrix.offset % CHANNEL_STEP == 0
            && (is_row_major(&matrix) || (!strictly && is_row_major(&matrix.permuted(&[0, 2, 1]))))
        {
            return Ok(matrix);
        }
        if !view.kind.is_float() {
            return Err(format!("a product of {}", view.kind.name()));
        }
        let buffer = self.temporary("matrix", self.float, &view.dims);
        let rows = View::rows(buffer, self.float, &view.dims);
        self.copy(&view, &rows, &[])?;
        rows.reshaped(shape).ok_or_else(|| "its operands do not fit".into())
    }

    /// Dense rows that begin where vectors can be read.
    pub(super) fn aligned_rows(&mut self, view: View) -> Outcome<View> {
        let rows = self.dense_rows(view)?;
        if rows.offset.is_multiple_of(CHANNEL_STEP) {
            return Ok(rows);
        }
        let buffer = self.temporary("aligned", rows.kind, &rows.dims);
        let aligned = View::rows(buffer, rows.kind, &rows.dims);
        self.copy(&rows, &aligned, &[])?;
        Ok(aligned)
    }

    pub(super) fn pool(&mut self, node: &Node, pool: &Pool) -> Outcome<()> {
        let id = node.input(0).ok_or("it has no input")?;
        let channels = self.dims(id)?.get(1).copied().unwrap_or(0);
        let x = self.image(id, channels)?;
        let (before, end) = pool.pads.split_at(pool.pads.len() / 2);
        let (pads_before, pads_after) = (pair(before)?, pair(end)?);
        let window = Window {
            is_max: pool.kind == PoolKind::Max,
            count_pad: pool.kind == PoolKind::Average { count_pad: true },
            kernel: pair(&pool.kernel)?,
            strides: pair(&pool.strides)?,
            pads_before,
            padded: [x.dims[2] + pads_after[0], x.dims[3] + pads_after[1]],
            dilations: pair(&pool.dilations)?,
        };
        let y = self.place(node.outputs[0])?;
        let y = if y.is_channels_last() { y } else { self.fresh(node.outputs[0])? };
        let generated = pool::window(&x, &y, window);
        let flops = y.elements() * window.kernel[0] * window.kernel[1];
        let bytes = traffic::of_windows(&x, &y, window.kernel, window.strides) + y.elements() * y.kind.bytes();
        self.emit(generated, "pool", vec![x, y.clone()], &node.origins, flops).bytes = bytes;
        self.bind(node.outputs[0], y)
    }
}

/// Sizes are height, then width.
struct Geometry {
    strides: [u64; 2],
    pads_before: [u64; 2],
    pads_after: [u64; 2],
    dilations: [u64; 2],
}

/// An image of few channels whose columns are taken two at a time, four channels each: a window that moves by two
/// columns then moves by one pair, and tensor cores read nearly what is there instead of mostly padding.
#[derive(Clone, Copy)]
struct Pairs {
    /// Pairs of zeros before the image, which stand for its padding.
    before: u64,
    /// All pairs, padding included.
    columns: u64,
    /// Pairs that a window covers.
    taps: u64,
    /// Columns of zeros before a window's first tap.
    shift: u64,
}

impl Pairs {
    fn of(x: &View, geometry: &Geometry, taps: u64, out_columns: u64) -> Option<Self> {
        let fits = x.dims[1] <= CHANNEL_STEP / 2 && geometry.strides[1] == 2 && geometry.dilations[1] == 1;
        let pad = geometry.pads_before[1];
        let shift = pad % 2;
        let taps = (taps + shift).div_ceil(2);
        fits.then_some(Self { before: (pad + shift) / 2, columns: out_columns - 1 + taps, taps, shift })
    }
}

/// `[K][R][pairs][two columns of four channels]`.
fn arrange_pairs(tensor: &Tensor, [k, c, r, s]: [u64; 4], k_padded: u64, pairs: Pairs) -> Vec<f64> {
    let values = tensor.to_f64s();
    let mut arranged = vec![0.0; (k_padded * r * pairs.taps * CHANNEL_STEP) as usize];
    for ki in 0..k {
        for ci in 0..c {
            for y in 0..r {
                for x in 0..s {
                    let column = x + pairs.shift;
                    let place = ((ki * r + y) * pairs.taps + column / 2) * CHANNEL_STEP + column % 2 * 4 + ci;
                    arranged[place as usize] = values[(((ki * c + ci) * r + y) * s + x) as usize];
                }
            }
        }
    }
    arranged
}

/// Whether vector loads of a pixel's channels are possible.
fn aligned(view: &View) -> bool {
    let step = 16 / view.kind.bytes();
    view.offset.is_multiple_of(step) && view.pixel_pitch().is_multiple_of(step)
}

/// `[batch][rows][columns]` with dense columns.
fn is_row_major(matrix: &View) -> bool {
    let step = 16 / matrix.kind.bytes();
    let [rows, columns] = [matrix.dims[1], matrix.dims[2]];
    (columns == 1 || matrix.strides[2] == 1)
        && (rows == 1
            || (matrix.strides[1] >= columns
                && (matrix.strides[1].is_multiple_of(step) || matrix.strides[1] == columns)))
}

fn arrange_krsc(tensor: &Tensor, [k, c, r, s]: [u64; 4], k_padded: u64, c_padded: u64) -> Vec<f64> {
    let values = tensor.to_f64s();
    let mut arranged = vec![0.0; (k_padded * r * s * c_padded) as usize];
    for ki in 0..k {
        for ci in 0..c {
            for tap in 0..r * s {
                arranged[((ki * r * s + tap) * c_padded + ci) as usize] =
                    values[((ki * c + ci) * r * s + tap) as usize];
            }
        }
    }
    arranged
}

fn arrange_rsc(tensor: &Tensor, [k, r, s]: [u64; 3]) -> Vec<f64> {
    let values = tensor.to_f64s();
    let mut arranged = vec![0.0; (k * r * s) as usize];
    for ki in 0..k {
        for tap in 0..r * s {
            arranged[(tap * k + ki) as usize] = values[(ki * r * s + tap) as usize];
        }
    }
    arranged
}
