//! Element-wise operators, of one value and of two.

use super::{
    Operands, Prepared, Ready, activation,
    checker::{Checker, product},
};
use crate::{
    error::EngineError,
    program::{PairAxis, PairFunction, PointFunction},
};
use planforge_kernels_cpu::{
    pointwise::{self, Activation, Binary, Left, Right, Unary},
    pool::{ThreadPool, for_parts},
};

/// Elements that one task takes: enough to be worth waking a thread, few enough to stay in cache.
const PART: usize = 16_384;

#[derive(Debug)]
enum Point {
    Activation(Activation),
    Unary(Unary),
}

pub(super) fn point(check: &Checker<'_>, function: PointFunction) -> Prepared {
    let elements = check.input_bytes(0) as usize / 4;
    check.takes(0, elements)?;
    check.gives(elements)?;
    Ok(Box::new(match function {
        PointFunction::Activation(of) => Point::Activation(activation(Some(of))),
        PointFunction::Neg => Point::Unary(Unary::Neg),
        PointFunction::Abs => Point::Unary(Unary::Abs),
        PointFunction::Exp => Point::Unary(Unary::Exp),
        PointFunction::Sqrt => Point::Unary(Unary::Sqrt),
        PointFunction::Reciprocal => Point::Unary(Unary::Reciprocal),
        PointFunction::Erf => Point::Unary(Unary::Erf),
    }))
}

impl Ready for Point {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, from) = (on.isa, on.pool, on.numbers(0));
        match *self {
            Self::Activation(of) => parts(pool, from, on.output(0), |part| pointwise::activate(isa, of, part)),
            Self::Unary(function) => parts(pool, from, on.output(0), |part| pointwise::unary(isa, function, part)),
        }
        Ok(())
    }
}

/// Copies `from` to `to` part by part and applies `body` to each while it is in cache.
fn parts(pool: &ThreadPool, from: &[f32], to: &mut [f32], body: impl Fn(&mut [f32]) + Sync) {
    for_parts(pool, to, PART, |task, part| {
        part.copy_from_slice(&from[task * PART..task * PART + part.len()]);
        body(part);
    });
}

/// A function of two operands, the innermost axis apart.
#[derive(Debug)]
struct Pair {
    function: Binary,
    outer: Vec<PairAxis>,
    inner: PairAxis,
}

impl Pair {
    /// Whether every line of the left operand, which lies as the output, meets the same line of the right one.
    fn repeats_right(&self) -> bool {
        let inner = self.inner;
        matches!(self.outer[..], [outer] if (outer.a, outer.b) == (inner.size, 0))
            && (inner.a, inner.b) == (1, 1)
            && inner.size > 0
    }

    /// Where the operands of run `index` begin.
    fn offsets(&self, mut index: usize) -> (usize, usize) {
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

pub(super) fn pair(check: &Checker<'_>, function: PairFunction, axes: &[PairAxis]) -> Prepared {
    let sizes: Vec<usize> = axes.iter().map(|axis| axis.size).collect();
    check.gives(product(&sizes)?)?;
    let extent = |stride: fn(&PairAxis) -> usize| {
        axes.iter()
            .try_fold(0usize, |sum, axis| axis.size.max(1).checked_sub(1)?.checked_mul(stride(axis))?.checked_add(sum))
    };
    for (position, last) in [extent(|axis| axis.a), extent(|axis| axis.b)].into_iter().enumerate() {
        let last = last.ok_or("its sizes are out of bounds")?;
        let bytes = check.input_bytes(position);
        if sizes.iter().all(|&size| size > 0) && bytes < (last as u64).saturating_add(1).saturating_mul(4) {
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
    Ok(Box::new(Pair { function, outer, inner }))
}

impl Ready for Pair {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, a, b) = (on.isa, on.pool, on.numbers(0), on.numbers(1));
        // Runs of the innermost axis, enough of them per task to be worth waking a thread.
        let inner = self.inner.size;
        let per_task = (PART / inner.max(1)).max(1);
        for_parts(pool, on.output(0), inner * per_task, |task, part| {
            if self.repeats_right() {
                let from = task * per_task * inner;
                return pointwise::binary_lines(isa, self.function, &a[from..from + part.len()], &b[..inner], part);
            }
            for (index, run) in part.chunks_exact_mut(inner).enumerate() {
                let (at_a, at_b) = self.offsets(task * per_task + index);
                let left = if self.inner.a == 1 { Left::Each(&a[at_a..at_a + inner]) } else { Left::Same(a[at_a]) };
                let right = if self.inner.b == 1 { Right::Each(&b[at_b..at_b + inner]) } else { Right::Same(b[at_b]) };
                pointwise::binary(isa, self.function, left, right, run);
            }
        });
        Ok(())
    }
}
