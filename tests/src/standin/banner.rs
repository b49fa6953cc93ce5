//! The blocks of options at the start of a run.

use super::{Run, console::g6, version::Version};

/// Prints the blocks that the version prints for this command line.
pub fn print(run: &Run) {
    let (version, options, console) = (run.version, &run.options, &run.console);
    let loading = options.has("loadEngine");
    let text = |name: &str| options.value(name).unwrap_or("").to_owned();
    let switch = |name: &str| if options.has(name) { "Enabled" } else { "Disabled" };
    for warning in &options.warnings {
        console.warning(warning);
    }
    if version.major() >= 11 {
        for noop in ["useCudaGraph", "useSpinWait", "noDataTransfers", "separateProfileRun", "stronglyTyped"] {
            if options.has(noop) {
                console.warning(&format!("--{noop} has no effect: it is the default from version 11 on"));
            }
        }
    }
    if version >= Version::new(10, 0, 0) && !options.has("noTF32") {
        console.info(
            "TF32 is enabled by default. Add --noTF32 flag to further improve accuracy with some performance cost.",
        );
    }
    if version >= Version::new(10, 12, 0)
        && version.major() < 11
        && ["fp16", "int8", "best", "bf16"].iter().any(|name| options.has(name))
    {
        console.warning("Weakly-typed networks have been deprecated and will go away; give a typed network instead.");
    }
    console.info("=== Model Options ===");
    console.info(if loading { "Format: *" } else { "Format: ONNX" });
    console.info(&format!("Model: {}", text("onnx")));
    console.info("Output:");
    if !(loading && version.major() >= 10) {
        build_options(run);
    }
    console.info("=== System Options ===");
    console.info(&format!("Device: {}", options.integer("device", 0)));
    console.info("DLACore: ");
    console.info("Plugins:");
    console.info("=== Inference Options ===");
    console.info("Batch: Explicit");
    let shapes = |dims: &[i64]| dims.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
    if options.shapes.is_empty() {
        console.info("Input inference shapes: model");
    }
    for (name, dims) in &options.shapes {
        console.info(&format!("Input inference shape : {name}={}", shapes(dims)));
    }
    console.info(&format!("Iterations: {}", options.integer("iterations", 10)));
    let (duration, warm_up) = (options.number("duration", 3.0), options.number("warmUp", 200.0));
    console.info(&format!("Duration: {}s (+ {}ms warm up)", g6(duration), g6(warm_up)));
    console.info(&format!("Sleep time: {}ms", g6(options.number("sleepTime", 0.0))));
    console.info(&format!("Idle time: {}ms", g6(options.number("idleTime", 0.0))));
    let word = if version >= Version::new(8, 6, 0) { "Inference Streams" } else { "Streams" };
    console.info(&format!("{word}: {}", run.streams()));
    console.info(&format!("ExposeDMA: {}", switch("exposeDMA")));
    let on = |yes: bool| if yes { "Enabled" } else { "Disabled" };
    console.info(&format!("Data transfers: {}", on(run.transfers())));
    let spin = if version.major() >= 11 { !options.has("noSpinWait") } else { options.has("useSpinWait") };
    console.info(&format!("Spin-wait: {}", on(spin)));
    console.info(&format!("Multithreading: {}", switch("threads")));
    console.info(&format!("CUDA Graph: {}", on(run.cuda_graph())));
    console.info(&format!("Separate profiling: {}", on(run.separate_profile())));
    console.info("Inputs:");
    for (name, file) in options.pairs("loadInputs") {
        console.info(&format!("{name}<-{file}"));
    }
    console.info("=== Reporting Options ===");
    console.info(&format!("Verbose: {}", switch("verbose")));
    console.info(&format!("Averages: {} inferences", options.integer("avgRuns", 10)));
    console.info(&format!("Percentiles: {}", run.percentiles_text()));
    console.info(&format!("Dump output: {}", switch("dumpOutput")));
    console.info(&format!("Profile: {}", switch("dumpProfile")));
    console.info(&format!("Export timing to JSON file: {}", text("exportTimes")));
    console.info(&format!("Export output to JSON file: {}", text("exportOutput")));
    console.info(&format!("Export profile to JSON file: {}", text("exportProfile")));
    console.info("");
}

