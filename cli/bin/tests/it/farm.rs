//! Whole farms on this machine, as processes: `build` alone, several at once, interrupted, killed; CI against `up`.

use crate::support::{World, transcript};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Longest any of these may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(240);

pub fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx")
}

#[expect(clippy::disallowed_methods, reason = "looks at a foreign process until a deadline")]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

pub fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}\n{}", String::from_utf8_lossy(&output.stderr)))
}

fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

pub fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill runs");
    assert!(status.success());
}

/// A coordinator with this machine's agent, ended with the test.
pub struct Up {
    pub child: Child,
    pub url: String,
    pub token: String,
}

impl Up {
    pub fn start(world: &World) -> Self {
        Self::start_with(world, &[])
    }

    pub fn start_with(world: &World, more: &[&str]) -> Self {
        Self::start_as(world, "up", "127.0.0.1:0", more)
    }

    /// `role` is `up` or `coordinator`.
    pub fn start_as(world: &World, role: &str, address: &str, more: &[&str]) -> Self {
        let mut command = world.command(&[role, "--data", "up", "--listen", address, "--json"]);
        command.args(more);
        let said = world.root().join("up.json");
        command.stdout(fs::File::create(&said).unwrap()).stderr(fs::File::create(world.root().join("up.log")).unwrap());
        let child = command.spawn().unwrap();
        let facts: Value = wait_for("the coordinator", || serde_json::from_slice(&fs::read(&said).ok()?).ok());
        let token = fs::read_to_string(facts["token_file"].as_str().unwrap()).unwrap().trim().to_owned();
        Self { child, url: facts["url"].as_str().unwrap().to_owned(), token }
    }

    pub fn command(&self, world: &World, args: &[&str]) -> Command {
        let mut command = world.command(args);
        command.env("PLANFORGE_SERVER", &self.url).env("PLANFORGE_TOKEN", &self.token);
        command
    }

    /// The best device kind that its agent offers.
    pub fn sku(&self, world: &World) -> String {
        wait_for("the agent", || {
            let devices = json(&self.command(world, &["devices", "--json"]).output().unwrap());
            Some(devices["devices"][0]["skus"].as_array()?.first()?.as_str()?.to_owned())
        })
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // One that a test has killed is gone already.
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(&self.child, "-TERM");
            let _ = self.child.wait();
        }
    }
}

#[test]
fn a_build_travels_the_whole_way_and_is_answered_from_the_store_next_time() {
    let world = World::new();
    let model = digits();
    let model = model.to_str().unwrap();
    let eval = model.replace("digits.onnx", "digits-test.npz");
    let args = ["build", model, "--eval", &eval, "--threads", "1", "--json"];
    let first = json(&world.run(&args));
    let job = &first["jobs"][0];
    assert_eq!((job["state"].as_str(), job["cached"].as_bool()), (Some("succeeded"), Some(false)), "{first:#}");
    for field in ["id", "engine_key", "sku", "plan_digest", "plan_path"] {
        assert!(job[field].is_string(), "{field}: {job:#}");
    }
    assert!(job["report"]["latency_ms"]["median"].as_f64().unwrap() > 0.0);
    assert!(job["report"]["throughput_per_s"].as_f64().unwrap() > 0.0);
    assert!(job["report"]["accuracy"]["top1"].as_f64().unwrap() > 0.9);
    let again = json(&world.run(&args));
    assert_eq!(again["jobs"][0]["cached"], true);
    assert_eq!(again["jobs"][0]["plan_path"], job["plan_path"]);

    // The plan runs, on the whole test set at once.
    let plan = job["plan_path"].as_str().unwrap();
    let ran = world.run(&["run", plan, "--input", &eval, "--output", "out.npz", "--json"]);
    assert_eq!(json(&ran)["outputs"][0]["shape"], serde_json::json!([450, 10]));
    let inspected = json(&world.run(&["inspect", plan, "--json"]));
    assert_eq!(inspected["sku"], job["sku"]);
    let flipped = world.write("flipped.plan", {
        let mut bytes = fs::read(plan).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        bytes
    });
    let refused = world.run(&["run", flipped.to_str().unwrap(), "--input", &eval, "--output", "out.npz"]);
    assert_eq!(refused.status.code(), Some(2), "{}", transcript(world.root(), &refused));
}

