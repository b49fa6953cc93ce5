//! Element-wise operators of any type as one step of loops: a node that alone reads what another one computes, in the same
//! shape, takes that one's instructions into its own.

use super::{
    super::program::{BufferId, LoopInstruction, LoopOperand, StepKind},
    Lowered, Lowering, constant,
    movement::image_strides,
    strides_of,
};
use crate::draft::Role;
use planforge_graph::ir::{Activation, Binary, ElementType, Node, Op, Quantization, Unary, ValueId};
use planforge_graph::shape::is_float;

/// Instructions and operands of one step at most; more would no longer lie in the nearest cache.
const FUSED_MAX: usize = 40;

/// A step of loops under construction.
#[derive(Default)]
pub(super) struct Code {
    instructions: Vec<LoopInstruction>,
    operands: Vec<LoopOperand>,
    buffers: Vec<Option<BufferId>>,
    /// Operands that are loaded already, and where their numbers are.
    loaded: Vec<(BufferId, Vec<isize>, Option<ElementType>, usize)>,
}

impl Code {
    fn push(&mut self, instruction: LoopInstruction) -> usize {
        self.instructions.push(instruction);
        self.instructions.len() - 1
    }

    pub(super) fn binary(&mut self, function: Binary, a: usize, b: usize) -> usize {
        self.push(LoopInstruction::Binary(function, a, b))
    }

    /// An operand's number, held as its type is or as `to`.
    pub(super) fn load(
        &mut self,
        buffer: BufferId,
        element: ElementType,
        strides: Vec<isize>,
        first: usize,
        to: Option<ElementType>,
    ) -> usize {
        let known = self.loaded.iter().find(|(other, known, other_to, at)| {
            let same = *other == buffer && *known == strides && *other_to == to;
            let operand = |&at: &usize| match self.instructions[at] {
                LoopInstruction::Load(operand) | LoopInstruction::LoadAs(operand, _) => Some(operand),
                _ => None,
            };
            same && operand(at).is_some_and(|operand| self.operands[operand].first == first)
        });
        if let Some((.., at)) = known {
            return *at;
        }
        self.operands.push(LoopOperand { element, first, strides: strides.clone() });
        self.buffers.push(Some(buffer));
        let operand = self.operands.len() - 1;
        let at = self.push(match to {
            Some(to) => LoopInstruction::LoadAs(operand, to),
            None => LoopInstruction::Load(operand),
        });
        self.loaded.push((buffer, strides, to, at));
        at
    }
}

/// The shape of a result, in which order its axes lie, and what is deferred to it.
pub(super) struct Frame {
    pub shape: Vec<usize>,
    /// Axes, outermost first.
    pub order: Vec<usize>,
}

pub(super) fn is_half(element: ElementType) -> bool {
    matches!(element, ElementType::F16 | ElementType::Bf16)
}

/// Integers whose every value a 64-bit number holds.
pub(super) fn is_whole(element: ElementType) -> bool {
    !is_float(element) && element != ElementType::U64
}

fn is_byte_or_word(element: ElementType) -> bool {
    matches!(element, ElementType::I8 | ElementType::U8 | ElementType::I16 | ElementType::U16)
}

