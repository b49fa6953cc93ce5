//! The first command a newcomer types: `planforge build`, with no coordinator anywhere.

use nix::sys::signal::Signal;
use planforge_graph::{interpreter, ir::Tensor};
use planforge_identity::npz;
use planforge_import::import;
use planforge_onnx::Model;
use planforge_tests::{
    eventually, models,
    process::{self, Process},
};
use planforge_types::{HostTensor, NamedTensors, OptimizationProfile};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::{collections::BTreeMap, fs, os::unix::process::ExitStatusExt as _, path::Path, process::Command};
use tempfile::TempDir;

fn home() -> TempDir {
    tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder")
}

/// Every command hosts the farm where nobody does, if only for a moment.
#[test]
fn up_waits_for_a_command_that_is_about_to_end() {
    let home = home();
    let data = home.path().join("data");
    fs::create_dir(&data).unwrap();
    let lock = fs::File::create(data.join("coordinator.lock")).unwrap();
    lock.lock().unwrap();
    let mut command = process::command(home.path());
    command.args(["up", "--listen", "127.0.0.1:0", "--data"]).arg(&data);
    let mut up = Process::start("up", home.path(), command);
    up.wait_for_line("waiting for its end");
    drop(lock);
    up.wait_for_line("http://127.0.0.1:");
}

/// `planforge build MODEL --data <home>/data --json ...`
fn build(home: &Path, model: &Path, extra: &[&str]) -> Command {
    let mut command = process::command(home);
    command.arg("build").arg(model).arg("--data").arg(home.join("data")).arg("--json").args(extra);
    command
}

fn only_job(document: &Value) -> &Value {
    let jobs = document["jobs"].as_array().unwrap_or_else(|| panic!("no jobs in {document}"));
    assert_eq!(jobs.len(), 1, "{document}");
    &jobs[0]
}

fn text<'a>(job: &'a Value, field: &str) -> &'a str {
    job[field].as_str().unwrap_or_else(|| panic!("no {field} in {job}"))
}

#[test]
fn a_trained_model_travels_the_whole_way_and_its_accuracy_is_a_number() {
    let home = home();
    let test_set = models::digits_test_set();
    let document = process::run_json(build(home.path(), &models::digits(), &["--eval", test_set.to_str().unwrap()]));
    let job = only_job(&document);
    assert_eq!(text(job, "state"), "succeeded", "{job}");
    assert_eq!(job["cached"], Value::Bool(false), "{job}");
    let plan = fs::read(text(job, "plan_path")).expect("the plan lies where it is said to lie");
    assert_eq!(hex::encode(Sha256::digest(&plan)), text(job, "plan_digest"), "the plan is what its digest says");

    let report = &job["report"];
    let latency = &report["latency_ms"];
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("no number in {report}"));
    assert!(number(&latency["median"]) > 0.0 && number(&report["throughput_per_s"]) > 0.0, "{report}");
    assert!(number(&latency["min"]) <= number(&latency["median"]));
    assert!(number(&latency["median"]) <= number(&latency["p99"]));
    let expected = models::digits_training_facts()["test_top1"].as_f64().expect("a number");
    let accuracy = number(&report["accuracy"]["top1"]);
    assert!(
        (accuracy - expected).abs() < 1e-9,
        "the engine is as accurate as the trained model: {accuracy} {expected}"
    );

    let again = process::run_json(build(home.path(), &models::digits(), &["--eval", test_set.to_str().unwrap()]));
    let again = only_job(&again);
    assert_eq!(again["cached"], Value::Bool(true), "{again}");
    for field in ["engine_key", "plan_digest", "sku"] {
        assert_eq!(text(again, field), text(job, field));
    }
    assert!(again["report"]["latency_ms"]["median"].is_number(), "{again}");

    // Asked in words, for one engine, the report follows the table.
    let mut in_words = process::command(home.path());
    in_words.arg("build").arg(models::digits()).arg("--data").arg(home.path().join("data"));
    let told = process::run(in_words);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    for words in ["  cached  ", "\nlatency     ", "\noutputs     right", "\nlayer     "] {
        assert!(told.contains(words), "no '{words}' in {told}");
    }

    // The plan's file stands for what the farm measured of it.
    let mut of_plan = process::command(home.path());
    of_plan.args(["report", text(job, "plan_path"), "--json", "--data"]).arg(home.path().join("data"));
    let of_plan = process::run_json(of_plan);
    assert_eq!(of_plan["reports"][0]["plan"]["digest"], job["plan_digest"], "{of_plan}");
}

