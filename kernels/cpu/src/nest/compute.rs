//! What instructions do to registers.

use super::{Class, Instruction, NestError, Placed, registers::Banks, registers::Source};
use crate::{
    isa::{Isa, per_level},
    math::{self, ToInteger as _},
    pointwise,
};
use half::{bf16, f16};
use planforge_types::ElementType;

/// Functions of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    Neg,
    Abs,
    Exp,
    Log,
    Sqrt,
    Reciprocal,
    Floor,
    Ceil,
    /// Half to even.
    Round,
    Sign,
    Erf,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Asinh,
    Acosh,
    Atanh,
    /// Integers: 1 where it is 0.
    Not,
    BitwiseNot,
    /// Floats: 1 or 0.
    IsNan,
}

/// Functions of two numbers of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    /// Integers: toward zero.
    Div,
    Pow,
    Min,
    Max,
    /// Integers: with the sign of the divisor.
    Mod,
    /// With the sign of the dividend.
    FMod,
    /// `x`, or the other times `x` below zero.
    PRelu,
    And,
    Or,
    Xor,
    /// Integers of so many bits.
    ShiftLeft(u32),
    ShiftRight(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The class of an instruction's number, where the classes of those before it suit it.
pub(super) fn class_of(of: &Instruction, before: &[Class], sources: &[Source]) -> Result<Class, &'static str> {
    let wrong = Err("has an instruction for numbers of another type");
    let class = match *of {
        Instruction::Load(source) => sources.get(source).ok_or("loads an operand that is not there")?.class(),
        Instruction::Convert { to, .. } => Class::of(to),
        Instruction::Unary(function, a) => {
            let whole = before[a] == Class::Whole;
            let fits = match function {
                Unary::Neg | Unary::Abs | Unary::Sign => true,
                Unary::Not | Unary::BitwiseNot => whole,
                _ => !whole,
            };
            match (fits, function) {
                (false, _) => return wrong,
                (true, Unary::IsNan) => Class::Whole,
                (true, _) => before[a],
            }
        }
        Instruction::Activate(_, a) if before[a] == Class::Single => Class::Single,
        Instruction::Activate(..) => return wrong,
        Instruction::Binary(function, a, b) => {
            let whole = before[a] == Class::Whole;
            let fits = match function {
                Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Min | Binary::Max => true,
                Binary::FMod | Binary::PRelu => true,
                Binary::Pow => !whole,
                _ => whole,
            };
            if before[a] != before[b] || !fits {
                return wrong;
            }
            before[a]
        }
        Instruction::Compare(_, a, b) if before[a] == before[b] => Class::Whole,
        Instruction::Compare(..) => return wrong,
        Instruction::Select(condition, a, b) => {
            if before[condition] != Class::Whole || before[a] != before[b] {
                return wrong;
            }
            before[a]
        }
        Instruction::Quantize { x, scale, zero, .. } => {
            if [Some(x), Some(scale), zero].into_iter().flatten().any(|of| before[of] != Class::Single) {
                return wrong;
            }
            Class::Single
        }
    };
    Ok(class)
}

/// Whether numbers of a class are stored as such elements: any are, converted as `as` does.
pub(super) fn may_store(class: Class, element: ElementType) -> Result<(), &'static str> {
    // Integers are kept in their type's range by `Convert`; u64 has no other form than its bits.
    match (class, element) {
        (Class::Single | Class::Double, ElementType::U64) => Err("stores floats as u64"),
        _ => Ok(()),
    }
}

