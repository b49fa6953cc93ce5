//! Streams a model to disk: weights are written as they are made, never all in memory.
//!
//! Files appear whole or not at all: each is written under a temporary name beside its place, then renamed.

use crate::{
    error::{OnnxError, TensorError},
    model::MAX_PROTOBUF_BYTES,
    proto::{GraphProto, ModelProto, StringStringEntryProto, TensorProto, tensor_proto::DataLocation},
    tensor,
};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len},
};
use std::{
    io,
    io::{BufWriter, Write},
    path::Path,
};

/// Field numbers of the messages that are written piecewise.
const MODEL_GRAPH: u32 = 7;
const GRAPH_INITIALIZER: u32 = 5;
const TENSOR_RAW_DATA: u32 = 9;

/// Weights of at least this size begin on a page of the data file, so that they can be mapped alone.
const PAGE_ALIGNED_FROM_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// Smaller ones begin on a cache line.
const LINE_BYTES: u64 = 64;

const BUFFER_BYTES: usize = 1 << 20;

/// Where the weights go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Into the ONNX file, which must stay below 2 GiB.
    Inline,
    /// Into a file beside it, named like it with `.data` added.
    External,
}

/// Writes `weight`'s elements, little-endian and row-major, exactly as many as its shape needs.
pub type Fill<'a> = dyn FnMut(&TensorProto, &mut dyn Write) -> io::Result<()> + 'a;

/// Writes `model` to `path` with `weights` (name, shape and type; no data) added to its graph's initializers; `fill`
/// is called once for each, in order. Returns the bytes written to all files.
pub fn write_model(
    path: &Path,
    model: &ModelProto,
    weights: &[TensorProto],
    storage: Storage,
    fill: &mut Fill<'_>,
) -> Result<u64, OnnxError> {
    let sizes = weights
        .iter()
        .map(|weight| tensor::expected_bytes(weight).map_err(|problem| OnnxError::tensor(&weight.name, problem)))
        .collect::<Result<Vec<u64>, _>>()?;
    match storage {
        Storage::Inline => write_inline(path, model, weights, &sizes, fill),
        Storage::External => write_external(path, model, weights, &sizes, fill),
    }
}

fn write_inline(
    path: &Path,
    model: &ModelProto,
    weights: &[TensorProto],
    sizes: &[u64],
    fill: &mut Fill<'_>,
) -> Result<u64, OnnxError> {
    let rest = ModelProto { graph: None, ..model.clone() };
    let no_graph = GraphProto::default();
    let graph = model.graph.as_ref().unwrap_or(&no_graph);
    // Heads: each weight's own message up to its data.
    let heads: Vec<Vec<u8>> = weights
        .iter()
        .zip(sizes)
        .map(|(weight, size)| {
            let mut head = weight.encode_to_vec();
            encode_key(TENSOR_RAW_DATA, WireType::LengthDelimited, &mut head);
            encode_varint(*size, &mut head);
            head
        })
        .collect();
    let weight_lengths: Vec<u64> = heads.iter().zip(sizes).map(|(head, size)| head.len() as u64 + size).collect();
    let initializer_key = key_len(GRAPH_INITIALIZER) as u64;
    let streamed: u64 =
        weight_lengths.iter().map(|length| initializer_key + encoded_len_varint(*length) as u64 + length).sum();
    let graph_length = graph.encoded_len() as u64 + streamed;
    let total = rest.encoded_len() as u64
        + key_len(MODEL_GRAPH) as u64
        + encoded_len_varint(graph_length) as u64
        + graph_length;
    if total >= MAX_PROTOBUF_BYTES {
        return Err(OnnxError::TooLarge { path: path.to_owned(), size_bytes: total });
    }
    write_whole(path, |out| {
        let mut lead = rest.encode_to_vec();
        encode_key(MODEL_GRAPH, WireType::LengthDelimited, &mut lead);
        encode_varint(graph_length, &mut lead);
        out.write_all(&lead)?;
        out.write_all(&graph.encode_to_vec())?;
        for (((weight, size), head), length) in weights.iter().zip(sizes).zip(&heads).zip(&weight_lengths) {
            let mut lead = Vec::new();
            encode_key(GRAPH_INITIALIZER, WireType::LengthDelimited, &mut lead);
            encode_varint(*length, &mut lead);
            out.write_all(&lead)?;
            out.write_all(head)?;
            fill_exactly(weight, *size, out, fill)?;
        }
        Ok(())
    })?;
    Ok(total)
}

