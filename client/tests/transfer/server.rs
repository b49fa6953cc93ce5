//! A blob server in memory, and a proxy that cuts connections where a test says.

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{head, post},
};
use planforge_types::Digest;
use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_stream::StreamExt as _;

#[derive(Clone, Default)]
pub struct Store {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    blobs: HashMap<String, Vec<u8>>,
    /// Digest, size and bytes so far, by upload id.
    uploads: HashMap<String, (String, u64, Vec<u8>)>,
    opened: u64,
    /// Starts of the ranges that were asked for.
    ranges: Vec<u64>,
    full: bool,
    refused: u64,
    /// An upload of this digest is never answered.
    stuck: Option<String>,
    /// Such uploads that were asked for.
    stuck_asked: u64,
    /// Uploads that are opened from now on and known no more afterwards, as where another coordinator leads then.
    forgets: u64,
}

#[derive(serde::Deserialize)]
struct Open {
    digest: String,
    size_bytes: u64,
}

impl Store {
    pub fn put(&self, name: Digest, bytes: &[u8]) {
        self.inner.lock().unwrap().blobs.insert(name.to_string(), bytes.to_vec());
    }

    pub fn get(&self, name: Digest) -> Option<Vec<u8>> {
        self.inner.lock().unwrap().blobs.get(&name.to_string()).cloned()
    }

    pub fn remove(&self, name: Digest) {
        self.inner.lock().unwrap().blobs.remove(&name.to_string());
    }

    pub fn set_full(&self, full: bool) {
        self.inner.lock().unwrap().full = full;
    }

    /// Uploads of `name` hang from now on.
    pub fn hang(&self, name: Digest) {
        self.inner.lock().unwrap().stuck = Some(name.to_string());
    }

    /// The next uploads are forgotten once they are opened.
    pub fn forget(&self, uploads: u64) {
        self.inner.lock().unwrap().forgets = uploads;
    }

    /// Uploads that hang.
    pub fn hanging(&self) -> u64 {
        self.inner.lock().unwrap().stuck_asked
    }

    /// Uploads that were refused for want of room.
    pub fn refused(&self) -> u64 {
        self.inner.lock().unwrap().refused
    }

    pub fn opened(&self) -> u64 {
        self.inner.lock().unwrap().opened
    }

    pub fn ranges(&self) -> Vec<u64> {
        self.inner.lock().unwrap().ranges.clone()
    }

    pub fn router(&self) -> Router {
        Router::new()
            .route("/v1/blobs/sha256/{digest}", axum::routing::get(get_blob))
            .route("/v1/uploads", post(open))
            .route("/v1/uploads/{id}", head(offset).patch(append))
            .with_state(self.clone())
    }

    pub async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = self.router();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        address
    }
}

async fn get_blob(State(store): State<Store>, Path(digest): Path<String>, headers: HeaderMap) -> Response {
    let mut inner = store.inner.lock().unwrap();
    let Some(bytes) = inner.blobs.get(&digest).cloned() else { return StatusCode::NOT_FOUND.into_response() };
    let etag = format!("\"sha256:{digest}\"");
    let range = headers.get("range").map(|range| {
        assert_eq!(headers["if-range"].to_str().unwrap(), etag);
        let start = range.to_str().unwrap().strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap();
        start.parse::<usize>().unwrap()
    });
    let size = bytes.len();
    match range {
        None => ([("etag", etag)], bytes).into_response(),
        Some(start) if start >= size => StatusCode::RANGE_NOT_SATISFIABLE.into_response(),
        Some(start) => {
            inner.ranges.push(start as u64);
            let content_range = format!("bytes {start}-{}/{size}", size - 1);
            let headers = [("etag", etag), ("content-range", content_range)];
            (StatusCode::PARTIAL_CONTENT, headers, bytes[start..].to_vec()).into_response()
        }
    }
}

