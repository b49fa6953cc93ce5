use super::*;
use crate::log::{LogReader, Stream};

fn facts(text: &str) -> LogFacts {
    let mut reader = LogReader::new();
    reader.feed(Stream::Merged, text.as_bytes());
    reader.finish()
}

fn failure_of(step: Step, exit: Exit, text: &str) -> Failure {
    let facts = facts(text);
    let failure = diagnose(&Ended { step, exit, rejected: None, facts: &facts, file: "net.onnx", device: "NVIDIA T4" });
    assert!(!failure.message.is_empty() && !failure.hint.is_empty());
    assert!(!failure.message.ends_with('.') || failure.message.contains(':'), "{}", failure.message);
    failure
}

fn build(text: &str) -> Failure {
    failure_of(Step::Build, Exit::Code(1), text)
}

fn run(text: &str) -> Failure {
    failure_of(Step::Run, Exit::Code(1), text)
}

const TAIL: &str = "\
[01/02/2024-03:04:05] [E] Failed to parse onnx file
[01/02/2024-03:04:05] [I] Finish parsing network model
[01/02/2024-03:04:05] [E] Parsing model failed
[01/02/2024-03:04:05] [E] Failed to create engine from model or file.
[01/02/2024-03:04:05] [E] Engine set up failed
";

#[test]
fn a_parse_error_names_its_node() {
    let text = format!(
        "&&&& RUNNING TensorRT.trtexec [TensorRT v8406] # trtexec --onnx=net.onnx\n\
         [01/02/2024-03:04:05] [E] [TRT] ModelImporter.cpp:748: While parsing node number 12 [Range -> \"652\"]:\n\
         [01/02/2024-03:04:05] [E] [TRT] ModelImporter.cpp:749: --- Begin node ---\n\
         [01/02/2024-03:04:05] [E] [TRT] ModelImporter.cpp:750: input: \"1055\"\n\
         input: \"648\"\n\
         output: \"652\"\n\
         name: \"Range_12\"\n\
         op_type: \"Range\"\n\
         attribute {{\n  name: \"axis\"\n}}\n\n\
         [01/02/2024-03:04:05] [E] [TRT] ModelImporter.cpp:751: --- End node ---\n\
         [01/02/2024-03:04:05] [E] [TRT] ModelImporter.cpp:754: ERROR: ModelImporter.cpp:162 In function parseGraph:\n\
         [6] Invalid Node - Range_12\n\
         All inputs to range should be initializers.\n{TAIL}"
    );
    let failure = build(&text);
    let node = Node { index: Some(12), name: "Range_12".into(), operator: "Range".into(), domain: String::new() };
    assert_eq!(failure.kind, FailureKind::Parse { node: Some(node) });
    assert_eq!(failure.class, FailureClass::Model);
    assert_eq!(
        failure.message,
        "TensorRT 8.4.6 cannot read net.onnx at node 12 (Range_12, Range): All inputs to range should be initializers."
    );
}

#[test]
fn an_unsupported_operator_of_8_and_10() {
    let old = format!(
        "[E] [TRT] ModelImporter.cpp:720: While parsing node number 3 [Det -> \"d\"]:\n\
         [E] [TRT] ModelImporter.cpp:721: --- Begin node ---\n\
         [E] [TRT] ModelImporter.cpp:722: input: \"a\"\nname: \"Det_3\"\nop_type: \"Det\"\n\
         [E] [TRT] ModelImporter.cpp:723: --- End node ---\n\
         [E] [TRT] ModelImporter.cpp:726: ERROR: builtin_op_importers.cpp:4643 In function importFallbackPluginImporter:\n\
         [8] Assertion failed: creator && \"Plugin not found, are the plugin name, version, and namespace correct?\"\n{TAIL}"
    );
    for (text, index, name) in [
        (old.as_str(), Some(3), "Det_3"),
        (
            "[E] In node 3 with name: /Det and operator: Det (checkFallbackPluginImporter): UNSUPPORTED_NODE: Assertion failed: creator\n",
            Some(3),
            "/Det",
        ),
        (
            "[E] [TRT] While parsing node number 3 [Det -> \"d\"]:\n[8] No importer registered for op: Det\n",
            Some(3),
            "",
        ),
    ] {
        let failure = build(text);
        let node = Node { index, name: name.into(), operator: "Det".into(), domain: String::new() };
        assert_eq!(failure.kind, FailureKind::UnsupportedOperator { node }, "{text}");
        assert!(failure.message.contains("no operator Det"), "{}", failure.message);
    }
}