#[test]
fn two_builds_at_once_share_one_farm() {
    let world = World::new();
    let model = digits();
    let args = ["build", model.to_str().unwrap(), "--threads", "1", "--json"];
    let children = [start(world.command(&args)), start(world.command(&args))];
    let outputs = children.map(|child| json(&child.wait_with_output().unwrap()));
    for output in &outputs {
        assert_eq!(output["jobs"][0]["state"], "succeeded", "{output:#}");
    }
    assert_eq!(outputs[0]["jobs"][0]["plan_digest"], outputs[1]["jobs"][0]["plan_digest"]);
}

#[test]
fn a_build_goes_on_when_the_process_that_hosts_it_is_killed() {
    let world = World::new();
    let model = digits();
    let model = model.to_str().unwrap();
    let mut first = start(world.command(&["build", model, "--threads", "1", "--json"]));
    let socket = world.root().join("home/.local/share/planforge/coordinator.sock");
    wait_for("the first host", || socket.exists().then_some(()));
    let second = start(world.command(&["build", model, "--threads", "2", "--json"]));
    wait_for("the second job", || {
        let jobs = json(&world.run(&["jobs", "--json"]));
        (jobs["jobs"].as_array().unwrap().len() == 2).then_some(())
    });
    first.kill().unwrap();
    first.wait().unwrap();
    let output = second.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", transcript(world.root(), &output));
    assert_eq!(json(&output)["jobs"][0]["state"], "succeeded");
}

#[test]
fn commands_whose_host_ends_go_on_with_the_next() {
    let world = World::new();
    let digits = digits();
    let build = ["build", digits.to_str().unwrap(), "--json"];
    // Each of them may be the host for as long as it takes, which is no time at all.
    let lists = ["jobs", "devices", "engines"];
    thread::scope(|scope| {
        let listing: Vec<_> = lists
            .iter()
            .map(|list| scope.spawn(|| (0..30).map(|_| world.run(&[list, "--json"])).collect::<Vec<_>>()))
            .collect();
        for _ in 0..10 {
            let output = world.run(&build);
            assert!(output.status.success(), "{}", transcript(world.root(), &output));
        }
        for output in listing.into_iter().flat_map(|outputs| outputs.join().unwrap()) {
            assert!(output.status.success(), "{}", transcript(world.root(), &output));
        }
    });
}

#[test]
fn ctrl_c_cancels_and_leaves_nothing_running() {
    let world = World::new();
    let model = world.path("resnet50.onnx");
    assert!(world.run(&["testmodel", "resnet50", "-q"]).status.success());
    let child = start(world.command(&["build", model.to_str().unwrap(), "--threads", "1"]));
    let running = |world: &World| -> Option<String> {
        let jobs = json(&world.run(&["jobs", "--json"]));
        let job = jobs["jobs"].as_array()?.first()?.clone();
        job["state"].as_str().map(str::to_owned)
    };
    wait_for("the job to run", || (running(&world)? == "running").then_some(()));
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", transcript(world.root(), &output));
    assert_eq!(running(&world).as_deref(), Some("cancelled"));
    let marker = world.root().to_string_lossy().into_owned();
    wait_for("the worker's end", || {
        let listing = Command::new("ps").args(["-eo", "args"]).output().ok()?;
        let left = String::from_utf8_lossy(&listing.stdout).lines().filter(|l| l.contains(&marker)).count();
        (left == 0).then_some(())
    });
}

#[test]
fn bad_input_is_refused_in_words() {
    let world = World::new();
    world.write("text.onnx", "this is no model\n");
    world.write("empty.onnx", "");
    insta::assert_snapshot!(world.transcript(&["build", "text.onnx"]));
    insta::assert_snapshot!(world.transcript(&["build", "empty.onnx"]));
    insta::assert_snapshot!(world.transcript(&["inspect", "text.onnx"]));
    insta::assert_snapshot!(world.transcript(&["submit", "text.onnx"]));
    let model = digits();
    let refused = world.run(&["build", model.to_str().unwrap(), "--sku", "t4"]);
    assert_eq!(refused.status.code(), Some(6), "{}", transcript(world.root(), &refused));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cpu-"), "it says what exists");
}

