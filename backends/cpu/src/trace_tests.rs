//! A timeline as a viewer reads it.

use super::{CpuCompiler, toolchain};
use planforge_backend::{Cancel, CompileRequest, Compiler, Events, LoadOptions, LoadSite, Meter};
use planforge_device::{CpuLevel, cpu};
use planforge_report::LayerTime;
use planforge_types::{BuildSpec, Digest, HostTensor, NamedTensors, OptimizationLevel, fingerprint::HostFacts};
use serde_json::Value;
use std::path::Path;

struct Silent;

impl Events for Silent {
    fn progress(&self, _phase: &str, _fraction: f32, _detail: &str) {}
    fn log(&self, _line: &str) {}
}

/// A loaded engine of two threads with inputs of nothing but ones, and the folder that it writes to.
fn engine(folder: &Path) -> Box<dyn Meter> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx");
    let spec = BuildSpec { threads: Some(2), optimization_level: OptimizationLevel(0), ..BuildSpec::default() };
    let (device, _) = cpu::detect(&HostFacts::default());
    let request = CompileRequest {
        model: model.clone(),
        model_digest: Digest::of(b"model"),
        sku: CpuLevel::detect()[0].sku(),
        device: device.clone(),
        toolchain: toolchain(),
        spec: spec.clone(),
        scratch: folder.to_owned(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    };
    let plan = CpuCompiler.compile(&request, &Silent, &Cancel::default()).unwrap().path;
    let site = LoadSite {
        device,
        toolchain: toolchain(),
        spec,
        model,
        plugins: Vec::new(),
        scratch: folder.to_owned(),
        cancel: Cancel::default(),
    };
    let mut meter = CpuCompiler.load(&plan, &LoadOptions { site: Some(site), ..LoadOptions::default() }).unwrap();
    let input = |port: planforge_types::Port| {
        let shape: Vec<usize> = port.shape.iter().map(|size| size.unwrap() as usize).collect();
        let bytes = 1f32.to_le_bytes().repeat(shape.iter().product());
        (port.name, HostTensor { element: port.element, shape, bytes })
    };
    let inputs: NamedTensors = meter.inputs().into_iter().map(input).collect();
    meter.bind(&inputs).unwrap();
    meter
}

/// A slice by its row, name, begin and end in microseconds, and what else is told of it.
struct Slice {
    row: u64,
    name: String,
    from_us: f64,
    to_us: f64,
    args: Value,
}

fn read(file: &Path) -> (Vec<(u64, String)>, Vec<Slice>) {
    let document: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let (mut rows, mut slices) = (Vec::new(), Vec::new());
    for event in document["traceEvents"].as_array().unwrap() {
        let row = event["tid"].as_u64().unwrap();
        let name = event["name"].as_str().unwrap().to_owned();
        match event["ph"].as_str().unwrap() {
            "M" => rows.push((row, event["args"]["name"].as_str().unwrap().to_owned())),
            "X" => {
                let from_us = event["ts"].as_f64().unwrap();
                let to_us = from_us + event["dur"].as_f64().unwrap();
                assert!(from_us >= 0.0 && to_us >= from_us, "{event}");
                slices.push(Slice { row, name, from_us, to_us, args: event["args"].clone() });
            }
            other => panic!("{other}"),
        }
    }
    (rows, slices)
}

/// Rounding of microseconds as decimal fractions.
const ROUNDING_US: f64 = 1e-3;

fn holds(outer: &Slice, inner: &Slice) -> bool {
    outer.from_us <= inner.from_us + ROUNDING_US && inner.to_us <= outer.to_us + ROUNDING_US
}

#[test]
fn a_timeline_has_a_row_a_thread_and_nested_slices_whose_steps_are_the_reports() {
    let folder = tempfile::tempdir().unwrap();
    let mut meter = engine(folder.path());
    let layers: Vec<LayerTime> = meter.layers(9).unwrap();
    assert!(meter.aside().files.is_empty(), "nobody asked for one yet");
    meter.trace().unwrap().unwrap();
    let files = meter.aside().files;
    assert_eq!((files.len(), files[0].name.as_str()), (1, "timeline.trace.json"));
    let (rows, slices) = read(&files[0].path);
    assert_eq!(rows.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [1, 2]);

    let on_top = |slice: &&Slice| slice.row == 1 && slice.name.starts_with("execution ");
    let executions: Vec<&Slice> = slices.iter().filter(on_top).collect();
    assert_eq!(executions.len(), 5);
    for pair in executions.windows(2) {
        assert!(pair[0].to_us <= pair[1].from_us + ROUNDING_US, "executions follow each other");
    }
    let mut quickest_ms = f64::INFINITY;
    for (index, execution) in executions.iter().enumerate() {
        let of = |slice: &&Slice| slice.args["execution"] == index;
        let steps: Vec<&Slice> = slices.iter().filter(of).filter(|slice| slice.args["kind"].is_string()).collect();
        // The steps of the report, in its order, by its names.
        let told = |slice: &&Slice| (slice.name.clone(), slice.args["tactic"].as_str().unwrap().to_owned());
        let expected: Vec<_> = layers.iter().map(|layer| (layer.name.clone(), layer.tactic.clone())).collect();
        assert_eq!(steps.iter().map(told).collect::<Vec<_>>(), expected);
        assert!(steps.iter().all(|step| step.row == 1 && holds(execution, step)), "steps lie inside their execution");
        assert!(steps.windows(2).all(|pair| pair[0].to_us <= pair[1].from_us + ROUNDING_US), "one after the other");
        // Whatever a thread did lies inside a step, on whichever row it is.
        for part in slices.iter().filter(of).filter(|slice| slice.args["tasks"].is_u64()) {
            let within: Vec<&&Slice> = steps.iter().filter(|step| holds(step, part)).collect();
            assert!(!within.is_empty(), "{} is in no step", part.name);
            assert!(part.row == 1 || within.iter().any(|step| step.name == part.name), "{}", part.name);
        }
        let sum_ms: f64 = steps.iter().map(|step| (step.to_us - step.from_us) / 1e3).sum();
        quickest_ms = quickest_ms.min(sum_ms);
        let whole_ms = (execution.to_us - execution.from_us) / 1e3;
        assert!(sum_ms <= whole_ms + ROUNDING_US, "{sum_ms} ms of steps in {whole_ms} ms");
    }
    // The same unit, and the same steps: their times are those of the report, but for noise.
    let report_ms: f64 = layers.iter().map(|layer| layer.median_ms).sum();
    let about = report_ms / 100.0..report_ms * 100.0;
    assert!(about.contains(&quickest_ms), "{quickest_ms} ms, {report_ms} in the report");
    // A loop that is shared shows up on both rows at some step.
    assert!(slices.iter().any(|slice| slice.args["tasks"].is_u64()), "threads worked");
}
