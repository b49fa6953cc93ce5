//! Writing the parts of a blob to the store in which a coordinator keeps it, at addresses that the coordinator signed: each
//! holds for minutes and for one part's bytes. No token goes there. The coordinator reads what came of it before the blob is
//! one, and takes itself what cannot be written there.

use super::{
    BlobError, Blobs, MAX_ANSWER_BYTES, ProgressFn, STALL_TIMEOUT, number,
    upload::{Source, UPLOAD_OFFSET, transfer_limit},
};
use crate::failure::causes;
use bytes::Bytes;
use planforge_types::Digest;
use reqwest::{Method, StatusCode, header};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{collections::BTreeMap, ops::Range};

/// The largest part that is kept in memory while it is written.
const PART_MAX_BYTES: u64 = 64 << 20;

#[derive(Serialize)]
struct PartAsk {
    offset: u64,
    sha256: Digest,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
}

#[derive(Deserialize)]
struct Address {
    url: String,
    headers: BTreeMap<String, String>,
    size_bytes: u64,
}

/// Why a part was not written.
enum Unwritten {
    /// The coordinator may take it all the same.
    Here(String),
    /// It would fare no better.
    Failed(BlobError),
}

impl Blobs {
    /// Writes parts of `source` from `offset` on, each of `part_bytes`, as long as that works; where the upload stands then.
    pub(super) async fn write_parts(
        &self,
        source: &Source,
        upload: &str,
        offset: u64,
        part_bytes: u64,
        progress: ProgressFn<'_>,
    ) -> Result<u64, BlobError> {
        let (mut at, size_bytes) = (offset, source.size_bytes());
        if part_bytes == 0 || part_bytes > PART_MAX_BYTES || !offset.is_multiple_of(part_bytes) {
            return Ok(at);
        }
        while at < size_bytes && self.direct.writes() {
            match self.write_part(source, upload, at..size_bytes.min(at + part_bytes)).await {
                Ok(next) => at = next,
                Err(Unwritten::Failed(error)) => return Err(error),
                Err(Unwritten::Here(reason)) => {
                    tracing::info!(reason, "the blob store takes no bytes from here; the coordinator passes them on");
                    self.direct.write_no_more();
                }
            }
            progress(at);
        }
        Ok(at)
    }

    async fn write_part(&self, source: &Source, upload: &str, range: Range<u64>) -> Result<u64, Unwritten> {
        let (bytes, sha256) = source.part(range.clone()).await.map_err(Unwritten::Failed)?;
        let ask = PartAsk { offset: range.start, sha256, etag: None };
        let address: Address = self.ask_of(&format!("{upload}/address"), &ask).await?;
        if address.size_bytes != bytes.len() as u64 {
            return Err(Unwritten::Here(format!("it wants {} bytes, not {}", address.size_bytes, bytes.len())));
        }
        let etag = self.put(address, bytes).await.map_err(Unwritten::Here)?;
        let told = PartAsk { etag: Some(etag), ..ask };
        let response = self.ask_raw(&format!("{upload}/parts"), &told).await?;
        match number(&response, UPLOAD_OFFSET) {
            Some(next) if next == range.end => Ok(next),
            Some(next) => Err(Unwritten::Here(format!("the coordinator stands at {next} after byte {}", range.end))),
            None => Err(Unwritten::Here(format!("the coordinator does not say where it is after byte {}", range.end))),
        }
    }

    /// Writes bytes to the store; what it calls them.
    async fn put(&self, address: Address, bytes: Bytes) -> Result<String, String> {
        if !self.may_follow(&address.url) {
            return Err("its address is not encrypted".to_owned());
        }
        let http = self.direct.http().ok_or("no client for it")?;
        let limit = STALL_TIMEOUT.max(transfer_limit(bytes.len() as u64));
        let mut request = http.put(address.url);
        for (name, value) in address.headers {
            request = request.header(name, value);
        }
        match tokio::time::timeout(limit, request.body(bytes).send()).await {
            Ok(Ok(response)) if response.status().is_success() => {
                let etag = response.headers().get(header::ETAG).and_then(|value| value.to_str().ok());
                etag.map(str::to_owned).ok_or_else(|| "it names no tag of what it wrote".to_owned())
            }
            Ok(Ok(response)) => Err(format!("it answers with {}", response.status())),
            Ok(Err(error)) => Err(causes(&error.without_url())),
            Err(_) => Err(format!("no answer within {} s", limit.as_secs())),
        }
    }

    async fn ask_of<T: DeserializeOwned>(&self, path: &str, ask: &PartAsk) -> Result<T, Unwritten> {
        let (response, url) = (self.ask_raw(path, ask).await?, self.url(path));
        let body = self.body(response, &url, MAX_ANSWER_BYTES).await.map_err(Unwritten::Failed)?;
        serde_json::from_slice(&body)
            .map_err(|error| Unwritten::Here(format!("an answer that cannot be read: {error}")))
    }

    async fn ask_raw(&self, path: &str, ask: &PartAsk) -> Result<reqwest::Response, Unwritten> {
        let order = serde_json::to_vec(ask).expect("plain data");
        let request = self.request(Method::POST, path).header(header::CONTENT_TYPE, "application/json").body(order);
        let response = self.send(request, STALL_TIMEOUT).await.map_err(Unwritten::Failed)?;
        match response.status() {
            status if status.is_success() => Ok(response),
            // It stands elsewhere, or takes the bytes only itself.
            StatusCode::CONFLICT => {
                let refusal = self.refusal(response, &self.url(path)).await;
                Err(Unwritten::Here(refusal.to_string()))
            }
            _ => Err(Unwritten::Failed(self.refusal(response, &self.url(path)).await)),
        }
    }
}
