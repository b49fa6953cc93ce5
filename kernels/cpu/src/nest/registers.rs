//! Registers: numbers loaded from operands in strides, and stored.

use super::{AXES_MAX, CHUNK, Class};
use crate::{
    isa::{Isa, per_level},
    math::ToInteger as _,
};
use half::{bf16, f16};
use planforge_types::ElementType;

/// An operand of a nest of loops: elements of one type, in strides.
#[derive(Clone, Debug)]
pub struct Source {
    element: ElementType,
    /// What it is loaded as.
    class: Class,
    /// Element at index 0 of every axis.
    first: usize,
    /// In elements, one per axis.
    strides: Vec<isize>,
    /// Bytes that reach its last element.
    pub(super) needs_bytes: usize,
    /// Whether elements follow each other as those of the result do.
    dense: bool,
}

impl Source {
    /// Its numbers are loaded as `class` at once, converted as `as` does.
    pub fn new(element: ElementType, class: Class, first: usize, strides: &[isize]) -> Self {
        Self { element, class, first, strides: strides.to_vec(), needs_bytes: 0, dense: false }
    }

    pub(super) fn class(&self) -> Class {
        self.class
    }

    /// Where its bytes begin, if it is bytes that follow each other as the elements of the result do.
    pub(super) fn bytes_from(&self) -> Option<usize> {
        (self.dense && self.element.bytes() == 1).then_some(self.first)
    }

    /// Whether it is one number everywhere.
    pub(super) fn is_one(&self) -> bool {
        self.strides.iter().all(|stride| *stride == 0)
    }

    /// The same over one axis, read from the first element on or the one number everywhere.
    pub(super) fn along(&self, is_one: bool) -> Self {
        let (first, stride) = if is_one { (self.first, 0) } else { (0, 1) };
        Self::new(self.element, self.class, first, &[stride])
    }
}

/// Axes of more than one element, those that stay together in every source merged; sources with what they need; how many
/// elements there are.
pub(super) fn prepared_axes(
    sizes: &[usize],
    mut sources: Vec<Source>,
) -> Result<(Vec<usize>, Vec<Source>, usize), &'static str> {
    if sources.iter().any(|source| source.strides.len() != sizes.len()) {
        return Err("has an operand without a stride for every axis");
    }
    let too_large = "has sizes out of bounds";
    let len = sizes.iter().try_fold(1usize, |len, &size| len.checked_mul(size)).ok_or(too_large)?;
    isize::try_from(len).map_err(|_| too_large)?;
    for source in &mut sources {
        let (mut low, mut high) = (source.first as i128, source.first as i128);
        for (&size, &stride) in sizes.iter().zip(&source.strides) {
            let reach = (size.max(1) as i128 - 1) * stride as i128;
            low += reach.min(0);
            high += reach.max(0);
        }
        if low < 0 {
            return Err("begins before its operand");
        }
        let bytes =
            (high + 1).checked_mul(source.element.bytes() as i128).and_then(|bytes| isize::try_from(bytes).ok());
        let bytes = bytes.ok_or(too_large)? as usize;
        source.needs_bytes = if len == 0 { 0 } else { bytes };
    }
    let mut kept: Vec<usize> = Vec::new();
    let mut merged: Vec<Vec<isize>> = vec![Vec::new(); sources.len()];
    for (axis, &size) in sizes.iter().enumerate().filter(|(_, size)| **size != 1) {
        let joins = !kept.is_empty()
            && sources.iter().zip(&merged).all(|(source, merged)| {
                let outer = merged[merged.len() - 1];
                source.strides[axis].checked_mul(size as isize) == Some(outer)
            });
        if joins {
            let last = kept.len() - 1;
            kept[last] = kept[last].checked_mul(size).ok_or(too_large)?;
        } else {
            kept.push(size);
        }
        for (source, merged) in sources.iter().zip(&mut merged) {
            if joins {
                merged.pop();
            }
            merged.push(source.strides[axis]);
        }
    }
    if kept.len() > AXES_MAX {
        return Err("has too many axes");
    }
    for (source, merged) in sources.iter_mut().zip(merged) {
        let mut dense = 1isize;
        source.dense = kept.iter().zip(&merged).rev().all(|(&size, &stride)| {
            let fits = stride == dense;
            dense = dense.saturating_mul(size as isize);
            fits
        });
        source.strides = merged;
    }
    Ok((kept, sources, len))
}

/// Registers of all classes.
#[derive(Debug)]
pub(super) struct Banks {
    pub single: Vec<Vec<f32>>,
    pub double: Vec<Vec<f64>>,
    pub whole: Vec<Vec<i64>>,
}

