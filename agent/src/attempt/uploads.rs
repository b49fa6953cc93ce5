//! What an attempt brings to the blob store: plan, card, report, artifacts, log.

use super::{Attempt, Ended, Failed, Made, Measured, log::AttemptLog};
use bytes::Bytes;
use planforge_client::blocking::blocking;
use planforge_identity::model::model_digest;
use planforge_proto::v1;
use planforge_types::{
    Digest, FailureClass,
    order::{Artifact, PREPARED_MAX_BYTES, WorkOrder},
    preparation::PrepareAsk,
};
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Largest card and report that are read into memory.
const DOCUMENT_MAX_BYTES: u64 = 64 << 20;
/// Artifacts of one attempt that are kept, and their bytes together: a timeline of one benchmark is the largest.
const ARTIFACTS_MAX: usize = 64;
const ARTIFACTS_MAX_BYTES: u64 = 1 << 30;
/// Longest that the log is tried when the coordinator is away or has no room for it.
const LOG_PATIENCE: Duration = Duration::from_secs(30);
/// Longest name of an artifact.
const ARTIFACT_NAME_MAX_BYTES: usize = 120;

/// What of an attempt's results is in the blob store.
#[derive(Default)]
pub(super) struct Stored {
    pub report: Option<Digest>,
    pub prepared: Option<(Digest, u64)>,
    /// A model that was made, and the document of what became of it.
    pub made: Option<(v1::Model, Digest)>,
}

impl Attempt {
    /// Uploads plan and card; the worker waits meanwhile.
    pub(super) async fn upload_built(
        &self,
        plan: PathBuf,
        plan_digest: Digest,
        plan_bytes: u64,
        card: PathBuf,
        builds: u32,
    ) -> Result<v1::Built, Failed> {
        let blobs = &self.shared.blobs;
        self.phase("upload", 0.0, format!("plan of {plan_bytes} bytes")).await;
        let card = read_document(&card).await?;
        self.patiently(|| blobs.upload(&plan, plan_digest)).await?;
        let card_digest = self.patiently(|| blobs.put_bytes(card.clone())).await?;
        Ok(v1::Built {
            lease: Some(self.lease.clone()),
            plan_digest: plan_digest.to_string(),
            plan_bytes,
            card_digest: card_digest.to_string(),
            builds,
        })
    }

    /// The report, or what was prepared for a device elsewhere.
    pub(super) async fn upload_results(&self, measured: &Measured) -> Result<Stored, Ended> {
        let mut stored = Stored::default();
        if let Some(report) = &measured.report {
            let put = self.patiently(|| self.shared.blobs.put_bytes(report.clone()));
            stored.report = Some(self.unless_stopped(put).await.map_err(Ended::Stopped)??);
        }
        if let Some((file, digest, bytes)) = &measured.prepared {
            if *bytes > PREPARED_MAX_BYTES {
                let message = format!("what was prepared has {bytes} bytes; at most {PREPARED_MAX_BYTES} are kept");
                let hint = "lower the optimization level: fewer kernels are prepared then";
                return Err(Failed::new(FailureClass::Resource, message).with_hint(hint).into());
            }
            self.phase("upload", 0.0, format!("{bytes} prepared bytes")).await;
            let put = self.patiently(|| self.shared.blobs.upload(file, *digest));
            let () = self.unless_stopped(put).await.map_err(Ended::Stopped)??;
            stored.prepared = Some((*digest, *bytes));
        }
        if let Some(made) = &measured.made {
            stored.made = Some(self.upload_made(made).await?);
        }
        Ok(stored)
    }

    /// A model that was made, with the document of what became of it.
    async fn upload_made(&self, made: &Made) -> Result<(v1::Model, Digest), Ended> {
        let bytes: u64 = made.files.iter().map(|file| file.bytes).sum();
        self.phase("upload", 0.0, format!("a model of {bytes} bytes")).await;
        for file in made.files.iter().chain([&made.document]) {
            let put = self.patiently(|| self.shared.blobs.upload(&file.path, file.digest));
            let () = self.unless_stopped(put).await.map_err(Ended::Stopped)??;
        }
        let named = made.files.iter().map(|file| (file.name.as_str(), file.digest, file.bytes));
        let model = v1::Model {
            digest: model_digest(named).to_string(),
            graph_digest: made.graph_digest.to_string(),
            structure_digest: made.structure_digest.to_string(),
            name: prepared_name(&self.job),
            files: made
                .files
                .iter()
                .map(|file| v1::ModelFile {
                    name: file.name.clone(),
                    digest: file.digest.to_string(),
                    size_bytes: file.bytes,
                })
                .collect(),
        };
        Ok((model, made.document.digest))
    }

