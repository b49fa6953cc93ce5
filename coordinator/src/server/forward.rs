//! Passing requests on to the coordinator that leads, as they come: HTTP/1.1 as HTTP/1.1, HTTP/2 as HTTP/2, bodies piece
//! by piece both ways, trailers at their end.
//!
//! Every connection of a caller has one of its own to the leader, opened by its first request: so the leader counts,
//! limits and ends connections as if callers had come to it. When another coordinator leads, connections to the former
//! leader end at once, however silent it is.

use super::{
    connection::{HTTP1_BUFFER_BYTES, HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_STREAM_WINDOW_BYTES},
    is_loopback,
};
use crate::{
    app::{Peer, Via, hop, is_grpc},
    store::Leadership,
};
use axum::body::Body;
use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{
    HeaderMap, Request, Response, Uri, Version,
    body::{Bytes, Frame, Incoming},
    client::conn::{http1, http2},
    header,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use planforge_certificates::authorities;
use planforge_proto::{ApiError, ErrorCode};
use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{Mutex, watch},
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName},
};
use tonic::Status;

/// To the leader, TLS handshake included.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);
/// How often the leader is asked over HTTP/2 whether it still lives, and how long it may take to answer: what the lease
/// does not tell, as where the two cannot reach each other and both reach the database.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Headers of one connection alone (RFC 9110, 7.6.1), and the one that hyper answers itself.
const OF_ONE_CONNECTION: [header::HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    header::HeaderName::from_static("keep-alive"),
    header::HeaderName::from_static("proxy-connection"),
];

/// The way to whoever leads.
#[derive(Debug)]
pub(super) struct Forward {
    leader: watch::Receiver<Leadership>,
    trust: Trust,
}

/// Whom a coordinator believes to be another one of its farm.
#[derive(Debug)]
pub(super) struct Trust {
    ca_file: Option<PathBuf>,
    roots: OnceLock<Result<Arc<RootCertStore>, String>>,
}

impl Trust {
    /// The authorities in `ca_file`, without one the system's.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub(super) fn open(ca_file: Option<&Path>) -> Result<Self, String> {
        let trust = Self { ca_file: ca_file.map(Path::to_owned), roots: OnceLock::new() };
        if ca_file.is_some() {
            trust.roots()?;
        }
        Ok(trust)
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, String> {
        self.roots.get_or_init(|| read_roots(self.ca_file.as_deref()).map(Arc::new)).clone()
    }

    fn connector(&self, protocol: Protocol) -> Result<TlsConnector, String> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let mut config = builder.with_root_certificates(self.roots()?).with_no_client_auth();
        config.alpn_protocols = vec![protocol.name().to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

fn read_roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let roots = authorities(ca_file).map_err(|why| {
        let path = ca_file.map(|path| path.display().to_string()).unwrap_or_default();
        format!("the authorities of other coordinators in {path}: {why}")
    })?;
    match roots.is_empty() {
        true => Err("this system trusts no authority; name the coordinators' own: --peers-ca FILE".into()),
        false => Ok(roots),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    One,
    Two,
}

impl Protocol {
    fn name(self) -> &'static [u8] {
        match self {
            Self::One => b"http/1.1",
            Self::Two => b"h2",
        }
    }
}

/// Where a coordinator is, by its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    host: String,
    port: u16,
    encrypted: bool,
}

impl Address {
    /// # Errors
    /// When the URL is none of a coordinator: `http://HOST:PORT` or `https://HOST:PORT`, without a path.
    pub(super) fn read(url: &str) -> Result<Self, String> {
        let wrong = || format!("'{url}' is none of http://HOST:PORT and https://HOST:PORT");
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || authority.as_str().contains('@') {
            return Err(wrong());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        Ok(Self { host, port, encrypted })
    }

    /// Whether nobody on the way can hear what is said: the leader's secret is told there alone.
    fn is_private(&self) -> bool {
        let is_here = |ip| is_loopback(&SocketAddr::new(ip, self.port));
        self.encrypted || self.host == "localhost" || self.host.parse().is_ok_and(is_here)
    }
}

impl Forward {
    pub(super) fn new(leader: watch::Receiver<Leadership>, trust: Trust) -> Arc<Self> {
        Arc::new(Self { leader, trust })
    }

    /// For one connection of a caller.
    pub(super) fn link(self: &Arc<Self>, peer: Peer) -> Arc<Link> {
        Arc::new(Link { forward: self.clone(), peer, open: Mutex::new(None) })
    }

