//! One port for everything: gRPC, blobs, JSON and the page, over TCP, TLS or a Unix socket.
//!
//! Listeners and the end come from the caller, so that tests bind port 0 and embedded coordinators end with their
//! process. Whether a connection speaks HTTP/1.1 or HTTP/2 is seen from its first bytes.

mod start;

pub use start::{Coordinator, CoordinatorConfig, StartError, admin_token_file, blob_file};

use crate::{
    app::{Options, Origin, Peer, Via},
    blobs::LocalBlobs,
    farm::Farm,
    http,
    metrics::Metrics,
};
use axum::{Router, body::Body};
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

/// A connection must show its first bytes, finish its TLS handshake and send its headers within this time each.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A kept-alive connection without a request is closed after this long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// How often an HTTP/2 peer is asked whether it still lives, and how long it may take to answer.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// Largest read from an HTTP/1.1 connection: blobs arrive in pieces of up to this size.
const HTTP1_BUFFER_BYTES: usize = 512 * 1024;
/// Flow-control windows of HTTP/2: small messages are the rule there, blobs travel over HTTP/1.1.
const HTTP2_STREAM_WINDOW_BYTES: u32 = 1 << 20;
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// Pause after the system refused a connection (out of descriptors, mostly): accepting at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bounds of the server.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Connections at once; more wait in the system's queue.
    pub max_connections: usize,
    /// How long requests in flight may take to end after a shutdown was asked for.
    pub shutdown_grace: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        // 1,000 agents hold two connections each; the rest is for people and pipelines.
        Self { max_connections: 4096, shutdown_grace: Duration::from_secs(5) }
    }
}

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Tls(TcpListener, Arc<ServerConfig>),
    Unix(UnixListener),
}

/// Serves until `closing` is cancelled, then ends streams at once and lets other requests finish within the grace.
pub async fn serve(
    listeners: Vec<Listener>,
    farm: Farm,
    blobs: LocalBlobs,
    options: Options,
    limits: ServerLimits,
    closing: CancellationToken,
) {
    let metrics = Metrics::new();
    let router = http::router(farm, blobs, options, metrics.clone(), closing.clone());
    let shared = Arc::new(Shared {
        router,
        metrics,
        permits: Arc::new(Semaphore::new(limits.max_connections)),
        connections: TaskTracker::new(),
        closing: closing.clone(),
        force: CancellationToken::new(),
    });
    let accepting = TaskTracker::new();
    for listener in listeners {
        accepting.spawn(accept_until_closed(listener, shared.clone()));
    }
    accepting.close();
    closing.cancelled().await;
    accepting.wait().await;
    shared.connections.close();
    if timeout(limits.shutdown_grace, shared.connections.wait()).await.is_err() {
        tracing::warn!(connections = shared.connections.len(), "closing connections that did not end in time");
        shared.force.cancel();
        shared.connections.wait().await;
    }
}

struct Shared {
    router: Router,
    metrics: Metrics,
    permits: Arc<Semaphore>,
    connections: TaskTracker,
    closing: CancellationToken,
    /// Ends connections that the grace was not enough for.
    force: CancellationToken,
}

enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, _) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream))
            }
            Self::Unix(listener) => Ok(Accepted::Unix(listener.accept().await?.0)),
        }
    }

    fn peer(&self) -> Peer {
        match self {
            Self::Tcp(_) => Peer { via: Via::Port, encrypted: false, certified: false },
            Self::Tls(..) => Peer { via: Via::Port, encrypted: true, certified: false },
            Self::Unix(_) => Peer { via: Via::Unix, encrypted: false, certified: false },
        }
    }
}

/// Whether the process at the other end belongs to this one's user, or to root, who may do everything anyway. The
/// socket's file says the same by its mode; this holds also where that was changed.
fn is_owner(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == own || peer.uid() == 0 => true,
        Ok(peer) => {
            tracing::warn!(uid = peer.uid(), pid = peer.pid(), "refused another user on the Unix socket");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "refused a connection to the Unix socket: cannot tell whose it is");
            false
        }
    }
}

/// Whether only this machine can reach the address.
pub(crate) fn is_loopback(address: &SocketAddr) -> bool {
    match address.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    }
}

async fn accept_until_closed(listener: Listener, shared: Arc<Shared>) {
    let peer = listener.peer();
    loop {
        let next = async {
            // The semaphore is never closed; without a permit the only loss is the limit.
            let permit = shared.permits.clone().acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = shared.closing.cancelled() => return,
            next = next => next,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Accepted::Unix(stream) = &stream
            && !is_owner(stream)
        {
            continue;
        }
        let tls = match &listener {
            Listener::Tls(_, config) => Some(TlsAcceptor::from(config.clone())),
            _ => None,
        };
        let task = shared.clone();
        let origin = match &stream {
            Accepted::Tcp(stream) => stream.peer_addr().ok().map(|address| Origin(address.ip())),
            Accepted::Unix(_) => None,
        };
        shared.connections.spawn(async move {
            let _permit = permit;
            let _open = task.metrics.connection_opened();
            match (stream, tls) {
                (Accepted::Tcp(stream), None) => {
                    if matches!(timeout(HANDSHAKE_TIMEOUT, stream.readable()).await, Ok(Ok(()))) {
                        task.connection(stream, peer, origin).await;
                    }
                }
                (Accepted::Tcp(stream), Some(acceptor)) => {
                    match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => {
                            let certified = stream.get_ref().1.peer_certificates().is_some();
                            task.connection(stream, Peer { certified, ..peer }, origin).await;
                        }
                        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                        Err(_) => tracing::debug!("TLS handshake timed out"),
                    }
                }
                (Accepted::Unix(stream), _) => task.connection(stream, peer, None).await,
            }
        });
    }
}

impl Shared {
    async fn connection(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
        origin: Option<Origin>,
    ) {
        let router = self.router.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer);
            if let Some(origin) = origin {
                request.extensions_mut().insert(origin);
            }
            router.clone().oneshot(request)
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIMEOUT)
            .max_buf_size(HTTP1_BUFFER_BYTES)
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = self.force.cancelled() => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            // Peers break off all the time; whoever was in the middle of something has logged it there.
            tracing::debug!(%error, "connection ended");
        }
    }
}
