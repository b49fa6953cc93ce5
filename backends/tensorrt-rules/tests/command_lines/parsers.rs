//! NVIDIA's own option parsers, asked what they make of the command lines.
//!
//! `PLANFORGE_TENSORRT_PARSERS` names the folder that `tests/parsers/build.sh` filled. Without it nothing is asked, and
//! the test says so. What a parser answers is every option as it understood it; those that a line gives are held
//! against what the line meant, so that a value that is taken for something else is found as well as one that is
//! refused.

use crate::checker::Number;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
};

/// What was asked, and what came of it.
#[derive(Debug, Default)]
pub struct Asked {
    pub versions: usize,
    lines: usize,
    /// Values of options that were held against the parser's own words.
    values: usize,
    /// Options whose values were, on some version.
    options: BTreeSet<&'static str>,
    /// Lines that a parser refuses, and values that it takes for something else.
    wrong: Vec<String>,
}

/// Asks them, if they are there: nothing may be refused, nothing taken for something else. Prints the figures, or that
/// nothing was asked.
pub fn ask_where_present(lines: &BTreeSet<(Number, Vec<String>)>) -> Option<Asked> {
    let Some(folder) = std::env::var_os("PLANFORGE_TENSORRT_PARSERS") else {
        say("not run: NVIDIA's own parsers, for PLANFORGE_TENSORRT_PARSERS names no folder of them");
        return None;
    };
    let asked = ask(Path::new(&folder), lines);
    say(&format!(
        "NVIDIA's own parsers of {} versions: {} lines, {} values of {} options read back, {} wrong",
        asked.versions,
        asked.lines,
        asked.values,
        asked.options.len(),
        asked.wrong.len()
    ));
    let shown = asked.wrong.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(asked.wrong.is_empty(), "{} wrong, the first of them:\n{shown}", asked.wrong.len());
    // That values were compared at all.
    assert!(asked.values > 2 * asked.lines && asked.options.len() >= 30, "{asked:?}");
    Some(asked)
}

#[expect(clippy::print_stderr, reason = "the figures, and what was not run, are what is asked for")]
fn say(text: &str) {
    eprintln!("{text}");
}

/// Asks the parser of each line's version.
fn ask(folder: &Path, lines: &BTreeSet<(Number, Vec<String>)>) -> Asked {
    let mut of_version: BTreeMap<Number, Vec<&Vec<String>>> = BTreeMap::new();
    for (number, args) in lines {
        of_version.entry(*number).or_default().push(args);
    }
    let mut asked = Asked { versions: of_version.len(), lines: lines.len(), ..Asked::default() };
    for (number, lines) in of_version {
        let (major, minor, patch) = number;
        let program = folder.join(format!("parser-{major}.{minor}.{patch}"));
        let answers = answers(&program, &lines);
        assert_eq!(answers.len(), lines.len(), "{} does not answer every line", program.display());
        for (args, answer) in lines.into_iter().zip(&answers) {
            let told = match answer.split_once('\n') {
                Some(("parsed", words)) => told(words),
                _ => {
                    asked.wrong.push(format!("{number:?} refuses {args:?}: {answer}"));
                    continue;
                }
            };
            for (option, shown, meant) in meant(number, args) {
                let Some(understood) = told.get(shown) else { continue };
                asked.values += 1;
                asked.options.insert(option);
                if !understood.iter().any(|understood| is_meant(&meant, understood)) {
                    asked.wrong.push(format!("{number:?} takes {option} for {understood:?}, not {meant:?}: {args:?}"));
                }
            }
        }
    }
    asked
}

fn answers(program: &Path, lines: &[&Vec<String>]) -> Vec<String> {
    let mut parser = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}; tests/parsers/build.sh builds it", program.display()));
    let mut input = parser.stdin.take().unwrap();
    let text: String = lines.iter().map(|args| args.join("\u{1f}") + "\n").collect();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let mut output = String::new();
    parser.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    writer.join().unwrap().unwrap();
    assert!(parser.wait().unwrap().success(), "{} broke down", program.display());
    output.split_terminator("\nend\n").map(str::to_owned).collect()
}

