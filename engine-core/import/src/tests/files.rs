//! Files that are fine, though they say less than they might, or something else; and what is proposed for open sizes.

use super::{refused, run};
use crate::{
    Imported, Note, Problem, import, import_noted,
    testing::{TestModel, dim, int, ints, numbers, value_info},
};
use planforge_graph::ir::Tensor;
use planforge_onnx::proto::{
    AttributeProto, GraphProto, NodeProto, OperatorSetIdProto, attribute_proto::AttributeType,
    tensor_shape_proto::dimension::Value,
};
use planforge_types::{DimRange, OptimizationProfile};

const FLOAT: i32 = 1;
const INT64: i32 = 7;

fn named(name: &str) -> Value {
    Value::DimParam(name.into())
}

fn size(size: i64) -> Value {
    Value::DimValue(size)
}

fn with_input(mut model: TestModel, name: &str, element: i32, dims: Vec<Value>) -> TestModel {
    model.graph().input.push(value_info(name, element, dims.into_iter().map(dim).collect()));
    model
}

/// A profile in the words of `--shapes`, sizes alone.
fn profile(text: &str) -> OptimizationProfile {
    let range = |size: &str| {
        let size = size.parse().expect("a size");
        DimRange { min: size, opt: size, max: size }
    };
    let inputs = text.trim_matches('\'').split(',').map(|part| {
        let (name, shape) = part.rsplit_once(':').expect("NAME:SHAPE");
        (name.to_owned(), shape.split('x').map(range).collect())
    });
    OptimizationProfile { inputs: inputs.collect() }
}

/// What is proposed for a model; it is taken.
fn proposed(model: &TestModel) -> String {
    let error = refused(model);
    let proposal = error.proposal.clone().unwrap_or_else(|| panic!("nothing is proposed: {error}"));
    assert!(error.hint().contains(&format!("--shapes {proposal}")), "{}", error.hint());
    import(&model.model(), Some(&profile(&proposal))).unwrap_or_else(|error| panic!("{proposal}: {error}"));
    proposal
}

#[test]
fn sizes_that_are_no_sizes_are_open() {
    for unknown in [size(-1), named(""), named("?"), named(" "), named("None")] {
        let model = TestModel::new(17).node("Relu", &["x"], "y", vec![]).output("y");
        let model = with_input(model, "x", FLOAT, vec![unknown.clone(), size(3)]);
        assert!(matches!(&refused(&model).problems[..], [Problem::Bind(_)]));
        let graph =
            import(&model.model(), Some(&profile("x:5x3"))).unwrap_or_else(|error| panic!("{unknown:?}: {error}"));
        assert_eq!(graph.static_shape(graph.inputs[0]), Some(vec![5, 3]));
        assert_eq!(proposed(&model), "x:1x3");
    }
    // Two of no name are not of one size.
    let model = TestModel::new(17).node("MatMul", &["a", "b"], "y", vec![]).output("y");
    let model = with_input(model, "a", FLOAT, vec![named("?"), size(4)]);
    let model = with_input(model, "b", FLOAT, vec![size(4), named("?")]);
    let graph = import(&model.model(), Some(&profile("a:2x4,b:4x7"))).expect("they differ");
    assert_eq!(graph.static_shape(graph.outputs[0].value), Some(vec![2, 7]));
    // Two of one name are.
    let model = TestModel::new(17).node("MatMul", &["a", "b"], "y", vec![]).output("y");
    let model = with_input(model, "a", FLOAT, vec![named("n"), size(4)]);
    let model = with_input(model, "b", FLOAT, vec![size(4), named("n")]);
    assert!(import(&model.model(), Some(&profile("a:2x4,b:4x7"))).is_err());
    assert_eq!(proposed(&model), "a:1x4");
    assert!(import(&model.model(), Some(&profile("a:2x4"))).is_ok(), "b follows by the name");
}

