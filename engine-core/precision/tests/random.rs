//! Random networks: whatever is put together of convolutions, sums, joins, pools and normalisations, what is made of it is
//! read again, runs, and stays near.

use planforge_import::testing::{TestModel, float, int, ints};
use planforge_onnx::{
    Model,
    proto::{TensorProto, tensor_proto::DataType},
};
use planforge_precision::{Kind, Options, Prepared, Reference, Samples, Target, ports, prepare};
use planforge_types::{ElementType, HostTensor, NamedTensors};
use proptest::prelude::*;
use prost::Message as _;

const CHANNELS: usize = 4;
const SIDE: usize = 6;
const CLASSES: usize = 3;
const ROWS: usize = 12;

/// Numbers of a seed, between −1 and 1.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    fn many(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.next() * scale).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Conv {
        relu: bool,
        depthwise: bool,
    },
    Norm,
    Sum,
    Join,
    Pool,
    /// `x · sigmoid(x)`.
    Gate,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (any::<bool>(), any::<bool>()).prop_map(|(relu, depthwise)| Step::Conv { relu, depthwise }),
        1 => Just(Step::Norm),
        2 => Just(Step::Sum),
        1 => Just(Step::Join),
        1 => Just(Step::Pool),
        1 => Just(Step::Gate),
    ];
    prop::collection::vec(step, 1..7)
}

fn network(steps: &[Step], seed: u64) -> Model {
    let mut draw = Draw(seed);
    let mut model = TestModel::new(17).input("x", &[1, CHANNELS as i64, SIDE as i64, SIDE as i64]);
    let (mut value, mut before) = ("x".to_owned(), "x".to_owned());
    let conv = |model: TestModel, draw: &mut Draw, input: &str, at: &str, inputs: usize, group: usize| {
        let (weight, bias, output) = (format!("w{at}"), format!("b{at}"), format!("c{at}"));
        let per = inputs / group * 9;
        model
            .floats(&weight, &[CHANNELS, inputs / group, 3, 3], &draw.many(CHANNELS * per, 1.5 / (per as f32).sqrt()))
            .floats(&bias, &[CHANNELS], &draw.many(CHANNELS, 0.2))
            .node("Conv", &[input, &weight, &bias], &output, vec![ints("pads", &[1; 4]), int("group", group as i64)])
    };
    for (at, step) in steps.iter().enumerate() {
        let next = format!("v{at}");
        match step {
            Step::Conv { relu, depthwise } => {
                let group = if *depthwise { CHANNELS } else { 1 };
                model = conv(model, &mut draw, &value, &at.to_string(), CHANNELS, group);
                let op = if *relu { "Relu" } else { "Identity" };
                model = model.node(op, &[&format!("c{at}")], &next, vec![]);
            }
            Step::Norm => {
                let parts: Vec<String> =
                    ["scale", "shift", "mean", "variance"].map(|part| format!("{part}{at}")).to_vec();
                let scale: Vec<f32> = draw.many(CHANNELS, 0.5).iter().map(|scale| 1.0 + scale).collect();
                let variance: Vec<f32> = draw.many(CHANNELS, 0.5).iter().map(|scale| 1.0 + scale).collect();
                model = model
                    .floats(&parts[0], &[CHANNELS], &scale)
                    .floats(&parts[1], &[CHANNELS], &draw.many(CHANNELS, 0.3))
                    .floats(&parts[2], &[CHANNELS], &draw.many(CHANNELS, 0.3))
                    .floats(&parts[3], &[CHANNELS], &variance)
                    .node(
                        "BatchNormalization",
                        &[&value, &parts[0], &parts[1], &parts[2], &parts[3]],
                        &next,
                        vec![float("epsilon", 1e-5)],
                    );
            }
            Step::Sum if value == before => continue,
            Step::Sum => model = model.node("Add", &[&value, &before], &next, vec![]),
            Step::Join => {
                let joined = format!("j{at}");
                model = model.node("Concat", &[&value, &before], &joined, vec![int("axis", 1)]);
                model = conv(model, &mut draw, &joined, &at.to_string(), 2 * CHANNELS, 1);
                model = model.node("Relu", &[&format!("c{at}")], &next, vec![]);
            }
            Step::Gate => {
                let gate = format!("g{at}");
                model = model.node("Sigmoid", &[&value], &gate, vec![]);
                model = model.node("Mul", &[&value, &gate], &next, vec![]);
            }
            Step::Pool => {
                let attributes = vec![ints("kernel_shape", &[3, 3]), ints("pads", &[1; 4]), ints("strides", &[1, 1])];
                model = model.node("MaxPool", &[&value], &next, attributes);
            }
        }
        before = std::mem::replace(&mut value, next);
    }
    let features = CHANNELS * SIDE * SIDE;
    let model = model
        .node("Flatten", &[&value], "flat", vec![int("axis", 1)])
        .floats("fw", &[CLASSES, features], &draw.many(CLASSES * features, 1.0 / (features as f32).sqrt()))
        .floats("fb", &[CLASSES], &draw.many(CLASSES, 0.1))
        .node("Gemm", &["flat", "fw", "fb"], "y", vec![int("transB", 1)])
        .output("y");
    Model::from_bytes(model.proto.encode_to_vec().into()).unwrap()
}

