//! Raises a model's operator set, so that what is put in is known there.

use crate::{
    error::PrecisionError,
    net::{Net, bodies, int, int_attribute, is_standard},
};
use planforge_onnx::proto::{NodeProto, OperatorSetIdProto, tensor_proto::DataType};

/// What is raised from: older sets mean too much by too many operators.
const OLDEST: i64 = 11;

/// Raises the standard operators to version `to` where they are older.
///
/// # Errors
///
/// When an operator means something else there, and cannot be said otherwise.
pub fn raise(net: &mut Net, to: i64) -> Result<(), PrecisionError> {
    let from = net.opset();
    if from >= to {
        return Ok(());
    }
    let refuse = |why: String| PrecisionError::Opset { from, to, why };
    if from < OLDEST {
        return Err(refuse(format!("operators older than opset {OLDEST} are not rewritten")));
    }
    for at in 0..net.graph().node.len() {
        let node = net.graph().node[at].clone();
        if let Some(inside) =
            bodies(&node).flat_map(|body| &body.node).find(|inside| changes(&inside.op_type, from, to))
        {
            return Err(refuse(format!("'{}' holds a {}, which changed", node.name, inside.op_type)));
        }
        if is_standard(&node.domain) && changes(&node.op_type, from, to) {
            raise_node(net, at, &node, from).map_err(|why| refuse(format!("'{}': {why}", node.name)))?;
        }
    }
    let ir_version = if to >= 21 { 10 } else { 7 };
    net.proto.ir_version = net.proto.ir_version.max(ir_version);
    match net.proto.opset_import.iter_mut().find(|import| is_standard(&import.domain)) {
        Some(import) => import.version = to,
        None => net.proto.opset_import.push(OperatorSetIdProto { version: to, ..Default::default() }),
    }
    Ok(())
}

/// Whether an operator reads otherwise in the newer set.
fn changes(op_type: &str, from: i64, to: i64) -> bool {
    let within = |version: i64| from < version && version <= to;
    match op_type {
        "Dropout" => within(12),
        "Squeeze" | "Unsqueeze" | "ReduceSum" | "Softmax" | "LogSoftmax" | "Hardmax" => within(13),
        "Split" => within(13) || within(18),
        "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceL2" | "ReduceLogSum"
        | "ReduceLogSumExp" | "ReduceSumSquare" => within(18),
        "BatchNormalization" => within(14),
        "GridSample" => within(20),
        "GroupNormalization" => within(21),
        _ => false,
    }
}

fn raise_node(net: &mut Net, at: usize, node: &NodeProto, from: i64) -> Result<(), String> {
    match node.op_type.as_str() {
        // Its share matters in training alone.
        "Dropout" => net.graph_mut().node[at].attribute.clear(),
        "Softmax" | "LogSoftmax" | "Hardmax" => {
            let rank = net.shape(&node.input[0]).map_or(0, <[usize]>::len) as i64;
            let axis = int_attribute(node, "axis").unwrap_or(1);
            // It used to flatten everything behind its axis: the same for the last one.
            if axis != rank - 1 && axis != -1 {
                return Err(format!("a {} over several axes is one over a single axis there", node.op_type));
            }
            let attributes = &mut net.graph_mut().node[at].attribute;
            attributes.retain(|attribute| attribute.name != "axis");
            attributes.push(int("axis", -1));
        }
        "Split" => {
            if from < 13 {
                to_input(net, at, "split");
            }
            if net.graph().node[at].input.len() < 2 {
                let parts = node.output.len() as i64;
                net.graph_mut().node[at].attribute.push(int("num_outputs", parts));
            }
        }
        "BatchNormalization" if node.output.len() > 1 => return Err("a normalisation that is trained".to_owned()),
        "BatchNormalization" => {}
        "GridSample" => return Err("its modes have other names".to_owned()),
        "GroupNormalization" => return Err("its scale is one for each channel there".to_owned()),
        _ => to_input(net, at, "axes"),
    }
    Ok(())
}

/// Makes an attribute of whole numbers the second input.
fn to_input(net: &mut Net, at: usize, name: &str) {
    let node = &net.graph().node[at];
    let Some(values) = node.attribute.iter().find(|attribute| attribute.name == name).map(|of| of.ints.clone()) else {
        return;
    };
    let base = format!("{}_{name}", node.name);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let stored = net.store(&base, DataType::Int64, &[values.len() as i64], bytes.into());
    let node = &mut net.graph_mut().node[at];
    node.attribute.retain(|attribute| attribute.name != name);
    node.input.truncate(1);
    node.input.push(stored);
}
