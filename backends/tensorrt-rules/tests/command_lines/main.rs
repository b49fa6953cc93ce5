//! Every command line that specs come to on every version, held against an option parser of our own.

mod checker;
mod generated;
mod parsers;
mod snapshots;
mod specs;

use checker::{Versions, check, number};
use planforge_tensorrt_rules::{
    Capabilities, Version,
    command::{self, Benchmark, Mode, Run, Shapes},
    flags::{
        self,
        table::{COLUMNS, FLAGS},
    },
    preflight,
};
use planforge_types::{BuildSpec, Precision};
use specs::{Case, cases};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

fn version(text: &str) -> Version {
    text.parse().unwrap()
}

#[test]
fn the_table_is_the_list_of_every_version() {
    let versions = Versions::read();
    assert_eq!(versions.all().count(), COLUMNS.len());
    for (number, flags) in versions.all() {
        let version = Version::new(number.0, number.1, number.2);
        assert!(COLUMNS.contains(&version), "{version}");
        // `-h` is the one short option.
        let listed: BTreeSet<&str> = flags.iter().map(String::as_str).filter(|flag| flag.starts_with("--")).collect();
        let table: BTreeSet<&str> = FLAGS
            .iter()
            .filter(|flag| flag.is_in(version) && flag.name.starts_with("--"))
            .map(|flag| flag.name)
            .collect();
        assert_eq!(table, listed, "{version}");
    }
}

/// What one case comes to on one version: named command lines, or the refusal.
fn lines(case: &Case, capabilities: &Capabilities) -> Result<Vec<(String, Vec<String>)>, String> {
    let mut lines = Vec::new();
    let mut keep = |name: String, line: command::CommandLine| lines.push((name, line.to_texts()));
    let model = Path::new("/models/m.onnx");
    let plugins: Vec<_> = (0..case.spec.plugins.len()).map(|n| format!("/plugins/{n}.so").into()).collect();
    let files = command::BuildFiles {
        model,
        plan: Path::new("engine.plan"),
        timing_cache: Some(Path::new("timing.cache")),
        calibration: case.spec.calibration.is_some().then(|| Path::new("calibration.cache")),
        plugins: &plugins,
    };
    let built = command::build(capabilities, &case.spec, &files, case.model.as_ref());
    keep("build".into(), built.map_err(|refusal| refusal.to_string())?);
    // Plans without weights can be built before they can be run.
    for step in preflight::steps(capabilities, &case.spec, model, case.model.as_ref()).unwrap_or_default() {
        keep(step.name, step.command);
    }
    let shapes = Shapes::new();
    let inputs = [("x".to_owned(), "x.bin".into()), ("ids:0".to_owned(), "inputs/ids.bin".into())];
    let run = Run {
        plan: Path::new("engine.plan"),
        plugins: &plugins,
        model: Some(model),
        profile: 0,
        shapes: &shapes,
        inputs: &inputs,
        lean_runtime: Some(Path::new("/opt/tensorrt/lib/libnvinfer_lean.so.10")),
    };
    for (cuda_graph, transfers, streams) in [(true, false, 4), (false, false, 1), (true, true, 1), (false, true, 2)] {
        let benchmark = Benchmark {
            mode: Mode { cuda_graph, transfers },
            warm_up_ms: 100,
            iterations: 500,
            duration_s: 2,
            streams,
            times: Some(Path::new("times.json")),
        };
        if let Ok(line) = command::benchmark(capabilities, &case.spec, &run, &benchmark) {
            keep(format!("graph {cuda_graph}, transfers {transfers}, {streams} streams"), line);
        }
    }
    Ok(lines)
}

/// Flags that are given up before, or taken up after, the versions that parse them, and why.
const OWN_ENDS: [(&str, &str, &str, &str); 5] = [
    ("--buildOnly", "8.2.1", "8.5.3", "--skipInference says it from 8.6.0 on"),
    ("--streams", "8.2.1", "8.5.3", "deprecated from 8.6.0 on"),
    ("--plugins", "8.2.1", "8.5.3", "deprecated from 8.6.0 on"),
    ("--stronglyTyped", "9.1.0", "10.16.0", "does nothing from 11.0 on"),
    ("--precisionConstraints", "8.4.1", "10.16.0", "there are no layer types to constrain before"),
];