#[test]
fn what_no_device_has_is_refused_in_words_and_what_one_has_is_built() {
    let world = World::new();
    let model = digits();
    let build = |requires: &[&str]| {
        let mut args = vec!["build", model.to_str().unwrap(), "--json"];
        args.extend(requires.iter().flat_map(|require| ["--require", require]));
        world.run(&args)
    };
    let words = |requires: &[&str], code: i32| {
        let refused = build(requires);
        assert_eq!(refused.status.code(), Some(code), "{}", transcript(world.root(), &refused));
        String::from_utf8(refused.stderr).unwrap()
    };
    let said = words(&["memory=9999TiB"], 6);
    assert!(said.contains("meets memory=9999TiB (the largest has "), "{said}");
    // `build` has no such flag: the hint names the command that has.
    assert!(said.contains("'planforge submit --wait-for-device' waits"), "{said}");
    let said = words(&["mig=none", "mig=any"], 2);
    assert!(said.contains("mig=none contradicts mig=any"), "{said}");
    let said = words(&["memory=40"], 2);
    assert!(said.contains("memory=40 is no size"), "{said}");
    let built = build(&["memory=1MiB", "mig=none"]);
    assert!(built.status.success(), "{}", transcript(world.root(), &built));
    assert_eq!(json(&built)["jobs"][0]["requires"], serde_json::json!(["memory=1MiB", "mig=none"]));
    // It is the same engine to whoever asks for nothing.
    assert_eq!(json(&build(&[]))["jobs"][0]["cached"], true);
}

#[test]
fn a_label_of_up_is_shown_and_what_asks_for_another_is_refused_by_every_command_that_runs_jobs() {
    let world = World::new();
    let twice = world.run(&["up", "--data", "twice", "--listen", "127.0.0.1:0", "--label", "a=1", "--label", "a=2"]);
    assert_eq!(twice.status.code(), Some(2), "{}", transcript(world.root(), &twice));
    assert!(String::from_utf8_lossy(&twice.stderr).contains("the label a stands there twice"));

    let up = Up::start_with(&world, &["--label", "zone=b", "--label", "quiet"]);
    let sku = up.sku(&world);
    let run = |args: &[&str]| up.command(&world, args).output().unwrap();
    let labels = |said: Value, list: &str| said[list][0]["labels"].clone();
    let both = serde_json::json!(["quiet", "zone=b"]);
    assert_eq!(labels(json(&run(&["devices", "--json"])), "devices"), both);
    assert_eq!(labels(json(&run(&["agents", "list", "--json"])), "agents"), both);
    let table = String::from_utf8(run(&["devices"]).stdout).unwrap();
    assert!(table.contains("LABELS") && table.contains("quiet zone=b"), "{table}");

    let model = digits();
    let model = model.to_str().unwrap();
    let at_zone = ["--require", "label=zone=b"];
    let submit = ["submit", model, "--sku", &sku, "--threads", "1", "--wait", "--json"];
    let built = json(&run(&[&submit[..], &at_zone].concat()));
    let plan = built["jobs"][0]["plan_digest"].as_str().unwrap().to_owned();
    let bench = ["bench", &plan, "--on", &sku, "--detach", "--json"];
    let measured = json(&run(&[&bench[..], &at_zone].concat()));
    assert_eq!(measured["jobs"][0]["requires"], serde_json::json!(["label=zone=b"]), "{measured}");

    let refused = |args: &[&str], words: &[&str]| {
        let refused = run(&[args, &["--require", "label=zone=c"]].concat());
        let said = transcript(world.root(), &refused);
        assert_eq!(refused.status.code(), Some(6), "{said}");
        assert!(words.iter().all(|words| said.contains(words)), "{said}");
    };
    let lacking = "label=zone=c (it is b)";
    refused(&["submit", model, "--sku", &sku, "--threads", "2"], &[lacking, "'planforge submit --wait-for-device'"]);
    refused(&bench, &[lacking, "'planforge bench --on SKU --wait-for-device'"]);
    let skus = format!("{sku},{}", if sku == "cpu-x86-64-v2" { "cpu-x86-64-v3" } else { "cpu-x86-64-v2" });
    let spec = r#"{"threads":2}"#;
    refused(&["matrix", model, "--sku", &skus, "--spec", spec, "--measure"], &[lacking]);
    // Each is about what is still to be run.
    for alone in [&["bench", &plan][..], &["matrix", model, "--sku", &skus]] {
        let said = run(&[alone, &at_zone].concat());
        assert_eq!(said.status.code(), Some(2), "{}", transcript(world.root(), &said));
    }
}

