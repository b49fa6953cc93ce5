//! Products of integers that have their zero points taken away, as QLinearConv, MatMulInteger and their like are read.

use super::{
    Finish, Joined, RowZero,
    floats::quantization,
    is_byte, is_image, is_scale, is_short,
    known::{Known, runs_along},
    limits_of,
    steps::byte,
    swapped,
};
use planforge_graph::ir::{Binary, ElementType, Op, Tensor, Unary, ValueId};

/// An 8-bit value behind a wider one, and what was subtracted from it.
struct Centred {
    value: ValueId,
    zero: Option<ValueId>,
}

fn centred(known: &Known<'_>, id: ValueId) -> Option<Centred> {
    let (_, node) = known.producer(id)?;
    match node.op {
        Op::Cast { to: ElementType::F64 | ElementType::I32 } => {
            let value = node.input(0)?;
            is_byte(known.graph.value(value).element).then_some(Centred { value, zero: None })
        }
        Op::Binary(Binary::Sub) if known.shape(node.input(0)?) == known.shape(id) => {
            let Centred { value, zero: None } = centred(known, node.input(0)?)? else { return None };
            Some(Centred { value, zero: node.input(1) })
        }
        _ => None,
    }
}

fn row_zero(known: &Known<'_>, of: &Centred) -> Option<RowZero> {
    let Some(zero) = of.zero else { return Some(RowZero::None) };
    let element = known.graph.value(of.value).element;
    if let Some(value) = known.scalar(zero) {
        return Some(if value == 0.0 { RowZero::None } else { RowZero::New(byte(element, value)?) });
    }
    let (_, cast) = known.producer(zero)?;
    let from = cast.input(0).filter(|_| matches!(cast.op, Op::Cast { .. }))?;
    let one = known.shape(from)?.iter().product::<usize>() == 1;
    (one && known.graph.value(from).element == element).then_some(RowZero::Value(from))
}

/// Weights as bytes, and their zero points.
struct Stored {
    data: Tensor,
    zeros: Vec<f64>,
}

/// The weights whose columns lie along `axis`: stored as bytes, or as the whole numbers that the importer made of few of
/// them and their zero points.
fn stored(known: &Known<'_>, id: ValueId, axis: usize) -> Option<Stored> {
    if let Some(tensor) = known.graph.constant(id) {
        return bytes_of(tensor, axis);
    }
    let w = centred(known, id)?;
    let data = known.graph.constant(w.value)?.clone();
    let zeros = match w.zero {
        Some(zero) => known.list(zero, data.rank(), axis)?,
        None => Vec::new(),
    };
    Some(Stored { data, zeros })
}

/// Whole numbers as bytes, with a zero point for each index of an axis where signed bytes do not hold them.
fn bytes_of(tensor: &Tensor, axis: usize) -> Option<Stored> {
    let shape = tensor.shape();
    let columns = *shape.get(axis)?;
    let inner: usize = shape[axis + 1..].iter().product();
    let values = tensor.to_f64s();
    if !values.iter().all(|value| value.fract() == 0.0 && (-255.0..=255.0).contains(value)) {
        return None;
    }
    if values.iter().all(|value| (-128.0..=127.0).contains(value)) {
        let bytes: Vec<i8> = values.iter().map(|&value| value as i8).collect();
        return Some(Stored { data: Tensor::from_vec(shape.to_vec(), bytes).ok()?, zeros: Vec::new() });
    }
    let column = |at: usize| at / inner.max(1) % columns.max(1);
    let mut zeros = vec![0f64; columns];
    for (at, &value) in values.iter().enumerate() {
        zeros[column(at)] = zeros[column(at)].max(-value);
    }
    let moved: Vec<f64> = values.iter().enumerate().map(|(at, &value)| value + zeros[column(at)]).collect();
    let fits = moved.iter().all(|value| (0.0..=255.0).contains(value));
    let bytes: Vec<u8> = moved.iter().map(|&value| value as u8).collect();
    fits.then(|| Tensor::from_vec(shape.to_vec(), bytes).ok()).flatten().map(|data| Stored { data, zeros })
}

