//! The process that compiles a model to a plan and runs nothing.

use super::{
    line::{Builder, CommandLine},
    precision,
    shapes::{self, Point, Shapes},
};
use crate::{
    flags::Capabilities,
    model::ModelFacts,
    options::{IoFormat, LayerType, Options, PluginLoading, Runtime, Strip, Switch},
    refusal::Refusal,
    version::Version,
};
use planforge_types::{BuildSpec, OptimizationProfile, Precision};
use std::path::{Path, PathBuf};

/// Files of one build. Relative names are relative to the folder the process runs in.
#[derive(Clone, Copy, Debug)]
pub struct BuildFiles<'a> {
    pub model: &'a Path,
    /// Written; still to be checked before anybody believes it.
    pub plan: &'a Path,
    /// This build's own copy, updated in place.
    pub timing_cache: Option<&'a Path>,
    pub calibration: Option<&'a Path>,
    pub plugins: &'a [PathBuf],
}

/// The command line that builds `spec`. With `model`, what depends on the model's inputs and types is checked, and
/// shapes are given only for inputs that vary; without it every input of the profiles is named.
pub fn build(
    capabilities: &Capabilities,
    spec: &BuildSpec,
    files: &BuildFiles<'_>,
    model: Option<&ModelFacts>,
) -> Result<CommandLine, Refusal> {
    let options = Options::parse(&spec.options)?;
    consistent(capabilities, spec, &options, model)?;
    let mut line = Builder::new(capabilities);
    line.reads("ONNX models", "--onnx", files.model)?;
    line.writes("saving the plan", "--saveEngine", files.plan)?;
    let build_only = if capabilities.has("--skipInference") { "--skipInference" } else { "--buildOnly" };
    line.on("building without running", build_only)?;
    precision::flags(&mut line, spec, &options, model)?;
    profiles(&mut line, spec, model)?;
    memory_pools(&mut line, spec, &options)?;
    level(&mut line, spec)?;
    compatibility(&mut line, spec, &options)?;
    weights(&mut line, &options)?;
    tactics(&mut line, &options)?;
    formats(&mut line, &options, model)?;
    layers(&mut line, &options)?;
    caches(&mut line, files, &options)?;
    calibration(&mut line, spec, files, &options)?;
    plugins(&mut line, files.plugins, options.plugin_loading, spec)?;
    let verbosity = options.profiling_verbosity.as_deref().unwrap_or("detailed");
    line.value("profiling verbosity", "--profilingVerbosity", verbosity)?;
    Ok(line.finish())
}

