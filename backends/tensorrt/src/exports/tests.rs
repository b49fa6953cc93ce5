use super::*;
use std::collections::BTreeMap;

#[test]
fn times_of_a_run() {
    let file = br#"[
  { "startEnqMs" : 0.25, "endEnqMs" : 0.5, "startH2dMs" : 0.1, "endH2dMs" : 0.2, "startComputeMs" : 0.3, "endComputeMs" : 1.3, "startD2hMs" : 1.3, "endD2hMs" : 1.4, "h2dMs" : 0.125, "computeMs" : 1.00001, "d2hMs" : 0.0625, "latencyMs" : 1.1875 }
, { "startEnqMs" : 1.2e+06, "endEnqMs" : 1.2e+06, "h2dMs" : 0, "computeMs" : nan, "d2hMs" : 0, "latencyMs" : -nan }
, { "startEnqMs" : 2, "endEnqMs" : 2.5, "inMs" : 0.5, "computeMs" : 2, "outMs" : 0.25 }
]"#;
    let export = read_times(&file[..]).unwrap();
    assert_eq!((export.queries.len(), export.unusable), (2, 1));
    let first = export.queries[0];
    assert_eq!((first.compute_ms, first.latency_ms, first.enqueue_ms), (1.00001, 1.1875, 0.25));
    assert_eq!((first.host_to_device_ms, first.device_to_host_ms), (0.125, 0.0625));
    assert_eq!(export.queries[1].latency_ms, 2.75);
}

#[test]
fn profiles_of_old_and_new_versions() {
    let file = br#"[
  { "count" : 10 }
, { "name" : "conv "1" \a + relu", "timeMs" : 5, "averageMs" : 0.5, "medianMs" : 0.45, "percentage" : 62.5 }
, { "name" : "pool", "timeMs" : 3, "averageMs" : 0.3, "percentage" : inf }
, { "name" : "odd" }
]"#;
    let export = read_profile(&file[..]).unwrap();
    assert_eq!((export.runs, export.layers.len(), export.unusable), (Some(10), 2, 1));
    assert_eq!(export.layers[0].name, r#"conv "1" \a + relu"#);
    assert_eq!(export.layers[0].typical_ms(), 0.45);
    assert_eq!((export.layers[1].median_ms, export.layers[1].typical_ms()), (None, 0.3));
    assert!(export.layers[1].percent.is_infinite());
}

const DETAILED: &str = r#"{"Layers": [{
  "Name": "conv1 + relu1",
  "LayerType": "CaskConvolution",
  "Inputs": [{"Name": "x", "Location": "Device", "Dimensions": [1,3,-1,8], "Format/Datatype": "Row major linear FP16 format"}],
  "Outputs": [{"Name": "y", "Dimensions": [1,8,4,4], "Format/Datatype": "Channel major FP16 format where channel % 8 == 0"}],
  "ParameterType": "Convolution",
  "Weights": {"Type": "Half", "Count": 216},
  "Bias": {"Type": "Half", "Count": 8},
  "TacticName": "sm80_xmma_fprop", "TacticValue": "0x1",
  "StreamId": 1,
  "Metadata": "[ONNX Layer: conv1]\u001e[ONNX Layer: relu1]"
},{
  "Name": "__myl_MulSum_myl4_1", "LayerType": "kgen",
  "Inputs": [{"Name": "a", "Dimensions": [1], "Format/Datatype": "Int64"}, {"Name": "b", "Dimensions": [1], "Format/Datatype": "Float"}],
  "Outputs": [{"Name": "c", "Dimensions": [1], "Format/Datatype": "Float"}],
  "TacticName": "__myl_MulSum_0x1", "Metadata": "[ONNX Layer: fc][ONNX Layer: softmax]"
},{
  "Name": "fc", "LayerType": "gemm", "Inputs": [], "Outputs": [{"Name": "d", "Format/Datatype": "Float"}],
  "Weights": {"Type": "Float", "Count": 100}, "TacticName": "x_tf32f32_y"
}],
"Bindings": ["x"
,"c"
]}"#;

