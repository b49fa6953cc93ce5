//! Model files on this machine: their identity, and where their bytes are.

use super::LocalFiles;
use crate::{failure::Failure, settings::Settings};
use planforge_identity::{DigestCache, IdentityError, ModelIdentity};
use planforge_proto::v1;
use planforge_types::DigestWriter;
use std::{fs, io, path::Path};

/// A model on this machine.
#[derive(Clone, Debug)]
pub struct LocalModel {
    pub model: v1::Model,
    pub files: LocalFiles,
}

/// Finds out who the model at `path` is; a file that was seen before and did not change is not read again.
pub fn identify(settings: &Settings, path: &Path) -> Result<LocalModel, Failure> {
    // Without a data folder nothing is remembered, which only costs time.
    let cache = settings.data_folder().ok().map(|data| DigestCache::new(data.join("digests")));
    let identity = planforge_identity::identify(path, cache.as_ref()).map_err(|error| match &error {
        IdentityError::Stat { path, source } => Failure::io("read", path, source),
        _ => Failure::usage(error.to_string()).hint(error.hint()),
    })?;
    Ok(local(identity))
}

fn local(identity: ModelIdentity) -> LocalModel {
    let file = |f: &planforge_identity::IdentifiedFile| v1::ModelFile {
        name: f.name.clone(),
        digest: f.digest.to_string(),
        size_bytes: f.size_bytes,
    };
    let model = v1::Model {
        digest: identity.digest.to_string(),
        graph_digest: identity.graph_digest.to_string(),
        structure_digest: identity.structure_digest.to_string(),
        name: identity.name,
        files: identity.files.iter().map(file).collect(),
    };
    let files = identity.files.into_iter().map(|f| (f.digest.to_string(), f.path)).collect();
    LocalModel { model, files }
}

/// SHA-256 and size of a file that is no model, such as a test set.
pub fn hash(path: &Path) -> Result<(String, u64), Failure> {
    let failed = |e: io::Error| Failure::io("read", path, &e);
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Failure::usage(format!("{} is no file", path.display())));
    }
    let (digest, bytes) = DigestWriter::of_file(path).map_err(failed)?;
    Ok((digest.to_string(), bytes))
}