/// Combinations that the tool rejects, or takes to mean something else.
fn consistent(
    capabilities: &Capabilities,
    spec: &BuildSpec,
    options: &Options,
    model: Option<&ModelFacts>,
) -> Result<(), Refusal> {
    let weak = !capabilities.strongly_typed_only() && !options.strongly_typed;
    // Said before anything about the model's types, which no cache would change.
    if spec.calibration.is_some() && !capabilities.has("--calib") {
        return Err(Refusal::flag("calibration caches (--calib)", capabilities.version(), "--calib"));
    }
    if let Some(threads) = spec.threads {
        return Err(Refusal::spec(
            format!("the spec asks for {threads} CPU threads, but TensorRT builds for GPUs"),
            "leave the threads out",
        ));
    }
    if !weak && options.quantized_fallback != crate::options::Fallback::Fp16 {
        return Err(Refusal::spec(
            "option quantized_fallback means nothing to a strongly typed network: the model says every type",
            "leave it out",
        ));
    }
    if spec.approximate_gelu {
        return Err(Refusal::spec(
            "an approximate GELU is for native engines of NVIDIA devices; TensorRT chooses its own",
            "leave --approximate-gelu out, or ask with --toolchain native",
        ));
    }
    if spec.strict {
        return Err(Refusal::spec(
            "strictness about declared outputs is for native engines; TensorRT does not compare them",
            "leave --strict out, or ask with --toolchain native",
        ));
    }
    if options.weight_streaming && weak {
        return Err(Refusal::spec(
            "weight streaming needs a strongly typed network",
            "add option strongly_typed=true and give a typed model",
        ));
    }
    if options.int4 && !weak {
        return Err(Refusal::spec(
            "option int4 means nothing to a strongly typed network: the model says every type",
            "leave it out; int4 Q/DQ nodes of the model are taken as they are",
        ));
    }
    if options.plugin_loading == PluginLoading::Serialized && !spec.version_compatible {
        return Err(Refusal::spec(
            "option plugin_loading=serialized is for version-compatible plans, and this spec asks for none",
            "ask for a version-compatible plan, or load the plugins with plugin_loading=dynamic",
        ));
    }
    if options.plugin_loading != PluginLoading::Static && spec.plugins.is_empty() {
        return Err(Refusal::spec(
            "option plugin_loading has nothing to load: the spec names no plugin library",
            "name the libraries, or leave it out",
        ));
    }
    if options.runtime != Runtime::Full {
        if !spec.version_compatible {
            return Err(Refusal::spec(
                "the lean and the dispatch runtime load version-compatible plans, and this spec asks for none",
                "ask for a version-compatible plan, or leave option runtime out",
            ));
        }
        if !spec.plugins.is_empty() && options.plugin_loading != PluginLoading::Serialized {
            return Err(Refusal::spec(
                "plugin libraries are loaded by the full runtime alone",
                "leave option runtime out, or write the plugins into the plan with plugin_loading=serialized",
            ));
        }
    }
    if options.plugin_instance_norm
        && (spec.version_compatible || spec.hardware_compatibility.as_deref() == Some("ampere+"))
    {
        return Err(Refusal::spec(
            "option plugin_instance_norm excludes version-compatible and ampere+ plans",
            "leave one of the two out",
        ));
    }
    if options.exclude_lean_runtime && !spec.version_compatible {
        return Err(Refusal::spec(
            "option exclude_lean_runtime is for version-compatible plans, and this spec asks for none",
            "ask for a version-compatible plan, or leave it out",
        ));
    }
    if spec.calibration.is_some() && !matches!(spec.precision, Precision::Int8 | Precision::Best) {
        return Err(Refusal::spec(
            format!("a calibration cache means nothing to precision {}", precision::name(spec.precision)),
            "ask for precision int8 or best, or leave the calibration out",
        ));
    }
    let calibrates = [
        ("calibration_profile", options.calibration_profile.is_some()),
        ("calibration_shapes", !options.calibration_shapes.inputs.is_empty()),
    ];
    if let Some((name, _)) = calibrates.iter().find(|(_, given)| *given && spec.calibration.is_none()) {
        return Err(Refusal::spec(
            format!("option {name} is for calibrated engines, and this spec names no calibration cache"),
            "give the cache with --calibration, or leave it out",
        ));
    }
    if options.calibration_profile.is_some_and(|index| index as usize >= spec.profiles.len().max(1)) {
        return Err(Refusal::spec(
            "option calibration_profile names an optimization profile that the spec does not have",
            "profiles count from 0",
        ));
    }
    let faster_shapes_off = options.preview.iter().any(|s| s.name == "fasterDynamicShapes0805" && !s.on);
    let quantized = matches!(spec.precision, Precision::Int8 | Precision::Fp8);
    let fallback = quantized && options.quantized_fallback == crate::options::Fallback::Bf16;
    if faster_shapes_off && (spec.precision == Precision::Bf16 || fallback) {
        return Err(Refusal::spec(
            "bf16 needs the preview feature fasterDynamicShapes0805 that the spec turns off",
            "leave the preview option out",
        ));
    }
    // Where there is bf16, the tool drops it from best without a word.
    if faster_shapes_off && spec.precision == Precision::Best && capabilities.has("--bf16") {
        return Err(Refusal::spec(
            "precision best would do without bf16, which needs the preview feature fasterDynamicShapes0805 that the spec \
             turns off",
            "leave the preview option out, or ask for fp16",
        ));
    }
    // Without either, the tool makes up ranges: a fast engine that computes nonsense.
    if let Some(model) = model
        && weak
        && spec.precision == Precision::Int8
        && spec.calibration.is_none()
        && !model.quantizes_to.contains(&crate::model::ModelType::Int8)
    {
        return Err(Refusal::model(
            "int8 needs scales, and there is neither a calibration cache nor a Q/DQ node in the model",
            "give a calibration cache with --calibration, or a model with Q/DQ nodes",
        ));
    }
    Ok(())
}

