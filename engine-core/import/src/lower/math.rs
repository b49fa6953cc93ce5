//! Element-by-element operators.

use super::{super::builder::Lowering, Rule};
use crate::{
    error::Refusal,
    narrow::{Kept, kept_type},
};
use planforge_graph::{
    ir::{Activation, Binary, Compare, ElementType, GeluForm, Op, Unary, ValueId},
    shape::is_float,
};

macro_rules! unary {
    ($name:literal, $op:expr) => {
        Rule { op_type: $name, attributes: &[], lower: |node| same(node, 1, Op::Unary($op)) }
    };
}

macro_rules! binary {
    ($name:literal, $op:expr) => {
        Rule { op_type: $name, attributes: &[], lower: |node| same(node, 2, Op::Binary($op)) }
    };
}

macro_rules! compare {
    ($name:literal, $op:expr) => {
        Rule { op_type: $name, attributes: &[], lower: |node| same(node, 2, Op::Compare($op)) }
    };
}

macro_rules! activation {
    ($name:literal, $op:expr) => {
        Rule { op_type: $name, attributes: &[], lower: |node| same(node, 1, Op::Activation($op)) }
    };
}

macro_rules! variadic {
    ($name:literal, $op:expr) => {
        Rule { op_type: $name, attributes: &[], lower: |node| variadic(node, $op) }
    };
}

pub const RULES: &[Rule] = &[
    unary!("Neg", Unary::Neg),
    unary!("Abs", Unary::Abs),
    unary!("Exp", Unary::Exp),
    unary!("Log", Unary::Log),
    unary!("Sqrt", Unary::Sqrt),
    unary!("Reciprocal", Unary::Reciprocal),
    unary!("Floor", Unary::Floor),
    unary!("Ceil", Unary::Ceil),
    unary!("Round", Unary::Round),
    unary!("Sign", Unary::Sign),
    unary!("Erf", Unary::Erf),
    unary!("Sin", Unary::Sin),
    unary!("Cos", Unary::Cos),
    unary!("Tan", Unary::Tan),
    unary!("Asin", Unary::Asin),
    unary!("Acos", Unary::Acos),
    unary!("Atan", Unary::Atan),
    unary!("Sinh", Unary::Sinh),
    unary!("Cosh", Unary::Cosh),
    unary!("Asinh", Unary::Asinh),
    unary!("Acosh", Unary::Acosh),
    unary!("Atanh", Unary::Atanh),
    unary!("Not", Unary::Not),
    unary!("IsNaN", Unary::IsNan),
    unary!("BitwiseNot", Unary::BitwiseNot),
    binary!("Add", Binary::Add),
    binary!("Sub", Binary::Sub),
    binary!("Mul", Binary::Mul),
    binary!("Div", Binary::Div),
    binary!("Pow", Binary::Pow),
    binary!("PRelu", Binary::PRelu),
    binary!("And", Binary::And),
    binary!("Or", Binary::Or),
    binary!("Xor", Binary::Xor),
    binary!("BitwiseAnd", Binary::BitwiseAnd),
    binary!("BitwiseOr", Binary::BitwiseOr),
    binary!("BitwiseXor", Binary::BitwiseXor),
    compare!("Equal", Compare::Equal),
    compare!("Less", Compare::Less),
    compare!("LessOrEqual", Compare::LessOrEqual),
    compare!("Greater", Compare::Greater),
    compare!("GreaterOrEqual", Compare::GreaterOrEqual),
    activation!("Relu", Activation::Relu),
    activation!("Sigmoid", Activation::Sigmoid),
    activation!("Tanh", Activation::Tanh),
    activation!("HardSwish", Activation::HardSwish),
    activation!("Softplus", Activation::Softplus),
    activation!("Softsign", Activation::Softsign),
    activation!("Mish", Activation::Mish),
    variadic!("Sum", Binary::Add),
    variadic!("Min", Binary::Min),
    variadic!("Max", Binary::Max),
    Rule { op_type: "Mean", attributes: &[], lower: mean },
    Rule {
        op_type: "LeakyRelu",
        attributes: &["alpha"],
        lower: |node| with_alpha(node, 0.01, |alpha| Activation::LeakyRelu { alpha }),
    },
    Rule {
        op_type: "Elu",
        attributes: &["alpha"],
        lower: |node| with_alpha(node, 1.0, |alpha| Activation::Elu { alpha }),
    },
    Rule {
        op_type: "Celu",
        attributes: &["alpha"],
        lower: |node| with_alpha(node, 1.0, |alpha| Activation::Celu { alpha }),
    },
    Rule {
        op_type: "ThresholdedRelu",
        attributes: &["alpha"],
        lower: |node| with_alpha(node, 1.0, |alpha| Activation::ThresholdedRelu { alpha }),
    },
    Rule { op_type: "Selu", attributes: &["alpha", "gamma"], lower: selu },
    Rule { op_type: "HardSigmoid", attributes: &["alpha", "beta"], lower: hard_sigmoid },
    Rule { op_type: "Gelu", attributes: &["approximate"], lower: gelu },
    Rule { op_type: "Clip", attributes: &["min", "max"], lower: clip },
    Rule { op_type: "Where", attributes: &[], lower: |node| same(node, 3, Op::Where) },
    Rule { op_type: "Cast", attributes: &["to", "saturate", "round_mode"], lower: cast },
    Rule { op_type: "CastLike", attributes: &["saturate", "round_mode"], lower: cast_like },
    Rule { op_type: "Hardmax", attributes: &["axis"], lower: super::loss::hardmax },
    Rule { op_type: "Shrink", attributes: &["bias", "lambd"], lower: shrink },
    Rule { op_type: "IsInf", attributes: &["detect_negative", "detect_positive"], lower: is_inf },
    Rule { op_type: "Swish", attributes: &["alpha"], lower: swish },
    Rule { op_type: "SwiGLU", attributes: &["alpha"], lower: swiglu },
    Rule { op_type: "Dropout", attributes: &["ratio", "seed"], lower: dropout },
];

