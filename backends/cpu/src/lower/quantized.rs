//! Products, convolutions and pools of 8-bit integers.

use super::{Lowered, Lowering, attention::aligned_strides, image_shape};
use crate::{
    draft::{Role, WeightSource},
    program::{AttentionSizes, BufferId, ByteAttention, ImageShape, MovePart, StepKind, SumsTo, WeightSteps},
};
use bytes::Bytes;
use planforge_graph::{
    ir::{ElementType, NamedOp, Node, Pool, PoolKind, Tensor, ValueId},
    named::{
        integer_attention::how_of,
        quantized::{DEPTH_MAX, conv_of, result_element},
    },
};
use planforge_kernels_cpu::quantized::depthwise_weights;

/// What becomes of the sums of `named`, whose factor is of this type.
fn sums_to(named: &NamedOp, factor: Option<ElementType>) -> Option<SumsTo> {
    let small = |name: &str| i32::try_from(named.int(name, 0)).ok();
    Some(match (result_element(named)?, factor) {
        (ElementType::I32, _) => SumsTo::Sums,
        (ElementType::F32, Some(ElementType::F64)) => SumsTo::Scaled,
        (ElementType::F32, _) => SumsTo::Floats,
        _ => SumsTo::Integers { zero: small("zero")?, low: small("low")?, high: small("high")? },
    })
}

