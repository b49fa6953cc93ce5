//! Sums of products over named axes.

use super::Entry;
use crate::{
    ir::{NamedOp, Tensor},
    reference::{Inputs, OpError, numbers::Numbers, walk::strides},
    shape::{Given, ShapeError, TensorType, attribute, mismatch, require},
};

/// Most products one operator may sum: these are plain loops.
const MAX_PRODUCTS: usize = 1 << 34;

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "einsum", takes_empty: false, infer: einsum_type, run: einsum }];

/// Labels of every operand's axes, and of the result's, from `labels` (all in a row) and `ranks` (the result's last).
fn labels(named: &NamedOp) -> Option<Vec<Vec<usize>>> {
    let mut all = named.sizes("labels")?.into_iter();
    let lists: Vec<Vec<usize>> =
        named.sizes("ranks")?.into_iter().map(|rank| all.by_ref().take(rank).collect()).collect();
    all.next().is_none().then_some(lists)
}

/// Size of each label, by number.
fn sizes(lists: &[Vec<usize>], shapes: &[&[usize]]) -> Option<Vec<usize>> {
    let count = lists.iter().flatten().max().map_or(0, |&last| last + 1);
    if count > 64 {
        return None;
    }
    let mut sizes = vec![1usize; count];
    for (list, shape) in lists.iter().zip(shapes) {
        for (&label, &size) in list.iter().zip(*shape) {
            if size != 1 && sizes[label] != 1 && sizes[label] != size {
                return None;
            }
            sizes[label] = sizes[label].max(size);
        }
    }
    Some(sizes)
}

fn einsum_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let first = given.get(0)?;
    let wrong = || attribute("equation", (named.ints("labels"), named.ints("ranks")), &first.shape);
    let lists = labels(named).ok_or_else(wrong)?;
    let (result, operands) = lists.split_last().ok_or_else(wrong)?;
    require(operands.len() == given.0.len(), wrong)?;
    let mut shapes = Vec::new();
    for (position, list) in operands.iter().enumerate() {
        given.same_element(0, position)?;
        let shape = given.get(position)?.shape.as_slice();
        require(shape.len() == list.len(), || mismatch("operand", shape, &first.shape))?;
        shapes.push(shape);
    }
    let sizes = sizes(operands, &shapes).ok_or_else(wrong)?;
    let mut sorted = result.clone();
    sorted.sort_unstable();
    sorted.dedup();
    require(sorted.len() == result.len() && sorted.iter().all(|&label| label < sizes.len()), wrong)?;
    let products = sizes.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
    require(products.is_some_and(|count| count <= MAX_PRODUCTS), wrong)?;
    Ok(vec![TensorType::new(first.element, result.iter().map(|&label| sizes[label]).collect::<Vec<_>>())])
}

/// Visits every index of `sizes`, with the offset of each operand.
fn visit(sizes: &[usize], strides: &[Vec<isize>], offsets: &mut [isize], each: &mut dyn FnMut(&[isize])) {
    let Some((&size, inner)) = sizes.split_first() else { return each(offsets) };
    let axis = strides[0].len() - sizes.len();
    for _ in 0..size {
        visit(inner, strides, offsets, each);
        offsets.iter_mut().zip(strides).for_each(|(offset, strides)| *offset += strides[axis]);
    }
    offsets.iter_mut().zip(strides).for_each(|(offset, strides)| *offset -= strides[axis] * size as isize);
}

fn einsum(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (tensors, out) = (inputs.all()?, &outputs[0]);
    let lists = labels(named).unwrap_or_default();
    let (Some((result, operands)), Some(first)) = (lists.split_last(), tensors.first()) else { return Ok(Vec::new()) };
    let shapes: Vec<&[usize]> = tensors.iter().map(|tensor| tensor.shape()).collect();
    let sizes = sizes(operands, &shapes).unwrap_or_default();
    // The step each label makes in an operand; a label that stands twice walks the diagonal.
    let steps = |list: &[usize], shape: &[usize]| {
        let own = strides(shape);
        let mut steps = vec![0isize; sizes.len()];
        for ((&label, &size), step) in list.iter().zip(shape).zip(own) {
            steps[label] += if size == 1 { 0 } else { step };
        }
        steps
    };
    let mut all: Vec<Vec<isize>> = operands.iter().zip(&shapes).map(|(list, shape)| steps(list, shape)).collect();
    all.push(steps(result, &out.shape));
    let mut offsets = vec![0isize; all.len()];
    let last = all.len() - 1;
    let count: usize = out.shape.iter().product();
    let numbers: Vec<Numbers> = tensors.iter().map(|tensor| Numbers::of(tensor)).collect();
    let sums = match Numbers::of(first) {
        Numbers::Float(_) => {
            let values: Vec<&[f64]> = numbers.iter().filter_map(Numbers::floats).collect();
            let mut sums = vec![0f64; count];
            visit(&sizes, &all, &mut offsets, &mut |at| {
                sums[at[last] as usize] +=
                    values.iter().zip(at).map(|(values, &at)| values[at as usize]).product::<f64>();
            });
            Numbers::Float(sums)
        }
        Numbers::Int(_) => {
            let values: Vec<&[i128]> = numbers.iter().filter_map(Numbers::ints).collect();
            let mut sums = vec![0i128; count];
            visit(&sizes, &all, &mut offsets, &mut |at| {
                let factors = values.iter().zip(at).map(|(values, &at)| values[at as usize]);
                let sum = &mut sums[at[last] as usize];
                *sum = sum.wrapping_add(factors.fold(1, i128::wrapping_mul));
            });
            Numbers::Int(sums)
        }
    };
    Ok(vec![sums.into_tensor(out)?])
}