fn profiles(line: &mut Builder<'_>, spec: &BuildSpec, model: Option<&ModelFacts>) -> Result<(), Refusal> {
    if let Some(model) = model {
        shapes::check_profiles(&spec.profiles, model)?;
    }
    let varying: Vec<_> = spec.profiles.iter().map(|profile| shapes::varying(profile, model)).collect();
    if varying.iter().all(|profile| profile.inputs.is_empty()) {
        return match varying.len() {
            0 | 1 => Ok(()),
            count => Err(Refusal::spec(
                format!("the spec has {count} optimization profiles for a model without dynamic inputs"),
                "leave the shapes out, or export the model with dynamic dimensions",
            )),
        };
    }
    if let [only] = &varying[..] {
        return profile_shapes(line, only);
    }
    for (index, profile) in varying.iter().enumerate() {
        line.value("several optimization profiles", "--profile", index)?;
        profile_shapes(line, profile)?;
    }
    Ok(())
}

fn profile_shapes(line: &mut Builder<'_>, profile: &OptimizationProfile) -> Result<(), Refusal> {
    let at = |point: Point| -> Result<String, Refusal> {
        let shapes: Shapes = point.shapes(profile);
        shapes::text(&shapes)
    };
    line.value("dynamic shapes", "--minShapes", at(Point::Min)?)?;
    line.value("dynamic shapes", "--optShapes", at(Point::Opt)?)?;
    line.value("dynamic shapes", "--maxShapes", at(Point::Max)?)
}

/// Sizes are plain MiB: a suffix means something else to every generation of the tool.
fn memory_pools(line: &mut Builder<'_>, spec: &BuildSpec, options: &Options) -> Result<(), Refusal> {
    let mut pools = Vec::new();
    pools.extend(spec.workspace_mib.map(|mib| format!("workspace:{mib}")));
    if let Some(kib) = options.tactic_shared_memory_kib {
        since(line, "option tactic_shared_memory_kib", Version::new(10, 1, 0))?;
        pools.push(format!("tacticSharedMem:{}", kib as f64 / 1024.0));
    }
    if pools.is_empty() {
        return Ok(());
    }
    line.value("limits of memory pools", "--memPoolSize", pools.join(","))
}

/// The optimization level every version has when it has none to set.
const USUAL_LEVEL: u8 = 3;

fn level(line: &mut Builder<'_>, spec: &BuildSpec) -> Result<(), Refusal> {
    let level = spec.optimization_level.0;
    if level == USUAL_LEVEL && !line.has("--builderOptimizationLevel") {
        return Ok(());
    }
    line.value(&format!("optimization level {level}"), "--builderOptimizationLevel", level)
}

fn compatibility(line: &mut Builder<'_>, spec: &BuildSpec, options: &Options) -> Result<(), Refusal> {
    match spec.hardware_compatibility.as_deref() {
        None => {}
        Some("same_compute_capability") => {
            since(line, "hardware compatibility same_compute_capability", Version::new(10, 9, 0))?;
            line.value("hardware compatibility", "--hardwareCompatibilityLevel", "sameComputeCapability")?;
        }
        Some(level) => {
            line.value(&format!("hardware compatibility {level}"), "--hardwareCompatibilityLevel", level)?;
        }
    }
    if spec.version_compatible {
        line.on("version-compatible plans", "--versionCompatible")?;
    }
    if options.exclude_lean_runtime {
        line.on("option exclude_lean_runtime", "--excludeLeanRuntime")?;
    }
    if options.plugin_instance_norm {
        line.on("option plugin_instance_norm", "--pluginInstanceNorm")?;
    }
    Ok(())
}

