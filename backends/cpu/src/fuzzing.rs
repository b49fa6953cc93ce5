//! What the fuzz targets and the tests that replay their corpora do with any bytes.

use crate::{CpuCompiler, PlanError, Sections};
use planforge_backend::{Compiler, LoadOptions};
use planforge_graph::{
    infer::check_graph,
    interpreter,
    ir::{Graph, Tensor},
};
use planforge_identity::model::identify_open;
use planforge_import::{Imported, import_open};
use planforge_onnx::Model;
use planforge_types::{DimRange, HostTensor};
use std::{collections::BTreeMap, fs, path::Path};

/// Graphs larger than this are imported and optimised, but not run.
const MAX_RUN_ELEMENTS: usize = 1 << 14;

/// Largest engine that is run.
const MAX_ENGINE_BYTES: u64 = 64 << 20;

fn small(graph: &Graph) -> bool {
    let ids = (0..graph.values.len() as u32).map(planforge_graph::ir::ValueId);
    let counts = ids.map(|id| graph.static_shape(id).map_or(usize::MAX, |shape| shape.iter().product()));
    counts.fold(0usize, usize::saturating_add) <= MAX_RUN_ELEMENTS
}

fn zeros(element: planforge_graph::ir::ElementType, shape: &[usize]) -> HostTensor {
    let count: usize = shape.iter().product();
    HostTensor { element, shape: shape.to_vec(), bytes: vec![0; count * element.bytes()] }
}

/// Any bytes as a model: refused, or a graph that holds together, stays so through every pass, and runs with zeros to
/// an error or an answer. Panics where it should not.
pub fn model(bytes: &[u8]) {
    let Ok(model) = Model::from_bytes(bytes.to_vec().into()) else { return };
    identify_open(&model).expect("what was opened has an identity");
    let Ok(Imported { graph, .. }) = import_open(&model, None, false, &BTreeMap::new()) else { return };
    graph.check().expect("an imported graph holds together");
    check_graph(&graph).expect("an imported graph has the types it declares");
    let inputs = graph.inputs.iter().filter_map(|&id| {
        let value = graph.value(id);
        let zeros = zeros(value.element, &graph.static_shape(id)?);
        Some((value.name.clone(), Tensor::try_from(zeros).ok()?))
    });
    // What follows a graph may be large whatever the graph is.
    let run = small(&graph) && graph.tail.is_none();
    let inputs: BTreeMap<String, Tensor> = if run { inputs.collect() } else { BTreeMap::new() };
    let before = if run { interpreter::execute(&graph, &inputs).ok() } else { None };
    let optimized = planforge_passes::pipeline(graph, crate::TARGET).expect("passes keep graphs whole").graph;
    if let Some(before) = before {
        let after = interpreter::execute(&optimized, &inputs).expect("what ran before the passes runs after them");
        assert!(before.keys().eq(after.keys()), "passes changed the outputs");
    }
}

/// Any bytes as a plan file, and as the sections of a sealed one: refused, or an engine that runs with zeros, at its
/// usual, smallest and largest shapes, to an error or an answer. `scratch` is a folder of the caller's own.
pub fn plan(bytes: &[u8], scratch: &Path) {
    let path = scratch.join("engine.plan");
    if fs::write(&path, bytes).is_ok() {
        load(&path);
    }
    if crate::seal(&path, &sections(bytes)).is_ok() {
        load(&path);
    }
}

/// Reads the manifest up to the first zero byte and the weights behind it. Where the manifest speaks of varying shapes,
/// a model lies between: the lengths of its message and of its weights (32 bits each, little-endian), then both.
fn sections(bytes: &[u8]) -> Sections<'_> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let (manifest, mut weights) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    let mut model = None;
    if HOLD_MODELS.iter().any(|holds| manifest.windows(holds.len()).any(|part| part == *holds))
        && let Some((lengths, rest)) = weights.split_first_chunk::<8>()
    {
        let length = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| lengths[at + byte])) as usize;
        let (message, rest) = rest.split_at(length(0).min(rest.len()));
        let (data, rest) = rest.split_at(length(4).min(rest.len()));
        (model, weights) = (Some((message, data)), rest);
    }
    Sections { manifest, weights, model }
}

/// What only the manifests of plans hold that have a model, or a part of one.
const HOLD_MODELS: [&[u8]; 2] = [b"\"dynamic\":", b"\"tail\":"];

/// What [`plan`] takes as the sections of a plan that was really built.
pub fn plan_seed(path: &Path) -> Result<Vec<u8>, PlanError> {
    crate::unseal(path, |sections| {
        let mut seed = [sections.manifest, &[0]].concat();
        if let Some((message, weights)) = sections.model {
            for part in [message, weights] {
                seed.extend((part.len() as u32).to_le_bytes());
            }
            seed.extend([message, weights].concat());
        }
        seed.extend(sections.weights);
        seed
    })
}

fn load(path: &Path) {
    let options = LoadOptions { threads: Some(1), ..LoadOptions::default() };
    let inspected = crate::inspect(path).ok();
    let is_followed = inspected.as_ref().is_some_and(|plan| plan.tail.is_some());
    let takes = inspected.and_then(|plan| plan.profiles.into_iter().next());
    let Ok(mut meter) = CpuCompiler.load(path, &options) else { return };
    let picks: [fn(&DimRange) -> u64; 3] = [|range| range.opt, |range| range.min, |range| range.max];
    for pick in picks {
        let shapes = takes.iter().flat_map(|profile| &profile.inputs).map(|input| {
            let shape: Vec<usize> = input.dims.iter().map(|dim| pick(&dim.range) as usize).collect();
            let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
            (input, shape, count.is_some_and(|count| count <= MAX_RUN_ELEMENTS))
        });
        let shapes: Vec<_> = shapes.collect();
        if is_followed || meter.memory_bytes() > MAX_ENGINE_BYTES || !shapes.iter().all(|(_, _, small)| *small) {
            return;
        }
        let inputs = shapes.iter().map(|(input, shape, _)| (input.name.clone(), zeros(input.element, shape)));
        if meter.bind(&inputs.collect()).is_ok() {
            let _ = meter.run();
        }
    }
}
