//! The blob folder by itself: what is visible, what is not, and what survives.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use planforge_blobs::{
    Begun, BlobError, How, LocalBlobs, LocalBlobsOptions, Room, ScrubOptions, UploadStatus, blob_path, check_blob,
    copy_blob,
};
use planforge_types::Digest;
use std::{
    fs,
    io::{Seek, SeekFrom, Write},
    path::Path,
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

type Piece = Result<Bytes, String>;

fn open(folder: &TempDir) -> LocalBlobs {
    LocalBlobs::open(folder.path(), LocalBlobsOptions::default()).unwrap()
}

fn some_bytes(length: usize) -> Bytes {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<_>>().into()
}

fn whole(bytes: &Bytes) -> impl futures::Stream<Item = Piece> + Send + 'static + use<> {
    stream::iter(bytes.chunks(1000).map(|c| Ok(Bytes::copy_from_slice(c))).collect::<Vec<_>>())
}

/// A body that breaks off after `bytes`.
fn cut(bytes: Bytes) -> impl futures::Stream<Item = Piece> + Send + 'static {
    stream::iter([Ok(bytes), Err("connection reset".to_owned())])
}

async fn begin(blobs: &LocalBlobs, digest: Digest, size: usize) -> UploadStatus {
    match blobs.begin_upload(digest, size as u64).await.unwrap() {
        Begun::Upload(status) => status,
        Begun::Exists => panic!("the blob is not there yet"),
    }
}

async fn read(blobs: &LocalBlobs, digest: Digest) -> Result<Vec<u8>, BlobError> {
    let size = blobs.find(digest).await?.ok_or(BlobError::NotFound { digest })?;
    let chunks: Vec<Bytes> = blobs.open_range(digest, 0..size).await?.try_collect().await?;
    Ok(chunks.concat())
}

fn staged_files(folder: &Path) -> usize {
    fs::read_dir(folder.join("staging")).unwrap().count()
}

/// Waits until `condition` holds, for at most 20 s.
async fn wait_for(mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "condition not met in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_upload_becomes_visible_only_when_whole_and_right() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
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
    assert_eq!(staged_files(folder.path()), 0);
    assert_eq!(blobs.begin_upload(digest, bytes.len() as u64).await.unwrap(), Begun::Exists);
    assert!(matches!(blobs.upload_status(&upload.id), Err(BlobError::UploadUnknown { .. })));
    blobs.verify(digest).await.unwrap();
}

#[tokio::test]
async fn cuts_around_every_piece_resume_and_move_no_byte_twice() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
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
    assert_eq!(staged_files(folder.path()), 0);
}

#[tokio::test]
async fn an_upload_survives_a_restart() {
    let folder = TempDir::new().unwrap();
    let bytes = some_bytes(100_000);
    let digest = Digest::of(&bytes);
    let first = open(&folder);
    let upload = begin(&first, digest, bytes.len()).await;
    first.append(&upload.id, 0, true, cut(bytes.slice(..70_001))).await.unwrap_err();
    drop(first);
    fs::write(folder.path().join("staging/orphan.tmp"), b"left by a crash").unwrap();

    let second = open(&folder);
    let offset = second.upload_status(&upload.id).unwrap().offset;
    assert_eq!(offset, 70_001);
    second.append(&upload.id, offset, true, whole(&bytes.slice(70_001..))).await.unwrap();
    assert_eq!(read(&second, digest).await.unwrap(), bytes);
    assert_eq!(staged_files(folder.path()), 0);
}

#[tokio::test]
async fn wrong_offset_digest_and_size_are_refused_and_leave_nothing() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
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
    assert_eq!(staged_files(folder.path()), 0);
    blobs.store(bytes.clone()).await.unwrap();
    assert!(matches!(blobs.begin_upload(digest, 1).await, Err(BlobError::SizeMismatch { .. })));
}

#[tokio::test]
async fn concurrent_uploads_of_one_digest_all_succeed() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
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
    assert_eq!(staged_files(folder.path()), 0);
}

#[tokio::test]
async fn a_second_writer_is_told_to_wait_but_a_silent_one_gives_way() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
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

