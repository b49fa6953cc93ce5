//! ResNet-50, version 1.5: the stride of a bottleneck is in its 3x3 convolution.
//!
//! Names are torchvision's.

use crate::{
    Style,
    builder::{BATCH, Graph, ints},
    cnn::{Convolution, Linear, Signal, linear, normalised_convolution, pooled_features, sum},
};
use planforge_onnx::proto::tensor_proto::DataType;

/// Bottlenecks of each stage, and channels of their 3x3 convolution; they put out four times as many.
const STAGES: [(usize, i64); 4] = [(3, 64), (4, 128), (6, 256), (3, 512)];
const EXPANSION: i64 = 4;
const CLASSES: i64 = 1000;
const EPSILON: f32 = 1e-5;

/// Scale of the normalisation that ends a bottleneck's own branch, relative to the others: six additions in a row then
/// grow the sum gently.
const BRANCH_SCALE: f64 = 0.5;

/// Part of the variance that is left after `relu` of a value that is normally distributed around zero, and after that
/// of a sum one part of which was positive already.
const RELU_KEEPS: f64 = 0.34;
const RELU_OF_SUM_KEEPS: f64 = 0.7;
/// The same for the largest of nine such values.
const MAX_POOL_KEEPS: f64 = 1.0;
/// Variance of the pooled features for which the classifier is scaled.
const POOLED_VARIANCE: f64 = 0.3;

/// The graph; input `input` [1, 3, 224, 224], output `logits` [1, 1000].
pub fn resnet50(style: &Style) -> Graph {
    let mut graph = Graph::new("resnet50", style);
    let image = graph.input("input", DataType::Float, &[BATCH, 3, 224, 224]);
    let stem = of("conv1", "bn1", 64, 7, 2);
    let stem = normalised_convolution(&mut graph, &Signal::new(image, 3, 1.0), &stem);
    let stem = relu(&mut graph, "/relu/Relu", &stem, RELU_KEEPS);
    let window = vec![ints("kernel_shape", &[3, 3]), ints("pads", &[1; 4]), ints("strides", &[2, 2])];
    let pooled = graph.node("/maxpool/MaxPool", "MaxPool", &[&stem.value], window);
    let mut signal = Signal { value: pooled, variance: stem.variance * MAX_POOL_KEEPS, ..stem };
    for (stage, (blocks, channels)) in STAGES.into_iter().enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            signal = bottleneck(&mut graph, &signal, &format!("layer{}.{block}", stage + 1), channels, stride);
        }
    }
    let features = pooled_features(&mut graph, &signal);
    let classifier =
        Linear { name: "fc", from: signal.channels, to: CLASSES, variance: POOLED_VARIANCE, output: Some("logits") };
    let logits = linear(&mut graph, &features, &classifier);
    graph.output(&logits, &[BATCH, CLASSES]);
    graph
}

/// 1x1, 3x3, 1x1 convolutions beside a shortcut, which has a convolution of its own where the shape changes.
fn bottleneck(graph: &mut Graph, input: &Signal, name: &str, channels: i64, stride: i64) -> Signal {
    let convolution = |graph: &mut Graph, input: &Signal, number: i64, kernel, stride, channels, scale| {
        let (conv, norm) = (format!("{name}.conv{number}"), format!("{name}.bn{number}"));
        let of = of(&conv, &norm, channels, kernel, stride);
        normalised_convolution(graph, input, &Convolution { scale, ..of })
    };
    let path = format!("/{}", name.replace('.', "/"));
    let inner = convolution(graph, input, 1, 1, 1, channels, 1.0);
    let inner = relu(graph, &format!("{path}/relu/Relu"), &inner, RELU_KEEPS);
    let inner = convolution(graph, &inner, 2, 3, stride, channels, 1.0);
    let inner = relu(graph, &format!("{path}/relu_1/Relu"), &inner, RELU_KEEPS);
    let branch = convolution(graph, &inner, 3, 1, 1, channels * EXPANSION, BRANCH_SCALE);
    let shortcut = if input.channels == branch.channels && stride == 1 {
        None
    } else {
        let (conv, norm) = (format!("{name}.downsample.0"), format!("{name}.downsample.1"));
        Some(normalised_convolution(graph, input, &of(&conv, &norm, branch.channels, 1, stride)))
    };
    let sum = sum(graph, &path, &branch, shortcut.as_ref().unwrap_or(input));
    relu(graph, &format!("{path}/relu_2/Relu"), &sum, RELU_OF_SUM_KEEPS)
}

/// A square convolution that keeps the size, but for its stride.
fn of<'a>(conv: &'a str, norm: &'a str, channels: i64, kernel: i64, stride: i64) -> Convolution<'a> {
    let pad = kernel / 2;
    Convolution {
        conv,
        norm,
        channels,
        kernel,
        stride,
        pad,
        depthwise: false,
        scale: 1.0,
        damping: 1.0,
        epsilon: EPSILON,
    }
}

/// Its mean is left out: weights are centred, and only depthwise ones would see it.
fn relu(graph: &mut Graph, name: &str, input: &Signal, keeps: f64) -> Signal {
    let value = graph.node(name, "Relu", &[&input.value], vec![]);
    Signal { value, variance: input.variance * keeps, ..input.clone() }
}
