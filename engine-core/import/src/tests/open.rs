//! Models of which only data decides some sizes: what follows runs behind the graph, with real sizes.

use crate::{
    Bounds, Imported, import, import_open,
    testing::{TestModel, dim, int, value_info},
};
use planforge_graph::{
    interpreter,
    ir::{ElementType, Tensor},
    reference::OpError,
};
use planforge_onnx::proto::{
    AttributeProto, GraphProto, NodeProto, attribute_proto::AttributeType, tensor_shape_proto::dimension,
};
use std::collections::BTreeMap;

fn run_within(
    model: &TestModel,
    inputs: &[(&str, Tensor)],
    bounds: &Bounds,
) -> Result<BTreeMap<String, Tensor>, OpError> {
    let Imported { graph, .. } = import_open(&model.model(), None, false, bounds).expect("an open model is imported");
    let inputs = inputs.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect();
    interpreter::execute(&graph, &inputs)
}

fn run(model: &TestModel, inputs: &[(&str, Tensor)]) -> BTreeMap<String, Tensor> {
    run_within(model, inputs, &Bounds::new()).expect("the model runs")
}

fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_vec(shape.to_vec(), values.to_vec()).expect("values fill the shape")
}

/// Rows of x of which the first element is positive, times two, and how many there are.
fn positive_rows() -> TestModel {
    TestModel::new(17)
        .input("x", &[4, 2])
        .longs("zero", &[0])
        .longs("one", &[1])
        .longs("first", &[0])
        .longs("minus", &[-1])
        .floats("none", &[], &[0.0])
        .node("Relu", &["x"], "early", vec![])
        .node("Slice", &["x", "zero", "one", "one"], "heads", vec![])
        .node("Greater", &["heads", "none"], "is", vec![])
        .node("NonZero", &["is"], "where", vec![])
        .node("Gather", &["where", "first"], "lines", vec![int("axis", 0)])
        .node("Reshape", &["lines", "minus"], "flat", vec![])
        .node("Gather", &["early", "flat"], "kept", vec![int("axis", 0)])
        .node("Add", &["kept", "kept"], "twice", vec![])
        .node("Shape", &["twice"], "count", vec![])
        .output("early")
        .output("twice")
        .output("count")
}

#[test]
fn hits_are_as_many_as_there_are() {
    let model = positive_rows();
    let error = import(&model.model(), None).expect_err("a graph of fixed shapes has no place for it").to_string();
    assert!(error.contains("make where") && error.contains("must be a constant"), "{error}");
    let found = run(&model, &[("x", floats(&[4, 2], &[1.0, 2.0, -1.0, 5.0, 3.0, -4.0, 0.0, 9.0]))]);
    assert_eq!((found["twice"].shape(), found["twice"].to_f64s()), (&[2, 2][..], vec![2.0, 4.0, 6.0, 0.0]));
    assert_eq!(found["count"].to_i64s(), Some(vec![2, 2]));
    assert_eq!(found["early"].shape(), [4, 2]);
    let none = run(&model, &[("x", floats(&[4, 2], &[-1.0; 8]))]);
    assert_eq!((none["twice"].shape(), none["count"].to_i64s()), (&[0, 2][..], Some(vec![0, 2])));
}

#[test]
fn the_graph_keeps_what_has_one_size() {
    let imported = import_open(&positive_rows().model(), None, false, &Bounds::new()).expect("it is imported");
    let kinds: Vec<&str> = imported.graph.nodes.iter().map(|node| node.op.kind()).collect();
    assert_eq!(imported.graph.nodes.len(), 3, "{kinds:?}");
    let tail = imported.graph.tail.as_ref().expect("something follows");
    assert_eq!(tail.handed, ["early", "is"]);
    assert_eq!(tail.order, ["early", "twice", "count"]);
    let fragment = imported.fragment.expect("something follows");
    assert_eq!(fragment.len(), 6);
    assert!(fragment.reasons().next().is_some_and(|reason| reason.contains("make where (NonZero")));
}