/// A register to be loaded.
pub(super) enum Register<'a> {
    Single(&'a mut [f32]),
    Double(&'a mut [f64]),
    Whole(&'a mut [i64]),
}

impl Banks {
    pub(super) fn new([single, double, whole]: [usize; 3]) -> Self {
        Self {
            single: vec![vec![0.0; CHUNK]; single],
            double: vec![vec![0.0; CHUNK]; double],
            whole: vec![vec![0; CHUNK]; whole],
        }
    }

    pub(super) fn of(&mut self, class: Class, slot: usize) -> Register<'_> {
        match class {
            Class::Single => Register::Single(&mut self.single[slot]),
            Class::Double => Register::Double(&mut self.double[slot]),
            Class::Whole => Register::Whole(&mut self.whole[slot]),
        }
    }

    /// Writes the first `count` numbers of a register as elements.
    pub(super) fn store(&self, isa: Isa, class: Class, slot: usize, count: usize, element: ElementType, to: &mut [u8]) {
        match class {
            Class::Single => store_single(isa, &self.single[slot][..count], element, to),
            Class::Double => store_double(isa, &self.double[slot][..count], element, to),
            Class::Whole => store_whole(isa, &self.whole[slot][..count], element, to),
        }
    }
}

/// Numbers read from bytes, with a conversion of each.
#[inline(always)]
fn read<const N: usize, T>(from: &[u8], to: &mut [T], convert: impl Fn([u8; N]) -> T) {
    let (elements, _) = from.as_chunks::<N>();
    for (to, element) in to.iter_mut().zip(elements) {
        *to = convert(*element);
    }
}

/// The same, run by run along the innermost axis, from where the walker is.
#[inline(always)]
fn read_runs<const N: usize, T>(
    from: &[u8],
    walker: &mut Walker,
    (sizes, strides): (&[usize], &[isize]),
    to: &mut [T],
    convert: impl Fn([u8; N]) -> T,
) {
    let (elements, _) = from.as_chunks::<N>();
    let (Some(&inner), Some(&stride)) = (sizes.last(), strides.last()) else {
        // One element, of no axis.
        return read(&from[walker.at as usize * N..], to, convert);
    };
    let mut rest = to;
    while !rest.is_empty() {
        let run = (inner - walker.index[sizes.len() - 1]).min(rest.len());
        let (to, behind) = rest.split_at_mut(run);
        // Every index lies within the operand: `prepared_axes`.
        let at = walker.at as usize;
        match stride {
            0 => to.iter_mut().for_each(|to| *to = convert(elements[at])),
            1 => to.iter_mut().zip(&elements[at..]).for_each(|(to, element)| *to = convert(*element)),
            2.. => {
                let strided = elements[at..].iter().step_by(stride as usize);
                to.iter_mut().zip(strided).for_each(|(to, element)| *to = convert(*element));
            }
            _ => {
                let strided = elements[..=at].iter().rev().step_by(stride.unsigned_abs());
                to.iter_mut().zip(strided).for_each(|(to, element)| *to = convert(*element));
            }
        }
        walker.advance(sizes, strides, run);
        rest = behind;
    }
}

macro_rules! with_element {
    ($element:expr, $number:ty, |$convert:ident| $body:expr) => {
        match $element {
            ElementType::F32 => {
                let $convert = |raw: [u8; 4]| f32::from_le_bytes(raw) as $number;
                $body
            }
            ElementType::F64 => {
                let $convert = |raw: [u8; 8]| f64::from_le_bytes(raw) as $number;
                $body
            }
            ElementType::F16 => {
                let $convert = |raw: [u8; 2]| f16::from_le_bytes(raw).to_f32() as $number;
                $body
            }
            ElementType::Bf16 => {
                let $convert = |raw: [u8; 2]| bf16::from_le_bytes(raw).to_f32() as $number;
                $body
            }
            ElementType::I8 => {
                let $convert = |[raw]: [u8; 1]| raw as i8 as $number;
                $body
            }
            ElementType::U8 => {
                let $convert = |[raw]: [u8; 1]| raw as $number;
                $body
            }
            ElementType::Bool => {
                let $convert = |[raw]: [u8; 1]| u8::from(raw != 0) as $number;
                $body
            }
            ElementType::I16 => {
                let $convert = |raw: [u8; 2]| i16::from_le_bytes(raw) as $number;
                $body
            }
            ElementType::U16 => {
                let $convert = |raw: [u8; 2]| u16::from_le_bytes(raw) as $number;
                $body
            }
            ElementType::I32 => {
                let $convert = |raw: [u8; 4]| i32::from_le_bytes(raw) as $number;
                $body
            }
            ElementType::U32 => {
                let $convert = |raw: [u8; 4]| u32::from_le_bytes(raw) as $number;
                $body
            }
            ElementType::I64 => {
                let $convert = |raw: [u8; 8]| i64::from_le_bytes(raw) as $number;
                $body
            }
            ElementType::U64 => {
                let $convert = |raw: [u8; 8]| u64::from_le_bytes(raw) as $number;
                $body
            }
        }
    };
}

macro_rules! loads {
    ($dense:ident, $run:ident, $number:ty) => {
        per_level! {
            fn $dense(element: ElementType, from: &[u8], to: &mut [$number]) {
                with_element!(element, $number, |convert| read(from, to, convert))
            }
        }
        per_level! {
            fn $run(element: ElementType, from: &[u8], walker: &mut Walker, axes: (&[usize], &[isize]), to: &mut [$number]) {
                with_element!(element, $number, |convert| read_runs(from, walker, axes, to, convert))
            }
        }
    };
}
loads!(dense_single, run_single, f32);
loads!(dense_double, run_double, f64);
loads!(dense_whole, run_whole, i64);

/// Where a source is read next.
#[derive(Debug)]
pub(super) struct Walker {
    index: [usize; AXES_MAX],
    at: isize,
    /// Elements of the result before the next one.
    linear: usize,
}

impl Walker {
    /// At the element of the result that has `linear` before it.
    pub(super) fn at(source: &Source, sizes: &[usize], linear: usize) -> Self {
        let mut walker = Self { index: [0; AXES_MAX], at: source.first as isize, linear };
        let mut rest = linear;
        let axes = walker.index[..sizes.len()].iter_mut().zip(sizes).zip(&source.strides);
        for ((index, &size), &stride) in axes.rev() {
            *index = rest % size;
            rest /= size;
            walker.at += *index as isize * stride;
        }
        walker
    }

    /// Loads the next `count` elements and goes on behind them.
    pub(super) fn load(
        &mut self,
        isa: Isa,
        source: &Source,
        sizes: &[usize],
        from: &[u8],
        count: usize,
        mut to: Register<'_>,
    ) {
        let element = source.element;
        if source.dense {
            let bytes = element.bytes();
            let first = (source.first + self.linear) * bytes;
            let from = &from[first..first + count * bytes];
            match &mut to {
                Register::Single(to) => dense_single(isa, element, from, &mut to[..count]),
                Register::Double(to) => dense_double(isa, element, from, &mut to[..count]),
                Register::Whole(to) => dense_whole(isa, element, from, &mut to[..count]),
            }
            self.linear += count;
            return;
        }
        let axes = (sizes, source.strides.as_slice());
        match &mut to {
            Register::Single(to) => run_single(isa, element, from, self, axes, &mut to[..count]),
            Register::Double(to) => run_double(isa, element, from, self, axes, &mut to[..count]),
            Register::Whole(to) => run_whole(isa, element, from, self, axes, &mut to[..count]),
        }
        self.linear += count;
    }

    /// Goes on along the innermost axis, and to its next line at its end.
    pub(super) fn advance(&mut self, sizes: &[usize], strides: &[isize], by: usize) {
        let mut step = by;
        for axis in (0..sizes.len()).rev() {
            self.index[axis] += step;
            self.at += step as isize * strides[axis];
            if self.index[axis] < sizes[axis] {
                return;
            }
            self.at -= sizes[axis] as isize * strides[axis];
            self.index[axis] = 0;
            step = 1;
        }
    }
}

#[inline(always)]
fn write<const N: usize, T: Copy>(from: &[T], to: &mut [u8], convert: impl Fn(T) -> [u8; N]) {
    let (elements, _) = to.as_chunks_mut::<N>();
    for (element, &from) in elements.iter_mut().zip(from) {
        *element = convert(from);
    }
}

macro_rules! stores {
    ($name:ident, $number:ty, |$value:ident| $half:expr) => {
        per_level! {
            fn $name(from: &[$number], element: ElementType, to: &mut [u8]) {
                match element {
                    ElementType::F32 => write(from, to, |v| (v as f32).to_le_bytes()),
                    ElementType::F64 => write(from, to, |v| (v as f64).to_le_bytes()),
                    ElementType::F16 => write(from, to, |$value| f16::from_f64($half).to_le_bytes()),
                    ElementType::Bf16 => write(from, to, |$value| bf16::from_f64($half).to_le_bytes()),
                    ElementType::I8 => write(from, to, |v| v.to_i8().to_le_bytes()),
                    ElementType::U8 => write(from, to, |v| v.to_u8().to_le_bytes()),
                    ElementType::Bool => write(from, to, |v| [u8::from(v != <$number>::default())]),
                    ElementType::I16 => write(from, to, |v| v.to_i16().to_le_bytes()),
                    ElementType::U16 => write(from, to, |v| v.to_u16().to_le_bytes()),
                    ElementType::I32 => write(from, to, |v| v.to_i32().to_le_bytes()),
                    ElementType::U32 => write(from, to, |v| (v as u32).to_le_bytes()),
                    ElementType::I64 => write(from, to, |v| (v as i64).to_le_bytes()),
                    ElementType::U64 => write(from, to, |v| (v as u64).to_le_bytes()),
                }
            }
        }
    };
}
stores!(store_single, f32, |v| f64::from(v));
stores!(store_double, f64, |v| v);
stores!(store_whole, i64, |v| v as f64);
