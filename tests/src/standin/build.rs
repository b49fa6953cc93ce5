//! From model to plan.

use super::{
    Run, Stop, banner, cache,
    console::g6,
    failures,
    model::{self, Edge, Seen},
    options::Range,
    plan::{Binding, Plan},
    scenario::{Behaviour, Gpu, Phase},
    version::Version,
};
use planforge_import::supported_operators;
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const MIB: f64 = 1024.0 * 1024.0;

/// Builds the plan and saves it where it is asked for.
pub fn build(run: &mut Run, gpu: &Gpu, folder: &Path) -> Result<Plan, Stop> {
    let version = run.version;
    let path = run.options.value("onnx").unwrap_or("").to_owned();
    run.console.info("Start parsing network model.");
    let read = planforge_onnx::Model::open(Path::new(&path)).map_err(|e| e.to_string());
    let bytes = fs::read(&path).map_err(|e| e.to_string());
    let (opened, bytes) = match (read, bytes) {
        (Ok(opened), Ok(bytes)) => (opened, bytes),
        (Err(reason), _) | (_, Err(reason)) => {
            run.console.error(&format!("[TRT] ModelImporter.cpp: could not open or read {path}: {reason}"));
            return Err(failures::parsing_failed(&run.console, version));
        }
    };
    let seen = model::see(&opened);
    let behaviour = run.scenario.rule(&seen.graph, Phase::Build, folder);
    parse(run, &seen, &path, behaviour.as_ref())?;
    let profiles = profiles(run, &seen)?;
    let timed = run.timing_cache(gpu)?;
    if let Some(behaviour) = &behaviour {
        go_wrong(run, gpu, behaviour)?;
    }
    run.console.library(&format!(
        "Detected {} inputs and {} output network tensors.",
        seen.inputs.len(),
        seen.outputs.len()
    ));
    let weights: u64 = seen.layers.iter().map(|layer| layer.weights).sum();
    run.console.library("Total Host Persistent Memory: 18896 bytes");
    run.console.library("Total Device Persistent Memory: 0 bytes");
    run.console.library("Max Scratch Memory: 4608 bytes");
    run.console.library("Total Activation Memory: 125440 bytes");
    run.console.library(&format!("Total Weights Memory: {} bytes", weights * 4));
    for name in seen.layers.iter().map(|layer| &layer.name) {
        run.console.verbose(&format!("[TRT] Engine layer: {name}"));
    }
    let plan = Plan {
        version,
        compute_capability: gpu.compute_capability,
        device: gpu.name.clone(),
        graph: seen.graph.clone(),
        inputs: bindings(run, &seen.inputs, "inputIOFormats"),
        outputs: bindings(run, &seen.outputs, "outputIOFormats"),
        layers: seen.layers.clone(),
        profiles,
        detailed: banner::detailed(run),
        precision: precision(run),
        version_compatible: run.options.has("versionCompatible") || run.options.has("vc"),
        hardware_compatibility: run.options.value("hardwareCompatibilityLevel").unwrap_or("none").to_owned(),
        build_seed: build_seed(),
        model: bytes,
    };
    let encoded = plan.encode();
    let names = || seen.layers.iter().map(|layer| format!("{} {}", seen.graph, layer.name));
    let warm = timed.as_ref().is_some_and(|entries| names().all(|name| entries.contains(&name)));
    let timing = &run.scenario.timing;
    let seconds = if warm { timing.warm_build_s } else { timing.build_s };
    run.console.library(&format!("Engine generation completed in {} seconds.", g6(seconds * 0.9)));
    if version.major() >= 10 {
        run.console.info(&format!("Created engine with size: {} MiB", g6(encoded.len() as f64 / MIB)));
    }
    if let Some(file) = run.options.value("saveEngine")
        && let Err(error) = fs::write(file, &encoded)
    {
        run.console.error(&format!("Could not open or write engine file {file}: {error}"));
        run.console.error("Saving engine to file failed.");
        return Err(failures::build_failed(&run.console, false));
    }
    if let (Some(mut entries), Some(file)) = (timed, run.options.value("timingCacheFile")) {
        entries.extend(names());
        cache::save(&run.console, version, gpu, file, &entries);
    }
    run.console.info(&format!("Engine built in {} sec.", g6(seconds)));
    Ok(plan)
}

