//! Regions of images, sampled into grids (RoiAlign).

use crate::pool::{ThreadPool, for_parts};

/// Most samples of one region: where their number follows from it, it may be anything.
const MAX_SAMPLES: f64 = 67_108_864.0;

/// What is sampled, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoiAlign {
    pub batch: usize,
    pub channels: usize,
    /// Height and width.
    pub image: [usize; 2],
    /// Rows and columns of cells of each region.
    pub grid: [usize; 2],
    /// Samples along each axis of a cell; 0: as many as there are pixels.
    pub samples: usize,
    /// What is given, times this, is in pixels.
    pub scale: f32,
    /// Regions lie half a pixel before what is given.
    pub half_pixel: bool,
    /// The largest weighted corner instead of the mean.
    pub largest: bool,
}

/// Why regions cannot be sampled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RegionError {
    #[error("index {index} is outside of {batch} images")]
    Image { index: i64, batch: usize },
    #[error("region {region:?} of image {index} is no region of an image")]
    Region { region: [f32; 4], index: i64 },
    #[error("the operands are not as long as they should be")]
    Lengths,
}

/// A corner's place in its plane and its weight.
type Corner = (u32, f32);

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
    let corner = |row: usize, column: usize, weight: f64| ((row * width + column) as u32, weight as f32);
    [
        corner(top, left, (1.0 - down) * (1.0 - along)),
        corner(top, right, (1.0 - down) * along),
        corner(bottom, left, down * (1.0 - along)),
        corner(bottom, right, down * along),
    ]
}

/// Where the samples of one region lie.
struct Samples {
    start: [f32; 2],
    /// Height and width of a cell.
    cell: [f32; 2],
    /// Rows and columns of samples in a cell.
    counts: [usize; 2],
}

impl Samples {
    /// `None` where it is no region of an image.
    fn of(sizes: &RoiAlign, region: [f32; 4]) -> Option<Self> {
        // How many samples there are is decided in the precision of the model.
        let edge = |at: usize| region[at] * sizes.scale - if sizes.half_pixel { 0.5 } else { 0.0 };
        let (start, end) = ([edge(1), edge(0)], [edge(3), edge(2)]);
        let (mut cell, mut counts) = ([0f32; 2], [0f64; 2]);
        for axis in 0..2 {
            let size = end[axis] - start[axis];
            let size = if sizes.half_pixel { size } else { size.max(1.0) };
            cell[axis] = size / sizes.grid[axis] as f32;
            counts[axis] = match sizes.samples {
                0 => f64::from(cell[axis].ceil().max(0.0)),
                given => given as f64,
            };
        }
        let total = sizes.grid[0] as f64 * sizes.grid[1] as f64 * counts[0] * counts[1];
        let possible = start.iter().all(|at| at.is_finite()) && (0.0..=MAX_SAMPLES).contains(&total);
        possible.then(|| Self { start, cell, counts: counts.map(|count| count as usize) })
    }

    /// The corners of every cell, cell after cell.
    fn corners(&self, sizes: &RoiAlign) -> Vec<Corner> {
        let place = |axis: usize, at: usize, sample: usize| {
            let (start, cell) = (f64::from(self.start[axis]), f64::from(self.cell[axis]));
            start + at as f64 * cell + (sample as f64 + 0.5) * cell / self.counts[axis] as f64
        };
        let mut all = Vec::with_capacity(sizes.grid[0] * sizes.grid[1] * self.of_cell());
        for down in 0..sizes.grid[0] {
            for along in 0..sizes.grid[1] {
                for row in 0..self.counts[0] {
                    for column in 0..self.counts[1] {
                        all.extend(corners(sizes.image, [place(0, down, row), place(1, along, column)]));
                    }
                }
            }
        }
        all
    }

    /// How many corners a cell has.
    fn of_cell(&self) -> usize {
        self.counts[0] * self.counts[1] * 4
    }
}

/// `x` (batch, channels, height, width), `regions` (count, x1 y1 x2 y2), `images` (count) -> `to` (count, channels,
/// grid).
///
/// # Errors
///
/// When a region is none, or of no image.
pub fn roi_align(
    pool: &ThreadPool,
    sizes: &RoiAlign,
    x: &[f32],
    regions: &[f32],
    images: &[i64],
    to: &mut [f32],
) -> Result<(), RegionError> {
    let (plane, grid) = (sizes.image[0] * sizes.image[1], sizes.grid[0] * sizes.grid[1]);
    let fits = x.len() == sizes.batch * sizes.channels * plane
        && regions.len() == 4 * images.len()
        && to.len() == images.len() * sizes.channels * grid
        && u32::try_from(plane).is_ok();
    if !fits {
        return Err(RegionError::Lengths);
    }
    if to.is_empty() {
        return Ok(());
    }
    let mut found = Vec::with_capacity(images.len());
    for (region, &index) in regions.chunks_exact(4).zip(images) {
        let region = [region[0], region[1], region[2], region[3]];
        let of = usize::try_from(index).ok().filter(|&of| of < sizes.batch);
        let of = of.ok_or(RegionError::Image { index, batch: sizes.batch })?;
        // Whether it is a region is known before any thread begins.
        let samples = Samples::of(sizes, region).filter(|_| plane > 0);
        found.push((of, samples.ok_or(RegionError::Region { region, index })?));
    }
    for_parts(pool, to, sizes.channels * grid, |index, to| {
        let (of, samples) = &found[index];
        let (corners, count) = (samples.corners(sizes), samples.of_cell());
        for (channel, to) in to.chunks_exact_mut(grid).enumerate() {
            let plane = &x[(of * sizes.channels + channel) * plane..][..plane];
            for (cell, to) in to.iter_mut().enumerate() {
                let corners = &corners[cell * count..][..count];
                let weighted = corners.iter().map(|&(at, weight)| plane[at as usize] * weight);
                *to = match (sizes.largest, count) {
                    (_, 0) => 0.0,
                    (true, _) => weighted.fold(f32::NEG_INFINITY, f32::max),
                    (false, _) => weighted.sum::<f32>() / (count / 4) as f32,
                };
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn align(samples: usize, region: [f32; 4], image: i64) -> Result<Vec<f32>, RegionError> {
        let sizes = RoiAlign {
            batch: 1,
            channels: 2,
            image: [2, 4],
            grid: [1, 2],
            samples,
            scale: 1.0,
            half_pixel: false,
            largest: false,
        };
        let x: Vec<f32> = (0..16).map(|at| at as f32).collect();
        let mut to = vec![0.0; 4];
        let pool = ThreadPool::new(1).expect("a pool of one");
        roi_align(&pool, &sizes, &x, &region, &[image], &mut to).map(|()| to)
    }

    #[test]
    fn cells_are_the_mean_of_their_samples() {
        assert_eq!(align(1, [0.0, 0.0, 2.0, 1.0], 0), Ok(vec![2.5, 3.5, 10.5, 11.5]));
        assert_eq!(align(0, [0.0, 0.0, 4.0, 1.0], 0), Ok(vec![3.0, 4.75, 11.0, 12.75]));
    }

    #[test]
    fn what_is_no_region_is_refused() {
        assert!(matches!(align(1, [0.0, 0.0, 2.0, 1.0], 1), Err(RegionError::Image { index: 1, batch: 1 })));
        assert!(matches!(align(0, [0.0, 0.0, f32::MAX, 1.0], 0), Err(RegionError::Region { .. })));
        assert!(matches!(align(2, [f32::NAN, 0.0, 1.0, 1.0], 0), Err(RegionError::Region { .. })));
    }
}
