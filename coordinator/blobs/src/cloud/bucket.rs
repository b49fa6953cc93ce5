//! A store's objects: what is asked of it and how it stands, with errors in words.

use super::{
    http::{CHECKSUM, Confirmed},
    place::{CloudAccess, CloudPlace, Objects, client},
};
use crate::{error::BlobError, trouble::Trouble};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStoreExt as _, PutMode, PutPayload, multipart::PartId,
    signer::SignedUrlOptions,
};
use planforge_types::Digest;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// An object as the store describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub size_bytes: u64,
    /// By the store's clock, Unix milliseconds.
    pub modified_ms: u64,
    /// Changes whenever the object is written anew.
    pub tag: Option<String>,
}

impl From<&ObjectMeta> for Facts {
    fn from(meta: &ObjectMeta) -> Self {
        Self {
            size_bytes: meta.size,
            modified_ms: u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0),
            tag: meta.e_tag.clone(),
        }
    }
}

/// One piece of a multipart upload, as it is named when the upload is completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub id: String,
    /// The store said that it keeps these very bytes.
    pub is_confirmed: bool,
}

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Bucket {
    store: Arc<dyn Objects>,
    pub place: CloudPlace,
    /// What was wrong when it was last asked; `None`: nothing.
    trouble: Arc<Mutex<Option<Trouble>>>,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bucket").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Name of a blob's object, below the prefix: as in a folder.
pub(super) fn name(digest: Digest) -> String {
    let hex = digest.to_string();
    format!("sha256/{}/{hex}", &hex[..2])
}

/// The client's name of a part that somebody else wrote: as [`Bucket::put_part`] gives it, with the checksum that a store
/// asks for which was told of one when the upload began.
pub(super) fn part_id(tag: &str, digest: Digest) -> String {
    let checksum = STANDARD.encode(digest.as_raw());
    let tag = tag.replace('"', "&quot;");
    format!("<PartMetadata><e_tag>{tag}</e_tag><checksum_sha256>{checksum}</checksum_sha256></PartMetadata>")
}

impl Bucket {
    pub fn new(place: CloudPlace, access: &CloudAccess) -> Result<Self, BlobError> {
        Ok(Self { store: client(&place, access)?, place, trouble: Arc::default() })
    }

    fn failed(&self, action: &'static str, error: &object_store::Error) -> BlobError {
        let trouble = Trouble::of(error);
        if trouble != Trouble::Forgotten {
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble.clone());
        }
        tracing::debug!(action, %error, "the blob store failed");
        BlobError::Store { action, place: self.place.to_string(), trouble }
    }

    /// Notes how the store answered.
    fn told<T>(&self, action: &'static str, answer: object_store::Result<T>) -> Result<T, BlobError> {
        match answer {
            Ok(value) => {
                *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
                Ok(value)
            }
            Err(error) => Err(self.failed(action, &error)),
        }
    }

    /// As [`Self::told`], of an object that need not be there.
    fn perhaps<T>(&self, action: &'static str, answer: object_store::Result<T>) -> Result<Option<T>, BlobError> {
        match answer {
            Err(object_store::Error::NotFound { ref source, .. })
                if !source.to_string().contains("<Code>NoSuchBucket</Code>") =>
            {
                Ok(None)
            }
            other => self.told(action, other).map(Some),
        }
    }

    /// Notes that an object is gone which has to be there, with its bucket as like as not.
    pub fn lost(&self, name: &str) -> BlobError {
        let trouble = Trouble::Failed { detail: format!("the bucket, or {name} in it, is gone") };
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble.clone());
        BlobError::Store { action: "reach the blobs", place: self.place.to_string(), trouble }
    }

    /// What was wrong when the store was last asked.
    pub fn trouble(&self) -> Option<BlobError> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(BlobError::Store { action: "reach the blobs", place: self.place.to_string(), trouble })
    }

    pub async fn facts(&self, name: &str) -> Result<Option<Facts>, BlobError> {
        let mut answer = self.store.head(&self.place.key(name)).await;
        if let Err(object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }) = &answer
        {
            // What is answered to HEAD has no words: whether it is the keys or the clock is said to who reads.
            let range = Some(GetRange::Bounded(0..1));
            let read = GetOptions { range, ..GetOptions::default() };
            if let Err(error) = self.store.get_opts(&self.place.key(name), read).await {
                answer = Err(error);
            }
        }
        Ok(self.perhaps("look up an object", answer)?.map(|meta| Facts::from(&meta)))
    }

    /// A small object as a whole.
    pub async fn get(&self, name: &str) -> Result<Option<Bytes>, BlobError> {
        let action = "read an object";
        let answer = self.store.get(&self.place.key(name)).await;
        match self.perhaps(action, answer)? {
            Some(got) => self.told(action, got.bytes().await).map(Some),
            None => Ok(None),
        }
    }

    /// Streams part of an object, with what the store says of the whole; `None`: there is no such object.
    pub async fn read(
        &self,
        name: &str,
        range: Option<Range<u64>>,
    ) -> Result<Option<(Facts, BoxStream<'static, Result<Bytes, BlobError>>)>, BlobError> {
        let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
        let answer = self.store.get_opts(&self.place.key(name), options).await;
        let Some(got) = self.perhaps("read an object", answer)? else { return Ok(None) };
        let (facts, bucket) = (Facts::from(&got.meta), self.clone());
        let stream = got.into_stream().map_err(move |error| bucket.failed("read an object", &error));
        Ok(Some((facts, stream.boxed())))
    }

    /// Writes an object in one request; whether the store confirmed the digest of what it keeps.
    pub async fn put(&self, name: &str, bytes: Bytes, digest: Digest) -> Result<bool, BlobError> {
        let answer = self.store.put(&self.place.key(name), PutPayload::from(bytes)).await;
        let put = self.told("write an object", answer)?;
        Ok(put.extensions.get::<Confirmed>().is_some_and(|confirmed| confirmed.0 == STANDARD.encode(digest.as_raw())))
    }

    /// Writes an object that is not there; `false`: it is there. A store that cannot tell writes it.
    pub async fn create(&self, name: &str, bytes: Bytes) -> Result<bool, BlobError> {
        let key = self.place.key(name);
        let create = self.store.put_opts(&key, PutPayload::from(bytes.clone()), PutMode::Create.into()).await;
        match create {
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(object_store::Error::NotImplemented { .. }) => {
                self.told("write an object", self.store.put(&key, PutPayload::from(bytes)).await).map(|_| true)
            }
            other => self.told("write an object", other).map(|_| true),
        }
    }

    /// Removes an object; one that is not there is none.
    pub async fn remove(&self, name: &str) -> Result<(), BlobError> {
        let answer = self.store.delete(&self.place.key(name)).await;
        self.perhaps("remove an object", answer).map(drop)
    }

    pub async fn begin_multipart(&self, name: &str) -> Result<String, BlobError> {
        let answer = self.store.create_multipart(&self.place.key(name)).await;
        self.told("begin an upload", answer)
    }

    pub async fn put_part(&self, name: &str, upload: &str, index: usize, bytes: Bytes) -> Result<Part, BlobError> {
        let digest = Digest::of(&bytes);
        let (key, upload) = (self.place.key(name), upload.to_owned());
        let answer = self.store.put_part(&key, &upload, index, PutPayload::from(bytes)).await;
        let id = self.told("write part of an upload", answer)?.content_id;
        let is_confirmed = id.contains(&STANDARD.encode(digest.as_raw()));
        Ok(Part { id, is_confirmed })
    }

    /// An address under which one part of an upload can be written without keys, for so long, and the headers that such a
    /// request has to have: the checksum is signed, and with it the bytes and how many they are.
    pub async fn signed_part(
        &self,
        name: &str,
        upload: &str,
        index: usize,
        digest: Digest,
        lasts: Duration,
    ) -> Result<(String, BTreeMap<String, String>), BlobError> {
        let checksum = STANDARD.encode(digest.as_raw());
        let value = http::HeaderValue::from_str(&checksum).expect("base64 is ASCII");
        let options = SignedUrlOptions::new()
            .with_query([("partNumber", (index + 1).to_string()), ("uploadId", upload.to_owned())])
            .with_signed_header(http::HeaderName::from_static(CHECKSUM), value);
        let answer = self.store.signed_url_opts(http::Method::PUT, &self.place.key(name), lasts, &options).await;
        let url = self.told("sign an address", answer)?;
        Ok((url.into(), BTreeMap::from([(CHECKSUM.to_owned(), checksum)])))
    }

    /// Copies an object; none is there half.
    pub async fn copy(&self, from: &str, to: &str) -> Result<(), BlobError> {
        let answer = self.store.copy(&self.place.key(from), &self.place.key(to)).await;
        self.told("copy an object", answer)
    }

    pub async fn complete(&self, name: &str, upload: &str, parts: &[Part]) -> Result<(), BlobError> {
        let parts = parts.iter().map(|part| PartId { content_id: part.id.clone() }).collect();
        let answer = self.store.complete_multipart(&self.place.key(name), &upload.to_owned(), parts).await;
        self.told("complete an upload", answer).map(drop)
    }

    /// Gives an upload up. One that is not known is given up already.
    pub async fn abort(&self, name: &str, upload: &str) {
        if let Err(error) = self.store.abort_multipart(&self.place.key(name), &upload.to_owned()).await {
            tracing::debug!(%error, "an upload of the store was not given up; its lifecycle rule collects it");
        }
    }

    /// Names below one, which are digests' mostly, with what the store says of them, in order.
    pub async fn list(&self, below: &str) -> Result<Vec<(String, Facts)>, BlobError> {
        let answer: object_store::Result<Vec<ObjectMeta>> =
            self.store.list(Some(&self.place.key(below))).try_collect().await;
        let mut found: Vec<_> = self
            .told("list objects", answer)?
            .iter()
            .filter_map(|meta| Some((meta.location.filename()?.to_owned(), Facts::from(meta))))
            .collect();
        found.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(found)
    }

    /// The key of some object of this place, where there is any.
    pub async fn any(&self, below: Option<&str>) -> Result<Option<String>, BlobError> {
        let prefix = below.map(|name| self.place.key(name)).or_else(|| self.place.prefix());
        let first = self.store.list(prefix.as_ref()).next().await.transpose();
        Ok(self.told("list objects", first)?.map(|meta| meta.location.to_string()))
    }

    /// An address under which a range of an object can be read without keys, for so long.
    pub async fn signed_read(&self, name: &str, range: &Range<u64>, lasts: Duration) -> Result<String, BlobError> {
        let asked = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let value = http::HeaderValue::from_str(&asked).expect("numbers are ASCII");
        let options = SignedUrlOptions::new().with_signed_header(http::header::RANGE, value);
        let answer = self.store.signed_url_opts(http::Method::GET, &self.place.key(name), lasts, &options).await;
        self.told("sign an address", answer).map(String::from)
    }
}