#[test]
fn batches_are_swept_on_the_stored_plan_and_layers_stand_beside_what_the_device_reaches() {
    let home = home();
    let model = home.path().join("digits.onnx");
    let mut make = process::command(home.path());
    make.args(["testmodel", "digits", "--batch", "dynamic", "-o"]).arg(&model);
    assert!(process::run(make).status.success());
    let shapes = ["--shapes", "image:1..8..32x1x8x8"];
    let plain = process::run_json(build(home.path(), &model, &shapes));
    let plain = only_job(&plain);
    assert!(plain["report"]["batches"].is_null(), "{plain}");
    let ceilings = &plain["report"]["ceilings"];
    for rate in [&ceilings["copy_gb_s"], &ceilings["tflop_s"]["fp32"]] {
        assert!(rate.as_f64().is_some_and(|rate| rate > 0.0), "{ceilings}");
    }
    assert!(ceilings["conditions"]["threads"].is_string(), "{ceilings}");

    let swept = process::run_json(build(home.path(), &model, &[&shapes[..], &["--sweep-batch", "32,1,8,64"]].concat()));
    let swept = only_job(&swept);
    assert_eq!(text(swept, "plan_digest"), text(plain, "plan_digest"), "nothing is rebuilt");
    let points = swept["report"]["batches"]["points"].as_array().unwrap_or_else(|| panic!("no points in {swept}"));
    let batches: Vec<_> = points.iter().map(|point| point["batch"].as_u64().unwrap()).collect();
    assert_eq!(batches, [1, 8, 32, 64]);
    for point in &points[..3] {
        assert!(point["latency_ms"]["median"].as_f64().is_some_and(|ms| ms > 0.0), "{point}");
        assert!(point["throughput_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{point}");
    }
    assert_eq!((&points[0]["headline"], &points[1]["headline"]), (&Value::Null, &Value::Bool(true)));
    assert_eq!(points[3]["problem"], "the profile allows 1 to 32");
    assert!(swept["report"]["batches"]["best"].is_u64(), "{swept}");

    let mut report = process::command(home.path());
    report.args(["report", text(swept, "id"), "--data"]).arg(home.path().join("data"));
    let shown = process::run(report);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    for words in ["64: not measured: the profile allows", "ceilings    copy ", " of memory"] {
        assert!(shown.contains(words), "no '{words}' in {shown}");
    }

    let best = |flags: &[&str]| {
        let mut best = process::command(home.path());
        best.args(["best", "digits.onnx", "--json", "--data"]).arg(home.path().join("data")).args(flags);
        process::run(best)
    };
    let answer = |flags: &[&str]| -> Value { serde_json::from_slice(&best(flags).stdout).unwrap() };
    let by_latency = answer(&["--by", "latency"]);
    // What was disturbed all the time, on a machine that is busy otherwise, is left out and said.
    let told = ["candidates", "left_out"].map(|list| by_latency[list].as_array().unwrap().clone()).concat();
    let mut known: Vec<u64> = told.iter().map(|one| one["batch"].as_u64().unwrap()).collect();
    known.sort_unstable();
    known.dedup();
    assert_eq!(known, [1, 8, 32], "every point of the sweep is a candidate: {by_latency}");
    assert!(told.iter().all(|one| one["plan_digest"] == swept["plan_digest"]), "{by_latency}");
    let nothing = best(&["--p99", "0.001us"]);
    assert_eq!(nothing.status.code(), Some(3), "{}", String::from_utf8_lossy(&nothing.stderr));
}

#[test]
fn a_fixed_batch_is_not_swept_and_says_what_would_be() {
    let home = home();
    let mut bench = process::command(home.path());
    bench.arg("bench").arg(models::digits()).args([
        "--threads",
        "1",
        "--budget-s",
        "1",
        "--sweep-batch",
        "1,2",
        "--json",
    ]);
    let report = process::run_json(bench);
    assert!(report["batches"].is_null(), "{report}");
    let findings = report["findings"].as_array().expect("findings");
    let why = findings.iter().find(|finding| finding["code"] == "no-batches").unwrap_or_else(|| panic!("{report}"));
    assert!(why["message"].to_string().contains("fixed at 1; a model whose batch is open"), "{why}");
}

#[test]
fn an_engine_of_varying_batch_is_right_inside_its_profile_and_refuses_the_rest() {
    let home = home();
    let model = home.path().join("digits.onnx");
    let mut make = process::command(home.path());
    make.args(["testmodel", "digits", "--batch", "dynamic", "-o"]).arg(&model);
    assert!(process::run(make).status.success());
    let test_set = models::digits_test_set();
    let shapes = ["--shapes", "image:1..8..32x1x8x8", "--eval", test_set.to_str().unwrap()];
    let document = process::run_json(build(home.path(), &model, &shapes));
    let job = only_job(&document);
    assert_eq!(text(job, "state"), "succeeded", "{job}");
    let report = &job["report"];
    let expected = models::digits_training_facts()["test_top1"].as_f64().expect("a number");
    let accuracy = report["accuracy"]["top1"].as_f64().expect("a number");
    assert!((accuracy - expected).abs() < 1e-9, "{accuracy} {expected}");

    let plan = text(job, "plan_path");
    let images = npz::read(&test_set).expect("the test set")["image"].clone();
    let row_bytes = images.bytes.len() / images.shape[0];
    let (input, output) = (home.path().join("in.npz"), home.path().join("out.npz"));
    let run = |rows: usize| {
        let shape = [rows, 1, 8, 8].to_vec();
        let bytes = images.bytes[..rows * row_bytes].to_vec();
        let given = HostTensor { element: images.element, shape, bytes };
        npz::write(&input, &NamedTensors::from([("image".to_owned(), given)])).expect("written");
        let mut run = process::command(home.path());
        run.args(["run", plan, "--input"]).arg(&input).arg("--output").arg(&output);
        process::run(run)
    };
    let reference = |rows: usize| {
        let fixed = OptimizationProfile::of_shapes([("image", &[rows, 1, 8, 8][..])]);
        let graph = import(&Model::open(&model).expect("the model"), Some(&fixed)).expect("imported");
        let given = npz::read(&input).expect("the inputs").remove("image").expect("images");
        let given = BTreeMap::from([("image".to_owned(), Tensor::try_from(given).expect("a tensor"))]);
        interpreter::execute(&graph, &given).expect("run").remove("probabilities").expect("an output").to_f64s()
    };
    for rows in [1, 5, 32] {
        let ran = run(rows);
        assert!(ran.status.success(), "{ran:?}");
        let answer = npz::read(&output).expect("the outputs").remove("probabilities").expect("an output");
        assert_eq!(answer.shape, [rows, 10]);
        let answer = Tensor::try_from(answer).expect("a tensor").to_f64s();
        for (got, want) in answer.iter().zip(reference(rows)) {
            assert!((got - want).abs() < 1e-5, "{rows} rows: {got} is not {want}");
        }
    }
    let refused = run(33);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("dimension 0 of input image is 33, the engine takes 1 to 32"), "{said}");
}

