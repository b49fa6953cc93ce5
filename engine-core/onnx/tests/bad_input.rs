//! Files that are no good: each gets an error that says what is wrong and where, and none a panic.

use planforge_onnx::{
    MAX_DEPTH, Model, OnnxError, Problem, TensorError,
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, StringStringEntryProto, TensorProto, tensor_proto::DataType,
    },
    write::{Storage, save, write_model},
};
use proptest::prelude::*;
use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// A trained model of 150 kB with all the usual parts.
const DIGITS: &[u8] = include_bytes!("../../../examples/digits/digits.onnx");

fn tensor(name: &str, dims: &[i64], raw: &[u8]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: DataType::Float.into(),
        raw_data: raw.to_vec().into(),
        ..Default::default()
    }
}

fn with_tensor(tensor: TensorProto) -> ModelProto {
    let graph = GraphProto { initializer: vec![tensor], ..Default::default() };
    ModelProto { ir_version: 8, graph: Some(graph), ..Default::default() }
}

/// A model of a few hundred bytes with messages in messages in messages.
fn small() -> Vec<u8> {
    let body = GraphProto { initializer: vec![tensor("inner", &[1], &[1, 2, 3, 4])], ..Default::default() };
    let then = AttributeProto { name: "then_branch".into(), r#type: 5, g: Some(Box::new(body)), ..Default::default() };
    let mut model = with_tensor(tensor("w", &[2], &[0; 8]));
    let graph = model.graph.as_mut().unwrap();
    graph.node.push(NodeProto { op_type: "If".into(), attribute: vec![then], ..Default::default() });
    graph.initializer.push(TensorProto { int64_data: vec![1, -1], ..tensor("shape", &[2], &[]) });
    graph.initializer[1].data_type = DataType::Int64.into();
    encode(&model)
}

fn encode(model: &ModelProto) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    save(&path, model).unwrap();
    fs::read(path).unwrap()
}

fn read(bytes: &[u8]) -> Result<Model, OnnxError> {
    Model::from_bytes(bytes.to_vec().into())
}

fn malformed(bytes: &[u8]) -> planforge_onnx::Malformed {
    match read(bytes) {
        Err(OnnxError::Malformed { malformed, .. }) => malformed,
        other => panic!("{other:?}"),
    }
}

/// `field` (wire type 2) holding `content`.
fn nested(field: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![field << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(content);
    bytes
}

#[test]
fn files_of_another_kind_are_called_by_their_name() {
    let folder = tempfile::tempdir().unwrap();
    for (content, word, hint) in [
        (&b"import torch\nprint('x')\n"[..], "plain text", "path of an .onnx file"),
        (b"{\"format\": 1}", "JSON text", "path of an .onnx file"),
        (b"<html><body>404</body></html>", "HTML", "path of an .onnx file"),
        (b"PK\x03\x04\x14\x00\x00\x00archive/data.pkl", "zip archive", "export the model"),
        (b"\x80\x02}q\x00X\x05\x00\x00\x00epoch", "pickle", "export the model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer", "git lfs pull"),
    ] {
        let path = folder.path().join("model.onnx");
        fs::write(&path, content).unwrap();
        let error = Model::open(&path).unwrap_err();
        assert!(matches!(error, OnnxError::NotOnnx { .. }), "{error}");
        assert!(error.to_string().contains(word) && error.to_string().contains("model.onnx"), "{error}");
        assert!(error.hint().contains(hint), "{}", error.hint());
    }
}

#[test]
fn what_is_no_file_is_refused_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    assert!(matches!(Model::open(&path("none")), Err(OnnxError::Open { .. })));
    assert!(matches!(Model::open(folder.path()), Err(OnnxError::NotAFile { kind: "folder", .. })));
    File::create(path("empty")).unwrap();
    assert!(matches!(Model::open(&path("empty")), Err(OnnxError::Empty { .. })));
    let made = std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap();
    assert!(made.success());
    assert!(matches!(Model::open(&path("pipe")), Err(OnnxError::NotAFile { kind: "device or pipe", .. })));
}

#[test]
fn two_gib_in_one_protobuf_is_refused_by_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.onnx");
    // A sparse file: no disk is used.
    File::create(&path).unwrap().set_len(1 << 31).unwrap();
    let error = Model::open(&path).unwrap_err();
    assert!(matches!(error, OnnxError::TooLarge { size_bytes: 0x8000_0000, .. }), "{error}");
    assert!(error.hint().contains("external data"));
}