fn weights(line: &mut Builder<'_>, options: &Options) -> Result<(), Refusal> {
    if options.refit {
        line.on("option refit", "--refit")?;
    }
    match options.strip_weights {
        None => {}
        Some(Strip::Identical) => line.on("option strip_weights=identical", "--stripWeights")?,
        Some(Strip::All) => line.on("option strip_weights=all", "--stripAllWeights")?,
    }
    if options.weight_streaming {
        line.on("option weight_streaming", "--allowWeightStreaming")?;
    }
    Ok(())
}

fn tactics(line: &mut Builder<'_>, options: &Options) -> Result<(), Refusal> {
    if !options.tactic_sources.is_empty() {
        known_names(line, "tactic source", &options.tactic_sources, TACTIC_SOURCES)?;
        line.value("option tactic_sources", "--tacticSources", switches(&options.tactic_sources))?;
    }
    if !options.preview.is_empty() {
        known_names(line, "preview feature", &options.preview, PREVIEW_FEATURES)?;
        line.value("option preview", "--preview", switches(&options.preview))?;
    }
    let numbers = [
        ("avg_timing", "--avgTiming", options.avg_timing),
        ("max_tactics", "--maxTactics", options.max_tactics),
        ("tiling_level", "--tilingOptimizationLevel", options.tiling_level),
        ("l2_limit_for_tiling_bytes", "--l2LimitForTiling", options.l2_limit_for_tiling_bytes),
        ("max_aux_streams", "--maxAuxStreams", options.max_aux_streams),
    ];
    for (name, flag, number) in numbers {
        if let Some(number) = number {
            line.value(&format!("option {name}"), flag, number)?;
        }
    }
    if let Some(mode) = &options.sparsity {
        line.value("option sparsity", "--sparsity", mode)?;
    }
    if options.heuristic {
        line.on("option heuristic", "--heuristic")?;
    }
    Ok(())
}

