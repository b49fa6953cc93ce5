//! What both halves of the native compiler do before they lower: model file to graph, the passes, and what a plan says
//! of both.

use crate::Target;
use planforge_graph::ir::{Dim, Graph, ValueId};
pub use planforge_import::{Bounds, Imported, Note};
use planforge_onnx::Model;
use planforge_plan::{GraphSummary, PassSummary};
use planforge_types::{BackendError, BuildSpec, OptimizationProfile, Port, failure::chain};
use std::path::Path;

/// A graph after all passes, and what plans say of it.
#[derive(Debug)]
pub struct Optimized {
    pub graph: Graph,
    pub summary: GraphSummary,
    pub passes: Vec<PassSummary>,
}

/// Reads a model's file.
pub fn open(path: &Path) -> Result<Model, BackendError> {
    Model::open(path).map_err(|error| BackendError::model(chain(&error)).with_hint(error.hint()))
}

/// The graph of `model`, at the usual shapes of `profile`.
pub fn import(model: &Model, profile: Option<&OptimizationProfile>) -> Result<Graph, BackendError> {
    Ok(planforge_import::import(model, profile)?)
}

/// As [`import`], and takes models of which only data decides some sizes: what follows from them is the graph's tail.
pub fn import_open(
    model: &Model,
    profile: Option<&OptimizationProfile>,
    strict: bool,
    bounds: &Bounds,
) -> Result<Imported, BackendError> {
    Ok(planforge_import::import_open(model, profile, strict, bounds)?)
}

/// The same as [`import`] for the first profile of a spec, with what its report says of it.
pub fn import_first(model: &Model, spec: &BuildSpec) -> Result<(Graph, Vec<Note>), BackendError> {
    let Imported { graph, notes, .. } = planforge_import::import_noted(model, spec.profiles.first(), spec.strict)?;
    Ok((graph, notes))
}

/// Runs all passes on a graph as it was imported.
pub fn optimize(imported: Graph, target: Target) -> Result<Optimized, BackendError> {
    let imported_nodes = imported.nodes.len() as u64;
    let optimized = crate::pipeline(imported, target).map_err(|error| {
        BackendError::model(error.to_string())
            .with_hint("this is a fault of the compiler: report it with the model's structure")
    })?;
    let passes = optimized.passes.into_iter().map(|record| PassSummary {
        pass: record.pass.to_owned(),
        nodes_before: record.nodes_before as u64,
        nodes_after: record.nodes_after as u64,
        changes: record.changes,
    });
    let graph = optimized.graph;
    let summary = GraphSummary {
        name: graph.name.clone(),
        imported_nodes,
        nodes: graph.nodes.len() as u64,
        parameters: graph.constants.values().map(|tensor| tensor.len() as u64).sum(),
        constant_bytes: graph.constant_bytes(),
    };
    Ok(Optimized { graph, summary, passes: passes.collect() })
}

/// The inputs of a graph; a dimension without size depends on what is bound.
pub fn inputs(graph: &Graph) -> Vec<Port> {
    graph.inputs.iter().map(|&id| port(graph, &graph.value(id).name, id)).collect()
}

/// The outputs of a graph, under the model's names for them; of its tail, as the model declares them.
pub fn outputs(graph: &Graph) -> Vec<Port> {
    let own = graph.outputs.iter().map(|output| port(graph, &output.name, output.value));
    let Some(tail) = &graph.tail else { return own.collect() };
    let behind = tail.outputs.iter().filter_map(|output| {
        let (element, shape) = output.declared.clone()?;
        Some(Port { name: output.name.clone(), element, shape })
    });
    let all: Vec<Port> = own.chain(behind).collect();
    tail.order.iter().filter_map(|name| all.iter().find(|port| port.name == *name).cloned()).collect()
}

fn port(graph: &Graph, name: &str, id: ValueId) -> Port {
    let value = graph.value(id);
    let size = |dim: &Dim| match dim {
        Dim::Static(size) => Some(*size),
        Dim::Symbol(_) => None,
    };
    Port { name: name.to_owned(), element: value.element, shape: value.shape.iter().map(size).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_import::testing::{TestModel, dim, value_info};
    use planforge_onnx::proto::{tensor_proto::DataType, tensor_shape_proto::dimension};

    #[test]
    fn a_model_with_open_sizes_is_told_how_to_give_them() {
        let mut open = TestModel::new(17).node("Relu", &["x"], "y", vec![]).output("y");
        let rows = dim(dimension::Value::DimParam("rows".into()));
        open.graph().input.push(value_info("x", DataType::Float as i32, vec![rows]));
        let error = import(&open.model(), None).unwrap_err();
        assert!(error.hint.contains("--shapes x:1;"), "{error}: {}", error.hint);

        let unknown = TestModel::new(17).input("x", &[2]).node("Rellu", &["x"], "y", vec![]).output("y");
        let error = import(&unknown.model(), None).unwrap_err();
        assert!(error.message.contains("Rellu") && error.hint.contains("planforge ops"), "{error}: {}", error.hint);
    }

    #[test]
    fn a_plan_tells_what_the_passes_left() {
        let model = TestModel::new(17)
            .input("x", &[2, 3])
            .node("Identity", &["x"], "same", vec![])
            .node("Relu", &["same"], "y", vec![])
            .output("y");
        let imported = import(&model.model(), None).unwrap();
        let (inputs, outputs) = (inputs(&imported), outputs(&imported));
        assert_eq!((inputs[0].name.as_str(), &inputs[0].shape[..]), ("x", &[Some(2), Some(3)][..]));
        assert_eq!(outputs[0].name, "y");
        let optimized = optimize(imported, Target::default()).unwrap();
        assert_eq!((optimized.summary.imported_nodes, optimized.summary.nodes), (2, 1));
        assert!(optimized.passes.iter().any(|pass| !pass.changes.is_empty()));
    }
}
