//! A finished graph as a file: converted to the precision that is asked for, its weights drawn while they are written.

use crate::{Generated, Options, Precision, builder::Graph, precision};
use planforge_onnx::{
    OnnxError,
    proto::{ModelProto, OperatorSetIdProto},
    write::write_model,
};
use std::path::Path;

/// IR version 8 and operator set 17: what exporters of the day write by default, and the first with
/// `LayerNormalization`.
const IR_VERSION: i64 = 8;
const OPSET: i64 = 17;

/// Writes the model with its weights drawn from the seed.
pub(crate) fn write(mut graph: Graph, options: &Options, path: &Path) -> Result<Generated, OnnxError> {
    match options.precision {
        Precision::Fp32 => (),
        Precision::Fp16 => precision::to_half(&mut graph),
        Precision::Int8 => precision::quantize(&mut graph),
    }
    let nodes = graph.proto.node.len();
    let model = ModelProto {
        ir_version: IR_VERSION,
        producer_name: "planforge-modelgen".to_owned(),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
        graph: Some(graph.proto),
        ..Default::default()
    };
    let draws = graph.draws;
    let size_bytes = write_model(path, &model, &graph.weights, options.storage, &mut |weight, out| {
        draws[&weight.name].write(out, options.seed)
    })?;
    Ok(Generated { size_bytes, nodes, parameters: graph.parameters })
}
