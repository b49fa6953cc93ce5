//! One model of the zoo: built by the native compiler, run, and held against ONNX Runtime.

use crate::{
    drawn::{self, Draws, Entry},
    finds,
};
use planforge_backend::{Cancel, CompileRequest, Compiler, Events, LoadOptions, Meter, Window};
use planforge_cpu::CpuCompiler;
use planforge_device::cpu;
use planforge_graph::ir::Tensor;
use planforge_onnxruntime::OnnxRuntimeCompiler;
use planforge_types::{
    BuildSpec, Digest, HostTensor, NamedTensors, OptimizationProfile, Precision, fingerprint::DiscoveredDevice,
    spec::OptimizationLevel,
};
use planforge_worker::verify::numerics;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, error::Error, path::Path, time::Duration};

/// What became of a model.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub title: String,
    /// Why it was not built; absent where it was.
    #[serde(default)]
    pub refused: Option<String>,
    /// What is wrong with its outputs; absent where nothing is.
    #[serde(default)]
    pub wrong: Option<String>,
    /// ONNX Runtime itself does not run the model.
    #[serde(default)]
    pub peer_refused: Option<String>,
    /// Largest error of an output, against its scale.
    #[serde(default)]
    pub max_error: f64,
    /// Finds that are others than ONNX Runtime's, of the same score.
    #[serde(default)]
    pub others_of_ties: usize,
    /// Nodes that follow the program, for only data decides their sizes.
    #[serde(default)]
    pub behind: u64,
    /// Part of the engine's time in steps by reference, and the kinds of those steps.
    #[serde(default)]
    pub reference_share: f64,
    #[serde(default)]
    pub reference_kinds: Vec<String>,
    /// Medians in milliseconds by threads: of the engine, and of ONNX Runtime.
    #[serde(default)]
    pub times_ms: BTreeMap<u32, [f64; 2]>,
}

/// How many other inputs are tried for one that gives other outputs: a detector may find the same in some.
const OTHERS: u8 = 4;

struct Silent;

impl Events for Silent {
    fn progress(&self, _: &str, _: f32, _: &str) {}
    fn log(&self, _: &str) {}
}

/// The processor of this host.
fn device() -> DiscoveredDevice {
    let (fingerprint, levels) = cpu::detect(&cpu::host_facts());
    let skus = levels.iter().map(|level| level.sku()).collect();
    DiscoveredDevice { id: "cpu0".into(), fingerprint, skus, threads: 1, offers: Vec::new(), simulated: false }
}

