//! Attention over 8-bit integers, which quantized models with quantized products of attention are joined to.

use super::Entry;
use crate::{
    ir::{ElementType, NamedOp, Tensor},
    reference::{Inputs, OpError, numbers::Numbers, walk::broadcast_strides},
    shape::{Given, ShapeError, TensorType, attribute, broadcast, mismatch, require},
};
use rayon::prelude::*;

pub(super) const ENTRIES: &[Entry] = &[Entry { name: ATTENTION, takes_empty: false, infer: infer_type, run }];

/// `[q (.., S, D), k (.., T, D), v (.., T, E), mask? (f32, broadcast to .., S, T), factor (one f64)]`, q, k and v of 8 bits
/// with equal leading axes, one or two; with the flag `turned` k is (.., D, T).
///
/// The sums of `(q - zero) (k - zero)` are exact; as f32 they are multiplied by the float `scale`, the mask is added, and
/// softmax makes weights of them. Those are divided by the float `weights`, rounded half to even (none where there is no
/// softmax), and become integers of the type that the text `weights` names, above their zero point. The sums of `(weight - zero) (v - zero)` are exact;
/// the text `to` says what becomes of them: `f32`, the sum times the factor in f64, rounded once; `u8`, `i8`, the same
/// product rounded half to even, plus its zero point, limited to its type. The integers `zeros` are the zero points of
/// queries, keys, values, weights and result.
pub const ATTENTION: &str = "integer_attention";

/// What the attributes say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct How {
    /// Of queries, keys and values.
    pub zeros: [u8; 3],
    pub turned: bool,
    pub scale: f32,
    pub weights: Steps,
    /// `None`: f32.
    pub to: Option<Bytes>,
}

/// 8-bit integers above their zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    pub element: ElementType,
    pub zero: i32,
}

impl Bytes {
    fn of(text: &str, zero: i64) -> Option<Self> {
        let element = [ElementType::U8, ElementType::I8].into_iter().find(|element| element.to_string() == text)?;
        let [low, high] = limits(element);
        let zero = i32::try_from(zero).ok().filter(|zero| (low..=high).contains(zero))?;
        Some(Self { element, zero })
    }

    /// Least and largest of them.
    pub fn limits(self) -> [i32; 2] {
        limits(self.element)
    }

    fn of_rounded(self, rounded: f64) -> f64 {
        let [low, high] = self.limits().map(f64::from);
        let rounded = if rounded.is_nan() { 0.0 } else { rounded };
        (rounded + f64::from(self.zero)).clamp(low, high)
    }
}

/// Softmax weights as integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    pub scale: f32,
    pub bytes: Bytes,
}

fn limits(element: ElementType) -> [i32; 2] {
    if element == ElementType::U8 { [0, 255] } else { [-128, 127] }
}

fn is_byte(element: ElementType) -> bool {
    matches!(element, ElementType::U8 | ElementType::I8)
}

/// The attributes of the operator on `given` types of queries, keys and values.
pub fn how_of(named: &NamedOp, given: [ElementType; 3]) -> Option<How> {
    let &[q, k, v, weights, result] = named.ints("zeros") else { return None };
    let mut zeros = [0; 3];
    for ((zero, element), to) in [q, k, v].into_iter().zip(given).zip(&mut zeros) {
        let [low, high] = limits(element).map(i64::from);
        *to = Some(zero).filter(|zero| (low..=high).contains(zero))? as u8;
    }
    let is_scale = |scale: f32| scale.is_normal();
    let (scale, step) = (named.floats("scale").first().copied()?, named.floats("weights").first().copied()?);
    let to = match named.text("to") {
        "f32" => None,
        text => Some(Bytes::of(text, result)?),
    };
    let weights = Steps { scale: step, bytes: Bytes::of(named.text("weights"), weights)? };
    (is_scale(scale) && is_scale(step) && step > 0.0).then(|| How {
        zeros,
        turned: named.flag("turned"),
        scale,
        weights,
        to,
    })
}

/// Sizes of an attention: leading axes, queries, keys, columns of queries and keys, and of values.
struct Sizes {
    lead: Vec<usize>,
    queries: usize,
    keys: usize,
    depth: usize,
    value_depth: usize,
}

fn sizes(q: &[usize], k: &[usize], v: &[usize], turned: bool) -> Result<Sizes, ShapeError> {
    let rank = q.len();
    require((3..=4).contains(&rank) && k.len() == rank && v.len() == rank, || mismatch("operands", q, k))?;
    let (lead, of) = (&q[..rank - 2], |shape: &[usize]| [shape[rank - 2], shape[rank - 1]]);
    let ([queries, depth], [mut keys, mut own], [values, value_depth]) = (of(q), of(k), of(v));
    if turned {
        (keys, own) = (own, keys);
    }
    require(lead == &k[..rank - 2] && depth == own, || mismatch("queries and keys", q, k))?;
    require(lead == &v[..rank - 2] && keys == values, || mismatch("keys and values", k, v))?;
    Ok(Sizes { lead: lead.to_vec(), queries, keys, depth, value_depth })
}

