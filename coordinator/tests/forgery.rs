//! What a page of somebody else can make a browser send: nothing of it reaches a service.

mod served;

use http::Method;
use planforge_coordinator::auth::Actor;
use planforge_proto::v1;
use serde_json::json;
use served::Served;

const FOREIGN: &str = "http://127.0.0.1:9";
/// Services of the contract under which a foreign page could do most.
const CREATE_TOKEN: &str = "/planforge.v1.Farm/CreateToken";

/// A gRPC message in its frame.
fn framed(message: &impl prost::Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let mut frame = vec![0];
    frame.extend((bytes.len() as u32).to_be_bytes());
    frame.extend(bytes);
    frame
}

async fn token_count(served: &Served) -> usize {
    served.coordinator.farm().list_tokens(&Actor::local()).await.unwrap().tokens.len()
}

#[tokio::test]
async fn no_grpc_method_answers_over_http_1_whatever_it_is_sent() {
    let served = Served::start().await;
    let tokens = token_count(&served).await;
    let request = v1::CreateTokenRequest { name: "evil".into(), role: "admin".into(), ..Default::default() };
    for kind in ["text/plain", "application/grpc", "application/grpc+proto", "application/json"] {
        // Even with the administrator's token: a page that learnt it elsewhere gets no further by this way.
        for authorized in [false, true] {
            let post = || {
                let request = served.stranger(Method::POST, CREATE_TOKEN).header("content-type", kind);
                match authorized {
                    true => request.header("authorization", format!("Bearer {}", served.admin_token())),
                    false => request,
                }
            };
            served.send(post(), framed(&request)).await.problem(415, "invalid-argument");
            served.send(post().header("origin", FOREIGN), framed(&request)).await.problem(403, "permission-denied");
            let fetched = post().header("sec-fetch-site", "same-site");
            served.send(fetched, framed(&request)).await.problem(403, "permission-denied");
        }
    }
    let untyped = served.request(Method::POST, CREATE_TOKEN);
    served.send(untyped, framed(&request)).await.problem(415, "invalid-argument");
    for (service, method) in served::rpc_methods() {
        let post = served.request(Method::POST, &format!("/{service}/{method}")).header("content-type", "text/plain");
        served.send(post, "").await.problem(415, "invalid-argument");
        let get = served.request(Method::GET, &format!("/{service}/{method}"));
        assert_eq!(served.send(get, "").await.status, 405, "{method}");
    }
    assert_eq!(token_count(&served).await, tokens, "no token was made");
}

#[tokio::test]
async fn grpc_over_http_2_has_its_own_content_type_and_no_origin() {
    let served = Served::start().await;
    for kind in ["application/grpc", "application/grpc+proto"] {
        let answer = served.grpc(CREATE_TOKEN, &[("content-type", kind)]).await;
        assert_eq!((answer.status.as_u16(), answer.header("grpc-status")), (200, "16"), "{kind}: asks for a token");
    }
    for kind in ["text/plain", "application/json", "application/grpc-web", "application/grpc-web-text"] {
        served.grpc(CREATE_TOKEN, &[("content-type", kind)]).await.problem(415, "invalid-argument");
    }
    let own = format!("http://{}", served.address());
    for origin in [FOREIGN, "null", &own] {
        served.grpc(CREATE_TOKEN, &[("origin", origin)]).await.problem(403, "permission-denied");
    }
}

#[tokio::test]
async fn a_foreign_page_changes_nothing_even_with_a_token() {
    let served = Served::start().await;
    let hex = "0".repeat(64);
    let body = json!({ "digest": hex, "size_bytes": 1 }).to_string();
    let routes = [
        (Method::POST, "/api/v1/jobs".to_owned(), "application/json"),
        (Method::POST, "/api/v1/jobs/1/cancel".into(), "application/json"),
        (Method::POST, "/api/v1/caches/x/drop".into(), "application/json"),
        (Method::POST, format!("/api/v1/blobs/{hex}/verify"), "application/json"),
        (Method::POST, "/api/v1/blobs/scrub".into(), "application/json"),
        (Method::POST, "/v1/uploads".into(), "application/json"),
        (Method::PATCH, "/v1/uploads/1".into(), "application/partial-upload"),
        (Method::POST, "/v1/uploads/1/address".into(), "application/json"),
        (Method::POST, "/v1/uploads/1/parts".into(), "application/json"),
        (Method::DELETE, "/v1/uploads/1".into(), "application/json"),
        (Method::POST, "/login".into(), "application/x-www-form-urlencoded"),
        (Method::POST, "/logout".into(), "application/x-www-form-urlencoded"),
    ];
    let own = format!("http://{}", served.address());
    for (method, path, kind) in &routes {
        let send = |headers: &[(&str, &str)]| {
            let mut request = served.request(method.clone(), path).header("content-type", *kind);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            served.send(request, body.clone())
        };
        for origin in [FOREIGN, "null", "https://evil.example", "http://localhost"] {
            send(&[("origin", origin)]).await.problem(403, "permission-denied");
        }
        for site in ["cross-site", "same-site"] {
            send(&[("sec-fetch-site", site)]).await.problem(403, "permission-denied");
            send(&[("sec-fetch-site", site), ("origin", &own)]).await.problem(403, "permission-denied");
        }
        let ours = send(&[("origin", &own), ("sec-fetch-site", "same-origin")]).await;
        assert!(ours.status != 403 && ours.status != 415, "{method} {path}: {}", ours.status);
    }
    // Without an origin, as some browsers send forms: no route but log-in and log-out takes what a form can carry.
    for (method, path, _) in routes.iter().take(10) {
        for kind in ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"] {
            let request = served.request(method.clone(), path).header("content-type", kind);
            served.send(request, body.clone()).await.problem(415, "invalid-argument");
        }
    }
}

#[tokio::test]
async fn looking_changes_nothing() {
    let served = Served::start().await;
    // Every path that takes a change, asked by the methods a browser sends for anybody.
    for path in ["/api/v1/jobs/1/cancel", "/api/v1/caches/x/drop", "/api/v1/blobs/scrub", "/v1/uploads", "/logout"] {
        for method in [Method::GET, Method::HEAD] {
            let answer = served.send(served.request(method, path), "").await;
            assert_eq!(answer.status, 405, "{path}");
        }
    }
    let answer = served.get("/api/v1/jobs").await;
    assert_eq!(answer.header("cross-origin-resource-policy"), "same-origin");
}
