//! Sliding windows apart from the common poolings and convolutions.

use super::Entry;
use crate::{
    ir::{ElementType, NamedOp, Pool, PoolKind, Tensor},
    reference::{
        Inputs, OpError,
        numbers::{Numbers, floats},
        pool::slide,
    },
    shape::{Given, ShapeError, TensorType, attribute, mismatch, require, taps_are_few, wanted_shape, window_outputs},
};

pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "col2im", takes_empty: false, infer: col2im_type, run: col2im },
    Entry { name: "lp_pool", takes_empty: false, infer: lp_pool_type, run: lp_pool },
    Entry { name: "max_places", takes_empty: false, infer: max_places_type, run: max_places },
];

/// The sizes of a sliding window, from attributes.
struct Window {
    kernel: Vec<usize>,
    strides: Vec<usize>,
    pads: Vec<usize>,
    dilations: Vec<usize>,
}

impl Window {
    /// Reads and checks them; there are `rank` spatial axes.
    fn of(named: &NamedOp, rank: usize) -> Result<Self, ShapeError> {
        let list = |name: &'static str, count: usize, least: usize| {
            let sizes = named.sizes(name).filter(|sizes| sizes.len() == count);
            sizes
                .filter(|sizes| sizes.iter().all(|&size| (least..=1 << 31).contains(&size)))
                .ok_or_else(|| attribute(name, named.ints(name), &[rank]))
        };
        Ok(Self {
            kernel: list("kernel", rank, 1)?,
            strides: list("strides", rank, 1)?,
            pads: list("pads", 2 * rank, 0)?,
            dilations: list("dilations", rank, 1)?,
        })
    }

    /// What `of` has accepted.
    fn again(named: &NamedOp) -> Self {
        let list = |name: &str| named.sizes(name).unwrap_or_default();
        Self { kernel: list("kernel"), strides: list("strides"), pads: list("pads"), dilations: list("dilations") }
    }

    /// How many positions there are along each axis of an image.
    fn outputs(&self, image: &[usize]) -> Option<Vec<usize>> {
        window_outputs(image, &self.kernel, &self.strides, &self.pads, &self.dilations, false)
    }

    /// Where tap `tap` of the window at `position` lies in an image, row-major; `None` in the padding.
    fn place(&self, image: &[usize], position: &[usize], tap: &[usize]) -> Option<usize> {
        let mut place = 0;
        for axis in 0..image.len() {
            let at = position[axis] * self.strides[axis] + tap[axis] * self.dilations[axis];
            let at = at.checked_sub(self.pads[axis]).filter(|&at| at < image[axis])?;
            place = place * image[axis] + at;
        }
        Some(place)
    }
}