/// Zero points of columns in the type of the weights.
fn column_zeros(element: ElementType, zeros: &[f64]) -> Option<Option<Tensor>> {
    if zeros.iter().all(|&zero| zero == 0.0) {
        return Some(None);
    }
    let [low, high] = limits_of(element);
    let fine = zeros.iter().all(|&zero| zero.fract() == 0.0 && (low as f64..=high as f64).contains(&zero));
    let bytes = zeros.iter().map(|&zero| zero as i64 as u8).collect::<Vec<u8>>();
    fine.then(|| Tensor::new(element, vec![zeros.len()], bytes.into()).ok()).flatten().map(Some)
}

pub fn join(known: &Known<'_>, at: usize) -> Option<Joined> {
    let graph = known.graph;
    let node = &graph.nodes[at];
    let output = node.outputs[0];
    let wide = graph.value(output).element;
    if !matches!(wide, ElementType::F64 | ElementType::I32) || node.inputs.len() > 2 {
        return None;
    }
    let x = centred(known, node.input(0)?)?;
    let rank = known.shape(output)?.len();
    if matches!(node.op, Op::Conv(_)) && !is_image(rank) {
        return None;
    }
    let (conv, axis, Stored { data, zeros }) = match &node.op {
        Op::Conv(conv) if conv.epilogue.activation.is_none() => {
            (Some(conv.clone()), 1, stored(known, node.input(1)?, 0)?)
        }
        Op::MatMul(product) => {
            let plain = product.epilogue.activation.is_none() && !product.trans_a && product.alpha == 1.0;
            let matrix = known.shape(node.input(1)?)?.len() == 2;
            if !plain || !matrix || known.shape(x.value)?.len() < 2 {
                return None;
            }
            let Stored { data, zeros } = stored(known, node.input(1)?, usize::from(!product.trans_b))?;
            let data = if product.trans_b { swapped(&data)? } else { data };
            (None, rank - 1, Stored { data, zeros })
        }
        _ => return None,
    };
    let depth: usize = if conv.is_some() { data.shape()[1..].iter().product() } else { data.shape()[0] };
    if !is_short(depth) || data.is_empty() {
        return None;
    }
    let w_zero = column_zeros(data.element(), &zeros)?;
    let columns = if conv.is_some() { data.shape()[0] } else { data.shape()[1] };
    let ends = if wide == ElementType::F64 {
        exact(known, at, (rank, axis))?
    } else {
        sums(known, (at, Vec::new()), (rank, axis, columns))
    };
    let x_zero = row_zero(known, &x)?;
    Some(Joined { conv, x: x.value, w: data, x_zero, w_zero, finish: ends.finish, last: ends.last, parts: ends.parts })
}

/// What follows a product, and where that ends.
struct Ends {
    finish: Finish,
    last: usize,
    parts: Vec<usize>,
}