    /// Stores the artifacts; one that cannot be stored is left out, and the log says so.
    pub(super) async fn upload_artifacts(
        &self,
        measured: &Measured,
        log: &AttemptLog,
    ) -> Result<Vec<v1::Artifact>, Ended> {
        let mut stored = Vec::with_capacity(measured.artifacts.len());
        for Artifact { name, path, digest, bytes } in &measured.artifacts {
            let put = self.patiently(|| self.shared.blobs.upload(path, *digest));
            match self.unless_stopped(put).await.map_err(Ended::Stopped)? {
                Ok(()) => {
                    stored.push(v1::Artifact { name: name.clone(), digest: digest.to_string(), size_bytes: *bytes })
                }
                Err(failed) => log.note(&format!("the artifact '{name}' could not be stored: {failed}")),
            }
        }
        Ok(stored)
    }

    /// The sealed log. A log that cannot be stored never fails an attempt, and holds its end up for a moment only: the
    /// coordinator then stores what it heard of it live.
    pub(super) async fn upload_log(&self, log: &Arc<AttemptLog>) -> Option<Digest> {
        let sealed = log.clone();
        let read = blocking(move || {
            if let Err(error) = sealed.seal() {
                tracing::warn!(path = %sealed.path().display(), %error, "the end of an attempt's log is lost");
            }
            std::fs::read(sealed.path())
        });
        let bytes = match read.await {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) => {
                tracing::warn!(%error, "cannot read an attempt's log");
                return None;
            }
        };
        let patience = LOG_PATIENCE.min(Duration::from_millis(self.shared.limits.store_patience_ms));
        match self.patiently_for(patience, || self.shared.blobs.put_bytes(bytes.clone())).await {
            Ok(digest) => Some(digest),
            Err(error) => {
                tracing::warn!(%error, "cannot store an attempt's log");
                None
            }
        }
    }
}

/// What people call a model that was prepared: `net.int8.onnx` of `net.onnx`.
fn prepared_name(job: &v1::Job) -> String {
    let ask = job.preparation.as_ref().map(|preparation| preparation.ask_json.as_str()).unwrap_or_default();
    let kind = serde_json::from_str::<PrepareAsk>(ask).map_or("prepared", |ask| ask.precision.name());
    let name = job.model.as_ref().map(|model| model.name.as_str()).unwrap_or_default();
    let stem = name.strip_suffix(".onnx").unwrap_or(name);
    format!("{}.{kind}.onnx", if stem.is_empty() { "model" } else { stem })
}

/// The artifacts that are kept of those a worker named; of the others its log says why not. They never fail a job.
pub(super) fn accepted(order: &WorkOrder, named: Vec<Artifact>, log: &AttemptLog) -> Vec<Artifact> {
    let mut kept = Vec::new();
    let mut names = BTreeSet::new();
    let mut total_bytes = 0_u64;
    for artifact in named {
        let refuse =
            |why: &str| log.note(&format!("the artifact '{}' is not kept: {why}", artifact.name.escape_debug()));
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ' ' | '+');
        let fine = (1..=ARTIFACT_NAME_MAX_BYTES).contains(&artifact.name.len())
            && artifact.name.chars().all(plain)
            && !artifact.name.starts_with('.');
        if !fine || !names.insert(artifact.name.clone()) {
            refuse("it needs a plain file name of its own");
            continue;
        }
        let path = match own_file(order, &artifact.path) {
            Ok(path) => path,
            Err(failed) => {
                refuse(&failed.message);
                continue;
            }
        };
        let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        if kept.len() >= ARTIFACTS_MAX || total_bytes.saturating_add(bytes) > ARTIFACTS_MAX_BYTES {
            refuse(&format!(
                "an attempt keeps at most {ARTIFACTS_MAX} artifacts of {ARTIFACTS_MAX_BYTES} bytes together"
            ));
            continue;
        }
        total_bytes += bytes;
        kept.push(Artifact { path, bytes, ..artifact });
    }
    kept
}

pub(super) async fn read_document(path: &Path) -> Result<Bytes, Failed> {
    let path = path.to_owned();
    blocking(move || {
        let read = || -> io::Result<Vec<u8>> {
            let size = std::fs::metadata(&path)?.len();
            if size > DOCUMENT_MAX_BYTES {
                return Err(io::Error::other(format!("it has {size} bytes, more than {DOCUMENT_MAX_BYTES}")));
            }
            std::fs::read(&path)
        };
        read().map(Bytes::from).map_err(|error| Failed::disk(&format!("read {}", path.display()), &error))
    })
    .await
}

/// A file the worker names must lie in its scratch folder: nothing else is read for it.
pub(super) fn own_file(order: &WorkOrder, path: &Path) -> Result<PathBuf, Failed> {
    let refuse =
        |reason: String| Failed::infrastructure(format!("the worker named the file {}, {reason}", path.display()));
    let real = path.canonicalize().map_err(|error| refuse(format!("which cannot be read: {error}")))?;
    let scratch =
        order.scratch.canonicalize().map_err(|error| refuse(format!("but its scratch folder is gone: {error}")))?;
    if real.starts_with(&scratch) { Ok(real) } else { Err(refuse("which is not in its scratch folder".into())) }
}
