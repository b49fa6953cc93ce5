//! The generated models keep their activations in range, so that a wrong result shows.

use planforge_cpu::explain::{Recovered, explain};
use planforge_graph::{
    interpreter::execute_observed,
    ir::{Activation, ElementType, Graph, Op, Tensor},
};
use planforge_import::import;
use planforge_modelgen::{Batch, LayerNormForm, MODELS, Options, Precision, Style, generate};
use planforge_onnx::Model;
use planforge_passes::{Target, pipeline};
use std::{collections::BTreeMap, ops::ControlFlow};

/// What the standard deviation of every layer's output must lie in.
const RANGE: std::ops::RangeInclusive<f64> = 0.1..=10.0;

fn deviation(values: &[f32]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
    (values.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>() / count).sqrt()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.bytes().chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

/// Runs the model with the reference operators; returns how many layers were looked at.
fn check(name: &str, inputs: BTreeMap<String, Tensor>) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    generate(name, &Options::default(), &path).unwrap();
    let graph = import(&Model::open(&path).unwrap(), None).unwrap();
    // Convolutions, products, normalisations; sums are biases and residuals, but for the one that masks scores.
    let layers: BTreeMap<_, _> = graph
        .nodes
        .iter()
        .filter(|node| {
            let origin = node.origins.concat();
            matches!(node.op, Op::Conv(_) | Op::MatMul(_) | Op::BatchNorm { .. } | Op::LayerNorm { .. })
                || origin.ends_with("/Add") && !origin.ends_with("/self/Add")
                || origin.ends_with("/relu_2/Relu")
        })
        .map(|node| (node.outputs[0], node.origins.concat()))
        .collect();
    let mut looked_at = 0;
    let outputs = execute_observed(&graph, &inputs, &mut |value, tensor| {
        if let Some(layer) = layers.get(&value) {
            let deviation = deviation(&floats(tensor));
            assert!(RANGE.contains(&deviation), "{name}: {layer} varies by {deviation}");
            looked_at += 1;
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(looked_at, layers.len());
    for (output, tensor) in outputs {
        assert!(RANGE.contains(&deviation(&floats(&tensor))), "{name}: {output}");
    }
    looked_at
}

/// Numbers in `0..range`, the same every time.
fn numbers(count: usize, range: u64) -> impl Iterator<Item = u64> {
    let mut state = 1u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % range
    })
}

#[test]
fn resnet50_activations_stay_in_range() {
    // Uniform with unit variance.
    let pixels = numbers(3 * 224 * 224, 1 << 20).map(|value| (value as f32 / (1 << 19) as f32 - 1.0) * 3f32.sqrt());
    let bytes: Vec<u8> = pixels.flat_map(f32::to_le_bytes).collect();
    let image = Tensor::new(ElementType::F32, vec![1, 3, 224, 224], bytes.into()).unwrap();
    // 53 convolutions, each normalised; 16 residual sums and what follows them; the classifier.
    let layers = check("resnet50", BTreeMap::from([("input".into(), image)]));
    assert!(layers > 53 * 2 + 16 * 2, "{layers}");
}

#[test]
fn bert_base_activations_stay_in_range() {
    let tensor = |values: Vec<i64>| {
        let bytes: Vec<u8> = values.into_iter().flat_map(i64::to_le_bytes).collect();
        Tensor::new(ElementType::I64, vec![1, 128], bytes.into()).unwrap()
    };
    let ids = numbers(128, 30522).map(|value| value as i64).collect();
    let mask = (0..128).map(|at| i64::from(at < 100)).collect();
    let inputs = BTreeMap::from([("input_ids".to_owned(), tensor(ids)), ("attention_mask".to_owned(), tensor(mask))]);
    // A layer has six products with weights and two of attention, six biases, two sums, two normalisations.
    let layers = check("bert-base", inputs);
    assert!(layers >= 12 * 18, "{layers}");
}

/// The model after all passes.
fn optimised(name: &str, options: &Options, target: Target) -> Graph {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    generate(name, options, &path).unwrap();
    let graph = import(&Model::open(&path).unwrap(), None).unwrap();
    pipeline(graph, target).unwrap().graph
}

/// Attentions, layer normalisations and GELUs.
fn recovered(graph: &Graph) -> [usize; 3] {
    let gelu = |op: &Op| {
        let epilogue = op.epilogue().and_then(|epilogue| epilogue.activation);
        matches!(epilogue, Some(Activation::Gelu(_))) || matches!(op, Op::Activation(Activation::Gelu(_)))
    };
    let count = |matches: &dyn Fn(&Op) -> bool| graph.nodes.iter().filter(|node| matches(&node.op)).count();
    [
        count(&|op| matches!(op, Op::Attention(_))),
        count(&|op| matches!(op, Op::LayerNorm { .. })),
        count(&|op| gelu(op)),
    ]
}

#[test]
fn transformers_are_recovered_from_their_pieces() {
    let pieces = Style { layer_norm: LayerNormForm::Primitives, ..Style::default() };
    let variants = [
        Options::default(),
        Options { style: pieces, ..Options::default() },
        Options { precision: Precision::Fp16, ..Options::default() },
        Options { precision: Precision::Int8, ..Options::default() },
        Options { style: Style { batch: Batch::Fixed(3), ..pieces }, ..Options::default() },
    ];
    for name in ["bert-base", "vit-b-16"] {
        for options in &variants {
            let graph = optimised(name, options, Target::default());
            assert_eq!(recovered(&graph), [12, 25, 12], "{name} {options:?}\n{graph}");
            // Heads are neither split nor joined any more, and queries, keys and values are one product.
            let moves = graph.nodes.iter().filter(|node| matches!(node.op, Op::Transpose { .. })).count();
            assert_eq!(moves, usize::from(name == "vit-b-16"), "{name}: only patches are turned\n{graph}");
            let packed = |node: &&planforge_graph::ir::Node| {
                matches!(node.op, Op::MatMul(_)) && graph.static_shape(node.outputs[0]).unwrap().ends_with(&[2304])
            };
            assert_eq!(graph.nodes.iter().filter(packed).count(), 12, "{name}");
        }
    }
}

#[test]
fn convolutional_networks_are_nothing_but_fused_convolutions() {
    // (model, convolutions, those with an activation, activations that stand alone)
    for (name, convolutions, fused, alone) in [
        ("resnet50", 53, 49, 0),
        ("mobilenet-v2", 52, 35, 0),
        ("mobilenet-v3-large", 62, 47, 0),
        ("efficientnet-b0", 81, 65, 0),
        ("yolo-s", 60, 57, 3),
    ] {
        let graph = optimised(name, &Options::default(), Target::default());
        let count = |matches: &dyn Fn(&Op) -> bool| graph.nodes.iter().filter(|node| matches(&node.op)).count();
        let with = |op: &Op| matches!(op, Op::Conv(conv) if conv.epilogue.activation.is_some());
        let counted = [
            count(&|op| matches!(op, Op::Conv(_))),
            count(&with),
            count(&|op| matches!(op, Op::Activation(_))),
            count(&|op| matches!(op, Op::BatchNorm { .. })),
        ];
        assert_eq!(counted, [convolutions, fused, alone, 0], "{name}\n{graph}");
    }
}

#[test]
fn parallel_convolutions_of_the_detector_are_computed_together() {
    let target = Target { channel_slices: true, ..Target::default() };
    let graph = optimised("yolo-s", &Options::default(), target);
    let convolutions = graph.nodes.iter().filter(|node| matches!(node.op, Op::Conv(_))).count();
    // Each of the eight CSP blocks begins with two.
    assert_eq!(convolutions, 60 - 8, "{graph}");
}

#[test]
fn explanations_count_what_the_models_state() {
    let folder = tempfile::tempdir().unwrap();
    for info in MODELS {
        let path = folder.path().join(info.name);
        generate(info.name, &Options::default(), &path).unwrap();
        let explanation = explain(&Model::open(&path).unwrap(), None).unwrap();
        assert_eq!(explanation.refused, Vec::<String>::new(), "{}", info.name);
        let graph = explanation.graph.unwrap();
        assert_eq!(graph.parameters, info.parameters, "{}", info.name);
        // In units of 10 million, as the literature rounds them.
        let expected = match info.name {
            "resnet50" => 409,
            "mobilenet-v2" => 30,
            "mobilenet-v3-large" => 22,
            "efficientnet-b0" => 39,
            "yolo-s" => 822,
            "vit-b-16" => 1756,
            "bert-base" => 1117,
            _ => continue,
        };
        assert_eq!((graph.multiply_accumulates + 5_000_000) / 10_000_000, expected, "{}", info.name);
        let transformer = matches!(info.name, "vit-b-16" | "bert-base");
        let pieces = if transformer { [12, 25, 12] } else { [0, 0, 0] };
        let Recovered { attentions, layer_norms, gelus, .. } = graph.recovered;
        assert_eq!([attentions, layer_norms, gelus], pieces, "{}", info.name);
        let memory = graph.memory;
        assert!(memory.arena_bytes > 0 && memory.arena_bytes < memory.without_reuse_bytes, "{}", info.name);
    }
}

#[test]
fn explanations_list_every_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    generate("digits", &Options::default(), &path).unwrap();
    let mut proto = Model::open(&path).unwrap().proto;
    let graph = proto.graph.as_mut().unwrap();
    graph.node[1].op_type = "Levitate".into();
    graph.node[3].domain = "com.example".into();
    let other = folder.path().join("other.onnx");
    planforge_onnx::write::save(&other, &proto).unwrap();
    let explanation = explain(&Model::open(&other).unwrap(), None).unwrap();
    assert!(explanation.graph.is_none());
    let text = explanation.to_string();
    for word in ["Levitate", "com.example.Relu", "refused"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(explanation.refused.len(), 2, "{text}");
}

#[test]
fn planted_outliers_change_no_bit_of_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let pixels: Vec<u8> = numbers(64, 17).flat_map(|value| (value as f32 / 16.0).to_le_bytes()).collect();
    let image = Tensor::new(ElementType::F32, vec![1, 1, 8, 8], pixels.into()).unwrap();
    let mut largest = Vec::new();
    let mut answer = |name: &str| {
        let path = folder.path().join(name);
        generate(name, &Options::default(), &path).unwrap();
        let graph = import(&Model::open(&path).unwrap(), None).unwrap();
        let inputs = BTreeMap::from([("image".to_owned(), image.clone())]);
        let mut top = 0f32;
        let outputs = execute_observed(&graph, &inputs, &mut |_, tensor| {
            top = floats(tensor).into_iter().fold(top, f32::max);
            ControlFlow::Continue(())
        });
        largest.push(top);
        outputs.unwrap()
    };
    assert_eq!(answer("digits"), answer("digits-outliers"));
    assert!(largest[1] > 8.0 * largest[0], "{largest:?}");
}
