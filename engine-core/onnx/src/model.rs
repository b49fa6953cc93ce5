//! A model file, opened strictly.

use crate::{
    error::OnnxError,
    external::{self, DataFiles},
    proto::{GraphProto, ModelProto, TensorProto},
    sniff, tensor,
    walk::walk_model,
};
use bytes::Bytes;
use prost::Message as _;
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// A protobuf must be smaller than this: its lengths are signed 32-bit numbers in most readers.
pub const MAX_PROTOBUF_BYTES: u64 = 1 << 31;

/// A model whose every byte was understood and whose every tensor has the data its shape needs.
#[derive(Debug)]
pub struct Model {
    /// `raw_data` fields are views of the mapped file.
    pub proto: ModelProto,
    files: Vec<ModelFile>,
    data: DataFiles,
}

/// A file that belongs to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFile {
    /// Relative to the model's folder, with `/` between parts.
    pub name: String,
    pub path: PathBuf,
    pub size_bytes: u64,
    /// The mapped file.
    pub bytes: Bytes,
}

impl Model {
    /// Opens and checks the ONNX file at `path` and the external data it names. Maps the files, reads no weights.
    pub fn open(path: &Path) -> Result<Self, OnnxError> {
        if let Some(kind) = external::not_a_file(path) {
            return Err(OnnxError::NotAFile { path: path.to_owned(), kind });
        }
        let open = |source| OnnxError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(open)?;
        let size_bytes = file.metadata().map_err(open)?.len();
        if size_bytes >= MAX_PROTOBUF_BYTES {
            return Err(OnnxError::TooLarge { path: path.to_owned(), size_bytes });
        }
        let bytes = external::map(&file).map_err(open)?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let data = DataFiles::in_folder(folder).map_err(open)?;
        let mut model = Self::build(bytes.clone(), path, data)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        model.files.insert(0, ModelFile { name, path: path.to_owned(), size_bytes, bytes });
        Ok(model)
    }

    /// Reads a model from memory; external data is an error.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, OnnxError> {
        let path = Path::new("(memory)");
        if bytes.len() as u64 >= MAX_PROTOBUF_BYTES {
            return Err(OnnxError::TooLarge { path: path.to_owned(), size_bytes: bytes.len() as u64 });
        }
        Self::build(bytes, path, DataFiles::default())
    }

    /// Reads the message in `bytes`; `data` knows where external data is.
    pub(crate) fn build(bytes: Bytes, path: &Path, mut data: DataFiles) -> Result<Self, OnnxError> {
        let path = || path.to_owned();
        if bytes.is_empty() {
            return Err(OnnxError::Empty { path: path() });
        }
        let findings = walk_model(&bytes);
        let understood = matches!(&findings, Ok(findings) if findings.unknown_count == 0);
        if !understood && let Some(looks_like) = sniff::looks_like(&bytes) {
            return Err(OnnxError::NotOnnx { path: path(), looks_like });
        }
        let findings = findings.map_err(|malformed| OnnxError::Malformed { path: path(), malformed })?;
        if findings.unknown_count > 0 {
            let (fields, count) = (findings.unknown, findings.unknown_count);
            return Err(OnnxError::UnknownFields { path: path(), fields, count });
        }
        let proto = ModelProto::decode(bytes).map_err(|source| OnnxError::Decode { path: path(), source })?;
        if proto.graph.is_none() {
            return Err(OnnxError::NoGraph { path: path() });
        }
        tensor::for_each_tensor(&proto, &mut |tensor| {
            let fail = |problem| OnnxError::tensor(&tensor.name, problem);
            if tensor::is_external(tensor).map_err(fail)? {
                data.add(tensor)
            } else {
                tensor::check_inline(tensor).map_err(fail)
            }
        })?;
        let files = data.files.iter().map(|(name, file)| ModelFile {
            name: name.clone(),
            path: file.path.clone(),
            size_bytes: file.bytes.len() as u64,
            bytes: file.bytes.clone(),
        });
        Ok(Self { proto, files: files.collect(), data })
    }

    /// The main graph.
    pub fn graph(&self) -> &GraphProto {
        static NONE: LazyLock<GraphProto> = LazyLock::new(GraphProto::default);
        self.proto.graph.as_ref().unwrap_or(&NONE)
    }

    /// This model with another main graph, whose tensors are of the same files.
    pub fn with_graph(&self, graph: GraphProto) -> Self {
        let proto = ModelProto { graph: Some(graph), ..self.proto.clone() };
        Self { proto, files: self.files.clone(), data: self.data.clone() }
    }

    /// The files it was read from: the ONNX file first, then external data files by name. The first is absent for a
    /// model read from memory.
    pub fn files(&self) -> &[ModelFile] {
        &self.files
    }

    /// Version of the operator set that the standard domain is imported at.
    pub fn opset(&self) -> Option<i64> {
        let standard = |domain: &str| domain.is_empty() || domain == "ai.onnx";
        self.proto.opset_import.iter().find(|import| standard(&import.domain)).map(|import| import.version)
    }

    /// Little-endian row-major elements of a tensor of this model, in whichever way it is stored; a view of the mapped
    /// file unless they lie in a typed field. Not aligned. String tensors have none: see [`tensor::strings`].
    pub fn tensor_bytes(&self, tensor: &TensorProto) -> Result<Bytes, OnnxError> {
        let bytes = match tensor::is_external(tensor) {
            Ok(true) => self.data.bytes(tensor),
            Ok(false) => tensor::inline_bytes(tensor),
            Err(problem) => Err(problem),
        };
        bytes.map_err(|problem| OnnxError::tensor(&tensor.name, problem))
    }
}