#[test]
fn an_operator_of_a_foreign_domain_wants_a_plugin() {
    let failure = build(
        "[TRT] [E] ModelImporter.cpp:963: While parsing node number 7 [TRTBatchedNMS -> \"/o\"]:\n\
         [TRT] [E] ModelImporter.cpp:964: --- Begin node ---\n\
         input: \"a\"\nname: \"/TRTBatchedNMS\"\nop_type: \"TRTBatchedNMS\"\ndomain: \"mmdeploy\"\n\n\
         [TRT] [E] ModelImporter.cpp:965: --- End node ---\n\
         [TRT] [E] ModelImporter.cpp:968: ERROR: onnxOpCheckers.cpp:819 In function checkFallbackPluginImporter:\n\
         [6] creator && \"Plugin not found, are the plugin name, version, and namespace correct?\"\n",
    );
    assert_eq!(failure.kind, FailureKind::PluginMissing { plugin: Some("TRTBatchedNMS".into()) });
}

#[test]
fn no_implementation_is_memory_when_memory_was_short() {
    let line = "[E] Error[10]: Could not find any implementation for node {ForeignNode[(Unnamed Layer* 5) [Constant].../MatMul]}.\n\
                [E] Error[10]: [optimizer.cpp::computeCosts::3873] Error Code 10: Internal Error (Could not find any implementation for node {ForeignNode[(Unnamed Layer* 5) [Constant].../MatMul]}.)\n";
    let failure = build(line);
    let node = "{ForeignNode[(Unnamed Layer* 5) [Constant].../MatMul]}";
    assert_eq!(failure.kind, FailureKind::NoImplementation { node: node.into(), memory: false });
    assert_eq!(failure.class, FailureClass::Model);
    let short = "[W] [TRT] Skipping tactic 2 due to insufficient memory on requested size of 34359738368 detected for tactic 0x2.\n";
    let failure = build(&format!("{short}{line}"));
    assert_eq!(failure.kind, FailureKind::NoImplementation { node: node.into(), memory: true });
    assert_eq!((failure.class, failure.retry), (FailureClass::Resource, Retry::WithMoreMemory));
    let told = "[E] Error[10]: [optimizer.cpp::computeCosts::3728] Error Code 10: Internal Error (Could not find any implementation for node conv1 + relu due to insufficient workspace. See verbose log for requested sizes.)\n";
    let failure = build(told);
    assert_eq!(failure.kind, FailureKind::NoImplementation { node: "conv1 + relu".into(), memory: true });
    let plain = "[E] Error[10]: IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any implementation for node /a/Add (b).)\n";
    let FailureKind::NoImplementation { node, memory: false } = build(plain).kind else { panic!() };
    assert_eq!(node, "/a/Add (b)");
}

#[test]
fn memory_has_a_number() {
    let failure = build(
        "[E] Error[2]: [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory (no further information)\n\
         [W] [TRT] Requested amount of GPU memory (34359738368 bytes) could not be allocated. There may not be enough free memory for allocation to succeed.\n\
         [E] Engine could not be created from network\n",
    );
    assert_eq!(failure.kind, FailureKind::DeviceMemory { requested_bytes: Some(34_359_738_368) });
    assert_eq!(failure.class, FailureClass::Resource);
    assert_eq!(failure.message, "NVIDIA T4 ran out of memory for net.onnx: 32768 MiB were asked for");
    let failure = run("Cuda failure: out of memory\n");
    assert_eq!(failure.kind, FailureKind::DeviceMemory { requested_bytes: None });
    let failure =
        failure_of(Step::Build, Exit::Signal(6), "terminate called after throwing an instance of 'std::bad_alloc'\n");
    assert_eq!(failure.kind, FailureKind::HostMemory { requested_bytes: None });
    let failure = failure_of(Step::Build, Exit::OverMemory { limit_bytes: 1 << 30 }, "");
    assert_eq!(failure.message, "trtexec was stopped above 1024 MiB of memory while it worked on net.onnx");
}

