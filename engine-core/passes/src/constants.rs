//! Computes what depends on constants alone, with the reference operators.
//!
//! Before: `w -> Transpose -> MatMul`, `w` constant. After: `w' -> MatMul`.
//!
//! Results that would be much larger than what they are made of are left alone (an expanded scalar, say).

use planforge_graph::{
    interpreter,
    ir::{Graph, Op, Tensor},
    shape::TensorType,
};

/// Most bytes one folded result may have: room for the largest embedding tables.
const MAX_RESULT_BYTES: usize = 1 << 30;

/// Results up to this size may be larger than their inputs.
const SMALL_BYTES: usize = 1 << 20;

/// Most multiplications a folded product or convolution may need; the reference operators are not quick.
const MAX_PRODUCTS: usize = 1 << 30;

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let nodes = std::mem::take(&mut graph.nodes);
    for node in nodes {
        let constants: Option<Vec<Option<&Tensor>>> = node
            .inputs
            .iter()
            .map(|id| match id {
                Some(id) => graph.constant(*id).map(Some),
                None => Some(None),
            })
            .collect();
        let types = interpreter::output_types(graph, &node);
        // Stored integers of a quantized model may be what a backend computes with.
        let kept = matches!(node.op, Op::Dequantize(_));
        let folded = match (constants, types) {
            (Some(constants), Ok(types)) if !kept && worth(&node.op, &constants, &types) => {
                // What cannot be computed (a division by zero) stays for whoever runs the graph.
                interpreter::run(&node.op, &constants, &types).ok()
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

fn worth(op: &Op, constants: &[Option<&Tensor>], types: &[TensorType]) -> bool {
    let given: usize = constants.iter().flatten().map(|tensor| tensor.bytes().len()).sum();
    let results = types.iter().map(|ty| ty.shape.iter().product::<usize>().saturating_mul(ty.element.bytes()));
    let made = results.fold(0usize, usize::saturating_add);
    let products = match op {
        Op::Conv(_) | Op::ConvTranspose(_) | Op::MatMul(_) => {
            let weights = constants.get(1).copied().flatten().map_or(0, Tensor::len);
            weights.saturating_mul(made)
        }
        _ => 0,
    };
    made <= MAX_RESULT_BYTES && products <= MAX_PRODUCTS && (made <= SMALL_BYTES || made <= given)
}
