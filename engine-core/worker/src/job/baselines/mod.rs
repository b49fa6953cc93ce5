//! Other runtimes beside the engine: measured on the same device and inputs, under the same lease, by the same
//! experiment.
//!
//! A baseline is a program that the agent's host has under its name ([`program`]), else a backend of the worker that is
//! not the job's: its engine of the same model, with its defaults. It comes after everything that is measured of the
//! engine, whose figures it therefore cannot disturb, and none of it can fail the job, the loss of the device apart: the
//! report says what was not measured, and why.

mod program;
mod watch;

use super::{
    outlet::{CompileEvents, log},
    run::{Job, Loaded, file_error},
};
use crate::{
    measure::{Clock as _, Measurement},
    verify::numerics,
};
use planforge_backend::{CompileRequest, Compiler, LoadOptions, LoadSite, Meter};
use planforge_device::{CpuLevel, telemetry::Telemetry};
use planforge_identity::npz;
use planforge_report::{Baseline, Finding, Samples};
use planforge_types::{
    BackendError, BuildSpec, NamedTensors, Sku,
    fingerprint::{DeviceKind, DiscoveredDevice},
    order::BaselineOrder,
};
use program::Program;
use std::{collections::BTreeMap, fs, path::Path};
use watch::WithProgram;

/// Largest difference that is told of a baseline's outputs before a reader is warned.
const WARNED_RELATIVE_RMS: f64 = 0.05;

/// Another runtime, ready to be timed.
struct Opened {
    runs: Runs,
    library: String,
    settings: BTreeMap<String, String>,
    outputs: Option<NamedTensors>,
}

enum Runs {
    Here(Box<dyn Meter>),
    Beside(Box<Program>),
}

