//! Model files on this machine: their identity, and where their bytes are.

use super::LocalFiles;
use crate::failure::Failure;
use planforge_engine_core::identity::DigestWriter;
use planforge_proto::v1;
use std::{fs::File, io, path::Path};

/// A model on this machine.
#[derive(Clone, Debug)]
pub struct LocalModel {
    pub model: v1::Model,
    pub files: LocalFiles,
}

/// Finds out who the model at `path` is.
pub fn identify(path: &Path) -> Result<LocalModel, Failure> {
    let (digest, size_bytes) = hash(path)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let file = v1::ModelFile { name: name.clone(), digest: digest.clone(), size_bytes };
    let model = v1::Model { digest: digest.clone(), name, files: vec![file], ..Default::default() };
    Ok(LocalModel { model, files: LocalFiles::from([(digest, path.to_owned())]) })
}

/// SHA-256 and size of a file that is no model, such as a test set.
pub fn hash(path: &Path) -> Result<(String, u64), Failure> {
    let failed = |e: io::Error| Failure::io("read", path, &e);
    let mut file = File::open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(Failure::usage(format!("{} is no file", path.display())));
    }
    let mut writer = DigestWriter::new();
    io::copy(&mut file, &mut writer).map_err(failed)?;
    let bytes = writer.bytes();
    Ok((writer.finish().to_string(), bytes))
}
