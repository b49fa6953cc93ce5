//! Texts that others met, each with where it stands, and what they are told as.

use super::*;
use crate::log::{LogReader, Stream};

const ISSUES: &str = "github.com/";

/// What a text must come to.
struct Met {
    /// Where it was published.
    source: &'static str,
    text: &'static str,
    kind: fn(&FailureKind) -> bool,
    class: FailureClass,
    /// What the message must hold.
    told: &'static str,
}

macro_rules! met {
    ($source:literal, $text:expr, $kind:pat, $class:ident, $told:literal) => {
        Met {
            source: $source,
            text: $text,
            kind: |kind| matches!(kind, $kind),
            class: FailureClass::$class,
            told: $told,
        }
    };
}

/// The tool's way out, which follows most of them.
const TAIL: &str = "\
[E] Engine could not be created from network
[E] Building engine failed
[E] Failed to create engine from model or file.
[E] Engine set up failed
";

const MET: &[Met] = &[
    met!(
        "DDTRobot/tita_rl_sim2sim2real/issues/7",
        "[07/19/2025-23:34:55] [E] Error[9]: IBuilder::buildSerializedNetwork: Error Code 9: API Usage Error (Target GPU SM 120 is not supported by this TensorRT release.)",
        FailureKind::UnknownGpu { .. },
        Model,
        "compute capability 12.0"
    ),
    met!(
        "NVIDIA/TensorRT/issues/2727",
        "[E] [TRT] 1: [caskUtils.cpp::trtSmToCask::147] Error Code 1: Internal Error (Unsupported SM: 0x809)\n[E] [TRT] 2: Internal Error (Assertion engine != nullptr failed.)",
        FailureKind::UnknownGpu { .. },
        Model,
        "compute capability 8.9"
    ),
    met!(
        "NVIDIA/TensorRT/issues/3826",
        "[04/25/2024-15:52:54] [TRT] [E] 1: Unsupported SM: 0x601\n[04/25/2024-15:52:54] [TRT] [E] 1: [caskUtils.cpp::nvinfer1::rt::task::trtSmToCask::193] Error Code 1: Internal Error (Unsupported SM: 0x601)",
        FailureKind::UnknownGpu { .. },
        Model,
        "compute capability 6.1"
    ),
    met!(
        "NVIDIA/TensorRT/issues/2332",
        "[F] [TRT] Assertion failed: Unsupported SM.\n../rtSafe/cuda/caskUtils.cpp:80\nAborting...",
        FailureKind::UnknownGpu { capability: None },
        Model,
        "does not know this GPU"
    ),
    met!(
        "NVIDIA/TensorRT/issues/1035",
        "[F] [TRT] Assertion failed: (smVersion < SM_VERSION_A100) && \"SM version not supported in this NVRTC version\"\n[E] Engine creation failed",
        FailureKind::UnknownGpu { .. },
        Model,
        "does not know this GPU"
    ),
    met!(
        "NVIDIA/TensorRT-LLM/issues/1428",
        "[04/09/2024-16:26:41] [TRT] [E] 9: [standardEngineBuilder.cpp::buildEngine::2266] Error Code 9: Internal Error (Networks with FP8 precision require hardware with FP8 support.)",
        FailureKind::Precision { .. },
        Model,
        "no hardware for fp8"
    ),
    met!(
        "NVIDIA/Model-Optimizer/issues/70",
        "[09/11/2024-21:49:27] [E] Error[9]: IBuilder::buildSerializedNetwork: Error Code 9: API Usage Error (Networks with FP8 Q/DQ layers require hardware with FP8 support.)",
        FailureKind::Precision { .. },
        Model,
        "no hardware for fp8"
    ),
    met!(
        "NVIDIA/TensorRT/issues/4468",
        "[E] Error[2]: IBuilder::buildSerializedNetwork: Error Code 2: Internal Error (Internal Error: MyelinCheckException: gvn.cpp:318: CHECK(graph().ssa_validation()) failed.)",
        FailureKind::Myelin,
        Model,
        "ssa_validation"
    ),
    met!(
        "NVIDIA/TensorRT/issues/3291",
        "[TRT] [E] 1: No Myelin Error exists\n[TRT] [E] 1: [codeGenerator.cpp::compileGraph::894] Error Code 1: Myelin (No Myelin Error exists)",
        FailureKind::Myelin,
        Model,
        "Myelin"
    ),
    met!(
        "Kruk2/jasna/issues/156",
        "[E] [TRT] MyelinCheckException: compile resulted in null program",
        FailureKind::Myelin,
        Model,
        "null program"
    ),
    met!(
        "NVIDIA/TensorRT/issues/1466",
        "[TensorRT] ERROR: ../builder/myelin/codeGenerator.cpp (396) - Myelin Error in compileGraph: 64 ()",
        FailureKind::Other | FailureKind::Myelin,
        Model,
        "Myelin"
    ),
    met!(
        "NVIDIA/TensorRT/issues/3236",
        "[E] [TRT] 1: [raiiMyelinGraph.h::RAIIMyelinGraph::24] Error Code 1: Myelin (Compiled against cuBLASLt 11.9.2.0 but running against cuBLASLt 11.2.1.0.)",
        FailureKind::MissingLibrary { .. },
        Infrastructure,
        "cuBLASLt 11.2.1.0"
    ),
    met!(
        "lix19937/tensorrt-insight/issues/34",
        "[07/10/2024-14:43:02] [E] Error[1]: [runner.cpp::execute::718] Error Code 1: Myelin (Final synchronize failed (700))\ntrtexec: samples/common/sampleInference.cpp:844: void sample::Iteration::createEnqueueFunction(): Assertion `ret' failed.",
        FailureKind::Kernel,
        Infrastructure,
        "Final synchronize failed"
    ),
    met!(
        "lix19937/tensorrt-insight/issues/34 (without its first line)",
        "trtexec: samples/common/sampleInference.cpp:844: void sample::Iteration::createEnqueueFunction(): Assertion `ret' failed.",
        FailureKind::ToolAssertion,
        Infrastructure,
        "assertion"
    ),
    met!(
        "zerollzeng/tiny-tensorrt/issues/66",
        "[E] 1: [convolutionRunner.cpp::nvinfer1::rt::task::CaskConvolutionRunner::execute::213] Error Code 1: Cask (Cask convolution execution)\n[E] Error occurred during inference",
        FailureKind::Kernel,
        Infrastructure,
        "Cask convolution execution"
    ),
    met!(
        "NVIDIA/TensorRT/issues/301",
        "[E] [TRT] ../rtSafe/cuda/caskConvolutionRunner.cpp (245) - Cask Error in checkCaskExecError<false>: 7 (Cask Convolution execution)",
        FailureKind::Kernel,
        Infrastructure,
        "kernel"
    ),
    met!(
        "NVIDIA/TensorRT/issues/4055",
        "[E] [TRT] IExecutionContext::executeV2: Error Code 1: Cask (Cask Pooling Runner Execute Failure)",
        FailureKind::Kernel,
        Infrastructure,
        "kernel"
    ),
    met!(
        "NVIDIA/TensorRT/issues/1950",
        "[E] 2: [pluginV2DynamicExtRunner.cpp::execute::115] Error Code 2: Internal Error (Assertion status == kSTATUS_SUCCESS failed. )",
        FailureKind::Kernel,
        Infrastructure,
        "kernel"
    ),
    met!(
        "NVIDIA/TensorRT/issues/3480",
        "[E] Error[4]: [graphShapeAnalyzer.cpp::processCheck::862] Error Code 4: Internal Error ((Unnamed Layer* 15) [Slice]: ISliceLayer size elements must be non-negative, but size on axis 0 is not)",
        FailureKind::NegativeDimension { .. },
        Model,
        "negative"
    ),
    met!(
        "NVIDIA/TensorRT/issues/2740",
        "[E] 9: [graphShapeAnalyzer.cpp::addVolumeCheck::739] Error Code 9: Internal Error (out: dimension 0 never exceeds -1)\n[E] 2: [checkSanity.cpp::checkDimsSanity::42] Error Code 2: Internal Error (Symbolic relation dims.d[i] >= 0 is always false. )",
        FailureKind::NegativeDimension { .. },
        Model,
        "negative"
    ),
    met!(
        "NVIDIA/TensorRT/issues/3405",
        "[E] Error[4]: kOPT values for profile 0 violate shape constraints: IShuffleLayer Reshape_552: reshaping failed for tensor: 1860 reshape would change volume 24576 to 4096",
        FailureKind::InvalidProfile { .. },
        Model,
        "profile"
    ),
    met!(
        "NVIDIA/TensorRT/issues/939",
        "[E] [TRT] input_1: dynamic input is missing dimensions in profile 0",
        FailureKind::InvalidProfile { tensor: Some(_) },
        Model,
        "input_1"
    ),
    met!(
        "NVIDIA/TensorRT/issues/939 (second)",
        "[E] [TRT] input_1: for dimension number 1 in profile 0 does not match network definition (got min=100, opt=1024, max=4096), expected min=opt=max=1024)",
        FailureKind::InvalidProfile { .. },
        Model,
        "profile"
    ),
    met!(
        "grimoire/mmdetection-to-tensorrt/issues/97",
        "[E] 3: [executionContext.cpp::setBindingDimensions::945] Error Code 3: API Usage Error (Parameter check failed at: runtime/api/executionContext.cpp::setBindingDimensions::945, condition: profileMinDims.d[i] <= dimensions.d[i]. Supplied binding dimension [1,3,576,768] for bindings[0] exceed min ~ max range at index 2",
        FailureKind::Shape { tensor: Some(_) },
        Model,
        "shape given for 0"
    ),
    met!(
        "pytorch/TensorRT/issues/2617",
        "[E] 4: [shapeContext.cpp::operator()::3602] Error Code 4: Shape Error (reshape dimension with more than one -1 wildcard. Reshaping [21,3,(# 2 (SHAPE input_0))] to [1,21,3,-1,-1].)",
        FailureKind::Shape { .. },
        Model,
        "wildcard"
    ),
    met!(
        "NVIDIA/TensorRT/issues/2487",
        "[E] Error[4]: [shuffleNode.cpp::symbolicExecute::387] Error Code 4: Internal Error (Reshape_3578: IShuffleLayer applied to shape tensor must have 0 or 1 reshape dimensions: dimensions were [-1,2])",
        FailureKind::Shape { .. },
        Model,
        "reshape dimensions"
    ),
    met!(
        "Tianxiaomo/pytorch-YOLOv4/issues/359",
        "[12/29/2020-21:27:14] [E] Cannot open engine file: yolov4_1_3_416_416_fp16.engine\n[12/29/2020-21:27:14] [E] Saving engine to file failed\n[12/29/2020-21:27:14] [E] Engine set up failed",
        FailureKind::WritingPlan,
        Infrastructure,
        "could not write"
    ),
    met!(
        "NVIDIA/TensorRT/blob/v10.16/samples/common/sampleEngines.cpp",
        "[E] Cannot write to FileStreamWriter",
        FailureKind::WritingPlan,
        Infrastructure,
        "could not write"
    ),
    met!(
        "NVIDIA/TensorRT/issues/2909",
        "[E] Saving engine to file failed.\n[E] Engine set up failed",
        FailureKind::WritingPlan,
        Infrastructure,
        "could not write"
    ),
    met!(
        "NVIDIA/TensorRT/blob/v11.1/samples/common/sampleOptions.cpp",
        "[E] Unknown option: --fp16 ",
        FailureKind::UnknownOption { .. },
        Model,
        "--fp16"
    ),
    met!(
        "NVIDIA/TensorRT/blob/v11.1/samples/common/sampleEngines.cpp",
        "[E] Required optimization profile is invalid\n[E] Network And Config setup failed",
        FailureKind::InvalidProfile { .. },
        Model,
        "profile"
    ),
    met!(
        "NVIDIA/TensorRT/blob/v11.1/samples/common/sampleInference.cpp",
        "[E] Invalid tensor names found in --shapes flag.",
        FailureKind::Shape { .. },
        Model,
        "--shapes"
    ),
    met!(
        "onnx/onnx-tensorrt/blob/main/onnxOpCheckers.cpp",
        "[E] [TRT] ModelImporter.cpp:1042: While parsing node number 1 [Det -> \"y\"]:\n[E] [TRT] ModelImporter.cpp:1043: Node name: /Det_1\n[E] [TRT] ModelImporter.cpp:1050: ERROR: onnxOpCheckers.cpp:150 In function checkDet:\n[8] This version of TensorRT does not support the operator.",
        FailureKind::UnsupportedOperator { .. },
        Model,
        "/Det_1"
    ),
    met!(
        "onnx/onnx-tensorrt/issues/414",
        "[E] While parsing node number 362 [Resize]:\n[E] ERROR: ModelImporter.cpp:124 In function parseGraph:\n[5] Assertion failed: ctx->tensors().count(inputName)",
        FailureKind::Parse { .. },
        Model,
        "Resize"
    ),
    met!(
        "onnx/onnx-tensorrt/issues/414 (second)",
        "[E] In node -1 (parseGraph): UNSUPPORTED_NODE: Assertion failed: convertOnnxWeights(initializer, &weights, ctx)",
        FailureKind::MissingWeights,
        Model,
        "weights"
    ),
    met!(
        "onnx/onnx-tensorrt/blob/main/ModelImporter.cpp",
        "[E] [TRT] ModelImporter.cpp:953: ERROR: ModelImporter.cpp:310 In function importInitializers:\n[5] Assertion failed: ctx->getWeightsContext().convertOnnxWeights(initializer, &weights, ctx) && \"Failed to import initializer.\"",
        FailureKind::MissingWeights,
        Model,
        "Failed to import initializer"
    ),
    met!(
        "NNDam/vietocr-tensorrt/issues/1",
        "[E] [TRT] ../rtExt/cuda/cudaPointWiseRunner.cpp (140) - Assertion Error in execute: 0 (x.d[i] == 1 || x.d[i] == z.d[i])",
        FailureKind::Assertion,
        Model,
        "assertion"
    ),
];

