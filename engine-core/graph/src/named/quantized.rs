//! Products and convolutions of 8-bit integers, with what follows their exact sums: what quantized operators are joined to.

use super::Entry;
use crate::{
    ir::{Conv, ElementType, Epilogue, MatMul, NamedOp, Op, Tensor},
    reference::{Inputs, OpError, contraction, numbers::Numbers},
    shape::{Given, ShapeError, TensorType, attribute, conv_type, matmul_type, mismatch, require},
};

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: PRODUCT, takes_empty: true, infer: infer_type, run },
    Entry { name: CONV, takes_empty: false, infer: infer_type, run },
];

/// `[x (.., M, K), w (K, N), x zero?, w zero?, bias?, factor?]`, x, w and their zero points of 8 bits, the zero point of w
/// one or one for each column.
///
/// The sums of `(x - x zero) (w - w zero)` are exact. The text `to` says what becomes of them, with bias and factor one or
/// one for each column:
///
/// - `i32`: nothing else, without bias or factor.
/// - `u8`, `i8`: `(sum + bias) * factor` in f64, rounded half to even, plus the integer `zero`, limited to `low..=high`.
/// - `f32` with a factor of f64: the same product, rounded once.
/// - `f32` with a factor of f32: `f32(sum) * factor + bias`, each step rounded.
pub const PRODUCT: &str = "integer_product";

/// `[x (N,C,spatial..), w (M,C/group,spatial..), x zero?, w zero?, bias?, factor?]`: the same for a convolution, with the
/// integers `strides`, `pads`, `dilations` and `groups`. Columns are channels of the result; beyond the edges x is its zero
/// point.
pub const CONV: &str = "integer_conv";

/// The longest sums that stay within 32 bits, whatever is multiplied.
pub const DEPTH_MAX: usize = 32_768;

fn is_byte(element: ElementType) -> bool {
    matches!(element, ElementType::U8 | ElementType::I8)
}

/// The convolution that the attributes describe.
pub fn conv_of(named: &NamedOp) -> Option<Conv> {
    Some(Conv {
        strides: named.sizes("strides")?,
        pads: named.sizes("pads")?,
        dilations: named.sizes("dilations")?,
        groups: named.size("groups"),
        epilogue: Epilogue::default(),
    })
}

/// The operator on floats whose sums these are.
fn plain(named: &NamedOp, shape: &[usize]) -> Result<Op, ShapeError> {
    if named.name == PRODUCT {
        return Ok(Op::MatMul(MatMul::default()));
    }
    let conv = conv_of(named).filter(|conv| conv.groups < usize::MAX);
    conv.map(Op::Conv).ok_or_else(|| attribute("strides, pads, dilations, groups", named.ints("groups"), shape))
}

/// Type of the result.
pub fn result_element(named: &NamedOp) -> Option<ElementType> {
    [ElementType::I32, ElementType::U8, ElementType::I8, ElementType::F32]
        .into_iter()
        .find(|element| element.to_string() == named.text("to"))
}

