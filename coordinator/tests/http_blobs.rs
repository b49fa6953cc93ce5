//! Blobs as clients see them: over HTTP, with cut connections, wrong bytes and full quotas.

mod served;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::Method;
use planforge_coordinator::blobs::Blobs;
use planforge_types::Digest;
use serde_json::json;
use served::{Answer, DEADLINE, Served};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

fn some_bytes(length: usize) -> Bytes {
    (0..length).map(|i| (i * 11 + i / 253) as u8).collect::<Vec<_>>().into()
}

async fn begin(served: &Served, digest: Digest, size: usize) -> String {
    let answer = served.post("/v1/uploads", json!({ "digest": digest, "size_bytes": size })).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    assert_eq!(answer.header("upload-offset"), "0");
    answer.header("location").to_owned()
}

async fn patch(served: &Served, upload: &str, offset: usize, complete: bool, bytes: Bytes) -> Answer {
    let request = served
        .request(Method::PATCH, upload)
        .header("content-type", "application/partial-upload")
        .header("upload-offset", offset)
        .header("upload-complete", if complete { "?1" } else { "?0" });
    served.send(request, bytes).await
}

async fn upload(served: &Served, bytes: &Bytes) -> Digest {
    let digest = Digest::of(bytes);
    let location = begin(served, digest, bytes.len()).await;
    let answer = patch(served, &location, 0, true, bytes.clone()).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    digest
}

#[tokio::test]
async fn what_was_uploaded_comes_back_with_its_digest() {
    let served = Served::start().await;
    let bytes = some_bytes(1_500_000);
    let digest = upload(&served, &bytes).await;
    let answer = served.get(&format!("/v1/blobs/sha256/{digest}")).await;
    assert_eq!((answer.status.as_u16(), &answer.body), (200, &bytes));
    assert_eq!(answer.header("etag"), format!("\"sha256:{digest}\""));
    assert_eq!(answer.header("repr-digest"), format!("sha-256=:{}:", STANDARD.encode(digest.as_raw())));
    assert_eq!(answer.header("accept-ranges"), "bytes");
    assert_eq!(answer.header("content-length"), "1500000");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    assert!(answer.header("cache-control").contains("immutable"));

    let head = served.send(served.request(Method::HEAD, &format!("/v1/blobs/sha256/{digest}")), "").await;
    assert_eq!((head.status.as_u16(), head.body.len(), head.header("content-length")), (200, 0, "1500000"));
    let again = served.post("/v1/uploads", json!({ "digest": digest, "size_bytes": bytes.len() })).await;
    assert_eq!((again.status.as_u16(), again.json()["state"].as_str()), (200, Some("exists")));
}