#[test]
fn every_command_line_parses_on_its_version() {
    let versions = Versions::read();
    let cases = cases();
    let mut distinct: BTreeSet<(checker::Number, Vec<String>)> = BTreeSet::new();
    let mut combinations = 0;
    let mut refusals = 0;
    let mut given: BTreeMap<String, BTreeSet<checker::Number>> = BTreeMap::new();
    for (number, flags) in versions.all() {
        let capabilities = Capabilities::of_version(Version::new(number.0, number.1, number.2));
        let mut of_version = 0;
        for case in &cases {
            let lines = match lines(case, &capabilities) {
                Ok(lines) => lines,
                Err(refusal) => {
                    assert!(!refusal.is_empty());
                    refusals += 1;
                    continue;
                }
            };
            combinations += 1;
            of_version += 1;
            for (name, args) in lines {
                check(flags, number, &args)
                    .unwrap_or_else(|problem| panic!("{number:?} {} ({name}): {problem}\n{args:?}", case.name));
                for arg in &args {
                    let flag = arg.split('=').next().unwrap();
                    given.entry(flag.to_owned()).or_default().insert(number);
                }
                distinct.insert((number, args));
            }
        }
        assert!(of_version >= 5, "{number:?} has only {of_version} command lines");
    }
    for (flag, seen) in &given {
        let has = |number: &checker::Number| versions.flags(*number).contains(flag);
        let all: Vec<_> = versions.all().map(|(number, _)| number).filter(has).collect();
        let own = OWN_ENDS.iter().find(|(name, ..)| name == flag);
        let first = own.map_or(all[0], |(_, first, ..)| number(first));
        let last = own.map_or(all[all.len() - 1], |(_, _, last, _)| number(last));
        assert_eq!((seen.first(), seen.last()), (Some(&first), Some(&last)), "{flag} is given in {seen:?}");
    }
    let builds = distinct.iter().filter(|(_, args)| args.iter().any(|arg| arg.starts_with("--saveEngine"))).count();
    parsers::ask_where_present(&distinct);
    // The figure: shown with `--no-capture`.
    let figure = format!(
        "{combinations} specs on {} versions written, {refusals} refused: {} different command lines, {builds} of them builds, {} options",
        COLUMNS.len(),
        distinct.len(),
        given.len()
    );
    assert!(builds >= 200 && refusals >= 100, "{figure}");
    #[expect(clippy::print_stderr, reason = "the figure is what this test is for")]
    {
        eprintln!("{figure}");
    }
}

#[test]
fn what_a_version_lacks_is_refused_with_those_that_have_it() {
    let refusal = |version_text: &str, name: &str| {
        let case = cases().into_iter().find(|case| case.name == name).unwrap_or_else(|| panic!("{name}"));
        lines(&case, &Capabilities::of_version(version(version_text))).unwrap_err()
    };
    assert_eq!(refusal("8.6.1", "bf16"), "TensorRT 8.6.1 does not support precision bf16 (--bf16); 9.1.0 to 10.16 do");
    assert_eq!(
        refusal("10.8.0", "same compute capability"),
        "TensorRT 10.8.0 does not support hardware compatibility same_compute_capability; 10.9 and newer do"
    );
    assert_eq!(
        refusal("8.6.1", "two profiles"),
        "TensorRT 8.6.1 does not support several optimization profiles (--profile); 9.1.0 and newer do"
    );
    assert_eq!(
        refusal("11.0.0", "calibrated int8"),
        "TensorRT 11.0.0 does not support calibration caches (--calib); 8.2.1 to 10.16 do"
    );
    assert_eq!(refusal("11.1.0", "cudnn"), "TensorRT 11.1.0 does not support tactic source CUDNN; 8.2 to 10.x do");
    for version in ["8.6.1", "10.3.0", "11.1.0"] {
        assert!(refusal(version, "approximate gelu").contains("is for native engines of NVIDIA devices"), "{version}");
    }
    assert!(refusal("11.1.0", "fp16, fp32 model").contains("this model is typed in fp32 without Q/DQ nodes, not fp16"));
    assert!(refusal("10.3.0", "uncalibrated int8").contains("neither a calibration cache nor a Q/DQ node"));
}

