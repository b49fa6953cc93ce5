//! Builds and runs native engines from a shell, for benchmarks beside other runtimes.
//!
//! `native_engine build MODEL SKU THREADS FOLDER [option=value ...]` writes FOLDER/engine.plan.
//! `native_engine serve PLAN INPUTS.npz OUTPUTS.npz` runs once, writes the outputs, and then answers each line `N` on
//! standard input by N latencies in milliseconds. `layers N` prints the slowest steps instead.

use planforge_engine_core::{
    backend::{Cancel, CompileRequest, Compiler, Events, LoadOptions, Window},
    device::cpu,
    identity::{BuildSpec, Digest},
    native::{self, NativeCompiler},
    npz,
};
use std::{error::Error, io::Write, path::Path, time::Instant};

struct Silent;
impl Events for Silent {
    fn progress(&self, _phase: &str, _fraction: f32, _detail: &str) {}
    fn log(&self, _line: &str) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut out = std::io::stdout();
    match words.as_slice() {
        ["build", model, sku, threads, folder, options @ ..] => {
            let mut spec = BuildSpec { threads: Some(threads.parse()?), ..BuildSpec::default() };
            for (name, value) in options.iter().filter_map(|option| option.split_once('=')) {
                match name {
                    "level" => spec.optimization_level.0 = value.parse()?,
                    _ => drop(spec.options.insert(name.to_owned(), value.to_owned())),
                }
            }
            let folder = Path::new(folder);
            std::fs::create_dir_all(folder)?;
            let request = CompileRequest {
                model: (*model).into(),
                model_digest: Digest::of(model.as_bytes()),
                sku: sku.parse()?,
                device: cpu::detect(&cpu::host_facts()).0,
                toolchain: native::toolchain(),
                spec,
                scratch: folder.to_owned(),
                cache: None,
                calibration: None,
                plugins: Vec::new(),
            };
            let start = Instant::now();
            let plan = NativeCompiler.compile(&request, &Silent, &Cancel::default())?;
            writeln!(out, "built in {:.2} s: {}", start.elapsed().as_secs_f64(), plan.facts)?;
            std::fs::write(folder.join("inspection.txt"), native::inspect(&plan.path)?.to_string())?;
        }
        ["serve", plan, inputs, outputs] => {
            let mut meter = NativeCompiler.load(Path::new(plan), &LoadOptions::default())?;
            meter.bind(&npz::read(Path::new(inputs))?)?;
            npz::write(Path::new(outputs), &meter.run()?)?;
            writeln!(out, "ready")?;
            for line in std::io::stdin().lines() {
                let line = line?;
                if let Some(count) = line.strip_prefix("layers ") {
                    let mut layers = meter.layers(count.parse()?)?;
                    layers.sort_by(|a, b| b.median_ms.total_cmp(&a.median_ms));
                    let total: f64 = layers.iter().map(|layer| layer.median_ms).sum();
                    writeln!(out, "{total:.3} ms in {} steps", layers.len())?;
                    for layer in layers.iter().take(80) {
                        let rate = layer.flops as f64 / layer.median_ms / 1e6;
                        writeln!(
                            out,
                            "{:8.3} ms {rate:6.1} GFLOP/s {:12} {:40} {}",
                            layer.median_ms, layer.kind, layer.tactic, layer.name
                        )?;
                    }
                } else {
                    let samples = meter.window(Window { iterations: line.trim().parse()?, duration_ms: 0.0 })?;
                    let text: Vec<String> = samples.latency_ms.iter().map(|ms| format!("{ms:.4}")).collect();
                    writeln!(out, "{}", text.join(" "))?;
                }
                out.flush()?;
            }
        }
        _ => return Err("usage: native_engine build MODEL SKU THREADS FOLDER | serve PLAN INPUTS OUTPUTS".into()),
    }
    Ok(())
}
