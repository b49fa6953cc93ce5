//! Blobs in an object store: S3 and what speaks like it.
//!
//! ```text
//! PREFIX/planforge-farm.json   whose this place is
//! PREFIX/sha256/ab/<hex>       a blob, named as in a folder
//! PREFIX/uploads/<id>          what a client wrote itself, until it was looked at
//! ```
//!
//! What else there is to know is kept as notes in the farm's database: open uploads and their parts, when a blob was last
//! announced, what was set aside, what is not confirmed yet.
//!
//! # Crash safety
//!
//! An object appears under its name only after the coordinator hashed all its bytes to that name. That the store kept those
//! very bytes is confirmed by the checksum that it answers with, or else by reading them back; until then a note hides the
//! blob, and whoever starts next goes on there. Parts of an upload are no object before it is completed; a note names the
//! upload before its first part is sent.
//!
//! # Damage
//!
//! A damaged object stays where it is and is hidden by a note, until the same bytes are stored again or nothing names it.
//! It is found by the look through all blobs; every client checks the digest of what it receives.

mod bucket;
mod direct;
mod http;
mod marker;
mod place;
mod progress;
mod publish;
mod room;
mod scrub;
mod sweep;
mod upload;

pub use direct::PartAddress;
pub use place::{CloudAccess, CloudPlace};

use crate::{
    error::BlobError,
    notes::{Note, NoteChange, Notes},
    scrub::{Scrub, ScrubOptions, ScrubReport, ScrubState, Scrubbed as _, keep_scrubbing, now_ms, scrub},
};
use bucket::{Bucket, Facts, name};
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream, stream::BoxStream};
use planforge_proto::ApiError;
use planforge_types::Digest;
use room::Taken;
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant, SystemTime},
};
use tokio_util::sync::CancellationToken;
use upload::Uploads;

/// Blobs that may become visible, be announced or go at once.
const TURNS: usize = 16;
/// How long what the store said of an object is believed: this coordinator alone writes there.
const FACTS_HOLD: Duration = Duration::from_secs(60);
/// Most objects of which that is remembered.
const FACTS_MAX: usize = 65_536;
/// How often the store is asked whether it is there, and after it was not.
const LOOKED_EVERY: Duration = Duration::from_secs(15);
const LOOKED_AGAIN: Duration = Duration::from_secs(2);

const ANNOUNCED: &str = "announced";
const QUARANTINED: &str = "quarantined";
const UNCONFIRMED: &str = "unconfirmed";

/// How blobs are kept in a cloud.
#[derive(Clone, Debug)]
pub struct CloudBlobsOptions {
    pub place: CloudPlace,
    pub access: CloudAccess,
    /// Read every blob back after it was written, also where the store confirmed its checksum.
    pub read_back: bool,
    /// How long an address holds under which a client reads a blob, or writes a part of one, at the store itself; `None`:
    /// there are none.
    pub direct: Option<Duration>,
    /// Most bytes that all blobs and open uploads together may take; `None`: the store decides.
    pub max_bytes: Option<u64>,
    /// An upload that nobody continued for this long is given up.
    pub upload_ttl: Duration,
    /// One that never got a byte, after this long.
    pub empty_upload_ttl: Duration,
    /// Folders that may have other copies: what is damaged here is taken from there.
    pub copies: Vec<PathBuf>,
    /// Folder of this coordinator's own, for how far the look through all blobs is.
    pub folder: PathBuf,
}

impl CloudBlobsOptions {
    /// Defaults.
    pub fn new(place: CloudPlace, folder: impl Into<PathBuf>) -> Self {
        let local = crate::LocalBlobsOptions::default();
        Self {
            place,
            access: CloudAccess::default(),
            read_back: false,
            direct: None,
            max_bytes: local.max_bytes,
            upload_ttl: local.upload_ttl,
            empty_upload_ttl: local.empty_upload_ttl,
            copies: local.copies,
            folder: folder.into(),
        }
    }

