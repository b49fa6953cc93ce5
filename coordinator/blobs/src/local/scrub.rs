//! Looking for damage that changed no times: bits that rot on the disk.
//!
//! Every visible blob is hashed once in a period, in the order of digests, in small pieces at a rate that leaves the disk
//! and the processor to others. How far a round came is remembered, so that a coordinator that restarts often comes to the
//! end too. A damaged blob is set aside: it is no longer served, and the same bytes uploaded again take its place.

use super::{Inner, LocalBlobs, blocking};
use crate::error::BlobError;
use planforge_types::{Digest, DigestWriter, durable};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Bytes that are read and hashed at once: a millisecond's work.
const PIECE_BYTES: usize = 1 << 20;
/// How often a round writes down how far it came.
const REMEMBERED_EVERY: Duration = Duration::from_secs(60);
/// Pause after the folder could not be listed or a blob not be looked up.
const AFTER_FAILURE: Duration = Duration::from_secs(600);
/// Beside the blobs: how far the scrub is.
const STATE_FILE: &str = "scrub.json";

/// How stored blobs are looked through in the background.
#[derive(Clone, Debug)]
pub struct ScrubOptions {
    /// Bytes read in a second, at most.
    pub bytes_per_s: u64,
    /// From the beginning of one round to the beginning of the next.
    pub period: Duration,
    /// Not before a coordinator has run for this long: right after a start everybody comes back.
    pub first_after: Duration,
}

impl Default for ScrubOptions {
    fn default() -> Self {
        let day = Duration::from_secs(24 * 3600);
        Self { bytes_per_s: 8 << 20, period: 7 * day, first_after: Duration::from_secs(600) }
    }
}

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    pub blobs: u64,
    pub bytes: u64,
    /// Blobs that were set aside.
    pub damaged: Vec<Digest>,
}

/// How far the background's scrub is, across restarts. Times are Unix milliseconds, 0: never.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubState {
    /// When the last round began.
    pub began_ms: u64,
    /// When the last whole round ended.
    pub ended_ms: u64,
    /// A round has begun and not ended.
    pub running: bool,
    /// The last blob of the running round that was looked at.
    pub at: Option<Digest>,
    /// Of the running round, else of the last one.
    pub blobs: u64,
    pub bytes: u64,
    /// Looked through and found damaged since this folder was made.
    pub bytes_total: u64,
    pub damaged_total: u64,
}

/// What is remembered of the scrub.
#[derive(Debug)]
pub(super) struct Scrub {
    file: PathBuf,
    state: Mutex<ScrubState>,
}

impl Scrub {
    /// What an earlier process wrote down; a file that cannot be read only means that a round begins anew.
    pub(super) fn load(root: &Path) -> Self {
        let file = root.join(STATE_FILE);
        let state = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { file, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, ScrubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self) {
        let text = serde_json::to_vec(&*self.state()).unwrap_or_default();
        if let Err(error) = durable::write_cache(&self.file, &text) {
            tracing::warn!(path = %self.file.display(), %error, "cannot write down how far the scrub is");
        }
    }

    /// Counts a blob that was looked at.
    fn looked(&self, bytes: u64, damaged: bool) {
        let mut state = self.state();
        state.bytes_total += bytes;
        state.damaged_total += u64::from(damaged);
    }
}

/// Holds readers back to a rate.
#[derive(Debug)]
struct Pace {
    bytes_per_s: u64,
    due: Instant,
}

impl Pace {
    fn new(bytes_per_s: u64) -> Self {
        Self { bytes_per_s: bytes_per_s.max(1), due: Instant::now() }
    }

    /// Waits until `bytes` may have been read. What a slow disk left unused is not made up for.
    async fn took(&mut self, bytes: u64) {
        let share = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        self.due = self.due.max(Instant::now()) + share;
        tokio::time::sleep_until(self.due).await;
    }
}

impl LocalBlobs {
    /// Hashes every visible blob, one after the other, at most `bytes_per_s`, and tells `told` of every one. Ends where
    /// the returned future is dropped.
    ///
    /// # Errors
    /// When the folder cannot be listed; damage is no error here.
    pub async fn scrub(&self, bytes_per_s: u64, mut told: impl FnMut(&ScrubReport)) -> Result<ScrubReport, BlobError> {
        let mut report = ScrubReport::default();
        let looked = |digest: Digest, bytes: u64, damaged: bool| {
            report.blobs += 1;
            report.bytes += bytes;
            report.damaged.extend(damaged.then_some(digest));
            told(&report);
        };
        self.heal_all().await?;
        self.look_through(None, bytes_per_s, looked).await?;
        self.inner.scrub.remember();
        Ok(report)
    }

    /// Looks for copies of what was set aside earlier: a folder may have come back that has them.
    async fn heal_all(&self) -> Result<(), BlobError> {
        let quarantined = self.quarantined()?;
        let inner = self.inner.clone();
        let heal = move || {
            quarantined.into_iter().for_each(|digest| inner.heal(digest));
            Ok(())
        };
        blocking(heal).await
    }

    /// How far the scrub in the background is.
    pub fn scrub_state(&self) -> ScrubState {
        self.inner.scrub.state().clone()
    }

    /// Blobs that were set aside as damaged and not stored again since.
    pub fn quarantined(&self) -> Result<Vec<Digest>, BlobError> {
        let folder = self.inner.quarantine();
        let entries = fs::read_dir(&folder).map_err(BlobError::io("list", &folder))?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    }

