//! Asking a coordinator to certify an agent's key.

use super::{BlobError, Blobs, MAX_ANSWER_BYTES, STALL_TIMEOUT};
use planforge_proto::enrollment::{Certified, Enrollment};
use reqwest::{Method, header};

impl Blobs {
    /// Has a key certified with the one-time token that these requests carry.
    ///
    /// # Errors
    ///
    /// As any request: the coordinator cannot be reached, or says no.
    pub async fn enroll(&self, enrollment: &Enrollment) -> Result<Certified, BlobError> {
        self.certified("/v1/enroll", serde_json::to_vec(enrollment).unwrap_or_default()).await
    }

    /// Has the key of the certificate that is shown certified for another while.
    ///
    /// # Errors
    ///
    /// As [`Blobs::enroll`].
    pub async fn renew_certificate(&self) -> Result<Certified, BlobError> {
        self.certified("/v1/certificate", b"{}".to_vec()).await
    }

    async fn certified(&self, path: &str, body: Vec<u8>) -> Result<Certified, BlobError> {
        let url = self.url(path);
        let request = self.request(Method::POST, path).header(header::CONTENT_TYPE, "application/json").body(body);
        let response = self.send(request, STALL_TIMEOUT).await?;
        if !response.status().is_success() {
            return Err(self.refusal(response, &url).await);
        }
        let body = self.body(response, &url, MAX_ANSWER_BYTES).await?;
        serde_json::from_slice(&body)
            .map_err(|error| BlobError::Protocol { url, reason: format!("the answer is no certificate: {error}") })
    }
}
