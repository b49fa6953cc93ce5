//! Replays the fuzzer's seeds: `ok-*` must read, `bad-*` must be refused, whatever a fuzzer added must not panic.

use planforge_onnx::{Model, OnnxError, proto::tensor_proto::DataType, tensor::for_each_tensor};
use std::{fs, path::Path};

#[test]
fn seeds_are_read_or_refused_as_their_names_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/read_model");
    let mut seeds = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let result = Model::from_bytes(fs::read(&path).unwrap().into());
        assert!(!matches!(result, Err(OnnxError::Decode { .. })), "{name}: the walk missed what the decoder found");
        match &result {
            Ok(model) => {
                let read = for_each_tensor(&model.proto, &mut |tensor| {
                    let text = tensor.data_type == DataType::String as i32;
                    if text { Ok(()) } else { model.tensor_bytes(tensor).map(drop) }
                });
                read.unwrap();
                assert!(!name.starts_with("bad-"), "{name} was read");
            }
            Err(error) => assert!(!name.starts_with("ok-"), "{name}: {error}"),
        }
        seeds += 1;
    }
    assert!(seeds >= 16, "{seeds} seeds in {}", folder.display());
}
