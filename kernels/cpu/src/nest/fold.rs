//! Sums, products and extremes over some axes, and the places of extremes.
//!
//! Where what follows in memory is brought together, each result is folded from chunks of its own numbers; else many results
//! at once, which lie side by side, from one line after the other. Sums of f32 are made in pieces that are added in f64.

use super::{
    AXES_MAX, CHUNK, Class,
    registers::{Register, Source, Walker, prepared_axes},
};
use crate::{
    isa::{Isa, per_level},
    pool::{ThreadPool, for_parts},
};
use planforge_types::ElementType;

/// How numbers are brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    Sum,
    Product,
    Max,
    Min,
    /// Of absolute values.
    SumOfMagnitudes,
    SumOfSquares,
}

/// What is done to what came together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Nothing,
    /// Divided by how many there were.
    Mean,
    Root,
    Log,
}

/// From this many numbers to a result on, results are folded one by one where their numbers follow each other.
const ROW_MIN: usize = 16;
/// Lines that are added in f32 before the sum goes to f64.
const LINES_TOGETHER: usize = 64;
const LANES: usize = 32;

/// A reduction made ready.
#[derive(Debug)]
pub struct Reduction {
    sizes: Vec<usize>,
    source: Source,
    kept: usize,
    gone: usize,
    rows: bool,
    out: ElementType,
}