fn infer_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let operands = [given.get(0)?, given.get(1)?, given.get(2)?];
    for (position, of) in operands.iter().enumerate() {
        require(is_byte(of.element), || ShapeError::Element { position, element: of.element })?;
    }
    let [q, k, v] = operands;
    let how = how_of(named, operands.map(|of| of.element));
    let how = how.ok_or_else(|| attribute("zeros, scale, weights, to", named.ints("zeros"), &q.shape))?;
    let sizes = sizes(&q.shape, &k.shape, &v.shape, how.turned)?;
    if let Some(mask) = given.optional(3) {
        let scores = [&sizes.lead[..], &[sizes.queries, sizes.keys]].concat();
        require(mask.element == ElementType::F32, || ShapeError::Element { position: 3, element: mask.element })?;
        let fits = mask.rank() <= scores.len() && broadcast(&mask.shape, &scores).as_deref() == Some(&scores[..]);
        require(fits, || mismatch("mask and scores", &mask.shape, &scores))?;
    }
    let factor = given.get(4)?;
    require(factor.element == ElementType::F64, || ShapeError::Element { position: 4, element: factor.element })?;
    require(factor.shape.iter().product::<usize>() == 1, || mismatch("one factor", &factor.shape, &q.shape))?;
    let element = how.to.map_or(ElementType::F32, |bytes| bytes.element);
    let shape = [&sizes.lead[..], &[sizes.queries, sizes.value_depth]].concat();
    Ok(vec![TensorType::new(element, shape)])
}