const NAMES: [&str; 3] = ["first", "second", "third"];

/// An operator that is one of ours, with `count` inputs.
fn same(node: &mut Lowering<'_>, count: usize, op: Op) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(count)?;
    let inputs: Vec<ValueId> =
        (0..count).map(|position| node.input(position, NAMES[position])).collect::<Result<_, _>>()?;
    Ok(vec![node.emit(op, &inputs)?])
}

fn variadic(node: &mut Lowering<'_>, op: Binary) -> Result<Vec<ValueId>, Refusal> {
    let first = node.input(0, "first")?;
    if node.inputs.len() == 1 {
        return Ok(vec![node.emit(Op::Identity, &[first])?]);
    }
    let mut result = first;
    for position in 1..node.inputs.len() {
        let next = node.input(position, "next")?;
        result = node.emit(Op::Binary(op), &[result, next])?;
    }
    Ok(vec![result])
}

fn mean(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let sum = variadic(node, Binary::Add)?[0];
    let count = node.scalar(node.ty(sum).element, node.inputs.len() as f64)?;
    Ok(vec![node.emit(Op::Binary(Binary::Div), &[sum, count])?])
}

fn activate(node: &mut Lowering<'_>, activation: Activation) -> Result<Vec<ValueId>, Refusal> {
    same(node, 1, Op::Activation(activation))
}

fn with_alpha(
    node: &mut Lowering<'_>,
    default: f32,
    activation: fn(f32) -> Activation,
) -> Result<Vec<ValueId>, Refusal> {
    let alpha = node.attributes.float_or("alpha", default)?;
    activate(node, activation(alpha))
}

