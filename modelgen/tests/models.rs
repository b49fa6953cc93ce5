//! The models are what they claim to be: size, determinism, readable by the strict reader.

use planforge_modelgen::{MODELS, Options, generate};
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

#[test]
fn an_unknown_model_is_named_with_those_there_are() {
    let error = generate("resnet51", &Options::default(), Path::new("x")).unwrap_err();
    assert!(error.to_string().contains("'resnet51'; there are: "), "{error}");
}
