//! Verified, resumable blob transfer over HTTP/1.1.
//!
//! A blob is named by its SHA-256. Down: `GET` with `Range`, hashed while it streams, resumed into a `.part` file,
//! renamed into place only after the digest matched. Up: `POST /v1/uploads` opens an upload, `PATCH` continues it at
//! the offset that `HEAD` tells, and the coordinator shows the blob only after the digest matched there. Where the
//! coordinator keeps blobs in a store that can be reached from here, large ones are read and written there.
//! No proxy is ever asked: the connection goes where the endpoint says.

mod certify;
mod direct;
mod download;
mod error;
mod file_body;
mod parts;
mod upload;

pub use error::BlobError;

use crate::{
    Endpoint, Token,
    backoff::Backoff,
    connect::CONNECT_TIMEOUT,
    failure::{causes, unreachable},
    tls::{self, TlsError},
};
use bytes::{Bytes, BytesMut};
use planforge_proto::ApiError;
use planforge_types::Digest;
use reqwest::{Method, RequestBuilder, Response, StatusCode, header};
use std::{io, sync::Arc, time::Duration};

/// Pieces in which files are read and sent: with 256 KiB and more, loopback runs at the speed of memory.
const PIECE_BYTES: usize = 512 << 10;
/// Pieces between the network and the disk's thread; more only costs memory.
const PIECES_IN_FLIGHT: usize = 8;
/// Longest silence on an open connection.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the answer to a finished upload: the coordinator makes it durable first.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(300);
/// Largest error body or JSON answer that is read.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Told how many bytes of the blob are through, resumed ones included.
pub type ProgressFn<'a> = &'a (dyn Fn(u64) + Send + Sync);

/// How stubborn transfers are.
#[derive(Clone, Copy, Debug)]
pub struct Retries {
    /// Tries without any progress before a transfer gives up; one that moved bytes starts the count again.
    pub idle_tries: u32,
    /// First and longest wait between tries.
    pub first: Duration,
    pub longest: Duration,
}

impl Default for Retries {
    /// Spans about ten seconds: a coordinator's restart.
    fn default() -> Self {
        Self { idle_tries: 6, first: Duration::from_millis(200), longest: Duration::from_secs(5) }
    }
}

impl Retries {
    fn backoff(&self) -> Backoff {
        Backoff::new(self.first, self.longest)
    }
}

/// Transfers blobs from and to one coordinator. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Blobs {
    http: reqwest::Client,
    endpoint: Arc<Endpoint>,
    token: Option<Token>,
    retries: Retries,
    /// The store behind the coordinator.
    direct: Arc<direct::Direct>,
}

