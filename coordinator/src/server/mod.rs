//! One port for everything: gRPC, blobs, JSON and the page, over TCP, TLS or a Unix socket.
//!
//! Listeners and the end come from the caller, so that tests bind port 0 and embedded coordinators end with their
//! process. Whether a connection speaks HTTP/1.1 or HTTP/2 is seen from its first bytes. Who gets a connection at all,
//! and for how long, `doors` decides.

mod alone;
mod blobs;
mod connection;
mod exchange;
mod forward;
mod moving;
mod moving_blobs;
mod refresh;
mod standby;
mod start;
mod tidy;

pub use crate::certificates::CERTIFICATE_LIFE;
pub use crate::doors::{Budget, CONNECTIONS_MAX, FIRST_REQUEST_WITHIN, Places};
pub use exchange::{Exchanged, Export, Import, Step, export, import};
pub use moving::{Moved, move_to_postgres};
pub use moving_blobs::{BlobsMove, BlobsPlace, MovedBlobs, blobs_elsewhere, move_blobs};
pub use refresh::RefreshSchedule;
pub use start::{AgentCertificates, Coordinator, CoordinatorConfig, StartError, admin_token_file, blob_file};

use crate::{
    app::{Options, Peer, PeerCertificate, Via},
    auth::Proof,
    blobs::Blobs,
    doors::{Doors, Place, Source},
    farm::Farm,
    http,
    tls::Tls,
};
use axum::Router;
use forward::Forward;
use planforge_metrics::Metrics;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Pause after the system refused a connection (out of descriptors, mostly): accepting at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections beyond the strangers' places that were told to go and are about to.
const LEAVING_MAX: usize = 32;

/// Bounds of the server.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Connections at once, at most: fewer where this process may not have as many files open ([`Budget`]).
    pub max_connections: usize,
    /// From a connection's acceptance to its first whole request, and for the whole form of whoever logs in.
    pub first_request_within: Duration,
    /// How long requests in flight may take to end after a shutdown was asked for.
    pub shutdown_grace: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            max_connections: CONNECTIONS_MAX,
            first_request_within: FIRST_REQUEST_WITHIN,
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Tls(TcpListener, Arc<Tls>),
    Unix(UnixListener),
}

/// Serves until `closing` is cancelled, then ends streams at once and lets other requests finish within the grace.
pub async fn serve(
    listeners: Vec<Listener>,
    farm: Farm,
    blobs: Blobs,
    options: Options,
    limits: ServerLimits,
    closing: CancellationToken,
) {
    let budget = Budget::of_this_process(limits.max_connections);
    let Places { strangers, known, .. } = budget.places;
    tracing::info!(strangers, known, open_files = budget.open_files, "places for connections");
    let doors = Doors::new(budget.places, limits.first_request_within);
    let metrics = Metrics::new(doors.clone());
    let router = http::router(farm.clone(), blobs, options, metrics.clone(), closing.clone());
    let shared = Arc::new(Shared::new(router, Behind::Farm(farm), metrics, doors, closing.clone()));
    let accepting = TaskTracker::new();
    for listener in listeners {
        let shared = shared.clone();
        accepting.spawn(async move { accept_until_closed(&listener, &shared).await });
    }
    accepting.close();
    closing.cancelled().await;
    accepting.wait().await;
    shared.end(limits.shutdown_grace).await;
}

/// What answers the requests.
enum Behind {
    Farm(Farm),
    /// The coordinator that leads.
    Leader(Arc<Forward>),
}

impl Behind {
    /// Whether what made a connection known is worth something still; of a leader, it ends the connection itself.
    fn stands(&self, proof: Proof) -> bool {
        match self {
            Self::Farm(farm) => farm.objection(proof).is_none(),
            Self::Leader(_) => true,
        }
    }

    fn wall_ms(&self) -> u64 {
        match self {
            Self::Farm(farm) => farm.wall_ms(),
            Self::Leader(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_millis() as u64),
        }
    }
}

struct Shared {
    router: Router,
    behind: Behind,
    metrics: Metrics,
    doors: Doors,
    /// Strangers' connections that are open, those that were told to go included.
    permits: Arc<Semaphore>,
    connections: TaskTracker,
    closing: CancellationToken,
    /// Ends connections that the grace was not enough for.
    force: CancellationToken,
}

