//! Products of dequantized numbers, as models with QuantizeLinear and DequantizeLinear have them.

use super::{Finish, Joined, RowZero, is_byte, is_image, is_scale, is_short, known::Known, limits_of, swapped};
use planforge_graph::ir::{Activation, Binary, ElementType, Op, Quantization, Tensor, ValueId};

/// Integers, and what makes floats of them.
pub struct Operand {
    pub value: ValueId,
    pub element: ElementType,
    pub scale: f64,
    pub zero: f64,
    pub zero_value: Option<ValueId>,
}

/// The integers behind a float, when they have one known scale and zero point.
pub fn operand(known: &Known<'_>, id: ValueId) -> Option<Operand> {
    let (_, node) = known.producer(id)?;
    let Op::Dequantize(Quantization { element, axis: None }) = node.op else { return None };
    let single = known.graph.value(id).element == ElementType::F32;
    if !is_byte(element) || !single {
        return None;
    }
    let scale = known.scalar(node.input(1)?).filter(|&scale| is_scale(scale))?;
    let zero_value = node.input(2);
    let zero = zero_value.map_or(Some(0.0), |zero| known.scalar(zero))?;
    Some(Operand { value: node.input(0)?, element, scale, zero, zero_value })
}

/// Scale and zero point of a `Quantize` node, when they are one each and known.
pub fn quantization(known: &Known<'_>, at: usize) -> Option<(ElementType, f64, f64)> {
    let node = &known.graph.nodes[at];
    let Op::Quantize(Quantization { element, axis: None }) = node.op else { return None };
    let single = known.graph.value(node.input(0)?).element == ElementType::F32;
    let scale = known.scalar(node.input(1)?).filter(|&scale| is_scale(scale) && is_byte(element) && single)?;
    let zero = node.input(2).map_or(Some(0.0), |zero| known.scalar(zero))?;
    Some((element, scale, zero))
}

/// Stored weights: the integers, one scale or one for each column, and zero points likewise.
struct Weights {
    data: Tensor,
    scales: Vec<f64>,
    zeros: Option<Tensor>,
}

/// The stored weights behind a float whose columns lie along `axis`.
fn weights(known: &Known<'_>, id: ValueId, axis: usize) -> Option<Weights> {
    let (_, node) = known.producer(id)?;
    if let Op::Transpose { perm } = &node.op
        && perm[..] == [1, 0]
    {
        let Weights { data, scales, zeros } = weights(known, node.input(0)?, 1 - axis)?;
        return Some(Weights { data: swapped(&data)?, scales, zeros });
    }
    let Op::Dequantize(how) = node.op else { return None };
    let data = known.graph.constant(node.input(0)?)?;
    if !is_byte(how.element) || how.axis.is_some_and(|along| along != axis) || data.rank() <= axis {
        return None;
    }
    let scales = known.tensor(node.input(1)?)?;
    let zeros = match node.input(2) {
        Some(zero) => Some(known.tensor(zero)?),
        None => None,
    };
    let scales = scales.to_f64s();
    let fits = |count: usize| count == 1 || count == data.shape()[axis];
    let fine = fits(scales.len()) && scales.iter().all(|&scale| is_scale(scale));
    let zeros = zeros.filter(|zeros| zeros.to_f64s().iter().any(|&zero| zero != 0.0));
    (fine && zeros.as_ref().is_none_or(|zeros| fits(zeros.len()))).then(|| Weights {
        data: data.clone(),
        scales,
        zeros,
    })
}

/// `a + b`, each one number or one for each column.
fn sum(a: Option<Vec<f64>>, b: Vec<f64>) -> Option<Vec<f64>> {
    let Some(a) = a else { return Some(b) };
    zipped(&a, &b, |a, b| a + b)
}

fn zipped(a: &[f64], b: &[f64], with: impl Fn(f64, f64) -> f64) -> Option<Vec<f64>> {
    let count = a.len().max(b.len());
    let fits = [a.len(), b.len()].iter().all(|&len| len == 1 || len == count);
    fits.then(|| (0..count).map(|at| with(a[at % a.len()], b[at % b.len()])).collect())
}