#[test]
fn what_the_tool_would_drop_without_a_word_is_refused() {
    let digest = planforge_types::Digest::of(b"file");
    let best = |options: &[(&str, &str)]| BuildSpec { precision: Precision::Best, ..specs::with(options) };
    let compatible = |options: &[(&str, &str)]| BuildSpec { version_compatible: true, ..specs::with(options) };
    let plugins = |spec: BuildSpec| BuildSpec { plugins: vec![digest], ..spec };
    let calibrated = |spec: BuildSpec| BuildSpec { calibration: Some(digest), precision: Precision::Int8, ..spec };
    let said = |version_text: &str, spec: &BuildSpec| {
        let capabilities = Capabilities::of_version(version(version_text));
        preflight::steps(&capabilities, spec, Path::new("m.onnx"), None).map(drop).map_err(|r| {
            assert!(!r.hint().is_empty());
            r.to_string()
        })
    };
    let faster_off = [("preview", "-fasterDynamicShapes0805")];
    for (version, spec, words) in [
        ("10.3.0", plugins(specs::with(&[("plugin_loading", "serialized")])), "version-compatible"),
        ("10.3.0", specs::with(&[("plugin_loading", "dynamic")]), "nothing to load"),
        ("10.3.0", specs::with(&[("calibration_profile", "0")]), "calibration_profile"),
        ("10.3.0", specs::with(&[("calibration_shapes", "x:1x3")]), "calibration_shapes"),
        ("9.1.0", best(&faster_off), "precision best"),
        ("9.2.0", best(&faster_off), "precision best"),
        ("9.1.0", BuildSpec { precision: Precision::Bf16, ..specs::with(&faster_off) }, "bf16 needs"),
        ("10.3.0", specs::with(&[("runtime", "lean")]), "version-compatible"),
        ("10.3.0", plugins(compatible(&[("runtime", "lean")])), "full runtime alone"),
        ("11.0.0", specs::with(&[("int4", "true")]), "int4"),
        ("10.3.0", specs::with(&[("layer_device_types", "conv1:DLA")]), "DLA"),
        ("8.5.3", specs::with(&[("layer_device_types", "conv1:GPU")]), "--layerDeviceTypes"),
    ] {
        let refusal = said(version, &spec).expect_err(words);
        assert!(refusal.contains(words), "{refusal}");
    }
    // 8.6 has no bf16 that could be dropped.
    assert_eq!(said("8.6.1", &best(&faster_off)), Ok(()));
    assert_eq!(said("10.3.0", &plugins(compatible(&[("plugin_loading", "serialized")]))), Ok(()));
    assert_eq!(said("10.3.0", &compatible(&[("exclude_lean_runtime", "true")])), Ok(()));
    assert_eq!(said("10.3.0", &calibrated(specs::with(&[("calibration_shapes", "x:1..8x3")]))), Ok(()));
}

#[test]
fn newer_versions_are_taken_for_the_newest_as_far_as_their_help_goes() {
    let help = |dropped: &[&str]| -> String {
        let newest = COLUMNS[COLUMNS.len() - 1];
        let known = FLAGS.iter().filter(|flag| flag.is_in(newest) && !dropped.contains(&flag.name));
        known.map(|flag| format!("  {}   does something\n", flag.name)).chain(["  --newThing=x\n".into()]).collect()
    };
    let case = cases().into_iter().find(|case| case.name == "plain").unwrap();
    let newer = version("11.4.1");
    let same = lines(&case, &Capabilities::of_help(newer, &help(&[]))).unwrap();
    assert_eq!(same, lines(&case, &Capabilities::of_version(version("11.1.0"))).unwrap());
    // The no-op forms may go some day; then the default is what they said.
    let without = Capabilities::of_help(
        newer,
        &help(&["--useCudaGraph", "--useSpinWait", "--noDataTransfers", "--separateProfileRun"]),
    );
    let lines = lines(&case, &without).unwrap();
    let benchmark = lines.iter().find(|(name, _)| name == "benchmark").unwrap();
    assert!(!benchmark.1.iter().any(|arg| arg.starts_with("--use") || arg.starts_with("--no")), "{benchmark:?}");
    assert_eq!(flags::column(newer), version("11.1.0"));
}
