//! Which values are quantised by which scale, for who runs the model.

use planforge_import::testing::{TestModel, int, ints, numbers};
use planforge_onnx::Model;
use planforge_precision::{Kind, Options, Prepared, Reference, Samples, Target, ports, prepare};
use planforge_types::{ElementType, HostTensor, NamedTensors};
use std::collections::BTreeMap;

/// Two convolutions of one image, the second's values ten times as large, joined and read by a third; with `read`, the first
/// one's are read by another as well.
fn joined(read: bool) -> Model {
    let large: Vec<f32> = numbers(24).into_iter().map(|value| 10.0 * value).collect();
    let model = TestModel::new(17)
        .input("x", &[1, 3, 6, 6])
        .floats("a", &[8, 3, 1, 1], &numbers(24))
        .floats("b", &[8, 3, 1, 1], &large)
        .floats("c", &[4, 16, 1, 1], &numbers(64))
        .node("Conv", &["x", "a"], "ca", vec![])
        .node("Relu", &["ca"], "ra", vec![])
        .node("Conv", &["x", "b"], "cb", vec![])
        .node("Relu", &["cb"], "rb", vec![])
        .node("Concat", &["ra", "rb"], "both", vec![int("axis", 1)])
        .node("Conv", &["both", "c"], "y", vec![])
        .output("y");
    match read {
        true => {
            model.floats("d", &[4, 8, 1, 1], &numbers(32)).node("Conv", &["ra", "d"], "z", vec![]).output("z").model()
        }
        false => model.model(),
    }
}

fn prepared(model: &Model, target: Target) -> Prepared {
    let values: Vec<f32> = numbers(20 * 3 * 36);
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let rows = HostTensor { element: ElementType::F32, shape: vec![20, 3, 6, 6], bytes };
    let samples = Samples::fit(NamedTensors::from([("x".to_owned(), rows)]), &ports(model)).unwrap();
    prepare(model, Some(&samples), None, &Options::new(Kind::Int8, target), &Reference).unwrap()
}

/// The scale by which each value is quantised.
fn scales(model: &Model, target: Target) -> BTreeMap<String, f32> {
    let graph = prepared(model, target).proto.graph.unwrap();
    let stored = |name: &str| {
        let tensor = graph.initializer.iter().find(|tensor| tensor.name == name).unwrap();
        f32::from_le_bytes(tensor.raw_data[..4].try_into().unwrap())
    };
    let quantised = graph.node.iter().filter(|node| node.op_type == "QuantizeLinear");
    quantised.map(|node| (node.input[0].clone(), stored(&node.input[1]))).collect()
}

#[test]
fn what_is_joined_for_onnx_runtime_takes_the_scale_of_the_whole_unless_others_read_it() {
    let joined_by = |target, read| {
        let scales = scales(&joined(read), target);
        ["ra", "rb", "both"].map(|value| scales[value])
    };
    let [small, large, whole] = joined_by(Target::OnnxRuntime, false);
    assert!(small == whole && large == whole, "{small} {large} {whole}");
    let [small, large, whole] = joined_by(Target::OnnxRuntime, true);
    assert!(small < whole / 5.0 && large == whole, "{small} {large} {whole}");
    let [small, _, whole] = joined_by(Target::Cpu, false);
    assert!(small < whole / 5.0, "for others each keeps what it has: {small} {whole}");
}

#[test]
fn a_pool_that_is_joined_keeps_the_scale_of_what_it_reads() {
    let large: Vec<f32> = numbers(64).into_iter().map(|value| 10.0 * value).collect();
    let pool = vec![ints("kernel_shape", &[3, 3]), ints("pads", &[1; 4])];
    let model = TestModel::new(17)
        .input("x", &[1, 3, 6, 6])
        .floats("a", &[8, 3, 1, 1], &numbers(24))
        .floats("b", &[8, 8, 1, 1], &large)
        .floats("c", &[4, 16, 1, 1], &numbers(64))
        .node("Conv", &["x", "a"], "ca", vec![])
        .node("Relu", &["ca"], "ra", vec![])
        .node("MaxPool", &["ra"], "pool", pool)
        .node("Conv", &["ra", "b"], "cb", vec![])
        .node("Relu", &["cb"], "rb", vec![])
        .node("Concat", &["pool", "rb"], "both", vec![int("axis", 1)])
        .node("Conv", &["both", "c"], "y", vec![])
        .output("y")
        .model();
    let scales = scales(&model, Target::OnnxRuntime);
    assert_eq!((scales["pool"], scales["rb"]), (scales["ra"], scales["both"]), "{scales:?}");
    assert!(scales["ra"] < scales["both"] / 5.0, "{scales:?}");
}

#[test]
fn a_cache_has_a_scale_for_an_input_that_an_activation_alone_reads() {
    let model = TestModel::new(17)
        .input("x", &[1, 3, 6, 6])
        .floats("a", &[8, 3, 1, 1], &numbers(24))
        .node("Relu", &["x"], "r", vec![])
        .node("Conv", &["r", "a"], "c", vec![])
        .node("Relu", &["c"], "y", vec![])
        .output("y")
        .model();
    let scales = prepared(&model, Target::TensorRt).scales;
    assert!(["x", "r", "c", "y"].iter().all(|value| scales.contains_key(*value)), "{scales:?}");
    assert_eq!(scales["c"], scales["y"], "what lies before an activation is cut as it cuts it");
    assert!(prepared(&model, Target::Cpu).scales.is_empty());
}