/// The parser's words by heading; some stand there for each profile, input or output.
fn told(words: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut told: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in words.lines() {
        if let Some((heading, value)) = line.split_once(':') {
            // "Input build shape (profile 1)", and "Input inference shape " with a blank.
            let heading = heading.split_once(" (profile").map_or(heading, |(heading, _)| heading).trim();
            told.entry(heading).or_default().push(value.trim());
        }
    }
    told
}

/// What has to stand under a heading.
enum Meant {
    Is(String),
    Has(String),
    /// Precisions, in any order, and no others.
    Precisions(BTreeSet<&'static str>),
}

impl std::fmt::Debug for Meant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Is(text) => write!(f, "{text}"),
            Self::Has(text) => write!(f, "...{text}..."),
            Self::Precisions(names) => write!(f, "{names:?}"),
        }
    }
}

fn is_meant(meant: &Meant, understood: &str) -> bool {
    match meant {
        Meant::Is(text) => understood == text,
        Meant::Has(text) => understood.contains(text.as_str()),
        Meant::Precisions(names) => {
            let found: BTreeSet<&str> = understood.split(" (").next().unwrap_or("").split('+').collect();
            found == names.iter().copied().collect()
        }
    }
}

/// Options whose value is shown as it was given, by heading.
const AS_GIVEN: &[(&str, &str)] = &[
    ("--onnx", "Model"),
    ("--saveEngine", "Save engine"),
    ("--loadEngine", "Load engine"),
    ("--timingCacheFile", "timingCacheFile"),
    ("--calib", "Calibration"),
    ("--avgTiming", "avgTiming"),
    ("--builderOptimizationLevel", "BuilderOptimizationLevel"),
    ("--maxAuxStreams", "MaxAuxStreams"),
    ("--maxTactics", "MaxTactics"),
    ("--tilingOptimizationLevel", "Tiling Optimization Level"),
    ("--l2LimitForTiling", "L2 Limit for Tiling"),
    ("--calibProfile", "Calibration Profile Index"),
    ("--iterations", "Iterations"),
    ("--streams", "Streams"),
    ("--infStreams", "Inference Streams"),
    ("--useProfile", "Optimization Profile Index"),
    ("--useRuntime", "TensorRT runtime"),
    ("--leanDLLPath", "Lean DLL Path"),
    ("--exportTimes", "Export timing to JSON file"),
    ("--exportOutput", "Export output to JSON file"),
    ("--exportProfile", "Export profile to JSON file"),
];

/// Options that are on by being there: how the heading's value begins then.
const SWITCHES: &[(&str, &str, &str)] = &[
    ("--refit", "Refit", "Enabled"),
    ("--stripWeights", "Strip weights", "Enabled"),
    ("--versionCompatible", "Version Compatible", "Enabled"),
    ("--pluginInstanceNorm", "ONNX Plugin InstanceNorm", "Enabled"),
    ("--excludeLeanRuntime", "Exclude Lean Runtime", "Enabled"),
    ("--skipInference", "Skip inference", "Enabled"),
    ("--buildOnly", "Build only", "Enabled"),
    ("--noBuilderCache", "timingCacheMode", "disable"),
    ("--noCompilationCache", "Enable Compilation Cache", "Disabled"),
    ("--errorOnTimingCacheMiss", "errorOnTimingCacheMiss", "Enabled"),
    ("--allowWeightStreaming", "Weight Streaming", "Enabled"),
    ("--useCudaGraph", "CUDA Graph", "Enabled"),
    ("--noCudaGraph", "CUDA Graph", "Disabled"),
    ("--useSpinWait", "Spin-wait", "Enabled"),
    ("--noDataTransfers", "Data transfers", "Disabled"),
    ("--includeDataTransfers", "Data transfers", "Enabled"),
    ("--separateProfileRun", "Separate profiling", "Enabled"),
    ("--dumpProfile", "Profile", "Enabled"),
];

