//! Random numbers, where nothing depends on them.
//!
//! What a draw gives is open in ONNX, so an engine of it could be held against nothing, and one that drew the same at
//! every run would not be the model. But exporters leave draws in models whose noise was turned off: `normal * spread *
//! 0`. Whatever number stands for such a draw, the result is that of the model.

use super::{super::builder::Lowering, Rule, sizes};
use crate::{element_type, error::Refusal, order::read_by, standard};
use planforge_graph::ir::{ElementType, Op, ValueId};
use planforge_onnx::proto::{GraphProto, NodeProto, TensorProto};
use std::collections::BTreeSet;

pub const RULES: &[Rule] = &[
    Rule { op_type: "RandomNormal", attributes: &["dtype", "mean", "scale", "seed", "shape"], lower: of_shape },
    Rule { op_type: "RandomNormalLike", attributes: &["dtype", "mean", "scale", "seed"], lower: like },
];

/// Whether a node draws numbers.
pub fn is_random(node: &NodeProto) -> bool {
    standard(&node.domain) && RULES.iter().any(|rule| rule.op_type == node.op_type)
}

/// Why a node that draws numbers is refused, where what the model gives depends on them.
pub fn refusal(node: &NodeProto, graph: &GraphProto) -> Option<Refusal> {
    let scale = node.attribute.iter().find(|attribute| attribute.name == "scale");
    let is_one_number = scale.is_some_and(|scale| scale.f == 0.0 && scale.ref_attr_name.is_empty());
    let is_open = !is_one_number && node.output.iter().any(|name| depends_on(name, graph));
    is_open.then(|| Refusal::Unsupported { what: "random numbers on which the model's outputs depend".into() })
}

/// Whether anything that leaves `graph` depends on which finite number each element of `name` is. It does not where all
/// that reads them are products, each of which ends in one with zero.
fn depends_on(name: &str, graph: &GraphProto) -> bool {
    let (mut open, mut seen) = (vec![name], BTreeSet::from([name]));
    while let Some(name) = open.pop() {
        if graph.output.iter().any(|output| output.name == name) {
            return true;
        }
        for node in &graph.node {
            let mut reads = false;
            read_by(node, &mut |read| reads |= read == name);
            if !reads {
                continue;
            }
            let [a, b] = &node.input[..] else { return true };
            if !standard(&node.domain) || node.op_type != "Mul" {
                return true;
            }
            let other = if a == name { b } else { a };
            if !is_zero(other, graph) {
                open.extend(node.output.iter().map(String::as_str).filter(|name| seen.insert(*name)));
            }
        }
    }
    false
}

/// Whether a name is a constant of nothing but zeros.
fn is_zero(name: &str, graph: &GraphProto) -> bool {
    let zeros = |tensor: &TensorProto| {
        let values = crate::kept_tensor(tensor, None).ok().filter(|(_, narrow)| narrow.is_none());
        values.is_some_and(|(tensor, _)| tensor.to_f64s().iter().all(|&value| value == 0.0))
    };
    if let Some(tensor) = graph.initializer.iter().find(|tensor| tensor.name == name) {
        return zeros(tensor);
    }
    let maker = graph.node.iter().find(|node| node.output.iter().any(|output| output == name));
    let Some(node) = maker.filter(|node| standard(&node.domain) && node.op_type == "Constant") else { return false };
    node.attribute.iter().any(|attribute| match attribute.name.as_str() {
        "value" => attribute.t.as_deref().is_some_and(zeros),
        "value_float" => attribute.f == 0.0,
        _ => false,
    })
}

fn of_shape(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(0)?;
    let shape = node.attributes.ints("shape")?;
    let shape = shape.ok_or_else(|| Refusal::Attribute { name: "shape".into(), reason: "is missing".into() })?;
    let shape = sizes("the shape", shape)?;
    mean(node, ElementType::F32, shape)
}

fn like(node: &mut Lowering<'_>) -> Result<Vec<ValueId>, Refusal> {
    node.at_most(1)?;
    let x = node.input(0, "input")?;
    let (element, shape) = (node.ty(x).element, node.shape(x));
    mean(node, element, shape)
}

/// The mean in place of every number, where any would do.
fn mean(node: &mut Lowering<'_>, default: ElementType, shape: Vec<usize>) -> Result<Vec<ValueId>, Refusal> {
    let element = match node.attributes.int("dtype")? {
        None => default,
        Some(dtype) => i32::try_from(dtype).ok().and_then(|dtype| element_type(dtype).ok()).ok_or_else(|| {
            Refusal::Attribute { name: "dtype".into(), reason: "is not a supported element type".into() }
        })?,
    };
    if !matches!(element, ElementType::F32 | ElementType::F16 | ElementType::Bf16 | ElementType::F64) {
        return Err(Refusal::Element(element.to_string()));
    }
    let mean = node.attributes.float_or("mean", 0.0)?;
    let scale = node.attributes.float_or("scale", 1.0)?;
    node.attributes.without_effect("seed");
    if scale != 0.0 {
        let graph = node.model.graph();
        let own = graph.node.iter().find(|of| is_random(of) && of.output == node.outputs);
        // Nothing is looked for within functions and branches.
        let own = own.filter(|_| node.context.depth == 0 && node.context.calls.is_empty());
        let refused = Refusal::Unsupported { what: "random numbers of a function or branch".into() };
        if let Some(refused) = own.map_or(Some(refused), |own| refusal(own, graph)) {
            return Err(refused);
        }
    }
    let value = node.scalar(element, f64::from(mean))?;
    Ok(vec![node.emit_as(Op::Expand, &[value], shape)?])
}
