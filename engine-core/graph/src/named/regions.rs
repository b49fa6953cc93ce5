//! Regions of images, sampled.

use super::Entry;
use crate::{
    ir::{ElementType, NamedOp, Tensor},
    reference::{
        Inputs, OpError,
        gather::integers,
        numbers::{Numbers, floats},
    },
    shape::{Given, ShapeError, TensorType, attribute, mismatch, require},
};

pub(super) const ENTRIES: &[Entry] =
    &[Entry { name: "roi_align", takes_empty: false, infer: roi_align_type, run: roi_align }];

/// Most samples of one region: where their number follows from it, it may be anything.
const MAX_SAMPLES: f64 = 67_108_864.0;

/// Most cells along one axis of a region.
const MAX_CELLS: usize = 1 << 13;

/// `[x (N,C,H,W), regions (R,4) as x1, y1, x2, y2, images (R)]` -> (R,C,height,width).
///
/// A region is `scale` times what is given, half a pixel less where `half_pixel`; each cell of the grid is the mean, or
/// with `largest` the largest weighted corner, of `samples` by `samples` points, as many as there are pixels where that
/// is 0.
fn roi_align_type(named: &NamedOp, given: &Given<'_>, _: &[Vec<usize>]) -> Result<Vec<TensorType>, ShapeError> {
    let (x, regions, images) = (given.float(0)?, given.float(1)?, given.integer(2)?);
    given.same_element(0, 1)?;
    let [_, channels, _, _] = x.shape[..] else { return Err(given.rank_error(0, "4 axes are needed".into())) };
    let count = images.shape.iter().product();
    require(images.rank() == 1 && regions.shape == [count, 4], || mismatch("regions", &regions.shape, &images.shape))?;
    let (height, width) = (named.size("height"), named.size("width"));
    let few = |size: usize| (1..=MAX_CELLS).contains(&size);
    require(few(height) && few(width), || attribute("output_height", [height, width], &x.shape))?;
    let samples = named.int("samples", 0);
    let most = (MAX_SAMPLES / (height * width) as f64).sqrt() as i64;
    require((0..=most).contains(&samples), || attribute("sampling_ratio", samples, &x.shape))?;
    Ok(vec![TensorType::new(x.element, [count, channels, height, width])])
}

/// One corner of a sample and its weight.
type Corner = (usize, f64);

/// The four corners around a point, none beyond a pixel outside of the image.
fn corners([height, width]: [usize; 2], [y, x]: [f64; 2]) -> [Corner; 4] {
    let outside = |at: f64, size: usize| !(-1.0..=size as f64).contains(&at);
    if outside(y, height) || outside(x, width) {
        return [(0, 0.0); 4];
    }
    let split = |at: f64, size: usize| {
        let at = at.max(0.0);
        match at as usize {
            low if low + 1 >= size => (size - 1, size - 1, 0.0),
            low => (low, low + 1, at - low as f64),
        }
    };
    let ((top, bottom, down), (left, right, along)) = (split(y, height), split(x, width));
    [
        (top * width + left, (1.0 - down) * (1.0 - along)),
        (top * width + right, (1.0 - down) * along),
        (bottom * width + left, down * (1.0 - along)),
        (bottom * width + right, down * along),
    ]
}