/// The parser's part: its lines, and what it refuses.
fn parse(run: &Run, seen: &Seen, path: &str, behaviour: Option<&Behaviour>) -> Result<(), Stop> {
    let (console, version) = (&run.console, run.version);
    console.library("----------------------------------------------------------------");
    console.library(&format!("Input filename:   {path}"));
    console.library("ONNX IR version:  0.0.8");
    console.library(&format!("Opset version:    {}", seen.opset));
    console.library(&format!("Producer name:    {}", seen.producer));
    console.library("----------------------------------------------------------------");
    match behaviour {
        Some(Behaviour::ParseError { node }) => {
            let index = seen.nodes.iter().position(|(name, _, _)| name == node).unwrap_or(0);
            let reason = "onnxOpImporters.cpp:1234 In function importConv:\n[6] Invalid Node - the kernel's rank is not that of the input";
            return Err(failures::parse_error(console, version, seen, index, reason));
        }
        Some(Behaviour::UnsupportedOperator { operator }) => {
            return Err(failures::unsupported_operator(console, version, seen, operator));
        }
        _ => {}
    }
    let known = supported_operators();
    if let Some((_, operator, _)) = seen.nodes.iter().find(|(_, operator, _)| !known.contains(&operator.as_str())) {
        return Err(failures::unsupported_operator(console, version, seen, operator));
    }
    match version >= Version::new(8, 6, 0) {
        true => console.info(&format!("{} Parse time: 0.018345", failures::finished_parsing(version))),
        false => console.info(failures::finished_parsing(version)),
    }
    Ok(())
}

/// The shapes of every profile, every input; what the network does not fix and nobody gives becomes 1.
fn profiles(run: &Run, seen: &Seen) -> Result<Vec<BTreeMap<String, Range>>, Stop> {
    let (console, options) = (&run.console, &run.options);
    let setup_failed = || {
        console.error("Network And Config setup failed");
        failures::build_failed(console, true)
    };
    let dynamic = |edge: &Edge| edge.dims.iter().any(|size| *size < 0);
    let mut given = options.profiles.clone();
    if given.is_empty() && !options.shapes.is_empty() {
        let fixed = |(name, dims): (&String, &Vec<i64>)| (name.clone(), [dims.clone(), dims.clone(), dims.clone()]);
        given.push(options.shapes.iter().map(fixed).collect());
    }
    if given.iter().any(|profile| !profile.is_empty()) && !seen.inputs.iter().any(dynamic) {
        console.error("Static model does not take explicit shapes since the shape of inference tensors will be determined by the model itself");
        return Err(setup_failed());
    }
    for name in given.iter().flat_map(BTreeMap::keys) {
        if !seen.inputs.iter().any(|edge| edge.name == *name) {
            console.error(&format!(
                "Cannot find input tensor with name \"{name}\" in the network inputs! Please make sure the input tensor names are correct."
            ));
            return Err(setup_failed());
        }
    }
    if given.is_empty() {
        given.push(BTreeMap::new());
    }
    for (index, profile) in given.iter_mut().enumerate() {
        for edge in &seen.inputs {
            if profile.contains_key(&edge.name) {
                let [min, opt, max] = &profile[&edge.name];
                let fits = |dims: &Vec<i64>| {
                    dims.len() == edge.dims.len() && dims.iter().zip(&edge.dims).all(|(d, e)| *e < 0 || d == e)
                };
                if ![min, opt, max].into_iter().all(fits) {
                    let place = ("profile.cpp::setDimensions::119", "IOptimizationProfile::setDimensions");
                    let text =
                        format!("Parameter check failed: the shapes of {} do not fit {:?}", edge.name, edge.dims);
                    failures::library_error(console, run.version, 3, place, "API Usage Error", &text);
                    return Err(setup_failed());
                }
            } else {
                let dims: Vec<i64> = edge.dims.iter().map(|size| if *size < 0 { 1 } else { *size }).collect();
                if dynamic(edge) {
                    console.warning(&format!(
                        "Dynamic dimensions required for input: {}, but no shapes were provided. Automatically overriding shape to: {}",
                        edge.name,
                        dims_text(&dims)
                    ));
                }
                profile.insert(edge.name.clone(), [dims.clone(), dims.clone(), dims]);
            }
            if dynamic(edge) {
                let [min, opt, max] = profile[&edge.name].each_ref().map(|dims| dims_text(dims));
                console.info(&format!(
                    "Set shape of input tensor {} for optimization profile {index} to: MIN={min} OPT={opt} MAX={max}",
                    edge.name
                ));
            }
        }
    }
    Ok(given)
}

/// `1x3x224x224`.
pub fn dims_text(dims: &[i64]) -> String {
    dims.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
}

