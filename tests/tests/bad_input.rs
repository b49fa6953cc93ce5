//! What a user gets for bad input: an error that names the file and says what to do, a documented exit code, and a farm
//! that goes on working.

use planforge_tests::{models, process};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

struct Refusal {
    code: Option<i32>,
    said: String,
}

/// Builds a model that must be refused.
fn refused(home: &Path, model: &Path, extra: &[&str]) -> Refusal {
    let mut command = process::command(home);
    command.arg("build").arg(model).arg("--data").arg(home.join("data")).args(extra);
    let output = process::run(command);
    assert!(!output.status.success(), "{} was not refused: {output:?}", model.display());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{said}");
    Refusal { code: output.status.code(), said }
}

fn home() -> TempDir {
    tempfile::Builder::new().prefix("planforge-test-").tempdir().expect("a temporary folder")
}

fn write(home: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = home.join(name);
    fs::write(&path, bytes).expect("written");
    path
}

#[test]
fn files_that_are_no_models() {
    let home = home();
    let digits = fs::read(models::digits()).expect("the digits model");
    let cases = [
        ("empty.onnx", Vec::new(), "empty"),
        ("text.onnx", b"this is a letter, not a model\n".to_vec(), "onnx"),
        ("truncated.onnx", digits[..digits.len() / 2].to_vec(), "truncated.onnx"),
        ("nested.onnx", nested(20_000), "nested.onnx"),
    ];
    for (name, bytes, word) in cases {
        let path = write(home.path(), name, &bytes);
        let refusal = refused(home.path(), &path, &[]);
        assert!(refusal.said.contains(name), "names the file: {}", refusal.said);
        assert!(refusal.said.to_lowercase().contains(word), "{name}: {}", refusal.said);
    }
    let missing = refused(home.path(), &home.path().join("missing.onnx"), &[]);
    assert!(missing.said.contains("missing.onnx"), "{}", missing.said);
}

/// A protobuf whose graph attribute holds a graph, `depth` times.
fn nested(depth: usize) -> Vec<u8> {
    fn varint(mut n: usize, out: &mut Vec<u8>) {
        while n >= 0x80 {
            out.push((n as u8 & 0x7f) | 0x80);
            n >>= 7;
        }
        out.push(n as u8);
    }
    // graph = field 7 of the model; node = 1 of a graph; attribute = 5 of a node; g = 6 of an attribute.
    let mut inner: Vec<u8> = Vec::new();
    for level in 0..depth {
        for field in [6_u8, 5, 1] {
            if level == 0 && field == 6 {
                continue;
            }
            let mut outer = vec![(field << 3) | 2];
            varint(inner.len(), &mut outer);
            outer.extend(&inner);
            inner = outer;
        }
        if inner.len() > 4 << 20 {
            break;
        }
    }
    let mut model = vec![0x08, 8, (7 << 3) | 2];
    varint(inner.len(), &mut model);
    model.extend(inner);
    model
}

#[test]
fn graphs_that_cannot_be_built() {
    let home = home();
    let unknown = models::unknown_operators(&home.path().join("unknown.onnx"));
    let refusal = refused(home.path(), &unknown, &[]);
    assert!(refusal.said.contains("Frobnicate") && refusal.said.contains("Quuxify"), "all at once: {}", refusal.said);
    assert!(refusal.said.contains("17"), "with the opset: {}", refusal.said);

    let cyclic = models::cyclic(&home.path().join("cyclic.onnx"));
    let refusal = refused(home.path(), &cyclic, &[]);
    assert!(refusal.said.to_lowercase().contains("cycl"), "{}", refusal.said);

    for (name, shape) in
        [("negative", vec![-3_i64, 4]), ("huge", vec![i64::MAX / 2, 4]), ("overflow", vec![1 << 32, 1 << 32])]
    {
        let path = models::relu_of_shape(&home.path().join(format!("{name}.onnx")), &shape);
        let refusal = refused(home.path(), &path, &[]);
        assert!(refusal.said.contains('x'), "names the input: {}", refusal.said);
    }
}

#[test]
fn requests_that_mean_nothing() {
    let home = home();
    let digits = models::digits();
    let unknown = refused(home.path(), &digits, &["--sku", "h900-sxm"]);
    assert_eq!(unknown.code, Some(6), "{}", unknown.said);
    assert!(unknown.said.contains("cpu-"), "says what exists: {}", unknown.said);
    let spelling = refused(home.path(), &digits, &["--sku", "H100 SXM"]);
    assert_eq!(spelling.code, Some(2), "{}", spelling.said);
    let precision = refused(home.path(), &digits, &["--precision", "fp7"]);
    assert_eq!(precision.code, Some(2), "{}", precision.said);

    let mut command = process::command(home.path());
    command.args(["--server", "http://127.0.0.1:1", "jobs"]);
    let output = process::run(command);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("127.0.0.1:1") && said.contains("hint"), "{said}");

    // After all that, the farm works.
    let mut command = process::command(home.path());
    command.arg("build").arg(&digits).arg("--data").arg(home.path().join("data")).arg("--json");
    assert_eq!(process::run_json(command)["jobs"][0]["state"], "succeeded");
}

#[test]
fn plans_that_cannot_run_here() {
    let home = home();
    let mut command = process::command(home.path());
    command.arg("build").arg(models::digits()).arg("--data").arg(home.path().join("data")).arg("--json");
    let document = process::run_json(command);
    let plan = fs::read(document["jobs"][0]["plan_path"].as_str().expect("a plan path")).expect("the plan");
    let run = |name: &str, bytes: &[u8]| {
        let path = write(home.path(), name, bytes);
        let mut command = process::command(home.path());
        command.args(["run"]).arg(path).arg("--input").arg(models::digits_test_set());
        command.arg("--output").arg(home.path().join("out.npz"));
        let output = process::run(command);
        assert!(!output.status.success(), "{name}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(name) && !said.contains("panicked"), "{said}");
    };
    run("empty.plan", b"");
    run("short.plan", &plan[..plan.len() / 2]);
    let mut version = plan.clone();
    version[8] = version[8].wrapping_add(40);
    run("version.plan", &version);
    run("text.plan", b"no plan at all, only words that go on for longer than a header would");
}
