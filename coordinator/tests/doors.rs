//! Nobody crowds out the others at the door: connections that say nothing, little, or too much.

mod served;

use planforge_coordinator::{auth::Actor, server::Places};
use planforge_proto::v1;
use served::{DEADLINE, Served};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};

/// Connections of a farm that has few.
const CONNECTIONS: usize = 64;
const PLACES: fn() -> Places = || Places::of(CONNECTIONS);
/// Far more than that.
const HOSTILE: usize = 300;
/// How long a first request, or a form, may take where a test waits for its end.
const SOON: Duration = Duration::from_millis(300);

async fn small() -> Served {
    Served::start_with(|config| config.limits.max_connections = CONNECTIONS).await
}

async fn hasty() -> Served {
    Served::start_with(|config| config.limits.first_request_within = SOON).await
}

/// A connection from an address of this machine.
async fn connect_from(to: SocketAddr, from: Ipv4Addr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(to).await
}

/// Connections of each address in turn, every second of which says one byte. Held until they are dropped.
async fn hostile(served: &Served, from: &[Ipv4Addr]) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for number in 0..HOSTILE {
        let mut stream = connect_from(served.address(), from[number % from.len()]).await.unwrap();
        if number % 2 == 1 {
            // It may have been closed already.
            let _ = stream.write_all(b"G").await;
        }
        held.push(stream);
    }
    held
}

/// What a request on that connection is answered with, up to the end of the headers.
async fn ask(stream: &mut TcpStream, request: &str) -> io::Result<String> {
    let asked = async {
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await?);
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    timeout(DEADLINE, asked).await.expect("an answer in time")
}

fn request(path: &str, token: &str) -> String {
    format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n")
}

/// Completes when the other end has closed the connection.
async fn closed(mut stream: impl AsyncReadExt + Unpin) {
    let ended = async {
        let mut bytes = [0; 1024];
        while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {}
    };
    timeout(DEADLINE, ended).await.expect("the connection is closed in time");
}

async fn token(served: &Served, name: &str, role: &str) -> String {
    let request = v1::CreateTokenRequest { name: name.into(), role: role.into(), ..Default::default() };
    served.coordinator.farm().create_token(&Actor::local(), request).await.unwrap().secret
}

#[tokio::test]
async fn silent_and_one_byte_connections_of_the_same_address_shut_nobody_out() {
    let served = small().await;
    let _held = hostile(&served, &[Ipv4Addr::LOCALHOST]).await;
    assert_eq!(served.send(served.stranger(http::Method::GET, "/healthz"), "").await.status, 200);
    assert_eq!(served.get("/api/v1/info").await.status, 200);
    served.coordinator.shutdown().await;
}

#[tokio::test]
async fn silent_and_one_byte_connections_of_many_addresses_shut_nobody_out() {
    let served = small().await;
    let many: Vec<_> = (1..=100).map(|last| Ipv4Addr::new(127, 0, 1, last)).collect();
    let _held = hostile(&served, &many).await;
    assert_eq!(served.send(served.stranger(http::Method::GET, "/healthz"), "").await.status, 200);
    assert_eq!(served.get("/api/v1/info").await.status, 200);
    served.coordinator.shutdown().await;
}

#[tokio::test]
async fn one_address_leaves_places_to_another_and_displaces_its_own() {
    let served = small().await;
    let mut quiet = connect_from(served.address(), Ipv4Addr::new(127, 0, 2, 1)).await.unwrap();
    let held = hostile(&served, &[Ipv4Addr::new(127, 0, 2, 2)]).await;
    let answer = ask(&mut quiet, "HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for stream in held.into_iter().take(HOSTILE - PLACES().strangers_of_one_address) {
        closed(stream).await;
    }
    served.coordinator.shutdown().await;
}

#[tokio::test]
async fn a_connection_that_has_shown_a_token_is_displaced_by_no_stranger() {
    let served = small().await;
    let token = token(&served, "ci", "read").await;
    let mut known = TcpStream::connect(served.address()).await.unwrap();
    let info = request("/api/v1/info", &token);
    assert!(ask(&mut known, &info).await.unwrap().starts_with("HTTP/1.1 200"));
    let _held = hostile(&served, &[Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 1, 1)]).await;
    assert!(ask(&mut known, &info).await.unwrap().starts_with("HTTP/1.1 200"));

    // A bad token makes nobody known.
    let mut unknown = TcpStream::connect(served.address()).await.unwrap();
    assert!(ask(&mut unknown, &request("/api/v1/info", "pf_0")).await.unwrap().starts_with("HTTP/1.1 401"));
    let _more = hostile(&served, &[Ipv4Addr::LOCALHOST]).await;
    closed(unknown).await;
    served.coordinator.shutdown().await;
}

