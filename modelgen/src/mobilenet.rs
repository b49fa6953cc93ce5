//! MobileNetV3-Large: inverted residuals with squeeze-and-excitation, hard activations. Names are torchvision's.

use crate::{
    Style,
    builder::{BATCH, Graph},
    cnn::{
        Activation, Convolution, Excitation, Linear, Signal, activated, convolved, linear, pooled_features,
        squeeze_excite, sum,
    },
};
use planforge_onnx::proto::tensor_proto::DataType;

struct Block {
    kernel: i64,
    expanded: i64,
    channels: i64,
    excited: bool,
    activation: Activation,
    stride: i64,
}

const fn block(kernel: i64, expanded: i64, channels: i64, excited: bool, hard: bool, stride: i64) -> Block {
    let activation = if hard { Activation::HardSwish } else { Activation::Relu };
    Block { kernel, expanded, channels, excited, activation, stride }
}

const BLOCKS: [Block; 15] = [
    block(3, 16, 16, false, false, 1),
    block(3, 64, 24, false, false, 2),
    block(3, 72, 24, false, false, 1),
    block(5, 72, 40, true, false, 2),
    block(5, 120, 40, true, false, 1),
    block(5, 120, 40, true, false, 1),
    block(3, 240, 80, false, true, 2),
    block(3, 200, 80, false, true, 1),
    block(3, 184, 80, false, true, 1),
    block(3, 184, 80, false, true, 1),
    block(3, 480, 112, true, true, 1),
    block(3, 672, 112, true, true, 1),
    block(5, 672, 160, true, true, 2),
    block(5, 960, 160, true, true, 1),
    block(5, 960, 160, true, true, 1),
];
const LAST_CHANNELS: i64 = 960;
const FEATURES: i64 = 1280;
const CLASSES: i64 = 1000;
const EPSILON: f32 = 1e-3;

/// What keeps the spread of activations as it is from the first layer to the last.
const DAMPING: f64 = 0.995;

/// Scale of the normalisation that ends a block, relative to the others: sums of residuals then grow gently.
const BRANCH_SCALE: f64 = 0.7;
/// Variance of the pooled features for which the classifier is scaled.
const POOLED_VARIANCE: f64 = 0.1;

/// The graph; input `input` [batch, 3, 224, 224], output `logits` [batch, 1000].
pub fn mobilenet_v3_large(style: &Style) -> Graph {
    let mut graph = Graph::new("mobilenet_v3_large", style);
    let image = graph.input("input", DataType::Float, &[BATCH, 3, 224, 224]);
    let image = Signal::new(image, 3, 1.0);
    let mut signal = convolved(&mut graph, &image, "features.0", &of(16, 3, 2), Some(Activation::HardSwish));
    for (index, block) in BLOCKS.iter().enumerate() {
        signal = inverted_residual(&mut graph, &signal, &format!("features.{}.block", index + 1), block);
    }
    let last = of(LAST_CHANNELS, 1, 1);
    let signal = convolved(&mut graph, &signal, "features.16", &last, Some(Activation::HardSwish));
    let features = pooled_features(&mut graph, &signal);
    let layer =
        Linear { name: "classifier.0", from: LAST_CHANNELS, to: FEATURES, variance: POOLED_VARIANCE, output: None };
    let hidden = Signal::new(linear(&mut graph, &features, &layer), FEATURES, 1.0);
    let hidden = activated(&mut graph, "/classifier/1", &hidden, Activation::HardSwish);
    let (from, variance, output) = (FEATURES, hidden.variance, Some("logits"));
    let logits =
        linear(&mut graph, &hidden.value, &Linear { name: "classifier.3", from, to: CLASSES, variance, output });
    graph.output(&logits, &[BATCH, CLASSES]);
    graph
}

/// A convolution of this network that keeps the size, but for its stride.
fn of(channels: i64, kernel: i64, stride: i64) -> Convolution<'static> {
    Convolution::same_size(channels, kernel, stride, DAMPING, EPSILON)
}

fn inverted_residual(graph: &mut Graph, input: &Signal, name: &str, block: &Block) -> Signal {
    let mut modules = (0..).map(|index| format!("{name}.{index}"));
    let mut next = || modules.next().unwrap_or_default();
    let mut signal = input.clone();
    if block.expanded != input.channels {
        signal = convolved(graph, &signal, &next(), &of(block.expanded, 1, 1), Some(block.activation));
    }
    let depthwise = Convolution { depthwise: true, ..of(block.expanded, block.kernel, block.stride) };
    signal = convolved(graph, &signal, &next(), &depthwise, Some(block.activation));
    if block.excited {
        let squeezed = multiple_of_eight(block.expanded / 4);
        let excitation = Excitation { name: &next(), squeezed, inner: Activation::Relu, hard: true };
        signal = squeeze_excite(graph, &signal, &excitation);
    }
    let projection = Convolution { scale: BRANCH_SCALE, ..of(block.channels, 1, 1) };
    signal = convolved(graph, &signal, &next(), &projection, None);
    if block.stride == 1 && block.channels == input.channels {
        signal = sum(graph, &format!("/{}", name.replace('.', "/")), &signal, input);
    }
    signal
}

/// The nearest multiple of eight that takes away no more than a tenth.
fn multiple_of_eight(channels: i64) -> i64 {
    let near = ((channels + 4) / 8 * 8).max(8);
    if near * 10 < channels * 9 { near + 8 } else { near }
}
