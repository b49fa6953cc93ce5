//! Looking for damaged objects, and healing them from other copies.

use super::{ANNOUNCED, CloudBlobs, QUARANTINED, bucket::name, lock, write};
use crate::{
    error::BlobError,
    local::blob_path,
    scrub::{Pace, Scrub, Scrubbed},
};
use futures::StreamExt as _;
use planforge_types::{Digest, DigestWriter};

impl CloudBlobs {
    /// Hides a damaged blob. One that was stored anew meanwhile stays.
    async fn set_aside(&self, digest: Digest, tag: Option<&str>, reason: &str) -> Result<(), BlobError> {
        let _turn = self.turn(digest).await;
        let Some(facts) = self.inner.bucket.facts(&name(digest)).await? else { return Ok(()) };
        if facts.tag.as_deref() != tag {
            return Ok(());
        }
        self.note(vec![write(QUARANTINED, digest), write(ANNOUNCED, digest)]).await?;
        if lock(&self.inner.hidden).quarantined.insert(digest) {
            self.inner.taken.gone(facts.size_bytes);
        }
        lock(&self.inner.known).remove(&digest);
        tracing::error!(%digest, reason, place = %self.place(), "a stored blob is damaged and was set aside");
        Ok(())
    }

    /// Stores what was set aside anew where a folder has it whole.
    async fn heal(&self, digest: Digest) {
        for folder in &self.inner.options.copies {
            for copy in [blob_path(folder, digest), folder.join(digest.to_string())] {
                if !copy.is_file() {
                    continue;
                }
                match self.store_file(&copy, digest).await {
                    Ok(_) => {
                        tracing::info!(%digest, from = %copy.display(), "a damaged blob was replaced by another copy of it");
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%digest, from = %copy.display(), %error, "no copy to heal a blob from");
                    }
                }
            }
        }
    }
}

impl Scrubbed for CloudBlobs {
    fn progress(&self) -> &Scrub {
        &self.inner.scrub
    }

    async fn heal_all(&self) -> Result<(), BlobError> {
        for digest in self.quarantined() {
            self.heal(digest).await;
        }
        Ok(())
    }

    async fn stored(&self, first: u8) -> Result<Vec<Digest>, BlobError> {
        let objects = self.inner.bucket.list(&format!("sha256/{first:02x}")).await?;
        Ok(objects.into_iter().filter_map(|(name, _)| name.parse().ok()).collect())
    }

    async fn verify_slowly(&self, digest: Digest, mut pace: Option<&mut Pace>) -> Result<u64, BlobError> {
        if self.is_hidden(digest) {
            return Err(self.why_missing(digest));
        }
        let Some((facts, mut stream)) = self.inner.bucket.read(&name(digest), None).await? else {
            return Err(self.why_missing(digest));
        };
        let mut hasher = DigestWriter::new();
        while let Some(piece) = stream.next().await {
            let piece = piece?;
            hasher.update(&piece);
            if let Some(pace) = &mut pace {
                pace.took(piece.len() as u64).await;
            }
        }
        let (bytes, found) = (hasher.bytes(), hasher.finish());
        if found == digest {
            return Ok(bytes);
        }
        let reason = format!("its bytes hash to sha256:{found}");
        self.set_aside(digest, facts.tag.as_deref(), &reason).await?;
        self.heal(digest).await;
        Err(BlobError::Corrupt { digest, reason })
    }
}
