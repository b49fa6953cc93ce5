//! What import refuses, and how operators differ by opset; files as exporters write them stand in `files`.

mod anything;
mod classifiers;
mod files;
mod narrow;
mod open;
mod random;

use super::{
    testing::{TestModel, dim, float, int, ints, numbers, text, value_info},
    *,
};
use planforge_graph::{infer::check_graph, interpreter, ir::Op, shape::BindError};
use planforge_onnx::proto::{OperatorSetIdProto, tensor_shape_proto::dimension::Value as DimValue};
use planforge_types::{BackendError, DimRange, FailureClass, Reason};

fn refused(model: &TestModel) -> ImportError {
    import(&model.model(), None).expect_err("this model must be refused")
}

fn run(model: &TestModel, shape: &[usize], values: Vec<f32>) -> Tensor {
    let graph = model.import();
    graph.check().expect("import keeps the invariants");
    check_graph(&graph).expect("import declares what inference gives");
    let x = Tensor::from_vec(shape.to_vec(), values).expect("values fill the shape");
    let outputs = interpreter::execute(&graph, &BTreeMap::from([("x".to_owned(), x)])).expect("the graph runs");
    outputs["y"].clone()
}

fn with_profile(model: &TestModel, input: &str, sizes: &[u64]) -> Result<Graph, ImportError> {
    let ranges = sizes.iter().map(|&size| DimRange { min: 1, opt: size, max: size }).collect();
    let profile = OptimizationProfile { inputs: BTreeMap::from([(input.to_owned(), ranges)]) };
    import(&model.model(), Some(&profile))
}

#[test]
fn unsupported_operators_are_all_named_with_opset_and_nodes() {
    let mut model = TestModel::new(17)
        .input("x", &[2])
        .node("Quux", &["x"], "a", vec![])
        .node("Relu", &["a"], "b", vec![])
        .node("Quux", &["b"], "c", vec![])
        .node("FusedThing", &["c"], "y", vec![])
        .output("y");
    model.graph().node[3].domain = "com.example".into();
    model.proto.opset_import.push(OperatorSetIdProto { domain: "com.example".into(), version: 3 });
    let error = refused(&model);
    assert_eq!(
        error.problems,
        [
            Problem::Operator {
                domain: String::new(),
                op_type: "Quux".into(),
                opset: Some(17),
                nodes: vec!["make a".into(), "make c".into()]
            },
            Problem::Operator {
                domain: "com.example".into(),
                op_type: "FusedThing".into(),
                opset: Some(3),
                nodes: vec!["make y".into()]
            },
        ]
    );
    let message = error.to_string();
    assert!(message.contains("Quux (opset 17)") && message.contains("com.example.FusedThing (opset 3)"), "{message}");
    let backend = BackendError::from(error);
    assert_eq!(backend.class, FailureClass::Model);
    assert!(backend.hint.contains("planforge ops") && backend.hint.contains("onnxruntime"), "{}", backend.hint);
    assert_eq!(backend.reason, Some(Reason::Unsupported));
}

#[test]
fn only_what_is_not_known_here_is_left_to_another_compiler() {
    let refusal = |model: &TestModel| BackendError::from(refused(model)).reason;
    let with =
        |node: &str, input: &str| TestModel::new(17).input("x", &[2]).node(node, &[input], "y", vec![]).output("y");
    assert_eq!(refusal(&with("Quux", "x")), Some(Reason::Unsupported));
    assert_eq!(refusal(&with("Relu", "nowhere")), None, "the file is at fault");
    assert_eq!(refusal(&with("Quux", "nowhere")), None, "the file is at fault, too");
    let sizes = TestModel::new(17).input("x", &[2, -3]).node("Quux", &["x"], "y", vec![]).output("y");
    assert_eq!(refusal(&sizes), None, "sizes are to be given first");
}

