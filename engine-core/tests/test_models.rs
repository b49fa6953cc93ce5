//! The generated models keep their activations in range, so that a wrong result shows.

use planforge_engine_core::{
    import::import,
    ir::{ElementType, Op, Tensor},
    ops::execute_observed,
};
use planforge_modelgen::{Options, generate};
use planforge_onnx::Model;
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