#[test]
fn what_exceeds_its_bound_is_named_with_it() {
    let x = || [("x", floats(&[4, 2], &[1.0; 8]))];
    let bounds = |most| Bounds::from([("flat".to_owned(), most)]);
    run_within(&positive_rows(), &x(), &bounds(4)).expect("four rows are within the bound");
    let error = run_within(&positive_rows(), &x(), &bounds(3)).expect_err("four rows are too many").to_string();
    assert!(error.contains("value flat has the shape [4]") && error.contains("its bound of 3"), "{error}");
}

#[test]
fn counts_may_be_computed() {
    let model = TestModel::new(17)
        .input("x", &[5])
        .input_of("k", ElementType::I64, &[1])
        .longs("zero", &[0])
        .longs("one", &[1])
        .node_of("TopK", &["x", "k"], &["largest", "places"], vec![])
        .node("Reshape", &["k", "empty"], "number", vec![])
        .longs("empty", &[])
        .constant("start", &Tensor::scalar(0i64))
        .constant("step", &Tensor::scalar(1i64))
        .node("Range", &["start", "number", "step"], "ascending", vec![])
        .node("Slice", &["x", "zero", "k", "zero", "one"], "head", vec![])
        .node("Expand", &["start", "k"], "spread", vec![])
        .output("largest")
        .output("ascending")
        .output("head")
        .output("spread");
    let x = floats(&[5], &[3.0, 9.0, 1.0, 7.0, 5.0]);
    for count in [2i64, 4] {
        let k = Tensor::from_vec(vec![1], vec![count]).expect("one number");
        let found = run(&model, &[("x", x.clone()), ("k", k)]);
        assert_eq!(found["largest"].to_f64s(), [9.0, 7.0, 5.0, 3.0][..count as usize]);
        assert_eq!(found["ascending"].to_i64s(), Some((0..count).collect()));
        assert_eq!(found["head"].to_f64s(), [3.0, 9.0, 1.0, 7.0][..count as usize]);
        assert_eq!(found["spread"].shape(), [count as usize]);
    }
}

fn graph_attribute(name: &str, g: GraphProto) -> AttributeProto {
    let r#type = AttributeType::Graph as i32;
    AttributeProto { name: name.into(), g: Some(Box::new(g)), r#type, ..AttributeProto::default() }
}

fn node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: op_type.into(),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

#[test]
fn loops_go_on_for_as_long_as_data_says() {
    // Doubles a state, which grows by one element each time, and keeps what each iteration has.
    let one = |name: &str| {
        let size = dim(dimension::Value::DimValue(1));
        value_info(name, 1, vec![size])
    };
    let mut concat = node("Concat", &["state", "addend"], "grown");
    concat.attribute.push(int("axis", 0));
    let body = GraphProto {
        name: "body".into(),
        input: vec![value_info("i", 7, vec![]), value_info("go", 9, vec![]), one("state")],
        output: vec![value_info("on", 9, vec![]), one("grown"), one("number")],
        node: vec![node("Identity", &["go"], "on"), concat, node("Identity", &["i"], "number")],
        ..GraphProto::default()
    };
    let mut model = TestModel::new(17)
        .input_of("n", ElementType::I64, &[])
        .floats("addend", &[1], &[2.0])
        .node_of("Loop", &["n", "", "addend"], &["all", "numbers"], vec![graph_attribute("body", body)])
        .output("all")
        .output("numbers");
    model.graph().node[0].name = "make all".into();
    for count in [1i64, 3] {
        let found = run(&model, &[("n", Tensor::scalar(count))]);
        assert_eq!(found["all"].to_f64s(), vec![2.0; count as usize + 1]);
        assert_eq!(found["numbers"].to_i64s(), Some((0..count).collect()));
    }
}

#[test]
fn sequences_are_made_where_they_are_read() {
    let model = TestModel::new(17)
        .input("x", &[3, 2])
        .input_of("at", ElementType::I64, &[])
        .node("SplitToSequence", &["x"], "parts", vec![int("keepdims", 0)])
        .node("SequenceAt", &["parts", "at"], "y", vec![])
        .output("y");
    let x = floats(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let found = run(&model, &[("x", x), ("at", Tensor::scalar(1i64))]);
    assert_eq!(found["y"].to_f64s(), [3.0, 4.0]);
}