#[test]
fn two_builds_at_once_on_one_data_folder_share_the_work() {
    let home = home();
    let model = models::convolutions(&home.path().join("m.onnx"), 4, 32, 28, 1);
    let children: Vec<_> = (0..3)
        .map(|_| {
            build(home.path(), &model, &[]).stdout(std::process::Stdio::piped()).spawn().expect("planforge starts")
        })
        .collect();
    let plans: Vec<String> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().expect("planforge ends");
            assert!(output.status.success(), "{output:?}");
            let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            text(only_job(&document), "plan_digest").to_owned()
        })
        .collect();
    assert!(plans.iter().all(|plan| *plan == plans[0]), "one engine for one key: {plans:?}");
}

#[test]
fn ctrl_c_at_any_point_leaves_nothing_running_and_nothing_broken() {
    let home = home();
    let model = models::convolutions(&home.path().join("m.onnx"), 6, 48, 28, 2);
    let data = home.path().join("data");
    // What is there when the signal comes: nothing yet, the data folder, a socket, a worker process.
    type Reached = fn(&Path, i32) -> bool;
    let points: [(&str, Reached); 3] = [
        ("the data folder exists", |data, _| data.exists()),
        ("the database exists", |data, _| walk(data).iter().any(|f| f.ends_with(".db") || f.ends_with(".sqlite"))),
        ("a worker runs", |_, pid| !process::descendants(pid).is_empty()),
    ];
    for (what, reached) in points {
        let mut running = Process::start("build", home.path(), build(home.path(), &model, &[]));
        let pid = running.pid();
        eventually(what, || if reached(&data, pid) { Ok(()) } else { Err("not yet".into()) });
        let workers = process::descendants(pid);
        running.signal(Signal::SIGINT);
        let status = running.wait();
        // Before the program listens for it, the signal ends it the plain way; shells call both 130.
        let ended_by_signal = status.signal() == Some(Signal::SIGINT as i32);
        assert!(status.code() == Some(130) || ended_by_signal, "{what}: {status}\n{}", running.log());
        eventually("no worker is left", || {
            let left: Vec<i32> =
                workers.iter().copied().filter(|pid| Path::new(&format!("/proc/{pid}/exe")).exists()).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
    }
    let document = process::run_json(build(home.path(), &model, &[]));
    assert_eq!(text(only_job(&document), "state"), "succeeded", "{document}");
}

#[test]
fn sigkill_at_any_point_needs_no_repair() {
    let home = home();
    let model = models::convolutions(&home.path().join("m.onnx"), 6, 48, 28, 3);
    // Two deaths: a job that sees its agent die three times is given up as poison.
    for round in 0..2 {
        let mut running = Process::start("build", home.path(), build(home.path(), &model, &[]));
        let pid = running.pid();
        let worker =
            eventually("a worker runs", || process::descendants(pid).first().copied().ok_or("none".to_owned()));
        if round > 0 {
            // Later in the build: the worker has eaten some processor time.
            eventually("the worker has worked", || {
                if cpu_ticks(worker) >= 20 * round { Ok(()) } else { Err("no".into()) }
            });
        }
        running.kill_9();
        eventually("the worker died with its agent", || {
            if Path::new(&format!("/proc/{worker}/exe")).exists() { Err("alive".into()) } else { Ok(()) }
        });
    }
    let document = process::run_json(build(home.path(), &model, &[]));
    assert_eq!(text(only_job(&document), "state"), "succeeded", "{document}");
}

#[test]
fn one_build_for_three_levels_gives_engines_with_different_kernels() {
    let home = home();
    let mut devices = process::command(home.path());
    devices.args(["devices", "--json", "--data"]).arg(home.path().join("data"));
    let devices = process::run_json(devices);
    let offered: Vec<String> = devices["devices"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|device| device["skus"].as_array().cloned().unwrap_or_default())
        .filter_map(|sku| sku.as_str().map(str::to_owned))
        .collect();
    let wanted = ["cpu-x86-64-v2", "cpu-x86-64-v3", "cpu-x86-64-v4"];
    let skus: Vec<&str> = wanted.into_iter().filter(|sku| offered.iter().any(|o| o == sku)).collect();
    if skus.len() < wanted.len() {
        let (some, all) = (skus.len(), wanted.len());
        planforge_skipped::skipped(format_args!(
            "this machine offers {offered:?}: only {some} of {all} levels are compared"
        ));
    }
    assert!(!skus.is_empty() || !cfg!(target_arch = "x86_64"), "an x86-64 machine runs at least v2: {offered:?}");

    let model = models::digits();
    let extra: Vec<&str> = skus.iter().flat_map(|sku| ["--sku", sku]).collect();
    let document = process::run_json(build(home.path(), &model, &extra));
    let jobs = document["jobs"].as_array().expect("jobs");
    assert_eq!(jobs.len(), skus.len());
    let mut kernels = Vec::new();
    for (job, sku) in jobs.iter().zip(&skus) {
        assert_eq!((text(job, "state"), text(job, "sku")), ("succeeded", *sku), "{job}");
        assert!(job["report"]["latency_ms"]["median"].is_number(), "{job}");
        let mut inspect = process::command(home.path());
        inspect.args(["inspect", text(job, "plan_path"), "--json"]);
        let inspection = process::run_json(inspect);
        let names: Vec<String> =
            inspection["kernels"].as_object().into_iter().flatten().map(|(k, _)| k.clone()).collect();
        assert!(!names.is_empty(), "an inspection names kernels: {inspection}");
        kernels.push(names);
    }
    for (left, right) in kernels.iter().zip(kernels.iter().skip(1)) {
        assert_ne!(left, right, "engines of different levels hold different kernels");
    }
    if jobs.len() >= 2 {
        let mut compare = process::command(home.path());
        compare.args(["compare", "--json", "--data"]).arg(home.path().join("data"));
        compare.args(jobs.iter().map(|job| text(job, "id")));
        let comparison = process::run_json(compare);
        let verdicts = comparison.to_string();
        assert!(
            ["faster", "slower", "same", "ambiguous", "cannot_tell"].iter().any(|v| verdicts.contains(v)),
            "{comparison}"
        );
    }
}

/// Every file below a folder, as text.
fn walk(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| {
            let path = entry.path();
            if path.is_dir() { walk(&path) } else { vec![path.to_string_lossy().into_owned()] }
        })
        .collect()
}

/// Processor time of a process in clock ticks; 0 when it is gone.
fn cpu_ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let tick = |index: usize| fields.get(index).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    tick(11) + tick(12)
}