pub fn join(known: &Known<'_>, at: usize) -> Option<Joined> {
    let graph = known.graph;
    let node = &graph.nodes[at];
    let output = node.outputs[0];
    if graph.value(output).element != ElementType::F32 || node.input(3).is_some() {
        return None;
    }
    let x = operand(known, node.input(0)?)?;
    let rank = known.shape(output)?.len();
    if matches!(node.op, Op::Conv(_)) && !is_image(rank) {
        return None;
    }
    let (conv, alpha, w, axis) = match &node.op {
        Op::Conv(conv) if conv.epilogue.activation.is_none() => {
            (Some(conv.clone()), 1.0, weights(known, node.input(1)?, 0)?, 1)
        }
        Op::MatMul(product) if product.epilogue.activation.is_none() && !product.trans_a => {
            let columns = usize::from(!product.trans_b);
            let mut w = weights(known, node.input(1)?, columns)?;
            if w.data.rank() != 2 || known.shape(x.value)?.len() < 2 {
                return None;
            }
            if product.trans_b {
                w.data = swapped(&w.data)?;
            }
            (None, f64::from(product.alpha), w, rank - 1)
        }
        _ => return None,
    };
    let depth: usize = if conv.is_some() { w.data.shape()[1..].iter().product() } else { w.data.shape()[0] };
    if !is_short(depth) || !is_scale(alpha) || w.data.is_empty() {
        return None;
    }
    let mut bias = match node.input(2) {
        Some(bias) => Some(known.tensor(bias)?.to_f64s()),
        None => None,
    };
    let (mut last, mut parts, mut y) = (at, Vec::new(), output);
    let follow =
        |y: ValueId| known.user(y).filter(|(_, user)| graph.value(user.outputs[0]).shape == graph.value(y).shape);
    if let Some((user, list)) = follow(y).and_then(|(user, next)| {
        let other = known.other(next, Binary::Add, y)?;
        Some((user, known.list(other, rank, axis)?))
    }) {
        bias = sum(bias, list);
        parts.push(last);
        (last, y) = (user, graph.nodes[user].outputs[0]);
    }
    // Everything is in units of one product: a sum of integers.
    let unit: Vec<f64> = w.scales.iter().map(|scale| scale * x.scale * alpha).collect();
    let bias = match bias {
        Some(bias) => Some(zipped(&bias, &unit, |bias, unit| bias / unit)?),
        None => None,
    };
    let is_finite = |list: &[f64]| list.iter().all(|value| value.is_finite());
    if !is_finite(&unit) || !bias.as_deref().is_none_or(is_finite) {
        return None;
    }
    let (mut limits, mut activated, mut ahead) = ([f64::NEG_INFINITY, f64::INFINITY], Vec::new(), y);
    if let Some((user, next)) = follow(y) {
        match next.op {
            Op::Activation(Activation::Relu) => limits[0] = 0.0,
            Op::Activation(Activation::Clip { min, max }) => {
                limits = [min.map_or(limits[0], f64::from), max.map_or(limits[1], f64::from)];
            }
            _ => {}
        }
        if matches!(next.op, Op::Activation(Activation::Relu | Activation::Clip { .. })) {
            activated.push(user);
            ahead = next.outputs[0];
        }
    }
    let quantized = known.user(ahead).and_then(|(user, _)| Some((user, quantization(known, user)?)));
    let finish = match quantized {
        Some((user, (element, scale, zero))) if limits[0] <= limits[1] => {
            parts.push(last);
            parts.extend(activated);
            last = user;
            // What is limited and then rounded lies between the limits rounded.
            let [low, high] = limits_of(element);
            let limit = |limit: f64| ((limit / scale).round_ties_even() + zero).clamp(low as f64, high as f64) as i64;
            let factor = unit.iter().map(|unit| unit / scale).collect();
            let limits = [zero as i64, limit(limits[0]), limit(limits[1])];
            Finish::Integers { bias, factor, element, limits }
        }
        _ => Finish::Scaled { bias, factor: unit },
    };
    let x_zero = x.zero_value.filter(|_| x.zero != 0.0).map_or(RowZero::None, RowZero::Value);
    Some(Joined { conv, x: x.value, w: w.data, x_zero, w_zero: w.zeros, finish, last, parts })
}
