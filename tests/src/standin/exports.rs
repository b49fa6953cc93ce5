//! The JSON files: written as plain text, six significant digits, names as they are.

use super::{console::g6, latency::Trace, model::Layer, plan::Plan, version::Version};
use std::fmt::Write as _;

/// One layer's time over a profiled run.
#[derive(Clone, Debug)]
pub struct LayerTime {
    pub name: String,
    pub total_ms: f64,
    pub average_ms: f64,
    pub median_ms: f64,
    pub percentage: f64,
}

/// Every query's times.
pub fn times(trace: &Trace) -> String {
    let mut text = String::from("[");
    for (index, query) in trace.queries.iter().enumerate() {
        let start_compute = query.start + query.h2d;
        let end_compute = start_compute + query.compute;
        let fields = [
            ("startEnqMs", query.start),
            ("endEnqMs", query.start + query.enqueue),
            ("startH2dMs", query.start),
            ("endH2dMs", start_compute),
            ("startComputeMs", start_compute),
            ("endComputeMs", end_compute),
            ("startD2hMs", end_compute),
            ("endD2hMs", end_compute + query.d2h),
            ("h2dMs", query.h2d),
            ("computeMs", query.compute),
            ("d2hMs", query.d2h),
            ("latencyMs", query.latency()),
        ];
        let fields: Vec<String> = fields.iter().map(|(name, ms)| format!("\"{name}\" : {}", g6(*ms))).collect();
        let lead = if index == 0 { "\n  " } else { ", " };
        let _ = writeln!(text, "{lead}{{ {} }}", fields.join(", "));
    }
    text.push_str("]\n");
    text
}

/// The profile: how often it ran, then a layer an object.
pub fn profile(layers: &[LayerTime], count: usize) -> String {
    let mut text = format!("[\n  {{ \"count\" : {count} }}\n");
    for layer in layers {
        let _ = writeln!(
            text,
            ", {{ \"name\" : \"{}\", \"timeMs\" : {}, \"averageMs\" : {}, \"medianMs\" : {}, \"percentage\" : {} }}",
            layer.name,
            g6(layer.total_ms),
            g6(layer.average_ms),
            g6(layer.median_ms),
            g6(layer.percentage)
        );
    }
    text.push_str("]\n");
    text
}

/// The engine inspector's document: names alone unless the plan was built with details.
pub fn layer_info(version: Version, plan: &Plan) -> String {
    let layer = |layer: &Layer| match plan.detailed {
        true => detailed(version, plan, layer),
        false => format!("\"{}\"", layer.name),
    };
    let layers: Vec<String> = plan.layers.iter().map(layer).collect();
    let mut text = format!("{{\"Layers\": [{}\n],\n", layers.join("\n,"));
    let edges = plan.inputs.iter().map(|b| (b, "Input")).chain(plan.outputs.iter().map(|b| (b, "Output")));
    if version.major() >= 11 {
        let tensors: Vec<String> = edges
            .map(|(binding, mode)| {
                format!(
                    "{{\"Name\": \"{}\", \"IOMode\": \"{mode}\", \"DataType\": \"{}\", \"Dimensions\": {:?}, \"Location\": \"Device\", \"IsShapeInferenceIO\": false, \"ProfileInfo\": []}}",
                    binding.edge.name, binding.kind, binding.edge.dims
                )
            })
            .collect();
        let _ = write!(text, "\"I/O Tensors\": [{}\n]}}\n", tensors.join("\n,"));
    } else {
        let names: Vec<String> = edges.map(|(binding, _)| format!("\"{}\"", binding.edge.name)).collect();
        let _ = write!(text, "\"Bindings\": [{}\n]}}\n", names.join("\n,"));
    }
    text
}

fn detailed(version: Version, plan: &Plan, layer: &Layer) -> String {
    let half = matches!(plan.precision.as_str(), "fp16" | "best");
    let (kind, weights) = match plan.precision.as_str() {
        "int8" => ("Int8", "Int8"),
        _ if half => ("Half", "Half"),
        _ => ("Float", "Float"),
    };
    let tensors = |names: &[String]| {
        let one = |name: &String| match version.major() {
            11.. => format!(
                "{{\"Name\": \"{name}\", \"Dimensions\": [1], \"Format\": \"Row major linear\", \"DataType\": \"{kind}\"}}"
            ),
            10 => format!(
                "{{\"Name\": \"{name}\", \"Location\": \"Device\", \"Dimensions\": [1], \"Format/Datatype\": \"{kind}\"}}"
            ),
            _ => {
                let layout = format!("Row major linear FP{}", if half { 16 } else { 32 });
                format!("{{\"Name\": \"{name}\", \"Dimensions\": [1], \"Format/Datatype\": \"{layout}\"}}")
            }
        };
        names.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let nodes = layer.name.split(" + ").map(|node| format!("[ONNX Layer: {node}]")).collect::<Vec<_>>();
    format!(
        "{{\n  \"Name\": \"{}\",\n  \"LayerType\": \"{}\",\n  \"Inputs\": [{}],\n  \"Outputs\": [{}],\n  \"ParameterType\": \"{}\",\n  \"Weights\": {{\"Type\": \"{weights}\", \"Count\": {}}},\n  \"TacticName\": \"sm80_xmma_standin_{}\",\n  \"TacticValue\": \"0x{:016x}\",\n  \"StreamId\": 0,\n  \"Metadata\": \"{}\"\n}}",
        layer.name,
        layer.kind,
        tensors(&layer.inputs),
        tensors(&layer.outputs),
        layer.kind,
        layer.weights,
        weights.to_lowercase(),
        plan.build_seed,
        nodes.join("\\u001e"),
    )
}

/// The outputs: name, shape, values.
pub fn outputs(outputs: &[(String, Vec<usize>, Vec<f64>)]) -> String {
    let mut text = String::from("[");
    for (index, (name, shape, values)) in outputs.iter().enumerate() {
        let dims = shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
        let values: Vec<String> = values.iter().map(|value| g6(*value)).collect();
        let lead = if index == 0 { "\n  " } else { ", " };
        let _ = writeln!(
            text,
            "{lead}{{ \"name\" : \"{name}\"\n  , \"dimensions\" : \"{dims}\"\n  , \"values\" : [ {} ]\n  }}",
            values.join(", ")
        );
    }
    text.push_str("]\n");
    text
}
