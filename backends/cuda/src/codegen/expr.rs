//! Element-wise expressions, as trees over loads.

use super::{c_double, c_float, c_type};
use crate::view::{Kind, View};
use planforge_graph::ir::{Activation, Binary, Compare, GeluForm, Unary};

/// What a value is while it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Float,
    Double,
    Int,
    /// Whole numbers of 64 bits without a sign; smaller ones are as good as those that have one.
    Unsigned,
    Bool,
}

impl Class {
    pub fn of(kind: Kind) -> Self {
        match kind {
            Kind::Bool => Self::Bool,
            Kind::F64 => Self::Double,
            Kind::U64 => Self::Unsigned,
            kind if kind.is_float() => Self::Float,
            _ => Self::Int,
        }
    }

    /// Whether its numbers have fractions.
    pub fn is_real(self) -> bool {
        matches!(self, Self::Float | Self::Double)
    }

    pub fn c_type(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Double => "double",
            Self::Int => "i64",
            Self::Unsigned => "unsigned long long",
            Self::Bool => "bool",
        }
    }
}

/// What functions are good to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digits {
    /// A result in fp16, whose smallest numbers end sooner than those of the other types.
    F16,
    /// Any other result of what has 16 bits.
    Half,
    /// A result in f32 of what is stored so.
    Single,
}

impl Digits {
    /// Of a result stored as `kind`.
    pub fn of(kind: Kind) -> Self {
        match kind {
            Kind::F16 => Self::F16,
            Kind::Bf16 => Self::Half,
            _ => Self::Single,
        }
    }

    /// The function of that name which is good to them.
    fn function(self, name: &str) -> String {
        match self {
            Self::F16 | Self::Half => format!("{name}_"),
            Self::Single => format!("{name}_exact"),
        }
    }

    /// e to a power.
    pub fn exp(self) -> &'static str {
        match self {
            Self::F16 | Self::Half => "__expf",
            Self::Single => "expf",
        }
    }
}

/// One element of a result.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    Load(Load),
    Float(f32),
    Double(f64),
    Int(i64),
    Bool(bool),
    Unary(Unary, Box<Expr>),
    Activation(Activation, Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    Compare(Compare, Box<Expr>, Box<Expr>),
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
    /// To float, whole number (toward zero) or truth.
    Cast(Class, Box<Expr>),
    /// A whole number as this type would keep it.
    Narrow(Kind, Box<Expr>),
}

/// Where an element comes from: a view of the result's dimensions, possibly indexed by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    pub view: View,
    /// Adds `index * stride` elements, an index below zero counting from `rows`.
    pub index: Option<Box<Index>>,
}

/// Indices of a gather, as a view of the result's dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    pub view: View,
    pub stride: u64,
    pub rows: u64,
}

/// An operator that has no expression here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} has no device code")]
pub struct NoCode(pub String);

impl Expr {
    pub fn class(&self) -> Class {
        match self {
            Self::Load(load) => Class::of(load.view.kind),
            Self::Float(_) => Class::Float,
            Self::Double(_) => Class::Double,
            Self::Activation(_, x) => match x.class() {
                Class::Bool => Class::Float,
                class => class,
            },
            Self::Int(_) => Class::Int,
            Self::Bool(_) | Self::Compare(..) => Class::Bool,
            Self::Unary(Unary::Not | Unary::IsNan, _) => Class::Bool,
            Self::Unary(_, x) => x.class(),
            Self::Binary(_, a, _) => a.class(),
            Self::Select(_, a, _) => a.class(),
            Self::Cast(class, _) => *class,
            Self::Narrow(kind, _) => Class::of(*kind),
        }
    }

