//! Weights alone as int8 or int4: half or an eighth of the bytes, the arithmetic as before.
//!
//! Products take a scale for every group of weights along their inputs: as `DequantizeLinear` with blocks, which every
//! reader of opset 21 knows, or as ONNX Runtime's `MatMulNBits`. Convolutions take one scale an output.

use crate::{
    budget::Cost,
    draft::{Draft, Judge, Options, Prepared, layer_report},
    error::PrecisionError,
    layers::{Layer, layers},
    net::{Net, float_bytes, int},
    opset,
    quantize::{Stored, dequantised, weights},
};
use planforge_onnx::proto::{NodeProto, OperatorSetIdProto, tensor_proto::DataType};
use planforge_types::preparation::{Kind, Target};
use std::collections::BTreeSet;

/// Weights of a group where none is asked for, int4.
const GROUP: usize = 32;

/// Shares of a group's largest weight that its scale is tried at: the rest is clipped.
const SHARES: [f32; 7] = [1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7];

/// Weights that are smaller stay: their scales would take what is saved.
const FEWEST_WEIGHTS: usize = 64;

pub(crate) fn prepare(mut net: Net, judge: Option<&Judge<'_>>, draft: Draft<'_>) -> Result<Prepared, PrecisionError> {
    let options = draft.options;
    let before = net.clone();
    let group = options.group.or((options.kind == Kind::Int4Weights).then_some(GROUP));
    let packs = options.target == Target::OnnxRuntime && group.is_some();
    opset::raise(&mut net, if group.is_some() && !packs { 21 } else { 13 })?;
    let layers = layers(&net);
    let why_not = |layer: &Layer| {
        if options.keep.contains(&layer.name) {
            Some("it was asked to stay")
        } else if options.kind == Kind::Int4Weights && layer.op_type == "Conv" {
            Some("int4 is for products: a convolution has no groups of weights along one axis")
        } else if layer.weights() < FEWEST_WEIGHTS {
            Some("it has few weights: their scales would take what is saved")
        } else {
            None
        }
    };
    let free: Vec<&Layer> = layers.iter().filter(|layer| why_not(layer).is_none()).collect();
    if free.is_empty() {
        let why = match layers.first() {
            Some(layer) => format!("'{}': {}", layer.name, why_not(layer).unwrap_or_default()),
            None => "it has no product and no convolution with stored single-precision weights".to_owned(),
        };
        return Err(PrecisionError::Nothing { precision: options.kind.name().to_owned(), why });
    }
    let make = |returned: &BTreeSet<usize>| {
        let chosen: Vec<&Layer> =
            free.iter().enumerate().filter(|(at, _)| !returned.contains(at)).map(|(_, layer)| *layer).collect();
        lowered(&net, &chosen, options, group, packs)
    };
    let costs: Vec<Cost> = free.iter().map(|layer| Cost { saved: layer.weights() as f64 }).collect();
    let names: Vec<&str> = free.iter().map(|layer| layer.name.as_str()).collect();
    let settled = judge.map(|judge| judge.settle(options.budget, || costs.clone(), &names, make)).transpose()?;
    let returned = settled.as_ref().map(|settled| settled.returned.clone()).unwrap_or_default();
    let made = make(&returned);
    let report = layers.iter().map(|layer| {
        let at = free.iter().position(|other| other.node == layer.node);
        let harm = at.and_then(|at| settled.as_ref()?.harm.get(at).copied());
        let (precision, why) = match (at, why_not(layer)) {
            (_, Some(why)) => ("fp32", why.to_owned()),
            (Some(at), None) if returned.contains(&at) => (
                "fp32",
                format!("returned by the budget: alone it makes a relative error of {:.2e}", harm.unwrap_or_default()),
            ),
            _ => (
                options.kind.name(),
                match group.filter(|_| layer.op_type != "Conv") {
                    Some(group) => format!("a scale for every {group} weights"),
                    None => "a scale for every output".to_owned(),
                },
            ),
        };
        layer_report(layer, &made, precision, why, harm)
    });
    let report = report.collect();
    let measured =
        judge.zip(settled.as_ref()).map(|(judge, settled)| judge.measured(&settled.reached, settled.evaluations));
    Ok(draft.finish(&before, made, report, measured))
}

