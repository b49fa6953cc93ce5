//! Puts a failure into words: message, hint, class and retry rule in one place.

use super::{Ended, Failure, FailureKind, Found, Node, Retry, Step, load::class_of_empty};
use crate::acceptance::{Exit, first_line};
use planforge_types::FailureClass;

pub(super) fn describe(ended: &Ended<'_>, found: Found) -> Failure {
    let Ended { file, device, exit, .. } = *ended;
    let version = ended.facts.version();
    let tensorrt = version.map_or_else(|| "TensorRT".to_owned(), |version| format!("TensorRT {}", version.release()));
    let evidence = found.evidence;
    let said = if evidence.is_empty() { String::new() } else { format!(": {}", first_line(&evidence)) };
    let (class, retry, message, hint) = match &found.kind {
        FailureKind::Parse { node: Some(node) } => (
            FailureClass::Model,
            Retry::OtherVersion,
            format!("{tensorrt} cannot read {file} at {}{}", name(node), reason(&evidence)),
            "change the node or export the model with another opset; a newer TensorRT may read it".to_owned(),
        ),
        FailureKind::Parse { node: None } => (
            FailureClass::Model,
            Retry::Never,
            format!("{tensorrt} cannot read {file}{}", reason(&evidence)),
            "check the file with an ONNX checker; external data must lie beside it".to_owned(),
        ),
        FailureKind::UnsupportedOperator { node } => (
            FailureClass::Model,
            Retry::OtherVersion,
            format!("{tensorrt} has no operator {}, which {file} uses at {}", node.operator, name(node)),
            "export without the operator, give a plugin for it, or use a TensorRT that has it".to_owned(),
        ),
        FailureKind::PluginMissing { plugin } => (
            FailureClass::Model,
            Retry::Never,
            match plugin {
                Some(plugin) if !plugin.is_empty() => format!("{file} needs the plugin {plugin}, which is not loaded"),
                _ => format!("{file} needs a plugin that is not loaded{said}"),
            },
            "name the plugin library in the build spec; the farm's operator must allow its digest".to_owned(),
        ),
        FailureKind::NoImplementation { node, memory: true } => (
            FailureClass::Resource,
            Retry::WithMoreMemory,
            format!("{tensorrt} left out every tactic for node {node} of {file} on {device} for want of memory"),
            "raise the workspace limit, lower the batch or the largest shape, or build for a device with more memory"
                .to_owned(),
        ),
        FailureKind::NoImplementation { node, memory: false } => (
            FailureClass::Model,
            Retry::OtherVersion,
            format!("{tensorrt} has no tactic for node {node} of {file} on {device}"),
            "try a larger workspace, another precision for this layer, or another TensorRT version".to_owned(),
        ),
        FailureKind::DeviceMemory { requested_bytes } => (
            FailureClass::Resource,
            Retry::WithMoreMemory,
            format!("{device} ran out of memory for {file}{}", amount(*requested_bytes)),
            memory_hint(ended),
        ),
        FailureKind::HostMemory { requested_bytes } => (
            FailureClass::Resource,
            Retry::WithMoreMemory,
            match exit {
                Exit::OverMemory { .. } => format!("trtexec was {exit} while it worked on {file}"),
                _ => format!("the host ran out of memory for {file}{}", amount(*requested_bytes)),
            },
            "give the agent's host more memory, or lower the model's size".to_owned(),
        ),
        FailureKind::Disk => (
            FailureClass::Infrastructure,
            Retry::Elsewhere,
            format!("the disk was full or failed while trtexec worked on {file}{said}"),
            "free space in the agent's scratch folder, or look for errors of its disk in the kernel's log".to_owned(),
        ),
        FailureKind::WritingPlan => (
            FailureClass::Infrastructure,
            Retry::Elsewhere,
            format!("trtexec could not write the plan of {file}{said}"),
            "look at the disk of the agent's scratch folder: it may be full or failing".to_owned(),
        ),
        FailureKind::UnknownGpu { capability } => (
            FailureClass::Model,
            Retry::OtherVersion,
            format!(
                "{tensorrt} does not know this GPU: {device}{}{said}",
                capability.as_ref().map(|c| format!(" of compute capability {c}")).unwrap_or_default()
            ),
            "use a TensorRT version that has this GPU (docs/tensorrt.md lists them); plugins must be compiled for it too"
                .to_owned(),
        ),
        FailureKind::Precision { precision } => (
            FailureClass::Model,
            Retry::Never,
            format!("{device} has no hardware for {}, which {file} was to use{said}", precision.as_deref().unwrap_or("the precision")),
            "ask for another precision, or build for a device kind that has it".to_owned(),
        ),
        FailureKind::MissingWeights => (
            FailureClass::Model,
            Retry::Never,
            format!("weights of {file} are missing or cannot be read{}", reason(&evidence)),
            "submit the model with its external data files beside it, in types that this version reads".to_owned(),
        ),
        FailureKind::PlanVersion { runtime, plan } => (
            FailureClass::Model,
            Retry::OtherVersion,
            format!(
                "{file} was built by another version: the runtime is {}, the plan {}",
                runtime.as_deref().unwrap_or("unknown"),
                plan.as_deref().unwrap_or("unknown")
            ),
            "build it with the version that is to load it, or with version compatibility from 8.6 on".to_owned(),
        ),
        FailureKind::PlanDamaged => (
            FailureClass::Infrastructure,
            Retry::Again,
            match ended.step {
                Step::Build => format!("what trtexec wrote of {file} is no whole plan{said}"),
                Step::Run => format!("{file} is no whole TensorRT plan{said}"),
            },
            match ended.step {
                Step::Build => "look at the disk of the agent's scratch folder: it may be full or failing",
                Step::Run => "fetch or build it again; some exporters put a description in front of the plan",
            }
            .to_owned(),
        ),
        FailureKind::WrongDevice { device: here, plan } => (
            FailureClass::Model,
            Retry::Never,
            format!(
                "{file} was built for compute capability {}; {device} has {}",
                plan.as_deref().unwrap_or("of another device"),
                here.as_deref().unwrap_or("another")
            ),
            "build the model for this device, or with hardware compatibility".to_owned(),
        ),
        FailureKind::InvalidProfile { tensor } => (
            FailureClass::Model,
            Retry::Never,
            match tensor {
                Some(tensor) => format!("the optimization profile for {tensor} of {file} is not valid{said}"),
                None => format!("an optimization profile of {file} is not valid{said}"),
            },
            "give every dynamic input sizes with min <= opt <= max that the model's graph allows at all three".to_owned(),
        ),
        FailureKind::NegativeDimension { tensor } => (
            FailureClass::Model,
            Retry::Never,
            match tensor {
                Some(tensor) => format!("the shapes given make a dimension of {tensor} in {file} negative{said}"),
                None => format!("the shapes given make a dimension in {file} negative{said}"),
            },
            "give larger sizes: somewhere the model subtracts more than there is, in a slice, a pad or a convolution".to_owned(),
        ),
        FailureKind::Shape { tensor } => (
            FailureClass::Model,
            Retry::Never,
            match tensor {
                Some(tensor) => format!("{file} does not take the shape given for {tensor}{said}"),
                None => format!("{file} does not take the shapes given{said}"),
            },
            "give shapes for exactly the inputs with dynamic dimensions, each within its profile".to_owned(),
        ),
        FailureKind::Calibration => (
            FailureClass::Model,
            Retry::Never,
            format!("int8 calibration is missing or does not fit {file}{said}"),
            "give a calibration cache made by the same TensorRT version, or a model with Q/DQ nodes".to_owned(),
        ),
        FailureKind::UnknownOption { option } => (
            FailureClass::Model,
            Retry::OtherVersion,
            format!("{tensorrt} does not know the option {option}").trim_end().to_owned(),
            "leave the option out of the build spec, or use a version that has it".to_owned(),
        ),
        FailureKind::MissingLibrary { library } => (
            FailureClass::Infrastructure,
            Retry::Elsewhere,
            match library.as_str() {
                "" => "trtexec cannot be started: the program or one of its libraries is missing".to_owned(),
                library => format!("trtexec cannot use {library}{said}"),
            },
            "install the library on the agent's host or add its folder to the loader's path; `planforge doctor` tells more"
                .to_owned(),
        ),
        FailureKind::Driver => (
            FailureClass::Infrastructure,
            Retry::Elsewhere,
            format!("the CUDA driver cannot serve {device}{said}"),
            "install a driver that fits this TensorRT's CUDA; `planforge doctor` shows both".to_owned(),
        ),
        FailureKind::Cuda => (
            FailureClass::Infrastructure,
            Retry::Again,
            format!("CUDA failed on {device} while trtexec worked on {file}{said}"),
            "look for Xid errors in the kernel's log; the device may need a reset".to_owned(),
        ),
        FailureKind::Kernel => (
            FailureClass::Infrastructure,
            Retry::Again,
            format!("a kernel of {tensorrt} failed on {device} while trtexec worked on {file}{said}"),
            "look for Xid errors in the kernel's log; if it fails so everywhere, try another version or precision".to_owned(),
        ),
        FailureKind::Myelin => (
            FailureClass::Model,
            Retry::OtherVersion,
            format!("the graph compiler of {tensorrt} (Myelin) cannot compile {file} for {device}{said}"),
            "try another TensorRT version, precision or optimization level, or change the part of the model it names".to_owned(),
        ),
        FailureKind::ToolAssertion => (
            FailureClass::Infrastructure,
            Retry::Again,
            format!("trtexec stopped at an assertion of its own while it worked on {file}{said}"),
            "the attempt's log has what came before; look for Xid errors in the kernel's log".to_owned(),
        ),
        FailureKind::TimingCache => (
            FailureClass::Infrastructure,
            Retry::Again,
            format!("the timing cache cannot be used{said}"),
            "the farm leaves such a cache out of the next attempt".to_owned(),
        ),
        FailureKind::Assertion => (
            FailureClass::Model,
            Retry::OtherVersion,
            format!("{tensorrt} failed an assertion of its own on {file}{said}"),
            "try another TensorRT version, precision or optimization level, and report it to the vendor".to_owned(),
        ),
        FailureKind::EmptyEngine => (
            class_of_empty(&evidence),
            Retry::OtherVersion,
            format!("{tensorrt} made an empty engine of {file}{said}"),
            "this version hides its builder's failure: try another one, or read the attempt's log".to_owned(),
        ),
        FailureKind::Load => (
            FailureClass::Model,
            Retry::OtherVersion,
            format!("{tensorrt} cannot load the plan of {file} on {device}{said}"),
            "build it with this version for this device".to_owned(),
        ),
        FailureKind::TimedOut => (
            FailureClass::Resource,
            Retry::Never,
            format!("trtexec was {exit} while it worked on {file}"),
            "raise the agent's time limit, lower the optimization level, or give a timing cache".to_owned(),
        ),
        FailureKind::Hung => (
            FailureClass::Infrastructure,
            Retry::Again,
            format!("trtexec was {exit} while it worked on {file}"),
            "look for Xid errors in the kernel's log; a device that hangs again needs a reset".to_owned(),
        ),
        FailureKind::Killed { signal } => (
            FailureClass::Infrastructure,
            Retry::Again,
            format!("something on the host killed trtexec (signal {signal}) while it worked on {file}"),
            "look for the kernel's out-of-memory killer in its log".to_owned(),
        ),
        FailureKind::Crashed { signal } => (
            FailureClass::Infrastructure,
            Retry::Again,
            format!("{tensorrt} crashed (signal {signal}) on {file}{said}"),
            "try another TensorRT version or a lower optimization level, and report it to the vendor".to_owned(),
        ),
        // Nobody knows whose fault it was, so nothing is remembered of it.
        FailureKind::Other => (
            FailureClass::Infrastructure,
            Retry::Again,
            format!("trtexec failed on {file} ({exit}){said}"),
            "the attempt's log has all it said".to_owned(),
        ),
    };
    Failure { class, retry, message, hint, evidence, kind: found.kind }
}