fn build_options(run: &Run) {
    let (version, options, console) = (run.version, &run.options, &run.console);
    let switch = |name: &str| if options.has(name) { "Enabled" } else { "Disabled" };
    console.info("=== Build Options ===");
    if version.major() < 10 {
        console.info("Max batch: explicit batch");
    }
    console.info(&format!("Memory Pools: {}", pools(run)));
    if version.major() < 10 {
        console.info("minTiming: 1");
    }
    console.info(&format!("avgTiming: {}", options.integer("avgTiming", 8)));
    console.info(&format!("Precision: {}", precision(run)));
    console.info(&format!("Calibration: {}", options.value("calib").unwrap_or("")));
    console.info(&format!("Refit: {}", switch("refit")));
    if version >= Version::new(8, 6, 0) {
        let compatible = options.has("versionCompatible") || options.has("vc");
        console.info(&format!("Version Compatible: {}", if compatible { "Enabled" } else { "Disabled" }));
        console.info(&format!("Skip inference: {}", switch("skipInference")));
    } else {
        console.info(&format!("Build only: {}", switch("buildOnly")));
    }
    console.info(&format!("Save engine: {}", options.value("saveEngine").unwrap_or("")));
    console.info(&format!("Load engine: {}", options.value("loadEngine").unwrap_or("")));
    console.info(&format!("Profiling verbosity: {}", if detailed(run) { 2 } else { 0 }));
    let mode = match (options.has("noBuilderCache"), options.has("timingCacheFile")) {
        (true, _) => "disable",
        (_, true) => "global",
        _ => "local",
    };
    console.info(&format!("timingCacheMode: {mode}"));
    console.info(&format!("timingCacheFile: {}", options.value("timingCacheFile").unwrap_or("")));
    if version >= Version::new(8, 6, 0) {
        console.info(&format!("BuilderOptimizationLevel: {}", options.integer("builderOptimizationLevel", -1)));
    }
    let dims = |dims: &[i64]| dims.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
    for (index, profile) in options.profiles.iter().enumerate() {
        for (name, [min, opt, max]) in profile {
            let which = if version.major() >= 10 { format!(" (profile {index})") } else { String::new() };
            console.info(&format!("Input build shape{which}: {name}={}+{}+{}", dims(min), dims(opt), dims(max)));
        }
    }
    if options.profiles.is_empty() {
        console.info("Input build shapes: model");
    }
}

/// Whether layers keep their details.
pub fn detailed(run: &Run) -> bool {
    matches!(run.options.value("profilingVerbosity"), Some("detailed" | "verbose"))
}

/// `FP32+FP16` and the like.
pub fn precision(run: &Run) -> String {
    let options = &run.options;
    if run.version.major() >= 11 || options.has("stronglyTyped") {
        return "Strongly typed".into();
    }
    let mut words = vec!["FP32"];
    let best = options.has("best");
    for (name, word) in [("fp16", "FP16"), ("bf16", "BF16"), ("int8", "INT8"), ("fp8", "FP8"), ("int4", "INT4")] {
        if options.has(name) || (best && matches!(name, "fp16" | "int8")) {
            words.push(word);
        }
    }
    words.join("+")
}

/// Sizes as the version understands them: its unit rules are a trap.
fn pools(run: &Run) -> String {
    let mut words = Vec::new();
    for pool in ["workspace", "dlaSRAM", "dlaLocalDRAM", "dlaGlobalDRAM", "tacticSharedMem"] {
        if pool == "tacticSharedMem" && run.version.major() < 10 {
            continue;
        }
        let given =
            run.options.value("memPoolSize").unwrap_or("").split(',').find_map(|item| {
                item.split_once(':').filter(|(name, _)| *name == pool).map(|(_, size)| size.to_owned())
            });
        words.push(match given {
            Some(size) => format!("{pool}: {} MiB", g6(pool_mib(run.version, &size))),
            None => format!("{pool}: default"),
        });
    }
    words.join(", ")
}

fn pool_mib(version: Version, size: &str) -> f64 {
    let end = size.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(size.len());
    let number: f64 = size[..end].parse().unwrap_or(0.0);
    let suffix = size[end..].chars().last();
    match suffix {
        None => number,
        // The suffix is not looked at.
        Some(_) if version.major() < 10 => number,
        // The bytes that it makes are taken for MiB.
        Some('G') if version < Version::new(10, 1, 0) => number * 1024.0 * 1024.0 * 1024.0,
        Some('M') if version < Version::new(10, 1, 0) => number * 1024.0 * 1024.0,
        Some('G') => number * 1024.0,
        Some('M') => number,
        Some('K') => number / 1024.0,
        Some('B') => number / (1024.0 * 1024.0),
        Some(_) => number,
    }
}

impl Run {
    /// Parallel inference contexts.
    pub fn streams(&self) -> u32 {
        let new = self.options.integer("infStreams", 1).max(1);
        self.options.integer("streams", new).max(1) as u32
    }

    /// Whether inputs and outputs are copied: the default turned around with version 11.
    pub fn transfers(&self) -> bool {
        match self.version.major() {
            11.. => self.options.has("includeDataTransfers"),
            _ => !self.options.has("noDataTransfers"),
        }
    }

    pub fn cuda_graph(&self) -> bool {
        match self.version.major() {
            11.. => !self.options.has("noCudaGraph"),
            _ => self.options.has("useCudaGraph"),
        }
    }

    pub fn separate_profile(&self) -> bool {
        self.version.major() >= 11 || self.options.has("separateProfileRun")
    }

    /// The percentiles to tell: as given, else the version's own.
    pub fn percentiles_text(&self) -> String {
        let own = if self.version < Version::new(8, 5, 0) { "99" } else { "90,95,99" };
        let given = self.options.value("percentile").unwrap_or(own);
        // The oldest version reads a single number.
        if self.version < Version::new(8, 5, 0) { given.split(',').next().unwrap_or(own).into() } else { given.into() }
    }
}
