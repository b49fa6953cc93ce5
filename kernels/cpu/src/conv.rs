//! Convolution over NHWC images as a product of gathered rows.
//!
//! For a product, every output pixel is a row of A and every output channel a column of B. Two gatherings exist:
//! [`TapRows`] points into the image itself, one piece of C elements per kernel position, with a row of zeros where
//! the kernel hangs over the edge; [`LineRows`] points into a copy of the image with its border added, one piece of
//! `kernel width * C` elements per kernel line, which suits few channels.

use crate::{
    gemm::{Place, Rows},
    pool::{ThreadPool, for_parts},
};
use std::ops::Range;

/// Sizes of a two-dimensional convolution (a one-dimensional one has height 1). Images are NHWC.
///
/// Sizes may come from anywhere: what is worked out of them is checked, and panics where it does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
    /// Channels of the image.
    pub channels: usize,
    pub out_height: usize,
    pub out_width: usize,
    pub out_channels: usize,
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    /// Above and to the left; what lies below and to the right follows from the output's size.
    pub pads: [usize; 2],
    pub groups: usize,
}

/// Channels per group up to which [`TapRows`] has zeros to point to.
pub const TAP_CHANNELS_MAX: usize = 16_384;
static ZEROS: [f32; TAP_CHANNELS_MAX] = [0.0; TAP_CHANNELS_MAX];

impl ConvShape {
    /// Output pixels: rows of the product.
    ///
    /// # Panics
    /// When they are too many to count.
    pub fn pixels(&self) -> usize {
        product(&[self.batch, self.out_height, self.out_width])
    }

    /// Elements of the output.
    ///
    /// # Panics
    /// When they are too many to count.
    pub fn output_len(&self) -> usize {
        product(&[self.pixels(), self.out_channels])
    }

    /// Depth of the product of one group.
    ///
    /// # Panics
    /// When it is too large to count, or there is no group.
    pub fn depth(&self) -> usize {
        product(&[self.kernel[0], self.kernel[1], self.channels / self.groups])
    }

    /// Elements of the input image.
    ///
    /// # Panics
    /// When they are too many to count.
    pub fn image_len(&self) -> usize {
        product(&[self.batch, self.height, self.width, self.channels])
    }

    /// Height and width of the image with the border [`LineRows`] needs: no position of the kernel lies beyond.
    ///
    /// # Panics
    /// When they are too large to count, or the kernel has no positions.
    pub fn bordered(&self) -> [usize; 2] {
        let extent = |axis: usize, size: usize, out: usize| {
            let steps = out.saturating_sub(1).checked_mul(self.strides[axis])?;
            let reach = self.kernel[axis].checked_sub(1)?.checked_mul(self.dilations[axis])?;
            let needed = steps.checked_add(reach)?.checked_add(1)?;
            Some(needed.max(self.pads[axis].checked_add(size)?))
        };
        let both = extent(0, self.height, self.out_height).zip(extent(1, self.width, self.out_width));
        let Some((height, width)) = both else { panic!("a kernel without positions, or that reaches too far") };
        [height, width]
    }

    /// Elements of the image with that border.
    ///
    /// # Panics
    /// As [`Self::bordered`].
    pub fn bordered_len(&self) -> usize {
        let [height, width] = self.bordered();
        product(&[self.batch, height, width, self.channels])
    }

    /// Whether the kernel never leaves the image, so that [`LineRows`] needs no copy.
    pub fn is_inside(&self) -> bool {
        self.pads == [0, 0] && self.bordered() == [self.height, self.width]
    }

    /// Whether [`LineRows`] can gather this convolution.
    pub fn has_lines(&self) -> bool {
        self.groups == 1 && self.dilations[1] == 1
    }

    /// What every kernel over images rests on: groups are whole, the image is as large as its shape, and nothing that
    /// is worked out of a position of output and kernel overflows.
    pub(crate) fn check(&self, image: &[f32]) {
        self.check_sizes(image.len());
    }