    /// Every load, in order.
    pub fn loads<'a>(&'a self, into: &mut Vec<&'a Load>) {
        match self {
            Self::Load(load) => into.push(load),
            Self::Float(_) | Self::Double(_) | Self::Int(_) | Self::Bool(_) => {}
            Self::Unary(_, x) | Self::Activation(_, x) | Self::Cast(_, x) | Self::Narrow(_, x) => x.loads(into),
            Self::Binary(_, a, b) | Self::Compare(_, a, b) => {
                a.loads(into);
                b.loads(into);
            }
            Self::Select(c, a, b) => {
                c.loads(into);
                a.loads(into);
                b.loads(into);
            }
        }
    }

    /// The form of every GELU.
    pub fn gelus(&self, into: &mut Vec<GeluForm>) {
        match self {
            Self::Load(_) | Self::Float(_) | Self::Double(_) | Self::Int(_) | Self::Bool(_) => {}
            Self::Activation(op, x) => {
                if let Activation::Gelu(form) = op {
                    into.push(*form);
                }
                x.gelus(into);
            }
            Self::Unary(_, x) | Self::Cast(_, x) | Self::Narrow(_, x) => x.gelus(into),
            Self::Binary(_, a, b) | Self::Compare(_, a, b) => [a, b].into_iter().for_each(|x| x.gelus(into)),
            Self::Select(c, a, b) => [c, a, b].into_iter().for_each(|x| x.gelus(into)),
        }
    }

    /// Number of operations.
    pub fn size(&self) -> usize {
        match self {
            Self::Load(_) | Self::Float(_) | Self::Double(_) | Self::Int(_) | Self::Bool(_) => 0,
            Self::Unary(_, x) | Self::Activation(_, x) | Self::Cast(_, x) | Self::Narrow(_, x) => 1 + x.size(),
            Self::Binary(_, a, b) | Self::Compare(_, a, b) => 1 + a.size() + b.size(),
            Self::Select(c, a, b) => 1 + c.size() + a.size() + b.size(),
        }
    }

    /// Replaces every load's view, and its index's.
    pub fn map_views(&mut self, change: &mut dyn FnMut(&View) -> View) {
        match self {
            Self::Load(load) => {
                load.view = change(&load.view);
                if let Some(index) = &mut load.index {
                    index.view = change(&index.view);
                }
            }
            Self::Float(_) | Self::Double(_) | Self::Int(_) | Self::Bool(_) => {}
            Self::Unary(_, x) | Self::Activation(_, x) | Self::Cast(_, x) | Self::Narrow(_, x) => x.map_views(change),
            Self::Binary(_, a, b) | Self::Compare(_, a, b) => {
                a.map_views(change);
                b.map_views(change);
            }
            Self::Select(c, a, b) => {
                c.map_views(change);
                a.map_views(change);
                b.map_views(change);
            }
        }
    }

    /// The expression in C; `load` names the value of the n-th load.
    pub fn c(&self, next: &mut usize, digits: Digits, load: &dyn Fn(usize) -> String) -> Result<String, NoCode> {
        Ok(match self {
            Self::Load(_) => {
                *next += 1;
                load(*next - 1)
            }
            Self::Float(value) => c_float(*value),
            Self::Double(value) => c_double(*value),
            Self::Int(value) => format!("((i64){value}LL)"),
            Self::Bool(value) => value.to_string(),
            Self::Cast(to, x) => {
                let from = x.class();
                let text = x.c(next, digits, load)?;
                match (from, to) {
                    (from, to) if from == *to => text,
                    (_, Class::Bool) => format!("({text} != 0)"),
                    (_, to) => format!("(({}){text})", to.c_type()),
                }
            }
            Self::Narrow(kind, x) => {
                let stored = if *kind == Kind::I16 { "short" } else { c_type(*kind) };
                format!("((i64)({stored})({}))", x.c(next, digits, load)?)
            }
            Self::Unary(op, x) => {
                let class = x.class();
                unary(*op, class, digits, &x.c(next, digits, load)?)?
            }
            Self::Activation(op, x) => {
                let class = x.class();
                let text = x.c(next, digits, load)?;
                match (class, op) {
                    (Class::Double, op) => once("x_", class, &text, |x| activation_f64(*op, x)),
                    (Class::Int, Activation::Relu) => once("x_", class, &text, |x| format!("({x} > 0 ? {x} : 0)")),
                    (Class::Unsigned, Activation::Relu) => text,
                    (Class::Int | Class::Unsigned, op) => return Err(NoCode(format!("{op:?} of whole numbers"))),
                    (_, op) => once("x_", class, &text, |x| activation(*op, digits, x)),
                }
            }
            Self::Binary(op, a, b) => {
                let (class, other) = (a.class(), b.class());
                let (a, b) = (a.c(next, digits, load)?, b.c(next, digits, load)?);
                binary(*op, class, other, &a, &b)?
            }
            Self::Compare(op, a, b) => {
                let (a, b) = (a.c(next, digits, load)?, b.c(next, digits, load)?);
                let sign = match op {
                    Compare::Equal => "==",
                    Compare::Less => "<",
                    Compare::LessOrEqual => "<=",
                    Compare::Greater => ">",
                    Compare::GreaterOrEqual => ">=",
                };
                format!("({a} {sign} {b})")
            }
            Self::Select(c, a, b) => {
                let (c, a, b) = (c.c(next, digits, load)?, a.c(next, digits, load)?, b.c(next, digits, load)?);
                format!("({c} ? {a} : {b})")
            }
        })
    }
}

