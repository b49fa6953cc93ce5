//! One attempt at one job, from its lease to its end.
//!
//! | module | holds |
//! |---|---|
//! | `blocking` | work that may wait for a disk |
//! | `run` | the steps: files, device, worker, uploads, result |
//! | `take_device` | waiting for the device's lock on this host |
//! | `supervise` | a running worker: its order, its words, its limits and its end |
//! | `uploads` | what an attempt brings to the blob store |
//! | [`caches`] | timing and tactic caches: one private copy for each build, published after its success |
//! | [`device_check`] | whether a device can still be used, asked after a failure |
//! | [`lack`] | what this host has too little of |
//! | `order` | what a job asks for, read and checked |
//! | [`process`] | the worker process, its limits and its death |
//! | [`log`] | the attempt's bounded log |
//! | [`spans`] | what is told of it to whoever takes traces |
//! | [`models`] | model files by digest, kept between attempts |

pub mod caches;
pub mod device_check;
pub mod joins;
pub mod lack;
pub mod log;
pub mod models;
mod order;
pub mod process;
mod run;
pub mod spans;
mod supervise;
mod take_device;
mod uploads;

use crate::{
    AttemptKey, Limits,
    host::{lock::LockError, proc::ProcessId, state::Outbox},
};
use bytes::Bytes;
use caches::{Caches, TakenCache};
use device_check::DeviceCheck;
use log::AttemptLog;
use models::{ModelCache, ModelError};
use planforge_client::{BlobError, Blobs};
use planforge_proto::v1;
use planforge_types::{
    Digest, FailureClass, Lack, Reason, TraceContext, fingerprint::DiscoveredDevice, order::Artifact,
};
use process::Spawner;
use spans::Spans;
use std::{ffi::OsString, io, path::PathBuf, sync::Arc};
use tokio::sync::{Mutex, mpsc, watch};

/// What all attempts of an agent share.
#[derive(Debug)]
pub struct Shared {
    pub agent_name: String,
    pub process: ProcessId,
    pub worker_command: Vec<OsString>,
    pub blobs: Blobs,
    pub models: ModelCache,
    pub scratch: PathBuf,
    /// Timing and tactic caches that this host keeps.
    pub caches: Caches,
    /// Folder of what this host's devices were measured to reach; workers read and write it.
    pub ceilings: PathBuf,
    /// Folder of how the reference stood against independent runtimes; workers read and write it.
    pub oracles: PathBuf,
    /// Folder of the programs that measure by other runtimes.
    pub baselines: Option<PathBuf>,
    pub refuse_plugins: bool,
    pub outbox: Outbox,
    pub lock_folder: PathBuf,
    pub spawner: Spawner,
    pub check: DeviceCheck,
    pub limits: Limits,
}

/// One attempt, ready to run.
#[derive(Debug)]
pub struct Attempt {
    pub shared: Arc<Shared>,
    pub key: AttemptKey,
    pub lease: v1::Lease,
    pub job: v1::Job,
    /// The newest timing cache of the job's scope, as the coordinator knows it.
    pub cache: Option<v1::TuningCache>,
    /// An earlier attempt broke down with the cache.
    pub without_cache: bool,
    /// Of a compile job for a device elsewhere: such a device, as its agent described it; else empty.
    pub made_for: String,
    pub device: DiscoveredDevice,
    /// The driver told what may make the device unusable: it is looked at first.
    pub suspected: bool,
    /// This agent's own attempts on the device take turns here, before they ask for the host's lock.
    pub turn: Arc<Mutex<()>>,
    pub stop: watch::Receiver<Option<Stop>>,
    pub notes: mpsc::Sender<(AttemptKey, Note)>,
    /// The lease's place in a trace.
    pub trace: Option<TraceContext>,
    pub spans: Spans,
}

/// How the work ended, other than well.
enum Ended {
    Failed(Failed),
    Stopped(Stop),
}

impl<E: Into<Failed>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// What a worker's success left beside plan and cache.
#[derive(Default)]
struct Measured {
    /// `None`: nothing was to be measured.
    pub report: Option<Bytes>,
    pub accurate: bool,
    pub artifacts: Vec<Artifact>,
    /// What was prepared for a device elsewhere: file, digest, bytes.
    pub prepared: Option<(PathBuf, Digest, u64)>,
    /// The model that was made.
    pub made: Option<Made>,
}

