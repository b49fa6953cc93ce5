//! MobileNetV2: inverted residuals whose narrow ends have no activation. Names are torchvision's.

use crate::{
    Style,
    builder::{BATCH, Graph},
    cnn::{Activation, Convolution, Linear, Signal, convolved, linear, normalised_convolution, pooled_features, sum},
};
use planforge_onnx::proto::tensor_proto::DataType;

/// Blocks that follow each other: how many times wider they are inside, their channels, how many, the first one's stride.
const BLOCKS: [(i64, i64, usize, i64); 7] =
    [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];
const FIRST_CHANNELS: i64 = 32;
const FEATURES: i64 = 1280;
const CLASSES: i64 = 1000;
const EPSILON: f32 = 1e-5;

/// What keeps the spread of activations as it is from the first layer to the last.
const DAMPING: f64 = 0.995;
/// Scale of the normalisation that ends a block, relative to the others: sums of residuals then grow gently.
const BRANCH_SCALE: f64 = 0.7;
/// Variance of the pooled features for which the classifier is scaled.
const POOLED_VARIANCE: f64 = 0.1;

/// The graph; input `input` [batch, 3, 224, 224], output `logits` [batch, 1000].
pub fn mobilenet_v2(style: &Style) -> Graph {
    let mut graph = Graph::new("mobilenet_v2", style);
    let image = graph.input("input", DataType::Float, &[BATCH, 3, 224, 224]);
    let image = Signal::new(image, 3, 1.0);
    let first = of(FIRST_CHANNELS, 3, 2);
    let mut signal = convolved(&mut graph, &image, "features.0", &first, Some(Activation::Relu6));
    let mut number = 0;
    for (widening, channels, count, stride) in BLOCKS {
        for at in 0..count {
            number += 1;
            let stride = if at == 0 { stride } else { 1 };
            signal = inverted_residual(&mut graph, &signal, number, widening, channels, stride);
        }
    }
    let last = of(FEATURES, 1, 1);
    let name = format!("features.{}", number + 1);
    let signal = convolved(&mut graph, &signal, &name, &last, Some(Activation::Relu6));
    let features = pooled_features(&mut graph, &signal);
    let (from, variance, output) = (FEATURES, POOLED_VARIANCE, Some("logits"));
    let layer = Linear { name: "classifier.1", from, to: CLASSES, variance, output };
    let logits = linear(&mut graph, &features, &layer);
    graph.output(&logits, &[BATCH, CLASSES]);
    graph
}

/// A convolution of this network that keeps the size, but for its stride.
fn of(channels: i64, kernel: i64, stride: i64) -> Convolution<'static> {
    Convolution::same_size(channels, kernel, stride, DAMPING, EPSILON)
}

fn inverted_residual(
    graph: &mut Graph,
    input: &Signal,
    number: usize,
    widening: i64,
    channels: i64,
    stride: i64,
) -> Signal {
    let (wide, name) = (input.channels * widening, format!("features.{number}.conv"));
    let mut modules = 0..;
    let mut next = || format!("{name}.{}", modules.next().unwrap_or_default());
    let mut signal = input.clone();
    if widening > 1 {
        signal = convolved(graph, &signal, &next(), &of(wide, 1, 1), Some(Activation::Relu6));
    }
    let depthwise = Convolution { depthwise: true, ..of(wide, 3, stride) };
    signal = convolved(graph, &signal, &next(), &depthwise, Some(Activation::Relu6));
    let (conv, norm) = (next(), next());
    let projection = Convolution { conv: &conv, norm: &norm, scale: BRANCH_SCALE, ..of(channels, 1, 1) };
    signal = normalised_convolution(graph, &signal, &projection);
    if stride == 1 && channels == input.channels {
        signal = sum(graph, &format!("/features/{number}"), &signal, input);
    }
    signal
}
