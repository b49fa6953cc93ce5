//! What people read when something is wrong, and the exit code scripts act on.

use crate::support::World;
use std::{net::TcpListener, process::Output};

/// A URL at which nobody answers.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    format!("http://{address}")
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_wrong_argument() {
    let world = World::new();
    insta::assert_snapshot!(world.transcript(&["build", "m.onnx", "--skus", "x"]));
    insta::assert_snapshot!(world.transcript(&["build", "m.onnx", "--sku", "Not A Sku"]));
    insta::assert_snapshot!(world.transcript(&["build", "m.onnx", "--shapes", "image:1xtwo"]));
    insta::assert_snapshot!(world.transcript(&["build", "m.onnx", "--toolchain", "tensorrt>=ten"]));
    insta::assert_snapshot!(world.transcript(&["jobs", "--state", "asleep"]));
}

#[test]
fn a_missing_file() {
    let world = World::new();
    insta::assert_snapshot!(world.transcript(&["build", "missing.onnx"]));
    insta::assert_snapshot!(world.transcript(&["fetch", "missing.onnx", "--sku", "cpu-x86-64-v3"]));
    insta::assert_snapshot!(world.transcript(&["jobs", "--server", "http://127.0.0.1:1", "--token-file", "missing"]));
}

#[test]
fn a_coordinator_that_does_not_answer() {
    let world = World::new();
    let url = nobody();
    let text = world.transcript(&["jobs", "--server", &url]).replace(&url, "[URL]");
    insta::assert_snapshot!(text);
    let output = world.run(&["jobs", "--server", &url, "--json"]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(json(&output)["error"]["code"], "unavailable");
    assert_eq!(json(&output)["error"]["exit_code"], 4);
}

#[test]
fn a_server_that_would_get_the_token_in_the_clear() {
    insta::assert_snapshot!(World::new().transcript(&["jobs", "--server", "http://farm.example:7400"]));
}

#[test]
fn a_configuration_with_a_mistake() {
    let world = World::new();
    world.write("planforge.toml", "# our farm\nsevrer = \"https://farm:7400\"\n");
    insta::assert_snapshot!(world.transcript(&["jobs"]));
}

#[test]
fn a_log_filter_that_is_none() {
    insta::assert_snapshot!(World::new().transcript(&["jobs", "--log", "planforge=loud"]));
    insta::assert_snapshot!(World::new().transcript(&["jobs", "--log-format", "xml"]));
}

#[test]
fn a_test_model_that_does_not_exist() {
    insta::assert_snapshot!(World::new().transcript(&["testmodel", "alexnet"]));
}
