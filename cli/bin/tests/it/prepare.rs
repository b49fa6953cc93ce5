//! Models of other number types: prepared, built from their data, evaluated, refused; nothing is half-written.

use crate::{
    farm::json,
    support::{World, transcript},
};
use std::{
    fs,
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
    let (code, said) = refused(&world, &with(&["--precision", "bf16", "--target", "onnxruntime"]));
    assert!(code == Some(6) && said.contains("the target onnxruntime has no bf16"), "{code:?} {said}");
    let (code, said) =
        refused(&world, &["submit", "digits.onnx", "--precision", "int8", "--calibration", "digits-test.npz"]);
    assert!(code == Some(2) && said.contains("planforge prepare calibrates a model on it"), "{code:?} {said}");
    let (code, said) =
        refused(&world, &["build", "digits.onnx", "--precision", "fp32", "--calibration", "digits-test.npz"]);
    assert!(code == Some(2) && said.contains("data to calibrate on is for one of"), "{code:?} {said}");
}