/// Counts through every index of `shape` in row-major order.
fn each_index(shape: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut index = vec![0usize; shape.len()];
    for _ in 0..shape.iter().product() {
        visit(&index);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// `[x (N, C * window, positions)]` -> (N,C,image..): columns added back into the image they were cut from.
fn col2im_type(named: &NamedOp, given: &Given<'_>, wanted: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let (x, out) = (given.float(0)?, wanted_shape(wanted, 0)?);
    let [batch, columns, positions] = x.shape[..] else {
        return Err(given.rank_error(0, "3 axes are needed".into()));
    };
    require(out.len() > 2, || mismatch("image", out, &x.shape))?;
    let window = Window::of(named, out.len() - 2)?;
    let taps = window.kernel.iter().try_fold(1usize, |taps, &size| taps.checked_mul(size));
    let found = window.outputs(&out[2..]);
    let found = found.and_then(|sizes| sizes.iter().try_fold(1usize, |count, &size| count.checked_mul(size)));
    let fits = out[0] == batch && taps.and_then(|taps| taps.checked_mul(out[1])) == Some(columns);
    require(fits && found == Some(positions), || mismatch("columns", &x.shape, out))?;
    Ok(vec![TensorType::new(x.element, out)])
}

fn col2im(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (x, out) = (inputs.get(0)?, &outputs[0]);
    let window = Window::again(named);
    let image = &out.shape[2..];
    let steps = window.outputs(image).unwrap_or_default();
    let plane: usize = image.iter().product();
    let x = floats("col2im", x)?;
    let mut result = vec![0f64; out.shape.iter().product()];
    let mut rest = x.iter();
    for plane in result.chunks_mut(plane.max(1)) {
        each_index(&window.kernel, |tap| {
            each_index(&steps, |position| {
                let value = rest.next().copied().unwrap_or(0.0);
                if let Some(place) = window.place(image, position, tap) {
                    plane[place] += value;
                }
            });
        });
    }
    Ok(vec![Numbers::Float(result).into_tensor(out)?])
}

/// What pools `[x (N,C,spatial..)]` may give: a window's kernel, strides, pads and dilations are attributes.
fn pooled_shape<'a>(named: &NamedOp, given: &Given<'_>, wanted: &'a [Vec<usize>]) -> Result<&'a [usize], ShapeError> {
    given.float(0)?;
    let (x, out) = (given.image(0, 1)?, wanted_shape(wanted, 0)?);
    let window = Window::of(named, x.rank() - 2)?;
    let sizes =
        |ceil| window_outputs(&x.shape[2..], &window.kernel, &window.strides, &window.pads, &window.dilations, ceil);
    let fits = out.len() == x.rank()
        && out[..2] == x.shape[..2]
        && [sizes(false), sizes(true)].iter().flatten().any(|sizes| *sizes == out[2..]);
    require(fits, || mismatch("window and padded input", &window.kernel, &x.shape))?;
    require(taps_are_few(&window.kernel, out), || attribute("kernel", &window.kernel, &x.shape))?;
    Ok(out)
}

/// `[x (N,C,spatial..)]`: the p-th root of the sum of p-th powers in each window; padding adds nothing.
fn lp_pool_type(named: &NamedOp, given: &Given<'_>, wanted: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let (x, out) = (given.get(0)?, pooled_shape(named, given, wanted)?);
    require((1..=64).contains(&named.int("p", 2)), || attribute("p", named.int("p", 2), &x.shape))?;
    Ok(vec![TensorType::new(x.element, out)])
}

/// `[x (N,C,spatial..)]` -> i64: where in the whole tensor the largest element of each window lies, the first of equal
/// ones; with `column_major` the first spatial axis counts fastest.
fn max_places_type(named: &NamedOp, given: &Given<'_>, wanted: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    Ok(vec![TensorType::new(ElementType::I64, pooled_shape(named, given, wanted)?)])
}

fn max_places(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (x, out) = (inputs.get(0)?, &outputs[0]);
    let Window { kernel, strides, pads, dilations } = Window::again(named);
    let pool = Pool { kind: PoolKind::Max, kernel, strides, pads, dilations };
    let values = floats("max_places", x)?;
    let image = &x.shape()[2..];
    let plane: usize = image.iter().product();
    // A place in a plane, counted the other way around.
    let turned = |place: usize| {
        let (mut rest, mut inner, mut turned) = (place, plane, 0);
        let mut step = 1;
        for &size in image {
            inner /= size;
            turned += rest / inner * step;
            rest %= inner;
            step *= size;
        }
        turned
    };
    let places = slide(&pool, &values, x.shape(), &out.shape, |plane, taps, _| {
        let better = |best: usize, at: usize| {
            if plane[at] > plane[best] || (plane[at].is_nan() && !plane[best].is_nan()) { at } else { best }
        };
        let best = taps.iter().copied().reduce(better).unwrap_or(0);
        // Places in a plane are small numbers.
        best as f64
    });
    let positions = out.shape[2..].iter().product::<usize>().max(1);
    let column_major = named.flag("column_major");
    let places = places.into_iter().enumerate().map(|(at, place)| {
        let place = place as usize;
        (at / positions * plane + if column_major { turned(place) } else { place }) as i64
    });
    Ok(vec![Tensor::from_vec(out.shape.clone(), places.collect())?])
}

fn lp_pool(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (x, out) = (inputs.get(0)?, &outputs[0]);
    let Window { kernel, strides, pads, dilations } = Window::again(named);
    // What a window gives is said below.
    let pool = Pool { kind: PoolKind::Max, kernel, strides, pads, dilations };
    let power = named.int("p", 2) as i32;
    let values = floats("lp_pool", x)?;
    let result = slide(&pool, &values, x.shape(), &out.shape, |plane, taps, _| {
        let sum = taps.iter().map(|&at| plane[at].abs().powi(power)).sum::<f64>();
        sum.powf(1.0 / f64::from(power))
    });
    Ok(vec![Numbers::Float(result).into_tensor(out)?])
}
