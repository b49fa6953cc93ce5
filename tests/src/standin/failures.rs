//! What goes wrong, in the tool's words: error lines on standard error, then the verdict's way out.

use super::{Stop, console::Console, model::Seen, scenario::Gpu, version::Version};
use nix::sys::signal::{SigHandler, Signal, signal};
use std::io::{self, Write as _};

/// An error of the library: by file up to 9.x, by method from 10.0.
pub fn library_error(console: &Console, version: Version, code: u32, place: (&str, &str), class: &str, text: &str) {
    let (file, method) = place;
    let place = if version.names_methods() { format!("{method}:") } else { format!("[{file}]") };
    console.error(&format!("Error[{code}]: {place} Error Code {code}: {class} ({text})"));
}

/// The way out of a build.
pub fn build_failed(console: &Console, whole_build: bool) -> Stop {
    if whole_build {
        console.error("Engine could not be created from network");
        console.error("Building engine failed");
    }
    console.error("Failed to create engine from model or file.");
    console.error("Engine set up failed");
    Stop::Failed
}

/// A node that the parser cannot take; `reason` is what it says of it.
pub fn parse_error(console: &Console, version: Version, seen: &Seen, node: usize, reason: &str) -> Stop {
    let fallback = (String::new(), "Unknown".to_owned(), String::new());
    let (name, operator, output) = seen.nodes.get(node).unwrap_or(&fallback);
    let line = if version.names_methods() { 948 } else { 726 };
    let importer =
        |offset: u32, text: &str| console.error(&format!("[TRT] ModelImporter.cpp:{}: {text}", line + offset));
    importer(0, &format!("While parsing node number {node} [{operator} -> \"{output}\"]:"));
    let body = format!("output: \"{output}\"\nname: \"{name}\"\nop_type: \"{operator}\"\n");
    if version.names_methods() {
        importer(1, &format!("--- Begin node ---\n{body}"));
    } else {
        importer(1, "--- Begin node ---");
        importer(2, &body);
    }
    importer(3, "--- End node ---");
    importer(5, &format!("ERROR: {reason}"));
    parsing_failed(console, version)
}

/// An operator that neither the parser nor a plugin knows.
pub fn unsupported_operator(console: &Console, version: Version, seen: &Seen, operator: &str) -> Stop {
    let node = seen.nodes.iter().position(|(_, op, _)| op == operator).unwrap_or(0);
    let lost = "Plugin not found, are the plugin name, version, and namespace correct?";
    if version.names_methods() {
        let text = format!(
            "IPluginRegistry::getCreator: Error Code 4: API Usage Error (Cannot find plugin: {operator}, version: 1, namespace:.)"
        );
        console.error(&format!("[TRT] {text}"));
        let reason =
            format!("onnxOpCheckers.cpp:781 In function checkFallbackPluginImporter:\n[6] creator && \"{lost}\"");
        return parse_error(console, version, seen, node, &reason);
    }
    console.error(&format!("[TRT] 3: getPluginCreator could not find plugin: {operator} version: 1"));
    let reason = format!(
        "builtin_op_importers.cpp:4890 In function importFallbackPluginImporter:\n[8] Assertion failed: creator && \"{lost}\""
    );
    parse_error(console, version, seen, node, &reason)
}

/// The end of parsing that found no network.
pub fn parsing_failed(console: &Console, version: Version) -> Stop {
    console.error("Failed to parse onnx file");
    console.info(finished_parsing(version));
    console.error("Parsing model failed");
    build_failed(console, false)
}

/// What ends parsing; from 8.5 on in the past tense, with the time where it went well.
pub fn finished_parsing(version: Version) -> &'static str {
    if version >= Version::new(8, 6, 0) { "Finished parsing network model." } else { "Finish parsing network model" }
}

const BUILDER: (&str, &str) = ("optimizer.cpp::computeCosts::3873", "IBuilder::buildSerializedNetwork");

pub fn no_implementation(console: &Console, version: Version, node: &str) -> Stop {
    let text = format!("Could not find any implementation for node {node}.");
    if version.major() < 10 {
        console.error(&format!("Error[10]: {text}"));
    }
    library_error(console, version, 10, BUILDER, "Internal Error", &text);
    build_failed(console, true)
}

pub fn tactics_lack_memory(console: &Console, version: Version, gpu: &Gpu, requested_mib: u64) {
    let available = gpu.memory_mib.min(requested_mib / 2);
    console.warning(&format!(
        "[TRT] Tactic Device request: {requested_mib}MB Available: {available}MB. Device memory is insufficient to use tactic."
    ));
    let way = if version >= Version::new(8, 4, 0) { "setMemoryPoolLimit" } else { "setMaxWorkspaceSize" };
    console.warning(&format!(
        "[TRT] Skipping tactic 0 due to insufficient memory on requested size of {} detected for tactic 0x0000000000000000.\nTry decreasing the workspace size with IBuilderConfig::{way}().",
        requested_mib << 20
    ));
}

pub fn out_of_memory(console: &Console, version: Version, requested_bytes: u64, building: bool) -> Stop {
    let place = ("virtualMemoryBuffer.cpp::resizePhysical::127", "IExecutionContext::createExecutionContext");
    library_error(
        console,
        version,
        1,
        ("defaultAllocator.cpp::allocate::21", "allocate"),
        "Cuda Runtime",
        "out of memory",
    );
    console.warning(&format!(
        "[TRT] Requested amount of GPU memory ({requested_bytes} bytes) could not be allocated. There may not be enough free memory for allocation to succeed."
    ));
    library_error(
        console,
        version,
        2,
        place,
        "OutOfMemory",
        "Requested size was too large for the memory that is free.",
    );
    if building {
        return build_failed(console, true);
    }
    console.error("Unable to create execution context.");
    console.error("Inference set up failed");
    Stop::Failed
}

