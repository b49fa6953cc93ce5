//! Processes that load a plan: benchmark, profile, outputs.
//!
//! Mode flags are always said, because their defaults flip in 11.0: a number taken with CUDA graph, spinning and no
//! transfers on 10 is comparable with one of 11 only when both were told so. 11 has no-op forms of the old flags and
//! new ones for the opposite.

use super::{
    build::plugin_files,
    line::{Builder, CommandLine},
    shapes::{self, Shapes},
};
use crate::{
    flags::Capabilities,
    options::{Options, PluginLoading, Runtime, StreamingBudget},
    refusal::Refusal,
    version::Version,
};
use planforge_types::BuildSpec;
use std::path::{Path, PathBuf};

/// How the timed loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mode {
    /// Replay a captured graph rather than enqueue every kernel.
    pub cuda_graph: bool,
    /// Copy inputs in and outputs out in every execution.
    pub transfers: bool,
}

impl Default for Mode {
    /// What versions are compared by.
    fn default() -> Self {
        Self { cuda_graph: true, transfers: false }
    }
}

/// What every process that loads a plan is told.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    pub plan: &'a Path,
    pub plugins: &'a [PathBuf],
    /// The model, from which a plan without weights gets them back.
    pub model: Option<&'a Path>,
    /// Index of the optimization profile.
    pub profile: usize,
    /// Shapes of the dynamic inputs; empty for a plan of fixed shapes.
    pub shapes: &'a Shapes,
    /// Raw little-endian elements by input name; random data where one is missing.
    pub inputs: &'a [(String, PathBuf)],
    /// The installation's lean runtime, for a plan that left its own out.
    pub lean_runtime: Option<&'a Path>,
}

/// A timed run.
#[derive(Clone, Copy, Debug)]
pub struct Benchmark<'a> {
    pub mode: Mode,
    pub warm_up_ms: u32,
    /// At least so many executions ...
    pub iterations: u32,
    /// ... and at least so long.
    pub duration_s: u32,
    /// Parallel inference contexts, 1 for latency.
    pub streams: u32,
    /// Every execution's times, as JSON.
    pub times: Option<&'a Path>,
}

/// A run that is profiled layer by layer, apart from any timing.
#[derive(Clone, Copy, Debug)]
pub struct Profile<'a> {
    pub warm_up_ms: u32,
    pub iterations: u32,
    pub layer_times: &'a Path,
    pub layer_info: &'a Path,
}

/// One execution whose outputs are kept.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    pub outputs: &'a Path,
}

/// The command line that times a plan.
pub fn benchmark(
    capabilities: &Capabilities,
    spec: &BuildSpec,
    run: &Run<'_>,
    benchmark: &Benchmark<'_>,
) -> Result<CommandLine, Refusal> {
    let mut line = load(capabilities, spec, run)?;
    mode(&mut line, benchmark.mode)?;
    counts(&mut line, benchmark.warm_up_ms, benchmark.iterations, benchmark.duration_s)?;
    if benchmark.streams != 1 {
        let flag = if capabilities.has("--infStreams") { "--infStreams" } else { "--streams" };
        line.value("parallel streams", flag, benchmark.streams)?;
    }
    if let Some(times) = benchmark.times {
        line.writes("exporting times", "--exportTimes", times)?;
    }
    Ok(line.finish())
}

/// The command line that profiles a plan's layers.
pub fn profile(
    capabilities: &Capabilities,
    spec: &BuildSpec,
    run: &Run<'_>,
    profile: &Profile<'_>,
) -> Result<CommandLine, Refusal> {
    let mut line = load(capabilities, spec, run)?;
    mode(&mut line, Mode::default())?;
    counts(&mut line, profile.warm_up_ms, profile.iterations, 0)?;
    line.on("profiles", "--dumpProfile")?;
    line.on("layer information", "--dumpLayerInfo")?;
    line.value("detailed profiles", "--profilingVerbosity", "detailed")?;
    line.writes("exporting profiles", "--exportProfile", profile.layer_times)?;
    line.writes("exporting layer information", "--exportLayerInfo", profile.layer_info)?;
    Ok(line.finish())
}

/// The command line that runs a plan once and keeps its outputs. Data is copied in and out, and nothing is replayed.
pub fn outputs(
    capabilities: &Capabilities,
    spec: &BuildSpec,
    run: &Run<'_>,
    outputs: &Outputs<'_>,
) -> Result<CommandLine, Refusal> {
    let mut line = load(capabilities, spec, run)?;
    mode(&mut line, Mode { cuda_graph: false, transfers: true })?;
    counts(&mut line, 0, 1, 0)?;
    line.writes("exporting outputs", "--exportOutput", outputs.outputs)?;
    Ok(line.finish())
}

/// Numbers beyond this are read wrongly by the tool.
const MAX_COUNT: u32 = i32::MAX as u32;

