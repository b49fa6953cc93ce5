//! What happens when the disk is really full: small file systems in a mount namespace of their own.

use bytes::Bytes;
use futures::stream;
use planforge_coordinator::{
    blobs::{Begun, BlobError, LocalBlobs, LocalBlobsOptions},
    core::{Change, Event, JobState},
    store::{EventFilter, SqliteStore, Store, StoreError},
};
use planforge_types::Digest;
use std::{env, fs, future::Future, io::Write as _, path::Path, process::Command, time::Duration};

/// Names the small file system to the inner run of this test binary.
const FOLDER: &str = "PLANFORGE_TEST_FULL_DISK";
/// Commits after which a small file system must be full; far more than fit.
const COMMITS_MAX: u64 = 100_000;

/// A file system of a few megabytes.
#[derive(Clone, Copy)]
enum Disk {
    /// A user namespace is enough.
    Tmpfs,
    /// On a loop device; needs the real root user.
    Ext4,
}

impl Disk {
    /// Shell commands that mount `$1`; `$1.img` may be used.
    fn mount(self) -> &'static str {
        match self {
            Self::Tmpfs => "mount -t tmpfs -o size=4m tmpfs \"$1\"",
            Self::Ext4 => {
                "truncate -s 12M \"$1.img\" && mkfs.ext4 -q -O ^has_journal -m 0 \"$1.img\" && mount -o loop \"$1.img\" \"$1\""
            }
        }
    }

    /// A namespace in which the file system can be mounted.
    fn unshare(self) -> Command {
        let mut command = Command::new("unshare");
        command.arg(match self {
            Self::Tmpfs => "-rm",
            Self::Ext4 => "-m",
        });
        command
    }
}