    /// The farm that the place is of; `None`: nothing is there. Changes nothing.
    ///
    /// # Errors
    /// The store fails, or something is there that is no farm's.
    pub async fn owner(&self) -> Result<Option<String>, BlobError> {
        marker::owner(&Bucket::new(self.place.clone(), &self.access)?).await
    }
}

/// Blobs in a cloud. Cheap to clone.
#[derive(Clone)]
pub struct CloudBlobs {
    inner: Arc<Inner>,
}

impl fmt::Debug for CloudBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudBlobs").field("place", &self.inner.options.place).finish_non_exhaustive()
    }
}

/// What the store lately said of an object.
#[derive(Clone, Copy, Debug)]
struct Known {
    size_bytes: u64,
    at: Instant,
}

/// Blobs whose objects may be there and that are not visible.
#[derive(Debug, Default)]
struct Hidden {
    /// Set aside as damaged.
    quarantined: BTreeSet<Digest>,
    /// Whether the store kept the right bytes is not known yet.
    unconfirmed: BTreeSet<Digest>,
}

struct Inner {
    bucket: Bucket,
    options: CloudBlobsOptions,
    notes: Arc<dyn Notes>,
    taken: Taken,
    uploads: Uploads,
    scrub: Scrub,
    hidden: Mutex<Hidden>,
    known: Mutex<HashMap<Digest, Known>>,
    /// When blobs were last announced, as noted; Unix milliseconds.
    announced: Mutex<HashMap<Digest, u64>>,
    /// The store was seen to confirm checksums.
    confirms: AtomicBool,
    /// Taken, by the digest's first byte, while a blob becomes visible, is announced or goes.
    turns: [tokio::sync::Mutex<()>; TURNS],
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is kept under these locks is right after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove(kind: &'static str, digest: Digest) -> NoteChange {
    NoteChange::Remove { kind, name: digest.to_string() }
}

fn write(kind: &'static str, digest: Digest) -> NoteChange {
    NoteChange::Write(Note { kind, name: digest.to_string(), text: String::new(), at_ms: now_ms() })
}

/// Digests that notes name; a name that is none was not written here.
fn digests(notes: Vec<Note>) -> impl Iterator<Item = (Digest, u64)> {
    notes.into_iter().filter_map(|note| Some((note.name.parse().ok()?, note.at_ms)))
}

impl CloudBlobs {
    /// Opens the place for `farm`, which it becomes where nobody has it. Uploads that a former process left are offered
    /// again. Counts blobs when there is a quota.
    ///
    /// # Errors
    /// The store cannot be used, or the place is not the farm's; then nothing was written.
    pub async fn open(options: CloudBlobsOptions, farm: &str, notes: Arc<dyn Notes>) -> Result<Self, BlobError> {
        let bucket = Bucket::new(options.place.clone(), &options.access)?;
        marker::claim(&bucket, farm).await?;
        let hidden = Hidden {
            quarantined: digests(notes.of_kind(QUARANTINED).await.map_err(BlobError::Notes)?).map(|(d, _)| d).collect(),
            unconfirmed: digests(notes.of_kind(UNCONFIRMED).await.map_err(BlobError::Notes)?).map(|(d, _)| d).collect(),
        };
        let announced = digests(notes.of_kind(ANNOUNCED).await.map_err(BlobError::Notes)?).collect();
        let used_bytes = match options.max_bytes {
            Some(_) => bucket.list("sha256").await?.iter().map(|(_, facts)| facts.size_bytes).sum(),
            None => 0,
        };
        let uploads = Uploads::load(&*notes, &options).await?;
        let taken = Taken::new(options.max_bytes, used_bytes, uploads.arrived_bytes());
        let inner = Inner {
            scrub: Scrub::load(&options.folder),
            bucket,
            options,
            notes,
            taken,
            uploads,
            hidden: Mutex::new(hidden),
            known: Mutex::default(),
            announced: Mutex::new(announced),
            confirms: AtomicBool::new(false),
            turns: Default::default(),
        };
        let blobs = Self { inner: Arc::new(inner) };
        blobs.settle_unconfirmed().await;
        Ok(blobs)
    }

