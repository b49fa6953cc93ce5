//! Quantization in its parts becomes the operator that it is.
//!
//! Before: `x -> Cast(f32) -> Sub zero -> Mul scale` and `y -> Div scale -> Round -> Add zero -> Max -> Min -> Cast(u8)`, as
//! operators of `com.microsoft` and DynamicQuantizeLinear are read. After: `Dequantize`, `Quantize`.

use super::{is_byte, known::Known, limits_of};
use planforge_graph::ir::{Binary, ElementType, Graph, Node, Op, Quantization, Tensor, Unary, ValueId};

/// What a node becomes: scale and zero point are values of the graph, or new ones.
struct Steps {
    at: usize,
    op: Op,
    x: ValueId,
    scale: Parameter,
    zero: Option<Parameter>,
}

enum Parameter {
    Value(ValueId),
    New(Tensor),
}

pub fn run(graph: &mut Graph) {
    let found = graph.def_use();
    let known = Known { graph, found: &found };
    let all: Vec<Steps> =
        (0..graph.nodes.len()).filter_map(|at| quantized(&known, at).or_else(|| dequantized(&known, at))).collect();
    for steps in all {
        let name = graph.value(graph.nodes[steps.at].outputs[0]).name.clone();
        let mut value = |what: &str, parameter: Parameter| match parameter {
            Parameter::Value(id) => id,
            Parameter::New(tensor) => graph.add_constant(format!("{name} ({what})"), tensor),
        };
        let scale = value("scale", steps.scale);
        let zero = steps.zero.map(|zero| value("zero point", zero));
        let node = &mut graph.nodes[steps.at];
        (node.op, node.inputs) = (steps.op, vec![Some(steps.x), Some(scale), zero]);
    }
}

/// A tensor of one 8-bit number.
pub fn byte(element: ElementType, value: f64) -> Option<Tensor> {
    let [low, high] = limits_of(element);
    let whole = value.fract() == 0.0 && (low as f64..=high as f64).contains(&value);
    match element {
        ElementType::U8 if whole => Some(Tensor::scalar(value as u8)),
        ElementType::I8 if whole => Some(Tensor::scalar(value as i8)),
        _ => None,
    }
}

/// A scale in the shape of one: known, or a value of no axes.
fn scale(known: &Known<'_>, id: ValueId) -> Option<Parameter> {
    if known.graph.value(id).element != ElementType::F32 {
        return None;
    }
    match known.scalar(id) {
        Some(scale) => Some(Parameter::New(Tensor::scalar(scale as f32))),
        None => known.shape(id)?.is_empty().then_some(Parameter::Value(id)),
    }
}

/// An 8-bit zero point behind its number of another type.
fn zero(known: &Known<'_>, id: ValueId, element: ElementType) -> Option<Parameter> {
    if let Some(value) = known.scalar(id) {
        return byte(element, value).map(Parameter::New);
    }
    let (_, cast) = known.producer(id)?;
    let from = cast.input(0).filter(|_| matches!(cast.op, Op::Cast { .. }))?;
    let fits = known.graph.value(from).element == element && known.shape(from)?.is_empty();
    fits.then_some(Parameter::Value(from))
}

/// `.. -> Div -> Round -> Add -> Max -> Min -> Cast`, from its end.
fn quantized(known: &Known<'_>, at: usize) -> Option<Steps> {
    let node = &known.graph.nodes[at];
    let Op::Cast { to } = node.op else { return None };
    if !is_byte(to) {
        return None;
    }
    let [low, high] = limits_of(to);
    let limited = bounded(known, node.input(0)?, Binary::Min, high)?;
    let mut rounded = bounded(known, limited, Binary::Max, low)?;
    let mut zero_point = None;
    if let Some((_, add)) = known.producer(rounded).filter(|(_, add)| add.op == Op::Binary(Binary::Add)) {
        zero_point = Some(zero(known, add.input(1)?, to)?);
        rounded = add.input(0)?;
    }
    let (_, round) = known.producer(rounded).filter(|(_, round)| round.op == Op::Unary(Unary::Round))?;
    let (_, divided) = known.producer(round.input(0)?).filter(|(_, node)| node.op == Op::Binary(Binary::Div))?;
    let x = divided.input(0)?;
    let same = known.shape(x)? == known.shape(node.outputs[0])?;
    if known.graph.value(x).element != ElementType::F32 || !same {
        return None;
    }
    // The type of the result is that of the zero point, so there is one.
    let zero_point = match zero_point {
        Some(zero) => zero,
        None => Parameter::New(byte(to, 0.0)?),
    };
    let op = Op::Quantize(Quantization { element: to, axis: None });
    Some(Steps { at, op, x, scale: scale(known, divided.input(1)?)?, zero: Some(zero_point) })
}

/// The value that a bound is put to.
fn bounded(known: &Known<'_>, id: ValueId, by: Binary, bound: i64) -> Option<ValueId> {
    let (_, node) = known.producer(id).filter(|(_, node)| node.op == Op::Binary(by))?;
    let is_bound = known.scalar(node.input(1)?)? == bound as f64;
    is_bound.then(|| node.input(0)).flatten()
}

/// `Cast -> Sub -> Mul`, from its end.
fn dequantized(known: &Known<'_>, at: usize) -> Option<Steps> {
    let node = &known.graph.nodes[at];
    if node.op != Op::Binary(Binary::Mul) || known.graph.value(node.outputs[0]).element != ElementType::F32 {
        return None;
    }
    let (mut wide, scale_id) = (node.input(0)?, node.input(1)?);
    let mut zero_point = None;
    if let Some((_, sub)) = known.producer(wide).filter(|(_, sub)| sub.op == Op::Binary(Binary::Sub)) {
        zero_point = Some(known.scalar(sub.input(1)?)?);
        wide = sub.input(0)?;
    }
    let (_, cast) = known.producer(wide).filter(|(_, cast): &(usize, &Node)| matches!(cast.op, Op::Cast { .. }))?;
    let x = cast.input(0)?;
    let element = known.graph.value(x).element;
    if !is_byte(element) || known.shape(x)? != known.shape(node.outputs[0])? {
        return None;
    }
    let zero = byte(element, zero_point.unwrap_or(0.0))?;
    let scale = known.scalar(scale_id)?;
    let op = Op::Dequantize(Quantization { element, axis: None });
    let scale = Parameter::New(Tensor::scalar(scale as f32));
    Some(Steps { at, op, x, scale, zero: Some(Parameter::New(zero)) })
}
