//! Who may come in, over which way, and what they hear when they may not.

mod served;
#[path = "it/support/mod.rs"]
mod support;

use http::Method;
use planforge_coordinator::{
    auth::{Actor, Proof},
    server::{Coordinator, CoordinatorConfig, StartError},
};
use planforge_proto::{ApiError, ErrorCode, v1};
use serde_json::json;
use served::Served;
use std::{net::SocketAddr, os::unix::fs::PermissionsExt, time::Duration};
use support::{SKU, agent::Agent};
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
    served.send(served.stranger(Method::GET, "/api/v1/info").header(header, value), "").await
}

#[tokio::test]
async fn no_port_lets_anybody_in_without_a_good_token() {
    let served = Served::start().await;
    for bad in ["Bearer pf_0000", "Bearer ", "Basic abc", "pf_0000"] {
        let answer = info_with(&served, "authorization", bad).await;
        let problem = answer.problem(401, "unauthenticated");
        assert!(!problem["hint"].as_str().unwrap().is_empty());
        assert_eq!(answer.header("www-authenticate"), "Bearer");
    }
    for old in ["planforge_token", "planforge_session_0", &format!("planforge_session_{}", served.address().port())] {
        let cookie = format!("{old}={}", served.admin_token());
        info_with(&served, "cookie", &cookie).await.problem(401, "unauthenticated");
    }
    for host in ["localhost:7070", "127.0.0.1", "evil.example"] {
        info_with(&served, "host", host).await.problem(401, "unauthenticated");
    }
}

#[tokio::test]
async fn every_route_of_a_loopback_port_asks_for_a_token() {
    let served = Served::start().await;
    let zeros = "0".repeat(64);
    let read = [
        "/",
        "/jobs",
        "/devices",
        "/engines",
        "/jobs/1",
        "/requests/1",
        &format!("/plans/{zeros}"),
        &format!("/models/{zeros}"),
        "/compare",
        "/farm",
        "/activity",
        "/api",
        "/events",
        "/metrics",
        "/api/v1/info",
        "/api/v1/jobs",
        "/api/v1/jobs/1",
        "/api/v1/jobs/1/log",
        "/api/v1/devices",
        "/api/v1/engines",
        "/api/v1/engines/find",
        "/api/v1/reports",
        "/api/v1/caches",
        "/api/v1/plugins",
        &format!("/v1/blobs/sha256/{zeros}"),
    ];
    for path in read {
        served.send(served.stranger(Method::GET, path), "").await.problem(401, "unauthenticated");
    }
    let upload = served.send(served.stranger(Method::HEAD, "/v1/uploads/1"), "").await;
    assert_eq!(upload.status, 401);
    let change = [
        (Method::POST, "/api/v1/jobs", "application/json"),
        (Method::POST, "/api/v1/jobs/1/cancel", "application/json"),
        (Method::POST, "/api/v1/caches/x/drop", "application/json"),
        (Method::POST, &format!("/api/v1/blobs/{zeros}/verify"), "application/json"),
        (Method::POST, "/api/v1/blobs/scrub", "application/json"),
        (Method::POST, "/v1/uploads", "application/json"),
        (Method::PATCH, "/v1/uploads/1", "application/partial-upload"),
        (Method::POST, "/v1/uploads/1/address", "application/json"),
        (Method::POST, "/v1/uploads/1/parts", "application/json"),
        (Method::DELETE, "/v1/uploads/1", "application/json"),
    ];
    for (method, path, kind) in change {
        let request = served.stranger(method, path).header("content-type", kind);
        served.send(request, "{}").await.problem(401, "unauthenticated");
    }
}

#[tokio::test]
async fn every_grpc_method_of_a_loopback_port_asks_for_a_token() {
    let served = Served::start().await;
    for (service, method) in served::rpc_methods() {
        let answer = served.grpc(&format!("/{service}/{method}"), &[]).await;
        // Unauthenticated, in the words of gRPC.
        assert_eq!((answer.status.as_u16(), answer.header("grpc-status")), (200, "16"), "{method}");
    }
}

