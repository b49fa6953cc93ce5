//! Model files the tests build: the trained digits model, and small chains of convolutions of any size.

use planforge_onnx::{
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
        TypeProto, ValueInfoProto, attribute_proto, tensor_proto, tensor_shape_proto, type_proto,
    },
    write,
};
use std::path::{Path, PathBuf};

/// The trained model of `examples/digits`.
pub fn digits() -> PathBuf {
    examples().join("digits.onnx")
}

/// Its labelled test set.
pub fn digits_test_set() -> PathBuf {
    examples().join("digits-test.npz")
}

/// What the training script measured.
pub fn digits_training_facts() -> serde_json::Value {
    let text = std::fs::read_to_string(examples().join("training.json")).expect("training.json is committed");
    serde_json::from_str(&text).expect("training.json is JSON")
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits")
}

/// A chain of `layers` 3x3 convolutions with `channels` channels on a `side` x `side` image. `seed` changes the weights
/// and so the digest: each test asks for engines that nobody has built before.
pub fn convolutions(path: &Path, layers: usize, channels: usize, side: usize, seed: u32) -> PathBuf {
    named_convolutions(path, "convolutions", layers, channels, side, seed)
}

/// The same with a graph name of its own, by which a scenario can tell it.
pub fn named_convolutions(
    path: &Path,
    graph_name: &str,
    layers: usize,
    channels: usize,
    side: usize,
    seed: u32,
) -> PathBuf {
    let shape = [1, channels as i64, side as i64, side as i64];
    let mut graph = GraphProto {
        name: graph_name.into(),
        input: vec![value("x", &shape)],
        output: vec![value(&format!("y{}", layers - 1), &shape)],
        ..Default::default()
    };
    let scale = (2.0 / (channels * 9) as f32).sqrt();
    for layer in 0..layers {
        let count = channels * channels * 9;
        let mut state = seed.wrapping_mul(747_796_405).wrapping_add(layer as u32);
        let weights: Vec<u8> = (0..count).flat_map(|_| (next(&mut state) * scale).to_le_bytes()).collect();
        graph.initializer.push(TensorProto {
            name: format!("w{layer}"),
            dims: vec![channels as i64, channels as i64, 3, 3],
            data_type: tensor_proto::DataType::Float as i32,
            raw_data: weights.into(),
            ..Default::default()
        });
        let input = if layer == 0 { "x".into() } else { format!("y{}", layer - 1) };
        graph.node.push(node(
            "Conv",
            &[&input, &format!("w{layer}")],
            &format!("c{layer}"),
            &[("pads", &[1, 1, 1, 1])],
        ));
        graph.node.push(node("Relu", &[&format!("c{layer}")], &format!("y{layer}"), &[]));
    }
    save(path, graph)
}

/// A model of one unknown operator, for refusals.
pub fn unknown_operators(path: &Path) -> PathBuf {
    let graph = GraphProto {
        name: "unknown".into(),
        input: vec![value("x", &[1, 4])],
        output: vec![value("z", &[1, 4])],
        node: vec![node("Frobnicate", &["x"], "y", &[]), node("Quuxify", &["y"], "z", &[])],
        ..Default::default()
    };
    save(path, graph)
}

/// A model that ONNX Runtime builds and native compilers refuse: a hash of its input, which is no arithmetic of tensors.
pub fn hashed(path: &Path) -> PathBuf {
    const INT32: i32 = 6;
    let whole = |name: &str| {
        let mut info = value(name, &[1, 8]);
        if let Some(type_proto::Value::TensorType(tensor)) = info.r#type.as_mut().and_then(|of| of.value.as_mut()) {
            tensor.elem_type = INT32;
        }
        info
    };
    let signed = AttributeProto {
        name: "positive".into(),
        r#type: attribute_proto::AttributeType::Int as i32,
        i: 0,
        ..Default::default()
    };
    let hash = node("MurmurHash3", &["x"], "y", &[]);
    let hash = NodeProto { domain: "com.microsoft".into(), attribute: vec![signed], ..hash };
    let graph = GraphProto {
        name: "hashed".into(),
        input: vec![whole("x")],
        output: vec![whole("y")],
        node: vec![hash],
        ..Default::default()
    };
    save_with(path, graph, &[("com.microsoft", 1)])
}