/// Runs one instruction but loads on the first `count` numbers of its registers.
pub(super) fn run(
    isa: Isa,
    instruction: &Instruction,
    code: &[Placed],
    to: &Placed,
    count: usize,
    banks: &mut Banks,
) -> Result<(), NestError> {
    let of = |index: usize| (code[index].class, code[index].slot);
    /// Takes the result's register out, so that others can be read beside it.
    macro_rules! into {
        ($bank:ident, |$result:ident| $body:expr) => {{
            let mut register = std::mem::take(&mut banks.$bank[to.slot]);
            let $result = &mut register[..count];
            $body;
            banks.$bank[to.slot] = register;
        }};
    }
    match *instruction {
        Instruction::Load(_) => {}
        Instruction::Convert { from, to: element } => {
            let (class, slot) = of(from);
            match (class, to.class) {
                (Class::Single, Class::Single) => {
                    into!(single, |to| round_single(isa, element, &banks.single[slot][..count], to));
                }
                (Class::Double, Class::Single) => {
                    into!(single, |to| narrow_double(isa, element, &banks.double[slot][..count], to));
                }
                (Class::Whole, Class::Single) => {
                    into!(single, |to| whole_to_single(isa, element, &banks.whole[slot][..count], to));
                }
                (Class::Single, Class::Double) => {
                    into!(double, |to| map(&banks.single[slot][..count], to, f64::from));
                }
                (Class::Double, Class::Double) => into!(double, |to| to.copy_from_slice(&banks.double[slot][..count])),
                (Class::Whole, Class::Double) => {
                    into!(double, |to| map(&banks.whole[slot][..count], to, |v| v as f64));
                }
                (Class::Single, Class::Whole) => {
                    into!(whole, |to| single_to_whole(isa, element, &banks.single[slot][..count], to));
                }
                (Class::Double, Class::Whole) => {
                    into!(whole, |to| double_to_whole(isa, element, &banks.double[slot][..count], to));
                }
                (Class::Whole, Class::Whole) => {
                    into!(whole, |to| wrap(isa, element, &banks.whole[slot][..count], to));
                }
            }
        }
        Instruction::Unary(Unary::IsNan, from) => match of(from) {
            (Class::Double, slot) => {
                into!(whole, |to| map(&banks.double[slot][..count], to, |v| i64::from(v.is_nan())));
            }
            (_, slot) => into!(whole, |to| map(&banks.single[slot][..count], to, |v| i64::from(v.is_nan()))),
        },
        Instruction::Unary(function, from) => match of(from) {
            (Class::Single, slot) => {
                into!(single, |to| unary_single(isa, function, &banks.single[slot][..count], to));
            }
            (Class::Double, slot) => into!(double, |to| unary_double(function, &banks.double[slot][..count], to)),
            (Class::Whole, slot) => {
                into!(whole, |to| unary_whole(isa, function, &banks.whole[slot][..count], to));
            }
        },
        Instruction::Activate(activation, from) => {
            let (_, slot) = of(from);
            into!(single, |to| {
                to.copy_from_slice(&banks.single[slot][..count]);
                pointwise::activate(isa, activation, to);
            });
        }
        Instruction::Binary(function, a, b) => {
            let ((class, a), (_, b)) = (of(a), of(b));
            match class {
                Class::Single => into!(single, |to| {
                    binary_single(isa, function, &banks.single[a][..count], &banks.single[b][..count], to);
                }),
                Class::Double => into!(double, |to| {
                    binary_double(isa, function, &banks.double[a][..count], &banks.double[b][..count], to);
                }),
                Class::Whole => {
                    let divides = matches!(function, Binary::Div | Binary::Mod | Binary::FMod);
                    if divides && banks.whole[b][..count].contains(&0) {
                        return Err(NestError::DivisionByZero);
                    }
                    into!(whole, |to| {
                        binary_whole(isa, function, &banks.whole[a][..count], &banks.whole[b][..count], to);
                    });
                }
            }
        }
        Instruction::Compare(function, a, b) => {
            let ((class, a), (_, b)) = (of(a), of(b));
            match class {
                Class::Single => into!(whole, |to| {
                    compare_single(isa, function, &banks.single[a][..count], &banks.single[b][..count], to);
                }),
                Class::Double => into!(whole, |to| {
                    compare_double(isa, function, &banks.double[a][..count], &banks.double[b][..count], to);
                }),
                Class::Whole => into!(whole, |to| {
                    compare_whole(isa, function, &banks.whole[a][..count], &banks.whole[b][..count], to);
                }),
            }
        }
        Instruction::Select(condition, a, b) => {
            let ((_, condition), (class, a), (_, b)) = (of(condition), of(a), of(b));
            match class {
                Class::Single => into!(single, |to| {
                    let condition = &banks.whole[condition][..count];
                    select_single(isa, condition, &banks.single[a][..count], &banks.single[b][..count], to);
                }),
                Class::Double => into!(double, |to| {
                    let condition = &banks.whole[condition][..count];
                    select_double(isa, condition, &banks.double[a][..count], &banks.double[b][..count], to);
                }),
                Class::Whole => into!(whole, |to| {
                    let condition = &banks.whole[condition][..count];
                    select_whole(isa, condition, &banks.whole[a][..count], &banks.whole[b][..count], to);
                }),
            }
        }
        Instruction::Quantize { x, scale, zero, low, high } => {
            let ((_, x), (_, scale)) = (of(x), of(scale));
            into!(single, |to| {
                quantize(isa, &banks.single[x][..count], &banks.single[scale][..count], to);
                if let Some(zero) = zero {
                    add_to(isa, &banks.single[of(zero).1][..count], to);
                }
                limit(isa, low, high, to);
            });
        }
    }
    Ok(())
}

