//! The largest byte of each window.

use super::{
    depthwise::{is_outside, offsets_of},
    flip,
};
use crate::{
    conv::ConvShape,
    isa::{Isa, per_level},
    pool::{ThreadPool, for_parts},
};

per_level! {
    /// Where `x` is larger than what is there; both as unsigned bytes after `by`.
    fn raise(x: &[u8], by: u8, to: &mut [u8]) {
        for (to, x) in to.iter_mut().zip(x) {
            *to = (*to ^ by).max(*x ^ by) ^ by;
        }
    }
}

/// The largest byte of each window of an NHWC image; what lies beyond its edges counts for nothing. A window without any
/// byte gives the smallest there is.
///
/// # Panics
/// When image or output are not as large as the shape says, or the shape changes channels.
pub fn max_pool(isa: Isa, pool: &ThreadPool, shape: &ConvShape, signed: bool, image: &[u8], to: &mut [u8]) {
    let one = ConvShape { groups: 1, ..*shape };
    one.check_sizes(image.len());
    assert_eq!(shape.channels, shape.out_channels, "a pool keeps its channels");
    assert_eq!(to.len(), shape.output_len(), "the output is not as large as the shape");
    let (channels, by) = (shape.channels, flip(signed));
    let line = shape.out_width * channels;
    for_parts(pool, to, line, |task, to| {
        let mut offsets = vec![0; shape.kernel[0] * shape.kernel[1]];
        for (x, to) in to.chunks_exact_mut(channels).enumerate() {
            offsets_of(shape, task * shape.out_width + x, &mut offsets);
            to.fill(by);
            for &offset in offsets.iter().filter(|&&offset| !is_outside(offset)) {
                raise(isa, &image[offset..offset + channels], by, to);
            }
        }
    });
}