/// Longest text that is written down wherever it is needed.
const MAX_REPEATED: usize = 256;

/// What `with` makes of an operand. A long one that it would repeat has a name, or chains of operators would grow by
/// powers; it is computed where the whole is, so that what a condition guards stays guarded.
fn once(name: &str, class: Class, operand: &str, with: impl Fn(&str) -> String) -> String {
    let by_name = with(name);
    if operand.len() <= MAX_REPEATED || by_name.matches(name).count() <= 1 {
        return with(operand);
    }
    format!("[&]({} {name}) {{ return {by_name}; }}({operand})", class.c_type())
}

/// Like [`once`], of two operands that are computed in any case.
fn both(class: Class, a: &str, b: &str, with: impl Fn(&str, &str) -> String) -> String {
    once("a_", class, a, |a| once("b_", class, b, |b| with(a, b)))
}

fn unary(op: Unary, class: Class, digits: Digits, x: &str) -> Result<String, NoCode> {
    if matches!(class, Class::Int | Class::Unsigned) {
        return Ok(match op {
            Unary::Neg => format!("(-{x})"),
            Unary::Abs if class == Class::Unsigned => x.into(),
            Unary::Abs => format!("llabs({x})"),
            Unary::Sign => once("x_", class, x, |x| format!("(i64)(({x} > 0) - ({x} < 0))")),
            Unary::BitwiseNot => format!("(~{x})"),
            Unary::Floor | Unary::Ceil | Unary::Round => x.into(),
            other => return Err(NoCode(format!("{other:?} of whole numbers"))),
        });
    }
    // Functions of f64 have the same names without the f at their end.
    let call = |name: &str| match class {
        Class::Double => format!("{}({x})", name.trim_start_matches('_').trim_end_matches('f')),
        _ => format!("{name}({x})"),
    };
    Ok(match op {
        Unary::Not => format!("(!{x})"),
        Unary::IsNan => once("x_", class, x, |x| format!("({x} != {x})")),
        Unary::Neg => format!("(-{x})"),
        Unary::Abs => call("fabsf"),
        Unary::Exp if class == Class::Double => format!("exp({x})"),
        Unary::Exp => call(digits.exp()),
        Unary::Log => call("logf"),
        Unary::Sqrt => call("sqrtf"),
        Unary::Reciprocal => format!("(1.0f / {x})"),
        Unary::Floor => call("floorf"),
        Unary::Ceil => call("ceilf"),
        Unary::Round => call("rintf"),
        Unary::Sign => once("x_", class, x, |x| format!("({})(({x} > 0.0f) - ({x} < 0.0f))", class.c_type())),
        Unary::Erf if class == Class::Double => format!("erf({x})"),
        Unary::Erf => call("erff"),
        Unary::Sin => call("sinf"),
        Unary::Cos => call("cosf"),
        Unary::Tan => call("tanf"),
        Unary::Asin => call("asinf"),
        Unary::Acos => call("acosf"),
        Unary::Atan => call("atanf"),
        Unary::Sinh => call("sinhf"),
        Unary::Cosh => call("coshf"),
        Unary::Asinh => call("asinhf"),
        Unary::Acosh => call("acoshf"),
        Unary::Atanh => call("atanhf"),
        Unary::BitwiseNot => return Err(NoCode("BitwiseNot of floats".into())),
    })
}

/// `x` is named several times: callers give a name or accept that the compiler merges what is equal.
pub fn activation(op: Activation, digits: Digits, x: &str) -> String {
    let f = c_float;
    let call = |name: &str| format!("{}({x})", digits.function(name));
    match op {
        Activation::Relu => format!("fmaxf({x}, 0.0f)"),
        Activation::Clip { min, max } => {
            let low = min.map_or(x.to_owned(), |min| format!("fmaxf({x}, {})", f(min)));
            max.map_or(low.clone(), |max| format!("fminf({low}, {})", f(max)))
        }
        Activation::LeakyRelu { alpha } => format!("({x} < 0.0f ? {} * {x} : {x})", f(alpha)),
        Activation::Elu { alpha } | Activation::Celu { alpha } if alpha == 1.0 => {
            format!("({x} < 0.0f ? expm1f({x}) : {x})")
        }
        Activation::Elu { alpha } => format!("({x} < 0.0f ? {} * expm1f({x}) : {x})", f(alpha)),
        Activation::Selu { alpha, gamma } => {
            format!("({} * ({x} < 0.0f ? {} * expm1f({x}) : {x}))", f(gamma), f(alpha))
        }
        Activation::Celu { alpha } => {
            format!("(fmaxf({x}, 0.0f) + fminf(0.0f, {} * expm1f({x} / {})))", f(alpha), f(alpha))
        }
        Activation::ThresholdedRelu { alpha } => format!("({x} > {} ? {x} : 0.0f)", f(alpha)),
        Activation::Sigmoid => call("sigmoid"),
        Activation::Tanh if digits == Digits::Single => format!("tanhf({x})"),
        Activation::Tanh => call("tanh"),
        Activation::HardSigmoid { alpha, beta } => format!("clip_({} * {x} + {}, 0.0f, 1.0f)", f(alpha), f(beta)),
        Activation::HardSwish => format!("({x} * clip_({x} * 0.16666667f + 0.5f, 0.0f, 1.0f))"),
        Activation::Softplus => call("softplus"),
        Activation::Softsign => format!("({x} / (1.0f + fabsf({x})))"),
        Activation::Gelu(GeluForm::Erf) if digits == Digits::F16 => format!("gelu_f16({x})"),
        Activation::Gelu(GeluForm::Erf) => call("gelu"),
        Activation::Gelu(GeluForm::Tanh) => call("gelu_tanh"),
        Activation::Silu => format!("({x} * {})", call("sigmoid")),
        Activation::Mish => call("mish"),
    }
}

