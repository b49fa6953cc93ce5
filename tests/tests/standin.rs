//! The stand-in `trtexec` itself: its parser, its streams, its files, version by version, as facts about the tool
//! say them. The product is not asked anything here.

use planforge_tests::{
    boards::board_of,
    fleet::{Toolchain, program},
    models,
    standin::{
        plan::Plan,
        scenario::{Behaviour, Phase, Rule},
    },
};
use serde_json::Value;
use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// One version on one board, in a folder of its own, with a model to build.
struct Bench {
    folder: tempfile::TempDir,
    toolchain: Toolchain,
    model: PathBuf,
}

struct Said {
    code: Option<i32>,
    signal: Option<i32>,
    out: String,
    err: String,
}

impl Bench {
    fn new(version: &str, sku: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let scenario = board_of(sku).scenario(version);
        let toolchain = Toolchain::install(&program("standin-trtexec"), &folder.path().join("trt"), scenario);
        let model = models::convolutions(&folder.path().join("m.onnx"), 2, 4, 6, 5);
        Self { folder, toolchain, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Said {
        let output = Command::new(self.toolchain.program())
            .args(arguments)
            .current_dir(self.folder.path())
            .output()
            .expect("the stand-in starts");
        Said {
            code: output.status.code(),
            signal: output.status.signal(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    fn build(&self, extra: &[&str]) -> Said {
        let onnx = format!("--onnx={}", self.model.display());
        let skip = if self.toolchain.scenario.version.major() >= 10 { "--skipInference" } else { "--buildOnly" };
        let mut arguments = vec![onnx.as_str(), "--saveEngine=p.plan", skip];
        arguments.extend(extra);
        self.run(&arguments)
    }

    fn rule(&mut self, phase: Phase, behaviour: Behaviour) {
        self.toolchain.set_rules(vec![Rule { graph: String::new(), phase, times: None, behaviour }]);
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("the export")).expect("JSON")
}

#[test]
fn the_first_line_of_help_tells_the_version() {
    for (version, tag) in [
        ("8.4.1.5", "[TensorRT v8401] #"),
        ("8.6.1.6", "[TensorRT v8601] #"),
        ("10.3.0.26", "[TensorRT v100300] #"),
        ("10.4.0.11", "[TensorRT v100400] [b11] #"),
        ("11.1.0.106", "[TensorRT v110100] [b106] #"),
    ] {
        let said = Bench::new(version, "t4").run(&["--help"]);
        let first = said.out.lines().next().unwrap_or("");
        assert!(first.starts_with("&&&& RUNNING TensorRT.trtexec ") && first.contains(tag), "{version}: {first}");
        assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
        let lists = |flag: &str| said.out.lines().any(|line| line.trim_start().starts_with(flag));
        assert_eq!(lists("--fp16"), !version.starts_with("11"), "{version}");
        assert_eq!(lists("--skipInference"), !version.starts_with("8.4"), "{version}");
    }
}

#[test]
fn an_unknown_option_gets_the_help_an_error_and_exit_1() {
    for (version, verdict) in [("8.5.3", true), ("10.13.3.9", true), ("11.0.0.114", true), ("11.1.0.106", false)] {
        let bench = Bench::new(version, "t4");
        let said = bench.run(&["--onnx=m.onnx", "--frobnicate=7", "--verbose", "10"]);
        assert_eq!(said.code, Some(1));
        assert!(said.out.contains("=== Build Options ==="), "help goes to standard output: {}", said.out);
        assert!(said.err.contains("[E] Unknown option: --frobnicate 7"), "{}", said.err);
        assert!(said.err.contains("[E] Unknown option: 10"), "a value apart from its option: {}", said.err);
        assert_eq!(said.out.contains("&&&& FAILED"), verdict, "{version}");
    }
    let said = Bench::new("10.3", "t4").run(&[]);
    assert!(said.code == Some(0) && said.out.contains("&&&& PASSED"), "{}", said.out);
    let overflow = ["--onnx=m.onnx", "--optShapes=x:99999999999"];
    let said = Bench::new("8.6.1", "t4").run(&overflow);
    assert!(said.code == Some(1) && said.err.contains("Uncaught exception detected: stoi"), "{}", said.err);
    assert!(Bench::new("8.5.1", "t4").run(&overflow).signal.is_some(), "8.5 aborts");
}

#[test]
fn plans_have_the_header_of_their_version() {
    for (version, sku) in [("10.13.3.9", "t4"), ("8.6.1.6", "h100-pcie")] {
        let bench = Bench::new(version, sku);
        let said = bench.build(&[]);
        assert!(said.code == Some(0) && said.out.contains("&&&& PASSED"), "{}{}", said.out, said.err);
        let bytes = fs::read(bench.path("p.plan")).expect("a plan");
        assert_eq!(&bytes[..4], b"ftrt");
        assert_eq!(u64::from_le_bytes(bytes[16..24].try_into().unwrap()), bytes.len() as u64);
        let parts: Vec<u8> = version.split('.').map(|part| part.parse().unwrap()).collect();
        assert_eq!(bytes[24..28], parts);
        assert_eq!(&bytes[28..36], b"rtrtNGNE");
        assert_eq!(u64::from_le_bytes(bytes[40..48].try_into().unwrap()), 56);
        assert_eq!(&bytes[56..60], b"ptrt");
    }
    let old = Bench::new("8.5.3.1", "t4");
    old.build(&[]);
    let bytes = fs::read(old.path("p.plan")).expect("a plan");
    assert_eq!((&bytes[..4], u32::from_le_bytes(bytes[4..8].try_into().unwrap())), (&b"ptrt"[..], 232));
    let (first, second) = (Plan::decode(&bytes), {
        old.build(&[]);
        Plan::read(&old.path("p.plan"))
    });
    assert_ne!(first.expect("a plan").build_seed, second.expect("a plan").build_seed, "two builds differ");
}

#[test]
fn exports_and_summary_agree_and_hold_the_models_true_outputs() {
    for version in ["8.4.1.5", "8.6.1.6", "10.13.3.9", "11.1.0.106"] {
        let bench = Bench::new(version, "a100-pcie-40gb");
        bench.build(&["--profilingVerbosity=detailed"]);
        let zeros = vec![0u8; 4 * 6 * 6 * 4];
        fs::write(bench.path("x.bin"), &zeros).expect("a file");
        let said = bench.run(&[
            "--loadEngine=p.plan",
            "--iterations=50",
            "--duration=0",
            "--useSpinWait",
            "--useCudaGraph",
            "--noDataTransfers",
            "--separateProfileRun",
            "--dumpProfile",
            "--loadInputs=x:x.bin",
            "--exportTimes=t.json",
            "--exportProfile=pr.json",
            "--exportLayerInfo=l.json",
            "--exportOutput=o.json",
        ]);
        assert_eq!(said.code, Some(0), "{version}: {}{}", said.out, said.err);
        let times = json(&bench.path("t.json"));
        let compute: Vec<f64> = times.as_array().unwrap().iter().map(|q| q["computeMs"].as_f64().unwrap()).collect();
        assert_eq!(compute.len(), 50);
        let row = said.out.lines().find(|line| line.contains("GPU Compute Time: min")).expect("a summary");
        let least = compute.iter().copied().fold(f64::INFINITY, f64::min);
        let told: f64 = row.split("min = ").nth(1).and_then(|r| r.split(' ').next()).unwrap().parse().unwrap();
        assert!((told - least).abs() < 1e-5, "{row} {least}");
        assert_eq!(row.contains("percentile(90%)"), version != "8.4.1.5", "{row}");
        assert!(times[0]["h2dMs"] == 0.0, "no transfers were asked for");
        let profile = json(&bench.path("pr.json"));
        assert_eq!(profile[0]["count"], 50);
        let layers = json(&bench.path("l.json"));
        assert_eq!(layers["Layers"][0]["Name"], "c0 + y0");
        assert_eq!(layers.get("I/O Tensors").is_some(), version.starts_with("11"));
        let output = json(&bench.path("o.json"));
        assert_eq!(output[0]["dimensions"], "1x4x6x6");
        assert!(output[0]["values"].as_array().unwrap().iter().all(|v| v.as_f64() == Some(0.0)), "relu of 0 is 0");
        fs::write(bench.path("x.bin"), &zeros[1..]).expect("a file");
        let said = bench.run(&["--loadEngine=p.plan", "--loadInputs=x:x.bin", "--exportOutput=o.json"]);
        assert_eq!(said.code, Some(1), "inputs of the wrong size are refused");
    }
}

#[test]
fn a_profile_without_a_run_of_its_own_prints_no_summary() {
    let bench = Bench::new("10.13.3.9", "t4");
    bench.build(&[]);
    let said = bench.run(&["--loadEngine=p.plan", "--dumpProfile", "--exportTimes=t.json", "--duration=0"]);
    assert!(said.code == Some(0) && !said.out.contains("Performance summary"), "{}", said.out);
    assert!(!bench.path("t.json").exists());
}

#[test]
fn plans_load_only_where_they_belong() {
    let t4 = Bench::new("10.13.3.9", "t4");
    t4.build(&[]);
    let load = |bench: &Bench, plan: &Path, extra: &[&str]| {
        let flag = format!("--loadEngine={}", plan.display());
        let mut arguments = vec![flag.as_str(), "--duration=0"];
        arguments.extend(extra);
        bench.run(&arguments)
    };
    let said = load(&Bench::new("10.13.3.9", "h100-sxm"), &t4.path("p.plan"), &[]);
    assert!(said.err.contains("expecting compute 9.0 got compute 7.5"), "{}", said.err);
    let said = load(&Bench::new("10.3.0.26", "t4"), &t4.path("p.plan"), &[]);
    assert!(said.err.contains("Current Version: 239, Serialized Engine Version: 240"), "{}", said.err);
    let said = load(&Bench::new("10.14.1.48", "t4"), &t4.path("p.plan"), &[]);
    assert!(said.err.contains("expecting library version 10.14.1 got 10.13.3"), "{}", said.err);
    // Made to be portable, they are.
    let ampere = Bench::new("10.13.3.9", "a100-sxm4-80gb");
    ampere.build(&["--hardwareCompatibilityLevel=ampere+", "--versionCompatible"]);
    let newer = Bench::new("10.14.1.48", "h100-sxm");
    assert_eq!(load(&newer, &ampere.path("p.plan"), &[]).code, Some(1), "host code has to be allowed");
    let said = load(&newer, &ampere.path("p.plan"), &["--versionCompatible"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    // Cut short, it is no plan.
    let bytes = fs::read(t4.path("p.plan")).expect("a plan");
    fs::write(t4.path("p.plan"), &bytes[..bytes.len() - 1]).expect("a file");
    assert_eq!(load(&t4, &t4.path("p.plan"), &[]).code, Some(1));
}

#[test]
fn timing_caches_are_read_written_and_minded_as_the_version_does() {
    let bench = Bench::new("10.13.3.9", "t4");
    let cold = bench.build(&["--timingCacheFile=c"]);
    assert!(cold.err.contains("Could not read cache from: c. A new cache will be generated"), "{}", cold.err);
    assert!(cold.out.contains("[I] [TRT] Saved ") && cold.out.contains("Engine built in 24 sec."), "{}", cold.out);
    let warm = bench.build(&["--timingCacheFile=c"]);
    assert!(warm.out.contains("bytes of cache from file: c") && warm.out.contains("Engine built in 6 sec."));
    fs::write(bench.path("c"), b"rubbish").expect("a file");
    let torn = bench.build(&["--timingCacheFile=c"]);
    assert!(torn.code == Some(0) && torn.err.contains("Failed to create ITimingCache"), "{}", torn.err);
    let older = Bench::new("8.6.1.6", "t4");
    fs::write(older.path("c"), b"rubbish").expect("a file");
    let torn = older.build(&["--timingCacheFile=c"]);
    assert!(torn.code == Some(1) && torn.out.contains("bytes of timing cache from c"), "{}", torn.out);
}

#[test]
fn failures_end_as_the_tools_do() {
    let mut bench = Bench::new("10.16.1.11", "t4");
    bench.rule(Phase::Build, Behaviour::EmptyEngine);
    let said = bench.build(&[]);
    assert!(said.code == Some(1) && !said.out.contains("&&&& FAILED"), "{}", said.out);
    assert_eq!(fs::metadata(bench.path("p.plan")).expect("a file").len(), 0);

    bench.rule(Phase::Build, Behaviour::Crash);
    let said = bench.build(&[]);
    assert!(said.signal.is_some() && !said.out.contains("PASSED"), "{}", said.out);

    bench.rule(Phase::Load, Behaviour::UnreadableYetPassed);
    let said = bench.build(&[]);
    assert!(said.code == Some(0) && said.out.contains("PASSED") && said.err.contains("Version tag"), "{}", said.err);

    bench.rule(Phase::Build, Behaviour::ParseError { node: "c1".into() });
    let said = bench.build(&[]);
    assert!(said.err.contains("While parsing node number 2 [Conv -> \"c1\"]:"), "{}", said.err);
    assert!(said.err.contains("[E] Failed to parse onnx file"), "{}", said.err);

    bench.rule(Phase::Start, Behaviour::MissingLibrary { library: "libnvinfer.so.10".into() });
    let said = bench.run(&["--help"]);
    assert!(said.code == Some(127) && said.err.contains("libnvinfer.so.10: cannot open shared object file"));

    bench.rule(Phase::Load, Behaviour::NanOutputs);
    bench.build(&[]);
    let said = bench.run(&["--loadEngine=p.plan", "--duration=0", "--exportOutput=o.json"]);
    let text = fs::read_to_string(bench.path("o.json")).expect("the export");
    assert!(said.code == Some(0) && text.contains("nan"), "{text}");
}

#[test]
fn shapes_are_checked_when_built_and_when_run() {
    let bench = Bench::new("10.13.3.9", "t4");
    let said = bench.build(&["--optShapes=x:1x4x6x6"]);
    assert!(said.err.contains("Static model does not take explicit shapes"), "{}", said.err);
    let dynamic = models::relu_of_shape(&bench.path("m.onnx"), &[-1, 8]);
    assert_eq!(dynamic, bench.model);
    let said = bench.build(&["--minShapes=x:1x8", "--optShapes=x:2x8", "--maxShapes=x:4x8"]);
    assert!(said.out.contains("MIN=1x8 OPT=2x8 MAX=4x8"), "{}{}", said.out, said.err);
    let load = |shapes: &str| bench.run(&["--loadEngine=p.plan", "--duration=0", shapes]);
    assert_eq!(load("--shapes=x:4x8").code, Some(0));
    let said = load("--shapes=x:5x8");
    assert!(said.code == Some(1) && said.err.contains("does not satisfy any optimization profiles"), "{}", said.err);
    let said = bench.build(&["--optShapes=y:2x8"]);
    assert!(said.err.contains("Cannot find input tensor with name"), "{}", said.err);
}
