//! Looking for damage that changed no times: bits that rot on the disk.

use super::{Inner, LocalBlobs, blocking};
use crate::{
    error::BlobError,
    scrub::{self, Pace, Scrub, ScrubOptions, ScrubReport, ScrubState, Scrubbed},
};
use planforge_types::{Digest, DigestWriter};
use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::Path,
    sync::Arc,
};
use tokio_util::sync::CancellationToken;

/// Bytes that are read and hashed at once: a millisecond's work.
const PIECE_BYTES: usize = 1 << 20;

impl LocalBlobs {
    /// Hashes every visible blob, one after the other, at most `bytes_per_s`, and tells `told` of every one. Ends where
    /// the returned future is dropped.
    ///
    /// # Errors
    /// When the folder cannot be listed; damage is no error here.
    pub async fn scrub(
        &self,
        bytes_per_s: u64,
        told: impl FnMut(&ScrubReport) + Send,
    ) -> Result<ScrubReport, BlobError> {
        scrub::scrub(self, bytes_per_s, told).await
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
        scrub::keep_scrubbing(self, options, closing).await;
    }
}

impl Scrubbed for LocalBlobs {
    fn progress(&self) -> &Scrub {
        &self.inner.scrub
    }

    async fn heal_all(&self) -> Result<(), BlobError> {
        let quarantined = self.quarantined()?;
        let inner = self.inner.clone();
        let heal = move || {
            quarantined.into_iter().for_each(|digest| inner.heal(digest));
            Ok(())
        };
        blocking(heal).await
    }

    async fn stored(&self, first: u8) -> Result<Vec<Digest>, BlobError> {
        let folder = self.inner.root.join("sha256").join(format!("{first:02x}"));
        blocking(move || sorted(&folder)).await
    }

    async fn verify_slowly(&self, digest: Digest, mut pace: Option<&mut Pace>) -> Result<u64, BlobError> {
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
            if let Some(pace) = &mut pace {
                pace.took(bytes).await;
            }
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

/// Digests that name what lies in a folder, in order; none where there is no folder.
fn sorted(folder: &Path) -> Result<Vec<Digest>, BlobError> {
    let listed = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let names: Vec<OsString> = match listed {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Vec::new(),
        other => other.map_err(BlobError::io("list", folder))?,
    };
    let mut digests: Vec<Digest> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
    digests.sort_unstable();
    Ok(digests)
}
