//! `planforge run --loop` from a model file to its tokens: caches of a fixed number of places, and caches that grow as
//! transformers' models have them.

use planforge_identity::npz;
use planforge_onnx::{
    Model,
    proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto},
};
use planforge_tests::process;
use planforge_types::{ElementType, HostTensor, NamedTensors};
use prost::Message as _;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// Tokens of many kinds, so that the caches hold something of each.
const PROMPT: [f64; 9] = [5.0, 61.0, 11.0, 2.0, 40.0, 33.0, 0.0, 19.0, 52.0];
/// How far scores of two forms may be apart, of the largest.
const SAME: f64 = 1e-4;

fn home() -> TempDir {
    tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder")
}

/// A test model's file.
fn written(home: &Path, name: &str) -> PathBuf {
    let model = home.join(format!("{name}.onnx"));
    let mut make = process::command(home);
    make.args(["testmodel", name, "-o"]).arg(&model);
    assert!(process::run(make).status.success());
    model
}

/// The same with something done to it.
fn rewritten(home: &Path, name: &str, rewrite: impl FnOnce(&mut ModelProto)) -> PathBuf {
    let model = written(home, name);
    let mut proto = Model::open(&model).expect("the model is read").proto;
    rewrite(&mut proto);
    fs::write(&model, proto.encode_to_vec()).expect("the model is written");
    model
}

fn build(home: &Path, model: &Path, shapes: &[&str]) -> Command {
    let mut build = process::command(home);
    build.arg("build").arg(model).arg("--data").arg(home.join("data")).args(["--threads", "1", "--json"]).args(shapes);
    build
}

/// Builds a model for this processor; the plan's path.
fn built(home: &Path, model: &Path, shapes: &[&str]) -> String {
    let document = process::run_json(build(home, model, shapes));
    document["jobs"][0]["plan_path"].as_str().unwrap_or_else(|| panic!("no plan in {document}")).to_owned()
}

fn decode(home: &Path, plan: &str, tokens: usize) -> Command {
    let input = home.join("in.npz");
    let prompt = HostTensor::of_values(ElementType::I64, vec![PROMPT.len()], &PROMPT);
    npz::write(&input, &NamedTensors::from([("prompt".to_owned(), prompt)])).expect("written");
    let mut run = process::command(home);
    run.args(["run", plan, "--loop", &tokens.to_string(), "--input"]).arg(&input);
    run.arg("--output").arg(home.join("out.npz"));
    run
}

fn decoded(home: &Path, plan: &str, tokens: usize) -> (HostTensor, Vec<f64>) {
    let ran = process::run(decode(home, plan, tokens));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let mut outputs = npz::read(&home.join("out.npz")).expect("the outputs");
    let logits = outputs.remove("logits").expect("scores").bytes;
    let scores = logits.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect();
    let tokens = outputs.remove("tokens").expect("tokens");
    assert!(outputs.keys().all(|name| name == "next_token"), "caches are not written: {:?}", outputs.keys());
    (tokens, scores)
}

fn same(scores: &[f64], others: &[f64]) -> bool {
    let largest = scores.iter().fold(0.0, |most: f64, score| most.max(score.abs()));
    scores.len() == others.len() && scores.iter().zip(others).all(|(a, b)| (a - b).abs() < SAME * largest)
}

#[test]
fn caches_that_grow_give_what_caches_of_a_fixed_length_give() {
    let home = home();
    for (family, heads) in [("gpt2", 4), ("llama", 2)] {
        let fixed = built(home.path(), &written(home.path(), &format!("{family}-tiny-step")), &[]);
        // The length of the mask follows from the names of its dimensions' parts.
        let shapes = format!("input_ids:1x1,past_key_values.0.key:1x{heads}x1..8..47x16");
        let growing = written(home.path(), &format!("{family}-tiny-past"));
        let growing = built(home.path(), &growing, &["--shapes", &shapes]);
        let mut inspect = process::command(home.path());
        inspect.args(["inspect", &fixed, "--json"]);
        let inspected = process::run_json(inspect);
        let cache = serde_json::json!({ "input": "keys.0", "output": "next_keys.0", "places": 48 });
        assert_eq!(inspected["caches"][0], cache, "{inspected}");
        // 48 runs: lengths of 8, 16, 32 and 47 places.
        let tokens = 48 - PROMPT.len() + 1;
        let (expected, scores) = decoded(home.path(), &fixed, tokens);
        let (found, of_growing) = decoded(home.path(), &growing, tokens);
        assert_eq!(found, expected, "{family}");
        assert!(same(&scores, &of_growing), "{family}");

        // One token more has no place, in either form, and is refused before anything runs.
        for (plan, cache) in [(&growing, "past_key_values.0.key"), (&fixed, "keys.0")] {
            let refused = process::run(decode(home.path(), plan, tokens + 1));
            let said = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{said}");
            assert!(said.contains(&format!("'{cache}' has room for 48 tokens, and 49 are asked for")), "{said}");
            assert!(said.contains(&format!("at most {tokens} with --loop")), "{said}");
        }
    }
}

