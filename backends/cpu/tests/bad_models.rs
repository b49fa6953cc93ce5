//! Models made to hurt: each is an error by name or the right answer, in bounded memory and time that grows with the
//! model. What takes quadratic time or unbounded memory here does not end before the runner's own limit.

mod support;

use planforge_backend::{Cancel, Compiler, LoadOptions};
use planforge_cpu::CpuCompiler;
use planforge_device::CpuLevel;
use planforge_graph::{
    interpreter,
    ir::{Graph, Tensor},
};
use planforge_import::{ImportError, import};
use planforge_onnx::{
    Model,
    proto::{
        AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
        TensorShapeProto, TypeProto, ValueInfoProto,
        attribute_proto::AttributeType,
        tensor_proto::DataType,
        tensor_shape_proto::{Dimension, dimension::Value as Size},
        type_proto,
    },
};
use planforge_passes::Target;
use planforge_types::HostTensor;
use prost::Message;
use std::{collections::BTreeMap, error::Error, fs};
use support::Silent;

type Failure = Box<dyn Error>;

fn info(name: &str, element: DataType, shape: &[i64]) -> ValueInfoProto {
    let dim = |&size: &i64| Dimension { value: Some(Size::DimValue(size)), ..Dimension::default() };
    let shape = TensorShapeProto { dim: shape.iter().map(dim).collect() };
    let tensor = type_proto::Tensor { elem_type: element as i32, shape: Some(shape) };
    let r#type = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: name.into(), r#type: Some(r#type), ..ValueInfoProto::default() }
}

fn output(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), ..ValueInfoProto::default() }
}

fn node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: op_type.into(),
        input: inputs.iter().map(|&name| name.into()).collect(),
        output: vec![output.into()],
        ..NodeProto::default()
    }
}

fn with_graph(mut node: NodeProto, name: &str, graph: GraphProto) -> NodeProto {
    let r#type = AttributeType::Graph as i32;
    node.attribute.push(AttributeProto {
        name: name.into(),
        g: Some(graph.into()),
        r#type,
        ..AttributeProto::default()
    });
    node
}

fn longs(name: &str, values: &[i64]) -> TensorProto {
    let dims = vec![values.len() as i64];
    TensorProto {
        name: name.into(),
        data_type: DataType::Int64 as i32,
        dims,
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

fn floats(name: &str, shape: &[i64], values: Vec<f32>) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type: DataType::Float as i32,
        dims: shape.to_vec(),
        float_data: values,
        ..TensorProto::default()
    }
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: domain.into(), version }
}

fn model(graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: 10,
        opset_import: vec![opset("", 17), opset("local", 1)],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

/// `x` of two floats in, `y` out.
fn through(nodes: Vec<NodeProto>, initializer: Vec<TensorProto>) -> ModelProto {
    let graph = GraphProto {
        node: nodes,
        initializer,
        input: vec![info("x", DataType::Float, &[2])],
        output: vec![output("y")],
        ..GraphProto::default()
    };
    model(graph)
}

fn imported(proto: &ModelProto) -> Result<Result<Graph, ImportError>, Failure> {
    Ok(import(&Model::from_bytes(proto.encode_to_vec().into())?, None))
}

fn refused(proto: &ModelProto) -> Result<String, Failure> {
    match imported(proto)? {
        Ok(graph) => Err(format!("it was imported:\n{graph}").into()),
        Err(error) => Ok(error.to_string()),
    }
}

fn run(graph: &Graph, x: &[f32]) -> Result<Vec<f32>, Failure> {
    let inputs = BTreeMap::from([("x".to_owned(), Tensor::from_vec(vec![x.len()], x.to_vec())?)]);
    Ok(interpreter::execute(graph, &inputs)?["y"].values::<f32>()?.into_owned())
}

/// What an engine compiled from the model gives.
fn native(proto: &ModelProto, x: HostTensor) -> Result<HostTensor, Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.onnx");
    fs::write(&path, proto.encode_to_vec())?;
    let level = *CpuLevel::detect().last().ok_or("this CPU is below every level")?;
    let request = support::request(&path, level, folder.path());
    let plan = CpuCompiler.compile(&request, &Silent, &Cancel::default())?;
    let mut meter = CpuCompiler.load(&plan.path, &LoadOptions::default())?;
    meter.bind(&BTreeMap::from([("x".to_owned(), x)]))?;
    Ok(meter.run()?.remove("y").ok_or("there is no output y")?)
}

