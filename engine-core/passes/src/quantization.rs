//! Makes one operator of quantization and its way back, for backends that compute in floats.
//!
//! Before: `x -> Quantize(s, z) -> Dequantize(s, z) -> y`, and again `y -> Quantize(s, z) -> Dequantize(s, z) -> y'`.
//! After: `x -> FakeQuantize(s, z) -> y`, readers of y' read y: the second trip changes nothing.
//!
//! Weights that are stored as integers become floats once, here: `w -> Dequantize(s, z)` of constants is computed. A
//! backend with integer products leaves this pass out and keeps them as they are.

use super::edit::{Edit, joined_origins, producer};
use planforge_graph::{
    interpreter,
    ir::{DefUse, Graph, Node, Op, Quantization, Tensor, ValueId},
};

/// Most bytes that dequantised weights of one node may have: room for the largest embedding tables.
const MAX_RESULT_BYTES: usize = 1 << 31;

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    dequantize_constants(graph, changes);
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for at in 0..graph.nodes.len() {
        let Op::Dequantize(how) = graph.nodes[at].op else { continue };
        let Some((above, quantize)) = trip(graph, &found, at, how) else { continue };
        let origins = joined_origins(graph, &[above, at]);
        changes.push(format!("fake_quantize: {}", origins.join(" + ")));
        // Others may read the integers, so they stay for as long as somebody does.
        let inputs = quantize.inputs.clone();
        let node = &mut graph.nodes[at];
        (node.op, node.inputs, node.origins) = (Op::FakeQuantize(how), inputs, origins);
    }
    edit.apply(graph);
    let found = graph.def_use();
    edit = Edit::of(graph);
    for (at, node) in graph.nodes.iter().enumerate() {
        let Op::FakeQuantize(how) = node.op else { continue };
        let Some((_, first)) = node.input(0).and_then(|x| producer(graph, &found, x)) else { continue };
        if first.op == Op::FakeQuantize(how) && same_steps(graph, first, node) {
            changes.push(node.origins.join(" + "));
            edit.kill(at);
            edit.redirect(node.outputs[0], first.outputs[0]);
        }
    }
    edit.apply(graph);
}

fn dequantize_constants(graph: &mut Graph, changes: &mut Vec<String>) {
    let nodes = std::mem::take(&mut graph.nodes);
    for node in nodes {
        let constants: Option<Vec<Option<&Tensor>>> =
            node.inputs.iter().map(|id| id.map_or(Some(None), |id| graph.constant(id).map(Some))).collect();
        let folded = match (&node.op, constants, interpreter::output_types(graph, &node)) {
            (Op::Dequantize(_), Some(constants), Ok(types)) => {
                let bytes = types[0].shape.iter().product::<usize>().saturating_mul(types[0].element.bytes());
                (bytes <= MAX_RESULT_BYTES).then(|| interpreter::run(&node.op, &constants, &types).ok()).flatten()
            }
            _ => None,
        };
        match folded {
            Some(results) => {
                changes.push(node.origins.join(" + "));
                graph.constants.extend(node.outputs.iter().copied().zip(results));
            }
            None => graph.nodes.push(node),
        }
    }
}

/// The quantization whose integers the node at `at` turns back by the same steps, into the type they were made of.
fn trip<'a>(graph: &'a Graph, found: &DefUse, at: usize, how: Quantization) -> Option<(usize, &'a Node)> {
    let node = &graph.nodes[at];
    let (above, quantize) = producer(graph, found, node.input(0)?)?;
    let same_type = graph.value(quantize.input(0)?).element == graph.value(node.outputs[0]).element;
    (quantize.op == Op::Quantize(how) && same_type && same_steps(graph, quantize, node)).then_some((above, quantize))
}

/// Whether two nodes read equal scales and zeros.
fn same_steps(graph: &Graph, a: &Node, b: &Node) -> bool {
    let same = |a: Option<ValueId>, b: Option<ValueId>| match (a, b) {
        (Some(a), Some(b)) => a == b || graph.constant(a).is_some_and(|tensor| graph.constant(b) == Some(tensor)),
        (None, None) => true,
        // A zero point that is left out is zero.
        (Some(zero), None) | (None, Some(zero)) => {
            graph.constant(zero).is_some_and(|tensor| tensor.to_f64s().iter().all(|&zero| zero == 0.0))
        }
    };
    same(a.input(1), b.input(1)) && same(a.input(2), b.input(2))
}
