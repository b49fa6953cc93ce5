//! Uploads whose parts the client writes to the store itself: which bytes become a blob that way, and which do not.

use crate::{
    cloud::plain_client,
    place::{Place, at, options, read, some_bytes, whole},
};
use bytes::Bytes;
use planforge_blobs::{
    Begun, BlobError, Blobs, CloudBlobs, CloudBlobsOptions, MemoryNotes, Notes as _, PartAddress, UploadStatus,
    Uploader,
};
use planforge_s3_server::{BUCKET, Fault, Proxy, S3Server};
use planforge_types::Digest;
use reqwest::{Client, StatusCode};
use std::{sync::Arc, time::Duration};
use tempfile::TempDir;

const PART: usize = 8 << 20;

/// A store, and a farm's blobs in it that clients may write.
struct World {
    server: S3Server,
    folder: TempDir,
    notes: Arc<MemoryNotes>,
    client: Client,
}

impl World {
    fn new() -> Self {
        let (server, folder) = (S3Server::start(), TempDir::new().unwrap());
        Self { server, folder, notes: Arc::default(), client: plain_client() }
    }

    fn options(&self) -> CloudBlobsOptions {
        let mut options = options(&self.server, self.folder.path());
        options.direct = Some(Duration::from_secs(60));
        options
    }

    async fn open(&self, options: CloudBlobsOptions) -> Blobs {
        CloudBlobs::open(options, "the farm", self.notes.clone()).await.unwrap().into()
    }

    async fn put(&self, address: &PartAddress, bytes: Bytes) -> (StatusCode, String) {
        put(&self.client, address, bytes).await
    }

    /// Writes parts from an offset on, as a client that says what it writes.
    async fn write(&self, blobs: &Blobs, id: &str, from: usize, bytes: &Bytes) {
        for at in (from..bytes.len()).step_by(PART) {
            let part = bytes.slice(at..bytes.len().min(at + PART));
            let digest = Digest::of(&part);
            let address = blobs.part_address(id, at as u64, digest).await.unwrap();
            assert_eq!(address.size_bytes, part.len() as u64);
            let (status, tag) = self.put(&address, part).await;
            assert!(status.is_success(), "{status}");
            blobs.part_written(id, at as u64, digest, &tag).await.unwrap();
        }
    }

    /// Nothing is left of an upload, at the store or in the notes.
    async fn assert_tidy(&self, blobs: usize) {
        let keys = self.server.keys(BUCKET);
        assert!(!keys.iter().any(|key| key.contains("uploads/")), "{keys:?}");
        assert_eq!(keys.iter().filter(|key| key.contains("sha256/")).count(), blobs, "{keys:?}");
        for kind in ["upload", "direct-upload", "part", "unconfirmed"] {
            assert_eq!(self.notes.of_kind(kind).await.unwrap().len(), 0, "{kind}");
        }
    }
}

/// Writes a part as the address says; how the store answers, and what it calls the part.
async fn put(client: &Client, address: &PartAddress, bytes: Bytes) -> (StatusCode, String) {
    let mut request = client.put(&address.url).body(bytes);
    for (name, value) in &address.headers {
        request = request.header(name, value);
    }
    let answer = request.send().await.unwrap();
    let tag = answer.headers().get("etag").map(|tag| tag.to_str().unwrap().to_owned());
    (answer.status(), tag.unwrap_or_default())
}

/// Announces a blob as somebody who may not know what is stored.
async fn begin(blobs: &Blobs, digest: Digest, size: usize) -> UploadStatus {
    let uploader = Uploader { token: "t".into(), name: "ci".into(), ..Uploader::default() };
    match blobs.begin_upload_for(uploader, digest, size as u64, false, None).await.unwrap() {
        Begun::Upload(status) => status,
        Begun::Exists => panic!("it may not know"),
    }
}

