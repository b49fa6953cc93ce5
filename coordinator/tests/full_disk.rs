//! What happens when the disk is really full: a small tmpfs in a mount namespace of its own.

use bytes::Bytes;
use futures::stream;
use planforge_coordinator::blobs::{Begun, BlobError, LocalBlobs, LocalBlobsOptions};
use planforge_engine_core::identity::Digest;
use std::{env, fs, path::Path, process::Command};

/// Names the tmpfs to the inner run of this test binary.
const FOLDER: &str = "PLANFORGE_TEST_FULL_DISK";

#[test]
fn a_full_disk_is_refused_cleanly() {
    if let Some(folder) = env::var_os(FOLDER) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(on_a_small_disk(Path::new(&folder)));
    }
    let probe = Command::new("unshare").args(["-rm", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        // Said aloud, because a machine without user namespaces proves nothing here.
        #[expect(clippy::print_stdout, reason = "a test that covers less must say so")]
        {
            println!("SKIPPED: this machine cannot make a mount namespace, so there is no small disk to fill");
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script =
        r#"mount -t tmpfs -o size=2m tmpfs "$1" && exec "$2" --exact a_full_disk_is_refused_cleanly --nocapture"#;
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, "sh"])
        .arg(folder.path())
        .arg(env::current_exe().unwrap())
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "the inner run did not run: {text}");
}

async fn on_a_small_disk(folder: &Path) {
    let options = LocalBlobsOptions { min_free_bytes: 0, ..Default::default() };
    let blobs = LocalBlobs::open(folder.join("blobs"), options).unwrap();
    let bytes = Bytes::from(vec![7; 1 << 20]);
    let digest = Digest::of(&bytes);
    let body =
        || stream::iter(bytes.chunks(4096).map(|c| Ok::<_, String>(Bytes::copy_from_slice(c))).collect::<Vec<_>>());

    // More than the disk holds is refused before a byte is sent.
    let error = blobs.begin_upload(digest, 3 << 20).await.unwrap_err();
    assert!(matches!(error, BlobError::Full { .. }), "{error}");

    // The disk fills while the upload runs.
    let Begun::Upload(upload) = blobs.begin_upload(digest, 1 << 20).await.unwrap() else { panic!("not there yet") };
    let filler = folder.join("filler");
    fs::write(&filler, vec![0; 1200 << 10]).unwrap();
    let error = blobs.append(&upload.id, 0, true, body()).await.unwrap_err();
    assert!(matches!(error, BlobError::Full { .. }), "{error}");
    assert_eq!(blobs.find(digest).await.unwrap(), None);
    assert!(matches!(blobs.upload_status(&upload.id), Err(BlobError::UploadUnknown { .. })));
    assert_eq!(
        fs::read_dir(folder.join("blobs/staging")).unwrap().count(),
        0,
        "the partial bytes gave their room back"
    );
    let stored = blobs.store(bytes.clone()).await.unwrap_err();
    assert!(matches!(stored, BlobError::Full { .. }), "{stored}");

    // With room again, the same upload works.
    fs::remove_file(&filler).unwrap();
    let Begun::Upload(upload) = blobs.begin_upload(digest, 1 << 20).await.unwrap() else { panic!("not there yet") };
    blobs.append(&upload.id, 0, true, body()).await.unwrap();
    assert_eq!(blobs.find(digest).await.unwrap(), Some(1 << 20));
}