    /// The place as people name it.
    pub fn place(&self) -> &CloudPlace {
        &self.inner.options.place
    }

    /// Bytes that blobs may still take by the quota, open uploads counted by what arrived; `None`: no quota.
    pub fn available_bytes(&self) -> Option<u64> {
        self.inner.taken.within_quota()
    }

    /// Whether the store did what it was last asked.
    ///
    /// # Errors
    /// What it said instead.
    pub fn ready(&self) -> Result<(), BlobError> {
        self.inner.bucket.trouble().map_or(Ok(()), Err)
    }

    /// Asks the store now and then whether it is there, until `closing`.
    pub async fn keep_looking(&self, closing: CancellationToken) {
        let looking = async {
            loop {
                let was_ready = self.ready().is_ok();
                let looked = match self.inner.bucket.facts(marker::MARKER).await {
                    Ok(None) => Err(self.inner.bucket.lost(marker::MARKER)),
                    looked => looked,
                };
                match (was_ready, &looked) {
                    (true, Err(error)) => tracing::warn!(%error, "the blob store cannot be used"),
                    (false, Ok(_)) => tracing::info!(place = %self.place(), "the blob store is there again"),
                    _ => {}
                }
                tokio::time::sleep(if looked.is_ok() { LOOKED_EVERY } else { LOOKED_AGAIN }).await;
            }
        };
        closing.run_until_cancelled(looking).await;
    }

    /// Hashes a visible blob; a damaged one is set aside and named in the error.
    ///
    /// # Errors
    /// It is not there, it is damaged, or the store fails.
    pub async fn verify(&self, digest: Digest) -> Result<(), BlobError> {
        self.verify_slowly(digest, None).await.map(drop)
    }

    /// Why a blob that is not visible is not.
    pub fn why_missing(&self, digest: Digest) -> BlobError {
        match lock(&self.inner.hidden).quarantined.contains(&digest) {
            true => BlobError::Quarantined { digest },
            false => BlobError::NotFound { digest },
        }
    }

    /// Blobs that were set aside as damaged and not stored again since.
    pub fn quarantined(&self) -> Vec<Digest> {
        lock(&self.inner.hidden).quarantined.iter().copied().collect()
    }

    /// How far the scrub in the background is.
    pub fn scrub_state(&self) -> ScrubState {
        self.inner.scrub.state().clone()
    }

    /// As [`crate::LocalBlobs::scrub`].
    ///
    /// # Errors
    /// When objects cannot be listed; damage is no error here.
    pub async fn scrub(
        &self,
        bytes_per_s: u64,
        told: impl FnMut(&ScrubReport) + Send,
    ) -> Result<ScrubReport, BlobError> {
        scrub(self, bytes_per_s, told).await
    }

    /// Looks through all blobs again and again until `closing`.
    pub async fn keep_scrubbing(&self, options: ScrubOptions, closing: CancellationToken) {
        keep_scrubbing(self, options, closing).await;
    }

    /// Whether any blob is stored.
    ///
    /// # Errors
    /// The store fails.
    pub async fn has_some(&self) -> Result<bool, BlobError> {
        Ok(self.inner.bucket.any(Some("sha256")).await?.is_some())
    }

    /// Every visible blob with its bytes, in the order of digests.
    ///
    /// # Errors
    /// The store fails.
    pub async fn list(&self) -> Result<Vec<(Digest, u64)>, BlobError> {
        let all = self.inner.bucket.list("sha256").await?;
        let blobs = all.into_iter().filter_map(|(name, facts)| Some((name.parse().ok()?, facts.size_bytes)));
        Ok(blobs.filter(|(digest, _)| !self.is_hidden(*digest)).collect())
    }