#[test]
fn plans_of_other_versions_and_devices() {
    for (text, kind) in [
        (
            "[TRT] [E] 6: The engine plan file is generated on an incompatible device, expecting compute 8.0 got compute 8.9, please rebuild.\n\
             [TRT] [E] 2: [engine.cpp::deserializeEngine::1148] Error Code 2: Internal Error (Assertion engine->deserialize(start, size, allocator, runtime) failed. )\n",
            FailureKind::WrongDevice { device: Some("8.0".into()), plan: Some("8.9".into()) },
        ),
        (
            "[TensorRT] IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is generated on an incompatible device, expecting compute 8.9 got compute 8.6, please rebuild.)\n",
            FailureKind::WrongDevice { device: Some("8.9".into()), plan: Some("8.6".into()) },
        ),
        (
            "[TRT] [E] 6: The engine plan file is not compatible with this version of TensorRT, expecting library version 8.2.3 got 8.2.1, please rebuild.\n",
            FailureKind::PlanVersion { runtime: Some("8.2.3".into()), plan: Some("8.2.1".into()) },
        ),
        (
            "[E] IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current Version: 240, Serialized Engine Version: 239)\n",
            FailureKind::PlanVersion { runtime: Some("format 240".into()), plan: Some("format 239".into()) },
        ),
        (
            "[E] [TRT] 1: [stdArchiveReader.cpp::StdArchiveReader::30] Error Code 1: Serialization (Serialization assertion magicTagRead == kMAGIC_TAG failed.Magic tag does not match)\n",
            FailureKind::PlanDamaged,
        ),
        (
            "[E] 4: [runtime.cpp::deserializeCudaEngine::50] Error Code 4: Internal Error (Engine deserialization failed.)\n",
            FailureKind::Load,
        ),
    ] {
        assert_eq!(run(text).kind, kind, "{text}");
    }
}

#[test]
fn shapes() {
    for (text, tensor) in [
        (
            "[E] Static model does not take explicit shapes since the shape of inference tensors will be determined by the model itself\n",
            None,
        ),
        ("[E] Cannot find input tensor with name \"images\" in the network inputs! Please make sure\n", Some("images")),
        (
            "[E] [TRT] 3: Error Code 3: API Usage Error (Parameter check failed, condition: profileMaxDims.d[i] >= dimensions.d[i]. Supplied binding dimension [10,3] for bindings[0] exceed min ~ max range at index 0)\n",
            Some("0"),
        ),
        (
            "[E] Error[3]: condition: satisfyProfile Runtime dimension does not satisfy any optimization profile.)\n",
            None,
        ),
    ] {
        assert_eq!(build(text).kind, FailureKind::Shape { tensor: tensor.map(str::to_owned) }, "{text}");
    }
    let profile = "[E] Error[4]: Specified optimization profiles must satisfy MIN<=OPT<=MAX.\n";
    assert_eq!(build(profile).kind, FailureKind::InvalidProfile { tensor: None });
}

