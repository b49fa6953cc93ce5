//! Blobs in memory.

use bytes::Bytes;
use futures::{StreamExt as _, future::BoxFuture, stream, stream::BoxStream};
use planforge_coordinator::blobs::BlobStore;
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::Digest;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

#[derive(Clone, Debug, Default)]
pub struct MemBlobs {
    blobs: Arc<Mutex<BTreeMap<Digest, Bytes>>>,
    full: Arc<AtomicBool>,
}

impl MemBlobs {
    pub fn insert(&self, bytes: &[u8]) -> Digest {
        let digest = Digest::of(bytes);
        self.blobs.lock().unwrap().insert(digest, Bytes::copy_from_slice(bytes));
        digest
    }

    /// Lets everything that the farm stores fail for want of room.
    pub fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }

    pub fn remove(&self, digest: Digest) {
        self.blobs.lock().unwrap().remove(&digest);
    }

    pub fn get(&self, digest: Digest) -> Option<Bytes> {
        self.blobs.lock().unwrap().get(&digest).cloned()
    }
}

impl BlobStore for MemBlobs {
    fn size(&self, digest: Digest) -> BoxFuture<'_, Result<Option<u64>, ApiError>> {
        Box::pin(async move { Ok(self.get(digest).map(|bytes| bytes.len() as u64)) })
    }

    fn read(
        &self,
        digest: Digest,
        range: Range<u64>,
    ) -> BoxFuture<'_, Result<BoxStream<'static, Result<Bytes, ApiError>>, ApiError>> {
        Box::pin(async move {
            let bytes =
                self.get(digest).ok_or_else(|| ApiError::new(ErrorCode::NotFound, format!("no blob {digest}")))?;
            let part = bytes.slice(range.start as usize..range.end as usize);
            Ok(stream::iter([Ok(part)]).boxed())
        })
    }

    fn put(&self, bytes: Bytes) -> BoxFuture<'_, Result<Digest, ApiError>> {
        Box::pin(async move {
            if self.full.load(Ordering::SeqCst) {
                return Err(ApiError::new(ErrorCode::ResourceExhausted, "no room"));
            }
            Ok(self.insert(&bytes))
        })
    }
}
