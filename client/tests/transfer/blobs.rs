use crate::server::{Store, proxy};
use bytes::Bytes;
use planforge_client::{BlobError, Blobs, Endpoint, blobs::Retries};
use planforge_types::Digest;
use std::{net::SocketAddr, path::Path, time::Duration};

/// Long enough for several pieces on either side.
const BLOB_BYTES: usize = 1_400_001;

fn blobs(address: SocketAddr) -> Blobs {
    let endpoint = Endpoint::Http { host: address.ip().to_string(), port: address.port() };
    let quick = Retries { idle_tries: 12, first: Duration::from_millis(1), longest: Duration::from_millis(20) };
    Blobs::new(&endpoint, None).unwrap().with_retries(quick)
}

fn some_bytes(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..BLOB_BYTES).map(|_| next()).collect()
}

fn names(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

/// Positions around the beginning, every piece's boundary and the end of a transfer.
fn cut_positions() -> Vec<u64> {
    let boundaries = [0, 100, 300, 512 << 10, 1 << 20, BLOB_BYTES as u64, BLOB_BYTES as u64 + 250];
    boundaries.iter().flat_map(|at: &u64| [at.saturating_sub(1), *at, at + 1]).collect()
}

#[tokio::test]
async fn an_upload_cut_anywhere_is_continued() {
    let store = Store::default();
    let server = store.serve().await;
    let folder = tempfile::tempdir().unwrap();
    for (seed, cut) in cut_positions().into_iter().enumerate() {
        let bytes = some_bytes(seed as u64);
        let digest = Digest::of(&bytes);
        let path = folder.path().join("file");
        std::fs::write(&path, &bytes).unwrap();
        // Every one of the first connections is cut: towards the server, towards the client, and both soon.
        let through = proxy(server, [(cut, u64::MAX), (u64::MAX, 10), (cut / 2, u64::MAX), (cut, 90)]).await;
        blobs(through).upload(&path, digest).await.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert_eq!(store.get(digest).as_deref(), Some(bytes.as_slice()), "cut at {cut}");
    }
}

#[tokio::test]
async fn a_cut_upload_continues_where_it_stopped() {
    let store = Store::default();
    let server = store.serve().await;
    let bytes = some_bytes(1);
    let digest = Digest::of(&bytes);
    let through = proxy(server, [(1 << 20, u64::MAX)]).await;
    assert_eq!(blobs(through).put_bytes(Bytes::from(bytes)).await.unwrap(), digest);
    assert_eq!(store.opened(), 1, "one upload, continued, not begun again");
}

#[tokio::test]
async fn an_upload_that_is_known_no_more_is_begun_anew_and_never_told_as_missing() {
    let store = Store::default();
    let client = blobs(store.serve().await);
    let bytes = Bytes::from(some_bytes(2));
    let digest = Digest::of(&bytes);
    store.forget(5);
    assert_eq!(client.put_bytes(bytes.clone()).await.unwrap(), digest);
    assert_eq!((store.opened(), store.get(digest)), (6, Some(bytes.to_vec())));
    // Where that goes on for longer than it tries, whoever asked for it may try again.
    store.remove(digest);
    store.forget(u64::MAX);
    let error = client.put_bytes(bytes.clone()).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("knows this upload no more"), "{error}");
    assert_eq!(planforge_proto::ApiError::from(error).code, planforge_proto::ErrorCode::Unavailable);
    store.forget(0);
    assert_eq!(client.put_bytes(bytes).await.unwrap(), digest);
}

#[tokio::test]
async fn a_download_cut_anywhere_is_continued() {
    let store = Store::default();
    let server = store.serve().await;
    let bytes = some_bytes(7);
    let digest = Digest::of(&bytes);
    store.put(digest, &bytes);
    for cut in cut_positions() {
        let folder = tempfile::tempdir().unwrap();
        let dest = folder.path().join("plan");
        let through = proxy(server, [(u64::MAX, cut), (5, u64::MAX), (u64::MAX, cut / 2)]).await;
        let size = blobs(through).download(digest, &dest).await.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert_eq!(size, BLOB_BYTES as u64);
        assert!(std::fs::read(&dest).unwrap() == bytes, "cut at {cut}");
        assert_eq!(names(folder.path()), ["plan"], "cut at {cut}");
    }
    assert!(store.ranges().iter().any(|start| *start > 1 << 19), "it continued: {:?}", store.ranges());
}

