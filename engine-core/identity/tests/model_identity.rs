//! The three digests of a model: what changes them, and what does not.

use planforge_identity::{DigestCache, ModelIdentity, identify, model};
use planforge_onnx::{
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
        TensorShapeProto, TypeProto, ValueInfoProto,
        attribute_proto::AttributeType,
        tensor_proto::DataType,
        tensor_shape_proto::{Dimension, dimension},
        type_proto,
    },
    write::{Storage, save, write_model},
};
use planforge_types::Digest;
use proptest::prelude::*;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// One step of a made-up graph; digests need names and numbers, not sense.
#[derive(Clone, Debug)]
enum Layer {
    Linear(Vec<f32>),
    Relu,
    Transpose(Vec<i64>),
    Reshape(Vec<i64>),
    Residual,
    /// A branch whose body uses a value from outside.
    If(f32),
}

fn layers() -> impl Strategy<Value = Vec<Layer>> {
    let layer = prop_oneof![
        prop::collection::vec(-1e3f32..1e3, 1..20).prop_map(Layer::Linear),
        Just(Layer::Relu),
        prop::collection::vec(0i64..4, 1..4).prop_map(Layer::Transpose),
        prop::collection::vec(-1i64..100, 1..4).prop_map(Layer::Reshape),
        Just(Layer::Residual),
        (-1f32..1.0).prop_map(Layer::If),
    ];
    prop::collection::vec(layer, 1..12)
}

fn floats(name: &str, values: &[f32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![values.len() as i64],
        data_type: DataType::Float.into(),
        raw_data: values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>().into(),
        ..Default::default()
    }
}

fn integers(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![values.len() as i64],
        data_type: DataType::Int64.into(),
        raw_data: values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>().into(),
        ..Default::default()
    }
}

fn port(name: &str) -> ValueInfoProto {
    let dim = |value| Dimension { value: Some(value), ..Default::default() };
    let dims = vec![dim(dimension::Value::DimParam("batch".into())), dim(dimension::Value::DimValue(8))];
    let tensor = type_proto::Tensor { elem_type: 1, shape: Some(TensorShapeProto { dim: dims }) };
    let value = Some(type_proto::Value::TensorType(tensor));
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { value, ..Default::default() }), ..Default::default() }
}

fn node(op: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        op_type: op.into(),
        name: format!("{op} {output}"),
        input: inputs.iter().map(|input| (*input).into()).collect(),
        output: vec![output.into()],
        attribute,
        ..Default::default()
    }
}

fn attribute(name: &str, r#type: AttributeType) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: r#type.into(), ..Default::default() }
}

fn build(layers: &[Layer]) -> ModelProto {
    let mut graph = GraphProto { name: "g".into(), input: vec![port("in")], ..Default::default() };
    let mut value = "in".to_owned();
    for (at, layer) in layers.iter().enumerate() {
        let output = if at + 1 == layers.len() { "out".into() } else { format!("v{at}") };
        let stored = format!("w{at}");
        graph.node.push(match layer {
            Layer::Linear(weights) => {
                graph.initializer.push(floats(&stored, weights));
                node("MatMul", &[&value, &stored], &output, vec![])
            }
            Layer::Relu => node("Relu", &[&value], &output, vec![]),
            Layer::Transpose(perm) => {
                let perm = AttributeProto { ints: perm.clone(), ..attribute("perm", AttributeType::Ints) };
                node("Transpose", &[&value], &output, vec![perm])
            }
            Layer::Reshape(shape) => {
                graph.initializer.push(integers(&stored, shape));
                node("Reshape", &[&value, &stored], &output, vec![])
            }
            Layer::Residual => node("Add", &[&value, "in"], &output, vec![]),
            Layer::If(weight) => {
                let body = GraphProto {
                    initializer: vec![floats("inner", &[*weight])],
                    node: vec![node("Mul", &[&value, "inner"], "body_out", vec![])],
                    output: vec![port("body_out")],
                    ..Default::default()
                };
                let branch =
                    |name| AttributeProto { g: Some(Box::new(body.clone())), ..attribute(name, AttributeType::Graph) };
                node("If", &[&value], &output, vec![branch("then_branch"), branch("else_branch")])
            }
        });
        value = output;
    }
    graph.output = vec![port("out")];
    ModelProto {
        ir_version: 8,
        producer_name: "test".into(),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 17 }],
        graph: Some(graph),
        ..Default::default()
    }
}

