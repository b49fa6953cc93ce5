//! Blobs wherever a farm keeps them.

use crate::{
    BlobStore,
    cloud::{CloudBlobs, PartAddress},
    error::BlobError,
    local::LocalBlobs,
    scrub::{ScrubOptions, ScrubReport, ScrubState},
    uploader::{Begun, ProjectRoom, UploadStatus, Uploader},
};
use bytes::Bytes;
use futures::{Stream, stream::BoxStream};
use planforge_types::Digest;
use std::{fmt, ops::Range, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// The blobs of a coordinator: in a folder or in a cloud. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Blobs {
    Folder(LocalBlobs),
    Cloud(CloudBlobs),
}

impl From<LocalBlobs> for Blobs {
    fn from(blobs: LocalBlobs) -> Self {
        Self::Folder(blobs)
    }
}

impl From<CloudBlobs> for Blobs {
    fn from(blobs: CloudBlobs) -> Self {
        Self::Cloud(blobs)
    }
}

/// Asks the one that it is.
macro_rules! of {
    ($either:expr, $blobs:ident => $answer:expr) => {
        match $either {
            Blobs::Folder($blobs) => $answer,
            Blobs::Cloud($blobs) => $answer,
        }
    };
}

// What each answers, and when it fails, is told at the method of the same name of the two.
impl Blobs {
    /// As what farms and schedulers use.
    pub fn as_store(&self) -> Arc<dyn BlobStore> {
        of!(self, blobs => Arc::new(blobs.clone()))
    }

    /// Bytes that blobs may still take; `None`: as many as the store takes.
    pub fn available_bytes(&self) -> Result<Option<u64>, BlobError> {
        match self {
            Self::Folder(blobs) => blobs.available_bytes().map(Some),
            Self::Cloud(blobs) => Ok(blobs.available_bytes()),
        }
    }

    /// Whether blobs can be reached, as far as is known. A folder always can.
    pub fn ready(&self) -> Result<(), BlobError> {
        match self {
            Self::Folder(_) => Ok(()),
            Self::Cloud(blobs) => blobs.ready(),
        }
    }

    /// Keeps knowing that, until `closing`.
    pub async fn keep_looking(&self, closing: CancellationToken) {
        match self {
            Self::Folder(_) => {}
            Self::Cloud(blobs) => blobs.keep_looking(closing).await,
        }
    }

    /// An address at which a client reads part of a blob without this coordinator, and how long it holds.
    pub async fn direct(&self, digest: Digest, range: Range<u64>) -> Result<Option<(String, Duration)>, BlobError> {
        match self {
            Self::Folder(_) => Ok(None),
            Self::Cloud(blobs) => blobs.direct(digest, range).await,
        }
    }

    /// Bytes of every part but the last of an upload that its client may write to the store itself.
    pub fn direct_part_bytes(&self, id: &str) -> Result<Option<u64>, BlobError> {
        match self {
            Self::Folder(_) => Ok(None),
            Self::Cloud(blobs) => blobs.direct_part_bytes(id),
        }
    }

    pub async fn part_address(&self, id: &str, offset: u64, part: Digest) -> Result<PartAddress, BlobError> {
        match self {
            Self::Folder(_) => Err(BlobError::NotDirect { id: id.to_owned() }),
            Self::Cloud(blobs) => blobs.part_address(id, offset, part).await,
        }
    }

    pub async fn part_written(
        &self,
        id: &str,
        offset: u64,
        part: Digest,
        tag: &str,
    ) -> Result<UploadStatus, BlobError> {
        match self {
            Self::Folder(_) => Err(BlobError::NotDirect { id: id.to_owned() }),
            Self::Cloud(blobs) => blobs.part_written(id, offset, part, tag).await,
        }
    }

    pub async fn verify(&self, digest: Digest) -> Result<(), BlobError> {
        of!(self, blobs => blobs.verify(digest).await)
    }

    pub fn why_missing(&self, digest: Digest) -> BlobError {
        of!(self, blobs => blobs.why_missing(digest))
    }

    /// Whether any blob is visible.
    pub async fn has_some(&self) -> Result<bool, BlobError> {
        match self {
            Self::Folder(blobs) => blobs.has_some(),
            Self::Cloud(blobs) => blobs.has_some().await,
        }
    }

    /// Every visible blob with its bytes, in the order of digests.
    pub async fn list(&self) -> Result<Vec<(Digest, u64)>, BlobError> {
        of!(self, blobs => blobs.list().await)
    }

    pub async fn find(&self, digest: Digest) -> Result<Option<u64>, BlobError> {
        of!(self, blobs => blobs.find(digest).await)
    }

    pub async fn open_range(
        &self,
        digest: Digest,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, BlobError>>, BlobError> {
        of!(self, blobs => blobs.open_range(digest, range).await)
    }

    pub async fn store(&self, bytes: Bytes) -> Result<Digest, BlobError> {
        of!(self, blobs => blobs.store(bytes).await)
    }

    /// Announces a blob, as nobody in particular who may know what is stored.
    pub async fn begin_upload(&self, digest: Digest, size_bytes: u64) -> Result<Begun, BlobError> {
        self.begin_upload_for(Uploader::default(), digest, size_bytes, true, None).await
    }

    pub async fn begin_upload_for(
        &self,
        uploader: Uploader,
        digest: Digest,
        size_bytes: u64,
        may_know: bool,
        project: Option<ProjectRoom>,
    ) -> Result<Begun, BlobError> {
        of!(self, blobs => blobs.begin_upload_for(uploader, digest, size_bytes, may_know, project).await)
    }

    pub fn upload_of(&self, uploader: &Uploader, id: &str) -> Result<(Digest, UploadStatus), BlobError> {
        of!(self, blobs => blobs.upload_of(uploader, id))
    }

    pub fn upload_status(&self, id: &str) -> Result<UploadStatus, BlobError> {
        of!(self, blobs => blobs.upload_status(id))
    }

    pub async fn append<E: fmt::Display + Send + 'static>(
        &self,
        id: &str,
        offset: u64,
        complete: bool,
        body: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    ) -> Result<UploadStatus, BlobError> {
        of!(self, blobs => blobs.append(id, offset, complete, body).await)
    }

    pub async fn abandon_upload(&self, id: &str) -> Result<(), BlobError> {
        of!(self, blobs => blobs.abandon_upload(id).await)
    }

    pub async fn collect_stale_uploads(&self) -> usize {
        of!(self, blobs => blobs.collect_stale_uploads().await)
    }

    pub async fn scrub(
        &self,
        bytes_per_s: u64,
        told: impl FnMut(&ScrubReport) + Send,
    ) -> Result<ScrubReport, BlobError> {
        of!(self, blobs => blobs.scrub(bytes_per_s, told).await)
    }

    pub fn scrub_state(&self) -> ScrubState {
        of!(self, blobs => blobs.scrub_state())
    }

    pub fn quarantined(&self) -> Result<Vec<Digest>, BlobError> {
        match self {
            Self::Folder(blobs) => blobs.quarantined(),
            Self::Cloud(blobs) => Ok(blobs.quarantined()),
        }
    }

    pub async fn keep_scrubbing(&self, options: ScrubOptions, closing: CancellationToken) {
        of!(self, blobs => blobs.keep_scrubbing(options, closing).await);
    }
}
