//! Names that passes invent, in models that have them already.

use super::*;

/// Names of what the first node reads after a pass.
fn names_read(model: &TestModel, pass: Pass) -> Vec<String> {
    let before = model.import();
    let mut graph = before.clone();
    apply(&mut graph, "test", pass).expect("a pass keeps the invariants");
    assert_same_meaning(&before, &graph);
    graph.nodes[0].inputs.iter().flatten().map(|&id| graph.value(id).name.clone()).collect()
}

#[test]
fn an_invented_name_is_numbered_when_the_model_has_it() {
    let model = matmul_model().floats("b", &[1, 5], &numbers(5)).node("Add", &["m", "b"], "y", vec![]);
    assert_eq!(names_read(&model.clone().output("y"), bias::run), ["x", "w", "y/bias"]);
    let taken = names_read(&model.node("Relu", &["y"], "y/bias", vec![]).output("y/bias"), bias::run);
    assert!(taken[2].starts_with("y/bias/"), "{taken:?}");
}

#[test]
fn every_invented_name_of_a_pass_is_numbered() {
    let model = conv_model()
        .floats("ones", &[3], &[1.0; 3])
        .node("BatchNormalization", &["c", "ones", "ones", "ones", "ones"], "y", vec![])
        .node("Relu", &["y"], "y/weights", vec![])
        .node("Neg", &["y"], "y/bias", vec![])
        .output("y/weights")
        .output("y/bias");
    let taken = names_read(&model, batch_norm::run);
    assert!(taken[1].starts_with("y/weights/") && taken[2].starts_with("y/bias/"), "{taken:?}");
}
