//! What every handler is given and answers with: the running farm, who calls and over which connection, and how an
//! error leaves. The page and the API both stand on it and know nothing of the server that puts them together.

mod caller;
pub mod hop;
mod lookout;
mod peer;

pub use caller::{Caller, SESSION_COOKIE, Standing, authenticate, cookie, is_grpc, wants_page};
pub use lookout::Lookout;
pub use peer::{Peer, PeerCertificate, Via};

use crate::{blobs::Blobs, certificates::Authority, farm::Farm, turns::Turns};
use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use planforge_metrics::Metrics;
use planforge_proto::{ApiError, ErrorCode, view::Problem};
use std::{ops::Deref, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Bytes in a second that stored blobs are looked through at where nobody says: a twentieth of a core, and little of any
/// disk.
pub const SCRUB_BYTES_PER_S: u64 = 64 << 20;

/// Who may come in, and how the page names this coordinator.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long the form of whoever logs in may take to come.
    pub form_within: Duration,
    /// Agents must show a client certificate.
    pub require_agent_certificate: bool,
    /// Certifies agents' keys, where this coordinator does.
    pub authority: Option<Arc<Authority>>,
    /// What people type to reach this coordinator; stands in commands on the page. Empty: taken from the request.
    pub public_url: String,
    /// Where this coordinator's own machine reaches it; empty without a port.
    pub own_url: String,
    /// Name of the cookie of browsers that are signed in.
    pub session_cookie: String,
    /// What other coordinators of the farm know, who pass requests on to this one; `None`: there are none.
    pub peers_secret: Option<Arc<str>>,
}

impl Options {
    /// The cookie's name for a coordinator on `port`.
    pub fn session_cookie_on(port: u16) -> String {
        format!("{SESSION_COOKIE}{port}")
    }

    /// The URL under which people open the page.
    pub fn page_url(&self) -> &str {
        if self.public_url.is_empty() { &self.own_url } else { self.public_url.trim_end_matches('/') }
    }
}

/// What every handler may use.
#[derive(Clone)]
pub struct App(Arc<Inner>);

pub struct Inner {
    pub farm: Farm,
    pub blobs: Blobs,
    pub options: Options,
    pub metrics: Metrics,
    /// What the calls of one token get.
    pub turns: Turns,
    /// Ends streams that would never end by themselves.
    pub closing: CancellationToken,
    /// Ends streams whose callers may not have them any more.
    pub lookout: Lookout,
}

impl App {
    pub fn new(farm: Farm, blobs: Blobs, options: Options, metrics: Metrics, closing: CancellationToken) -> Self {
        Self(Arc::new(Inner {
            farm,
            blobs,
            options,
            metrics,
            turns: Turns::default(),
            closing,
            lookout: Lookout::default(),
        }))
    }

    /// Whether callers are served as they should be.
    pub fn ready(&self) -> Result<(), ApiError> {
        self.farm.ready()?;
        Ok(self.blobs.ready()?)
    }
}

impl Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// An error on its way out as `application/problem+json`.
#[derive(Debug)]
pub struct Refusal {
    pub error: ApiError,
    pub status: StatusCode,
}

impl<E: Into<ApiError>> From<E> for Refusal {
    fn from(error: E) -> Self {
        let error = error.into();
        let status = StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { error, status }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        if self.status.is_server_error() && self.error.code == ErrorCode::Internal {
            tracing::error!(error = %self.error, "request failed");
        }
        let problem = Problem { status: self.status.as_u16(), ..Problem::from(&self.error) };
        let mut response = (self.status, Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
