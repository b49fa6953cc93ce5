//! A coordinator on a folder and a port of its own, and a plain HTTP client for it.
#![allow(dead_code, reason = "every test binary uses another part of it")]

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, request, response::Parts};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use planforge_coordinator::server::{Coordinator, CoordinatorConfig};
use serde_json::Value;
use std::{fs, net::SocketAddr, time::Duration};
use tempfile::TempDir;

/// Long enough for a loaded machine; a test that waits this long has failed.
pub const DEADLINE: Duration = Duration::from_secs(30);

pub struct Served {
    pub coordinator: Coordinator,
    pub folder: TempDir,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Checks that this is a problem document of that status and code, and returns it.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!((problem["status"].as_u64(), problem["code"].as_str()), (Some(u64::from(status)), Some(code)));
        problem
    }
}

impl Served {
    /// On a loopback port.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(adjust: impl FnOnce(&mut CoordinatorConfig)) -> Self {
        let folder = TempDir::new().unwrap();
        let mut config = CoordinatorConfig::new(folder.path().join("data"));
        config.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        adjust(&mut config);
        Self::around(Coordinator::start(config).await.unwrap(), folder)
    }

    /// A coordinator that was started elsewhere.
    pub fn around(coordinator: Coordinator, folder: TempDir) -> Self {
        Self { coordinator, folder, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    pub fn address(&self) -> SocketAddr {
        self.coordinator.address().unwrap()
    }

    pub fn admin_token(&self) -> String {
        fs::read_to_string(self.folder.path().join("data/admin.token")).unwrap().trim().to_owned()
    }

    /// A request of the administrator.
    pub fn request(&self, method: Method, path: &str) -> request::Builder {
        self.stranger(method, path).header("authorization", format!("Bearer {}", self.admin_token()))
    }

    /// A request that shows nothing of who sends it.
    pub fn stranger(&self, method: Method, path: &str) -> request::Builder {
        Request::builder().method(method).uri(format!("http://{}{path}", self.address()))
    }

    /// Sends a request and gives the answer's head at once, its body as it comes.
    pub async fn open(&self, request: request::Builder, body: impl Into<Bytes>) -> (Parts, hyper::body::Incoming) {
        let request = request.body(Full::new(body.into())).unwrap();
        let answer = tokio::time::timeout(DEADLINE, self.client.request(request)).await.expect("an answer in time");
        answer.unwrap().into_parts()
    }

    pub async fn send(&self, request: request::Builder, body: impl Into<Bytes>) -> Answer {
        let (head, body) = self.open(request, body).await;
        let body = tokio::time::timeout(DEADLINE, body.collect()).await.expect("a body in time").unwrap().to_bytes();
        Answer { status: head.status, headers: head.headers, body }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path), "").await
    }

    /// A POST over HTTP/2 with the content type of gRPC and an empty message, of somebody without a token.
    pub async fn grpc(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.grpc_of(path, headers, &[]).await
    }

    /// The same with a message, of less than 256 bytes.
    pub async fn grpc_of(&self, path: &str, headers: &[(&str, &str)], message: &[u8]) -> Answer {
        let mut request = self.stranger(Method::POST, path);
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let client: Client<HttpConnector, Full<Bytes>> =
            Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        let length = u8::try_from(message.len()).unwrap();
        let framed = [&[0, 0, 0, 0, length], message].concat();
        let request = request.body(Full::new(Bytes::from(framed))).unwrap();
        let answer = tokio::time::timeout(DEADLINE, client.request(request)).await.expect("an answer in time");
        let (head, body) = answer.unwrap().into_parts();
        let body = tokio::time::timeout(DEADLINE, body.collect()).await.expect("a body in time").unwrap().to_bytes();
        Answer { status: head.status, headers: head.headers, body }
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        self.send(request, body.to_string()).await
    }
}

/// Service and name of every gRPC method of the contract, read from the contract itself.
pub fn rpc_methods() -> Vec<(String, String)> {
    let texts = [
        include_str!("../../../proto/planforge/v1/farm.proto"),
        include_str!("../../../proto/planforge/v1/fleet.proto"),
    ];
    let mut methods = Vec::new();
    for text in texts {
        let mut service = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("service ") {
                service = format!("planforge.v1.{}", rest.trim_end_matches(['{', ' ']));
            } else if let Some(rest) = line.strip_prefix("rpc ") {
                let name = rest.split('(').next().unwrap_or_default();
                methods.push((service.clone(), name.to_owned()));
            }
        }
    }
    assert!(methods.len() > 15, "{methods:?}");
    methods
}