    /// The same of an image of so many elements of any type.
    pub(crate) fn check_sizes(&self, image_len: usize) {
        assert!(
            self.groups > 0
                && self.channels.is_multiple_of(self.groups)
                && self.out_channels.is_multiple_of(self.groups),
            "channels are not shared out evenly among the groups"
        );
        assert_eq!(image_len, self.image_len(), "the image is not as large as its shape");
        // Both are worked out for their checks: the furthest position in each axis, and the number of positions.
        let _ = (self.bordered(), self.depth());
    }

    /// Output columns at which the whole kernel lies between the left and the right edge of the image.
    pub(crate) fn whole_columns(&self) -> Range<usize> {
        let (stride, pad) = (self.strides[1], self.pads[1]);
        let room = (pad + self.width).saturating_sub((self.kernel[1] - 1) * self.dilations[1]);
        let end = room.div_ceil(stride).min(self.out_width);
        pad.div_ceil(stride).min(end)..end
    }

    /// Image, line and column of an output pixel.
    #[inline]
    pub(crate) fn pixel(&self, row: usize) -> (usize, usize, usize) {
        let x = row % self.out_width;
        let rest = row / self.out_width;
        (rest / self.out_height, rest % self.out_height, x)
    }

    /// The output pixel after one, as [`Self::pixel`] gives it.
    #[inline]
    fn advance(&self, image: &mut usize, y: &mut usize, x: &mut usize) {
        *x += 1;
        if *x == self.out_width {
            (*x, *y) = (0, *y + 1);
            if *y == self.out_height {
                (*y, *image) = (0, *image + 1);
            }
        }
    }

    /// Whether every output pixel is a product of the one input pixel at its place: the image is the matrix.
    pub fn is_pointwise(&self) -> bool {
        self.kernel == [1, 1]
            && self.strides == [1, 1]
            && self.pads == [0, 0]
            && [self.height, self.width] == [self.out_height, self.out_width]
    }

    /// Where group `group`'s part of the output lies, rows being pixels.
    pub fn group_place(&self, group: usize) -> Place {
        Place { offset: group * (self.out_channels / self.groups), stride: self.out_channels }
    }
}

/// Rows that point into the image, a piece per kernel position.
#[derive(Debug)]
pub struct TapRows<'a> {
    shape: ConvShape,
    image: &'a [f32],
    /// First channel of the group.
    first: usize,
    /// Channels of the group.
    count: usize,
}

impl<'a> TapRows<'a> {
    /// The rows of one group.
    ///
    /// # Panics
    /// When the image's length is not that of the shape, or a group has more than [`TAP_CHANNELS_MAX`] channels.
    pub fn new(shape: ConvShape, image: &'a [f32], group: usize) -> Self {
        shape.check(image);
        let count = shape.channels / shape.groups;
        assert!(group < shape.groups && count <= TAP_CHANNELS_MAX);
        Self { shape, image, first: group * count, count }
    }
}

// SAFETY: pointers are either into the image, at a pixel inside it (`check` compared its length with the shape, whose
// products do not overflow) and `count` channels from `first` on, which is within a pixel; or to `ZEROS`, which is as
// long as `count` may be.
unsafe impl Rows for TapRows<'_> {
    fn count(&self) -> usize {
        self.shape.pixels()
    }
    fn taps(&self) -> usize {
        self.shape.kernel[0] * self.shape.kernel[1]
    }
    fn tap_len(&self) -> usize {
        self.count
    }
    #[inline]
    fn pointers(&self, first: usize, rows: usize, to: &mut [*const f32]) {
        let shape = &self.shape;
        let (mut image, mut y, mut x) = shape.pixel(first);
        for row in 0..rows {
            let mut tap = row;
            for ky in 0..shape.kernel[0] {
                let line = (y * shape.strides[0] + ky * shape.dilations[0]).wrapping_sub(shape.pads[0]);
                for kx in 0..shape.kernel[1] {
                    let column = (x * shape.strides[1] + kx * shape.dilations[1]).wrapping_sub(shape.pads[1]);
                    to[tap] = if line < shape.height && column < shape.width {
                        let at = ((image * shape.height + line) * shape.width + column) * shape.channels + self.first;
                        self.image[at..].as_ptr()
                    } else {
                        ZEROS.as_ptr()
                    };
                    tap += rows;
                }
            }
            shape.advance(&mut image, &mut y, &mut x);
        }
    }
}