#[inline(always)]
fn map<A: Copy, B>(from: &[A], to: &mut [B], f: impl Fn(A) -> B) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = f(*from);
    }
}

#[inline(always)]
fn zip<A: Copy, B>(a: &[A], b: &[A], to: &mut [B], f: impl Fn(A, A) -> B) {
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = f(*a, *b);
    }
}

#[inline(always)]
fn halved(element: ElementType, value: f64) -> f32 {
    match element {
        ElementType::F16 => f16::from_f64(value).to_f32(),
        ElementType::Bf16 => bf16::from_f64(value).to_f32(),
        _ => value as f32,
    }
}

per_level! {
    fn round_single(element: ElementType, from: &[f32], to: &mut [f32]) {
        match element {
            ElementType::F32 => to.copy_from_slice(from),
            element => map(from, to, |v| halved(element, f64::from(v))),
        }
    }
}
per_level! {
    fn narrow_double(element: ElementType, from: &[f64], to: &mut [f32]) {
        match element {
            ElementType::F32 => map(from, to, |v| v as f32),
            element => map(from, to, |v| halved(element, v)),
        }
    }
}
per_level! {
    fn whole_to_single(element: ElementType, from: &[i64], to: &mut [f32]) {
        match element {
            ElementType::F32 => map(from, to, |v| v as f32),
            element => map(from, to, |v| halved(element, v as f64)),
        }
    }
}

/// Floats as integers of a type, cut and within its range.
macro_rules! to_whole {
    ($name:ident, $number:ty) => {
        per_level! {
            fn $name(element: ElementType, from: &[$number], to: &mut [i64]) {
                match element {
                    ElementType::I8 => map(from, to, |v| i64::from(v.to_i8())),
                    ElementType::U8 => map(from, to, |v| i64::from(v.to_u8())),
                    ElementType::I16 => map(from, to, |v| i64::from(v.to_i16())),
                    ElementType::U16 => map(from, to, |v| i64::from(v.to_u16())),
                    ElementType::I32 => map(from, to, |v| i64::from(v.to_i32())),
                    ElementType::U32 => map(from, to, |v| i64::from(v as u32)),
                    ElementType::U64 => map(from, to, |v| v as u64 as i64),
                    ElementType::Bool => map(from, to, |v| i64::from(v != 0.0)),
                    _ => map(from, to, |v| v as i64),
                }
            }
        }
    };
}
to_whole!(single_to_whole, f32);
to_whole!(double_to_whole, f64);

per_level! {
    /// Integers that came round in a type.
    fn wrap(element: ElementType, from: &[i64], to: &mut [i64]) {
        match element {
            ElementType::I8 => map(from, to, |v| i64::from(v as i8)),
            ElementType::U8 => map(from, to, |v| i64::from(v as u8)),
            ElementType::I16 => map(from, to, |v| i64::from(v as i16)),
            ElementType::U16 => map(from, to, |v| i64::from(v as u16)),
            ElementType::I32 => map(from, to, |v| i64::from(v as i32)),
            ElementType::U32 => map(from, to, |v| i64::from(v as u32)),
            ElementType::Bool => map(from, to, |v| i64::from(v != 0)),
            _ => to.copy_from_slice(from),
        }
    }
}

/// -1, 0 or 1; zero and NaN themselves.
macro_rules! sign {
    ($x:expr) => {
        if $x > 0.0 {
            1.0
        } else if $x < 0.0 {
            -1.0
        } else {
            $x
        }
    };
}