#[tokio::test]
async fn a_client_that_lost_its_place_continues_an_idle_upload() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
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

#[tokio::test]
async fn stale_uploads_are_collected() {
    let folder = TempDir::new().unwrap();
    let options =
        LocalBlobsOptions { upload_ttl: Duration::ZERO, empty_upload_ttl: Duration::ZERO, ..Default::default() };
    let blobs = LocalBlobs::open(folder.path(), options).unwrap();
    let upload = begin(&blobs, Digest::of(b"never sent"), 10).await;
    assert_eq!(blobs.collect_stale_uploads().await, 1);
    assert!(matches!(blobs.upload_status(&upload.id), Err(BlobError::UploadUnknown { .. })));
    assert_eq!(staged_files(folder.path()), 0);
}

#[tokio::test]
async fn a_quota_refuses_before_a_byte_is_sent_and_counts_what_arrived() {
    let folder = TempDir::new().unwrap();
    let options = LocalBlobsOptions { max_bytes: Some(10_000), ..Default::default() };
    let blobs = LocalBlobs::open(folder.path(), options.clone()).unwrap();
    blobs.store(some_bytes(4000)).await.unwrap();
    let announced = begin(&blobs, Digest::of(b"announced"), 6000).await;
    assert_eq!(blobs.available_bytes().unwrap(), 6000, "an announcement takes nothing");
    let refused = blobs.begin_upload(Digest::of(b"too much"), 6001).await.unwrap_err();
    assert!(matches!(refused, BlobError::Full { needed_bytes: 6001, available_bytes: 6000, .. }), "{refused}");
    blobs.append(&announced.id, 0, false, whole(&some_bytes(5000))).await.unwrap();
    assert_eq!(blobs.available_bytes().unwrap(), 1000, "what arrived does");
    assert!(matches!(blobs.store(some_bytes(1001)).await, Err(BlobError::Full { .. })));
    // Of two that both fitted when they were announced the second finds no room where it stops fitting.
    let late = begin(&blobs, Digest::of(b"late"), 900).await;
    blobs.store(some_bytes(500)).await.unwrap();
    let full = blobs.append(&late.id, 0, false, whole(&some_bytes(900))).await.unwrap_err();
    assert!(matches!(full, BlobError::Full { room: Room::FarmQuota, .. }), "{full}");
    assert_eq!(blobs.available_bytes().unwrap(), 500, "and gives back what it had");
    drop(blobs);

    let again = LocalBlobs::open(folder.path(), options.clone()).unwrap();
    assert_eq!(again.available_bytes().unwrap(), 500, "what is stored and arrived counts after a restart");
    again.abandon_upload(&announced.id).await.unwrap();
    assert_eq!(again.available_bytes().unwrap(), 5500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_blob_that_comes_several_times_at_once_counts_once() {
    let folder = TempDir::new().unwrap();
    let options = LocalBlobsOptions { max_bytes: Some(1 << 20), ..Default::default() };
    let blobs = LocalBlobs::open(folder.path(), options).unwrap();
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
        assert_eq!(blobs.available_bytes().unwrap(), (1 << 20) - stored, "round {round}");
    }
}

#[tokio::test]
async fn an_edited_blob_is_never_served_and_goes_to_quarantine() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
    let bytes = some_bytes(100_000);
    let digest = blobs.store(bytes.clone()).await.unwrap();
    flip_a_bit(&blobs.path(digest));
    let error = read(&blobs, digest).await.unwrap_err();
    assert!(matches!(error, BlobError::Corrupt { .. }), "{error}");
    assert_eq!(blobs.find(digest).await.unwrap(), None);
    assert!(folder.path().join("quarantine").join(digest.to_string()).exists());
    // The right bytes can be stored again.
    assert_eq!(blobs.store(bytes.clone()).await.unwrap(), digest);
    assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
}

#[tokio::test]
async fn a_scrub_finds_damage_below_the_filesystem() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
    let good = blobs.store(some_bytes(1000)).await.unwrap();
    let bad = blobs.store(some_bytes(2000)).await.unwrap();
    let path = blobs.path(bad);
    let published = fs::metadata(&path).unwrap().modified().unwrap();
    flip_a_bit(&path);
    // What a disk does on its own leaves the times as they were.
    fs::File::open(&path).unwrap().set_modified(published).unwrap();
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

