//! Transposed convolutions as convolutions: what lies `stride` apart in the result is one dense convolution of the input,
//! with every `stride`-th position of the kernel. All of these phases are one convolution with so many times the channels,
//! whose result is then spread.

use super::{
    super::program::{ImageShape, MoveAxis, MovePart, StepKind},
    Lowered, Lowering, constant,
};
use crate::draft::{Role, WeightSource};
use planforge_graph::ir::{ConvTranspose, Node, Tensor};
use planforge_kernels_cpu::conv::TAP_CHANNELS_MAX;

/// One axis of a transposed convolution.
#[derive(Clone, Copy, Debug)]
struct Axis {
    size: usize,
    out: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pad: usize,
}

impl Axis {
    /// Positions of the kernel that one phase takes.
    fn taps(self) -> usize {
        self.kernel.div_ceil(self.stride)
    }

    /// The first position of the dense convolutions that is computed, and how many are.
    fn dense(self) -> (usize, usize) {
        let reach = (self.taps() - 1) * self.dilation;
        let first = (self.pad / self.stride).min(reach);
        let last = (self.out - 1 + self.pad) / self.stride;
        (first, last + 1 - first)
    }

    /// Padding of the dense convolutions.
    fn dense_pad(self) -> usize {
        (self.taps() - 1) * self.dilation - self.dense().0
    }

    /// Of phase `phase`: the first dense position that lies in the result, where it lies there, and how many do.
    fn placed(self, phase: usize) -> (usize, usize, usize) {
        let first = self.pad.saturating_sub(phase).div_ceil(self.stride);
        let at = first * self.stride + phase - self.pad;
        let count = if at < self.out { (self.out - 1 - at) / self.stride + 1 } else { 0 };
        (first - self.dense().0, at, count)
    }
}