async fn end(blobs: &Blobs, id: &str, size: usize) -> Result<UploadStatus, BlobError> {
    blobs.append(id, size as u64, true, whole(&Bytes::new())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_wrote_itself_is_a_blob_after_a_restart_too() {
    let world = World::new();
    let bytes = some_bytes(2 * PART + 7);
    let digest = Digest::of(&bytes);
    let blobs = world.open(world.options()).await;
    let id = begin(&blobs, digest, bytes.len()).await.id;
    assert_eq!(blobs.direct_part_bytes(&id).unwrap(), Some(PART as u64));
    world.write(&blobs, &id, 0, &bytes.slice(..PART)).await;
    drop(blobs);

    let blobs = world.open(world.options()).await;
    assert_eq!(blobs.upload_status(&id).unwrap().offset, PART as u64);
    assert_eq!(blobs.direct_part_bytes(&id).unwrap(), Some(PART as u64));
    world.write(&blobs, &id, PART, &bytes).await;
    assert_eq!(blobs.find(digest).await.unwrap(), None, "nobody has looked at it yet");
    assert_eq!(end(&blobs, &id, bytes.len()).await.unwrap().offset, bytes.len() as u64);
    assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
    world.assert_tidy(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_cannot_write_it_sends() {
    let world = World::new();
    let bytes = some_bytes(2 * PART + 9);
    let digest = Digest::of(&bytes);
    let blobs = world.open(world.options()).await;
    let id = begin(&blobs, digest, bytes.len()).await.id;
    world.write(&blobs, &id, 0, &bytes.slice(..PART)).await;
    // An address that is never used is in nobody's way.
    blobs.part_address(&id, PART as u64, Digest::of(b"x")).await.unwrap();
    blobs.append(&id, PART as u64, true, whole(&bytes.slice(PART..))).await.unwrap();
    assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
    world.assert_tidy(1).await;

    // The other way round: what came through the coordinator goes on there.
    let other = Bytes::from([&bytes[..], b"!"].concat());
    let id = begin(&blobs, Digest::of(&other), other.len()).await.id;
    blobs.append(&id, 0, false, whole(&other.slice(..PART))).await.unwrap();
    assert_eq!(blobs.direct_part_bytes(&id).unwrap(), None);
    let refused = blobs.part_address(&id, PART as u64, Digest::of(b"x")).await.unwrap_err();
    assert!(matches!(refused, BlobError::NotDirect { .. }), "{refused}");
    blobs.append(&id, PART as u64, true, whole(&other.slice(PART..))).await.unwrap();
    // Small ones, and all where the operator did not say so, go through the coordinator.
    let small = begin(&blobs, Digest::of(b"small"), PART).await.id;
    assert_eq!(blobs.direct_part_bytes(&small).unwrap(), None);
    let mut closed = world.options();
    closed.direct = None;
    let blobs = world.open(closed).await;
    let id = begin(&blobs, Digest::of(b"large"), PART + 1).await.id;
    assert_eq!(blobs.direct_part_bytes(&id).unwrap(), None);
    assert!(blobs.part_address(&id, 0, Digest::of(b"x")).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_for_one_part_one_method_its_bytes_and_a_while() {
    let world = World::new();
    let mut options = world.options();
    options.direct = Some(Duration::from_secs(2));
    let blobs = world.open(options).await;
    let bytes = some_bytes(PART + 5);
    let id = begin(&blobs, Digest::of(&bytes), bytes.len()).await.id;
    let part = bytes.slice(..PART);
    let address = blobs.part_address(&id, 0, Digest::of(&part)).await.unwrap();
    assert!(address.url.contains("X-Amz-Expires=2") && !address.url.contains("secret"), "{}", address.url);
    // What has no good signature is refused before its body is read.
    let small = Bytes::from_static(b"small");
    let as_another = PartAddress { url: address.url.replace("partNumber=1", "partNumber=2"), ..address.clone() };
    assert!(world.put(&as_another, small.clone()).await.0.is_client_error());
    let unsaid = PartAddress { headers: Default::default(), ..address.clone() };
    assert!(world.put(&unsaid, small.clone()).await.0.is_client_error());
    for method in [reqwest::Method::GET, reqwest::Method::DELETE, reqwest::Method::POST] {
        let answer = world.client.request(method, &address.url).send().await.unwrap();
        assert!(answer.status().is_client_error(), "{}", answer.status());
    }
    let fresh = blobs.part_address(&id, 0, Digest::of(&small)).await.unwrap();
    assert!(world.put(&fresh, small.clone()).await.0.is_success(), "until it expires");
    tokio::time::sleep(Duration::from_millis(3100)).await;
    assert!(world.put(&fresh, small).await.0.is_client_error(), "it has expired");
    assert_eq!(blobs.upload_status(&id).unwrap().offset, 0, "nothing was told of");
    // Elsewhere than where the upload stands there is none.
    let ahead = blobs.part_address(&id, PART as u64, Digest::of(b"x")).await.unwrap_err();
    assert!(matches!(ahead, BlobError::OffsetMismatch { expected: 0, .. }), "{ahead}");
    blobs.abandon_upload(&id).await.unwrap();
    assert!(matches!(blobs.part_address(&id, 0, Digest::of(b"x")).await, Err(BlobError::UploadUnknown { .. })));
    world.assert_tidy(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_bytes_never_become_a_blob_nor_touch_one() {
    let world = World::new();
    let blobs = world.open(world.options()).await;
    let bytes = some_bytes(PART + 11);
    let digest = Digest::of(&bytes);
    let mut others = bytes.to_vec();
    others[PART + 3] ^= 1;
    let others = Bytes::from(others);
    let mismatch = |outcome: Result<UploadStatus, BlobError>| {
        let error = outcome.unwrap_err();
        assert!(matches!(error, BlobError::DigestMismatch { expected, .. } if expected == digest), "{error}");
    };
    let id = begin(&blobs, digest, bytes.len()).await.id;
    world.write(&blobs, &id, 0, &others).await;
    mismatch(end(&blobs, &id, bytes.len()).await);
    assert_eq!(blobs.find(digest).await.unwrap(), None);
    world.assert_tidy(0).await;

    // Other bytes, fewer and more than the address was asked for; this store looks at no checksum of a part, as some do not.
    let part = bytes.slice(..PART);
    for wrong in [others.slice(1..=PART), part.slice(..PART - 1), Bytes::from([&part[..], b"!"].concat())] {
        let id = begin(&blobs, digest, bytes.len()).await.id;
        let address = blobs.part_address(&id, 0, Digest::of(&part)).await.unwrap();
        let tag = world.put(&address, wrong).await.1;
        blobs.part_written(&id, 0, Digest::of(&part), &tag).await.unwrap();
        world.write(&blobs, &id, PART, &bytes).await;
        let error = end(&blobs, &id, bytes.len()).await.unwrap_err();
        assert!(matches!(error, BlobError::DigestMismatch { .. } | BlobError::SizeMismatch { .. }), "{error}");
        assert_eq!(blobs.find(digest).await.unwrap(), None);
        world.assert_tidy(0).await;
    }

    // Parts that were never written, whatever is said of them.
    let id = begin(&blobs, digest, bytes.len()).await.id;
    for at in [0, PART] {
        let part = Digest::of(&bytes[at..bytes.len().min(at + PART)]);
        blobs.part_address(&id, at as u64, part).await.unwrap();
        let bad = blobs.part_written(&id, at as u64, part, "<b>").await.unwrap_err();
        assert!(matches!(bad, BlobError::NotDirect { .. }), "{bad}");
        blobs.part_written(&id, at as u64, part, "\"5d41402abc4b2a76b9719d911017c592\"").await.unwrap();
    }
    let error = end(&blobs, &id, bytes.len()).await.unwrap_err();
    assert!(matches!(error, BlobError::NotKept { .. }), "{error}");
    world.assert_tidy(0).await;

    // Of a blob that is stored: to know its digest is not to have it, and what is there stays.
    blobs.store(bytes.clone()).await.unwrap();
    for (sent, is_right) in [(&others, false), (&bytes, true)] {
        let id = begin(&blobs, digest, bytes.len()).await.id;
        world.write(&blobs, &id, 0, sent).await;
        match is_right {
            true => drop(end(&blobs, &id, bytes.len()).await.unwrap()),
            false => mismatch(end(&blobs, &id, bytes.len()).await),
        }
        assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
        world.assert_tidy(1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_room_gets_no_address() {
    let world = World::new();
    let mut options = world.options();
    options.max_bytes = Some((PART + PART / 2) as u64);
    let blobs = world.open(options).await;
    let (one, other) = (some_bytes(PART + 1), some_bytes(PART + 2));
    let [first, second] = [&one, &other].map(|bytes| (Digest::of(bytes), bytes.len()));
    let first = begin(&blobs, first.0, first.1).await.id;
    let second = begin(&blobs, second.0, second.1).await.id;
    world.write(&blobs, &first, 0, &one.slice(..PART)).await;
    let full = blobs.part_address(&second, 0, Digest::of(&other[..PART])).await.unwrap_err();
    assert!(matches!(full, BlobError::Full { .. }), "{full}");
    world.write(&blobs, &first, PART, &one).await;
    end(&blobs, &first, one.len()).await.unwrap();
    blobs.abandon_upload(&second).await.unwrap();
    world.assert_tidy(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_whose_answer_is_lost_is_ended_again() {
    let world = World::new();
    let proxy = Proxy::before(world.server.address());
    let mut options = at(&proxy.endpoint(), &world.server, world.folder.path());
    options.direct = Some(Duration::from_secs(60));
    options.access.patience = Duration::from_millis(100);
    let blobs = world.open(options).await;
    for lost in ["POST", "PUT"] {
        let bytes = Bytes::from([&some_bytes(PART + 11)[..], lost.as_bytes()].concat());
        let digest = Digest::of(&bytes);
        let id = begin(&blobs, digest, bytes.len()).await.id;
        world.write(&blobs, &id, 0, &bytes).await;
        // The upload's completion, or the copy.
        proxy.decide(move |seen| match seen.method == lost {
            true => Fault::AnswerLost,
            false => Fault::None,
        });
        let first = end(&blobs, &id, bytes.len()).await;
        proxy.decide(|_| Fault::None);
        if first.is_err() {
            assert_eq!(blobs.find(digest).await.unwrap(), None);
            end(&blobs, &id, bytes.len()).await.unwrap();
        }
        assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
    }
    world.assert_tidy(2).await;
}

/// A store that knows checksums of parts, and wants them of an upload that began with one.
#[tokio::test(flavor = "multi_thread")]
async fn another_store_takes_parts_at_its_addresses_too() {
    let Some(place) = Place::moto() else { return };
    let mut options = place.options();
    options.direct = Some(Duration::from_secs(60));
    let blobs: Blobs = CloudBlobs::open(options, "the farm", Arc::new(MemoryNotes::default())).await.unwrap().into();
    let (bytes, client) = (some_bytes(PART + 21), plain_client());
    let digest = Digest::of(&bytes);
    let id = begin(&blobs, digest, bytes.len()).await.id;
    for at in [0, PART] {
        let part = bytes.slice(at..bytes.len().min(at + PART));
        let address = blobs.part_address(&id, at as u64, Digest::of(&part)).await.unwrap();
        let (status, tag) = put(&client, &address, part.clone()).await;
        assert!(status.is_success(), "{status}");
        blobs.part_written(&id, at as u64, Digest::of(&part), &tag).await.unwrap();
    }
    end(&blobs, &id, bytes.len()).await.unwrap();
    assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
}
