//! Reordering that follows from data.

use super::Entry;
use crate::{
    ir::{NamedOp, Tensor},
    reference::{Inputs, OpError, gather::integers, movement::Mover, walk::strides},
    shape::{Given, ShapeError, TensorType, attribute, mismatch, require},
};

pub(super) const ENTRIES: &[Entry] =
    &[Entry { name: "reverse_sequence", takes_empty: false, infer: reverse_type, run: reverse }];

/// `[x, lengths (size of the batch axis)]`: the first `length` steps of each sequence turned around.
fn reverse_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let (time, batch) = (named.size("time"), named.size("batch"));
    given.axis(time, 0)?;
    let (x, lengths) = (given.axis(batch, 0)?, given.integer(1)?);
    require(time != batch, || attribute("time_axis", time, &x.shape))?;
    require(lengths.shape == [x.shape[batch]], || mismatch("lengths", &lengths.shape, &x.shape))?;
    Ok(vec![x.clone()])
}

fn reverse(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let x = inputs.get(0)?;
    let (time, batch) = (named.size("time"), named.size("batch"));
    let own = strides(x.shape());
    let size = x.shape()[time];
    let lengths = integers("reverse_sequence", inputs.get(1)?)?;
    if let Some(&index) = lengths.iter().find(|&&length| !(0..=size as i64).contains(&length)) {
        return Err(OpError::Index { op: "reverse_sequence", index, size });
    }
    let mut mover = Mover::new(x, &outputs[0]);
    for offset in 0..x.len() {
        let at = |axis: usize| offset / own[axis] as usize % x.shape()[axis];
        let (step, length) = (at(time), lengths[at(batch)] as usize);
        let source = if step < length { length - 1 - step } else { step };
        mover.take(offset - step * own[time] as usize + source * own[time] as usize, 1);
    }
    Ok(vec![mover.finish(&outputs[0])?])
}
