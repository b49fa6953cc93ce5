//! Steps of decoders by kernels of ours, run on the host thread by thread, several in a row on the same memory: caches are
//! changed in place, and what comes out is what the reference operators give that are handed every cache anew.
#![expect(clippy::print_stderr, reason = "says what was tested")]

mod emulator;
mod one_row;

use emulator::{
    Emulator,
    host::{Host, kernels},
};
use planforge_cuda::{
    build::target,
    codegen::gemm,
    lower::{Lowered, chain, heads, lower},
    program::{Program, Step, Work},
    tune::{Effort, forms},
    view::Kind,
};
use planforge_graph::{
    interpreter,
    ir::{Graph, Tensor},
};
use planforge_modelgen::{Options, Precision};
use planforge_onnx::proto::{
    AttributeProto, GraphProto, NodeProto, attribute_proto::AttributeType, tensor_proto::DataType,
};
use planforge_types::{HostTensor, OptimizationProfile};
use prost::Message as _;
use std::collections::BTreeMap;

/// Largest relative root mean square error of the scores with halves between.
const BOUND: f64 = 2e-2;

/// A step of a decoder, and what is done to its file.
#[derive(Clone, Copy)]
struct Model {
    name: &'static str,
    precision: Precision,
    rewrite: fn(&mut GraphProto),
}

/// The graph of a decoder's step as it is in its file.
fn imported(name: &'static str, precision: Precision) -> Graph {
    rewritten(Model { name, precision, rewrite: |_| {} }, None)
}

