//! What can go wrong with stored bytes.

use crate::trouble::Trouble;
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::Digest;
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Which room is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Disk,
    /// What the coordinator may take of it.
    FarmQuota,
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "on the disk of",
            Self::FarmQuota => "within the farm's quota for",
        })
    }
}

/// Whose limit of open uploads is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    Token(String),
    Project(String),
    Farm,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(name) => write!(f, "the token '{name}'"),
            Self::Project(name) => write!(f, "project {name}"),
            Self::Farm => f.write_str("the farm"),
        }
    }
}

/// Why a blob could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("blob sha256:{digest} is not stored")]
    NotFound { digest: Digest },

    #[error("blob sha256:{digest} is damaged: {reason}; it was set aside")]
    Corrupt { digest: Digest, reason: String },

    #[error("blob sha256:{digest} is damaged: {reason}")]
    Damaged { digest: Digest, reason: String },

    #[error("blob sha256:{digest} was found damaged on the coordinator's disk and set aside")]
    Quarantined { digest: Digest },

    #[error("upload '{id}' does not exist")]
    UploadUnknown { id: String },

    #[error("upload '{id}' stands at offset {expected}, not {given}")]
    OffsetMismatch { id: String, expected: u64, given: u64 },

    #[error(
        "the parts of upload '{id}' are not its client's to write: it is small, at its end, or came this way so far"
    )]
    NotDirect { id: String },

    #[error("another request is writing to upload '{id}', which stands at offset {offset}")]
    UploadBusy { id: String, offset: u64 },

    #[error("the uploaded bytes hash to sha256:{found}, not to the announced sha256:{expected}; nothing was stored")]
    DigestMismatch { expected: Digest, found: Digest },

    #[error(
        "the upload of sha256:{digest} was announced with {announced_bytes} bytes but has {received}; nothing was stored"
    )]
    SizeMismatch {
        digest: Digest,
        announced_bytes: u64,
        /// How many bytes came, or that more than announced came.
        received: String,
    },

    #[error("no room for {needed_bytes} bytes {room} {}: {available_bytes} bytes are available", path.display())]
    Full { room: Room, path: PathBuf, needed_bytes: u64, available_bytes: u64 },

    #[error(
        "no new work: {available_bytes} bytes are left {room} {}, and {reserve_bytes} are kept for the ends of jobs that run",
        path.display()
    )]
    Reserved { room: Room, path: PathBuf, available_bytes: u64, reserve_bytes: u64 },

    #[error(
        "project {project} has no room for {needed_bytes} bytes: it stores {stored_bytes} and announced {announced_bytes} \
         more, its quota is {quota_bytes}"
    )]
    ProjectFull { project: String, needed_bytes: u64, stored_bytes: u64, announced_bytes: u64, quota_bytes: u64 },

    #[error("{open} uploads of {whose} are open, which is {whose}'s limit")]
    TooManyUploads { open: usize, whose: Whose },

    #[error("the upload '{id}' was cut off at offset {offset}: {reason}")]
    Interrupted { id: String, offset: u64, reason: String },

    #[error("cannot {action} in {place}: {trouble}")]
    Store {
        action: &'static str,
        /// The store as people name it, such as `s3://bucket/prefix`.
        place: String,
        trouble: Trouble,
    },

    #[error("{place} keeps other bytes than were sent for the blob sha256:{digest}; it was not stored")]
    NotKept { digest: Digest, place: String },

    #[error("{place} is of the farm {found}, and this is the farm {own}")]
    OtherFarm { place: String, found: String, own: String },

    #[error("{place} is not empty and of no farm: it holds {key}")]
    Foreign { place: String, key: String },

    #[error("'{place}' is no place for blobs: {why}")]
    NoPlace { place: String, why: String },

    #[error("cannot use {what}: {why}")]
    Unusable {
        /// A file, mostly.
        what: String,
        why: String,
        hint: String,
    },

    #[error("what is remembered of the blobs cannot be read or written: {0}")]
    Notes(ApiError),

    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl BlobError {
    /// Of an id that a caller gave: as much of it as a message bears.
    pub(crate) fn upload_unknown(id: &str) -> Self {
        Self::UploadUnknown { id: id.chars().take(64).collect() }
    }

    /// Wraps an I/O error with what was being done; a full disk becomes [`BlobError::Full`].
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full { room: Room::Disk, path: path.to_owned(), needed_bytes: 0, available_bytes: 0 }
            }
            _ => Self::Io { action, path: path.to_owned(), source },
        }
    }

    /// Whether the limit that is in the way is the caller's own, not the coordinator's.
    pub fn is_callers_limit(&self) -> bool {
        match self {
            Self::ProjectFull { .. } => true,
            Self::TooManyUploads { whose, .. } => *whose != Whose::Farm,
            _ => false,
        }
    }

    /// Of what kind it is.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound { .. } | Self::UploadUnknown { .. } => ErrorCode::NotFound,
            Self::OffsetMismatch { .. } | Self::UploadBusy { .. } | Self::NotDirect { .. } => ErrorCode::Conflict,
            Self::DigestMismatch { .. } | Self::SizeMismatch { .. } => ErrorCode::Refused,
            Self::Full { .. } | Self::Reserved { .. } | Self::ProjectFull { .. } | Self::TooManyUploads { .. } => {
                ErrorCode::ResourceExhausted
            }
            Self::Interrupted { .. } => ErrorCode::Unavailable,
            Self::Corrupt { .. } | Self::Damaged { .. } | Self::Quarantined { .. } => ErrorCode::Gone,
            Self::Store { trouble, .. } => trouble.code(),
            Self::NotKept { .. } => ErrorCode::Unavailable,
            Self::OtherFarm { .. } | Self::Foreign { .. } => ErrorCode::Refused,
            Self::NoPlace { .. } | Self::Unusable { .. } => ErrorCode::InvalidArgument,
            Self::Notes(error) => error.code,
            Self::Io { .. } => ErrorCode::Internal,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &str {
        match self {
            Self::NotFound { .. } => "it was never uploaded here, or it was removed",
            Self::Corrupt { .. } | Self::Damaged { .. } | Self::Quarantined { .. } => {
                "store it again: of a plan by building its engine (planforge submit), of a model by submitting it; then have \
                 the coordinator's disk looked at"
            }
            Self::UploadUnknown { .. } => "it ended or was collected after a long pause; begin a new upload",
            Self::NotDirect { .. } => "send its bytes with PATCH, from the offset named in Upload-Offset on",
            Self::OffsetMismatch { .. } => "continue at the offset named in Upload-Offset",
            Self::UploadBusy { .. } => "wait a moment, ask for the offset and continue there",
            Self::DigestMismatch { .. } => {
                "the file changed while it was read or was damaged on the way; upload it again"
            }
            Self::SizeMismatch { .. } => "the file changed while it was read; upload it again",
            Self::Full { room: Room::Disk, .. } | Self::Reserved { room: Room::Disk, .. } => {
                "free space on the coordinator's disk; what runs goes on, and finished engines are still there"
            }
            Self::Full { room: Room::FarmQuota, .. } | Self::Reserved { room: Room::FarmQuota, .. } => {
                "raise the coordinator's blob quota; what runs goes on, and finished engines are still there"
            }
            Self::ProjectFull { .. } => {
                "have an administrator raise the project's quota: planforge projects set NAME --max-bytes SIZE"
            }
            Self::TooManyUploads { whose: Whose::Farm, .. } => "wait until other uploads end",
            Self::TooManyUploads { .. } => {
                "finish or abandon some; those that never got a byte are forgotten after minutes"
            }
            Self::Interrupted { .. } => "ask for the offset and continue there",
            Self::Store { trouble, .. } => trouble.hint(),
            Self::NotKept { .. } => "send it again; where that happens again, have the store looked at",
            Self::OtherFarm { .. } => "give each farm a bucket or prefix of its own",
            Self::Foreign { .. } => "name an empty bucket or prefix",
            Self::NoPlace { .. } => "write a folder, or s3://BUCKET/PREFIX",
            Self::Unusable { hint, .. } => hint,
            Self::Notes(error) => &error.hint,
            Self::Io { .. } => "see the coordinator's log and check its disk",
        }
    }
}

impl From<BlobError> for ApiError {
    fn from(error: BlobError) -> Self {
        Self::new(error.code(), error.to_string()).with_hint(error.hint())
    }
}
