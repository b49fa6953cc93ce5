//! Files beside the model that hold tensor data.
//!
//! Invariant: nothing outside the model's own folder is read. Names are checked by their spelling (absolute paths and
//! `..` are refused) and by what they resolve to (a symbolic link must not lead out).

use crate::{
    error::{OnnxError, TensorError},
    proto::TensorProto,
    tensor,
};
use bytes::Bytes;
use memmap2::Mmap;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Component, Path, PathBuf},
};

/// Where a tensor says its data lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalData {
    /// As written in the model.
    pub location: String,
    pub offset_bytes: u64,
    /// `None`: as many as shape and type need.
    pub length_bytes: Option<u64>,
}

impl ExternalData {
    /// Reads `tensor`'s external data entries.
    pub fn of(tensor: &TensorProto) -> Result<Self, TensorError> {
        let (mut location, mut offset, mut length) = (None, None, None);
        for entry in &tensor.external_data {
            let slot = match entry.key.as_str() {
                "location" => &mut location,
                "offset" => &mut offset,
                "length" => &mut length,
                // A SHA-1 nobody checks, and weights that ONNX Runtime rearranged for its own use beside the originals.
                "checksum" => continue,
                key if key.starts_with("prepacked_") => continue,
                key => return Err(TensorError::UnknownExternalKey { key: key.to_owned() }),
            };
            if slot.replace(entry.value.as_str()).is_some() {
                return Err(TensorError::RepeatedExternalKey { key: entry.key.clone() });
            }
        }
        let location = location.filter(|location| !location.is_empty()).ok_or(TensorError::NoLocation)?;
        Ok(Self {
            location: location.to_owned(),
            offset_bytes: offset.map_or(Ok(0), |text| number("offset", text))?,
            length_bytes: length.map(|text| number("length", text)).transpose()?,
        })
    }
}

fn number(key: &'static str, text: &str) -> Result<u64, TensorError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = if digits { text.parse().ok() } else { None };
    value.ok_or_else(|| TensorError::BadExternalNumber { key, value: text.to_owned() })
}

/// One mapped data file.
#[derive(Clone, Debug)]
pub(crate) struct DataFile {
    pub path: PathBuf,
    pub bytes: Bytes,
}

/// The data files of one model, by normalised relative name.
#[derive(Clone, Debug, Default)]
pub(crate) struct DataFiles {
    /// The model's folder, resolved; `None` for a model read from memory.
    folder: Option<PathBuf>,
    pub files: BTreeMap<String, DataFile>,
}

impl DataFiles {
    /// Knows where to look, maps nothing yet.
    pub fn in_folder(folder: &Path) -> io::Result<Self> {
        Ok(Self { folder: Some(fs::canonicalize(folder)?), files: BTreeMap::new() })
    }

    /// Files that lie in memory under these names; any other is not found.
    pub fn in_memory<const COUNT: usize>(files: [(&str, Bytes); COUNT]) -> Self {
        let file = |(name, bytes): (&str, Bytes)| (name.to_owned(), DataFile { path: PathBuf::from(name), bytes });
        Self { folder: None, files: files.into_iter().map(file).collect() }
    }

    /// Maps the file that `tensor` names, unless it is mapped already, and checks that the data lies in it.
    pub fn add(&mut self, tensor: &TensorProto) -> Result<(), OnnxError> {
        self.try_add(tensor).map_err(|problem| OnnxError::tensor(&tensor.name, problem))
    }

    fn try_add(&mut self, tensor: &TensorProto) -> Result<(), TensorError> {
        let external = ExternalData::of(tensor)?;
        let name = normalised(&external.location)?;
        if !self.files.contains_key(&name) {
            let Some(folder) = &self.folder else {
                return Err(TensorError::NoFolder { location: external.location });
            };
            let file = map_inside(folder, &name, &external.location)?;
            self.files.insert(name, file);
        }
        self.bytes(tensor).map(drop)
    }

    /// The bytes of a tensor whose file was added.
    pub fn bytes(&self, tensor: &TensorProto) -> Result<Bytes, TensorError> {
        tensor::check_external(tensor)?;
        let external = ExternalData::of(tensor)?;
        let expected = tensor::expected_bytes(tensor)?;
        let length = external.length_bytes.unwrap_or(expected);
        if length != expected {
            return Err(TensorError::WrongSize {
                found: format!("{length} bytes of external data"),
                expected: expected.to_string(),
            });
        }
        let location = normalised(&external.location)?;
        let Some(file) = self.files.get(&location) else {
            return Err(TensorError::NoFolder { location });
        };
        let (offset, size_bytes) = (external.offset_bytes, file.bytes.len() as u64);
        match offset.checked_add(length) {
            Some(end) if end <= size_bytes => Ok(file.bytes.slice(offset as usize..end as usize)),
            _ => Err(TensorError::OutOfFile { location, offset, length, size_bytes }),
        }
    }
}

/// `location` with its `.` parts dropped; refused when its spelling can lead out of the folder.
fn normalised(location: &str) -> Result<String, TensorError> {
    let escapes = |why| Err(TensorError::Escapes { location: location.to_owned(), why });
    let mut parts = Vec::new();
    if location.contains('\0') {
        return escapes("the name has a zero byte");
    }
    // A backslash separates on the machine that wrote the file, not here: neither reading is safe.
    if location.contains('\\') {
        return escapes("the name has a backslash");
    }
    for component in Path::new(location).components() {
        match component {
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::CurDir => {}
            Component::ParentDir => return escapes("the name has '..'"),
            Component::RootDir | Component::Prefix(_) => return escapes("the name is an absolute path"),
        }
    }
    if parts.is_empty() {
        return Err(TensorError::NoLocation);
    }
    Ok(parts.join("/"))
}

/// Maps `name`, which must be a file whose real place is inside `folder`.
fn map_inside(folder: &Path, name: &str, location: &str) -> Result<DataFile, TensorError> {
    let location = location.to_owned();
    let path = match fs::canonicalize(folder.join(name)) {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(TensorError::Missing { location, folder: folder.to_owned() });
        }
        Err(source) => return Err(TensorError::Read { location, source }),
    };
    if !path.starts_with(folder) {
        return Err(TensorError::Escapes { location, why: "a symbolic link leads out" });
    }
    if let Some(kind) = not_a_file(&path) {
        return Err(TensorError::NotAFile { location, kind });
    }
    let bytes = File::open(&path).and_then(|file| map(&file));
    match bytes {
        Ok(bytes) => Ok(DataFile { path, bytes }),
        Err(source) => Err(TensorError::Read { location, source }),
    }
}

/// What `path` is, when it is there and is no regular file: opening a pipe would wait for ever.
pub(crate) fn not_a_file(path: &Path) -> Option<&'static str> {
    let kind = fs::metadata(path).ok()?.file_type();
    match (kind.is_file(), kind.is_dir()) {
        (true, _) => None,
        (_, true) => Some("folder"),
        _ => Some("device or pipe"),
    }
}

/// The whole file, mapped; an empty file is empty bytes.
pub(crate) fn map(file: &File) -> io::Result<Bytes> {
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is read-only and private. Model files are not changed while they are read: blobs are
    // immutable, and a user who truncates a model during its build gets SIGBUS in that worker process only.
    let map = unsafe { Mmap::map(file)? };
    Ok(Bytes::from_owner(map))
}