#[tokio::test]
async fn what_rots_is_taken_from_another_copy_that_is_whole() {
    let (folder, backup, agent) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let copies = vec![backup.path().to_owned(), agent.path().to_owned()];
    let options = LocalBlobsOptions { copies, ..LocalBlobsOptions::default() };
    let blobs = LocalBlobs::open(folder.path(), options).unwrap();
    let mut all = Vec::new();
    for size in [1000, 2000, 3000] {
        all.push(blobs.store(some_bytes(size)).await.unwrap());
    }
    let [in_backup, in_agent, nowhere] = all[..] else { unreachable!() };
    copy_blob(folder.path(), backup.path(), in_backup, How::Copy).unwrap();
    copy_blob(folder.path(), backup.path(), nowhere, How::Copy).unwrap();
    flip_a_bit(&blob_path(backup.path(), nowhere));
    fs::write(agent.path().join(in_agent.to_string()), some_bytes(2000)).unwrap();
    for digest in &all {
        let path = blobs.path(*digest);
        let published = fs::metadata(&path).unwrap().modified().unwrap();
        flip_a_bit(&path);
        fs::File::open(&path).unwrap().set_modified(published).unwrap();
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

#[tokio::test(start_paused = true)]
async fn a_scrub_keeps_to_its_rate() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
    for size in [3_000_000, 500, 2_999_500] {
        blobs.store(some_bytes(size)).await.unwrap();
    }
    let began = tokio::time::Instant::now();
    let report = blobs.scrub(1_000_000, |_| ()).await.unwrap();
    assert_eq!((report.bytes, report.damaged), (6_000_000, vec![]));
    // On a clock that stands still but for what the scrub waits.
    let waited = began.elapsed().as_secs_f64();
    assert!((5.9..6.2).contains(&waited), "{waited} s for six seconds' bytes");
}

#[tokio::test(start_paused = true)]
async fn a_round_in_the_background_goes_on_after_a_restart_and_comes_again() {
    let folder = TempDir::new().unwrap();
    let day = Duration::from_secs(24 * 3600);
    let options = ScrubOptions { bytes_per_s: 1_000, period: day, first_after: Duration::from_secs(60) };
    let mut digests = Vec::new();
    let blobs = open(&folder);
    for size in 1..=10 {
        digests.push(blobs.store(some_bytes(size * 1_000)).await.unwrap());
    }
    let run = |blobs: LocalBlobs, options: ScrubOptions| {
        let closing = CancellationToken::new();
        (
            tokio::spawn({
                let closing = closing.clone();
                async move { blobs.keep_scrubbing(options, closing).await }
            }),
            closing,
        )
    };
    let (task, closing) = run(blobs.clone(), options.clone());
    while blobs.scrub_state().blobs < 4 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    closing.cancel();
    task.await.unwrap();
    let before = blobs.scrub_state();
    assert!(before.running && before.ended_ms == 0, "{before:?}");
    drop(blobs);

    // Another process: it begins behind what was looked at.
    let blobs = open(&folder);
    assert_eq!(blobs.scrub_state(), before);
    let (task, closing) = run(blobs.clone(), options);
    while blobs.scrub_state().running {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let after = blobs.scrub_state();
    assert_eq!((after.blobs, after.bytes, after.bytes_total), (10, 55_000, 55_000), "each once");
    // What rots afterwards is found in the next round.
    let path = blobs.path(digests[3]);
    let published = fs::metadata(&path).unwrap().modified().unwrap();
    flip_a_bit(&path);
    fs::File::open(&path).unwrap().set_modified(published).unwrap();
    while blobs.scrub_state().damaged_total == 0 {
        tokio::time::sleep(Duration::from_secs(3600)).await;
    }
    assert_eq!(blobs.quarantined().unwrap(), [digests[3]]);
    closing.cancel();
    task.await.unwrap();
}

/// What was stored anew while the damaged file was read is not what is damaged.
#[tokio::test(start_paused = true)]
async fn a_blob_that_was_stored_anew_is_not_set_aside() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
    let (bytes, path) = (some_bytes(3 << 20), |digest| blobs.path(digest));
    let digest = blobs.store(bytes.clone()).await.unwrap();
    flip_a_bit(&path(digest));
    // Looks at the damaged file, which is replaced before it is judged.
    let scrubbed = blobs.scrub(1 << 20, |_| ());
    let replaced = async {
        // Time stands still while the scrub works: it has the damaged file open and waits for its turn to read on.
        tokio::time::sleep(Duration::from_millis(200)).await;
        fs::remove_file(path(digest)).unwrap();
        blobs.store(bytes.clone()).await.unwrap();
    };
    let (report, ()) = futures::future::join(scrubbed, replaced).await;
    assert_eq!(report.unwrap().damaged, [digest]);
    assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
    assert_eq!(blobs.quarantined().unwrap(), []);
}

#[tokio::test]
async fn a_restored_copy_is_checked_once_and_served() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
    let bytes = some_bytes(1000);
    let digest = blobs.store(bytes.clone()).await.unwrap();
    let path = blobs.path(digest);
    let modified = || fs::metadata(&path).unwrap().modified().unwrap();
    let published = modified();
    fs::File::open(&path).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
    assert_eq!(read(&blobs, digest).await.unwrap(), bytes);
    assert_eq!(modified(), published, "marked as checked, so that the next reader need not hash it");
}