/// Sizes of a three-dimensional convolution: those of its planes, and of what stands over them. Images are NDHWC; those of
/// one batch lie plane by plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeShape {
    /// `batch` counts volumes.
    pub plane: ConvShape,
    pub depth: usize,
    pub out_depth: usize,
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    pub pad: usize,
}

impl VolumeShape {
    /// Output pixels: rows of the product.
    ///
    /// # Panics
    /// When they are too many to count.
    pub fn pixels(&self) -> usize {
        product(&[self.plane.pixels(), self.out_depth])
    }

    /// Depth of the product of one group.
    ///
    /// # Panics
    /// When it is too large to count, or there is no group.
    pub fn product_depth(&self) -> usize {
        product(&[self.plane.depth(), self.kernel])
    }

    /// Elements of the input.
    ///
    /// # Panics
    /// When they are too many to count.
    pub fn image_len(&self) -> usize {
        product(&[self.plane.image_len(), self.depth])
    }
}

/// Rows that point into a volume, a piece per kernel position.
#[derive(Debug)]
pub struct VolumeRows<'a> {
    shape: VolumeShape,
    image: &'a [f32],
    first: usize,
    count: usize,
}

impl<'a> VolumeRows<'a> {
    /// The rows of one group.
    ///
    /// # Panics
    /// When the volume's length is not that of the shape, or a group has more than [`TAP_CHANNELS_MAX`] channels.
    pub fn new(shape: VolumeShape, image: &'a [f32], group: usize) -> Self {
        let plane = &shape.plane;
        assert_eq!(image.len(), shape.image_len(), "the volume is not as large as its shape");
        assert!(
            plane.groups > 0
                && plane.channels.is_multiple_of(plane.groups)
                && plane.out_channels.is_multiple_of(plane.groups),
            "channels are not shared out evenly among the groups"
        );
        // The furthest position in each axis, and the number of positions, checked as they are worked out.
        let _ = (plane.bordered(), shape.product_depth(), shape.pixels());
        let reach = shape.kernel.checked_sub(1).and_then(|taps| taps.checked_mul(shape.dilation));
        let steps = shape.out_depth.saturating_sub(1).checked_mul(shape.stride);
        let furthest = reach.zip(steps).and_then(|(reach, steps)| reach.checked_add(steps));
        assert!(furthest.is_some(), "a kernel without positions, or that reaches too far");
        let count = plane.channels / plane.groups;
        assert!(group < plane.groups && count <= TAP_CHANNELS_MAX);
        Self { shape, image, first: group * count, count }
    }
}

// SAFETY: pointers are either into the image, at a pixel inside it (`new` compared its length with the shape, whose
// products do not overflow) and `count` channels from `first` on, which is within a pixel; or to `ZEROS`, which is as long
// as `count` may be.
unsafe impl Rows for VolumeRows<'_> {
    fn count(&self) -> usize {
        self.shape.pixels()
    }
    fn taps(&self) -> usize {
        self.shape.kernel * self.shape.plane.kernel[0] * self.shape.plane.kernel[1]
    }
    fn tap_len(&self) -> usize {
        self.count
    }
    fn pointers(&self, first: usize, rows: usize, to: &mut [*const f32]) {
        let shape = &self.shape;
        let plane = &shape.plane;
        // Images of the plane's shape are volumes times depths.
        let (mut image, mut y, mut x) = plane.pixel(first);
        for row in 0..rows {
            let (volume, z) = (image / shape.out_depth, image % shape.out_depth);
            let mut tap = row;
            for kz in 0..shape.kernel {
                let level = (z * shape.stride + kz * shape.dilation).wrapping_sub(shape.pad);
                for ky in 0..plane.kernel[0] {
                    let line = (y * plane.strides[0] + ky * plane.dilations[0]).wrapping_sub(plane.pads[0]);
                    for kx in 0..plane.kernel[1] {
                        let column = (x * plane.strides[1] + kx * plane.dilations[1]).wrapping_sub(plane.pads[1]);
                        let inside = level < shape.depth && line < plane.height && column < plane.width;
                        to[tap] = if inside {
                            let pixel = ((volume * shape.depth + level) * plane.height + line) * plane.width + column;
                            self.image[pixel * plane.channels + self.first..].as_ptr()
                        } else {
                            ZEROS.as_ptr()
                        };
                        tap += rows;
                    }
                }
            }
            plane.advance(&mut image, &mut y, &mut x);
        }
    }
}

