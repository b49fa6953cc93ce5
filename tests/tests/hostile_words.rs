//! Names, logs and messages from outside reach nobody's terminal as anything but text.

use planforge_tests::{
    boards::board_of,
    eventually,
    farm::{Farm, Link, id_of},
    fleet::{Host, HostLimits},
    models, process,
    standin::scenario::{Behaviour, Phase, Rule},
};
use serde_json::Value;
use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Output,
};

/// Colours, a cleared screen, a title, a link, the clipboard, another order of reading, a line's begin; in C1 too.
const HOSTILE: &str = "\u{1b}[31m\u{1b}[2J\u{1b}]0;title\u{7}\u{1b}]8;;http://evil\u{1b}\\\u{1b}]52;c;ZXZpbA==\u{7}\
                       \u{202e}drow\u{2066}\u{9b}2J\u{200b}\rover";
/// A line that a reader would take for one of the program's own.
const FORGED: &str = "hint: curl evil | sh";

fn hostile() -> String {
    format!("{HOSTILE}\n{FORGED}\n")
}

/// Both outputs, once nothing in them steers a terminal and no line is forged.
fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8(bytes.clone()).expect("UTF-8"));
    let text = format!("{out}{err}");
    for c in text.chars() {
        let code = u32::from(c);
        let steers = code < 0x20 && c != '\n' && c != '\t' || (0x7f..0xa0).contains(&code);
        let misleads = (0x200b..=0x200f).contains(&code)
            || (0x2028..=0x202e).contains(&code)
            || (0x2066..=0x2069).contains(&code)
            || [0x61c, 0xfeff].contains(&code);
        assert!(!steers && !misleads, "U+{code:04X} was printed: {text:?}");
    }
    assert!(!text.lines().any(|line| line.starts_with(FORGED)), "a name began a line: {text}");
    text
}

fn run(home: &Path, arguments: &[&str]) -> Output {
    let mut command = process::command(home);
    command.args(arguments);
    process::run(command)
}

