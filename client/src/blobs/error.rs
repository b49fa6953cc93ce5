//! What can go wrong with a transfer, and which of it is worth another try.

use http::StatusCode;
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::Digest;
use serde::Deserialize;
use std::{io, path::PathBuf};

/// Why a blob was not transferred.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// No connection; the inner error names the coordinator and what to do.
    #[error("{0}")]
    Unreachable(ApiError),
    /// The connection ended or stalled in the middle.
    #[error("the transfer of {url} was cut: {reason}")]
    Cut { url: String, reason: String },
    #[error("{url} does not exist on the coordinator")]
    NotFound { url: String },
    /// The coordinator said no.
    #[error("{url}: the coordinator answered {status}: {message}")]
    Refused { url: String, status: StatusCode, message: String, hint: String },
    /// The coordinator has no room.
    #[error("{url}: the coordinator has no room: {message}")]
    NoRoom { url: String, message: String, hint: String },
    #[error("{url} delivered bytes whose SHA-256 is {actual}; they were thrown away")]
    WrongDigest { url: String, actual: Digest },
    /// The bytes that were sent are not those that the digest names.
    #[error("the upload of sha256:{digest} was refused: {message}")]
    UploadMismatch { digest: Digest, message: String },
    #[error("{url} is larger than the {limit_bytes} bytes that may be read")]
    TooLarge { url: String, limit_bytes: u64 },
    /// This side's disk.
    #[error("cannot {action} {}: {source}", path.display())]
    Disk { action: &'static str, path: PathBuf, source: io::Error },
    /// The coordinator's answer makes no sense.
    #[error("{url}: {reason}")]
    Protocol { url: String, reason: String },
}

/// The problem documents coordinators answer with; unknown fields are ignored, every field may be missing.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    message: String,
    detail: String,
    hint: String,
}

impl BlobError {
    pub(super) fn refused(url: &str, status: StatusCode, body: &[u8]) -> Self {
        let problem: Problem = serde_json::from_slice(body).unwrap_or_default();
        let text = String::from_utf8_lossy(body);
        let message = [problem.message, problem.detail, text.trim().chars().take(300).collect()]
            .into_iter()
            .find(|text| !text.is_empty())
            .unwrap_or_else(|| status.canonical_reason().unwrap_or("no reason given").to_owned());
        let url = url.to_owned();
        match status {
            StatusCode::NOT_FOUND => Self::NotFound { url },
            StatusCode::INSUFFICIENT_STORAGE => Self::NoRoom { url, message, hint: problem.hint },
            _ => Self::Refused { url, status, message, hint: problem.hint },
        }
    }

    pub(crate) fn disk(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Disk { action, path, source }
    }

    /// Whether trying again may help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable(error) => error.code == ErrorCode::Unavailable,
            Self::Cut { .. } => true,
            Self::Refused { status, .. } => {
                matches!(
                    *status,
                    StatusCode::REQUEST_TIMEOUT
                        | StatusCode::TOO_MANY_REQUESTS
                        | StatusCode::BAD_GATEWAY
                        | StatusCode::SERVICE_UNAVAILABLE
                        | StatusCode::GATEWAY_TIMEOUT
                )
            }
            _ => false,
        }
    }

    /// Whether a disk is full, here or at the coordinator.
    pub fn is_no_room(&self) -> bool {
        match self {
            Self::NoRoom { .. } => true,
            Self::Disk { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            _ => false,
        }
    }
}

impl From<BlobError> for ApiError {
    fn from(error: BlobError) -> Self {
        let (message, full) = (error.to_string(), error.is_no_room());
        let (code, hint) = match error {
            BlobError::Unreachable(error) => return error,
            BlobError::Cut { .. } => (ErrorCode::Unavailable, "run it again: it continues where it stopped"),
            BlobError::NotFound { .. } => (ErrorCode::NotFound, ""),
            BlobError::Refused { status, hint, .. } => {
                let code = match status {
                    StatusCode::UNAUTHORIZED => ErrorCode::Unauthenticated,
                    StatusCode::FORBIDDEN => ErrorCode::PermissionDenied,
                    StatusCode::CONFLICT => ErrorCode::Conflict,
                    StatusCode::GONE => ErrorCode::Gone,
                    // A limit of this caller's or its project's.
                    StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::ResourceExhausted,
                    _ if status.is_server_error() => ErrorCode::Unavailable,
                    _ => ErrorCode::InvalidArgument,
                };
                return Self::new(code, message).with_hint(hint);
            }
            BlobError::NoRoom { hint, .. } => return Self::new(ErrorCode::ResourceExhausted, message).with_hint(hint),
            BlobError::WrongDigest { .. } => {
                (ErrorCode::Internal, "the stored blob or the path to it is damaged; check the coordinator's disk")
            }
            BlobError::UploadMismatch { .. } => {
                (ErrorCode::InvalidArgument, "the file changed while it was sent; run it again")
            }
            BlobError::TooLarge { .. } => (ErrorCode::InvalidArgument, ""),
            BlobError::Disk { .. } if full => (ErrorCode::ResourceExhausted, "free space on this disk"),
            BlobError::Disk { .. } => (ErrorCode::InvalidArgument, "check the path and its permissions"),
            BlobError::Protocol { .. } => (ErrorCode::Internal, "check that this address is a coordinator's"),
        };
        Self::new(code, message).with_hint(hint)
    }
}
