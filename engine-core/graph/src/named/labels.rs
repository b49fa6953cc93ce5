//! Categories to numbers, by lists of them.

use super::Entry;
use crate::{
    ir::{ElementType, NamedOp, Tensor},
    reference::{Inputs, OpError, gather::integers, numbers::Numbers},
    shape::{Given, ShapeError, TensorType, attribute, mismatch, require},
};
use std::collections::BTreeMap;

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "lookup", takes_empty: true, infer: lookup_type, run: lookup },
    Entry { name: "categories", takes_empty: true, infer: categories_type, run: categories },
];

/// `[x, keys (K, of the type of x), values (K), default (1, as the values)]`: the value of the first key that equals.
/// `nan`: NaN equals NaN.
fn lookup_type(_: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let (x, keys, values, default) = (given.get(0)?, given.get(1)?, given.get(2)?, given.get(3)?);
    given.same_element(0, 1)?;
    given.same_element(2, 3)?;
    require(keys.rank() == 1 && keys.shape == values.shape, || mismatch("values", &values.shape, &keys.shape))?;
    require(default.shape == [1], || mismatch("default", &default.shape, &[1]))?;
    Ok(vec![TensorType::new(values.element, x.shape.clone())])
}

/// A number as a key: all NaNs are one, and so are both zeros.
fn key_of(value: f64) -> u64 {
    if value.is_nan() { u64::MAX } else { (value + 0.0).to_bits() }
}

fn lookup(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let bits = |tensor: &Tensor| -> Vec<u64> {
        match Numbers::of(tensor) {
            Numbers::Float(values) => values.into_iter().map(key_of).collect(),
            Numbers::Int(values) => values.into_iter().map(|value| value as u64).collect(),
        }
    };
    let (x, values) = (inputs.get(0)?, inputs.get(2)?);
    let is_float = Numbers::of(x).floats().is_some();
    let mut places = BTreeMap::new();
    for (place, key) in bits(inputs.get(1)?).into_iter().enumerate() {
        if !(is_float && key == u64::MAX && !named.flag("nan")) {
            places.entry(key).or_insert(place);
        }
    }
    let size = values.element().bytes();
    let default = inputs.get(3)?.bytes();
    let mut out = Vec::with_capacity(x.len() * size);
    for key in bits(x) {
        match places.get(&key) {
            Some(&place) => out.extend_from_slice(&values.bytes()[place * size..][..size]),
            None => out.extend_from_slice(default),
        }
    }
    Ok(vec![Tensor::new(outputs[0].element, outputs[0].shape.clone(), out.into())?])
}

/// `[x (integers)]` -> f32 with one more axis, which has 1 where x is that one of `categories`; `strict`: every value
/// has to be one of them.
fn categories_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let x = given.integer(0)?;
    let count = named.ints("categories").len();
    require(count > 0, || attribute("categories", count, &x.shape))?;
    Ok(vec![TensorType::new(ElementType::F32, [&x.shape[..], &[count]].concat())])
}

fn categories(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let op = "categories";
    let list = named.ints("categories");
    let places: BTreeMap<i64, usize> = list.iter().copied().zip(0..).collect();
    let mut out = vec![0f32; outputs[0].shape.iter().product()];
    for (value, row) in integers(op, inputs.get(0)?)?.into_iter().zip(out.chunks_mut(list.len())) {
        match places.get(&value) {
            Some(&place) => row[place] = 1.0,
            None if named.flag("strict") => {
                let reason = format!("{value} is none of its categories, and the model allows no other");
                return Err(OpError::Impossible { op, reason });
            }
            None => {}
        }
    }
    Ok(vec![Tensor::from_vec(outputs[0].shape.clone(), out)?])
}
