//! A plan behind `trtexec`: every run, window and profile is a process of its own that loads the plan.
//!
//! The headline is GPU compute time in the comparable mode (CUDA graph, spinning, no transfers), the same for every
//! version; what transfers and enqueuing cost is measured apart, once, and reported as the latency's parts.

mod edge;
mod split;
mod trace;

use crate::{
    exports::{self, ExportError, QueryTime},
    log::LogFacts,
    plan::{PlanError, PlanHeader},
    tensors,
    tool::{Tool, file_error, name_of},
};
use edge::Edges;
use planforge_backend::{Aside, KeptFile, LoadSite, Meter, Pacing, StreamSamples, Window, WindowSamples};
use planforge_report::{Finding, LatencySplit, LayerTime};
use planforge_tensorrt_rules::{
    command::{self, Benchmark, CommandLine, Mode, Outputs, Profile, Run, Shapes},
    preflight::{WARM_UP_MS, WINDOW_MS},
    version::Version,
};
use planforge_types::{BackendError, BuildSpec, FailureClass, HostTensor, NamedTensors, Port};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::BufReader,
    path::{Path, PathBuf},
};

/// First version whose exported times leave the warm-up out.
const TIMES_WITHOUT_WARM_UP: Version = Version::new(8, 5, 0);

const BYTES_PER_MIB: f64 = (1u64 << 20) as f64;

/// A TensorRT plan on the leased device.
#[derive(Debug)]
pub(crate) struct TensorRtSession {
    tool: Tool,
    plan: PathBuf,
    profile: usize,
    spec: BuildSpec,
    model: PathBuf,
    plugins: Vec<PathBuf>,
    edges: Edges,
    bound: Bound,
    memory_bytes: u64,
    weight_bytes: BTreeMap<String, u64>,
    /// The last window, for the latency's parts.
    last: Option<Timed>,
    aside: Aside,
    processes: u32,
}

/// Inputs as the tool reads them.
#[derive(Debug, Default)]
struct Bound {
    files: Vec<(String, PathBuf)>,
    /// Of the inputs whose shape varies.
    shapes: Shapes,
    ready: bool,
}

/// A timed process: its executions and what its log says.
#[derive(Debug)]
struct Timed {
    queries: Vec<QueryTime>,
    facts: LogFacts,
    mode: Mode,
}

impl TensorRtSession {
    /// Looks at the plan's header and the tensors at its edge; the first process that loads it proves that it loads.
    pub fn load(tool: Tool, plan: &Path, profile: usize, site: &LoadSite) -> Result<Self, BackendError> {
        PlanHeader::read(plan).map_err(|error| plan_error(plan, &error))?;
        let edges = Edges::of(&site.model, &site.spec, tool.installation.version())?;
        let folder = tool.subfolder(&format!("runs-{profile}"))?;
        Ok(Self {
            tool: Tool { folder, ..tool },
            plan: plan.to_owned(),
            profile,
            spec: site.spec.clone(),
            model: site.model.clone(),
            plugins: site.plugins.clone(),
            edges,
            bound: Bound::default(),
            memory_bytes: 0,
            weight_bytes: BTreeMap::new(),
            last: None,
            aside: Aside::default(),
            processes: 0,
        })
    }

