//! What the convolutional networks share: normalised convolutions and activations whose expected statistics are known,
//! so that the next weights can be scaled by them.
//!
//! Batch normalisation stays a node of its own, so that folding it is the compiler's work.

use crate::{
    builder::{Graph, Value, float, int, ints},
    weights::{Init, Outputs},
};

/// A value, its channels and what is expected of its elements, by which the next weights are scaled.
#[derive(Clone, Debug)]
pub struct Signal {
    pub value: Value,
    pub channels: i64,
    /// Channels that come from one source: concatenated sources differ in their means, so weights are centred over
    /// each source's channels.
    pub part: i64,
    pub mean: f64,
    /// About each channel's own mean.
    pub variance: f64,
}

impl Signal {
    /// A signal of one source, around zero.
    pub fn new(value: Value, channels: i64, variance: f64) -> Self {
        Self { value, channels, part: channels, mean: 0.0, variance }
    }
}

/// A convolution and the normalisation that follows it.
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// Names of the two, as the usual checkpoint has them.
    pub conv: &'a str,
    pub norm: &'a str,
    pub channels: i64,
    pub kernel: i64,
    pub stride: i64,
    pub pad: i64,
    /// One filter per channel.
    pub depthwise: bool,
    /// Standard deviation of the result.
    pub scale: f64,
    /// Makes the weights smaller than the estimates ask for: those leave out that values are not quite normally
    /// distributed and that neighbours resemble each other, which adds up over many layers.
    pub damping: f64,
    pub epsilon: f32,
}

impl Convolution<'_> {
    /// One that keeps the image's size, but for its stride; unnamed.
    pub fn same_size(channels: i64, kernel: i64, stride: i64, damping: f64, epsilon: f32) -> Self {
        let (conv, norm, pad, depthwise, scale) = ("", "", kernel / 2, false, 1.0);
        Self { conv, norm, channels, kernel, stride, pad, depthwise, scale, damping, epsilon }
    }
}

/// Sum of a depthwise filter. Of a slowly varying image this much is left; the rest of the filter is noise that adds up
/// to nothing, and answers to what varies quickly.
const DEPTHWISE_SUM: f64 = 0.9;
/// Variance that the noise part of a depthwise filter leaves of an image without any correlation.
const DEPTHWISE_NOISE: f64 = 0.7;

/// The path an exporter would give a module's node.
pub fn path(module: &str) -> String {
    format!("/{}", module.replace('.', "/"))
}

/// Weights that bring inputs of this variance to outputs of unit variance.
pub fn centred(fan_in: i64, variance: f64) -> Init {
    let std = (fan_in as f64 * variance).sqrt().recip();
    Init::Centred { std, outputs: Outputs::Rows { length: fan_in as usize } }
}

/// As [`centred`] for an input of several sources and `taps` kernel positions.
fn centred_by_part(input: &Signal, taps: i64, damping: f64) -> Init {
    let std = damping * ((input.channels * taps) as f64 * input.variance).sqrt().recip();
    Init::Centred { std, outputs: Outputs::Rows { length: (input.part * taps) as usize } }
}

/// Standard deviations within which nearly all elements lie.
const RANGE_DEVIATIONS: f64 = 6.0;

/// What nearly all elements of a signal lie within.
fn range(mean: f64, variance: f64) -> f64 {
    mean.abs() + RANGE_DEVIATIONS * variance.sqrt()
}

