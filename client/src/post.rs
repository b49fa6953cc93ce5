//! Documents for servers that are no coordinators: spans for a collector of traces.
//!
//! No credential of a coordinator goes along, no redirect is followed, no proxy is asked.

use crate::{
    failure::causes,
    tls::{self, TlsError},
};
use bytes::Bytes;
use reqwest::header;
use std::time::Duration;

/// Longest wait for a connection, and for the answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a document was not taken.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    #[error("cannot set up TLS for {url}")]
    Tls { url: String, source: Box<TlsError> },
    #[error("{url} cannot be reached: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("{url} answered {status}")]
    Refused { url: String, status: u16 },
}

/// A way to one address.
#[derive(Clone, Debug)]
pub struct Post {
    client: reqwest::Client,
    url: String,
}

impl Post {
    /// Nothing is connected yet.
    ///
    /// # Errors
    /// [`PostError::Tls`].
    pub fn to(url: &str) -> Result<Self, PostError> {
        let failed = |source| PostError::Tls { url: url.to_owned(), source: Box::new(source) };
        // Without TLS no authority is asked for, so none need be known.
        let config = if url.starts_with("https://") { tls::verified(None, None, tls::HTTP1) } else { tls::unused() };
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(config.map_err(failed)?)
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .build()
            .map_err(|error| failed(TlsError::HttpClient(error)))?;
        Ok(Self { client, url: url.to_owned() })
    }

    /// Sends one document.
    ///
    /// # Errors
    /// See [`PostError`].
    pub async fn send(&self, content_type: &'static str, document: Bytes) -> Result<(), PostError> {
        let url = || self.url.clone();
        let request = self.client.post(&self.url).header(header::CONTENT_TYPE, content_type).body(document);
        let answer = request.send().await.map_err(|error| {
            let reason = causes(&error.without_url());
            PostError::Unreachable { url: url(), reason }
        })?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(PostError::Refused { url: url(), status: status.as_u16() }),
        }
    }
}
