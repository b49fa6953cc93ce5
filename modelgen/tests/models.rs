//! The models are what they claim to be: size, determinism, readable by the strict reader.

use planforge_modelgen::{Batch, DECODERS, LayerNormForm, MODELS, Options, Precision, Style, generate};
use planforge_onnx::{Model, write::Storage};
use sha2::{Digest, Sha256};
use std::{fs, path::Path};

fn sha256(path: &Path) -> String {
    hex::encode(Sha256::digest(fs::read(path).unwrap()))
}

#[test]
fn every_model_has_the_parameters_it_states() {
    let folder = tempfile::tempdir().unwrap();
    for info in MODELS {
        let path = folder.path().join(info.name);
        let generated = generate(info.name, &Options::default(), &path).unwrap();
        assert_eq!(generated.parameters, info.parameters, "{}", info.name);
        let model = Model::open(&path).unwrap();
        assert_eq!(model.opset(), Some(17));
        assert_eq!(model.proto.ir_version, 8);
        assert_eq!(generated.nodes, model.graph().node.len());
        assert_eq!(generated.size_bytes, fs::metadata(&path).unwrap().len());
        // Counted once more from the file: float weights of at least one axis, without running statistics.
        let is_parameter = |name: &str| !name.contains("running_") && name != "upsample_scales";
        let stored = model
            .graph()
            .initializer
            .iter()
            .filter(|tensor| tensor.data_type == 1 && !tensor.dims.is_empty() && is_parameter(&tensor.name));
        let counted: i64 = stored.map(|tensor| tensor.dims.iter().product::<i64>()).sum();
        assert_eq!(counted as u64, info.parameters, "{}", info.name);
    }
}

#[test]
fn bytes_are_the_same_on_every_machine() {
    let folder = tempfile::tempdir().unwrap();
    for (name, digest) in [
        ("efficientnet-b0", "d954d41e047c07501dc29a6499d925241790d5ef7f31df21f9e794a5a2db3342"),
        ("mobilenet-v2", "9e7b08bd1face52a6eff78492af48ea4a526c2bd07b575c68379c99b9d7cc5d1"),
        ("mobilenet-v3-large", "3e21d29790f380351127ce78daccdb48610121004ad299139fd0549fca0e08eb"),
        ("yolo-s", "ea99b66c8d729e664dee6bfa32675fa9fea27810aef1fdbbeb98777fcf640f4d"),
        ("vit-b-16", "ddabc118f878b585e408c5059841e8ed8b2b9dc6f913c6fd7a1eae448ca26cdd"),
        ("resnet50", "e4d06f8d1d5a2bee6a377787850cbbc44b73cfc66e1515196d8d5447bac9ec40"),
        ("bert-base", "35d080974e3eb770bb4bd091f98b9df26edbc95bf8602281412bb22efb337276"),
    ] {
        let path = folder.path().join(name);
        generate(name, &Options::default(), &path).unwrap();
        assert_eq!(sha256(&path), digest, "{name}: engines of the old bytes are no longer found");
    }
}

#[test]
fn external_storage_holds_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["digits", "resnet50"] {
        let (inline, external) = (folder.path().join("a.onnx"), folder.path().join("b.onnx"));
        generate(name, &Options::default(), &inline).unwrap();
        generate(name, &Options { storage: Storage::External, ..Options::default() }, &external).unwrap();
        let (inline, external) = (Model::open(&inline).unwrap(), Model::open(&external).unwrap());
        assert_eq!(external.files().len(), 2);
        assert!(external.files()[0].size_bytes < 1 << 20);
        assert_eq!(inline.graph().initializer.len(), external.graph().initializer.len());
        for (one, other) in inline.graph().initializer.iter().zip(&external.graph().initializer) {
            assert_eq!(one.name, other.name);
            assert!(inline.tensor_bytes(one).unwrap() == external.tensor_bytes(other).unwrap(), "{}", one.name);
        }
    }
}

#[test]
fn another_seed_gives_other_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let digest = |seed| {
        generate("resnet50", &Options { seed, ..Options::default() }, &path).unwrap();
        sha256(&path)
    };
    assert_ne!(digest(1), digest(2));
}

/// ONNX's numbers for element types.
const FLOAT: i32 = 1;
const INT8: i32 = 3;
const HALF: i32 = 10;

fn made(name: &str, options: &Options) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    generate(name, options, &path).unwrap();
    Model::open(&path).unwrap()
}

fn count(model: &Model, op_type: &str) -> usize {
    model.graph().node.iter().filter(|node| node.op_type == op_type).count()
}

#[test]
fn half_precision_is_inside_and_single_precision_at_the_ports() {
    let model = made("yolo-s", &Options { precision: Precision::Fp16, ..Options::default() });
    let singles: Vec<&str> =
        model.graph().initializer.iter().filter(|t| t.data_type == FLOAT).map(|t| t.name.as_str()).collect();
    assert_eq!(singles, ["upsample_scales"], "Resize takes its scales in single precision alone");
    let weight = model.graph().initializer.iter().find(|tensor| tensor.name == "d1.0.weight").unwrap();
    assert_eq!((weight.data_type, model.tensor_bytes(weight).unwrap().len()), (HALF, 64 * 32 * 9 * 2));
    assert_eq!(count(&model, "Cast"), 2);
    assert_eq!(model.graph().node.last().unwrap().output, ["boxes"]);
}

