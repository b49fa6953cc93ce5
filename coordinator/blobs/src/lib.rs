//! Content-addressed, immutable bytes: models, plans, cards, reports, logs.

mod error;
mod local;
mod uploader;

pub use error::{BlobError, Room, Whose};
pub use local::{
    Begun, How, LocalBlobs, LocalBlobsOptions, ScrubOptions, ScrubReport, ScrubState, UploadStatus, blob_path,
    check_blob, copy_blob,
};
pub use uploader::{ProjectRoom, Uploader};

use bytes::Bytes;
use futures::{future::BoxFuture, stream::BoxStream};
use planforge_proto::ApiError;
use planforge_types::Digest;
use std::ops::Range;

/// Where blobs live. A blob is visible only once its bytes are durable and their SHA-256 was checked.
pub trait BlobStore: Send + Sync + 'static {
    /// Size of a visible blob, `None` when there is none.
    fn size(&self, digest: Digest) -> BoxFuture<'_, Result<Option<u64>, ApiError>>;

    /// Streams `range` of a visible blob.
    fn read(
        &self,
        digest: Digest,
        range: Range<u64>,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError>>;

    /// Stores a small blob (a card, a report, a sealed log) in one call and returns its digest.
    fn put(&self, bytes: Bytes) -> BoxFuture<'_, Result<Digest, ApiError>>;

    /// Whether work may be taken that will store something: what runs already has room of its own.
    fn room_for_work(&self) -> Result<(), ApiError> {
        Ok(())
    }
}