fn diagnosed(text: &str) -> Failure {
    let mut reader = LogReader::new();
    reader.feed(Stream::Merged, text.as_bytes());
    let facts = reader.finish();
    diagnose(&Ended {
        step: Step::Build,
        exit: Exit::Code(1),
        rejected: None,
        facts: &facts,
        file: "net.onnx",
        device: "NVIDIA T4",
    })
}

#[test]
fn texts_that_others_met_are_told_apart() {
    let mut problems = Vec::new();
    for met in MET {
        for tail in ["", TAIL] {
            let failure = diagnosed(&format!("{}\n{tail}", met.text));
            let good = (met.kind)(&failure.kind)
                && failure.class == met.class
                && (failure.message.contains(met.told) || failure.evidence.contains(met.told));
            if !good || failure.hint.is_empty() {
                problems.push(format!(
                    "{ISSUES}{}: {:?} {:?}: {}",
                    met.source, failure.kind, failure.class, failure.message
                ));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn the_operators_own_check_names_node_and_operator() {
    let text = "[E] [TRT] ModelImporter.cpp:1043: Node name: /Det_1\n\
                [E] [TRT] ModelImporter.cpp:1050: ERROR: onnxOpCheckers.cpp:150 In function checkDet:\n[8] false\n";
    let node = Node { index: None, name: "/Det_1".into(), operator: "Det".into(), domain: String::new() };
    assert_eq!(diagnosed(text).kind, FailureKind::UnsupportedOperator { node });
    // The node may be named after the reason, in the same message.
    let after = "[E] [TRT] ModelImporter.cpp:1050: ERROR: onnxOpCheckers.cpp:150 In function checkDet:\n\
                 [8] it is not supported\nNode name: /Det_1\n";
    let failure = diagnosed(after);
    assert!(matches!(&failure.kind, FailureKind::UnsupportedOperator { node } if node.name == "/Det_1"), "{failure:?}");
    // Another code of the same check is something that the node has, not the operator.
    let attribute = text.replace("[8]", "[9]");
    assert!(matches!(diagnosed(&attribute).kind, FailureKind::Parse { .. }), "{:?}", diagnosed(&attribute).kind);
    let plugin = "[E] [TRT] IPluginRegistry::getCreator: Error Code 4: API Usage Error (Cannot find plugin: Swirl, version: 1, namespace:my.ops.)\n\
                  [E] [TRT] ModelImporter.cpp:1050: While parsing node number 0 [Swirl -> \"y\"]:\n\
                  [E] [TRT] ModelImporter.cpp:1050: ERROR: onnxOpCheckers.cpp:781 In function checkFallbackPluginImporter:\n\
                  [6] creator && \"Plugin not found, are the plugin name, version, and namespace correct?\"\n";
    assert_eq!(diagnosed(plugin).kind, FailureKind::PluginMissing { plugin: Some("Swirl".into()) });
}

#[test]
fn an_empty_engine_is_the_models_only_where_the_builder_says_why() {
    let shape = "[E] Error[4]: IBuilder::buildSerializedNetworkToStream: Error Code 4: Shape Error (reshape would change volume 24 to 40)\n\
                 [I] Created engine with size: 0 MiB\n\
                 [E] Assertion failure: false && \"Attempting to access an empty engine!\"\n";
    let failure = diagnosed(shape);
    assert!(matches!(failure.kind, FailureKind::Shape { .. }), "{:?}", failure.kind);
    assert_eq!((failure.class, failure.retry), (FailureClass::Model, Retry::Never));
    let silent = "[I] Created engine with size: 0 MiB\n[E] Assertion failure: false && \"Attempting to access an empty engine!\"\n";
    let failure = diagnosed(silent);
    assert_eq!((failure.kind, failure.class), (FailureKind::EmptyEngine, FailureClass::Infrastructure));
}

#[test]
fn disk_and_damage_are_the_hosts_and_what_nobody_knows_is_not_remembered() {
    for text in [
        "[E] Error[1]: write: No space left on device\n",
        "[E] Error[1]: cannot write: Input/output error\n",
        "[E] Engine set up failed\n",
        "[E] something that nobody has seen\n[E] Engine set up failed\n",
    ] {
        let failure = diagnosed(text);
        assert_eq!(failure.class, FailureClass::Infrastructure, "{text}: {:?}", failure.kind);
    }
    let other = diagnosed(
        "[E] Engine could not be created from network\n[E] something that nobody has seen\n[E] Engine set up failed\n",
    );
    assert_eq!(other.kind, FailureKind::Other);
    assert!(other.message.ends_with("something that nobody has seen"), "{}", other.message);
    // A plan that is cut although the run passed.
    for error in [crate::plan::PlanError::Empty, crate::plan::PlanError::Length { stated: 200, actual: 100 }] {
        let rejected = crate::acceptance::Rejected::Plan(error);
        let facts = LogFacts::default();
        let ended = Ended {
            step: Step::Build,
            exit: Exit::Code(0),
            rejected: Some(&rejected),
            facts: &facts,
            file: "net.onnx",
            device: "NVIDIA T4",
        };
        let failure = diagnose(&ended);
        assert_eq!((failure.kind, failure.class), (FailureKind::PlanDamaged, FailureClass::Infrastructure));
    }
}
