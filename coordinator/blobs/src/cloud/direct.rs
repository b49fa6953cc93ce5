//! Uploads whose parts a client writes to the store itself, at addresses that are signed for it.
//!
//! Each address holds for minutes, for one method, and for one part of one upload: the SHA-256 of the part's bytes is signed
//! with it, so a store that checks it takes these bytes and no others. Nothing that a client writes reaches what is stored:
//! such an upload makes an object of its own, below `uploads/`. When the client has told of the last part, that object is
//! copied to the blob's name, where the blob stays hidden until it was read and hashes to what was announced. Where the blob
//! is stored already, what was uploaded is read instead: a digest alone opens nothing, and the answer is the same.
//!
//! Parts are noted as those that come through the coordinator, under another kind, which an older release leaves alone. What
//! a client could not write itself it may send to the coordinator, from the offset on.

use super::{
    CloudBlobs, UNCONFIRMED,
    bucket::{Part, name, part_id},
    lock,
    progress::Progress,
    remove,
    upload::Slot,
    write,
};
use crate::{error::BlobError, turn::Writing, uploader::UploadStatus};
use futures::StreamExt as _;
use planforge_types::{Digest, DigestWriter};
use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

/// The largest blob that comes this way: stores copy no more at once.
const DIRECT_MAX_BYTES: u64 = 5 << 30;
/// The longest tag of a part that is believed.
const TAG_MAX_BYTES: usize = 128;

/// Where a client writes one part of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartAddress {
    pub url: String,
    /// That the request has to have.
    pub headers: BTreeMap<String, String>,
    /// Of the part.
    pub size_bytes: u64,
    /// How long it holds.
    pub lasts: Duration,
}

/// Name of the object that an upload makes, below the prefix.
pub(super) fn staged(id: &str) -> String {
    format!("uploads/{id}")
}

/// Whether a blob of that size is better written by its client: it has several parts, and can be copied.
pub(super) fn suits(size_bytes: u64, part_bytes: u64) -> bool {
    size_bytes > part_bytes && size_bytes <= DIRECT_MAX_BYTES
}

impl CloudBlobs {
    /// Bytes of every part but the last of an upload that its client may write itself; `None`: it may not.
    ///
    /// # Errors
    /// There is no upload of that id.
    pub fn direct_part_bytes(&self, id: &str) -> Result<Option<u64>, BlobError> {
        let slot = self.inner.uploads.get(id)?;
        let may = self.inner.options.direct.is_some() && slot.may_be_direct.load(Ordering::Acquire);
        Ok(may.then_some(slot.part_bytes))
    }

    /// An address for the part of an upload that begins at `offset`, whose bytes hash to `part`.
    ///
    /// # Errors
    /// The upload does not stand there, or is not one that its client writes; there is no room; the store fails.
    pub async fn part_address(&self, id: &str, offset: u64, part: Digest) -> Result<PartAddress, BlobError> {
        let slot = self.inner.uploads.get(id)?;
        let mut writing = slot.turn.claim(id, || slot.offset()).await?;
        let lasts = self.inner.options.direct.ok_or_else(|| not_direct(id))?;
        let size_bytes = next_part(&slot, offset)?;
        self.inner.has_room(size_bytes, false)?;
        let progress = progress_of(&slot, &mut writing)?;
        let upload = match &progress.upload {
            Some(upload) => upload.clone(),
            None => {
                let upload = self.inner.bucket.begin_multipart(&staged(id)).await?;
                (progress.direct, progress.upload) = (true, Some(upload.clone()));
                self.note(progress.kept(id, &slot.announced)).await?;
                upload
            }
        };
        let index = progress.parts.len();
        let (url, headers) = self.inner.bucket.signed_part(&staged(id), &upload, index, part, lasts).await?;
        Ok(PartAddress { url, headers, size_bytes, lasts })
    }

    /// Notes that the part at `offset`, whose bytes hash to `part`, was written; `tag` is what the store calls it. Whether
    /// it was, the store says at the end.
    ///
    /// # Errors
    /// As of [`Self::part_address`].
    pub async fn part_written(
        &self,
        id: &str,
        offset: u64,
        part: Digest,
        tag: &str,
    ) -> Result<UploadStatus, BlobError> {
        let slot = self.inner.uploads.get(id)?;
        let mut writing = slot.turn.claim(id, || slot.offset()).await?;
        let size_bytes = next_part(&slot, offset)?;
        let progress = progress_of(&slot, &mut writing)?;
        if !progress.direct || !is_tag(tag) {
            return Err(not_direct(id));
        }
        self.inner.has_room(size_bytes, false)?;
        progress.parts.push(Part { id: part_id(tag, part), is_confirmed: false });
        if let Err(error) = self.note(progress.kept(id, &slot.announced)).await {
            progress.parts.pop();
            return Err(error);
        }
        self.inner.taken.arrived(size_bytes);
        slot.offset.fetch_add(size_bytes, Ordering::AcqRel);
        Ok(slot.status())
    }