#[test]
fn a_declared_shape_that_is_wrong_is_told_and_refused_where_that_is_asked_for() {
    let mut model = TestModel::new(17).input("x", &[2, 3]).node("Relu", &["x"], "y", vec![]);
    model.graph().output.push(value_info("y", FLOAT, vec![dim(size(2)), dim(size(4))]));
    let Imported { graph, notes, .. } = import_noted(&model.model(), None, false).expect("the nodes are right");
    assert_eq!(graph.static_shape(graph.outputs[0].value), Some(vec![2, 3]));
    let [note @ Note::OutputDiffers { name, .. }] = &notes[..] else { panic!("{notes:?}") };
    assert_eq!((name.as_str(), note.is_warning(), note.code()), ("y", true, "declared-output"));
    let error = import_noted(&model.model(), None, true).expect_err("it contradicts itself");
    assert!(matches!(&error.problems[..], [Problem::OutputDiffers { .. }]), "{error}");
    assert!(error.hint().contains("--strict"), "{}", error.hint());
}

fn graph_attribute(name: &str, g: GraphProto) -> AttributeProto {
    let r#type = AttributeType::Graph as i32;
    AttributeProto { name: name.into(), g: Some(Box::new(g)), r#type, ..AttributeProto::default() }
}

fn body(op_type: &str, inputs: &[&str], output: &str) -> GraphProto {
    let node = NodeProto {
        op_type: op_type.into(),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.into()],
        ..NodeProto::default()
    };
    let mut body = TestModel::new(17).output(output).graph().clone();
    body.node.push(node);
    body
}

#[test]
fn a_branch_that_is_not_taken_may_hold_anything() {
    let branches = |taken: &str, other: GraphProto| {
        let (then, otherwise) = (body(taken, &["x"], "a"), other);
        vec![graph_attribute("then_branch", then), graph_attribute("else_branch", otherwise)]
    };
    let model = |attributes| {
        TestModel::new(17)
            .input("x", &[2, 3])
            .constant("yes", &Tensor::from_bools(vec![], vec![1]).expect("a scalar"))
            .node("If", &["yes"], "y", attributes)
            .output("y")
    };
    for other in [body("Quux", &["x"], "b"), body("MatMul", &["x", "x"], "b"), body("Relu", &["nothing"], "b")] {
        let y = run(&model(branches("Neg", other)), &[2, 3], numbers(6));
        assert_eq!(y.to_f64s()[0], -f64::from(numbers(6)[0]));
    }
    // One that is taken is looked at, and named once.
    let problems = refused(&model(branches("Quux", body("Relu", &["x"], "b")))).problems;
    let [Problem::Operator { op_type, opset, nodes, .. }] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!((op_type.as_str(), *opset, nodes.len()), ("Quux", Some(17), 1));
    // Where nobody knows which is taken, both are.
    let mut open = TestModel::new(17)
        .input("x", &[2, 3])
        .node("If", &["c"], "y", branches("Neg", body("Quux", &["x"], "b")))
        .output("y");
    open.graph().input.push(value_info("c", 9, vec![]));
    assert!(matches!(&refused(&open).problems[..], [Problem::Operator { .. }]));
}

#[test]
fn no_opset_is_needed_where_nothing_is_of_the_standard_operators() {
    let mut model = TestModel::new(17).input("x", &[2, 3]).node("Gelu", &["x"], "y", vec![]).output("y");
    model.graph().node[0].domain = "com.microsoft".into();
    model.proto.opset_import = vec![OperatorSetIdProto { domain: "com.microsoft".into(), version: 1 }];
    assert!(import(&model.model(), None).is_ok());
    model.graph().node[0].op_type = "Relu".into();
    model.graph().node[0].domain.clear();
    assert_eq!(refused(&model).problems, [Problem::NoOpset]);
}

#[test]
fn sizes_that_weights_say_are_taken_and_told() {
    let model = TestModel::new(17)
        .floats("w", &[24, 5], &numbers(120))
        .node("Relu", &["x"], "positive", vec![])
        .node("MatMul", &["positive", "w"], "y", vec![])
        .output("y");
    let model = with_input(model, "x", FLOAT, vec![size(2), named("features")]);
    let Imported { graph, notes, .. } = import_noted(&model.model(), None, false).expect("24 is all that fits");
    assert_eq!(graph.static_shape(graph.inputs[0]), Some(vec![2, 24]));
    assert_eq!(notes, [Note::Solved { input: "x".into(), axis: 1, size: 24 }]);
    // What is given counts, even where it is wrong; then it is said so, and not that the model be changed.
    let error = import(&model.model(), Some(&profile("x:2x25"))).expect_err("it does not fit");
    assert_eq!(error.proposal.as_deref(), Some("x:2x24"));
    assert!(error.hint().contains("--shapes x:2x24"), "{}", error.hint());
}

