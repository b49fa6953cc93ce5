//! A coordinator that stands by while another one leads: everything that is asked of it goes on to that one, until it
//! leads itself. Its probes alone it answers itself.

use super::{
    Behind, Listener, ServerLimits, Shared, accept_until_closed,
    forward::{Forward, Link},
};
use crate::{
    app::{Peer, Refusal, hop, wants_page},
    doors::{Budget, Doors, Place},
    http, page,
    store::Leadership,
};
use axum::{
    Extension, Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::get,
};
use futures::future::join_all;
use planforge_metrics::Metrics;
use planforge_proto::{ApiError, ErrorCode};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long connections may take to end when this coordinator begins to lead: what they carried has ended with the former
/// leader.
const LEAVES_WITHIN: Duration = Duration::from_millis(250);
/// How long the leader may take to say that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(2);
/// Seconds after which it is worth asking again where nobody leads: another one takes over within about three.
const RETRY_AFTER_S: &str = "1";

/// Passes on to whoever leads what comes in on all of the listeners, until `leading` ends.
pub(super) async fn stand_by<T>(
    listeners: &[Listener],
    forward: Arc<Forward>,
    limits: ServerLimits,
    leading: impl Future<Output = T>,
) -> T {
    let places = Budget::of_this_process(limits.max_connections).places;
    let doors = Doors::new(places, limits.first_request_within);
    let (metrics, closing) = (Metrics::new(doors.clone()), CancellationToken::new());
    let router = router(forward.clone());
    let shared = Arc::new(Shared::new(router, Behind::Leader(forward), metrics, doors, closing));
    let accepting = async {
        join_all(listeners.iter().map(|listener| accept_until_closed(listener, &shared))).await;
        std::future::pending::<()>().await;
    };
    let led = tokio::select! {
        led = leading => led,
        () = accepting => unreachable!("waits for ever"),
    };
    shared.closing.cancel();
    // Whoever is not through by then is cut off, and asks again.
    shared.end(LEAVES_WITHIN).await;
    led
}

/// Who leads, for people who look at a coordinator that stands by.
pub(super) fn words(leader: &Leadership) -> String {
    match leader.address.as_str() {
        "" => format!("this coordinator stands by: {} leads, and says not where", leader.owner),
        address => {
            format!("this coordinator stands by, and forwards to the one that leads, {}, at {address}", leader.owner)
        }
    }
}

fn router(forward: Arc<Forward>) -> Router {
    Router::new()
        // Alive, which is all that this probe asks.
        .route("/healthz", get(async || "standby\n"))
        .route("/readyz", get(ready))
        .fallback(pass_on)
        .layer(middleware::from_fn(refuse_second_hop))
        .with_state(forward)
}

/// What was passed on once is passed on no more.
async fn refuse_second_hop(request: Request, next: Next) -> Response {
    match hop::is_passed_on(request.headers()) {
        true => refused(request.headers(), hop::refusal()),
        false => next.run(request).await,
    }
}

/// 200 while somebody leads, can be reached and is ready.
async fn ready(State(forward): State<Arc<Forward>>, Extension(peer): Extension<Peer>) -> Response {
    let asked = async {
        let leader = forward.leader()?;
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = axum::http::Uri::from_static("/readyz");
        request.headers_mut().insert(header::HOST, HeaderValue::from_static("leader"));
        match timeout(READY_WITHIN, forward.link(peer).pass_on(request)).await {
            Ok(answer) if answer.as_ref().is_ok_and(|answer| answer.status().is_success()) => Ok(leader),
            Ok(Ok(answer)) => {
                let message = format!("the coordinator that leads is not ready: {}", answer.status());
                Err(ApiError::new(ErrorCode::Unavailable, message))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let message = format!("the coordinator that leads said nothing within {} s", READY_WITHIN.as_secs());
                Err(ApiError::new(ErrorCode::Unavailable, message))
            }
        }
    };
    match asked.await {
        Ok(leader) => format!("forwards to {}\n", leader.address).into_response(),
        Err(error) => refused(&HeaderMap::new(), error),
    }
}

async fn pass_on(
    Extension(link): Extension<Arc<Link>>,
    Extension(place): Extension<Arc<Place>>,
    request: Request,
) -> Response {
    let headers = request.headers().clone();
    match link.pass_on(request).await {
        Ok(mut answer) => {
            match hop::take_known(answer.headers_mut()).map(|(proof, actor)| place.prove(proof, &actor)) {
                Some(Err(full)) => refused(&headers, http::no_place(full)),
                _ => answer,
            }
        }
        Err(error) => refused(&headers, error),
    }
}

/// A refusal in the caller's language, with the time after which it is worth asking again.
fn refused(headers: &HeaderMap, error: ApiError) -> Response {
    let is_passing = error.code == ErrorCode::Unavailable;
    let mut answer = if crate::app::is_grpc(headers) {
        http::refused(error)
    } else if wants_page(headers) {
        page::error_page(StatusCode::SERVICE_UNAVAILABLE, &error)
    } else {
        Refusal::from(error).into_response()
    };
    if is_passing {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
    }
    answer
}
