//! Products of matrices: one with packed weights, or a batch of two operands.

use super::{
    Operands, Prepared, Ready, activation,
    checker::{Checker, product},
};
use crate::{
    error::EngineError,
    program::{BufferId, Gather, MatrixStrides, StepKind, Tactic},
};
use planforge_graph::ir;
use planforge_kernels_cpu::{
    gemm::{
        self, Batch, BatchItem, BatchShape, Blocking, Epilogue, Factors, Kernel, MatrixRows, PackedSize, Place, View,
        kernels,
    },
    isa::Isa,
    pointwise::Activation,
};

/// Depth beyond which a product is also tried in several passes.
const DEEP: usize = 512;
/// Depth of one such pass.
const DEPTH_BLOCK: usize = 256;

/// Every tactic of a product, the one to take untimed first; `None` for other kinds.
/// `with_weights`: the kernels of those with packed weights.
pub(super) fn candidates(kind: &StepKind, isa: Isa, with_weights: &[&Kernel], threads: usize) -> Option<Vec<Tactic>> {
    match kind {
        StepKind::Gemm { rows, columns, depth, .. } => {
            Some(tactics(with_weights, threads, &[Gather::Matrix], (*rows, *columns, *depth)))
        }
        StepKind::BatchGemm { rows, columns, depth, items, .. } => {
            // Items are tasks already; blocks only when there are fewer than threads.
            let threads = if items.len() >= threads { 1 } else { threads };
            let mut all = tactics(kernels(isa.level()), threads, &[Gather::Matrix], (*rows, *columns, *depth));
            all.retain(|tactic| tactic.depth_block == 0);
            Some(all)
        }
        _ => None,
    }
}

/// Tactics of a product of `rows` x `columns` at `depth`, for every one of these kernels.
pub(super) fn tactics(
    kernels: &[&Kernel],
    threads: usize,
    gathers: &[Gather],
    (rows, columns, depth): (usize, usize, usize),
) -> Vec<Tactic> {
    let mut all: Vec<Tactic> = Vec::new();
    for kernel in kernels {
        // Enough tasks that threads end together: some four each, but whole tiles.
        let tasks = if threads == 1 { 1 } else { threads * 4 };
        let by_rows =
            rows.div_ceil(tasks).next_multiple_of(kernel.mr).clamp(kernel.mr, kernel.mr * 16).min(rows.max(1));
        let by_columns = columns.div_ceil(tasks).next_multiple_of(kernel.nr);
        let all_columns = columns.next_multiple_of(kernel.nr);
        let mut blocks = vec![(by_rows, all_columns)];
        if rows <= kernel.mr * 64 {
            blocks.push((rows, by_columns));
        }
        for &gather in gathers {
            let is_short = kernel.factors == Factors::Bf16;
            for &pack_rows in if is_short { &[true][..] } else { &[false, true] } {
                for &(row_block, column_block) in &blocks {
                    for depth_block in if depth > DEEP && !is_short { vec![0, DEPTH_BLOCK] } else { vec![0] } {
                        let kernel = kernel.name.to_owned();
                        let tactic = Tactic { kernel, gather, pack_rows, row_block, column_block, depth_block };
                        if !all.contains(&tactic) {
                            all.push(tactic);
                        }
                    }
                }
            }
        }
    }
    all
}

/// Sizes of a product's packed weights and padded bias in elements; `None` for other kinds.
pub(super) fn packed_size(kind: &StepKind, kernel: &Kernel) -> Option<(usize, usize)> {
    match kind {
        StepKind::Gemm { columns, depth, .. } => {
            let size = PackedSize::new(kernel, *depth, *columns)?;
            Some((size.elements, size.columns))
        }
        StepKind::BatchGemm { columns, .. } => Some((0, columns.next_multiple_of(kernel.nr))),
        _ => None,
    }
}

#[derive(Debug)]
struct Gemm {
    rows: usize,
    columns: usize,
    depth: usize,
    alpha: f32,
    activation: Activation,
    blocking: Blocking,
}

pub(super) fn gemm(
    check: &Checker<'_>,
    [rows, columns, depth]: [usize; 3],
    alpha: f32,
    of: Option<ir::Activation>,
) -> Prepared {
    let blocking = check.blocking_with_weights()?;
    let size = PackedSize::new(blocking.kernel, depth, columns).ok_or("its weights are too large")?;
    let out = product(&[rows, columns])?;
    check.takes(0, product(&[rows, depth])?)?;
    check.may_take(1, out)?;
    check.gives(out)?;
    check.holds("weights", check.step.weights, size.elements, 4)?;
    check.may_add(size.columns)?;
    Ok(Box::new(Gemm { rows, columns, depth, alpha, activation: activation(of), blocking }))
}

impl Ready for Gemm {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, workspace) = (on.isa, on.pool, on.workspace);
        let place = Place { offset: 0, stride: self.columns };
        let a = MatrixRows::new(on.numbers(0), self.rows, self.depth, self.depth);
        let epilogue = Epilogue {
            alpha: self.alpha,
            bias: on.bias(),
            residual: on.input(1).map(|residual| (residual, place)),
            activation: self.activation,
        };
        let b = (on.weights(), self.columns);
        gemm::multiply(isa, pool, workspace, &self.blocking, &a, b, (on.output(0), place), &epilogue);
        Ok(())
    }
}

#[derive(Debug)]
struct BatchGemm {
    products: Batch,
    alpha: f32,
    activation: Activation,
    blocking: Blocking,
}

pub(super) fn batch_gemm(
    check: &Checker<'_>,
    [rows, columns, depth]: [usize; 3],
    alpha: f32,
    of: Option<ir::Activation>,
    [a, b]: [MatrixStrides; 2],
    c_row: usize,
    items: &[[usize; 3]],
) -> Prepared {
    if [rows, columns, depth].contains(&0) {
        return Err("it multiplies nothing".to_owned());
    }
    let blocking = check.blocking()?;
    let elements = |id: Option<BufferId>| {
        id.map(|id| (check.program.buffer(id).bytes / 4) as usize).ok_or_else(|| "it lacks an input".to_owned())
    };
    let (a_len, b_len) = (elements(check.input(0))?, elements(check.input(1))?);
    let out = product(&[rows, columns, items.len()])?;
    check.gives(out)?;
    check.may_take(2, out)?;
    check.may_add(columns.next_multiple_of(blocking.kernel.nr))?;
    let shape = BatchShape { rows, columns, depth };
    let items = items.iter().map(|&[a_at, b_at, c_at]| {
        let place = Place { offset: c_at, stride: c_row };
        BatchItem {
            a: View { offset: a_at, row_stride: a.row, column_stride: a.column },
            b: View { offset: b_at, row_stride: b.row, column_stride: b.column },
            c: place,
            residual: place,
        }
    });
    let products = Batch::new(shape, items.collect(), [a_len, b_len, out]).map_err(|error| error.to_string())?;
    Ok(Box::new(BatchGemm { products, alpha, activation: activation(of), blocking }))
}

impl Ready for BatchGemm {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, workspace) = (on.isa, on.pool, on.workspace);
        let epilogue = Epilogue {
            alpha: self.alpha,
            bias: on.bias(),
            residual: on.input(2).map(|residual| (residual, Place { offset: 0, stride: 0 })),
            activation: self.activation,
        };
        let operands = (on.numbers(0), on.numbers(1));
        let (blocking, products) = (&self.blocking, &self.products);
        gemm::multiply_batch(isa, pool, workspace, blocking, products, operands, on.output(0), &epilogue);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::prepare, *};
    use crate::program::{Buffer, Place as Memory, Program, Step};

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
