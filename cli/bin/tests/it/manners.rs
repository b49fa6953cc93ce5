//! How commands behave towards who typed them: quiet ends, one JSON object, refusals before work, lists that say enough.

use crate::{
    farm::{Up, json, wait_for},
    support::{World, transcript},
};
use serde_json::Value;
use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output that nobody reads: the reading end is closed before the program starts.
fn unread(mut command: Command) -> Output {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    command.stdout(writer).stderr(Stdio::piped()).output().expect("the binary runs")
}

/// Every command with its own actions, as the helps list them.
fn commands(world: &World) -> Vec<Vec<String>> {
    fn below(world: &World, path: &[String], found: &mut Vec<Vec<String>>) {
        let args: Vec<&str> = path.iter().map(String::as_str).chain(["-h"]).collect();
        let help = String::from_utf8(world.run(&args).stdout).expect("text");
        let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        // What is wrapped goes on further to the right.
        let listed = listed.filter(|line| !line.starts_with("   "));
        let names: Vec<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
        if names.is_empty() {
            found.push(path.to_vec());
        }
        for name in names.into_iter().filter(|name| *name != "help") {
            below(world, &[path, &[name.to_owned()]].concat(), found);
        }
    }
    let mut found = Vec::new();
    below(world, &[], &mut found);
    assert!(found.len() > 35, "{found:?}");
    found
}

/// A model of one operator that nobody has.
fn unknown_operator() -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| {
        let length = u8::try_from(bytes.len()).expect("small");
        [&[number << 3 | 2, length], bytes].concat()
    };
    let tensor = |name: &str| {
        let shape = field(2, &field(1, &[0x08, 1]));
        let tensor = field(1, &[&[0x08, 1][..], &shape].concat());
        [field(1, name.as_bytes()), field(2, &tensor)].concat()
    };
    let node = [field(1, b"x"), field(2, b"y"), field(4, b"NoSuchOperator")].concat();
    let graph = [field(1, &node), field(2, b"g"), field(11, &tensor("x")), field(12, &tensor("y"))].concat();
    [&[0x08, 8][..], &field(7, &graph), &field(8, &[0x10, 17])].concat()
}

#[test]
fn a_closed_pipe_ends_every_command_as_it_would_have_ended() {
    let world = World::new();
    let model = digits();
    let model = model.to_str().unwrap();
    world.write("odd.onnx", unknown_operator());
    let lists: [&[&str]; 16] = [
        &["jobs"],
        &["engines"],
        &["devices"],
        &["agents", "list"],
        &["projects", "list"],
        &["audit"],
        &["caches", "list"],
        &["plugins", "list"],
        &["token", "list"],
        &["testmodel", "--list"],
        &["completions", "bash"],
        &["inspect", model],
        &["explain", model],
        &["explain", "odd.onnx"],
        &["doctor", "--no-self-test"],
        &["jobs", "--no-such-flag"],
    ];
    let plain = lists.iter().map(|args| args.to_vec());
    let as_json = lists.iter().map(|args| [*args, &["--json"]].concat());
    for args in plain.chain(as_json) {
        let read = world.run(&args);
        let closed = unread(world.command(&args));
        let told = transcript(world.root(), &closed);
        assert_eq!(closed.status.code(), read.status.code(), "{args:?}: {told}");
        let said = said(&closed).to_lowercase();
        assert!(!said.contains("pipe") && !said.contains("panicked") && !said.contains("standard output"), "{told}");
    }
    for path in commands(&world) {
        let help: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let closed = unread(world.command(&help));
        assert_eq!((closed.status.code(), said(&closed).as_str()), (Some(0), ""), "{path:?}");
    }
}

