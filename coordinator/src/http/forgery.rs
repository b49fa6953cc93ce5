//! What a page of somebody else can make a browser send is refused before anybody asks who sends it.
//!
//! A browser sends some requests for any page without asking the server first: GET and HEAD, and POST with the content
//! types of forms or none. So GET and HEAD change nothing anywhere, and everything else
//!
//! - that says where it comes from (`Origin`, `Sec-Fetch-Site`) has to come from the page itself,
//! - has the content type of its route, which no form has; only log-in, log-out and what the page does are forms, and of
//!   those that a log-in of a browser lets in each says where it comes from (see `access`).
//!
//! gRPC is no browser's: HTTP/2, POST and its own content type, or no service hears of it.

use crate::app::{App, Refusal};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, Uri, Version, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use planforge_proto::{ApiError, ErrorCode};

const SEC_FETCH_SITE: &str = "sec-fetch-site";
const FORM: &str = "application/x-www-form-urlencoded";
/// What a browser sends for any page without asking first.
const SIMPLE: [&str; 3] = ["text/plain", "multipart/form-data", FORM];
const GRPC: [&str; 2] = ["application/grpc", "application/grpc+proto"];
/// Routes that take a form.
const FORMS: [&str; 2] = ["/login", "/logout"];

/// What the page does, by forms of its own.
pub(super) fn is_of_the_page(path: &str) -> bool {
    path.starts_with("/do/")
}

/// Whether a request says where it comes from, as every browser does that sends a form.
pub(super) fn says_where_it_comes_from(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) || headers.contains_key(SEC_FETCH_SITE)
}