pub fn calibration_missing(console: &Console, version: Version) -> Stop {
    console.warning("[TRT] Calibrator is not being used. Users must provide dynamic range for all tensors that are not Int32 or Bool.");
    let place = ("standardEngineBuilder.cpp::initCalibrationParams::1462", "IBuilder::buildSerializedNetwork");
    let text = "Calibration failure occurred with no scaling factors detected. This could be due to no int8 calibrator or insufficient custom scales for network layers. Please see int8 sample to setup calibration correctly.";
    library_error(console, version, 4, place, "Internal Error", text);
    build_failed(console, true)
}

/// The plan's layout is another version's.
pub fn version_tag(console: &Console, version: Version, plan_tag: u32) -> Stop {
    let constant = if version.names_methods() { "kSERIALIZATION_VERSION" } else { "serializationVersion" };
    let text = format!(
        "Serialization assertion stdVersionRead == {constant} failed.Version tag does not match. Note: Current Version: {}, Serialized Engine Version: {plan_tag}",
        version.serialization()
    );
    let place = ("stdArchiveReader.cpp::StdArchiveReader::42", "IRuntime::deserializeCudaEngine");
    library_error(console, version, 1, place, "Serialization", &text);
    not_deserialized(console, version)
}

/// The plan is another version's of the same layout.
pub fn version_differs(console: &Console, version: Version, plan: Version) -> Stop {
    let text = format!(
        "The engine plan file is not compatible with this version of TensorRT, expecting library version {} got {}, please rebuild.",
        version.short(),
        plan.short()
    );
    unusable(console, version, &text)
}

pub fn wrong_device(console: &Console, version: Version, here: (u32, u32), plan: (u32, u32)) -> Stop {
    let text = format!(
        "The engine plan file is generated on an incompatible device, expecting compute {}.{} got compute {}.{}, please rebuild.",
        here.0, here.1, plan.0, plan.1
    );
    unusable(console, version, &text)
}

fn unusable(console: &Console, version: Version, text: &str) -> Stop {
    if version.names_methods() {
        console.error(&format!("Error[6]: IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error ({text})"));
    } else {
        console.error(&format!("Error[6]: {text}"));
        library_error(
            console,
            version,
            4,
            ("runtime.cpp::deserializeCudaEngine::66", ""),
            "Internal Error",
            "Engine deserialization failed.",
        );
    }
    not_deserialized(console, version)
}

/// No plan at all.
pub fn magic_tag(console: &Console, version: Version) -> Stop {
    let constant = if version.names_methods() { "kPLAN_MAGIC_TAG" } else { "kMAGIC_TAG" };
    let text = format!("Serialization assertion magicTagRead == {constant} failed.Magic tag does not match");
    let place = ("stdArchiveReader.cpp::StdArchiveReader::30", "IRuntime::deserializeCudaEngine");
    library_error(console, version, 1, place, "Serialization", &text);
    not_deserialized(console, version)
}

fn not_deserialized(console: &Console, version: Version) -> Stop {
    console.error("Engine deserialization failed");
    if version.major() < 10 {
        console.error("Engine set up failed");
        return Stop::Failed;
    }
    console.error("Got invalid engine!");
    console.error("Inference set up failed");
    Stop::Failed
}

pub fn bad_shape(console: &Console, version: Version, input: &str) -> Stop {
    let place = ("executionContext.cpp::setInputShape::2037", "IExecutionContext::setInputShape");
    let text = format!(
        "Parameter check failed, condition: engineDims.d[i] == dims.d[i]. Static dimension mismatch while setting input shape for {input}."
    );
    library_error(console, version, 3, place, "API Usage Error", &text);
    console.error("Inference set up failed");
    Stop::Failed
}

pub fn outside_profile(console: &Console, version: Version, input: &str, dims: &[i64], profile: usize) -> Stop {
    let place = ("shapeContext.cpp::volume::2037", "IExecutionContext::setInputShape");
    let text = format!(
        "Parameter check failed, condition: satisfyProfile. Set dimension {dims:?} for tensor {input} does not satisfy any optimization profiles. Tried profile {profile}."
    );
    library_error(console, version, 3, place, "API Usage Error", &text);
    console.error("Inference set up failed");
    Stop::Failed
}

/// Never ends, and minds no polite signal.
pub fn hang() -> ! {
    // SAFETY: ignoring a signal installs no handler, so nothing can run in one.
    let ignored = unsafe { signal(Signal::SIGTERM, SigHandler::SigIgn) };
    if ignored.is_err() {
        super::console::complain("the stand-in cannot ignore SIGTERM");
    }
    loop {
        std::thread::park();
    }
}

/// Lines until `bytes` are written to standard output.
pub fn flood(bytes: u64) {
    let line = "[01/01/2026-00:00:00] [V] [TRT] a tactic was tried that nobody will ever want to read about again\n";
    let chunk = line.repeat(64 * 1024 / line.len());
    let mut left = bytes;
    let mut out = io::stdout().lock();
    while left > 0 {
        if out.write_all(chunk.as_bytes()).is_err() {
            return;
        }
        left = left.saturating_sub(chunk.len() as u64);
    }
}
