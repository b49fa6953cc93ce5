//! Half-precision and 8-bit files from a single-precision graph, the way conversion tools leave them.
//!
//! **fp16**: weights and constants are stored as half precision, and everything is computed in it; inputs and outputs
//! stay single precision behind a `Cast` each, as tools write with "keep I/O types"; but caches, which are never looked
//! at, are half precision themselves. What an operator demands in single precision (the scales of `Resize`) stays.
//!
//! **int8**: the weights of products and convolutions are stored as int8 with a scale per output channel
//! (`max |w| / 127`, symmetric) behind a `DequantizeLinear`, and their inputs pass through `QuantizeLinear` and
//! `DequantizeLinear` with one scale per tensor. That scale is an analytic bound, not a calibration: weights are
//! scaled to give activations of known variance, so a range of six standard deviations holds nearly all of them.
//! Biases, normalisations and the products of attention stay in single precision. Values without a known range (the
//! averages that squeeze-and-excitation looks at) are left alone.

use crate::{
    builder::{Graph, Value, int},
    weights::{Draw, Form, INT8_MAX, Outputs},
};
use half::f16;
use planforge_onnx::proto::{NodeProto, TensorProto, ValueInfoProto, tensor_proto::DataType, type_proto};
use std::collections::{BTreeMap, BTreeSet};

/// Converts the graph to half precision.
pub fn to_half(graph: &mut Graph) {
    let (float, half) = (DataType::Float as i32, DataType::Float16 as i32);
    for weight in graph.weights.iter_mut().filter(|weight| weight.data_type == float) {
        weight.data_type = half;
        if let Some(draw) = graph.draws.get_mut(&weight.name) {
            draw.form = Form::Half;
        }
    }
    let scales = |node: &NodeProto| (node.op_type == "Resize").then(|| node.input.get(2).cloned()).flatten();
    let kept: BTreeSet<String> = graph.proto.node.iter().filter_map(scales).collect();
    let constants = graph.proto.initializer.iter_mut();
    for constant in constants.filter(|tensor| tensor.data_type == float && !kept.contains(&tensor.name)) {
        let halves = constant.raw_data.chunks_exact(4).flat_map(|four| {
            let value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            // What is out of reach becomes the last number within: infinities would spread as NaN.
            f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32())).to_le_bytes()
        });
        constant.raw_data = halves.collect::<Vec<u8>>().into();
        constant.data_type = half;
    }
    for node in graph.proto.node.iter_mut().filter(|node| node.op_type == "Cast") {
        node.attribute.iter_mut().filter(|to| to.i == float.into()).for_each(|to| to.i = half.into());
    }
    cast_ports(graph, float);
}

/// Puts casts between the graph and its single-precision inputs and outputs.
fn cast_ports(graph: &mut Graph, float: i32) {
    let is_float = |info: &&ValueInfoProto| {
        let value = info.r#type.as_ref().and_then(|r#type| r#type.value.as_ref());
        matches!(value, Some(type_proto::Value::TensorType(tensor)) if tensor.elem_type == float)
    };
    let states = &graph.states;
    for info in graph.proto.input.iter_mut().chain(&mut graph.proto.output).filter(|info| states.contains(&info.name)) {
        if let Some(type_proto::Value::TensorType(tensor)) = info.r#type.as_mut().and_then(|of| of.value.as_mut()) {
            tensor.elem_type = DataType::Float16.into();
        }
    }
    let named = |infos: &[ValueInfoProto]| -> Vec<String> {
        infos.iter().filter(is_float).map(|info| info.name.clone()).collect()
    };
    let (inputs, outputs) = (named(&graph.proto.input), named(&graph.proto.output));
    let half_of = |name: &String| format!("{name}_half");
    for node in &mut graph.proto.node {
        let ports = node.input.iter_mut().filter(|name| inputs.contains(name) || outputs.contains(name));
        ports.for_each(|name| *name = half_of(name));
        node.output.iter_mut().filter(|name| outputs.contains(name)).for_each(|name| *name = half_of(name));
    }
    let cast = |node: String, input: String, output: String, to: DataType| NodeProto {
        name: node,
        op_type: "Cast".to_owned(),
        input: vec![input],
        output: vec![output],
        attribute: vec![int("to", to as i64)],
        ..Default::default()
    };
    let before = inputs
        .iter()
        .map(|name| cast(format!("graph_input_cast_{name}"), name.clone(), half_of(name), DataType::Float16));
    let mut nodes: Vec<NodeProto> = before.collect();
    nodes.append(&mut graph.proto.node);
    nodes.extend(
        outputs
            .iter()
            .map(|name| cast(format!("graph_output_cast_{name}"), half_of(name), name.clone(), DataType::Float)),
    );
    graph.proto.node = nodes;
}

