//! The one table from error code to gRPC code, HTTP status and exit code, and how an error travels.

use tonic::{Code, Status};

/// Metadata key under which the typed error travels beside the gRPC status.
const HINT_KEY: &str = "planforge-hint-bin";
const CODE_KEY: &str = "planforge-code";

/// What went wrong, coarsely enough to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The request itself is wrong: unknown SKU spelling, malformed digest, bad spec.
    InvalidArgument,
    /// No such job, engine, blob, token.
    NotFound,
    /// A stored engine whose plan was deleted or set aside as damaged: building it again brings it back.
    Gone,
    /// No token, or one that is unknown, expired or revoked.
    Unauthenticated,
    /// The token's role or project does not allow it.
    PermissionDenied,
    /// Admission: nothing known could run it; the message says what exists.
    Refused,
    /// It exists already in another form: idempotency key reused, second incarnation of an agent.
    Conflict,
    /// Disk full, queue full, quota.
    ResourceExhausted,
    /// The other side is of another release and does not know the call.
    Unsupported,
    /// Coordinator not reachable or shutting down: try again.
    Unavailable,
    /// A bug or a broken store.
    Internal,
}

/// One row of the table.
struct Row(ErrorCode, &'static str, Code, u16, u8);

/// code, name, gRPC, HTTP, exit code of the command line.
const TABLE: [Row; 11] = [
    Row(ErrorCode::InvalidArgument, "invalid-argument", Code::InvalidArgument, 400, 2),
    Row(ErrorCode::NotFound, "not-found", Code::NotFound, 404, 3),
    Row(ErrorCode::Gone, "gone", Code::DataLoss, 410, 3),
    Row(ErrorCode::Unauthenticated, "unauthenticated", Code::Unauthenticated, 401, 5),
    Row(ErrorCode::PermissionDenied, "permission-denied", Code::PermissionDenied, 403, 5),
    Row(ErrorCode::Refused, "refused", Code::FailedPrecondition, 422, 6),
    Row(ErrorCode::Conflict, "conflict", Code::AlreadyExists, 409, 7),
    Row(ErrorCode::ResourceExhausted, "resource-exhausted", Code::ResourceExhausted, 507, 8),
    Row(ErrorCode::Unsupported, "unsupported", Code::Unimplemented, 501, 6),
    Row(ErrorCode::Unavailable, "unavailable", Code::Unavailable, 503, 4),
    Row(ErrorCode::Internal, "internal", Code::Internal, 500, 70),
];

impl ErrorCode {
    /// Every code, in the table's order.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.0 == self).expect("every code has a row")
    }

    /// Stable name, used in JSON.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The code of that stable name.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    pub fn grpc(self) -> Code {
        self.row().2
    }

    pub fn http_status(self) -> u16 {
        self.row().3
    }

    pub fn exit_code(self) -> u8 {
        self.row().4
    }
}

/// An error as it crosses the wire: what happened, and what to do next.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub code: ErrorCode,
    pub message: String,
    /// May be empty.
    pub hint: String,
}

impl ApiError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: String::new() }
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        let mut status = Status::new(error.code.grpc(), error.message);
        let metadata = status.metadata_mut();
        metadata.insert(CODE_KEY, error.code.name().parse().expect("names are ASCII"));
        if !error.hint.is_empty() {
            metadata.insert_bin(HINT_KEY, tonic::metadata::MetadataValue::from_bytes(error.hint.as_bytes()));
        }
        status
    }
}

impl From<Status> for ApiError {
    fn from(status: Status) -> Self {
        let metadata = status.metadata();
        let named = metadata.get(CODE_KEY).and_then(|v| v.to_str().ok());
        let code =
            TABLE.iter().find(|row| named.map_or(row.2 == status.code(), |name| row.1 == name)).map_or(
                if status.code() == Code::Unknown { ErrorCode::Unavailable } else { ErrorCode::Internal },
                |row| row.0,
            );
        let hint = metadata.get_bin(HINT_KEY).and_then(|v| v.to_bytes().ok());
        let hint = hint.map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
        Self { code, message: status.message().to_owned(), hint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_survive_the_wire() {
        for row in &TABLE {
            let back = ApiError::from(Status::from(ApiError::new(row.0, "message").with_hint("hint ✓")));
            assert_eq!((back.code, back.message.as_str(), back.hint.as_str()), (row.0, "message", "hint ✓"));
        }
    }
}
