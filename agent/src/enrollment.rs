//! This agent's own key, and the coordinator's certificate for it.
//!
//! ```text
//! STATE/identity/key.pem           made here (0600); it never leaves this host
//! STATE/identity/certificate.pem   what the coordinator certified, renewed long before it ends
//! ```
//!
//! Crash safety: the certificate is written when it is there. An agent that dies between being certified and writing has
//! used its one-time token up and needs another.

use crate::host::state::{StateError, StateFolder};
use planforge_client::{BlobError, Blobs, Endpoint, Identity, Token, tls::TlsError};
use planforge_proto::{
    ApiError, ErrorCode,
    enrollment::{self, Certified, Enrollment},
};
use planforge_types::durable;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, SigningKey as _};
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Between tries to renew a certificate where one failed.
const RENEW_AGAIN: Duration = Duration::from_secs(60);
/// Soonest that a coordinator may ask for the next renewal.
const RENEW_SOONEST: Duration = Duration::from_secs(1);

/// Why an agent has no certificate.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot make a key for this agent: {0}")]
    Key(#[from] rcgen::Error),
    #[error("cannot enroll: {0}")]
    Refused(#[source] BlobError),
    #[error("cannot use this agent's certificate: {0}")]
    Certificate(#[from] TlsError),
}

impl From<EnrollError> for ApiError {
    fn from(error: EnrollError) -> Self {
        let message = error.to_string();
        match error {
            EnrollError::Refused(inner) => Self { message, ..inner.into() },
            EnrollError::Certificate(TlsError::Exposed(exposed)) => {
                Self::new(ErrorCode::InvalidArgument, message).with_hint(exposed.hint())
            }
            EnrollError::State(_) => Self::new(ErrorCode::InvalidArgument, message)
                .with_hint("check the state folder and its permissions, and that no other agent uses it"),
            EnrollError::Io { .. } | EnrollError::Key(_) | EnrollError::Certificate(_) => {
                Self::new(ErrorCode::InvalidArgument, message).with_hint(
                    "enroll anew: remove the folder 'identity' from the agent's state, and start it with --enroll FILE",
                )
            }
        }
    }
}

fn files(state_dir: &Path) -> (PathBuf, PathBuf) {
    let folder = state_dir.join("identity");
    (folder.join("certificate.pem"), folder.join("key.pem"))
}

/// The identity that an earlier enrollment left in the agent's state folder.
pub fn enrolled(state_dir: &Path, allow_readable_key: bool) -> Result<Option<Identity>, EnrollError> {
    let (certificate, key) = files(state_dir);
    if !certificate.exists() {
        return Ok(None);
    }
    Ok(Some(Identity::load(&certificate, &key, allow_readable_key)?))
}

/// Makes a key, and has the coordinator certify it for a one-time token.
pub async fn enroll(endpoint: &Endpoint, token: Token, state_dir: &Path) -> Result<Identity, EnrollError> {
    // Locked meanwhile: no agent runs on it.
    let state = StateFolder::open(state_dir)?;
    let (certificate, key_file) = files(state_dir);
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| EnrollError::Io { action, path, source }
    };
    let folder = key_file.parent().unwrap_or(state_dir);
    durable::create_private_dir(folder).map_err(io("create folder", folder))?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    durable::write_private(&key_file, key.serialize_pem().as_bytes()).map_err(io("write", &key_file))?;
    let agent_id = state.agent_id().to_owned();
    let signature = key.sign(&enrollment::words(&agent_id))?;
    let asked = Enrollment { agent_id, public_key: key.public_key_raw().to_vec(), signature };
    let blobs = Blobs::new(endpoint, Some(token))?;
    let certified = blobs.enroll(&asked).await.map_err(EnrollError::Refused)?;
    write(&certificate, &certified)?;
    tracing::info!(agent = asked.agent_id, expires_ms = certified.expires_ms, "enrolled");
    Ok(Identity::load(&certificate, &key_file, false)?)
}

fn write(path: &Path, certified: &Certified) -> Result<(), EnrollError> {
    durable::write_private(path, certified.certificate.as_bytes()).map_err(|source| EnrollError::Io {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

/// Renews a certificate, now and whenever it is time, until it is dropped. What cannot be renewed now is tried again.
pub(crate) async fn keep_renewing(blobs: Blobs, identity: Identity) {
    loop {
        let wait = match renew(&blobs, &identity).await {
            Ok(certified) => {
                tracing::debug!(expires_ms = certified.expires_ms, "renewed this agent's certificate");
                Duration::from_secs(certified.renew_in_s).max(RENEW_SOONEST)
            }
            Err(error) => {
                let hint = ApiError::from(error).hint;
                tracing::warn!(hint, "cannot renew this agent's certificate, trying on");
                RENEW_AGAIN
            }
        };
        tokio::time::sleep(wait).await;
    }
}

async fn renew(blobs: &Blobs, identity: &Identity) -> Result<Certified, EnrollError> {
    let certified = blobs.renew_certificate().await.map_err(EnrollError::Refused)?;
    write(identity.certificate(), &certified)?;
    identity.reload()?;
    Ok(certified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    #[test]
    fn without_an_enrollment_there_is_no_identity_and_half_of_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(enrolled(folder.path(), false).unwrap().is_none());
        let (certificate, _) = files(folder.path());
        durable::create_private_dir(certificate.parent().unwrap()).unwrap();
        write(&certificate, &Certified { certificate: "nothing".into(), expires_ms: 0, renew_in_s: 0 }).unwrap();
        let mode = fs::metadata(&certificate).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = ApiError::from(enrolled(folder.path(), false).unwrap_err());
        assert!(error.message.contains("certificate.pem") && error.hint.contains("--enroll"), "{error:?}");
    }
}