    /// Who leads, where somebody does.
    pub(super) fn leader(&self) -> Result<Leadership, ApiError> {
        let leader = self.leader.borrow().clone();
        if leader.is_free {
            let message = "no coordinator leads at the moment";
            return Err(ApiError::new(ErrorCode::Unavailable, message).with_hint("try again in a moment"));
        }
        Ok(leader)
    }

    async fn open(&self, leader: &Leadership, address: &Address, protocol: Protocol) -> io::Result<Open> {
        let connected = async {
            let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
            stream.set_nodelay(true)?;
            if !address.encrypted {
                return self.shake_hands(leader, protocol, stream).await;
            }
            let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
            let connector = self.trust.connector(protocol).map_err(io::Error::other)?;
            self.shake_hands(leader, protocol, connector.connect(name, stream).await?).await
        };
        timeout(CONNECTS_WITHIN, connected).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn shake_hands(
        &self,
        leader: &Leadership,
        protocol: Protocol,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> io::Result<Open> {
        let stream = TokioIo::new(stream);
        let (leaders, epoch) = (self.leader.clone(), leader.epoch);
        let sender = match protocol {
            Protocol::One => {
                let mut builder = http1::Builder::new();
                builder.max_buf_size(HTTP1_BUFFER_BYTES);
                let (sender, connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
                tokio::spawn(carry(connection, leaders, epoch));
                Sender::One(sender)
            }
            Protocol::Two => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder
                    .timer(TokioTimer::new())
                    .keep_alive_interval(KEEP_ALIVE_INTERVAL)
                    .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
                    .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
                    .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES);
                let (sender, connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
                tokio::spawn(carry(connection, leaders, epoch));
                Sender::Two(sender)
            }
        };
        Ok(Open { epoch, sender })
    }
}

/// Carries what goes over a connection, until it ends or somebody else leads.
async fn carry<E: std::fmt::Display>(
    connection: impl Future<Output = Result<(), E>>,
    mut leader: watch::Receiver<Leadership>,
    epoch: u64,
) {
    tokio::select! {
        ended = connection => if let Err(error) = ended {
            tracing::debug!(%error, "the connection to the leader ended");
        },
        // Also when this coordinator leads itself: then nobody tells any more.
        _ = leader.wait_for(|leader| leader.epoch != epoch || leader.is_free) => {}
    }
}

/// One caller's way to the leader.
#[derive(Debug)]
pub(super) struct Link {
    forward: Arc<Forward>,
    peer: Peer,
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    epoch: u64,
    sender: Sender,
}

#[derive(Debug)]
enum Sender {
    One(http1::SendRequest<Body>),
    Two(http2::SendRequest<Body>),
}

impl Sender {
    fn is_of(&self, protocol: Protocol) -> bool {
        match self {
            Self::One(sender) => protocol == Protocol::One && !sender.is_closed(),
            Self::Two(sender) => protocol == Protocol::Two && !sender.is_closed(),
        }
    }
}

/// Why a request has no answer, and the request where it never left.
struct NotSent {
    why: String,
    request: Option<Box<Request<Body>>>,
}

impl NotSent {
    fn of(error: &mut hyper::client::conn::TrySendError<Request<Body>>) -> Self {
        let request = error.take_message().map(Box::new);
        Self { why: error.error().to_string(), request }
    }
}

impl Link {
    /// Passes a request on, and its answer back.
    pub(super) async fn pass_on(&self, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let leader = self.forward.leader()?;
        let away = |why: String| {
            let message = format!("cannot reach the coordinator that leads, {}: {why}", named(&leader));
            ApiError::new(ErrorCode::Unavailable, message).with_hint("try again in a moment")
        };
        let address = Address::read(&leader.address).map_err(away)?;
        let secret = address.is_private().then_some(leader.holder.as_str());
        if secret.is_none() && self.peer.via == Via::Unix && !request.headers().contains_key(header::AUTHORIZATION) {
            let message = "this coordinator does not lead, and tells the one that does of no owner over plain HTTP";
            return Err(ApiError::new(ErrorCode::Unauthenticated, message)
                .with_hint("use a token, or give the coordinators certificates (--tls-cert, --tls-key)"));
        }
        let is_grpc = is_grpc(request.headers());
        let mut request = request;
        strip(request.headers_mut());
        hop::mark(request.headers_mut(), &self.peer, secret);
        let protocol = if request.version() == Version::HTTP_2 { Protocol::Two } else { Protocol::One };
        if protocol == Protocol::One {
            *request.version_mut() = Version::HTTP_11;
            let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
            *request.uri_mut() = path.parse().map_err(|_| away("the path cannot be passed on".into()))?;
        }
        let answer = match self.send(request, &leader, &address, protocol).await {
            // The leader closed a connection that was idle: nothing of the request has left.
            Err(NotSent { request: Some(request), .. }) => {
                self.send(*request, &leader, &address, protocol).await.map_err(|error| away(error.why))?
            }
            answer => answer.map_err(|error| away(error.why))?,
        };
        let (mut head, body) = answer.into_parts();
        strip(&mut head.headers);
        Ok(Response::from_parts(head, if is_grpc { ended_in_words(body, leader) } else { Body::new(body) }))
    }

    async fn send(
        &self,
        request: Request<Body>,
        leader: &Leadership,
        address: &Address,
        protocol: Protocol,
    ) -> Result<Response<Incoming>, NotSent> {
        let mut open = self.open.lock().await;
        if open.as_ref().is_none_or(|open| open.epoch != leader.epoch || !open.sender.is_of(protocol)) {
            *open = None;
            let opened = self.forward.open(leader, address, protocol).await;
            *open = Some(opened.map_err(|error| NotSent { why: error.to_string(), request: None })?);
        }
        let unsent = |error: &hyper::Error, request| NotSent { why: error.to_string(), request };
        match open.as_mut().map(|open| &mut open.sender) {
            // One after the other, as they come.
            Some(Sender::One(sender)) => match sender.ready().await {
                Ok(()) => sender.try_send_request(request).await.map_err(|mut error| NotSent::of(&mut error)),
                Err(error) => Err(unsent(&error, Some(Box::new(request)))),
            },
            Some(Sender::Two(sender)) => {
                let mut sender = sender.clone();
                drop(open);
                match sender.ready().await {
                    Ok(()) => sender.try_send_request(request).await.map_err(|mut error| NotSent::of(&mut error)),
                    Err(error) => Err(unsent(&error, Some(Box::new(request)))),
                }
            }
            None => Err(NotSent { why: "the connection is gone".into(), request: Some(Box::new(request)) }),
        }
    }
}

fn named(leader: &Leadership) -> String {
    match leader.address.as_str() {
        "" => leader.owner.clone(),
        address => format!("{} at {address}", leader.owner),
    }
}

fn strip(headers: &mut HeaderMap) {
    let named: Vec<header::HeaderName> = headers
        .get_all(header::CONNECTION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&OF_ONE_CONNECTION) {
        headers.remove(name);
    }
}

/// The body of an answer to a call, which says at its end where the leader broke off.
fn ended_in_words(body: Incoming, leader: Leadership) -> Body {
    let pieces = stream::unfold(Some((body, leader)), async |both| {
        let (mut body, leader) = both?;
        let piece: Result<Frame<Bytes>, hyper::Error> = match body.frame().await? {
            Ok(piece) => return Some((Ok(piece), Some((body, leader)))),
            Err(error) => {
                tracing::debug!(%error, "the leader broke off a call");
                let message = format!("the coordinator that led, {}, is gone", named(&leader));
                let error = ApiError::new(ErrorCode::Unavailable, message).with_hint("try again in a moment");
                let mut trailers = HeaderMap::new();
                match Status::from(error).add_header(&mut trailers) {
                    Ok(()) => Ok(Frame::trailers(trailers)),
                    Err(_) => return None,
                }
            }
        };
        Some((piece, None))
    });
    Body::new(StreamBody::new(pieces.boxed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinator_is_named_by_scheme_host_and_port_alone() {
        let read = |url: &str| Address::read(url).map(|address| (address.host, address.port, address.encrypted));
        assert_eq!(read("http://127.0.0.1:7400"), Ok(("127.0.0.1".into(), 7400, false)));
        assert_eq!(read("https://farm-a.example/"), Ok(("farm-a.example".into(), 443, true)));
        assert_eq!(read("http://[::1]:7400"), Ok(("::1".into(), 7400, false)));
        for wrong in ["", "farm:7400", "ftp://farm:7400", "http://me@farm:7400", "http://farm/a", "http://farm/?a=b"] {
            assert!(Address::read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_secret_is_told_where_nobody_hears_it() {
        let is_private = |url: &str| Address::read(url).unwrap().is_private();
        assert!(is_private("https://farm.example") && is_private("http://127.0.0.1:1") && is_private("http://[::1]:1"));
        assert!(!is_private("http://farm.example:7400") && !is_private("http://10.0.0.1:7400"));
    }

    #[test]
    fn what_is_of_one_connection_alone_stays_there() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, "close, x-own".parse().unwrap());
        headers.insert("x-own", "1".parse().unwrap());
        headers.insert(header::EXPECT, "100-continue".parse().unwrap());
        headers.insert(header::AUTHORIZATION, "Bearer a".parse().unwrap());
        strip(&mut headers);
        assert_eq!(headers.keys().collect::<Vec<_>>(), [header::AUTHORIZATION]);
    }
}
