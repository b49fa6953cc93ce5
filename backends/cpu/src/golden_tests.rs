//! Golden digests of small plans: a change of what the compiler makes of the same input and the same tactics comes with
//! another revision, or does not come.
//!
//! Tactics are those of a committed cache, timed once somewhere, so nothing is timed here and every host gives the same
//! bytes; a level that this processor lacks, or of which no plan was written down yet, is skipped, and said to be.

#[path = "../tests/golden/rule.rs"]
mod rule;

use super::{
    compiler::{Runs, compile_on},
    *,
};
use planforge_backend::{Cancel, CompileRequest, Events};
use planforge_device::{CpuLevel, cpu};
use planforge_import::testing::{TestModel, float, int, ints, numbers};
use planforge_onnx::proto::{tensor_shape_proto::dimension, type_proto};
use planforge_types::{BuildSpec, Digest, DimRange, OptimizationProfile, fingerprint::HostFacts};
use prost::Message as _;
use rule::{Digests, Golden, Revision, judge};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

const REVISION: Revision =
    Revision { number: COMPILER_REVISION, constant: "COMPILER_REVISION in backends/cpu/src/lib.rs" };
/// Candidates of a step that the committed cache keeps: the one that was chosen, and one that was not.
const KEPT_CANDIDATES: usize = 2;
/// Fixed, so that a host's number of cores decides nothing.
const THREADS: u32 = 2;

/// Small files that are there for other reasons: every family of operators.
const FILES: [&str; 20] = [
    "attention",
    "average",
    "chain",
    "conv",
    "depthwise",
    "dft",
    "gather",
    "gemm",
    "gru",
    "lstm",
    "matmul",
    "norm",
    "pad",
    "pool",
    "reduce",
    "resize",
    "scatter",
    "slice",
    "softmax",
    "transposed",
];

struct Silent;
impl Events for Silent {
    fn progress(&self, _phase: &str, _fraction: f32, _detail: &str) {}
    fn log(&self, _line: &str) {}
}

/// Convolutions of several kinds with what follows them, attention by its parts, and chains of element-wise operators.
fn block() -> TestModel {
    let pads = || ints("pads", &[1; 4]);
    TestModel::new(17)
        .input("x", &[2, 16, 12, 12])
        .floats("w3", &[32, 16, 3, 3], &numbers(32 * 16 * 9))
        .floats("b3", &[32], &numbers(32))
        .floats("dw", &[32, 1, 3, 3], &numbers(32 * 9))
        .floats("w1", &[32, 32, 1, 1], &numbers(32 * 32))
        .floats("g", &[32, 8, 3, 3], &numbers(32 * 8 * 9))
        .floats("q", &[32, 32], &numbers(32 * 32))
        .floats("scale", &[32], &numbers(32))
        .floats("shift", &[32], &numbers(32))
        .floats("eighth", &[1], &[0.125])
        .longs("tokens", &[2, 144, 32])
        .node("Conv", &["x", "w3", "b3"], "c", vec![pads()])
        .node("Relu", &["c"], "r", vec![])
        .node("Conv", &["r", "dw"], "d", vec![pads(), int("group", 32)])
        .node("HardSwish", &["d"], "h", vec![])
        .node("Conv", &["h", "w1"], "p", vec![])
        .node("Add", &["p", "r"], "s", vec![])
        .node("Conv", &["s", "g"], "k", vec![pads(), int("group", 4), ints("strides", &[1, 1])])
        .node("Transpose", &["k"], "t", vec![ints("perm", &[0, 2, 3, 1])])
        .node("Reshape", &["t", "tokens"], "rows", vec![])
        .node("LayerNormalization", &["rows", "scale", "shift"], "n", vec![float("epsilon", 1e-5)])
        .node("MatMul", &["n", "q"], "mq", vec![])
        .node("Transpose", &["n"], "nt", vec![ints("perm", &[0, 2, 1])])
        .node("MatMul", &["mq", "nt"], "scores", vec![])
        .node("Mul", &["scores", "eighth"], "scaled", vec![])
        .node("Softmax", &["scaled"], "soft", vec![int("axis", -1)])
        .node("MatMul", &["soft", "n"], "seen", vec![])
        .node("Sigmoid", &["seen"], "gate", vec![])
        .node("Mul", &["gate", "seen"], "silu", vec![])
        .node("ReduceMean", &["silu"], "y", vec![ints("axes", &[1])])
        .output("y")
}

