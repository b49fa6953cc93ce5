//! Whole models by kernels of ours alone, run on the host thread by thread and held to the reference operators: what
//! lowering, placement in memory, packing of weights and code generation make of a real architecture, without a GPU.
//!
//! `PLANFORGE_EMULATED_MODELS=resnet50,bert-base` takes others of the generated models; those take minutes each.
#![expect(clippy::print_stderr, reason = "says what was tested")]

mod emulator;

use emulator::{
    Emulator,
    host::{Host, kernels},
};
use planforge_cuda::{lower::lower, view::Kind};
use planforge_graph::{
    interpreter,
    ir::{ElementType, Tensor},
};
use planforge_modelgen::Options;
use planforge_passes::Target;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::{collections::BTreeMap, time::Instant};

/// Largest relative root mean square error of an output with halves between.
const BOUND: f64 = 1e-2;

fn check(emulator: &Emulator, name: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.onnx");
    planforge_modelgen::generate(name, &Options::default(), &path).expect("the model is written");
    let model = planforge_onnx::Model::open(&path).expect("the model is read");
    let graph = planforge_import::import(&model, None).expect("the model is imported");
    let mut random = StdRng::seed_from_u64(7);
    let inputs: BTreeMap<String, Tensor> = graph
        .inputs
        .iter()
        .map(|&id| {
            let value = graph.value(id);
            let shape = graph.static_shape(id).expect("a generated model has known shapes");
            let count: usize = shape.iter().product();
            let tensor = match value.element {
                ElementType::F32 => {
                    Tensor::from_vec(shape, (0..count).map(|_| random.random_range(-1.0f32..1.0)).collect())
                }
                _ => Tensor::from_vec(shape, (0..count).map(|_| random.random_range(0..2i64)).collect()),
            };
            (value.name.clone(), tensor.expect("as many values as the shape says"))
        })
        .collect();
    let begin = Instant::now();
    let expected = interpreter::execute(&graph, &inputs).expect("the reference computes it");
    eprintln!("{name}: reference in {:.1} s", begin.elapsed().as_secs_f64());
    let graph = planforge_passes::pipeline(graph, Target::default()).expect("the passes keep the graph").graph;
    let lowered = lower(&graph, Kind::F16).expect("every node has device code");
    let program = &lowered.program;
    let begin = Instant::now();
    let mut host = Host::new(emulator, program, &lowered.weights, &inputs);
    for step in &program.steps {
        let choice = kernels(program, step);
        let (kernel, as_) =
            choice.first().unwrap_or_else(|| panic!("{name}: no kernel of ours computes {}", step.name));
        host.run(step, kernel, *as_).unwrap_or_else(|error| panic!("{name}, {}: {error}", step.name));
    }
    for (number, edge) in program.outputs.iter().enumerate() {
        let expected = expected[&edge.name].to_f64s();
        let got = host.output(number).to_f64s();
        let squares: f64 = expected.iter().map(|x| x * x).sum();
        let differences: f64 = got.iter().zip(&expected).map(|(a, b)| (a - b) * (a - b)).sum();
        let error = (differences / squares.max(1e-30)).sqrt();
        eprintln!(
            "{name}: {} steps in {:.1} s, relative error of {} {error:.1e}",
            program.steps.len(),
            begin.elapsed().as_secs_f64(),
            edge.name
        );
        assert!(error < BOUND, "{name}: relative error of {} {error:e}", edge.name);
    }
}

#[test]
fn whole_models() {
    let Some(emulator) = Emulator::new() else { return };
    let names = std::env::var("PLANFORGE_EMULATED_MODELS").unwrap_or_else(|_| "digits".into());
    names.split(',').for_each(|name| check(&emulator, name));
}
