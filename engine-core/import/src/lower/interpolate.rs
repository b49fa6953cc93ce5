//! Resampling that is not the common one: cubic, smoothed, cropped or symmetric. Axis after axis, as weighted sums of
//! rows that are gathered.

use super::super::builder::Lowering;
use crate::error::Refusal;
use planforge_graph::{
    ir::{Binary, ElementType, Op, ResizeNearest, Tensor, ValueId},
    shape::is_float,
};

/// Most rows that are summed for one row of the result: a smoothed one is as wide as what it stands for.
const MAX_TAPS: usize = 256;

/// How rows are mixed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    Nearest(ResizeNearest),
    Linear,
    /// With the steepness of its weights.
    Cubic(f64),
}

/// Where a row of the result lies among those of the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Coordinates {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    /// From the region that is given for the axis.
    Crop,
}

/// One way of resampling.
#[derive(Clone, Debug)]
pub struct Resampling {
    pub kernel: Kernel,
    pub coordinates: Coordinates,
    /// Rows are smoothed where there become fewer.
    pub antialias: bool,
    /// What lies outside counts nothing, in place of the outermost row.
    pub exclude_outside: bool,
    /// What a crop holds where it reaches beyond the input.
    pub extrapolation: f64,
}

/// One axis that is resampled.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    pub input: usize,
    pub out: usize,
    pub scale: f64,
    /// Begin and end of a crop, in parts of the axis.
    pub region: [f64; 2],
}

/// One row of the result: rows of the input with their weights, or what lies outside.
type Row = Option<Vec<(usize, f64)>>;

impl Kernel {
    /// How far its weights reach, and what the weight is at a distance.
    fn reach(self) -> f64 {
        if self == Self::Linear { 1.0 } else { 2.0 }
    }

    fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            Self::Cubic(a) if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            Self::Cubic(a) if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
            Self::Cubic(_) => 0.0,
            _ => (1.0 - x).max(0.0),
        }
    }
}

fn nearest(rule: ResizeNearest, at: f64) -> f64 {
    match rule {
        ResizeNearest::RoundPreferFloor => (at - 0.5).ceil(),
        ResizeNearest::RoundPreferCeil => (at + 0.5).floor(),
        ResizeNearest::Floor => at.floor(),
        ResizeNearest::Ceil => at.ceil(),
    }
}

impl Resampling {
    fn source(&self, axis: &Axis, at: usize) -> f64 {
        let (at, input, exact) = (at as f64, axis.input as f64, axis.scale * axis.input as f64);
        match self.coordinates {
            Coordinates::HalfPixel => (at + 0.5) / axis.scale - 0.5,
            Coordinates::HalfPixelSymmetric => {
                let offset = input / 2.0 * (1.0 - axis.out as f64 / exact);
                offset + (at + 0.5) / axis.scale - 0.5
            }
            Coordinates::PytorchHalfPixel if axis.out > 1 => (at + 0.5) / axis.scale - 0.5,
            Coordinates::AlignCorners if axis.out > 1 => at * (input - 1.0) / (axis.out as f64 - 1.0),
            Coordinates::PytorchHalfPixel | Coordinates::AlignCorners => 0.0,
            Coordinates::Asymmetric => at / axis.scale,
            Coordinates::Crop => {
                // In single precision, which decides what lies halfway between two rows.
                let ([begin, end], last) = (axis.region.map(|edge| edge as f32), axis.input as f32 - 1.0);
                let inside = match axis.out {
                    1 => (end - begin) * last / 2.0,
                    out => at as f32 * (end - begin) * last / (out as f32 - 1.0),
                };
                f64::from(begin * last + inside)
            }
        }
    }

    /// The rows of an axis; `None` where one takes more than there may be.
    fn rows(&self, axis: &Axis) -> Option<Vec<Row>> {
        let last = axis.input as f64 - 1.0;
        let inside = |at: f64| at.clamp(0.0, last) as usize;
        let row = |at: usize| {
            let at = self.source(axis, at);
            if self.coordinates == Coordinates::Crop && !(0.0..=last).contains(&at) {
                return Some(None);
            }
            if let Kernel::Nearest(rule) = self.kernel {
                return Some(Some(vec![(inside(nearest(rule, at)), 1.0)]));
            }
            let narrowed = if self.antialias { axis.scale.min(1.0) } else { 1.0 };
            let reach = self.kernel.reach() / narrowed;
            let (from, to) = ((at - reach).floor() + 1.0, (at + reach).ceil() - 1.0);
            let few = to - from < MAX_TAPS as f64;
            if !few {
                return None;
            }
            let steps = (0..=(to - from).max(0.0) as usize).map(|step| from + step as f64);
            let mut taps: Vec<(f64, f64)> =
                steps.map(|place| (place, self.kernel.weight((place - at) * narrowed))).collect();
            if self.exclude_outside {
                taps.retain(|(place, _)| (0.0..=last).contains(place));
            }
            let sum: f64 = taps.iter().map(|(_, weight)| weight).sum();
            let by = if (self.exclude_outside || self.antialias) && sum != 0.0 { sum } else { 1.0 };
            let mut joined: Vec<(usize, f64)> = Vec::with_capacity(taps.len());
            for (place, weight) in taps {
                // What lies outside is the outermost row, once.
                match joined.last_mut() {
                    Some((at, total)) if *at == inside(place) => *total += weight / by,
                    _ => joined.push((inside(place), weight / by)),
                }
            }
            Some(Some(joined))
        };
        (0..axis.out).map(row).collect()
    }
}