#[tokio::test]
async fn probes_ask_over_grpc_without_a_token_and_only_that() {
    let served = Served::start().await;
    // Serving: field 1 is 1.
    let well = [0, 0, 0, 0, 2, 8, 1];
    let check = "/grpc.health.v1.Health/Check";
    let farm = [b"\n\x11", b"planforge.v1.Farm".as_slice()].concat();
    for message in [&[][..], &farm] {
        let answer = served.grpc_of(check, &[], message).await;
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &well[..]));
    }
    // Not found, and not implemented: nobody holds a stream without a token.
    assert_eq!(served.grpc_of(check, &[], b"\n\x01x").await.header("grpc-status"), "5");
    assert_eq!(served.grpc("/grpc.health.v1.Health/Watch", &[]).await.header("grpc-status"), "12");

    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let list_services = b"\x3a\x01*";
    assert_eq!(served.grpc_of(reflection, &[], list_services).await.header("grpc-status"), "16");
    let admin = format!("Bearer {}", served.admin_token());
    let answer = served.grpc_of(reflection, &[("authorization", &admin)], list_services).await;
    let told = String::from_utf8_lossy(&answer.body);
    assert!(told.contains("planforge.v1.Farm") && told.contains("planforge.v1.Fleet"), "{told}");
}

#[tokio::test]
async fn the_first_token_is_in_the_data_folder() {
    let served = Served::start().await;
    let nobody = served.send(served.stranger(Method::GET, "/api/v1/info"), "").await;
    let problem = nobody.problem(401, "unauthenticated");
    assert!(problem["hint"].as_str().unwrap().contains("PLANFORGE_TOKEN"));
    for open in ["/healthz", "/readyz", "/login"] {
        assert_eq!(served.send(served.stranger(Method::GET, open), "").await.status, 200, "{open}");
    }
    let file = served.folder.path().join("data/admin.token");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let admin = format!("Bearer {}", served.admin_token());
    let info = info_with(&served, "authorization", &admin).await.json();
    assert_eq!((info["actor"].as_str(), info["role"].as_str()), (Some("admin"), Some("admin")));
}

