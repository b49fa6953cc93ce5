//! Preparing a model: data from files, the engine that runs the model on it, and what came of it as files.
//!
//! | module | holds |
//! |---|---|
//! | `engine` | an engine for this machine's CPU as what runs models |
//! | `calibration` | the ranges that a preparation found, for the TensorRT that is to take them |
//! | here | data out of archives, and by which engine a model runs on it |

pub(crate) mod calibration;
mod engine;

pub use engine::EngineRunner;

use planforge_backend::Compiler;
use planforge_identity::npz;
use planforge_onnx::Model;
use planforge_precision::{
    DataError, Options, PrecisionError, Prepared, Reference, Runner, Samples, joined, prepare, work,
};
use planforge_types::{
    NamedTensors, Toolchain,
    preparation::{PREPARER, PREPARER_REVISION},
};
use std::{collections::BTreeMap, error::Error as _, path::PathBuf};

/// Multiplications above which the interpreter would take minutes, and an engine is compiled.
const INTERPRETED_MACS: u64 = 2_000_000_000;

/// What an agent offers that prepares models.
pub fn toolchain() -> Toolchain {
    Toolchain { backend: PREPARER.into(), version: PREPARER_REVISION.to_string(), components: BTreeMap::new() }
}

/// Why data is none.
#[derive(Debug, thiserror::Error)]
pub enum ArraysError {
    #[error(transparent)]
    Archive(#[from] npz::NpzError),
    #[error("{}: {error}", path.display())]
    Data { path: PathBuf, error: DataError },
}

/// The arrays of archives, one after the other along the first axis.
///
/// # Errors
///
/// When a file is no archive, or has other arrays than those before it.
pub fn arrays(files: &[PathBuf]) -> Result<NamedTensors, ArraysError> {
    let mut whole = NamedTensors::new();
    for file in files {
        let told = |error| ArraysError::Data { path: file.clone(), error };
        whole = joined(whole, npz::read(file)?).map_err(told)?;
    }
    Ok(whole)
}

/// Prepares `model`, on an engine of one of the `compilers` where the plain interpreter would take too long.
///
/// # Errors
///
/// As [`prepare`].
pub fn prepared(
    model: &Model,
    samples: Option<&Samples>,
    judged: Option<&Samples>,
    options: &Options,
    compilers: &[&dyn Compiler],
) -> Result<Prepared, PrecisionError> {
    let rows = samples.iter().chain(&judged).map(|samples| samples.rows() as u64).max().unwrap_or(0);
    let heavy = work(model, samples.or(judged)).is_some_and(|macs| macs.saturating_mul(rows) > INTERPRETED_MACS);
    let engine = if heavy { compilers.iter().find_map(|compiler| EngineRunner::here(*compiler)) } else { None };
    let runner: &dyn Runner = match &engine {
        Some(engine) => engine,
        None => &Reference,
    };
    prepare(model, samples, judged, options, runner)
}

/// An error with all its causes, in a line.
pub fn words(error: &PrecisionError) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        message += &format!(": {cause}");
        source = cause.source();
    }
    message
}
