//! Evens out channels: what makes one channel large is moved into the layer that reads it.
//!
//! A layer's output channel may be made smaller by any positive factor when whoever reads it makes up for that, as long as
//! all in between commutes with the factor (ReLU, pooling, flattening). One scale then fits all channels. Factors are
//! powers of two, so the model computes the same numbers bit by bit.

use crate::{
    layers::{Layer, layers},
    net::{Net, int_attribute, is_standard},
    observe::Observations,
};
use std::collections::BTreeMap;

/// Bounds of a factor's exponent.
const EXPONENTS: f64 = 24.0;

/// Where channels are made, and who reads them.
#[derive(Debug)]
pub struct Pair {
    maker: Maker,
    channels: usize,
    /// The layers that read them, by index of [`layers`]; each reads so many inputs in a row for a channel.
    readers: Vec<(usize, usize)>,
    /// The values between, the maker's own among them, and the axis of their channels.
    values: Vec<(String, usize)>,
}

/// A maker whose channels were evened out.
#[derive(Debug)]
pub struct Evened {
    /// Its name.
    pub name: String,
    /// By what its channels were divided.
    pub factors: Vec<f32>,
    /// The values that are smaller by that, and the axis of their channels.
    pub values: Vec<(String, usize)>,
}

#[derive(Debug)]
enum Maker {
    Layer(usize),
    /// A normalisation, by its node: its scale and shift are inputs 1 and 2.
    Norm(usize),
}

/// Where channels can be evened out. `net` must not be edited before [`apply`].
pub fn pairs(net: &Net) -> Vec<Pair> {
    let layers = layers(net);
    let by_node: BTreeMap<usize, usize> = layers.iter().enumerate().map(|(index, layer)| (layer.node, index)).collect();
    let (readers, fixed) = (net.readers(), net.fixed_names());
    let mut pairs = Vec::new();
    for (at, node) in net.graph().node.iter().enumerate() {
        let (maker, channels, start) = match by_node.get(&at) {
            Some(&index) => {
                let layer = &layers[index];
                let own_bias = node.input.get(2).is_none_or(|name| name.is_empty()) || layer.bias.is_some();
                if !own_bias {
                    continue;
                }
                let behind = layer.bias.as_ref().filter(|bias| bias.node != at).map(|bias| bias.node);
                (Maker::Layer(index), layer.outputs(), behind.unwrap_or(at))
            }
            None => match norm_channels(net, at) {
                Some(channels) => (Maker::Norm(at), channels, at),
                None => continue,
            },
        };
        // The sum behind a product belongs to it.
        if start != at && fixed.contains(&node.output[0]) {
            continue;
        }
        let axis_of = |name: &str| {
            net.shape(name).map(|shape| {
                if node.op_type == "Conv" || node.op_type == "BatchNormalization" { 1 } else { shape.len() - 1 }
            })
        };
        let value = net.graph().node[start].output[0].clone();
        let Some(axis) = axis_of(&value) else { continue };
        // A product's sum with its bias is the value; what is before it is scaled as well.
        let values = (start != at).then(|| (node.output[0].clone(), axis)).into_iter().collect();
        let mut pair = Pair { maker, channels, readers: Vec::new(), values };
        let walked = ends(net, &readers, &fixed, &by_node, &layers, &value, axis, &mut pair);
        if walked.is_some() && !pair.readers.is_empty() {
            pairs.push(pair);
        }
    }
    pairs
}

fn norm_channels(net: &Net, at: usize) -> Option<usize> {
    let node = &net.graph().node[at];
    let last = match node.op_type.as_str() {
        "BatchNormalization" => node.output.len() == 1,
        "LayerNormalization" => {
            matches!(int_attribute(node, "axis"), None | Some(-1)) && node.input.len() >= 2 && node.output.len() == 1
        }
        _ => false,
    };
    let scale = net.floats(node.input.get(1)?)?;
    let shifted = node.input.get(2).is_none_or(|name| net.floats(name).is_some_and(|shift| shift.len() == scale.len()));
    (last && is_standard(&node.domain) && shifted).then_some(scale.len())
}

/// Follows the channels of `value` to the layers that read them; `None` when somebody else does.
#[expect(clippy::too_many_arguments, reason = "a walk and what it walks over")]
fn ends(
    net: &Net,
    readers: &BTreeMap<&str, Vec<usize>>,
    fixed: &std::collections::BTreeSet<String>,
    by_node: &BTreeMap<usize, usize>,
    layers: &[Layer],
    value: &str,
    axis: usize,
    pair: &mut Pair,
) -> Option<()> {
    if fixed.contains(value) {
        return None;
    }
    pair.values.push((value.to_owned(), axis));
    for &at in readers.get(value).into_iter().flatten() {
        let node = &net.graph().node[at];
        if let Some(&index) = by_node.get(&at) {
            let layer = &layers[index];
            let inputs = layer.inputs();
            if node.input[0] != value
                || layer.channel_axis != axis
                || !inputs.is_multiple_of(pair.channels)
                || node.input[1..].iter().any(|name| name == value)
            {
                return None;
            }
            pair.readers.push((index, inputs / pair.channels));
            continue;
        }
        let output = node.output.first()?;
        let (before, after) = (net.shape(value)?, net.shape(output)?);
        let same = match node.op_type.as_str() {
            "Relu" | "LeakyRelu" | "Identity" => true,
            "MaxPool" | "AveragePool" | "GlobalAveragePool" | "GlobalMaxPool" => axis == 1 && node.output.len() == 1,
            // Channels become runs of features: the axis stays, the layer behind reads several for each.
            "Flatten" | "Reshape" => axis == 1 && after.len() == 2 && before[0] == after[0] && before.len() > 2,
            _ => false,
        };
        if !same || node.input[0] != value || !is_standard(&node.domain) {
            return None;
        }
        ends(net, readers, fixed, by_node, layers, output, axis, pair)?;
    }
    Some(())
}

