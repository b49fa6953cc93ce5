//! What the fuzz targets and the tests that replay their corpora do with any bytes.

use crate::{
    backend::{Compiler, HostTensor, LoadOptions},
    identity::model::identify_open,
    import::import,
    ir::{Graph, Tensor},
    native::{self, NativeCompiler, PlanError},
    ops, passes,
    shape::check_graph,
};
use planforge_onnx::Model;
use std::{collections::BTreeMap, fs, path::Path};

/// Graphs larger than this are imported and optimised, but not run.
const MAX_RUN_ELEMENTS: usize = 1 << 14;

/// Largest engine that is run.
const MAX_ENGINE_BYTES: u64 = 64 << 20;

fn small(graph: &Graph) -> bool {
    let ids = (0..graph.values.len() as u32).map(crate::ir::ValueId);
    let counts = ids.map(|id| graph.static_shape(id).map_or(usize::MAX, |shape| shape.iter().product()));
    counts.fold(0usize, usize::saturating_add) <= MAX_RUN_ELEMENTS
}

fn zeros(element: crate::ir::ElementType, shape: &[usize]) -> HostTensor {
    let count: usize = shape.iter().product();
    HostTensor { element, shape: shape.to_vec(), bytes: vec![0; count * element.bytes()] }
}

/// Any bytes as a model: refused, or a graph that holds together, stays so through every pass, and runs with zeros to
/// an error or an answer. Panics where it should not.
pub fn model(bytes: &[u8]) {
    let Ok(model) = Model::from_bytes(bytes.to_vec().into()) else { return };
    identify_open(&model).expect("what was opened has an identity");
    let Ok(graph) = import(&model, None) else { return };
    graph.check().expect("an imported graph holds together");
    check_graph(&graph).expect("an imported graph has the types it declares");
    let inputs = graph.inputs.iter().filter_map(|&id| {
        let value = graph.value(id);
        let zeros = zeros(value.element, &graph.static_shape(id)?);
        Some((value.name.clone(), Tensor::try_from(zeros).ok()?))
    });
    let run = small(&graph);
    let inputs: BTreeMap<String, Tensor> = if run { inputs.collect() } else { BTreeMap::new() };
    let before = if run { ops::execute(&graph, &inputs).ok() } else { None };
    let optimized = passes::pipeline(graph, passes::Target::default()).expect("passes keep graphs whole").graph;
    if let Some(before) = before {
        let after = ops::execute(&optimized, &inputs).expect("what ran before the passes runs after them");
        assert!(before.keys().eq(after.keys()), "passes changed the outputs");
    }
}

/// Any bytes as a plan file, and as the manifest (up to the first zero byte) and the weights of a sealed one: refused,
/// or an engine that runs with zeros to an error or an answer. `scratch` is a folder of the caller's own.
pub fn plan(bytes: &[u8], scratch: &Path) {
    let path = scratch.join("engine.plan");
    if fs::write(&path, bytes).is_ok() {
        load(&path);
    }
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (manifest, weights) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    if native::seal(&path, manifest, weights).is_ok() {
        load(&path);
    }
}

/// What [`plan`] takes as the manifest and the weights of a plan that was really built.
pub fn plan_seed(path: &Path) -> Result<Vec<u8>, PlanError> {
    let (manifest, weights) = native::unseal(path)?;
    Ok([manifest.as_slice(), &[0], &weights].concat())
}

fn load(path: &Path) {
    let options = LoadOptions { threads: Some(1), ..LoadOptions::default() };
    let _ = native::inspect(path);
    let Ok(mut meter) = NativeCompiler.load(path, &options) else { return };
    if meter.memory_bytes() > MAX_ENGINE_BYTES {
        return;
    }
    let inputs = meter.inputs().into_iter().map(|port| {
        let shape: Vec<usize> = port.shape.iter().map(|size| size.unwrap_or(1) as usize).collect();
        (port.name, zeros(port.element, &shape))
    });
    if meter.bind(&inputs.collect()).is_ok() {
        let _ = meter.run();
    }
}