fn graph(model: &mut ModelProto) -> &mut GraphProto {
    model.graph.as_mut().unwrap()
}

fn identity(folder: &Path, model: &ModelProto) -> ModelIdentity {
    let path = folder.join("m.onnx");
    save(&path, model).unwrap();
    identify(&path, None).unwrap()
}

/// The same graph, written down in every other way at once.
fn disguised(model: &ModelProto) -> ModelProto {
    let mut model = model.clone();
    model.producer_name = "another".into();
    model.producer_version = "9".into();
    model.doc_string = "words".into();
    model.ir_version = 9;
    model.metadata_props.push(StringStringEntryProto { key: "k".into(), value: "v".into() });
    model.opset_import[0].domain = "ai.onnx".into();
    let graph = graph(&mut model);
    graph.name = "other".into();
    graph.doc_string = "more words".into();
    for tensor in &mut graph.initializer {
        let raw = std::mem::take(&mut tensor.raw_data);
        if tensor.data_type == i32::from(DataType::Float) {
            tensor.float_data = raw.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        } else {
            tensor.int64_data = raw.chunks(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect();
        }
    }
    graph.initializer.reverse();
    // A weight and a node that nothing uses.
    graph.initializer.push(floats("unused", &[1.0]));
    graph.node.push(node("Relu", &["in"], "unused_value", vec![]));
    graph.node.reverse();
    graph.value_info.push(port("v0"));
    for node in &mut graph.node {
        node.name.push('!');
        node.domain = "ai.onnx".into();
        node.input.push(String::new());
        node.attribute.reverse();
    }
    rename(graph);
    model
}

/// Gives every inner value another name.
fn rename(graph: &mut GraphProto) {
    let rename_one = |name: &mut String| {
        if !["in", "out", ""].contains(&name.as_str()) {
            name.insert_str(0, "renamed ");
        }
    };
    graph.initializer.iter_mut().for_each(|tensor| rename_one(&mut tensor.name));
    graph.value_info.iter_mut().for_each(|value| rename_one(&mut value.name));
    graph.output.iter_mut().for_each(|output| rename_one(&mut output.name));
    for node in &mut graph.node {
        node.input.iter_mut().chain(&mut node.output).for_each(rename_one);
        node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_deref_mut()).for_each(rename);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn another_form_of_the_same_graph_keeps_its_digests(layers in layers()) {
        let folder = tempfile::tempdir().unwrap();
        let model = build(&layers);
        let (one, other) = (identity(folder.path(), &model), identity(folder.path(), &disguised(&model)));
        prop_assert_ne!(one.digest, other.digest);
        prop_assert_eq!(one.graph_digest, other.graph_digest);
        prop_assert_eq!(one.structure_digest, other.structure_digest);
    }

    #[test]
    fn external_storage_keeps_the_graph_digest(layers in layers()) {
        let folder = tempfile::tempdir().unwrap();
        let mut model = build(&layers);
        // External data needs a tensor to be external.
        graph(&mut model).initializer.push(floats("spare", &[1.0]));
        let inline = identity(folder.path(), &model);
        let weights = std::mem::take(&mut graph(&mut model).initializer);
        let bare: Vec<_> =
            weights.iter().map(|weight| TensorProto { raw_data: Default::default(), ..weight.clone() }).collect();
        let path = folder.path().join("e.onnx");
        let mut data = weights.iter().map(|weight| &weight.raw_data);
        let fill = &mut |_: &TensorProto, out: &mut dyn std::io::Write| out.write_all(data.next().unwrap());
        write_model(&path, &model, &bare, Storage::External, fill).unwrap();
        let external = identify(&path, None).unwrap();
        prop_assert_eq!(external.files.len(), 2);
        prop_assert_ne!(inline.digest, external.digest);
        prop_assert_eq!(inline.graph_digest, external.graph_digest);
        prop_assert_eq!(inline.structure_digest, external.structure_digest);
    }

    #[test]
    fn a_changed_weight_changes_the_graph_but_not_its_structure(
        layers in layers().prop_filter("needs a weight", |layers| layers.iter().any(has_weights)),
        at in any::<prop::sample::Index>(),
    ) {
        let mut changed = layers.clone();
        let weights = changed.iter_mut().flat_map(|layer| match layer {
            Layer::Linear(weights) => weights.as_mut_slice(),
            Layer::If(weight) => std::slice::from_mut(weight),
            _ => &mut [],
        });
        let mut weights: Vec<&mut f32> = weights.collect();
        let at = at.index(weights.len());
        *weights[at] = -*weights[at] + 1.0;
        prop_assume!(format!("{layers:?}") != format!("{changed:?}"));
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (identity(folder.path(), &build(&layers)), identity(folder.path(), &build(&changed)));
        prop_assert_ne!(one.graph_digest, other.graph_digest);
        prop_assert_eq!(one.structure_digest, other.structure_digest);
    }

    #[test]
    fn a_changed_meaning_changes_both(layers in layers(), at in any::<prop::sample::Index>()) {
        let mut changed = layers.clone();
        let at = at.index(layers.len());
        changed[at] = match &layers[at] {
            Layer::Linear(weights) => Layer::Linear([&weights[..], &[0.0]].concat()),
            Layer::Relu => Layer::Residual,
            Layer::Transpose(perm) => Layer::Transpose(perm.iter().map(|axis| axis + 1).collect()),
            Layer::Reshape(shape) => Layer::Reshape(shape.iter().map(|size| size + 1).collect()),
            Layer::Residual | Layer::If(_) => Layer::Relu,
        };
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (identity(folder.path(), &build(&layers)), identity(folder.path(), &build(&changed)));
        prop_assert_ne!(one.graph_digest, other.graph_digest);
        prop_assert_ne!(one.structure_digest, other.structure_digest);
    }
}

fn has_weights(layer: &Layer) -> bool {
    matches!(layer, Layer::Linear(_) | Layer::If(_))
}

#[test]
fn ports_and_operator_set_are_part_of_the_graph() {
    let folder = tempfile::tempdir().unwrap();
    let model = build(&[Layer::Relu, Layer::Residual]);
    let changes: [fn(&mut ModelProto); 4] = [
        |model| model.opset_import[0].version = 18,
        |model| {
            let graph = graph(model);
            graph.input[0].name = "x".into();
            let names = graph.node.iter_mut().flat_map(|node| &mut node.input).filter(|name| *name == "in");
            names.for_each(|name| *name = "x".into());
        },
        |model| graph(model).input[0].r#type = Some(TypeProto::default()),
        |model| graph(model).node[0].domain = "com.example".into(),
    ];
    let original = identity(folder.path(), &model);
    for change in changes {
        let mut changed = model.clone();
        change(&mut changed);
        let changed = identity(folder.path(), &changed);
        assert_ne!(original.graph_digest, changed.graph_digest);
        assert_ne!(original.structure_digest, changed.structure_digest);
    }
}

#[test]
fn floats_that_steer_a_shape_belong_to_the_structure() {
    let folder = tempfile::tempdir().unwrap();
    let resize = |scale: f32| {
        let mut model = build(&[Layer::Relu]);
        let graph = graph(&mut model);
        graph.initializer.push(floats("scales", &[1.0, scale]));
        graph.node = vec![node("Resize", &["in", "", "scales"], "out", vec![])];
        identity(folder.path(), &model)
    };
    assert_ne!(resize(1.5).structure_digest, resize(2.0).structure_digest);
}

#[test]
fn a_cycle_and_values_nobody_makes_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = build(&[Layer::Relu]);
    graph(&mut model).node = vec![
        node("Add", &["in", "b"], "a", vec![]),
        node("Add", &["a", "ghost"], "b", vec![]),
        node("Neg", &["b"], "out", vec![]),
    ];
    let one = identity(folder.path(), &model);
    graph(&mut model).node[1].input[1] = "spirit".into();
    assert_ne!(one.graph_digest, identity(folder.path(), &model).graph_digest);
}