/// What goes wrong while the builder works.
fn go_wrong(run: &Run, gpu: &Gpu, behaviour: &Behaviour) -> Result<(), Stop> {
    let (console, version) = (&run.console, run.version);
    match behaviour {
        Behaviour::NoImplementation { node } => Err(failures::no_implementation(console, version, node)),
        Behaviour::NoImplementationForMemory { node, requested_mib } => {
            failures::tactics_lack_memory(console, version, gpu, *requested_mib);
            Err(failures::no_implementation(console, version, node))
        }
        Behaviour::OutOfMemory { requested_bytes } => {
            Err(failures::out_of_memory(console, version, *requested_bytes, true))
        }
        Behaviour::CalibrationMissing => Err(failures::calibration_missing(console, version)),
        Behaviour::Fails { text } => {
            console.error(text);
            Err(failures::build_failed(console, true))
        }
        Behaviour::Hang => failures::hang(),
        Behaviour::Slow { ms } => {
            std::thread::park_timeout(Duration::from_millis(*ms));
            Ok(())
        }
        Behaviour::Crash => Err(crash()),
        Behaviour::HugeLog { bytes } => {
            failures::flood(*bytes);
            Ok(())
        }
        Behaviour::EmptyEngine => {
            console.error(
                "Error[1]: Unexpected exception KTM assertion failure:\n    timingModel.cpp:65  shader != nullptr",
            );
            if let Some(file) = run.options.value("saveEngine") {
                // What the builder's stream leaves when it fails.
                let _ = fs::write(file, b"");
            }
            console.info("Created engine with size: 0 MiB");
            console.error("Assertion failure: false && \"Attempting to access an empty engine!\"");
            Err(Stop::Dead)
        }
        _ => Ok(()),
    }
}

/// Ends this process by a signal.
fn crash() -> Stop {
    std::process::abort()
}

/// Element types of the bindings: 64-bit integers are narrowed up to 9.x, formats asked for come last.
fn bindings(run: &Run, edges: &[Edge], option: &str) -> Vec<Binding> {
    let formats: Vec<&str> = run.options.value(option).map(|text| text.split(',').collect()).unwrap_or_default();
    let kind = |index: usize, edge: &Edge| {
        let asked = formats.get(index).or(formats.first().filter(|_| formats.len() == 1));
        if let Some((kind, _)) = asked.and_then(|text| text.split_once(':')) {
            return kind.to_owned();
        }
        match edge.declared.as_str() {
            "int64" if run.version.major() < 10 => "int32".into(),
            declared => declared.to_owned(),
        }
    };
    edges.iter().enumerate().map(|(i, edge)| Binding { edge: edge.clone(), kind: kind(i, edge) }).collect()
}

fn precision(run: &Run) -> String {
    let named = ["best", "fp8", "int8", "bf16", "fp16"].into_iter().find(|name| run.options.has(name));
    named.unwrap_or(if run.options.has("noTF32") { "fp32" } else { "tf32" }).to_owned()
}

/// Two builds never agree.
fn build_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    now ^ (u64::from(std::process::id()) << 40)
}

impl Run {
    /// The timing cache that this build reads; `None` when there is none to keep.
    fn timing_cache(&self, gpu: &Gpu) -> Result<Option<cache::Entries>, Stop> {
        match self.options.value("timingCacheFile").filter(|_| !self.options.has("noBuilderCache")) {
            Some(file) => cache::load(&self.console, self.version, gpu, file).map(Some),
            None => {
                self.console
                    .library("Local timing cache in use. Profiling results in this builder pass will not be stored.");
                Ok(None)
            }
        }
    }
}

/// The end of a run that only builds: the engine is loaded once, and from 10.13 a failure of that is forgiven.
pub fn skip_inference(run: &Run, plan: &Plan, folder: &Path) {
    match run.scenario.rule(&plan.graph, Phase::Load, folder) {
        Some(Behaviour::UnreadableYetPassed) => {
            let _ = failures::version_tag(&run.console, run.version, run.version.serialization() - 1);
        }
        Some(Behaviour::CutPlan) => {
            let half = |file: &str| {
                let file = fs::OpenOptions::new().write(true).open(file)?;
                file.set_len(file.metadata()?.len() / 2)
            };
            if let Some(Err(error)) = run.options.value("saveEngine").map(half) {
                super::console::complain(&format!("the stand-in cannot cut its plan: {error}"));
            }
        }
        _ => {}
    }
    run.console.info("Skipped inference phase since --skipInference is added.");
}