/// What follows exact sums in f64.
fn exact(known: &Known<'_>, at: usize, (rank, axis): (usize, usize)) -> Option<Ends> {
    let graph = known.graph;
    let (mut last, mut parts, mut y) = (at, Vec::new(), graph.nodes[at].outputs[0]);
    let shape = graph.value(y).shape.clone();
    let step = |y: ValueId| known.user(y).filter(|(_, user)| graph.value(user.outputs[0]).shape == shape);
    let mut take = |user: usize, last: &mut usize, y: &mut ValueId| {
        parts.push(*last);
        (*last, *y) = (user, graph.nodes[user].outputs[0]);
    };
    let (mut user, mut next) = step(y)?;
    if next.op == (Op::Cast { to: ElementType::I32 }) {
        take(user, &mut last, &mut y);
        let columns = match graph.value(y).shape.get(axis) {
            Some(planforge_graph::ir::Dim::Static(size)) => usize::try_from(*size).ok()?,
            _ => return None,
        };
        return Some(sums(known, (last, parts), (rank, axis, columns)));
    }
    let mut bias = None;
    if let Some(other) = known.other(next, Binary::Add, y) {
        bias = Some(known.list(other, rank, axis)?);
        take(user, &mut last, &mut y);
        (user, next) = step(y)?;
    }
    let factor = known.list(known.other(next, Binary::Mul, y)?, rank, axis)?;
    if !factor.iter().all(|&factor| is_scale(factor)) {
        return None;
    }
    take(user, &mut last, &mut y);
    (user, next) = step(y)?;
    if next.op == (Op::Cast { to: ElementType::F32 }) {
        take(user, &mut last, &mut y);
        let quantized = step(y).and_then(|(user, _)| Some((user, quantization(known, user)?)));
        let Some((user, (element, scale, zero))) = quantized else {
            return Some(Ends { finish: Finish::Scaled { bias, factor }, last, parts });
        };
        take(user, &mut last, &mut y);
        let factor = factor.iter().map(|factor| factor / scale).collect();
        let [low, high] = limits_of(element);
        let finish = Finish::Integers { bias, factor, element, limits: [zero as i64, low, high] };
        return Some(Ends { finish, last, parts });
    }
    if next.op != Op::Unary(Unary::Round) {
        return None;
    }
    take(user, &mut last, &mut y);
    (user, next) = step(y)?;
    let mut zero = 0.0;
    if let Some(other) = known.other(next, Binary::Add, y) {
        zero = known.scalar(other)?;
        take(user, &mut last, &mut y);
        (user, next) = step(y)?;
    }
    let low = known.scalar(known.other(next, Binary::Max, y)?)?;
    take(user, &mut last, &mut y);
    (user, next) = step(y)?;
    let high = known.scalar(known.other(next, Binary::Min, y)?)?;
    take(user, &mut last, &mut y);
    (user, next) = step(y)?;
    let Op::Cast { to: element } = next.op else { return None };
    let [least, most] = limits_of(element);
    let limits = [zero as i64, low as i64, high as i64];
    if !is_byte(element) || limits != [zero as i64, least, most] || zero.fract() != 0.0 {
        return None;
    }
    take(user, &mut last, &mut y);
    Some(Ends { finish: Finish::Integers { bias, factor, element, limits }, last, parts })
}

/// What follows sums of 32 bits: a scale that may be known late, and a bias.
fn sums(known: &Known<'_>, (last, parts): (usize, Vec<usize>), (rank, axis, columns): (usize, usize, usize)) -> Ends {
    let scaled = scaled(known, last, (rank, axis, columns));
    match scaled {
        Some((finish, chain)) => {
            let mut all = parts;
            all.push(last);
            let (&end, between) = chain.split_last().unwrap_or((&last, &[]));
            all.extend(between);
            Ends { finish, last: end, parts: all }
        }
        None => Ends { finish: Finish::Sums, last, parts },
    }
}

/// `Cast(f32) -> Mul -> Add`, the addition or not.
fn scaled(
    known: &Known<'_>,
    last: usize,
    (rank, axis, columns): (usize, usize, usize),
) -> Option<(Finish, Vec<usize>)> {
    let graph = known.graph;
    let sum = graph.nodes[last].outputs[0];
    let shape = &graph.value(sum).shape;
    let step = |y: ValueId| known.user(y).filter(|(_, user)| graph.value(user.outputs[0]).shape == *shape);
    let (cast_at, cast) = step(sum)?;
    if cast.op != (Op::Cast { to: ElementType::F32 }) {
        return None;
    }
    let wide = cast.outputs[0];
    let (mul_at, mul) = step(wide)?;
    let factor = known.other(mul, Binary::Mul, wide)?;
    let of_factor = known.shape(factor)?;
    let count: usize = of_factor.iter().product();
    if graph.value(factor).element != ElementType::F32
        || !runs_along(&of_factor, rank, axis)
        || (count != 1 && count != columns)
    {
        return None;
    }
    let mut chain = vec![cast_at, mul_at];
    let y = mul.outputs[0];
    let bias = step(y).and_then(|(user, next)| {
        let list = known.list(known.other(next, Binary::Add, y)?, rank, axis)?;
        Some((user, list.into_iter().map(|value| value as f32).collect::<Vec<f32>>()))
    });
    let bias = bias.map(|(user, list)| {
        chain.push(user);
        list
    });
    Some((Finish::Floats { bias, factor }, chain))
}
