//! Steps of decoders by kernels of ours, run on the host thread by thread, several in a row on the same memory: caches are
//! changed in place, and what comes out is what the reference operators give that are handed every cache anew.
#![expect(clippy::print_stderr, reason = "says what was tested")]

mod emulator;

use emulator::{
    Emulator,
    host::{Host, kernels},
};
use planforge_cuda::{
    build::target,
    lower::{Lowered, lower},
    program::{Program, Step, Work},
    view::Kind,
};
use planforge_graph::{
    interpreter,
    ir::{Graph, Tensor},
};
use planforge_modelgen::{Options, Precision};
use std::collections::BTreeMap;

/// Largest relative root mean square error of the scores with halves between.
const BOUND: f64 = 2e-2;

/// The graph of a decoder's step as it is in its file.
fn imported(name: &str, precision: Precision) -> Graph {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.onnx");
    let options = Options { precision, ..Options::default() };
    planforge_modelgen::generate(name, &options, &path).expect("the model is written");
    let model = planforge_onnx::Model::open(&path).expect("the model is read");
    planforge_import::import(&model, None).expect("the model is imported")
}

fn lowered(graph: &Graph, kind: Kind) -> Lowered {
    let optimized = planforge_passes::pipeline(graph.clone(), target(graph)).expect("the passes keep the graph");
    let lowered = lower(&optimized.graph, kind).expect("every node has device code");
    lowered.program.check().expect("the program holds together");
    lowered
}

fn numbers(shape: &[usize], value: i64) -> Tensor {
    Tensor::from_vec(shape.to_vec(), vec![value; shape.iter().product()]).expect("as many as the shape says")
}

/// Inputs of a first step: caches of what may lie in memory.
fn first(graph: &Graph) -> BTreeMap<String, Tensor> {
    let of = |id| {
        let value = graph.value(id);
        let shape: Vec<usize> = graph.static_shape(id).expect("a step has known shapes");
        let tensor = match value.name.as_str() {
            "token" => numbers(&shape, 3),
            "position" => numbers(&shape, 0),
            _ => {
                let count = shape.iter().product::<usize>();
                let bytes = vec![0; count * value.element.bytes()];
                Tensor::new(value.element, shape, bytes.into()).expect("as many bytes as the shape says")
            }
        };
        (value.name.clone(), tensor)
    };
    graph.inputs.iter().map(|&id| of(id)).collect()
}

fn error(got: &Tensor, expected: &Tensor) -> f64 {
    let (got, expected) = (got.to_f64s(), expected.to_f64s());
    let squares: f64 = expected.iter().map(|x| x * x).sum();
    let differences: f64 = expected.iter().zip(&got).map(|(a, b)| (a - b) * (a - b)).sum();
    (differences / squares.max(1e-30)).sqrt()
}

/// Runs `steps` steps from `position` on, every kernel with a choice by its number `choice`.
fn decode(
    emulator: &Emulator,
    name: &str,
    precision: Precision,
    kind: Kind,
    (position, steps): (i64, i64),
    choice: usize,
) {
    let graph = imported(name, precision);
    let Lowered { program, weights } = lowered(&graph, kind);
    let mut inputs = first(&graph);
    let mut host = Host::new(emulator, &program, &weights, &inputs);
    let mut token = 3;
    let mut worst: f64 = 0.0;
    for position in position..position + steps {
        for (name, value) in [("token", token), ("position", position)] {
            let shape = inputs[name].shape().to_vec();
            inputs.insert(name.into(), numbers(&shape, value));
            let number = program.inputs.iter().position(|edge| edge.name == name).expect("there is such an input");
            host.inputs[number].put(inputs[name].bytes());
        }
        let mut expected = interpreter::execute(&graph, &inputs).expect("the reference computes it");
        for step in &program.steps {
            let choices = kernels(&program, step);
            let (kernel, as_) = &choices[choice.min(choices.len() - 1)];
            host.run(step, kernel, *as_).unwrap_or_else(|error| panic!("{name}, {}: {error}", step.name));
        }
        for (number, edge) in program.outputs.iter().enumerate() {
            let (got, expected) = (host.output(number), &expected[&edge.name]);
            if edge.name == "next_token" {
                continue;
            }
            let error = error(&got, expected);
            assert!(error < BOUND, "{name} {kind:?} at {position}: relative error of {} {error:e}", edge.name);
            worst = worst.max(error);
        }
        token = expected["next_token"].to_f64s()[0] as i64;
        for (input, output) in program.state_names() {
            let cache = expected.remove(output).expect("there is such an output");
            inputs.insert(input.to_owned(), cache);
        }
    }
    eprintln!("{name} {kind:?} choice {choice}: {} steps of a program, worst error {worst:.1e}", program.steps.len());
}

#[test]
fn tokens_are_decoded_in_place() {
    let Some(emulator) = Emulator::new() else { return };
    for name in ["gpt2-tiny-step", "llama-tiny-step"] {
        decode(&emulator, name, Precision::Fp16, Kind::F16, (0, 3), 0);
        // At the end of the caches, and behind what was never written.
        decode(&emulator, name, Precision::Fp16, Kind::F16, (46, 2), 1);
        decode(&emulator, name, Precision::Fp32, Kind::F32, (0, 2), 2);
    }
}

#[test]
fn every_tile_of_products_of_one_row_gives_the_same() {
    let Some(emulator) = Emulator::new() else { return };
    for name in ["gpt2-tiny-step", "llama-tiny-step"] {
        let Lowered { program, .. } = lowered(&imported(name, Precision::Fp16), Kind::F16);
        let most = program.steps.iter().map(|step| kernels(&program, step).len()).max().unwrap_or(0);
        for choice in 3..most {
            decode(&emulator, name, Precision::Fp16, Kind::F16, (0, 1), choice);
        }
    }
}

/// Steps beside attention that touch the memory of a state.
fn others_at_states(program: &Program) -> Vec<&str> {
    let states: Vec<_> = program.states.iter().map(|state| program.inputs[state.input as usize].buffer).collect();
    let touches = |step: &&Step| {
        let (read, written) = step.work.views();
        read.into_iter().chain([written]).any(|view| states.contains(&view.buffer))
    };
    let others = program.steps.iter().filter(|step| !matches!(step.work, Work::OneToken(_)));
    others.filter(touches).map(|step| step.name.as_str()).collect()
}

#[test]
fn no_step_goes_through_a_whole_cache_but_attention() {
    for (name, layers) in [("gpt2-tiny-step", 2), ("llama-tiny-step", 2)] {
        let graph = imported(name, Precision::Fp16);
        let Lowered { program, .. } = lowered(&graph, Kind::F16);
        for step in &program.steps {
            eprintln!("{name}: {:<20} {}", step.work.kind(), step.name);
        }
        assert_eq!(program.states.len(), 2 * layers, "{name}");
        let kind = |step: &&Step| step.work.kind() == "one_token_attention";
        let attentions: Vec<_> = program.steps.iter().filter(kind).collect();
        assert_eq!(attentions.len(), layers, "{name}");
        for step in attentions {
            assert_eq!(step.work.updates().len(), 2, "{name}: {} appends what is new", step.name);
        }
        assert!(others_at_states(&program).is_empty(), "{name}: {:?}", others_at_states(&program));
    }
}