impl Reduction {
    /// Over the axes that `gone` marks; the result has the others in their order.
    pub fn new(
        sizes: &[usize],
        gone: &[bool],
        element: ElementType,
        strides: &[isize],
        out: ElementType,
    ) -> Result<Self, &'static str> {
        if gone.len() != sizes.len() || strides.len() != sizes.len() {
            return Err("has axes that it says nothing of");
        }
        let pick = |wanted: bool| (0..sizes.len()).filter(move |&axis| gone[axis] == wanted);
        let count = |wanted: bool| pick(wanted).try_fold(1usize, |count, axis| count.checked_mul(sizes[axis]));
        let (Some(kept), Some(all)) = (count(false), count(true)) else { return Err("has sizes out of bounds") };
        if all == 0 {
            return Err("brings nothing together");
        }
        let nearest = |wanted: bool| {
            pick(wanted)
                .filter(|&axis| sizes[axis] > 1)
                .map(|axis| strides[axis].unsigned_abs())
                .min()
                .unwrap_or(usize::MAX)
        };
        let rows = all >= ROW_MIN && nearest(true) <= nearest(false);
        let order: Vec<usize> =
            if rows { pick(false).chain(pick(true)).collect() } else { pick(true).chain(pick(false)).collect() };
        let class = Class::of(element);
        let ordered: Vec<isize> = order.iter().map(|&axis| strides[axis]).collect();
        let ordered_sizes: Vec<usize> = order.iter().map(|&axis| sizes[axis]).collect();
        if sizes.len() > AXES_MAX {
            return Err("has too many axes");
        }
        let source = Source::new(element, class, 0, &ordered);
        let (sizes, mut sources, _) = prepared_axes(&ordered_sizes, vec![source])?;
        let source = sources.pop().ok_or("has no operand")?;
        Ok(Self { sizes, source, kept, gone: all, rows, out })
    }

    /// Bytes that the operand must have.
    pub fn needs(&self) -> usize {
        self.source.needs_bytes
    }

    /// Elements of the result.
    pub fn len(&self) -> usize {
        self.kept
    }

    /// Whether there is no result.
    pub fn is_empty(&self) -> bool {
        self.kept == 0
    }

    fn check(&self, from: &[u8], to: &[u8], bytes: usize) {
        assert!(from.len() >= self.source.needs_bytes, "the operand is too short");
        assert_eq!(to.len(), self.kept * bytes, "the result is not as long as its axes");
    }

    /// Results that one task makes, so that it reads some ten thousand elements.
    fn per_task(&self) -> usize {
        let least = if self.rows { 1 } else { CHUNK.min(self.kept) };
        (32 * CHUNK / self.gone).clamp(least, self.kept.max(1))
    }

    /// Folds.
    ///
    /// # Panics
    /// When a buffer is shorter than its sizes say.
    pub fn run(&self, isa: Isa, pool: &ThreadPool, fold: Fold, finish: Finish, from: &[u8], to: &mut [u8]) {
        let bytes = self.out.bytes();
        self.check(from, to, bytes);
        let per_task = self.per_task();
        for_parts(pool, to, per_task * bytes, |task, part| {
            let first = task * per_task;
            match self.source.class() {
                Class::Single => self.part::<f32>(isa, fold, finish, from, first, part),
                Class::Double => self.part::<f64>(isa, fold, finish, from, first, part),
                Class::Whole => self.part::<i64>(isa, fold, finish, from, first, part),
            }
        });
    }

    fn part<T: Number>(&self, isa: Isa, fold: Fold, finish: Finish, from: &[u8], first: usize, to: &mut [u8]) {
        let bytes = self.out.bytes();
        let mut register = vec![T::default(); CHUNK];
        if self.rows {
            let mut walker = Walker::at(&self.source, &self.sizes, first * self.gone);
            for to in to.chunks_exact_mut(bytes) {
                let mut sum = T::start_wide(fold);
                let mut rest = self.gone;
                while rest > 0 {
                    let count = rest.min(CHUNK);
                    walker.load(isa, &self.source, &self.sizes, from, count, T::register(&mut register));
                    T::fold(isa, fold, &register[..count], &mut sum);
                    rest -= count;
                }
                T::write(T::finished(sum, finish, self.gone), self.out, to);
            }
            return;
        }
        let mut near = [T::default(); CHUNK];
        let mut wide = [T::start_wide(fold); CHUNK];
        for (chunk, to) in to.chunks_mut(CHUNK * bytes).enumerate() {
            let (first, count) = (first + chunk * CHUNK, to.len() / bytes);
            let (near, wide) = (&mut near[..count], &mut wide[..count]);
            wide.fill(T::start_wide(fold));
            near.fill(T::start(fold));
            // Several lines at a load where they are short and whole.
            let lines = if count == self.kept { (CHUNK / count).max(1) } else { 1 };
            let mut walker = Walker::at(&self.source, &self.sizes, first);
            let (mut line, mut together) = (0, 0);
            while line < self.gone {
                let now = lines.min(self.gone - line);
                walker.load(isa, &self.source, &self.sizes, from, now * count, T::register(&mut register));
                T::join_lines(isa, fold, &register[..now * count], near);
                (line, together) = (line + now, together + now);
                if lines == 1 && line < self.gone && count != self.kept {
                    walker = Walker::at(&self.source, &self.sizes, line * self.kept + first);
                }
                if together >= LINES_TOGETHER {
                    T::gather(fold, near, wide);
                    near.fill(T::start(fold));
                    together = 0;
                }
            }
            T::gather(fold, near, wide);
            for (to, sum) in to.chunks_exact_mut(bytes).zip(&*wide) {
                T::write(T::finished(*sum, finish, self.gone), self.out, to);
            }
        }
    }

    /// Places of the largest or smallest number (i64); of equal ones the first or the last.
    ///
    /// # Panics
    /// When a buffer is shorter than its sizes say.
    pub fn run_places(&self, isa: Isa, pool: &ThreadPool, largest: bool, last: bool, from: &[u8], to: &mut [u8]) {
        self.check(from, to, 8);
        let per_task = self.per_task();
        for_parts(pool, to, per_task * 8, |task, part| {
            let first = task * per_task;
            match self.source.class() {
                Class::Single => self.places::<f32>(isa, largest, last, from, first, part),
                Class::Double => self.places::<f64>(isa, largest, last, from, first, part),
                Class::Whole => self.places::<i64>(isa, largest, last, from, first, part),
            }
        });
    }

    fn places<T: Number>(&self, isa: Isa, largest: bool, last: bool, from: &[u8], first: usize, to: &mut [u8]) {
        let better = |new: T, old: T| {
            let ahead = if largest { new > old } else { new < old };
            ahead || (last && new == old)
        };
        let mut register = vec![T::default(); CHUNK];
        let mut best: Vec<(T, i64)> = vec![(T::default(), 0); CHUNK];
        if self.rows {
            let mut walker = Walker::at(&self.source, &self.sizes, first * self.gone);
            for to in to.chunks_exact_mut(8) {
                let mut best = (T::default(), -1i64);
                let mut done = 0;
                while done < self.gone {
                    let count = (self.gone - done).min(CHUNK);
                    walker.load(isa, &self.source, &self.sizes, from, count, T::register(&mut register));
                    for (at, &value) in register[..count].iter().enumerate() {
                        if best.1 < 0 || better(value, best.0) {
                            best = (value, (done + at) as i64);
                        }
                    }
                    done += count;
                }
                to.copy_from_slice(&best.1.to_le_bytes());
            }
            return;
        }
        for (chunk, to) in to.chunks_mut(CHUNK * 8).enumerate() {
            let (first, count) = (first + chunk * CHUNK, to.len() / 8);
            for line in 0..self.gone {
                let mut walker = Walker::at(&self.source, &self.sizes, line * self.kept + first);
                walker.load(isa, &self.source, &self.sizes, from, count, T::register(&mut register));
                for (best, &value) in best[..count].iter_mut().zip(&register) {
                    if line == 0 || better(value, best.0) {
                        *best = (value, line as i64);
                    }
                }
            }
            for (to, best) in to.chunks_exact_mut(8).zip(&best) {
                to.copy_from_slice(&best.1.to_le_bytes());
            }
        }
    }
}

