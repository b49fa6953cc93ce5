//! Sizes and pads of sliding windows.

/// ONNX `auto_pad`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoPad {
    /// The explicit pads count.
    NotSet,
    Valid,
    /// Output size is input size / stride, rounded up; an odd pad goes to the end.
    SameUpper,
    /// As above; an odd pad goes to the beginning.
    SameLower,
}

/// Reach of a dilated kernel.
fn extent(kernel: usize, dilation: usize) -> Option<usize> {
    kernel.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)
}

/// Splits a pad into begin and end.
fn halves(auto: AutoPad, total: usize) -> (usize, usize) {
    match auto {
        AutoPad::SameLower => (total - total / 2, total / 2),
        _ => (total / 2, total - total / 2),
    }
}

/// Pads of a sliding window, all begins and then all ends; `None` when sizes do not fit this machine.
pub fn resolve_pads(
    auto: AutoPad,
    explicit: &[usize],
    input: &[usize],
    kernel: &[usize],
    strides: &[usize],
    dilations: &[usize],
) -> Option<Vec<usize>> {
    let rank = input.len();
    match auto {
        AutoPad::NotSet => Some(explicit.to_vec()),
        AutoPad::Valid => Some(vec![0; 2 * rank]),
        AutoPad::SameUpper | AutoPad::SameLower => {
            let mut pads = vec![0; 2 * rank];
            for axis in 0..rank {
                let out = input[axis].div_ceil(strides[axis]);
                let needed = out
                    .checked_sub(1)?
                    .checked_mul(strides[axis])?
                    .checked_add(extent(kernel[axis], dilations[axis])?)?;
                (pads[axis], pads[rank + axis]) = halves(auto, needed.saturating_sub(input[axis]));
            }
            Some(pads)
        }
    }
}

/// Output sizes of a sliding window; `None` when the window does not fit into the padded input.
///
/// In ceiling mode a window that would start in the end pad is left out.
pub fn window_outputs(
    input: &[usize],
    kernel: &[usize],
    strides: &[usize],
    pads: &[usize],
    dilations: &[usize],
    ceil: bool,
) -> Option<Vec<usize>> {
    let rank = input.len();
    (0..rank)
        .map(|axis| {
            let padded = input[axis].checked_add(pads[axis])?.checked_add(pads[rank + axis])?;
            let room = padded.checked_sub(extent(kernel[axis], dilations[axis])?)?;
            let floor = room / strides[axis] + 1;
            if !ceil {
                return Some(floor);
            }
            let out = room.div_ceil(strides[axis]) + 1;
            let starts_outside = (out - 1).checked_mul(strides[axis])? >= input[axis] + pads[axis];
            Some(if starts_outside { out - 1 } else { out })
        })
        .collect()
}

/// Begin pads and output sizes of a transposed convolution; `None` when they are impossible.
pub fn transposed_pads(
    auto: AutoPad,
    explicit: &[usize],
    output_shape: Option<&[usize]>,
    output_padding: &[usize],
    [input, kernel, strides, dilations]: [&[usize]; 4],
) -> Option<(Vec<usize>, Vec<usize>)> {
    let rank = input.len();
    let mut begins = Vec::with_capacity(rank);
    let mut sizes = Vec::with_capacity(rank);
    for axis in 0..rank {
        let full = input[axis]
            .checked_sub(1)?
            .checked_mul(strides[axis])?
            .checked_add(output_padding[axis])?
            .checked_add(extent(kernel[axis], dilations[axis])?)?;
        let asked = match (output_shape, auto) {
            (Some(shape), _) => Some(shape[axis]),
            (None, AutoPad::SameUpper | AutoPad::SameLower) => Some(input[axis].checked_mul(strides[axis])?),
            (None, _) => None,
        };
        let (begin, size) = match (asked, auto) {
            (Some(asked), _) => (halves_transposed(auto, full.saturating_sub(asked)), asked),
            (None, AutoPad::Valid) => (0, full),
            (None, _) => {
                let cut = explicit[axis].checked_add(explicit[rank + axis])?;
                (explicit[axis], full.checked_sub(cut)?)
            }
        };
        begins.push(begin);
        sizes.push(size);
    }
    Some((begins, sizes))
}

/// Begin part of what a transposed convolution cuts off. ONNX gives the odd one to the begin, but for SAME_UPPER.
fn halves_transposed(auto: AutoPad, total: usize) -> usize {
    match auto {
        AutoPad::SameUpper => total / 2,
        _ => total - total / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_pads_give_the_input_size_over_the_stride() {
        for (input, kernel, stride) in [(7, 3, 2), (8, 3, 2), (5, 2, 1), (4, 1, 3), (224, 7, 2)] {
            for auto in [AutoPad::SameUpper, AutoPad::SameLower] {
                let pads = resolve_pads(auto, &[], &[input], &[kernel], &[stride], &[1]).unwrap();
                let out = window_outputs(&[input], &[kernel], &[stride], &pads, &[1], false).unwrap();
                assert_eq!(out, [input.div_ceil(stride)], "{input} {kernel} {stride} {auto:?}");
            }
        }
    }

    #[test]
    fn ceiling_leaves_out_a_window_that_starts_in_the_end_pad() {
        // 1 element, pads 1 and 1, kernel 1, stride 2: positions 0 and 2 exist, 2 lies in the end pad.
        assert_eq!(window_outputs(&[1], &[1], &[2], &[1, 1], &[1], true), Some(vec![1]));
        assert_eq!(window_outputs(&[6], &[3], &[2], &[0, 0], &[1], true), Some(vec![3]));
    }

    #[test]
    fn a_window_larger_than_its_input_has_no_output() {
        assert_eq!(window_outputs(&[2], &[3], &[1], &[0, 0], &[1], false), None);
        assert_eq!(window_outputs(&[2], &[usize::MAX], &[1], &[0, 0], &[2], false), None);
    }
}