/// A branch that uses what its own node makes, and two nodes whose branches use what the other makes.
#[test]
fn cycles_through_graphs_inside_nodes_end() {
    let folder = tempfile::tempdir().unwrap();
    let branching = |uses: &str, output: &str| {
        let inside = GraphProto {
            node: vec![node("Neg", &[uses], &format!("inside_{output}"), vec![])],
            output: vec![port(&format!("inside_{output}"))],
            ..Default::default()
        };
        let branch = AttributeProto { g: Some(Box::new(inside)), ..attribute("then_branch", AttributeType::Graph) };
        node("If", &["in"], output, vec![branch])
    };
    let of = |nodes: Vec<NodeProto>| {
        let mut model = build(&[Layer::Relu]);
        graph(&mut model).node = nodes;
        identity(folder.path(), &model).graph_digest
    };
    let sound = of(vec![branching("in", "out")]);
    let own = of(vec![branching("out", "out")]);
    let each_other = of(vec![branching("out", "a"), branching("a", "out")]);
    assert!(sound != own && own != each_other);
}

#[test]
fn long_chains_do_not_exhaust_the_stack() {
    let folder = tempfile::tempdir().unwrap();
    identity(folder.path(), &build(&vec![Layer::Relu; 100_000]));
    // Each branch takes its value from the branch before.
    identity(folder.path(), &build(&vec![Layer::If(1.0); 20_000]));
}