#[test]
fn a_command_line_that_is_none_is_one_json_object_too() {
    let world = World::new();
    for path in commands(&world) {
        let args: Vec<&str> = path.iter().map(String::as_str).chain(["--json", "--no-such-flag"]).collect();
        let output = world.run(&args);
        assert_eq!(output.status.code(), Some(2), "{path:?}");
        let error = &json(&output)["error"];
        assert_eq!(
            (error["code"].as_str(), error["exit_code"].as_u64()),
            (Some("invalid-argument"), Some(2)),
            "{path:?}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("--no-such-flag") && !message.starts_with("error"), "{message}");
    }
    for args in [&["--json"][..], &["jobs", "--json", "--limit", "many"], &["no-such-command", "--json"]] {
        let output = world.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(json(&output)["error"]["message"].is_string(), "{args:?}");
    }
    let text = world.run(&["jobs", "--", "--json"]);
    assert!(text.stdout.is_empty(), "behind -- it is no flag of ours: {}", transcript(world.root(), &text));
}

#[test]
fn explaining_what_is_refused_is_one_object_with_its_error() {
    let world = World::new();
    world.write("odd.onnx", unknown_operator());
    let output = world.run(&["explain", "odd.onnx", "--json"]);
    assert_eq!(output.status.code(), Some(6), "{}", transcript(world.root(), &output));
    let told = json(&output);
    assert_eq!(told["refused"].as_array().map(Vec::len), Some(1), "{told:#}");
    assert_eq!(told["error"]["exit_code"], 6, "{told:#}");
}

#[test]
fn a_processor_runs_instances_side_by_side_or_says_that_cores_are_missing() {
    let world = World::new();
    let model = digits();
    let args = ["bench", model.to_str().unwrap(), "--threads", "1", "--sweep-streams", "1,2", "--json"];
    let output = world.run(&args);
    assert!(output.status.success(), "{}", transcript(world.root(), &output));
    let report = json(&output);
    let points = report["streams"]["points"].as_array().map_or(0, Vec::len);
    // Where something else of this machine holds cores there are fewer points, and a finding says so.
    let told = report["findings"].to_string();
    assert!(points == 2 || told.contains("that nobody else has"), "{points} points: {told}");
}

#[test]
fn what_a_backend_can_never_build_is_refused_before_a_job_exists() {
    let world = World::new();
    let model = digits();
    let model = model.to_str().unwrap();
    for (flags, what) in [
        (&["--precision", "fp16"][..], "precision fp16"),
        (&["--option", "turbo=yes"], "the option turbo (it has bounds, force_tactic, fusion)"),
    ] {
        let output = world.run(&[&["build", model][..], flags].concat());
        let told = transcript(world.root(), &output);
        assert_eq!(output.status.code(), Some(6), "{told}");
        assert!(said(&output).contains(what), "{told}");
    }
    let jobs = json(&world.run(&["jobs", "--json"]));
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(0), "nothing was begun: {jobs:#}");
}

#[test]
fn devices_of_this_machine_are_idle_after_a_build_and_looked_at_anew() {
    let world = World::new();
    let model = digits();
    let devices = || {
        let output = world.run(&["devices"]);
        assert!(output.status.success(), "{}", transcript(world.root(), &output));
        String::from_utf8(output.stdout).unwrap()
    };
    let before = devices();
    let built = world.run(&["build", model.to_str().unwrap(), "--threads", "1", "-q"]);
    assert!(built.status.success(), "{}", transcript(world.root(), &built));
    let after = devices();
    for text in [&before, &after] {
        assert!(text.contains("idle (embedded)") && text.contains("--sku cpu-"), "{text}");
        assert!(!text.contains("offline") && !text.contains("draining"), "{text}");
    }
    assert_eq!(before, after, "one device stays one");
    let listed = json(&world.run(&["devices", "--online", "--json"]));
    let cpu = &listed["devices"][0];
    assert_eq!((cpu["embedded"].as_bool(), cpu["online"].as_bool()), (Some(true), Some(true)), "{listed:#}");
}