async fn open(State(store): State<Store>, Json(order): Json<Open>) -> Response {
    let stuck = {
        let mut inner = store.inner.lock().unwrap();
        let stuck = inner.stuck.as_ref() == Some(&order.digest);
        inner.stuck_asked += u64::from(stuck);
        stuck
    };
    if stuck {
        std::future::pending::<()>().await;
    }
    let mut inner = store.inner.lock().unwrap();
    if inner.full {
        inner.refused += 1;
        return (
            StatusCode::INSUFFICIENT_STORAGE,
            Json(serde_json::json!({"message": "0 bytes left", "hint": "free some"})),
        )
            .into_response();
    }
    if inner.blobs.contains_key(&order.digest) {
        return Json(serde_json::json!({"state": "exists"})).into_response();
    }
    inner.opened += 1;
    let id = format!("u{}", inner.opened);
    match inner.forgets.checked_sub(1) {
        Some(left) => inner.forgets = left,
        None => drop(inner.uploads.insert(id.clone(), (order.digest, order.size_bytes, Vec::new()))),
    }
    let headers = [("location", format!("/v1/uploads/{id}")), ("upload-offset", "0".into())];
    (StatusCode::CREATED, headers, Json(serde_json::json!({"state": "open"}))).into_response()
}

async fn offset(State(store): State<Store>, Path(id): Path<String>) -> Response {
    let inner = store.inner.lock().unwrap();
    match inner.uploads.get(&id) {
        None => StatusCode::NOT_FOUND.into_response(),
        Some((_, _, bytes)) => (StatusCode::NO_CONTENT, [("upload-offset", bytes.len().to_string())]).into_response(),
    }
}

async fn append(State(store): State<Store>, Path(id): Path<String>, headers: HeaderMap, body: Body) -> Response {
    assert_eq!(headers["content-type"], "application/partial-upload");
    let given: usize = headers["upload-offset"].to_str().unwrap().parse().unwrap();
    {
        let inner = store.inner.lock().unwrap();
        let Some((_, _, bytes)) = inner.uploads.get(&id) else { return StatusCode::NOT_FOUND.into_response() };
        if bytes.len() != given {
            return (StatusCode::CONFLICT, [("upload-offset", bytes.len().to_string())]).into_response();
        }
    }
    let mut stream = body.into_data_stream();
    while let Some(piece) = stream.next().await {
        let Ok(piece) = piece else { return StatusCode::BAD_REQUEST.into_response() };
        store.inner.lock().unwrap().uploads.get_mut(&id).unwrap().2.extend_from_slice(&piece);
    }
    assert_eq!(headers["upload-complete"], "?1");
    let mut inner = store.inner.lock().unwrap();
    let (digest, size, bytes) = inner.uploads.remove(&id).unwrap();
    if bytes.len() as u64 != size || Digest::of(&bytes).to_string() != digest {
        return (StatusCode::UNPROCESSABLE_ENTITY, Json(serde_json::json!({"message": "bytes differ"})))
            .into_response();
    }
    inner.blobs.insert(digest, bytes);
    StatusCode::CREATED.into_response()
}

/// Bytes that a connection lets through before it is cut: (towards the server, towards the client).
pub type Cut = (u64, u64);

/// Forwards connections to `target`; each takes the next cut, and none when there is none left.
pub async fn proxy(target: SocketAddr, cuts: impl IntoIterator<Item = Cut>) -> SocketAddr {
    let cuts = Arc::new(Mutex::new(cuts.into_iter().collect::<VecDeque<_>>()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let (up, down) = cuts.lock().unwrap().pop_front().unwrap_or((u64::MAX, u64::MAX));
            let server = TcpStream::connect(target).await.unwrap();
            let (client_read, client_write) = client.into_split();
            let (server_read, server_write) = server.into_split();
            tokio::spawn(async move {
                tokio::select! {
                    () = forward(client_read, server_write, up) => {}
                    () = forward(server_read, client_write, down) => {}
                }
            });
        }
    });
    address
}

/// Copies until the end or the limit; whoever returns first cuts both directions.
async fn forward(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    mut limit: u64,
) {
    let mut buffer = vec![0; 64 << 10];
    while limit > 0 {
        let room = buffer.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
        let Ok(read @ 1..) = from.read(&mut buffer[..room]).await else { return };
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        limit -= read as u64;
    }
}