#[test]
fn the_digest_is_the_files_or_the_manifests() {
    let folder = tempfile::tempdir().unwrap();
    let proto = build(&[Layer::Relu]);
    let path = folder.path().join("m.onnx");
    save(&path, &proto).unwrap();
    let single = identify(&path, None).unwrap();
    assert_eq!(single.digest, Digest::of(&fs::read(&path).unwrap()));
    assert_eq!((single.name.as_str(), single.files.len()), ("m.onnx", 1));

    let weights = [TensorProto { raw_data: Default::default(), ..floats("w", &[0.0; 4]) }];
    write_model(&path, &proto, &weights, Storage::External, &mut |_, out| out.write_all(&[7; 16])).unwrap();
    let external = identify(&path, None).unwrap();
    let names: Vec<_> = external.files.iter().map(|file| (file.name.as_str(), file.size_bytes)).collect();
    assert_eq!(names, [("m.onnx", fs::metadata(&path).unwrap().len()), ("m.onnx.data", 16)]);
    let sha = |name: &str| Digest::of(&fs::read(folder.path().join(name)).unwrap());
    let manifest = format!(
        r#"{{"external":[{{"name":"m.onnx.data","sha256":"{}","size":16}}],"model":{{"sha256":"{}","size":{}}}}}"#,
        sha("m.onnx.data"),
        sha("m.onnx"),
        names[0].1
    );
    assert_eq!(external.digest, Digest::of(manifest.as_bytes()));
    let files = external.files.iter().map(|file| (file.name.as_str(), file.digest, file.size_bytes));
    assert_eq!(model::manifest(files), manifest.as_bytes());

    // Another name for the ONNX file is no other model; another byte of data is.
    let renamed = folder.path().join("n.onnx");
    fs::rename(&path, &renamed).unwrap();
    assert_eq!(identify(&renamed, None).unwrap().digest, external.digest);
    fs::write(folder.path().join("m.onnx.data"), [8; 16]).unwrap();
    assert_ne!(identify(&renamed, None).unwrap().digest, external.digest);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "polls a condition with a deadline: only time makes a file old")]
fn a_known_model_is_not_read_again_until_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let cache = DigestCache::new(folder.path().join("digests"));
    let path = folder.path().join("m.onnx");
    save(&path, &build(&[Layer::Relu])).unwrap();
    // Only files at rest for two seconds are remembered.
    let deadline = Instant::now() + Duration::from_secs(30);
    let known = loop {
        let identity = identify(&path, Some(&cache)).unwrap();
        if cache.get(&path).is_some() {
            break identity;
        }
        assert!(Instant::now() < deadline, "never remembered");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(cache.get(&path), Some(known.clone()));
    assert_eq!(identify(&path, Some(&cache)).unwrap(), known);
    save(&path, &build(&[Layer::Residual])).unwrap();
    assert_eq!(cache.get(&path), None);
    assert_ne!(identify(&path, Some(&cache)).unwrap().digest, known.digest);
}
