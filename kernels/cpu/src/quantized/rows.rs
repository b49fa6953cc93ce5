//! The left operand: one row at a time, wherever it comes from.

use crate::conv::ConvShape;
use std::ops::Range;

/// The rows of a left operand, bytes as they are stored.
pub trait Rows: Sync {
    /// How many rows there are.
    fn count(&self) -> usize;
    /// Bytes of a row.
    fn depth(&self) -> usize;
    /// Writes rows, all below `count`, to `to`, each `stride` bytes behind the one before; what lies between them may be
    /// anything afterwards.
    fn fill(&self, rows: Range<usize>, stride: usize, to: &mut [u8]);
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
    fn fill(&self, rows: Range<usize>, stride: usize, to: &mut [u8]) {
        let depth = self.depth;
        if depth == 0 {
            return;
        }
        let from = &self.data[rows.start * depth..rows.end * depth];
        if stride == depth {
            return to[..from.len()].copy_from_slice(from);
        }
        for (row, from) in from.chunks_exact(depth).enumerate() {
            to[row * stride..][..depth].copy_from_slice(from);
        }
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
    fn fill(&self, rows: Range<usize>, stride: usize, to: &mut [u8]) {
        let shape = &self.shape;
        if rows.is_empty() || shape.kernel[1] * self.channels == 0 {
            return;
        }
        let whole = shape.groups == 1 && shape.dilations[1] == 1;
        let inside = shape.whole_columns();
        let (mut image, mut y, mut x) = shape.pixel(rows.start);
        for row in 0..rows.len() {
            let to = &mut to[row * stride..];
            if whole && inside.contains(&x) {
                self.fill_inside(image, y, x, to);
            } else {
                self.fill_at_edge(image, y, x, to);
            }
            x += 1;
            if x == shape.out_width {
                (y, x) = (y + 1, 0);
            }
            if y == shape.out_height {
                (image, y) = (image + 1, 0);
            }
        }
    }
}

/// Bytes that are copied at once where fewer are wanted, and as many may be written.
const AT_ONCE: usize = 32;

impl ImageRows<'_> {
    /// The line of the image that a line of the kernel meets.
    fn line(&self, image: usize, y: usize, ky: usize) -> Option<&[u8]> {
        let shape = &self.shape;
        let at = (y * shape.strides[0] + ky * shape.dilations[0]).wrapping_sub(shape.pads[0]);
        let line = shape.width * shape.channels;
        (at < shape.height).then(|| &self.image[(image * shape.height + at) * line..][..line])
    }

    /// A window whose lines lie between the left and the right edge, each in one piece. Behind the window `to` may be
    /// overwritten.
    fn fill_inside(&self, image: usize, y: usize, x: usize, to: &mut [u8]) {
        let shape = &self.shape;
        let len = shape.kernel[1] * self.channels;
        let begin = (x * shape.strides[1] - shape.pads[1]) * self.channels;
        for ky in 0..shape.kernel[0] {
            let to = &mut to[ky * len..];
            let Some(line) = self.line(image, y, ky) else {
                to[..len].fill(self.zero);
                continue;
            };
            let from = &line[begin..];
            // A few bytes are copied sooner by a fixed number of them.
            match (from.first_chunk::<AT_ONCE>(), to.first_chunk_mut::<AT_ONCE>()) {
                (Some(from), Some(to)) if len <= AT_ONCE => *to = *from,
                _ => to[..len].copy_from_slice(&from[..len]),
            }
        }
    }

    /// A window that may lie partly beyond the edges, or is not in one piece.
    fn fill_at_edge(&self, image: usize, y: usize, x: usize, to: &mut [u8]) {
        let shape = &self.shape;
        for (ky, to) in to.chunks_exact_mut(shape.kernel[1] * self.channels).take(shape.kernel[0]).enumerate() {
            let Some(line) = self.line(image, y, ky) else {
                to.fill(self.zero);
                continue;
            };
            for (kx, to) in to.chunks_exact_mut(self.channels).enumerate() {
                let column = (x * shape.strides[1] + kx * shape.dilations[1]).wrapping_sub(shape.pads[1]);
                if column < shape.width {
                    to.copy_from_slice(&line[column * shape.channels + self.first..][..self.channels]);
                } else {
                    to.fill(self.zero);
                }
            }
        }
    }
}
