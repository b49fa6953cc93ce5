//! Loading a plan, timing it, profiling it, telling its outputs.

use super::{
    Run, Stop,
    build::dims_text,
    console::g6,
    exports::{self, LayerTime},
    failures,
    latency::{self, Trace},
    model::{self, Inputs},
    plan::{Plan, Unreadable},
    scenario::{Behaviour, Gpu, Phase},
    version::Version,
};
use rand::{RngExt as _, SeedableRng as _, rngs::Xoshiro256PlusPlus};
use std::{collections::BTreeMap, env, fs, path::Path, time::Duration};

/// Averages that versions from 10.0 print at each end of the trace.
const SHOWN_AVERAGES: usize = 200;

/// Values of one output that are told, by name and shape.
type Output = (String, Vec<usize>, Vec<f64>);

/// Picks the device and describes it.
pub fn select_device(run: &Run) -> Result<Gpu, Stop> {
    let console = &run.console;
    let wanted = env::var("CUDA_VISIBLE_DEVICES").ok();
    let all = &run.scenario.gpus;
    let visible: Vec<&Gpu> = match wanted.as_deref() {
        None => all.iter().collect(),
        Some(names) => {
            let find = |name: &str| match name.parse::<usize>() {
                Ok(index) => all.get(index),
                Err(_) => all.iter().find(|gpu| !name.is_empty() && gpu.uuid.starts_with(name)),
            };
            names.split(',').map_while(|name| find(name.trim())).collect()
        }
    };
    let selects = &run.scenario.selects;
    if !selects.unsaid {
        console.info("=== Device Information ===");
    }
    let index = run.options.integer("device", 0);
    if visible.is_empty() {
        console.bare_error("Cuda failure: no CUDA-capable device is detected");
        return Err(Stop::Dead);
    }
    if run.version.major() >= 10 && !selects.unsaid {
        console.info("Available Devices: ");
        for (i, gpu) in visible.iter().enumerate() {
            console.info(&format!("  Device {i}: \"{}\" UUID: {}", gpu.name, gpu.uuid));
        }
    }
    let Some(gpu) = usize::try_from(index).ok().and_then(|i| visible.get(i)) else {
        console.error(&format!("Cannot find device ID {index}!"));
        return Err(Stop::Dead);
    };
    let loading = run.options.value("loadEngine").is_some();
    let gpu = if loading { &selects.loading } else { &selects.building }.as_ref().unwrap_or(gpu);
    if selects.unsaid {
        console.info(&format!("Running on {}", gpu.name));
        return Ok(gpu.clone());
    }
    console.info(&format!("Selected Device: {}", gpu.name));
    if run.version.major() >= 10 {
        console.info(&format!("Selected Device ID: {index}"));
        console.info(&format!("Selected Device UUID: {}", gpu.uuid));
    }
    let (major, minor) = gpu.compute_capability;
    console.info(&format!("Compute Capability: {major}.{minor}"));
    console.info(&format!("SMs: {}", gpu.sms));
    let newer = run.version >= Version::new(8, 6, 0);
    let clock = |word: &str, ghz: f64| {
        let application = if newer { "Application " } else { "" };
        console.info(&format!("{application}{word} Clock Rate: {} GHz", g6(ghz)));
    };
    if !newer {
        clock("Compute", gpu.clock_ghz);
    }
    console.info(&format!("Device Global Memory: {} MiB", gpu.memory_mib));
    console.info(&format!("Shared Memory per SM: {} KiB", gpu.shared_kib));
    let ecc = if gpu.ecc { "enabled" } else { "disabled" };
    console.info(&format!("Memory Bus Width: {} bits (ECC {ecc})", gpu.bus_bits));
    if newer {
        clock("Compute", gpu.clock_ghz);
    }
    clock("Memory", gpu.memory_ghz);
    if newer {
        console.info("");
        console.info("Note: The application clock rates do not reflect the actual clock rates that the GPU is currently running at.");
    }
    console.info("");
    console.info(&format!("TensorRT version: {}", run.version.short()));
    console.info("Loading standard plugins");
    Ok((*gpu).clone())
}

