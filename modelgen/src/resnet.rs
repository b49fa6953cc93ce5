//! ResNet-50, version 1.5: the stride of a bottleneck is in its 3x3 convolution.
//!
//! Names are torchvision's. Batch normalisation stays a node of its own, so that folding it is the compiler's work.

use crate::{
    builder::{Graph, Value, float, int, ints},
    weights::{Init, Outputs},
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

/// A value, its channels and its expected variance, by which the next weights are scaled.
struct Signal {
    value: Value,
    channels: i64,
    variance: f64,
}

/// What distinguishes one convolution from another.
struct Convolution {
    channels: i64,
    kernel: i64,
    stride: i64,
    /// Scale of the normalisation that follows.
    scale: f64,
}

/// The graph; input `input` [1, 3, 224, 224], output `logits` [1, 1000].
pub fn resnet50() -> Graph {
    let mut graph = Graph::new("resnet50");
    let image = graph.input("input", DataType::Float, &[1, 3, 224, 224]);
    let image = Signal { value: image, channels: 3, variance: 1.0 };
    let stem = Convolution { channels: 64, kernel: 7, stride: 2, scale: 1.0 };
    let stem = normalised_convolution(&mut graph, &image, "conv1", "bn1", &stem);
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
    let pooled = graph.node("/avgpool/GlobalAveragePool", "GlobalAveragePool", &[&signal.value], vec![]);
    let flat = graph.node("/Flatten", "Flatten", &[&pooled], vec![int("axis", 1)]);
    let init = centred(signal.channels, POOLED_VARIANCE);
    let weight = graph.parameter("fc.weight", &[CLASSES, signal.channels], init);
    let bias = graph.parameter("fc.bias", &[CLASSES], Init::Bell { std: 0.1 });
    let attributes = vec![float("alpha", 1.0), float("beta", 1.0), int("transB", 1)];
    let logits = graph.named_node("/fc/Gemm", "Gemm", &[&flat, &weight, &bias], attributes, "logits");
    graph.output(&logits, &[1, CLASSES]);
    graph
}

/// 1x1, 3x3, 1x1 convolutions beside a shortcut, which has a convolution of its own where the shape changes.
fn bottleneck(graph: &mut Graph, input: &Signal, name: &str, channels: i64, stride: i64) -> Signal {
    let convolution = |graph: &mut Graph, input: &Signal, number: i64, kernel, stride, channels, scale| {
        let convolution = Convolution { channels, kernel, stride, scale };
        let (conv, norm) = (format!("{name}.conv{number}"), format!("{name}.bn{number}"));
        normalised_convolution(graph, input, &conv, &norm, &convolution)
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
        let convolution = Convolution { channels: branch.channels, kernel: 1, stride, scale: 1.0 };
        let (conv, norm) = (format!("{name}.downsample.0"), format!("{name}.downsample.1"));
        Some(normalised_convolution(graph, input, &conv, &norm, &convolution))
    };
    let shortcut = shortcut.as_ref().unwrap_or(input);
    let sum = graph.node(&format!("{path}/Add"), "Add", &[&branch.value, &shortcut.value], vec![]);
    let sum = Signal { value: sum, channels: branch.channels, variance: branch.variance + shortcut.variance };
    relu(graph, &format!("{path}/relu_2/Relu"), &sum, RELU_OF_SUM_KEEPS)
}

fn normalised_convolution(
    graph: &mut Graph,
    input: &Signal,
    conv: &str,
    norm: &str,
    convolution: &Convolution,
) -> Signal {
    let Convolution { channels, kernel, stride, scale } = *convolution;
    let init = centred(input.channels * kernel * kernel, input.variance);
    let weight = graph.parameter(&format!("{conv}.weight"), &[channels, input.channels, kernel, kernel], init);
    let attributes = vec![
        ints("dilations", &[1, 1]),
        int("group", 1),
        ints("kernel_shape", &[kernel, kernel]),
        ints("pads", &[kernel / 2; 4]),
        ints("strides", &[stride, stride]),
    ];
    let path = |name: &str| format!("/{}", name.replace('.', "/"));
    let convolved = graph.node(&format!("{}/Conv", path(conv)), "Conv", &[&input.value, &weight], attributes);
    // The statistics vary about those that the weights were scaled for, as trained ones do.
    let around = |centre: f64| Init::Uniform { low: 0.8 * centre, high: 1.2 * centre };
    let slight = Init::Bell { std: 0.1 };
    let gamma = graph.parameter(&format!("{norm}.weight"), &[channels], around(scale));
    let beta = graph.parameter(&format!("{norm}.bias"), &[channels], slight);
    let mean = graph.statistic(&format!("{norm}.running_mean"), &[channels], slight);
    let variance = graph.statistic(&format!("{norm}.running_var"), &[channels], around(1.0));
    let value = graph.node(
        &format!("{}/BatchNormalization", path(norm)),
        "BatchNormalization",
        &[&convolved, &gamma, &beta, &mean, &variance],
        vec![float("epsilon", EPSILON), float("momentum", 0.9)],
    );
    Signal { value, channels, variance: scale * scale }
}

/// Weights that bring inputs of this variance to outputs of unit variance.
fn centred(fan_in: i64, variance: f64) -> Init {
    let std = (fan_in as f64 * variance).sqrt().recip();
    Init::Centred { std, outputs: Outputs::Rows { length: fan_in as usize } }
}

fn relu(graph: &mut Graph, name: &str, input: &Signal, keeps: f64) -> Signal {
    let value = graph.node(name, "Relu", &[&input.value], vec![]);
    Signal { value, channels: input.channels, variance: input.variance * keeps }
}