fn host(shape: &[usize], values: &[f32]) -> Result<HostTensor, Failure> {
    Ok(HostTensor::from(&Tensor::from_vec(shape.to_vec(), values.to_vec())?))
}

/// A chain of `count` additions of one.
fn chain(count: usize) -> ModelProto {
    let name = |at: usize| {
        if at == 0 {
            "x".to_owned()
        } else if at == count {
            "y".to_owned()
        } else {
            format!("v{at}")
        }
    };
    let nodes = (0..count).map(|at| node("Add", &[&name(at), "one"], &name(at + 1))).collect();
    through(nodes, vec![floats("one", &[], vec![1.0])])
}

#[test]
fn ten_thousand_nodes_in_a_chain_are_built_and_run() -> Result<(), Failure> {
    let proto = chain(10_000);
    let graph = imported(&proto)??;
    assert_eq!(graph.nodes.len(), 10_000);
    assert_eq!(run(&graph, &[0.0, 0.5])?, [10_000.0, 10_000.5]);
    let optimized = planforge_passes::pipeline(graph, Target::default())?.graph;
    assert_eq!(run(&optimized, &[0.0, 0.5])?, [10_000.0, 10_000.5]);
    let answer = native(&proto, host(&[2], &[0.0, 0.5])?)?;
    assert_eq!(Tensor::try_from(answer)?.values::<f32>()?[..], [10_000.0, 10_000.5]);
    Ok(())
}

#[test]
fn fifty_thousand_nodes_pass_the_importer_and_every_pass() -> Result<(), Failure> {
    let graph = imported(&chain(50_000))??;
    assert_eq!(planforge_passes::pipeline(graph, Target::default())?.graph.nodes.len(), 50_000);
    Ok(())
}

#[test]
fn one_value_read_ten_thousand_times_is_no_trouble() -> Result<(), Failure> {
    let mut nodes: Vec<NodeProto> = (0..10_000).map(|at| node("Relu", &["x"], &format!("v{at}"))).collect();
    let names: Vec<String> = (0..10_000).map(|at| format!("v{at}")).collect();
    nodes.push(node("Sum", &names.iter().map(String::as_str).collect::<Vec<_>>(), "y"));
    let graph = imported(&through(nodes, Vec::new()))??;
    let optimized = planforge_passes::pipeline(graph, Target::default())?.graph;
    assert_eq!(run(&optimized, &[1.0, -1.0])?, [10_000.0, 0.0]);
    Ok(())
}

/// `depth` branches inside each other; the innermost doubles.
fn nested(depth: usize) -> ModelProto {
    let innermost = NodeProto { name: "double".into(), ..node("Add", &["x", "x"], "y0") };
    let mut inner = innermost;
    for level in 1..=depth {
        let body = |node: NodeProto| {
            let output = vec![output(&node.output[0])];
            GraphProto { node: vec![node], output, ..GraphProto::default() }
        };
        let name = if level == depth { "y".to_owned() } else { format!("y{level}") };
        let branch = with_graph(node("If", &["c"], &name), "then_branch", body(inner));
        inner = with_graph(branch, "else_branch", body(node("Neg", &["x"], &format!("n{level}"))));
    }
    let condition = TensorProto {
        name: "c".into(),
        data_type: DataType::Bool as i32,
        int32_data: vec![1],
        ..TensorProto::default()
    };
    through(vec![inner], vec![condition])
}

#[test]
fn deep_control_flow_is_answered_or_too_deep() -> Result<(), Failure> {
    let graph = imported(&nested(30))??;
    assert_eq!(run(&graph, &[1.0, -3.0])?, [2.0, -6.0]);
    let error = Model::from_bytes(nested(100).encode_to_vec().into()).map(drop).expect_err("100 levels are too deep");
    assert!(error.to_string().contains("nest deeper"), "{error}");
    Ok(())
}