/// Reads and accepts the plan that is to be run.
pub fn read_plan(run: &Run, gpu: &Gpu, folder: &Path) -> Result<(Plan, Option<Behaviour>), Stop> {
    let (console, version) = (&run.console, run.version);
    let path = run.options.value("loadEngine").unwrap_or("");
    let plan = match Plan::read(Path::new(path)) {
        Ok(plan) => plan,
        Err(Unreadable::File(_)) => {
            console.error(&format!("Error opening engine file: {path}"));
            console.error("Engine set up failed");
            return Err(Stop::Failed);
        }
        Err(Unreadable::Magic | Unreadable::Truncated) => return Err(failures::magic_tag(console, version)),
    };
    let behaviour = run.scenario.rule(&plan.graph, Phase::Load, folder);
    match &behaviour {
        Some(Behaviour::VersionTag { plan_tag }) => return Err(failures::version_tag(console, version, *plan_tag)),
        Some(Behaviour::WrongDevice { plan }) => {
            return Err(failures::wrong_device(console, version, gpu.compute_capability, *plan));
        }
        _ => {}
    }
    let newer_runtime = plan.version_compatible && plan.version <= version;
    if plan.version != version && !newer_runtime {
        return Err(match plan.version.serialization() == version.serialization() {
            true => failures::version_differs(console, version, plan.version),
            false => failures::version_tag(console, version, plan.version.serialization()),
        });
    }
    let host_code = run.options.has("versionCompatible") || run.options.has("vc");
    if plan.version_compatible && !host_code {
        let place = ("runtime.cpp::deserializeCudaEngine::66", "IRuntime::deserializeCudaEngine");
        let text = "The plan holds host code; call setEngineHostCodeAllowed(true) to run it.";
        failures::library_error(console, version, 4, place, "API Usage Error", text);
        console.error("Engine deserialization failed");
        console.error("Inference set up failed");
        return Err(Stop::Failed);
    }
    let ampere = plan.hardware_compatibility == "ampere+" && gpu.compute_capability >= (8, 0);
    if plan.compute_capability != gpu.compute_capability && !ampere {
        return Err(failures::wrong_device(console, version, gpu.compute_capability, plan.compute_capability));
    }
    if plan.device != gpu.name && plan.hardware_compatibility == "none" {
        console.warning(
            "[TRT] Using an engine plan file across different models of devices is not recommended and is likely to affect performance or even cause errors.",
        );
    }
    let size = fs::metadata(path).map_or(0, |facts| facts.len()) >> 20;
    console.library(&format!("Loaded engine size: {size} MiB"));
    console.info("Engine deserialized in 0.0222253 sec.");
    Ok((plan, behaviour))
}

/// Runs the plan: times, profile, layers, outputs, each where it is asked for.
pub fn infer(run: &Run, gpu: &Gpu, plan: &Plan, behaviour: Option<&Behaviour>) -> Result<(), Stop> {
    let (console, version) = (&run.console, run.version);
    match behaviour {
        Some(Behaviour::OutOfMemory { requested_bytes }) => {
            return Err(failures::out_of_memory(console, version, *requested_bytes, false));
        }
        Some(Behaviour::BadShape { input }) => return Err(failures::bad_shape(console, version, input)),
        Some(Behaviour::Hang) => failures::hang(),
        Some(Behaviour::Slow { ms }) => std::thread::park_timeout(Duration::from_millis(*ms)),
        Some(Behaviour::Crash) => std::process::abort(),
        Some(Behaviour::HugeLog { bytes }) => failures::flood(*bytes),
        _ => {}
    }
    let shapes = shapes(run, plan)?;
    let volume = volume(plan, &shapes);
    let inputs = inputs(run, plan, &shapes)?;
    console.info(&format!("Created execution context with device memory size: {} MiB", g6(1.95703)));
    for binding in &plan.outputs {
        console.info(&format!(
            "Output binding for {} with dimensions {} is created.",
            binding.edge.name,
            dims_text(&binding.edge.dims)
        ));
    }
    console.info("Starting inference");
    if run.options.number("duration", 3.0) < 0.0 {
        failures::hang();
    }
    let trace = latency::draw(run, plan, volume);
    let profiled = run.options.has("dumpProfile") || run.options.has("exportProfile");
    let garbage = matches!(behaviour, Some(Behaviour::GarbageExports));
    if run.options.has("dumpLayerInfo") {
        console.info("Layer Information:");
        console.info(&exports::layer_info(version, plan));
    }
    export(run, "exportLayerInfo", garbage, || exports::layer_info(version, plan));
    if !profiled || run.separate_profile() {
        summary(run, &trace);
        export(run, "exportTimes", garbage, || exports::times(&trace));
    } else {
        console.info("The e2e network timing is not reported since it is inaccurate due to the extra synchronizations when the profiler is enabled.");
        console.info("To show e2e network timing report, add --separateProfileRun to profile layer timing in a separate run or remove --dumpProfile to disable the profiler.");
    }
    if profiled {
        let layers = layer_times(run, plan, &trace);
        profile(run, &layers, trace.queries.len());
        export(run, "exportProfile", garbage, || exports::profile(&layers, trace.queries.len()));
    }
    if run.options.has("exportOutput") || run.options.has("dumpOutput") {
        let outputs = outputs(run, plan, &inputs, behaviour, gpu)?;
        export(run, "exportOutput", garbage, || exports::outputs(&outputs));
    }
    Ok(())
}