/// Conv and BatchNormalization.
pub fn normalised_convolution(graph: &mut Graph, input: &Signal, of: &Convolution<'_>) -> Signal {
    let Convolution { conv, norm, channels, kernel, stride, pad, depthwise, scale, damping, epsilon } = *of;
    let taps = kernel * kernel;
    graph.expect_within(&input.value, range(input.mean, input.variance));
    let (init, per_filter, centre) = if depthwise {
        let std = damping * (DEPTHWISE_NOISE / taps as f64 / input.variance).sqrt();
        let sum = damping * DEPTHWISE_SUM / input.variance.sqrt();
        (Init::Summing { std, length: taps as usize, sum }, 1, input.mean * sum)
    } else {
        (centred_by_part(input, taps, damping), input.channels, 0.0)
    };
    let weight = graph.parameter(&format!("{conv}.weight"), &[channels, per_filter, kernel, kernel], init);
    let attributes = vec![
        ints("dilations", &[1, 1]),
        int("group", if depthwise { channels } else { 1 }),
        ints("kernel_shape", &[kernel, kernel]),
        ints("pads", &[pad; 4]),
        ints("strides", &[stride, stride]),
    ];
    let convolved = graph.node(&format!("{}/Conv", path(conv)), "Conv", &[&input.value, &weight], attributes);
    // The statistics vary about those that the weights were scaled for, as trained ones do.
    let around = |centre: f64| Init::Uniform { low: 0.8 * centre, high: 1.2 * centre };
    let slight = Init::Bell { std: 0.1 };
    let gamma = graph.parameter(&format!("{norm}.weight"), &[channels], around(scale));
    let beta = graph.parameter(&format!("{norm}.bias"), &[channels], slight);
    let average = if centre == 0.0 { slight } else { Init::Uniform { low: centre - 0.1, high: centre + 0.1 } };
    let mean = graph.statistic(&format!("{norm}.running_mean"), &[channels], average);
    let variance = graph.statistic(&format!("{norm}.running_var"), &[channels], around(1.0));
    let value = graph.node(
        &format!("{}/BatchNormalization", path(norm)),
        "BatchNormalization",
        &[&convolved, &gamma, &beta, &mean, &variance],
        vec![float("epsilon", epsilon), float("momentum", 0.9)],
    );
    Signal::new(value, channels, scale * scale)
}

/// Functions that follow a normalisation, spelt as exporters do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Relu,
    /// `Clip` from 0 to 6.
    Relu6,
    HardSwish,
    /// `Sigmoid`, then `Mul`.
    Silu,
}

/// Mean and variance of the function of a normally distributed value of unit variance.
impl Activation {
    pub fn moments(self) -> (f64, f64) {
        match self {
            Self::Relu | Self::Relu6 => (0.399, 0.341),
            Self::HardSwish => (0.166, 0.304),
            Self::Silu => (0.207, 0.313),
        }
    }
}

/// Applies the function to a signal of unit variance; `name` is the path of its module.
pub fn activated(graph: &mut Graph, name: &str, input: &Signal, function: Activation) -> Signal {
    let value = match function {
        Activation::Relu => graph.node(&format!("{name}/Relu"), "Relu", &[&input.value], vec![]),
        Activation::Relu6 => {
            let bounds = [("min", 0.0), ("max", 6.0)].map(|(bound, at)| graph.scalar(&format!("{name}/{bound}"), at));
            let [low, high] = &bounds;
            graph.node(&format!("{name}/Clip"), "Clip", &[&input.value, low, high], vec![])
        }
        Activation::HardSwish => graph.node(&format!("{name}/HardSwish"), "HardSwish", &[&input.value], vec![]),
        Activation::Silu => {
            let gate = graph.node(&format!("{name}/Sigmoid"), "Sigmoid", &[&input.value], vec![]);
            graph.node(&format!("{name}/Mul"), "Mul", &[&input.value, &gate], vec![])
        }
    };
    let (mean, variance) = function.moments();
    Signal { value, mean, variance, ..input.clone() }
}

/// The module `name`: `0` is the convolution, `1` the normalisation, `2` the activation, where there is one.
pub fn convolved(
    graph: &mut Graph,
    input: &Signal,
    name: &str,
    of: &Convolution<'_>,
    activation: Option<Activation>,
) -> Signal {
    let (conv, norm) = (format!("{name}.0"), format!("{name}.1"));
    let signal = normalised_convolution(graph, input, &Convolution { conv: &conv, norm: &norm, ..*of });
    match activation {
        Some(function) => activated(graph, &format!("{}/2", path(name)), &signal, function),
        None => signal,
    }
}

/// The sum of two signals of as many channels.
pub fn sum(graph: &mut Graph, name: &str, a: &Signal, b: &Signal) -> Signal {
    let value = graph.node(&format!("{name}/Add"), "Add", &[&a.value, &b.value], vec![]);
    Signal { value, mean: a.mean + b.mean, variance: a.variance + b.variance, ..a.clone() }
}

/// What gates the channels of a squeeze-and-excitation block.
#[derive(Clone, Copy, Debug)]
pub struct Excitation<'a> {
    /// Module of the block, with `fc1` and `fc2`.
    pub name: &'a str,
    pub squeezed: i64,
    pub inner: Activation,
    /// The gate is `HardSigmoid` instead of `Sigmoid`.
    pub hard: bool,
}