/// A model that a worker made of its order's: its files, the ONNX file first, and what became of which layer.
struct Made {
    pub files: Vec<Artifact>,
    pub graph_digest: Digest,
    pub structure_digest: Digest,
    pub document: Artifact,
}

/// What became of an attempt's parts, however it ended.
#[derive(Default)]
struct Facts {
    pub built: Option<v1::Built>,
    /// For a build: what its timing cache was when it began.
    pub cache: Option<TakenCache>,
    /// The worker, or what it ran, broke down.
    pub broke_down: bool,
    /// The failure may be the device's.
    pub suspects_device: bool,
}

/// Waits until the attempt is to stop. An agent that is gone stops it too.
async fn stopped(stop: &mut watch::Receiver<Option<Stop>>) -> Stop {
    match stop.wait_for(Option::is_some).await {
        Ok(reason) => reason.clone().expect("waited for it"),
        Err(_) => Stop::LeaseLost { reason: "the agent has ended".into() },
    }
}

/// What an attempt tells its agent while it runs.
#[derive(Debug)]
pub enum Note {
    /// The log exists and can be streamed.
    Log(Arc<AttemptLog>),
    /// The worker runs.
    Started,
    Progress {
        phase: String,
        fraction: f32,
        detail: String,
    },
    Built(v1::Built),
    /// A timed window begins (`true`) or ends on its device.
    Window(bool),
    /// Its device was looked at after a failure; the error says why nothing can run there.
    Checked(Result<(), String>),
    /// The last note; `None`: nothing is to be reported.
    Ended(Option<Box<v1::Finished>>),
}

/// Why an attempt is stopped from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The coordinator withdrew the job.
    Cancelled { reason: String },
    /// Another attempt owns the job: publish nothing.
    LeaseLost { reason: String },
    /// The agent ends and cannot wait any longer: the job is to be tried elsewhere.
    Drained,
}

/// Why an attempt failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failed {
    pub class: FailureClass,
    pub message: String,
    pub hint: String,
    /// What this host had too little of; another may have it.
    pub lacked: Option<Lack>,
    /// As the backend gave it.
    pub reason: Option<Reason>,
}

impl Failed {
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { class, lacked: lack::said(&message), message, hint: String::new(), reason: None }
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    pub fn infrastructure(message: impl Into<String>) -> Self {
        Self::new(FailureClass::Infrastructure, message)
    }

    /// An error of this host's disk.
    pub fn disk(what: &str, error: &io::Error) -> Self {
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let class = if full { FailureClass::Resource } else { FailureClass::Infrastructure };
        let hint = if full { "free space in the agent's state folder" } else { "" };
        let failed = Self::new(class, format!("cannot {what}: {error}")).with_hint(hint);
        Self { lacked: full.then_some(Lack::Disk), ..failed }
    }

    pub fn to_wire(&self) -> v1::Failure {
        let class = match self.class {
            FailureClass::Infrastructure => v1::FailureClass::Infrastructure,
            FailureClass::Resource => v1::FailureClass::Resource,
            FailureClass::Model => v1::FailureClass::Model,
            FailureClass::Unstable => v1::FailureClass::Unstable,
        };
        let lacked = self.lacked.map(|lack| lack.name().to_owned()).unwrap_or_default();
        let reason = self.reason.map(|reason| reason.name().to_owned()).unwrap_or_default();
        v1::Failure { class: class.into(), message: self.message.clone(), hint: self.hint.clone(), lacked, reason }
    }
}

impl From<BlobError> for Failed {
    fn from(error: BlobError) -> Self {
        let class = if error.is_no_room() { FailureClass::Resource } else { FailureClass::Infrastructure };
        let here = error.is_no_room() && matches!(error, BlobError::Disk { .. });
        let error = planforge_proto::ApiError::from(error);
        let failed = Self::new(class, error.message).with_hint(error.hint);
        Self { lacked: here.then_some(Lack::Disk), ..failed }
    }
}

impl From<ModelError> for Failed {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Blob(error) => error.into(),
            ModelError::Disk { action, path, source } => Self::disk(&format!("{action} {}", path.display()), &source),
            error @ (ModelError::FileCount | ModelError::BadName { .. } | ModelError::BadDigest { .. }) => {
                Self::new(FailureClass::Model, error.to_string())
            }
        }
    }
}

impl From<LockError> for Failed {
    fn from(error: LockError) -> Self {
        Self::infrastructure(error.to_string())
            .with_hint("every agent of this host, of whatever user, needs to read and write the lock folder")
    }
}