#[test]
fn every_prefix_of_a_model_is_refused_or_read_without_panic() {
    let whole = small();
    read(&whole).unwrap();
    let mut refused = 0;
    for end in 0..whole.len() {
        // A cut between two fields of the model itself leaves a smaller model.
        refused += usize::from(read(&whole[..end]).is_err());
    }
    assert!(refused >= whole.len() - 3, "{refused} of {}", whole.len());
    for end in (0..DIGITS.len()).step_by(997) {
        let error = read(&DIGITS[..end]).map(drop);
        assert!(error.is_err(), "{end}");
    }
}

#[test]
fn a_cut_says_where_and_what_is_missing() {
    let whole = small();
    let malformed = malformed(&whole[..whole.len() - 3]);
    assert!(matches!(malformed.problem, Problem::Truncated { field: "graph", .. }), "{malformed}");
    assert_eq!((malformed.offset, malformed.inside), (2, "ModelProto"));
}

#[test]
fn unknown_fields_are_listed_with_their_place() {
    let mut bytes = small();
    let at = bytes.len();
    bytes.extend_from_slice(&[99 << 3 & 0x7f | 0x80, (99 >> 4) as u8, 5]);
    bytes.extend_from_slice(&nested(13, b"x"));
    let error = read(&bytes).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "'(memory)' holds 2 field(s) that ONNX does not have: field 99 in ModelProto at byte {at}, field 13 in \
             ModelProto at byte {}",
            at + 3
        )
    );
    let many = [small(), nested(13, b"").repeat(1000)].concat();
    assert!(read(&many).unwrap_err().to_string().ends_with(" and 984 more"));
}

#[test]
fn malformed_fields_are_told_apart() {
    let long = [&[0x08][..], &[0xff; 10], &[0]].concat();
    let cases: [(&[u8], Problem); 9] = [
        (&[0x08, 0x80], Problem::TruncatedVarint),
        (&long, Problem::LongVarint),
        (&[0x12, 5, b'a'], Problem::Truncated { field: "producer_name", need: 5, left: 1 }),
        (&[0x00, 1], Problem::FieldNumber { number: 0 }),
        (&[0x0b, 0x0c], Problem::WireType { found: 3 }),
        (&[0x0a, 1, 1], Problem::WrongWireType { field: "ir_version", found: 2, expected: 0 }),
        (&[0x12, 1, 0xff], Problem::NotUtf8 { field: "producer_name" }),
        (&[0x38, 1], Problem::WrongWireType { field: "graph", found: 0, expected: 2 }),
        (
            &nested(7, &nested(5, &nested(4, &[0; 6]))),
            Problem::PackedLength { field: "float_data", length: 6, each: 4 },
        ),
    ];
    for (bytes, problem) in cases {
        assert_eq!(malformed(bytes).problem, problem, "{bytes:?}");
    }
}

#[test]
fn nesting_is_bounded() {
    let build = |levels: usize| {
        let mut graph = Vec::new();
        for _ in 0..levels {
            // attribute.g in node.attribute in graph.node
            graph = nested(1, &nested(5, &nested(6, &graph)));
        }
        nested(7, &graph)
    };
    // Three messages a level, inside the model and its graph.
    let deepest = (MAX_DEPTH - 2) / 3;
    read(&build(deepest)).unwrap();
    let error = malformed(&build(deepest + 1));
    assert_eq!(error.problem, Problem::TooDeep);
    // A file that nests as deep as its size allows.
    assert_eq!(malformed(&build(2_000)).problem, Problem::TooDeep);
}

#[test]
fn a_small_file_cannot_take_all_memory() {
    // Two bytes a node, a few hundred bytes each once decoded.
    let graph = [0x0a, 0x00].repeat(50 << 20);
    let error = malformed(&nested(7, &graph));
    assert_eq!((error.problem, error.inside), (Problem::TooMuchMemory, "NodeProto"));
}

#[test]
fn a_model_without_a_graph_is_refused() {
    assert!(matches!(read(&[0x08, 0x08]), Err(OnnxError::NoGraph { .. })));
}