/// Functions 1..=depth, each calling the one before it `width` times in a row; the first is one `Neg`.
fn calling(depth: usize, width: usize) -> ModelProto {
    let mut proto =
        through(vec![NodeProto { domain: "local".into(), ..node(&format!("f{depth}"), &["x"], "y") }], Vec::new());
    for level in 0..=depth {
        let name = |at: usize| {
            if at == 0 {
                "a".to_owned()
            } else if at == width {
                "b".to_owned()
            } else {
                format!("v{at}")
            }
        };
        let call = |at: usize| NodeProto {
            domain: "local".into(),
            ..node(&format!("f{}", level - 1), &[&name(at)], &name(at + 1))
        };
        proto.functions.push(FunctionProto {
            name: format!("f{level}"),
            domain: "local".into(),
            input: vec!["a".into()],
            output: vec!["b".into()],
            node: if level == 0 { vec![node("Neg", &["a"], "b")] } else { (0..width).map(call).collect() },
            opset_import: vec![opset("", 17), opset("local", 1)],
            ..FunctionProto::default()
        });
    }
    proto
}

#[test]
fn functions_are_inlined_within_bounds() -> Result<(), Failure> {
    let graph = imported(&calling(4, 3))??;
    assert_eq!(graph.nodes.len(), 81);
    assert_eq!(run(&graph, &[1.0, -3.0])?, [-1.0, 3.0]);
    assert_eq!(imported(&calling(90, 1))??.nodes.len(), 1);
    let deep = refused(&calling(150, 1))?;
    assert!(deep.contains("nesting deeper than 100"), "{deep}");
    // 8^12 nodes out of some kilobytes.
    let bomb = refused(&calling(12, 8))?;
    assert!(bomb.contains("nodes after inlining and unrolling"), "{bomb}");
    let mut recursive = calling(1, 1);
    recursive.functions[0].node = vec![NodeProto { domain: "local".into(), ..node("f1", &["a"], "b") }];
    let error = refused(&recursive)?;
    assert!(error.contains("calls itself"), "{error}");
    Ok(())
}

/// A loop over `count` iterations around `inner`, which reads `s` and writes `next`.
fn repeated(count: &str, state: &str, output_name: &str, inner: Vec<NodeProto>, tag: &str) -> NodeProto {
    let names = [format!("i{tag}"), format!("c{tag}"), format!("s{tag}"), format!("go{tag}"), format!("next{tag}")];
    let mut nodes = inner;
    nodes.push(node("Identity", &[&names[1]], &names[3]));
    let body = GraphProto {
        node: nodes,
        input: vec![
            info(&names[0], DataType::Int64, &[]),
            info(&names[1], DataType::Bool, &[]),
            info(&names[2], DataType::Float, &[2]),
        ],
        output: vec![output(&names[3]), output(&names[4])],
        ..GraphProto::default()
    };
    with_graph(node("Loop", &[count, "", state], output_name), "body", body)
}

#[test]
fn loops_are_unrolled_within_bounds() -> Result<(), Failure> {
    let step = |tag: &str| vec![node("Add", &[&format!("s{tag}"), "x"], &format!("next{tag}"))];
    let simple = |count: i64| through(vec![repeated("n", "x", "y", step("1"), "1")], vec![longs("n", &[count])]);
    assert_eq!(run(&imported(&simple(5))??, &[1.0, 2.0])?, [6.0, 12.0]);
    let error = refused(&simple(i64::MAX))?;
    assert!(error.contains("more than 65536 iterations"), "{error}");
    // Three loops of 60,000 iterations inside each other.
    let inner = vec![repeated("n", "s2", "next2", step("3"), "3")];
    let middle = vec![repeated("n", "s1", "next1", inner, "2")];
    let error = refused(&through(vec![repeated("n", "x", "y", middle, "1")], vec![longs("n", &[60_000])]))?;
    assert!(error.contains("nodes after inlining and unrolling"), "{error}");
    Ok(())
}

