//! TensorRT as one of the farm's backends: builds and measures through the `trtexec` programs found on this host.
//!
//! A build is one process that writes a plan under a temporary name. It counts only when exit status, verdict, log and
//! plan header all say so; then it is renamed, its bytes untouched. The timing cache is the job's own copy, which the
//! tool updates in place: a torn one is taken away rather than left for the farm to publish, and a build that stumbles
//! over its cache is run once more without it.

use crate::{
    acceptance,
    discover::{Discovery, Installation},
    failure::{FailureKind, Step},
    meter::TensorRtSession,
    plan::{PlanHeader, PlanLayout},
    process::Limits,
    timing_cache::TimingCacheHeader,
    tool::{Ran, Tool, file_error, host_limits, name_of},
};
use planforge_backend::{Cancel, CompileRequest, CompiledPlan, Compiler, Events, LoadOptions, Meter};
use planforge_onnx::Model;
use planforge_report::Finding;
use planforge_tensorrt_rules::{
    command::{self, BuildFiles, CommandLine},
    hardware::Board,
    model::ModelFacts,
    options::Options,
    preflight,
};
use planforge_types::{
    BackendError, FailureClass, Toolchain,
    fingerprint::{DeviceFingerprint, DiscoveredDevice},
};
use std::{fs, path::Path};

/// How plans begin: from 8.6 on, and before.
const PLAN_MAGICS: [&[u8]; 2] = [b"ftrt", b"ptrt"];

/// Name of an accepted plan, and of one that is still being written.
const PLAN_FILE: &str = "engine.plan";
const DRAFT_FILE: &str = "engine.plan.part";

/// The backend `tensorrt`.
#[derive(Debug)]
pub struct TensorRtCompiler {
    discovery: Discovery,
    limits: Limits,
}

impl Default for TensorRtCompiler {
    /// The installations that this process's environment and the usual folders have.
    fn default() -> Self {
        Self::new(Discovery::of_host(None))
    }
}

impl TensorRtCompiler {
    pub fn new(discovery: Discovery) -> Self {
        Self { discovery, limits: host_limits() }
    }

    /// With other bounds on its processes than this host's usual ones.
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Where installations are looked for.
    pub fn discovery(&self) -> &Discovery {
        &self.discovery
    }

    fn installation(&self, toolchain: &Toolchain, device: &DeviceFingerprint) -> Result<Installation, BackendError> {
        self.discovery.find(toolchain, driver(device)).ok_or_else(|| {
            BackendError::new(
                FailureClass::Infrastructure,
                format!("{toolchain} is not installed on this host, or not for the driver of {}", device.name),
            )
            .with_hint("`planforge devices` lists what this host offers now; TENSORRT_HOME names an installation")
        })
    }
}

fn driver(device: &DeviceFingerprint) -> Option<&str> {
    device.gpu.as_ref().map(|gpu| gpu.driver.as_str()).filter(|driver| !driver.is_empty())
}

fn model_facts(path: &Path) -> Result<ModelFacts, BackendError> {
    let model = Model::open(path)
        .map_err(|error| BackendError::new(FailureClass::Model, error.to_string()).with_hint(error.hint()))?;
    Ok(ModelFacts::of(&model))
}

fn build_line(request: &CompileRequest, installation: &Installation, plan: &Path) -> Result<CommandLine, BackendError> {
    let files = BuildFiles {
        model: &request.model,
        plan,
        timing_cache: request.cache.as_deref(),
        calibration: request.calibration.as_deref(),
        plugins: &request.plugins,
    };
    let facts = model_facts(&request.model)?;
    Ok(command::build(&installation.capabilities, &request.spec, &files, Some(&facts))?)
}

