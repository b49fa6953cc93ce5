//! Where a coordinator is.

use crate::Identity;
use http::Uri;
use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
};

/// The address of one coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Plain HTTP. `host` has no brackets, also for IPv6.
    Http { host: String, port: u16 },
    /// TLS. Without `ca_file` the system's roots are trusted; `identity` is shown where a certificate is asked for.
    Https { host: String, port: u16, ca_file: Option<PathBuf>, identity: Option<Identity> },
    /// A Unix socket on this host.
    Unix(PathBuf),
}

/// What goes with the text of an address.
#[derive(Clone, Debug, Default)]
pub struct EndpointOptions {
    /// PEM file with the certificates to trust instead of the system's roots.
    pub ca_file: Option<PathBuf>,
    /// Allows plain HTTP to another host: tokens and plans then travel in the clear.
    pub insecure: bool,
}

/// A text that is no usable address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error(
        "'{text}' is not a coordinator's address: {reason}; write http://HOST:PORT, https://HOST:PORT or unix:/PATH"
    )]
    Malformed { text: String, reason: String },
    #[error(
        "'{text}' would send the token and every plan unencrypted to another host; use https://, or allow it with --insecure"
    )]
    PlainHttp { text: String },
    #[error("a CA file was given but '{text}' does not use TLS; write https://, or leave the CA file out")]
    UselessCa { text: String },
    #[error("a certificate was given but '{text}' does not use TLS; write https://, or leave the certificate out")]
    UselessCertificate { text: String },
}

/// Whether `host` can only be this machine.
fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl Endpoint {
    /// Reads `http://HOST[:PORT]`, `https://HOST[:PORT]` or `unix:/PATH`.
    ///
    /// # Errors
    ///
    /// [`EndpointError::Malformed`] for any other text, [`EndpointError::PlainHttp`] for `http://` to another host that
    /// `options` do not allow, [`EndpointError::UselessCa`] for a CA file where there is no TLS.
    pub fn parse(text: &str, options: &EndpointOptions) -> Result<Self, EndpointError> {
        let malformed =
            |reason: &str| EndpointError::Malformed { text: text.chars().take(200).collect(), reason: reason.into() };
        let useless_ca = || EndpointError::UselessCa { text: text.to_owned() };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(malformed("no path after 'unix:'"));
            }
            return if options.ca_file.is_some() { Err(useless_ca()) } else { Ok(Self::Unix(PathBuf::from(path))) };
        }
        let uri: Uri = text.parse().map_err(|e: http::uri::InvalidUri| malformed(&e.to_string()))?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(malformed("it has a path"));
        }
        let authority = uri.authority().ok_or_else(|| malformed("no host"))?;
        if authority.as_str().contains('@') {
            return Err(malformed("it has a user name; pass the token apart"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(malformed("no host"));
        }
        if authority.port_u16().is_none() && authority.as_str() != authority.host() {
            return Err(malformed("the port is no number up to 65535"));
        }
        match uri.scheme_str() {
            Some("https") => {
                let port = uri.port_u16().unwrap_or(443);
                Ok(Self::Https { host, port, ca_file: options.ca_file.clone(), identity: None })
            }
            Some("http") if options.ca_file.is_some() => Err(useless_ca()),
            Some("http") if options.insecure || is_loopback(&host) => {
                Ok(Self::Http { host, port: uri.port_u16().unwrap_or(80) })
            }
            Some("http") => Err(EndpointError::PlainHttp { text: text.to_owned() }),
            _ => Err(malformed("the scheme is none of http, https, unix")),
        }
    }

    /// The same coordinator, to which a certificate is shown.
    ///
    /// # Errors
    ///
    /// [`EndpointError::UselessCertificate`] where there is no TLS.
    pub fn with_identity(self, identity: Identity) -> Result<Self, EndpointError> {
        match self {
            Self::Https { host, port, ca_file, .. } => {
                Ok(Self::Https { host, port, ca_file, identity: Some(identity) })
            }
            other => Err(EndpointError::UselessCertificate { text: other.to_string() }),
        }
    }

    /// A coordinator that listens on a Unix socket of this host.
    pub fn unix(path: impl AsRef<Path>) -> Self {
        Self::Unix(path.as_ref().to_owned())
    }

    /// `host:port` as it stands in a request; IPv6 in brackets.
    pub(crate) fn authority(&self) -> String {
        match self {
            Self::Http { host, port } | Self::Https { host, port, .. } if host.contains(':') => {
                format!("[{host}]:{port}")
            }
            Self::Http { host, port } | Self::Https { host, port, .. } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".into(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { .. } => write!(f, "http://{}", self.authority()),
            Self::Https { .. } => write!(f, "https://{}", self.authority()),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Endpoint, EndpointError> {
        Endpoint::parse(text, &EndpointOptions::default())
    }

    #[test]
    fn addresses_are_read_and_printed() {
        for text in ["http://127.0.0.1:7000", "https://farm.example:443", "unix:/tmp/x y.sock", "http://[::1]:7000"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(parse("http://localhost/").unwrap().to_string(), "http://localhost:80");
        assert_eq!(parse("unix:///run/p.sock").unwrap(), Endpoint::unix("/run/p.sock"));
    }

    #[test]
    fn plain_http_leaves_this_host_only_when_allowed() {
        for text in ["http://10.0.0.1:7000", "http://farm:7000", "http://localhost.evil:1", "http://[fe80::1]:80"] {
            assert_eq!(parse(text), Err(EndpointError::PlainHttp { text: text.into() }));
            assert!(Endpoint::parse(text, &EndpointOptions { insecure: true, ca_file: None }).is_ok());
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "farm:7000",
            "ftp://x",
            "http://",
            "unix:",
            "http://x/y",
            "http://a@127.0.0.1",
            "http://127.0.0.1:99999",
        ] {
            assert!(matches!(parse(text), Err(EndpointError::Malformed { .. })), "{text}");
        }
        let ca = EndpointOptions { ca_file: Some("ca.pem".into()), insecure: false };
        assert!(matches!(Endpoint::parse("http://127.0.0.1:1", &ca), Err(EndpointError::UselessCa { .. })));
    }
}