#[test]
fn int8_weights_have_a_scale_per_output_and_reach_the_last_integer() {
    // The pooler of BERT-base reads one token, whose range is not stated.
    for (name, products) in [("resnet50", 54), ("bert-base", 72)] {
        let model = made(name, &Options { precision: Precision::Int8, ..Options::default() });
        let weights: Vec<_> = model
            .graph()
            .initializer
            .iter()
            .filter(|tensor| tensor.data_type == INT8 && tensor.name.ends_with("_quantized"))
            .collect();
        assert_eq!(weights.len(), products, "{name}");
        for weight in weights {
            let integers = model.tensor_bytes(weight).unwrap();
            let most = integers.iter().map(|byte| i8::from_le_bytes([*byte]).unsigned_abs()).max();
            assert_eq!(most, Some(127), "{}", weight.name);
        }
        let activations = count(&model, "QuantizeLinear");
        assert_eq!(count(&model, "DequantizeLinear"), products + activations);
    }
}

#[test]
fn an_open_batch_is_named_at_inputs_and_outputs() {
    use planforge_onnx::proto::{tensor_shape_proto::dimension::Value::DimParam, type_proto::Value::TensorType};
    for info in MODELS {
        let style = Style { batch: Batch::Dynamic, ..Style::default() };
        let model = made(info.name, &Options { style, ..Options::default() });
        for port in model.graph().input.iter().chain(&model.graph().output) {
            let Some(TensorType(tensor)) = port.r#type.as_ref().and_then(|ty| ty.value.as_ref()) else { panic!() };
            let first = tensor.shape.as_ref().unwrap().dim[0].value.as_ref();
            assert!(matches!(first, Some(DimParam(name)) if name == "batch"), "{}: {}", info.name, port.name);
        }
    }
}

#[test]
fn only_text_has_an_open_sequence() {
    use planforge_onnx::proto::{tensor_shape_proto::dimension::Value::DimParam, type_proto::Value::TensorType};
    let options = Options { style: Style { open_sequence: true, ..Style::default() }, ..Options::default() };
    let model = made("bert-base", &options);
    for port in &model.graph().input {
        let Some(TensorType(tensor)) = port.r#type.as_ref().and_then(|ty| ty.value.as_ref()) else { panic!() };
        let second = tensor.shape.as_ref().unwrap().dim[1].value.as_ref();
        assert!(matches!(second, Some(DimParam(name)) if name == "sequence"), "{}", port.name);
    }
    let error = generate("resnet50", &options, Path::new("x")).unwrap_err();
    assert!(error.to_string().contains("resnet50 reads no text"), "{error}");
}

#[test]
fn layer_normalisation_can_be_left_in_pieces() {
    for name in ["bert-base", "vit-b-16"] {
        let style = Style { layer_norm: LayerNormForm::Primitives, ..Style::default() };
        let model = made(name, &Options { style, ..Options::default() });
        assert_eq!((count(&model, "LayerNormalization"), count(&model, "ReduceMean")), (0, 50), "{name}");
    }
}

#[test]
fn a_trained_model_stays_as_it_is() {
    let options = Options { precision: Precision::Int8, ..Options::default() };
    let error = generate("digits-outliers", &options, Path::new("x")).unwrap_err();
    assert!(error.to_string().contains("digits-outliers"), "{error}");
}

#[test]
fn an_unknown_model_is_named_with_those_there_are() {
    let error = generate("resnet51", &Options::default(), Path::new("x")).unwrap_err();
    assert!(error.to_string().contains("'resnet51'; there are: "), "{error}");
}

#[test]
fn steps_of_decoders_are_what_they_state() {
    for info in DECODERS.iter().filter(|info| info.name.contains("tiny")) {
        let model = made(info.name, &Options::default());
        let tables = ["cosines", "sines"];
        let stored = model.graph().initializer.iter().filter(|tensor| {
            tensor.data_type == FLOAT && !tensor.dims.is_empty() && !tables.contains(&tensor.name.as_str())
        });
        let counted: i64 = stored.map(|tensor| tensor.dims.iter().product::<i64>()).sum();
        assert_eq!(counted as u64, info.parameters, "{}", info.name);
        // A key and a value of two layers.
        let caches = |name: &str| model.graph().input.iter().filter(|input| input.name.contains(name)).count();
        let is_step = info.name.ends_with("-step");
        assert_eq!(count(&model, "ScatterElements"), if is_step { 4 } else { 0 }, "{}", info.name);
        assert_eq!(caches("past_key_values"), if is_step { 0 } else { 4 }, "{}", info.name);
    }
}

#[test]
fn caches_of_half_precision_have_no_casts() {
    use planforge_onnx::proto::type_proto::Value::TensorType;
    let model = made("llama-tiny-step", &Options { precision: Precision::Fp16, ..Options::default() });
    assert_eq!(count(&model, "Cast"), 1, "the scores alone are single precision");
    let half = |name: &str| {
        let mut ports = model.graph().input.iter().chain(&model.graph().output);
        let port = ports.find(|port| port.name == name).unwrap();
        matches!(port.r#type.as_ref().unwrap().value, Some(TensorType(ref tensor)) if tensor.elem_type == HALF)
    };
    assert!(half("keys.0") && half("next_values.1") && !half("logits"));
    let model = made("gpt2-tiny-past", &Options { precision: Precision::Fp16, ..Options::default() });
    assert_eq!(count(&model, "Cast"), 2, "the scores, and the mask to a condition");
    let style = Style { batch: Batch::Fixed(2), ..Style::default() };
    let error = generate("gpt2-step", &Options { style, ..Options::default() }, Path::new("x")).unwrap_err();
    assert!(error.to_string().contains("one step for one token"), "{error}");
}