/// What is folded, and what sums of it are kept in.
trait Number: Copy + Default + PartialOrd {
    type Wide: Copy;
    fn start(fold: Fold) -> Self;
    fn start_wide(fold: Fold) -> Self::Wide;
    fn register(of: &mut [Self]) -> Register<'_>;
    /// Adds all of `from` to `sum`.
    fn fold(isa: Isa, fold: Fold, from: &[Self], sum: &mut Self::Wide);
    /// Adds each line of `from` to `near`.
    fn join_lines(isa: Isa, fold: Fold, from: &[Self], near: &mut [Self]);
    /// Adds what was added up near to what is kept.
    fn gather(fold: Fold, near: &[Self], wide: &mut [Self::Wide]);
    fn finished(sum: Self::Wide, finish: Finish, count: usize) -> Self::Wide;
    fn write(value: Self::Wide, element: ElementType, to: &mut [u8]);
}

/// How two numbers come together, the second as it is read.
macro_rules! with_fold {
    ($fold:expr, $plain:ident, $add:expr, $mul:expr, |$step:ident, $join:ident| $body:expr) => {
        match $fold {
            Fold::Sum => {
                let ($step, $join) = (|a: $plain, b: $plain| $add(a, b), |a: $plain, b: $plain| $add(a, b));
                $body
            }
            Fold::Product => {
                let ($step, $join) = (|a: $plain, b: $plain| $mul(a, b), |a: $plain, b: $plain| $mul(a, b));
                $body
            }
            Fold::Max => {
                let ($step, $join) = (larger::<$plain>, larger::<$plain>);
                $body
            }
            Fold::Min => {
                let ($step, $join) = (smaller::<$plain>, smaller::<$plain>);
                $body
            }
            Fold::SumOfMagnitudes => {
                let ($step, $join) = (|a: $plain, b: $plain| $add(a, magnitude(b)), |a: $plain, b: $plain| $add(a, b));
                $body
            }
            Fold::SumOfSquares => {
                let ($step, $join) = (|a: $plain, b: $plain| $add(a, $mul(b, b)), |a: $plain, b: $plain| $add(a, b));
                $body
            }
        }
    };
}

/// The larger; what is no number beats every number.
#[inline(always)]
#[expect(clippy::eq_op, reason = "only a NaN differs from itself")]
fn larger<T: PartialOrd + Copy>(a: T, b: T) -> T {
    if (a > b) | (a != a) { a } else { b }
}

#[inline(always)]
#[expect(clippy::eq_op, reason = "as above")]
fn smaller<T: PartialOrd + Copy>(a: T, b: T) -> T {
    if (a < b) | (a != a) { a } else { b }
}

#[inline(always)]
fn magnitude<T: PartialOrd + Copy + Default + std::ops::Neg<Output = T>>(x: T) -> T {
    if x < T::default() { -x } else { x }
}

/// Folds in lanes, in an order that no level changes.
#[inline(always)]
fn in_lanes<T: Copy>(from: &[T], start: T, step: impl Fn(T, T) -> T, join: impl Fn(T, T) -> T) -> T {
    let mut lanes = [start; LANES];
    let (chunks, rest) = from.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, *value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = step(*lane, *value);
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] = join(lanes[i], lanes[i + width]);
        }
    }
    lanes[0]
}

#[inline(always)]
fn in_lines<T: Copy>(from: &[T], near: &mut [T], step: impl Fn(T, T) -> T) {
    for line in from.chunks_exact(near.len()) {
        for (near, value) in near.iter_mut().zip(line) {
            *near = step(*near, *value);
        }
    }
}

macro_rules! number {
    (
        $plain:ident, $wide:ident, $register:ident, $folds:ident, $joins:ident, $add:expr, $mul:expr, $lowest:expr,
        $highest:expr, $one:expr, $zero:expr
    ) => {
        per_level! {
            fn $folds(fold: Fold, from: &[$plain], start: $plain, to: &mut $plain) {
                with_fold!(fold, $plain, $add, $mul, |step, join| *to = in_lanes(from, start, step, join));
            }
        }
        per_level! {
            fn $joins(fold: Fold, from: &[$plain], near: &mut [$plain]) {
                with_fold!(fold, $plain, $add, $mul, |step, _join| in_lines(from, near, step));
            }
        }
        impl Number for $plain {
            type Wide = $wide;
            fn start(fold: Fold) -> Self {
                match fold {
                    Fold::Product => $one,
                    Fold::Max => $lowest,
                    Fold::Min => $highest,
                    _ => $zero,
                }
            }
            fn start_wide(fold: Fold) -> $wide {
                $wide::from(Self::start(fold))
            }
            fn register(of: &mut [Self]) -> Register<'_> {
                Register::$register(of)
            }
            fn fold(isa: Isa, fold: Fold, from: &[Self], sum: &mut $wide) {
                let mut part = Self::start(fold);
                $folds(isa, fold, from, part, &mut part);
                Self::gather(fold, &[part], std::slice::from_mut(sum));
            }
            fn join_lines(isa: Isa, fold: Fold, from: &[Self], near: &mut [Self]) {
                $joins(isa, fold, from, near);
            }
            fn gather(fold: Fold, near: &[Self], wide: &mut [$wide]) {
                for (wide, near) in wide.iter_mut().zip(near) {
                    let near = $wide::from(*near);
                    *wide = match fold {
                        Fold::Product => wide_times(*wide, near),
                        Fold::Max => larger(*wide, near),
                        Fold::Min => smaller(*wide, near),
                        _ => wide_plus(*wide, near),
                    };
                }
            }
            fn finished(sum: $wide, finish: Finish, count: usize) -> $wide {
                finished(sum, finish, count)
            }
            fn write(value: $wide, element: ElementType, to: &mut [u8]) {
                write(value, element, to);
            }
        }
    };
}