fn build(
    compiler: &dyn Compiler,
    model: &Path,
    profile: Option<&OptimizationProfile>,
    (threads, level): (u32, u8),
    scratch: &Path,
) -> Result<Box<dyn Meter>, Box<dyn Error>> {
    let device = device();
    let request = CompileRequest {
        model: model.to_owned(),
        model_digest: Digest::of(model.as_os_str().as_encoded_bytes()),
        sku: device.skus.last().ok_or("this processor has no known level")?.clone(),
        toolchain: compiler.toolchains(&device).pop().ok_or("the backend is not here")?,
        spec: BuildSpec {
            threads: Some(threads),
            optimization_level: OptimizationLevel(level),
            profiles: profile.into_iter().cloned().collect(),
            ..BuildSpec::default()
        },
        device: device.fingerprint,
        scratch: scratch.to_owned(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    };
    let plan = compiler.compile(&request, &Silent, &Cancel::default())?;
    Ok(compiler.load(&plan.path, &LoadOptions::default())?)
}

fn words(error: &dyn Error) -> String {
    let text = error.to_string();
    text.lines().take(3).collect::<Vec<_>>().join(" ").chars().take(400).collect()
}

/// Where two tensors of one shape differ first, how often they do, and by what.
fn first_difference(given: &HostTensor, expected: &HostTensor, threshold: f64) -> String {
    let values =
        |tensor: &HostTensor| Tensor::try_from(tensor.clone()).map(|tensor| tensor.to_f64s()).unwrap_or_default();
    let (given, wanted) = (values(given), values(expected));
    let largest = wanted.iter().fold(1e-9, |largest: f64, value| largest.max(value.abs()));
    let differ: Vec<usize> =
        (0..wanted.len().min(given.len())).filter(|&at| (given[at] - wanted[at]).abs() > threshold * largest).collect();
    match differ.first() {
        Some(&at) => {
            let (count, all, shape) = (differ.len(), wanted.len(), &expected.shape);
            format!(" ({count} of {all} elements of {shape:?}, the first at {at}: {} is not {})", given[at], wanted[at])
        }
        None => String::new(),
    }
}

/// How outputs stand to those of ONNX Runtime.
struct Compared {
    /// What is wrong with them; absent where nothing is.
    wrong: Option<String>,
    /// Largest error, against its output's scale.
    largest: f64,
    /// Finds that are others of a tie.
    others: usize,
}

fn compare(given: &NamedTensors, expected: &NamedTensors) -> Compared {
    let outputs = numerics::compare(given, expected, &BTreeMap::new());
    let threshold = numerics::threshold(Precision::Fp32);
    let largest = outputs.iter().map(|output| output.max_error).fold(0.0, f64::max);
    if numerics::passes(&outputs, threshold) {
        return Compared { wrong: None, largest, others: 0 };
    }
    if let Some(others) = finds::others_of_ties(given, expected, threshold) {
        return Compared { wrong: None, largest: threshold, others };
    }
    let wrong = outputs.iter().filter(|output| !numerics::passes(std::slice::from_ref(*output), threshold));
    let told = wrong.map(|output| {
        let problem = output.problem.clone().unwrap_or_else(|| format!("off by {:.2e}", output.max_error));
        let pair = (given.get(&output.name), expected.get(&output.name));
        let first = match pair {
            (Some(given), Some(expected)) => first_difference(given, expected, threshold),
            _ => String::new(),
        };
        format!("{}: {problem}{first}", output.name)
    });
    Compared { wrong: Some(told.collect::<Vec<_>>().join("; ")), largest, others: 0 }
}

/// What is wrong with a model that gives `others` for other inputs: where every output is the same to within what is
/// allowed, its layers could compute anything. Lists without finds say nothing either way.
fn told_apart(given: &NamedTensors, others: impl Iterator<Item = NamedTensors>) -> Option<String> {
    let same = |other: NamedTensors| {
        let is_empty = given.values().chain(other.values()).any(|tensor| tensor.shape.contains(&0));
        let outputs = numerics::compare(&other, given, &BTreeMap::new());
        !is_empty && numerics::passes(&outputs, numerics::threshold(Precision::Fp32))
    };
    let mut others = others.map(same).peekable();
    let is_same = others.peek().is_some() && others.all(|same| same);
    is_same.then(|| "no output tells one input from another, so nothing is shown".into())
}

/// Builds an entry and compares it. `timed` holds it against ONNX Runtime on one and two threads, too.
pub fn entry(entry: &Entry, timed: bool) -> Outcome {
    let mut outcome = Outcome { title: entry.title(), ..Outcome::default() };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let model = scratch.path().join("model.onnx");
    let open = drawn::write(entry, &model).expect("the zoo's file is read");
    let profile = drawn::profile(entry, &open);
    let mut meter = match build(&CpuCompiler, &model, profile.as_ref(), (1, 0), scratch.path()) {
        Ok(meter) => meter,
        Err(error) => {
            outcome.refused = Some(words(&*error));
            return outcome;
        }
    };
    let runtime = OnnxRuntimeCompiler::of_environment();
    let oracle = runtime.oracle().expect("the library was found");
    let mut first = None;
    for draws in [Draws::Small, Draws::Larger] {
        let larger = draws == Draws::Larger;
        if larger && profile.is_none() {
            break;
        }
        let inputs = drawn::inputs(entry, &open, draws);
        let expected = oracle.outputs(&model, &inputs, Duration::from_secs(120), &Cancel::default());
        let given = meter.bind(&inputs).and_then(|()| meter.run());
        match (given, expected) {
            (_, Err(error)) => outcome.peer_refused = Some(words(&error)),
            (Err(error), _) => outcome.wrong = Some(words(&error)),
            (Ok(given), Ok(expected)) => {
                let Compared { wrong, largest, others } = compare(&given, &expected);
                outcome.max_error = outcome.max_error.max(largest);
                outcome.others_of_ties = outcome.others_of_ties.max(others);
                outcome.wrong =
                    outcome.wrong.or(wrong.map(|wrong| if larger { format!("larger: {wrong}") } else { wrong }));
                first.get_or_insert(given);
            }
        }
    }
    if let Some(given) = first {
        let others = (1..=OTHERS).map_while(|which| {
            let inputs = drawn::inputs(entry, &open, Draws::Others(which));
            meter.bind(&inputs).and_then(|()| meter.run()).ok()
        });
        outcome.wrong = outcome.wrong.or(told_apart(&given, others));
    }
    let inputs = drawn::inputs(entry, &open, Draws::Small);
    if let Ok(layers) = meter.bind(&inputs).and_then(|()| meter.layers(1)) {
        let all: f64 = layers.iter().map(|layer| layer.median_ms).sum();
        let by_reference: Vec<_> = layers.iter().filter(|layer| layer.tactic.starts_with("reference_")).collect();
        let share: f64 = by_reference.iter().map(|layer| layer.median_ms).sum();
        outcome.reference_share = if all > 0.0 { share / all } else { 0.0 };
        outcome.reference_kinds = by_reference.iter().map(|layer| layer.kind.clone()).collect();
        outcome.reference_kinds.sort();
        outcome.reference_kinds.dedup();
        let behind = layers.iter().find(|layer| layer.kind == "tail");
        let count = behind.and_then(|layer| layer.name.split(' ').next()?.parse().ok());
        outcome.behind = count.unwrap_or(0);
    }
    drop(meter);
    if timed && outcome.wrong.is_none() && outcome.peer_refused.is_none() {
        for threads in [1, 2] {
            if let Some(times) = times(&model, profile.as_ref(), &inputs, threads, scratch.path()) {
                outcome.times_ms.insert(threads, times);
            }
        }
    }
    outcome
}

/// Medians of the engine and of ONNX Runtime, in turns.
fn times(
    model: &Path,
    profile: Option<&OptimizationProfile>,
    inputs: &NamedTensors,
    threads: u32,
    scratch: &Path,
) -> Option<[f64; 2]> {
    let runtime = OnnxRuntimeCompiler::of_environment();
    let compilers: [&dyn Compiler; 2] = [&CpuCompiler, &runtime];
    let mut meters = Vec::new();
    for (index, compiler) in compilers.into_iter().enumerate() {
        let folder = scratch.join(format!("{threads}-{index}"));
        std::fs::create_dir_all(&folder).ok()?;
        let mut meter = build(compiler, model, profile, (threads, 3), &folder).ok()?;
        meter.bind(inputs).ok()?;
        meter.run().ok()?;
        meters.push(meter);
    }
    let mut samples = [Vec::new(), Vec::new()];
    for _ in 0..7 {
        for (meter, samples) in meters.iter_mut().zip(&mut samples) {
            let window = meter.window(Window { iterations: 3, duration_ms: 0.0 }).ok()?;
            samples.extend(window.latency_ms);
        }
    }
    Some(samples.map(|mut samples| {
        samples.sort_unstable_by(f64::total_cmp);
        samples[samples.len() / 2]
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::ElementType;

    #[test]
    fn a_model_that_gives_the_same_for_everything_shows_nothing() {
        let outputs = |values: &[f32]| {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let tensor = HostTensor { element: ElementType::F32, shape: vec![values.len()], bytes };
            NamedTensors::from([("y".to_owned(), tensor)])
        };
        let told = |given: &[f32], others: &[&[f32]]| {
            told_apart(&outputs(given), others.iter().map(|other| outputs(other))).is_some()
        };
        assert!(told(&[1.0, 2.0], &[&[1.0001, 2.0], &[1.0, 2.0001]]));
        assert!(!told(&[1.0, 2.0], &[&[1.0, 2.0], &[1.1, 2.0]]), "one is another");
        assert!(!told(&[1e-40, 2e-40], &[&[2e-40, 1e-40]]), "of any size");
        assert!(!told(&[], &[&[]]), "nothing was found");
        assert!(!told(&[1.0, 2.0], &[&[1.0]]), "another was found");
        assert!(!told(&[1.0, 2.0], &[]), "no other inputs could be run");
    }
}