#[test]
fn problems_of_every_kind_are_listed_at_once() {
    let model = TestModel::new(17)
        .input("x", &[2, 3])
        .input("z", &[2, -3])
        .node("Quux", &["x"], "a", vec![])
        .node("Relu", &["x"], "b", vec![int("glow", 1)])
        .node("Concat", &["x", "x"], "c", vec![int("axis", 7)])
        .node("LeakyRelu", &["x"], "d", vec![int("alpha", 1)])
        .output("a");
    let problems = refused(&model).problems;
    let found = |matches: fn(&Problem) -> bool| problems.iter().filter(|problem| matches(problem)).count();
    assert_eq!(found(|problem| matches!(problem, Problem::Operator { .. })), 1, "{problems:?}");
    assert_eq!(found(|problem| matches!(problem, Problem::Attribute { attribute, .. } if attribute == "glow")), 1);
    assert_eq!(found(|problem| matches!(problem, Problem::Bind(BindError::Impossible { .. }))), 1);
    assert!(found(|problem| matches!(problem, Problem::Node { node, .. } if node == "make c")) == 1, "{problems:?}");
    assert!(found(|problem| matches!(problem, Problem::Node { node, .. } if node == "make d")) == 1, "{problems:?}");
}

#[test]
fn opsets_outside_of_the_known_ones_are_refused() {
    for version in [OLDEST_OPSET - 1, NEWEST_OPSET + 1, -1, i64::MAX] {
        let model = TestModel::new(version).input("x", &[1]).node("Relu", &["x"], "y", vec![]).output("y");
        let expected = Problem::Opset { version, oldest: OLDEST_OPSET, newest: NEWEST_OPSET };
        assert_eq!(refused(&model).problems, [expected]);
    }
    let mut model = TestModel::new(17).input("x", &[1]).node("Relu", &["x"], "y", vec![]).output("y");
    model.proto.opset_import.clear();
    assert_eq!(refused(&model).problems, [Problem::NoOpset]);
}

#[test]
fn attributes_of_another_opset_are_refused() {
    let squeeze = |opset| {
        TestModel::new(opset).input("x", &[1, 2]).node("Squeeze", &["x"], "y", vec![ints("axes", &[0])]).output("y")
    };
    assert_eq!(run(&squeeze(12), &[1, 2], vec![1.0, 2.0]).shape(), [2]);
    let error = refused(&squeeze(13)).to_string();
    assert!(error.contains("attribute axes does not belong to Squeeze at opset 13"), "{error}");
}

#[test]
fn a_cyclic_graph_is_named() {
    let model = TestModel::new(17)
        .input("x", &[2])
        .node("Add", &["x", "c"], "a", vec![])
        .node("Relu", &["a"], "b", vec![])
        .node("Neg", &["b"], "c", vec![])
        .output("c");
    let problems = refused(&model).problems;
    let [Problem::Cycle { nodes }] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!((nodes.len(), nodes.first()), (4, nodes.last()));
    assert!(["make a", "make b", "make c"].iter().all(|node| nodes.iter().any(|named| named == node)), "{nodes:?}");
}

