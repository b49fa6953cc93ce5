//! Work along axes: reductions, places of extremes, softmax, running sums, order, resampling.

use super::{
    Operands, Prepared, Ready,
    checker::{Checker, product},
};
use crate::{error::EngineError, program::AxisSizes};
use planforge_graph::ir::{ElementType, ReduceKind};
use planforge_kernels_cpu::{
    lookup::first_in_order as order,
    nest::{
        fold::{Finish, Fold, Reduction},
        scan::{self, Around},
    },
    resample::{self as lines, Taps},
};

/// An operand in strides, and which axes of it are brought together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axes<'a> {
    pub sizes: &'a [usize],
    pub gone: &'a [bool],
    pub strides: &'a [isize],
    pub element: ElementType,
}

fn reduction(check: &Checker<'_>, axes: Axes<'_>, out: ElementType) -> Result<Reduction, String> {
    product(axes.sizes)?;
    let made = Reduction::new(axes.sizes, axes.gone, axes.element, axes.strides, out);
    let made = made.map_err(|reason| format!("it {reason}"))?;
    if check.input_bytes(0) < made.needs() as u64 || check.step.outputs.len() != 1 {
        return Err("its input is too short, or it has not one output".to_owned());
    }
    check.holds("output", check.output(), made.len(), out.bytes())?;
    Ok(made)
}

#[derive(Debug)]
struct Folded {
    reduction: Reduction,
    fold: Fold,
    finish: Finish,
}

/// How a reduction is folded and finished; `None` for one that takes more.
fn steps_of(kind: ReduceKind) -> Option<(Fold, Finish)> {
    Some(match kind {
        ReduceKind::Sum => (Fold::Sum, Finish::Nothing),
        ReduceKind::Mean => (Fold::Sum, Finish::Mean),
        ReduceKind::Max => (Fold::Max, Finish::Nothing),
        ReduceKind::Min => (Fold::Min, Finish::Nothing),
        ReduceKind::Prod => (Fold::Product, Finish::Nothing),
        ReduceKind::L1 => (Fold::SumOfMagnitudes, Finish::Nothing),
        ReduceKind::L2 => (Fold::SumOfSquares, Finish::Root),
        ReduceKind::SumSquare => (Fold::SumOfSquares, Finish::Nothing),
        ReduceKind::LogSum => (Fold::Sum, Finish::Log),
        ReduceKind::LogSumExp => return None,
    })
}

pub(super) fn fold(check: &Checker<'_>, kind: ReduceKind, axes: Axes<'_>) -> Prepared {
    let (fold, finish) = steps_of(kind).ok_or("it is more than one reduction")?;
    Ok(Box::new(Folded { reduction: reduction(check, axes, axes.element)?, fold, finish }))
}

impl Ready for Folded {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, from) = (on.isa, on.pool, on.input(0).unwrap_or_default());
        self.reduction.run(isa, pool, self.fold, self.finish, from, on.output(0));
        Ok(())
    }
}

#[derive(Debug)]
struct Placed {
    reduction: Reduction,
    largest: bool,
    last: bool,
}

pub(super) fn places(check: &Checker<'_>, (largest, last): (bool, bool), axes: Axes<'_>) -> Prepared {
    Ok(Box::new(Placed { reduction: reduction(check, axes, ElementType::I64)?, largest, last }))
}

impl Ready for Placed {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, from) = (on.isa, on.pool, on.input(0).unwrap_or_default());
        self.reduction.run_places(isa, pool, self.largest, self.last, from, on.output(0));
        Ok(())
    }
}

/// Sizes around an axis of which nothing is empty.
fn around(sizes: AxisSizes) -> Result<(Around, usize), String> {
    let AxisSizes { outer, size, inner } = sizes;
    let count = product(&[outer, size, inner])?;
    if count == 0 {
        return Err("it has an axis without elements".to_owned());
    }
    Ok((Around { outer, size, inner }, count))
}

#[derive(Debug)]
struct Softmax {
    around: Around,
    log: bool,
}

pub(super) fn softmax(check: &Checker<'_>, sizes: AxisSizes, log: bool) -> Prepared {
    let (around, count) = around(sizes)?;
    check.takes(0, count)?;
    check.gives(count)?;
    Ok(Box::new(Softmax { around, log }))
}

impl Ready for Softmax {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, from) = (on.isa, on.pool, on.numbers(0));
        scan::softmax(isa, pool, self.around, self.log, from, on.output(0));
        Ok(())
    }
}

#[derive(Debug)]
struct RunningSum {
    around: Around,
    how: (bool, bool),
    element: ElementType,
}