#[tokio::test]
async fn ranges_and_conditions_follow_the_standard() {
    let served = Served::start().await;
    let bytes = some_bytes(1000);
    let digest = upload(&served, &bytes).await;
    let path = format!("/v1/blobs/sha256/{digest}");
    let etag = format!("\"sha256:{digest}\"");
    let with = |name: &'static str, value: &str| served.request(Method::GET, &path).header(name, value);

    let part = served.send(with("range", "bytes=100-199"), "").await;
    assert_eq!((part.status.as_u16(), &part.body[..]), (206, &bytes[100..200]));
    assert_eq!(part.header("content-range"), "bytes 100-199/1000");
    assert_eq!(part.header("content-length"), "100");
    let tail = served.send(with("range", "bytes=-10"), "").await;
    assert_eq!((tail.status.as_u16(), &tail.body[..]), (206, &bytes[990..]));
    let beyond = served.send(with("range", "bytes=1000-"), "").await;
    beyond.problem(416, "invalid-argument");
    assert_eq!(beyond.header("content-range"), "bytes */1000");
    let several = served.send(with("range", "bytes=0-1,5-6"), "").await;
    assert_eq!((several.status.as_u16(), several.body.len()), (200, 1000));

    let same = served.send(with("if-range", &etag).header("range", "bytes=1-1"), "").await;
    assert_eq!(same.status, 206);
    let other = served.send(with("if-range", "\"sha256:0\"").header("range", "bytes=1-1"), "").await;
    assert_eq!((other.status.as_u16(), other.body.len()), (200, 1000));
    let known = served.send(with("if-none-match", &format!("\"x\", W/{etag}")), "").await;
    assert_eq!((known.status.as_u16(), known.body.len()), (304, 0));
    let unknown = served.send(with("if-none-match", "\"x\""), "").await;
    assert_eq!(unknown.status, 200);
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_with_a_code() {
    let served = Served::start().await;
    let missing = Digest::of(b"never stored");
    served.get(&format!("/v1/blobs/sha256/{missing}")).await.problem(404, "not-found");
    served.get("/v1/blobs/sha256/xyz").await.problem(400, "invalid-argument");
    patch(&served, "/v1/uploads/00000000000000000000000000000000", 0, true, some_bytes(1))
        .await
        .problem(404, "not-found");
    served.post("/v1/uploads", json!({ "digest": missing })).await.problem(400, "invalid-argument");
    served.post("/v1/uploads", json!({ "digest": "abc", "size_bytes": 1 })).await.problem(400, "invalid-argument");
    let location = begin(&served, missing, 5).await;
    let untyped = served.request(Method::PATCH, &location).header("upload-offset", 0);
    served.send(untyped, "12345").await.problem(415, "invalid-argument");
    let form = served.request(Method::POST, "/v1/uploads").header("content-type", "text/plain");
    served.send(form, "{}").await.problem(415, "invalid-argument");
}

#[tokio::test]
async fn wrong_offset_digest_or_size_is_refused_and_nothing_shows() {
    let served = Served::start().await;
    let bytes = some_bytes(10_000);
    let digest = Digest::of(&bytes);
    let blob = format!("/v1/blobs/sha256/{digest}");

    let location = begin(&served, digest, bytes.len()).await;
    let early = patch(&served, &location, 5, false, bytes.slice(5..10)).await;
    early.problem(409, "conflict");
    assert_eq!(early.header("upload-offset"), "0");
    let mut wrong = bytes.to_vec();
    wrong[77] ^= 1;
    let refused = patch(&served, &location, 0, true, wrong.into()).await.problem(422, "refused");
    assert!(refused["hint"].as_str().unwrap().contains("upload it again"));
    served.get(&blob).await.problem(404, "not-found");
    let gone = served.send(served.request(Method::HEAD, &location), "").await;
    assert_eq!(gone.status, 404);

    let short = begin(&served, digest, bytes.len() + 1).await;
    patch(&served, &short, 0, true, bytes.clone()).await.problem(422, "refused");
    let long = begin(&served, digest, bytes.len() - 1).await;
    patch(&served, &long, 0, true, bytes.clone()).await.problem(422, "refused");
    served.get(&blob).await.problem(404, "not-found");
}

/// Sends the head of a PATCH that promises everything, then `send` bytes of it, and breaks the connection off.
async fn cut_patch(served: &Served, upload: &str, bytes: &Bytes, send: usize) {
    let mut stream = TcpStream::connect(served.address()).await.unwrap();
    let head = format!(
        "PATCH {upload} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/partial-upload\r\nUpload-Offset: 0\r\n\
         Upload-Complete: ?1\r\nContent-Length: {}\r\n\r\n",
        served.admin_token(),
        bytes.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&bytes[..send]).await.unwrap();
    stream.shutdown().await.unwrap();
    // The server has noticed once it answers or closes too.
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut Vec::new())).await.expect("the server lets go");
}

