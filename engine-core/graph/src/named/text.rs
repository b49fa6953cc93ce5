//! Counting of n-grams.

use super::Entry;
use crate::reference::{Inputs, OpError};
use crate::{
    ir::{ElementType, NamedOp, Tensor},
    shape::{Given, ShapeError, TensorType, attribute, mismatch, require},
};
use std::collections::BTreeMap;

pub(super) const ENTRIES: &[Entry] = &[Entry { name: "tf_idf", takes_empty: true, infer: tf_idf_type, run: tf_idf }];

/// `[x (C) or (N,C), integers]` -> counts of the pool's n-grams, f32, at the places `ngram_indexes` names.
fn tf_idf_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let x = given.integer(0)?;
    require(matches!(x.rank(), 1 | 2), || given.rank_error(0, "1 or 2 axes are needed".into()))?;
    let (counts, places) = (named.ints("ngram_counts"), named.ints("ngram_indexes"));
    let pool = named.ints("pool");
    let ordered = counts.windows(2).all(|pair| pair[0] <= pair[1]) && counts.first().is_none_or(|first| *first >= 0);
    let inside = counts.last().is_none_or(|&last| last <= pool.len() as i64);
    require(ordered && inside, || attribute("ngram_counts", counts, &x.shape))?;
    let (least, most, skip) = (named.int("min", 1), named.int("max", 1), named.int("skip", 0));
    let lengths = 1 <= least && least <= most && most <= counts.len() as i64 && (0..=1 << 20).contains(&skip);
    require(lengths, || attribute("max_gram_length", [least, most, skip], &x.shape))?;
    let width = places.iter().copied().max().unwrap_or(-1);
    let width = width.checked_add(1).and_then(|width| usize::try_from(width).ok());
    let width = width.filter(|&width| width <= 1 << 24 && places.iter().all(|&place| place >= 0));
    let width = width.ok_or_else(|| attribute("ngram_indexes", places, &x.shape))?;
    let weights = named.floats("weights");
    require(weights.is_empty() || weights.len() == places.len(), || {
        mismatch("weights", &[weights.len()], &[places.len()])
    })?;
    let out = if x.rank() == 1 { vec![width] } else { vec![x.shape[0], width] };
    Ok(vec![TensorType::new(ElementType::F32, out)])
}

/// The pool cut into its n-grams, with the number of each.
fn grams(named: &NamedOp) -> BTreeMap<&[i64], usize> {
    let (counts, pool) = (named.ints("ngram_counts"), named.ints("pool"));
    let mut grams = BTreeMap::new();
    let mut number = 0;
    for (index, &begin) in counts.iter().enumerate() {
        let end = counts.get(index + 1).map_or(pool.len(), |&end| end as usize);
        for gram in pool[begin as usize..end].chunks_exact(index + 1) {
            grams.insert(gram, number);
            number += 1;
        }
    }
    grams
}

fn tf_idf(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (x, out) = (inputs.get(0)?, &outputs[0]);
    let values = x.to_i64s().ok_or(OpError::Element { op: "tf_idf", element: x.element() })?;
    let length = x.shape().last().copied().unwrap_or(0);
    let width = out.shape.last().copied().unwrap_or(0);
    let rows = out.shape.iter().product::<usize>() / width.max(1);
    let grams = grams(named);
    let (places, weights) = (named.ints("ngram_indexes"), named.floats("weights"));
    let (least, most) = (named.size("min"), named.size("max"));
    let mut result = vec![0f32; rows * width];
    for (row, counts) in result.chunks_mut(width.max(1)).enumerate() {
        let words = &values[row * length..][..length];
        for size in least..=most {
            // Skipping words does not matter to single ones.
            let skips = if size == 1 { 1 } else { named.size("skip") + 1 };
            for step in 1..=skips.min(length) {
                for start in 0..length {
                    let picked: Vec<i64> = (0..size).map_while(|at| words.get(start + at * step).copied()).collect();
                    if picked.len() < size {
                        break;
                    }
                    if let Some(&place) = grams.get(picked.as_slice()).and_then(|&number| places.get(number)) {
                        counts[place as usize] += 1.0;
                    }
                }
            }
        }
        for (&place, number) in places.iter().zip(0..) {
            let count = counts[place as usize];
            let weight = weights.get(number).copied().unwrap_or(1.0);
            counts[place as usize] = match named.text("mode") {
                "IDF" if count > 0.0 => weight,
                "IDF" => 0.0,
                "TFIDF" => count * weight,
                _ => count,
            };
        }
    }
    Ok(vec![Tensor::from_vec(out.shape.clone(), result)?])
}