/// Layers that each read all before them, and a convolution most of whose taps meet nothing but padding.
fn dense() -> TestModel {
    let pads = |by: i64| ints("pads", &[by; 4]);
    let concat = || vec![int("axis", 1)];
    TestModel::new(17)
        .input("x", &[1, 8, 6, 6])
        .floats("w0", &[8, 8, 3, 3], &numbers(8 * 8 * 9))
        .floats("w1", &[8, 8, 3, 3], &numbers(8 * 8 * 9))
        .floats("w2", &[8, 16, 3, 3], &numbers(8 * 16 * 9))
        .floats("w3", &[8, 24, 3, 3], &numbers(8 * 24 * 9))
        .node("Conv", &["x", "w0"], "a", vec![pads(1)])
        .node("Relu", &["a"], "ra", vec![])
        .node("Conv", &["ra", "w1"], "b", vec![pads(1)])
        .node("Concat", &["a", "b"], "ab", concat())
        .node("Relu", &["ab"], "rab", vec![])
        .node("Conv", &["rab", "w2"], "c", vec![pads(1)])
        .node("Concat", &["a", "b", "c"], "abc", concat())
        .node("Relu", &["abc"], "rabc", vec![])
        .node("Conv", &["rabc", "w3"], "y", vec![pads(9), ints("dilations", &[9; 2])])
        .output("y")
}

/// Rows and pixels vary, in two profiles.
fn varying() -> (TestModel, Vec<OptimizationProfile>) {
    let mut model = TestModel::new(17)
        .input("x", &[2, 3, 8, 8])
        .floats("w", &[4, 3, 3, 3], &numbers(108))
        .floats("m", &[4, 5], &numbers(20))
        .node("Conv", &["x", "w"], "c", vec![ints("pads", &[1; 4])])
        .node("GlobalAveragePool", &["c"], "g", vec![])
        .node("Flatten", &["g"], "h", vec![])
        .node("MatMul", &["h", "m"], "p", vec![])
        .node("Softmax", &["p"], "y", vec![int("axis", -1)])
        .output("y");
    let value = model.graph().input[0].r#type.as_mut().and_then(|of| of.value.as_mut());
    let Some(type_proto::Value::TensorType(tensor)) = value else { panic!("the input is a tensor") };
    for (axis, name) in [(0, "batch"), (2, "height")] {
        tensor.shape.as_mut().unwrap().dim[axis].value = Some(dimension::Value::DimParam(name.into()));
    }
    let profile = |rows: [u64; 3], height: [u64; 3]| {
        let range = |[min, opt, max]: [u64; 3]| DimRange { min, opt, max };
        let dims = vec![range(rows), range([3; 3]), range(height), range([8; 3])];
        OptimizationProfile { inputs: [("x".to_owned(), dims)].into() }
    };
    (model, vec![profile([1, 2, 4], [4, 8, 16]), profile([1, 8, 8], [8, 8, 8])])
}

/// A model by name, and how it is built.
struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    profiles: Vec<OptimizationProfile>,
}

fn cases() -> Vec<Case> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = |name: &'static str, path: PathBuf| Case { name, bytes: fs::read(path).unwrap(), profiles: Vec::new() };
    let mut cases: Vec<Case> =
        FILES.iter().map(|name| file(name, here.join(format!("../../fuzz/corpus/import_model/ok-{name}")))).collect();
    cases.push(file("digits", here.join("../../examples/digits/digits.onnx")));
    for name in ["images-qdq", "images-qoperator", "tokens-dynamic"] {
        cases.push(file(name, here.join(format!("../../tests/fixtures/quantized/{name}.onnx"))));
    }
    cases.push(file("block", here.join("tests/golden/block.onnx")));
    cases.push(file("dense", here.join("tests/golden/dense.onnx")));
    cases.push(Case { profiles: varying().1, ..file("varying", here.join("tests/golden/varying.onnx")) });
    cases
}

/// Levels that are compiled for: that run here and whose plans a host with such a processor has written down.
fn levels(known: &Golden) -> Vec<CpuLevel> {
    let here = CpuLevel::ALL.into_iter().filter(|level| level.runs_here());
    let is_known = |level: &CpuLevel| known.keys().any(|name| name.starts_with(&format!("{level}/")));
    let (known, strangers): (Vec<_>, Vec<_>) = here.partition(|level| rule::blessing() || is_known(level));
    for level in strangers {
        planforge_skipped::skipped(format_args!(
            "plans of {level} are held to nothing: run with PLANFORGE_BLESS=1 here and commit what it writes"
        ));
    }
    known
}

