//! Whom this side believes under TLS: the system's roots, or the one authority that is named. The provider is ring.

mod identity;

pub use identity::Identity;

use planforge_types::private_file::Exposed;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    crypto,
    pki_types::{CertificateDer, pem::PemObject},
};

/// What a connection will speak, as it is offered to the server (ALPN).
pub(crate) const HTTP1: &[u8] = b"http/1.1";
pub(crate) const HTTP2: &[u8] = b"h2";

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read the CA file {}: {reason}", path.display())]
    ReadCa { path: PathBuf, reason: String },
    #[error("the CA file {} holds no usable certificate", path.display())]
    EmptyCa { path: PathBuf },
    #[error("this system has no trusted root certificates; name the coordinator's CA file")]
    NoRoots,
    #[error("cannot read the {what} {}: {reason}", path.display())]
    ReadIdentity { what: &'static str, path: PathBuf, reason: String },
    #[error(transparent)]
    Exposed(Exposed),
    #[error("the certificate {} and the key {} cannot be used together: {source}", certificate.display(), key.display())]
    Mismatch {
        certificate: PathBuf,
        key: PathBuf,
        #[source]
        source: tokio_rustls::rustls::Error,
    },
    #[error("cannot set up TLS: {0}")]
    Config(#[from] tokio_rustls::rustls::Error),
    #[error("'{host}' cannot be a TLS server's name")]
    ServerName { host: String },
    #[error("cannot set up the HTTP client")]
    HttpClient(#[source] reqwest::Error),
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    let Some(path) = ca_file else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return if store.is_empty() { Err(TlsError::NoRoots) } else { Ok(store) };
    };
    let read_error = |reason: String| TlsError::ReadCa { path: path.to_owned(), reason };
    for certificate in CertificateDer::pem_file_iter(path).map_err(|e| read_error(e.to_string()))? {
        store.add(certificate.map_err(|e| read_error(e.to_string()))?)?;
    }
    if store.is_empty() { Err(TlsError::EmptyCa { path: path.to_owned() }) } else { Ok(store) }
}

/// TLS that trusts the authority in `ca_file`, without one the system's roots, and shows `identity` where it is asked for
/// a certificate.
pub(crate) fn verified(
    ca_file: Option<&Path>,
    identity: Option<&Identity>,
    protocol: &[u8],
) -> Result<ClientConfig, TlsError> {
    over(roots(ca_file)?, identity, protocol)
}

/// TLS that trusts nobody: for HTTP clients that are made with one and never use it.
pub(crate) fn unused() -> Result<ClientConfig, TlsError> {
    over(RootCertStore::empty(), None, HTTP1)
}

fn over(roots: RootCertStore, identity: Option<&Identity>, protocol: &[u8]) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => builder.with_client_cert_resolver(Arc::new(identity.clone())),
    };
    if identity.is_some() {
        // A resumed session goes on with the certificate that its first one showed, also when that has been renewed.
        config.resumption = Resumption::disabled();
    }
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}
