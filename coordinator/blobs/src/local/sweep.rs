//! Removing blobs that nothing names any more.
//!
//! A blob's change time says when it was published or last announced ([`LocalBlobs::announce`]): a file is removed only
//! when that is longer ago than a grace, looked at again under the lock that announcements take. So whoever was told that
//! a blob is there finds it there for the length of the grace, after a crash too; and who announces one that is being
//! removed is told that it is not there, and sends it.

use super::{Inner, LocalBlobs, blocking, published};
use crate::error::BlobError;
use planforge_types::Digest;
use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// An announcement within this time after another changes nothing: graces are hours.
const ANNOUNCED_FOR: Duration = Duration::from_secs(1);

impl LocalBlobs {
    /// Size of a visible blob, which stays visible for the length of the grace from now on.
    ///
    /// # Errors
    /// When the disk cannot be asked.
    pub async fn announce(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        let inner = self.inner.clone();
        blocking(move || inner.announce(digest)).await
    }

    /// Visible blobs of one folder that were neither published nor announced since `before`.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub async fn old_blobs(&self, folder: u8, before: SystemTime) -> Result<Vec<(Digest, u64)>, BlobError> {
        let inner = self.inner.clone();
        blocking(move || inner.old_blobs(folder, before)).await
    }

    /// Removes a blob, unless it was published or announced since `before`. Returns its bytes.
    ///
    /// # Errors
    /// When the disk refuses.
    pub async fn remove_old(&self, digest: Digest, before: SystemTime) -> Result<Option<u64>, BlobError> {
        let inner = self.inner.clone();
        blocking(move || inner.remove_old(digest, before)).await
    }
}

fn changed(metadata: &fs::Metadata) -> SystemTime {
    let seconds = Duration::from_secs(metadata.ctime().max(0).unsigned_abs());
    UNIX_EPOCH + seconds + Duration::from_nanos(metadata.ctime_nsec().max(0).unsigned_abs())
}

impl Inner {
    pub(super) fn announce(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        let path = self.path(digest);
        let _turn = self.turn(digest);
        let Some(metadata) = self.look_up(&path)? else { return Ok(None) };
        let is_fresh = SystemTime::now().duration_since(changed(&metadata)).is_ok_and(|age| age < ANNOUNCED_FOR);
        if !is_fresh {
            published::renew(&path).map_err(BlobError::io("keep blob", &path))?;
        }
        Ok(Some(metadata.len()))
    }

    fn old_blobs(&self, folder: u8, before: SystemTime) -> Result<Vec<(Digest, u64)>, BlobError> {
        let path = self.root.join("sha256").join(format!("{folder:02x}"));
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(BlobError::io("list folder", &path)(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(BlobError::io("list folder", &path))?;
            // What is no blob was put there by somebody else.
            let Some(digest) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // Removed meanwhile.
            let Ok(metadata) = entry.metadata() else { continue };
            if changed(&metadata) < before {
                found.push((digest, metadata.len()));
            }
        }
        Ok(found)
    }

    fn remove_old(&self, digest: Digest, before: SystemTime) -> Result<Option<u64>, BlobError> {
        let path = self.path(digest);
        let _turn = self.turn(digest);
        let Some(metadata) = self.look_up(&path)? else { return Ok(None) };
        if changed(&metadata) >= before {
            return Ok(None);
        }
        fs::remove_file(&path).map_err(BlobError::io("remove blob", &path))?;
        self.forget_bytes(metadata.len());
        Ok(Some(metadata.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalBlobsOptions;
    use std::time::Instant;

    #[tokio::test]
    async fn what_is_announced_while_it_is_swept_stays_and_the_rest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = LocalBlobs::open(folder.path(), LocalBlobsOptions::default()).unwrap();
        let (kept, gone) = (blobs.store("kept".into()).await.unwrap(), blobs.store("gone".into()).await.unwrap());
        let age = ANNOUNCED_FOR + Duration::from_millis(100);
        let begin = Instant::now();
        let before = loop {
            let before = SystemTime::now() - age;
            let mut old = Vec::new();
            for digest in [kept, gone] {
                old.extend(blobs.old_blobs(digest.as_raw()[0], before).await.unwrap());
            }
            if [kept, gone].iter().all(|digest| old.contains(&(*digest, 4))) {
                break before;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "files do not grow old");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(blobs.announce(kept).await.unwrap(), Some(4));
        assert_eq!(blobs.remove_old(kept, before).await.unwrap(), None);
        assert_eq!(blobs.remove_old(gone, before).await.unwrap(), Some(4));
        assert_eq!((blobs.find(kept).await.unwrap(), blobs.find(gone).await.unwrap()), (Some(4), None));
        assert_eq!(blobs.announce(gone).await.unwrap(), None, "whoever announces it is told to send it");
        // Renewed, and not taken for written to.
        assert!(blobs.open_range(kept, 0..4).await.is_ok());
        assert_eq!(blobs.store("gone".into()).await.unwrap(), gone);
        assert_eq!(blobs.remove_old(gone, before).await.unwrap(), None, "it was just sent");
    }
}