#[test]
fn detailed_layers_up_to_10() {
    let info = read_layer_info(DETAILED.as_bytes()).unwrap();
    assert_eq!((info.detail, info.layers.len(), info.edges.len()), (Detail::Detailed, 3, 2));
    let conv = &info.layers[0];
    assert_eq!(conv.precision.as_deref(), Some("fp16"));
    assert_eq!(conv.formats().as_deref(), Some("fp16:linear -> fp16:NHWC8"));
    assert_eq!(conv.nodes, ["conv1", "relu1"]);
    assert_eq!((conv.tactic.as_deref(), conv.stream), (Some("sm80_xmma_fprop"), Some(1)));
    assert_eq!(conv.inputs[0].dimensions, [1, 3, -1, 8]);
    let fused = &info.layers[1];
    assert_eq!((fused.precision.as_deref(), fused.nodes.len()), (Some("fp32"), 2));
    assert_eq!(info.layers[2].precision.as_deref(), Some("tf32"));
    assert_eq!(info.weight_bytes(), BTreeMap::from([("fp16".to_owned(), 448), ("fp32".to_owned(), 400)]));
}

#[test]
fn layers_of_11_split_format_and_type() {
    let file = r#"{"ProfilingVerbosity": "DETAILED", "Layers": [{"Name": "conv1", "LayerType": "CaskGemmConvolution",
        "Inputs": [{"Name": "x", "Dimensions": [1,3], "Format": "Row major linear", "DataType": "FP8"}],
        "Outputs": [{"Name": "y", "Dimensions": [1,3], "Format": "kHWC16", "DataType": "BF16"}]}],
        "I/O Tensors": [{"Name": "x", "IOMode": "Input", "DataType": "FP8", "Dimensions": [-1,3],
            "ProfileInfo": [{"MinShape": [1,3], "OptShape": [2,3], "MaxShape": [4,3], "Format": "linear"}]},
            {"Name": "y", "IOMode": "Output", "DataType": "BF16", "Dimensions": [-1,3]}],
        "Engine Metadata": {"Multi-Device": "Disabled"}}"#;
    let info = read_layer_info(file.as_bytes()).unwrap();
    assert_eq!(info.layers[0].formats().as_deref(), Some("fp8:linear -> bf16:kHWC16"));
    assert_eq!(info.edges.len(), 2);
    assert_eq!((info.edges[0].input, info.edges[1].input), (Some(true), Some(false)));
    assert_eq!(info.edges[0].element, Some("fp8"));
}

#[test]
fn names_only_is_said() {
    let file = "{\"Layers\": [\"conv1 + relu1\"\n,\"pool\"\n],\n\"Bindings\": [\"x\"\n,\"y\"\n]}";
    let info = read_layer_info(file.as_bytes()).unwrap();
    assert_eq!((info.detail, info.layers[0].nodes.len()), (Detail::NamesOnly, 2));
    let profile =
        read_profile(&br#"[{"count": 1}, {"name": "pool", "timeMs": 1, "averageMs": 1, "percentage": 100}]"#[..]);
    let joined = join(profile.unwrap(), Some(info));
    let codes: Vec<_> = joined.findings().into_iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["layer-names-only", "layers-untimed"]);
    assert_eq!(joined.precision_share, BTreeMap::from([("unknown".to_owned(), 1.0)]));
}

#[test]
fn times_and_descriptions_are_joined_and_nothing_is_dropped() {
    let profile = r#"[{"count": 2},
        {"name": "conv1 + relu1", "timeMs": 6, "averageMs": 3, "medianMs": 2.5, "percentage": 75},
        {"name": "fc", "timeMs": 1, "averageMs": 0.5, "medianMs": 0.5, "percentage": 12.5},
        {"name": "__myl_MulSum_myl7_0", "timeMs": 1, "averageMs": 0.5, "medianMs": 0.5, "percentage": 12.5}]"#;
    let joined = join(read_profile(profile.as_bytes()).unwrap(), Some(read_layer_info(DETAILED.as_bytes()).unwrap()));
    assert_eq!((joined.layers.len(), joined.untimed.len(), joined.undescribed()), (3, 1, 1));
    let expected = [("fp16", 0.75), ("tf32", 0.125), ("unknown", 0.125)];
    assert_eq!(joined.precision_share, expected.map(|(name, share)| (name.to_owned(), share)).into());
    let times = joined.layer_times();
    assert_eq!((times[0].median_ms, times[0].kind.as_str(), times[0].nodes.len()), (2.5, "Convolution", 2));
    assert_eq!(times[2].precision, None);
    let codes: Vec<_> = joined.findings().into_iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["layers-undescribed", "layers-untimed"]);
}

