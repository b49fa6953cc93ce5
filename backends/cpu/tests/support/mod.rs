//! What tests of the compiler need: a request for a quick engine, and somebody who listens to nothing.

use planforge_backend::{CompileRequest, Events};
use planforge_device::{CpuLevel, cpu};
use planforge_types::{BuildSpec, Digest, OptimizationLevel, fingerprint::HostFacts};
use std::path::Path;

pub struct Silent;

impl Events for Silent {
    fn progress(&self, _phase: &str, _fraction: f32, _detail: &str) {}
    fn log(&self, _line: &str) {}
}

/// A request for an engine of one thread that is tuned as little as may be; its files go to `scratch`.
pub fn request(model: &Path, level: CpuLevel, scratch: &Path) -> CompileRequest {
    CompileRequest {
        model: model.to_owned(),
        model_digest: Digest::of(b"model"),
        sku: level.sku(),
        device: cpu::detect(&HostFacts::default()).0,
        toolchain: planforge_cpu::toolchain(),
        spec: BuildSpec { threads: Some(1), optimization_level: OptimizationLevel(0), ..BuildSpec::default() },
        scratch: scratch.to_owned(),
        cache: None,
        calibration: None,
        plugins: Vec::new(),
    }
}