/// The same in f64, from the C library's functions.
pub fn activation_f64(op: Activation, x: &str) -> String {
    let f = |value: f32| c_double(value.into());
    let sigmoid = |x: &str| format!("(1.0 / (1.0 + exp(-({x}))))");
    let softplus = format!("(fmax({x}, 0.0) + log1p(exp(-fabs({x}))))");
    match op {
        Activation::Relu => format!("fmax({x}, 0.0)"),
        Activation::Clip { min, max } => {
            let low = min.map_or(x.to_owned(), |min| format!("fmax({x}, {})", f(min)));
            max.map_or(low.clone(), |max| format!("fmin({low}, {})", f(max)))
        }
        Activation::LeakyRelu { alpha } => format!("({x} < 0.0 ? {} * {x} : {x})", f(alpha)),
        Activation::Elu { alpha } => format!("({x} < 0.0 ? {} * expm1({x}) : {x})", f(alpha)),
        Activation::Selu { alpha, gamma } => {
            format!("({} * ({x} <= 0.0 ? {} * expm1({x}) : {x}))", f(gamma), f(alpha))
        }
        Activation::Celu { alpha } => {
            format!("(fmax({x}, 0.0) + fmin(0.0, {} * expm1({x} / {})))", f(alpha), f(alpha))
        }
        Activation::ThresholdedRelu { alpha } => format!("({x} > {} ? {x} : 0.0)", f(alpha)),
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => format!("tanh({x})"),
        Activation::HardSigmoid { alpha, beta } => format!("fmin(fmax({} * {x} + {}, 0.0), 1.0)", f(alpha), f(beta)),
        Activation::HardSwish => format!("({x} * fmin(fmax({x} / 6.0 + 0.5, 0.0), 1.0))"),
        Activation::Softplus => softplus,
        Activation::Softsign => format!("({x} / (1.0 + fabs({x})))"),
        Activation::Gelu(GeluForm::Erf) => format!("(0.5 * {x} * erfc({x} * -0.70710678118654752))"),
        Activation::Gelu(GeluForm::Tanh) => {
            format!("({x} * {})", sigmoid(&format!("1.5957691216057308 * ({x} + 0.044715 * {x} * {x} * {x})")))
        }
        Activation::Silu => format!("({x} * {})", sigmoid(x)),
        Activation::Mish => format!("({x} * tanh({softplus}))"),
    }
}

/// A whole number times itself so many times; below zero times all but one give nothing.
fn whole_power(class: Class, a: &str, b: &str) -> String {
    let number = class.c_type();
    format!(
        "[]({number} x_, i64 n_) {{ {number} r_ = n_ < 0 && x_ != 1 ? 0 : 1; \
         for (; n_ > 0; n_ >>= 1) {{ if (n_ & 1) r_ *= x_; x_ *= x_; }} return r_; }}({a}, {b})"
    )
}

