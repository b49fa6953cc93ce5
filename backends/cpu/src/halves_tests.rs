//! Models of halves run by the kernels for f32: their edges are converted in loops.

use super::{lower::lower, program::StepKind};
use planforge_graph::ir::{ElementType, Tensor};
use planforge_import::testing::{TestModel, int, ints, numbers};
use planforge_passes::{Target, pipeline};

/// A tensor of fp16 ones: what it holds does not matter here.
fn ones(shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let bytes: Vec<u8> = (0..count).flat_map(|_| 0x3c00u16.to_le_bytes()).collect();
    Tensor::new(ElementType::F16, shape.to_vec(), bytes.into()).expect("two bytes each")
}

#[test]
fn a_network_of_halves_has_no_reference_steps() {
    let model = TestModel::new(17)
        .input_of("x", ElementType::F16, &[1, 8, 6, 6])
        .constant("w", &ones(&[16, 8, 3, 3]))
        .constant("b", &ones(&[16]))
        .constant("m", &ones(&[16, 10]))
        .node("Conv", &["x", "w", "b"], "c", vec![ints("pads", &[1; 4])])
        .node("Relu", &["c"], "r", vec![])
        .node("GlobalAveragePool", &["r"], "g", vec![])
        .node("Flatten", &["g"], "f", vec![])
        .node("MatMul", &["f", "m"], "y", vec![])
        .output("y");
    let wide = TestModel::new(17)
        .input("x", &[1, 8, 6, 6])
        .floats("w", &[16, 8, 3, 3], &numbers(16 * 72))
        .constant("m", &ones(&[16, 10]))
        .node("Conv", &["x", "w"], "c", vec![ints("pads", &[1; 4])])
        .node("GlobalAveragePool", &["c"], "g", vec![])
        .node("Flatten", &["g"], "f", vec![])
        .node("Cast", &["m"], "n", vec![int("to", 1)])
        .node("MatMul", &["f", "n"], "y", vec![])
        .output("y");
    for (name, model) in [("typed", model), ("stored", wide)] {
        let graph = pipeline(model.import(), Target::default()).expect("the passes keep the graph").graph;
        let draft = lower(&graph).expect("every node has a step");
        let is_reference = |kind: &&StepKind| matches!(kind, StepKind::Reference { .. });
        let references: Vec<&StepKind> = draft.steps.iter().map(|step| &step.step.kind).filter(is_reference).collect();
        assert!(references.is_empty(), "{name}: {references:?}");
    }
}
