//! The blob folder by itself: what is visible, what is not, and what survives.

use bytes::Bytes;
use futures::TryStreamExt;
use planforge_blobs::{BlobError, How, LocalBlobs, LocalBlobsOptions, ScrubOptions, check_blob, copy_blob};
use planforge_types::Digest;
use std::{
    fs,
    io::{Seek, SeekFrom, Write},
    path::Path,
    time::Duration,
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

fn open(folder: &TempDir) -> LocalBlobs {
    LocalBlobs::open(folder.path(), LocalBlobsOptions::default()).unwrap()
}

fn some_bytes(length: usize) -> Bytes {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<_>>().into()
}

async fn read(blobs: &LocalBlobs, digest: Digest) -> Result<Vec<u8>, BlobError> {
    let size = blobs.find(digest).await?.ok_or(BlobError::NotFound { digest })?;
    let chunks: Vec<Bytes> = blobs.open_range(digest, 0..size).await?.try_collect().await?;
    Ok(chunks.concat())
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
