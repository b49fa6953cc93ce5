//! Pooling windows.

use super::{OpError, elementwise::max_nan, numbers::Numbers, walk::strides};
use crate::{
    ir::{Pool, PoolKind, Tensor},
    shape::TensorType,
};

/// Input positions of one window along one axis, and how many of its taps lie within the padded axis.
struct Window {
    inside: Vec<usize>,
    padded: usize,
}

fn windows(pool: &Pool, axis: usize, input: usize, out: usize) -> Vec<Window> {
    let rank = pool.kernel.len();
    let (begin, end) = (pool.pads[axis], pool.pads[rank + axis]);
    (0..out)
        .map(|position| {
            let taps = (0..pool.kernel[axis])
                .map(|tap| position * pool.strides[axis] + tap * pool.dilations[axis])
                .filter(|&at| at < begin + input + end);
            let taps: Vec<usize> = taps.collect();
            let inside = taps.iter().filter_map(|at| at.checked_sub(begin)).filter(|&at| at < input).collect();
            Window { inside, padded: taps.len() }
        })
        .collect()
}

pub fn pool(pool: &Pool, x: &Tensor, out: &TensorType) -> Result<Tensor, OpError> {
    let (spatial, out_spatial) = (&x.shape()[2..], &out.shape[2..]);
    let rank = spatial.len();
    let plane: usize = spatial.iter().product();
    let own = strides(spatial);
    let windows: Vec<Vec<Window>> =
        (0..rank).map(|axis| windows(pool, axis, spatial[axis], out_spatial[axis])).collect();
    // Offsets of every window in a plane, and its divisor; the same for every plane.
    let mut places: Vec<(Vec<usize>, usize)> = vec![(vec![0], 1)];
    for axis in 0..rank {
        places = places
            .iter()
            .flat_map(|(offsets, divisor)| windows[axis].iter().map(move |window| (offsets, divisor, window)))
            .map(|(offsets, divisor, window)| {
                let stride = own[axis] as usize;
                let offsets = offsets
                    .iter()
                    .flat_map(|offset| window.inside.iter().map(move |at| offset + at * stride))
                    .collect();
                (offsets, divisor * window.padded)
            })
            .collect();
    }
    let planes = x.len() / plane.max(1);
    match (Numbers::of(x), pool.kind) {
        (Numbers::Float(values), kind) => {
            let mut result = Vec::with_capacity(planes * places.len());
            for plane in values.chunks(plane) {
                result.extend(places.iter().map(|(offsets, padded)| match kind {
                    PoolKind::Max => offsets.iter().map(|&at| plane[at]).fold(f64::NEG_INFINITY, max_nan),
                    PoolKind::Average { count_pad } => {
                        let divisor = if count_pad { *padded } else { offsets.len() };
                        offsets.iter().map(|&at| plane[at]).sum::<f64>() / divisor as f64
                    }
                }));
            }
            Numbers::Float(result).into_tensor(out)
        }
        (Numbers::Int(values), PoolKind::Max) => {
            // A window that lies in the padding alone has no largest element; import refuses such pads.
            let of = |plane: &[i128], offsets: &[usize]| offsets.iter().map(|&at| plane[at]).max().unwrap_or(0);
            let result = values
                .chunks(plane)
                .flat_map(|plane| places.iter().map(|(offsets, _)| of(plane, offsets)).collect::<Vec<_>>());
            Numbers::Int(result.collect()).into_tensor(out)
        }
        (Numbers::Int(_), PoolKind::Average { .. }) => Err(OpError::Element { op: "pool", element: x.element() }),
    }
}