#[test]
fn hosts_without_libraries_drivers_or_options() {
    let linker = "trtexec: error while loading shared libraries: libnvinfer.so.10: cannot open shared object file: No such file or directory\n";
    let failure = failure_of(Step::Build, Exit::Code(127), linker);
    assert_eq!(failure.kind, FailureKind::MissingLibrary { library: "libnvinfer.so.10".into() });
    assert_eq!((failure.class, failure.retry), (FailureClass::Infrastructure, Retry::Elsewhere));
    let resource =
        "[E] [TRT] Unable to load library: libnvinfer_builder_resource.so.10.3.0: cannot open shared object file\n";
    let failure = build(resource);
    assert_eq!(failure.kind, FailureKind::MissingLibrary { library: "libnvinfer_builder_resource.so.10.3.0".into() });
    assert_eq!(build("[E] Unknown option: --foo 1\n").kind, FailureKind::UnknownOption { option: "--foo 1".into() });
    let driver = "Cuda failure: CUDA driver version is insufficient for CUDA runtime version\n";
    assert_eq!(build(driver).kind, FailureKind::Driver);
    assert_eq!(build("[E] Cannot find device ID 3!\n").kind, FailureKind::Driver);
    let plugin = "&&&& RUNNING TensorRT.trtexec [TensorRT v101300] [b35] # trtexec --dynamicPlugins=/p/libmine.so\n\
                  [E] Could not load library /p/libmine.so: undefined symbol\n";
    assert_eq!(build(plugin).kind, FailureKind::PluginMissing { plugin: Some("/p/libmine.so".into()) });
}

#[test]
fn assertions_empty_engines_and_crashes() {
    let hidden = "[E] Error[1]: Unexpected exception KTM assertion failure:\n    /_src/model.cpp:65  shader != nullptr\n\
                  [I] Created engine with size: 0 MiB\n\
                  [E] Assertion failure: false && \"Attempting to access an empty engine!\"\n";
    let failure = build(hidden);
    assert_eq!(failure.kind, FailureKind::EmptyEngine);
    assert!(failure.evidence.contains("shader != nullptr"));
    assert_eq!(build(hidden.lines().next().unwrap()).kind, FailureKind::Assertion);
    let empty = "[E] Error[2]: something\n[I] Created engine with size: 0 MiB\n\
                 [E] Assertion failure: false && \"Attempting to access an empty engine!\"\n";
    let failure = build(empty);
    assert_eq!(failure.kind, FailureKind::EmptyEngine);
    assert!(failure.message.ends_with("Error[2]: something"), "{}", failure.message);
    assert_eq!(failure.class, FailureClass::Model);
    let crashed = failure_of(Step::Build, Exit::Signal(11), "");
    assert_eq!(crashed.kind, FailureKind::Crashed { signal: 11 });
    assert_eq!((crashed.class, crashed.retry), (FailureClass::Infrastructure, Retry::Again));
    let killed = failure_of(Step::Build, Exit::Signal(9), "");
    assert_eq!((killed.kind, killed.class), (FailureKind::Killed { signal: 9 }, FailureClass::Infrastructure));
    assert_eq!(build("Cuda failure: an illegal memory access was encountered\n").kind, FailureKind::Cuda);
}

#[test]
fn time_calibration_and_the_rest() {
    let failure = failure_of(Step::Build, Exit::TimedOut { limit_ms: 5000 }, "[E] whatever\n");
    assert_eq!((failure.kind, failure.retry), (FailureKind::TimedOut, Retry::Never));
    assert_eq!(failure.message, "trtexec was stopped after 5 s while it worked on net.onnx");
    assert_eq!(failure_of(Step::Run, Exit::Hung { silent_ms: 90_000 }, "").kind, FailureKind::Hung);
    assert_eq!(
        build("[E] [TRT] Calibration failure occurred with no scaling factors detected.\n").kind,
        FailureKind::Calibration
    );
    assert_eq!(build("[E] [TRT] TimingCache creation failed\n").kind, FailureKind::TimingCache);
    let other = build("[E] something new\n[E] Engine set up failed\n");
    assert_eq!(other.message, "trtexec failed on net.onnx (exit status 1): something new");
}

#[test]
fn sizes_are_found_in_sentences() {
    assert_eq!(bytes_in("amount (4294967296 bytes) could"), Some(4_294_967_296));
    assert_eq!(bytes_in("request: 5000MB Available: 4000MB"), Some(5000 << 20));
    assert_eq!(bytes_in("code 2 at v10.3.0, 12 GiB"), Some(12 << 30));
    assert_eq!(bytes_in("99999999999999999999999 bytes"), None);
    assert_eq!(bytes_in("no size 12"), None);
}
