//! EfficientNet-B0: inverted residuals with squeeze-and-excitation and SiLU, which is left in its two operators. Names
//! are torchvision's.

use crate::{
    Style,
    builder::{BATCH, Graph},
    cnn::{
        Activation, Convolution, Excitation, Linear, Signal, convolved, linear, path, pooled_features, squeeze_excite,
        sum,
    },
};
use planforge_onnx::proto::tensor_proto::DataType;

struct Stage {
    expansion: i64,
    kernel: i64,
    stride: i64,
    channels: i64,
    blocks: usize,
}

const fn stage(expansion: i64, kernel: i64, stride: i64, channels: i64, blocks: usize) -> Stage {
    Stage { expansion, kernel, stride, channels, blocks }
}

const STAGES: [Stage; 7] = [
    stage(1, 3, 1, 16, 1),
    stage(6, 3, 2, 24, 2),
    stage(6, 5, 2, 40, 2),
    stage(6, 3, 2, 80, 3),
    stage(6, 5, 1, 112, 3),
    stage(6, 5, 2, 192, 4),
    stage(6, 3, 1, 320, 1),
];
const STEM_CHANNELS: i64 = 32;
const FEATURES: i64 = 1280;
const CLASSES: i64 = 1000;
const EPSILON: f32 = 1e-5;

/// What keeps the spread of activations as it is from the first layer to the last.
const DAMPING: f64 = 0.968;

/// Scale of the normalisation that ends a block, relative to the others: sums of residuals then grow gently.
const BRANCH_SCALE: f64 = 0.7;
/// Variance of the pooled features for which the classifier is scaled.
const POOLED_VARIANCE: f64 = 0.1;

/// The graph; input `input` [batch, 3, 224, 224], output `logits` [batch, 1000].
pub fn efficientnet_b0(style: &Style) -> Graph {
    let mut graph = Graph::new("efficientnet_b0", style);
    let image = graph.input("input", DataType::Float, &[BATCH, 3, 224, 224]);
    let stem = of(STEM_CHANNELS, 3, 2);
    let mut signal = convolved(&mut graph, &Signal::new(image, 3, 1.0), "features.0", &stem, Some(Activation::Silu));
    for (index, stage) in STAGES.iter().enumerate() {
        for block in 0..stage.blocks {
            let stride = if block == 0 { stage.stride } else { 1 };
            let name = format!("features.{}.{block}.block", index + 1);
            signal = inverted_residual(&mut graph, &signal, &name, stage, stride);
        }
    }
    let signal = convolved(&mut graph, &signal, "features.8", &of(FEATURES, 1, 1), Some(Activation::Silu));
    let features = pooled_features(&mut graph, &signal);
    let (variance, output) = (POOLED_VARIANCE, Some("logits"));
    let classifier = Linear { name: "classifier.1", from: FEATURES, to: CLASSES, variance, output };
    let logits = linear(&mut graph, &features, &classifier);
    graph.output(&logits, &[BATCH, CLASSES]);
    graph
}

/// A convolution of this network that keeps the size, but for its stride.
fn of(channels: i64, kernel: i64, stride: i64) -> Convolution<'static> {
    Convolution::same_size(channels, kernel, stride, DAMPING, EPSILON)
}

fn inverted_residual(graph: &mut Graph, input: &Signal, name: &str, stage: &Stage, stride: i64) -> Signal {
    let mut modules = (0..).map(|index| format!("{name}.{index}"));
    let mut next = || modules.next().unwrap_or_default();
    let expanded = input.channels * stage.expansion;
    let mut signal = input.clone();
    if expanded != input.channels {
        signal = convolved(graph, &signal, &next(), &of(expanded, 1, 1), Some(Activation::Silu));
    }
    let depthwise = Convolution { depthwise: true, ..of(expanded, stage.kernel, stride) };
    signal = convolved(graph, &signal, &next(), &depthwise, Some(Activation::Silu));
    let squeezed = input.channels / 4;
    let excitation = Excitation { name: &next(), squeezed, inner: Activation::Silu, hard: false };
    signal = squeeze_excite(graph, &signal, &excitation);
    let projection = Convolution { scale: BRANCH_SCALE, ..of(stage.channels, 1, 1) };
    signal = convolved(graph, &signal, &next(), &projection, None);
    if stride == 1 && stage.channels == input.channels {
        signal = sum(graph, &path(name), &signal, input);
    }
    signal
}
