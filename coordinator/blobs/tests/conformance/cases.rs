//! What every store of blobs does, asked of each.

use crate::place::{Limits, Piece, Place, begin, cut, flip_a_bit, read, some_bytes, wait_for, whole};
use bytes::Bytes;
use futures::{TryStreamExt as _, stream};
use planforge_blobs::{Begun, BlobError, LocalBlobs, LocalBlobsOptions, Room, blob_path};
use planforge_types::Digest;
use std::{fs, sync::Arc, time::Duration};
use tempfile::TempDir;

pub async fn an_upload_becomes_visible_only_when_whole_and_right(place: &Place) {
    let blobs = place.open().await;
    let bytes = some_bytes(300_000);
    let digest = Digest::of(&bytes);
    let upload = begin(&blobs, digest, bytes.len()).await;
    assert_eq!(upload.offset, 0);

    let half = bytes.slice(..150_000);
    let status = blobs.append(&upload.id, 0, false, whole(&half)).await.unwrap();
    assert_eq!(status.offset, 150_000);
    assert_eq!(blobs.find(digest).await.unwrap(), None);
    assert!(matches!(read(&blobs, digest).await, Err(BlobError::NotFound { .. })));

    blobs.append(&upload.id, 150_000, true, whole(&bytes.slice(150_000..))).await.unwrap();
    assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
    assert_eq!(place.left_over().await, 0);
    assert_eq!(blobs.begin_upload(digest, bytes.len() as u64).await.unwrap(), Begun::Exists);
    assert!(matches!(blobs.upload_status(&upload.id), Err(BlobError::UploadUnknown { .. })));
    blobs.verify(digest).await.unwrap();
}

pub async fn cuts_around_every_piece_resume_and_move_no_byte_twice(place: &Place) {
    let blobs = place.open().await;
    let bytes = some_bytes(4096);
    for boundary in [1, 1024, 2048, 4095_usize] {
        for at in [boundary - 1, boundary, boundary + 1] {
            // Other bytes each time, so that no try finds the blob of another.
            let bytes = Bytes::from([&bytes[..], format!("{boundary}-{at}").as_bytes()].concat());
            let digest = Digest::of(&bytes);
            let upload = begin(&blobs, digest, bytes.len()).await;
            let error = blobs.append(&upload.id, 0, true, cut(bytes.slice(..at))).await.unwrap_err();
            assert!(matches!(error, BlobError::Interrupted { .. }), "{error}");
            assert_eq!(blobs.upload_status(&upload.id).unwrap().offset, at as u64);
            assert_eq!(blobs.find(digest).await.unwrap(), None, "cut at {at}");
            blobs.append(&upload.id, at as u64, true, whole(&bytes.slice(at..))).await.unwrap();
            assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
        }
    }
    assert_eq!(place.left_over().await, 0);
}

pub async fn an_upload_survives_a_restart(place: &Place) {
    let (size, cut_at, resumes_at) = place.restart();
    let bytes = some_bytes(size);
    let digest = Digest::of(&bytes);
    let first = place.open().await;
    let upload = begin(&first, digest, bytes.len()).await;
    first.append(&upload.id, 0, true, cut(bytes.slice(..cut_at))).await.unwrap_err();
    drop(first);
    place.crash_leaves_something();

    let second = place.open().await;
    let offset = second.upload_status(&upload.id).unwrap().offset;
    assert_eq!(offset, resumes_at as u64);
    second.append(&upload.id, offset, true, whole(&bytes.slice(resumes_at..))).await.unwrap();
    assert_eq!(read(&second, digest).await.unwrap(), bytes);
    assert_eq!(place.left_over().await, 0);
}