/// Guards everything that is no gRPC.
pub(super) async fn refuse_foreign_sites(State(app): State<App>, request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let own = [own_host(&request), host_of(&app.options.public_url)];
    let checked = comes_from_here(request.headers(), &own)
        .and_then(|()| has_its_content_type(request.method(), request.uri().path(), request.headers()));
    match checked {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Guards the gRPC services.
pub(super) async fn refuse_all_but_grpc(request: Request, next: Next) -> Response {
    match is_plain_grpc(request.method(), request.version(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn is_plain_grpc(method: &Method, version: Version, headers: &HeaderMap) -> Result<(), Refusal> {
    if says_where_it_comes_from(headers) {
        return Err(foreign("gRPC is not for browsers", "use the JSON API below /api/v1"));
    }
    if method != Method::POST {
        let error = ApiError::new(ErrorCode::InvalidArgument, format!("gRPC is spoken with POST, not {method}"));
        return Err(Refusal { error, status: StatusCode::METHOD_NOT_ALLOWED });
    }
    let is_grpc = content_type(headers).is_some_and(|given| GRPC.iter().any(|name| given.eq_ignore_ascii_case(name)));
    if version != Version::HTTP_2 || !is_grpc {
        return Err(wrong_type(
            "gRPC is spoken over HTTP/2 with the content type application/grpc",
            "curl and scripts use the JSON API below /api/v1",
        ));
    }
    Ok(())
}

/// Refuses what a browser sends for a page that is not ours. What is no browser's says nothing and passes.
fn comes_from_here(headers: &HeaderMap, own: &[Option<String>]) -> Result<(), Refusal> {
    let hint = "open this coordinator's own page, or use the command line";
    for site in headers.get_all(SEC_FETCH_SITE) {
        if !matches!(site.as_bytes(), b"same-origin" | b"none") {
            return Err(foreign("the request comes from a page of another site", hint));
        }
    }
    for origin in headers.get_all(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let same = origin.split_once("://").is_some_and(|(scheme, authority)| {
            let found = with_port(authority, scheme);
            found.is_some() && own.iter().flatten().any(|own| with_port(own, scheme) == found)
        });
        if !same {
            let origin: String = origin.chars().take(200).collect();
            return Err(foreign(format!("the request comes from a page of '{}'", origin.escape_debug()), hint));
        }
    }
    Ok(())
}

fn has_its_content_type(method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
    let given = content_type(headers);
    let is = |name: &str| given.is_some_and(|given| given.eq_ignore_ascii_case(name));
    if FORMS.contains(&path) || is_of_the_page(path) {
        // A form without fields may say no type.
        return if given.is_none() || is(FORM) { Ok(()) } else { Err(wrong_type(format!("{path} takes a form"), "")) };
    }
    if method == Method::POST && !is("application/json") {
        let message = format!("{path} takes the content type application/json");
        return Err(wrong_type(message, "send 'Content-Type: application/json', with or without a body"));
    }
    if SIMPLE.iter().any(|name| is(name)) {
        return Err(wrong_type(format!("{path} takes no form"), ""));
    }
    Ok(())
}

/// The content type without its parameters.
fn content_type(headers: &HeaderMap) -> Option<&str> {
    // A value that is no text counts as one that no route takes.
    let value = headers.get(header::CONTENT_TYPE)?.to_str().unwrap_or("none");
    Some(value.split(';').next().unwrap_or_default().trim())
}

/// Host and port as the request names them.
fn own_host(request: &Request) -> Option<String> {
    let named = request.uri().authority().map(Authority::as_str);
    named.or_else(|| request.headers().get(header::HOST)?.to_str().ok()).map(str::to_owned)
}

fn host_of(url: &str) -> Option<String> {
    Some(url.parse::<Uri>().ok()?.authority()?.as_str().to_owned())
}

/// Host in lower case and port of an authority; without a port, the scheme's.
fn with_port(authority: &str, scheme: &str) -> Option<(String, u16)> {
    let authority: Authority = authority.parse().ok()?;
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let port = match authority.port_u16() {
        Some(port) => port,
        None if authority.as_str() == authority.host() => usual,
        // Something stands there that is no port, or a user's name.
        None => return None,
    };
    Some((authority.host().to_ascii_lowercase(), port))
}

fn foreign(message: impl Into<String>, hint: &str) -> Refusal {
    ApiError::new(ErrorCode::PermissionDenied, message).with_hint(hint).into()
}

fn wrong_type(message: impl Into<String>, hint: &str) -> Refusal {
    let error = ApiError::new(ErrorCode::InvalidArgument, message).with_hint(hint);
    Refusal { error, status: StatusCode::UNSUPPORTED_MEDIA_TYPE }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_the_own_page_may_change_something() {
        let own = [Some("127.0.0.1:7400".to_owned()), Some("farm.example".to_owned())];
        let passes = |pairs: &[(&'static str, &str)]| comes_from_here(&headers(pairs), &own).is_ok();
        assert!(passes(&[]), "no browser");
        for fine in ["http://127.0.0.1:7400", "https://farm.example", "https://FARM.example:443"] {
            assert!(passes(&[("origin", fine)]), "{fine}");
        }
        for other in [
            "null",
            "",
            "http://127.0.0.1:7401",
            "http://127.0.0.1",
            "http://localhost:7400",
            "http://farm.example:443x",
            "https://me@farm.example",
            "ftp://127.0.0.1:7400",
            "https://farm.example.evil",
        ] {
            assert!(!passes(&[("origin", other)]), "{other}");
        }
        assert!(passes(&[("sec-fetch-site", "same-origin")]) && passes(&[("sec-fetch-site", "none")]));
        for site in ["cross-site", "same-site", "", "none, cross-site"] {
            assert!(!passes(&[("sec-fetch-site", site), ("origin", "http://127.0.0.1:7400")]), "{site}");
        }
        assert!(!passes(&[("origin", "http://127.0.0.1:7400"), ("origin", "http://evil.example")]));
    }

    #[test]
    fn forms_are_for_logging_in_alone() {
        let passes = |method: Method, path: &str, kind: Option<&str>| {
            let pairs: Vec<_> = kind.into_iter().map(|kind| ("content-type", kind)).collect();
            has_its_content_type(&method, path, &headers(&pairs)).is_ok()
        };
        assert!(passes(Method::POST, "/api/v1/jobs", Some("application/json; charset=utf-8")));
        assert!(passes(Method::PATCH, "/v1/uploads/x", Some("application/partial-upload")));
        assert!(passes(Method::DELETE, "/v1/uploads/x", None));
        assert!(passes(Method::POST, "/login", Some(FORM)) && passes(Method::POST, "/logout", None));
        assert!(passes(Method::POST, "/do/cancel", Some(FORM)));
        assert!(
            !passes(Method::POST, "/login", Some("text/plain"))
                && !passes(Method::POST, "/do/cancel", Some("text/plain"))
        );
        assert!(!passes(Method::POST, "/api/v1/jobs", None));
        for simple in SIMPLE.iter().copied().chain(["Text/Plain;charset=utf-8", "application/jsonp"]) {
            assert!(!passes(Method::POST, "/v1/uploads", Some(simple)), "{simple}");
        }
        assert!(!passes(Method::DELETE, "/v1/uploads/x", Some("text/plain")));
    }

    #[test]
    fn grpc_is_http2_and_its_own_type() {
        let passes =
            |version, pairs: &[(&'static str, &str)]| is_plain_grpc(&Method::POST, version, &headers(pairs)).is_ok();
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc; x=y"] {
            assert!(passes(Version::HTTP_2, &[("content-type", kind)]), "{kind}");
            assert!(!passes(Version::HTTP_11, &[("content-type", kind)]), "{kind}");
            assert!(!passes(Version::HTTP_2, &[("content-type", kind), ("origin", "http://127.0.0.1:7400")]));
        }
        for kind in ["application/grpc-web", "application/grpc+json", "application/json", "text/plain"] {
            assert!(!passes(Version::HTTP_2, &[("content-type", kind)]), "{kind}");
        }
        assert!(!passes(Version::HTTP_2, &[]));
        assert!(is_plain_grpc(&Method::GET, Version::HTTP_2, &headers(&[("content-type", GRPC[0])])).is_err());
    }
}