fn samples(model: &Model, seed: u64) -> Samples {
    samples_within(model, seed, 1.0)
}

fn samples_within(model: &Model, seed: u64, range: f32) -> Samples {
    let values = Draw(seed ^ 0xabcdef).many(ROWS * CHANNELS * SIDE * SIDE, range);
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let x = HostTensor { element: ElementType::F32, shape: vec![ROWS, CHANNELS, SIDE, SIDE], bytes };
    Samples::fit(NamedTensors::from([("x".to_owned(), x)]), &ports(model)).unwrap()
}

fn made(model: &Model, samples: &Samples, kind: Kind, target: Target) -> Prepared {
    prepare(model, Some(samples), None, &Options::new(kind, target), &Reference).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_made_of_a_network_stays_near(steps in steps(), seed in any::<u64>()) {
        let model = network(&steps, seed);
        let samples = samples(&model, seed);
        for target in Target::ALL {
            let prepared = made(&model, &samples, Kind::Int8, target);
            let error = prepared.report.measured.as_ref().unwrap().relative_rms;
            prop_assert!(error < 0.12, "{target:?}: {error}");
            prop_assert!(error > 0.0, "{target:?}: nothing was quantised");
            let coverage = &prepared.report.coverage;
            prop_assert_eq!(coverage.layers, coverage.layers_lowered);
        }
        for (kind, most) in [(Kind::Fp16, 0.005), (Kind::Bf16, 0.04), (Kind::Int8Weights, 0.04), (Kind::Int4Weights, 0.3)] {
            let prepared = made(&model, &samples, kind, Target::Any);
            let error = prepared.report.measured.as_ref().unwrap().relative_rms;
            prop_assert!(error > 0.0 && error < most, "{kind:?}: {error}");
        }
    }
}

#[test]
fn biases_beside_which_products_are_nothing_are_kept() {
    let model = network(&[Step::Conv { relu: true, depthwise: false }, Step::Gate], 3);
    for range in [1e-6, 1e-12, 1e-20] {
        let samples = samples_within(&model, 3, range);
        for target in Target::ALL {
            let prepared = made(&model, &samples, Kind::Int8, target);
            let error = prepared.report.measured.as_ref().unwrap().relative_rms;
            assert!(error < 0.05, "{target:?}, {range}: {error}");
        }
    }
}

#[test]
fn the_bias_behind_a_product_is_whole_where_values_have_zero_points() {
    let mut draw = Draw(5);
    let (inputs, outputs) = (CHANNELS * SIDE * SIDE, 7);
    for (dims, copied) in [(vec![outputs], false), (vec![1, outputs], false), (vec![outputs], true)] {
        // Exporters store equal tensors once, and copy them.
        let bias = if copied { "copy" } else { "b" };
        let model = TestModel::new(17)
            .input("x", &[1, CHANNELS as i64, SIDE as i64, SIDE as i64])
            .node("Flatten", &["x"], "flat", vec![int("axis", 1)])
            .floats("w", &[inputs, outputs], &draw.many(inputs * outputs, 0.1))
            .floats("b", &dims, &draw.many(outputs, 0.5))
            .node("Identity", &["b"], "copy", vec![])
            .node("MatMul", &["flat", "w"], "product", vec![])
            .node("Add", &["product", bias], "y", vec![])
            .output("y");
        let model = Model::from_bytes(model.proto.encode_to_vec().into()).unwrap();
        let samples = samples(&model, 5);
        for target in Target::ALL {
            let prepared = made(&model, &samples, Kind::Int8, target);
            let error = prepared.report.measured.as_ref().unwrap().relative_rms;
            assert!(error < 0.02, "{target:?}: {error}");
            let stored = &prepared.proto.graph.as_ref().unwrap().initializer;
            let shape: Vec<i64> = dims.iter().map(|size| *size as i64).collect();
            let is_bias = |tensor: &TensorProto| tensor.data_type == DataType::Int32 as i32 && tensor.dims == shape;
            let own = stored.iter().any(|tensor| is_bias(tensor) && tensor.name.ends_with("_bias_quantized"));
            assert_eq!(own, target.has_zero_points(), "{target:?}");
        }
    }
}