impl Blobs {
    /// Blobs of the coordinator at `endpoint`.
    ///
    /// # Errors
    ///
    /// Where the endpoint uses TLS: its CA file cannot be read or holds no certificate, or this system trusts no root.
    /// Nothing is connected to yet.
    pub fn new(endpoint: &Endpoint, token: Option<Token>) -> Result<Self, TlsError> {
        let config = match endpoint {
            Endpoint::Https { ca_file, identity, .. } => {
                tls::verified(ca_file.as_deref(), identity.as_ref(), tls::HTTP1)?
            }
            Endpoint::Http { .. } | Endpoint::Unix(_) => tls::unused()?,
        };
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(config)
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_TIMEOUT);
        if let Endpoint::Unix(path) = endpoint {
            builder = builder.unix_socket(path.as_path());
        }
        let http = builder.build().map_err(TlsError::HttpClient)?;
        Ok(Self {
            http,
            endpoint: Arc::new(endpoint.clone()),
            token,
            retries: Retries::default(),
            direct: Arc::default(),
        })
    }

    /// The same blobs, tried as `retries` says.
    pub fn with_retries(mut self, retries: Retries) -> Self {
        self.retries = retries;
        self
    }

    fn blob_path(digest: Digest) -> String {
        format!("/v1/blobs/sha256/{digest}")
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let scheme = if matches!(*self.endpoint, Endpoint::Https { .. }) { "https" } else { "http" };
        let builder = self.http.request(method, format!("{scheme}://{}{path}", self.endpoint.authority()));
        match &self.token {
            Some(token) => builder.header(header::AUTHORIZATION, token.header()),
            None => builder,
        }
    }

    /// Sends a request and waits for the head of its answer.
    async fn send(&self, request: RequestBuilder, wait: Duration) -> Result<Response, BlobError> {
        let request = request.build().map_err(|error| BlobError::Protocol {
            url: self.endpoint.to_string(),
            reason: format!("cannot form a request: {}", causes(&error)),
        })?;
        let url = self.url(request.url().path());
        match tokio::time::timeout(wait, self.http.execute(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) if error.is_connect() => Err(BlobError::Unreachable(self.unreachable(error))),
            Ok(Err(error)) => Err(BlobError::Cut { url, reason: causes(&error.without_url()) }),
            Err(_) => Err(BlobError::Cut { url, reason: format!("no answer within {} s", wait.as_secs()) }),
        }
    }

    /// The error for a connection that did not open.
    fn unreachable(&self, error: reqwest::Error) -> ApiError {
        if error.is_timeout() {
            let silence = format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
            return unreachable(&self.endpoint, &io::Error::new(io::ErrorKind::TimedOut, silence));
        }
        unreachable(&self.endpoint, &error.without_url())
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint)
    }

    /// Reads the whole body of an answer, up to `limit_bytes`.
    async fn body(&self, mut response: Response, url: &str, limit_bytes: usize) -> Result<Bytes, BlobError> {
        let read = async {
            let mut body = BytesMut::new();
            while let Some(piece) = response.chunk().await.map_err(|error| cut(url, error))? {
                if body.len() + piece.len() > limit_bytes {
                    return Err(BlobError::TooLarge { url: url.to_owned(), limit_bytes: limit_bytes as u64 });
                }
                body.extend_from_slice(&piece);
            }
            Ok(body.freeze())
        };
        match tokio::time::timeout(STALL_TIMEOUT, read).await {
            Ok(body) => body,
            Err(_) => Err(BlobError::Cut { url: url.to_owned(), reason: "the answer stalled".into() }),
        }
    }

    /// The error that a refusing answer stands for.
    async fn refusal(&self, response: Response, url: &str) -> BlobError {
        let status = response.status();
        let body = self.body(response, url, MAX_ANSWER_BYTES).await.unwrap_or_default();
        BlobError::refused(url, status, &body)
    }

    /// Size of a blob, `None` when the coordinator has none of that digest.
    ///
    /// # Errors
    ///
    /// [`BlobError::Unreachable`] or [`BlobError::Cut`] when every try failed, [`BlobError::Refused`] when the coordinator
    /// said no, [`BlobError::Protocol`] when its answer has no size.
    pub async fn size(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        let path = Self::blob_path(digest);
        let url = self.url(&path);
        let mut backoff = self.retries.backoff();
        for attempt in 1.. {
            let result = self.send(self.request(Method::HEAD, &path), STALL_TIMEOUT).await;
            let error = match result {
                Ok(response) if response.status() == StatusCode::NOT_FOUND => return Ok(None),
                Ok(response) if response.status().is_success() => {
                    return match number(&response, header::CONTENT_LENGTH.as_str()) {
                        Some(size) => Ok(Some(size)),
                        None => Err(BlobError::Protocol { url, reason: "the answer has no Content-Length".into() }),
                    };
                }
                Ok(response) => self.refusal(response, &url).await,
                Err(error) => error,
            };
            if !error.is_retryable() || attempt >= self.retries.idle_tries {
                return Err(error);
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
        unreachable!("the loop returns")
    }
}

/// A header that holds one decimal number.
fn number(response: &Response, name: &str) -> Option<u64> {
    response.headers().get(name)?.to_str().ok()?.trim().parse().ok()
}

/// An answer's body that ended early.
fn cut(url: &str, error: reqwest::Error) -> BlobError {
    BlobError::Cut { url: url.to_owned(), reason: causes(&error.without_url()) }
}
