//! Files of the web that somebody named by address and SHA-256: models that a project declares.
//!
//! No credential of a coordinator goes along, redirects are followed, and the proxies of the environment are asked:
//! whatever comes is what the digest names, or it is thrown away.

use crate::{
    blobs::BlobError,
    failure::causes,
    tls::{self, TlsError},
};
use planforge_types::{Digest, DigestWriter, durable};
use reqwest::header;
use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::Path,
    time::Duration,
};

/// Longest wait for a connection, and longest silence on one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Redirects that are followed: stores of models use one or two.
const REDIRECTS_MAX: usize = 8;

/// Why a file of the web is not here.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    #[error("cannot set up TLS for {url}")]
    Tls { url: String, source: TlsError },
    #[error("{url} cannot be had: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("{url} brought bytes whose SHA-256 is {actual}, not {expected}; they were thrown away")]
    WrongDigest { url: String, expected: Digest, actual: Digest },
    /// This side's disk.
    #[error(transparent)]
    Disk(BlobError),
}

/// Downloads `url` to `dest`, where it appears whole, durable and verified, or not at all. Tells `progress` how many
/// bytes came. Returns the size in bytes.
///
/// # Errors
/// See [`WebError`]; nothing is at `dest` then that was not there before.
pub async fn download(
    url: &str,
    expected: Digest,
    dest: &Path,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<u64, WebError> {
    let staged = dest.with_extension(format!("{}.download", std::process::id()));
    let result = receive(url, expected, &staged, dest, progress).await;
    if result.is_err() {
        // The error is what counts.
        let _ = fs::remove_file(&staged);
    }
    result
}

async fn receive(
    url: &str,
    expected: Digest,
    staged: &Path,
    dest: &Path,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<u64, WebError> {
    let tls_failed = |source| WebError::Tls { url: url.to_owned(), source };
    // Without TLS no authority is asked for, so none need be known.
    let config = if url.starts_with("https://") { tls::verified(None, None, tls::HTTP1) } else { tls::unused() };
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(config.map_err(tls_failed)?)
        .http1_only()
        .redirect(reqwest::redirect::Policy::limited(REDIRECTS_MAX))
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(STALL_TIMEOUT)
        .build()
        .map_err(|error| tls_failed(TlsError::HttpClient(error)))?;
    let unreachable = |reason: String| WebError::Unreachable { url: url.to_owned(), reason };
    let cut = |error: reqwest::Error| unreachable(causes(&error.without_url()));
    let request = client.get(url).header(header::ACCEPT_ENCODING, "identity");
    let mut response = request.send().await.map_err(cut)?;
    if !response.status().is_success() {
        return Err(unreachable(format!("the server answered {}", response.status())));
    }
    let failed = |action| BlobError::disk(action, staged);
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .open(staged)
        .map_err(failed("create"))
        .map_err(WebError::Disk)?;
    let mut hash = DigestWriter::new();
    while let Some(piece) = response.chunk().await.map_err(cut)? {
        file.write_all(&piece).map_err(failed("write")).map_err(WebError::Disk)?;
        hash.update(&piece);
        progress(hash.bytes());
    }
    let (bytes, actual) = (hash.bytes(), hash.finish());
    if actual != expected {
        return Err(WebError::WrongDigest { url: url.to_owned(), expected, actual });
    }
    durable::publish(&file, staged, dest).map_err(BlobError::disk("write", dest)).map_err(WebError::Disk)?;
    Ok(bytes)
}