#[tokio::test]
async fn a_token_has_its_share_of_connections_and_others_have_theirs() {
    let served = small().await;
    let (greedy, modest) = (token(&served, "greedy", "submit").await, token(&served, "modest", "submit").await);
    // Requests whose bodies do not come yet.
    let begun = |token: &str| {
        format!(
            "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
        )
    };
    let mut held = Vec::new();
    for _ in 0..PLACES().known_of_one_token {
        let mut stream = TcpStream::connect(served.address()).await.unwrap();
        let answer = ask(&mut stream, &begun(&greedy)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 100"), "{answer}");
        held.push(stream);
    }
    let mut more = TcpStream::connect(served.address()).await.unwrap();
    let answer = ask(&mut more, &request("/api/v1/info", &greedy)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 507"), "{answer}");
    let mut other = TcpStream::connect(served.address()).await.unwrap();
    let answer = ask(&mut other, &request("/api/v1/info", &modest)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // One of its own that has nothing to do makes room.
    drop(held.pop());
    loop {
        let mut again = TcpStream::connect(served.address()).await.unwrap();
        if ask(&mut again, &request("/api/v1/info", &greedy)).await.unwrap().starts_with("HTTP/1.1 200") {
            break;
        }
        tokio::task::yield_now().await;
    }
    served.coordinator.shutdown().await;
}

#[tokio::test]
async fn whatever_brings_no_whole_request_in_time_is_closed() {
    let served = hasty().await;
    let connect = || async { TcpStream::connect(served.address()).await.unwrap() };
    closed(connect().await).await;

    let mut one_byte = connect().await;
    one_byte.write_all(b"P").await.unwrap();
    closed(one_byte).await;

    // Headers that come byte by byte, without an end.
    let (reader, mut writer) = connect().await.into_split();
    let trickle = tokio::spawn(async move {
        let begun = writer.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ").await;
        while begun.is_ok() && writer.write_all(b"x").await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    });
    closed(reader).await;
    trickle.abort();

    // HTTP/2 that begins and then asks nothing: preface and an empty SETTINGS frame.
    let mut http2 = connect().await;
    http2.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    closed(http2).await;
    let mut preface = connect().await;
    preface.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    closed(preface).await;

    assert_eq!(served.get("/api/v1/info").await.status, 200);
    served.coordinator.shutdown().await;
}

#[tokio::test]
async fn a_form_without_an_end_is_ended_over_http1_and_http2() {
    let served = hasty().await;
    let mut stream = TcpStream::connect(served.address()).await.unwrap();
    let head = "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n\
                Content-Length: 1000\r\n\r\ntoken=";
    let answer = ask(&mut stream, head).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    closed(stream).await;

    let (pieces, body) = tokio::sync::mpsc::channel::<io::Result<hyper::body::Frame<bytes::Bytes>>>(1);
    let body = http_body_util::StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(body));
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new());
    let client: hyper_util::client::legacy::Client<_, _> = { client }.http2_only(true).build_http();
    let post = served
        .stranger(http::Method::POST, "/login")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(body)
        .unwrap();
    let trickle = tokio::spawn(async move {
        while pieces.send(Ok(hyper::body::Frame::data(bytes::Bytes::from_static(b"a")))).await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    });
    let answer = timeout(DEADLINE, client.request(post)).await.expect("an answer in time").unwrap();
    assert_eq!(answer.status(), 400);
    trickle.abort();
    served.coordinator.shutdown().await;
}

#[tokio::test]
async fn a_form_that_is_too_large_is_refused() {
    let served = small().await;
    let form = served
        .stranger(http::Method::POST, "/login")
        .header("content-type", "application/x-www-form-urlencoded")
        .header("origin", format!("http://{}", served.address()));
    let answer = served.send(form, format!("token={}", "x".repeat(64 * 1024))).await;
    assert_eq!(answer.status, 413, "{}", answer.text());
    served.coordinator.shutdown().await;
}
