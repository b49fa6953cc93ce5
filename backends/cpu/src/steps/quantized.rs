//! Products, convolutions and pools of 8-bit integers.

use super::{
    Operands, Prepared, Ready,
    checker::{CHANNELS_MAX, Checker, product},
    images::image,
};
use crate::{
    error::EngineError,
    program::{Gather, ImageShape, StepKind, SumsTo, Tactic},
};
use planforge_graph::shape::taps_are_few;
use planforge_kernels_cpu::{
    conv::ConvShape,
    gemm::Place,
    isa::Isa,
    quantized::{
        self, Blocking, Depthwise, Finish, ImageRows, MatrixRows, Output, PackedSize, Product, kernel_by_name, kernels,
    },
};

/// Bytes of rows that a task copies at once: within the nearest cache, and within the next.
const ROWS_BYTES: [usize; 2] = [24 << 10, 192 << 10];

/// Rows, columns and depth of one group.
fn sizes(kind: &StepKind) -> Option<([usize; 3], usize)> {
    match kind {
        StepKind::IntegerGemm { rows, columns, depth, .. } => Some(([*rows, *columns, *depth], 1)),
        StepKind::IntegerConv { shape, .. } => {
            let groups = shape.groups;
            let shape: ConvShape = (*shape).into();
            Some(([shape.pixels(), shape.out_channels / groups, shape.depth()], groups))
        }
        _ => None,
    }
}

/// Every tactic of a product of integers, the one to take untimed first; `None` for other kinds.
pub(super) fn candidates(kind: &StepKind, isa: Isa, threads: usize) -> Option<Vec<Tactic>> {
    let ([rows, columns, depth], _) = sizes(kind)?;
    let mut all: Vec<Tactic> = Vec::new();
    for kernel in kernels(isa.level()) {
        // Enough tasks that threads end together: some four each, but whole tiles.
        let tasks = if threads == 1 { 1 } else { threads * 4 };
        let by_tasks = rows.div_ceil(tasks).next_multiple_of(kernel.mr);
        let all_columns = columns.next_multiple_of(kernel.nr);
        let row_bytes = kernel.row_bytes(depth).unwrap_or(usize::MAX).max(1);
        let mut blocks = Vec::new();
        for bytes in ROWS_BYTES {
            let fit = (bytes / row_bytes / kernel.mr * kernel.mr).max(kernel.mr);
            blocks.push((fit.min(by_tasks).min(rows.max(1)), all_columns));
            if threads > 1 {
                let by_columns = columns.div_ceil(tasks).next_multiple_of(kernel.nr);
                blocks.push((fit.min(rows.max(1)), by_columns));
            }
        }
        for (row_block, column_block) in blocks {
            let kernel = kernel.name.to_owned();
            let tactic =
                Tactic { kernel, gather: Gather::Matrix, pack_rows: false, row_block, column_block, depth_block: 0 };
            if !all.contains(&tactic) {
                all.push(tactic);
            }
        }
    }
    Some(all)
}

/// Bytes of packed weights by the name of their kernel; `None` for other kinds.
pub(super) fn packed_bytes(kind: &StepKind, kernel: &str) -> Option<u64> {
    let ([_, columns, depth], groups) = sizes(kind)?;
    let size = PackedSize::new(kernel_by_name(kernel)?, depth, columns)?;
    Some((size.bytes as u64).saturating_mul(groups as u64))
}

/// Looks up the kernel of the step's tactic, which must be one of the engine's level.
pub(super) fn blocking(check: &Checker<'_>) -> Result<Blocking, String> {
    let (tactic, level) = (check.tactic()?, check.isa.level());
    let kernel = kernel_by_name(&tactic.kernel).ok_or_else(|| format!("there is no kernel {}", tactic.kernel))?;
    if !kernels(level).iter().any(|known| std::ptr::eq(*known, kernel)) {
        return Err(format!("kernel {} needs {}, this engine is for {level}", kernel.name, kernel.level));
    }
    if tactic.row_block == 0 || tactic.column_block == 0 || tactic.column_block > CHANNELS_MAX {
        return Err("its blocks are out of bounds".to_owned());
    }
    Ok(Blocking { kernel, row_block: tactic.row_block, column_block: tactic.column_block })
}