fn infer_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let (x, w) = (given.get(0)?, given.get(1)?);
    for position in [0, 1] {
        let element = given.get(position)?.element;
        require(is_byte(element), || ShapeError::Element { position, element })?;
    }
    let wide = |of: &TensorType| TensorType::new(ElementType::F64, of.shape.clone());
    if named.name == PRODUCT {
        require(x.rank() >= 2 && w.rank() == 2, || mismatch("operands", &x.shape, &w.shape))?;
    }
    let (wide_x, wide_w) = (wide(x), wide(w));
    let operands = [Some(&wide_x), Some(&wide_w)];
    let sums = match plain(named, &x.shape)? {
        Op::Conv(conv) => conv_type(&conv, &Given(&operands))?,
        _ => matmul_type(&MatMul::default(), &Given(&operands))?,
    };
    let sums = &sums[0];
    let columns = if named.name == PRODUCT { w.shape[1] } else { w.shape[0] };
    let to = result_element(named).ok_or_else(|| attribute("to", named.text("to"), &x.shape))?;
    let list = |position: usize, elements: &[ElementType], most: usize| -> Result<(), ShapeError> {
        let Some(list) = given.optional(position) else { return Ok(()) };
        let element = list.element;
        require(elements.contains(&element), || ShapeError::Element { position, element })?;
        let count = list.shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
        require(count == Some(1) || count == Some(most), || mismatch("one for each column", &list.shape, &sums.shape))
    };
    list(2, &[x.element], 1)?;
    list(3, &[w.element], columns)?;
    let factors: &[ElementType] = match to {
        ElementType::I32 => &[],
        ElementType::F32 => &[ElementType::F32, ElementType::F64],
        _ => &[ElementType::F64],
    };
    list(4, factors, columns)?;
    list(5, factors, columns)?;
    if to != ElementType::I32 {
        let factor = given.get(5)?.element;
        if let Some(bias) = given.optional(4) {
            let (first, second) = (bias.element, factor);
            require(first == second, || ShapeError::ElementsDiffer { first, second })?;
        }
    }
    let limits = [named.int("low", 0), named.int("zero", 0), named.int("high", 0)];
    let small = limits.iter().all(|limit| (-32_768..=32_767).contains(limit)) && limits[0] <= limits[2];
    require(small, || attribute("low, zero, high", limits, &x.shape))?;
    Ok(vec![TensorType::new(to, sums.shape.clone())])
}

/// The numbers of a tensor without their zero points, of which there is one or one for each index of an axis.
fn centred(tensor: &Tensor, zero: Option<&Tensor>, inner: usize) -> Result<Tensor, OpError> {
    let zeros = zero.map_or_else(|| vec![0.0], Tensor::to_f64s);
    let moved = tensor.to_f64s().into_iter().enumerate().map(|(at, value)| value - zeros[at / inner % zeros.len()]);
    Ok(Tensor::from_vec(tensor.shape().to_vec(), moved.collect())?)
}

