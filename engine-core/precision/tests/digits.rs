//! The trained digits, plain and with planted outlier channels: what every method loses of their accuracy.

#![expect(clippy::print_stdout, reason = "what was lost is shown: in CI, and with --no-capture")]

use planforge_identity::npz;
use planforge_onnx::Model;
use planforge_precision::{
    Budget, Kind, Method, Options, PrecisionError, Prepared, Reference, Runner, Samples, Session, Target, ports,
    prepare,
};
use planforge_types::{NamedTensors, OptimizationProfile};
use prost::Message as _;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

fn examples(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").join(file)
}

fn plain() -> Model {
    Model::open(&examples("digits.onnx")).unwrap()
}

/// By how much planted channels are larger: a power of two, so that nothing is rounded.
const FACTOR: f32 = 256.0;
/// Outliers that the model survives in some of its layers.
const MILD: f32 = 32.0;

/// The same function with channels much larger than the others, and readers that make up for it.
fn planted(factor: f32) -> Model {
    let mut proto = plain().proto;
    let graph = proto.graph.as_mut().unwrap();
    let mut scale = |name: &str, factor: &dyn Fn(usize, &[i64]) -> f32| {
        let tensor = graph.initializer.iter_mut().find(|tensor| tensor.name == name).unwrap();
        let dims = tensor.dims.clone();
        let values =
            tensor.raw_data.chunks_exact(4).enumerate().flat_map(|(at, four)| {
                (f32::from_le_bytes(four.try_into().unwrap()) * factor(at, &dims)).to_le_bytes()
            });
        tensor.raw_data = values.collect::<Vec<u8>>().into();
    };
    for (layer, reader, channels) in
        [("conv1", "conv2", &[3, 11][..]), ("conv2", "fc1", &[5, 20]), ("fc1", "fc2", &[7])]
    {
        let larger = |large: bool| if large { factor } else { 1.0 };
        scale(&format!("{layer}.bias"), &|at, dims| {
            assert_eq!(dims.len(), 1);
            larger(channels.contains(&at))
        });
        let plain = plain();
        let outputs =
            plain.graph().initializer.iter().find(|t| t.name == format!("{layer}.bias")).unwrap().dims[0] as usize;
        scale(&format!("{layer}.weight"), &|at, dims| {
            let row: i64 = dims[1..].iter().product();
            larger(channels.contains(&(at / row as usize)))
        });
        scale(&format!("{reader}.weight"), &|at, dims| {
            let row = dims[1..].iter().product::<i64>() as usize;
            1.0 / larger(channels.contains(&(at % row / (row / outputs))))
        });
    }
    Model::from_bytes(proto.encode_to_vec().into()).unwrap()
}

#[test]
fn planting_changes_nothing() {
    let (plain, planted) = (plain(), planted(FACTOR));
    let samples = samples(&plain);
    let kept = Options { equalize: false, ..Options::new(Kind::Int8Weights, Target::Any) };
    let top1 = |model: &Model| {
        prepare(model, None, Some(&samples), &kept, &Reference).unwrap().report.measured.unwrap().top1_before
    };
    assert_eq!(top1(&plain), top1(&planted));
}

fn samples(model: &Model) -> Samples {
    Samples::fit(npz::read(&examples("digits-test.npz")).unwrap(), &ports(model)).unwrap()
}

fn made(model: &Model, options: &Options) -> Prepared {
    let samples = samples(model);
    prepare(model, Some(&samples.thinned(150)), Some(&samples), options, &Reference).unwrap()
}

/// Points of top-1 that are lost.
fn lost(prepared: &Prepared) -> f64 {
    let measured = prepared.report.measured.as_ref().unwrap();
    100.0 * (measured.top1_before.unwrap() - measured.top1_after.unwrap())
}

fn per_tensor() -> Options {
    Options {
        method: Method::MinMax,
        per_tensor: true,
        equalize: false,
        correct_bias: false,
        ..Options::new(Kind::Int8, Target::Any)
    }
}

#[test]
fn outlier_channels_ruin_one_scale_a_tensor_and_not_the_default() {
    let planted = planted(FACTOR);
    let ruined = lost(&made(&planted, &per_tensor()));
    assert!(ruined > 5.0, "min-max per tensor loses {ruined} points");
    for target in Target::ALL {
        let prepared = made(&planted, &Options::new(Kind::Int8, target));
        let lost = lost(&prepared);
        assert!(lost <= 0.5, "{target:?}: the default loses {lost} points");
        assert_eq!(prepared.report.coverage.layers_lowered, 4, "{target:?}");
        assert!(!prepared.report.equalized.is_empty());
    }
    println!("planted: min-max per tensor loses {ruined:.2} points");
}

#[test]
fn every_method_keeps_the_plain_model() {
    let model = plain();
    for method in Method::ALL {
        let prepared = made(&model, &Options { method, ..Options::new(Kind::Int8, Target::Any) });
        let measured = prepared.report.measured.clone().unwrap();
        println!("plain {}: {:.2} points, relative rms {:.4}", method.name(), lost(&prepared), measured.relative_rms);
        assert!(lost(&prepared) <= 0.5, "{method:?}");
        assert!(measured.relative_rms < 0.2, "{method:?}: {}", measured.relative_rms);
        assert_eq!((measured.rows, measured.top1_before), (450, Some(445.0 / 450.0)));
    }
}