fn selu(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let alpha = node.attributes.float_or("alpha", 1.673_263_2)?;
    let gamma = node.attributes.float_or("gamma", 1.050_701)?;
    activate(node, Activation::Selu { alpha, gamma })
}

fn hard_sigmoid(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let (alpha, beta) = (node.attributes.float_or("alpha", 0.2)?, node.attributes.float_or("beta", 0.5)?);
    activate(node, Activation::HardSigmoid { alpha, beta })
}

fn gelu(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let form = match node.attributes.text_or("approximate", "none")? {
        "none" => GeluForm::Erf,
        "tanh" => GeluForm::Tanh,
        other => {
            return Err(Refusal::Attribute { name: "approximate".into(), reason: format!("is {other}") });
        }
    };
    activate(node, Activation::Gelu(form))
}

/// Bounds are attributes up to opset 10 and inputs from 11 on; constant ones of narrow floats become attributes.
fn clip(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    let x = node.input(0, "input")?;
    if node.opset < 11 {
        node.at_most(1)?;
        let (min, max) = (node.attributes.float("min")?, node.attributes.float("max")?);
        return activate(node, Activation::Clip { min, max });
    }
    node.at_most(3)?;
    let bounds = [node.optional(1), node.optional(2)];
    for bound in bounds.into_iter().flatten() {
        let ty = node.ty(bound);
        if ty.shape.iter().product::<usize>() != 1 {
            return Err(Refusal::Impossible { what: "a bound", value: ty.to_string(), shape: node.shape(x) });
        }
    }
    let narrow = matches!(node.ty(x).element, ElementType::F32 | ElementType::F16 | ElementType::Bf16);
    let same_type = bounds.iter().flatten().all(|&bound| node.ty(bound).element == node.ty(x).element);
    let known = bounds.map(|bound| bound.map(|bound| node.constant(bound).map(|tensor| tensor.to_f64s()[0] as f32)));
    if let (true, true, [min, max]) = (narrow, same_type, known)
        && min != Some(None)
        && max != Some(None)
    {
        let op = Op::Activation(Activation::Clip { min: min.flatten(), max: max.flatten() });
        return Ok(vec![node.emit(op, &[x])?]);
    }
    let mut result = x;
    for (bound, op) in bounds.into_iter().zip([Binary::Max, Binary::Min]) {
        if let Some(bound) = bound {
            let bound = node.emit_as(Op::Reshape, &[bound], Vec::new())?;
            result = node.emit(Op::Binary(op), &[result, bound])?;
        }
    }
    match result == x {
        true => Ok(vec![node.emit(Op::Identity, &[x])?]),
        false => Ok(vec![result]),
    }
}

fn cast(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "first")?;
    let to = node.attributes.required_int("to")?;
    let to = i32::try_from(to).ok().and_then(|to| kept_type(to).ok());
    let to = to.ok_or_else(|| Refusal::Attribute {
        name: "to".into(),
        reason: "names an element type that is not supported".into(),
    })?;
    converted(node, x, to)
}

fn cast_like(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let (x, like) = (node.input(0, "input")?, node.input(1, "target_type")?);
    converted(node, x, node.kept(like))
}

fn converted(node: &mut Lowering<'_>, x: ValueId, (to, narrow): Kept) -> Result<Vec<ValueId>, Refusal> {
    let rounding = node.rounding()?;
    let Some(narrow) = narrow else {
        let x = node.widened(x)?;
        return Ok(vec![node.emit(Op::Cast { to }, &[x])?]);
    };
    if node.narrow(x) == Some(narrow) {
        return Ok(vec![node.emit(Op::Identity, &[x])?]);
    }
    let x = node.widened(x)?;
    Ok(vec![node.narrowed(x, narrow, rounding)?])
}

