//! Convolutions and pools over three axes, and convolutions whose weights are computed in the graph.

use super::{
    super::program::{ImageShape, MatrixStrides, MoveAxis, MovePart, PoolFunction, StepKind, VolumeSizes},
    Lowered, Lowering, constant,
    movement::image_strides,
    strides_of,
};
use crate::draft::{Role, WeightSource};
use planforge_graph::ir::{Activation, Conv, Node, Pool, PoolKind};
use planforge_graph::shape::taps_are_few;
use planforge_kernels_cpu::conv::TAP_CHANNELS_MAX;

/// Bytes that the rows of a convolution may take as a matrix.
const ROWS_MAX_BYTES: usize = 1 << 30;

impl Lowering<'_> {
    pub(super) fn volume(&mut self, node: &Node, conv: &Conv) -> Lowered<bool> {
        let (Some(x), Some(w)) = (node.input(0), node.input(1)) else { return Ok(false) };
        let output = node.outputs[0];
        let (shape, out) = (self.shape(x)?, self.shape(output)?);
        let Some(weights) = self.constant_f32(w).cloned() else { return Ok(false) };
        if shape.len() != 5 || !self.is_f32(x) || shape.contains(&0) || out.contains(&0) {
            return Ok(false);
        }
        let kernel = &weights.shape()[2..];
        let (strides, dilations, pads) = (&conv.strides, &conv.dilations, &conv.pads);
        let plane = ImageShape {
            batch: shape[0],
            height: shape[3],
            width: shape[4],
            channels: shape[1],
            out_height: out[3],
            out_width: out[4],
            out_channels: out[1],
            kernel: [kernel[1], kernel[2]],
            strides: [strides[1], strides[2]],
            dilations: [dilations[1], dilations[2]],
            pads: [pads[1], pads[2]],
            groups: conv.groups,
        };
        let Some(bias) = self.bias(node.input(2), out[1]) else { return Ok(false) };
        if shape[1] / conv.groups > TAP_CHANNELS_MAX {
            return Ok(false);
        }
        let volume = VolumeSizes {
            plane,
            depth: shape[2],
            out_depth: out[2],
            kernel: kernel[0],
            stride: strides[0],
            dilation: dilations[0],
            pad: pads[0],
        };
        let mut inputs = vec![Some(self.image(x)?)];
        if let Some(residual) = node.input(3) {
            inputs.push(Some(self.image(residual)?));
        }
        let to = self.temporary(output, " (NHWC)")?;
        self.placed[output.index()].image = Some(to);
        let kind = StepKind::Volume { shape: volume, activation: conv.epilogue.activation };
        let (kernel, channels) = ([kernel[0] * kernel[1], kernel[2]], shape[1] / conv.groups);
        self.emit(&node.origins, kind, inputs, vec![to]);
        if let Some(last) = self.draft.steps.last_mut() {
            let (out_channels, groups) = (out[1], conv.groups);
            last.weights = Some(WeightSource::Conv { data: weights, out_channels, channels, kernel, groups });
            last.bias = bias;
        }
        Ok(true)
    }

    /// A pool over three axes as one over planes and one over what stands over them.
    pub(super) fn pool_volume(&mut self, node: &Node, pool: &Pool) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let output = node.outputs[0];
        let (shape, out) = (self.shape(x)?, self.shape(output)?);
        let few = taps_are_few(&pool.kernel, &out);
        if shape.len() != 5 || !self.is_f32(x) || shape.contains(&0) || out.contains(&0) || !few {
            return Ok(false);
        }
        let function = match pool.kind {
            PoolKind::Max => PoolFunction::Max,
            PoolKind::Average { count_pad } => PoolFunction::Average { count_pad },
        };
        let from = self.image(x)?;
        let planes = ImageShape {
            batch: shape[0] * shape[2],
            height: shape[3],
            width: shape[4],
            channels: shape[1],
            out_height: out[3],
            out_width: out[4],
            out_channels: shape[1],
            kernel: [pool.kernel[1], pool.kernel[2]],
            strides: [pool.strides[1], pool.strides[2]],
            dilations: [pool.dilations[1], pool.dilations[2]],
            pads: [pool.pads[1], pool.pads[2]],
            groups: 1,
        };
        let line = out[3] * out[4] * shape[1];
        let columns = ImageShape {
            batch: shape[0],
            height: shape[2],
            width: 1,
            channels: line,
            out_height: out[2],
            out_width: 1,
            out_channels: line,
            kernel: [pool.kernel[0], 1],
            strides: [pool.strides[0], 1],
            dilations: [pool.dilations[0], 1],
            pads: [pool.pads[0], 0],
            groups: 1,
        };
        let padded = |axis: usize| pool.pads[axis] + shape[axis + 2] + pool.pads[axis + 3];
        let name = format!("{} (planes)", self.graph.value(output).name);
        let between = self.draft.add_buffer(name, 4 * (shape[0] * shape[2] * line) as u64, Role::Temporary);
        let to = self.temporary(output, " (NHWC)")?;
        self.placed[output.index()].image = Some(to);
        let kind = StepKind::Pool { shape: planes, function, padded: [padded(1), padded(2)] };
        self.emit(&node.origins, kind, vec![Some(from)], vec![between]);
        let kind = StepKind::Pool { shape: columns, function, padded: [padded(0), 1] };
        self.emit(&node.origins, kind, vec![Some(between)], vec![to]);
        Ok(true)
    }

    /// Weights that are no constants: the rows of the product are copied out of the padded image, and both operands
    /// multiplied as they are.
    pub(super) fn late_conv(&mut self, node: &Node, conv: &Conv) -> Lowered<bool> {
        let (Some(x), Some(w), None) = (node.input(0), node.input(1), node.input(3)) else { return Ok(false) };
        let output = node.outputs[0];
        let (shape, out, kernel) = (self.shape(x)?, self.shape(output)?, self.shape(w)?);
        let spatial = shape.len() - 2;
        let (depth, taps) = (kernel[1..].iter().product::<usize>(), kernel[2..].iter().product::<usize>());
        let pixels: usize = out[2..].iter().product();
        let bytes = [shape[0], pixels, depth, conv.groups, 4].into_iter().try_fold(1usize, |all, n| all.checked_mul(n));
        let fits = bytes.is_some_and(|bytes| bytes <= ROWS_MAX_BYTES);
        let constant_bias = self.bias(node.input(2), out[1]);
        if !self.is_f32(x) || !self.is_f32(w) || shape.contains(&0) || out.contains(&0) || depth == 0 || !fits {
            return Ok(false);
        }
        if node.input(2).is_some_and(|bias| !self.is_f32(bias)) {
            return Ok(false);
        }
        let name = self.graph.value(output).name.clone();
        let (channels, groups) = (shape[1], conv.groups);
        let group_channels = channels / groups;
        // The image with its border, channels innermost.
        let needed = |axis: usize| {
            let reach = (out[axis + 2] - 1) * conv.strides[axis] + (kernel[axis + 2] - 1) * conv.dilations[axis] + 1;
            reach.max(conv.pads[axis] + shape[axis + 2])
        };
        let bordered: Vec<usize> = [shape[0], channels].into_iter().chain((0..spatial).map(needed)).collect();
        let (from, from_strides) = self.lies(x)?;
        let to_strides = image_strides(&bordered);
        let count: usize = bordered.iter().product();
        let image = self.draft.add_buffer(format!("{name} (image with border)"), 4 * count as u64, Role::Temporary);
        let zero = self.draft.add_buffer("0", 4, constant(&[0.0]));
        let inside = MovePart {
            input: 0,
            from: 0,
            to: (0..spatial).map(|axis| conv.pads[axis] * to_strides[axis + 2]).sum(),
            axes: (0..shape.len())
                .map(|axis| MoveAxis { size: shape[axis], from: from_strides[axis] as isize, to: to_strides[axis] })
                .collect(),
        };
        let all = MovePart { input: 1, from: 0, to: 0, axes: vec![MoveAxis { size: count, from: 0, to: 1 }] };
        let kind = StepKind::Move { element_bytes: 4, parts: vec![all, inside] };
        self.emit(&node.origins, kind, vec![Some(from), Some(zero)], vec![image]);
        // Rows: (image, group, pixel) by (tap, channel): the weights are brought in that order as well.
        let rows_bytes = bytes.unwrap_or(0) as u64;
        let rows = self.draft.add_buffer(format!("{name} (rows)"), rows_bytes, Role::Temporary);
        let mut axes = vec![
            MoveAxis { size: shape[0], from: to_strides[0] as isize, to: groups * pixels * depth },
            MoveAxis { size: groups, from: group_channels as isize, to: pixels * depth },
            MoveAxis { size: group_channels, from: 1, to: 1 },
        ];
        let (out_steps, tap_steps) = (strides_of(&out[2..]), strides_of(&kernel[2..]));
        for axis in 0..spatial {
            let along = to_strides[axis + 2];
            axes.push(MoveAxis {
                size: out[axis + 2],
                from: (along * conv.strides[axis]) as isize,
                to: out_steps[axis] * depth,
            });
            axes.push(MoveAxis {
                size: kernel[axis + 2],
                from: (along * conv.dilations[axis]) as isize,
                to: tap_steps[axis] * group_channels,
            });
        }
        let kind = StepKind::Move { element_bytes: 4, parts: vec![MovePart { input: 0, from: 0, to: 0, axes }] };
        self.emit(&node.origins, kind, vec![Some(image)], vec![rows]);
        let given = self.row(w)?;
        let ordered = if taps == 1 || group_channels == 1 {
            given
        } else {
            let ordered = self.draft.add_buffer(format!("{name} (weights)"), self.bytes(w)?, Role::Temporary);
            let kind = StepKind::Transpose { shape: vec![kernel[0], group_channels, taps], perm: vec![0, 2, 1] };
            self.emit(&node.origins, kind, vec![Some(given)], vec![ordered]);
            ordered
        };
        let columns = out[1] / groups;
        let items = (0..shape[0] * groups)
            .map(|item| {
                let (image, group) = (item / groups, item % groups);
                [item * pixels * depth, group * columns * depth, image * pixels * out[1] + group * columns]
            })
            .collect();
        let activation: Option<Activation> = conv.epilogue.activation;
        // A bias per column is one list for all groups here; otherwise, and where it is computed, it is added behind.
        let own_bias = constant_bias.clone().flatten().filter(|_| groups == 1);
        let added = if own_bias.is_none() { node.input(2) } else { None };
        let kind = StepKind::BatchGemm {
            rows: pixels,
            columns,
            depth,
            alpha: 1.0,
            activation: activation.filter(|_| added.is_none()),
            a: MatrixStrides { row: depth, column: 1 },
            b: MatrixStrides { row: 1, column: depth },
            c_row: out[1],
            items,
        };
        let to = self.temporary(output, " (NHWC)")?;
        self.emit(&node.origins, kind, vec![Some(rows), Some(ordered)], vec![to]);
        if let Some(last) = self.draft.steps.last_mut() {
            last.bias = own_bias;
        }
        self.placed[output.index()].image = Some(to);
        if let Some(bias) = added {
            let to = self.add_by_channel(node, to, bias, activation)?;
            self.placed[output.index()].image = Some(to);
        }
        Ok(true)
    }
}
