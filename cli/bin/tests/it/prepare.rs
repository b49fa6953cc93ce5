//! Models of other number types: prepared, built from their data, evaluated, refused; nothing is half-written.

use crate::{
    farm::{Up, json},
    support::{World, transcript},
};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Output,
};

fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").join(file)
}

/// A world with the example model and its labelled data in the working folder.
fn world() -> World {
    let world = World::new();
    for file in ["digits.onnx", "digits-test.npz"] {
        fs::copy(example(file), world.path(file)).unwrap();
    }
    world
}

fn succeeded(world: &World, args: &[&str]) -> Output {
    let output = world.run(args);
    assert!(output.status.success(), "{args:?}: {}", transcript(world.root(), &output));
    output
}

/// Exit code and what was said.
fn refused(world: &World, args: &[&str]) -> (Option<i32>, String) {
    let output = world.run(args);
    let mut files: Vec<_> =
        fs::read_dir(world.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.retain(|name| !["digits.onnx", "digits-test.npz", "empty", "bad.npz"].contains(&name.as_str()));
    assert!(files.is_empty(), "{args:?} left {files:?}");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_model_is_prepared_with_its_report_and_a_cache() {
    let world = world();
    let args = [
        "prepare",
        "digits.onnx",
        "--precision",
        "int8",
        "--calibration",
        "digits-test.npz",
        "-o",
        "out/digits.int8.onnx",
        "--cache",
        "digits.cache",
        "--tensorrt-version",
        "10.3.0",
        "--json",
    ];
    let told = json(&succeeded(&world, &args));
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(world.path("out/digits.int8.preparation.json")).unwrap()).unwrap();
    for part in ["source", "prepared", "data", "layers", "coverage", "measured", "answers"] {
        assert_eq!(told[part], report[part], "{part}");
        assert!(!report[part].is_null(), "{part}");
    }
    assert_eq!(report["coverage"]["layers_lowered"], 4, "{report:#}");
    assert!(report["measured"]["top1_after"].as_f64().unwrap() >= 0.98, "{report:#}");
    let cache = fs::read_to_string(world.path("digits.cache")).unwrap();
    // Pixels lie between 0 and 1, and the reader's version is counted as the library does.
    assert!(cache.starts_with("TRT-100300-EntropyCalibration2\n") && cache.contains("\nimage: 3c0"), "{cache}");
    // What is prepared is left as it is when it is prepared again.
    let again = succeeded(
        &world,
        &[
            "prepare",
            "out/digits.int8.onnx",
            "--precision",
            "int8",
            "--calibration",
            "digits-test.npz",
            "-o",
            "again.onnx",
        ],
    );
    assert!(String::from_utf8_lossy(&again.stderr).contains("quantised already"));
    assert_eq!(fs::read(world.path("again.onnx")).unwrap(), fs::read(world.path("out/digits.int8.onnx")).unwrap());
}

#[test]
fn a_build_prepares_first_and_its_plan_is_evaluated_and_gated() {
    let world = world();
    fs::create_dir(world.path("plans")).unwrap();
    succeeded(
        &world,
        &[
            "build",
            "digits.onnx",
            "--precision",
            "int8",
            "--calibration",
            "digits-test.npz",
            "--toolchain",
            "native",
            "-o",
            "plans",
            "--json",
        ],
    );
    let names = |folder: &str, extension: &str| -> Vec<PathBuf> {
        let files = fs::read_dir(world.path(folder)).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
    };
    assert!(world.path("plans/digits.int8.onnx").exists() && world.path("plans/digits.int8.preparation.json").exists());
    let plans = names("plans", "plan");
    let plan = plans.first().expect("a plan").to_str().unwrap();
    let evaluated = json(&succeeded(
        &world,
        &[
            "eval",
            plan,
            "digits-test.npz",
            "--metric",
            "topk",
            "--k",
            "3",
            "--min-top1",
            "0.98",
            "-o",
            "eval.json",
            "--json",
        ],
    ));
    assert_eq!((&evaluated["rows"], &evaluated["passed"]), (&serde_json::json!(450), &serde_json::json!(true)));
    assert!(evaluated["topk"].as_f64() >= evaluated["top1"].as_f64());
    assert_eq!(evaluated["plan_digest"].as_str().unwrap().len(), 64);
    let written: serde_json::Value = serde_json::from_slice(&fs::read(world.path("eval.json")).unwrap()).unwrap();
    assert_eq!(written, evaluated);
    let failed = world.run(&["eval", plan, "digits-test.npz", "--min-top1", "1"]);
    assert_eq!(failed.status.code(), Some(9), "{}", transcript(world.root(), &failed));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("FAILED: top-1"));
}

