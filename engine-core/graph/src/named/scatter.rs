//! Scattering updates into a copy of the data.

use super::Entry;
use crate::{
    ir::{ElementType, NamedOp, Tensor},
    reference::{
        Inputs, OpError,
        elementwise::{max_nan, min_nan},
        gather::{integers, resolve},
        numbers::Numbers,
        walk::{strides, walk},
    },
    shape::{Given, ShapeError, TensorType, attribute, mismatch, require},
};

/// How an update meets what is there: `reduction` is one of these.
pub const REDUCTIONS: [&str; 5] = ["none", "add", "mul", "max", "min"];

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "scatter_elements", takes_empty: true, infer: elements_type, run: elements },
    Entry { name: "scatter_nd", takes_empty: true, infer: nd_type, run: nd },
];

fn common(named: &NamedOp, given: &Given<'_>) -> Result<(), ShapeError> {
    let x = given.get(0)?;
    given.integer(1)?;
    given.same_element(0, 2)?;
    let reduction = named.text("reduction");
    require(REDUCTIONS.contains(&reduction), || attribute("reduction", reduction, &x.shape))?;
    let numbers = reduction == "none" || x.element != ElementType::Bool;
    require(numbers, || ShapeError::Element { position: 0, element: x.element })
}

/// `[data, indices, updates (as the indices)]`, along `axis`.
fn elements_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    common(named, given)?;
    let axis = named.size("axis");
    let (x, indices, updates) = (given.axis(axis, 0)?, given.get(1)?, given.get(2)?);
    require(indices.shape == updates.shape, || mismatch("updates", &updates.shape, &indices.shape))?;
    let fits = indices.rank() == x.rank() && (0..x.rank()).all(|at| at == axis || indices.shape[at] <= x.shape[at]);
    require(fits, || mismatch("indices", &indices.shape, &x.shape))?;
    Ok(vec![x.clone()])
}

/// `[data, indices (.., depth), updates (.., what is left of data)]`.
fn nd_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    common(named, given)?;
    let (x, indices, updates) = (given.get(0)?, given.get(1)?, given.get(2)?);
    let wrong = || mismatch("indices", &indices.shape, &x.shape);
    let [lead @ .., depth] = indices.shape.as_slice() else { return Err(wrong()) };
    require(*depth <= x.rank(), wrong)?;
    let fits = updates.shape == [lead, &x.shape[*depth..]].concat();
    require(fits, || mismatch("updates", &updates.shape, &indices.shape))?;
    Ok(vec![x.clone()])
}

/// Puts update `i` where `places[i]` says, in order.
fn put(named: &NamedOp, x: &Tensor, updates: &Tensor, places: &[usize], out: &TensorType) -> Result<Tensor, OpError> {
    fn each<T: Copy>(values: &mut [T], updates: &[T], places: &[usize], meet: impl Fn(T, T) -> T) {
        for (&place, &update) in places.iter().zip(updates) {
            values[place] = meet(values[place], update);
        }
    }
    let reduction = named.text("reduction");
    match (Numbers::of(x), Numbers::of(updates)) {
        (Numbers::Float(mut values), Numbers::Float(updates)) => {
            each(&mut values, &updates, places, |old, new| match reduction {
                "add" => old + new,
                "mul" => old * new,
                "max" => max_nan(old, new),
                "min" => min_nan(old, new),
                _ => new,
            });
            Numbers::Float(values).into_tensor(out)
        }
        (Numbers::Int(mut values), Numbers::Int(updates)) => {
            each(&mut values, &updates, places, |old, new| match reduction {
                "add" => old.wrapping_add(new),
                "mul" => old.wrapping_mul(new),
                "max" => old.max(new),
                "min" => old.min(new),
                _ => new,
            });
            Numbers::Int(values).into_tensor(out)
        }
        _ => Err(OpError::Element { op: "scatter", element: updates.element() }),
    }
}

fn elements(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (x, indices, updates) = (inputs.get(0)?, inputs.get(1)?, inputs.get(2)?);
    let axis = named.size("axis");
    let own = strides(x.shape());
    let mut along = own.clone();
    along[axis] = 0;
    let mut offsets = Vec::with_capacity(indices.len());
    walk(indices.shape(), [&along], |[offset]| offsets.push(offset as usize));
    let places = offsets
        .into_iter()
        .zip(integers("scatter_elements", indices)?)
        .map(|(offset, index)| Ok(offset + resolve("scatter_elements", index, x.shape()[axis])? * own[axis] as usize));
    let places = places.collect::<Result<Vec<_>, OpError>>()?;
    Ok(vec![put(named, x, updates, &places, &outputs[0])?])
}

fn nd(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (x, indices, updates) = (inputs.get(0)?, inputs.get(1)?, inputs.get(2)?);
    let depth = indices.shape().last().copied().unwrap_or(0);
    let own = strides(x.shape());
    let run: usize = x.shape()[depth..].iter().product();
    let indices_list = integers("scatter_nd", indices)?;
    let count = indices.shape()[..indices.rank() - 1].iter().product::<usize>();
    let mut places = Vec::with_capacity(count * run);
    for at in 0..count {
        let mut place = 0;
        for axis in 0..depth {
            let index = indices_list[at * depth + axis];
            place += resolve("scatter_nd", index, x.shape()[axis])? * own[axis] as usize;
        }
        places.extend(place..place + run);
    }
    Ok(vec![put(named, x, updates, &places, &outputs[0])?])
}