/// What a line means: options, the headings that the parser shows them under, and what has to be there.
fn meant(version: Number, args: &[String]) -> Vec<(&'static str, &'static str, Meant)> {
    let pairs: Vec<(&str, &str)> = args.iter().map(|arg| arg.split_once('=').unwrap_or((arg, ""))).collect();
    let has = |name: &str| pairs.iter().any(|(given, _)| *given == name);
    let mut meant = Vec::new();
    for (name, value) in &pairs {
        if let Some((option, shown)) = AS_GIVEN.iter().find(|(option, _)| option == name) {
            meant.push((*option, *shown, Meant::Is((*value).to_owned())));
        }
        if let Some((option, shown, on)) = SWITCHES.iter().find(|(option, ..)| option == name) {
            meant.push((*option, *shown, Meant::Has((*on).to_owned())));
        }
        match *name {
            "--memPoolSize" => {
                for pool in value.split(',') {
                    let (pool, size) = pool.split_once(':').unwrap();
                    // Shared memory is given in MiB as well, and shown in KiB.
                    let size = match pool {
                        "tacticSharedMem" => format!("{pool}: {} KiB", size.parse::<f64>().unwrap() * 1024.0),
                        _ => format!("{pool}: {size} MiB"),
                    };
                    meant.push(("--memPoolSize", "Memory Pools", Meant::Has(size)));
                }
            }
            "--workspace" => meant.push(("--workspace", "Workspace", Meant::Is(format!("{value} MiB")))),
            "--sparsity" => {
                let words = if *value == "enable" { "Enabled" } else { "Disabled" };
                meant.push(("--sparsity", "Sparsity", Meant::Is(words.to_owned())));
            }
            "--tacticSources" => {
                for source in value.split(',') {
                    let on = if source.starts_with('+') { "ON" } else { "OFF" };
                    let words = match &source[1..].to_ascii_uppercase()[..] {
                        "CUBLAS_LT" => format!("cublasLt [{on}]"),
                        "EDGE_MASK_CONVOLUTIONS" => format!("edge mask convolutions [{on}]"),
                        "JIT_CONVOLUTIONS" => format!("JIT convolutions [{on}]"),
                        plain => format!("{} [{on}]", plain.to_ascii_lowercase()),
                    };
                    meant.push(("--tacticSources", "Tactic sources", Meant::Has(words)));
                }
            }
            "--layerPrecisions" => {
                for layer in value.split(',') {
                    meant.push(("--layerPrecisions", "LayerPrecisions", Meant::Has(layer.to_owned())));
                }
            }
            "--duration" => meant.push(("--duration", "Duration", Meant::Has(format!("{value}s (+ ")))),
            "--warmUp" => meant.push(("--warmUp", "Duration", Meant::Has(format!("(+ {value}ms warm up)")))),
            _ => {}
        }
    }
    // Shapes of one profile stand together; the parser writes a line for each input.
    let dims = |name: &str| -> Vec<BTreeMap<&str, &str>> {
        let given = pairs.iter().filter(|(given, _)| *given == name);
        given.map(|(_, value)| value.split(',').filter_map(|item| item.rsplit_once(':')).collect()).collect()
    };
    for (low, usual, high, shown) in [
        ("--minShapes", "--optShapes", "--maxShapes", "Input build shape"),
        ("--minShapesCalib", "--optShapesCalib", "--maxShapesCalib", "Input calibration shape"),
    ] {
        for ((min, opt), max) in dims(low).iter().zip(&dims(usual)).zip(&dims(high)) {
            for (input, smallest) in min {
                let words = format!("{input}={smallest}+{}+{}", opt[input], max[input]);
                let option = if low == "--minShapes" { "--minShapes" } else { "--minShapesCalib" };
                meant.push((option, shown, Meant::Is(words)));
            }
        }
    }
    if has("--saveEngine") && version.0 < 11 && !has("--stronglyTyped") {
        let mut names = BTreeSet::from(["FP32"]);
        for (option, name) in
            [("--fp16", "FP16"), ("--bf16", "BF16"), ("--int8", "INT8"), ("--fp8", "FP8"), ("--int4", "INT4")]
        {
            if has(option) {
                names.insert(name);
            }
        }
        if has("--best") {
            names.extend(["FP16", "INT8"]);
            if version >= (9, 1, 0) {
                names.insert("BF16");
            }
        }
        meant.push(("--fp16", "Precision", Meant::Precisions(names)));
    }
    meant
}
