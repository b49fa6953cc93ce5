//! Content-addressed, immutable bytes: models, plans, cards, reports, logs.

/// Lets a store with methods of these names serve as [`BlobStore`].
macro_rules! blob_store {
    ($store:ty) => {
        impl crate::BlobStore for $store {
            fn size(&self, digest: Digest) -> BoxFuture<'_, Result<Option<u64>, ApiError>> {
                async move { Ok(self.announce(digest).await?) }.boxed()
            }

            fn read(
                &self,
                digest: Digest,
                range: Range<u64>,
            ) -> BoxFuture<'_, Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError>> {
                async move {
                    let stream = self.open_range(digest, range).await?;
                    Ok(stream.map(|piece| piece.map_err(ApiError::from)).boxed())
                }
                .boxed()
            }

            fn put(&self, bytes: Bytes) -> BoxFuture<'_, Result<Digest, ApiError>> {
                async move { Ok(self.store(bytes).await?) }.boxed()
            }

            fn old_blobs(&self, folder: u8, before: SystemTime) -> BoxFuture<'_, Result<Vec<(Digest, u64)>, ApiError>> {
                async move { Ok(Self::old_blobs(self, folder, before).await?) }.boxed()
            }

            fn remove_old(&self, digest: Digest, before: SystemTime) -> BoxFuture<'_, Result<Option<u64>, ApiError>> {
                async move { Ok(Self::remove_old(self, digest, before).await?) }.boxed()
            }

            fn room_for_work(&self) -> Result<(), ApiError> {
                Ok(self.inner.room_for_work()?)
            }
        }
    };
}

mod blobs;
mod cloud;
mod error;
mod local;
mod notes;
mod scrub;
mod trouble;
mod turn;
mod uploader;

pub use blobs::Blobs;
pub use cloud::{CloudAccess, CloudBlobs, CloudBlobsOptions, CloudPlace, PartAddress};
pub use error::{BlobError, Room, Whose};
pub use local::{How, LocalBlobs, LocalBlobsOptions, blob_path, check_blob, copy_blob};
pub use notes::{MemoryNotes, Note, NoteChange, Notes};
pub use scrub::{ScrubOptions, ScrubReport, ScrubState};
pub use trouble::Trouble;
pub use uploader::{Begun, ProjectRoom, UploadStatus, Uploader};

use bytes::Bytes;
use futures::{future::BoxFuture, stream::BoxStream};
use planforge_proto::ApiError;
use planforge_types::Digest;
use std::{ops::Range, time::SystemTime};

/// Where blobs live. A blob is visible only once its bytes are durable and their SHA-256 was checked.
pub trait BlobStore: Send + Sync + 'static {
    /// Size of a visible blob, `None` when there is none. Who is told that it is there finds it there: it is not swept
    /// for as long as [`Self::old_blobs`] is asked for.
    fn size(&self, digest: Digest) -> BoxFuture<'_, Result<Option<u64>, ApiError>>;

    /// Streams `range` of a visible blob.
    fn read(
        &self,
        digest: Digest,
        range: Range<u64>,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError>>;

    /// Stores a small blob (a card, a report, a sealed log) in one call and returns its digest.
    fn put(&self, bytes: Bytes) -> BoxFuture<'_, Result<Digest, ApiError>>;

    /// Blobs whose digests begin with that byte and that nobody stored or was told of since `before`, with their bytes.
    fn old_blobs(&self, _folder: u8, _before: SystemTime) -> BoxFuture<'_, Result<Vec<(Digest, u64)>, ApiError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Removes a blob, unless somebody stored it or was told of it since `before`. Returns its bytes.
    fn remove_old(&self, _digest: Digest, _before: SystemTime) -> BoxFuture<'_, Result<Option<u64>, ApiError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Whether work may be taken that will store something: what runs already has room of its own.
    fn room_for_work(&self) -> Result<(), ApiError> {
        Ok(())
    }
}
