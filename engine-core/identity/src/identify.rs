//! From a path to a model's identity: read once, and not again while nothing of it changes.

use crate::{
    digest_cache::{DigestCache, Stamp, Stamped},
    model::{ModelIdentity, identify_open},
};
use planforge_onnx::{Model, OnnxError};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a model has no identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    #[error("cannot look at '{}': {source}", path.display())]
    Stat { path: PathBuf, source: io::Error },
    #[error("'{}' changed while it was read", path.display())]
    Changed { path: PathBuf },
}

impl IdentityError {
    /// What to do next; empty when the message says it all.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Onnx(error) => error.hint(),
            Self::Stat { .. } => "",
            Self::Changed { .. } => "wait until nothing writes to the model any more, then try again",
        }
    }
}

/// Finds out who the model at `path` is. A file that `cache` knows and that did not change is not read again.
pub fn identify(path: &Path, cache: Option<&DigestCache>) -> Result<ModelIdentity, IdentityError> {
    if let Some(known) = cache.and_then(|cache| cache.get(path)) {
        return Ok(known);
    }
    let before = Stamped::now();
    let model = Model::open(path)?;
    let paths: Vec<PathBuf> = model.files().iter().map(|file| file.path.clone()).collect();
    let stat = |path: &PathBuf| Stamp::of(path).map_err(|source| IdentityError::Stat { path: path.clone(), source });
    let stamps = paths.iter().map(stat).collect::<Result<Vec<_>, _>>()?;
    let identity = identify_open(&model)?;
    for (path, stamp) in paths.iter().zip(&stamps) {
        if stat(path)? != *stamp {
            return Err(IdentityError::Changed { path: path.clone() });
        }
    }
    if let Some(cache) = cache {
        cache.put(path, &identity, before.with(stamps));
    }
    Ok(identity)
}