fn memory_hint(ended: &Ended<'_>) -> String {
    match ended.step {
        Step::Build => {
            "lower the workspace limit, the batch or the largest shape, or build for a device with more memory"
        }
        Step::Run => "measure with fewer streams or smaller shapes, or on a device with more memory",
    }
    .to_owned()
}

fn amount(bytes: Option<u64>) -> String {
    match bytes {
        Some(bytes) if bytes >= 1 << 20 => format!(": {} MiB were asked for", bytes >> 20),
        Some(bytes) => format!(": {bytes} bytes were asked for"),
        None => String::new(),
    }
}

/// `node 5 (Range_271, Range)`
fn name(node: &Node) -> String {
    let mut text = "node".to_owned();
    if let Some(index) = node.index {
        text.push_str(&format!(" {index}"));
    }
    match (node.name.as_str(), node.operator.as_str()) {
        ("", "") => {}
        ("", only) | (only, "") => text.push_str(&format!(" ({only})")),
        (name, operator) => text.push_str(&format!(" ({name}, {operator})")),
    }
    text
}

/// The last line of the parser's message: the first ones name its own source files, and newer ones end with the node.
fn reason(evidence: &str) -> String {
    let says = |line: &&str| !line.is_empty() && !line.contains(super::onnx::NODE_NAME);
    match evidence.lines().map(str::trim).rfind(says) {
        Some(line) => format!(": {line}"),
        None => String::new(),
    }
}
