//! Pooling windows.

use super::{OpError, elementwise::max_nan, numbers::Numbers};
use crate::{
    ir::{Pool, PoolKind, Tensor},
    shape::TensorType,
};

/// Where the taps of one window lie along one axis.
struct Span {
    /// Place in the input of the first tap that lies there.
    first: usize,
    /// How many taps lie in the input, and how many within the padded axis.
    inside: usize,
    padded: usize,
}

/// Computed rather than looked for: a kernel may be far larger than the input.
fn span(pool: &Pool, axis: usize, input: usize, position: usize) -> Span {
    let (kernel, step) = (pool.kernel[axis], pool.dilations[axis]);
    let (begin, end) = (pool.pads[axis], pool.pads[pool.kernel.len() + axis]);
    let start = position * pool.strides[axis];
    let before = |place: usize| place.saturating_sub(start).div_ceil(step).min(kernel);
    let skipped = before(begin);
    Span {
        first: (start + skipped * step).saturating_sub(begin),
        inside: before(begin + input) - skipped,
        padded: before(begin + input + end),
    }
}

/// Where the taps of one window lie in a plane, row-major, and how many lie within the padded plane.
fn window(pool: &Pool, spatial: &[usize], out: &[usize], position: usize) -> (Vec<usize>, usize) {
    let (mut taps, mut padded) = (vec![0], 1);
    let mut inner: usize = out.iter().product();
    for (axis, &size) in spatial.iter().enumerate() {
        inner /= out[axis];
        let Span { first, inside, padded: along } = span(pool, axis, size, position / inner % out[axis]);
        let step = pool.dilations[axis];
        taps = taps
            .iter()
            .flat_map(|tap| {
                let from = tap * size + first;
                (0..inside).map(move |index| from + index * step)
            })
            .collect();
        padded *= along;
    }
    (taps, padded)
}

/// What `value` makes of every window: it is given a plane, where the window's taps lie in it, and how many of them
/// lie within the padded plane. Both shapes have batch and channels in front.
pub fn slide<T: Copy + Default>(
    pool: &Pool,
    values: &[T],
    shape: &[usize],
    out: &[usize],
    value: impl Fn(&[T], &[usize], usize) -> T,
) -> Vec<T> {
    let (spatial, out) = (&shape[2..], &out[2..]);
    let plane = spatial.iter().product::<usize>().max(1);
    let positions: usize = out.iter().product();
    let mut result = vec![T::default(); values.len() / plane * positions];
    for position in 0..positions {
        let (taps, padded) = window(pool, spatial, out, position);
        for (plane, result) in values.chunks(plane).zip(result.chunks_mut(positions)) {
            result[position] = value(plane, &taps, padded);
        }
    }
    result
}

/// Images `[n, c, spatial..]`; gives `[n, c, spatial..]`, a window each.
///
/// # Errors
///
/// When the type has no such pooling.
pub fn pool(pool: &Pool, x: &Tensor, out: &TensorType) -> Result<Tensor, OpError> {
    match (Numbers::of(x), pool.kind) {
        (Numbers::Float(values), kind) => {
            let result = slide(pool, &values, x.shape(), &out.shape, |plane, taps, padded| match kind {
                PoolKind::Max => taps.iter().map(|&at| plane[at]).fold(f64::NEG_INFINITY, max_nan),
                PoolKind::Average { count_pad } => {
                    let divisor = if count_pad { padded } else { taps.len() };
                    taps.iter().map(|&at| plane[at]).sum::<f64>() / divisor as f64
                }
            });
            Numbers::Float(result).into_tensor(out)
        }
        (Numbers::Int(values), PoolKind::Max) => {
            // A window that lies in the padding alone has no largest element; import refuses such pads.
            let result = slide(pool, &values, x.shape(), &out.shape, |plane, taps, _| {
                taps.iter().map(|&at| plane[at]).max().unwrap_or(0)
            });
            Numbers::Int(result).into_tensor(out)
        }
        (Numbers::Int(_), PoolKind::Average { .. }) => Err(OpError::Element { op: "pool", element: x.element() }),
    }
}
