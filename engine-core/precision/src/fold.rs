//! Puts a batch normalisation into the convolution before it, and what queries and keys of attention are multiplied by into
//! the layers that make them, so that what is quantised is what runs.

use crate::{
    attention::{attentions, scaled_by_one_number},
    equalize::{scale, scale_weights},
    layers::{Layer, layers},
    net::{Net, int_attribute, is_standard},
    place::MOVES,
};

/// The `epsilon` of a normalisation that names none.
const EPSILON: f32 = 1e-5;

/// Folds every batch normalisation that can be; gives the names of those that went.
pub fn batch_norms(net: &mut Net) -> Vec<String> {
    let mut folded = Vec::new();
    while let Some(one) = fold_one(net) {
        folded.push(one);
    }
    net.drop_unread();
    folded
}

fn fold_one(net: &mut Net) -> Option<String> {
    let (readers, fixed) = (net.readers(), net.fixed_names());
    let found = layers(net).into_iter().filter(|layer| layer.op_type == "Conv").find_map(|layer| {
        let [at] = readers.get(layer.output.as_str())?[..] else { return None };
        let node = &net.graph().node[at];
        let plain = node.op_type == "BatchNormalization" && int_attribute(node, "training_mode").unwrap_or(0) == 0;
        let has_bias = net.graph().node[layer.node].input.get(2).is_some_and(|name| !name.is_empty());
        if !plain || node.input.len() < 5 || fixed.contains(&layer.output) || has_bias != layer.bias.is_some() {
            return None;
        }
        let part = |position: usize| net.floats(&node.input[position]).filter(|part| part.len() == layer.outputs());
        let parts = [part(1)?, part(2)?, part(3)?, part(4)?];
        let epsilon = node.attribute.iter().find(|of| of.name == "epsilon").map_or(EPSILON, |of| of.f);
        Some((layer, at, parts, epsilon))
    });
    let (layer, at, [scale, shift, mean, variance], epsilon) = found?;
    let factors: Vec<f32> =
        scale.iter().zip(&variance).map(|(scale, variance)| scale / (variance + epsilon).sqrt()).collect();
    let weight = net.own(layer.node, 1)?;
    let mut weights = net.floats(&weight)?;
    layer.each_weight(|at, out, _| weights[at] *= factors[out]);
    net.set_floats(&weight, &weights);
    let old = layer.bias.as_ref().and_then(|bias| net.floats(&bias.name)).unwrap_or_else(|| vec![0.0; layer.outputs()]);
    let bias: Vec<f32> = (0..layer.outputs()).map(|c| (old[c] - mean[c]) * factors[c] + shift[c]).collect();
    set_bias(net, layer.node, &bias);
    let name = net.graph().node[at].name.clone();
    let output = net.graph().node[at].output[0].clone();
    net.graph_mut().node[layer.node].output[0] = output;
    net.graph_mut().node.remove(at);
    Some(name)
}

/// Lets layers that make queries and keys make what they are multiplied by, where nobody else reads them: between the layer
/// and the product numbers are only moved then. Gives the names of the multiplications that went.
pub fn attention_scales(net: &mut Net) -> Vec<String> {
    let mut folded = Vec::new();
    while let Some(one) = fold_scale(net) {
        folded.push(one);
    }
    net.drop_unread();
    folded
}

fn fold_scale(net: &mut Net) -> Option<String> {
    let (readers, fixed, makers) = (net.readers(), net.fixed_names(), net.makers());
    let nodes = &net.graph().node;
    let layers = layers(net);
    // What a layer gives, with its bias.
    let made = |layer: &Layer| match &layer.bias {
        Some(bias) if bias.node != layer.node => nodes[bias.node].output[0].clone(),
        _ => layer.output.clone(),
    };
    let alone = |name: &str| readers.get(name).is_some_and(|all| all.len() == 1) && !fixed.contains(name);
    let layer_behind = |value: &str| {
        let mut value = value;
        while alone(value) {
            if let Some(layer) = layers.iter().find(|layer| made(layer) == value) {
                return Some(layer).filter(|layer| made(layer) == layer.output || alone(&layer.output));
            }
            let node = makers.get(value).map(|at| &nodes[*at])?;
            if !is_standard(&node.domain) || !MOVES.contains(&node.op_type.as_str()) || node.op_type == "MaxPool" {
                return None;
            }
            value = &node.input[0];
        }
        None
    };
    let operands = attentions(net, &readers, &fixed).into_iter().flat_map(|of| [of.queries, of.keys]);
    let (at, before, layer, factor) = operands.filter(|value| alone(value)).find_map(|value| {
        let at = *makers.get(value.as_str())?;
        let node = &nodes[at];
        let before = scaled_by_one_number(net, node)?;
        let layer = layer_behind(before)?;
        let by =
            node.input.iter().filter(|name| *name != before).find_map(|name| net.floats(name)?.first().copied())?;
        let factor = if node.op_type == "Div" { by.recip() } else { by };
        // Of a layer without a bias of its own, what is added is not known.
        let own = nodes[layer.node].input.get(2).is_none_or(|name| name.is_empty()) || layer.bias.is_some();
        (own && factor.is_normal()).then(|| (at, before.to_owned(), layer.clone(), factor))
    })?;
    let node = nodes[at].clone();
    scale_weights(net, &layer, |_, _| factor);
    if let Some(bias) = &layer.bias {
        scale(net, bias.node, bias.position, std::iter::repeat(factor));
    }
    let graph = net.graph_mut();
    graph.node.remove(at);
    let reads = graph.node.iter_mut().flat_map(|node| &mut node.input).filter(|input| **input == node.output[0]);
    reads.for_each(|input| input.clone_from(&before));
    Some(node.name)
}

/// Gives a convolution or product a bias of its own.
pub fn set_bias(net: &mut Net, node: usize, bias: &[f32]) {
    let name = format!("{}_bias", net.graph().node[node].name);
    let data_type = planforge_onnx::proto::tensor_proto::DataType::Float;
    let stored = net.store(&name, data_type, &[bias.len() as i64], crate::net::float_bytes(bias));
    let inputs = &mut net.graph_mut().node[node].input;
    inputs.resize(3, String::new());
    inputs[2] = stored;
}
