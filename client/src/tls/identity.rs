//! The certificate that this side shows, where a coordinator asks for one.

use super::TlsError;
use planforge_types::private_file::refuse_exposed;
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};
use tokio_rustls::rustls::{
    SignatureScheme,
    client::ResolvesClientCert,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};

/// A certificate and its key, from files. Clones share them; what is reloaded holds for connections that open from then
/// on.
#[derive(Clone)]
pub struct Identity(Arc<Files>);

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    allow_readable_key: bool,
    current: RwLock<Arc<CertifiedKey>>,
}

impl Identity {
    /// Reads a certificate, followed by its intermediates, and its key.
    ///
    /// # Errors
    ///
    /// A file cannot be read, holds none, others may read the key and that was not allowed, or the two do not belong
    /// together.
    pub fn load(certificate: &Path, key: &Path, allow_readable_key: bool) -> Result<Self, TlsError> {
        let current = RwLock::new(read(certificate, key, allow_readable_key)?);
        Ok(Self(Arc::new(Files { certificate: certificate.into(), key: key.into(), allow_readable_key, current })))
    }

    /// Reads the files again. Where they cannot be used, everything stays as it is.
    ///
    /// # Errors
    ///
    /// As [`Identity::load`].
    pub fn reload(&self) -> Result<(), TlsError> {
        let Files { certificate, key, allow_readable_key, current } = &*self.0;
        let fresh = read(certificate, key, *allow_readable_key)?;
        *current.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// The certificate's file.
    pub fn certificate(&self) -> &Path {
        &self.0.certificate
    }
}

fn read(certificate: &Path, key: &Path, allow_readable_key: bool) -> Result<Arc<CertifiedKey>, TlsError> {
    let unreadable = |what, path: &Path, reason: String| TlsError::ReadIdentity { what, path: path.to_owned(), reason };
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable("certificate", certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(unreadable("certificate", certificate, "it holds no PEM certificate".into()));
    }
    if !allow_readable_key {
        refuse_exposed(key).map_err(TlsError::Exposed)?;
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("key", key, error.to_string()))?;
    let certified = CertifiedKey::from_der(chain, secret, &ring::default_provider());
    certified.map(Arc::new).map_err(|source| TlsError::Mismatch {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    })
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _authorities: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let current = self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        current.key.choose_scheme(schemes).is_some().then_some(current)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.0.certificate.display())
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        (&self.0.certificate, &self.0.key) == (&other.0.certificate, &other.0.key)
    }
}

impl Eq for Identity {}