enum Accepted {
    Tcp(TcpStream, IpAddr),
    Unix(UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, _) => {
                let (stream, from) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream, from.ip()))
            }
            Self::Unix(listener) => Ok(Accepted::Unix(listener.accept().await?.0)),
        }
    }

    fn peer(&self) -> Peer {
        match self {
            Self::Tcp(_) => Peer { via: Via::Port, encrypted: false, address: None, certificate: None },
            Self::Tls(..) => Peer { via: Via::Port, encrypted: true, address: None, certificate: None },
            Self::Unix(_) => Peer { via: Via::Unix, encrypted: false, address: None, certificate: None },
        }
    }

    /// What its connections are encrypted by, as it is now.
    fn tls(&self) -> Option<TlsAcceptor> {
        match self {
            Self::Tls(_, tls) => Some(TlsAcceptor::from(tls.current())),
            Self::Tcp(_) | Self::Unix(_) => None,
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

async fn accept_until_closed(listener: &Listener, shared: &Arc<Shared>) {
    loop {
        let next = async {
            // The semaphore is never closed; without a permit the only loss is the limit.
            let permit = match listener {
                Listener::Unix(_) => None,
                Listener::Tcp(_) | Listener::Tls(..) => shared.permits.clone().acquire_owned().await.ok(),
            };
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
        let place = match &stream {
            Accepted::Tcp(_, from) => shared.doors.enter(Source::from(*from)),
            Accepted::Unix(stream) if !is_owner(stream) => continue,
            Accepted::Unix(_) => match shared.doors.enter_owner() {
                Ok(place) => place,
                Err(full) => {
                    tracing::warn!(%full, "no place for a connection to the Unix socket");
                    continue;
                }
            },
        };
        if let Some(permit) = permit {
            place.hold(permit);
        }
        let (task, tls) = (shared.clone(), listener.tls());
        let address = match &stream {
            Accepted::Tcp(_, from) => Some(*from),
            Accepted::Unix(_) => None,
        };
        let peer = Peer { address, ..listener.peer() };
        shared.connections.spawn(async move {
            let _open = task.metrics.connection_opened();
            match (stream, tls) {
                (Accepted::Tcp(stream, _), None) => task.connection(stream, peer, place).await,
                (Accepted::Tcp(stream, _), Some(tls)) => task.encrypted(stream, tls, peer, place).await,
                (Accepted::Unix(stream), _) => task.connection(stream, peer, place).await,
            }
        });
    }
}

impl Shared {
    fn new(router: Router, behind: Behind, metrics: Metrics, doors: Doors, closing: CancellationToken) -> Self {
        let permits = Arc::new(Semaphore::new(doors.places().strangers + LEAVING_MAX));
        let (connections, force) = (TaskTracker::new(), CancellationToken::new());
        Self { router, behind, metrics, doors, permits, connections, closing, force }
    }

    /// Waits until the connections have ended that were asked to, and cuts off who is not through within the grace.
    async fn end(&self, grace: Duration) {
        self.connections.close();
        if timeout(grace, self.connections.wait()).await.is_err() {
            tracing::warn!(connections = self.connections.len(), "closing connections that did not end in time");
            self.force.cancel();
            self.connections.wait().await;
        }
    }

    async fn encrypted(&self, stream: TcpStream, tls: TlsAcceptor, peer: Peer, place: Arc<Place>) {
        let accepted = tokio::select! {
            accepted = tls.accept(stream) => accepted,
            _ = self.ending(&place) => return,
        };
        match accepted {
            Ok(stream) => {
                let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                let certificate = match shown.map(|shown| PeerCertificate::read(shown.clone().into_owned())) {
                    Some(None) => return tracing::warn!("cannot read a client certificate that TLS accepted"),
                    read => read.flatten().map(Arc::new),
                };
                if let Some(certificate) = &certificate {
                    let left_ms = certificate.shown.expires_ms.saturating_sub(self.behind.wall_ms());
                    place.keep_for(Duration::from_millis(left_ms));
                }
                self.connection(stream, Peer { certificate, ..peer }, place).await;
            }
            Err(error) => tracing::debug!(%error, "TLS handshake failed"),
        }
    }
}