fn roi_align(named: &NamedOp, inputs: &Inputs<'_>, outputs: &[TensorType]) -> Result<Vec<Tensor>, OpError> {
    let (x, out) = (inputs.get(0)?, &outputs[0]);
    let [batch, channels, image_height, image_width] = x.shape()[..] else {
        return Err(OpError::Element { op: "roi_align", element: x.element() });
    };
    let (image, plane) = ([image_height, image_width], image_height * image_width);
    let values = floats("roi_align", x)?;
    let regions = floats("roi_align", inputs.get(1)?)?;
    let images = integers("roi_align", inputs.get(2)?)?;
    // How many samples there are is decided in the precision of the model.
    let wide = x.element() == ElementType::F64;
    let round = |value: f64| if wide { value } else { f64::from(value as f32) };
    let (scale, half_pixel, largest) = (named.float("scale", 1.0), named.flag("half_pixel"), named.flag("largest"));
    let grid = [out.shape[2], out.shape[3]];
    let mut result = Vec::with_capacity(out.shape.iter().product());
    for (given, &index) in regions.chunks_exact(4).zip(&images) {
        let of = usize::try_from(index).ok().filter(|&of| of < batch);
        let of = of.ok_or(OpError::Index { op: "roi_align", index, size: batch })?;
        let edge = |at: usize| round(round(given[at] * scale) - if half_pixel { 0.5 } else { 0.0 });
        let (start, end) = ([edge(1), edge(0)], [edge(3), edge(2)]);
        let mut cell = [0.0; 2];
        let mut counts = [0.0; 2];
        for axis in 0..2 {
            let size = round(end[axis] - start[axis]);
            let size = if half_pixel { size } else { size.max(1.0) };
            cell[axis] = round(size / grid[axis] as f64);
            let count = match named.int("samples", 0) {
                0 => cell[axis].ceil().max(0.0),
                given => given as f64,
            };
            counts[axis] = count;
        }
        let total = grid[0] as f64 * grid[1] as f64 * counts[0] * counts[1];
        let possible = start.iter().all(|at| at.is_finite()) && total <= MAX_SAMPLES;
        if !possible {
            let reason = format!("region {given:?} of image {index} is no region of an image");
            return Err(OpError::Impossible { op: "roi_align", reason });
        }
        let samples = counts.map(|count| count as usize);
        // Where the samples of each cell lie, for every channel alike.
        let place = |axis: usize, at: usize, sample: usize| {
            start[axis] + at as f64 * cell[axis] + (sample as f64 + 0.5) * cell[axis] / samples[axis] as f64
        };
        let mut cells: Vec<Vec<[Corner; 4]>> = Vec::with_capacity(grid[0] * grid[1]);
        for down in 0..grid[0] {
            for along in 0..grid[1] {
                let rows = 0..samples[0];
                let points = rows.flat_map(|row| (0..samples[1]).map(move |column| (row, column)));
                let points = points.map(|(row, column)| [place(0, down, row), place(1, along, column)]);
                cells.push(points.map(|point| corners(image, point)).collect());
            }
        }
        for channel in 0..channels {
            let plane = &values[(of * channels + channel) * plane..][..plane];
            result.extend(cells.iter().map(|cell| {
                let weighted = |corners: &[Corner; 4]| corners.map(|(at, weight)| plane[at] * weight);
                if largest {
                    let best = cell.iter().flat_map(weighted).reduce(f64::max);
                    best.unwrap_or(0.0)
                } else {
                    let sum: f64 = cell.iter().flat_map(weighted).sum();
                    sum / cell.len().max(1) as f64
                }
            }));
        }
    }
    Ok(vec![Numbers::Float(result).into_tensor(out)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{infer::infer, interpreter, ir::Op};

    fn align(samples: i64, region: [f32; 4], image: i64) -> Result<Vec<f64>, OpError> {
        let x = Tensor::from_vec(vec![1, 1, 2, 4], (0..8).map(|at| at as f32).collect()).expect("8 pixels");
        let regions = Tensor::from_vec(vec![1, 4], region.to_vec()).expect("one region");
        let images = Tensor::from_vec(vec![1], vec![image]).expect("one image");
        let named = NamedOp::new("roi_align").with_int("height", 1).with_int("width", 2).with_int("samples", samples);
        let op = Op::Named(named.into());
        let types = [TensorType::of(&x), TensorType::of(&regions), TensorType::of(&images)];
        let out = infer(&op, &types.iter().map(Some).collect::<Vec<_>>(), &[]).expect("regions of images");
        let made = interpreter::run(&op, &[Some(&x), Some(&regions), Some(&images)], &out)?;
        Ok(made[0].to_f64s())
    }

    #[test]
    fn cells_are_the_mean_of_their_samples() {
        // One sample in the middle of each cell, between the rows: (0 + 1 + 4 + 5) / 4 and two columns on.
        assert_eq!(align(1, [0.0, 0.0, 2.0, 1.0], 0), Ok(vec![2.5, 3.5]));
        // As many samples as there are pixels.
        assert_eq!(align(0, [0.0, 0.0, 4.0, 1.0], 0), Ok(vec![3.0, 4.75]));
    }

    #[test]
    fn what_is_no_region_is_refused() {
        assert!(matches!(align(1, [0.0, 0.0, 2.0, 1.0], 1), Err(OpError::Index { .. })));
        let endless = align(0, [0.0, 0.0, f32::MAX, 1.0], 0).expect_err("no image is so wide").to_string();
        assert!(endless.contains("no region of an image"), "{endless}");
        align(2, [f32::NAN, 0.0, 1.0, 1.0], 0).expect_err("it begins nowhere");
    }
}
