//! What carries requests to a store: TLS by ring, no proxy, no redirect followed, and what the store confirmed told to who
//! asked.

use crate::error::BlobError;
use futures::future::BoxFuture;
use object_store::{
    ClientOptions,
    client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService},
};
use planforge_certificates::authorities;
use std::{path::Path, sync::Arc, time::Duration};
use tokio_rustls::rustls::{ClientConfig, crypto::ring};

/// To reach the store's host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// From one piece of an answer to the next.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
pub(super) const CHECKSUM: &str = "x-amz-checksum-sha256";

/// The SHA-256 that a store says it keeps, in base64: put beside its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Confirmed(pub String);

#[derive(Clone, Debug)]
pub(super) struct Http(reqwest::Client);

impl Http {
    pub fn new(ca_file: Option<&Path>) -> Result<Self, BlobError> {
        let unusable = |why: String| BlobError::Unusable {
            what: ca_file.map_or_else(|| "TLS".into(), |path| format!("the authorities in {}", path.display())),
            why,
            hint: "name a PEM file with certificates that this program may read: --blobs-ca FILE".into(),
        };
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(error.to_string()))?
            // Without any, plain HTTP still works, and TLS says that it trusts nobody.
            .with_root_certificates(authorities(ca_file).map_err(unusable)?)
            .with_no_client_auth();
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(config)
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .build();
        client.map(Self).map_err(|error| unusable(error.to_string()))
    }
}

impl HttpConnector for Http {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Http {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let mut response = self.0.call(request).await?;
            let confirmed = response.headers().get(CHECKSUM).and_then(|value| value.to_str().ok()).map(str::to_owned);
            if let Some(confirmed) = confirmed {
                response.extensions_mut().insert(Confirmed(confirmed));
            }
            Ok(response)
        })
    }
}