/// The columns of a table, by its first line.
fn columns(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn lists_tell_rows_apart_and_say_that_there_are_more() {
    let world = World::new();
    let up = Up::start(&world);
    let sku = up.sku(&world);
    std::fs::copy(digits(), world.path("mine.onnx")).unwrap();
    let submit = |more: &[&str]| {
        let args = [&["submit", "mine.onnx", "--sku", &sku, "--wait"][..], more].concat();
        let output = up.command(&world, &args).output().unwrap();
        assert!(output.status.success(), "{}", transcript(world.root(), &output));
        output
    };
    let list = |args: &[&str]| up.command(&world, args).output().unwrap();

    // The file as it was named, though the model has a name of its own, and where the page tells of the job.
    let first = submit(&["--threads", "1"]);
    let text = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(columns(&first).contains(&"FILE".to_owned()) && text.contains("mine.onnx"), "{text}");
    assert!(text.contains(&format!("{}/jobs/", up.url)), "{text}");
    let told = json(&list(&["submit", "mine.onnx", "--sku", &sku, "--threads", "1", "--json"]));
    let url = told["jobs"][0]["url"].as_str().unwrap().to_owned();
    assert_eq!(told["jobs"][0]["file"], "mine.onnx");
    let mut curl = Command::new("curl");
    curl.args([
        "-sS",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "-H",
        &format!("Authorization: Bearer {}", up.token),
        &url,
    ]);
    assert_eq!(String::from_utf8(curl.output().unwrap().stdout).unwrap(), "200", "{url}");

    for rows in ["jobs", "engines"] {
        let alike = columns(&list(&[rows]));
        assert!(
            !alike.iter().any(|name| ["THREADS", "PRECISION", "SHAPES", "SPEC"].contains(&name.as_str())),
            "{alike:?}"
        );
    }
    submit(&["--threads", "2"]);
    submit(&["--threads", "1", "--option", "force_tactic=r64"]);
    // Of the jobs one was answered from the store.
    for (rows, count) in [("jobs", 4), ("engines", 3)] {
        let differing = columns(&list(&[rows]));
        assert!(["THREADS", "SPEC"].iter().all(|name| differing.contains(&(*name).to_owned())), "{differing:?}");
        assert!(!differing.contains(&"SHAPES".to_owned()), "{differing:?}");
        let one = list(&[rows, "--limit", "1"]);
        assert!(said(&one).contains(&format!("1 of {count} {rows}: --limit 4 shows more")), "{}", said(&one));
        assert_eq!(json(&list(&[rows, "--limit", "1", "--json"]))["total"], count);
        assert_eq!(json(&list(&[rows, "--limit", "1", "--json"]))["more"], true);
        let all = list(&[rows, "--limit", "50"]);
        assert!(!said(&all).contains("shows more"), "{}", said(&all));
        assert_eq!(json(&list(&[rows, "--all", "--json"]))[rows].as_array().map(Vec::len), Some(count));
        assert_eq!(json(&list(&[rows, "--json"]))["more"], false);
    }
}

#[test]
fn a_token_says_what_it_reaches() {
    let world = World::new();
    let create = |args: &[&str]| {
        let output = world.run(&[&["token", "create"][..], args].concat());
        assert!(output.status.success(), "{}", transcript(world.root(), &output));
        said(&output)
    };
    let everywhere = create(&["ci", "--role", "submit"]);
    assert!(everywhere.contains("no project") && everywhere.contains("'default'"), "{everywhere}");
    assert!(create(&["red", "--role", "read", "--project", "red"]).contains("project 'red' alone"));
    assert!(!create(&["rack", "--role", "agent"]).contains("project"));
    let list = String::from_utf8(world.run(&["token", "list"]).stdout).unwrap();
    let row = |name: &str| list.lines().find(|line| line.contains(name)).unwrap_or_default().to_owned();
    assert!(row("ci").contains("all, default when none is named"), "{list}");
    assert!(row("red").contains("red") && row("rack").contains("all"), "{list}");
    let told = json(&world.run(&["token", "create", "json", "--role", "read", "--json"]));
    assert_eq!((&told["project"], &told["default_project"]), (&Value::Null, &Value::from("default")));
}

#[test]
fn what_goes_on_without_end_ends_quietly_once_nobody_reads() {
    let world = World::new();
    let up = Up::start(&world);
    let sku = up.sku(&world);
    let log = world.root().join("watch.log");
    let (reader, writer) = std::io::pipe().unwrap();
    let mut watch = up.command(&world, &["watch"]);
    let mut watch = watch.stdout(writer).stderr(File::create(&log).unwrap()).spawn().unwrap();
    drop(reader);
    let model = digits();
    let submitted = up.command(&world, &["submit", model.to_str().unwrap(), "--sku", &sku, "--wait"]).output().unwrap();
    assert!(submitted.status.success(), "{}", transcript(world.root(), &submitted));
    let status = wait_for("the end of watch", || watch.try_wait().unwrap());
    let mut said = String::new();
    File::open(&log).unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((status.code(), said.as_str()), (Some(0), "watching what comes behind event 0\n"));
}