#[test]
fn names_are_defined_once_and_before_their_use() {
    let twice = TestModel::new(17)
        .input("x", &[2])
        .node("Relu", &["x"], "y", vec![])
        .node("Neg", &["x"], "y", vec![])
        .output("y");
    let problems = refused(&twice).problems;
    assert!(matches!(&problems[..], [Problem::DefinedTwice { name, .. }] if name == "y"), "{problems:?}");
    let missing = TestModel::new(17).input("x", &[2]).node("Add", &["x", "w"], "y", vec![]).output("z");
    let problems = refused(&missing).problems;
    let names: Vec<&str> = problems
        .iter()
        .filter_map(|problem| match problem {
            Problem::NotDefined { name, .. } => Some(name.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(names, ["w", "z"], "{problems:?}");
}

#[test]
fn nodes_out_of_order_are_sorted() {
    let model = TestModel::new(17)
        .input("x", &[2])
        .node("Neg", &["a"], "y", vec![])
        .node("Relu", &["x"], "a", vec![])
        .output("y");
    assert_eq!(run(&model, &[2], vec![-1.0, 2.0]).to_f64s(), [0.0, -2.0]);
}

#[test]
fn unknown_shapes_are_refused_unless_the_profile_gives_them() {
    let mut model = TestModel::new(17).node("Relu", &["x"], "y", vec![]).output("y");
    let dims = vec![dim(DimValue::DimParam("batch".into())), dim(DimValue::DimValue(4))];
    model.graph().input.push(value_info("x", 1, dims));
    let error = refused(&model);
    assert!(
        error.to_string().contains("[batch, 4]") && error.hint().contains("--shapes x:1x4"),
        "{error} {}",
        error.hint()
    );
    let graph = with_profile(&model, "x", &[3, 4]).expect("the profile gives the batch");
    assert_eq!(graph.static_shape(graph.inputs[0]), Some(vec![3, 4]));
    assert!(with_profile(&model, "x", &[3, 5]).is_err());
    let stranger = with_profile(&model, "other", &[3, 4]).expect_err("the model has no such input");
    assert!(stranger.problems.iter().any(|problem| matches!(problem, Problem::ProfileInput { .. })), "{stranger}");
}

#[test]
fn values_without_elements_are_allowed_where_they_mean_something() {
    let zero = TestModel::new(17).input("x", &[0, 3]).node("Relu", &["x"], "y", vec![]).output("y").import();
    assert_eq!(zero.static_shape(zero.outputs[0].value), Some(vec![0, 3]));
    let index = TestModel::new(17).input("x", &[0, 3]).node("ArgMax", &["x"], "y", vec![]).output("y");
    let nothing = |problem: &Problem| {
        matches!(
            problem,
            Problem::Node { refusal: Refusal::Shape(planforge_graph::shape::ShapeError::Empty { .. }), .. }
        )
    };
    assert!(refused(&index).problems.iter().all(nothing));
}

#[test]
fn huge_dimensions_are_refused_wherever_they_arise() {
    let huge = TestModel::new(17).input("x", &[i64::MAX, i64::MAX]).node("Relu", &["x"], "y", vec![]).output("y");
    assert!(matches!(refused(&huge).problems[..], [Problem::Bind(BindError::Impossible { .. })]));
    let grows = |target: &[i64]| {
        TestModel::new(17).input("x", &[1]).longs("to", target).node("Expand", &["x", "to"], "y", vec![]).output("y")
    };
    for target in [&[1i64 << 40][..], &[-3], &[i64::MAX, i64::MAX], &[1; 17]] {
        let problems = refused(&grows(target)).problems;
        assert!(matches!(problems[..], [Problem::Node { .. }]), "{target:?}: {problems:?}");
    }
    // Each value is allowed, all together are not.
    let mut many = TestModel::new(17).input("x", &[1]).longs("to", &[1 << 31]);
    for index in 0..40 {
        many = many.node("Expand", &["x", "to"], &format!("y{index}"), vec![]);
    }
    let problems = refused(&many.output("y0")).problems;
    assert!(matches!(problems[..], [Problem::TooLarge { what: "elements", .. }]), "{problems:?}");
    let pads = TestModel::new(17)
        .input("x", &[1, 1, 4, 4])
        .floats("w", &[1, 1, 3, 3], &numbers(9))
        .node("Conv", &["x", "w"], "y", vec![ints("pads", &[0, 0, i64::MAX, i64::MAX])])
        .output("y");
    assert!(matches!(refused(&pads).problems[..], [Problem::Node { .. }]));
}

#[test]
fn impossible_shapes_are_refused() {
    let matmul = TestModel::new(17)
        .input("x", &[2, 3])
        .floats("w", &[4, 5], &numbers(20))
        .node("MatMul", &["x", "w"], "y", vec![])
        .output("y");
    let error = refused(&matmul).to_string();
    assert!(error.contains("make y") && error.contains("[2, 3]") && error.contains("[4, 5]"), "{error}");
    let mut declared = TestModel::new(17).input("x", &[2]).node("Relu", &["x"], "y", vec![]);
    // Another type is a contradiction; another shape alone is told, see `files`.
    declared.graph().output.push(value_info("y", 7, vec![dim(DimValue::DimValue(2))]));
    assert!(matches!(refused(&declared).problems[..], [Problem::OutputDiffers { .. }]));
}

#[test]
fn shapes_that_follow_from_data_are_refused_by_name() {
    let mut model = TestModel::new(17).input("x", &[6]).node("Reshape", &["x", "to"], "y", vec![]).output("y");
    model.graph().input.push(value_info("to", 7, vec![dim(DimValue::DimValue(2))]));
    let error = refused(&model);
    assert!(matches!(&error.problems[..], [Problem::Node { refusal: Refusal::NotConstant { what: "shape" }, .. }]));
    assert!(error.hint().contains("onnxruntime"), "{}", error.hint());
}

#[test]
fn strings_and_sequences_are_refused_by_type() {
    let mut model = TestModel::new(17).node("Identity", &["x"], "y", vec![]).output("y");
    model.graph().input.push(value_info("x", 8, vec![dim(DimValue::DimValue(2))]));
    let problems = refused(&model).problems;
    assert!(matches!(&problems[..], [Problem::Element { element, .. }] if element == "STRING"), "{problems:?}");
}

#[test]
fn shape_arithmetic_becomes_constants() {
    let model = TestModel::new(17)
        .input("x", &[2, 3, 4])
        .node("Shape", &["x"], "shape", vec![])
        .longs("zero", &[0])
        .longs("minus", &[-1])
        .node("Gather", &["shape", "zero"], "batch", vec![int("axis", 0)])
        .node("Concat", &["batch", "minus"], "to", vec![int("axis", 0)])
        .node("Reshape", &["x", "to"], "y", vec![])
        .output("y");
    let graph = model.import();
    assert_eq!(graph.nodes.len(), 1, "{graph}");
    assert_eq!(graph.nodes[0].op, Op::Reshape);
    assert_eq!(graph.static_shape(graph.outputs[0].value), Some(vec![2, 12]));
}

#[test]
fn initializers_listed_as_inputs_are_constants() {
    let model = TestModel::new(9)
        .input("x", &[1, 2])
        .input("w", &[2, 1])
        .floats("w", &[2, 1], &[3.0, 4.0])
        .node("MatMul", &["x", "w"], "y", vec![])
        .output("y");
    assert_eq!(run(&model, &[1, 2], vec![1.0, 10.0]).to_f64s(), [43.0]);
}

#[test]
fn softmax_ran_over_all_later_axes_before_opset_13() {
    let softmax = |opset| TestModel::new(opset).input("x", &[1, 2, 2]).node("Softmax", &["x"], "y", vec![]).output("y");
    let zeros = vec![0.0; 4];
    assert_eq!(run(&softmax(12), &[1, 2, 2], zeros.clone()).to_f64s(), [0.25; 4]);
    assert_eq!(run(&softmax(13), &[1, 2, 2], zeros).to_f64s(), [0.5; 4]);
}

#[test]
fn clip_takes_attributes_before_opset_11_and_inputs_after() {
    let old = TestModel::new(10)
        .input("x", &[3])
        .node("Clip", &["x"], "y", vec![float("min", -1.0), float("max", 1.0)])
        .output("y");
    let new = TestModel::new(13)
        .input("x", &[3])
        .floats("high", &[], &[1.0])
        .node("Clip", &["x", "", "high"], "y", vec![])
        .output("y");
    assert_eq!(run(&old, &[3], vec![-5.0, 0.5, 5.0]).to_f64s(), [-1.0, 0.5, 1.0]);
    assert_eq!(run(&new, &[3], vec![-5.0, 0.5, 5.0]).to_f64s(), [-5.0, 0.5, 1.0]);
}

#[test]
fn gemm_takes_c_in_every_shape_it_may_have() {
    for (shape, expected) in [
        (&[3usize][..], [1.5, 2.5, 3.5, 2.5, 3.5, 4.5]),
        (&[1, 3], [1.5, 2.5, 3.5, 2.5, 3.5, 4.5]),
        (&[2, 1], [1.5, 1.5, 1.5, 3.5, 3.5, 3.5]),
        (&[2, 3], [1.5, 2.5, 3.5, 5.5, 6.5, 7.5]),
        (&[], [1.5, 1.5, 1.5, 2.5, 2.5, 2.5]),
    ] {
        let count = shape.iter().product();
        let c: Vec<f32> = (0..count).map(|index| (index as f32 + 1.0) * 2.0).collect();
        let model = TestModel::new(13)
            .input("x", &[1, 2])
            .floats("b", &[3, 1], &[1.0; 3])
            .floats("c", shape, &c)
            .node(
                "Gemm",
                &["x", "b", "c"],
                "y",
                vec![int("transA", 1), int("transB", 1), float("alpha", 0.5), float("beta", 0.5)],
            )
            .output("y");
        assert_eq!(run(&model, &[1, 2], vec![1.0, 3.0]).to_f64s(), expected, "C of {shape:?}");
    }
}

#[test]
fn slices_count_from_both_ends() {
    let slice = |first: i64, last: i64, step: i64| {
        let model = TestModel::new(13)
            .input("x", &[5])
            .longs("from", &[first])
            .longs("to", &[last])
            .longs("axes", &[0])
            .longs("steps", &[step])
            .node("Slice", &["x", "from", "to", "axes", "steps"], "y", vec![])
            .output("y");
        run(&model, &[5], vec![0.0, 1.0, 2.0, 3.0, 4.0]).to_f64s()
    };
    assert_eq!(slice(1, 4, 1), [1.0, 2.0, 3.0]);
    assert_eq!(slice(-2, i64::MAX, 1), [3.0, 4.0]);
    assert_eq!(slice(-1, i64::MIN, -2), [4.0, 2.0, 0.0]);
    assert_eq!(slice(100, 0, -3), [4.0, 1.0]);
}

#[test]
fn unknown_modes_are_refused() {
    let model = TestModel::new(17)
        .input("x", &[1, 1, 2, 2])
        .floats("scales", &[4], &[1.0, 1.0, 2.0, 2.0])
        .node("Resize", &["x", "", "scales"], "y", vec![text("mode", "quintic")])
        .output("y");
    let error = refused(&model).to_string();
    assert!(error.contains("mode") && error.contains("quintic"), "{error}");
}

#[test]
fn a_deep_chain_is_imported_without_recursion() {
    let mut model = TestModel::new(17).input("x", &[2]);
    let mut last = "x".to_owned();
    for index in 0..10_000 {
        let next = format!("v{index}");
        model = model.node("Relu", &[&last], &next, vec![]);
        last = next;
    }
    assert_eq!(model.output(&last).import().nodes.len(), 10_000);
}

#[test]
fn windows_far_larger_than_their_input_are_refused_or_cost_nothing() {
    let pooled = |op_type: &str, rank: usize, size: i64| {
        let attributes = vec![
            ints("kernel_shape", &vec![size; rank]),
            ints("strides", &vec![size; rank]),
            ints("pads", &vec![size - 1; 2 * rank]),
        ];
        TestModel::new(18).floats("x", &vec![1; rank + 2], &[-3.0]).node(op_type, &["x"], "y", attributes).output("y")
    };
    for (op_type, rank, size) in
        [("LpPool", 2, 1 << 31), ("MaxPool", 2, 1 << 31), ("MaxPool", 1, 1 << 40), ("AveragePool", 1, 1 << 40)]
    {
        let problems = refused(&pooled(op_type, rank, size)).problems;
        assert!(matches!(problems[..], [Problem::Node { .. }]), "{op_type}: {problems:?}");
    }
    // One tap of 2^31 lies in the input.
    for (op_type, expected) in [("MaxPool", -3.0), ("AveragePool", -3.0), ("LpPool", 3.0)] {
        let graph = pooled(op_type, 1, 1 << 31).import();
        let folded = graph.constant(graph.outputs[0].value).map(Tensor::to_f64s);
        assert_eq!(folded, Some(vec![expected]), "{op_type}");
    }
}

#[test]
fn lists_as_long_as_a_number_says_are_refused_before_they_are_made() {
    let split = TestModel::new(18)
        .input("x", &[1 << 31])
        .node("Split", &["x"], "y", vec![int("axis", 0), int("num_outputs", 1 << 31)])
        .output("y");
    let hardmax = TestModel::new(18).input("x", &[1 << 31]).node("Hardmax", &["x"], "y", vec![]).output("y");
    let unique = TestModel::new(18)
        .floats("x", &[0, 1 << 31], &[])
        .node("Unique", &["x"], "y", vec![int("axis", 1)])
        .output("y");
    for (model, reason) in
        [(split, "the number of parts"), (hardmax, "counting along"), (unique, "the number of slices")]
    {
        let error = refused(&model).to_string();
        assert!(error.contains(reason) && error.contains("2147483648") && error.len() < 1000, "{error}");
    }
}
