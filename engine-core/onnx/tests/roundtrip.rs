//! What is written is read back, in both storage forms, without copying raw data.

use planforge_onnx::{
    Model, OnnxError, TensorError,
    proto::{GraphProto, ModelProto, OperatorSetIdProto, TensorProto, tensor_proto::DataType},
    write::{Storage, write_model},
};
use std::io::Write;

fn weight(name: &str, dims: &[i64]) -> TensorProto {
    TensorProto { name: name.into(), dims: dims.to_vec(), data_type: DataType::Float.into(), ..Default::default() }
}

fn model() -> ModelProto {
    ModelProto {
        ir_version: 8,
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 17 }],
        graph: Some(GraphProto {
            name: "g".into(),
            initializer: vec![TensorProto {
                int64_data: vec![2, -1],
                data_type: DataType::Int64.into(),
                ..weight("shape", &[2])
            }],
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn counting(weight: &TensorProto, out: &mut dyn Write) -> std::io::Result<()> {
    (0..weight.dims.iter().product::<i64>()).try_for_each(|at| out.write_all(&(at as f32).to_le_bytes()))
}

#[test]
fn both_storage_forms_read_back_as_written() {
    for (storage, files) in [(Storage::Inline, 1), (Storage::External, 2)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.onnx");
        let weights = [weight("a", &[3]), weight("big", &[512, 1024]), weight("empty", &[0, 5]), weight("scalar", &[])];
        let bytes = write_model(&path, &model(), &weights, storage, &mut counting).unwrap();
        let read = Model::open(&path).unwrap();
        assert_eq!(read.opset(), Some(17));
        assert_eq!(read.files().len(), files);
        assert_eq!(bytes, read.files().iter().map(|file| file.size_bytes).sum::<u64>());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), files, "no temporary file is left");
        let names: Vec<_> = read.graph().initializer.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["shape", "a", "big", "empty", "scalar"]);
        for tensor in &read.graph().initializer[1..] {
            let mut expected = Vec::new();
            counting(tensor, &mut expected).unwrap();
            assert_eq!(read.tensor_bytes(tensor).unwrap(), expected, "{}", tensor.name);
        }
        let shape = read.tensor_bytes(&read.graph().initializer[0]).unwrap();
        assert_eq!(shape, [2i64, -1].map(i64::to_le_bytes).concat());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn raw_data_is_a_view_of_the_mapped_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    write_model(&path, &model(), &[weight("big", &[1 << 20])], Storage::Inline, &mut counting).unwrap();
    let read = Model::open(&path).unwrap();
    let tensor = &read.graph().initializer[1];
    // Twice the same place in memory: nothing was copied on the way out ...
    assert_eq!(read.tensor_bytes(tensor).unwrap().as_ptr(), tensor.raw_data.as_ptr());
    // ... and the place belongs to a mapping of the file, not to the heap.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let address = tensor.raw_data.as_ptr() as usize;
    let line = maps.lines().find(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        (usize::from_str_radix(from, 16).unwrap()..usize::from_str_radix(to, 16).unwrap()).contains(&address)
    });
    assert!(line.unwrap().ends_with("/m.onnx"), "{line:?}");
}

#[test]
fn a_weight_of_the_wrong_length_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let short = &mut |_: &TensorProto, out: &mut dyn Write| out.write_all(&[0; 4]);
    let error = write_model(&path, &model(), &[weight("a", &[3])], Storage::Inline, short).unwrap_err();
    assert!(error.to_string().contains("'a': 4 bytes where its shape and type need 12"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn two_gib_inline_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let huge = [weight("huge", &[1 << 29])];
    let error = write_model(&path, &model(), &huge, Storage::Inline, &mut |_, _| unreachable!()).unwrap_err();
    assert!(matches!(error, OnnxError::TooLarge { .. }), "{error}");
}

#[test]
fn a_negative_dimension_is_refused() {
    let bad = [weight("bad", &[2, -1])];
    let error = write_model("x".as_ref(), &model(), &bad, Storage::Inline, &mut |_, _| Ok(())).unwrap_err();
    assert!(matches!(error, OnnxError::Tensor { problem: TensorError::NegativeDimension { dim: -1 }, .. }), "{error}");
}
