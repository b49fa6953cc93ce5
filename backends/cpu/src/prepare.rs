//! Turns a step of a program into what runs: kernels looked up by name, sizes compared with buffers.
//!
//! A plan is input like any other: everything here is checked, so that a program that passes may give a wrong answer
//! at worst.

use super::program::{
    Gather, HeadRows, ImageShape, PairAxis, PairFunction, PointFunction, PoolFunction, Program, Step, StepKind, Tactic,
    TypeOf,
};
use planforge_graph::{
    infer::infer,
    ir::{self, ElementType, GeluForm, Op, element_count},
    shape::{TensorType, check_size, taps_are_few},
};
use planforge_kernels_cpu::{
    conv::{ConvShape, TAP_CHANNELS_MAX},
    gemm::{AttentionShape, Batch, BatchItem, BatchShape, Blocking, PackedSize, Place, View, kernel_by_name, kernels},
    isa::Isa,
    pointwise::{Activation, Binary, Unary},
    shuffle::{self, Transpose},
    window::PoolKind,
};

/// Largest size, stride, pad or dilation of an image: products of three of them stay in 64 bits.
const IMAGE_SIZE_MAX: usize = 1 << 20;
/// Most images of a batch, channels or groups.
const CHANNELS_MAX: usize = 1 << 24;

/// How the rows of a convolution's product are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// The image is the matrix.
    Matrix,
    Taps,
    Lines,
}

/// A step as it runs.
#[derive(Debug)]
pub(crate) enum Prepared {
    Conv {
        shape: ConvShape,
        blocking: Blocking,
        rows: Rows,
        activation: Activation,
        /// Elements of one group's packed weights and padded bias.
        group_weights: usize,
        group_bias: usize,
    },
    Depthwise {
        shape: ConvShape,
        activation: Activation,
    },
    Gemm {
        rows: usize,
        columns: usize,
        depth: usize,
        alpha: f32,
        activation: Activation,
        blocking: Blocking,
    },
    Batch {
        products: Batch,
        alpha: f32,
        activation: Activation,
        blocking: Blocking,
    },
    Attention {
        shape: AttentionShape,
        /// Of queries, keys and values.
        rows: [HeadRows; 3],
        mask: [usize; 4],
        blocking: Blocking,
        passes: bool,
    },
    Pool {
        shape: ConvShape,
        kind: PoolKind,
        padded: [usize; 2],
    },
    GlobalMean {
        channels: usize,
    },
    Softmax {
        columns: usize,
        guarded: bool,
    },
    LayerNorm {
        columns: usize,
        epsilon: f32,
    },
    Activation(Activation),
    Unary(Unary),
    Pair {
        function: Binary,
        pair: Pair,
    },
    Transpose(Transpose),
    Gather {
        outer: usize,
        size: usize,
        line_bytes: usize,
        wide: bool,
    },
    /// Each with the position of its input.
    Move(Vec<(usize, shuffle::Move)>),
    Copy,
    Reference {
        op: Op,
        inputs: Vec<Option<TypeOf>>,
        outputs: Vec<TypeOf>,
    },
}

/// The axes of an element-wise operator, the innermost apart.
#[derive(Debug)]
pub(crate) struct Pair {
    outer: Vec<PairAxis>,
    pub inner: PairAxis,
}

impl Pair {
    /// Whether every line of the left operand, which lies as the output, meets the same line of the right one.
    pub fn repeats_right(&self) -> bool {
        let inner = self.inner;
        matches!(self.outer[..], [outer] if (outer.a, outer.b) == (inner.size, 0))
            && (inner.a, inner.b) == (1, 1)
            && inner.size > 0
    }

    /// Where the operands of run `index` begin.
    pub fn offsets(&self, mut index: usize) -> (usize, usize) {
        let (mut a, mut b) = (0, 0);
        for axis in self.outer.iter().rev() {
            let at = index % axis.size;
            index /= axis.size;
            a += at * axis.a;
            b += at * axis.b;
        }
        (a, b)
    }
}