per_level! {
    fn unary_single(function: Unary, from: &[f32], to: &mut [f32]) {
        match function {
            Unary::Neg => map(from, to, |x| -x),
            Unary::Abs => map(from, to, f32::abs),
            Unary::Exp => map(from, to, math::exp::<FUSED>),
            Unary::Log => map(from, to, math::ln::<FUSED>),
            Unary::Sqrt => map(from, to, f32::sqrt),
            Unary::Reciprocal => map(from, to, |x| 1.0 / x),
            Unary::Floor => map(from, to, f32::floor),
            Unary::Ceil => map(from, to, f32::ceil),
            Unary::Round => map(from, to, f32::round_ties_even),
            Unary::Sign => map(from, to, |x| sign!(x)),
            Unary::Erf => map(from, to, math::erf::<FUSED>),
            Unary::Sin => map(from, to, f32::sin),
            Unary::Cos => map(from, to, f32::cos),
            Unary::Tan => map(from, to, f32::tan),
            Unary::Asin => map(from, to, f32::asin),
            Unary::Acos => map(from, to, f32::acos),
            Unary::Atan => map(from, to, f32::atan),
            Unary::Sinh => map(from, to, f32::sinh),
            Unary::Cosh => map(from, to, f32::cosh),
            Unary::Asinh => map(from, to, |x| f64::from(x).asinh() as f32),
            Unary::Acosh => map(from, to, |x| f64::from(x).acosh() as f32),
            Unary::Atanh => map(from, to, |x| f64::from(x).atanh() as f32),
            // Of integers, or no number: `class_of`.
            Unary::Not | Unary::BitwiseNot | Unary::IsNan => to.copy_from_slice(from),
        }
    }
}

fn unary_double(function: Unary, from: &[f64], to: &mut [f64]) {
    match function {
        Unary::Neg => map(from, to, |x| -x),
        Unary::Abs => map(from, to, f64::abs),
        Unary::Exp => map(from, to, f64::exp),
        Unary::Log => map(from, to, f64::ln),
        Unary::Sqrt => map(from, to, f64::sqrt),
        Unary::Reciprocal => map(from, to, f64::recip),
        Unary::Floor => map(from, to, f64::floor),
        Unary::Ceil => map(from, to, f64::ceil),
        Unary::Round => map(from, to, f64::round_ties_even),
        Unary::Sign => map(from, to, |x| sign!(x)),
        Unary::Erf => map(from, to, libm::erf),
        Unary::Sin => map(from, to, f64::sin),
        Unary::Cos => map(from, to, f64::cos),
        Unary::Tan => map(from, to, f64::tan),
        Unary::Asin => map(from, to, f64::asin),
        Unary::Acos => map(from, to, f64::acos),
        Unary::Atan => map(from, to, f64::atan),
        Unary::Sinh => map(from, to, f64::sinh),
        Unary::Cosh => map(from, to, f64::cosh),
        Unary::Asinh => map(from, to, f64::asinh),
        Unary::Acosh => map(from, to, f64::acosh),
        Unary::Atanh => map(from, to, f64::atanh),
        Unary::Not | Unary::BitwiseNot | Unary::IsNan => to.copy_from_slice(from),
    }
}

per_level! {
    fn unary_whole(function: Unary, from: &[i64], to: &mut [i64]) {
        match function {
            Unary::Neg => map(from, to, i64::wrapping_neg),
            Unary::Abs => map(from, to, i64::wrapping_abs),
            Unary::Sign => map(from, to, i64::signum),
            Unary::Not => map(from, to, |x| i64::from(x == 0)),
            Unary::BitwiseNot => map(from, to, |x| !x),
            _ => to.copy_from_slice(from),
        }
    }
}