/// Compiles every case for every level, with the tactics in `cache`; the plans' digests, and which of them had steps that
/// `cache` did not know.
fn compile_all(levels: &[CpuLevel], cache: &Path) -> (Golden, Vec<String>) {
    let (mut golden, mut timed) = (Golden::new(), Vec::new());
    for &level in levels {
        for case in cases() {
            let folder = tempfile::tempdir().unwrap();
            let model = folder.path().join("model.onnx");
            fs::write(&model, &case.bytes).unwrap();
            let request = CompileRequest {
                model,
                model_digest: Digest::of(&case.bytes),
                sku: level.sku(),
                device: cpu::detect(&HostFacts::default()).0,
                toolchain: toolchain(),
                spec: BuildSpec { threads: Some(THREADS), profiles: case.profiles, ..BuildSpec::default() },
                scratch: folder.path().to_owned(),
                cache: Some(cache.to_owned()),
                calibration: None,
                plugins: Vec::new(),
            };
            let class = Digest::of(b"a device of no host");
            let plan = compile_on(class, &request, Runs::Many, &Silent, &Cancel::default()).unwrap();
            let name = format!("{level}/{}", case.name);
            if plan.facts["tactics_timed"] != 0 {
                timed.push(name.clone());
            }
            let of = |bytes: &[u8]| Digest::of(bytes).to_string();
            golden.insert(name, Digests { model: of(&case.bytes), plan: of(&fs::read(plan.path).unwrap()) });
        }
    }
    (golden, timed)
}

/// The files of the models that are made here, for the compiler of other devices too.
#[test]
fn models_made_here_are_as_their_files() {
    for (name, model) in [("block", block()), ("dense", dense()), ("varying", varying().0)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.onnx"));
        let bytes = model.proto.encode_to_vec();
        if rule::blessing() {
            fs::write(&path, &bytes).unwrap();
        }
        let same = fs::read(&path).is_ok_and(|file| file == bytes);
        assert!(same, "{name}.onnx is not the model: run with PLANFORGE_BLESS=1");
    }
}

/// The best few of every step.
fn trimmed(cache: &Path) -> Value {
    let mut kept: Value = serde_json::from_slice(&fs::read(cache).unwrap()).unwrap();
    for tried in kept["steps"].as_object_mut().unwrap().values_mut() {
        tried.as_array_mut().unwrap().truncate(KEPT_CANDIDATES);
    }
    kept
}

#[test]
fn plans_change_only_together_with_their_revision() {
    for level in CpuLevel::ALL.into_iter().filter(|level| !level.runs_here()) {
        planforge_skipped::skipped(format_args!("no plan was compiled for {level}: this processor does not run it"));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let [plans, tactics] = ["plans", "tactics"].map(|what| rule::file(&folder, what, REVISION));
    let known = rule::read(&plans);
    let levels = levels(&known);
    assert!(!levels.is_empty(), "{}", plans.display());
    let scratch = tempfile::tempdir().unwrap();
    let cache = scratch.path().join("cache.json");
    if tactics.exists() {
        fs::copy(&tactics, &cache).unwrap();
    }
    let (mut now, timed) = compile_all(&levels, &cache);
    if !timed.is_empty() {
        // What was timed counts as changed where it is known of this very input.
        let strangers: Golden = now.iter().filter(|(name, _)| timed.contains(name)).map(clone).collect();
        judge(&known, &strangers, REVISION, rule::blessing()).unwrap_or_else(|words| {
            panic!("the committed tactics lack steps of {}: {words}", timed.join(", "));
        });
        rule::write(&tactics, &trimmed(&cache));
        fs::copy(&tactics, &cache).unwrap();
        let (again, timed) = compile_all(&levels, &cache);
        assert!(timed.is_empty(), "{timed:?}");
        now = again;
    }
    let all = judge(&known, &now, REVISION, rule::blessing()).unwrap_or_else(|words| panic!("{words}"));
    if all != known {
        rule::write(&plans, &all);
    }
}

fn clone((name, digests): (&String, &Digests)) -> (String, Digests) {
    (name.clone(), digests.clone())
}