#[test]
fn names_in_a_model_are_shown_escaped() {
    let home = tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder");
    let home = home.path();
    let good = models::named(&home.join("good\u{202e}.onnx"), "Relu", &hostile());
    let bad = models::named(&home.join("bad.onnx"), &format!("Odd{}", hostile()), &hostile());
    let [good, bad] = [&good, &bad].map(|path| path.to_str().expect("UTF-8"));
    for arguments in [["explain", good], ["explain", bad], ["inspect", good], ["inspect", bad]] {
        let text = said(&run(home, &arguments));
        assert!(text.contains(r"\u{1b}[31m") && text.contains(r"\u{202e}drow"), "{arguments:?}: {text}");
        let json = run(home, &[&arguments[..], &["--json"]].concat());
        said(&json);
        // What it found, and of a refusal the error.
        let mut values = serde_json::Deserializer::from_slice(&json.stdout).into_iter::<Value>();
        let value = values.next().expect("a document").expect("JSON");
        assert!(has_text(&value, HOSTILE), "values are exact: {value:#}");
    }
    let refused = run(home, &["build", bad]);
    assert!(said(&refused).contains(r"\u{1b}[31m") && !refused.status.success(), "{refused:?}");

    let built = run(home, &["build", good, "--threads", "1"]);
    assert!(built.status.success(), "{}", said(&built));
    assert!(said(&built).contains(r"good\u{202e}"), "{}", said(&built));
    let jobs: Value = serde_json::from_slice(&run(home, &["jobs", "--json"]).stdout).expect("JSON");
    let id = id_of(&jobs["jobs"][0]);
    for arguments in [&["jobs"][..], &["engines"], &["logs", &id], &["report", &id], &["watch", &id], &["-v", "jobs"]] {
        let output = run(home, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        said(&output);
    }
    let again = run(home, &["build", good, "--threads", "1", "--json"]);
    said(&again);
    let again: Value = serde_json::from_slice(&again.stdout).expect("JSON");
    let plan = again["jobs"][0]["plan_path"].as_str().expect("a plan");
    let text = said(&run(home, &["inspect", plan]));
    assert!(text.contains(r"node\u{1b}[31m") && text.contains(r"x\u{1b}[31m"), "{text}");
    said(&run(home, &["-vv", "bench", plan]));
}

/// Whether a text anywhere in `value` contains `words`.
fn has_text(value: &Value, words: &str) -> bool {
    match value {
        Value::String(text) => text.contains(words),
        Value::Array(values) => values.iter().any(|value| has_text(value, words)),
        Value::Object(fields) => fields.iter().any(|(name, value)| name.contains(words) || has_text(value, words)),
        _ => false,
    }
}

#[test]
fn what_a_tool_says_is_shown_escaped() {
    let farm = Farm::start(Link::Loopback);
    let mut scenario = board_of("t4").scenario("10.13.3.9");
    let behaviour = Behaviour::UnsupportedOperator { operator: HOSTILE.into() };
    scenario.rules = vec![Rule { graph: String::new(), phase: Phase::Build, times: None, behaviour }];
    let _host = Host::start_with(&farm, "t4", vec![scenario], HostLimits::default());
    farm.wait_agents(1);
    let model = models::convolutions(&farm.path().join("m.onnx"), 1, 4, 8, 700);
    let id = id_of(&farm.submit(&model, &["--sku", "t4"])[0]);
    assert_eq!(farm.wait_ended(&id)["state"], "failed");
    let text = said(&process::run(farm.cli(&["logs", &id])));
    assert!(text.contains(r"Cannot find plugin: \u{1b}[31m\u{1b}[2J"), "{text}");

    for arguments in [&["logs", "--follow", &id][..], &["watch", &id], &["watch", &id, "--json"], &["jobs", &id]] {
        said(&process::run(farm.cli(arguments)));
    }
    let waited = process::run(farm.cli(&["submit", model.to_str().expect("UTF-8"), "--sku", "t4", "--wait"]));
    assert!(said(&waited).contains("error:"), "{waited:?}");
    let coordinator = farm.coordinator.log();
    assert!(!coordinator.contains(['\u{1b}', '\u{202e}', '\u{9b}', '\r']), "{coordinator}");
}

#[test]
fn a_raw_log_is_shown_escaped() {
    let farm = Farm::start(Link::Loopback);
    let mut scenario = board_of("t4").scenario("10.13.3.9");
    scenario.rules = vec![Rule { graph: String::new(), phase: Phase::Build, times: None, behaviour: Behaviour::Hang }];
    let _host = Host::start_with(&farm, "t4", vec![scenario], HostLimits::default());
    farm.wait_agents(1);
    let model = models::convolutions(&farm.path().join("m.onnx"), 1, 4, 8, 701);
    let id = id_of(&farm.submit(&model, &["--sku", "t4"])[0]);
    // As a library in a worker or an agent of somebody else writes it, who escape nothing.
    let raw = [b"50%\r100%\r\n", HOSTILE.as_bytes(), b"\xff\x9b\n"].concat();
    let live = eventually("the log of the job that hangs", || {
        let file = holding(&farm.data(), &format!("{id}-1.log")).ok_or("no file")?;
        let bytes = fs::metadata(&file).map_err(|error| error.to_string())?.len();
        if bytes > raw.len() as u64 { Ok(file) } else { Err(format!("{bytes} bytes")) }
    });
    let mut log = fs::File::options().write(true).open(&live).expect("the live log");
    log.write_all(&raw).expect("written");
    let text = said(&process::run(farm.cli(&["logs", &id])));
    assert!(text.starts_with("50%\\r100%\n\\u{1b}[31m\\u{1b}[2J\\u{1b}]0;title\\u{7}"), "{text}");
    assert!(text.contains("\\rover\u{fffd}\u{fffd}\n"), "{text:?}");
    let exact = process::run(farm.cli(&["logs", &id, "--json"]));
    said(&exact);
    let exact: Value = serde_json::from_slice(&exact.stdout).expect("JSON");
    assert!(exact["log"].as_str().is_some_and(|log| log.contains(HOSTILE)), "{exact}");
    process::run(farm.cli(&["cancel", &id]));
}

/// The file of this name somewhere in `folder`.
fn holding(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut paths = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    paths.find_map(|path| match path.is_dir() {
        true => holding(&path, name),
        false => path.ends_with(name).then_some(path),
    })
}

#[test]
fn what_the_environment_names_is_shown_escaped() {
    let home = tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder");
    let folder = home.path().join(format!("data{}", hostile().replace('/', "-")));
    let mut doctor = process::command(home.path());
    doctor.args(["doctor", "--no-self-test"]).env("PLANFORGE_DATA", &folder);
    let text = said(&process::run(doctor));
    assert!(text.contains(r"data\u{1b}[31m"), "the folder is named: {text}");
    let missing = format!("no{}.onnx", hostile().replace('/', "-"));
    for arguments in
        [&["inspect", &missing][..], &["explain", &missing], &["report", &missing], &["jobs", "--log", &missing]]
    {
        let output = run(home.path(), arguments);
        assert!(!output.status.success());
        assert!(said(&output).contains(r"\u{1b}[31m"), "{arguments:?}: {output:?}");
    }
    let output = run(home.path(), &["run", "x", "--threads", &HOSTILE.replace('/', "-")]);
    assert!(said(&output).starts_with("error: "), "{output:?}");
}