#[test]
fn a_dry_run_prints_the_exact_commands_of_every_version() {
    let world = World::new();
    let up = Up::start(&world);
    let digits = digits();
    let ask = |more: &[&str]| {
        let mut args = vec!["submit", digits.to_str().unwrap(), "--sku", "t4", "--dry-run"];
        args.extend(more);
        up.command(&world, &args).output().unwrap()
    };
    let versions = ["--toolchain", "tensorrt=8.6.1", "--toolchain", "tensorrt=11.1", "--precision", "fp16"];
    let said = json(&ask(&[&versions[..], &["--version-compatible=off,on", "--json"]].concat()));
    let rows = said["combinations"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "two versions, with and without compatibility");
    let args = |row: &Value| -> Vec<String> {
        let args = row["commands"][0]["args"].as_array().unwrap();
        args.iter().map(|arg| arg.as_str().unwrap().to_owned()).collect()
    };
    let of = |version: &str, compatible: bool| {
        let wanted =
            |row: &&Value| row["toolchain"]["version"] == version && row["spec"]["version_compatible"] == compatible;
        rows.iter().find(wanted).unwrap_or_else(|| panic!("{version} in {said}"))
    };
    let plain = args(of("8.6.1", false));
    assert!(plain.contains(&"--fp16".into()) && plain.contains(&"--skipInference".into()), "{plain:?}");
    assert!(!plain.contains(&"--versionCompatible".into()), "{plain:?}");
    assert!(args(of("8.6.1", true)).contains(&"--versionCompatible".into()));
    // The model is typed in fp32, and 11 has no flag that would change it.
    let refused = of("11.1.0", false);
    assert!(refused["refused"]["reason"].as_str().unwrap().contains("typed in fp32"), "{refused}");
    assert!(refused["commands"].is_null());
    let text = String::from_utf8(ask(&versions).stdout).unwrap();
    assert!(text.contains("  build: trtexec --onnx="), "{text}");
    assert!(text.contains("  measuring: 5 benchmark processes or more, as a comparison takes: at least 6 s"), "{text}");
    let text = String::from_utf8(ask(&["--toolchain", "tensorrt=8.4.1", "--optimization-level", "5"]).stdout).unwrap();
    assert!(text.contains("8.6.0 and newer do"), "{text}");
}

#[test]
fn a_bad_token_is_refused() {
    let world = World::new();
    let up = Up::start(&world);
    let output = up.command(&world, &["jobs"]).env("PLANFORGE_TOKEN", "nonsense").output().unwrap();
    insta::assert_snapshot!(transcript(world.root(), &output));
    let reader = json(&up.command(&world, &["token", "create", "ci", "--role", "read", "--json"]).output().unwrap());
    let reader_token = reader["secret"].as_str().unwrap();
    let mut submit = up.command(&world, &["submit", "--sku", "cpu-x86-64-v2"]);
    let refused = submit.arg(digits()).env("PLANFORGE_TOKEN", reader_token).output().unwrap();
    assert_eq!(refused.status.code(), Some(5), "{}", transcript(world.root(), &refused));
    let revoked = up.command(&world, &["token", "revoke", reader["id"].as_str().unwrap()]).output().unwrap();
    assert!(revoked.status.success());
    let after = up.command(&world, &["jobs"]).env("PLANFORGE_TOKEN", reader_token).output().unwrap();
    assert_eq!(after.status.code(), Some(5));
}

