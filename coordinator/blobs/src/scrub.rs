//! Looking for damage in stored blobs: every visible one is hashed once in a period, in the order of digests, in small
//! pieces at a rate that leaves disk, network and processor to others. How far a round came is remembered, so that a
//! coordinator that restarts often comes to the end too. A damaged blob is set aside: it is no longer served, and the same
//! bytes uploaded again take its place.

use crate::error::BlobError;
use planforge_types::{Digest, durable};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often a round writes down how far it came.
const REMEMBERED_EVERY: Duration = Duration::from_secs(60);
/// Pause after blobs could not be listed or looked up.
const AFTER_FAILURE: Duration = Duration::from_secs(600);
/// In the folder: how far the scrub is.
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
pub(crate) struct Scrub {
    file: PathBuf,
    state: Mutex<ScrubState>,
}

impl Scrub {
    /// What an earlier process wrote down; a file that cannot be read only means that a round begins anew.
    pub(crate) fn load(folder: &Path) -> Self {
        let file = folder.join(STATE_FILE);
        let state = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { file, state: Mutex::new(state) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ScrubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remember(&self) {
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
pub(crate) struct Pace {
    bytes_per_s: u64,
    due: Instant,
}

impl Pace {
    pub(crate) fn new(bytes_per_s: u64) -> Self {
        Self { bytes_per_s: bytes_per_s.max(1), due: Instant::now() }
    }

    /// Waits until `bytes` may have been read. What a slow store left unused is not made up for.
    pub(crate) async fn took(&mut self, bytes: u64) {
        let share = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        self.due = self.due.max(Instant::now()) + share;
        tokio::time::sleep_until(self.due).await;
    }
}

/// Blobs that can be looked through.
pub(crate) trait Scrubbed {
    /// How far the look in the background is.
    fn progress(&self) -> &Scrub;

    /// Looks for copies of what was set aside earlier: a folder may have come back that has them.
    async fn heal_all(&self) -> Result<(), BlobError>;

    /// Digests of stored blobs that begin with that byte, in their order.
    async fn stored(&self, first: u8) -> Result<Vec<Digest>, BlobError>;

    /// Hashes a visible blob piece by piece; one that is damaged is set aside. Returns its bytes.
    async fn verify_slowly(&self, digest: Digest, pace: Option<&mut Pace>) -> Result<u64, BlobError>;
}

/// Hashes every visible blob behind `after`, in the order of digests; `looked` hears of each with its bytes, none of one
/// that was found damaged and set aside.
async fn look_through(
    blobs: &impl Scrubbed,
    after: Option<Digest>,
    bytes_per_s: u64,
    mut looked: impl FnMut(Digest, u64, bool) + Send,
) -> Result<(), BlobError> {
    let mut pace = Pace::new(bytes_per_s);
    for first in after.map_or(0, |after| after.as_raw()[0])..=u8::MAX {
        for digest in blobs.stored(first).await? {
            if after.is_some_and(|after| digest <= after) {
                continue;
            }
            let (bytes, damaged) = match blobs.verify_slowly(digest, Some(&mut pace)).await {
                Ok(bytes) => (bytes, false),
                Err(BlobError::Corrupt { .. }) => (0, true),
                // It was removed meanwhile, or is hidden already.
                Err(BlobError::NotFound { .. } | BlobError::Quarantined { .. }) => continue,
                Err(other) => return Err(other),
            };
            blobs.progress().looked(bytes, damaged);
            looked(digest, bytes, damaged);
        }
    }
    Ok(())
}

/// Looks at all blobs once.
pub(crate) async fn scrub(
    blobs: &impl Scrubbed,
    bytes_per_s: u64,
    mut told: impl FnMut(&ScrubReport) + Send,
) -> Result<ScrubReport, BlobError> {
    let mut report = ScrubReport::default();
    let looked = |digest: Digest, bytes: u64, damaged: bool| {
        report.blobs += 1;
        report.bytes += bytes;
        report.damaged.extend(damaged.then_some(digest));
        told(&report);
    };
    blobs.heal_all().await?;
    look_through(blobs, None, bytes_per_s, looked).await?;
    blobs.progress().remember();
    Ok(report)
}

/// Looks at all blobs again and again until `closing`.
pub(crate) async fn keep_scrubbing(blobs: &impl Scrubbed, options: ScrubOptions, closing: CancellationToken) {
    let rounds = async {
        tokio::time::sleep(options.first_after).await;
        loop {
            let state = blobs.progress().state().clone();
            if !state.running {
                let next_ms = state.began_ms.saturating_add(millis(options.period));
                // A clock that was set back must not put the next round off for longer than a period.
                let wait_ms = next_ms.saturating_sub(now_ms()).min(millis(options.period));
                tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            }
            if let Err(error) = round(blobs, &options).await {
                tracing::error!(%error, "stored blobs cannot be looked through; trying again later");
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    };
    closing.run_until_cancelled(rounds).await;
    blobs.progress().remember();
}

/// One round from where the last one stopped.
async fn round(blobs: &impl Scrubbed, options: &ScrubOptions) -> Result<(), BlobError> {
    blobs.heal_all().await?;
    let scrub = blobs.progress();
    let after = {
        let mut state = scrub.state();
        if !state.running {
            *state = ScrubState { began_ms: now_ms(), running: true, at: None, blobs: 0, bytes: 0, ..state.clone() };
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
    look_through(blobs, after, options.bytes_per_s, looked).await?;
    {
        let mut state = scrub.state();
        (state.running, state.at, state.ended_ms) = (false, None, now_ms());
        tracing::info!(blobs = state.blobs, bytes = state.bytes, "looked through all stored blobs");
    }
    scrub.remember();
    Ok(())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Unix milliseconds.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}