/// The values that may become smaller by it, each with the axis of its channels.
pub fn values(pairs: &[Pair]) -> impl Iterator<Item = &(String, usize)> {
    pairs.iter().flat_map(|pair| &pair.values)
}

/// Evens out the channels of every pair by what was seen of the channels that layers read; gives the makers whose channels
/// changed.
pub fn apply(net: &mut Net, pairs: &[Pair], seen: &Observations) -> Vec<Evened> {
    let mut changed = Vec::new();
    // What an earlier pair did to a layer's outputs is what a later one sees of its inputs.
    for pair in pairs {
        let layers = layers(net);
        let Some(exponents) = exponents(net, &layers, pair, seen) else { continue };
        let factors: Vec<f32> = exponents.iter().map(|exponent| 2.0_f32.powi(*exponent)).collect();
        let divide = |channel: usize| 1.0 / factors[channel];
        let name = match pair.maker {
            Maker::Layer(index) => {
                let layer = &layers[index];
                scale_weights(net, layer, |out, _| divide(out));
                if let Some(bias) = &layer.bias {
                    scale(net, bias.node, bias.position, (0..pair.channels).map(divide));
                }
                layer.name.clone()
            }
            Maker::Norm(node) => {
                for position in [1, 2] {
                    scale(net, node, position, (0..pair.channels).map(divide));
                }
                net.graph().node[node].name.clone()
            }
        };
        for (index, run) in &pair.readers {
            let layer = &layers[*index];
            scale_weights(net, layer, |_, channel| factors[channel / run]);
        }
        changed.push(Evened { name, factors, values: pair.values.clone() });
    }
    changed
}

/// Multiplies a layer's weights; `factor`: by output and input channel.
pub fn scale_weights(net: &mut Net, layer: &Layer, factor: impl Fn(usize, usize) -> f32) {
    let Some(name) = net.own(layer.node, 1) else { return };
    let Some(mut values) = net.floats(&name) else { return };
    layer.each_weight(|at, out, channel| values[at] *= factor(out, channel));
    net.set_floats(&name, &values);
}

/// Multiplies the stored values that a node reads there.
pub fn scale(net: &mut Net, node: usize, position: usize, factors: impl Iterator<Item = f32>) {
    let Some(name) = net.own(node, position) else { return };
    let Some(mut values) = net.floats(&name) else { return };
    values.iter_mut().zip(factors).for_each(|(value, factor)| *value *= factor);
    net.set_floats(&name, &values);
}

/// By how many doublings each channel is made smaller; `None` where all are even already.
fn exponents(net: &Net, layers: &[Layer], pair: &Pair, seen: &Observations) -> Option<Vec<i32>> {
    let (mut values, mut weights) = (vec![0.0_f64; pair.channels], vec![0.0_f64; pair.channels]);
    for (index, run) in &pair.readers {
        let layer = &layers[*index];
        let channels = seen.get(&layer.input)?.channels.as_ref()?;
        for (at, largest) in channels.largest.iter().enumerate() {
            values[at / run] = values[at / run].max(*largest);
        }
        let stored = net.floats(&layer.weight)?;
        let mut largest = vec![0.0_f32; layer.inputs()];
        layer.each_weight(|at, _, channel| largest[channel] = largest[channel].max(stored[at].abs()));
        for (channel, largest) in largest.into_iter().enumerate() {
            weights[channel / run] = weights[channel / run].max(largest.into());
        }
    }
    let wished = values
        .iter()
        .zip(&weights)
        .map(|(value, weight)| (*value > 0.0 && *weight > 0.0).then(|| (value / weight).log2() / 2.0));
    let wished: Vec<Option<f64>> = wished.collect();
    let mut known: Vec<f64> = wished.iter().flatten().copied().collect();
    known.sort_by(f64::total_cmp);
    // The middle channel stays as it is, and dead ones do.
    let middle = *known.get(known.len() / 2)?;
    let round = |wish: &Option<f64>| wish.map_or(0, |wish| (wish - middle).clamp(-EXPONENTS, EXPONENTS).round() as i32);
    let exponents: Vec<i32> = wished.iter().map(round).collect();
    exponents.iter().any(|exponent| *exponent != 0).then_some(exponents)
}