fn export(run: &Run, option: &str, garbage: bool, text: impl FnOnce() -> String) {
    let Some(file) = run.options.value(option) else { return };
    let mut text = text();
    if garbage {
        let mut end = text.len() / 2;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str("\u{7}garbage{{");
    }
    if fs::write(file, text).is_err() {
        run.console.error(&format!("Could not open {file} for writing"));
    }
}

/// The shape that every input is run with.
fn shapes(run: &Run, plan: &Plan) -> Result<BTreeMap<String, Vec<i64>>, Stop> {
    let (console, version) = (&run.console, run.version);
    let index = run.options.integer("useProfile", 0);
    let Some(profile) = usize::try_from(index).ok().and_then(|i| plan.profiles.get(i)) else {
        console.error(&format!("Optimization profile {index} is not in the engine"));
        console.error("Inference set up failed");
        return Err(Stop::Failed);
    };
    let mut found = BTreeMap::new();
    for binding in &plan.inputs {
        let name = &binding.edge.name;
        let dynamic = binding.edge.dims.iter().any(|size| *size < 0);
        let given =
            run.options.shapes.get(name).or_else(|| run.options.profiles.first()?.get(name).map(|[_, opt, _]| opt));
        let dims = match given {
            Some(dims) => dims.clone(),
            None if dynamic && run.options.has("loadEngine") => {
                let dims: Vec<i64> = binding.edge.dims.iter().map(|size| (*size).max(1)).collect();
                let text = dims_text(&dims);
                console.warning(&format!(
                    "Shape missing for input with dynamic shape: {name}Automatically setting shape to: {text}"
                ));
                dims
            }
            None => profile.get(name).map_or_else(|| binding.edge.dims.clone(), |[_, opt, _]| opt.clone()),
        };
        let fits = dims.len() == binding.edge.dims.len()
            && dims.iter().zip(&binding.edge.dims).all(|(given, own)| *own < 0 || given == own);
        if !fits {
            return Err(failures::bad_shape(console, version, name));
        }
        if let Some([min, _, max]) = profile.get(name) {
            let within = dims.iter().zip(min).zip(max).all(|((d, min), max)| min <= d && d <= max);
            if !within {
                return Err(failures::outside_profile(console, version, name, &dims, index as usize));
            }
        }
        if dynamic {
            console.info(&format!("Set shape of input tensor {name} to: {}", dims_text(&dims)));
        }
        found.insert(name.clone(), dims);
    }
    Ok(found)
}

/// Size of the inputs against that of the first profile's usual shapes.
fn volume(plan: &Plan, shapes: &BTreeMap<String, Vec<i64>>) -> f64 {
    let product = |dims: &Vec<i64>| dims.iter().map(|size| *size as f64).product::<f64>();
    let here: f64 = shapes.values().map(product).sum();
    let usual: f64 = plan.profiles.first().map_or(here, |p| p.values().map(|[_, opt, _]| product(opt)).sum());
    if usual > 0.0 { here / usual } else { 1.0 }
}

/// The values of every input: from its file, else made up.
fn inputs(run: &Run, plan: &Plan, shapes: &BTreeMap<String, Vec<i64>>) -> Result<Inputs, Stop> {
    let console = &run.console;
    let files: BTreeMap<String, String> = run.options.pairs("loadInputs").into_iter().collect();
    let mut found = Inputs::new();
    for binding in &plan.inputs {
        let name = &binding.edge.name;
        let dims = shapes[name].clone();
        let count = dims.iter().product::<i64>().max(0) as usize;
        let values = match files.get(name) {
            Some(file) => {
                let bytes = fs::read(file).unwrap_or_default();
                let needed = count * model::element_bytes(&binding.kind);
                if bytes.len() != needed {
                    console.error(&format!(
                        "The file {file} has {} bytes where the input {name} of type {} and shape {} needs {needed}",
                        bytes.len(),
                        binding.kind,
                        dims_text(&dims)
                    ));
                    console.error("Inference set up failed");
                    return Err(Stop::Failed);
                }
                console.info(&format!("Using values loaded from {file} for input {name}"));
                model::decode(&binding.kind, &bytes)
            }
            None => {
                console.info(&format!("Using random values for input {name}"));
                let mut random = Xoshiro256PlusPlus::seed_from_u64(run.call);
                (0..count).map(|_| random.random::<f64>().round()).collect()
            }
        };
        console.info(&format!("Input binding for {name} with dimensions {} is created.", dims_text(&dims)));
        found.insert(name.clone(), (dims, values));
    }
    Ok(found)
}