#[tokio::test]
async fn connections_cut_around_chunk_boundaries_resume_where_they_stopped() {
    let served = Served::start().await;
    let chunk = 64 * 1024;
    for boundary in [1, chunk, 2 * chunk, 3 * chunk] {
        for at in [boundary - 1, boundary, boundary + 1] {
            let bytes = Bytes::from([&some_bytes(4 * chunk)[..], format!("{at}").as_bytes()].concat());
            let digest = Digest::of(&bytes);
            let location = begin(&served, digest, bytes.len()).await;
            cut_patch(&served, &location, &bytes, at).await;
            let offset = settled_offset(&served, &location, at).await;
            assert_eq!(offset, at, "every byte that was sent before the cut is kept");
            served.get(&format!("/v1/blobs/sha256/{digest}")).await.problem(404, "not-found");
            let answer = patch(&served, &location, at, true, bytes.slice(at..)).await;
            assert_eq!(answer.status, 201, "{}", answer.text());
            assert_eq!(served.get(&format!("/v1/blobs/sha256/{digest}")).await.body, bytes);
        }
    }
}

/// Asks for the offset until it is `expected` or the deadline passes; the last bytes may still be on their way to disk.
async fn settled_offset(served: &Served, upload: &str, expected: usize) -> usize {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let answer = served.send(served.request(Method::HEAD, upload), "").await;
        assert_eq!(answer.status, 204);
        let offset = answer.header("upload-offset").parse().unwrap();
        if offset == expected || tokio::time::Instant::now() > deadline {
            return offset;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn concurrent_uploads_of_one_digest_over_http_all_succeed() {
    let served = Served::start().await;
    let bytes = some_bytes(700_000);
    let digest = Digest::of(&bytes);
    let uploads = (0..6).map(|_| async {
        let answer = served.post("/v1/uploads", json!({ "digest": digest, "size_bytes": bytes.len() })).await;
        if answer.status == 201 {
            let done = patch(&served, answer.header("location"), 0, true, bytes.clone()).await;
            assert_eq!(done.status, 201, "{}", done.text());
        }
    });
    futures::future::join_all(uploads).await;
    assert_eq!(served.get(&format!("/v1/blobs/sha256/{digest}")).await.body, bytes);
}

#[tokio::test]
async fn a_full_quota_is_507_and_leaves_nothing() {
    let served = Served::start_with(|config| config.blobs.max_bytes = Some(1000)).await;
    upload(&served, &some_bytes(600)).await;
    let answer = served.post("/v1/uploads", json!({ "digest": Digest::of(b"big"), "size_bytes": 500 })).await;
    let problem = answer.problem(507, "resource-exhausted");
    assert!(problem["detail"].as_str().unwrap().contains("400 bytes are available"), "{problem}");
    assert!(problem["hint"].as_str().unwrap().contains("quota"));
}

#[tokio::test]
async fn a_damaged_blob_is_found_by_verify_and_by_reading() {
    let served = Served::start().await;
    let digest = upload(&served, &some_bytes(5000)).await;
    let verify = format!("/api/v1/blobs/{digest}/verify");
    assert_eq!(served.post(&verify, json!({})).await.json()["state"], "intact");
    let Blobs::Folder(folder) = served.coordinator.blobs() else { panic!("blobs lie in a folder") };
    let path = folder.path(digest);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4999] ^= 0x80;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    served.get(&format!("/v1/blobs/sha256/{digest}")).await.problem(410, "gone");
    let problem = served.get(&format!("/v1/blobs/sha256/{digest}")).await.problem(410, "gone");
    assert!(problem["hint"].as_str().unwrap().contains("planforge submit"), "{problem}");
    let report = served.post("/api/v1/blobs/scrub", json!({})).await.json();
    assert_eq!(report, json!({ "blobs": 0, "bytes": 0, "corrupt": [] }));
}

#[tokio::test]
async fn an_upload_can_be_given_up() {
    let served = Served::start().await;
    let location = begin(&served, Digest::of(b"x"), 1).await;
    let answer = served.send(served.request(Method::DELETE, &location), "").await;
    assert_eq!(answer.status, 204);
    let gone = served.send(served.request(Method::HEAD, &location), "").await;
    assert_eq!(gone.status, 404);
}
