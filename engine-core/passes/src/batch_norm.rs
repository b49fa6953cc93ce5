//! Folds an inference batch normalisation into the convolution before it.
//!
//! Before: `x -> Conv(w, b) -> BatchNorm(scale, bias, mean, variance) -> y`.
//! After: `x -> Conv(w f, (b - mean) f + bias) -> y`, where `f = scale / sqrt(variance + epsilon)` per filter.
//!
//! Nothing else may read the convolution's result, and all parameters must be constants.

use super::edit::{Edit, Replacement, sole_producer, takes_epilogue};
use planforge_graph::{
    interpreter,
    ir::{Graph, Node, Op, Tensor, ValueId},
    shape::TensorType,
};

pub fn run(graph: &mut Graph, changes: &mut Vec<String>) {
    let found = graph.def_use();
    let mut edit = Edit::of(graph);
    for last in 0..graph.nodes.len() {
        let Op::BatchNorm { epsilon } = graph.nodes[last].op else { continue };
        let Some(x) = graph.nodes[last].input(0) else { continue };
        let Some((at, conv)) = sole_producer(graph, &found, x) else { continue };
        let open = matches!(conv.op, Op::Conv(_)) && takes_epilogue(graph, conv) && conv.input(3).is_none();
        if !open || edit.is_dead(at) {
            continue;
        }
        let Some((w, b)) = folded(graph, conv, &graph.nodes[last], epsilon) else { continue };
        let (op, x) = (conv.op.clone(), conv.input(0));
        let name = graph.value(graph.nodes[last].outputs[0]).name.clone();
        let w = graph.add_constant(format!("{name}/weights"), w);
        let b = graph.add_constant(format!("{name}/bias"), b);
        edit.replace(graph, Replacement { parts: &[at], last, op, inputs: vec![x, Some(w), Some(b)] }, changes);
    }
    edit.apply(graph);
}

/// New weights and bias.
fn folded(graph: &Graph, conv: &Node, norm: &Node, epsilon: f32) -> Option<(Tensor, Tensor)> {
    let constant = |id: Option<ValueId>| graph.constant(id?).map(Tensor::to_f64s);
    let weights = graph.constant(conv.input(1)?)?;
    let (scale, bias) = (constant(norm.input(1))?, constant(norm.input(2))?);
    let (mean, variance) = (constant(norm.input(3))?, constant(norm.input(4))?);
    let before = match conv.input(2) {
        Some(id) => graph.constant(id)?.to_f64s(),
        None => vec![0.0; scale.len()],
    };
    let deviation = |variance: f64| (variance + f64::from(epsilon)).sqrt();
    let factors: Vec<f64> = scale.iter().zip(&variance).map(|(scale, &variance)| scale / deviation(variance)).collect();
    let mut values = weights.to_f64s();
    // Without filters or channels there is nothing to scale.
    if values.is_empty() || factors.is_empty() {
        return None;
    }
    let per_filter = values.len() / factors.len();
    for (filter, factor) in values.chunks_mut(per_filter).zip(&factors) {
        filter.iter_mut().for_each(|value| *value *= factor);
    }
    let shifts = (0..factors.len()).map(|at| (before[at] - mean[at]) * factors[at] + bias[at]).collect();
    let rounded = |values: Vec<f64>, shape: &[usize]| {
        let wide = Tensor::from_vec(shape.to_vec(), values).ok()?;
        let to = TensorType::new(weights.element(), shape);
        Some(interpreter::run(&Op::Cast { to: to.element }, &[Some(&wide)], &[to]).ok()?.remove(0))
    };
    Some((rounded(values, weights.shape())?, rounded(shifts, &[factors.len()])?))
}