#[test]
fn tensors_must_hold_what_their_shape_says() {
    let float = |change: fn(&mut TensorProto)| {
        let mut tensor = tensor("w", &[2, 2], &[0; 16]);
        change(&mut tensor);
        match read(&encode(&with_tensor(tensor))) {
            Err(OnnxError::Tensor { tensor, problem }) => {
                assert_eq!(tensor, "w");
                problem.to_string()
            }
            other => panic!("{other:?}"),
        }
    };
    for (change, message) in [
        ((|t| t.raw_data = vec![0; 15].into()) as fn(&mut TensorProto), "15 bytes where its shape and type need 16"),
        (|t| t.raw_data = Default::default(), "0 elements where its shape and type need 4"),
        (|t| t.dims = vec![-1, 4], "dimension -1 is negative"),
        (|t| t.dims = vec![0, -4], "dimension -4 is negative"),
        (|t| t.dims = vec![i64::MAX, i64::MAX], "more elements than memory has addresses"),
        (|t| t.data_type = 77, "element type 77 is unknown"),
        (|t| t.data_type = 0, "element type 0 is unknown"),
        (|t| t.float_data = vec![0.0; 4], "stored in raw_data and in float_data"),
        (|t| t.int64_data = vec![0; 4], "stored in raw_data and in int64_data"),
        (|t| t.segment = Some(Default::default()), "stored in segments is not supported"),
        (|t| t.data_location = 5, "data location 5 is unknown"),
        (|t| (t.raw_data, t.int64_data) = (Default::default(), vec![0; 4]), "stored in int64_data and in float_data"),
    ] {
        let found = float(change);
        assert!(found.contains(message), "{found} / {message}");
    }
}

/// A model beside which lie no, some or wrong data files.
struct External {
    folder: tempfile::TempDir,
    model: PathBuf,
}

impl External {
    fn new(entries: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("inside")).unwrap();
        fs::write(folder.path().join("outside.bin"), [0; 64]).unwrap();
        fs::write(folder.path().join("inside/weights.bin"), [0; 64]).unwrap();
        let model = folder.path().join("inside/m.onnx");
        let entry = |(key, value): &(&str, &str)| StringStringEntryProto { key: (*key).into(), value: (*value).into() };
        let tensor = TensorProto {
            data_location: 1,
            external_data: entries.iter().map(entry).collect(),
            ..tensor("far", &[4], &[])
        };
        save(&model, &with_tensor(tensor)).unwrap();
        Self { folder, model }
    }

    fn at(location: &str) -> Self {
        Self::new(&[("location", location)])
    }

    fn problem(&self) -> TensorError {
        match Model::open(&self.model) {
            Err(OnnxError::Tensor { tensor, problem }) if tensor == "far" => problem,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn external_data_is_found_by_every_good_spelling() {
    for location in ["weights.bin", "./weights.bin", ".//weights.bin"] {
        let external = External::at(location);
        let model = Model::open(&external.model).unwrap();
        assert_eq!(model.files()[1].name, "weights.bin");
        assert_eq!(model.tensor_bytes(&model.graph().initializer[0]).unwrap().len(), 16);
    }
    let external =
        External::new(&[("location", "weights.bin"), ("offset", "48"), ("length", "16"), ("checksum", "00")]);
    Model::open(&external.model).unwrap();
    // A link that stays inside is as good as a file.
    let external = External::at("link.bin");
    symlink("weights.bin", external.model.with_file_name("link.bin")).unwrap();
    Model::open(&external.model).unwrap();
}

#[test]
fn external_data_outside_the_folder_is_refused() {
    for location in ["../outside.bin", "sub/../../outside.bin", "/etc/passwd", "..\\outside.bin", "weights.bin\0x"] {
        let problem = External::at(location).problem();
        assert!(matches!(problem, TensorError::Escapes { .. }), "{location}: {problem}");
    }
    let external = External::at("link.bin");
    symlink("../outside.bin", external.model.with_file_name("link.bin")).unwrap();
    assert!(matches!(external.problem(), TensorError::Escapes { why: "a symbolic link leads out", .. }));
    let external = External::at("sub/outside.bin");
    symlink(external.folder.path(), external.model.with_file_name("sub")).unwrap();
    assert!(matches!(external.problem(), TensorError::Escapes { why: "a symbolic link leads out", .. }));
}

#[test]
fn missing_external_data_names_tensor_and_file() {
    let external = External::at("gone.bin");
    let error = Model::open(&external.model).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("tensor 'far': external data file 'gone.bin' is missing from '"), "{text}");
    assert!(error.hint().contains("together with its external data files"));
}

#[test]
fn external_data_must_lie_in_its_file() {
    for (offset, length) in [("49", "16"), ("64", "16"), ("18446744073709551615", "16")] {
        let external = External::new(&[("location", "weights.bin"), ("offset", offset), ("length", length)]);
        let problem = external.problem();
        assert!(matches!(problem, TensorError::OutOfFile { size_bytes: 64, .. }), "{problem}");
    }
    for (entries, message) in [
        (&[("location", "weights.bin"), ("length", "12")][..], "12 bytes of external data where"),
        (&[("location", "weights.bin"), ("offset", "-1")], "offset '-1' is not a number of bytes"),
        (&[("location", "weights.bin"), ("length", "0x10")], "length '0x10' is not a number of bytes"),
        (&[("location", "weights.bin"), ("location", "other.bin")], "'location' is given twice"),
        (&[("location", "weights.bin"), ("compression", "zip")], "'compression' is unknown"),
        (&[("offset", "0")], "has no location"),
        (&[("location", ".")], "has no location"),
        (&[("location", "")], "has no location"),
    ] {
        let problem = External::new(entries).problem().to_string();
        assert!(problem.contains(message), "{problem} / {message}");
    }
    let external = External::at("folder.bin");
    fs::create_dir(external.model.with_file_name("folder.bin")).unwrap();
    assert!(matches!(external.problem(), TensorError::NotAFile { kind: "folder", .. }));
}

#[test]
fn external_data_of_any_size_is_good() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let far = TensorProto {
        data_location: 1,
        external_data: [("location", "m.data"), ("offset", "5000000000")]
            .map(|(key, value)| StringStringEntryProto { key: key.into(), value: value.into() })
            .to_vec(),
        ..tensor("far", &[4], &[])
    };
    save(&path, &with_tensor(far)).unwrap();
    // Sparse: five gigabytes that take no disk.
    let data = File::create(folder.path().join("m.data")).unwrap();
    data.set_len(5_000_000_000).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&data, &[7; 16], 5_000_000_000).unwrap();
    let model = Model::open(&path).unwrap();
    assert_eq!(model.tensor_bytes(&model.graph().initializer[0]).unwrap(), [7u8; 16][..]);
}