#[test]
fn the_ci_script_fetches_engines_and_fails_when_one_is_missing() {
    let world = World::new();
    let up = Up::start(&world);
    let sku = up.sku(&world);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/ci/fetch-engine.sh");
    let fetch = |skus: &[&str], token: &str| {
        let mut command = Command::new("sh");
        command.arg(&script).args(["-o", "engines"]).arg(digits()).args(skus).current_dir(world.path(""));
        command.env("PLANFORGE_BIN", env!("CARGO_BIN_EXE_planforge")).env("PLANFORGE_SERVER", &up.url);
        command.env("HOME", world.root().join("home")).env("PLANFORGE_TOKEN", token).output().unwrap()
    };
    let missing = fetch(&[&sku], &up.token);
    assert_eq!(missing.status.code(), Some(3), "{}", transcript(world.root(), &missing));
    assert!(
        String::from_utf8_lossy(&missing.stderr).contains(&format!("MISSING: no engine of {}", digits().display()))
    );
    assert_eq!(fs::read_dir(world.path("engines")).unwrap().count(), 0);

    let mut submit = up.command(&world, &["submit", "--sku", &sku, "--wait", "-q"]);
    let submitted = submit.arg(digits()).output().unwrap();
    assert!(submitted.status.success(), "{}", transcript(world.root(), &submitted));
    let fetched = fetch(&[&sku], &up.token);
    assert!(fetched.status.success(), "{}", transcript(world.root(), &fetched));
    let plan = world.path("engines").join(format!("digits.98f308ca6200.{sku}.plan"));
    assert!(plan.is_file());
    let line = String::from_utf8(fetched.stdout).unwrap();
    let sum = Command::new("sha256sum").arg(&plan).output().unwrap();
    assert_eq!(line.split_whitespace().next(), String::from_utf8(sum.stdout).unwrap().split_whitespace().next());

    // One of two missing: the other is there, and the job still fails.
    assert_eq!(fetch(&[&sku, "h100-sxm"], &up.token).status.code(), Some(3));
    assert_eq!(fetch(&[&sku], "nonsense").status.code(), Some(5));

    // A plan that somebody deleted: fetch says so, and the next request builds it again.
    let digest = line.split_whitespace().next().unwrap();
    let found = Command::new("find").arg(world.path("up")).args(["-type", "f", "-name", digest]).output().unwrap();
    let blob = String::from_utf8(found.stdout).unwrap();
    fs::remove_file(blob.trim()).unwrap();
    let model = digits();
    let args = ["fetch", model.to_str().unwrap(), "--sku", &sku, "-o", "again.plan"];
    let lost = up.command(&world, &args).output().unwrap();
    let said = String::from_utf8_lossy(&lost.stderr);
    assert!(lost.status.code() == Some(3) && said.contains("is gone") && said.contains("planforge submit"), "{said}");
    assert_eq!(fetch(&[&sku], &up.token).status.code(), Some(3), "the pipeline fails too");
    let mut submit = up.command(&world, &["submit", "--sku", &sku, "--wait", "--json"]);
    let submitted = json(&submit.arg(digits()).output().unwrap());
    assert_eq!(submitted["jobs"][0]["cached"], false, "{submitted:#}");
    let fetched = up.command(&world, &args).output().unwrap();
    assert!(fetched.status.success(), "{}", transcript(world.root(), &fetched));
    let url = up.url.clone();
    drop(up);
    let mut gone = Command::new("sh");
    gone.arg(&script).arg(digits()).arg(&sku).current_dir(world.path("")).env("HOME", world.root().join("home"));
    gone.env("PLANFORGE_BIN", env!("CARGO_BIN_EXE_planforge")).env("PLANFORGE_SERVER", url);
    assert_eq!(gone.output().unwrap().status.code(), Some(4));
}
