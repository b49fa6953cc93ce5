//! Everything that is spoken over the port: gRPC, blobs, JSON, probes and the page, as one router.

mod access;
mod api;
mod blobs;
mod bodies;
mod declared;
mod enroll;
mod forgery;
mod grpc;
mod health;
mod history;
mod pauses;
mod range;
mod scrub;
mod shares;

use crate::{
    app::{App, Caller, Options, Refusal, hop, is_grpc, wants_page},
    blobs::Blobs,
    farm::Farm,
    page,
};
use axum::{
    Router,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header},
    middleware,
    response::{IntoResponse as _, Response},
    routing::get,
};
use planforge_metrics::{BlobFacts, Metrics};
use planforge_proto::{ApiError, ErrorCode};
use tokio_util::sync::CancellationToken;

/// Largest JSON body: a submission of a thousand specs fits; blobs go elsewhere.
const MAX_JSON_BYTES: usize = 8 << 20;

pub(crate) use access::no_place;
pub(crate) use grpc::refused;

pub(crate) fn router(
    farm: Farm,
    blobs: Blobs,
    options: Options,
    metrics: Metrics,
    closing: CancellationToken,
) -> Router {
    let app = App::new(farm, blobs, options, metrics, closing);
    let peers_secret = app.options.peers_secret.clone();
    let hub = page::Hub::default();
    let guarded = Router::new()
        .merge(api::routes())
        .merge(blobs::routes())
        .merge(declared::routes())
        .merge(scrub::routes())
        .merge(shares::routes())
        .merge(pauses::routes())
        .merge(enroll::routes())
        .merge(page::routes(&hub))
        .route("/metrics", get(self::metrics))
        .with_state(app.clone())
        .layer(middleware::from_fn_with_state(app.clone(), access::guard));
    let open = page::open_routes(&hub).with_state(app.clone()).layer(DefaultBodyLimit::max(bodies::MAX_FORM_BYTES));
    // What a browser may have been made to send is refused before anybody asks who sends it.
    let over_http =
        guarded.merge(open).layer(middleware::from_fn_with_state(app.clone(), forgery::refuse_foreign_sites));
    let over_grpc = grpc::routes(&app)
        .layer(middleware::from_fn_with_state(app.clone(), access::guard))
        .layer(middleware::from_fn(forgery::refuse_all_but_grpc));
    let probed = health::routes(&app).layer(middleware::from_fn(forgery::refuse_all_but_grpc));
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .with_state(app.clone())
        .merge(over_http)
        .merge(over_grpc)
        .merge(probed)
        .fallback(async |method: Method, uri: Uri, headers: HeaderMap| nothing_here(&method, &uri, &headers))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            let error = ApiError::new(ErrorCode::InvalidArgument, format!("{} does not take {method}", uri.path()));
            Refusal { error, status: StatusCode::METHOD_NOT_ALLOWED }
        })
        .layer(DefaultBodyLimit::max(MAX_JSON_BYTES))
        .layer(middleware::from_fn_with_state(app.clone(), bodies::keep_pace))
        .layer(middleware::from_fn_with_state(app, observe))
        .layer(middleware::from_fn_with_state(peers_secret, hop::arrived))
}

fn nothing_here(_method: &Method, uri: &Uri, headers: &HeaderMap) -> Response {
    let path: String = uri.path().chars().take(200).collect();
    let error = ApiError::new(ErrorCode::NotFound, format!("nothing is served at {path}"));
    if is_grpc(headers) {
        return grpc::refused(error);
    }
    if wants_page(headers) {
        return page::error_page(StatusCode::NOT_FOUND, &error);
    }
    Refusal::from(error.with_hint("the page is at /, the JSON API below /api/v1")).into_response()
}

/// 200 once the farm leads, its store takes writes, and its blobs can be reached.
async fn ready(State(app): State<App>) -> Result<&'static str, Refusal> {
    app.ready()?;
    Ok("ready\n")
}

async fn metrics(State(app): State<App>, caller: Caller) -> Result<Response, Refusal> {
    // They tell of the whole farm.
    caller.must_see_everything()?;
    let stats = app.farm.stats().await?;
    let blobs = BlobFacts {
        available_bytes: app.blobs.available_bytes().ok().flatten(),
        quarantined: app.blobs.quarantined().map_or(0, |set_aside| set_aside.len() as u64),
        scrub: app.blobs.scrub_state(),
    };
    let text = app.metrics.encode(stats, blobs);
    Ok(([(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)], text).into_response())
}

/// Counts and times every request, and sets the headers that every answer has.
async fn observe(State(app): State<App>, request: axum::extract::Request, next: middleware::Next) -> Response {
    let started = std::time::Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<axum::extract::MatchedPath>().map(|path| path.as_str().to_owned());
    let mut response = next.run(request).await;
    app.metrics.request_ended(route.as_deref().unwrap_or("none"), &method, response.status(), started.elapsed());
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // No page of another origin may make anything of an answer, whatever kind of element asked for it.
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}