#[test]
fn iterations_count_beside_the_nodes_in_them() -> Result<(), Failure> {
    // 2^32 iterations, none of which has a node.
    let body = |tag: &str, nodes: Vec<NodeProto>| {
        let names = [format!("i{tag}"), format!("c{tag}")];
        GraphProto {
            node: nodes,
            input: vec![info(&names[0], DataType::Int64, &[]), info(&names[1], DataType::Bool, &[])],
            output: vec![output(&names[1])],
            ..GraphProto::default()
        }
    };
    let inner = with_graph(node("Loop", &["n", ""], ""), "body", body("2", Vec::new()));
    let outer = with_graph(node("Loop", &["n", ""], ""), "body", body("1", vec![inner]));
    let error = refused(&through(vec![outer, node("Neg", &["x"], "y")], vec![longs("n", &[65_536])]))?;
    assert!(error.contains("nodes after inlining and unrolling"), "{error}");
    // A scan without nodes still cuts out its arguments: 2^20 nodes.
    let names: Vec<String> = (0..8).map(|at| format!("p{at}")).collect();
    let body = GraphProto {
        input: names.iter().map(|name| info(name, DataType::Float, &[])).collect(),
        output: names.iter().map(|name| output(name)).collect(),
        ..GraphProto::default()
    };
    let mut scan = with_graph(node("Scan", &["x"; 8], "y"), "body", body);
    scan.attribute.push(AttributeProto {
        name: "num_scan_inputs".into(),
        i: 8,
        r#type: AttributeType::Int as i32,
        ..AttributeProto::default()
    });
    let mut proto = through(vec![scan], Vec::new());
    if let Some(graph) = &mut proto.graph {
        graph.input = vec![info("x", DataType::Float, &[65_536])];
    }
    let error = refused(&proto)?;
    assert!(error.contains("nodes after inlining and unrolling"), "{error}");
    Ok(())
}

#[test]
fn a_loop_reads_its_weights_once() -> Result<(), Failure> {
    let mut repeat = repeated("n", "x", "y", vec![node("Add", &["s1", "w"], "next1")], "1");
    let body = repeat.attribute[0].g.as_deref_mut().ok_or("the loop has a body")?;
    body.initializer.push(floats("w", &[2], vec![1.0, 2.0]));
    let graph = imported(&through(vec![repeat], vec![longs("n", &[100])]))??;
    assert_eq!(run(&graph, &[0.0, 1.0])?, [100.0, 201.0]);
    let weights = graph.constants.values().filter(|tensor| tensor.shape() == [2]);
    assert_eq!(weights.count(), 1);
    Ok(())
}

#[test]
fn folding_in_loops_holds_bounded_memory() -> Result<(), Failure> {
    // Each iteration could fold a constant of 64 Ki elements: 65,536 of them would be 16 GiB.
    let inner = vec![
        node("Expand", &["one", "size"], "wide"),
        node("ReduceSum", &["wide", ""], "sum"),
        node("Mul", &["s1", "zero"], "kept"),
        node("Add", &["kept", "one"], "next1"),
    ];
    let weights = vec![
        longs("n", &[65_536]),
        longs("size", &[65_536]),
        floats("one", &[], vec![1.0]),
        floats("zero", &[], vec![0.0]),
    ];
    match imported(&through(vec![repeated("n", "x", "y", inner, "1")], weights))? {
        Ok(graph) => assert!(graph.constant_bytes() < 8 << 30, "{} bytes", graph.constant_bytes()),
        Err(error) => assert!(error.to_string().contains("more than"), "{error}"),
    }
    Ok(())
}

#[test]
fn sizes_that_no_memory_holds_are_refused_before_anything_is_made() -> Result<(), Failure> {
    let huge = 1i64 << 40;
    let shape = |op: &str, inputs: &[&str]| {
        through(
            vec![node(op, inputs, "wide"), node("ReduceMax", &["wide"], "top"), node("Add", &["x", "top"], "y")],
            vec![longs("huge", &[huge]), longs("one", &[1]), longs("many", &[huge, huge])],
        )
    };
    for (op, inputs) in [
        ("ConstantOfShape", &["huge"][..]),
        ("ConstantOfShape", &["many"]),
        ("Expand", &["x", "huge"]),
        ("Tile", &["x", "huge"]),
        ("Pad", &["x", "many"]),
        ("OneHot", &["one", "huge", "x"]),
    ] {
        let error = refused(&shape(op, inputs))?;
        assert!(error.contains(op), "{op}: {error}");
    }
    let zero = |name: &str, value: i64| TensorProto { dims: vec![], ..longs(name, &[value]) };
    let range = through(
        vec![node("Range", &["zero", "end", "step"], "r"), node("Cast", &["r"], "f"), node("Add", &["x", "f"], "y")],
        vec![zero("zero", 0), zero("end", i64::MAX), zero("step", 1)],
    );
    let error = refused(&range)?;
    assert!(error.contains("Range"), "{error}");
    // A weight that says it has 8 GiB and brings none.
    let declared = TensorProto { dims: vec![1 << 31], float_data: Vec::new(), ..floats("w", &[1], vec![]) };
    let error = Model::from_bytes(through(vec![node("Add", &["x", "w"], "y")], vec![declared]).encode_to_vec().into());
    let error = error.map(drop).expect_err("there is no data").to_string();
    assert!(error.contains("'w'"), "{error}");
    Ok(())
}

