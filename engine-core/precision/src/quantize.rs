//! Makes the quantised model: scales out of ranges, weights as integers, nodes of quantisation in their places.

use crate::{
    layers::{Layer, Outputs},
    net::{Net, float_bytes, int, node},
    observe::Observations,
    place::{Places, Readers, places},
};
use bytes::Bytes;
use planforge_onnx::proto::{NodeProto, tensor_proto::DataType};
use planforge_types::preparation::{Method, Target};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// How int8 is made.
#[derive(Clone, Copy, Debug)]
pub struct Int8 {
    pub target: Target,
    pub method: Method,
    /// One scale for all of a layer's weights, rather than one for each output.
    pub per_tensor: bool,
    pub correct_bias: bool,
}

/// Scale and zero point of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub scale: f32,
    /// 0 where it is symmetric.
    pub zero: u8,
    pub symmetric: bool,
}

impl Step {
    /// For a range that holds zero; `None` where it holds nothing else, or no number can be kept with it.
    pub fn of((low, high): (f64, f64), symmetric: bool) -> Option<Self> {
        let scale = if symmetric { low.abs().max(high.abs()) / 127.0 } else { (high - low) / 255.0 } as f32;
        if !scale.is_normal() {
            return None;
        }
        let zero = if symmetric { 0.0 } else { (-low / f64::from(scale)).round().clamp(0.0, 255.0) };
        Some(Self { scale, zero: zero as u8, symmetric })
    }
}

/// Scales of the values that `places` names; values without one were zero throughout.
pub fn steps(places: &Places, seen: &Observations, how: Int8) -> BTreeMap<String, Step> {
    let symmetric = !how.target.has_zero_points();
    let mut ranges: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let values: Vec<&String> = places.points.keys().filter(|value| !places.cut.contains(*value)).collect();
    let own = values.into_par_iter().filter_map(|value| {
        let observed = seen.get(value)?;
        Some((places.group(value), observed.histogram.range(how.method, symmetric)))
    });
    for (group, (low, high)) in own.collect::<Vec<_>>() {
        let range = ranges.entry(group).or_insert((0.0, 0.0));
        *range = (range.0.min(low), range.1.max(high));
    }
    let step = |value: &String| Some((value.clone(), Step::of(*ranges.get(&places.group(value))?, symmetric)?));
    places.points.keys().filter_map(step).collect()
}

/// Integers of a layer's weights, and the scale of each output (one where `per_tensor`), which is at least `least` of that
/// output.
pub fn weights(layer: &Layer, weights: &[f32], per_tensor: bool, least: impl Fn(usize) -> f32) -> (Vec<i8>, Vec<f32>) {
    // An output without weights takes any scale; its integers are zero.
    let scale = |(out, largest): (usize, f32)| {
        let scale = (largest / 127.0).max(least(out));
        if scale.is_normal() { scale } else { 1.0 }
    };
    let largest = layer.largest_by_output(weights).into_iter();
    let scales: Vec<f32> = match per_tensor {
        true => {
            let (all, lower) = (largest.fold(0.0, f32::max), (0..layer.outputs()).map(&least).fold(0.0, f32::max));
            vec![scale((0, all.max(lower * 127.0)))]
        }
        false => largest.enumerate().map(scale).collect(),
    };
    let mut integers = Vec::with_capacity(weights.len());
    layer.by_output(weights, |outputs, weights| match outputs {
        Outputs::One(out) => {
            let scale = scales[if per_tensor { 0 } else { out }];
            integers.extend(weights.iter().map(|weight| whole(weight / scale)));
        }
        Outputs::Each if per_tensor => integers.extend(weights.iter().map(|weight| whole(weight / scales[0]))),
        Outputs::Each => integers.extend(weights.iter().zip(&scales).map(|(weight, scale)| whole(weight / scale))),
    });
    (integers, scales)
}

/// The nearest of the integers that weights have, the even one of two.
fn whole(value: f32) -> i8 {
    // As large as that, floats have no digits behind the point: what is added goes off again.
    const NO_DIGITS: f32 = 12_582_912.0;
    let value = if value > -127.0 { value } else { -127.0 };
    let value = if value < 127.0 { value } else { 127.0 };
    (value + NO_DIGITS - NO_DIGITS) as i8
}

/// Largest bias in steps of the products: half of what 32 bits hold, so that there is room for the sums it is added to.
const BIAS_MAX: f64 = (1_u32 << 30) as f64;

/// A quantised model, and which layers could not be.
#[derive(Debug)]
pub struct Quantised {
    pub net: Net,
    /// By name of the layer: why it stays.
    pub refused: BTreeMap<String, String>,
}

