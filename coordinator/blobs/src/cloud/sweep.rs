//! Announcing blobs, and removing those that nothing names any more.
//!
//! A note says when a blob was last published or announced, by the farm's own clock; where there is none any more, the
//! store's time of the object counts, which is older. A note is renewed after [`NOTED_FOR`] only, so a sweep leaves alone
//! what is younger by as much.

use super::{ANNOUNCED, CloudBlobs, QUARANTINED, UNCONFIRMED, bucket::name, lock, remove, write};
use crate::{error::BlobError, scrub::now_ms};
use planforge_types::Digest;
use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Announcements within this time after a note change nothing: graces are hours.
const NOTED_FOR: Duration = Duration::from_secs(10 * 60);

/// A time before which a note says that a blob is old, Unix milliseconds.
fn old_ms(before: SystemTime) -> u64 {
    let before = before.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(NOTED_FOR);
    u64::try_from(before.as_millis()).unwrap_or(u64::MAX)
}

impl CloudBlobs {
    /// Size of a visible blob, which stays visible for the length of the grace from now on.
    ///
    /// # Errors
    /// The store or the notes fail.
    pub async fn announce(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        let _turn = self.turn(digest).await;
        let Some(size_bytes) = self.find(digest).await? else { return Ok(None) };
        let noted_ms = lock(&self.inner.announced).get(&digest).copied().unwrap_or(0);
        let is_fresh = now_ms().checked_sub(noted_ms).is_some_and(|age_ms| u128::from(age_ms) < NOTED_FOR.as_millis());
        if !is_fresh {
            self.note(vec![write(ANNOUNCED, digest)]).await?;
            lock(&self.inner.announced).insert(digest, now_ms());
        }
        Ok(Some(size_bytes))
    }

    /// Blobs of one folder that were neither published nor announced since `before`, those that were set aside too.
    ///
    /// # Errors
    /// The store or the notes fail.
    pub async fn old_blobs(&self, folder: u8, before: SystemTime) -> Result<Vec<(Digest, u64)>, BlobError> {
        let before_ms = old_ms(before);
        let mut old = Vec::new();
        for (name, facts) in self.inner.bucket.list(&format!("sha256/{folder:02x}")).await? {
            // What is no blob was put there by somebody else.
            let Ok(digest) = name.parse::<Digest>() else { continue };
            let at_ms = lock(&self.inner.announced).get(&digest).copied().unwrap_or(facts.modified_ms);
            if at_ms < before_ms {
                old.push((digest, facts.size_bytes));
            }
        }
        // Notes of this age say no more than the objects do. One turn is that of the whole folder.
        let _turn = self.turn_of(folder).await;
        let stale: BTreeSet<Digest> = lock(&self.inner.announced)
            .iter()
            .filter(|(digest, at_ms)| digest.as_raw()[0] == folder && **at_ms < before_ms)
            .map(|(digest, _)| *digest)
            .collect();
        self.note(stale.iter().map(|digest| remove(ANNOUNCED, *digest)).collect()).await?;
        lock(&self.inner.announced).retain(|digest, _| !stale.contains(digest));
        Ok(old)
    }

    /// Removes a blob, unless it was published or announced since `before`. Returns its bytes.
    ///
    /// # Errors
    /// The store or the notes fail.
    pub async fn remove_old(&self, digest: Digest, before: SystemTime) -> Result<Option<u64>, BlobError> {
        let _turn = self.turn(digest).await;
        let Some(facts) = self.inner.bucket.facts(&name(digest)).await? else { return Ok(None) };
        let at_ms = lock(&self.inner.announced).get(&digest).copied().unwrap_or(facts.modified_ms);
        if at_ms >= old_ms(before) {
            return Ok(None);
        }
        self.inner.bucket.remove(&name(digest)).await?;
        lock(&self.inner.known).remove(&digest);
        let was_hidden = {
            let mut hidden = lock(&self.inner.hidden);
            hidden.quarantined.remove(&digest) | hidden.unconfirmed.remove(&digest)
        };
        if !was_hidden {
            self.inner.taken.gone(facts.size_bytes);
        }
        self.note([ANNOUNCED, QUARANTINED, UNCONFIRMED].map(|kind| remove(kind, digest)).into()).await?;
        lock(&self.inner.announced).remove(&digest);
        Ok(Some(facts.size_bytes))
    }
}