#[tokio::test]
async fn another_process_continues_a_download() {
    let store = Store::default();
    let server = store.serve().await;
    let bytes = some_bytes(3);
    let digest = Digest::of(&bytes);
    store.put(digest, &bytes);
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("plan");
    let once = Retries { idle_tries: 1, first: Duration::ZERO, longest: Duration::ZERO };
    // Cut twice: the first try moves bytes and is followed by another, which moves none.
    let through = proxy(server, [(u64::MAX, 900_000), (0, 0)]).await;
    let error = blobs(through).with_retries(once).download(digest, &dest).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(!dest.exists());
    assert_eq!(names(folder.path()).len(), 1, "the part stays");
    blobs(server).download(digest, &dest).await.unwrap();
    assert!(std::fs::read(&dest).unwrap() == bytes);
    assert!(store.ranges().iter().all(|start| *start > 500_000), "{:?}", store.ranges());
}

#[tokio::test]
async fn wrong_bytes_never_become_a_file() {
    let store = Store::default();
    let client = blobs(store.serve().await);
    let digest = Digest::of(b"what was asked for");
    store.put(digest, b"what was stored");
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("plan");
    std::fs::write(&dest, "the old one").unwrap();
    let error = client.download(digest, &dest).await.unwrap_err();
    assert!(
        matches!(error, BlobError::WrongDigest { actual, .. } if actual == Digest::of(b"what was stored")),
        "{error}"
    );
    assert_eq!(std::fs::read(&dest).unwrap(), b"the old one");
    assert_eq!(names(folder.path()), ["plan"]);
    assert!(matches!(client.get_bytes(digest, 100).await, Err(BlobError::WrongDigest { .. })));
}

#[tokio::test]
async fn a_damaged_part_is_fetched_again() {
    let store = Store::default();
    let client = blobs(store.serve().await);
    let bytes = some_bytes(9);
    let digest = Digest::of(&bytes);
    store.put(digest, &bytes);
    for left in [b"not the beginning".to_vec(), [bytes.clone(), b"too long".to_vec()].concat()] {
        let folder = tempfile::tempdir().unwrap();
        let dest = folder.path().join("plan");
        std::fs::write(folder.path().join(format!(".plan.{}.part", digest.short())), left).unwrap();
        client.download(digest, &dest).await.unwrap();
        assert!(std::fs::read(&dest).unwrap() == bytes);
        assert_eq!(names(folder.path()), ["plan"]);
    }
}

#[tokio::test]
async fn two_downloads_to_one_place_both_succeed() {
    let store = Store::default();
    let client = blobs(store.serve().await);
    let bytes = some_bytes(11);
    let digest = Digest::of(&bytes);
    store.put(digest, &bytes);
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("plan");
    let (one, two) = tokio::join!(client.download(digest, &dest), client.download(digest, &dest));
    assert_eq!((one.unwrap(), two.unwrap()), (BLOB_BYTES as u64, BLOB_BYTES as u64));
    assert!(std::fs::read(&dest).unwrap() == bytes);
    assert_eq!(names(folder.path()), ["plan"]);
}

#[tokio::test]
async fn refusals_say_what_happened() {
    let store = Store::default();
    let client = blobs(store.serve().await);
    let missing = Digest::of(b"missing");
    assert_eq!(client.size(missing).await.unwrap(), None);
    let error = client.get_bytes(missing, 10).await.unwrap_err();
    assert!(matches!(error, BlobError::NotFound { .. }) && error.to_string().contains(&missing.to_string()), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, "changed meanwhile").unwrap();
    let error = client.upload(&path, Digest::of(b"as it was")).await.unwrap_err();
    assert!(matches!(error, BlobError::UploadMismatch { .. }), "{error}");
    assert_eq!(store.get(Digest::of(b"as it was")), None);

    let stored = client.put_bytes(Bytes::from_static(b"stored")).await.unwrap();
    assert_eq!(client.size(stored).await.unwrap(), Some(6));
    assert_eq!(client.get_bytes(stored, 6).await.unwrap(), "stored");
    assert!(matches!(client.get_bytes(stored, 5).await, Err(BlobError::TooLarge { limit_bytes: 5, .. })));
    let empty = client.put_bytes(Bytes::new()).await.unwrap();
    client.download(empty, &path).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"");

    store.set_full(true);
    let error = client.put_bytes(Bytes::from_static(b"more")).await.unwrap_err();
    assert!(error.is_no_room(), "{error}");
    assert_eq!(store.refused(), 1, "whether to wait is the caller's business");
    let error = planforge_proto::ApiError::from(error);
    assert_eq!((error.code, error.hint.as_str()), (planforge_proto::ErrorCode::ResourceExhausted, "free some"));
    store.remove(stored);
}