pub async fn wrong_offset_digest_and_size_are_refused_and_leave_nothing(place: &Place) {
    let blobs = place.open().await;
    let bytes = some_bytes(5000);
    let digest = Digest::of(&bytes);

    let upload = begin(&blobs, digest, bytes.len()).await;
    match blobs.append(&upload.id, 7, true, whole(&bytes)).await {
        Err(BlobError::OffsetMismatch { expected: 0, given: 7, .. }) => {}
        other => panic!("{other:?}"),
    }
    let mut wrong = bytes.to_vec();
    wrong[2500] ^= 1;
    let error = blobs.append(&upload.id, 0, true, whole(&wrong.into())).await.unwrap_err();
    assert!(matches!(error, BlobError::DigestMismatch { .. }), "{error}");

    let short = begin(&blobs, digest, bytes.len()).await;
    let error = blobs.append(&short.id, 0, true, whole(&bytes.slice(..4999))).await.unwrap_err();
    assert!(matches!(error, BlobError::SizeMismatch { .. }), "{error}");

    let long = begin(&blobs, digest, bytes.len() - 1).await;
    let error = blobs.append(&long.id, 0, false, whole(&bytes)).await.unwrap_err();
    assert!(matches!(error, BlobError::SizeMismatch { .. }), "{error}");

    assert_eq!(blobs.find(digest).await.unwrap(), None);
    assert_eq!(place.left_over().await, 0);
    blobs.store(bytes.clone()).await.unwrap();
    assert!(matches!(blobs.begin_upload(digest, 1).await, Err(BlobError::SizeMismatch { .. })));
}

pub async fn concurrent_uploads_of_one_digest_all_succeed(place: &Place) {
    let blobs = place.open().await;
    let bytes = some_bytes(200_000);
    let digest = Digest::of(&bytes);
    let uploads = (0..8).map(|_| {
        let (blobs, bytes) = (blobs.clone(), bytes.clone());
        tokio::spawn(async move {
            match blobs.begin_upload(digest, bytes.len() as u64).await.unwrap() {
                Begun::Exists => {}
                Begun::Upload(upload) => {
                    blobs.append(&upload.id, 0, true, whole(&bytes)).await.unwrap();
                }
            }
        })
    });
    futures::future::try_join_all(uploads).await.unwrap();
    assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
    assert_eq!(place.left_over().await, 0);
}

pub async fn a_second_writer_is_told_to_wait_but_a_silent_one_gives_way(place: &Place) {
    let blobs = place.open().await;
    let bytes = some_bytes(3000);
    let digest = Digest::of(&bytes);
    let upload = begin(&blobs, digest, bytes.len()).await;
    let (send, receive) = tokio::sync::mpsc::channel::<Piece>(1);
    let stalled = tokio::spawn({
        let (blobs, id) = (blobs.clone(), upload.id.clone());
        async move { blobs.append(&id, 0, true, tokio_stream::wrappers::ReceiverStream::new(receive)).await }
    });
    send.send(Ok(bytes.slice(..1000))).await.unwrap();
    wait_for(|| blobs.upload_status(&upload.id).unwrap().offset == 1000).await;

    // The first connection died unnoticed: it stays open and says nothing.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        match blobs.append(&upload.id, 1000, true, whole(&bytes.slice(1000..))).await {
            Ok(_) => break,
            Err(BlobError::UploadBusy { offset: 1000, .. }) => {}
            Err(other) => panic!("{other}"),
        }
        assert!(tokio::time::Instant::now() < deadline, "the silent writer was never sent away");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(matches!(stalled.await.unwrap(), Err(BlobError::Interrupted { .. })));
    assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
}