    /// Makes a blob of an upload that has all its parts, where its bytes are those of its digest.
    pub(super) async fn assemble(&self, slot: &Slot, progress: &Progress) -> Result<(), BlobError> {
        let (digest, announced_bytes) = (slot.announced.digest, slot.announced.size_bytes);
        let (from, place) = (staged(&slot.id), self.place().to_string());
        let upload = progress.upload.clone().unwrap_or_default();
        let completed = self.inner.bucket.complete(&from, &upload, &progress.parts).await;
        // Where its answer was lost, or this is not the first try, the object is there all the same.
        let facts = match (completed, self.inner.bucket.facts(&from).await?) {
            (_, Some(facts)) => facts,
            (Err(BlobError::Store { trouble, action, place }), None) if trouble.is_passing() => {
                return Err(BlobError::Store { action, place, trouble });
            }
            // The store has not the parts that were told of.
            (completed, None) => {
                tracing::debug!(id = slot.id, ?completed, "an upload did not become an object");
                return Err(BlobError::NotKept { digest, place });
            }
        };
        if facts.size_bytes != announced_bytes {
            let received = facts.size_bytes.to_string();
            return Err(BlobError::SizeMismatch { digest, announced_bytes, received });
        }
        let _turn = self.turn(digest).await;
        let is_stored = self.find(digest).await? == Some(announced_bytes);
        // What lies there damaged stays as it is until better bytes are known to be here.
        let is_damaged = lock(&self.inner.hidden).quarantined.contains(&digest);
        if is_stored || is_damaged {
            self.hashes_to(&from, digest).await?;
        }
        if is_stored {
            return self.told(digest, Vec::new()).await;
        }
        lock(&self.inner.hidden).unconfirmed.insert(digest);
        self.note(vec![write(UNCONFIRMED, digest)]).await?;
        self.inner.bucket.copy(&from, &name(digest)).await?;
        if let Err(error) = self.hashes_to(&name(digest), digest).await {
            if matches!(error, BlobError::DigestMismatch { .. }) {
                self.inner.bucket.remove(&name(digest)).await?;
                self.note(vec![remove(UNCONFIRMED, digest)]).await?;
                lock(&self.inner.hidden).unconfirmed.remove(&digest);
            }
            return Err(error);
        }
        self.told(digest, Vec::new()).await?;
        self.inner.taken.stored(announced_bytes);
        tracing::debug!(%digest, bytes = announced_bytes, "a client wrote a blob to the store itself");
        Ok(())
    }

    /// Reads an object; [`BlobError::DigestMismatch`] where its bytes are others.
    async fn hashes_to(&self, object: &str, expected: Digest) -> Result<(), BlobError> {
        let Some((_, mut stream)) = self.inner.bucket.read(object, None).await? else {
            return Err(BlobError::NotKept { digest: expected, place: self.place().to_string() });
        };
        let mut hasher = DigestWriter::new();
        while let Some(piece) = stream.next().await {
            hasher.update(&piece?);
        }
        match hasher.finish() {
            found if found == expected => Ok(()),
            found => Err(BlobError::DigestMismatch { expected, found }),
        }
    }

    /// Takes away what an upload left at the store.
    pub(super) async fn unstage(&self, id: &str, upload: &str) {
        self.inner.bucket.abort(&staged(id), upload).await;
        if let Err(error) = self.inner.bucket.remove(&staged(id)).await {
            tracing::warn!(%error, id, "an object below uploads/ stays, which nothing names");
        }
    }
}

fn not_direct(id: &str) -> BlobError {
    BlobError::NotDirect { id: id.to_owned() }
}

/// Bytes of the part at `offset`, where the upload stands there.
fn next_part(slot: &Slot, given: u64) -> Result<u64, BlobError> {
    let expected = slot.offset();
    if expected != given {
        return Err(BlobError::OffsetMismatch { id: slot.id.clone(), expected, given });
    }
    match slot.announced.size_bytes.saturating_sub(expected).min(slot.part_bytes) {
        0 => Err(not_direct(&slot.id)),
        bytes => Ok(bytes),
    }
}

/// How far the upload is, where its client may write it.
fn progress_of<'a>(slot: &Slot, writing: &'a mut Writing<Progress>) -> Result<&'a mut Progress, BlobError> {
    let progress = writing.left.as_mut().ok_or_else(|| BlobError::UploadUnknown { id: slot.id.clone() })?;
    let is_other_way = !progress.direct && progress.upload.is_some();
    if is_other_way || !progress.tail.is_empty() || !slot.may_be_direct.load(Ordering::Acquire) {
        return Err(not_direct(&slot.id));
    }
    Ok(progress)
}

/// Whether a text may be a store's name of a part; others are never sent on.
fn is_tag(tag: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'"' | b'-' | b'_' | b'.' | b'/' | b'+' | b'=');
    !tag.is_empty() && tag.len() <= TAG_MAX_BYTES && tag.bytes().all(plain)
}
