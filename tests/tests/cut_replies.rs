//! A submission whose reply is lost after it was taken: whoever sent it sends it again, over a restart, and it is the same
//! request.

use planforge_tests::{
    eventually,
    farm::{Farm, Link, id_of},
    models, process,
    proxy::Proxy,
};
use serde_json::{Value, json};
use std::{fs, process::Stdio};

const SKU: [&str; 4] = ["--sku", "cpu-x86-64-v2", "--threads", "1"];
const TAG: &str = "its-reply-is-lost";

fn tagged(farm: &Farm) -> Vec<Value> {
    let listed = farm.cli(&["jobs", "--tag", TAG, "--all", "--json"]).output().expect("the binary runs");
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
    listed["jobs"].as_array().cloned().unwrap_or_default()
}

#[test]
fn a_submission_whose_reply_is_cut_is_one_request_over_a_restart() {
    let mut farm = Farm::start(Link::Loopback);
    let _agent = farm.start_agent("one", "host", None);
    farm.wait_agents(1);
    let proxy = Proxy::to(&farm.url);
    let model = models::convolutions(&farm.path().join("m.onnx"), 1, 8, 8, 7);
    // Its files are there: the next submission's only request that names the tag is the one that is taken.
    farm.json(&["cancel", &id_of(&farm.submit(&model, &SKU)[0])]);

    proxy.swallow_replies_to(TAG.as_bytes());
    let mut submit = farm.cli(&["submit", model.to_str().expect("UTF-8"), "--force", "--wait", "--tag", TAG, "--json"]);
    let out = farm.path().join("submit.json");
    submit.args(SKU).env("PLANFORGE_SERVER", proxy.url());
    submit.stdout(fs::File::create(&out).expect("a file")).stderr(Stdio::piped());
    let child = submit.spawn().expect("the binary runs");
    let id = eventually("the request is taken", || match tagged(&farm).as_slice() {
        [job] if proxy.has_swallowed() => Ok(id_of(job)),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(fs::read(&out).expect("its output"), b"", "it heard nothing");
    farm.kill_coordinator();
    proxy.cut();
    farm.restart_coordinator();
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("submitting the same again"), "{said}");
    let reply: Value = serde_json::from_slice(&fs::read(&out).expect("its output")).expect("JSON");
    assert_eq!((&reply["jobs"][0]["id"], &reply["jobs"][0]["state"]), (&json!(id), &json!("succeeded")));
    assert_eq!(tagged(&farm).len(), 1, "one request");
}

#[test]
fn a_request_over_http_with_an_idempotency_key_is_one_request_however_often_it_is_sent() {
    let mut farm = Farm::start(Link::Loopback);
    let proxy = Proxy::to(&farm.url);
    let model = models::convolutions(&farm.path().join("m.onnx"), 1, 8, 8, 8);
    let first = farm.submit(&model, &["--wait-for-device", "--sku", "cpu-x86-64-v2", "--threads", "1"]);
    let first = farm.job(&id_of(&first[0])).expect("the job");
    farm.json(&["cancel", &id_of(&first)]);
    let body = json!({
        "models": [first["model"]],
        "skus": ["cpu-x86-64-v2"],
        "force": true,
        "wait_for_device": true,
        "tags": [TAG],
    });
    let send = |url: &str| {
        let mut curl = std::process::Command::new("curl");
        let key = "Idempotency-Key: once-and-only";
        curl.args(["-sS", "--max-time", "60", "-H", "Content-Type: application/json", "-H", key, "-H"]);
        curl.arg(format!("Authorization: Bearer {}", farm.admin)).args(["-d", &body.to_string()]);
        curl.arg(format!("{url}/api/v1/jobs"));
        curl
    };
    proxy.swallow_replies_to(TAG.as_bytes());
    let mut cut = send(&proxy.url()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("curl");
    let id = eventually("the request is taken", || match tagged(&farm).as_slice() {
        [job] => Ok(id_of(job)),
        other => Err(format!("{other:?}")),
    });
    let again = send(&proxy.url());
    farm.kill_coordinator();
    proxy.cut();
    assert!(!cut.wait().expect("it ends").success(), "its caller heard nothing");
    farm.restart_coordinator();
    let output = process::run(again);
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(reply["jobs"][0]["id"], json!(id), "{reply}");
    assert_eq!(tagged(&farm).len(), 1, "one request");
}
