//! The gRPC clients with credentials, and connection errors that say what to do.

use crate::{
    Blobs, Endpoint, Token,
    connect::{CONNECT_TIMEOUT, Connector},
    failure::{causes, unreachable},
    tls::TlsError,
};
use planforge_proto::{
    ApiError, ErrorCode,
    v1::{farm_client::FarmClient, fleet_client::FleetClient},
};
use std::{sync::Arc, time::Duration};
use tonic::{
    Request, Status,
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

/// Largest message in either direction: a list of a hundred jobs with their reports fits many times over.
pub const MAX_MESSAGE_BYTES: usize = 32 << 20;
/// How often an idle connection is probed, so that a silently dead one is noticed before a lease ends.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// How long a probe may stay unanswered.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Flow-control windows; the defaults (64 KiB) throttle log streams on links with a long round trip.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// Adds the token to every call.
#[derive(Clone, Debug)]
pub struct Authorize(Option<Token>);

impl Interceptor for Authorize {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.metadata());
        }
        Ok(request)
    }
}

/// What people and pipelines ask of a coordinator.
pub type FarmService = FarmClient<InterceptedService<Channel, Authorize>>;
/// What agents say to a coordinator.
pub type FleetService = FleetClient<InterceptedService<Channel, Authorize>>;

/// A way to one coordinator. Cheap to clone; reconnects by itself.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Arc<Endpoint>,
    channel: Channel,
    token: Option<Token>,
    blobs: Blobs,
}

impl Client {
    /// A client that opens its first connection when it is first used.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` when the endpoint cannot be used at all: its CA file cannot be read or holds no certificate, this
    /// system trusts no root, or its host cannot be a server's name. Whether anybody answers is not known yet.
    pub fn lazy(endpoint: Endpoint, token: Option<Token>) -> Result<Self, ApiError> {
        let (transport, connector) = prepare(&endpoint)?;
        let channel = transport.connect_with_connector_lazy(connector);
        Self::over(endpoint, token, channel)
    }

    /// Connects now; a coordinator that does not answer is an error that names it.
    ///
    /// # Errors
    ///
    /// As [`Client::lazy`], and `Unavailable` when no connection opens within [`CONNECT_TIMEOUT`]: nobody listens, the
    /// name is not known, or the server's certificate is not to be trusted. Its hint says what to look at.
    pub async fn connect(endpoint: Endpoint, token: Option<Token>) -> Result<Self, ApiError> {
        let (transport, connector) = prepare(&endpoint)?;
        let channel =
            transport.connect_with_connector(connector).await.map_err(|error| unreachable(&endpoint, &error))?;
        Self::over(endpoint, token, channel)
    }

    fn over(endpoint: Endpoint, token: Option<Token>, channel: Channel) -> Result<Self, ApiError> {
        let blobs = Blobs::new(&endpoint, token.clone()).map_err(|error| tls_error(&endpoint, &error))?;
        Ok(Self { endpoint: Arc::new(endpoint), channel, token, blobs })
    }

    /// Where this client goes.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Requests, jobs, engines, reports, tokens.
    pub fn farm(&self) -> FarmService {
        FarmClient::with_interceptor(self.channel.clone(), Authorize(self.token.clone()))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The agents' stream.
    pub fn fleet(&self) -> FleetService {
        FleetClient::with_interceptor(self.channel.clone(), Authorize(self.token.clone()))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Blob transfer.
    pub fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Turns the status of a failed call into an error that names the coordinator when it could not be reached, or went
    /// away before it took the call (which the transport calls cancelled).
    pub fn error(&self, status: Status) -> ApiError {
        // What a coordinator answers has no cause here; the codes are what HTTP/2's reasons are taken for.
        use tonic::Code::{Cancelled, Internal, Unavailable, Unknown};
        let came_from_transport = std::error::Error::source(&status).is_some();
        let lost = matches!(status.code(), Unavailable | Unknown | Cancelled | Internal);
        if came_from_transport && lost {
            return unreachable(&self.endpoint, &status);
        }
        if status.code() == tonic::Code::Unimplemented {
            let message =
                format!("the coordinator at {} is of an earlier release and does not know this", self.endpoint);
            return ApiError::new(ErrorCode::Unsupported, message).with_hint("upgrade the coordinator");
        }
        status.into()
    }
}

fn prepare(endpoint: &Endpoint) -> Result<(tonic::transport::Endpoint, Connector), ApiError> {
    let connector = Connector::new(endpoint).map_err(|error| tls_error(endpoint, &error))?;
    // The connector decides about TLS: this address only fills the request's authority.
    let transport = tonic::transport::Endpoint::from_shared(format!("http://{}", endpoint.authority()))
        .map_err(|error| ApiError::new(ErrorCode::InvalidArgument, format!("cannot use {endpoint}: {error}")))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    Ok((transport, connector))
}

fn tls_error(endpoint: &Endpoint, error: &TlsError) -> ApiError {
    let hint = if let TlsError::Exposed(exposed) = error { exposed.hint() } else { String::new() };
    ApiError::new(ErrorCode::InvalidArgument, format!("cannot connect to {endpoint}: {}", causes(error)))
        .with_hint(hint)
}
