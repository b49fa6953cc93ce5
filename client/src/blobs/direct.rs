//! Reading a blob from the store in which a coordinator keeps it, at an address that the coordinator signed: it holds for
//! minutes, for one range and no other use. No token goes there, and what comes is held against its digest like everything
//! else. Where the store cannot be reached from here, the coordinator passes the bytes on.

use super::{Blobs, STALL_TIMEOUT};
use crate::{
    Endpoint,
    connect::CONNECT_TIMEOUT,
    failure::causes,
    tls::{self, TlsError},
};
use reqwest::{Response, StatusCode, header};
use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

/// Asks for such an address.
pub(super) const PLANFORGE_DIRECT: &str = "planforge-direct";
/// The range that goes with it.
const PLANFORGE_RANGE: &str = "planforge-range";

/// What is known of the store.
#[derive(Debug, Default)]
pub(super) struct Direct {
    /// `None`: this machine cannot have one.
    http: OnceLock<Option<reqwest::Client>>,
    /// It was tried and did not work.
    is_off: AtomicBool,
    /// The same of writing to it.
    writes_off: AtomicBool,
}

impl Direct {
    pub fn is_on(&self) -> bool {
        !self.is_off.load(Ordering::Relaxed)
    }

    /// Whether blobs may be written to it.
    pub fn writes(&self) -> bool {
        !self.writes_off.load(Ordering::Relaxed)
    }

    pub fn write_no_more(&self) {
        self.writes_off.store(true, Ordering::Relaxed);
    }

    pub fn http(&self) -> Option<&reqwest::Client> {
        let made = self.http.get_or_init(|| {
            let made = made();
            if let Err(error) = &made {
                tracing::debug!(%error, "blobs are neither read from their store nor written to it");
            }
            made.ok()
        });
        made.as_ref()
    }
}

/// A client that trusts the system's roots: a store has a certificate of its own.
fn made() -> Result<reqwest::Client, TlsError> {
    let config = match tls::verified(None, None, tls::HTTP1) {
        Err(TlsError::NoRoots) => tls::unused(),
        other => other,
    };
    reqwest::Client::builder()
        .tls_backend_preconfigured(config?)
        .http1_only()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT_TIMEOUT)
        .build()
        .map_err(TlsError::HttpClient)
}

impl Blobs {
    /// Whoever is reached under TLS sends nobody to where others can read along.
    pub(super) fn may_follow(&self, address: &str) -> bool {
        let is_plain = !matches!(*self.endpoint, Endpoint::Https { .. });
        address.starts_with("https://") || is_plain && address.starts_with("http://")
    }

    /// Follows the coordinator's answer to the store, whose answer is returned. `None`: that did not work, and is not tried
    /// again.
    pub(super) async fn follow(&self, told: &Response) -> Option<Response> {
        let text = |name: &str| told.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let follow = async {
            let (address, range) = text(header::LOCATION.as_str()).zip(text(PLANFORGE_RANGE)).ok_or("no address")?;
            if !self.may_follow(&address) {
                return Err("its address is not encrypted".to_owned());
            }
            let http = self.direct.http().ok_or("no client for it")?;
            let asked = http.get(address).header(header::RANGE, range).send();
            match tokio::time::timeout(STALL_TIMEOUT, asked).await {
                Ok(Ok(response)) if response.status() == StatusCode::PARTIAL_CONTENT => Ok(response),
                Ok(Ok(response)) => Err(format!("it answers with {}", response.status())),
                Ok(Err(error)) => Err(causes(&error.without_url())),
                Err(_) => Err(format!("no answer within {} s", STALL_TIMEOUT.as_secs())),
            }
        };
        match follow.await {
            Ok(response) => Some(response),
            Err(reason) => {
                tracing::debug!(reason, "the blob store cannot be used from here; the coordinator passes blobs on");
                self.direct.is_off.store(true, Ordering::Relaxed);
                None
            }
        }
    }
}
