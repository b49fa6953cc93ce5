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
    ir::{ElementType, Graph, Tensor},
};
use planforge_import::testing::{TestModel, int, ints, numbers, text};
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
    check_graph(emulator, name, planforge_import::import(&model, None).expect("the model is imported"));
}

fn check_graph(emulator: &Emulator, name: &str, graph: Graph) {
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

/// Layers that each read all before them, in one memory: of padded and of aligned channels, and read there by all kinds of
/// operators besides.
#[test]
fn a_dense_block() {
    let Some(emulator) = Emulator::new() else { return };
    for (channels, grown) in [(16, 8), (5, 3)] {
        let axis = |axis: i64| vec![int("axis", axis)];
        let weights = |model: TestModel, name: &str, of: [usize; 4]| {
            let small: Vec<f32> = numbers(of.iter().product()).iter().map(|value| value / 8.0).collect();
            model.floats(name, &of, &small)
        };
        let mut model = TestModel::new(17).input("x", &[1, channels as i64, 6, 6]);
        model = weights(model, "w", [channels, channels, 3, 3]);
        model = model.node("Conv", &["x", "w"], "p0", vec![ints("pads", &[1; 4])]);
        // The input itself lies elsewhere and is copied.
        let mut parts = vec!["p0".to_owned(), "x".to_owned()];
        for layer in 0..2 {
            let count = 2 * channels + layer * grown;
            let [joined, active, part, w] = ["j", "a", "p", "w"].map(|name| format!("{name}{}", layer + 1));
            model = weights(model, &w, [grown, count, 3, 3]);
            let names: Vec<&str> = parts.iter().map(String::as_str).collect();
            model = model.node("Concat", &names, &joined, axis(1)).node("Relu", &[&joined], &active, vec![]);
            model = model.node("Conv", &[&active, &w], &part, vec![ints("pads", &[1; 4])]);
            parts.push(part);
        }
        let names: Vec<&str> = parts.iter().map(String::as_str).collect();
        model = model.node("Concat", &names, "whole", axis(1)).node("Sigmoid", &["whole"], "y", vec![]).output("y");
        let middle = ["p1", "p2"];
        model = model.node("Concat", &middle, "middle", axis(1)).node("Tanh", &["middle"], "t", vec![]).output("t");
        // Each of a concatenation that lies inside of the longest.
        model = weights(model, "v", [8, 2 * channels + grown, 1, 1]);
        model = model
            .floats("twice", &[4], &[1.0, 1.0, 2.0, 2.0])
            .longs("rows", &[(2 * channels + grown) as i64, 36])
            .floats("m", &[36, 4], &numbers(36 * 4))
            .node("Conv", &["j2", "v"], "strided", vec![ints("strides", &[2; 2])])
            .node("MaxPool", &["j1"], "pooled", vec![ints("kernel_shape", &[2; 2]), ints("strides", &[2; 2])])
            .node("GlobalAveragePool", &["j2"], "mean", vec![])
            .node("Softmax", &["j2"], "soft", axis(1))
            .node("Resize", &["j1", "", "twice"], "large", vec![text("mode", "nearest")])
            .node("Reshape", &["j2", "rows"], "flat", vec![])
            .node("MatMul", &["flat", "m"], "product", vec![])
            .node("Transpose", &["j2"], "turned", vec![ints("perm", &[0, 2, 3, 1])])
            .node("ReduceMax", &["j2"], "most", vec![ints("axes", &[1])]);
        for output in ["strided", "pooled", "mean", "soft", "large", "product", "turned", "most"] {
            model = model.output(output);
        }
        check_graph(&emulator, "a dense block", model.import());
    }
}

#[test]
fn whole_models() {
    let Some(emulator) = Emulator::new() else { return };
    let names = std::env::var("PLANFORGE_EMULATED_MODELS").unwrap_or_else(|_| "digits".into());
    names.split(',').for_each(|name| check(&emulator, name));
}