impl Compiler for TensorRtCompiler {
    fn backend(&self) -> &'static str {
        planforge_tensorrt_rules::BACKEND
    }

    fn toolchains(&self, device: &DiscoveredDevice) -> Vec<Toolchain> {
        match &device.fingerprint.gpu {
            Some(_) => self.discovery.toolchains(driver(&device.fingerprint)),
            None => Vec::new(),
        }
    }

    fn check(&self, request: &CompileRequest) -> Result<(), BackendError> {
        let installation = self.installation(&request.toolchain, &request.device)?;
        let facts = model_facts(&request.model)?;
        let board = request.device.gpu.as_ref().and_then(Board::of);
        for doubt in preflight::check(&installation.capabilities, &request.spec, Some(&facts), board.as_ref())? {
            tracing::warn!(target: "attempt", "{doubt}");
        }
        build_line(request, &installation, &request.scratch.join(DRAFT_FILE))?;
        // What this host lacks is no fault of the spec: another may have it.
        if Options::parse(&request.spec.options)?.exclude_lean_runtime && installation.lean_runtime.is_none() {
            let message = format!(
                "{} has no lean runtime (libnvinfer_lean.so.{}) to load a plan with that leaves its own out",
                installation.trtexec.display(),
                installation.version().major
            );
            return Err(BackendError::new(FailureClass::Infrastructure, message)
                .with_hint("install TensorRT's lean runtime on this host, or leave option exclude_lean_runtime out"));
        }
        Ok(())
    }

    fn compile(
        &self,
        request: &CompileRequest,
        events: &dyn Events,
        cancel: &Cancel,
    ) -> Result<CompiledPlan, BackendError> {
        let installation = self.installation(&request.toolchain, &request.device)?;
        let draft = request.scratch.join(DRAFT_FILE);
        let line = build_line(request, &installation, &draft)?;
        let tool = Tool {
            installation,
            device: request.device.clone(),
            folder: request.scratch.clone(),
            limits: self.limits,
            cancel: cancel.clone(),
        };
        let build = Build { request, tool: &tool, line: &line, draft: &draft, events };
        build.run()
    }

    fn recognises(&self, head: &[u8]) -> bool {
        PLAN_MAGICS.iter().any(|magic| head.starts_with(magic))
    }

    fn load(&self, plan: &Path, options: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        let Some(site) = &options.site else {
            return Err(BackendError::new(
                FailureClass::Model,
                format!("{} is a TensorRT plan, which runs only on a farm's device", plan.display()),
            )
            .with_hint("measure it with a job: planforge submit"));
        };
        let installation = self.installation(&site.toolchain, &site.device)?;
        let tool = Tool {
            installation,
            device: site.device.clone(),
            folder: site.scratch.clone(),
            limits: self.limits,
            cancel: site.cancel.clone(),
        };
        Ok(Box::new(TensorRtSession::load(tool, plan, options.profile, site)?))
    }
}

/// One build under way.
struct Build<'a> {
    request: &'a CompileRequest,
    tool: &'a Tool,
    line: &'a CommandLine,
    draft: &'a Path,
    events: &'a dyn Events,
}