#[test]
fn what_is_proposed_for_a_network_on_images_is_found_through_its_layers() {
    let model = TestModel::new(17)
        .floats("w", &[8, 4, 3, 3], &numbers(288))
        .floats("b", &[8], &numbers(8))
        .node("Transpose", &["image"], "first", vec![ints("perm", &[0, 3, 1, 2])])
        .node("Conv", &["first", "w", "b"], "c", vec![ints("pads", &[1, 1, 1, 1])])
        .node("GlobalAveragePool", &["c"], "y", vec![])
        .output("y");
    let open = || named("?");
    let model = with_input(model, "image", FLOAT, vec![open(), named("height"), named("width"), open()]);
    assert_eq!(proposed(&model), "image:1x224x224x4");
}

#[test]
fn sizes_are_tried_until_the_model_takes_them() {
    // Pooled to 1 x 16 x 16 for 32 x 32 alone, as its classifier wants.
    let model = TestModel::new(17)
        .longs("to", &[-1, 256])
        .floats("w", &[256, 10], &numbers(2560))
        .node("MaxPool", &["x"], "small", vec![ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])])
        .node("Reshape", &["small", "to"], "flat", vec![])
        .node("Gemm", &["flat", "w"], "logits", vec![])
        .node("Reshape", &["logits", "ten"], "y", vec![])
        .longs("ten", &[1, 10])
        .output("y");
    let model = with_input(model, "x", FLOAT, vec![size(-1), size(1), size(-1), size(-1)]);
    assert_eq!(proposed(&model), "x:1x1x32x32");
}

#[test]
fn names_carry_over_from_input_to_input() {
    let token = |model, name| with_input(model, name, INT64, vec![named("batch"), named("sequence")]);
    let model = TestModel::new(17)
        .floats("table", &[50, 8], &numbers(400))
        .node("Gather", &["table", "ids"], "a", vec![int("axis", 0)])
        .node("Gather", &["table", "types"], "b", vec![int("axis", 0)])
        .node("Add", &["a", "b"], "sum", vec![])
        .node("Concat", &["sum", "past"], "y", vec![int("axis", 1)])
        .output("y");
    let model = token(token(model, "ids"), "types");
    let model = with_input(model, "past", FLOAT, vec![named("batch"), named("past + 1"), size(8)]);
    let model = with_input(model, "length", FLOAT, vec![named("past")]);
    let proposal = proposed(&model);
    assert_eq!(proposal, "ids:1x128,past:1x2x8,length:1");
}

#[test]
fn names_that_a_shell_would_change_are_quoted() {
    let model = TestModel::new(17).node("Relu", &["the x"], "y", vec![]).output("y");
    let model = with_input(model, "the x", FLOAT, vec![named("n")]);
    assert_eq!(proposed(&model), "'the x:1'");
    let model = TestModel::new(17).node("Relu", &["a,b"], "y", vec![]).output("y");
    let model = with_input(model, "a,b", FLOAT, vec![named("n")]);
    assert_eq!(refused(&model).proposal, None, "--shapes could not say it");
}

#[test]
fn numbers_in_a_file_bring_no_solver_to_fall() {
    let huge = i64::MAX;
    let model = TestModel::new(17)
        .node("Conv", &["x", "w"], "c", vec![int("group", huge)])
        .node("Flatten", &["x"], "f", vec![])
        .node("Transpose", &["x"], "t", vec![ints("perm", &[huge, -1])])
        .node("Unsqueeze", &["x", "axes"], "u", vec![])
        .node("Concat", &["x", "x"], "k", vec![int("axis", i64::MIN)])
        .node("Gather", &["x", "x"], "g", vec![int("axis", huge)])
        .longs("axes", &[huge, i64::MIN])
        .output("c");
    let mut model = with_input(model, "x", FLOAT, vec![named("18446744073709551615+1"), size(huge), size(huge)]);
    model.graph().input.push(value_info("w", FLOAT, vec![dim(size(1)), dim(size(huge))]));
    assert!(!refused(&model).hint().is_empty());
}
