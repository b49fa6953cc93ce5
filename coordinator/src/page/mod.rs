//! The live page: rendered here, brought up to date by events, whole without JavaScript.
//!
//! An address is a [`topic::Topic`], and what it shows is a [`View`]: a heading, filters and sections, which [`load`]
//! makes of the farm's answers. The first answer and every later update come of the same view (see [`events`]), and with
//! `?format=json` the same list is JSON. Nothing is loaded from elsewhere, and the content security policy allows neither
//! inline script nor inline style.

mod acts;
mod compare;
mod events;
mod load;
mod login;
mod logs;
mod sent;
mod shared;
mod topic;

pub(crate) use events::Hub;
pub(crate) use login::to_login;

use crate::{
    app::{App, Caller, Peer, Refusal, SESSION_COOKIE},
    auth::Actor,
};
use axum::{
    Extension, Json, Router,
    extract::{Path, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{Html, IntoResponse, Redirect, Response},
    routing::{get, post},
};
use load::Shown;
use planforge_page::{
    Template, assets,
    parts::ErrorPage,
    view::{Frame, Page, Snapshot},
};
use planforge_proto::{ApiError, ErrorCode};
use topic::Topic;

const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
);

pub(crate) fn routes(hub: &Hub) -> Router<App> {
    Router::new()
        .route("/", get(show))
        .route("/jobs", get(show))
        .route("/jobs/{id}", get(show))
        .route("/jobs/{id}/clone", get(show))
        .route("/requests/{id}", get(show))
        .route("/engines", get(show))
        .route("/plans/{digest}", get(show))
        .route("/models/{digest}", get(show))
        .route("/compare", get(show))
        .route("/devices", get(show))
        .route("/farm", get(show))
        .route("/activity", get(show))
        .route("/api", get(show))
        .route("/events", get(events::follow))
        .route("/do/cancel", post(acts::cancel))
        .route("/do/retry", post(acts::retry))
        .route("/do/clone", post(acts::clone))
        .route("/do/priority", post(acts::priority))
        .route("/do/share", post(acts::share))
        .route("/do/unshare", post(acts::unshare))
        .route("/do/drain", post(acts::drain))
        .route("/do/resume", post(acts::resume))
        .route("/do/forget", post(acts::forget))
        .route("/do/revoke", post(acts::revoke))
        .route("/do/unpin", post(acts::unpin))
        .route("/do/project", post(acts::project))
        .route("/do/gc", post(acts::gc))
        .route("/do/scrub", post(acts::scrub))
        .layer(Extension(hub.clone()))
}

/// What is served without a token.
pub(crate) fn open_routes(hub: &Hub) -> Router<App> {
    Router::new()
        .route("/assets/{name}", get(asset))
        .route("/favicon.ico", get(async || Redirect::permanent(&assets::PATHS.icon)))
        .route("/login", get(login::form).post(login::log_in))
        .route("/logout", post(login::log_out))
        .route("/shared/{secret}", get(shared::root))
        .route("/shared/{secret}/events", get(shared::follow))
        .route("/shared/{secret}/jobs/{id}", get(shared::job))
        .route("/shared/{secret}/plans/{digest}", get(shared::plan))
        .layer(Extension(hub.clone()))
}

async fn asset(Path(name): Path<String>) -> Response {
    let Some(asset) = assets::find(&name) else { return StatusCode::NOT_FOUND.into_response() };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.media_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, asset.bytes).into_response()
}

fn frame(title: impl Into<String>) -> Frame {
    Frame::new(title, env!("CARGO_PKG_VERSION"))
}

/// Whether a browser came by a cookie, and can log out.
fn signed_in(headers: &HeaderMap) -> bool {
    let mut cookies = headers.get_all(header::COOKIE).into_iter();
    cookies.any(|value| value.to_str().is_ok_and(|text| text.contains(SESSION_COOKIE)))
}

fn frame_of(title: &str, topic: &Topic, caller: &Actor, headers: &HeaderMap) -> Frame {
    let logged_in = signed_in(headers);
    let actor = format!("{} ({})", caller.name, caller.role);
    Frame { topic: topic.address(), actor, logged_in, ..frame(title) }
}

/// Every page that shows something of the farm.
async fn show(
    State(app): State<App>,
    caller: Caller,
    Base(server): Base,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let asked = Topic::read(&uri)?;
    if asked.wants_json {
        let json = load::json(&app, &caller, &asked.topic).await;
        return Ok(json.map(Json).map_err(Refusal::from).into_response());
    }
    let Shown { title, view } = load::view(&app, &caller, &asked.topic, &server).await?;
    let state = format!("{:x}", Snapshot::of(&view).tag);
    let frame = Frame { state, ..frame_of(&title, &asked.topic, &caller, &headers) };
    Ok(html(StatusCode::OK, &Page { frame, view, json: asked.topic.json_address() }))
}

pub(crate) fn error_page(status: StatusCode, error: &ApiError) -> Response {
    let heading = match error.code {
        ErrorCode::NotFound => "Not found",
        ErrorCode::PermissionDenied | ErrorCode::Unauthenticated => "Not allowed",
        ErrorCode::Unavailable => "Not available now",
        _ => "That did not work",
    };
    let page = ErrorPage {
        frame: frame(heading),
        heading: heading.into(),
        message: error.message.clone(),
        hint: error.hint.clone(),
    };
    html(status, &page)
}

/// An error on a page's way out.
struct PageError(ApiError);

impl From<ApiError> for PageError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let status = Refusal::from(self.0.clone()).status;
        error_page(status, &self.0)
    }
}

fn html(status: StatusCode, page: &impl Template) -> Response {
    let mut response = match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot render a page");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// How the browser reached this coordinator, or what was configured: stands in the commands that the page shows.
struct Base(String);

impl axum::extract::FromRequestParts<App> for Base {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        app: &App,
    ) -> Result<Self, std::convert::Infallible> {
        if !app.options.public_url.is_empty() {
            return Ok(Self(app.options.public_url.clone()));
        }
        let encrypted = parts.extensions.get::<Peer>().is_some_and(|peer| peer.encrypted);
        let host = parts.headers.get(header::HOST).and_then(|value| value.to_str().ok());
        let host = host.or_else(|| parts.uri.authority().map(|authority| authority.as_str())).unwrap_or("HOST:PORT");
        Ok(Self(format!("{}://{host}", if encrypted { "https" } else { "http" })))
    }
}