/// A model of one operator in whose every name `words` stand.
pub fn named(path: &Path, operator: &str, words: &str) -> PathBuf {
    let [x, y] = ["x", "y"].map(|port| format!("{port}{words}"));
    let graph = GraphProto {
        name: format!("graph{words}"),
        input: vec![value(&x, &[1, 4])],
        output: vec![value(&y, &[1, 4])],
        node: vec![NodeProto { name: format!("node{words}"), ..node(operator, &[&x], &y, &[]) }],
        ..Default::default()
    };
    save(path, graph)
}

/// A model whose two nodes need each other.
pub fn cyclic(path: &Path) -> PathBuf {
    let graph = GraphProto {
        name: "cyclic".into(),
        input: vec![value("x", &[1, 4])],
        output: vec![value("b", &[1, 4])],
        node: vec![node("Add", &["x", "b"], "a", &[]), node("Relu", &["a"], "b", &[])],
        ..Default::default()
    };
    save(path, graph)
}

/// A model with an input dimension of the given size.
pub fn relu_of_shape(path: &Path, shape: &[i64]) -> PathBuf {
    let graph = GraphProto {
        name: "relu".into(),
        input: vec![value("x", shape)],
        output: vec![value("y", shape)],
        node: vec![node("Relu", &["x"], "y", &[])],
        ..Default::default()
    };
    save(path, graph)
}

/// A model of any number of rows of 16, `x` to `y`.
pub fn dynamic_rows(path: &Path) -> PathBuf {
    relu_of_shape(path, &[-1, 16])
}

fn save(path: &Path, graph: GraphProto) -> PathBuf {
    save_with(path, graph, &[])
}

/// With operators of other domains beside the standard ones.
fn save_with(path: &Path, graph: GraphProto, domains: &[(&str, i64)]) -> PathBuf {
    let opset = |(domain, version): &(&str, i64)| OperatorSetIdProto { domain: (*domain).into(), version: *version };
    let model = ModelProto {
        ir_version: 8,
        opset_import: [("", 17)].iter().chain(domains).map(opset).collect(),
        producer_name: "planforge-tests".into(),
        graph: Some(graph),
        ..Default::default()
    };
    write::save(path, &model).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
    path.to_owned()
}

/// Uniform in -1..1 from a 32-bit permuted congruential generator.
fn next(state: &mut u32) -> f32 {
    *state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((*state >> ((*state >> 28) + 4)) ^ *state).wrapping_mul(277_803_737);
    let word = (word >> 22) ^ word;
    word as f32 / (u32::MAX as f32) * 2.0 - 1.0
}

fn node(operator: &str, inputs: &[&str], output: &str, attributes: &[(&str, &[i64])]) -> NodeProto {
    let attribute = |(name, ints): &(&str, &[i64])| AttributeProto {
        name: (*name).into(),
        r#type: attribute_proto::AttributeType::Ints as i32,
        ints: ints.to_vec(),
        ..Default::default()
    };
    NodeProto {
        op_type: operator.into(),
        name: output.into(),
        input: inputs.iter().map(|s| (*s).into()).collect(),
        output: vec![output.into()],
        attribute: attributes.iter().map(attribute).collect(),
        ..Default::default()
    }
}

fn value(name: &str, shape: &[i64]) -> ValueInfoProto {
    use tensor_shape_proto::dimension::Value::{DimParam, DimValue};
    // A size below 0 stands for one that varies.
    let dim = |size: &i64| tensor_shape_proto::Dimension {
        value: Some(if *size < 0 { DimParam("rows".into()) } else { DimValue(*size) }),
        ..Default::default()
    };
    let tensor = type_proto::Tensor {
        elem_type: tensor_proto::DataType::Float as i32,
        shape: Some(TensorShapeProto { dim: shape.iter().map(dim).collect() }),
    };
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..Default::default() }),
        ..Default::default()
    }
}