/// Compares what stands beside the operands, and the results, with so many columns and sums.
fn beside(check: &Checker<'_>, columns: usize, sums: usize, to: SumsTo) -> Result<(), String> {
    let list = |position: usize, bytes: usize| match check.input(position) {
        None => Ok(()),
        Some(_) if check.input_bytes(position) == bytes as u64 => Ok(()),
        id => check.holds(&format!("input {position}"), id, columns, bytes),
    };
    if let Some(id) = check.input(1) {
        check.holds("zero point", Some(id), 1, 1)?;
    }
    list(2, 4)?;
    let (factor, result) = match to {
        SumsTo::Sums => (0, 4),
        SumsTo::Integers { low, high, .. } if low > high => return Err("its limits are none".to_owned()),
        SumsTo::Integers { .. } => (8, 1),
        SumsTo::Scaled => (8, 4),
        SumsTo::Floats => (4, 4),
    };
    match to {
        SumsTo::Sums if check.input(3).is_some() || check.input(4).is_some() => {
            return Err("sums have neither bias nor factor".to_owned());
        }
        SumsTo::Sums => {}
        _ => {
            list(3, factor)?;
            list(4, factor)?;
            if check.input(4).is_none() {
                return Err("it lacks its factor".to_owned());
            }
        }
    }
    if check.step.outputs.len() != 1 {
        return Err("it has not one output".to_owned());
    }
    check.needs_scratch(None)?;
    check.holds("output", check.output(), sums, result)
}

fn finish<'a>(on: &Operands<'a>, to: SumsTo) -> Finish<'a> {
    match to {
        SumsTo::Sums => Finish::Sums,
        SumsTo::Integers { zero, low, high } => {
            Finish::Integers { bias: on.input(3), factor: on.input(4).unwrap_or(&[]), zero, low, high }
        }
        SumsTo::Scaled => Finish::Scaled { bias: on.input(3), factor: on.input(4).unwrap_or(&[]) },
        SumsTo::Floats => Finish::Floats { bias: on.input(3), factor: on.numbers(4) },
    }
}

fn output<'a>(on: &'a mut Operands<'_>, to: SumsTo) -> Output<'a> {
    match to {
        SumsTo::Sums => Output::Sums(on.output(0)),
        SumsTo::Integers { .. } => Output::Bytes(on.output(0)),
        SumsTo::Scaled | SumsTo::Floats => Output::Floats(on.output(0)),
    }
}

/// The zero point of the left operand.
fn zero(on: &Operands<'_>) -> u8 {
    on.input(1).and_then(|zero: &[u8]| zero.first().copied()).unwrap_or(0)
}

#[derive(Debug)]
struct Gemm {
    rows: usize,
    columns: usize,
    depth: usize,
    signed: bool,
    to: SumsTo,
    blocking: Blocking,
}

pub(super) fn gemm(check: &Checker<'_>, [rows, columns, depth]: [usize; 3], signed: bool, to: SumsTo) -> Prepared {
    let blocking = blocking(check)?;
    let size = PackedSize::new(blocking.kernel, depth, columns).ok_or("its weights are too large")?;
    let row_bytes = blocking.kernel.row_bytes(depth).ok_or("its rows are too long")?;
    product(&[rows, row_bytes])?;
    check.holds("left operand", check.input(0), product(&[rows, depth])?, 1)?;
    check.holds("weights", check.step.weights, size.bytes, 1)?;
    beside(check, columns, product(&[rows, columns])?, to)?;
    Ok(Box::new(Gemm { rows, columns, depth, signed, to, blocking }))
}

impl Ready for Gemm {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, workspace) = (on.isa, on.pool, on.workspace);
        let rows = MatrixRows::new(on.input(0).unwrap_or(&[]), self.rows, self.depth);
        let product = Product {
            packed: on.weight_bytes(),
            columns: self.columns,
            signed: self.signed,
            zero: zero(on),
            column_zeros: on.input(2).unwrap_or(&[]),
            finish: finish(on, self.to),
        };
        let place = Place { offset: 0, stride: self.columns };
        quantized::multiply(isa, pool, workspace, &self.blocking, &rows, &product, (output(on, self.to), place));
        Ok(())
    }
}

#[derive(Debug)]
struct Conv {
    shape: ConvShape,
    signed: bool,
    to: SumsTo,
    blocking: Blocking,
    /// Bytes of one group's packed weights.
    group_bytes: usize,
}

pub(super) fn conv(check: &Checker<'_>, shape: &ImageShape, signed: bool, to: SumsTo) -> Prepared {
    let shape = image(shape)?;
    let blocking = blocking(check)?;
    let size = PackedSize::new(blocking.kernel, shape.depth(), shape.out_channels / shape.groups)
        .ok_or("its weights are too large")?;
    let row_bytes = blocking.kernel.row_bytes(shape.depth()).ok_or("its rows are too long")?;
    product(&[shape.pixels(), row_bytes])?;
    check.holds("image", check.input(0), shape.image_len(), 1)?;
    check.holds("weights", check.step.weights, product(&[size.bytes, shape.groups])?, 1)?;
    beside(check, shape.out_channels, product(&[shape.pixels(), shape.out_channels])?, to)?;
    Ok(Box::new(Conv { shape, signed, to, blocking, group_bytes: size.bytes }))
}