#[tokio::test]
async fn a_revoked_token_is_refused() {
    let served = Served::start().await;
    let (id, secret) = token(&served, "ci", "read").await;
    let bearer = format!("Bearer {secret}");
    assert_eq!(info_with(&served, "authorization", &bearer).await.json()["actor"], "ci");
    served.coordinator.farm().revoke_token(&Actor::local(), &id).await.unwrap();
    info_with(&served, "authorization", &bearer).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn a_reader_stores_nothing_and_a_cookie_changes_nothing() {
    let served = Served::start().await;
    let (_, secret) = token(&served, "viewer", "read").await;
    let upload = json!({ "digest": "0".repeat(64), "size_bytes": 1 }).to_string();
    let post = |name: &'static str, value: String| {
        served.stranger(Method::POST, "/v1/uploads").header("content-type", "application/json").header(name, value)
    };
    let refused = served.send(post("authorization", format!("Bearer {secret}")), upload.clone()).await;
    let problem = refused.problem(403, "permission-denied");
    assert!(problem["detail"].as_str().unwrap().contains("viewer"), "{problem}");
    let scrub = served.stranger(Method::POST, "/api/v1/blobs/scrub").header("content-type", "application/json");
    let scrub = scrub.header("authorization", format!("Bearer {secret}"));
    served.send(scrub, "").await.problem(403, "permission-denied");

    let session = served.coordinator.farm().begin_session(Proof::Owner);
    let cookie = format!("planforge_session_{}={session}", served.address().port());
    assert_eq!(info_with(&served, "cookie", &cookie).await.status, 200);
    served.send(post("cookie", cookie), upload).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn grpc_hears_the_same_refusal_with_its_hint() {
    use planforge_proto::v1::farm_client::FarmClient;
    let served = Served::start().await;
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
async fn open_streams_end_with_an_error_when_their_token_is_revoked() {
    use planforge_proto::v1::farm_client::FarmClient;
    let served = Served::start().await;
    let ask = v1::CreateTokenRequest { name: "reader".into(), role: "read".into(), ..Default::default() };
    let made = served.coordinator.farm().create_token(&Actor::local(), ask).await.unwrap();
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", served.address())).unwrap();
    let mut client = FarmClient::new(channel.connect().await.unwrap());
    let mut request = tonic::Request::new(v1::WatchJobsRequest::default());
    request.metadata_mut().insert("authorization", format!("Bearer {}", made.secret).parse().unwrap());
    let mut watched = client.watch_jobs(request).await.unwrap().into_inner();
    served.coordinator.farm().revoke_token(&Actor::local(), &made.id).await.unwrap();
    // An end without a word would be taken for the end of the jobs.
    let end = tokio::time::timeout(served::DEADLINE, watched.message()).await.expect("the stream ends");
    let error = ApiError::from(end.unwrap_err());
    assert_eq!(error.code, ErrorCode::Unauthenticated);
    assert!(error.message.contains("revoked") && !error.hint.is_empty(), "{error:?}");
}

#[tokio::test]
async fn the_unix_socket_is_its_owners_and_asks_for_no_token() {
    let folder = TempDir::new().unwrap();
    let mut config = CoordinatorConfig::new(folder.path().join("data"));
    let socket = folder.path().join("data/coordinator.sock");
    config.unix_socket = Some(socket.clone());
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

/// As after a crash between the file and the farm's record of the token.
#[tokio::test]
async fn a_first_start_that_was_cut_short_leaves_a_token_that_works() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let secret = format!("pf_{}", "5a".repeat(32));
    std::fs::write(data.join("admin.token"), format!("{secret}\n")).unwrap();
    let mut config = CoordinatorConfig::new(&data);
    config.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let served = Served::around(Coordinator::start(config).await.unwrap(), folder);
    assert_eq!(served.admin_token(), secret);
    assert_eq!(served.get("/api/v1/jobs").await.status.as_u16(), 200);
}

/// A client, and what it presents: a token made for it.
async fn client_with(served: &Served, role: &str) -> (Client, Bearer) {
    let (_, secret) = token(served, &format!("a {role}"), role).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", served.address())).unwrap();
    (Client::new(channel.connect().await.unwrap()), format!("Bearer {secret}").parse().unwrap())
}

type Client = v1::farm_client::FarmClient<tonic::transport::Channel>;
type Bearer = tonic::metadata::MetadataValue<tonic::metadata::Ascii>;

fn with<T>(bearer: &Bearer, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("authorization", bearer.clone());
    request
}

#[tokio::test]
async fn a_token_that_submits_without_end_waits_for_its_rate() {
    let served = Served::start().await;
    let _agent = Agent::usual(served.coordinator.farm(), "a").await;
    let mut models = Vec::new();
    for name in ["one", "two", "three", "four"] {
        let digest = served.coordinator.blobs().store(bytes::Bytes::from(name)).await.unwrap().to_string();
        let size_bytes = name.len() as u64;
        let files = vec![v1::ModelFile { name: "m.onnx".into(), digest: digest.clone(), size_bytes }];
        models.push(v1::Model { digest, name: name.into(), files, ..Default::default() });
    }
    let of = |models: &[v1::Model], specs: u64| v1::SubmitRequest {
        models: models.to_vec(),
        skus: vec![SKU.into()],
        specs_json: (1..=specs).map(|mib| format!(r#"{{"workspace_mib":{mib}}}"#)).collect(),
        ..Default::default()
    };
    let (mut greedy, its) = client_with(&served, "submit").await;
    // As many as it may at once; the next waits until they are paid for, which takes a quarter of a minute.
    for specs in [1_000, 1_001] {
        assert_eq!(greedy.submit(with(&its, of(&models, specs))).await.unwrap().into_inner().jobs.len() / 1_000, 4);
    }
    let waits = tokio::time::timeout(Duration::from_secs(2), greedy.submit(with(&its, of(&models[..1], 1)))).await;
    assert!(waits.is_err(), "a third is taken at once: {waits:?}");
    // It may ask, and everybody else may submit.
    assert!(greedy.list_jobs(with(&its, v1::ListJobsRequest { limit: 1, ..Default::default() })).await.is_ok());
    let ask = v1::CreateTokenRequest { name: "other".into(), role: "submit".into(), ..Default::default() };
    let other = served.coordinator.farm().create_token(&Actor::local(), ask).await.unwrap();
    let others: Bearer = format!("Bearer {}", other.secret).parse().unwrap();
    assert_eq!(greedy.submit(with(&others, of(&models[..1], 1))).await.unwrap().into_inner().jobs.len(), 1);
}

#[tokio::test]
async fn one_token_watches_so_many_times_and_no_more() {
    let served = Served::start().await;
    let (mut watcher, its) = client_with(&served, "read").await;
    let mut open = Vec::new();
    let error = loop {
        match watcher.watch_jobs(with(&its, v1::WatchJobsRequest::default())).await {
            Ok(stream) => open.push(stream.into_inner()),
            Err(error) => break ApiError::from(error),
        }
    };
    assert_eq!((open.len(), error.code), (16, ErrorCode::ResourceExhausted));
    assert!(error.message.contains("16 watches of all jobs") && !error.hint.is_empty(), "{error:?}");
    // A place is free again once its stream is closed.
    open.pop();
    let deadline = tokio::time::Instant::now() + served::DEADLINE;
    while watcher.watch_jobs(with(&its, v1::WatchJobsRequest::default())).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the place of a closed stream stays taken");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
