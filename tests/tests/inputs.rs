//! Real inputs: given with a request, compared on and timed, and kept apart from what others ask for.

use planforge_identity::npz;
use planforge_tests::{models, process};
use planforge_types::{ElementType, HostTensor, NamedTensors};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

fn home() -> TempDir {
    tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder")
}

fn command(home: &Path, name: &str, extra: &[&str]) -> Command {
    let mut command = process::command(home);
    command.arg(name).args(extra).arg("--json").arg("--data").arg(home.join("data"));
    command
}

fn build(home: &Path, model: &Path, extra: &[&str]) -> Value {
    let model = model.to_str().unwrap();
    let document = process::run_json(command(home, "build", &[&[model, "--threads", "1"], extra].concat()));
    let jobs = document["jobs"].as_array().unwrap_or_else(|| panic!("no jobs in {document}"));
    assert_eq!(jobs.len(), 1, "{document}");
    jobs[0].clone()
}

/// Name, shape, and what stands in it throughout.
type Array<'a> = (&'a str, &'a [usize], f64);

fn archive(home: &Path, file: &str, arrays: &[Array<'_>]) -> PathBuf {
    let array = |(name, shape, value): &Array<'_>| {
        let values = vec![*value; shape.iter().product()];
        ((*name).to_owned(), HostTensor::of_values(ElementType::F64, shape.to_vec(), &values))
    };
    let path = home.join(file);
    npz::write(&path, &arrays.iter().map(array).collect::<NamedTensors>()).expect("written");
    path
}

#[test]
fn an_engine_built_on_given_inputs_answers_those_who_give_them() {
    let home = home();
    let inputs = archive(home.path(), "inputs.npz", &[("image", &[1, 1, 8, 8], 0.5)]);
    let given = ["--inputs", inputs.to_str().unwrap()];
    let first = build(home.path(), &models::digits(), &[&given[..], &["--time-inputs"]].concat());
    assert_eq!((&first["state"], &first["cached"]), (&"succeeded".into(), &false.into()), "{first}");
    let told = &first["report"]["given_inputs"];
    assert_eq!((&told["timed"], &told["arrays"][0]["name"]), (&true.into(), &"image".into()), "{told}");
    assert_eq!(told["arrays"][0]["shape"], serde_json::json!([1, 1, 8, 8]));
    assert_eq!(told["digest"], first["measure"]["inputs_digest"]);
    assert_eq!(first["report"]["numerics"]["passed"], true);

    // The same file by another name is the same file.
    let copy = home.path().join("copy.npz");
    std::fs::copy(&inputs, &copy).unwrap();
    let again = build(home.path(), &models::digits(), &["--inputs", copy.to_str().unwrap(), "--time-inputs"]);
    assert_eq!(again["cached"], true, "{again}");
    // Compared on and not timed, or nothing given at all: measured, on the plan that is there.
    for extra in [&given[..], &[]] {
        let other = build(home.path(), &models::digits(), extra);
        assert_eq!((&other["cached"], &other["plan_digest"]), (&false.into(), &first["plan_digest"]), "{other}");
        let told = &other["report"]["given_inputs"];
        assert_eq!(told["timed"] == false, !extra.is_empty(), "{told}");
        assert_eq!(build(home.path(), &models::digits(), extra)["report"], other["report"]);
    }

    let mut shown = process::command(home.path());
    shown.args(["report", first["id"].as_str().unwrap(), "--data"]).arg(home.path().join("data"));
    let shown = String::from_utf8_lossy(&process::run(shown).stdout).into_owned();
    let words = "outputs were compared and timed on given inputs sha256:";
    assert!(shown.contains(words) && shown.contains(": image f32 [1, 1, 8, 8]"), "{shown}");
}

#[test]
fn inputs_that_do_not_fit_are_refused_before_anything_is_asked_of_a_farm() {
    let home = home();
    let model = models::digits();
    let cases: [(&str, &[Array<'_>], &str); 4] = [
        ("more.npz", &[("image", &[7, 1, 8, 8], 0.0)], "input 'image' takes f32 [1, 1, 8, 8]"),
        ("other.npz", &[("picture", &[1, 1, 8, 8], 0.0)], "array 'picture' of the given inputs is no input"),
        ("nan.npz", &[("image", &[1, 1, 8, 8], f64::NAN)], "is NaN at [0, 0, 0, 0]"),
        ("none.npz", &[], "holds no array"),
    ];
    for (file, arrays, words) in cases {
        let inputs = archive(home.path(), file, arrays);
        for name in ["build", "submit", "bench"] {
            let refused = command(home.path(), name, &[model.to_str().unwrap(), "--inputs", inputs.to_str().unwrap()])
                .output()
                .expect("it runs");
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(2), "{name} {file}: {said}");
            assert!(said.contains(words) && said.contains("hint"), "{name} {file}: {said}");
        }
    }
    assert!(!home.path().join("data/coordinator.lock").exists(), "no farm was opened");
}

#[test]
fn of_a_profile_that_varies_only_what_it_allows_is_taken() {
    let home = home();
    let model = home.path().join("digits.onnx");
    let mut make = process::command(home.path());
    make.args(["testmodel", "digits", "--batch", "dynamic", "-o"]).arg(&model);
    assert!(process::run(make).status.success());
    let shapes = "image:1..2..4x1x8x8";
    let nine = archive(home.path(), "nine.npz", &[("image", &[9, 1, 8, 8], 0.5)]);
    let refused = command(
        home.path(),
        "build",
        &[model.to_str().unwrap(), "--shapes", shapes, "--inputs", nine.to_str().unwrap()],
    )
    .output()
    .expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("takes 1 to 4 along axis 0 in the first profile") && said.contains("array[:4]"), "{said}");

    let three = archive(home.path(), "three.npz", &[("image", &[3, 1, 8, 8], 0.5)]);
    let inputs = ["--shapes", shapes, "--inputs", three.to_str().unwrap(), "--time-inputs"];
    let timed = build(home.path(), &model, &inputs);
    let report = &timed["report"];
    assert_eq!((&report["batch"], &report["numerics"]["passed"]), (&3.into(), &true.into()), "{report}");
    // The usual shapes were not the headline's: they are a point of their own.
    let points = report["points"].as_array().unwrap_or_else(|| panic!("no points in {report}"));
    assert!(points.len() == 3 && points.iter().all(|point| point["headline"].is_null()), "{points:?}");
}