/// The outputs: the test's own, else what the model computes; then what the scenario does to them.
fn outputs(
    run: &Run,
    plan: &Plan,
    inputs: &Inputs,
    behaviour: Option<&Behaviour>,
    gpu: &Gpu,
) -> Result<Vec<Output>, Stop> {
    let failed = |reason: String| {
        run.console.error(&format!("Error occurred during inference on {}: {reason}", gpu.name));
        Stop::Failed
    };
    let model = planforge_onnx::Model::from_bytes(plan.model.clone().into()).map_err(|e| failed(e.to_string()))?;
    let mut found = model::evaluate(&model, inputs).map_err(failed)?;
    if let Some(file) = &run.scenario.outputs {
        let text = fs::read(file).map_err(|e| failed(format!("{}: {e}", file.display())))?;
        let own: BTreeMap<String, Vec<f64>> = serde_json::from_slice(&text).map_err(|e| failed(e.to_string()))?;
        for (name, values) in own {
            let shape = vec![values.len()];
            let entry = found.entry(name).or_insert_with(|| (shape, Vec::new()));
            entry.1 = values;
        }
    }
    let order = plan.outputs.iter().filter_map(|b| found.get(&b.edge.name).map(|f| (b.edge.name.clone(), f.clone())));
    let mut outputs: Vec<Output> = order.map(|(name, (shape, values))| (name, shape, values)).collect();
    for (_, _, values) in &mut outputs {
        let scale = values.iter().fold(0.0f64, |most, value| most.max(value.abs())).max(1.0);
        match behaviour {
            Some(Behaviour::WrongOutputs) => values.iter_mut().for_each(|value| *value = *value * 1.25 - 0.3 * scale),
            Some(Behaviour::NanOutputs) => values.iter_mut().step_by(3).for_each(|value| *value = f64::NAN),
            _ => {}
        }
    }
    Ok(outputs)
}

/// Sorted values and what the tool tells of them.
struct Figures {
    sorted: Vec<f64>,
}

impl Figures {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        Self { sorted }
    }

    fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.sorted.len().max(1) as f64
    }

    fn median(&self) -> f64 {
        let n = self.sorted.len();
        if n == 0 { f64::NAN } else { (self.sorted[(n - 1) / 2] + self.sorted[n / 2]) / 2.0 }
    }

    fn percentile(&self, p: f64) -> f64 {
        let n = self.sorted.len() as i64;
        let skipped = ((1.0 - p / 100.0) * n as f64) as i64;
        self.sorted.get((n - 1 - skipped).max(0) as usize).copied().unwrap_or(f64::NAN)
    }

    fn variation_percent(&self) -> f64 {
        let mean = self.mean();
        let n = self.sorted.len().max(1) as f64;
        let variance = self.sorted.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
        100.0 * variance.sqrt() / mean
    }
}