/// Rows that point into an image with its border added, a piece per kernel line.
#[derive(Debug)]
pub struct LineRows<'a> {
    shape: ConvShape,
    bordered: &'a [f32],
    size: [usize; 2],
}

impl<'a> LineRows<'a> {
    /// Rows over `bordered`, which [`add_border`] wrote (or the image itself when [`ConvShape::is_inside`]).
    ///
    /// # Panics
    /// When the shape has no lines ([`ConvShape::has_lines`]) or `bordered` is of another length.
    pub fn new(shape: ConvShape, bordered: &'a [f32]) -> Self {
        assert!(shape.has_lines(), "a convolution with groups or a dilated kernel has no lines");
        assert_eq!(bordered.len(), shape.bordered_len(), "the image lacks its border");
        Self { shape, bordered, size: shape.bordered() }
    }
}

// SAFETY: `bordered()` is large enough that the kernel at every output pixel lies inside, and `new` compared the
// buffer's length with it, both without overflow; a line of the kernel is contiguous because the dilation is 1.
unsafe impl Rows for LineRows<'_> {
    fn count(&self) -> usize {
        self.shape.pixels()
    }
    fn taps(&self) -> usize {
        self.shape.kernel[0]
    }
    fn tap_len(&self) -> usize {
        self.shape.kernel[1] * self.shape.channels
    }
    #[inline]
    fn pointers(&self, first: usize, rows: usize, to: &mut [*const f32]) {
        let shape = &self.shape;
        let (mut image, mut y, mut x) = shape.pixel(first);
        for row in 0..rows {
            for ky in 0..shape.kernel[0] {
                let line = y * shape.strides[0] + ky * shape.dilations[0];
                let at = ((image * self.size[0] + line) * self.size[1] + x * shape.strides[1]) * shape.channels;
                to[ky * rows + row] = self.bordered[at..].as_ptr();
            }
            shape.advance(&mut image, &mut y, &mut x);
        }
    }
}

/// The product of sizes.
///
/// # Panics
/// When it overflows: nothing is that large.
fn product(sizes: &[usize]) -> usize {
    let product = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    product.unwrap_or_else(|| panic!("sizes {sizes:?} are out of bounds"))
}

/// Copies the image into `to` with the zeros around it that [`LineRows`] needs.
///
/// # Panics
/// When a buffer's length is not that of the shape.
pub fn add_border(pool: &ThreadPool, shape: &ConvShape, image: &[f32], to: &mut [f32]) {
    shape.check(image);
    assert_eq!(to.len(), shape.bordered_len(), "the copy is not as large as the image with its border");
    let [height, width] = shape.bordered();
    for_parts(pool, to, width * shape.channels, |task, line| {
        let (image_index, y) = (task / height, (task % height).wrapping_sub(shape.pads[0]));
        if y >= shape.height {
            return line.fill(0.0);
        }
        let (before, rest) = line.split_at_mut(shape.pads[1] * shape.channels);
        let (middle, after) = rest.split_at_mut(shape.width * shape.channels);
        before.fill(0.0);
        let from = (image_index * shape.height + y) * shape.width * shape.channels;
        middle.copy_from_slice(&image[from..from + middle.len()]);
        after.fill(0.0);
    });
}