fn lowered(net: &Net, layers: &[&Layer], options: &Options, group: Option<usize>, packs: bool) -> Net {
    let mut made = net.clone();
    let mut before: Vec<NodeProto> = Vec::new();
    let bits = if options.kind == Kind::Int4Weights { 4 } else { 8 };
    let mut packed = false;
    for layer in layers {
        let Some(values) = made.floats(&layer.weight) else { continue };
        let group = group.filter(|_| layer.op_type != "Conv");
        match group {
            None => {
                let (integers, scales) = weights(layer, &values, options.per_tensor, |_| 0.0);
                let bytes = integers.iter().map(|integer| *integer as u8).collect::<Vec<u8>>().into();
                let dims = layer.dims.iter().map(|size| *size as i64).collect();
                let stored = Stored { base: layer.weight.clone(), data_type: DataType::Int8, dims, bytes };
                let axis = (!options.per_tensor).then_some(layer.out_axis);
                let value = dequantised(&mut made, stored, &scales, axis, &mut before);
                made.graph_mut().node[layer.node].input[1] = value;
            }
            Some(group) => {
                let groups = Groups::of(layer, &values, group, bits);
                if packs && layer.op_type == "MatMul" {
                    pack(&mut made, layer, &groups);
                    packed = true;
                } else if packs {
                    // ONNX Runtime's operator has no way to say what else a Gemm does: one scale an output.
                    let (integers, scales) = weights(layer, &values, false, |_| 0.0);
                    let bytes = integers.iter().map(|integer| *integer as u8).collect::<Vec<u8>>().into();
                    let dims = layer.dims.iter().map(|size| *size as i64).collect();
                    let stored = Stored { base: layer.weight.clone(), data_type: DataType::Int8, dims, bytes };
                    let value = dequantised(&mut made, stored, &scales, Some(layer.out_axis), &mut before);
                    made.graph_mut().node[layer.node].input[1] = value;
                } else {
                    let value = blocked(&mut made, layer, &groups, &mut before);
                    made.graph_mut().node[layer.node].input[1] = value;
                }
            }
        }
    }
    before.append(&mut made.graph_mut().node);
    made.graph_mut().node = before;
    if packed && !made.proto.opset_import.iter().any(|import| import.domain == "com.microsoft") {
        made.proto.opset_import.push(OperatorSetIdProto { domain: "com.microsoft".to_owned(), version: 1 });
    }
    made.drop_unread();
    made
}

/// A product's weights in groups along its inputs.
struct Groups {
    /// By output, then input.
    integers: Vec<i8>,
    /// By output, then group.
    scales: Vec<f32>,
    outputs: usize,
    inputs: usize,
    size: usize,
    bits: u32,
}

impl Groups {
    fn of(layer: &Layer, values: &[f32], size: usize, bits: u32) -> Self {
        let (outputs, inputs) = (layer.outputs(), layer.inputs());
        let mut rows = vec![0.0_f32; values.len()];
        layer.each_weight(|at, out, input| rows[out * inputs + input] = values[at]);
        let mut groups =
            Self { integers: Vec::with_capacity(values.len()), scales: Vec::new(), outputs, inputs, size, bits };
        let most = ((1 << (bits - 1)) - 1) as f32;
        for row in rows.chunks_exact(inputs) {
            for group in row.chunks(size) {
                let largest = group.iter().fold(0.0_f32, |most, weight| most.max(weight.abs()));
                let error = |scale: f32| {
                    group
                        .iter()
                        .map(|weight| ((weight / scale).round_ties_even().clamp(-most, most) * scale - weight).powi(2))
                        .sum::<f32>()
                };
                let tried = SHARES.iter().map(|share| largest * share / most).filter(|scale| scale.is_normal());
                // A group of zeros takes any scale.
                let scale = tried.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(1.0);
                groups.scales.push(scale);
                groups
                    .integers
                    .extend(group.iter().map(|weight| (weight / scale).round_ties_even().clamp(-most, most) as i8));
            }
        }
        groups
    }