fn counts(line: &mut Builder<'_>, warm_up_ms: u32, iterations: u32, duration_s: u32) -> Result<(), Refusal> {
    line.value("a warm-up", "--warmUp", warm_up_ms.min(MAX_COUNT))?;
    line.value("a number of executions", "--iterations", iterations.min(MAX_COUNT))?;
    line.value("a duration", "--duration", duration_s.min(MAX_COUNT))
}

/// What loading takes whatever is measured.
fn load<'a>(capabilities: &'a Capabilities, spec: &BuildSpec, run: &Run<'_>) -> Result<Builder<'a>, Refusal> {
    let options = Options::parse(&spec.options)?;
    let mut line = Builder::new(capabilities);
    line.reads("loading a plan", "--loadEngine", run.plan)?;
    if spec.version_compatible {
        // Lets the plan's own runtime code run: without it the plan is refused. Its digest was checked before.
        line.on("version-compatible plans", "--versionCompatible")?;
    }
    match options.runtime {
        Runtime::Full => {}
        Runtime::Lean => line.value("option runtime=lean", "--useRuntime", "lean")?,
        Runtime::Dispatch => line.value("option runtime=dispatch", "--useRuntime", "dispatch")?,
    }
    if options.exclude_lean_runtime {
        let Some(lean) = run.lean_runtime else {
            return Err(Refusal::spec(
                "the plan leaves its lean runtime out, and this installation has no libnvinfer_lean.so to load it with",
                "install TensorRT's lean runtime beside trtexec, or leave option exclude_lean_runtime out",
            ));
        };
        line.reads("option exclude_lean_runtime", "--leanDLLPath", lean)?;
    }
    if options.strip_weights.is_some() {
        refit(&mut line, run.model)?;
    }
    if options.plugin_loading != PluginLoading::Serialized {
        plugin_files(&mut line, run.plugins, options.plugin_loading)?;
    }
    if options.weight_streaming {
        line.on("option weight_streaming", "--allowWeightStreaming")?;
    }
    if let Some(budget) = options.weight_streaming_budget {
        let text = match budget {
            StreamingBudget::Automatic => "-1".to_owned(),
            StreamingBudget::Bytes(bytes) => bytes.to_string(),
            StreamingBudget::Percent(percent) => format!("{percent}%"),
        };
        line.value("option weight_streaming_budget", "--weightStreamingBudget", text)?;
    }
    if options.managed_memory {
        line.on("option managed_memory", "--useManagedMemory")?;
    }
    if let Some(strategy) = &options.allocation_strategy {
        line.value("option allocation_strategy", "--allocationStrategy", strategy)?;
    }
    if let Some(ratio) = &options.persistent_cache_ratio {
        line.value("option persistent_cache_ratio", "--persistentCacheRatio", ratio)?;
    }
    if spec.profiles.len() > 1 {
        line.value("several optimization profiles", "--useProfile", run.profile)?;
    }
    let shapes = shapes::text(run.shapes)?;
    if !shapes.is_empty() {
        line.value("dynamic shapes", "--shapes", shapes)?;
    }
    inputs(&mut line, run.inputs)?;
    Ok(line)
}

fn refit(line: &mut Builder<'_>, model: Option<&Path>) -> Result<(), Refusal> {
    let what = "running a plan whose weights were stripped";
    if !line.has("--refitFromOnnx") {
        let version = line.capabilities.version();
        return Err(Refusal::version(what, version, "10.14 and newer do"));
    }
    let Some(model) = model else {
        return Err(Refusal::spec("a plan whose weights were stripped needs its model to run", "give the model too"));
    };
    line.on(what, "--refit")?;
    line.reads(what, "--refitFromOnnx", model)
}

fn mode(line: &mut Builder<'_>, mode: Mode) -> Result<(), Refusal> {
    let since_11 = line.capabilities.version() >= Version::new(11, 0, 0);
    line.on_or_default("CUDA graphs", mode.cuda_graph, "--useCudaGraph", "--noCudaGraph", since_11)?;
    line.on_or_default("spinning", true, "--useSpinWait", "--noSpinWait", since_11)?;
    line.on_or_default(
        "runs without transfers",
        !mode.transfers,
        "--noDataTransfers",
        "--includeDataTransfers",
        since_11,
    )?;
    line.on_or_default("a separate profiling run", true, "--separateProfileRun", "", since_11)
}

fn inputs(line: &mut Builder<'_>, inputs: &[(String, PathBuf)]) -> Result<(), Refusal> {
    if inputs.is_empty() {
        return Ok(());
    }
    let mut items = Vec::new();
    for (name, path) in inputs {
        shapes::tensor_name(name)?;
        let refuse = |problem| Refusal::Path { path: path.display().to_string(), problem };
        let text = path.to_str().ok_or_else(|| refuse("it is no text"))?;
        if text.is_empty() || text.contains([',', '\'', ':']) || text.contains(char::is_control) {
            return Err(refuse("it is empty or holds a comma, a colon or a quote"));
        }
        line.also_reads(path);
        items.push(format!("{name}:{text}"));
    }
    line.value("input data", "--loadInputs", items.join(","))
}
