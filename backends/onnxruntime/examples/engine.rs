//! Builds and runs engines of both CPU backends from a shell, for benchmarks of one beside the other.
//!
//! - `engine build BACKEND MODEL THREADS FOLDER [CACHE]` writes FOLDER/engine.plan; one line of JSON says how long each
//!   phase took.
//! - `engine inputs MODEL INPUTS.npz` writes made-up inputs.
//! - `engine serve PLAN INPUTS.npz OUTPUTS.npz` runs once and writes the outputs, then answers each line `N` on standard
//!   input by N latencies in milliseconds; `layers N` prints the time of each step instead, slowest first.
//! - `engine numerics MODEL OUTPUTS.npz EXPECTED.npz` says how far apart two sets of outputs are.

use planforge_backend::{Cancel, CompileRequest, Compiler, Events, LoadOptions, Window};
use planforge_cpu::CpuCompiler;
use planforge_device::{CpuLevel, cpu};
use planforge_identity::npz;
use planforge_onnxruntime::OnnxRuntimeCompiler;
use planforge_types::{BuildSpec, Digest, fingerprint::DiscoveredDevice};
use planforge_worker::verify::{inputs, numerics};
use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    io::Write as _,
    path::Path,
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// Adds up how long the compiler is in each phase.
struct Phases(Mutex<(String, Instant, BTreeMap<String, f64>)>);

impl Events for Phases {
    fn progress(&self, phase: &str, _: f32, _: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, since, spent_ms) = &mut *state;
        *spent_ms.entry(std::mem::replace(last, phase.to_owned())).or_default() += since.elapsed().as_secs_f64() * 1e3;
        *since = Instant::now();
    }
    fn log(&self, _: &str) {}
}

fn compilers() -> [Box<dyn Compiler>; 2] {
    [Box::new(CpuCompiler), Box::new(OnnxRuntimeCompiler::of_environment())]
}

fn build(
    backend: &str,
    model: &str,
    threads: &str,
    folder: &str,
    cache: Option<&str>,
) -> Result<String, Box<dyn Error>> {
    let compilers = compilers();
    let compiler = compilers.iter().find(|compiler| compiler.backend() == backend).ok_or("no such backend")?;
    let (fingerprint, _) = cpu::detect(&cpu::host_facts());
    // The level that ONNX Runtime uses here.
    let sku = CpuLevel::detect().last().ok_or("this processor has no known level")?.sku();
    let device = DiscoveredDevice {
        id: "cpu0".into(),
        fingerprint: fingerprint.clone(),
        skus: vec![sku.clone()],
        threads: 1,
        offers: Vec::new(),
        simulated: false,
    };
    fs::create_dir_all(folder)?;
    let request = CompileRequest {
        model: model.into(),
        model_digest: Digest::of(model.as_bytes()),
        sku,
        device: fingerprint,
        toolchain: compiler.toolchains(&device).pop().ok_or("the backend is not here")?,
        spec: BuildSpec { threads: Some(threads.parse()?), ..BuildSpec::default() },
        scratch: folder.into(),
        cache: cache.map(Into::into),
        calibration: None,
        plugins: Vec::new(),
    };
    let phases = Phases(Mutex::new(("start".into(), Instant::now(), BTreeMap::new())));
    let start = Instant::now();
    let plan = compiler.compile(&request, &phases, &Cancel::default())?;
    let build_ms = start.elapsed().as_secs_f64() * 1e3;
    let spent_ms = phases.0.into_inner().unwrap_or_else(PoisonError::into_inner).2;
    Ok(serde_json::json!({ "build_ms": build_ms, "phases_ms": spent_ms, "facts": plan.facts }).to_string())
}

fn serve(plan: &str, given: &str, outputs: &str) -> Result<(), Box<dyn Error>> {
    let head = fs::read(plan)?;
    let compilers = compilers();
    let compiler = compilers.iter().find(|compiler| compiler.recognises(&head[..head.len().min(64)]));
    drop(head);
    let mut meter = compiler.ok_or("nobody's plan")?.load(Path::new(plan), &LoadOptions::default())?;
    meter.bind(&npz::read(Path::new(given))?)?;
    npz::write(Path::new(outputs), &meter.run()?)?;
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    for line in std::io::stdin().lines() {
        let line = line?;
        if let Some(count) = line.strip_prefix("layers ") {
            let mut layers = meter.layers(count.parse()?)?;
            layers.sort_by(|a, b| b.median_ms.total_cmp(&a.median_ms));
            let total: f64 = layers.iter().map(|layer| layer.median_ms).sum();
            writeln!(out, "{total:.3} ms, steps: {}", layers.len())?;
            for layer in &layers {
                let rate = layer.flops as f64 / layer.median_ms / 1e6;
                let words = format!("{:12} {:40} {}", layer.kind, layer.tactic, layer.name);
                writeln!(out, "{:8.3} ms {rate:6.1} GFLOP/s {words}", layer.median_ms)?;
            }
        } else {
            let samples = meter.window(Window { iterations: line.trim().parse()?, duration_ms: 0.0 })?;
            let text: Vec<String> = samples.latency_ms.iter().map(|ms| format!("{ms:.4}")).collect();
            writeln!(out, "{}", text.join(" "))?;
        }
        out.flush()?;
    }
    Ok(())
}

fn graph(model: &str) -> Result<planforge_graph::ir::Graph, Box<dyn Error>> {
    Ok(planforge_import::import(&planforge_onnx::Model::open(Path::new(model))?, None)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut out = std::io::stdout();
    match words[..] {
        ["build", backend, model, threads, folder] => {
            writeln!(out, "{}", build(backend, model, threads, folder, None)?)?
        }
        ["build", backend, model, threads, folder, cache] => {
            writeln!(out, "{}", build(backend, model, threads, folder, Some(cache))?)?;
        }
        ["inputs", model, file] => {
            let specs = inputs::of_graph(&graph(model)?).ok_or("the model's inputs have no fixed shape")?;
            npz::write(Path::new(file), &inputs::generate(&specs, inputs::REFERENCE_SEED))?;
        }
        ["serve", plan, given, outputs] => serve(plan, given, outputs)?,
        ["numerics", model, ours, theirs] => {
            let softmaxes = numerics::final_softmaxes(&graph(model)?);
            let (ours, theirs) = (npz::read(Path::new(ours))?, npz::read(Path::new(theirs))?);
            let outputs = numerics::compare(&ours, &theirs, &softmaxes);
            writeln!(out, "{}", serde_json::to_string(&outputs)?)?;
        }
        _ => return Err("usage: engine build | inputs | serve | numerics, see the top of its source".into()),
    }
    Ok(())
}