/// Quantises `layers` of `net`, whose ranges were `seen`.
pub fn quantise(net: &Net, layers: &[&Layer], seen: &Observations, how: Int8) -> Quantised {
    let mut refused = BTreeMap::new();
    let usable = |layer: &Layer, refused: &mut BTreeMap<String, String>| {
        let weights = net.floats(&layer.weight).unwrap_or_default();
        let why = match seen.get(&layer.input) {
            _ if weights.iter().any(|weight| !weight.is_finite()) => "its weights hold numbers that are none",
            None => "what it reads was not observed",
            Some(observed) if observed.histogram.not_finite > 0 => "what it reads is not always a number on the data",
            Some(observed) if observed.histogram.largest() < f64::from(f32::MIN_POSITIVE) * 256.0 => {
                "what it reads is zero throughout the data: its scale would be 0"
            }
            Some(_) => return true,
        };
        refused.insert(layer.name.clone(), why.to_owned());
        false
    };
    let chosen: Vec<&Layer> = layers.iter().copied().filter(|layer| usable(layer, &mut refused)).collect();
    let mut places = places(net, &chosen, how.target);
    let steps = steps(&places, seen, how);
    places.points.retain(|value, _| steps.contains_key(value));
    let rounded: Vec<Option<Rounded>> =
        chosen.par_iter().map(|layer| Rounded::of(net, layer, seen, &steps, how)).collect();
    let mut made = net.clone();
    let mut before = Vec::new();
    for (layer, rounded) in chosen.iter().zip(rounded) {
        if let Some(rounded) = rounded {
            rounded.store(&mut made, layer, how, &mut before);
        }
    }
    put_in_place(&mut made, &places, &steps, before);
    made.drop_unread();
    Quantised { net: made, refused }
}

/// A layer's weights and bias before they are stored.
struct Rounded {
    integers: Vec<i8>,
    scales: Vec<f32>,
    bias: Option<Vec<f32>>,
    bias_dims: Vec<i64>,
    /// Of what the layer reads, where its bias is stored as integers.
    input: Option<Step>,
}

impl Rounded {
    fn of(net: &Net, layer: &Layer, seen: &Observations, steps: &BTreeMap<String, Step>, how: Int8) -> Option<Self> {
        let values = net.floats(&layer.weight)?;
        let mut bias = layer.bias.as_ref().and_then(|bias| net.floats(&bias.name));
        // As it was stored; the bias of a sum behind a product may have axes of size 1. Whole where it lies along the last one.
        let bias_dims = layer.bias.as_ref().and_then(|bias| net.initializer(&bias.name)).map(|old| old.dims.clone());
        let bias_dims = bias_dims.unwrap_or_else(|| vec![layer.outputs() as i64]);
        let is_row = bias_dims.last() == Some(&(layer.outputs() as i64));
        let input = steps.get(&layer.input).copied().filter(|_| how.target.has_zero_points() && is_row);
        // Beside a large bias, products of small values need no finer steps than the bias has.
        let least = |out: usize| match (input, bias.as_ref().and_then(|bias| bias.get(out))) {
            (Some(input), Some(bias)) => (f64::from(bias.abs()) / BIAS_MAX / f64::from(input.scale)) as f32,
            _ => 0.0,
        };
        let (integers, scales) = weights(layer, &values, how.per_tensor, least);
        if how.correct_bias
            && let Some(channels) = seen.get(&layer.input).and_then(|of| of.channels.as_ref())
        {
            let means = channels.means();
            let mut shift = vec![0.0_f64; layer.outputs()];
            layer.each_weight(|at, out, channel| {
                let scale = scales[if how.per_tensor { 0 } else { out }];
                let error = f64::from(integers[at]) * f64::from(scale) - f64::from(values[at]);
                shift[out] += error * means.get(channel).copied().unwrap_or(0.0);
            });
            let can_have = bias.is_some()
                || layer.op_type != "MatMul"
                    && net.graph().node[layer.node].input.get(2).is_none_or(|name| name.is_empty());
            if can_have {
                let old = bias.unwrap_or_else(|| vec![0.0; layer.outputs()]);
                bias = Some(old.iter().zip(&shift).map(|(bias, shift)| (f64::from(*bias) - shift) as f32).collect());
            }
        }
        Some(Self { integers, scales, bias, bias_dims, input })
    }

    /// Puts them in the place of what they were made of.
    fn store(self, net: &mut Net, layer: &Layer, how: Int8, before: &mut Vec<NodeProto>) {
        let Self { integers, scales, bias, bias_dims, input } = self;
        let axis = (!how.per_tensor).then_some(layer.out_axis);
        let dims: Vec<i64> = layer.dims.iter().map(|size| *size as i64).collect();
        let bytes: Bytes = integers.iter().map(|integer| *integer as u8).collect::<Vec<u8>>().into();
        let stored = Stored { base: layer.weight.clone(), data_type: DataType::Int8, dims, bytes };
        let weight = dequantised(net, stored, &scales, axis, before);
        net.graph_mut().node[layer.node].input[1] = weight;
        let Some(bias) = bias else { return };
        let (node, position) = layer.bias.as_ref().map_or((layer.node, 2), |bias| (bias.node, bias.position));
        let value = match input {
            // As an integer kernel adds it: in steps of the products.
            Some(input) => {
                let scales: Vec<f32> =
                    (0..bias.len()).map(|out| input.scale * scales[if how.per_tensor { 0 } else { out }]).collect();
                let whole = |(bias, scale): (&f32, &f32)| {
                    (f64::from(*bias) / f64::from(*scale)).round_ties_even().clamp(i32::MIN.into(), i32::MAX.into())
                        as i32
                };
                let bytes: Vec<u8> = bias.iter().zip(&scales).flat_map(|pair| whole(pair).to_le_bytes()).collect();
                let axis = bias_dims.len() - 1;
                let stored = Stored {
                    base: format!("{}_bias", layer.name),
                    data_type: DataType::Int32,
                    dims: bias_dims,
                    bytes: bytes.into(),
                };
                dequantised(net, stored, &scales, Some(axis), before)
            }
            None => net.store(&format!("{}_bias", layer.name), DataType::Float, &bias_dims, float_bytes(&bias)),
        };
        let inputs = &mut net.graph_mut().node[node].input;
        inputs.resize(inputs.len().max(position + 1), String::new());
        inputs[position] = value;
    }
}