/// A word with the first and last version that take it.
type Word = (&'static str, Version, Option<Version>);

const V8_2: Version = Version::new(8, 2, 0);
const LAST_9: Version = Version::new(9, 99, 99);
const LAST_10: Version = Version::new(10, 99, 99);

const TACTIC_SOURCES: &[Word] = &[
    ("CUBLAS", V8_2, Some(LAST_10)),
    ("CUBLAS_LT", V8_2, Some(LAST_10)),
    ("CUDNN", V8_2, Some(LAST_10)),
    ("EDGE_MASK_CONVOLUTIONS", Version::new(8, 4, 0), None),
    ("JIT_CONVOLUTIONS", Version::new(8, 5, 0), None),
];

const PREVIEW_FEATURES: &[Word] = &[
    ("fasterDynamicShapes0805", Version::new(8, 5, 0), Some(LAST_9)),
    ("disableExternalTacticSourcesForCore0805", Version::new(8, 5, 0), Some(LAST_9)),
    ("profileSharing0806", Version::new(8, 6, 0), Some(LAST_10)),
    ("aliasedPluginIO1003", Version::new(10, 3, 0), None),
    ("runtimeActivationResize", Version::new(10, 10, 0), None),
    ("multiDeviceRuntime", Version::new(10, 16, 0), Some(LAST_10)),
];

const ELEMENTS: &[Word] = &[
    ("fp32", V8_2, None),
    ("fp16", V8_2, None),
    ("int32", V8_2, None),
    ("int8", V8_2, None),
    ("fp8", Version::new(8, 6, 0), None),
    ("bf16", Version::new(9, 1, 0), None),
    ("bool", Version::new(9, 1, 0), None),
    ("int64", Version::new(9, 1, 0), None),
    ("uint8", Version::new(9, 1, 0), None),
    ("int4", Version::new(10, 1, 0), None),
];

const LAYOUTS: &[Word] = &[
    ("chw", V8_2, None),
    ("chw2", V8_2, None),
    ("chw4", V8_2, None),
    ("hwc8", V8_2, None),
    ("chw16", V8_2, None),
    ("chw32", V8_2, None),
    ("dhwc8", V8_2, None),
    ("hwc", V8_2, None),
    ("cdhw32", Version::new(8, 4, 0), None),
    ("dhwc", Version::new(8, 6, 0), None),
    ("hwc16", Version::new(10, 10, 0), None),
];

fn known_names(line: &Builder<'_>, kind: &str, switches: &[Switch], words: &[Word]) -> Result<(), Refusal> {
    switches.iter().try_for_each(|switch| known(line, kind, &switch.name, words))
}

fn known(line: &Builder<'_>, kind: &str, name: &str, words: &[Word]) -> Result<(), Refusal> {
    let version = line.capabilities.version();
    let release = version.release();
    let in_version = |word: &&Word| word.1 <= release && word.2.is_none_or(|until| release <= until);
    match words.iter().find(|word| word.0 == name) {
        Some(word) if in_version(&word) => Ok(()),
        Some((_, since, until)) => {
            let able = match until {
                Some(until) => format!("{}.{} to {}.x do", since.major, since.minor, until.major),
                None => format!("{}.{} and newer do", since.major, since.minor),
            };
            Err(Refusal::version(format!("{kind} {name}"), version, able))
        }
        None => {
            let known: Vec<_> = words.iter().filter(in_version).map(|word| word.0).collect();
            Err(Refusal::spec(format!("'{name}' is no {kind}"), format!("TensorRT {version} has {}", known.join(", "))))
        }
    }
}

/// Refuses `what` before `first`.
fn since(line: &Builder<'_>, what: &str, first: Version) -> Result<(), Refusal> {
    let version = line.capabilities.version();
    if version.release() >= first {
        return Ok(());
    }
    Err(Refusal::version(what, version, format!("{}.{} and newer do", first.major, first.minor)))
}

fn switches(switches: &[Switch]) -> String {
    let one = |s: &Switch| format!("{}{}", if s.on { '+' } else { '-' }, s.name);
    switches.iter().map(one).collect::<Vec<_>>().join(",")
}

fn formats(line: &mut Builder<'_>, options: &Options, model: Option<&ModelFacts>) -> Result<(), Refusal> {
    let sides = [
        ("input_formats", "--inputIOFormats", &options.input_formats, model.map(|m| &m.inputs)),
        ("output_formats", "--outputIOFormats", &options.output_formats, model.map(|m| &m.outputs)),
    ];
    for (name, flag, formats, edges) in sides {
        if formats.is_empty() {
            continue;
        }
        if let Some(edges) = edges
            && formats.len() != 1
            && formats.len() != edges.len()
        {
            return Err(Refusal::option(
                name,
                format!("it has {} items, but the model has {}", formats.len(), edges.len()),
                "give one item for all, or one for each in the model's order",
            ));
        }
        let mut texts = Vec::new();
        for (index, format) in formats.iter().enumerate() {
            let typed = edges.and_then(|edges| edges.get(index)).and_then(|edge| edge.element);
            texts.push(io_format(line, name, format, typed)?);
        }
        line.value(&format!("option {name}"), flag, texts.join(","))?;
    }
    Ok(())
}

/// One item; `typed` is the model's own type where it is known. Each generation rejects the other's form.
fn io_format(line: &Builder<'_>, name: &str, format: &IoFormat, typed: Option<&str>) -> Result<String, Refusal> {
    for layout in &format.layouts {
        known(line, "memory layout", layout, LAYOUTS)?;
    }
    let layouts = format.layouts.join("+");
    let element = format.element.as_deref();
    if line.capabilities.strongly_typed_only() {
        return match (element, typed) {
            (Some(asked), Some(typed)) if asked != typed => Err(Refusal::option(
                name,
                format!(
                    "it asks for {asked}, but the model has {typed} there, and TensorRT 11 takes types from the model"
                ),
                "convert the model, or leave the type out",
            )),
            _ => Ok(layouts),
        };
    }
    let Some(element) = element.or(typed) else {
        return Err(Refusal::option(name, "it names no element type", "write TYPE:LAYOUT, such as fp16:chw"));
    };
    known(line, "element type", element, ELEMENTS)?;
    Ok(format!("{element}:{layouts}"))
}

fn layers(line: &mut Builder<'_>, options: &Options) -> Result<(), Refusal> {
    let lists = [
        ("layer_precisions", "--layerPrecisions", &options.layer_precisions),
        ("layer_output_types", "--layerOutputTypes", &options.layer_output_types),
    ];
    let mut any = false;
    for (name, flag, layers) in lists {
        if layers.is_empty() {
            continue;
        }
        any = true;
        for element in layers.iter().flat_map(|layer| &layer.types) {
            known(line, "element type", element, ELEMENTS)?;
        }
        let one = |layer: &LayerType| format!("{}:{}", layer.layer, layer.types.join("+"));
        let text = layers.iter().map(one).collect::<Vec<_>>().join(",");
        line.value(&format!("option {name}"), flag, text)?;
    }
    if !options.layers_on_gpu.is_empty() {
        let text = options.layers_on_gpu.iter().map(|layer| format!("{layer}:GPU")).collect::<Vec<_>>().join(",");
        line.value("option layer_device_types", "--layerDeviceTypes", text)?;
    }
    if any {
        // Without it the tool reads layer types and ignores them.
        let mode = options.precision_constraints.as_deref().unwrap_or("obey");
        line.value("layer types", "--precisionConstraints", mode)?;
    }
    Ok(())
}

fn caches(line: &mut Builder<'_>, files: &BuildFiles<'_>, options: &Options) -> Result<(), Refusal> {
    if options.timing_cache_off {
        line.on("option timing_cache=off", "--noBuilderCache")?;
    } else if let Some(cache) = files.timing_cache {
        line.writes("timing caches", "--timingCacheFile", cache)?;
    }
    if options.error_on_timing_cache_miss {
        line.on("option error_on_timing_cache_miss", "--errorOnTimingCacheMiss")?;
    }
    if options.no_compilation_cache {
        line.on("option no_compilation_cache", "--noCompilationCache")?;
    }
    Ok(())
}

fn calibration(
    line: &mut Builder<'_>,
    spec: &BuildSpec,
    files: &BuildFiles<'_>,
    options: &Options,
) -> Result<(), Refusal> {
    let file = match (&spec.calibration, files.calibration) {
        (None, _) => None,
        (Some(_), Some(file)) => Some(file),
        (Some(digest), None) => {
            return Err(Refusal::spec(
                format!("the calibration cache {digest} that the spec names is not here"),
                "give it with the request",
            ));
        }
    };
    if let Some(file) = file {
        line.reads("calibration caches", "--calib", file)?;
    }
    if !options.calibration_shapes.inputs.is_empty() {
        let flags =
            [(Point::Min, "--minShapesCalib"), (Point::Opt, "--optShapesCalib"), (Point::Max, "--maxShapesCalib")];
        for (point, flag) in flags {
            line.value("option calibration_shapes", flag, shapes::text(&point.shapes(&options.calibration_shapes))?)?;
        }
    }
    if let Some(index) = options.calibration_profile {
        line.value("option calibration_profile", "--calibProfile", index)?;
    }
    Ok(())
}

/// Plugin libraries of a build.
fn plugins(line: &mut Builder<'_>, files: &[PathBuf], loading: PluginLoading, spec: &BuildSpec) -> Result<(), Refusal> {
    if files.len() != spec.plugins.len() {
        return Err(Refusal::spec(
            format!("the spec names {} plugin libraries, {} are here", spec.plugins.len(), files.len()),
            "give them with the request",
        ));
    }
    plugin_files(line, files, loading)?;
    if loading == PluginLoading::Serialized {
        for file in files {
            line.reads("option plugin_loading=serialized", "--setPluginsToSerialize", file)?;
        }
    }
    Ok(())
}

/// Libraries that the process loads. Up to 8.5 there is one way, which newer versions deprecate under its old name.
pub(super) fn plugin_files(line: &mut Builder<'_>, files: &[PathBuf], loading: PluginLoading) -> Result<(), Refusal> {
    let flag = match loading {
        PluginLoading::Static if line.has("--staticPlugins") => "--staticPlugins",
        PluginLoading::Static => "--plugins",
        PluginLoading::Dynamic | PluginLoading::Serialized => "--dynamicPlugins",
    };
    files.iter().try_for_each(|file| line.reads("plugin libraries", flag, file))
}