#[test]
fn a_model_from_memory_has_no_folder() {
    let external = External::at("weights.bin");
    let error = read(&fs::read(&external.model).unwrap()).unwrap_err();
    assert!(matches!(error, OnnxError::Tensor { problem: TensorError::NoFolder { .. }, .. }), "{error}");
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let full = &mut |_: &TensorProto, _: &mut dyn std::io::Write| Err(std::io::ErrorKind::StorageFull.into());
    let weights = [tensor("w", &[1 << 20], &[])];
    for storage in [Storage::Inline, Storage::External] {
        let error = write_model(&path, &with_tensor(tensor("v", &[0], &[])), &weights, storage, full).unwrap_err();
        assert!(matches!(error, OnnxError::Write { .. }), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    assert!(matches!(save(Path::new("/nowhere/m.onnx"), &ModelProto::default()), Err(OnnxError::Write { .. })));
}

static SMALL: LazyLock<Vec<u8>> = LazyLock::new(small);

/// The walk and the decoder must agree on what is a protobuf: only the walk's errors say where.
fn decodes_when_walked(bytes: &[u8]) -> bool {
    !matches!(read(bytes), Err(OnnxError::Decode { .. }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_models_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = SMALL.clone();
        for (at, value) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        prop_assert!(decodes_when_walked(&bytes));
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decodes_when_walked(&bytes));
    }

    /// Pieces taken out, doubled or swapped keep most of the structure intact, so they get further.
    #[test]
    fn spliced_models_never_panic(a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>(), twice in any::<bool>()) {
        let bytes = &*SMALL;
        let (a, b) = (a.index(bytes.len()), b.index(bytes.len()));
        let (from, to) = (a.min(b), a.max(b));
        let middle = if twice { bytes[from..to].repeat(2) } else { Vec::new() };
        let spliced = [&bytes[..from], &middle, &bytes[to..]].concat();
        prop_assert!(decodes_when_walked(&spliced));
    }
}