impl Lowering<'_> {
    fn is_signed(&self, id: ValueId) -> bool {
        self.graph.value(id).element == ElementType::I8
    }

    /// A row of bytes turned into an NHWC image.
    pub(super) fn turned(&mut self, id: ValueId, row: BufferId) -> Lowered<BufferId> {
        let shape = self.shape(id)?;
        let order: Vec<usize> = [0].into_iter().chain(2..shape.len()).chain([1]).collect();
        let strides = super::strides_of(&shape);
        let sizes: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        let from: Vec<usize> = order.iter().map(|&axis| strides[axis]).collect();
        let axes = super::movement::axes(&sizes, &from, &super::strides_of(&sizes));
        let buffer = self.temporary(id, " (NHWC)")?;
        let kind = StepKind::Move {
            element_bytes: self.graph.value(id).element.bytes(),
            parts: vec![MovePart { input: 0, from: 0, to: 0, axes }],
        };
        self.emit(&self.layout_origin(id, "NHWC"), kind, vec![Some(row)], vec![buffer]);
        Ok(buffer)
    }

    /// Zero points of constant weights as numbers, moved as unsigned weights are when they are packed.
    fn column_zeros(&self, node: &Node) -> Option<Vec<i32>> {
        let Some(id) = node.input(3) else { return Some(Vec::new()) };
        let tensor = self.graph.constant(id)?;
        let by = if tensor.element() == ElementType::U8 { 128 } else { 0 };
        Some(tensor.to_i64s()?.into_iter().map(|zero| zero as i32 - by).collect())
    }

    /// What products have beside their left operand: its zero point, those of columns, bias and factor.
    fn beside(&mut self, node: &Node, zeros: Option<&[i32]>) -> Lowered<Vec<Option<BufferId>>> {
        let mut inputs = vec![node.input(2).map(|id| self.row(id)).transpose()?];
        let name = node.input(1).map(|id| self.graph.value(id).name.clone()).unwrap_or_default();
        inputs.push(zeros.map(|zeros| {
            let bytes = Bytes::copy_from_slice(bytemuck::cast_slice(zeros));
            self.draft.add_buffer(format!("{name} (zero points)"), bytes.len() as u64, Role::Constant(bytes))
        }));
        for position in [4, 5] {
            inputs.push(node.input(position).map(|id| self.row(id)).transpose()?);
        }
        Ok(inputs)
    }

    /// Weights that are stored, what becomes of their sums, and their zero points.
    fn parts(&self, node: &Node, named: &NamedOp) -> Option<(Tensor, SumsTo, Vec<i32>)> {
        let weights = self.graph.constant(node.input(1)?)?.clone();
        let factor = node.input(5).map(|id| self.graph.value(id).element);
        let zeros = self.column_zeros(node)?;
        // Unsigned weights are moved, and so is a zero point that is not there.
        let moved = zeros.is_empty() && weights.element() == ElementType::U8;
        Some((weights, sums_to(named, factor)?, if moved { vec![-128] } else { zeros }))
    }

    pub(super) fn integer_product(&mut self, node: &Node, named: &NamedOp) -> Lowered<bool> {
        let (Some(x), Some((data, to, zeros))) = (node.input(0), self.parts(node, named)) else { return Ok(false) };
        let (shape, output) = (self.shape(x)?, node.outputs[0]);
        let (depth, columns) = (data.shape()[0], data.shape()[1]);
        if self.shape(output)?.contains(&0) || depth == 0 {
            return Ok(false);
        }
        let rows = shape[..shape.len() - 1].iter().product();
        let mut inputs = vec![Some(self.row(x)?)];
        inputs.extend(self.beside(node, (!zeros.is_empty()).then_some(&zeros))?);
        let buffer = self.temporary(output, "")?;
        self.placed[output.index()].row = Some(buffer);
        let kind = StepKind::IntegerGemm { rows, columns, depth, signed: self.is_signed(x), to };
        self.emit(&node.origins, kind, inputs, vec![buffer]);
        if let Some(last) = self.draft.steps.last_mut() {
            last.weights = Some(WeightSource::IntegerMatrix { data, depth, columns });
        }
        Ok(true)
    }

    pub(super) fn integer_conv(&mut self, node: &Node, named: &NamedOp) -> Lowered<bool> {
        let (Some(x), Some((data, to, zeros)), Some(conv)) = (node.input(0), self.parts(node, named), conv_of(named))
        else {
            return Ok(false);
        };
        let (shape, output) = (self.shape(x)?, node.outputs[0]);
        let out = self.shape(output)?;
        let Some(image) =
            image_shape(&shape, &out, &data.shape()[2..], &conv.strides, &conv.dilations, &conv.pads, conv.groups)
        else {
            return Ok(false);
        };
        if out.contains(&0) || shape.contains(&0) {
            return Ok(false);
        }
        let depthwise = image.groups > 1 && image.groups == image.channels && image.out_channels == image.channels;
        let mut inputs = vec![Some(self.image(x)?)];
        let beside = (!zeros.is_empty() && !depthwise).then_some(zeros.as_slice());
        inputs.extend(self.beside(node, beside)?);
        let buffer = self.temporary(output, " (NHWC)")?;
        self.placed[output.index()].image = Some(buffer);
        let signed = self.is_signed(x);
        if depthwise {
            let weights = self.by_tap(&data, &image, &zeros);
            let name = node.input(1).map(|id| self.graph.value(id).name.clone()).unwrap_or_default();
            let weights =
                self.draft.add_buffer(format!("{name} (by tap)"), weights.len() as u64, Role::Constant(weights.into()));
            self.emit(&node.origins, StepKind::IntegerDepthwise { shape: image, signed, to }, inputs, vec![buffer]);
            if let Some(last) = self.draft.steps.last_mut() {
                last.step.weights = Some(weights);
            }
            return Ok(true);
        }
        self.emit(&node.origins, StepKind::IntegerConv { shape: image, signed, to }, inputs, vec![buffer]);
        if let Some(last) = self.draft.steps.last_mut() {
            last.weights = Some(WeightSource::IntegerConv {
                data,
                out_channels: image.out_channels,
                channels: image.channels / image.groups,
                kernel: image.kernel,
                groups: image.groups,
            });
        }
        Ok(true)
    }

    /// Weights of a depthwise convolution without their zero points.
    fn by_tap(&self, data: &Tensor, image: &ImageShape, zeros: &[i32]) -> Vec<u8> {
        let taps = image.kernel[0] * image.kernel[1];
        let unsigned = data.element() == ElementType::U8;
        let bytes = data.bytes();
        depthwise_weights(taps, image.channels, |tap, channel| {
            let byte = bytes[channel * taps + tap];
            let value = if unsigned { i32::from(byte) - 128 } else { i32::from(byte as i8) };
            let zero = match zeros {
                [] => 0,
                [one] => *one,
                all => all[channel],
            };
            (value - zero) as i16
        })
    }

    pub(super) fn integer_attention(&mut self, node: &Node, named: &NamedOp) -> Lowered<bool> {
        let (Some(q), Some(k), Some(v), Some(factor)) = (node.input(0), node.input(1), node.input(2), node.input(4))
        else {
            return Ok(false);
        };
        let elements = [q, k, v].map(|id| self.graph.value(id).element);
        let (Some(how), Some(factor)) = (how_of(named, elements), self.graph.constant(factor)) else {
            return Ok(false);
        };
        let factor = factor.to_f64s()[0];
        let (q_shape, v_shape) = (self.shape(q)?, self.shape(v)?);
        let lead = q_shape.len() - 2;
        let ([queries, depth], [keys, value_depth]) =
            ([q_shape[lead], q_shape[lead + 1]], [v_shape[lead], v_shape[lead + 1]]);
        if q_shape.contains(&0) || v_shape.contains(&0) || depth > DEPTH_MAX || keys > DEPTH_MAX {
            return Ok(false);
        }
        // Without heads, every image has one: it has no axis that a mask could differ along.
        let (batch, heads) = (q_shape[0], if lead == 2 { q_shape[1] } else { 1 });
        let mask_strides = match node.input(3) {
            Some(mask) => {
                let scores = [&q_shape[..lead], &[queries, keys]].concat();
                let strides = aligned_strides(&scores, &self.shape(mask)?);
                if lead == 2 {
                    [strides[0], strides[1], strides[2], strides[3]]
                } else {
                    [strides[0], 0, strides[1], strides[2]]
                }
            }
            None => [0; 4],
        };
        let mut inputs = vec![Some(self.row(q)?), Some(self.row(k)?), Some(self.row(v)?)];
        if let Some(mask) = node.input(3) {
            inputs.push(Some(self.row(mask)?));
        }
        let to = match how.to {
            Some(bytes) => {
                let [low, high] = bytes.limits();
                SumsTo::Integers { zero: bytes.zero, low, high }
            }
            None => SumsTo::Scaled,
        };
        let kind = StepKind::IntegerAttention {
            sizes: AttentionSizes { batch, heads, queries, keys, depth, value_depth, scale: how.scale, guarded: false },
            bytes: ByteAttention {
                signed: elements.map(|element| element == ElementType::I8),
                zeros: how.zeros,
                turned: how.turned,
                weights: WeightSteps {
                    scale: how.weights.scale,
                    zero: how.weights.bytes.zero,
                    signed: how.weights.bytes.element == ElementType::I8,
                },
                factor,
                to,
            },
            mask: mask_strides,
        };
        let output = node.outputs[0];
        let buffer = self.temporary(output, "")?;
        self.placed[output.index()].row = Some(buffer);
        self.emit(&node.origins, kind, inputs, vec![buffer]);
        Ok(true)
    }

    /// The largest byte of each window.
    pub(super) fn integer_pool(&mut self, node: &Node, pool: &Pool) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let output = node.outputs[0];
        let (shape, out) = (self.shape(x)?, self.shape(output)?);
        let byte = matches!(self.graph.value(x).element, ElementType::U8 | ElementType::I8);
        let image = image_shape(&shape, &out, &pool.kernel, &pool.strides, &pool.dilations, &pool.pads, 1);
        let Some(shape) = image.filter(|_| byte && pool.kind == PoolKind::Max && !shape.contains(&0)) else {
            return Ok(false);
        };
        if out.contains(&0) {
            return Ok(false);
        }
        let from = self.image(x)?;
        let to = self.temporary(output, " (NHWC)")?;
        self.placed[output.index()].image = Some(to);
        let kind = StepKind::IntegerPool { shape, signed: self.is_signed(x) };
        self.emit(&node.origins, kind, vec![Some(from)], vec![to]);
        Ok(true)
    }
}