/// f64 and i64: what sums are kept in.
trait Wide: Copy {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn finished(self, finish: Finish, count: usize) -> Self;
    fn write(self, element: ElementType, to: &mut [u8]);
}

fn wide_plus<T: Wide>(a: T, b: T) -> T {
    a.plus(b)
}
fn wide_times<T: Wide>(a: T, b: T) -> T {
    a.times(b)
}
fn finished<T: Wide>(sum: T, finish: Finish, count: usize) -> T {
    sum.finished(finish, count)
}
fn write<T: Wide>(value: T, element: ElementType, to: &mut [u8]) {
    value.write(element, to);
}

/// Writes a number as `as` converts it.
macro_rules! write_as {
    ($value:expr, $element:expr, $to:expr, $wide:ty) => {{
        let value = $value;
        match $element {
            ElementType::F32 => $to.copy_from_slice(&(value as f32).to_le_bytes()),
            ElementType::F64 => $to.copy_from_slice(&(value as f64).to_le_bytes()),
            ElementType::F16 => $to.copy_from_slice(&half::f16::from_f64(value as f64).to_le_bytes()),
            ElementType::Bf16 => $to.copy_from_slice(&half::bf16::from_f64(value as f64).to_le_bytes()),
            ElementType::I8 => $to.copy_from_slice(&(value as i8).to_le_bytes()),
            ElementType::U8 => $to.copy_from_slice(&(value as u8).to_le_bytes()),
            ElementType::Bool => $to.copy_from_slice(&[u8::from(value != <$wide>::default())]),
            ElementType::I16 => $to.copy_from_slice(&(value as i16).to_le_bytes()),
            ElementType::U16 => $to.copy_from_slice(&(value as u16).to_le_bytes()),
            ElementType::I32 => $to.copy_from_slice(&(value as i32).to_le_bytes()),
            ElementType::U32 => $to.copy_from_slice(&(value as u32).to_le_bytes()),
            ElementType::I64 => $to.copy_from_slice(&(value as i64).to_le_bytes()),
            ElementType::U64 => $to.copy_from_slice(&(value as u64).to_le_bytes()),
        }
    }};
}

impl Wide for f64 {
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn times(self, other: Self) -> Self {
        self * other
    }
    fn finished(self, finish: Finish, count: usize) -> Self {
        match finish {
            Finish::Nothing => self,
            Finish::Mean => self / count as f64,
            Finish::Root => self.sqrt(),
            Finish::Log => self.ln(),
        }
    }
    fn write(self, element: ElementType, to: &mut [u8]) {
        write_as!(self, element, to, f64);
    }
}

impl Wide for i64 {
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    fn times(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
    fn finished(self, finish: Finish, count: usize) -> Self {
        match finish {
            Finish::Nothing => self,
            Finish::Mean => self.wrapping_div(count as i64),
            Finish::Root => (self as f64).sqrt() as i64,
            Finish::Log => (self as f64).ln() as i64,
        }
    }
    fn write(self, element: ElementType, to: &mut [u8]) {
        write_as!(self, element, to, i64);
    }
}

number!(
    f32,
    f64,
    Single,
    fold_single,
    join_single,
    |a: f32, b: f32| a + b,
    |a: f32, b: f32| a * b,
    f32::NEG_INFINITY,
    f32::INFINITY,
    1.0,
    0.0
);
number!(
    f64,
    f64,
    Double,
    fold_double,
    join_double,
    |a: f64, b: f64| a + b,
    |a: f64, b: f64| a * b,
    f64::NEG_INFINITY,
    f64::INFINITY,
    1.0,
    0.0
);
number!(i64, i64, Whole, fold_whole, join_whole, i64::wrapping_add, i64::wrapping_mul, i64::MIN, i64::MAX, 1, 0);