impl Lowering<'_> {
    pub(super) fn element(&self, id: ValueId) -> ElementType {
        self.graph.value(id).element
    }

    /// Whether loops compute this node.
    pub(super) fn is_loop(&self, node: &Node) -> bool {
        let Some(&output) = node.outputs.first() else { return false };
        let Ok(shape) = self.shape(output) else { return false };
        if shape.contains(&0) || shape.len() > 12 {
            return false;
        }
        let of = |position: usize| node.input(position).map(|id| self.element(id));
        let (Some(first), to) = (of(0), self.element(output)) else { return false };
        match &node.op {
            Op::Unary(unary) => match unary {
                Unary::Not | Unary::BitwiseNot | Unary::Neg | Unary::Abs | Unary::Sign if !is_float(first) => {
                    is_whole(first)
                }
                _ => is_float(first),
            },
            Op::Activation(_) => matches!(first, ElementType::F32 | ElementType::F16 | ElementType::Bf16),
            Op::Binary(Binary::Pow) => is_float(first) && of(1).is_some_and(|of| is_float(of) || is_whole(of)),
            Op::Binary(function) => {
                let floats = matches!(
                    function,
                    Binary::Add
                        | Binary::Sub
                        | Binary::Mul
                        | Binary::Div
                        | Binary::Min
                        | Binary::Max
                        | Binary::FMod
                        | Binary::PRelu
                );
                of(1) == Some(first) && if is_float(first) { floats } else { is_whole(first) }
            }
            Op::Compare(_) => of(1) == Some(first) && first != ElementType::U64,
            Op::Where => true,
            Op::Cast { .. } => first != ElementType::U64 && to != ElementType::U64,
            Op::Quantize(how) | Op::FakeQuantize(how) => {
                first == ElementType::F32 && of(1) == Some(ElementType::F32) && is_byte_or_word(how.element)
            }
            Op::Dequantize(how) => {
                to == ElementType::F32 && (is_byte_or_word(how.element) || how.element == ElementType::I32)
            }
            Op::BatchNorm { .. } => shape.len() > 1 && (0..5).all(|position| of(position) == Some(ElementType::F32)),
            Op::Trilu { .. } => true,
            Op::OneHot { .. } => is_whole(first),
            _ => false,
        }
    }

    /// Leaves a node to the one that alone reads it, where that computes it among its own; how many instructions wait then.
    pub(super) fn defer(&mut self, index: usize) -> bool {
        let node = &self.graph.nodes[index];
        let output = node.outputs[0];
        if !self.is_loop(node) {
            return false;
        }
        let cost = 2 + node.inputs.iter().flatten().map(|id| self.waiting[id.index()].unwrap_or(1)).sum::<usize>();
        let Some(user) = self.uses.sole_use(output) else { return false };
        let user = &self.graph.nodes[user];
        let same = |id: ValueId| self.shape(id).ok();
        let fits = self.is_loop(user) && same(user.outputs[0]) == same(output) && cost <= FUSED_MAX;
        // Both are more than one operand each: masks and quantities are read as they lie.
        let plain = !matches!(user.op, Op::Trilu { .. } | Op::OneHot { .. });
        if fits && plain {
            self.waiting[output.index()] = Some(cost);
        }
        fits && plain
    }

    /// Whether something waits to be computed with this node.
    pub(super) fn joins(&self, node: &Node) -> bool {
        node.inputs.iter().flatten().any(|id| self.waiting[id.index()].is_some())
    }

    /// Values that the loops of `node` read: its inputs, or those of what waits for it.
    fn leaves(&self, node: &Node, to: &mut Vec<ValueId>) {
        for &id in node.inputs.iter().flatten() {
            match (self.waiting[id.index()], self.uses.definition[id.index()]) {
                (Some(_), Some(at)) => self.leaves(&self.graph.nodes[at], to),
                _ => to.push(id),
            }
        }
    }

    fn names(&self, node: &Node, to: &mut Vec<String>) {
        for &id in node.inputs.iter().flatten() {
            if let (Some(_), Some(at)) = (self.waiting[id.index()], self.uses.definition[id.index()]) {
                self.names(&self.graph.nodes[at], to);
            }
        }
        to.extend(node.origins.iter().filter(|name| !to.contains(name)).cloned().collect::<Vec<_>>());
    }

    pub(super) fn loops(&mut self, node: &Node) -> Lowered<bool> {
        if !self.is_loop(node) {
            return Ok(false);
        }
        let output = node.outputs[0];
        let shape = self.shape(output)?;
        let rank = shape.len();
        let mut leaves = Vec::new();
        self.leaves(node, &mut leaves);
        let mut as_image = false;
        for &id in &leaves {
            as_image |= rank >= 3 && self.is_image(id) && self.shape(id)? == shape;
        }
        let order = match as_image {
            true => [0].into_iter().chain(2..rank).chain([1]).collect(),
            false => (0..rank).collect(),
        };
        let frame = Frame { shape: shape.clone(), order };
        let mut code = Code::default();
        self.expression(&mut code, &frame, node)?;
        let mut origins = Vec::new();
        self.names(node, &mut origins);
        let to = self.temporary(output, if as_image { " (NHWC)" } else { "" })?;
        let placed = &mut self.placed[output.index()];
        *(if as_image { &mut placed.image } else { &mut placed.row }) = Some(to);
        let sizes = frame.order.iter().map(|&axis| shape[axis]).collect();
        let Code { instructions, operands, buffers, .. } = code;
        let kind = StepKind::Loops { sizes, operands, code: instructions, element: self.element(output) };
        self.emit(&origins, kind, buffers, vec![to]);
        Ok(true)
    }

    /// Buffer and strides of an operand over the frame's axes.
    pub(super) fn strides_in(&mut self, frame: &Frame, id: ValueId) -> Lowered<(BufferId, Vec<isize>)> {
        let own = self.shape(id)?;
        let placed = &self.placed[id.index()];
        let (buffer, strides) = match (placed.row, placed.image) {
            (None, Some(image)) => (image, image_strides(&own)),
            _ => (self.row(id)?, strides_of(&own)),
        };
        let missing = frame.shape.len() - own.len();
        let along = |axis: usize| match axis.checked_sub(missing) {
            Some(axis) if own[axis] != 1 => strides[axis] as isize,
            _ => 0,
        };
        Ok((buffer, frame.order.iter().map(|&axis| along(axis)).collect()))
    }

    /// The number of a value within the frame: loaded, or computed where it waits.
    fn number(&mut self, code: &mut Code, frame: &Frame, id: ValueId, to: Option<ElementType>) -> Lowered<usize> {
        if let (Some(_), Some(at)) = (self.waiting[id.index()], self.uses.definition[id.index()]) {
            let number = self.expression(code, frame, &self.graph.nodes[at].clone())?;
            return Ok(match to {
                Some(to) => code.push(LoopInstruction::Convert(number, to)),
                None => number,
            });
        }
        let (buffer, strides) = self.strides_in(frame, id)?;
        Ok(code.load(buffer, self.element(id), strides, 0, to))
    }

    /// A parameter that is a scalar, or a list along an axis of the frame, as f32.
    pub(super) fn parameter(
        &mut self,
        code: &mut Code,
        frame: &Frame,
        id: ValueId,
        axis: Option<usize>,
    ) -> Lowered<usize> {
        let long = self.shape(id)?.iter().product::<usize>() > 1;
        let along = |at: &usize| isize::from(long && Some(*at) == axis);
        let strides = frame.order.iter().map(along).collect();
        let element = self.element(id);
        let to = (element != ElementType::F32).then_some(ElementType::F32);
        let buffer = self.row(id)?;
        Ok(code.load(buffer, element, strides, 0, to))
    }

    /// A constant beside the model's own.
    fn own_number(&mut self, code: &mut Code, frame: &Frame, value: f32) -> usize {
        let buffer = self.draft.add_buffer(format!("{value}"), 4, constant(&[value]));
        code.load(buffer, ElementType::F32, vec![0; frame.order.len()], 0, None)
    }

    /// Rounded to the type that a value has, where what it is held as is wider.
    fn rounded(code: &mut Code, number: usize, element: ElementType) -> usize {
        let exact = matches!(
            element,
            ElementType::F32 | ElementType::F64 | ElementType::I64 | ElementType::U64 | ElementType::Bool
        );
        if exact { number } else { code.push(LoopInstruction::Convert(number, element)) }
    }

    fn expression(&mut self, code: &mut Code, frame: &Frame, node: &Node) -> Lowered<usize> {
        let output = node.outputs[0];
        let element = self.element(output);
        let input = |position: usize| node.input(position).unwrap_or(output);
        let number = match &node.op {
            Op::Unary(unary) => {
                let x = self.number(code, frame, input(0), None)?;
                code.push(LoopInstruction::Unary(*unary, x))
            }
            Op::Activation(activation) => {
                let x = self.number(code, frame, input(0), None)?;
                code.push(LoopInstruction::Activation(*activation, x))
            }
            Op::Binary(function) => {
                let a = self.number(code, frame, input(0), None)?;
                let pow = *function == Binary::Pow;
                match (pow, self.small_power(input(1))) {
                    (true, Some(1)) => a,
                    (true, Some(2)) => code.binary(Binary::Mul, a, a),
                    (true, Some(_)) => {
                        let square = code.binary(Binary::Mul, a, a);
                        code.binary(Binary::Mul, square, a)
                    }
                    _ => {
                        let to = (pow && self.element(input(1)) != element).then_some(wide(element));
                        let b = self.number(code, frame, input(1), to)?;
                        match function {
                            Binary::ShiftLeft | Binary::ShiftRight => code.push(LoopInstruction::Shift {
                                left: *function == Binary::ShiftLeft,
                                bits: element.bytes() as u32 * 8,
                                x: a,
                                by: b,
                            }),
                            _ => code.binary(*function, a, b),
                        }
                    }
                }
            }
            Op::Compare(compare) => {
                let a = self.number(code, frame, input(0), None)?;
                let b = self.number(code, frame, input(1), None)?;
                return Ok(code.push(LoopInstruction::Compare(*compare, a, b)));
            }
            Op::Where => {
                let condition = self.number(code, frame, input(0), None)?;
                let a = self.number(code, frame, input(1), None)?;
                let b = self.number(code, frame, input(2), None)?;
                return Ok(code.push(LoopInstruction::Select(condition, a, b)));
            }
            Op::Cast { to } => {
                let from = self.element(input(0));
                // Small integers become floats as they are loaded.
                if *to == ElementType::F32 && (is_byte_or_word(from) || is_half(from) || from == ElementType::Bool) {
                    return self.number(code, frame, input(0), Some(*to));
                }
                let x = self.number(code, frame, input(0), None)?;
                return Ok(code.push(LoopInstruction::Convert(x, *to)));
            }
            Op::Quantize(how) => {
                let quantized = self.quantized(code, frame, node, *how)?;
                return Ok(code.push(LoopInstruction::Convert(quantized, how.element)));
            }
            Op::Dequantize(how) => {
                let x = self.number(code, frame, input(0), Some(ElementType::F32))?;
                return self.dequantized(code, frame, node, *how, x);
            }
            Op::FakeQuantize(how) => {
                let x = self.quantized(code, frame, node, *how)?;
                return self.dequantized(code, frame, node, *how, x);
            }
            Op::BatchNorm { epsilon } => {
                let x = self.number(code, frame, input(0), None)?;
                let parameter = |lowering: &mut Self, code: &mut Code, position: usize| {
                    lowering.parameter(code, frame, input(position), Some(1))
                };
                let mean = parameter(self, code, 3)?;
                let centred = code.binary(Binary::Sub, x, mean);
                if let Some(factors) = self.batch_factors(node, *epsilon) {
                    let buffer = self.draft.add_buffer("factors", (factors.len() * 4) as u64, constant(&factors));
                    let along = |&at: &usize| isize::from(at == 1 && factors.len() > 1);
                    let strides = frame.order.iter().map(along).collect();
                    let factor = code.load(buffer, ElementType::F32, strides, 0, None);
                    let scaled = code.binary(Binary::Mul, centred, factor);
                    let bias = parameter(self, code, 2)?;
                    return Ok(code.binary(Binary::Add, scaled, bias));
                }
                let variance = parameter(self, code, 4)?;
                let epsilon = self.own_number(code, frame, *epsilon);
                let spread = code.binary(Binary::Add, variance, epsilon);
                let deviation = code.push(LoopInstruction::Unary(Unary::Sqrt, spread));
                let scaled = code.binary(Binary::Div, centred, deviation);
                let scale = parameter(self, code, 1)?;
                let scaled = code.binary(Binary::Mul, scaled, scale);
                let bias = parameter(self, code, 2)?;
                code.binary(Binary::Add, scaled, bias)
            }
            Op::Trilu { upper, k } => {
                let x = self.number(code, frame, input(0), None)?;
                let rank = frame.shape.len();
                let (rows, columns) = (frame.shape[rank - 2], frame.shape[rank - 1]);
                let kept = |row: usize, column: usize| {
                    let above = column as i64 - row as i64;
                    u8::from(if *upper { above >= *k } else { above <= *k })
                };
                let mask: Vec<u8> =
                    (0..rows).flat_map(|row| (0..columns).map(move |column| kept(row, column))).collect();
                let name = format!("{} (triangle)", self.graph.value(output).name);
                let mask = self.draft.add_buffer(name, mask.len() as u64, Role::Constant(mask.into()));
                let along = |&axis: &usize| match rank - 1 - axis {
                    0 => 1,
                    1 => columns as isize,
                    _ => 0,
                };
                let mask = code.load(mask, ElementType::Bool, frame.order.iter().map(along).collect(), 0, None);
                let zero = vec![0; element.bytes()];
                let zero = self.draft.add_buffer("0", zero.len() as u64, Role::Constant(zero.into()));
                let zero = code.load(zero, element, vec![0; rank], 0, None);
                return Ok(code.push(LoopInstruction::Select(mask, x, zero)));
            }
            Op::OneHot { axis } => return self.one_hot(code, frame, node, *axis),
            // `is_loop` knows no other.
            _ => self.number(code, frame, input(0), None)?,
        };
        Ok(Self::rounded(code, number, element))
    }

    /// Scale over deviation of each channel, where both are constants.
    fn batch_factors(&self, node: &Node, epsilon: f32) -> Option<Vec<f32>> {
        let constant = |position: usize| Some(self.constant_f32(node.input(position)?)?.to_f64s());
        let factor = |(scale, variance): (f64, f64)| (scale / (variance + f64::from(epsilon)).sqrt()) as f32;
        Some(constant(1)?.into_iter().zip(constant(4)?).map(factor).collect())
    }

    fn one_hot(&mut self, code: &mut Code, frame: &Frame, node: &Node, axis: usize) -> Lowered<usize> {
        let (Some(indices), Some(values)) = (node.input(0), node.input(1)) else { return Ok(0) };
        let own = strides_of(&self.shape(indices)?);
        let along = |&at: &usize| match at.cmp(&axis) {
            std::cmp::Ordering::Less => own[at] as isize,
            std::cmp::Ordering::Equal => 0,
            std::cmp::Ordering::Greater => own[at - 1] as isize,
        };
        let strides = frame.order.iter().map(along).collect();
        let (buffer, element) = (self.row(indices)?, self.element(indices));
        let index = code.load(buffer, element, strides, 0, None);
        let still = vec![0isize; frame.order.len()];
        let whole = |lowering: &mut Self, code: &mut Code, values: Vec<i64>, strides: Vec<isize>| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let buffer = lowering.draft.add_buffer("places", bytes.len() as u64, Role::Constant(bytes.into()));
            code.load(buffer, ElementType::I64, strides, 0, None)
        };
        let depth = frame.shape[axis] as i64;
        let zero = whole(self, code, vec![0], still.clone());
        let size = whole(self, code, vec![depth], still.clone());
        let counted = frame.order.iter().map(|at| isize::from(*at == axis)).collect();
        let place = whole(self, code, (0..depth).collect(), counted);
        let negative = code.push(LoopInstruction::Compare(planforge_graph::ir::Compare::Less, index, zero));
        let from_end = code.binary(Binary::Add, index, size);
        let index = code.push(LoopInstruction::Select(negative, from_end, index));
        let here = code.push(LoopInstruction::Compare(planforge_graph::ir::Compare::Equal, index, place));
        let (buffer, element) = (self.row(values)?, self.element(values));
        let off = code.load(buffer, element, still.clone(), 0, None);
        let on = code.load(buffer, element, still, 1, None);
        Ok(code.push(LoopInstruction::Select(here, on, off)))
    }

    /// The exponent of a power by 1, 2 or 3.
    fn small_power(&self, id: ValueId) -> Option<u8> {
        let tensor =
            self.graph.constant(id).filter(|tensor| tensor.len() == 1 && tensor.rank() == 0 || tensor.len() == 1)?;
        [1u8, 2, 3].into_iter().find(|&power| tensor.to_f64s()[0] == f64::from(power))
    }

    fn quantized(&mut self, code: &mut Code, frame: &Frame, node: &Node, how: Quantization) -> Lowered<usize> {
        let (Some(x), Some(scale)) = (node.input(0), node.input(1)) else { return Ok(0) };
        let x = self.number(code, frame, x, None)?;
        let scale = self.parameter(code, frame, scale, how.axis)?;
        let zero = node.input(2).map(|id| self.parameter(code, frame, id, how.axis)).transpose()?;
        Ok(code.push(LoopInstruction::Quantize { element: how.element, x, scale, zero }))
    }

    fn dequantized(
        &mut self,
        code: &mut Code,
        frame: &Frame,
        node: &Node,
        how: Quantization,
        x: usize,
    ) -> Lowered<usize> {
        let x = match node.input(2) {
            Some(zero) => {
                let zero = self.parameter(code, frame, zero, how.axis)?;
                code.binary(Binary::Sub, x, zero)
            }
            None => x,
        };
        let Some(scale) = node.input(1) else { return Ok(x) };
        let scale = self.parameter(code, frame, scale, how.axis)?;
        Ok(code.binary(Binary::Mul, x, scale))
    }

    /// Emits loops over a shape as the model has it.
    pub(super) fn finish_loops(
        &mut self,
        node: &Node,
        output: ValueId,
        code: Code,
        sizes: Vec<usize>,
    ) -> Lowered<bool> {
        let to = self.temporary(output, "")?;
        self.placed[output.index()].row = Some(to);
        let Code { instructions, operands, buffers, .. } = code;
        let kind = StepKind::Loops { sizes, operands, code: instructions, element: self.element(output) };
        self.emit(&node.origins, kind, buffers, vec![to]);
        Ok(true)
    }

    /// Adds one number for each channel to an image of the result of `node`, and activates it.
    pub(super) fn add_by_channel(
        &mut self,
        node: &Node,
        image: BufferId,
        bias: ValueId,
        activation: Option<Activation>,
    ) -> Lowered<BufferId> {
        let output = node.outputs[0];
        let shape = self.shape(output)?;
        let channels = shape[1];
        let sizes = vec![shape.iter().product::<usize>() / channels, channels];
        let mut code = Code::default();
        let x = code.load(image, ElementType::F32, vec![channels as isize, 1], 0, None);
        let bias = self.row(bias)?;
        let bias = code.load(bias, ElementType::F32, vec![0, 1], 0, None);
        let sum = code.binary(Binary::Add, x, bias);
        if let Some(activation) = activation {
            code.push(LoopInstruction::Activation(activation, sum));
        }
        let to = self.temporary(output, " (NHWC)")?;
        let Code { instructions, operands, buffers, .. } = code;
        let kind = StepKind::Loops { sizes, operands, code: instructions, element: ElementType::F32 };
        self.emit(&node.origins, kind, buffers, vec![to]);
        Ok(to)
    }
}

/// The type that numbers of a float type are held as.
fn wide(element: ElementType) -> ElementType {
    if element == ElementType::F64 { ElementType::F64 } else { ElementType::F32 }
}
