//! The plan file: the model as ONNX Runtime optimised it, in ONNX, with one entry of metadata in front that says what
//! it was built as. Any ONNX tool still reads it.
//!
//! The entry comes first so that a file's beginning tells whose plan it is; a protobuf message may have its fields in
//! any order.

use planforge_backend::PLAN_HEAD_BYTES;
use planforge_types::{BackendError, BuildSpec, Digest, FailureClass, Sku, Toolchain};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::Path,
};

/// Name of the metadata entry.
const METADATA_KEY: &str = "planforge.onnxruntime";
/// Key of `ModelProto.metadata_props` (field 14) and of `StringStringEntryProto`'s `key` (1) and `value` (2), all
/// length-delimited.
const METADATA_FIELD: u8 = 14 << 3 | 2;
const ENTRY_KEY_FIELD: u8 = 1 << 3 | 2;
const ENTRY_VALUE_FIELD: u8 = 2 << 3 | 2;

/// Largest manifest; a spec with hundreds of profiles stays far below.
const MANIFEST_MAX_BYTES: u64 = 16 << 20;
/// Longest form of a length in protobuf.
const VARINT_MAX_BYTES: usize = 10;

/// Raised whenever the manifest's meaning changes.
const FORMAT: u32 = 1;

/// What a plan was built as.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanManifest {
    format: u32,
    /// Name of the model's graph.
    pub model: String,
    pub model_digest: Digest,
    pub sku: Sku,
    pub toolchain: Toolchain,
    pub spec: BuildSpec,
}

/// What can be wrong with a plan file.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("cannot read the plan {path}")]
    Read { path: String, source: io::Error },
    #[error("{path} is no plan of onnxruntime: it does not begin with an entry '{METADATA_KEY}'")]
    Foreign { path: String },
    #[error("the plan {path} says of itself what cannot be understood: {reason}")]
    Manifest { path: String, reason: String },
    #[error("cannot write the plan {path}")]
    Write { path: String, source: io::Error },
}

impl From<PlanError> for BackendError {
    fn from(error: PlanError) -> Self {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        let message = format!("{error}{source}");
        match error {
            PlanError::Write { .. } => {
                Self::new(FailureClass::Resource, message).with_hint("make room on the disk of the scratch folder")
            }
            _ => Self::new(FailureClass::Model, message).with_hint("fetch or build the plan again"),
        }
    }
}

impl PlanManifest {
    pub fn new(model: String, model_digest: Digest, sku: Sku, toolchain: Toolchain, spec: BuildSpec) -> Self {
        Self { format: FORMAT, model, model_digest, sku, toolchain, spec: spec.canonical() }
    }
}

