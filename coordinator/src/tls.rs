//! TLS of the coordinator's port, by rustls with the ring provider.

use planforge_types::private_file::{Exposed, refuse_exposed};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};
use tokio_rustls::rustls::{
    self, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};

/// The PEM files that TLS is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by its intermediates.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// When given, agents must show a certificate that one of these authorities signed (mutual TLS).
    pub client_ca: Option<PathBuf>,
    /// Take a key that other users may read.
    pub allow_readable_key: bool,
}

/// The port's TLS as its files were when they were last read.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    /// This coordinator's own authority over agents.
    own: Option<CertificateDer<'static>>,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the files. Beside the authorities in them, `own` may vouch for agents.
    pub fn open(files: TlsFiles, own: Option<CertificateDer<'static>>) -> Result<Self, TlsError> {
        let config = RwLock::new(files.load(own.as_ref())?);
        Ok(Self { files, own, config })
    }

    /// Reads the files again, for connections that come from now on. Files that cannot be used change nothing.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = self.files.load(self.own.as_ref())?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read the {what} {}: {reason}", path.display())]
    Read { what: &'static str, path: PathBuf, reason: String },

    #[error("the {what} {} holds no PEM certificate", path.display())]
    NoCertificate { what: &'static str, path: PathBuf },

    #[error("the certificate {} and the key {} cannot be used together: {source}", certificate.display(), key.display())]
    Mismatch {
        certificate: PathBuf,
        key: PathBuf,
        #[source]
        source: rustls::Error,
    },

    #[error("the client authorities in {} cannot be used: {reason}", path.display())]
    ClientCa { path: PathBuf, reason: String },

    #[error(transparent)]
    Exposed(#[from] Exposed),

    #[error("cannot set up TLS: {0}")]
    Setup(#[source] rustls::Error),
}

impl TlsFiles {
    /// Whether the files can be used.
    pub fn check(&self) -> Result<(), TlsError> {
        self.load(None).map(drop)
    }

    /// The hosts that the certificate is made out to.
    pub fn hosts(&self) -> Result<Vec<String>, TlsError> {
        let chain = certificates("certificate file", &self.certificate)?;
        Ok(chain.first().map(crate::certificates::hosts).unwrap_or_default())
    }

    /// Reads the files and offers HTTP/2 and HTTP/1.1.
    fn load(&self, own: Option<&CertificateDer<'static>>) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = certificates("certificate file", &self.certificate)?;
        if !self.allow_readable_key && self.key.exists() {
            refuse_exposed(&self.key)?;
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| TlsError::Read {
            what: "key file",
            path: self.key.clone(),
            reason: error.to_string(),
        })?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?;
        let refused = |reason: String| {
            let path = self.client_ca.clone().unwrap_or_else(|| "(its own)".into());
            TlsError::ClientCa { path, reason }
        };
        let mut roots = RootCertStore::empty();
        let given = self.client_ca.as_deref().map(|path| certificates("client CA file", path)).transpose()?;
        for certificate in given.into_iter().flatten().chain(own.cloned()) {
            roots.add(certificate).map_err(|e| refused(e.to_string()))?;
        }
        let builder = if roots.is_empty() {
            builder.with_no_client_auth()
        } else {
            // People and browsers come without a certificate; agents are asked for theirs where they join.
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|e| refused(e.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|source| TlsError::Mismatch {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |reason: String| TlsError::Read { what, path: path.to_owned(), reason };
    let chain: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable(error.to_string()))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { what, path: path.to_owned() });
    }
    Ok(chain)
}