pub async fn a_client_that_lost_its_place_continues_an_idle_upload(place: &Place) {
    let blobs = place.open().await;
    let bytes = some_bytes(3000);
    let digest = Digest::of(&bytes);
    let upload = begin(&blobs, digest, bytes.len()).await;
    blobs.append(&upload.id, 0, true, cut(bytes.slice(..1234))).await.unwrap_err();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let again = begin(&blobs, digest, bytes.len()).await;
        if again.id == upload.id {
            assert_eq!(again.offset, 1234);
            break;
        }
        // Too soon after the cut: the other client might still be there.
        blobs.abandon_upload(&again.id).await.unwrap();
        assert!(tokio::time::Instant::now() < deadline, "the idle upload was never offered");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub async fn stale_uploads_are_collected(place: &Place) {
    let options = Limits { upload_ttl: Duration::ZERO, empty_upload_ttl: Duration::ZERO, ..Default::default() };
    let blobs = place.open_with(options).await;
    let upload = begin(&blobs, Digest::of(b"never sent"), 10).await;
    assert_eq!(blobs.collect_stale_uploads().await, 1);
    assert!(matches!(blobs.upload_status(&upload.id), Err(BlobError::UploadUnknown { .. })));
    assert_eq!(place.left_over().await, 0);
}

pub async fn a_quota_refuses_before_a_byte_is_sent_and_counts_what_arrived(place: &Place) {
    let options = Limits { max_bytes: Some(10_000), ..Default::default() };
    let blobs = place.open_with(options.clone()).await;
    blobs.store(some_bytes(4000)).await.unwrap();
    let announced = begin(&blobs, Digest::of(b"announced"), 6000).await;
    assert_eq!(blobs.available_bytes().unwrap().unwrap(), 6000, "an announcement takes nothing");
    let refused = blobs.begin_upload(Digest::of(b"too much"), 6001).await.unwrap_err();
    assert!(matches!(refused, BlobError::Full { needed_bytes: 6001, available_bytes: 6000, .. }), "{refused}");
    blobs.append(&announced.id, 0, false, whole(&some_bytes(5000))).await.unwrap();
    assert_eq!(blobs.available_bytes().unwrap().unwrap(), 1000, "what arrived does");
    assert!(matches!(blobs.store(some_bytes(1001)).await, Err(BlobError::Full { .. })));
    // Of two that both fitted when they were announced the second finds no room where it stops fitting.
    let late = begin(&blobs, Digest::of(b"late"), 900).await;
    blobs.store(some_bytes(500)).await.unwrap();
    let full = blobs.append(&late.id, 0, false, whole(&some_bytes(900))).await.unwrap_err();
    assert!(matches!(full, BlobError::Full { room: Room::FarmQuota, .. }), "{full}");
    assert_eq!(blobs.available_bytes().unwrap().unwrap(), 500, "and gives back what it had");
    drop(blobs);

    let again = place.open_with(options.clone()).await;
    // What had not filled a part ends with a store's process in the cloud; a folder has it.
    if place.is_folder() {
        assert_eq!(again.available_bytes().unwrap().unwrap(), 500, "what is stored and arrived counts after a restart");
        again.abandon_upload(&announced.id).await.unwrap();
    }
    assert_eq!(again.available_bytes().unwrap().unwrap(), 5500);
}

pub async fn a_blob_that_comes_several_times_at_once_counts_once(place: &Place) {
    let options = Limits { max_bytes: Some(1 << 20), ..Default::default() };
    let blobs = place.open_with(options).await;
    for round in 0..60_u8 {
        let together = Arc::new(tokio::sync::Barrier::new(4));
        let upload = |_| {
            let (blobs, together) = (blobs.clone(), together.clone());
            tokio::spawn(async move {
                together.wait().await;
                blobs.store(vec![round; 100].into()).await.unwrap();
            })
        };
        for upload in (0..4).map(upload).collect::<Vec<_>>() {
            upload.await.unwrap();
        }
        let stored = 100 * (u64::from(round) + 1);
        assert_eq!(blobs.available_bytes().unwrap().unwrap(), (1 << 20) - stored, "round {round}");
    }
}

pub async fn a_scrub_finds_damage_below_the_filesystem(place: &Place) {
    let blobs = place.open().await;
    let good = blobs.store(some_bytes(1000)).await.unwrap();
    let bad = blobs.store(some_bytes(2000)).await.unwrap();
    place.damage(bad);
    let mut told = 0;
    let report = blobs.scrub(u64::MAX, |_| told += 1).await.unwrap();
    assert_eq!((told, report.blobs, report.bytes, report.damaged), (2, 2, 1000, vec![bad]));
    assert_eq!(blobs.find(bad).await.unwrap(), None);
    assert_eq!((blobs.quarantined().unwrap(), blobs.scrub_state().damaged_total), (vec![bad], 1));
    let error = blobs.open_range(bad, 0..1).await.err().unwrap();
    assert!(matches!(error, BlobError::Quarantined { .. }), "{error}");
    blobs.verify(good).await.unwrap();
    // The same bytes again take its place, and what was damaged is kept no longer.
    assert_eq!(blobs.store(some_bytes(2000)).await.unwrap(), bad);
    assert_eq!(read(&blobs, bad).await.unwrap(), some_bytes(2000));
    assert_eq!(blobs.quarantined().unwrap(), []);
}

pub async fn what_rots_is_taken_from_another_copy_that_is_whole(place: &Place) {
    let (backup, agent) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let copies = vec![backup.path().to_owned(), agent.path().to_owned()];
    let options = Limits { copies, ..Limits::default() };
    let blobs = place.open_with(options).await;
    let mut all = Vec::new();
    for size in [1000, 2000, 3000] {
        all.push(blobs.store(some_bytes(size)).await.unwrap());
    }
    let [in_backup, in_agent, nowhere] = all[..] else { unreachable!() };
    let other = LocalBlobs::open(backup.path(), LocalBlobsOptions::default()).unwrap();
    other.store(some_bytes(1000)).await.unwrap();
    other.store(some_bytes(3000)).await.unwrap();
    flip_a_bit(&blob_path(backup.path(), nowhere));
    fs::write(agent.path().join(in_agent.to_string()), some_bytes(2000)).unwrap();
    for digest in &all {
        place.damage(*digest);
    }
    let report = blobs.scrub(u64::MAX, |_| ()).await.unwrap();
    assert_eq!(report.damaged.len(), 3, "each is told");
    assert_eq!(blobs.quarantined().unwrap(), [nowhere], "a copy that is damaged, too, heals nothing");
    assert_eq!(read(&blobs, in_backup).await.unwrap(), some_bytes(1000));
    assert_eq!(read(&blobs, in_agent).await.unwrap(), some_bytes(2000));
    // A copy that comes later heals what was set aside before.
    fs::write(agent.path().join(nowhere.to_string()), some_bytes(3000)).unwrap();
    assert_eq!(blobs.scrub(u64::MAX, |_| ()).await.unwrap().damaged, []);
    assert_eq!(read(&blobs, nowhere).await.unwrap(), some_bytes(3000));
}

pub async fn ranges_give_exactly_their_bytes(place: &Place) {
    let blobs = place.open().await;
    let bytes = some_bytes(1_200_000);
    let digest = blobs.store(bytes.clone()).await.unwrap();
    for range in [0..0, 0..1, 524_287..524_289, 1_199_999..1_200_000, 0..1_200_000] {
        let chunks: Vec<Bytes> = blobs.open_range(digest, range.clone()).await.unwrap().try_collect().await.unwrap();
        assert_eq!(chunks.concat(), bytes[range.start as usize..range.end as usize]);
    }
    for range in [1_199_999..1_200_001, 0..1_200_001] {
        let told = match blobs.open_range(digest, range).await {
            Ok(stream) => stream.try_collect::<Vec<_>>().await,
            Err(error) => Err(error),
        };
        assert!(told.is_err(), "bytes that are not there are an error, not a short answer");
    }
}

pub async fn the_empty_blob_is_a_blob(place: &Place) {
    let blobs = place.open().await;
    let digest = Digest::of(b"");
    let upload = begin(&blobs, digest, 0).await;
    blobs.append(&upload.id, 0, true, stream::iter(Vec::<Piece>::new())).await.unwrap();
    assert_eq!(blobs.find(digest).await.unwrap(), Some(0));
    assert!(read(&blobs, digest).await.unwrap().is_empty());
}