/// Runs the test `name` of this binary once more with a small file system of its own, or says why it cannot. In that
/// inner run it does the work.
fn on_a_small_disk<F: Future<Output = ()>>(disk: Disk, name: &str, work: impl FnOnce(&'static Path) -> F) {
    if let Some(folder) = env::var_os(FOLDER) {
        let folder: &'static Path = Box::leak(Path::new(&folder).to_owned().into_boxed_path());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        return runtime.block_on(work(folder));
    }
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("disk");
    fs::create_dir(&folder).unwrap();
    let probe = disk.unshare().args(["sh", "-c", disk.mount(), "sh"]).arg(&folder).output();
    let refusal = match &probe {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(reason) = refusal {
        return planforge_skipped::skipped(format_args!("no small disk can be mounted here: {reason}"));
    }
    let script = format!("{} && exec \"$2\" --exact \"$3\" --nocapture", disk.mount());
    let output = disk
        .unshare()
        .args(["sh", "-c", &script, "sh"])
        .arg(&folder)
        .arg(env::current_exe().unwrap())
        .arg(name)
        .env(FOLDER, &folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "the inner run did not run: {text}");
}

/// Fills the disk to its last byte.
fn fill(file: &Path) {
    let mut filler = fs::File::options().create(true).append(true).open(file).unwrap();
    for piece in [64 << 10, 4096, 512, 1] {
        while filler.write_all(&vec![0x5a; piece]).is_ok() {}
        // Space is promised when it is written and may be refused only now.
        let _ = filler.sync_all();
    }
}

#[test]
fn a_full_disk_is_refused_cleanly() {
    on_a_small_disk(Disk::Tmpfs, "a_full_disk_is_refused_cleanly", blobs_survive);
}

async fn blobs_survive(folder: &Path) {
    let options = LocalBlobsOptions { min_free_bytes: 0, ..Default::default() };
    let blobs = LocalBlobs::open(folder.join("blobs"), options).unwrap();
    let bytes = Bytes::from(vec![7; 2 << 20]);
    let digest = Digest::of(&bytes);
    let body =
        || stream::iter(bytes.chunks(4096).map(|c| Ok::<_, String>(Bytes::copy_from_slice(c))).collect::<Vec<_>>());

    // More than the disk holds is refused before a byte is sent.
    let error = blobs.begin_upload(digest, 5 << 20).await.unwrap_err();
    assert!(matches!(error, BlobError::Full { .. }), "{error}");

    // The disk fills while the upload runs.
    let Begun::Upload(upload) = blobs.begin_upload(digest, 2 << 20).await.unwrap() else { panic!("not there yet") };
    let filler = folder.join("filler");
    fs::write(&filler, vec![0; 2600 << 10]).unwrap();
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
    assert_eq!(fs::read_dir(folder.join("blobs/staging")).unwrap().count(), 0);

    // With room again, the same upload works.
    fs::remove_file(&filler).unwrap();
    let Begun::Upload(upload) = blobs.begin_upload(digest, 2 << 20).await.unwrap() else { panic!("not there yet") };
    blobs.append(&upload.id, 0, true, body()).await.unwrap();
    assert_eq!(blobs.find(digest).await.unwrap(), Some(2 << 20));
}

#[test]
fn a_database_takes_writes_again_when_a_full_tmpfs_has_room() {
    on_a_small_disk(Disk::Tmpfs, "a_database_takes_writes_again_when_a_full_tmpfs_has_room", database_heals);
}

#[test]
fn a_database_takes_writes_again_when_a_full_ext4_has_room() {
    on_a_small_disk(Disk::Ext4, "a_database_takes_writes_again_when_a_full_ext4_has_room", database_heals);
}

fn event(seq: u64) -> Vec<Change> {
    vec![Change::Event(Event {
        seq,
        at_ms: seq,
        job: "job".into(),
        actor: "me".into(),
        what: "submitted".into(),
        state: JobState::Queued,
        attempt: 0,
        phase: String::new(),
        detail: "x".repeat(9_000),
    })]
}

/// Several times full and free again, with one store that stays open.
async fn database_heals(folder: &Path) {
    let file = folder.join("farm.db");
    let store = SqliteStore::open(&file).await.unwrap();
    let epoch = store.acquire("me", 1).await.unwrap();
    let filler = folder.join("filler");
    let mut stored = 0;
    for round in 0..4 {
        store.commit(epoch, event(stored + 1)).await.unwrap();
        stored += 1;
        fill(&filler);
        let refused = loop {
            match store.commit(epoch, event(stored + 1)).await {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
            assert!(stored < COMMITS_MAX, "the disk is never full");
        };
        assert!(matches!(refused, StoreError::Full { .. }), "round {round}: {refused}");
        // Not once but as often as it is asked, each commit with its true reason, alone and in groups.
        let commits = (1..=20).map(|next| store.commit(epoch, event(stored + next)));
        for result in futures::future::join_all(commits).await {
            let error = result.unwrap_err();
            assert!(matches!(error, StoreError::Full { .. }), "round {round}: {error}");
        }
        let error = store.check(epoch).await.unwrap_err();
        assert!(matches!(error, StoreError::Full { .. }), "round {round}: {error}");
        let filter = || EventFilter { limit: COMMITS_MAX as usize, ..EventFilter::default() };
        let events = store.events(filter()).await.unwrap();
        assert!(events.iter().map(|event| event.seq).eq(1..=stored), "what was refused is not there, all else is");

        fs::remove_file(&filler).unwrap();
        // A file system may take a moment to give the room of a removed file back.
        let healed = tokio::time::timeout(Duration::from_secs(5), async {
            while store.check(epoch).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        healed.await.unwrap_or_else(|_| panic!("round {round}: the database takes no writes with room on the disk"));
        store.commit(epoch, event(stored + 1)).await.unwrap();
        stored += 1;
    }
    store.close().await.unwrap();
    let store = SqliteStore::open(&file).await.unwrap();
    let events = store.events(EventFilter { limit: COMMITS_MAX as usize, ..EventFilter::default() }).await.unwrap();
    assert!(events.iter().map(|event| event.seq).eq(1..=stored), "nothing acknowledged is lost");
}
