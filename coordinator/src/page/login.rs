//! How a browser is signed in and out: by a token in a form, or by a link that is good once.
//!
//! The address of such a link only shows a form, which the page's script sends at once: whoever merely looks at the
//! address (a preview, a scanner, HEAD) uses nothing up, and the secret is in no address from then on.

use super::{frame, html};
use crate::{
    app::{App, Peer, authenticate, cookie},
    auth::{Actor, Proof},
    farm::SESSION_SECONDS,
};
use axum::{
    Extension, Form,
    extract::{Query, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Redirect, Response},
};
use planforge_page::parts::LoginPage;
use planforge_proto::{ApiError, ErrorCode};
use serde::Deserialize;

/// Held the token itself in former versions; taken out of browsers that still have it.
const OLD_COOKIE: &str = "planforge_token";

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct LoginQuery {
    next: String,
    once: String,
}

/// `GET /login`
pub(super) async fn form(Query(query): Query<LoginQuery>) -> Response {
    let LoginQuery { next, once } = query;
    let page = LoginPage { frame: frame("Log in"), next: local_path(&next), once: plain(&once), error: String::new() };
    html(StatusCode::OK, &page)
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct LoginBody {
    token: String,
    once: String,
    next: String,
}

/// `POST /login`: keeps the secret of a session in a cookie that scripts cannot read and other sites cannot send.
pub(super) async fn log_in(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    Form(body): Form<LoginBody>,
) -> Response {
    let from = peer.place();
    let encrypted = is_encrypted(peer, &headers);
    let next = local_path(&body.next);
    let session = if body.once.is_empty() {
        check_token(&app, body.token.trim()).await.map(|proof| app.farm.begin_session(proof))
    } else {
        app.farm.redeem_login_link(&body.once).ok_or_else(|| {
            let message = "this link was used already or is too old; `planforge open` prints another";
            ApiError::new(ErrorCode::Unauthenticated, message)
        })
    };
    match session {
        Ok(secret) => {
            if let Some(actor) = app.farm.session_proof(&secret).and_then(|proof| app.farm.actor_of(proof)) {
                let how = if body.once.is_empty() { "by its token" } else { "by a link" };
                app.farm.note_login(&Actor { from, ..actor }, how);
            }
            let mut response = Redirect::to(&next).into_response();
            set_cookie(&mut response, &app.options.session_cookie, &secret, SESSION_SECONDS, encrypted);
            set_cookie(&mut response, OLD_COOKIE, "", 0, encrypted);
            response
        }
        Err(error) => {
            app.farm.note_stranger(&from, "/login", &error);
            let page = LoginPage { frame: frame("Log in"), next, once: String::new(), error: error.message };
            html(StatusCode::UNAUTHORIZED, &page)
        }
    }
}

/// `POST /logout`
pub(super) async fn log_out(State(app): State<App>, Extension(peer): Extension<Peer>, headers: HeaderMap) -> Response {
    let encrypted = is_encrypted(peer, &headers);
    if let Some(secret) = cookie(&headers, &app.options.session_cookie) {
        app.farm.end_session(secret);
    }
    let mut response = Redirect::to("/login").into_response();
    set_cookie(&mut response, &app.options.session_cookie, "", 0, encrypted);
    set_cookie(&mut response, OLD_COOKIE, "", 0, encrypted);
    response
}

async fn check_token(app: &App, secret: &str) -> Result<Proof, ApiError> {
    if plain(secret).is_empty() {
        return Err(ApiError::new(ErrorCode::Unauthenticated, "that is no token"));
    }
    authenticate(app, secret).await.map(|(_, proof)| proof)
}

/// A secret as it was made: nothing else is worth a look.
fn plain(secret: &str) -> String {
    let plain = secret.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if plain { secret.to_owned() } else { String::new() }
}

/// Whether the browser speaks TLS: to us, or to a proxy before us, which its page's own address tells.
fn is_encrypted(peer: Peer, headers: &HeaderMap) -> bool {
    peer.encrypted || headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"))
}

fn set_cookie(response: &mut Response, name: &str, secret: &str, seconds: u32, encrypted: bool) {
    let secure = if encrypted { "; Secure" } else { "" };
    let cookie = format!("{name}={secret}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

/// A path on this server, whatever was asked for: a log-in must not lead elsewhere.
fn local_path(next: &str) -> String {
    let plain = next.starts_with('/') && !next.starts_with("//") && !next.contains(['\\', '\r', '\n', '\t']);
    if plain { next.to_owned() } else { "/".into() }
}

/// Sends a browser to the log-in form and back afterwards.
pub(crate) fn to_login(from: &Uri) -> Response {
    let next = from.path_and_query().map_or("/", |path| path.as_str());
    let escaped: String = next
        .bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => char::from(b).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    Redirect::to(&format!("/login?next={escaped}")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_only_to_this_server() {
        assert_eq!(local_path("/jobs/1?x=y"), "/jobs/1?x=y");
        for elsewhere in ["", "//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil.example"] {
            assert_eq!(local_path(elsewhere), "/", "{elsewhere:?}");
        }
    }
}