#[test]
fn outputs_with_bare_nan_and_a_sentence_inside() {
    let file = "[\n  { \"name\" : \"prob\"\n  , \"dimensions\" : \"1x3\"\n  , \"values\" : [ 0.5, nan, -inf ]\n  }\n\
                , { \"name\" : \"boxes\"\n  , \"dimensions\" : \"-1x2\"\n  , \"values\" : [ Final shape is (2, 2) reported by the output allocator.\n1, 2, 3e+10, 4 ]\n  }\n]";
    let export = read_output(file.as_bytes()).unwrap();
    let [prob, boxes] = &export.tensors[..] else { panic!("{export:?}") };
    assert_eq!((prob.name.as_str(), &prob.dimensions[..], prob.is_whole()), ("prob", &[1, 3][..], true));
    assert!(prob.values[1].is_nan() && prob.values[2] == f64::NEG_INFINITY);
    assert_eq!(
        (&boxes.dimensions[..], &boxes.values[..], boxes.is_whole()),
        (&[2, 2][..], &[1.0, 2.0, 3e10, 4.0][..], true)
    );
    let cut = read_output(&file.as_bytes()[..60]).unwrap();
    assert!(!cut.tensors[0].is_whole());
    let scalar = read_output(&br#"[{"name": "s", "dimensions": "scalar", "values": [ 7 ]}]"#[..]).unwrap();
    assert!(scalar.tensors[0].is_whole());
}

#[test]
fn depth_costs_nothing() {
    let deep = format!("{{\"Layers\": [{}", "[{\"a\":".repeat(200_000));
    assert!(read_layer_info(deep.as_bytes()).is_ok());
    assert!(read_profile(deep.as_bytes()).is_err());
    assert!(read_times("[".repeat(1_000_000).as_bytes()).is_err());
    assert!(read_output("[{\"values\":".repeat(100_000).as_bytes()).is_err());
}

#[test]
fn what_is_none_of_the_kind_is_refused() {
    for text in ["", "x", "[]", "{}", "[{}]", "null"] {
        assert!(read_times(text.as_bytes()).is_err(), "{text}");
        assert!(read_profile(text.as_bytes()).is_err(), "{text}");
        assert!(read_layer_info(text.as_bytes()).is_err(), "{text}");
        assert!(read_output(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn files_are_recognised_by_content() {
    for (head, kind) in [
        ("&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # x", FileKind::Log),
        ("[01/02/2024-03:04:05] [I] x", FileKind::Log),
        ("\n[E] Error[1]: x", FileKind::Log),
        ("[\n  { \"startEnqMs\" : 1, \"computeMs\" : 2 }", FileKind::Times),
        ("[\n  { \"count\" : 1 }\n, { \"name\" : \"a\"", FileKind::Profile),
        ("{\"Layers\": [", FileKind::LayerInfo),
        ("[\n  { \"name\" : \"y\"\n  , \"dimensions\" : \"1\"\n  , \"values\" : [", FileKind::Output),
        ("{\"model_options\": {}}", FileKind::OtherJson),
        ("ftrt", FileKind::Plan),
        ("ptrt\u{e}\0\0\0", FileKind::Plan),
        ("hello", FileKind::Unknown),
        ("", FileKind::Unknown),
    ] {
        assert_eq!(recognise(head.as_bytes(), head.len() as u64), kind, "{head}");
    }
}