/// Whether a file that begins so is a plan of this backend.
pub fn recognises(head: &[u8]) -> bool {
    let mut rest = head;
    let entry = |rest: &mut &[u8], field: u8| {
        rest.split_off_first().is_some_and(|first| *first == field) && varint(rest).is_some()
    };
    entry(&mut rest, METADATA_FIELD) && entry(&mut rest, ENTRY_KEY_FIELD) && rest.starts_with(METADATA_KEY.as_bytes())
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for index in 0..VARINT_MAX_BYTES {
        let byte = *rest.split_off_first()?;
        value |= u64::from(byte & 0x7f).checked_shl(7 * index as u32)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn push_text(field: u8, text: &[u8], into: &mut Vec<u8>) {
    into.push(field);
    let mut length = text.len() as u64;
    while length >= 0x80 {
        into.push(length as u8 | 0x80);
        length >>= 7;
    }
    into.push(length as u8);
    into.extend_from_slice(text);
}

/// Writes `manifest` and then the ONNX file `model` to `path`.
pub fn write(path: &Path, manifest: &PlanManifest, model: &Path) -> Result<(), PlanError> {
    let failed = |source| PlanError::Write { path: path.display().to_string(), source };
    let json = serde_json::to_vec(manifest).map_err(|error| failed(error.into()))?;
    let mut entry = Vec::new();
    push_text(ENTRY_KEY_FIELD, METADATA_KEY.as_bytes(), &mut entry);
    push_text(ENTRY_VALUE_FIELD, &json, &mut entry);
    let mut head = Vec::new();
    push_text(METADATA_FIELD, &entry, &mut head);
    let write = || -> io::Result<()> {
        let mut out = File::create(path)?;
        out.write_all(&head)?;
        io::copy(&mut File::open(model)?, &mut out)?;
        out.sync_all()?;
        fs::remove_file(model)
    };
    write().map_err(failed)
}

/// Reads what the plan at `path` was built as.
pub fn read(path: &Path) -> Result<PlanManifest, PlanError> {
    let name = || path.display().to_string();
    let failed = |source| PlanError::Read { path: name(), source };
    let mut head = Vec::new();
    let mut file = File::open(path).map_err(failed)?;
    io::Read::by_ref(&mut file).take(PLAN_HEAD_BYTES).read_to_end(&mut head).map_err(failed)?;
    if !recognises(&head) {
        return Err(PlanError::Foreign { path: name() });
    }
    let wrong = |reason: &str| PlanError::Manifest { path: name(), reason: reason.into() };
    let mut rest = &head[1..];
    let entry_bytes = varint(&mut rest).unwrap_or(u64::MAX);
    if entry_bytes > MANIFEST_MAX_BYTES {
        return Err(wrong("its manifest is too long"));
    }
    let mut entry = rest.to_vec();
    let missing = entry_bytes.saturating_sub(entry.len() as u64);
    file.take(missing).read_to_end(&mut entry).map_err(failed)?;
    let entry = entry.get(..entry_bytes as usize).ok_or_else(|| wrong("it ends within its manifest"))?;
    // `recognises` has seen the field and the length of the key.
    let mut rest = &entry[1..];
    let key_bytes = varint(&mut rest).unwrap_or(u64::MAX);
    let mut rest = usize::try_from(key_bytes)
        .ok()
        .and_then(|bytes| rest.split_at_checked(bytes))
        .filter(|(key, _)| *key == METADATA_KEY.as_bytes())
        .map(|(_, rest)| rest)
        .ok_or_else(|| wrong("its manifest has another name"))?;
    let is_value = rest.split_off_first() == Some(&ENTRY_VALUE_FIELD);
    let length = varint(&mut rest).filter(|length| is_value && *length == rest.len() as u64);
    length.ok_or_else(|| wrong("its manifest is not one text"))?;
    let manifest: PlanManifest = serde_json::from_slice(rest).map_err(|error| wrong(&error.to_string()))?;
    if manifest.format != FORMAT {
        return Err(wrong(&format!("it has format {}, this program reads {FORMAT}", manifest.format)));
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> PlanManifest {
        let toolchain = Toolchain { backend: "onnxruntime".into(), version: "1.31.1".into(), components: [].into() };
        let sku = "cpu-x86-64-v3".parse().unwrap();
        PlanManifest::new("digits".into(), Digest::of(b"m"), sku, toolchain, BuildSpec::default())
    }

    #[test]
    fn a_plan_says_what_it_is_and_is_still_an_onnx_file() {
        let folder = tempfile::tempdir().unwrap();
        let (model, plan) = (folder.path().join("optimised.onnx"), folder.path().join("engine.plan"));
        let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx");
        fs::copy(&digits, &model).unwrap();
        write(&plan, &manifest(), &model).unwrap();
        assert!(!model.exists());
        assert_eq!(read(&plan).unwrap(), manifest());
        let head = fs::read(&plan).unwrap();
        assert!(recognises(&head[..64]) && !recognises(&fs::read(&digits).unwrap()[..64]));
        let reread = planforge_onnx::Model::open(&plan).unwrap();
        assert_eq!(reread.graph(), planforge_onnx::Model::open(&digits).unwrap().graph());
    }

    #[test]
    fn damaged_plans_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (model, plan) = (folder.path().join("model"), folder.path().join("plan"));
        fs::write(&model, b"").unwrap();
        write(&plan, &manifest(), &model).unwrap();
        let whole = fs::read(&plan).unwrap();
        for length in 0..whole.len() {
            fs::write(&plan, &whole[..length]).unwrap();
            assert!(read(&plan).is_err(), "{length}");
        }
        for index in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[index] ^= 0x80;
            fs::write(&plan, &damaged).unwrap();
            // Within texts a changed byte may still be a manifest, never the same one.
            assert!(read(&plan).ok() != Some(manifest()), "{index}");
        }
        assert!(matches!(read(&folder.path().join("none")), Err(PlanError::Read { .. })));
    }
}