/// The part of a list that belongs to a group; one number is everybody's.
fn part<T>(list: &[T], group: usize, columns: usize) -> &[T] {
    if list.len() <= 1 { list } else { &list[group * columns..(group + 1) * columns] }
}

/// What becomes of the sums of one group.
fn finish_of<'a>(all: Finish<'a>, group: usize, columns: usize) -> Finish<'a> {
    let of = |list: &'a [f64]| part(list, group, columns);
    match all {
        Finish::Sums => Finish::Sums,
        Finish::Integers { bias, factor, zero, low, high } => {
            Finish::Integers { bias: bias.map(of), factor: of(factor), zero, low, high }
        }
        Finish::Scaled { bias, factor } => Finish::Scaled { bias: bias.map(of), factor: of(factor) },
        Finish::Floats { bias, factor } => {
            Finish::Floats { bias: bias.map(|bias| part(bias, group, columns)), factor: part(factor, group, columns) }
        }
    }
}

impl Ready for Conv {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let Self { shape, signed, to, blocking, group_bytes } = self;
        let (isa, pool, workspace) = (on.isa, on.pool, on.workspace);
        let (image, packed, zeros) = (on.input(0).unwrap_or(&[]), on.weight_bytes(), on.input(2).unwrap_or(&[]));
        let (zero, all) = (zero(on), finish(on, *to));
        let columns = shape.out_channels / shape.groups;
        let matrix = shape.is_pointwise() && shape.groups == 1;
        for group in 0..shape.groups {
            let product = Product {
                packed: &packed[group * group_bytes..(group + 1) * group_bytes],
                columns,
                signed: *signed,
                zero,
                column_zeros: part(zeros, group, columns),
                finish: finish_of(all, group, columns),
            };
            let out = (output(on, *to), shape.group_place(group));
            if matrix {
                let rows = MatrixRows::new(image, shape.pixels(), shape.channels);
                quantized::multiply(isa, pool, workspace, blocking, &rows, &product, out);
            } else {
                let rows = ImageRows::new(*shape, image, group, zero);
                quantized::multiply(isa, pool, workspace, blocking, &rows, &product, out);
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Channelwise {
    shape: ConvShape,
    signed: bool,
    to: SumsTo,
    /// Bytes of the weights, and where their sums begin.
    weight_bytes: usize,
    sums: usize,
}

pub(super) fn depthwise(check: &Checker<'_>, shape: &ImageShape, signed: bool, to: SumsTo) -> Prepared {
    let shape = image(shape)?;
    if shape.groups != shape.channels || shape.out_channels != shape.channels || check.input(2).is_some() {
        return Err("it is not depthwise".to_owned());
    }
    let weight_bytes = product(&[shape.kernel[0], shape.kernel[1], shape.channels, 2])?;
    let sums = weight_bytes.next_multiple_of(64);
    check.holds("image", check.input(0), shape.image_len(), 1)?;
    check.holds("weights", check.step.weights, sums + shape.channels * 4, 1)?;
    beside(check, shape.channels, product(&[shape.pixels(), shape.channels])?, to)?;
    Ok(Box::new(Channelwise { shape, signed, to, weight_bytes, sums }))
}

impl Ready for Channelwise {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, weights) = (on.isa, on.pool, on.weight_bytes());
        // Weights begin at a cache line, and so do their sums.
        let of = Depthwise {
            image: on.input(0).unwrap_or(&[]),
            weights: bytemuck::cast_slice(&weights[..self.weight_bytes]),
            sums: bytemuck::cast_slice(&weights[self.sums..]),
            signed: self.signed,
            zero: zero(on),
            finish: finish(on, self.to),
        };
        quantized::depthwise(isa, pool, &self.shape, &of, output(on, self.to));
        Ok(())
    }
}

#[derive(Debug)]
struct Pool {
    shape: ConvShape,
    signed: bool,
}

pub(super) fn pool(check: &Checker<'_>, shape: &ImageShape, signed: bool) -> Prepared {
    let shape = image(shape)?;
    if shape.channels != shape.out_channels {
        return Err("a pool keeps its channels".to_owned());
    }
    if !taps_are_few(&shape.kernel, &[shape.pixels(), shape.channels]) {
        return Err("its windows are too large".to_owned());
    }
    check.holds("image", check.input(0), shape.image_len(), 1)?;
    if check.step.outputs.len() != 1 {
        return Err("it has not one output".to_owned());
    }
    check.holds("output", check.output(), product(&[shape.pixels(), shape.channels])?, 1)?;
    Ok(Box::new(Pool { shape, signed }))
}

impl Ready for Pool {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let image = on.input(0).unwrap_or(&[]);
        quantized::max_pool(on.isa, on.pool, &self.shape, self.signed, image, on.output(0));
        Ok(())
    }
}