/// The kernels' form of an activation.
pub(crate) fn activation(of: Option<ir::Activation>) -> Activation {
    use ir::Activation as From;
    match of {
        None => Activation::None,
        Some(From::Relu) => Activation::Relu,
        Some(From::Clip { min, max }) => {
            Activation::Clip { low: min.unwrap_or(f32::NEG_INFINITY), high: max.unwrap_or(f32::INFINITY) }
        }
        Some(From::LeakyRelu { alpha }) => Activation::LeakyRelu { alpha },
        Some(From::Elu { alpha }) => Activation::Elu { alpha },
        Some(From::Selu { alpha, gamma }) => Activation::Selu { alpha, gamma },
        Some(From::Celu { alpha }) => Activation::Celu { alpha },
        Some(From::ThresholdedRelu { alpha }) => Activation::ThresholdedRelu { alpha },
        Some(From::Sigmoid) => Activation::Sigmoid,
        Some(From::Tanh) => Activation::Tanh,
        Some(From::HardSigmoid { alpha, beta }) => Activation::HardSigmoid { alpha, beta },
        Some(From::HardSwish) => Activation::HardSwish,
        Some(From::Softplus) => Activation::Softplus,
        Some(From::Softsign) => Activation::Softsign,
        Some(From::Gelu(GeluForm::Erf)) => Activation::Gelu,
        Some(From::Gelu(GeluForm::Tanh)) => Activation::GeluTanh,
        Some(From::Silu) => Activation::Silu,
        Some(From::Mish) => Activation::Mish,
    }
}

fn product(factors: &[usize]) -> Result<usize, String> {
    element_count(factors).ok_or_else(|| "its sizes are out of bounds".to_owned())
}

/// Checks an image's sizes so that the arithmetic of [`ConvShape`] cannot overflow.
fn image(shape: &ImageShape) -> Result<ConvShape, String> {
    let sizes = [shape.height, shape.width, shape.out_height, shape.out_width];
    let steps = [shape.kernel, shape.strides, shape.dilations];
    let fine = sizes.iter().chain(shape.pads.iter()).all(|&size| size <= IMAGE_SIZE_MAX)
        && steps.iter().flatten().all(|&size| (1..=IMAGE_SIZE_MAX).contains(&size))
        && [shape.batch, shape.channels, shape.out_channels, shape.groups]
            .iter()
            .all(|&n| (1..=CHANNELS_MAX).contains(&n))
        && shape.channels.is_multiple_of(shape.groups)
        && shape.out_channels.is_multiple_of(shape.groups);
    if !fine {
        return Err("its image's sizes are out of bounds".to_owned());
    }
    product(&[shape.batch, shape.height, shape.width, shape.channels])?;
    product(&[shape.batch, shape.out_height, shape.out_width, shape.out_channels])?;
    product(&[shape.kernel[0], shape.kernel[1], shape.channels, shape.out_channels])?;
    Ok((*shape).into())
}

struct Checker<'a> {
    program: &'a Program,
    step: &'a Step,
}

impl Checker<'_> {
    /// Compares a buffer's size with `elements` of `bytes` bytes each.
    fn holds(
        &self,
        what: &str,
        id: Option<super::program::BufferId>,
        elements: usize,
        bytes: usize,
    ) -> Result<(), String> {
        let id = id.ok_or_else(|| format!("it lacks its {what}"))?;
        let actual = self.program.buffer(id).bytes;
        let expected = (elements * bytes) as u64;
        if actual == expected { Ok(()) } else { Err(format!("its {what} has {actual} bytes, not {expected}")) }
    }

    fn input(&self, position: usize) -> Option<super::program::BufferId> {
        self.step.inputs.get(position).copied().flatten()
    }

    fn signature(&self, position: usize, elements: usize) -> Result<(), String> {
        self.holds(&format!("input {position}"), self.input(position), elements, 4)
    }

    fn gives(&self, elements: usize) -> Result<(), String> {
        if self.step.outputs.len() != 1 {
            return Err("it has not one output".to_owned());
        }
        self.holds("output", Some(self.step.outputs[0]), elements, 4)
    }

    fn optional(&self, position: usize, elements: usize) -> Result<(), String> {
        if self.input(position).is_some() { self.signature(position, elements) } else { Ok(()) }
    }

    fn tactic(&self) -> Result<&Tactic, String> {
        self.step.tactic.as_ref().ok_or_else(|| "it lacks a tactic".to_owned())
    }
}

/// Looks up the kernel of a tactic, which must be one of `isa`'s level.
pub(crate) fn blocking(tactic: &Tactic, isa: Isa) -> Result<Blocking, String> {
    let kernel = kernel_by_name(&tactic.kernel).ok_or_else(|| format!("there is no kernel {}", tactic.kernel))?;
    if !kernels(isa.level()).iter().any(|known| std::ptr::eq(*known, kernel)) {
        return Err(format!("kernel {} needs {}, this engine is for {}", kernel.name, kernel.level, isa.level()));
    }
    if tactic.row_block == 0 || tactic.column_block == 0 || tactic.column_block > CHANNELS_MAX {
        return Err("its blocks are out of bounds".to_owned());
    }
    let depth_block = if tactic.depth_block == 0 { usize::MAX } else { tactic.depth_block };
    Ok(Blocking {
        kernel,
        pack_rows: tactic.pack_rows,
        row_block: tactic.row_block,
        column_block: tactic.column_block,
        depth_block,
    })
}