    /// Size of a visible blob.
    ///
    /// # Errors
    /// The store fails.
    pub async fn find(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        if self.is_hidden(digest) {
            return Ok(None);
        }
        let known = lock(&self.inner.known).get(&digest).copied();
        if let Some(known) = known.filter(|known| known.at.elapsed() < FACTS_HOLD) {
            return Ok(Some(known.size_bytes));
        }
        let facts = self.inner.bucket.facts(&name(digest)).await?;
        self.remember(digest, facts.as_ref());
        Ok(facts.map(|facts| facts.size_bytes))
    }

    /// Streams `range` of a visible blob. The range must lie inside the blob.
    ///
    /// # Errors
    /// It is not there, or the store fails; also later, in the stream.
    pub async fn open_range(
        &self,
        digest: Digest,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, BlobError>>, BlobError> {
        if self.is_hidden(digest) {
            return Err(self.why_missing(digest));
        }
        if range.is_empty() {
            return Ok(stream::empty().boxed());
        }
        let wanted = range.end - range.start;
        let Some((_, stream)) = self.inner.bucket.read(&name(digest), Some(range)).await? else {
            lock(&self.inner.known).remove(&digest);
            return Err(self.why_missing(digest));
        };
        Ok(exactly(stream, digest, wanted))
    }

    /// An address under which a client reads `range` of a visible blob from the store itself, with no keys and only with
    /// that range asked for, and how long it holds. `None`: there are none.
    ///
    /// # Errors
    /// The keys cannot be had.
    pub async fn direct(&self, digest: Digest, range: Range<u64>) -> Result<Option<(String, Duration)>, BlobError> {
        match self.inner.options.direct {
            Some(lasts) if !range.is_empty() && !self.is_hidden(digest) => {
                let address = self.inner.bucket.signed_read(&name(digest), &range, lasts).await?;
                Ok(Some((address, lasts)))
            }
            _ => Ok(None),
        }
    }

    fn is_hidden(&self, digest: Digest) -> bool {
        let hidden = lock(&self.inner.hidden);
        hidden.quarantined.contains(&digest) || hidden.unconfirmed.contains(&digest)
    }

    /// Remembers what the store said, or that nothing is there.
    fn remember(&self, digest: Digest, facts: Option<&Facts>) {
        let mut known = lock(&self.inner.known);
        match facts {
            Some(facts) => {
                if known.len() >= FACTS_MAX {
                    known.clear();
                }
                known.insert(digest, Known { size_bytes: facts.size_bytes, at: Instant::now() });
            }
            None => drop(known.remove(&digest)),
        }
    }

    /// Held while a blob becomes visible, is announced or goes.
    async fn turn(&self, digest: Digest) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn_of(digest.as_raw()[0]).await
    }

    /// The same for all digests that begin with that byte.
    async fn turn_of(&self, first: u8) -> tokio::sync::MutexGuard<'_, ()> {
        self.inner.turns[usize::from(first) % TURNS].lock().await
    }

    async fn note(&self, changes: Vec<NoteChange>) -> Result<(), BlobError> {
        match changes.is_empty() {
            true => Ok(()),
            false => self.inner.notes.change(changes).await.map_err(BlobError::Notes),
        }
    }
}

/// A stream that ends with an error where fewer bytes come than were asked for.
fn exactly(
    stream: BoxStream<'static, Result<Bytes, BlobError>>,
    digest: Digest,
    wanted: u64,
) -> BoxStream<'static, Result<Bytes, BlobError>> {
    stream::unfold(Some((stream, wanted)), move |state| async move {
        let (mut stream, left) = state?;
        match stream.next().await {
            Some(Ok(piece)) => {
                let left = left.saturating_sub(piece.len() as u64);
                Some((Ok(piece), Some((stream, left))))
            }
            Some(Err(error)) => Some((Err(error), None)),
            None if left > 0 => {
                let reason = format!("{left} bytes are missing at its end");
                Some((Err(BlobError::Damaged { digest, reason }), None))
            }
            None => None,
        }
    })
    .boxed()
}

blob_store!(CloudBlobs);