    fn count(&self) -> usize {
        self.inputs.div_ceil(self.size)
    }
}

/// Integers of so many bits, the first in the low ones.
fn bit_packed(integers: impl Iterator<Item = u8>, bits: u32) -> Vec<u8> {
    if bits == 8 {
        return integers.collect();
    }
    let all: Vec<u8> = integers.collect();
    all.chunks(2).map(|pair| pair[0] & 15 | pair.get(1).map_or(0, |high| (high & 15) << 4)).collect()
}

/// As `DequantizeLinear` with blocks along the inputs.
fn blocked(net: &mut Net, layer: &Layer, groups: &Groups, before: &mut Vec<NodeProto>) -> String {
    let Groups { outputs, inputs, .. } = *groups;
    let count = groups.count();
    let along_rows = layer.out_axis == 0;
    let mut integers = Vec::with_capacity(groups.integers.len());
    layer.each_weight(|_, out, input| integers.push(groups.integers[out * inputs + input] as u8));
    let bytes = bit_packed(integers.into_iter(), groups.bits);
    let (dims, scales): (Vec<i64>, Vec<f32>) = match along_rows {
        true => (vec![outputs as i64, count as i64], groups.scales.clone()),
        false => {
            let by_group = (0..count).flat_map(|group| (0..outputs).map(move |out| out * count + group));
            (vec![count as i64, outputs as i64], by_group.map(|at| groups.scales[at]).collect())
        }
    };
    let base = &layer.weight;
    let data_type = if groups.bits == 4 { DataType::Int4 } else { DataType::Int8 };
    let weight_dims: Vec<i64> = layer.dims.iter().map(|size| *size as i64).collect();
    let integers = net.store(&format!("{base}_quantized"), data_type, &weight_dims, bytes.into());
    let scale = net.store(&format!("{base}_scale"), DataType::Float, &dims, float_bytes(&scales));
    let (name, output) = (net.fresh(&format!("{base}_DequantizeLinear")), net.fresh(&format!("{base}_dequantized")));
    let attributes = vec![int("axis", 1 - layer.out_axis as i64), int("block_size", groups.size as i64)];
    before.push(crate::net::node(name, "DequantizeLinear", &[&integers, &scale], &output, attributes));
    output
}

/// As `MatMulNBits`, in the layer's place.
fn pack(net: &mut Net, layer: &Layer, groups: &Groups) {
    let Groups { outputs, inputs, size, bits, .. } = *groups;
    let middle = 1_i16 << (bits - 1);
    let mut bytes = Vec::new();
    for row in groups.integers.chunks_exact(inputs) {
        for group in row.chunks(size) {
            // A last group that is not full is filled with zeros.
            let filled = group.iter().copied().chain(std::iter::repeat(0)).take(size);
            bytes.extend(bit_packed(filled.map(|integer| (i16::from(integer) + middle) as u8), bits));
        }
    }
    let (count, base) = (groups.count() as i64, &layer.weight);
    let blob = (size * bits as usize / 8) as i64;
    let integers =
        net.store(&format!("{base}_quantized"), DataType::Uint8, &[outputs as i64, count, blob], bytes.into());
    let scale =
        net.store(&format!("{base}_scale"), DataType::Float, &[outputs as i64 * count], float_bytes(&groups.scales));
    let node = &mut net.graph_mut().node[layer.node];
    node.op_type = "MatMulNBits".to_owned();
    node.domain = "com.microsoft".to_owned();
    node.input = vec![layer.input.clone(), integers, scale];
    node.attribute = vec![
        int("K", inputs as i64),
        int("N", outputs as i64),
        int("bits", bits.into()),
        int("block_size", size as i64),
    ];
}