fn run(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (q, k, v, out) = (inputs.get(0)?, inputs.get(1)?, inputs.get(2)?, &outputs[0]);
    let invalid = || OpError::Unknown(named.name.clone());
    let how = how_of(named, [q, k, v].map(Tensor::element)).ok_or_else(invalid)?;
    let sizes = sizes(q.shape(), k.shape(), v.shape(), how.turned).map_err(|_| invalid())?;
    let Sizes { lead, queries, keys, depth, value_depth } = &sizes;
    let (queries, keys, depth, value_depth) = (*queries, *keys, *depth, *value_depth);
    let factor = inputs.get(4)?.to_f64s()[0];
    let scores = [&lead[..], &[queries, keys]].concat();
    let mask = inputs.optional(3).map(|mask| (mask.to_f64s(), broadcast_strides(mask.shape(), &scores)));
    let centred = |tensor: &Tensor, zero: u8| -> Vec<f64> {
        let zero = if tensor.element() == ElementType::U8 { f64::from(zero) } else { f64::from(zero as i8) };
        tensor.to_f64s().into_iter().map(|value| value - zero).collect()
    };
    let [q, k, v] = [(q, how.zeros[0]), (k, how.zeros[1]), (v, how.zeros[2])].map(|(of, zero)| centred(of, zero));
    let mut result = vec![0f64; out.shape.iter().product()];
    result.par_chunks_mut(value_depth.max(1)).enumerate().for_each(|(row, result)| {
        let (item, query) = (row / queries, row % queries);
        let q = &q[row * depth..][..depth];
        let (k, v) = (&k[item * keys * depth..][..keys * depth], &v[item * keys * value_depth..][..keys * value_depth]);
        let score = |key: usize| {
            let of_key = |at: usize| if how.turned { k[at * keys + key] } else { k[key * depth + at] };
            let sum: f64 = q.iter().enumerate().map(|(at, q)| q * of_key(at)).sum();
            let scaled = sum as f32 * how.scale;
            let added = mask.as_ref().map_or(0.0, |(mask, strides)| {
                // The leading axes of this item, the last one first.
                let (mut rest, mut at) = (item, query * strides[lead.len()] as usize);
                for (size, stride) in lead.iter().zip(strides).rev() {
                    (rest, at) = (rest / size, at + rest % size * *stride as usize);
                }
                mask[at + key * strides[lead.len() + 1] as usize]
            });
            f64::from(scaled + added as f32)
        };
        let mut weights: Vec<f64> = (0..keys).map(score).collect();
        let largest = weights.iter().copied().fold(f64::NEG_INFINITY, crate::reference::elementwise::max_nan);
        weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp());
        let sum: f64 = weights.iter().sum();
        let Steps { scale, bytes } = how.weights;
        for weight in &mut weights {
            let rounded = ((*weight / sum) as f32 / scale).round_ties_even();
            *weight = bytes.of_rounded(rounded.into()) - f64::from(bytes.zero);
        }
        for (column, result) in result.iter_mut().enumerate() {
            let sum: f64 = weights.iter().enumerate().map(|(key, weight)| weight * v[key * value_depth + column]).sum();
            *result = match how.to {
                Some(bytes) => bytes.of_rounded((sum * factor).round_ties_even()),
                None => sum * factor,
            };
        }
    });
    Ok(vec![Numbers::Float(result).into_tensor(out)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{infer::infer, interpreter, ir::Op};

    fn op() -> NamedOp {
        let op = NamedOp::new(ATTENTION).with_ints("zeros", &[3, 0, 128, 0, 10]).with_floats("scale", &[0.5]);
        op.with_floats("weights", &[1.0 / 255.0]).with_text("weights", "u8").with_text("to", "u8")
    }

    fn apply(op: NamedOp, given: &[Option<&Tensor>]) -> Result<Vec<f64>, ShapeError> {
        let types: Vec<Option<TensorType>> = given.iter().map(|tensor| tensor.map(TensorType::of)).collect();
        let types: Vec<Option<&TensorType>> = types.iter().map(Option::as_ref).collect();
        let op = Op::Named(Box::new(op));
        let out = infer(&op, &types, &[])?;
        Ok(interpreter::run(&op, given, &out).expect("what is inferred runs").remove(0).to_f64s())
    }

    fn tensor<T: crate::ir::Element>(shape: &[usize], values: Vec<T>) -> Tensor {
        Tensor::from_vec(shape.to_vec(), values).expect("as many as the shape says")
    }

    #[test]
    fn weights_and_sums_are_rounded_as_said() {
        // One query of two numbers, two keys, values of one column.
        let q = tensor(&[1, 1, 2], vec![5u8, 3]);
        let k = tensor(&[1, 2, 2], vec![2i8, 7, 0, -7]);
        let v = tensor(&[1, 2, 1], vec![228u8, 28]);
        let factor = Tensor::scalar(1.0f64 / 255.0);
        let given = [Some(&q), Some(&k), Some(&v), None, Some(&factor)];
        // Scores 4 · 0.5 and 0: weights 0.8808 and 0.1192, which are 225 and 30 of 255. 22,500 - 3,000 by 255 is 76.5.
        assert_eq!(apply(op(), &given), Ok(vec![86.0]));
        assert_eq!(apply(op().with_text("to", "f32"), &given).map(|y| y[0] as f32), Ok(19_500.0 / 255.0));
        let turned = tensor(&[1, 2, 2], vec![2i8, 0, 7, -7]);
        let of_turned = [Some(&q), Some(&turned), Some(&v), None, Some(&factor)];
        assert_eq!(apply(op().with_int("turned", 1), &of_turned), Ok(vec![86.0]));
        // The first key is not there.
        let mask = tensor(&[1, 2], vec![f32::NEG_INFINITY, 0.0]);
        assert_eq!(apply(op(), &[given[0], given[1], given[2], Some(&mask), given[4]]), Ok(vec![0.0]));
        // Neither is, so that there is no weight.
        let mask = tensor(&[1], vec![f32::NEG_INFINITY]);
        assert_eq!(apply(op(), &[given[0], given[1], given[2], Some(&mask), given[4]]), Ok(vec![10.0]));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (q, k) = (tensor(&[1, 1, 2], vec![5u8, 3]), tensor(&[1, 2, 2], vec![2i8, 7, 0, -7]));
        let (v, factor) = (tensor(&[1, 2, 1], vec![228u8, 28]), Tensor::scalar(0.5f64));
        let given = |v: &Tensor, mask: Option<&Tensor>| {
            let given = [Some(&q), Some(&k), Some(v), mask, Some(&factor)];
            let types: Vec<Option<TensorType>> = given.iter().map(|tensor| tensor.map(TensorType::of)).collect();
            let types: Vec<Option<&TensorType>> = types.iter().map(Option::as_ref).collect();
            infer(&Op::Named(Box::new(op())), &types, &[])
        };
        assert!(given(&v, None).is_ok());
        assert!(given(&tensor(&[1, 3, 1], vec![1u8, 2, 3]), None).is_err());
        assert!(given(&tensor(&[1, 2, 1], vec![1.0f32, 2.0]), None).is_err());
        assert!(given(&v, Some(&tensor(&[3], vec![0.0f32; 3]))).is_err());
        let elements = [ElementType::U8, ElementType::I8, ElementType::U8];
        assert!(how_of(&op(), elements).is_some());
        assert!(how_of(&op().with_ints("zeros", &[3, 128, 128, 0, 10]), elements).is_none());
        assert!(how_of(&op().with_floats("weights", &[0.0]), elements).is_none());
        assert!(how_of(&op().with_text("to", "i32"), elements).is_none());
    }
}