/// Which axis of a product's weights its outputs run along.
fn output_axis(node: &NodeProto) -> Option<usize> {
    let transposed = node.attribute.iter().any(|attribute| attribute.name == "transB" && attribute.i == 1);
    match node.op_type.as_str() {
        "Conv" => Some(0),
        "Gemm" => Some(usize::from(!transposed)),
        "MatMul" => Some(1),
        _ => None,
    }
}

/// Puts quantisation around every product and convolution with stored weights.
pub fn quantize(graph: &mut Graph) {
    let nodes = std::mem::take(&mut graph.proto.node);
    let mut stored: BTreeMap<String, usize> =
        graph.weights.iter().enumerate().map(|(at, weight)| (weight.name.clone(), at)).collect();
    let mut quantized: BTreeMap<Value, Value> = BTreeMap::new();
    for mut node in nodes {
        let found = output_axis(&node).and_then(|axis| {
            let range = *graph.ranges.get(&node.input[0])?;
            Some((axis, range, stored.remove(&node.input[1])?))
        });
        if let Some((axis, range, at)) = found {
            if !quantized.contains_key(&node.input[0]) {
                let value = quantized_activation(graph, &node.input[0], range);
                quantized.insert(node.input[0].clone(), value);
            }
            node.input[0] = quantized[&node.input[0]].clone();
            node.input[1] = quantized_weight(graph, at, axis);
        }
        graph.proto.node.push(node);
    }
}

/// The value after a round trip through int8.
fn quantized_activation(graph: &mut Graph, value: &Value, range: f64) -> Value {
    let scale = graph.scalar(&format!("{value}_scale"), range as f32 / INT8_MAX);
    let zero = graph.zero_int8(&format!("{value}_zero_point"), &[]);
    let inputs = [value, &scale, &zero];
    let name = format!("{value}_QuantizeLinear");
    let integers = graph.named_node(&name, "QuantizeLinear", &inputs, vec![], &format!("{value}_quantized"));
    let name = format!("{value}_DequantizeLinear");
    let inputs = [&integers, &scale, &zero];
    graph.named_node(&name, "DequantizeLinear", &inputs, vec![], &format!("{value}_dequantized"))
}

/// Stores the weight as int8 with a scale per output, and gives the value that is dequantised from it.
fn quantized_weight(graph: &mut Graph, at: usize, axis: usize) -> Value {
    let weight = graph.weights[at].clone();
    let outputs = weight.dims[axis] as usize;
    let name = weight.name.clone();
    let (integers, scale) = (format!("{name}_quantized"), format!("{name}_scale"));
    let columns = Outputs::Columns { count: outputs };
    let rows = Outputs::Rows { length: weight.dims.iter().skip(1).product::<i64>() as usize };
    let outputs_of = if axis == 0 { rows } else { columns };
    if let Some(draw) = graph.draws.remove(&name) {
        graph.draws.insert(scale.clone(), Draw { form: Form::Scales { outputs: outputs_of }, ..draw.clone() });
        graph.draws.insert(integers.clone(), Draw { form: Form::Int8 { outputs: outputs_of }, ..draw });
    }
    let dims = vec![outputs as i64];
    graph.weights[at] = TensorProto { name: integers.clone(), data_type: DataType::Int8.into(), ..weight };
    graph.weights.push(TensorProto {
        name: scale.clone(),
        data_type: DataType::Float.into(),
        dims,
        ..Default::default()
    });
    let zero = graph.zero_int8(&format!("{name}_zero_point"), &[outputs as i64]);
    let inputs = [&integers, &scale, &zero];
    let node = format!("{name}_DequantizeLinear");
    graph.named_node(&node, "DequantizeLinear", &inputs, vec![int("axis", axis as i64)], &format!("{name}_dequantized"))
}