#[test]
fn what_cannot_be_prepared_is_said_and_nothing_is_written() {
    let world = world();
    fs::create_dir(world.path("empty")).unwrap();
    let with = |more: &[&'static str]| [&["prepare", "digits.onnx", "-o", "out.onnx"][..], more].concat();
    let (code, said) = refused(&world, &with(&["--precision", "int8"]));
    assert!(code == Some(2) && said.contains("int8 needs calibration data, and none is given"), "{said}");
    let (code, said) = refused(&world, &with(&["--precision", "int8", "--calibration", "empty"]));
    assert!(code == Some(2) && said.contains("holds no .npz file"), "{said}");
    let (code, said) = refused(&world, &with(&["--precision", "int8", "--calibration", "digits.onnx"]));
    assert!(code == Some(2) && said.contains("is no readable .npz archive"), "{said}");
    let int8 = ["--precision", "int8", "--calibration", "digits-test.npz"];
    let (code, said) = refused(&world, &with(&[&int8[..], &["--max-output-error", "0"]].concat()));
    assert!(code == Some(6) && said.contains("cannot be met: the best"), "{code:?} {said}");
    let (code, said) = refused(&world, &with(&[&int8[..], &["--cache", "c", "--tensorrt-version", "11.0"]].concat()));
    assert!(code == Some(2) && said.contains("reads no calibration cache"), "{code:?} {said}");
    let for_others = ["--cache", "c", "--tensorrt-version", "10.3.0", "--target", "cpu"];
    let (code, said) = refused(&world, &with(&[&int8[..], &for_others].concat()));
    assert!(code == Some(2) && said.contains("a calibration cache is TensorRT's, and the target is cpu"), "{said}");
    let (code, said) = refused(&world, &with(&["--precision", "bf16", "--target", "onnxruntime"]));
    assert!(code == Some(6) && said.contains("the target onnxruntime has no bf16"), "{code:?} {said}");
    let (code, said) = refused(&world, &["submit", "digits.onnx", "--calibration-method", "entropy"]);
    assert!(code == Some(2) && said.contains("there is no data to prepare it on"), "{code:?} {said}");
    let (code, said) =
        refused(&world, &["build", "digits.onnx", "--precision", "fp32", "--calibration", "digits-test.npz"]);
    assert!(code == Some(2) && said.contains("data to calibrate on is for one of"), "{code:?} {said}");
}

/// A script beside the model that is run as it is.
fn script(world: &World, name: &str, text: &str) {
    fs::write(world.path(name), text).unwrap();
    fs::set_permissions(world.path(name), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_farm_prepares_once_for_all_engines_of_a_request_and_says_where_each_comes_from() {
    let world = world();
    let up = Up::start(&world);
    up.sku(&world);
    let devices = json(&up.command(&world, &["devices", "--json"]).output().unwrap());
    let skus: Vec<&str> =
        devices["devices"][0]["skus"].as_array().unwrap().iter().filter_map(|sku| sku.as_str()).collect();
    let skus = &skus[skus.len().saturating_sub(2)..];
    let listed = skus.join(",");
    // The data comes from a script, which runs here.
    script(&world, "rows.sh", "#!/bin/sh\necho rows of $1\ncp digits-test.npz \"$2\"\n");
    let args = [
        "submit",
        "digits.onnx",
        "--sku",
        &listed,
        "--precision",
        "int8",
        "--calibration",
        "rows.sh",
        "--toolchain",
        "native",
        "--threads",
        "1",
        "--optimization-level",
        "0",
        "--wait",
        "--json",
    ];
    let output = up.command(&world, &args).output().unwrap();
    assert!(output.status.success(), "{}", transcript(world.root(), &output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("rows of digits.onnx"));
    let told = json(&output);
    let jobs = told["jobs"].as_array().unwrap();
    let kinds: Vec<&str> = jobs.iter().filter_map(|job| job["kind"].as_str()).collect();
    assert_eq!(kinds, [&["prepare"][..], &vec!["build"; skus.len()]].concat(), "{told:#}");
    let made = &jobs[0]["preparation"]["made"];
    assert_eq!(made["name"], "digits.int8.onnx", "{told:#}");
    for build in &jobs[1..] {
        assert_eq!((&build["state"], &build["model"]["digest"]), (&"succeeded".into(), &made["digest"]), "{build:#}");
        assert_eq!((&build["preparation"]["job"], &build["spec"]["precision"]), (&jobs[0]["id"], &"fp32".into()));
    }
    // What is fetched says from what it was made, and so does its card.
    let plan = jobs[1]["plan_digest"].as_str().unwrap();
    let fetched = up.command(&world, &["fetch", plan, "--card", "-o", "engine.plan"]).output().unwrap();
    assert!(fetched.status.success(), "{}", transcript(world.root(), &fetched));
    let said = String::from_utf8_lossy(&fetched.stderr).into_owned();
    assert!(said.contains("prepared from digits.onnx") && said.contains("int8 by mse"), "{said}");
    let card: serde_json::Value =
        serde_json::from_slice(&fs::read(world.path("engine.plan.card.json")).unwrap()).unwrap();
    assert_eq!(
        (&card["prepared_from"]["job"], &card["prepared_from"]["source_name"]),
        (&jobs[0]["id"], &"digits.onnx".into())
    );
    // The prepared model and what became of its layers come here, too, as prepare would have made them.
    let job = jobs[0]["id"].as_str().unwrap();
    let brought = up.command(&world, &["prepare", "--of", job, "-o", "digits.int8.onnx"]).output().unwrap();
    assert!(brought.status.success(), "{}", transcript(world.root(), &brought));
    assert!(String::from_utf8_lossy(&brought.stderr).contains("int8: 4 of 4 layers"), "{brought:?}");
    let own = ["prepare", "digits.onnx", "--precision", "int8", "--calibration", "digits-test.npz", "-o", "own.onnx"];
    succeeded(&world, &own);
    assert_eq!(fs::read(world.path("own.onnx")).unwrap(), fs::read(world.path("digits.int8.onnx")).unwrap());
    let report =
        |name: &str| -> serde_json::Value { serde_json::from_slice(&fs::read(world.path(name)).unwrap()).unwrap() };
    assert_eq!(report("own.preparation.json"), report("digits.int8.preparation.json"));
    // Again: nothing runs.
    let again = json(&up.command(&world, &args).output().unwrap());
    assert!(again["jobs"].as_array().unwrap().iter().all(|job| job["cached"] == true), "{again:#}");
    // Data that does not fit is refused here, and a script that fails is told.
    script(&world, "fails.sh", "#!/bin/sh\necho no rows left >&2\nexit 3\n");
    fs::write(world.path("none.py"), "pass\n").unwrap();
    for (data, words) in [("fails.sh", "ended with exit status: 3"), ("none.py", "wrote no data")] {
        let line = ["submit", "digits.onnx", "--sku", &listed, "--precision", "int8", "--calibration", data];
        let output = up.command(&world, &line).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(words), "{data}: {said}");
    }
}
