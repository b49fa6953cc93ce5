//! A one-shot detector of the CSP/PAN family, "small": 640x640 pixels to 25,200 boxes of 85 numbers.
//!
//! Backbone of CSP blocks (a split by two 1x1 convolutions, bottlenecks in one branch, a 1x1 convolution over both),
//! pyramid pooling, a neck that goes up and down again, and a 1x1 convolution per scale as head.

use crate::{
    Style,
    builder::{BATCH, Graph, Value, float, int, ints, text},
    cnn::{self, Activation, Convolution, Signal, centred, path, sum},
    weights::Init,
};
use planforge_onnx::proto::tensor_proto::DataType;

const WIDTHS: [i64; 5] = [32, 64, 128, 256, 512];
const DEPTHS: [usize; 4] = [1, 2, 3, 1];
const SIZE: i64 = 640;
const ANCHORS: i64 = 3;
/// Four coordinates, a score for the box and one for each class.
const FIELDS: i64 = 85;
const BOXES: i64 = 25_200;
const EPSILON: f32 = 1e-3;

/// What keeps the spread of activations as it is from the first layer to the last.
const DAMPING: f64 = 0.98;

/// Average and variance of the largest of 25 neighbours, once, twice and three times.
const POOLED_MOMENTS: [(f64, f64); 3] = [(1.7, 0.3), (2.3, 0.25), (2.6, 0.2)];

/// The graph; input `images` [batch, 3, 640, 640], output `boxes` [batch, 25200, 85].
pub fn yolo_s(style: &Style) -> Graph {
    let mut graph = Graph::new("yolo_s", style);
    let graph_ref = &mut graph;
    let image = graph_ref.input("images", DataType::Float, &[BATCH, 3, SIZE, SIZE]);
    let [w0, w1, w2, w3, w4] = WIDTHS;
    let scales = graph_ref.numbers("upsample_scales", &[1.0, 1.0, 2.0, 2.0]);
    let stem = Convolution { pad: 2, ..of(w0, 6, 2) };
    let x = convolved(graph_ref, &Signal::new(image, 3, 1.0), "stem", &stem);
    let x = convolved(graph_ref, &x, "d1", &of(w1, 3, 2));
    let x = csp(graph_ref, &x, "s1", w1, DEPTHS[0], true);
    let x = convolved(graph_ref, &x, "d2", &of(w2, 3, 2));
    let p3 = csp(graph_ref, &x, "s2", w2, DEPTHS[1], true);
    let x = convolved(graph_ref, &p3, "d3", &of(w3, 3, 2));
    let p4 = csp(graph_ref, &x, "s3", w3, DEPTHS[2], true);
    let x = convolved(graph_ref, &p4, "d4", &of(w4, 3, 2));
    let x = csp(graph_ref, &x, "s4", w4, DEPTHS[3], true);
    let p5 = pyramid_pooling(graph_ref, &x, "sp", w4);
    // Up: each scale is told of the coarser one.
    let a = convolved(graph_ref, &p5, "l1", &of(w3, 1, 1));
    let up = upsample(graph_ref, "up_0", &a, &scales);
    let x = concat(graph_ref, "/Concat", &[&up, &p4]);
    let x = csp(graph_ref, &x, "f1", w3, 1, false);
    let c = convolved(graph_ref, &x, "l2", &of(w2, 1, 1));
    let up = upsample(graph_ref, "up_1", &c, &scales);
    let x = concat(graph_ref, "/Concat_1", &[&up, &p3]);
    let o3 = csp(graph_ref, &x, "f2", w2, 1, false);
    // And down again.
    let x = convolved(graph_ref, &o3, "u1", &of(w2, 3, 2));
    let x = concat(graph_ref, "/Concat_2", &[&x, &c]);
    let o4 = csp(graph_ref, &x, "f3", w3, 1, false);
    let x = convolved(graph_ref, &o4, "u2", &of(w3, 3, 2));
    let x = concat(graph_ref, "/Concat_3", &[&x, &a]);
    let o5 = csp(graph_ref, &x, "f4", w4, 1, false);
    let boxes: Vec<Value> = [&o3, &o4, &o5]
        .into_iter()
        .zip([8, 16, 32])
        .enumerate()
        .map(|(index, (input, stride))| head(graph_ref, index, input, SIZE / stride))
        .collect();
    let boxes =
        graph.named_node("/Concat_4", "Concat", &boxes.iter().collect::<Vec<_>>(), vec![int("axis", 1)], "boxes");
    graph.output(&boxes, &[BATCH, BOXES, FIELDS]);
    graph
}

/// A convolution of this network that keeps the size, but for its stride.
fn of(channels: i64, kernel: i64, stride: i64) -> Convolution<'static> {
    Convolution::same_size(channels, kernel, stride, DAMPING, EPSILON)
}

/// Convolution, normalisation and SiLU.
fn convolved(graph: &mut Graph, input: &Signal, name: &str, of: &Convolution<'_>) -> Signal {
    cnn::convolved(graph, input, name, of, Some(Activation::Silu))
}

