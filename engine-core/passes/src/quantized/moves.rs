//! What only moves quantized numbers, or takes the largest of them, does so with the integers.
//!
//! Before: `x -> Dequantize -> Reshape -> Quantize -> y`, with the same scale and zero point. After: `x -> Reshape -> y`.
//! Parts of a concatenation that have another scale are quantized anew in front of it.

use super::{
    super::edit::{Edit, Replacement},
    floats::{Operand, operand, quantization},
    known::Known,
};
use planforge_graph::ir::{ElementType, Graph, Node, Op, PoolKind, ValueId};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for last in 0..graph.nodes.len() {
        let known = Known { graph, found: &found };
        let Some((element, scale, zero)) = quantization(&known, last) else { continue };
        let Some(y) = graph.nodes[last].input(0) else { continue };
        let same = |of: &Operand| (of.element, of.scale, of.zero) == (element, scale, zero);
        // There and back again.
        if let Some(of) = operand(&known, y).filter(same) {
            changes.push(graph.nodes[last].origins.join(" + "));
            edit.kill(last);
            edit.redirect(graph.nodes[last].outputs[0], of.value);
            continue;
        }
        let Some((at, node)) = known.producer(y).filter(|_| known.user(y).is_some()) else { continue };
        if edit.is_dead(at) || node.outputs.len() != 1 || !moves(&node.op) {
            continue;
        }
        let parts = node.inputs.len();
        let many = matches!(node.op, Op::Concat { .. });
        let operands: Option<Vec<(ValueId, Operand)>> = node.inputs[..if many { parts } else { 1 }]
            .iter()
            .map(|id| Some(((*id)?, operand(&known, (*id)?)?)))
            .collect();
        let Some(operands) = operands.filter(|all| many || all.iter().all(|(_, of)| same(of))) else { continue };
        let mut inputs = node.inputs.clone();
        let (op, how) = (node.op.clone(), graph.nodes[last].clone());
        let mut anew: Vec<Node> = Vec::new();
        for (position, (float, of)) in operands.iter().enumerate() {
            inputs[position] = Some(match same(of) {
                true => of.value,
                false => again(graph, &how, *float, element, &mut anew),
            });
        }
        anew.into_iter().for_each(|node| edit.insert(last, node));
        edit.replace(graph, Replacement { parts: &[at], last, op, inputs }, changes);
    }
    edit.apply(graph);
}

/// A float quantized as node `how` does.
fn again(graph: &mut Graph, how: &Node, float: ValueId, element: ElementType, to: &mut Vec<Node>) -> ValueId {
    let shape = graph.static_shape(float).unwrap_or_default();
    let name = format!("{} (quantized)", graph.value(float).name);
    let output = graph.add_value(name, element, &shape);
    let mut inputs = how.inputs.clone();
    inputs[0] = Some(float);
    to.push(Node { op: how.op.clone(), inputs, outputs: vec![output], origins: how.origins.clone() });
    output
}

/// Whether an operator gives nothing but elements of its first input, or of all of a concatenation's.
fn moves(op: &Op) -> bool {
    match op {
        Op::Reshape | Op::Transpose { .. } | Op::Slice { .. } | Op::Expand | Op::Tile | Op::Concat { .. } => true,
        Op::Gather { .. } | Op::DepthToSpace { .. } | Op::SpaceToDepth { .. } => true,
        Op::Pool(pool) => pool.kind == PoolKind::Max && pool.kernel.len() <= 2,
        _ => false,
    }
}