/// The trace's averages and the performance summary.
fn summary(run: &Run, trace: &Trace) {
    let console = &run.console;
    console.info(&format!("Warmup completed {} queries over {} ms", trace.warm_up_queries, g6(trace.warm_up_ms)));
    console.info(&format!("Timing trace has {} queries over {} s", trace.queries.len(), g6(trace.wall_ms / 1e3)));
    console.info("");
    console.info("=== Trace details ===");
    let size = run.options.integer("avgRuns", 10).max(1) as usize;
    console.info(&format!("Trace averages of {size} runs:"));
    let averages: Vec<_> = trace.queries.chunks_exact(size).collect();
    let shorten = run.version.major() >= 10 && averages.len() > 2 * SHOWN_AVERAGES;
    for (index, chunk) in averages.iter().enumerate() {
        if shorten && (SHOWN_AVERAGES..averages.len() - SHOWN_AVERAGES).contains(&index) {
            if index == SHOWN_AVERAGES {
                console.info(&format!("... Omitting {} lines", averages.len() - 2 * SHOWN_AVERAGES));
            }
            continue;
        }
        let mean = |of: fn(&latency::Query) -> f64| g6(chunk.iter().map(of).sum::<f64>() / size as f64);
        console.info(&format!(
            "Average on {size} runs - GPU latency: {} ms - Host latency: {} ms (enqueue {} ms)",
            mean(|q| q.compute),
            mean(latency::Query::latency),
            mean(|q| q.enqueue)
        ));
    }
    console.info("");
    console.info("=== Performance summary ===");
    console.info(&format!("Throughput: {} qps", g6(trace.queries.len() as f64 / (trace.wall_ms / 1e3))));
    let gpu = Figures::of(trace.queries.iter().map(|q| q.compute));
    let enqueue = Figures::of(trace.queries.iter().map(|q| q.enqueue));
    let rows = [
        ("Latency", &Figures::of(trace.queries.iter().map(latency::Query::latency))),
        ("Enqueue Time", &enqueue),
        ("H2D Latency", &Figures::of(trace.queries.iter().map(|q| q.h2d))),
        ("GPU Compute Time", &gpu),
        ("D2H Latency", &Figures::of(trace.queries.iter().map(|q| q.d2h))),
    ];
    for (name, figures) in rows {
        let percentiles: String = run
            .percentiles_text()
            .split(',')
            .filter_map(|p| p.parse::<f64>().ok())
            .map(|p| format!(", percentile({}%) = {} ms", g6(p), g6(figures.percentile(p))))
            .collect();
        console.info(&format!(
            "{name}: min = {} ms, max = {} ms, mean = {} ms, median = {} ms{percentiles}",
            g6(figures.sorted.first().copied().unwrap_or(f64::NAN)),
            g6(figures.sorted.last().copied().unwrap_or(f64::NAN)),
            g6(figures.mean()),
            g6(figures.median())
        ));
    }
    console.info(&format!("Total Host Walltime: {} s", g6(trace.wall_ms / 1e3)));
    console
        .info(&format!("Total GPU Compute Time: {} s", g6(trace.queries.iter().map(|q| q.compute).sum::<f64>() / 1e3)));
    if enqueue.median() > 0.8 * gpu.median() {
        console.warning(
            "* Throughput may be bound by Enqueue Time rather than GPU Compute and the GPU may be under-utilized.",
        );
    }
    let bound_percent = if run.version >= Version::new(10, 13, 3) { 2.5 } else { 1.0 };
    let variation = gpu.variation_percent();
    if variation > bound_percent {
        console.warning(&format!("* GPU compute time is unstable, with coefficient of variance = {}%.", g6(variation)));
    }
    console.info("Explanations of the performance metrics are printed in the verbose logs.");
    console.info("");
}

fn layer_times(run: &Run, plan: &Plan, trace: &Trace) -> Vec<LayerTime> {
    let total: f64 = trace.queries.iter().map(|q| q.compute).sum();
    let median = Figures::of(trace.queries.iter().map(|q| q.compute)).median();
    let count = trace.queries.len().max(1) as f64;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(run.scenario.timing.seed ^ plan.build_seed);
    let shares: Vec<f64> = plan.layers.iter().map(|layer| layer.share * (0.9 + 0.2 * random.random::<f64>())).collect();
    let sum: f64 = shares.iter().sum();
    plan.layers
        .iter()
        .zip(shares)
        .map(|(layer, share)| {
            let share = share / sum.max(f64::MIN_POSITIVE);
            LayerTime {
                name: layer.name.clone(),
                total_ms: total * share,
                average_ms: total * share / count,
                median_ms: median * share,
                percentage: 100.0 * share,
            }
        })
        .collect()
}

/// The profile as a table; the oldest version names the layer first.
fn profile(run: &Run, layers: &[LayerTime], count: usize) {
    let console = &run.console;
    console.info("");
    console.info(&format!("=== Profile ({count} iterations ) ==="));
    let total = LayerTime {
        name: "Total".into(),
        total_ms: layers.iter().map(|l| l.total_ms).sum(),
        average_ms: layers.iter().map(|l| l.average_ms).sum(),
        median_ms: layers.iter().map(|l| l.median_ms).sum(),
        percentage: 100.0,
    };
    let first = run.version < Version::new(8, 5, 0);
    if first {
        console.info("                      Layer   Time (ms)   Avg. Time (ms)   Median Time (ms)   Time %");
    } else {
        console.info("   Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer");
    }
    for layer in layers.iter().chain([&total]) {
        let (all, average, median) = (layer.total_ms, layer.average_ms, layer.median_ms);
        if first {
            console.info(&format!(
                "{:>27} {all:>11.2} {average:>16.4} {median:>18.4} {:>8.1}",
                layer.name, layer.percentage
            ));
        } else {
            console.info(&format!(
                "{all:>11.2} {average:>12.4} {median:>12.4} {:>9.1}   {}",
                layer.percentage, layer.name
            ));
        }
    }
    console.info("");
}