#[test]
fn typed_and_weight_only_models_are_near() {
    let kinds = [(Kind::Fp16, 0.01), (Kind::Bf16, 0.03), (Kind::Int8Weights, 0.05), (Kind::Int4Weights, 0.2)];
    // Four bits have no room for outliers among weights, which are not evened out without data.
    for (model, kinds) in [(plain(), &kinds[..]), (planted(MILD), &kinds[..3])] {
        for &(kind, most) in kinds {
            let prepared = made(&model, &Options::new(kind, Target::Any));
            let measured = prepared.report.measured.clone().unwrap();
            println!("{}: {:.2} points, relative rms {:.5}", kind.name(), lost(&prepared), measured.relative_rms);
            assert!(measured.relative_rms > 0.0 && measured.relative_rms < most, "{kind:?}: {}", measured.relative_rms);
            assert!(lost(&prepared) <= 0.5, "{kind:?}");
            let bytes = |of: &std::collections::BTreeMap<String, u64>| of.values().sum::<u64>();
            assert!(bytes(&prepared.report.bytes_after) < bytes(&prepared.report.bytes_before), "{kind:?}");
        }
    }
}

#[test]
fn a_budget_returns_the_layers_that_harm_most() {
    let planted = planted(MILD);
    let options = Options { budget: Some(Budget::AccuracyDrop(0.5)), ..per_tensor() };
    let prepared = made(&planted, &options);
    assert!(lost(&prepared) <= 0.5);
    let coverage = &prepared.report.coverage;
    assert!(coverage.layers_lowered >= 1 && coverage.layers_lowered < 4, "{coverage:?}");
    let returned = prepared.report.layers.iter().find(|layer| layer.precision == "fp32").unwrap();
    assert!(returned.why.starts_with("returned by the budget") && returned.harm.unwrap() > 0.0, "{returned:?}");
    assert!(!prepared.report.answers.is_empty());
    // The file says the same as the report.
    let written = Model::from_bytes(prepared.proto.encode_to_vec().into()).unwrap();
    let trips = written.graph().node.iter().filter(|node| node.op_type == "QuantizeLinear").count();
    assert!(trips >= 1);
}

#[test]
fn a_prepared_model_is_honoured() {
    let prepared = made(&plain(), &Options::new(Kind::Int8, Target::Any));
    let again = Model::from_bytes(prepared.proto.encode_to_vec().into()).unwrap();
    let left = made(&again, &Options::new(Kind::Int8, Target::Any));
    assert_eq!(left.proto, again.proto);
    assert_eq!(left.report.findings[0].code, "already-quantized");
}

/// The reference, on a machine where int8 saves ten microseconds of every layer but one, of which it saves others.
struct Machine {
    layer: String,
    saved_us: f64,
}

impl Runner for Machine {
    fn name(&self) -> String {
        Reference.name()
    }

    fn open(
        &self,
        model: &Model,
        profile: Option<&OptimizationProfile>,
        watched: &BTreeSet<String>,
        runs: usize,
    ) -> Result<Box<dyn Session>, PrecisionError> {
        Reference.open(model, profile, watched, runs)
    }

    fn node_us(
        &self,
        model: &Model,
        _: Option<&OptimizationProfile>,
        _: &NamedTensors,
    ) -> Option<BTreeMap<String, f64>> {
        let int8 = model.graph().node.iter().any(|node| node.op_type == "QuantizeLinear");
        let saved = |name: &str| if name == self.layer { self.saved_us } else { 10.0 };
        let us = |name: &str| if int8 { 100.0 - saved(name) } else { 100.0 };
        Some(model.graph().node.iter().map(|node| (node.name.clone(), us(&node.name))).collect())
    }
}

#[test]
fn a_budget_weighs_the_time_that_int8_saves_on_the_machine_it_is_for() {
    let planted = planted(MILD);
    let data = samples(&planted).thinned(50);
    let options = Options { target: Target::Cpu, ..per_tensor() };
    let whole = prepare(&planted, Some(&data), None, &options, &Reference).unwrap();
    let budget = Some(Budget::OutputError(whole.report.measured.unwrap().relative_rms * 0.999));
    let options = Options { budget, ..options };
    let returned = |runner: &dyn Runner| -> Vec<(String, Option<f64>)> {
        let prepared = prepare(&planted, Some(&data), None, &options, runner).unwrap();
        let layers = prepared.report.layers.into_iter().filter(|layer| layer.precision == "fp32");
        layers.map(|layer| (layer.name, layer.saved_us)).collect()
    };
    let by_multiplications = returned(&Reference);
    assert!(by_multiplications.iter().all(|(_, us)| us.is_none()), "{by_multiplications:?}");
    let layer = by_multiplications[0].0.clone();
    // Where int8 hardly makes it any faster it returns before all others, where it saves most it stays.
    let slow = Machine { layer: layer.clone(), saved_us: 1e-4 };
    assert_eq!(returned(&slow)[0].0, layer);
    let fast = Machine { layer: layer.clone(), saved_us: 99.0 };
    let others = returned(&fast);
    assert!(others.iter().all(|(name, us)| *name != layer && *us == Some(10.0)), "{others:?}, not {layer}");
}
