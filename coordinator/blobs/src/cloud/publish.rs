//! How a blob becomes visible: its object is written, then confirmed, then told.

use super::{
    ANNOUNCED, CloudBlobs, QUARANTINED, UNCONFIRMED,
    bucket::{Part, name},
    lock, remove,
    upload::part_bytes,
    write,
};
use crate::{error::BlobError, notes::NoteChange, scrub::now_ms, trouble::Trouble};
use bytes::Bytes;
use futures::StreamExt as _;
use planforge_types::{Digest, DigestWriter};
use std::{
    fs::File,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

/// The bytes of a blob on their way to its object.
pub(super) enum Written {
    /// All of them.
    Whole(Bytes),
    /// Parts that the store has already.
    Parts { upload: String, parts: Vec<Part> },
}

impl CloudBlobs {
    /// Stores a small blob in one call.
    ///
    /// # Errors
    /// No room, or the store fails.
    pub async fn store(&self, bytes: Bytes) -> Result<Digest, BlobError> {
        let digest = Digest::of(&bytes);
        if self.announce(digest).await?.is_some() {
            return Ok(digest);
        }
        let size_bytes = bytes.len() as u64;
        self.inner.has_room(size_bytes, false)?;
        self.publish(digest, size_bytes, Written::Whole(bytes), Vec::new()).await?;
        Ok(digest)
    }

    /// Makes a blob visible whose bytes were hashed to its digest. `also` is noted with it, all or nothing.
    pub(super) async fn publish(
        &self,
        digest: Digest,
        size_bytes: u64,
        written: Written,
        also: Vec<NoteChange>,
    ) -> Result<(), BlobError> {
        let _turn = self.turn(digest).await;
        if self.find(digest).await? == Some(size_bytes) {
            if let Written::Parts { upload, .. } = &written {
                self.inner.bucket.abort(&name(digest), upload).await;
            }
            return self.told(digest, also).await;
        }
        // Hidden until it is confirmed, by a note too where a store is not known to confirm what it keeps.
        lock(&self.inner.hidden).unconfirmed.insert(digest);
        if self.inner.options.read_back || !self.inner.confirms.load(Ordering::Relaxed) {
            self.note(vec![write(UNCONFIRMED, digest)]).await?;
        }
        let is_confirmed = match written {
            Written::Whole(bytes) => self.inner.bucket.put(&name(digest), bytes, digest).await?,
            Written::Parts { upload, parts } => self.complete(digest, size_bytes, &upload, &parts).await?,
        };
        if is_confirmed {
            self.inner.confirms.store(true, Ordering::Relaxed);
        }
        if !is_confirmed || self.inner.options.read_back {
            self.read_back(digest).await?;
        }
        self.told(digest, also).await?;
        self.inner.taken.stored(size_bytes);
        Ok(())
    }

    /// Notes that a blob is there, and lets it be seen.
    pub(super) async fn told(&self, digest: Digest, mut also: Vec<NoteChange>) -> Result<(), BlobError> {
        also.extend([write(ANNOUNCED, digest), remove(QUARANTINED, digest), remove(UNCONFIRMED, digest)]);
        self.note(also).await?;
        lock(&self.inner.announced).insert(digest, now_ms());
        lock(&self.inner.known).remove(&digest);
        let mut hidden = lock(&self.inner.hidden);
        hidden.unconfirmed.remove(&digest);
        if hidden.quarantined.remove(&digest) {
            tracing::info!(%digest, "a blob that was set aside as damaged is stored again");
        }
        Ok(())
    }

    /// Makes one object of an upload's parts; whether the store confirmed them all. Where its answer is lost, or it knows
    /// the upload no more, it may have done so: an object of that size is there then, and is to be read back.
    async fn complete(&self, digest: Digest, size_bytes: u64, upload: &str, parts: &[Part]) -> Result<bool, BlobError> {
        match self.inner.bucket.complete(&name(digest), upload, parts).await {
            Ok(()) => Ok(parts.iter().all(|part| part.is_confirmed)),
            Err(error) => match self.inner.bucket.facts(&name(digest)).await? {
                Some(facts) if facts.size_bytes == size_bytes => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Whether the object has the bytes of its digest; else it is removed.
    async fn read_back(&self, digest: Digest) -> Result<(), BlobError> {
        let place = self.place().to_string();
        let Some((_, mut stream)) = self.inner.bucket.read(&name(digest), None).await? else {
            return Err(BlobError::NotKept { digest, place });
        };
        let mut hasher = DigestWriter::new();
        while let Some(piece) = stream.next().await {
            hasher.update(&piece?);
        }
        if hasher.finish() == digest {
            return Ok(());
        }
        self.inner.bucket.remove(&name(digest)).await?;
        self.note(vec![remove(UNCONFIRMED, digest)]).await?;
        lock(&self.inner.hidden).unconfirmed.remove(&digest);
        Err(BlobError::NotKept { digest, place })
    }

    /// Looks at blobs of which nobody knows whether the store kept the right bytes: a process ended, or an answer was lost,
    /// while they were written.
    pub(super) async fn settle_unconfirmed(&self) {
        let unconfirmed = lock(&self.inner.hidden).unconfirmed.clone();
        for digest in unconfirmed {
            let _turn = self.turn(digest).await;
            if !lock(&self.inner.hidden).unconfirmed.contains(&digest) {
                continue;
            }
            let settled = async {
                match self.inner.bucket.facts(&name(digest)).await? {
                    Some(facts) => {
                        self.read_back(digest).await?;
                        self.told(digest, Vec::new()).await?;
                        self.inner.taken.stored(facts.size_bytes);
                    }
                    None => {
                        self.note(vec![remove(UNCONFIRMED, digest)]).await?;
                        lock(&self.inner.hidden).unconfirmed.remove(&digest);
                    }
                }
                Ok::<_, BlobError>(())
            };
            if let Err(error) = settled.await {
                tracing::warn!(%digest, %error, "a blob is not confirmed yet");
            }
        }
    }

    /// Stores a file whose bytes should be those of a digest.
    ///
    /// # Errors
    /// They are not ([`BlobError::Damaged`]), the file cannot be read, there is no room, or the store fails.
    pub async fn store_file(&self, path: &Path, digest: Digest) -> Result<u64, BlobError> {
        let file = Arc::new(File::open(path).map_err(BlobError::io("open", path))?);
        let size_bytes = file.metadata().map_err(BlobError::io("look up", path))?.len();
        if self.announce(digest).await? == Some(size_bytes) {
            return Ok(size_bytes);
        }
        self.inner.has_room(size_bytes, false)?;
        let (step, mut hasher) = (part_bytes(size_bytes), DigestWriter::new());
        let wrong = |found: Digest| match found == digest {
            true => Ok(()),
            false => Err(BlobError::Damaged { digest, reason: format!("its bytes hash to sha256:{found}") }),
        };
        if size_bytes <= step {
            let bytes = piece_of(&file, path, 0, size_bytes).await?;
            wrong(Digest::of(&bytes))?;
            self.publish(digest, size_bytes, Written::Whole(bytes), Vec::new()).await?;
            return Ok(size_bytes);
        }
        let upload = self.inner.bucket.begin_multipart(&name(digest)).await?;
        let sent = async {
            let mut parts = Vec::new();
            while hasher.bytes() < size_bytes {
                let at = hasher.bytes();
                let bytes = piece_of(&file, path, at, step.min(size_bytes - at)).await?;
                hasher.update(&bytes);
                parts.push(self.inner.bucket.put_part(&name(digest), &upload, parts.len(), bytes).await?);
            }
            wrong(hasher.finish())?;
            Ok(parts)
        };
        match sent.await {
            Ok(parts) => {
                self.publish(digest, size_bytes, Written::Parts { upload, parts }, Vec::new()).await?;
                Ok(size_bytes)
            }
            Err(error) => {
                self.inner.bucket.abort(&name(digest), &upload).await;
                Err(error)
            }
        }
    }

    /// Whether an error says that an upload cannot go on, rather than that the store is away for the moment.
    pub(super) fn is_lost(error: &BlobError) -> bool {
        matches!(
            error,
            BlobError::Store { trouble: Trouble::Forgotten, .. }
                | BlobError::NotKept { .. }
                | BlobError::DigestMismatch { .. }
                | BlobError::SizeMismatch { .. }
                | BlobError::Full { .. }
        )
    }
}

async fn piece_of(file: &Arc<File>, path: &Path, at: u64, count: u64) -> Result<Bytes, BlobError> {
    use std::os::unix::fs::FileExt as _;
    let (file, owned) = (file.clone(), path.to_owned());
    let read = tokio::task::spawn_blocking(move || {
        let mut buffer = vec![0; usize::try_from(count).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut buffer, at).map(|()| Bytes::from(buffer))
    });
    let read = read.await.unwrap_or_else(|gone| Err(std::io::Error::other(gone)));
    read.map_err(BlobError::io("read", &owned))
}
