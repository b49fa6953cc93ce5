//! Who may come in, over which way, and what they hear when they may not.

mod served;

use http::Method;
use planforge_coordinator::{
    auth::Actor,
    server::{Coordinator, CoordinatorConfig, StartError},
};
use planforge_proto::{ApiError, ErrorCode, v1};
use serde_json::json;
use served::Served;
use std::{net::SocketAddr, os::unix::fs::PermissionsExt};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

async fn token(served: &Served, name: &str, role: &str) -> (String, String) {
    let request = v1::CreateTokenRequest { name: name.into(), role: role.into(), ..Default::default() };
    let reply = served.coordinator.farm().create_token(&Actor::local(), request).await.unwrap();
    (reply.id, reply.secret)
}

async fn info_with(served: &Served, header: &'static str, value: &str) -> served::Answer {
    served.send(served.request(Method::GET, "/api/v1/info").header(header, value), "").await
}

#[tokio::test]
async fn loopback_needs_no_token_but_a_bad_one_is_refused_everywhere() {
    let served = Served::start().await;
    let info = served.get("/api/v1/info").await;
    assert_eq!((info.status.as_u16(), info.json()["actor"].as_str()), (200, Some("local")));
    for bad in ["Bearer pf_0000", "Bearer ", "Basic abc", "pf_0000"] {
        let answer = info_with(&served, "authorization", bad).await;
        let problem = answer.problem(401, "unauthenticated");
        assert!(!problem["hint"].as_str().unwrap().is_empty());
        assert_eq!(answer.header("www-authenticate"), "Bearer");
    }
    info_with(&served, "cookie", "planforge_token=pf_0000").await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn other_sites_and_proxies_do_not_pass_for_the_owner() {
    let served = Served::start().await;
    info_with(&served, "host", "evil.example").await.problem(401, "unauthenticated");
    info_with(&served, "x-forwarded-for", "10.1.1.1").await.problem(401, "unauthenticated");
    info_with(&served, "forwarded", "for=10.1.1.1").await.problem(401, "unauthenticated");
    assert_eq!(info_with(&served, "host", "localhost:7070").await.status, 200);
}

#[tokio::test]
async fn required_tokens_are_required_and_the_first_is_in_the_data_folder() {
    let served = Served::start_with(|config| config.require_token = true).await;
    let problem = served.get("/api/v1/info").await.problem(401, "unauthenticated");
    assert!(problem["hint"].as_str().unwrap().contains("PLANFORGE_TOKEN"));
    for open in ["/healthz", "/readyz", "/login"] {
        assert_eq!(served.get(open).await.status, 200, "{open}");
    }
    served.get("/metrics").await.problem(401, "unauthenticated");
    let file = served.folder.path().join("data/admin.token");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let admin = format!("Bearer {}", served.admin_token());
    let info = info_with(&served, "authorization", &admin).await.json();
    assert_eq!((info["actor"].as_str(), info["role"].as_str()), (Some("admin"), Some("admin")));
}

#[tokio::test]
async fn a_revoked_token_is_refused() {
    let served = Served::start_with(|config| config.require_token = true).await;
    let (id, secret) = token(&served, "ci", "read").await;
    let bearer = format!("Bearer {secret}");
    assert_eq!(info_with(&served, "authorization", &bearer).await.json()["actor"], "ci");
    served.coordinator.farm().revoke_token(&Actor::local(), &id).await.unwrap();
    info_with(&served, "authorization", &bearer).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn a_reader_stores_nothing_and_a_cookie_changes_nothing() {
    let served = Served::start_with(|config| config.require_token = true).await;
    let (_, secret) = token(&served, "viewer", "read").await;
    let upload = json!({ "digest": "0".repeat(64), "size_bytes": 1 }).to_string();
    let post = |name: &'static str, value: String| {
        served.request(Method::POST, "/v1/uploads").header("content-type", "application/json").header(name, value)
    };
    let refused = served.send(post("authorization", format!("Bearer {secret}")), upload.clone()).await;
    let problem = refused.problem(403, "permission-denied");
    assert!(problem["detail"].as_str().unwrap().contains("viewer"), "{problem}");
    let scrub = served.request(Method::POST, "/api/v1/blobs/scrub").header("authorization", format!("Bearer {secret}"));
    served.send(scrub, "").await.problem(403, "permission-denied");

    let cookie = format!("planforge_token={}", served.admin_token());
    assert_eq!(info_with(&served, "cookie", &cookie).await.status, 200);
    served.send(post("cookie", cookie), upload).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn grpc_hears_the_same_refusal_with_its_hint() {
    use planforge_proto::v1::farm_client::FarmClient;
    let served = Served::start_with(|config| config.require_token = true).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", served.address())).unwrap();
    let channel = channel.connect().await.unwrap();
    let mut client = FarmClient::new(channel);
    let error = ApiError::from(client.get_server_info(v1::GetServerInfoRequest {}).await.unwrap_err());
    assert_eq!(error.code, ErrorCode::Unauthenticated);
    assert!(error.hint.contains("PLANFORGE_TOKEN"), "{}", error.hint);
    let mut request = tonic::Request::new(v1::GetServerInfoRequest {});
    request.metadata_mut().insert("authorization", format!("Bearer {}", served.admin_token()).parse().unwrap());
    assert_eq!(client.get_server_info(request).await.unwrap().into_inner().actor, "admin");
}

#[tokio::test]
async fn the_unix_socket_is_its_owners_and_needs_no_token() {
    let folder = TempDir::new().unwrap();
    let mut config = CoordinatorConfig::new(folder.path().join("data"));
    let socket = folder.path().join("data/coordinator.sock");
    config.unix_socket = Some(socket.clone());
    config.require_token = true;
    let coordinator = Coordinator::start(config).await.unwrap();
    assert_eq!(coordinator.address(), None);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let mut stream = UnixStream::connect(&socket).await.unwrap();
    stream.write_all(b"GET /api/v1/info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""actor":"local""#), "{answer}");
    coordinator.shutdown().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn one_coordinator_per_data_folder_and_the_second_names_the_first() {
    let served = Served::start().await;
    let mut config = CoordinatorConfig::new(served.folder.path().join("data"));
    config.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let error = Coordinator::start(config.clone()).await.unwrap_err();
    assert!(matches!(&error, StartError::Locked { pid, .. } if *pid == std::process::id().to_string()), "{error}");
    assert!(error.to_string().contains(&format!("pid {}", std::process::id())) && !error.hint().is_empty());
    let token = served.admin_token();
    let folder = served.folder;
    served.coordinator.shutdown().await;

    let again = Coordinator::start(config).await.unwrap();
    let kept = std::fs::read_to_string(folder.path().join("data/admin.token")).unwrap();
    assert_eq!(kept.trim(), token, "a restart makes no new token");
    assert!(again.farm().authenticate(&token).await.unwrap().is_some());
    again.shutdown().await;
}

#[tokio::test]
async fn plain_http_beyond_this_machine_must_be_asked_for_and_needs_tokens() {
    let folder = TempDir::new().unwrap();
    let mut config = CoordinatorConfig::new(folder.path());
    config.listen = Some(SocketAddr::from(([0, 0, 0, 0], 0)));
    let error = Coordinator::start(config.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::PlainHttp { .. }), "{error}");
    assert!(error.hint().contains("certificate"));

    config.insecure_http = true;
    let coordinator = Coordinator::start(config).await.unwrap();
    let port = coordinator.address().unwrap().port();
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(b"GET /api/v1/info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    coordinator.shutdown().await;
}

#[tokio::test]
async fn nowhere_to_listen_and_a_taken_port_are_clear_errors() {
    let folder = TempDir::new().unwrap();
    let error = Coordinator::start(CoordinatorConfig::new(folder.path())).await.unwrap_err();
    assert!(matches!(error, StartError::NoListener), "{error}");
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = CoordinatorConfig::new(folder.path());
    config.listen = Some(taken.local_addr().unwrap());
    let error = Coordinator::start(config).await.unwrap_err();
    assert!(error.to_string().contains(&taken.local_addr().unwrap().to_string()), "{error}");
    assert!(error.hint().contains("another port"));
}
