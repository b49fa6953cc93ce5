//! Why an agent cannot start or go on.

use crate::{
    enrollment::EnrollError,
    host::{devices::DeviceError, lock::LockError, state::StateError},
};
use planforge_proto::{ApiError, ErrorCode};
use std::io;

/// Why an agent cannot start or go on. Everything else it retries.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Devices(#[from] DeviceError),
    #[error(transparent)]
    Enroll(#[from] EnrollError),
    #[error("cannot find this program's own file to start workers from: {0}")]
    OwnProgram(io::Error),
    #[error("cannot start the thread that starts workers: {0}")]
    Thread(io::Error),
    #[error("this process cannot be found in /proc")]
    NoProc,
    /// The address or the TLS set-up is wrong.
    #[error("{0}")]
    Endpoint(ApiError),
    /// The token is missing, unknown or not an agent's.
    #[error("{0}")]
    Denied(ApiError),
    /// Another process has this agent's identity.
    #[error("the coordinator refused this agent: {reason}")]
    Refused { reason: String, hint: String },
}

impl From<AgentError> for ApiError {
    fn from(error: AgentError) -> Self {
        let message = error.to_string();
        let (code, hint) = match error {
            AgentError::Endpoint(error) | AgentError::Denied(error) => return error,
            AgentError::Enroll(error) => return error.into(),
            AgentError::State(StateError::Busy { .. }) => {
                (ErrorCode::Conflict, "end the other agent, or give this one a state folder of its own".into())
            }
            AgentError::State(StateError::BadIdentity { .. }) => {
                (ErrorCode::InvalidArgument, "remove that file: the agent then joins under a new identity".into())
            }
            AgentError::State(_) => (ErrorCode::InvalidArgument, "check the state folder and its permissions".into()),
            AgentError::Lock(_) => {
                (ErrorCode::InvalidArgument, "every user's agents need to read and write the lock folder, which --lock-dir or PLANFORGE_LOCK_DIR names".into())
            }
            AgentError::Refused { hint, .. } => (ErrorCode::Conflict, hint),
            AgentError::Devices(_) | AgentError::OwnProgram(_) | AgentError::Thread(_) | AgentError::NoProc => {
                (ErrorCode::Internal, String::new())
            }
        };
        Self::new(code, message).with_hint(hint)
    }
}
