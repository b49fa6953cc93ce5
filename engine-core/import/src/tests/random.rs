//! Draws of random numbers: taken where nothing depends on them, refused where anything does.

use super::*;
use crate::{Bounds, Imported, import_open};
use planforge_graph::ir::ElementType;

/// `y = x + draw(x) * x * scale`.
fn noisy(scale: f32) -> TestModel {
    TestModel::new(17)
        .input("x", &[2, 3])
        .floats("scale", &[], &[scale])
        .node("RandomNormalLike", &["x"], "draw", vec![float("seed", 3.0)])
        .node("Mul", &["draw", "x"], "spread", vec![])
        .node("Mul", &["scale", "spread"], "noise", vec![])
        .node("Add", &["x", "noise"], "y", vec![])
        .output("y")
}

fn wide(values: Vec<f32>) -> Vec<f64> {
    values.into_iter().map(f64::from).collect()
}

fn is_refused(model: &TestModel, of: &str) {
    let error = refused(model).to_string();
    assert!(error.contains(of) && error.contains("random numbers"), "{error}");
}

#[test]
fn noise_without_weight_is_none() {
    let y = run(&noisy(0.0), &[2, 3], numbers(6));
    assert_eq!((y.shape(), y.to_f64s()), (&[2, 3][..], wide(numbers(6))));
}

#[test]
fn noise_of_a_shape_without_weight_is_none() {
    let mut model = noisy(0.0);
    let draw = &mut model.graph().node[0];
    draw.op_type = "RandomNormal".into();
    draw.input.clear();
    draw.attribute = vec![ints("shape", &[2, 3])];
    assert_eq!(run(&model, &[2, 3], numbers(6)).to_f64s(), wide(numbers(6)));
}

#[test]
fn a_draw_without_spread_is_its_mean() {
    let model = TestModel::new(17)
        .input("x", &[2])
        .node("RandomNormalLike", &["x"], "draw", vec![float("scale", 0.0), float("mean", 2.5)])
        .node("Add", &["x", "draw"], "y", vec![])
        .output("y");
    assert_eq!(run(&model, &[2], vec![1.0, -1.0]).to_f64s(), [3.5, 1.5]);
}

#[test]
fn what_does_not_end_in_nothing_is_refused() {
    is_refused(&noisy(1e-30), "make draw");
    let mut early = noisy(0.0).node("Relu", &["spread"], "read", vec![]).output("read");
    is_refused(&early, "make draw");
    early.graph().node.pop();
    early.graph().output.pop();
    is_refused(&early.output("spread"), "make draw");
    let mut given = noisy(0.0).input("weight", &[]);
    given.graph().node[2].input[0] = "weight".into();
    is_refused(&given, "make draw");
    let model = noisy(1.0);
    assert_eq!(BackendError::from(refused(&model)).reason, Some(Reason::Unsupported), "another compiler may take it");
}

/// [`noisy`] of the rows of x of which the first element is positive.
fn noisy_rows(scale: f32) -> TestModel {
    let mut model = noisy(scale);
    model = model
        .longs("zero", &[0])
        .longs("one", &[1])
        .floats("none", &[], &[0.0])
        .longs("minus", &[-1])
        .node("Slice", &["x", "zero", "one", "one"], "heads", vec![])
        .node("Greater", &["heads", "none"], "is", vec![])
        .node("NonZero", &["is"], "where", vec![])
        .node("Gather", &["where", "zero"], "lines", vec![int("axis", 0)])
        .node("Reshape", &["lines", "minus"], "flat", vec![])
        .node("Gather", &["x", "flat"], "kept", vec![int("axis", 0)]);
    for node in &mut model.graph().node[..4] {
        for name in node.input.iter_mut().filter(|name| *name == "x") {
            *name = "kept".into();
        }
    }
    model
}

#[test]
fn behind_a_graph_it_is_the_same() {
    let open = |model: &TestModel| import_open(&model.model(), None, false, &Bounds::new());
    let Imported { graph, fragment, .. } = open(&noisy_rows(0.0)).expect("nothing depends on the draw");
    assert!(fragment.is_some());
    let x = Tensor::from_vec(vec![2, 3], vec![-1f32, 5.0, 6.0, 1.0, 2.0, 3.0]).expect("values fill the shape");
    let outputs = interpreter::execute(&graph, &BTreeMap::from([("x".to_owned(), x)])).expect("it runs");
    assert_eq!((outputs["y"].shape(), outputs["y"].element()), (&[1, 3][..], ElementType::F32));
    assert_eq!(outputs["y"].to_f64s(), [1.0, 2.0, 3.0]);
    let error = open(&noisy_rows(0.5)).expect_err("the outputs depend on the draw").to_string();
    assert!(error.contains("make draw") && error.contains("random numbers"), "{error}");
}