    fn describe<T>(
        &self,
        build: impl FnOnce(&Run<'_>) -> Result<T, planforge_tensorrt_rules::refusal::Refusal>,
    ) -> Result<T, BackendError> {
        if !self.bound.ready {
            return Err(BackendError::new(FailureClass::Infrastructure, "no inputs are bound to the plan"));
        }
        let run = Run {
            plan: &self.plan,
            plugins: &self.plugins,
            model: Some(self.model.as_path()),
            profile: self.profile,
            shapes: &self.bound.shapes,
            inputs: &self.bound.files,
            lean_runtime: self.tool.installation.lean_runtime.as_deref(),
        };
        Ok(build(&run)?)
    }

    /// Runs one process that must succeed; its warnings become findings.
    fn process(&mut self, line: &CommandLine) -> Result<LogFacts, BackendError> {
        let facts = self.tool.load(line, &name_of(&self.plan), &mut tell)?;
        self.note(&facts);
        Ok(facts)
    }

    fn note(&mut self, facts: &LogFacts) {
        for finding in &facts.findings {
            if self.aside.findings.iter().all(|have| have.code != finding.code) {
                self.aside.findings.push(finding.clone());
            }
        }
        let engine = &facts.engine;
        let mib = engine.loaded_size_mib.unwrap_or(0.0) + engine.context_memory_mib.unwrap_or(0.0);
        if mib.is_finite() && mib > 0.0 {
            self.memory_bytes = self.memory_bytes.max((mib * BYTES_PER_MIB) as u64);
        }
    }

    /// A name for the next process's file of this kind.
    fn file(&mut self, kind: &str) -> PathBuf {
        self.processes += 1;
        self.tool.folder.join(format!("{kind}-{}.json", self.processes))
    }

    /// One timed process.
    fn timed(&mut self, mode: Mode, streams: u32, window: Window) -> Result<Timed, BackendError> {
        let path = self.file("times");
        let line = self.describe(|run| {
            let benchmark = Benchmark {
                mode,
                warm_up_ms: WARM_UP_MS,
                iterations: window.iterations,
                duration_s: (window.duration_ms / 1e3).ceil() as u32,
                streams,
                times: Some(&path),
            };
            command::benchmark(&self.tool.installation.capabilities, &self.spec, run, &benchmark)
        })?;
        let facts = self.process(&line)?;
        let export = read(&path, exports::read_times)?;
        // Large, and every window leaves one.
        let _ = fs::remove_file(&path);
        if export.unusable > 0 || export.left_out > 0 {
            let message = format!(
                "{} of the exported times were no numbers, {} more than are read",
                export.unusable, export.left_out
            );
            self.add(Finding::warning("times-left-out", message));
        }
        let mut queries = export.queries;
        if self.tool.installation.version() < TIMES_WITHOUT_WARM_UP {
            let warm_up = facts.run.warm_up_queries.unwrap_or(0) as usize;
            queries.drain(..warm_up.min(queries.len().saturating_sub(1)));
        }
        if queries.is_empty() {
            let message = format!("trtexec timed {} and exported no times", name_of(&self.plan));
            return Err(BackendError::new(FailureClass::Infrastructure, message));
        }
        Ok(Timed { queries, facts, mode })
    }

    fn add(&mut self, finding: Finding) {
        if self.aside.findings.iter().all(|have| have.code != finding.code) {
            self.aside.findings.push(finding);
        }
    }
}

impl Meter for TensorRtSession {
    fn inputs(&self) -> Vec<Port> {
        self.edges.inputs.clone()
    }

    fn outputs(&self) -> Vec<Port> {
        self.edges.outputs.clone()
    }

    fn bind(&mut self, inputs: &NamedTensors) -> Result<(), BackendError> {
        self.bound = Bound::default();
        let folder = self.tool.subfolder("inputs")?;
        let mut bound = Bound::default();
        for (index, port) in self.edges.inputs.iter().enumerate() {
            let tensor = self.edges.take(inputs, port, &self.spec, self.profile)?;
            let path = folder.join(format!("{index}.raw"));
            let bytes = tensors::convert(tensor, self.edges.raw_type(index))
                .map_err(|error| BackendError::new(FailureClass::Model, format!("input '{}': {error}", port.name)))?;
            fs::write(&path, bytes).map_err(|error| file_error("write", &path, &error))?;
            bound.files.push((port.name.clone(), path));
            if port.shape.contains(&None) {
                bound.shapes.insert(port.name.clone(), tensor.shape.iter().map(|size| *size as u64).collect());
            }
        }
        bound.ready = true;
        self.bound = bound;
        Ok(())
    }

    fn run(&mut self) -> Result<NamedTensors, BackendError> {
        let path = self.file("outputs");
        let line = self.describe(|run| {
            command::outputs(&self.tool.installation.capabilities, &self.spec, run, &Outputs { outputs: &path })
        })?;
        self.process(&line)?;
        let export = read(&path, exports::read_output)?;
        let _ = fs::remove_file(&path);
        let mut outputs = NamedTensors::new();
        for found in export.tensors {
            let Some(port) = self.edges.outputs.iter().find(|port| port.name == found.name) else { continue };
            if !found.is_whole() {
                let message = format!(
                    "output '{}' has {} values for dimensions {:?}, or more than are read",
                    found.name,
                    found.values.len(),
                    found.dimensions
                );
                return Err(BackendError::new(FailureClass::Infrastructure, message));
            }
            let shape = found.dimensions.iter().map(|size| *size as usize).collect();
            outputs.insert(found.name, HostTensor::of_values(port.element, shape, &found.values));
        }
        Ok(outputs)
    }