fn run(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (x, w, out) = (inputs.get(0)?, inputs.get(1)?, &outputs[0]);
    let is_product = named.name == PRODUCT;
    // How many elements of w, and of the result, lie side by side in one column.
    let of_weights = if is_product { 1 } else { w.shape()[1..].iter().product::<usize>() };
    let of_sums: usize = if is_product { 1 } else { out.shape[2..].iter().product() };
    let x = centred(x, inputs.optional(2), usize::MAX)?;
    let w = centred(w, inputs.optional(3), of_weights.max(1))?;
    let operands = [Some(&x), Some(&w)];
    let operands = Inputs { op: inputs.op, tensors: &operands };
    let wide = TensorType::new(ElementType::F64, out.shape.clone());
    // Sums of 8-bit products stay far below 2^53.
    let sums = match plain(named, x.shape()) {
        Ok(Op::Conv(conv)) => contraction::conv(&conv, &operands, &wide)?,
        _ => contraction::matmul(&MatMul::default(), &operands, &wide)?,
    };
    let sums = sums.to_f64s();
    let list = |position: usize| inputs.optional(position).map_or_else(|| vec![0.0], Tensor::to_f64s);
    let (bias, factor) = (list(4), list(5));
    let of = |list: &[f64], at: usize| list[at / of_sums.max(1) % list.len()];
    let single = inputs.optional(5).is_some_and(|factor| factor.element() == ElementType::F32);
    let (zero, low, high) = (named.int("zero", 0), named.int("low", 0), named.int("high", 0));
    let finished = sums.into_iter().enumerate().map(|(at, sum)| match out.element {
        ElementType::I32 => f64::from(sum as i64 as i32),
        ElementType::F32 if single => {
            let scaled = sum as i64 as i32 as f32 * of(&factor, at) as f32;
            f64::from(if inputs.optional(4).is_some() { scaled + of(&bias, at) as f32 } else { scaled })
        }
        ElementType::F32 => (sum + of(&bias, at)) * of(&factor, at),
        _ => {
            let scaled = (sum + of(&bias, at)) * of(&factor, at);
            let rounded = if scaled.is_nan() { f64::NEG_INFINITY } else { scaled.round_ties_even() };
            (rounded + zero as f64).clamp(low as f64, high as f64)
        }
    });
    Ok(vec![Numbers::Float(finished.collect()).into_tensor(out)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{infer::infer, interpreter};

    fn op(to: &str) -> NamedOp {
        NamedOp::new(PRODUCT).with_text("to", to).with_int("zero", 10).with_int("low", 5).with_int("high", 255)
    }

    fn apply(op: NamedOp, given: &[Option<&Tensor>]) -> Result<Vec<f64>, ShapeError> {
        let types: Vec<Option<TensorType>> = given.iter().map(|tensor| tensor.map(TensorType::of)).collect();
        let types: Vec<Option<&TensorType>> = types.iter().map(Option::as_ref).collect();
        let op = Op::Named(Box::new(op));
        let out = infer(&op, &types, &[])?;
        Ok(interpreter::run(&op, given, &out).expect("what is inferred runs").remove(0).to_f64s())
    }

    #[test]
    fn sums_are_finished_as_their_type_says() {
        let x = Tensor::from_vec(vec![2, 2], vec![3u8, 4, 1, 255]).expect("four");
        let w = Tensor::from_vec(vec![2, 2], vec![1i8, -2, 5, 6]).expect("four");
        let x_zero = Tensor::scalar(3u8);
        let w_zero = Tensor::from_vec(vec![2], vec![0i8, 1]).expect("two");
        let plain = [Some(&x), Some(&w), Some(&x_zero), Some(&w_zero)];
        // (0 1; -2 252) (1 -3; 5 5)
        assert_eq!(apply(op("i32"), &plain), Ok(vec![5.0, 5.0, 1258.0, 1266.0]));
        let (bias, factor) = (Tensor::scalar(1.0f64), Tensor::from_vec(vec![2], vec![0.25f64, -0.5]).expect("two"));
        let all = [plain.as_slice(), &[Some(&bias), Some(&factor)]].concat();
        // 1.5 is rounded to 2, -3 lies above the lower limit and -633.5 below it.
        assert_eq!(apply(op("u8"), &all), Ok(vec![12.0, 7.0, 255.0, 5.0]));
        assert_eq!(apply(op("f32"), &all), Ok(vec![1.5, -3.0, 314.75, -633.5]));
        let (bias, factor) = (Tensor::scalar(1.0f32), Tensor::scalar(0.1f32));
        let all = [plain.as_slice(), &[Some(&bias), Some(&factor)]].concat();
        assert_eq!(apply(op("f32"), &all).map(|y| y[0]), Ok(f64::from(5.0f32 * 0.1 + 1.0)));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (x, w) = (Tensor::from_vec(vec![1, 2], vec![3u8, 4]), Tensor::from_vec(vec![2, 1], vec![1i8, -2]));
        let (x, w) = (x.expect("two"), w.expect("two"));
        let (double, float) = (Tensor::scalar(1.0f64), Tensor::scalar(1.0f32));
        assert!(apply(op("u8"), &[Some(&x), Some(&w), None, None, None, Some(&double)]).is_ok());
        assert!(apply(op("u8"), &[Some(&x), Some(&w), None, None, None, Some(&float)]).is_err());
        assert!(apply(op("f32"), &[Some(&x), Some(&w), None, None, Some(&double), Some(&float)]).is_err());
        assert!(apply(op("u8"), &[Some(&x), Some(&w)]).is_err());
        assert!(apply(op("i32"), &[Some(&x), Some(&w), None, None, None, Some(&double)]).is_err());
        assert!(apply(op("f64"), &[Some(&x), Some(&w)]).is_err());
        assert!(apply(op("i32"), &[Some(&x), Some(&x)]).is_err());
        assert!(apply(op("i32"), &[Some(&x), Some(&w), Some(&w)]).is_err());
    }
}