impl Lowering<'_> {
    pub(super) fn conv_transpose(&mut self, node: &Node, conv: &ConvTranspose) -> Lowered<bool> {
        let (Some(x), Some(w)) = (node.input(0), node.input(1)) else { return Ok(false) };
        let output = node.outputs[0];
        let (shape, out) = (self.shape(x)?, self.shape(output)?);
        let Some(weights) = self.constant_f32(w).cloned() else { return Ok(false) };
        let spatial = shape.len() - 2;
        if !self.is_f32(x) || !(1..=2).contains(&spatial) || shape.contains(&0) || out.contains(&0) {
            return Ok(false);
        }
        let strided = conv.strides.iter().any(|&stride| stride > 1);
        if strided && conv.dilations.iter().any(|&dilation| dilation > 1) {
            return Ok(false);
        }
        // A missing first axis has one position.
        let one = Axis { size: 1, out: 1, kernel: 1, stride: 1, dilation: 1, pad: 0 };
        let mut axes = [one; 2];
        for axis in 0..spatial {
            axes[axis + 2 - spatial] = Axis {
                size: shape[axis + 2],
                out: out[axis + 2],
                kernel: weights.shape()[axis + 2],
                stride: conv.strides[axis],
                dilation: conv.dilations[axis],
                pad: conv.pads[axis],
            };
        }
        let [high, wide] = axes;
        let (channels, per_group, groups) = (shape[1], weights.shape()[1], conv.groups);
        let group_channels = channels / groups;
        let phases = high.stride * wide.stride;
        if group_channels > TAP_CHANNELS_MAX || phases > 4096 || phases * per_group > 1 << 20 {
            return Ok(false);
        }
        let Some(bias) = self.bias(node.input(2), out[1]) else { return Ok(false) };
        let taps = [high.taps(), wide.taps()];
        let values = weights.values::<f32>().unwrap_or_default();
        let at = |channel: usize, own: usize, [y, x]: [usize; 2]| {
            let inside = y < high.kernel && x < wide.kernel;
            let place = ((channel * per_group + own) * high.kernel + y) * wide.kernel + x;
            if inside { values[place] } else { 0.0 }
        };
        // The position of the kernel behind tap `tap` of a phase; taps run backwards.
        let position = |tap: [usize; 2], phase: usize| {
            let (y, x) = (phase / wide.stride, phase % wide.stride);
            [y + high.stride * (taps[0] - 1 - tap[0]), x + wide.stride * (taps[1] - 1 - tap[1])]
        };
        let image = |out_channels: usize| ImageShape {
            batch: shape[0],
            height: high.size,
            width: wide.size,
            channels,
            out_height: high.dense().1,
            out_width: wide.dense().1,
            out_channels,
            kernel: taps,
            strides: [1, 1],
            dilations: [high.dilation, wide.dilation],
            pads: [high.dense_pad(), wide.dense_pad()],
            groups,
        };
        let from = self.image(x)?;
        let name = self.graph.value(output).name.clone();
        let depthwise = groups > 1 && group_channels == 1 && per_group == 1;
        let mut inputs = Vec::new();
        if depthwise {
            let shape = image(channels);
            let bytes = 4 * (shape.batch * shape.out_height * shape.out_width * channels) as u64;
            for phase in 0..phases {
                let mut by_tap = Vec::with_capacity(taps[0] * taps[1] * channels);
                for tap in 0..taps[0] * taps[1] {
                    let position = position([tap / taps[1], tap % taps[1]], phase);
                    by_tap.extend((0..channels).map(|channel| at(channel, 0, position)));
                }
                let bias = bias.clone().unwrap_or_else(|| vec![0.0; channels]);
                let weights = self.draft.add_buffer(
                    format!("{name} (phase {phase})"),
                    (by_tap.len() * 4) as u64,
                    constant(&by_tap),
                );
                let bias = self.draft.add_buffer(format!("{name} (bias)"), (bias.len() * 4) as u64, constant(&bias));
                let to = self.draft.add_buffer(format!("{name} (phase {phase}, NHWC)"), bytes, Role::Temporary);
                self.emit(&node.origins, StepKind::Depthwise { shape, activation: None }, vec![Some(from)], vec![to]);
                if let Some(last) = self.draft.steps.last_mut() {
                    (last.step.weights, last.step.bias) = (Some(weights), Some(bias));
                }
                inputs.push(Some(to));
            }
        } else {
            let shape = image(groups * phases * per_group);
            let bytes = 4 * (shape.batch * shape.out_height * shape.out_width * shape.out_channels) as u64;
            let mut dense = Vec::with_capacity(shape.out_channels * group_channels * taps[0] * taps[1]);
            for out_channel in 0..shape.out_channels {
                let (group, rest) = (out_channel / (phases * per_group), out_channel % (phases * per_group));
                let (phase, own) = (rest / per_group, rest % per_group);
                for channel in 0..group_channels {
                    for tap in 0..taps[0] * taps[1] {
                        let position = position([tap / taps[1], tap % taps[1]], phase);
                        dense.push(at(group * group_channels + channel, own, position));
                    }
                }
            }
            let bias = bias.map(|bias| {
                (0..shape.out_channels)
                    .map(|channel| {
                        let (group, own) = (channel / (phases * per_group), channel % per_group);
                        bias[group * per_group + own]
                    })
                    .collect()
            });
            let of = vec![shape.out_channels, group_channels, taps[0], taps[1]];
            let Ok(data) = Tensor::from_vec(of, dense) else { return Ok(false) };
            let whole = phases == 1
                && [high, wide]
                    .into_iter()
                    .all(|axis| axis.placed(0) == (0, 0, axis.out) && axis.dense().1 == axis.out);
            let to = match whole {
                true => self.temporary(output, " (NHWC)")?,
                false => self.draft.add_buffer(format!("{name} (phases, NHWC)"), bytes, Role::Temporary),
            };
            self.emit(&node.origins, StepKind::Conv { shape, activation: None }, vec![Some(from)], vec![to]);
            if let Some(last) = self.draft.steps.last_mut() {
                last.weights = Some(WeightSource::Conv {
                    data,
                    out_channels: shape.out_channels,
                    channels: group_channels,
                    kernel: taps,
                    groups,
                });
                last.bias = bias;
            }
            if whole {
                self.placed[output.index()].image = Some(to);
                return Ok(true);
            }
            inputs.push(Some(to));
        }
        // Each phase to its place.
        let (dense_height, dense_width) = (high.dense().1, wide.dense().1);
        let pixel = if depthwise { channels } else { groups * phases * per_group };
        let to = self.temporary(output, " (NHWC)")?;
        self.placed[output.index()].image = Some(to);
        let mut parts = Vec::new();
        for phase in 0..phases {
            let (top, row, rows) = high.placed(phase / wide.stride);
            let (left, column, columns) = wide.placed(phase % wide.stride);
            if rows == 0 || columns == 0 {
                continue;
            }
            let axis = |size: usize, from: usize, to: usize| MoveAxis { size, from: from as isize, to };
            let own = if depthwise { 0 } else { phase * per_group };
            let (group_axis, own_axis) = match depthwise {
                true => (axis(1, 0, 0), axis(channels, 1, 1)),
                false => (axis(groups, phases * per_group, per_group), axis(per_group, 1, 1)),
            };
            parts.push(MovePart {
                input: if depthwise { phase } else { 0 },
                from: (top * dense_width + left) * pixel + own,
                to: (row * wide.out + column) * out[1],
                axes: vec![
                    axis(shape[0], dense_height * dense_width * pixel, high.out * wide.out * out[1]),
                    axis(rows, dense_width * pixel, high.stride * wide.out * out[1]),
                    axis(columns, pixel, wide.stride * out[1]),
                    group_axis,
                    own_axis,
                ],
            });
        }
        self.emit(&node.origins, StepKind::Move { element_bytes: 4, parts }, inputs, vec![to]);
        Ok(true)
    }
}
