//! Plans of ONNX Runtime: ONNX files with one entry of metadata in front, the manifest.

use crate::{CheckError, Claims, Expected, READ_MAX_BYTES, Source, head, read};
use planforge_onnx::Model;

/// Name of the backend in toolchains.
pub const BACKEND: &str = "onnxruntime";
/// Key of the entry.
const METADATA_KEY: &[u8] = b"planforge.onnxruntime";
/// `ModelProto.metadata_props` (14), and `key` (1) and `value` (2) of an entry; all length-delimited.
const METADATA_FIELD: u64 = 14 << 3 | 2;
const KEY_FIELD: u64 = 1 << 3 | 2;
const VALUE_FIELD: u64 = 2 << 3 | 2;
/// `ModelProto.graph`.
const GRAPH_NUMBER: u64 = 7;
/// Longest form of two numbers in protobuf: a field's and its length.
const FIELD_HEAD_MAX_BYTES: u64 = 20;
/// Fields at the top of a model: operator sets, functions, metadata. Real ones have a few dozen.
const FIELDS_MAX: usize = 4_096;
const NO_MANIFEST: &str = "it does not begin with the manifest of an ONNX Runtime plan";

pub async fn check<S: Source>(plan: &S, expected: &Expected<'_>) -> Result<(), CheckError<S::Error>> {
    let entry = entry(plan).await?;
    let manifest = manifest(&entry).ok_or_else(|| CheckError::unfit(NO_MANIFEST))?;
    Claims::read(manifest)?.fit(expected)?;
    let size = plan.size_bytes();
    if size <= READ_MAX_BYTES {
        let whole = read(plan, 0..size, "model").await?;
        let unreadable = |error| CheckError::unfit(format!("its graph cannot be read: {error}"));
        return Model::from_bytes(whole).map(drop).map_err(unreadable);
    }
    // Too large to be read as a whole: its outline has to be that of a model, to the last byte.
    outline(plan).await
}

/// The bytes of the first field, which has to be an entry of metadata.
async fn entry<S: Source>(plan: &S) -> Result<Vec<u8>, CheckError<S::Error>> {
    let first = head(plan, FIELD_HEAD_MAX_BYTES).await?;
    let mut rest = &first[..];
    let length = (varint(&mut rest) == Some(METADATA_FIELD)).then(|| varint(&mut rest)).flatten();
    let length = length.ok_or_else(|| CheckError::unfit(NO_MANIFEST))?;
    let begin = (first.len() - rest.len()) as u64;
    let end = begin.checked_add(length).ok_or_else(|| CheckError::unfit("its manifest has no end"))?;
    Ok(read(plan, begin..end, "manifest").await?.to_vec())
}

/// The value of the entry, where its key is the manifest's.
fn manifest(entry: &[u8]) -> Option<&[u8]> {
    let mut rest = entry;
    let key = text(&mut rest, KEY_FIELD)?;
    let value = text(&mut rest, VALUE_FIELD)?;
    (key == METADATA_KEY && rest.is_empty()).then_some(value)
}

fn text<'a>(rest: &mut &'a [u8], field: u64) -> Option<&'a [u8]> {
    (varint(rest)? == field).then_some(())?;
    let length = usize::try_from(varint(rest)?).ok()?;
    let (text, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(text)
}

/// Walks the fields at the top of the model: they fill the file exactly, and one of them is a graph.
async fn outline<S: Source>(plan: &S) -> Result<(), CheckError<S::Error>> {
    let size = plan.size_bytes();
    let (mut at, mut graphs) = (0, 0);
    for _ in 0..FIELDS_MAX {
        if at == size {
            return match graphs {
                1 => Ok(()),
                count => Err(CheckError::unfit(format!("it has {count} graphs, a model has one"))),
            };
        }
        let first = read(plan, at..size.min(at + FIELD_HEAD_MAX_BYTES), "model").await?;
        let mut rest = &first[..];
        let broken = || CheckError::unfit("it is no ONNX model: a field in it has no end");
        let tag = varint(&mut rest).ok_or_else(broken)?;
        let value = varint(&mut rest);
        let read_bytes = (first.len() - rest.len()) as u64;
        // Numbers, or bytes with their length in front: a model has no others at its top.
        let length = match tag & 7 {
            0 => value.map(|_| 0),
            2 => value,
            _ => None,
        };
        let end = length.and_then(|length| (at + read_bytes).checked_add(length)).filter(|end| *end <= size);
        graphs += usize::from(tag >> 3 == GRAPH_NUMBER && tag & 7 == 2);
        at = end.ok_or_else(broken)?;
    }
    Err(CheckError::unfit(format!("it is no ONNX model: it has more than {FIELDS_MAX} fields")))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for index in 0..10 {
        let byte = *rest.split_off_first()?;
        value |= u64::from(byte & 0x7f).checked_shl(7 * index)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