fn binary(op: Binary, class: Class, other: Class, a: &str, b: &str) -> Result<String, NoCode> {
    let infix = |sign: &str| format!("({a} {sign} {b})");
    let is_float = class.is_real();
    let is_double = class == Class::Double;
    Ok(match op {
        Binary::Add => infix("+"),
        Binary::Sub => infix("-"),
        Binary::Mul => infix("*"),
        Binary::Div => infix("/"),
        Binary::Min if is_double => format!("fmin({a}, {b})"),
        Binary::Max if is_double => format!("fmax({a}, {b})"),
        Binary::Min if is_float => format!("fminf({a}, {b})"),
        Binary::Max if is_float => format!("fmaxf({a}, {b})"),
        Binary::Min => both(class, a, b, |a, b| format!("({a} < {b} ? {a} : {b})")),
        Binary::Max => both(class, a, b, |a, b| format!("({a} > {b} ? {a} : {b})")),
        Binary::Pow if is_double => format!("pow({a}, (double){b})"),
        Binary::Pow if !is_float && !other.is_real() => whole_power(class, a, b),
        Binary::Pow if !is_float => format!("(i64)pow((double){a}, (double){b})"),
        Binary::Pow => match b {
            "2e0f" => once("a_", class, a, |a| format!("({a} * {a})")),
            "5e-1f" => format!("sqrtf({a})"),
            _ => format!("powf({a}, {b})"),
        },
        Binary::PRelu => once("a_", class, a, |a| format!("({a} < 0 ? {b} * {a} : {a})")),
        Binary::FMod if is_double => format!("fmod({a}, {b})"),
        Binary::FMod if is_float => format!("fmodf({a}, {b})"),
        Binary::FMod => infix("%"),
        Binary::Mod if !is_float => both(class, a, b, |a, b| format!("(({a} % {b} + {b}) % {b})")),
        // What is shifted further than it is wide is gone.
        Binary::ShiftLeft if !is_float => both(class, a, b, |a, b| format!("({b} < 64 ? {a} << {b} : 0)")),
        Binary::ShiftRight if !is_float => both(class, a, b, |a, b| format!("({b} < 64 ? {a} >> {b} : 0)")),
        Binary::And => infix("&&"),
        Binary::Or => infix("||"),
        Binary::Xor => infix("!="),
        Binary::BitwiseAnd if !is_float => infix("&"),
        Binary::BitwiseOr if !is_float => infix("|"),
        Binary::BitwiseXor if !is_float => infix("^"),
        other => return Err(NoCode(format!("{other:?} of {class:?} operands"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::BufferId;

    fn load(kind: Kind) -> Box<Expr> {
        Box::new(Expr::Load(Load { view: View::rows(BufferId(0), kind, &[8]), index: None }))
    }

    fn text(expression: &Expr) -> String {
        expression.c(&mut 0, Digits::Half, &|number| format!("l{number}")).expect("it has code")
    }

    #[test]
    fn operands_are_repeated_only_while_they_are_short() {
        let leaky = |x: Box<Expr>| Expr::Activation(Activation::LeakyRelu { alpha: 0.5 }, x);
        assert_eq!(text(&leaky(load(Kind::F16))), "(l0 < 0.0f ? 5e-1f * l0 : l0)");
        let long = (0..100).fold(load(Kind::F16), |sum, _| Box::new(Expr::Binary(Binary::Add, sum, load(Kind::F16))));
        let sum = text(&long);
        let named = format!("[&](float x_) {{ return (x_ < 0.0f ? 5e-1f * x_ : x_); }}({sum})");
        assert_eq!(text(&leaky(long.clone())), named);
        // What is needed once has no need of a name.
        assert_eq!(text(&Expr::Activation(Activation::Relu, long)), format!("fmaxf({sum}, 0.0f)"));
    }

    #[test]
    fn chains_of_operators_do_not_grow_by_powers() {
        type Make = fn(Box<Expr>) -> Expr;
        let floats: [Make; 6] = [
            |x| Expr::Activation(Activation::LeakyRelu { alpha: 0.1 }, x),
            |x| Expr::Activation(Activation::Gelu(GeluForm::Tanh), x),
            |x| Expr::Activation(Activation::Mish, x),
            |x| Expr::Unary(Unary::Sign, x),
            |x| Expr::Binary(Binary::Pow, x, Box::new(Expr::Float(2.0))),
            |x| Expr::Binary(Binary::PRelu, x, load(Kind::F16)),
        ];
        let numbers: [Make; 3] = [
            |x| Expr::Binary(Binary::Min, x, load(Kind::I64)),
            |x| Expr::Binary(Binary::Mod, load(Kind::I64), x),
            |x| Expr::Unary(Unary::Sign, x),
        ];
        for (kind, makes) in [(Kind::F16, &floats[..]), (Kind::I64, &numbers[..])] {
            for make in makes {
                let chain = (0..40).fold(load(kind), |x, _| Box::new(make(x)));
                let bytes = text(&chain).len();
                assert!(bytes < 20_000, "{bytes} bytes of text");
            }
        }
    }
}