/// Integers to store.
pub struct Stored {
    pub base: String,
    pub data_type: DataType,
    pub dims: Vec<i64>,
    pub bytes: Bytes,
}

/// Stores integers with their scales, and gives the value that is dequantised from them by a node put into `before`.
pub fn dequantised(
    net: &mut Net,
    stored: Stored,
    scales: &[f32],
    axis: Option<usize>,
    before: &mut Vec<NodeProto>,
) -> String {
    let Stored { base, data_type, dims, bytes } = stored;
    let integers = net.store(&format!("{base}_quantized"), data_type, &dims, bytes);
    let shape: Vec<i64> = axis.map(|_| scales.len() as i64).into_iter().collect();
    let scale = net.store(&format!("{base}_scale"), DataType::Float, &shape, float_bytes(scales));
    let zeros = vec![0_u8; scales.len() * if data_type == DataType::Int32 { 4 } else { 1 }];
    let zero = net.store(&format!("{base}_zero_point"), data_type, &shape, zeros.into());
    let (name, output) = (net.fresh(&format!("{base}_DequantizeLinear")), net.fresh(&format!("{base}_dequantized")));
    let attributes = axis.map(|axis| int("axis", axis as i64)).into_iter().collect();
    before.push(node(name, "DequantizeLinear", &[&integers, &scale, &zero], &output, attributes));
    output
}

/// Puts the trips through integers behind the nodes that make their values, and lets readers read their ends.
fn put_in_place(net: &mut Net, places: &Places, steps: &BTreeMap<String, Step>, mut nodes: Vec<NodeProto>) {
    let made: BTreeSet<String> = net.graph().node.iter().flat_map(|node| node.output.iter().cloned()).collect();
    let mut trips: BTreeMap<&str, [NodeProto; 2]> = BTreeMap::new();
    let mut ends: BTreeMap<&str, String> = BTreeMap::new();
    for (value, step) in steps {
        let pair = trip(net, value, *step);
        ends.insert(value, pair[1].output[0].clone());
        trips.insert(value, pair);
    }
    for (value, pair) in &trips {
        if !made.contains(*value) {
            nodes.extend(pair.clone());
        }
    }
    for (at, mut node) in std::mem::take(&mut net.graph_mut().node).into_iter().enumerate() {
        for input in &mut node.input {
            let reads = match places.points.get(input.as_str()) {
                Some(Readers::All) => true,
                Some(Readers::Some(readers)) => readers.contains(&at),
                None => false,
            };
            if let Some(end) = ends.get(input.as_str()).filter(|_| reads) {
                input.clone_from(end);
            }
        }
        let after: Vec<[NodeProto; 2]> =
            node.output.iter().filter_map(|output| trips.get(output.as_str()).cloned()).collect();
        nodes.push(node);
        nodes.extend(after.into_iter().flatten());
    }
    net.graph_mut().node = nodes;
}

fn trip(net: &mut Net, value: &str, step: Step) -> [NodeProto; 2] {
    let data_type = if step.symmetric { DataType::Int8 } else { DataType::Uint8 };
    let scale = net.store(&format!("{value}_scale"), DataType::Float, &[], float_bytes(&[step.scale]));
    let zero = net.store(&format!("{value}_zero_point"), data_type, &[], vec![step.zero].into());
    let (first, integers) = (net.fresh(&format!("{value}_QuantizeLinear")), net.fresh(&format!("{value}_quantized")));
    let (second, end) = (net.fresh(&format!("{value}_DequantizeLinear")), net.fresh(&format!("{value}_dequantized")));
    [
        node(first, "QuantizeLinear", &[value, &scale, &zero], &integers, vec![]),
        node(second, "DequantizeLinear", &[&integers, &scale, &zero], &end, vec![]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_become_the_nearest_integer_the_even_one_of_two() {
        for at in -40_000..=40_000 {
            let value = at as f32 / 256.0;
            assert_eq!(whole(value), value.round_ties_even().clamp(-127.0, 127.0) as i8, "{value}");
        }
        assert_eq!((whole(f32::MAX), whole(f32::MIN), whole(-0.0)), (127, -127, 0));
    }
}
