//! Joins quantized operators into products and convolutions of 8-bit integers with exact sums.
//!
//! Before: `x -> Dequantize -> Conv(w -> Dequantize, b) -> Relu -> Quantize -> y`, `x -> Cast -> Sub zero -> Conv(..) ->
//! Add -> Mul -> Round -> Add -> Max -> Min -> Cast -> y` (as QLinearConv is read), or `x -> Cast -> Sub zero ->
//! MatMul(..) -> Cast -> Mul scale -> Add bias -> y` (as dynamically quantized models have it).
//! After: `x -> integer_conv(w, zeros, bias, factor) -> y`.
//!
//! Attention between quantized values is one of integers. What only moves quantized numbers, or takes the largest of them,
//! moves integers. Scales have to be known and positive,
//! but for those of dynamically quantized rows; weights have to be stored as integers, and sums to stay within 32 bits.
//! Everything else is left to the passes behind this one.

mod attention;
mod floats;
mod integers;
mod known;
mod moves;
mod steps;

use super::{
    dead,
    edit::{Edit, Replacement},
};
use known::Known;
use planforge_graph::{
    ir::{Conv, ElementType, Graph, NamedOp, Op, Tensor, ValueId},
    named::quantized::{CONV, DEPTH_MAX, PRODUCT},
};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    // Most models have no such operator: nothing is looked at twice, and nothing dropped.
    let quantized = |op: &Op| matches!(op, Op::Quantize(_) | Op::Dequantize(_));
    let bytes = |id: &Option<ValueId>| id.is_some_and(|id| is_byte(graph.value(id).element));
    let any = graph.nodes.iter().any(|node| {
        quantized(&node.op) || (matches!(node.op, Op::Cast { .. } | Op::Pool(_)) && node.inputs.iter().any(bytes))
    });
    if !any {
        return;
    }
    steps::run(graph);
    dead::run(graph, &mut Vec::new());
    products(graph, changes);
    dead::run(graph, &mut Vec::new());
    moves::run(graph, changes);
    dead::run(graph, &mut Vec::new());
    attention::run(graph, changes);
    dead::run(graph, &mut Vec::new());
}

/// Whether values of this type are integers of 8 bits.
fn is_byte(element: ElementType) -> bool {
    matches!(element, ElementType::U8 | ElementType::I8)
}

/// What a product or convolution of integers is made of.
struct Joined {
    /// The convolution, or a product.
    conv: Option<Conv>,
    x: ValueId,
    /// As the operator takes them.
    w: Tensor,
    x_zero: RowZero,
    w_zero: Option<Tensor>,
    finish: Finish,
    /// The node whose place it takes, and those whose work it does.
    last: usize,
    parts: Vec<usize>,
}

/// The zero point of rows in their own type.
enum RowZero {
    None,
    Value(ValueId),
    New(Tensor),
}

/// What becomes of the sums.
enum Finish {
    Sums,
    Integers { bias: Option<Vec<f64>>, factor: Vec<f64>, element: ElementType, limits: [i64; 3] },
    Scaled { bias: Option<Vec<f64>>, factor: Vec<f64> },
    Floats { bias: Option<Vec<f32>>, factor: ValueId },
}

fn products(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for at in 0..graph.nodes.len() {
        if !matches!(graph.nodes[at].op, Op::Conv(_) | Op::MatMul(_)) {
            continue;
        }
        let known = Known { graph, found: &found };
        if let Some(joined) = floats::join(&known, at).or_else(|| integers::join(&known, at)) {
            replace(graph, &mut edit, joined, changes);
        }
    }
    edit.apply(graph);
}

fn doubles(list: &[f64]) -> Tensor {
    Tensor::from_vec(vec![list.len()], list.to_vec()).unwrap_or_else(|_| Tensor::scalar(0.0f64))
}

fn replace(graph: &mut Graph, edit: &mut Edit, joined: Joined, changes: &mut Vec<String>) {
    let output = graph.nodes[joined.last].outputs[0];
    let name = graph.value(output).name.clone();
    let mut constant = |what: &str, tensor: Tensor| Some(graph.add_constant(format!("{name} ({what})"), tensor));
    let w = constant("weights", joined.w);
    let x_zero = match joined.x_zero {
        RowZero::None => None,
        RowZero::Value(id) => Some(id),
        RowZero::New(tensor) => constant("zero point", tensor),
    };
    let w_zero = joined.w_zero.and_then(|zero| constant("zero points", zero));
    let (text, limits, bias, factor) = match joined.finish {
        Finish::Sums => ("i32".to_owned(), None, None, None),
        Finish::Integers { bias, factor, element, limits } => {
            let bias = bias.and_then(|bias| constant("bias", doubles(&bias)));
            (element.to_string(), Some(limits), bias, constant("factor", doubles(&factor)))
        }
        Finish::Scaled { bias, factor } => {
            let bias = bias.and_then(|bias| constant("bias", doubles(&bias)));
            ("f32".to_owned(), None, bias, constant("factor", doubles(&factor)))
        }
        Finish::Floats { bias, factor } => {
            let bias = bias.and_then(|bias| {
                constant("bias", Tensor::from_vec(vec![bias.len()], bias).unwrap_or_else(|_| Tensor::scalar(0.0f32)))
            });
            ("f32".to_owned(), None, bias, Some(factor))
        }
    };
    let mut op = NamedOp::new(if joined.conv.is_some() { CONV } else { PRODUCT }).with_text("to", &text);
    if let Some([zero, low, high]) = limits {
        op = op.with_int("zero", zero).with_int("low", low).with_int("high", high);
    }
    if let Some(conv) = &joined.conv {
        op = op
            .with_sizes("strides", &conv.strides)
            .with_sizes("pads", &conv.pads)
            .with_sizes("dilations", &conv.dilations)
            .with_sizes("groups", &[conv.groups]);
    }
    let inputs = vec![Some(joined.x), w, x_zero, w_zero, bias, factor];
    let op = Op::Named(Box::new(op));
    edit.replace(graph, Replacement { parts: &joined.parts, last: joined.last, op, inputs }, changes);
}

/// Whether sums of this many products stay within 32 bits.
fn is_short(depth: usize) -> bool {
    (1..=DEPTH_MAX).contains(&depth)
}

/// Whether values of this rank have one or two axes behind their channels.
fn is_image(rank: usize) -> bool {
    matches!(rank, 3 | 4)
}

/// Whether a scale has a use: not zero, not infinite, no subnormal.
fn is_scale(scale: f64) -> bool {
    scale.is_finite() && scale >= f64::from(f32::MIN_POSITIVE)
}

/// Least and largest number of an 8-bit type.
fn limits_of(element: ElementType) -> [i64; 2] {
    if element == ElementType::U8 { [0, 255] } else { [-128, 127] }
}

/// A matrix of bytes with rows and columns swapped.
fn swapped(matrix: &Tensor) -> Option<Tensor> {
    let &[rows, columns] = matrix.shape() else { return None };
    let from = matrix.bytes();
    let mut to = Vec::with_capacity(from.len());
    for column in 0..columns {
        to.extend((0..rows).map(|row| from[row * columns + column]));
    }
    Tensor::new(matrix.element(), vec![columns, rows], to.into()).ok()
}