/// `x + bias` below `-lambd`, `x - bias` above `lambd`, 0 between.
fn shrink(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let given = node.input(0, "input")?;
    let (bias, limit) = (node.attributes.float_or("bias", 0.0)?, node.attributes.float_or("lambd", 0.5)?);
    // Integers are shrunk as floats and cut to their type again.
    let element = node.ty(given).element;
    let wide = if is_float(element) { element } else { ElementType::F64 };
    let x = node.cast(given, wide)?;
    let below = node.compare_with(Compare::Less, x, (-limit).into())?;
    let above = node.compare_with(Compare::Greater, x, limit.into())?;
    let raised = node.binary_with(Binary::Add, x, bias.into())?;
    let lowered = node.binary_with(Binary::Sub, x, bias.into())?;
    let zero = node.scalar(wide, 0.0)?;
    let result = node.choose(above, lowered, zero)?;
    let result = node.choose(below, raised, result)?;
    Ok(vec![node.cast(result, element)?])
}

fn is_inf(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "X")?;
    if !is_float(node.ty(x).element) {
        return Err(Refusal::Element(node.ty(x).element.to_string()));
    }
    let sides = [("detect_negative", f64::NEG_INFINITY), ("detect_positive", f64::INFINITY)];
    let mut found = None;
    for (name, infinity) in sides {
        if node.attributes.flag(name, true)? {
            let hit = node.compare_with(Compare::Equal, x, infinity)?;
            found = Some(match found {
                None => hit,
                Some(other) => node.binary(Binary::Or, other, hit)?,
            });
        }
    }
    match found {
        Some(found) => Ok(vec![found]),
        None => {
            let never = node.scalar(ElementType::Bool, 0.0)?;
            let shape = node.shape(x);
            Ok(vec![node.emit_as(Op::Expand, &[never], shape)?])
        }
    }
}

/// `x sigmoid(alpha x)`
fn swished(node: &mut Lowering<'_>, x: ValueId) -> Result<ValueId, Refusal> {
    let alpha = node.attributes.float_or("alpha", 1.0)?;
    if alpha == 1.0 {
        return node.emit(Op::Activation(Activation::Silu), &[x]);
    }
    let scaled = node.binary_with(Binary::Mul, x, alpha.into())?;
    let gate = node.emit(Op::Activation(Activation::Sigmoid), &[scaled])?;
    node.binary(Binary::Mul, x, gate)
}

fn swish(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "X")?;
    Ok(vec![swished(node, x)?])
}

/// A gate and what passes through it, of one shape.
fn swiglu(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(2)?;
    let (gate, x) = (node.input(0, "A")?, node.input(1, "B")?);
    if !node.same_type(gate, x) {
        let value = node.ty(gate).to_string();
        return Err(Refusal::Impossible { what: "the gate", value, shape: node.shape(x) });
    }
    let gate = swished(node, gate)?;
    Ok(vec![node.binary(Binary::Mul, gate, x)?])
}

/// Inference leaves its input as it is, and the mask (when asked for) keeps everything.
fn dropout(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(3)?;
    node.attributes.without_effect("ratio");
    node.attributes.without_effect("seed");
    let x = node.input(0, "data")?;
    if let Some(training) = node.optional(2) {
        let training = node.constant(training).ok_or(Refusal::NotConstant { what: "training_mode" })?;
        let training = training.to_f64s().iter().any(|&flag| flag != 0.0);
        let drops_nothing = node.optional(1).and_then(|ratio| node.constant(ratio));
        let drops_nothing = drops_nothing.is_some_and(|ratio| ratio.to_f64s().iter().all(|&ratio| ratio == 0.0));
        if training && !drops_nothing {
            return Err(Refusal::Unsupported { what: "training mode that drops something".into() });
        }
    }
    let mut results = vec![node.emit(Op::Identity, &[x])?];
    if node.wants(1) {
        let keep = node.scalar(ElementType::Bool, 1.0)?;
        let shape = node.shape(x);
        results.push(node.emit_as(Op::Expand, &[keep], shape)?);
    }
    Ok(results)
}
