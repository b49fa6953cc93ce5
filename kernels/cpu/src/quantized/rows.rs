//! The left operand: one row at a time, wherever it comes from.

use crate::conv::ConvShape;

/// The rows of a left operand, bytes as they are stored.
pub trait Rows: Sync {
    /// How many rows there are.
    fn count(&self) -> usize;
    /// Bytes of a row.
    fn depth(&self) -> usize;
    /// Writes a row, which is below `count`, to `to`, which is as long as one.
    fn fill(&self, row: usize, to: &mut [u8]);
}

/// The rows of a row-major matrix.
#[derive(Debug)]
pub struct MatrixRows<'a> {
    data: &'a [u8],
    rows: usize,
    depth: usize,
}

impl<'a> MatrixRows<'a> {
    /// `rows` rows of `depth` bytes, one behind the other.
    ///
    /// # Panics
    /// When `data` is not as long as that.
    pub fn new(data: &'a [u8], rows: usize, depth: usize) -> Self {
        assert_eq!(rows.checked_mul(depth), Some(data.len()), "the matrix is not as large as its data");
        Self { data, rows, depth }
    }
}

impl Rows for MatrixRows<'_> {
    fn count(&self) -> usize {
        self.rows
    }
    fn depth(&self) -> usize {
        self.depth
    }
    #[inline]
    fn fill(&self, row: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.data[row * self.depth..][..self.depth]);
    }
}

/// The windows of an NHWC image, one for each output pixel: kernel line by line, channels innermost.
#[derive(Debug)]
pub struct ImageRows<'a> {
    shape: ConvShape,
    image: &'a [u8],
    /// Channels of a group, and the first of this one.
    channels: usize,
    first: usize,
    /// What stands beyond the edges.
    zero: u8,
}

impl<'a> ImageRows<'a> {
    /// The windows of one group; `zero` is the image's zero point.
    ///
    /// # Panics
    /// When the image's length is not that of the shape, or there is no such group.
    pub fn new(shape: ConvShape, image: &'a [u8], group: usize, zero: u8) -> Self {
        shape.check_sizes(image.len());
        assert!(group < shape.groups, "there is no such group");
        let channels = shape.channels / shape.groups;
        Self { shape, image, channels, first: group * channels, zero }
    }
}

impl Rows for ImageRows<'_> {
    fn count(&self) -> usize {
        self.shape.pixels()
    }
    fn depth(&self) -> usize {
        self.shape.depth()
    }
    #[inline]
    fn fill(&self, row: usize, to: &mut [u8]) {
        let shape = &self.shape;
        let (image, y, x) = shape.pixel(row);
        let line = shape.kernel[1] * self.channels;
        if line == 0 {
            return;
        }
        let whole = shape.groups == 1 && shape.dilations[1] == 1;
        let left = x * shape.strides[1];
        for (ky, to) in to.chunks_exact_mut(line).enumerate() {
            let at = (y * shape.strides[0] + ky * shape.dilations[0]).wrapping_sub(shape.pads[0]);
            if at >= shape.height {
                to.fill(self.zero);
                continue;
            }
            let from = &self.image[(image * shape.height + at) * shape.width * shape.channels..]
                [..shape.width * shape.channels];
            if whole {
                // The columns of the kernel that lie within the image.
                let skipped = shape.pads[1].saturating_sub(left).min(shape.kernel[1]);
                let begin = (left + skipped).saturating_sub(shape.pads[1]);
                let count = shape.width.saturating_sub(begin).min(shape.kernel[1] - skipped);
                let (before, rest) = to.split_at_mut(skipped * self.channels);
                let (inside, after) = rest.split_at_mut(count * self.channels);
                before.fill(self.zero);
                if count > 0 {
                    inside.copy_from_slice(&from[begin * self.channels..][..count * self.channels]);
                }
                after.fill(self.zero);
                continue;
            }
            for (kx, to) in to.chunks_exact_mut(self.channels).enumerate() {
                let column = (left + kx * shape.dilations[1]).wrapping_sub(shape.pads[1]);
                if column < shape.width {
                    to.copy_from_slice(&from[column * shape.channels + self.first..][..self.channels]);
                } else {
                    to.fill(self.zero);
                }
            }
        }
    }
}