/// A NaN on either side is the result.
macro_rules! binary_floats {
    ($name:ident, $number:ident) => {
        per_level! {
            fn $name(function: Binary, a: &[$number], b: &[$number], to: &mut [$number]) {
                match function {
                    Binary::Add => zip(a, b, to, |a, b| a + b),
                    Binary::Sub => zip(a, b, to, |a, b| a - b),
                    Binary::Mul => zip(a, b, to, |a, b| a * b),
                    Binary::Div => zip(a, b, to, |a, b| a / b),
                    Binary::Pow => zip(a, b, to, $number::powf),
                    Binary::Min => zip(a, b, to, |a, b| if (a < b) | a.is_nan() { a } else { b }),
                    Binary::Max => zip(a, b, to, |a, b| if (a > b) | a.is_nan() { a } else { b }),
                    Binary::FMod => zip(a, b, to, |a, b| a % b),
                    Binary::PRelu => zip(a, b, to, |a, b| if a < 0.0 { a * b } else { a }),
                    // Of integers: `class_of`.
                    _ => to.copy_from_slice(a),
                }
            }
        }
    };
}
binary_floats!(binary_single, f32);
binary_floats!(binary_double, f64);

per_level! {
    /// No divisor is 0.
    fn binary_whole(function: Binary, a: &[i64], b: &[i64], to: &mut [i64]) {
        match function {
            Binary::Add => zip(a, b, to, i64::wrapping_add),
            Binary::Sub => zip(a, b, to, i64::wrapping_sub),
            Binary::Mul => zip(a, b, to, i64::wrapping_mul),
            Binary::Div => zip(a, b, to, i64::wrapping_div),
            Binary::Min => zip(a, b, to, i64::min),
            Binary::Max => zip(a, b, to, i64::max),
            Binary::Mod => zip(a, b, to, |a, b| {
                let rest = a.wrapping_rem(b);
                if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
            }),
            Binary::FMod => zip(a, b, to, i64::wrapping_rem),
            Binary::PRelu => zip(a, b, to, |a, b| if a < 0 { a.wrapping_mul(b) } else { a }),
            Binary::And => zip(a, b, to, |a, b| a & b),
            Binary::Or => zip(a, b, to, |a, b| a | b),
            Binary::Xor => zip(a, b, to, |a, b| a ^ b),
            Binary::ShiftLeft(bits) => {
                zip(a, b, to, |a, b| if (0..i64::from(bits)).contains(&b) { a.wrapping_shl(b as u32) } else { 0 });
            }
            Binary::ShiftRight(bits) => {
                zip(a, b, to, |a, b| if (0..i64::from(bits)).contains(&b) { a.wrapping_shr(b as u32) } else { 0 });
            }
            Binary::Pow => to.copy_from_slice(a),
        }
    }
}

macro_rules! compares {
    ($name:ident, $number:ty) => {
        per_level! {
            fn $name(function: Compare, a: &[$number], b: &[$number], to: &mut [i64]) {
                match function {
                    Compare::Equal => zip(a, b, to, |a, b| i64::from(a == b)),
                    Compare::Less => zip(a, b, to, |a, b| i64::from(a < b)),
                    Compare::LessOrEqual => zip(a, b, to, |a, b| i64::from(a <= b)),
                    Compare::Greater => zip(a, b, to, |a, b| i64::from(a > b)),
                    Compare::GreaterOrEqual => zip(a, b, to, |a, b| i64::from(a >= b)),
                }
            }
        }
    };
}
compares!(compare_single, f32);
compares!(compare_double, f64);
compares!(compare_whole, i64);

macro_rules! selects {
    ($name:ident, $number:ty) => {
        per_level! {
            fn $name(condition: &[i64], a: &[$number], b: &[$number], to: &mut [$number]) {
                for (((to, condition), a), b) in to.iter_mut().zip(condition).zip(a).zip(b) {
                    *to = if *condition != 0 { *a } else { *b };
                }
            }
        }
    };
}
selects!(select_single, f32);
selects!(select_double, f64);
selects!(select_whole, i64);

per_level! {
    fn quantize(x: &[f32], scale: &[f32], to: &mut [f32]) {
        zip(x, scale, to, |x, scale| {
            let whole = (x / scale).round_ties_even();
            if whole.is_nan() { 0.0 } else { whole }
        });
    }
}
per_level! {
    fn add_to(more: &[f32], to: &mut [f32]) {
        for (to, more) in to.iter_mut().zip(more) {
            *to += more;
        }
    }
}
per_level! {
    fn limit(low: f32, high: f32, to: &mut [f32]) {
        for to in to {
            let above = if *to < low { low } else { *to };
            *to = if above > high { high } else { above };
        }
    }
}
