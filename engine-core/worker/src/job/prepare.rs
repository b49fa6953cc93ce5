//! An order of kind prepare, to its last event: model and data in, the prepared model's files and what became of it out.

use super::{
    outlet::{Outlet, log},
    run::file_error,
};
use crate::preparation::{ArraysError, arrays, prepared, toolchain, words};
use planforge_backend::{Cancel, Compiler};
use planforge_identity::model::identify_open;
use planforge_onnx::{Model, write};
use planforge_precision::{DataError, Document, Options, Samples, ports};
use planforge_types::{
    BackendError, DigestWriter, FailureClass,
    order::{Artifact, PrepareOrder, WorkEvent, WorkOrder},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The prepared ONNX file, in a folder of its own.
const MODEL_FILE: &str = "model.onnx";
/// What became of which layer.
const DOCUMENT_FILE: &str = "preparation.json";

/// Runs an order of kind prepare to its last event.
pub(super) fn run(
    order: &WorkOrder,
    compilers: &[Box<dyn Compiler>],
    outlet: &Outlet<'_>,
    cancel: &Cancel,
) -> Result<(), BackendError> {
    let ask = order.prepare.as_ref();
    let PrepareOrder { ask, data, eval } =
        ask.ok_or_else(|| BackendError::infrastructure("the order to prepare a model does not say how"))?;
    let may_go_on = |next: &str| match cancel.is_cancelled() {
        true => Err(BackendError::cancelled(format!("cancelled before {next}"))),
        false => Ok(()),
    };
    if *order.toolchain.version != *toolchain().version {
        let (asked, own) = (&order.toolchain.version, toolchain().version);
        return Err(BackendError::infrastructure(format!(
            "this agent prepares models by revision {own}, and was given a job for revision {asked}"
        )));
    }
    outlet.progress("read", 0.0, "");
    let model =
        Model::open(&order.model).map_err(|error| BackendError::model(error.to_string()).with_hint(error.hint()))?;
    let ports = ports(&model);
    let fitted = |files: &[PathBuf], what: &str| -> Result<Option<Samples>, BackendError> {
        if files.is_empty() {
            return Ok(None);
        }
        let refused =
            |error: DataError| BackendError::model(format!("the {what} data: {error}")).with_hint(error.hint());
        let read = arrays(files).map_err(|error| match error {
            ArraysError::Archive(error) => BackendError::model(format!("the {what} data: {error}")),
            ArraysError::Data { error, .. } => refused(error),
        })?;
        Samples::fit(read, &ports).map(Some).map_err(refused)
    };
    let samples = fitted(data, "calibration")?;
    let judged = fitted(eval.as_slice(), "labelled")?;
    may_go_on("prepare")?;
    outlet.progress("prepare", 0.0, &ask.words());
    let compilers: Vec<&dyn Compiler> = compilers.iter().map(|compiler| &**compiler).collect();
    let made = prepared(&model, samples.as_ref(), judged.as_ref(), &Options::from(ask), &compilers)
        .map_err(|error| BackendError::model(words(&error)).with_hint(error.hint()))?;
    may_go_on("write")?;
    outlet.progress("write", 0.0, "");
    let folder = order.scratch.join("prepared-model");
    fs::create_dir_all(&folder).map_err(|error| file_error("make", &folder, &error))?;
    let path = folder.join(MODEL_FILE);
    write::save(&path, &made.proto).map_err(|error| unwritten(&path, &error))?;
    let identity =
        Model::open(&path).and_then(|model| identify_open(&model)).map_err(|error| unwritten(&path, &error))?;
    let files = identity.files.into_iter().map(|file| Artifact {
        name: file.name,
        path: file.path,
        digest: file.digest,
        bytes: file.size_bytes,
    });
    let document = Document {
        source: order.model_digest,
        prepared: identity.digest,
        data: ask.files().collect(),
        calibration: &made.scales,
        report: &made.report,
    };
    let text = serde_json::to_vec_pretty(&document)
        .map_err(|error| BackendError::infrastructure(format!("cannot write what was prepared as JSON: {error}")))?;
    let document = artifact(&order.scratch.join(DOCUMENT_FILE), DOCUMENT_FILE, &text)?;
    for finding in &made.report.findings {
        log(&format!("{}: {}", finding.code, finding.message));
    }
    outlet.send(WorkEvent::Made {
        files: files.collect(),
        graph_digest: identity.graph_digest,
        structure_digest: identity.structure_digest,
        document,
    });
    Ok(())
}

fn artifact(path: &Path, name: &str, bytes: &[u8]) -> Result<Artifact, BackendError> {
    let wrong = |what: &str, error: &io::Error| file_error(what, path, error);
    fs::write(path, bytes).map_err(|error| wrong("write", &error))?;
    let (digest, bytes) = DigestWriter::of_file(path).map_err(|error| wrong("read", &error))?;
    Ok(Artifact { name: name.to_owned(), path: path.to_owned(), digest, bytes })
}

/// A prepared model that cannot be written is its host's trouble, unless it is too large for any file.
fn unwritten(path: &Path, error: &planforge_onnx::OnnxError) -> BackendError {
    let message = format!("cannot write the prepared model {}: {error}", path.display());
    let class = match error {
        planforge_onnx::OnnxError::TooLarge { .. } => FailureClass::Model,
        _ => FailureClass::Infrastructure,
    };
    BackendError::new(class, message).with_hint(error.hint())
}
