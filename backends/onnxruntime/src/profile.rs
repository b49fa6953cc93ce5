//! The library's profile of a session, a JSON array of events, as times per node.

use planforge_report::LayerTime;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::BufReader,
    path::Path,
};

/// Largest profile that is read: a hundred runs of a ten-thousand-node graph.
const PROFILE_MAX_BYTES: u64 = 2 << 30;

/// How the event of a node's own work is called: the node's name and this.
const KERNEL_SUFFIX: &str = "_kernel_time";

/// What can be wrong with a profile.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    #[error("cannot read the profile {path}: {reason}")]
    Read { path: String, reason: String },
    #[error("the profile {path} has no times of nodes")]
    Empty { path: String },
}

#[derive(Debug, Default, Deserialize)]
struct Event {
    #[serde(default)]
    cat: String,
    #[serde(default)]
    name: String,
    /// Microseconds.
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Arguments,
}

/// Numbers come as texts.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Arguments {
    op_name: String,
    provider: String,
    node_index: String,
    activation_size: String,
    parameter_size: String,
    output_size: String,
    /// One object per tensor: its shape by its type. Weights that the library packed for itself are missing.
    input_type_shape: Vec<BTreeMap<String, Vec<i64>>>,
    output_type_shape: Vec<BTreeMap<String, Vec<i64>>>,
}

/// Medians over all runs but the first `skip`, in the order the nodes ran.
pub(crate) fn read(path: &Path, skip: usize) -> Result<Vec<LayerTime>, ProfileError> {
    let name = || path.display().to_string();
    let failed = |reason: String| ProfileError::Read { path: name(), reason };
    let bytes = fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if bytes > PROFILE_MAX_BYTES {
        return Err(failed(format!("{bytes} bytes are too many")));
    }
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let events: Vec<Event> =
        serde_json::from_reader(BufReader::new(file)).map_err(|error| failed(error.to_string()))?;
    let layers = layers(events, skip);
    if layers.is_empty() { Err(ProfileError::Empty { path: name() }) } else { Ok(layers) }
}

fn layers(events: Vec<Event>, skip: usize) -> Vec<LayerTime> {
    let mut nodes: Vec<(Event, Vec<f64>)> = Vec::new();
    let mut places = BTreeMap::new();
    for event in events {
        if event.cat != "Node" || !event.name.ends_with(KERNEL_SUFFIX) {
            continue;
        }
        let key = (event.args.node_index.clone(), event.name.clone());
        let place = *places.entry(key).or_insert(nodes.len());
        let dur_ms = event.dur / 1e3;
        match nodes.get_mut(place) {
            Some((_, times)) => times.push(dur_ms),
            None => nodes.push((event, vec![dur_ms])),
        }
    }
    nodes.into_iter().map(|(event, times)| layer(&event, &times[skip.min(times.len() - 1)..])).collect()
}

fn layer(event: &Event, times: &[f64]) -> LayerTime {
    let mut sorted = times.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let args = &event.args;
    let bytes = |text: &str| text.parse::<u64>().unwrap_or(0);
    LayerTime {
        name: event.name.trim_end_matches(KERNEL_SUFFIX).to_owned(),
        kind: args.op_name.clone(),
        tactic: args.provider.clone(),
        median_ms: sorted.get(sorted.len() / 2).copied().unwrap_or(0.0),
        flops: flops(args).unwrap_or(0),
        bytes: bytes(&args.activation_size) + bytes(&args.parameter_size) + bytes(&args.output_size),
        precision: precision(args),
        ..LayerTime::default()
    }
}

/// Type of the first output, as specs call it.
fn precision(args: &Arguments) -> Option<String> {
    let known = [("float", "fp32"), ("float16", "fp16"), ("bfloat16", "bf16"), ("int8", "int8"), ("uint8", "int8")];
    let element = args.output_type_shape.first()?.keys().next()?;
    known.iter().find(|(theirs, _)| theirs == element).map(|(_, ours)| (*ours).to_owned())
}

/// Multiplications and additions of the operators that are counted by their shapes.
fn flops(args: &Arguments) -> Option<u64> {
    let shape = |shapes: &[BTreeMap<String, Vec<i64>>], index: usize| shapes.get(index)?.values().next().cloned();
    let product =
        |dims: &[i64]| dims.iter().try_fold(1u64, |product, size| product.checked_mul(u64::try_from(*size).ok()?));
    let output = product(&shape(&args.output_type_shape, 0)?)?;
    let inner = match args.op_name.as_str() {
        "Conv" | "FusedConv" => product(shape(&args.input_type_shape, 1)?.get(1..)?)?,
        "MatMul" | "FusedMatMul" => u64::try_from(*shape(&args.input_type_shape, 0)?.last()?).ok()?,
        "Gemm" | "FusedGemm" => {
            let rows = u64::try_from(*shape(&args.output_type_shape, 0)?.first()?).ok()?;
            product(&shape(&args.input_type_shape, 0)?)?.checked_div(rows)?
        }
        _ => return None,
    };
    output.checked_mul(inner)?.checked_mul(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = r#"[
        {"cat": "Session", "name": "model_loading", "dur": 900, "args": {}},
        {"cat": "Node", "name": "conv1_kernel_time", "dur": 5000, "args": {"op_name": "Conv", "provider": "P", "node_index": "2",
            "input_type_shape": [{"float": [1, 3, 8, 8]}, {"float": [16, 3, 3, 3]}], "output_type_shape": [{"float": [1, 16, 8, 8]}],
            "activation_size": "768", "parameter_size": "1728", "output_size": "4096", "thread_scheduling_stats": {"x": 1}}},
        {"cat": "Node", "name": "fc_kernel_time", "dur": 7000, "args": {"op_name": "FusedGemm", "provider": "P", "node_index": "5",
            "input_type_shape": [{"float": [4, 512]}, {"float": [10]}], "output_type_shape": [{"float": [4, 10]}]}},
        {"cat": "Node", "name": "conv1_fence_before", "dur": 1, "args": {}},
        {"cat": "Node", "name": "conv1_kernel_time", "dur": 1000, "args": {"node_index": "2"}},
        {"cat": "Node", "name": "fc_kernel_time", "dur": 2000, "args": {"node_index": "5"}},
        {"cat": "Node", "name": "conv1_kernel_time", "dur": 1200, "args": {"node_index": "2"}},
        {"cat": "Node", "name": "conv1_kernel_time", "dur": 1100, "args": {"node_index": "2"}}
    ]"#;

    #[test]
    fn medians_leave_the_first_run_out_and_work_is_counted() {
        let events: Vec<Event> = serde_json::from_str(PROFILE).unwrap();
        let layers = layers(events, 1);
        let told: Vec<_> = layers.iter().map(|l| (&*l.name, &*l.kind, l.median_ms, l.flops, l.bytes)).collect();
        let conv = 2 * 16 * 64 * 27;
        assert_eq!(told, [("conv1", "Conv", 1.1, conv, 6592), ("fc", "FusedGemm", 2.0, 2 * 4 * 10 * 512, 0)]);
    }

    #[test]
    fn a_profile_without_nodes_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("profile.json");
        fs::write(&file, "[]").unwrap();
        assert!(matches!(read(&file, 1), Err(ProfileError::Empty { .. })));
        fs::write(&file, "[{").unwrap();
        assert!(matches!(read(&file, 1), Err(ProfileError::Read { .. })));
    }
}
