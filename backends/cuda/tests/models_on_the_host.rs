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
    ir::{Activation, Conv, ElementType, Epilogue, Graph, Node, Op, Output, Tensor, ValueId},
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

/// Layers that each read all before them, in one memory: of padded and of aligned channels.
#[test]
fn a_dense_block() {
    let Some(emulator) = Emulator::new() else { return };
    for (channels, grown) in [(16, 8), (5, 3)] {
        let mut graph = Graph::default();
        let mut random = StdRng::seed_from_u64(11);
        let mut weights = |graph: &mut Graph, shape: [usize; 4]| {
            let values = (0..shape.iter().product::<usize>()).map(|_| random.random_range(-0.2f32..0.2)).collect();
            graph.add_constant("w", Tensor::from_vec(shape.to_vec(), values).expect("as many as the shape says"))
        };
        let node = |graph: &mut Graph, op: Op, inputs: &[ValueId], channels: usize| {
            let out = graph.add_value("value", ElementType::F32, &[1, channels, 6, 6]);
            let inputs = inputs.iter().copied().map(Some).collect();
            graph.nodes.push(Node { op, inputs, outputs: vec![out], origins: vec![format!("{}", out.index())] });
            out
        };
        let conv = || {
            let (strides, dilations) = (vec![1; 2], vec![1; 2]);
            Op::Conv(Conv { strides, pads: vec![1; 4], dilations, groups: 1, epilogue: Epilogue::default() })
        };
        let x = graph.add_value("x", ElementType::F32, &[1, channels, 6, 6]);
        graph.inputs.push(x);
        let w = weights(&mut graph, [channels, channels, 3, 3]);
        let mut parts = vec![node(&mut graph, conv(), &[x, w], channels)];
        // The input itself lies elsewhere and is copied.
        parts.push(x);
        for layer in 0..4 {
            let count = 2 * channels + layer * grown;
            let joined = node(&mut graph, Op::Concat { axis: 1 }, &parts, count);
            let active = node(&mut graph, Op::Activation(Activation::Relu), &[joined], count);
            let w = weights(&mut graph, [grown, count, 3, 3]);
            parts.push(node(&mut graph, conv(), &[active, w], grown));
        }
        let all = 2 * channels + 4 * grown;
        let joined = node(&mut graph, Op::Concat { axis: 1 }, &parts, all);
        let y = node(&mut graph, Op::Activation(Activation::Sigmoid), &[joined], all);
        graph.outputs.push(Output { name: "y".into(), value: y });
        check_graph(&emulator, "a dense block", graph);
    }
}

#[test]
fn whole_models() {
    let Some(emulator) = Emulator::new() else { return };
    let names = std::env::var("PLANFORGE_EMULATED_MODELS").unwrap_or_else(|_| "digits".into());
    names.split(',').for_each(|name| check(&emulator, name));
}