/// Variance over images and channels of what is left of a signal when each channel is averaged over its image.
const POOLED_VARIANCE: f64 = 0.05;
/// Standard deviation and mean of the argument of the gates: most of them stay half open or more.
const GATE_STD: f64 = 1.0;
const GATE_MEAN: f64 = 1.0;
/// Average and variance of `sigmoid` (and of the hard one, nearly) of such an argument.
const GATE: (f64, f64) = (0.70, 0.03);

/// Multiplies each channel by a gate that depends on the averages of all.
pub fn squeeze_excite(graph: &mut Graph, input: &Signal, of: &Excitation<'_>) -> Signal {
    let name = path(of.name);
    let linear = |graph: &mut Graph, layer: &str, x: &Value, from: i64, to: i64, init: Init, bias: Init| {
        let weight = graph.parameter(&format!("{}.{layer}.weight", of.name), &[to, from, 1, 1], init);
        let bias = graph.parameter(&format!("{}.{layer}.bias", of.name), &[to], bias);
        let attributes = vec![
            ints("dilations", &[1, 1]),
            int("group", 1),
            ints("kernel_shape", &[1, 1]),
            ints("pads", &[0; 4]),
            ints("strides", &[1, 1]),
        ];
        graph.node(&format!("{name}/{layer}/Conv"), "Conv", &[x, &weight, &bias], attributes)
    };
    let pool = format!("{name}/avgpool/GlobalAveragePool");
    let pooled = graph.node(&pool, "GlobalAveragePool", &[&input.value], vec![]);
    let init = centred(input.channels, POOLED_VARIANCE);
    let squeezed = linear(graph, "fc1", &pooled, input.channels, of.squeezed, init, Init::Bell { std: 0.1 });
    let squeezed = Signal::new(squeezed, of.squeezed, 1.0);
    let inner = activated(graph, &format!("{name}/activation"), &squeezed, of.inner);
    let (_, variance) = of.inner.moments();
    let std = GATE_STD / (of.squeezed as f64 * variance).sqrt();
    let init = Init::Centred { std, outputs: Outputs::Rows { length: of.squeezed as usize } };
    let bias = Init::Uniform { low: GATE_MEAN - 0.2, high: GATE_MEAN + 0.2 };
    let scores = linear(graph, "fc2", &inner.value, of.squeezed, input.channels, init, bias);
    let gate = if of.hard {
        let attributes = vec![float("alpha", 1.0 / 6.0)];
        graph.node(&format!("{name}/scale_activation/HardSigmoid"), "HardSigmoid", &[&scores], attributes)
    } else {
        graph.node(&format!("{name}/scale_activation/Sigmoid"), "Sigmoid", &[&scores], vec![])
    };
    let value = graph.node(&format!("{name}/Mul"), "Mul", &[&gate, &input.value], vec![]);
    let (average, spread) = GATE;
    let variance = input.variance * (average * average + spread);
    Signal { value, mean: input.mean * average, variance, ..input.clone() }
}

/// What a classifier is made of.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    pub name: &'a str,
    pub from: i64,
    pub to: i64,
    /// Variance of the input.
    pub variance: f64,
    /// Name of the result; after the node when not given.
    pub output: Option<&'a str>,
}

/// A `Gemm` with stored weights `[to, from]` and a bias.
pub fn linear(graph: &mut Graph, input: &Value, of: &Linear<'_>) -> Value {
    graph.expect_within(input, range(0.0, of.variance));
    let weight = graph.parameter(&format!("{}.weight", of.name), &[of.to, of.from], centred(of.from, of.variance));
    let bias = graph.parameter(&format!("{}.bias", of.name), &[of.to], Init::Bell { std: 0.1 });
    let attributes = vec![float("alpha", 1.0), float("beta", 1.0), int("transB", 1)];
    let node = format!("{}/Gemm", path(of.name));
    let output = of.output.map_or_else(|| format!("{node}_output_0"), str::to_owned);
    graph.named_node(&node, "Gemm", &[input, &weight, &bias], attributes, &output)
}

/// Average of each channel over its image, as a matrix of a row per image.
pub fn pooled_features(graph: &mut Graph, input: &Signal) -> Value {
    let pooled = graph.node("/avgpool/GlobalAveragePool", "GlobalAveragePool", &[&input.value], vec![]);
    graph.node("/Flatten", "Flatten", &[&pooled], vec![int("axis", 1)])
}