/// `x` resampled along `at` as `how` says.
pub fn along(
    node: &mut Lowering<'_>,
    x: ValueId,
    at: usize,
    axis: &Axis,
    how: &Resampling,
) -> Result<ValueId, Refusal> {
    let too_wide = || Refusal::Unsupported { what: format!("resampling from {} to {}", axis.input, axis.out) };
    let rows = how.rows(axis).ok_or_else(too_wide)?;
    let count = rows.iter().flatten().map(Vec::len).max().unwrap_or(1);
    node.builder.unroll(count * (3 + (axis.out >> 10)))?;
    let element = node.ty(x).element;
    let mut column = vec![1; node.ty(x).rank()];
    column[at] = axis.out;
    let mut sum = None;
    for tap in 0..count {
        let of = |row: &Row| row.as_ref().and_then(|taps| taps.get(tap).copied()).unwrap_or((0, 0.0));
        let places: Vec<i64> = rows.iter().map(|row| of(row).0 as i64).collect();
        let places = node.add_constant(Tensor::from_vec(vec![axis.out], places)?);
        let mut part = node.emit(Op::Gather { axis: at }, &[x, places])?;
        if is_float(element) && !rows.iter().all(|row| of(row).1 == 1.0) {
            let weights: Vec<f64> = rows.iter().map(|row| of(row).1).collect();
            // Where a row has fewer, none of another is added, whatever it holds.
            let unused: Option<Vec<f64>> =
                weights.contains(&0.0).then(|| weights.iter().map(|&weight| f64::from(weight == 0.0)).collect());
            let weights = node.numbers(element, column.clone(), weights)?;
            part = node.binary(Binary::Mul, part, weights)?;
            if let Some(unused) = unused {
                let unused = node.numbers(ElementType::Bool, column.clone(), unused)?;
                let nothing = node.scalar(element, 0.0)?;
                part = node.choose(unused, nothing, part)?;
            }
        }
        sum = Some(match sum {
            None => part,
            Some(sum) => node.binary(Binary::Add, sum, part)?,
        });
    }
    let made = sum.ok_or_else(too_wide)?;
    if rows.iter().all(Option::is_some) {
        return Ok(made);
    }
    let outside = rows.iter().map(|row| f64::from(row.is_none())).collect();
    let outside = node.numbers(ElementType::Bool, column, outside)?;
    let value = node.scalar(element, how.extrapolation)?;
    node.choose(outside, value, made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(kernel: Kernel, coordinates: Coordinates, antialias: bool, sizes: [usize; 2]) -> Vec<Row> {
        let how = Resampling { kernel, coordinates, antialias, exclude_outside: false, extrapolation: 0.0 };
        let [input, out] = sizes;
        let axis = Axis { input, out, scale: out as f64 / input as f64, region: [0.25, 1.5] };
        how.rows(&axis).expect("few rows are summed")
    }

    #[test]
    fn weights_sum_to_one_and_lie_about_the_place() {
        for kernel in [Kernel::Linear, Kernel::Cubic(-0.75), Kernel::Cubic(-0.5)] {
            for (sizes, antialias) in [([8, 16], false), ([16, 5], false), ([16, 5], true), ([4, 4], true)] {
                for row in rows(kernel, Coordinates::HalfPixel, antialias, sizes).into_iter().flatten() {
                    let sum: f64 = row.iter().map(|(_, weight)| weight).sum();
                    assert!((sum - 1.0).abs() < 1e-12, "{kernel:?} {sizes:?}: {row:?}");
                    assert!(row.windows(2).all(|pair| pair[0].0 < pair[1].0), "{row:?}");
                }
            }
        }
    }

    #[test]
    fn what_stays_is_itself() {
        for row in rows(Kernel::Cubic(-0.75), Coordinates::HalfPixel, false, [5, 5]).into_iter().enumerate() {
            let (at, Some(taps)) = row else { panic!("{row:?}") };
            let weight: f64 = taps.iter().filter(|(place, _)| *place == at).map(|(_, weight)| weight).sum();
            assert_eq!(weight, 1.0, "{taps:?}");
        }
    }

    #[test]
    fn a_crop_knows_what_lies_outside() {
        let rows = rows(Kernel::Linear, Coordinates::Crop, false, [5, 6]);
        let outside: Vec<bool> = rows.iter().map(Option::is_none).collect();
        assert_eq!(outside, [false, false, false, false, true, true]);
        assert_eq!(rows[1], Some(vec![(2, 1.0)]));
    }

    #[test]
    fn a_smoothed_row_is_no_wider_than_may_be() {
        let how = Resampling {
            kernel: Kernel::Cubic(-0.75),
            coordinates: Coordinates::HalfPixel,
            antialias: true,
            exclude_outside: false,
            extrapolation: 0.0,
        };
        assert!(how.rows(&Axis { input: 1000, out: 2, scale: 0.002, region: [0.0, 1.0] }).is_none());
    }
}