pub(super) fn running_sum(check: &Checker<'_>, sizes: AxisSizes, how: (bool, bool), element: ElementType) -> Prepared {
    let (around, count) = around(sizes)?;
    if !matches!(element, ElementType::F32 | ElementType::F64 | ElementType::I32 | ElementType::I64) {
        return Err(format!("running sums of {element} have no kernel"));
    }
    check.holds("input", check.input(0), count, element.bytes())?;
    check.holds("output", check.output(), count, element.bytes())?;
    Ok(Box::new(RunningSum { around, how, element }))
}

impl Ready for RunningSum {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let Self { around, how, element } = *self;
        let pool = on.pool;
        match element {
            ElementType::F64 => {
                let from = on.input(0).unwrap_or_default();
                scan::cum_sum(pool, around, how, |a: f64, b| a + b, from, on.output(0));
            }
            ElementType::I32 => {
                let from = on.input(0).unwrap_or_default();
                scan::cum_sum(pool, around, how, i32::wrapping_add, from, on.output(0));
            }
            ElementType::I64 => {
                let from = on.input(0).unwrap_or_default();
                scan::cum_sum(pool, around, how, i64::wrapping_add, from, on.output(0));
            }
            _ => {
                let from = on.numbers(0);
                scan::cum_sum(pool, around, how, |a: f32, b| a + b, from, on.output(0));
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct FirstInOrder {
    sizes: [usize; 3],
    k: usize,
    largest: bool,
    element: ElementType,
}

pub(super) fn first_in_order(
    check: &Checker<'_>,
    sizes: AxisSizes,
    k: usize,
    largest: bool,
    element: ElementType,
) -> Prepared {
    let (Around { outer, size, inner }, count) = around(sizes)?;
    if !matches!(element, ElementType::F32 | ElementType::F64 | ElementType::I32 | ElementType::I64) {
        return Err(format!("order of {element} has no kernel"));
    }
    if k > size || u32::try_from(size).is_err() || check.step.outputs.len() != 2 {
        return Err("it takes more than there is, or has not two outputs".to_owned());
    }
    let made = product(&[outer, k, inner])?;
    check.holds("input", check.input(0), count, element.bytes())?;
    check.holds("output", check.output(), made, element.bytes())?;
    check.holds("places", Some(check.step.outputs[1]), made, 8)?;
    Ok(Box::new(FirstInOrder { sizes: [outer, size, inner], k, largest, element }))
}

impl Ready for FirstInOrder {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let Self { sizes, k, largest, element } = *self;
        let pool = on.pool;
        macro_rules! by {
            ($number:ty, $compare:expr) => {{
                let from = on.input::<$number>(0).unwrap_or_default();
                let (values, places) = on.two_outputs::<$number, i64>();
                let turned = |a: &$number, b: &$number| if largest { $compare(b, a) } else { $compare(a, b) };
                order(pool, sizes, k, turned, from, values, places);
            }};
        }
        match element {
            ElementType::F64 => by!(f64, f64::total_cmp),
            ElementType::I32 => by!(i32, i32::cmp),
            ElementType::I64 => by!(i64, i64::cmp),
            _ => by!(f32, f32::total_cmp),
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Resample {
    around: Around,
    taps: usize,
}

pub(super) fn resample(check: &Checker<'_>, sizes: AxisSizes, taps: usize) -> Prepared {
    let (around, count) = around(sizes)?;
    check.takes(0, count)?;
    let entries = check.input_bytes(1) as usize / 4;
    if taps == 0 || entries == 0 || !entries.is_multiple_of(taps) {
        return Err("its taps are not whole".to_owned());
    }
    check.takes(1, entries)?;
    check.takes(2, entries)?;
    check.gives(product(&[around.outer, entries / taps, around.inner])?)?;
    Ok(Box::new(Resample { around, taps }))
}

impl Ready for Resample {
    fn run(&self, on: &mut Operands<'_>) -> Result<(), EngineError> {
        let (isa, pool, from) = (on.isa, on.pool, on.numbers(0));
        let given = on.input::<i32>(1).unwrap_or_default();
        // Lines that a damaged plan names beyond the last are the last.
        let last = i32::try_from(self.around.size - 1).unwrap_or(i32::MAX);
        let limited: Vec<i32>;
        let lines_of = if given.iter().all(|line| (0..=last).contains(line)) {
            given
        } else {
            limited = given.iter().map(|line| (*line).clamp(0, last)).collect();
            &limited
        };
        let taps = Taps { count: self.taps, lines: lines_of, weights: on.numbers(2) };
        lines::resample(isa, pool, self.around, taps, from, on.output(0));
        Ok(())
    }
}