impl Build<'_> {
    fn run(&self) -> Result<CompiledPlan, BackendError> {
        let mut findings = Vec::new();
        findings.extend(self.drop_torn_cache("before the build"));
        let warm = self.cache().is_some_and(Path::exists);
        let (ran, again) = match self.attempt()? {
            Attempt::Accepted(accepted) => (accepted, false),
            Attempt::Failed { failure } if warm && failure.kind == FailureKind::TimingCache => {
                self.events.log("trtexec cannot use the timing cache: building once more without it");
                if let Some(cache) = self.cache() {
                    remove(cache)?;
                }
                let message = format!("the build was run again without its timing cache: {}", failure.message);
                findings.push(Finding::warning("timing-cache-unusable", message));
                match self.attempt()? {
                    Attempt::Accepted(accepted) => (accepted, true),
                    Attempt::Failed { failure } => return Err((*failure).into()),
                }
            }
            Attempt::Failed { failure } => return Err((*failure).into()),
        };
        let AcceptedRun { ran, header, findings: odd } = *ran;
        findings.extend(odd);
        findings.extend(ran.facts.findings.iter().cloned());
        findings.extend(self.drop_torn_cache("after the build"));
        let path = self.request.scratch.join(PLAN_FILE);
        fs::rename(self.draft, &path).map_err(|error| file_error("rename the plan to", &path, &error))?;
        let facts = self.facts(&ran, &header, warm && !again);
        Ok(CompiledPlan { path, facts, findings })
    }

    fn cache(&self) -> Option<&Path> {
        self.request.cache.as_deref()
    }

    /// A cache that ends early or says another length than it has is removed, and told.
    fn drop_torn_cache(&self, when: &str) -> Option<Finding> {
        let cache = self.cache().filter(|cache| cache.exists())?;
        let problem = TimingCacheHeader::read(cache).err()?;
        self.events.log(&format!("the timing cache {when} is not whole and is left out: {problem}"));
        let _ = fs::remove_file(cache);
        let message = format!("the timing cache {when} was not whole and was left out: {problem}");
        Some(Finding::warning("timing-cache-torn", message))
    }

    fn attempt(&self) -> Result<Attempt, BackendError> {
        remove(self.draft)?;
        self.events.progress("trtexec", 0.0, "building");
        let ran = match self.tool.run(self.line, &mut |line| self.events.log(line)) {
            Ok(ran) => ran,
            Err(error) => {
                // It may be another device's.
                remove(self.draft)?;
                return Err(error);
            }
        };
        match acceptance::judge_build(ran.exit, &ran.facts, PlanHeader::read(self.draft)) {
            Ok(accepted) => Ok(Attempt::Accepted(Box::new(AcceptedRun {
                ran,
                header: accepted.header,
                findings: accepted.findings,
            }))),
            Err(rejected) => {
                // Nobody may take it for a plan.
                remove(self.draft)?;
                let name = name_of(&self.request.model);
                Ok(Attempt::Failed { failure: Box::new(self.tool.diagnose(Step::Build, &ran, &rejected, &name)) })
            }
        }
    }

    fn facts(&self, ran: &Ran, header: &PlanHeader, warm: bool) -> serde_json::Value {
        let engine = &ran.facts.engine;
        let cache = &ran.facts.timing_cache;
        serde_json::json!({
            "program": self.tool.installation.trtexec,
            "argv": self.line.to_texts(),
            "version": self.tool.installation.version().to_string(),
            "plan_layout": match header.layout {
                PlanLayout::Framed => "framed",
                PlanLayout::Bare => "bare",
                PlanLayout::Unknown => "unknown",
            },
            "plan_version": header.version_text(),
            "engine_size_mib": engine.size_mib,
            "build_s": engine.built_s.or(engine.generation_s),
            "parse_s": engine.parse_s,
            "peak_host_mib": engine.peak_host_mib,
            "peak_device_mib": engine.peak_device_mib,
            "process_peak_bytes": ran.finished.peak_bytes,
            "process_s": ran.finished.wall.as_secs_f64(),
            "timing_cache": {
                "state": if warm { "warm" } else { "cold" },
                "loaded_bytes": cache.loaded_bytes,
                "saved_bytes": cache.saved_bytes,
                "problem": cache.problem,
            },
            "warnings": ran.facts.warnings.iter().take(MAX_WARNINGS).map(|w| &w.text).collect::<Vec<_>>(),
            "warnings_seen": ran.facts.warnings.seen(),
        })
    }
}

/// Warnings that a card quotes; the attempt's log has them all.
const MAX_WARNINGS: usize = 50;

/// How one process of a build ended.
enum Attempt {
    Accepted(Box<AcceptedRun>),
    Failed { failure: Box<crate::failure::Failure> },
}

struct AcceptedRun {
    ran: Ran,
    header: PlanHeader,
    findings: Vec<Finding>,
}

/// Removes a file that may not be there.
fn remove(path: &Path) -> Result<(), BackendError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(file_error("remove", path, &error)),
        _ => Ok(()),
    }
}