fn flip_a_bit(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    let byte = fs::read(path).unwrap()[500];
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(500)).unwrap();
    file.write_all(&[byte ^ 4]).unwrap();
}

#[tokio::test]
async fn ranges_give_exactly_their_bytes() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
    let bytes = some_bytes(1_200_000);
    let digest = blobs.store(bytes.clone()).await.unwrap();
    for range in [0..0, 0..1, 524_287..524_289, 1_199_999..1_200_000, 0..1_200_000] {
        let chunks: Vec<Bytes> = blobs.open_range(digest, range.clone()).await.unwrap().try_collect().await.unwrap();
        assert_eq!(chunks.concat(), bytes[range.start as usize..range.end as usize]);
    }
    let mut beyond = blobs.open_range(digest, 1_199_999..1_200_001).await.unwrap();
    assert!(beyond.next().await.unwrap().is_err(), "bytes that are not there are an error, not a short answer");
}

#[tokio::test]
async fn the_empty_blob_is_a_blob() {
    let folder = TempDir::new().unwrap();
    let blobs = open(&folder);
    let digest = Digest::of(b"");
    let upload = begin(&blobs, digest, 0).await;
    blobs.append(&upload.id, 0, true, stream::iter(Vec::<Piece>::new())).await.unwrap();
    assert_eq!(blobs.find(digest).await.unwrap(), Some(0));
    assert!(read(&blobs, digest).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_copy_elsewhere_has_the_right_bytes_or_is_not_there() {
    let (folder, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let blobs = open(&folder);
    let digest = blobs.store(some_bytes(300_000)).await.unwrap();
    for how in [How::Copy, How::Link] {
        assert_eq!(copy_blob(folder.path(), other.path(), digest, how).unwrap(), 300_000);
        assert_eq!(check_blob(other.path(), digest).unwrap(), 300_000);
        // Opened as a store it is served as what was published there.
        let copied = open(&other);
        assert_eq!(read(&copied, digest).await.unwrap(), some_bytes(300_000));
        fs::remove_file(copied.path(digest)).unwrap();
    }
    let missing = copy_blob(folder.path(), other.path(), Digest::of(b"nothing"), How::Copy).unwrap_err();
    assert!(matches!(missing, BlobError::NotFound { .. }), "{missing}");
    flip_a_bit(&blobs.path(digest));
    let damaged = copy_blob(folder.path(), other.path(), digest, How::Copy).unwrap_err();
    assert!(matches!(damaged, BlobError::Damaged { .. }), "{damaged}");
    assert!(matches!(check_blob(folder.path(), digest).unwrap_err(), BlobError::Damaged { .. }));
    let left = fs::read_dir(open(&other).path(digest).parent().unwrap()).unwrap().count();
    assert_eq!(left, 0, "nothing of it is left there");
}