/// Checks a step against its buffers and looks up what it runs; the error completes "step N: ...".
pub(crate) fn prepare(program: &Program, step: &Step, isa: Isa) -> Result<Prepared, String> {
    let check = Checker { program, step };
    match &step.kind {
        StepKind::Conv { shape, activation: of } => {
            let shape = image(shape)?;
            let tactic = check.tactic()?;
            let blocking = blocking(tactic, isa)?;
            let columns = shape.out_channels / shape.groups;
            let size = PackedSize::new(blocking.kernel, shape.depth(), columns).ok_or("its weights are too large")?;
            let out = product(&[shape.pixels(), shape.out_channels])?;
            check.signature(0, shape.image_len())?;
            check.optional(1, out)?;
            check.gives(out)?;
            check.holds("weights", step.weights, product(&[size.elements, shape.groups])?, 4)?;
            if step.bias.is_some() {
                check.holds("bias", step.bias, product(&[size.columns, shape.groups])?, 4)?;
            }
            let rows = match tactic.gather {
                Gather::Lines if shape.has_lines() => Rows::Lines,
                Gather::Matrix if shape.is_pointwise() => Rows::Matrix,
                Gather::Taps if shape.channels / shape.groups <= TAP_CHANNELS_MAX => Rows::Taps,
                _ => return Err(format!("tactic {} does not suit it", tactic.name())),
            };
            if rows == Rows::Lines && !shape.is_inside() {
                let [height, width] = shape.bordered();
                let bordered = product(&[shape.batch, height, width, shape.channels])?;
                check.holds("scratch", step.scratch, bordered, 4)?;
            } else if step.scratch.is_some() {
                return Err("it has scratch memory without need".to_owned());
            }
            let activation = activation(*of);
            Ok(Prepared::Conv {
                shape,
                blocking,
                rows,
                activation,
                group_weights: size.elements,
                group_bias: size.columns,
            })
        }
        StepKind::Depthwise { shape, activation: of } => {
            let shape = image(shape)?;
            if shape.groups != shape.channels || shape.out_channels != shape.channels {
                return Err("it is not depthwise".to_owned());
            }
            let out = product(&[shape.pixels(), shape.channels])?;
            check.signature(0, shape.image_len())?;
            check.optional(1, out)?;
            check.gives(out)?;
            check.holds("weights", step.weights, shape.kernel[0] * shape.kernel[1] * shape.channels, 4)?;
            check.holds("bias", step.bias, shape.channels, 4)?;
            Ok(Prepared::Depthwise { shape, activation: activation(*of) })
        }
        StepKind::Gemm { rows, columns, depth, alpha, activation: of } => {
            let blocking = blocking(check.tactic()?, isa)?;
            let size = PackedSize::new(blocking.kernel, *depth, *columns).ok_or("its weights are too large")?;
            let out = product(&[*rows, *columns])?;
            check.signature(0, product(&[*rows, *depth])?)?;
            check.optional(1, out)?;
            check.gives(out)?;
            check.holds("weights", step.weights, size.elements, 4)?;
            if step.bias.is_some() {
                check.holds("bias", step.bias, size.columns, 4)?;
            }
            let activation = activation(*of);
            Ok(Prepared::Gemm { rows: *rows, columns: *columns, depth: *depth, alpha: *alpha, activation, blocking })
        }
        StepKind::BatchGemm { rows, columns, depth, alpha, activation: of, a, b, c_row, items } => {
            if [*rows, *columns, *depth].contains(&0) {
                return Err("it multiplies nothing".to_owned());
            }
            let blocking = blocking(check.tactic()?, isa)?;
            let elements = |id: Option<super::program::BufferId>| {
                id.map(|id| (program.buffer(id).bytes / 4) as usize).ok_or_else(|| "it lacks an input".to_owned())
            };
            let (a_len, b_len) = (elements(check.input(0))?, elements(check.input(1))?);
            let out = product(&[*rows, *columns, items.len()])?;
            check.gives(out)?;
            check.optional(2, out)?;
            if step.bias.is_some() {
                check.holds("bias", step.bias, columns.next_multiple_of(blocking.kernel.nr), 4)?;
            }
            let shape = BatchShape { rows: *rows, columns: *columns, depth: *depth };
            let items = items.iter().map(|&[a_at, b_at, c_at]| {
                let place = Place { offset: c_at, stride: *c_row };
                BatchItem {
                    a: View { offset: a_at, row_stride: a.row, column_stride: a.column },
                    b: View { offset: b_at, row_stride: b.row, column_stride: b.column },
                    c: place,
                    residual: place,
                }
            });
            let products =
                Batch::new(shape, items.collect(), [a_len, b_len, out]).map_err(|error| error.to_string())?;
            Ok(Prepared::Batch { products, alpha: *alpha, activation: activation(*of), blocking })
        }
        StepKind::Attention { sizes, queries, keys, values, mask } => {
            let tactic = check.tactic()?;
            let blocking = blocking(tactic, isa)?;
            let widths = [
                (sizes.queries, product(&[sizes.heads, sizes.depth])?, queries),
                (sizes.keys, product(&[sizes.heads, sizes.depth])?, keys),
                (sizes.keys, product(&[sizes.heads, sizes.value_depth])?, values),
            ];
            let scores = product(&[sizes.batch, sizes.heads, sizes.queries, sizes.keys])?;
            if [sizes.batch, sizes.heads, sizes.queries, sizes.keys, sizes.depth, sizes.value_depth].contains(&0) {
                return Err("it attends to nothing".to_owned());
            }
            for (position, (rows, width, at)) in widths.into_iter().enumerate() {
                let rows = product(&[sizes.batch, rows])?;
                let end =
                    (rows - 1).checked_mul(at.stride).and_then(|end| end.checked_add(width)?.checked_add(at.offset));
                let elements = check.input(position).map_or(0, |id| program.buffer(id).bytes / 4);
                if at.stride < width || end.is_none_or(|end| end as u64 > elements) {
                    return Err(format!("rows of its input {position} lie outside of it"));
                }
            }
            if check.input(3).is_some() {
                let steps = [sizes.batch, sizes.heads, sizes.queries, sizes.keys].into_iter().zip(mask);
                let last = steps
                    .into_iter()
                    .try_fold(0usize, |sum, (size, stride)| (size - 1).checked_mul(*stride)?.checked_add(sum));
                let elements = check.input(3).map_or(0, |id| program.buffer(id).bytes / 4);
                if last.is_none_or(|last| last as u64 >= elements) {
                    return Err("its mask is too short".to_owned());
                }
            }
            check.gives(product(&[sizes.batch, sizes.queries, sizes.heads, sizes.value_depth])?)?;
            let passes = match tactic.gather {
                Gather::Heads => false,
                Gather::Passes => true,
                _ => return Err(format!("tactic {} does not suit it", tactic.name())),
            };
            if passes {
                check.holds("scratch", step.scratch, scores, 4)?;
            } else if step.scratch.is_some() {
                return Err("it has scratch memory without need".to_owned());
            }
            let rows = [*queries, *keys, *values];
            Ok(Prepared::Attention { shape: (*sizes).into(), rows, mask: *mask, blocking, passes })
        }
        StepKind::Pool { shape, function, padded } => {
            let shape = image(shape)?;
            if shape.channels != shape.out_channels {
                return Err("a pool keeps its channels".to_owned());
            }
            if !taps_are_few(&shape.kernel, &[shape.pixels(), shape.channels]) {
                return Err("its windows are too large".to_owned());
            }
            check.signature(0, shape.image_len())?;
            check.gives(product(&[shape.pixels(), shape.channels])?)?;
            let kind = match *function {
                PoolFunction::Max => PoolKind::Max,
                PoolFunction::Average { count_pad } => PoolKind::Average { count_pad },
            };
            Ok(Prepared::Pool { shape, kind, padded: *padded })
        }
        StepKind::GlobalMean { channels } => {
            let input = check.input(0).map_or(0, |id| program.buffer(id).bytes);
            let output = step.outputs.first().map_or(0, |id| program.buffer(*id).bytes);
            let line = (*channels as u64).saturating_mul(4);
            let images = output.checked_div(line).unwrap_or(0);
            if *channels == 0
                || images == 0
                || images * line != output
                || !input.is_multiple_of(images * line)
                || input == 0
            {
                return Err("its image is not a whole number of pixels".to_owned());
            }
            Ok(Prepared::GlobalMean { channels: *channels })
        }
        StepKind::Softmax { columns, .. } | StepKind::LayerNorm { columns, .. } => {
            let bytes = check.input(0).map_or(0, |id| program.buffer(id).bytes) as usize;
            check.gives(bytes / 4)?;
            check.signature(0, bytes / 4)?;
            if *columns == 0 || !(bytes / 4).is_multiple_of(*columns) {
                return Err("its rows are not whole".to_owned());
            }
            match &step.kind {
                StepKind::LayerNorm { epsilon, .. } => {
                    check.optional(1, *columns)?;
                    check.optional(2, *columns)?;
                    Ok(Prepared::LayerNorm { columns: *columns, epsilon: *epsilon })
                }
                StepKind::Softmax { guarded, .. } => Ok(Prepared::Softmax { columns: *columns, guarded: *guarded }),
                _ => unreachable!("two kinds come here"),
            }
        }
        StepKind::Point { function } => {
            let bytes = check.input(0).map_or(0, |id| program.buffer(id).bytes) as usize;
            check.signature(0, bytes / 4)?;
            check.gives(bytes / 4)?;
            Ok(match *function {
                PointFunction::Activation(of) => Prepared::Activation(activation(Some(of))),
                PointFunction::Neg => Prepared::Unary(Unary::Neg),
                PointFunction::Abs => Prepared::Unary(Unary::Abs),
                PointFunction::Exp => Prepared::Unary(Unary::Exp),
                PointFunction::Sqrt => Prepared::Unary(Unary::Sqrt),
                PointFunction::Reciprocal => Prepared::Unary(Unary::Reciprocal),
                PointFunction::Erf => Prepared::Unary(Unary::Erf),
            })
        }
        StepKind::Pair { function, axes } => {
            let sizes: Vec<usize> = axes.iter().map(|axis| axis.size).collect();
            check.gives(product(&sizes)?)?;
            let extent = |stride: fn(&PairAxis) -> usize| {
                axes.iter().try_fold(0usize, |sum, axis| {
                    axis.size.max(1).checked_sub(1)?.checked_mul(stride(axis))?.checked_add(sum)
                })
            };
            for (position, last) in [extent(|axis| axis.a), extent(|axis| axis.b)].into_iter().enumerate() {
                let last = last.ok_or("its sizes are out of bounds")?;
                let bytes = check.input(position).map_or(0, |id| program.buffer(id).bytes);
                if sizes.iter().all(|&size| size > 0) && bytes < (last as u64 + 1).saturating_mul(4) {
                    return Err(format!("its input {position} is too short"));
                }
            }
            let (inner, outer) = match axes.split_last() {
                Some((inner, outer)) => (*inner, outer.to_vec()),
                None => (PairAxis { size: 1, a: 0, b: 0 }, Vec::new()),
            };
            if inner.a > 1 || inner.b > 1 {
                return Err("its innermost axis has a stride".to_owned());
            }
            let function = match function {
                PairFunction::Add => Binary::Add,
                PairFunction::Sub => Binary::Sub,
                PairFunction::Mul => Binary::Mul,
                PairFunction::Div => Binary::Div,
                PairFunction::Min => Binary::Min,
                PairFunction::Max => Binary::Max,
            };
            Ok(Prepared::Pair { function, pair: Pair { outer, inner } })
        }
        StepKind::Transpose { shape, perm } => {
            let count = product(shape)?;
            check.signature(0, count)?;
            check.gives(count)?;
            Ok(Prepared::Transpose(Transpose::new(shape, perm).ok_or("its axes are no permutation")?))
        }
        StepKind::Gather { outer, size, line_bytes, index } => {
            let wide = match index {
                ElementType::I64 => true,
                ElementType::I32 => false,
                other => return Err(format!("indices of {other:?} have no kernel")),
            };
            let indices = check.input(1).map_or(0, |id| program.buffer(id).bytes) as usize / if wide { 8 } else { 4 };
            let table = product(&[*outer, *size, *line_bytes])?;
            check.holds("table", check.input(0), table, 1)?;
            check.holds("indices", check.input(1), indices, if wide { 8 } else { 4 })?;
            check.holds("output", step.outputs.first().copied(), product(&[*outer, indices, *line_bytes])?, 1)?;
            Ok(Prepared::Gather { outer: *outer, size: *size, line_bytes: *line_bytes, wide })
        }
        StepKind::Move { element_bytes, parts } => {
            let mut moves = Vec::with_capacity(parts.len());
            for part in parts {
                let axes: Vec<shuffle::MoveAxis> = part
                    .axes
                    .iter()
                    .map(|axis| shuffle::MoveAxis { size: axis.size, from: axis.from, to: axis.to })
                    .collect();
                let copy = shuffle::Move::new(*element_bytes, (part.from, part.to), &axes)
                    .ok_or("a part of it is out of bounds, or writes a place twice")?;
                let input = check.input(part.input).map_or(0, |id| program.buffer(id).bytes);
                let output = step.outputs.first().map_or(0, |id| program.buffer(*id).bytes);
                let (from, to) = copy.needs();
                let fits = |elements: usize, bytes: u64| {
                    elements.checked_mul(*element_bytes).is_some_and(|needed| needed as u64 <= bytes)
                };
                if !fits(from, input) || !fits(to, output) {
                    return Err("a part of it leaves its buffers".to_owned());
                }
                moves.push((part.input, copy));
            }
            Ok(Prepared::Move(moves))
        }
        StepKind::Copy => {
            let bytes = check.input(0).map_or(0, |id| program.buffer(id).bytes) as usize;
            check.holds("input", check.input(0), bytes, 1)?;
            check.holds("output", step.outputs.first().copied(), bytes, 1)?;
            Ok(Prepared::Copy)
        }
        StepKind::Reference { op, inputs, outputs } => {
            if inputs.len() != step.inputs.len() || outputs.len() != step.outputs.len() {
                return Err("its types are not as many as its buffers".to_owned());
            }
            for (of, id) in inputs.iter().zip(&step.inputs) {
                if let Some(of) = of {
                    check.holds("input", *id, product(&of.shape)?, of.element.bytes())?;
                } else if id.is_some() {
                    return Err("an input has no type".to_owned());
                }
            }
            for (of, id) in outputs.iter().zip(&step.outputs) {
                check.holds("output", Some(*id), product(&of.shape)?, of.element.bytes())?;
            }
            for of in inputs.iter().flatten().chain(outputs) {
                let sizes: Vec<i128> = of.shape.iter().map(|&size| size as i128).collect();
                check_size("a value", &sizes).map_err(|error| error.to_string())?;
            }
            let types: Vec<Option<TensorType>> = inputs.iter().map(|of| of.as_ref().map(TensorType::from)).collect();
            let given: Vec<Option<&TensorType>> = types.iter().map(Option::as_ref).collect();
            let wanted: Vec<Vec<usize>> = outputs.iter().map(|of| of.shape.clone()).collect();
            let inferred = infer(op, &given, &wanted).map_err(|error| error.to_string())?;
            if !outputs.iter().map(TensorType::from).eq(inferred) {
                return Err("its results are not of the types it says".to_owned());
            }
            Ok(Prepared::Reference { op: op.clone(), inputs: inputs.clone(), outputs: outputs.clone() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::program::{Buffer, BufferId, MatrixStrides, Place as Memory},
        *,
    };

    #[test]
    fn a_batch_of_products_without_elements_is_refused() {
        let isa = Isa::best();
        let prepared = |[rows, columns, depth]: [usize; 3], c_at: usize| {
            let buffer =
                |elements: usize| Buffer { name: String::new(), bytes: 4 * elements as u64, place: Memory::Arena(0) };
            let program = Program { buffers: vec![buffer(1), buffer(1), buffer(rows * columns)], ..Program::default() };
            let strides = MatrixStrides { row: 1, column: 1 };
            let step = Step {
                origins: Vec::new(),
                kind: StepKind::BatchGemm {
                    rows,
                    columns,
                    depth,
                    alpha: 1.0,
                    activation: None,
                    a: strides,
                    b: strides,
                    c_row: 1,
                    items: vec![[0, 0, c_at]],
                },
                inputs: vec![Some(BufferId(0)), Some(BufferId(1))],
                outputs: vec![BufferId(2)],
                weights: None,
                bias: None,
                scratch: None,
                tactic: Some(Tactic {
                    kernel: kernels(isa.level())[0].name.to_owned(),
                    gather: Gather::Matrix,
                    pack_rows: false,
                    row_block: 1,
                    column_block: 1,
                    depth_block: 0,
                }),
                tried: Vec::new(),
            };
            prepare(&program, &step, isa).map(drop)
        };
        assert_eq!(prepared([1, 1, 1], 0), Ok(()));
        for (sizes, c_at) in [([0, 1, 1], 0), ([1, 0, 1], 7), ([1, 1, 0], 0)] {
            assert!(prepared(sizes, c_at).is_err(), "{sizes:?}");
        }
    }
}
