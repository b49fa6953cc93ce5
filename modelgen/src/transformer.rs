//! What the transformers share: projections, layer normalisation and GELU, from the operators exporters write.

use crate::{
    LayerNormForm,
    builder::{Graph, Value, float, int, ints},
    cnn::path,
    weights::{Init, Outputs},
};

/// Gain that makes up for what the gate of GELU takes away.
pub const GELU_GAIN: f64 = 1.5;

/// What nearly all elements of normalised values, of averages of them and of their GELU lie within.
const RANGE: f64 = 6.0;

/// A product with a stored matrix `[from, to]`, then the bias.
pub fn projection(graph: &mut Graph, name: &str, input: &Value, [from, to]: [i64; 2], gain: f64) -> Value {
    let path = path(name);
    graph.expect_within(input, RANGE);
    let init = Init::Centred { std: gain / (from as f64).sqrt(), outputs: Outputs::Columns { count: to as usize } };
    let weight = graph.parameter(&format!("{name}.weight"), &[from, to], init);
    let bias = graph.parameter(&format!("{name}.bias"), &[to], Init::Bell { std: 0.1 });
    let product = graph.node(&format!("{path}/MatMul"), "MatMul", &[input, &weight], vec![]);
    graph.node(&format!("{path}/Add"), "Add", &[&bias, &product], vec![])
}

/// Constants of [`gelu`], shared by all layers.
#[derive(Debug)]
pub struct GeluConstants {
    pub one: Value,
    pub half: Value,
    pub sqrt_two: Value,
}

/// `x/2 (1 + erf(x / sqrt 2))` in five operators; `name` is the path of the module.
pub fn gelu(graph: &mut Graph, name: &str, x: &Value, constants: &GeluConstants) -> Value {
    let node = |op: &str| format!("{name}/{op}");
    let scaled = graph.node(&node("Div"), "Div", &[x, &constants.sqrt_two], vec![]);
    let erf = graph.node(&node("Erf"), "Erf", &[&scaled], vec![]);
    let gate = graph.node(&node("Add"), "Add", &[&erf, &constants.one], vec![]);
    let gated = graph.node(&node("Mul"), "Mul", &[x, &gate], vec![]);
    graph.node(&node("Mul_1"), "Mul", &[&gated, &constants.half], vec![])
}

/// A normalisation of the last axis.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    pub name: &'a str,
    pub size: i64,
    pub epsilon: f32,
    /// Name of the result; after the node when not given.
    pub output: Option<&'a str>,
}

/// `LayerNormalization`, or the nine operators it was written with before opset 17.
pub fn layer_norm(graph: &mut Graph, input: &Value, of: &LayerNorm<'_>) -> Value {
    let gamma = graph.parameter(&format!("{}.weight", of.name), &[of.size], Init::Uniform { low: 0.8, high: 1.2 });
    let beta = graph.parameter(&format!("{}.bias", of.name), &[of.size], Init::Bell { std: 0.1 });
    if graph.layer_norm_form() == LayerNormForm::Primitives {
        return primitive_layer_norm(graph, input, &gamma, &beta, of);
    }
    let path = format!("{}/LayerNormalization", path(of.name));
    let attributes = vec![int("axis", -1), float("epsilon", of.epsilon)];
    let default = format!("{path}_output_0");
    graph.named_node(&path, "LayerNormalization", &[input, &gamma, &beta], attributes, of.output.unwrap_or(&default))
}

fn primitive_layer_norm(graph: &mut Graph, x: &Value, gamma: &Value, beta: &Value, of: &LayerNorm<'_>) -> Value {
    let path = path(of.name);
    let node = |op: &str| format!("{path}/{op}");
    let two = graph.scalar(&node("two"), 2.0);
    let epsilon = graph.scalar(&node("epsilon"), of.epsilon);
    let average = || vec![ints("axes", &[-1]), int("keepdims", 1)];
    let mean = graph.node(&node("ReduceMean"), "ReduceMean", &[x], average());
    let centred = graph.node(&node("Sub"), "Sub", &[x, &mean], vec![]);
    let squares = graph.node(&node("Pow"), "Pow", &[&centred, &two], vec![]);
    let variance = graph.node(&node("ReduceMean_1"), "ReduceMean", &[&squares], average());
    let shifted = graph.node(&node("Add"), "Add", &[&variance, &epsilon], vec![]);
    let deviation = graph.node(&node("Sqrt"), "Sqrt", &[&shifted], vec![]);
    let normal = graph.node(&node("Div"), "Div", &[&centred, &deviation], vec![]);
    let scaled = graph.node(&node("Mul"), "Mul", &[&normal, gamma], vec![]);
    let default = format!("{}_output_0", node("Add_1"));
    graph.named_node(&node("Add_1"), "Add", &[&scaled, beta], vec![], of.output.unwrap_or(&default))
}
