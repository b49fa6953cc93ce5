//! Types of convolutions and matrix products, which joined operators ask for, too.

use super::{Given, ShapeError, TensorType, attribute, broadcast, mismatch, require, window_outputs};
use crate::ir::{Conv, ElementType, MatMul};

pub(crate) fn conv_type(conv: &Conv, given: &Given<'_>) -> Result<Vec<TensorType>, ShapeError> {
    given.float(0)?;
    let x = given.image(0, 1)?;
    given.same_element(0, 1)?;
    let w = given.get(1)?;
    let spatial = x.rank() - 2;
    require(w.rank() == x.rank(), || mismatch("weights", &w.shape, &x.shape))?;
    let fits =
        conv.groups > 0 && w.shape[1].checked_mul(conv.groups) == Some(x.shape[1]) && w.shape[0] % conv.groups == 0;
    require(fits, || mismatch("channels of weights and input", &w.shape, &x.shape))?;
    let lengths = [conv.strides.len(), conv.dilations.len(), conv.pads.len()];
    require(lengths == [spatial, spatial, 2 * spatial], || attribute("strides, dilations, pads", lengths, &x.shape))?;
    require(!conv.strides.contains(&0), || attribute("strides", &conv.strides, &x.shape))?;
    require(!conv.dilations.contains(&0), || attribute("dilations", &conv.dilations, &x.shape))?;
    let sizes = window_outputs(&x.shape[2..], &w.shape[2..], &conv.strides, &conv.pads, &conv.dilations, false)
        .ok_or_else(|| mismatch("kernel and padded input", &w.shape, &x.shape))?;
    let out = TensorType::new(x.element, [&[x.shape[0], w.shape[0]], sizes.as_slice()].concat());
    given.optional_is(2, "bias", &TensorType::new(x.element, [w.shape[0]]))?;
    given.optional_is(3, "residual", &out)?;
    Ok(vec![out])
}

pub(crate) fn matmul_type(product: &MatMul, given: &Given<'_>) -> Result<Vec<TensorType>, ShapeError> {
    let (a, b) = (given.get(0)?, given.get(1)?);
    given.same_element(0, 1)?;
    require(a.element != ElementType::Bool, || ShapeError::Element { position: 0, element: a.element })?;
    require(a.rank() > 0 && b.rank() > 0, || mismatch("operands", &a.shape, &b.shape))?;
    let matrix = |shape: &[usize], swapped: bool, vector: [usize; 2]| match shape {
        [.., rows, columns] if swapped => [*columns, *rows],
        [.., rows, columns] => [*rows, *columns],
        _ => vector,
    };
    let [m, k] = matrix(&a.shape, product.trans_a, [1, a.shape[0]]);
    let [k_right, n] = matrix(&b.shape, product.trans_b, [b.shape[0], 1]);
    require(k == k_right, || mismatch("inner dimensions", &a.shape, &b.shape))?;
    let lead = |shape: &[usize]| shape[..shape.len().saturating_sub(2)].to_vec();
    let mut out = broadcast(&lead(&a.shape), &lead(&b.shape))
        .ok_or_else(|| ShapeError::Broadcast { first: a.shape.clone(), second: b.shape.clone() })?;
    if a.rank() > 1 {
        out.push(m);
    }
    if b.rank() > 1 {
        out.push(n);
    }
    let out = TensorType::new(a.element, out);
    given.optional_is(2, "bias", &TensorType::new(a.element, [n]))?;
    given.optional_is(3, "residual", &out)?;
    Ok(vec![out])
}