impl Job<'_> {
    /// Measures every baseline that was asked for; only cancellation and the loss of the device are errors.
    pub fn baselines(
        &self,
        loaded: &mut Loaded,
        telemetry: &mut dyn Telemetry,
        findings: &mut Vec<Finding>,
    ) -> Result<Vec<Baseline>, BackendError> {
        let mut baselines = Vec::new();
        for order in &self.order.baselines {
            self.may_go_on("the baselines")?;
            self.outlet.progress("baselines", baselines.len() as f32 / self.order.baselines.len() as f32, &order.name);
            match self.baseline(order, loaded, telemetry) {
                Ok((baseline, more)) => {
                    log(&format!("baseline {}: {:.3} ms", baseline.name, baseline.latency_ms.median));
                    findings.extend(more);
                    baselines.push(baseline);
                }
                Err(error) => {
                    self.may_go_on("the baselines")?;
                    let hint = if error.hint.is_empty() { String::new() } else { format!(" ({})", error.hint) };
                    let message = format!("baseline {} was not measured: {}{hint}", order.name, error.message);
                    log(&message);
                    findings.push(Finding::warning("no-baseline", message));
                }
            }
        }
        Ok(baselines)
    }

    fn baseline(
        &self,
        order: &BaselineOrder,
        loaded: &mut Loaded,
        telemetry: &mut dyn Telemetry,
    ) -> Result<(Baseline, Vec<Finding>), BackendError> {
        if let Some(problem) = &order.problem {
            return Err(BackendError::infrastructure(problem.clone()));
        }
        let folder = self.order.scratch.join(format!("baseline-{}", order.name));
        fs::create_dir_all(&folder).map_err(|error| file_error("make the folder of a baseline", &folder, &error))?;
        let before = telemetry.sample();
        let began_ms = self.clock.now_ms();
        let Opened { runs, library, settings, outputs } = match &order.program {
            Some(program) => self.open_program(order, program, loaded, &folder)?,
            None => self.open_backend(order, loaded, &folder)?,
        };
        let ready_ms = self.clock.now_ms() - began_ms;
        let measurement = match runs {
            Runs::Here(mut meter) => self.measure_baseline(&mut *meter, telemetry)?,
            Runs::Beside(mut program) => {
                let mut watched = WithProgram::new(telemetry, &before, program.pid());
                self.measure_baseline(&mut *program, &mut watched)?
            }
        };
        let mut findings = Vec::new();
        let relative_rms = self.difference(outputs.as_ref(), loaded, &order.name, &mut findings);
        let Measurement { stats, samples, windows, experiment, .. } = measurement;
        let baseline = Baseline {
            name: order.name.clone(),
            library,
            settings,
            ready_ms,
            latency_ms: stats,
            experiment,
            windows,
            samples: Samples::encode(&samples),
            relative_rms,
        };
        Ok((baseline, findings))
    }

    /// The same experiment as the engine's.
    fn measure_baseline(
        &self,
        meter: &mut dyn Meter,
        telemetry: &mut dyn Telemetry,
    ) -> Result<Measurement, BackendError> {
        crate::measure::measure(meter, telemetry, &self.clock, &self.headline_config(), self.cancel)
    }

    fn open_program(
        &self,
        order: &BaselineOrder,
        path: &Path,
        loaded: &Loaded,
        folder: &Path,
    ) -> Result<Opened, BackendError> {
        let inputs = folder.join("inputs.npz");
        npz::write(&inputs, &loaded.inputs).map_err(|error| {
            BackendError::infrastructure(format!("cannot write the inputs of baseline {}: {error}", order.name))
        })?;
        let on = program::Order {
            protocol: program::PROTOCOL,
            name: &order.name,
            model: &self.order.model,
            module: order.module.as_deref(),
            inputs: &inputs,
            input_names: loaded.meter.inputs().into_iter().map(|port| port.name).collect(),
            output_names: loaded.meter.outputs().into_iter().map(|port| port.name).collect(),
            device: if self.device.kind == DeviceKind::Gpu { "cuda" } else { "cpu" },
            precision: self.order.spec.precision,
            threads: self.order.spec.threads,
            scratch: folder,
        };
        let program = Program::start(path, &on, self.cancel)?;
        let ready = program.ready.clone();
        let outputs = ready.outputs.map(|path| npz::read(&path)).transpose().map_err(|error| {
            BackendError::infrastructure(format!("the outputs of baseline {} cannot be read: {error}", order.name))
        })?;
        Ok(Opened { runs: Runs::Beside(Box::new(program)), library: ready.library, settings: ready.settings, outputs })
    }

    /// The engine of another backend, of this job's model with its own defaults.
    fn open_backend(&self, order: &BaselineOrder, loaded: &Loaded, folder: &Path) -> Result<Opened, BackendError> {
        let job = self.order;
        let hint = "baselines are ONNX Runtime where an agent finds it (onnxruntime), and the programs of the folder that \
                    PLANFORGE_BASELINES names at the agent";
        let other = self.others.iter().copied().find(|other| other.backend() == order.name);
        let other: &dyn Compiler = other.ok_or_else(|| {
            BackendError::infrastructure(format!("this agent knows no baseline {}", order.name)).with_hint(hint)
        })?;
        let skus = self.skus();
        let device = DiscoveredDevice {
            id: String::new(),
            fingerprint: self.device.clone(),
            skus: skus.clone(),
            threads: job.spec.threads.unwrap_or(0),
            offers: Vec::new(),
            simulated: job.simulated,
        };
        let toolchain = other.toolchains(&device).into_iter().next().ok_or_else(|| {
            BackendError::infrastructure(format!("{} cannot build for this device on this host", order.name))
        })?;
        // Its best for this device; the job's SKU may be a lower level of a CPU's.
        let sku = skus.last().unwrap_or(&job.sku).clone();
        let spec = BuildSpec { threads: job.spec.threads, profiles: job.spec.profiles.clone(), ..BuildSpec::default() };
        let request = CompileRequest {
            model: job.model.clone(),
            model_digest: job.model_digest,
            sku,
            device: self.device.clone(),
            toolchain: toolchain.clone(),
            spec: spec.clone(),
            scratch: folder.to_owned(),
            cache: None,
            calibration: None,
            plugins: Vec::new(),
        };
        other.check(&request)?;
        let compiled = other.compile(&request, &CompileEvents(self.outlet), self.cancel)?;
        let site = LoadSite {
            device: self.device.clone(),
            toolchain: toolchain.clone(),
            spec: spec.clone(),
            model: job.model.clone(),
            plugins: Vec::new(),
            scratch: folder.to_owned(),
            cancel: self.cancel.clone(),
        };
        let options = LoadOptions { threads: spec.threads, profile: 0, allow_foreign: false, site: Some(site) };
        let mut meter = other.load(&compiled.path, &options)?;
        meter.bind(&loaded.inputs)?;
        let outputs = meter.run()?;
        let settings = BTreeMap::from([("precision".to_owned(), spec.precision.to_string())]);
        Ok(Opened { runs: Runs::Here(meter), library: toolchain.to_string(), settings, outputs: Some(outputs) })
    }

    /// What code this host's device can run, best last.
    fn skus(&self) -> Vec<Sku> {
        match self.device.kind {
            DeviceKind::Cpu => CpuLevel::detect().into_iter().map(CpuLevel::sku).collect(),
            DeviceKind::Gpu => vec![self.order.sku.clone()],
        }
    }

    /// How far the baseline's outputs are from the engine's, as far as both tell.
    fn difference(
        &self,
        outputs: Option<&NamedTensors>,
        loaded: &mut Loaded,
        name: &str,
        findings: &mut Vec<Finding>,
    ) -> Option<f64> {
        let outputs = outputs?;
        let own = loaded.meter.run().ok()?;
        let common: NamedTensors = own.into_iter().filter(|(name, _)| outputs.contains_key(name)).collect();
        let compared = numerics::compare(outputs, &common, &BTreeMap::new());
        let compared: Vec<_> = compared.into_iter().filter(|output| output.problem.is_none()).collect();
        let relative_rms = compared.iter().map(|output| output.relative_rms).reduce(f64::max)?;
        let wrong = compared.iter().any(|output| output.not_finite > 0);
        if wrong || relative_rms > WARNED_RELATIVE_RMS {
            let message = format!(
                "the outputs of baseline {name} are off from the engine's by {:.1} % (relative RMS): the two may not \
                 compute the same",
                relative_rms * 100.0
            );
            findings.push(Finding::warning("baseline-differs", message));
        }
        Some(relative_rms)
    }
}
