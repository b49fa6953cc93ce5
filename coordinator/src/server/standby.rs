//! A coordinator that stands by while another one leads: it answers who does, on its own address, until it leads itself.

use super::{Accepted, Listener, is_owner};
use crate::{
    app::{Refusal, is_grpc, wants_page},
    http, page,
    store::Leadership,
};
use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::get,
};
use futures::future::join_all;
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use planforge_proto::{ApiError, ErrorCode};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

/// Connections at once: an answer here takes a moment.
const CONNECTIONS_MAX: usize = 256;
/// Longest that one of them is kept, so that nobody keeps others out.
const CONNECTION_LIFE: Duration = Duration::from_secs(10);
/// How long connections may take to end when this coordinator begins to lead.
const LEAVES_WITHIN: Duration = Duration::from_millis(250);
/// Pause after the system refused a connection: accepting at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers who leads on all of the listeners, until `leading` ends.
pub(super) async fn stand_by<T>(
    listeners: &[Listener],
    leader: watch::Receiver<Leadership>,
    leading: impl Future<Output = T>,
) -> T {
    let (connections, closing) = (TaskTracker::new(), CancellationToken::new());
    let desk =
        Desk { router: router(leader), permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)), connections, closing };
    let accepting = async {
        join_all(listeners.iter().map(|listener| desk.accept(listener))).await;
        std::future::pending::<()>().await;
    };
    let led = tokio::select! {
        led = leading => led,
        () = accepting => unreachable!("waits for ever"),
    };
    desk.closing.cancel();
    desk.connections.close();
    // Whoever is not through by then is cut off, and asks again.
    let _ = timeout(LEAVES_WITHIN, desk.connections.wait()).await;
    led
}

/// What a coordinator that stands by says to every call.
pub(super) fn refusal(leader: &Leadership) -> ApiError {
    let message = match (leader.is_free, leader.address.as_str()) {
        (true, _) => "this coordinator stands by, and none leads yet".to_owned(),
        (false, "") => format!("this coordinator stands by: {} leads", leader.owner),
        (false, address) => format!("this coordinator stands by: {} leads, at {address}", leader.owner),
    };
    let hint = match (leader.is_free, leader.address.as_str()) {
        (true, _) => "try again in a moment".to_owned(),
        (false, "") => "ask that one".to_owned(),
        (false, address) => format!("ask that one: PLANFORGE_SERVER={address}"),
    };
    ApiError::new(ErrorCode::Unavailable, message).with_hint(hint)
}

fn router(leader: watch::Receiver<Leadership>) -> Router {
    Router::new()
        // Alive, which is all that this probe asks; /readyz refuses as everything else does.
        .route("/healthz", get(async || "standby\n"))
        .fallback(async |State(leader): State<watch::Receiver<Leadership>>, headers: HeaderMap| -> Response {
            let error = refusal(&leader.borrow());
            if is_grpc(&headers) {
                http::refused(error)
            } else if wants_page(&headers) {
                page::error_page(StatusCode::SERVICE_UNAVAILABLE, &error)
            } else {
                Refusal::from(error).into_response()
            }
        })
        .with_state(leader)
}

struct Desk {
    router: Router,
    permits: Arc<Semaphore>,
    connections: TaskTracker,
    closing: CancellationToken,
}

impl Desk {
    /// Never ends.
    async fn accept(&self, listener: &Listener) {
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else { return };
            let accepted = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (router, closing, tls) = (self.router.clone(), self.closing.clone(), listener.tls());
            self.connections.spawn(async move {
                let answered = async {
                    match (accepted, tls) {
                        (Accepted::Tcp(stream, _), None) => serve(stream, router).await,
                        (Accepted::Tcp(stream, _), Some(tls)) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, router).await;
                            }
                        }
                        (Accepted::Unix(stream), _) if is_owner(&stream) => serve(stream, router).await,
                        (Accepted::Unix(_), _) => {}
                    }
                };
                tokio::select! {
                    _ = timeout(CONNECTION_LIFE, answered) => {}
                    () = closing.cancelled() => {}
                }
                drop(permit);
            });
        }
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let service = service_fn(move |request: Request<Incoming>| router.clone().oneshot(request.map(Body::new)));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).http2().timer(TokioTimer::new());
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "connection ended");
    }
}
