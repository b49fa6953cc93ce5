//! Models of `ai.onnx.ml`: what of them engines cannot give, and trees that are none.

use super::{int, ints, refused, text};
use crate::{Note, Problem, Refusal, import, import_noted, testing::TestModel};
use planforge_graph::ir::ElementType;
use planforge_onnx::proto::{
    AttributeProto, OperatorSetIdProto, TypeProto, ValueInfoProto, attribute_proto::AttributeType, type_proto,
};

fn floats(name: &str, floats: &[f32]) -> AttributeProto {
    let r#type = AttributeType::Floats as i32;
    AttributeProto { name: name.into(), floats: floats.to_vec(), r#type, ..AttributeProto::default() }
}

fn texts(name: &str, texts: &[&'static str]) -> AttributeProto {
    let strings = texts.iter().map(|&text| text.into()).collect();
    AttributeProto { name: name.into(), strings, r#type: AttributeType::Strings as i32, ..AttributeProto::default() }
}

/// All nodes so far are of the domain, in this version.
fn of_domain(mut model: TestModel, version: i64) -> TestModel {
    model.graph().node.iter_mut().for_each(|node| node.domain = "ai.onnx.ml".into());
    model.proto.opset_import.push(OperatorSetIdProto { domain: "ai.onnx.ml".into(), version });
    model
}

fn linear(labels: AttributeProto) -> TestModel {
    let attributes = vec![floats("coefficients", &[1.0, 2.0, 3.0, 4.0]), floats("intercepts", &[0.0, 1.0]), labels];
    TestModel::new(17).input("x", &[3, 2]).node_of("LinearClassifier", &["x"], &["label", "scores"], attributes)
}

/// One split and its two leaves, but for what `change` makes of its attributes.
fn tree(change: impl Fn(&mut AttributeProto)) -> TestModel {
    let mut attributes = vec![
        ints("nodes_treeids", &[0, 0, 0]),
        ints("nodes_nodeids", &[0, 1, 2]),
        ints("nodes_featureids", &[1, 0, 0]),
        texts("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF"]),
        floats("nodes_values", &[0.5, 0.0, 0.0]),
        ints("nodes_truenodeids", &[1, 0, 0]),
        ints("nodes_falsenodeids", &[2, 0, 0]),
        ints("target_treeids", &[0, 0]),
        ints("target_nodeids", &[1, 2]),
        ints("target_ids", &[0, 0]),
        floats("target_weights", &[1.0, 2.0]),
        int("n_targets", 1),
    ];
    attributes.iter_mut().for_each(change);
    let model = TestModel::new(17).input("x", &[3, 2]).node("TreeEnsembleRegressor", &["x"], "y", attributes);
    of_domain(model, 3).output("y")
}

#[test]
fn labels_that_are_strings_are_refused_unless_nobody_asks_for_them() {
    let labels = || texts("classlabels_strings", &["cat", "dog"]);
    let error = refused(&of_domain(linear(labels()), 1).output("label").output("scores"));
    let strings = |problem: &Problem| matches!(problem, Problem::Node { refusal: Refusal::Strings { .. }, .. });
    assert!(matches!(&error.problems[..], [problem] if strings(problem)), "{error}");
    assert!(error.hint().contains("LabelEncoder"), "{}", error.hint());
    let mut model = of_domain(linear(labels()), 1).output("scores");
    model.graph().node[0].output[0].clear();
    assert_eq!(model.import().outputs.len(), 1);
    let graph = of_domain(linear(ints("classlabels_ints", &[5, 6])), 1).output("label").output("scores").import();
    assert_eq!(graph.value(graph.outputs[0].value).element, ElementType::I64);
}

#[test]
fn strings_that_come_in_are_refused_with_what_to_do() {
    let mut model = TestModel::new(17).input("x", &[3, 2]).node("Relu", &["x"], "y", vec![]).output("y");
    if let Some(type_proto::Value::TensorType(tensor)) =
        model.graph().input[0].r#type.as_mut().and_then(|of| of.value.as_mut())
    {
        tensor.elem_type = 8;
    }
    let error = refused(&model);
    assert!(error.hint().contains("OrdinalEncoder"), "{}", error.hint());
}

#[test]
fn maps_of_scores_are_the_scores_themselves() {
    let labels = ints("classlabels_int64s", &[5, 6]);
    let model = linear(ints("classlabels_ints", &[5, 6])).node("ZipMap", &["scores"], "maps", vec![labels]);
    let mut model = of_domain(model, 1).output("label");
    let sequence = type_proto::Value::SequenceType(Box::default());
    let r#type = TypeProto { value: Some(sequence), ..TypeProto::default() };
    let maps = ValueInfoProto { name: "maps".into(), r#type: Some(r#type), ..ValueInfoProto::default() };
    model.graph().output.push(maps);
    let imported = import_noted(&model.model(), None, false).expect("the scores are given");
    let [note @ Note::MapsLeftOut { name }] = &imported.notes[..] else { panic!("{:?}", imported.notes) };
    assert_eq!((name.as_str(), note.is_warning(), note.code()), ("maps", true, "maps-left-out"));
    assert_eq!(imported.graph.static_shape(imported.graph.outputs[1].value), Some(vec![3, 2]));
    let error = import_noted(&model.model(), None, true).expect_err("strictly it is no list of maps");
    assert!(matches!(&error.problems[..], [Problem::Maps { .. }]), "{error}");
    assert!(error.hint().contains("zipmap=False"), "{}", error.hint());
}

#[test]
fn versions_that_are_not_known_are_refused() {
    let model = of_domain(linear(ints("classlabels_ints", &[5, 6])), 6).output("label");
    assert!(refused(&model).to_string().contains("version 6 of ai.onnx.ml"));
}

#[test]
fn nodes_that_are_no_trees_are_refused() {
    assert!(import(&tree(|_| ()).model(), None).is_ok());
    let with = |name: &'static str, ints: &'static [i64]| {
        refused(&tree(move |attribute| {
            if attribute.name == name {
                attribute.ints = ints.to_vec();
            }
        }))
        .to_string()
    };
    assert!(with("nodes_truenodeids", &[0, 0, 0]).contains("circle"));
    assert!(with("nodes_truenodeids", &[7, 0, 0]).contains("lacks node 7"));
    assert!(with("nodes_nodeids", &[0, 1, 1]).contains("twice"));
    assert!(with("nodes_featureids", &[2, 0, 0]).contains("2 features"));
    assert!(with("nodes_featureids", &[-1, 0, 0]).contains("-1"));
    assert!(with("nodes_treeids", &[0, 0]).contains("as long"));
    assert!(with("target_ids", &[0, 1]).contains("holds 1, of 1"));
    assert!(with("target_nodeids", &[1]).contains("one length"));
    let unknown = refused(&tree(|attribute| {
        if attribute.name == "nodes_modes" {
            *attribute = texts("nodes_modes", &["BRANCH_MAYBE", "LEAF", "LEAF"]);
        }
    }));
    assert!(unknown.to_string().contains("BRANCH_MAYBE"), "{unknown}");
    let model = tree(|attribute| {
        if attribute.name == "n_targets" {
            *attribute = text("aggregate_function", "MEDIAN");
        }
    });
    assert!(refused(&model).to_string().contains("MEDIAN"));
}