    fn window(&mut self, window: Window) -> Result<WindowSamples, BackendError> {
        let timed = self.timed(Mode::default(), 1, window)?;
        let latency_ms = timed.queries.iter().map(|query| query.compute_ms).collect();
        self.last = Some(timed);
        Ok(WindowSamples { latency_ms })
    }

    fn layers(&mut self, iterations: u32) -> Result<Vec<LayerTime>, BackendError> {
        let (times, info) = (self.file("layer-times"), self.file("layer-info"));
        let line = self.describe(|run| {
            let profile = Profile { warm_up_ms: WARM_UP_MS, iterations, layer_times: &times, layer_info: &info };
            command::profile(&self.tool.installation.capabilities, &self.spec, run, &profile)
        })?;
        self.process(&line)?;
        let profile = read(&times, exports::read_profile)?;
        let described = match read(&info, exports::read_layer_info) {
            Ok(described) => Some(described),
            Err(error) => {
                self.add(Finding::note("no-layer-info", error.message));
                None
            }
        };
        let joined = exports::join(profile, described);
        self.weight_bytes = joined.weight_bytes.clone();
        for finding in joined.findings() {
            self.add(finding);
        }
        for (name, path) in [("profile.json", times), ("layers.json", info)] {
            if path.exists() {
                self.aside.files.push(KeptFile { name: name.to_owned(), path });
            }
        }
        Ok(joined.layer_times())
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn pacing(&self) -> Pacing {
        Pacing::Process { window_ms: WINDOW_MS, warm_up_ms: WARM_UP_MS.into() }
    }

    fn split(&mut self) -> Result<Option<LatencySplit>, BackendError> {
        split::measure(self).map(Some)
    }

    fn streams(&mut self, streams: u32, window: Window) -> Result<Option<StreamSamples>, BackendError> {
        let timed = self.timed(Mode::default(), streams, window)?;
        let wall_s = timed.facts.run.trace_s.filter(|seconds| *seconds > 0.0);
        let counted = wall_s.map(|seconds| timed.queries.len() as f64 / seconds);
        let executions_per_s = timed
            .facts
            .summary
            .throughput_qps
            .or(counted)
            .ok_or_else(|| BackendError::new(FailureClass::Infrastructure, "trtexec's log has no throughput"))?;
        let latency_ms = timed.queries.iter().map(|query| query.latency_ms).collect();
        Ok(Some(StreamSamples { executions_per_s, latency_ms }))
    }

    fn trace(&mut self) -> Result<Option<()>, BackendError> {
        trace::record(self).map(Some)
    }

    fn weight_bytes(&self) -> BTreeMap<String, u64> {
        self.weight_bytes.clone()
    }

    fn aside(&mut self) -> Aside {
        std::mem::take(&mut self.aside)
    }
}

/// A line for the attempt's log.
fn tell(line: &str) {
    tracing::info!(target: "attempt", "{line}");
}

fn plan_error(plan: &Path, error: &PlanError) -> BackendError {
    let class = if matches!(error, PlanError::Io(_)) { FailureClass::Infrastructure } else { FailureClass::Model };
    BackendError::new(class, format!("{}: {error}", plan.display())).with_hint("fetch or build the plan again")
}

fn read<T>(path: &Path, parse: impl FnOnce(BufReader<File>) -> Result<T, ExportError>) -> Result<T, BackendError> {
    let file = File::open(path).map_err(|error| {
        BackendError::new(
            FailureClass::Infrastructure,
            format!("trtexec passed but did not write {}: {error}", name_of(path)),
        )
    })?;
    parse(BufReader::new(file)).map_err(|error| {
        BackendError::new(FailureClass::Infrastructure, format!("cannot read {}: {error}", name_of(path)))
            .with_hint("the attempt's log has the tool's own words")
    })
}
