//! The other end of a connection.

use crate::certificates::Shown;
use std::{net::IpAddr, sync::Arc};
use tokio_rustls::rustls::pki_types::CertificateDer;

/// How a request reached us; decides whether it may come without a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The Unix socket, by a process of the data folder's owner.
    Unix,
    /// A port. Whatever its address, anybody may stand behind it: every user of this machine, every page in a browser.
    Port,
}

/// What is known of the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    pub via: Via,
    pub encrypted: bool,
    /// Of a connection to a port.
    pub address: Option<IpAddr>,
    /// The client certificate that it showed, which our authorities signed.
    pub certificate: Option<Arc<PeerCertificate>>,
}

impl Peer {
    /// Where it is, for people: its address, or `unix` for the socket.
    pub fn place(&self) -> String {
        match (self.address, self.via) {
            (Some(address), _) => address.to_string(),
            (None, Via::Unix) => "unix".into(),
            (None, Via::Port) => String::new(),
        }
    }
}

/// A client certificate that TLS has verified.
#[derive(Debug)]
pub struct PeerCertificate {
    pub der: CertificateDer<'static>,
    pub shown: Shown,
}

impl PeerCertificate {
    /// `None`: it has not the form of one.
    pub fn read(der: CertificateDer<'static>) -> Option<Self> {
        let shown = Shown::read(&der)?;
        Some(Self { der, shown })
    }
}
