//! Who is this model?
//!
//! The *model digest* is the identity: `sha256sum` of the file, or, with external data, of a manifest that names every
//! file. The *graph digest* and the *structure digest* (see [`super::graph_digest`]) only offer reuse.

use crate::graph_digest::{self, GraphDigests};
use planforge_onnx::{Model, OnnxError};
use planforge_types::Digest;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::PathBuf;

/// A model and the files it consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelIdentity {
    /// See [`model_digest`].
    pub digest: Digest,
    /// Same for the same graph in another file: without names of producers and inner values, doc strings, order and
    /// storage form.
    pub graph_digest: Digest,
    /// The graph without its weights.
    pub structure_digest: Digest,
    /// File name without folder.
    pub name: String,
    /// The ONNX file, then external data files sorted by name.
    pub files: Vec<IdentifiedFile>,
}

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentifiedFile {
    /// Relative to the model's folder, `/` between parts.
    pub name: String,
    /// Where it lies on this machine.
    pub path: PathBuf,
    pub digest: Digest,
    pub size_bytes: u64,
}

/// The identity of a model that is open already; reads all of it.
pub fn identify_open(model: &Model) -> Result<ModelIdentity, OnnxError> {
    use rayon::prelude::*;
    let hash_files = || -> Vec<IdentifiedFile> {
        let files = model.files().par_iter().map(|file| IdentifiedFile {
            name: file.name.clone(),
            path: file.path.clone(),
            digest: Digest::of(&file.bytes),
            size_bytes: file.size_bytes,
        });
        files.collect()
    };
    let (files, graph) = rayon::join(hash_files, || graph_digest::of(model));
    let GraphDigests { graph: graph_digest, structure: structure_digest } = graph?;
    let name = files.first().map(|file| file.name.clone()).unwrap_or_default();
    let named = files.iter().map(|file| (file.name.as_str(), file.digest, file.size_bytes));
    Ok(ModelIdentity { digest: model_digest(named), graph_digest, structure_digest, name, files })
}

/// The digest of a model made of `files` (name, SHA-256, size in bytes), the ONNX file first: that file's own SHA-256,
/// or, with external data, that of [`manifest`].
pub fn model_digest<'a>(files: impl IntoIterator<Item = (&'a str, Digest, u64)>) -> Digest {
    let files: Vec<_> = files.into_iter().collect();
    match files[..] {
        [(_, digest, _)] => digest,
        _ => Digest::of(&manifest(files)),
    }
}

/// Canonical JSON that names every file of a model with external data:
/// `{"external":[{"name":…,"sha256":…,"size":…},…],"model":{"sha256":…,"size":…}}`, external files sorted by name. The
/// ONNX file's own name is not in it, for renaming a file makes no other model.
pub fn manifest<'a>(files: impl IntoIterator<Item = (&'a str, Digest, u64)>) -> Vec<u8> {
    let mut files = files.into_iter();
    let model = files.next().map(|(_, digest, size)| json!({ "sha256": digest, "size": size }));
    let mut external: Vec<_> = files.collect();
    external.sort_unstable();
    let external: Vec<_> = external
        .into_iter()
        .map(|(name, digest, size)| json!({ "name": name, "sha256": digest, "size": size }))
        .collect();
    serde_json_canonicalizer::to_vec(&json!({ "external": external, "model": model }))
        .expect("strings and whole numbers always serialise")
}