/// What `growing` writes of GPT-2's attention as one operator of opset 23, which puts what is new behind the caches.
fn as_one_operator(model: &mut ModelProto) {
    model.opset_import[0].version = 23;
    let graph = model.graph.as_mut().expect("there is a graph");
    for layer in 0..2 {
        let mut taken = |part: &str| taken(graph, &format!("/layers.{layer}/attention/{part}"));
        let [key, value] = ["key/Concat", "value/Concat"].map(&mut taken);
        let [_, scores, _, masked, _] = ["Transpose", "MatMul", "Mul", "Add", "Softmax"].map(&mut taken);
        let name = format!("/layers.{layer}/attention/MatMul_1");
        let node = graph.node.iter_mut().find(|node| node.name == name).expect("there is the product");
        node.op_type = "Attention".into();
        let from = [&scores.input[0], &key.input[1], &value.input[1], &masked.input[1], &key.input[0], &value.input[0]];
        node.input = from.map(Clone::clone).to_vec();
        node.output = vec![node.output[0].clone(), key.output[0].clone(), value.output[0].clone()];
    }
}

fn taken(graph: &mut GraphProto, name: &str) -> NodeProto {
    let at = graph.node.iter().position(|node| node.name == name).unwrap_or_else(|| panic!("there is no {name}"));
    graph.node.remove(at)
}

#[test]
fn attention_that_puts_what_is_new_behind_its_caches_is_decoded_with() {
    let home = home();
    let shapes = ["--shapes", "input_ids:1x1,past_key_values.0.key:1x4x1..8..16x16"];
    let parts = built(home.path(), &written(home.path(), "gpt2-tiny-past"), &shapes);
    let whole = built(home.path(), &rewritten(home.path(), "gpt2-tiny-past", as_one_operator), &shapes);
    let (expected, scores) = decoded(home.path(), &parts, 9);
    let (found, of_whole) = decoded(home.path(), &whole, 9);
    assert_eq!(found, expected);
    assert!(same(&scores, &of_whole));
}

/// A mask of which the model makes nothing.
fn without_its_mask(model: &mut ModelProto) {
    let graph = model.graph.as_mut().expect("there is a graph");
    let node = graph.node.iter_mut().find(|node| node.name == "/mask/And").expect("the mask is joined");
    node.input[0] = node.input[1].clone();
}

#[test]
fn a_model_that_does_not_go_by_its_mask_is_refused_while_it_is_decoded_with() {
    let home = home();
    let model = rewritten(home.path(), "gpt2-tiny-past", without_its_mask);
    let plan = built(home.path(), &model, &["--shapes", "input_ids:1x1,past_key_values.0.key:1x4x1..8..16x16"]);
    let refused = process::run(decode(home.path(), &plan, 4));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("does not go by 'attention_mask' alone"), "{said}");
    assert!(!home.path().join("out.npz").exists(), "nothing is written");
}

#[test]
fn an_operator_that_shares_its_caches_is_refused_by_its_name() {
    let home = home();
    let model = rewritten(home.path(), "gpt2-tiny-past", |model| {
        as_one_operator(model);
        model.opset_import.push(OperatorSetIdProto { domain: "com.microsoft".into(), version: 1 });
        let graph = model.graph.as_mut().expect("there is a graph");
        for node in graph.node.iter_mut().filter(|node| node.op_type == "Attention") {
            (node.op_type, node.domain) = ("GroupQueryAttention".into(), "com.microsoft".into());
        }
    });
    let shapes = ["--shapes", "input_ids:1x1,past_key_values.0.key:1x4x1..8..16x16", "--toolchain", "native"];
    let refused = process::run(build(home.path(), &model, &shapes));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("GroupQueryAttention"), "{said}");
}