fn rewritten(Model { name, precision, rewrite }: Model, profile: Option<&OptimizationProfile>) -> Graph {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.onnx");
    let options = Options { precision, ..Options::default() };
    planforge_modelgen::generate(name, &options, &path).expect("the model is written");
    let mut proto = planforge_onnx::Model::open(&path).expect("the model is read").proto;
    rewrite(proto.graph.as_mut().expect("there is a graph"));
    let model = planforge_onnx::Model::from_bytes(proto.encode_to_vec().into()).expect("the model is read again");
    planforge_import::import(&model, profile).expect("the model is imported")
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
fn decode(emulator: &Emulator, name: &'static str, precision: Precision, kind: Kind, steps: (i64, i64), choice: usize) {
    decode_as(emulator, Model { name, precision, rewrite: |_| {} }, kind, steps, choice);
}

fn decode_as(emulator: &Emulator, model: Model, kind: Kind, steps: (i64, i64), choice: usize) {
    let graph = rewritten(model, None);
    let lowered = lowered(&graph, kind);
    decode_by(emulator, model.name, &graph, &lowered, steps, choice);
}

/// The same with a program that was lowered from the graph.
fn decode_by(
    emulator: &Emulator,
    name: &str,
    graph: &Graph,
    Lowered { program, weights }: &Lowered,
    (position, steps): (i64, i64),
    choice: usize,
) {
    let mut inputs = first(graph);
    let mut host = Host::new(emulator, program, weights, &inputs);
    let mut token = 3;
    let mut worst: f64 = 0.0;
    for position in position..position + steps {
        for (name, value) in [("token", token), ("position", position)] {
            let shape = inputs[name].shape().to_vec();
            inputs.insert(name.into(), numbers(&shape, value));
            let number = program.inputs.iter().position(|edge| edge.name == name).expect("there is such an input");
            host.inputs[number].put(inputs[name].bytes());
        }
        let mut expected = interpreter::execute(graph, &inputs).expect("the reference computes it");
        for step in &program.steps {
            let choices = kernels(program, step);
            let (kernel, as_) = &choices[choice.min(choices.len() - 1)];
            host.run(step, kernel, *as_).unwrap_or_else(|error| panic!("{name}, {}: {error}", step.name));
        }
        for (number, edge) in program.outputs.iter().enumerate() {
            let (got, expected) = (host.output(number), &expected[&edge.name]);
            if edge.name == "next_token" {
                continue;
            }
            let error = error(&got, expected);
            assert!(error < BOUND, "{name} at {position}: relative error of {} {error:e}", edge.name);
            worst = worst.max(error);
        }
        token = expected["next_token"].to_f64s()[0] as i64;
        for (input, output) in program.state_names(false) {
            let cache = expected.remove(&output).expect("there is such an output");
            inputs.insert(input, cache);
        }
    }
    eprintln!("{name} choice {choice}: {} steps of a program, worst error {worst:.1e}", program.steps.len());
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
fn a_head_in_one_kernel_gives_the_same_tokens() {
    let Some(emulator) = Emulator::new() else { return };
    let device = gemm::Device { capability: 90, sm_count: 132, shared_block_bytes: 227 * 1024 };
    for (name, heads) in [("gpt2-tiny-step", 2), ("llama-tiny-step", 0)] {
        let graph = imported(name, Precision::Fp16);
        let Lowered { program, weights } = lowered(&graph, Kind::F16);
        let older = heads::fused(&program, gemm::Device { capability: 80, ..device });
        assert!(older.is_none(), "{name}: a device without clusters has no such kernel");
        let fused = heads::fused(&program, device);
        assert_eq!(fused.is_some(), heads > 0, "{name}");
        let forms = |level: u8| forms(&program, device, Effort::of_level(level)).len();
        assert_eq!(
            [forms(0), forms(3)],
            [1, 1 + usize::from(heads > 0)],
            "{name}: both are compared where anything is"
        );
        let Some(program) = fused else { continue };
        program.check().expect("the program holds together");
        let count = |kind: &str| program.steps.iter().filter(|step| step.work.kind() == kind).count();
        assert_eq!([count("heads"), count("join_parts"), count("one_token_attention")], [heads, 0, 0], "{name}");
        let lowered = Lowered { program, weights };
        for (steps, choice) in [((0, 3), 0), ((46, 2), 1)] {
            decode_by(&emulator, name, &graph, &lowered, steps, choice);
        }
    }
}

#[test]
fn a_row_as_sums_gives_the_same_tokens() {
    let Some(emulator) = Emulator::new() else { return };
    let device = gemm::Device { capability: 90, sm_count: 132, shared_block_bytes: 227 * 1024 };
    for (name, layers) in [("gpt2-tiny-step", 2), ("llama-tiny-step", 0)] {
        let graph = imported(name, Precision::Fp16);
        let Lowered { program, weights } = lowered(&graph, Kind::F16);
        let heads = heads::fused(&program, device);
        let fused = heads.and_then(|program| chain::fused(&program, device));
        assert_eq!(fused.is_some(), layers > 0, "{name}");
        let Some(program) = fused else { continue };
        program.check().expect("the program holds together");
        let count = |kind: &str| program.steps.iter().filter(|step| step.work.kind() == kind).count();
        let kinds = ["clear_sums", "heads_and_gemm", "gemm_pair", "gemm_of_sums", "heads", "gemm"].map(count);
        assert_eq!(kinds, [1, layers, layers, 1, 0, 0], "{name}");
        let written = serde_json::to_string(&program).expect("a program has only JSON types");
        assert_eq!(serde_json::from_str::<Program>(&written).expect("it was written by us"), program);
        let forms = forms(&program, device, Effort::of_level(3));
        assert_eq!(forms.len(), 1, "{name}: there is no other form of it");
        let lowered = Lowered { program, weights };
        for (steps, choice) in [((0, 3), 0), ((46, 2), 1)] {
            decode_by(&emulator, name, &graph, &lowered, steps, choice);
        }
    }
}

/// Row and sum have the same elements, one of them behind one more dimension of one.
#[test]
fn a_row_that_is_looked_up_for_a_sum_has_no_step_of_its_own() {
    let Lowered { program, .. } = lowered(&imported("gpt2-tiny-step", Precision::Fp16), Kind::F16);
    let of_origin = |name: &str| program.steps.iter().position(|step| step.origins.iter().any(|origin| origin == name));
    let found = [of_origin("/positions/Gather"), of_origin("/positions/Add")];
    assert!(found[0].is_some() && found[0] == found[1], "{found:?}");
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

fn node(op: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        name: format!("{op}:{output}"),
        op_type: op.into(),
        input: inputs.iter().map(|input| (*input).to_owned()).collect(),
        output: vec![output.into()],
        attribute,
        ..NodeProto::default()
    }
}

fn cast(from: &str, to: &str, element: DataType) -> NodeProto {
    let r#type = AttributeType::Int.into();
    let to_ = AttributeProto { name: "to".into(), r#type, i: element as i64, ..AttributeProto::default() };
    node("Cast", &[from], to, vec![to_])
}

/// What is new is chosen where a place is the token's, as exporters write caches of a fixed length.
fn by_choice(graph: &mut GraphProto) {
    let r#type = AttributeType::Ints.into();
    let perm = AttributeProto { name: "perm".into(), r#type, ints: vec![0, 1, 3, 2], ..AttributeProto::default() };
    let is_put = |node: &NodeProto| node.op_type == "ScatterElements";
    let first = graph.node.iter().position(is_put).expect("caches are written");
    for put in graph.node.iter_mut().filter(|node| is_put(node)) {
        let [cache, _, new] = put.input.as_slice() else { panic!("{} has other inputs", put.name) };
        let inputs = ["is_place", new, cache];
        *put = node("Where", &inputs, &put.output[0], vec![]);
    }
    graph.node.insert(first, node("Transpose", &["is_place_row"], "is_place", vec![perm]));
    graph.node.insert(first, node("Equal", &["all_places", "position"], "is_place_row", vec![]));
}

/// Caches of halves are written in single precision.
fn by_casts(graph: &mut GraphProto) {
    let mut nodes = Vec::new();
    for mut put in std::mem::take(&mut graph.node) {
        if put.op_type != "ScatterElements" {
            nodes.push(put);
            continue;
        }
        let [cache, _, new] = put.input.clone().try_into().expect("three inputs");
        let output = put.output[0].clone();
        let wide = |name: &str| format!("{name}_wide");
        nodes.push(cast(&cache, &wide(&cache), DataType::Float));
        nodes.push(cast(&new, &wide(&new), DataType::Float));
        (put.input[0], put.input[2], put.output[0]) = (wide(&cache), wide(&new), wide(&output));
        nodes.push(put);
        nodes.push(cast(&wide(&output), &output, DataType::Float16));
    }
    graph.node = nodes;
}

#[test]
fn caches_written_by_a_choice_or_through_casts_are_states_too() {
    type Change = fn(&mut GraphProto);
    let forms: [(&str, Change); 2] = [("Where", by_choice), ("Cast", by_casts)];
    for (form, rewrite) in forms {
        for name in ["gpt2-tiny-step", "llama-tiny-step"] {
            let graph = rewritten(Model { name, precision: Precision::Fp16, rewrite }, None);
            let Lowered { program, .. } = lowered(&graph, Kind::F16);
            assert_eq!(program.states.len(), 4, "{name} by {form}");
            assert!(program.states.iter().all(|state| state.places == Some(48)), "{name} by {form}");
            // Stored otherwise than the cache is, a conversion is one.
            let states = lowered(&graph, Kind::F32).program.states.len();
            assert_eq!(states, if form == "Cast" { 0 } else { 4 }, "{name} by {form} in f32");
        }
    }
}

#[test]
fn caches_written_by_a_choice_or_through_casts_hold_what_they_should() {
    let Some(emulator) = Emulator::new() else { return };
    for name in ["gpt2-tiny-step", "llama-tiny-step"] {
        for rewrite in [by_choice as fn(&mut GraphProto), by_casts] {
            let model = Model { name, precision: Precision::Fp16, rewrite };
            decode_as(&emulator, model, Kind::F16, (0, 2), 0);
            decode_as(&emulator, model, Kind::F16, (46, 2), 0);
        }
    }
}

/// Another reader of what was there keeps a cache from being changed in place.
#[test]
fn a_cache_that_somebody_else_reads_is_no_state() {
    fn read_twice(graph: &mut GraphProto) {
        by_choice(graph);
        let all = node("Identity", &["keys.0"], "before", vec![]);
        graph.node.push(all);
        let mut output = graph.output.iter().find(|output| output.name == "next_keys.0").expect("it is there").clone();
        output.name = "before".into();
        graph.output.push(output);
    }
    let graph = rewritten(Model { name: "gpt2-tiny-step", precision: Precision::Fp16, rewrite: read_twice }, None);
    assert_eq!(lowered(&graph, Kind::F16).program.states.len(), 3);
}

/// Shapes of a step with caches of so many places.
fn lengths(heads: usize, past: usize) -> OptimizationProfile {
    let (ids, cache) = ([1, 1], [1, heads, past, 16]);
    OptimizationProfile::of_shapes([("input_ids", &ids[..]), ("past_key_values.0.key", &cache[..])])
}

#[test]
fn a_step_with_caches_that_grow_hides_places_that_hold_nothing() {
    let Some(emulator) = Emulator::new() else { return };
    for (name, heads) in [("gpt2-tiny-past", 4), ("llama-tiny-past", 2)] {
        let (past, held) = (8, 3);
        let model = Model { name, precision: Precision::Fp16, rewrite: |_| {} };
        let graph = rewritten(model, Some(&lengths(heads, past)));
        let Lowered { program, weights } = lowered(&graph, Kind::F16);
        let of = |id| {
            let value = graph.value(id);
            let shape: Vec<usize> = graph.static_shape(id).expect("shapes are known");
            let count: usize = shape.iter().product();
            let tensor = match value.name.as_str() {
                "input_ids" => numbers(&shape, 3),
                "position_ids" => numbers(&shape, held as i64),
                "attention_mask" => {
                    let seen = (0..count).map(|place| i64::from(place >= past - held)).collect();
                    Tensor::from_vec(shape, seen).expect("as many as the shape says")
                }
                _ => {
                    let values: Vec<f64> = (0..count).map(|at| (at * 7 % 13) as f64 / 6.5 - 1.0).collect();
                    let HostTensor { element, shape, bytes } = HostTensor::of_values(value.element, shape, &values);
                    Tensor::new(element, shape, bytes.into()).expect("as many as the shape says")
                }
            };
            (value.name.clone(), tensor)
        };
        let inputs: BTreeMap<String, Tensor> = graph.inputs.iter().map(|&id| of(id)).collect();
        let host = &mut Host::new(&emulator, &program, &weights, &inputs);
        for step in &program.steps {
            let (kernel, as_) = &kernels(&program, step)[0];
            host.run(step, kernel, *as_).unwrap_or_else(|error| panic!("{name}, {}: {error}", step.name));
        }
        let expected = interpreter::execute(&graph, &inputs).expect("the reference computes it");
        for (number, edge) in program.outputs.iter().enumerate() {
            let error = error(&host.output(number), &expected[&edge.name]);
            assert!(error < BOUND, "{name}: relative error of {} {error:e}", edge.name);
        }
        // What a hidden place holds changes nothing.
        let mut emptied = inputs.clone();
        let cache = &inputs["past_key_values.0.value"];
        let mut bytes = cache.bytes().to_vec();
        bytes[..2 * (past - held) * 16].fill(0);
        emptied.insert(
            "past_key_values.0.value".into(),
            Tensor::new(cache.element(), cache.shape().to_vec(), bytes.into()).unwrap(),
        );
        let again = interpreter::execute(&graph, &emptied).expect("the reference computes it");
        assert!(error(&again["logits"], &expected["logits"]) < 1e-6, "{name}: the mask hides it");
    }
}

/// The same with what a run put behind its caches laid at a place of them.
fn kept(inputs: &mut BTreeMap<String, Tensor>, outputs: &BTreeMap<String, Tensor>, place: usize) {
    for (name, past) in inputs.iter_mut().filter(|(name, _)| name.starts_with("past_key_values")) {
        let present = &outputs[&name.replace("past_key_values", "present")];
        let [rows, before, size] = [past.shape()[1], past.shape()[2], past.shape()[3]];
        let mut values = past.to_f64s();
        let all = present.to_f64s();
        for row in 0..rows {
            let from = (row * (before + 1) + before) * size;
            values[(row * before + place) * size..][..size].copy_from_slice(&all[from..from + size]);
        }
        let HostTensor { element, shape, bytes } =
            HostTensor::of_values(past.element(), past.shape().to_vec(), &values);
        *past = Tensor::new(element, shape, bytes.into()).expect("as many as the shape says");
    }
}

#[test]
fn caches_that_grow_are_written_where_they_lie() {
    let Some(emulator) = Emulator::new() else { return };
    for (name, heads, precision, kind) in [
        ("gpt2-tiny-past", 4, Precision::Fp16, Kind::F16),
        ("llama-tiny-past", 2, Precision::Fp16, Kind::F16),
        ("gpt2-tiny-past", 4, Precision::Fp32, Kind::F16),
        ("llama-tiny-past", 2, Precision::Fp32, Kind::F32),
    ] {
        let past = 4;
        let graph = rewritten(Model { name, precision, rewrite: |_| {} }, Some(&lengths(heads, past)));
        let Lowered { program, weights } = lowered(&graph, kind);
        let said = format!("{name} {kind:?}");
        for step in &program.steps {
            eprintln!("{said}: {:<20} {}", step.work.kind(), step.name);
        }
        assert_eq!(program.states.iter().filter(|state| state.grows == Some(2)).count(), 4, "{said}");
        assert_eq!(program.states.len(), 4, "{said}");
        assert!(others_at_states(&program).is_empty(), "{said}: {:?}", others_at_states(&program));
        let mut inputs: BTreeMap<String, Tensor> = graph
            .inputs
            .iter()
            .map(|&id| {
                let (value, shape) = (graph.value(id), graph.static_shape(id).expect("shapes are known"));
                let bytes = vec![0; shape.iter().product::<usize>() * value.element.bytes()];
                (value.name.clone(), Tensor::new(value.element, shape, bytes.into()).expect("as many bytes"))
            })
            .collect();
        let mut of_host = inputs.clone();
        let mut host = Host::new(&emulator, &program, &weights, &inputs);
        for held in 0..past {
            let seen = (0..=past).map(|place| i64::from(place >= past - held)).collect();
            let seen = Tensor::from_vec(vec![1, past + 1], seen).expect("as many as the shape says");
            let given = [
                ("input_ids", numbers(&[1, 1], 3 + held as i64)),
                ("position_ids", numbers(&[1, 1], held as i64)),
                ("attention_mask", seen),
            ];
            for (name, tensor) in given {
                let number = program.inputs.iter().position(|edge| edge.name == name).expect("there is such an input");
                host.inputs[number].put(tensor.bytes());
                inputs.insert(name.into(), tensor);
            }
            let expected = interpreter::execute(&graph, &inputs).expect("the reference computes it");
            for step in &program.steps {
                let (kernel, as_) = &kernels(&program, step)[0];
                host.run(step, kernel, *as_).unwrap_or_else(|error| panic!("{said}, {}: {error}", step.name));
            }
            let mut got = BTreeMap::new();
            for (number, edge) in program.outputs.iter().enumerate() {
                let output = host.output(number);
                let error = error(&output, &expected[&edge.name]);
                assert!(error < BOUND, "{said} with {held} tokens: relative error of {} {error:e}", edge.name);
                got.insert(edge.name.clone(), output);
            }
            // The newest in the last place that holds nothing.
            kept(&mut inputs, &expected, past - 1 - held);
            kept(&mut of_host, &got, past - 1 - held);
            for (number, edge) in program.inputs.iter().enumerate() {
                if let Some(places) = program.places_of_input(number) {
                    host.inputs[number].put(&places.spread(of_host[&edge.name].bytes()));
                }
            }
        }
    }
}

/// What was there before has to stay where somebody else reads it, or what is new comes first.
#[test]
fn a_cache_that_does_not_only_grow_is_no_state() {
    fn read_twice(graph: &mut GraphProto) {
        let past = "past_key_values.0.key";
        graph.node.push(node("Identity", &[past], "before", vec![]));
        let mut output = graph.input.iter().find(|input| input.name == past).expect("it is there").clone();
        output.name = "before".into();
        graph.output.push(output);
    }
    fn the_other_way_round(graph: &mut GraphProto) {
        let is_grown = |node: &&mut NodeProto| node.output[0] == "present.1.value";
        graph.node.iter_mut().find(is_grown).expect("it is there").input.reverse();
    }
    for rewrite in [read_twice as fn(&mut GraphProto), the_other_way_round] {
        let model = Model { name: "gpt2-tiny-past", precision: Precision::Fp16, rewrite };
        let graph = rewritten(model, Some(&lengths(4, 8)));
        let Lowered { program, .. } = lowered(&graph, Kind::F16);
        assert_eq!(program.states.len(), 3);
    }
}
