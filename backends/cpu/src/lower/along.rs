//! Work along axes and lookups: reductions, order, normalisation, elements by index.

use super::{
    super::program::{AxisSizes, BufferId, LookupSizes, Meeting, StepKind},
    Lowered, Lowering,
    loops::{Code, Frame, is_half, is_whole},
    strides_of,
};
use planforge_graph::ir::{ArgReduce, Binary, ElementType, NamedOp, Node, ReduceKind, ValueId};
use planforge_graph::shape::is_float;

impl Lowering<'_> {
    /// An operand as it lies, in strides over the axes of the model.
    fn strided_input(&mut self, id: ValueId) -> Lowered<(BufferId, Vec<isize>)> {
        let shape = self.shape(id)?;
        let frame = Frame { order: (0..shape.len()).collect(), shape };
        self.strides_in(&frame, id)
    }

    pub(super) fn reduce(&mut self, node: &Node, kind: ReduceKind, axes: &[usize]) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let (sizes, element, output) = (self.shape(x)?, self.element(x), node.outputs[0]);
        let whole = is_whole(element) && !matches!(kind, ReduceKind::L2 | ReduceKind::LogSum);
        let has_kernel = is_float(element) || whole;
        if !has_kernel || kind == ReduceKind::LogSumExp || axes.is_empty() || sizes.contains(&0) || sizes.len() > 16 {
            return Ok(false);
        }
        let (from, strides) = self.strided_input(x)?;
        let gone = (0..sizes.len()).map(|axis| axes.contains(&axis)).collect();
        let to = self.temporary(output, "")?;
        self.placed[output.index()].row = Some(to);
        self.emit(&node.origins, StepKind::Fold { kind, sizes, gone, strides, element }, vec![Some(from)], vec![to]);
        Ok(true)
    }

    pub(super) fn places(&mut self, node: &Node, arg: ArgReduce) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let (sizes, element, output) = (self.shape(x)?, self.element(x), node.outputs[0]);
        if element == ElementType::U64 || sizes.contains(&0) || sizes.len() > 16 {
            return Ok(false);
        }
        let (from, strides) = self.strided_input(x)?;
        let gone = (0..sizes.len()).map(|axis| axis == arg.axis).collect();
        let to = self.temporary(output, "")?;
        self.placed[output.index()].row = Some(to);
        let (largest, last) = (arg.largest, arg.last);
        self.emit(
            &node.origins,
            StepKind::Places { largest, last, sizes, gone, strides, element },
            vec![Some(from)],
            vec![to],
        );
        Ok(true)
    }

    fn around(&self, id: ValueId, axis: usize) -> Lowered<AxisSizes> {
        let shape = self.shape(id)?;
        let product = |sizes: &[usize]| sizes.iter().product();
        Ok(AxisSizes { outer: product(&shape[..axis]), size: shape[axis], inner: product(&shape[axis + 1..]) })
    }

    pub(super) fn softmax_along(&mut self, node: &Node, axis: usize, log: bool) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let shape = self.shape(x)?;
        if !self.is_f32(x) || shape.contains(&0) {
            return Ok(false);
        }
        let output = node.outputs[0];
        // Along the channels of an image, which lie innermost.
        if axis == 1 && shape.len() >= 3 && self.is_image(x) {
            let from = self.image(x)?;
            let to = self.temporary(output, " (NHWC)")?;
            self.placed[output.index()].image = Some(to);
            let outer = shape.iter().product::<usize>() / shape[1];
            let sizes = AxisSizes { outer, size: shape[1], inner: 1 };
            self.emit(&node.origins, StepKind::SoftmaxAlong { sizes, log }, vec![Some(from)], vec![to]);
            return Ok(true);
        }
        let sizes = self.around(x, axis)?;
        self.rows_step(node, x, StepKind::SoftmaxAlong { sizes, log }, Vec::new())
    }

    pub(super) fn running_sum(&mut self, node: &Node, axis: usize, exclusive: bool, reverse: bool) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let element = self.element(x);
        let known = matches!(element, ElementType::F32 | ElementType::F64 | ElementType::I32 | ElementType::I64);
        if !known || self.shape(x)?.contains(&0) {
            return Ok(false);
        }
        let sizes = self.around(x, axis)?;
        self.rows_step(node, x, StepKind::RunningSum { sizes, exclusive, reverse, element }, Vec::new())
    }

    pub(super) fn top_k(&mut self, node: &Node, axis: usize, largest: bool) -> Lowered<bool> {
        let Some(x) = node.input(0) else { return Ok(false) };
        let element = self.element(x);
        let known = matches!(element, ElementType::F32 | ElementType::F64 | ElementType::I32 | ElementType::I64);
        let k = self.shape(node.outputs[0])?[axis];
        if !known || self.shape(x)?.contains(&0) || k == 0 || node.outputs.len() != 2 {
            return Ok(false);
        }
        let sizes = self.around(x, axis)?;
        let from = self.row(x)?;
        let mut outputs = Vec::new();
        for &id in &node.outputs {
            let buffer = self.temporary(id, "")?;
            self.placed[id.index()].row = Some(buffer);
            outputs.push(buffer);
        }
        self.emit(&node.origins, StepKind::FirstInOrder { sizes, k, largest, element }, vec![Some(from)], outputs);
        Ok(true)
    }

    /// Each channel, or group of channels, brought to mean 0 and variance 1, then scaled and shifted by channel.
    pub(super) fn group_norm(&mut self, node: &Node, groups: Option<usize>, epsilon: f32) -> Lowered<bool> {
        let (Some(x), Some(scale), Some(bias)) = (node.input(0), node.input(1), node.input(2)) else {
            return Ok(false);
        };
        let shape = self.shape(x)?;
        if ![x, scale, bias].into_iter().all(|id| self.is_f32(id)) || shape.len() < 2 || shape.contains(&0) {
            return Ok(false);
        }
        let output = node.outputs[0];
        let from = self.row(x)?;
        let columns = shape[1] / groups.unwrap_or(shape[1]) * shape[2..].iter().product::<usize>();
        let normal = self.temporary(output, " (normal)")?;
        self.emit(&node.origins, StepKind::LayerNorm { columns, epsilon }, vec![Some(from)], vec![normal]);
        let frame = Frame { order: (0..shape.len()).collect(), shape: shape.clone() };
        let mut code = Code::default();
        let strides = strides_of(&shape).into_iter().map(|stride| stride as isize).collect();
        let x = code.load(normal, ElementType::F32, strides, 0, None);
        let scale = self.parameter(&mut code, &frame, scale, Some(1))?;
        let x = code.binary(Binary::Mul, x, scale);
        let bias = self.parameter(&mut code, &frame, bias, Some(1))?;
        code.binary(Binary::Add, x, bias);
        self.finish_loops(node, output, code, shape)
    }

    /// Indices that lookups take.
    fn has_indices(&self, id: ValueId) -> bool {
        matches!(self.element(id), ElementType::I64 | ElementType::I32)
    }

    fn take(&mut self, node: &Node, lookup: LookupSizes) -> Lowered<bool> {
        let (Some(x), Some(indices)) = (node.input(0), node.input(1)) else { return Ok(false) };
        let output = node.outputs[0];
        let inputs = vec![Some(self.row(x)?), Some(self.row(indices)?)];
        let to = self.temporary(output, "")?;
        self.placed[output.index()].row = Some(to);
        let element_bytes = self.element(x).bytes();
        self.emit(&node.origins, StepKind::Take { lookup, element_bytes }, inputs, vec![to]);
        Ok(true)
    }

    pub(super) fn gather_elements(&mut self, node: &Node, axis: usize) -> Lowered<bool> {
        let (Some(x), Some(indices)) = (node.input(0), node.input(1)) else { return Ok(false) };
        let (shape, sizes) = (self.shape(x)?, self.shape(indices)?);
        if !self.has_indices(indices) || sizes.contains(&0) {
            return Ok(false);
        }
        let index = self.element(indices);
        self.take(node, along_axis(&shape, sizes, axis, index))
    }

    pub(super) fn gather_nd(&mut self, node: &Node, batch_dims: usize) -> Lowered<bool> {
        let (Some(x), Some(indices)) = (node.input(0), node.input(1)) else { return Ok(false) };
        let (shape, given) = (self.shape(x)?, self.shape(indices)?);
        let Some(&depth) = given.last() else { return Ok(false) };
        if !self.has_indices(indices) || given.contains(&0) || shape.contains(&0) {
            return Ok(false);
        }
        let strides = strides_of(&shape);
        let sizes = given[..given.len() - 1].to_vec();
        let base = (0..sizes.len()).map(|axis| if axis < batch_dims { strides[axis] } else { 0 }).collect();
        let limits = (batch_dims..batch_dims + depth).map(|axis| [shape[axis], strides[axis]]).collect();
        let run = shape[batch_dims + depth..].iter().product();
        let index = self.element(indices);
        self.take(node, LookupSizes { sizes, strides: base, limits, run, index })
    }

    pub(super) fn scatter(&mut self, node: &Node, named: &NamedOp) -> Lowered<bool> {
        let (Some(x), Some(indices), Some(updates)) = (node.input(0), node.input(1), node.input(2)) else {
            return Ok(false);
        };
        let meeting = match named.text("reduction") {
            "none" => Meeting::None,
            "add" => Meeting::Add,
            "mul" => Meeting::Mul,
            "max" => Meeting::Max,
            "min" => Meeting::Min,
            _ => return Ok(false),
        };
        let element = self.element(x);
        let (shape, given) = (self.shape(x)?, self.shape(indices)?);
        if !self.has_indices(indices)
            || given.contains(&0)
            || shape.contains(&0)
            || (is_half(element) || element == ElementType::Bool) && meeting != Meeting::None
        {
            return Ok(false);
        }
        let index = self.element(indices);
        let lookup = if named.name == "scatter_elements" {
            along_axis(&shape, given, named.size("axis"), index)
        } else {
            let Some(&depth) = given.last() else { return Ok(false) };
            let strides = strides_of(&shape);
            let sizes = given[..given.len() - 1].to_vec();
            let limits = (0..depth).map(|axis| [shape[axis], strides[axis]]).collect();
            let base = vec![0; sizes.len()];
            LookupSizes { sizes, strides: base, limits, run: shape[depth..].iter().product(), index }
        };
        let inputs = vec![Some(self.row(x)?), Some(self.row(indices)?), Some(self.row(updates)?)];
        let output = node.outputs[0];
        let to = self.temporary(output, "")?;
        self.placed[output.index()].row = Some(to);
        self.emit(&node.origins, StepKind::Put { lookup, meeting, element }, inputs, vec![to]);
        Ok(true)
    }
}

/// Elements along one axis by index, every other place as it is.
fn along_axis(shape: &[usize], sizes: Vec<usize>, axis: usize, index: ElementType) -> LookupSizes {
    let own = strides_of(shape);
    let mut strides = own.clone();
    strides[axis] = 0;
    LookupSizes { sizes, strides, limits: vec![[shape[axis], own[axis]]], run: 1, index }
}