fn csp(graph: &mut Graph, input: &Signal, name: &str, channels: i64, depth: usize, residual: bool) -> Signal {
    let half = of(channels / 2, 1, 1);
    let mut deep = convolved(graph, input, &format!("{name}.a"), &half);
    let flat = convolved(graph, input, &format!("{name}.b"), &half);
    for index in 0..depth {
        let block = format!("{name}.m.{index}");
        let inner = convolved(graph, &deep, &format!("{block}.a"), &half);
        let inner = convolved(graph, &inner, &format!("{block}.b"), &of(channels / 2, 3, 1));
        deep = if residual { sum(graph, &path(&block), &deep, &inner) } else { inner };
    }
    let both = concat(graph, &format!("{}/Concat", path(name)), &[&deep, &flat]);
    convolved(graph, &both, &format!("{name}.c"), &of(channels, 1, 1))
}

/// The image beside itself pooled once, twice and three times over 5x5 pixels.
fn pyramid_pooling(graph: &mut Graph, input: &Signal, name: &str, channels: i64) -> Signal {
    let mut levels = vec![convolved(graph, input, &format!("{name}.a"), &of(channels / 2, 1, 1))];
    for (index, (mean, variance)) in POOLED_MOMENTS.into_iter().enumerate() {
        let last = levels[index].clone();
        let window = vec![ints("kernel_shape", &[5, 5]), ints("pads", &[2; 4]), ints("strides", &[1, 1])];
        let pooled = graph.node(&format!("{}/p_{index}/MaxPool", path(name)), "MaxPool", &[&last.value], window);
        levels.push(Signal { value: pooled, mean, variance, ..last });
    }
    let all = concat(graph, &format!("{}/Concat", path(name)), &levels.iter().collect::<Vec<_>>());
    convolved(graph, &all, &format!("{name}.b"), &of(channels, 1, 1))
}

/// Twice the height and width, each pixel repeated.
fn upsample(graph: &mut Graph, name: &str, input: &Signal, scales: &Value) -> Signal {
    let attributes = vec![
        text("coordinate_transformation_mode", "asymmetric"),
        float("cubic_coeff_a", -0.75),
        text("mode", "nearest"),
        text("nearest_mode", "floor"),
    ];
    let none = String::new();
    let value = graph.node(&format!("{}/Resize", path(name)), "Resize", &[&input.value, &none, scales], attributes);
    Signal { value, ..input.clone() }
}

/// Along the channels; all parts are equally wide.
fn concat(graph: &mut Graph, name: &str, parts: &[&Signal]) -> Signal {
    let values: Vec<&Value> = parts.iter().map(|part| &part.value).collect();
    let value = graph.node(name, "Concat", &values, vec![int("axis", 1)]);
    let average = |of: fn(&Signal) -> f64| parts.iter().map(|part| of(part)).sum::<f64>() / parts.len() as f64;
    let channels = parts.iter().map(|part| part.channels).sum();
    let (mean, variance) = (average(|part| part.mean), average(|part| part.variance));
    Signal { value, channels, part: parts[0].channels, mean, variance }
}

/// Scores of every anchor at every place, as `[batch, boxes, 85]`.
fn head(graph: &mut Graph, index: usize, input: &Signal, size: i64) -> Value {
    let name = format!("h.{index}");
    let channels = ANCHORS * FIELDS;
    let init = centred(input.channels, input.variance);
    let weight = graph.parameter(&format!("{name}.weight"), &[channels, input.channels, 1, 1], init);
    let bias = graph.parameter(&format!("{name}.bias"), &[channels], Init::Bell { std: 0.3 });
    let attributes = vec![
        ints("dilations", &[1, 1]),
        int("group", 1),
        ints("kernel_shape", &[1, 1]),
        ints("pads", &[0; 4]),
        ints("strides", &[1, 1]),
    ];
    let scores = graph.node(&format!("{}/Conv", path(&name)), "Conv", &[&input.value, &weight, &bias], attributes);
    let batch = graph.batch_or_copy();
    let split = graph.integers(&format!("{name}.split_shape"), &[5], &[batch, ANCHORS, FIELDS, size, size]);
    let scores = graph.node(&format!("{}/Reshape", path(&name)), "Reshape", &[&scores, &split], vec![]);
    let order = vec![ints("perm", &[0, 1, 3, 4, 2])];
    let scores = graph.node(&format!("{}/Transpose", path(&name)), "Transpose", &[&scores], order);
    let scores = graph.node(&format!("{}/Sigmoid", path(&name)), "Sigmoid", &[&scores], vec![]);
    let flat = graph.integers(&format!("{name}.flat_shape"), &[3], &[batch, ANCHORS * size * size, FIELDS]);
    graph.node(&format!("{}/Reshape_1", path(&name)), "Reshape", &[&scores, &flat], vec![])
}