    /// Looks through all blobs again and again until `closing`.
    pub async fn keep_scrubbing(&self, options: ScrubOptions, closing: CancellationToken) {
        let rounds = async {
            tokio::time::sleep(options.first_after).await;
            loop {
                let state = self.scrub_state();
                if !state.running {
                    let next_ms = state.began_ms.saturating_add(millis(options.period));
                    // A clock that was set back must not put the next round off for longer than a period.
                    let wait_ms = next_ms.saturating_sub(now_ms()).min(millis(options.period));
                    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                }
                if let Err(error) = self.round(&options).await {
                    tracing::error!(%error, "stored blobs cannot be looked through; trying again later");
                    tokio::time::sleep(AFTER_FAILURE).await;
                }
            }
        };
        closing.run_until_cancelled(rounds).await;
        self.inner.scrub.remember();
    }

    /// One round from where the last one stopped.
    async fn round(&self, options: &ScrubOptions) -> Result<(), BlobError> {
        self.heal_all().await?;
        let scrub = &self.inner.scrub;
        let after = {
            let mut state = scrub.state();
            if !state.running {
                *state =
                    ScrubState { began_ms: now_ms(), running: true, at: None, blobs: 0, bytes: 0, ..state.clone() };
            }
            state.at
        };
        let mut remembered = Instant::now();
        let looked = |digest: Digest, bytes: u64, _: bool| {
            let mut state = scrub.state();
            (state.at, state.blobs, state.bytes) = (Some(digest), state.blobs + 1, state.bytes + bytes);
            drop(state);
            if remembered.elapsed() >= REMEMBERED_EVERY {
                remembered = Instant::now();
                scrub.remember();
            }
        };
        self.look_through(after, options.bytes_per_s, looked).await?;
        {
            let mut state = scrub.state();
            (state.running, state.at, state.ended_ms) = (false, None, now_ms());
            tracing::info!(blobs = state.blobs, bytes = state.bytes, "looked through all stored blobs");
        }
        scrub.remember();
        Ok(())
    }

    /// Hashes every visible blob behind `after`, in the order of digests.
    async fn look_through(
        &self,
        after: Option<Digest>,
        bytes_per_s: u64,
        mut looked: impl FnMut(Digest, u64, bool),
    ) -> Result<(), BlobError> {
        let mut pace = Pace::new(bytes_per_s);
        let inner = self.inner.clone();
        for folder in blocking(move || sorted(&inner.root.join("sha256"))).await? {
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if after.is_some_and(|after| after.to_string().get(..2).is_some_and(|first| *name < *first)) {
                continue;
            }
            for path in blocking(move || sorted(&folder)).await? {
                let name = path.file_name().and_then(|name| name.to_str());
                let Some(digest) = name.and_then(|name| name.parse::<Digest>().ok()) else { continue };
                if after.is_some_and(|after| digest <= after) {
                    continue;
                }
                let (bytes, damaged) = match self.verify_slowly(digest, &mut pace).await {
                    Ok(bytes) => (bytes, false),
                    Err(BlobError::Corrupt { .. }) => (0, true),
                    // It was removed meanwhile.
                    Err(BlobError::NotFound { .. } | BlobError::Quarantined { .. }) => continue,
                    Err(other) => return Err(other),
                };
                self.inner.scrub.looked(bytes, damaged);
                looked(digest, bytes, damaged);
            }
        }
        Ok(())
    }

    /// Hashes a blob piece by piece; what is damaged is set aside.
    async fn verify_slowly(&self, digest: Digest, pace: &mut Pace) -> Result<u64, BlobError> {
        let inner = self.inner.clone();
        let file = Arc::new(
            blocking(move || {
                let file = inner.open(digest, &inner.path(digest))?;
                // What the memory still has says nothing about the disk. A file system that cannot forget it reads less.
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                Ok(file)
            })
            .await?,
        );
        let mut hasher = DigestWriter::new();
        loop {
            let (inner, piece_of, known) = (self.inner.clone(), file.clone(), hasher);
            let (next, bytes) = blocking(move || inner.hash_piece(digest, &piece_of, known)).await?;
            hasher = next;
            if bytes == 0 {
                break;
            }
            pace.took(bytes).await;
        }
        let inner = self.inner.clone();
        blocking(move || {
            let bytes = hasher.bytes();
            inner.judge(digest, &file, hasher.finish()).map(|()| bytes)
        })
        .await
    }
}

impl Inner {
    /// Reads on where `hasher` stands. A disk that cannot read a blob has lost it.
    fn hash_piece(
        &self,
        digest: Digest,
        file: &File,
        mut hasher: DigestWriter,
    ) -> Result<(DigestWriter, u64), BlobError> {
        let mut buffer = vec![0; PIECE_BYTES];
        let count = match rustix::io::pread(file, &mut buffer, hasher.bytes()) {
            Ok(count) => count,
            Err(rustix::io::Errno::IO) => {
                let reason = format!("the disk cannot read it behind byte {}", hasher.bytes());
                return Err(self.set_aside(digest, file, reason)?);
            }
            Err(error) => return Err(BlobError::io("read blob", &self.path(digest))(error.into())),
        };
        hasher.update(&buffer[..count]);
        Ok((hasher, count as u64))
    }
}

/// What lies in a folder, by name; nothing where there is none.
fn sorted(folder: &Path) -> Result<Vec<PathBuf>, BlobError> {
    let listed = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> = match listed {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Vec::new(),
        other => other.map_err(BlobError::io("list", folder))?,
    };
    paths.sort();
    Ok(paths)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}
