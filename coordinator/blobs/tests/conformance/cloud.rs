//! What only a store in a cloud can do wrong, and how that is told and survived.

use crate::place::{at, begin, cut, options, read, some_bytes, whole};
use planforge_blobs::{BlobError, Blobs, CloudBlobs, CloudBlobsOptions, MemoryNotes, Notes as _, Trouble, blob_path};
use planforge_proto::ErrorCode;
use planforge_s3_server::{BUCKET, Fault, KEY_ID, Proxy, S3Server, close, keys_text};
use planforge_types::Digest;
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};
use tempfile::TempDir;

async fn open(options: CloudBlobsOptions) -> Result<Blobs, BlobError> {
    CloudBlobs::open(options, "the farm", Arc::new(MemoryNotes::default())).await.map(Blobs::from)
}

/// What is wrong with the store, as the error says it.
fn trouble(error: BlobError) -> Trouble {
    let words = error.to_string();
    match error {
        BlobError::Store { trouble, .. } => trouble,
        _ => panic!("{words}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_is_refused_in_words_and_nothing_is_written() {
    let (server, folder) = (S3Server::start(), TempDir::new().unwrap());
    let with_keys = |id: &str, secret: &str| {
        let path = folder.path().join("other-keys");
        fs::write(&path, keys_text(id, secret)).unwrap();
        close(&path);
        let mut options = options(&server, folder.path());
        options.access.keys_file = Some(path);
        options
    };
    assert_eq!(trouble(open(with_keys("nobody", "x")).await.unwrap_err()), Trouble::WrongKeys);
    assert_eq!(trouble(open(with_keys(KEY_ID, "another secret")).await.unwrap_err()), Trouble::WrongKeys);

    let mut no_bucket = options(&server, folder.path());
    no_bucket.place = "s3://another/blobs".parse().unwrap();
    assert_eq!(trouble(open(no_bucket).await.unwrap_err()), Trouble::NoBucket);

    let away = at("http://127.0.0.1:9", &server, folder.path());
    let mut away = CloudBlobsOptions { ..away };
    away.access.patience = Duration::from_millis(200);
    assert!(matches!(trouble(open(away).await.unwrap_err()), Trouble::Away { .. }));

    let proxy = Proxy::before(server.address());
    proxy.decide(|_| Fault::Answered(403, "AccessDenied"));
    let refused = open(at(&proxy.endpoint(), &server, folder.path())).await.unwrap_err();
    assert_eq!(trouble(refused), Trouble::NoRights);
    proxy.decide(|_| Fault::Answered(403, "RequestTimeTooSkewed"));
    let skewed = open(at(&proxy.endpoint(), &server, folder.path())).await.unwrap_err();
    assert_eq!(trouble(skewed), Trouble::Clock);
    assert_eq!(server.keys(BUCKET), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_wrong_for_a_while_is_told_as_that_and_waited_for() {
    let (server, folder) = (S3Server::start(), TempDir::new().unwrap());
    let proxy = Proxy::before(server.address());
    let blobs = open(at(&proxy.endpoint(), &server, folder.path())).await.unwrap();
    let bytes = some_bytes(1_000);
    let digest = Digest::of(&bytes);
    let upload = begin(&blobs, digest, bytes.len()).await;
    // Asked by HEAD first, which is answered without a word.
    proxy.decide(|_| Fault::Answered(403, "RequestTimeTooSkewed"));
    let looked_up = blobs.find(digest).await.unwrap_err();
    assert_eq!((looked_up.code(), trouble(looked_up)), (ErrorCode::Unavailable, Trouble::Clock));
    let appended = blobs.append(&upload.id, 0, true, whole(&bytes)).await.unwrap_err();
    assert_eq!((appended.code(), trouble(appended)), (ErrorCode::Unavailable, Trouble::Clock));
    assert!(blobs.ready().is_err_and(|error| error.hint().contains("NTP")));
    proxy.decide(|_| Fault::Answered(403, "AccessDenied"));
    assert_eq!(trouble(blobs.find(digest).await.unwrap_err()), Trouble::NoRights);
    proxy.decide(|_| Fault::None);
    let stands = usize::try_from(blobs.upload_status(&upload.id).unwrap().offset).unwrap();
    blobs.append(&upload.id, stands as u64, true, whole(&bytes.slice(stands..))).await.unwrap();
    assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_is_of_one_farm_and_of_nobody_else() {
    let (server, folder) = (S3Server::start(), TempDir::new().unwrap());
    let strange = server.object(BUCKET, "blobs/photo.jpg");
    fs::create_dir_all(strange.parent().unwrap()).unwrap();
    fs::write(&strange, b"somebody's").unwrap();
    match open(options(&server, folder.path())).await {
        Err(BlobError::Foreign { key, .. }) => assert_eq!(key, "blobs/photo.jpg"),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.keys(BUCKET), ["blobs/photo.jpg"]);
    fs::remove_file(&strange).unwrap();

    open(options(&server, folder.path())).await.unwrap();
    open(options(&server, folder.path())).await.unwrap();
    let notes = Arc::new(MemoryNotes::default());
    match CloudBlobs::open(options(&server, folder.path()), "another", notes).await {
        Err(BlobError::OtherFarm { found, own, .. }) => assert_eq!((&*found, &*own), ("the farm", "another")),
        other => panic!("{other:?}"),
    }
    assert_eq!(options(&server, folder.path()).owner().await.unwrap().as_deref(), Some("the farm"));
    assert_eq!(server.keys(BUCKET), ["blobs/planforge-farm.json"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn throttling_and_cut_connections_are_waited_out() {
    let (server, folder) = (S3Server::start(), TempDir::new().unwrap());
    let proxy = Proxy::before(server.address());
    let blobs = open(at(&proxy.endpoint(), &server, folder.path())).await.unwrap();
    // Of three requests one is answered.
    proxy.decide(|seen| match seen.number % 3 {
        0 => Fault::Answered(503, "SlowDown"),
        1 => Fault::Refused,
        _ => Fault::None,
    });
    let bytes = some_bytes((8 << 20) + 5);
    let digest = Digest::of(&bytes);
    let upload = begin(&blobs, digest, bytes.len()).await;
    blobs.append(&upload.id, 0, true, whole(&bytes)).await.unwrap();
    assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
    assert!(proxy.seen().len() > 12, "{:?}", proxy.seen());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_is_told_and_uploads_go_on_when_it_is_back() {
    let (mut server, folder) = (S3Server::start(), TempDir::new().unwrap());
    let mut options = options(&server, folder.path());
    options.access.patience = Duration::from_millis(300);
    let blobs = open(options).await.unwrap();
    let bytes = some_bytes(20 << 20);
    let digest = Digest::of(&bytes);
    let upload = begin(&blobs, digest, bytes.len()).await;
    blobs.append(&upload.id, 0, false, whole(&bytes.slice(..(9 << 20)))).await.unwrap();
    server.stop();
    let error = blobs.append(&upload.id, 9 << 20, true, whole(&bytes.slice((9 << 20)..))).await.unwrap_err();
    assert!(matches!(trouble(error), Trouble::Away { .. }));
    assert!(blobs.ready().is_err());
    assert!(blobs.find(digest).await.is_err(), "nobody knows whether it is there");
    let stands = usize::try_from(blobs.upload_status(&upload.id).unwrap().offset).unwrap();
    assert_eq!(stands, 8 << 20, "behind the last part that the store has");
    server.start_again();
    blobs.append(&upload.id, stands as u64, true, whole(&bytes.slice(stands..))).await.unwrap();
    assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
    blobs.ready().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_acknowledgement_stores_a_blob_once_and_reads_it_back() {
    let (server, folder) = (S3Server::start(), TempDir::new().unwrap());
    let proxy = Proxy::before(server.address());
    let blobs = open(at(&proxy.endpoint(), &server, folder.path())).await.unwrap();
    let lost = Arc::new(AtomicUsize::new(0));
    let count = lost.clone();
    // The first answer to a completion, and to a whole object, is lost.
    proxy.decide(move |seen| {
        let completes = seen.method == "POST" && seen.target.contains("uploadId=");
        let puts = seen.method == "PUT" && !seen.target.contains("uploadId=");
        let bit = if completes { 1 } else { 2 };
        if (completes || puts) && count.fetch_or(bit, Ordering::SeqCst) & bit == 0 {
            Fault::AnswerLost
        } else {
            Fault::None
        }
    });
    for size in [(9 << 20) + 1, 5000] {
        let bytes = some_bytes(size);
        let digest = Digest::of(&bytes);
        let upload = begin(&blobs, digest, size).await;
        blobs.append(&upload.id, 0, true, whole(&bytes)).await.unwrap();
        assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
    }
    assert_eq!(lost.load(Ordering::SeqCst), 3);
    assert_eq!(server.keys(BUCKET).len(), 3, "two blobs and the marker");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_store_kept_wrongly_is_never_seen() {
    let (server, folder) = (S3Server::start(), TempDir::new().unwrap());
    let proxy = Proxy::before(server.address());
    let mut options = at(&proxy.endpoint(), &server, folder.path());
    options.read_back = true;
    let notes = Arc::new(MemoryNotes::default());
    let blobs: Blobs = CloudBlobs::open(options.clone(), "the farm", notes.clone()).await.unwrap().into();
    let bytes = some_bytes(5000);
    let digest = Digest::of(&bytes);
    let file = blob_path(&server.object(BUCKET, "blobs"), digest);
    // Damaged after it was written and before it is read back.
    let damaged = file.clone();
    proxy.decide(move |seen| {
        if seen.method == "GET" && damaged.exists() {
            fs::write(&damaged, b"other bytes").unwrap();
        }
        Fault::None
    });
    let error = blobs.store(bytes.clone()).await.unwrap_err();
    assert!(matches!(error, BlobError::NotKept { .. }), "{error}");
    assert_eq!((blobs.find(digest).await.unwrap(), file.exists()), (None, false));

    // It ends while the blob is written and not confirmed: whoever starts next looks.
    proxy.decide(|seen| if seen.method == "GET" { Fault::Answered(400, "Stopped") } else { Fault::None });
    blobs.store(bytes.clone()).await.unwrap_err();
    assert!(file.exists());
    assert_eq!(blobs.find(digest).await.unwrap(), None, "hidden until it is confirmed");
    drop(blobs);
    proxy.decide(|_| Fault::None);
    let again: Blobs = CloudBlobs::open(options, "the farm", notes.clone()).await.unwrap().into();
    assert_eq!(read(&again, digest).await.unwrap(), bytes);
    assert_eq!(notes.of_kind("unconfirmed").await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_announced_stays_and_what_is_old_goes() {
    let (server, folder) = (S3Server::start(), TempDir::new().unwrap());
    let notes = Arc::new(MemoryNotes::default());
    let open = || CloudBlobs::open(options(&server, folder.path()), "the farm", notes.clone());
    let blobs = open().await.unwrap();
    let (kept, gone) = (blobs.store("kept".into()).await.unwrap(), blobs.store("gone".into()).await.unwrap());
    let hour = Duration::from_secs(3600);
    for digest in [kept, gone] {
        assert_eq!(blobs.old_blobs(digest.as_raw()[0], SystemTime::now()).await.unwrap(), [], "just stored");
    }
    // An hour later, as far as sweeps know; one was announced then and still is, also by another process.
    let later = SystemTime::now() + hour;
    for digest in [kept, gone] {
        assert!(blobs.old_blobs(digest.as_raw()[0], later).await.unwrap().contains(&(digest, 4)));
    }
    assert_eq!(blobs.remove_old(gone, later).await.unwrap(), Some(4));
    assert_eq!(blobs.announce(kept).await.unwrap(), Some(4));
    drop(blobs);
    let blobs = open().await.unwrap();
    assert_eq!(blobs.remove_old(kept, SystemTime::now()).await.unwrap(), None);
    assert_eq!((blobs.find(kept).await.unwrap(), blobs.announce(gone).await.unwrap()), (Some(4), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_address_gives_its_range_and_nothing_else() {
    let (server, folder) = (S3Server::start(), TempDir::new().unwrap());
    let mut options = options(&server, folder.path());
    options.direct = Some(Duration::from_secs(60));
    let blobs = open(options).await.unwrap();
    let digest = blobs.store(some_bytes(5000)).await.unwrap();
    let (url, lasts) = blobs.direct(digest, 100..300).await.unwrap().unwrap();
    assert_eq!(lasts, Duration::from_secs(60));
    assert!(url.contains("X-Amz-Expires=60") && !url.contains("secret"), "{url}");
    let client = plain_client();
    let asked = |range: &'static str| client.get(&url).header("range", range).send();
    let given = asked("bytes=100-299").await.unwrap();
    assert_eq!(given.bytes().await.unwrap(), some_bytes(5000).slice(100..300));
    for refused in [asked("bytes=0-4999").await, client.get(&url).send().await, client.delete(&url).send().await] {
        assert!(refused.unwrap().status().is_client_error());
    }
    assert_eq!(blobs.direct(Digest::of(b"none"), 0..0).await.unwrap(), None);
}

pub fn plain_client() -> reqwest::Client {
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = tokio_rustls::rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(tokio_rustls::rustls::RootCertStore::empty())
        .with_no_client_auth();
    reqwest::Client::builder().tls_backend_preconfigured(config).no_proxy().build().unwrap()
}

/// What is cut off where parts meet goes on, and no part is sent twice.
#[tokio::test(flavor = "multi_thread")]
async fn cuts_around_parts_go_on_after_a_restart_and_send_no_part_twice() {
    let (server, folder) = (S3Server::start(), TempDir::new().unwrap());
    let proxy = Proxy::before(server.address());
    let notes = Arc::new(MemoryNotes::default());
    let part = 8 << 20;
    let open = || async {
        let options = at(&proxy.endpoint(), &server, folder.path());
        Blobs::from(CloudBlobs::open(options, "the farm", notes.clone()).await.unwrap())
    };
    for cut_at in [part - 1, part, part + 1, 2 * part] {
        let bytes = bytes::Bytes::from([&some_bytes(2 * part + 7)[..], &cut_at.to_le_bytes()].concat());
        let digest = Digest::of(&bytes);
        let blobs = open().await;
        let upload = begin(&blobs, digest, bytes.len()).await;
        let before = proxy.seen().len();
        blobs.append(&upload.id, 0, true, cut(bytes.slice(..cut_at))).await.unwrap_err();
        drop(blobs);
        let blobs = open().await;
        let id = match cut_at < part {
            // No part was sent, so nothing is known of it.
            true => begin(&blobs, digest, bytes.len()).await.id,
            false => upload.id,
        };
        let stands = usize::try_from(blobs.upload_status(&id).unwrap().offset).unwrap();
        assert_eq!(stands, cut_at / part * part);
        blobs.append(&id, stands as u64, true, whole(&bytes.slice(stands..))).await.unwrap();
        assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
        let seen = proxy.seen();
        let parts = seen[before..].iter().filter(|seen| seen.target.contains("partNumber=")).count();
        assert_eq!(parts, 3, "cut at {cut_at}");
    }
}