#[test]
fn a_large_constant_that_nobody_needs_whole_is_not_made() -> Result<(), Failure> {
    // 2^30 elements, 4 GiB: allowed as a value, and neither the importer nor a pass makes it.
    let proto = through(
        vec![
            node("ConstantOfShape", &["n"], "wide"),
            node("Shape", &["wide"], "size"),
            node("Cast", &["size"], "f"),
            node("Add", &["x", "f"], "y"),
        ],
        vec![longs("n", &[1 << 30])],
    );
    let mut proto = proto;
    if let Some(graph) = &mut proto.graph {
        let to =
            AttributeProto { name: "to".into(), i: 1, r#type: AttributeType::Int as i32, ..AttributeProto::default() };
        graph.node[2].attribute.push(to);
    }
    let optimized = planforge_passes::pipeline(imported(&proto)??, Target::default())?.graph;
    assert!(optimized.constant_bytes() < 1 << 20, "{} bytes", optimized.constant_bytes());
    assert_eq!(run(&optimized, &[0.0, 1.0])?, [2f32.powi(30), 2f32.powi(30)]);
    Ok(())
}

#[test]
fn not_a_number_stays_one_through_every_path() -> Result<(), Failure> {
    let weights = floats("w", &[2, 2], vec![1.0, f32::NAN, 2.0, 3.0]);
    let graph = GraphProto {
        node: vec![node("MatMul", &["x", "w"], "h"), node("Relu", &["h"], "y")],
        initializer: vec![weights],
        input: vec![info("x", DataType::Float, &[1, 2])],
        output: vec![output("y")],
        ..GraphProto::default()
    };
    let proto = model(graph);
    let graph = imported(&proto)??;
    let inputs = BTreeMap::from([("x".to_owned(), Tensor::from_vec(vec![1, 2], vec![1f32, 1.0])?)]);
    let reference = interpreter::execute(&graph, &inputs)?["y"].values::<f32>()?.into_owned();
    let optimized = interpreter::execute(&planforge_passes::pipeline(graph, Target::default())?.graph, &inputs)?["y"]
        .values::<f32>()?
        .into_owned();
    let native = Tensor::try_from(native(&proto, host(&[1, 2], &[1.0, 1.0])?)?)?.values::<f32>()?.into_owned();
    for (path, answer) in [("reference", reference), ("optimised", optimized), ("native", native)] {
        assert_eq!(answer[0], 3.0, "{path}");
        assert!(answer[1].is_nan(), "{path}: {}", answer[1]);
    }
    Ok(())
}

#[test]
fn scales_of_zero_are_refused_or_saturate() -> Result<(), Failure> {
    let mut proto = through(vec![node("Resize", &["x", "", "s"], "y")], vec![floats("s", &[1], vec![0.0])]);
    let error = refused(&proto)?;
    assert!(error.contains("Resize"), "{error}");
    // Nothing but zeros: the scale of a dynamic quantization must not become zero.
    proto = through(vec![node("DynamicQuantizeLinear", &["x"], "q")], Vec::new());
    if let Some(graph) = &mut proto.graph {
        graph.node[0].output = vec!["q".into(), "y".into(), "z".into()];
    }
    assert_eq!(run(&imported(&proto)??, &[0.0, 0.0])?, [1.0; 1]);
    Ok(())
}