fn write_external(
    path: &Path,
    model: &ModelProto,
    weights: &[TensorProto],
    sizes: &[u64],
    fill: &mut Fill<'_>,
) -> Result<u64, OnnxError> {
    let mut data_path = path.as_os_str().to_owned();
    data_path.push(".data");
    let data_path = Path::new(&data_path);
    let location = data_path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut end = 0u64;
    let mut offsets = Vec::with_capacity(sizes.len());
    for size in sizes {
        let alignment = if *size >= PAGE_ALIGNED_FROM_BYTES { PAGE_BYTES } else { LINE_BYTES };
        let offset = end.next_multiple_of(alignment);
        offsets.push(offset);
        end = offset + size;
    }
    write_whole(data_path, |out| {
        let mut at = 0;
        for ((weight, size), offset) in weights.iter().zip(sizes).zip(&offsets) {
            io::copy(&mut io::Read::take(io::repeat(0), offset - at), out)?;
            fill_exactly(weight, *size, out, fill)?;
            at = offset + size;
        }
        Ok(())
    })?;
    let mut model = model.clone();
    let graph = model.graph.get_or_insert_default();
    for ((weight, size), offset) in weights.iter().zip(sizes).zip(&offsets) {
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.to_owned(), value };
        graph.initializer.push(TensorProto {
            data_location: DataLocation::External.into(),
            external_data: vec![
                entry("location", location.clone()),
                entry("offset", offset.to_string()),
                entry("length", size.to_string()),
            ],
            ..weight.clone()
        });
    }
    let encoded = model.encode_to_vec();
    if encoded.len() as u64 >= MAX_PROTOBUF_BYTES {
        return Err(OnnxError::TooLarge { path: path.to_owned(), size_bytes: encoded.len() as u64 });
    }
    write_whole(path, |out| out.write_all(&encoded))?;
    Ok(encoded.len() as u64 + end)
}

/// Calls `fill` and makes sure that it wrote `size` bytes.
fn fill_exactly(weight: &TensorProto, size: u64, out: &mut dyn Write, fill: &mut Fill<'_>) -> io::Result<()> {
    let mut counted = Counted { out, bytes: 0 };
    fill(weight, &mut counted)?;
    if counted.bytes == size {
        return Ok(());
    }
    let problem = TensorError::WrongSize { found: format!("{} bytes", counted.bytes), expected: size.to_string() };
    Err(io::Error::other(OnnxError::tensor(&weight.name, problem)))
}

struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.out.write(buffer)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes a file that appears at `path` only when `write` succeeded.
fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), OnnxError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let written = || {
        let mut builder = tempfile::Builder::new();
        // The umask applies, as it does to any new file; the crate's own default is readable by the owner only.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.prefix(".onnx-").tempfile_in(folder)?;
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
        write(&mut out)?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    written().map_err(|source| OnnxError::Write { path: path.to_owned(), source })
}

/// Writes a file that is ONNX already.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<u64, OnnxError> {
    write_whole(path, |out| out.write_all(bytes))?;
    Ok(bytes.len() as u64)
}

/// Writes a model that holds all its data itself; what one file cannot hold goes into a second one beside it, named like
/// it with `.data` added.
pub fn save(path: &Path, model: &ModelProto) -> Result<u64, OnnxError> {
    save_within(path, model, MAX_PROTOBUF_BYTES)
}

fn save_within(path: &Path, model: &ModelProto, most_bytes: u64) -> Result<u64, OnnxError> {
    if (model.encoded_len() as u64) < most_bytes {
        return write_model(path, model, &[], Storage::Inline, &mut |_, _| Ok(()));
    }
    let mut rest = model.clone();
    let graph = rest.graph.get_or_insert_default();
    let is_large = |tensor: &TensorProto| tensor.raw_data.len() as u64 >= LINE_BYTES;
    let (large, small) = std::mem::take(&mut graph.initializer).into_iter().partition(is_large);
    graph.initializer = small;
    let (mut weights, mut data) = (Vec::new(), Vec::new());
    for mut weight in large {
        data.push(std::mem::take(&mut weight.raw_data));
        weights.push(weight);
    }
    let mut data = data.into_iter();
    write_model(path, &rest, &weights, Storage::External, &mut |_, out| {
        // In the order of the weights, each once.
        out.write_all(&data.next().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;

    #[test]
    fn what_one_file_cannot_hold_goes_into_a_second_one() {
        let tensor = |name: &str, bytes: usize| TensorProto {
            name: name.to_owned(),
            data_type: crate::proto::tensor_proto::DataType::Uint8 as i32,
            dims: vec![bytes as i64],
            raw_data: vec![7; bytes].into(),
            ..TensorProto::default()
        };
        let graph = GraphProto { initializer: vec![tensor("large", 300), tensor("small", 3)], ..GraphProto::default() };
        let model = ModelProto { ir_version: 8, graph: Some(graph), ..ModelProto::default() };
        let folder = std::env::temp_dir().join(format!("planforge-save-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("model.onnx");
        save_within(&path, &model, 200).unwrap();
        let read = Model::open(&path).unwrap();
        let names: Vec<&str> = read.files().iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["model.onnx", "model.onnx.data"]);
        assert_eq!(std::fs::read(folder.join("model.onnx.data")).unwrap(), [7; 300]);
        save(&path, &model).unwrap();
        assert_eq!(Model::open(&path).unwrap().files().len(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
