//! One connector for TCP, TLS and Unix sockets, under gRPC (HTTP/2) and under blobs (HTTP/1.1).

use crate::Endpoint;
use http::Uri;
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use std::{
    future::Future,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore, crypto,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

/// Longest a connection may take to open, name look-up and TLS handshake included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read the CA file {}: {reason}", path.display())]
    ReadCa { path: PathBuf, reason: String },
    #[error("the CA file {} holds no usable certificate", path.display())]
    EmptyCa { path: PathBuf },
    #[error("this system has no trusted root certificates; name the coordinator's CA file")]
    NoRoots,
    #[error("cannot set up TLS: {0}")]
    Config(#[from] tokio_rustls::rustls::Error),
    #[error("'{host}' cannot be a TLS server's name")]
    ServerName { host: String },
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    let Some(path) = ca_file else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return if store.is_empty() { Err(TlsError::NoRoots) } else { Ok(store) };
    };
    let read_error = |reason: String| TlsError::ReadCa { path: path.to_owned(), reason };
    for certificate in CertificateDer::pem_file_iter(path).map_err(|e| read_error(e.to_string()))? {
        store.add(certificate.map_err(|e| read_error(e.to_string()))?)?;
    }
    if store.is_empty() { Err(TlsError::EmptyCa { path: path.to_owned() }) } else { Ok(store) }
}

/// What this connection will speak; offered as ALPN under TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

#[derive(Clone)]
enum Target {
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16, name: ServerName<'static>, tls: TlsConnector },
    Unix(PathBuf),
}

/// Opens connections to one endpoint, whatever address it is asked for.
#[derive(Clone)]
pub struct Connector {
    target: Arc<Target>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.target {
            Target::Tcp { host, port } => write!(f, "Connector(tcp {host}:{port})"),
            Target::Tls { host, port, .. } => write!(f, "Connector(tls {host}:{port})"),
            Target::Unix(path) => write!(f, "Connector(unix {})", path.display()),
        }
    }
}

impl Connector {
    /// A connector to `endpoint`; reads the CA file now.
    pub fn new(endpoint: &Endpoint, protocol: Protocol) -> Result<Self, TlsError> {
        let target = match endpoint {
            Endpoint::Http { host, port } => Target::Tcp { host: host.clone(), port: *port },
            Endpoint::Unix(path) => Target::Unix(path.clone()),
            Endpoint::Https { host, port, ca_file } => {
                let provider = Arc::new(crypto::ring::default_provider());
                let mut config = ClientConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()?
                    .with_root_certificates(roots(ca_file.as_deref())?)
                    .with_no_client_auth();
                config.alpn_protocols = vec![match protocol {
                    Protocol::Http1 => b"http/1.1".to_vec(),
                    Protocol::Http2 => b"h2".to_vec(),
                }];
                let name =
                    ServerName::try_from(host.clone()).map_err(|_| TlsError::ServerName { host: host.clone() })?;
                Target::Tls { host: host.clone(), port: *port, name, tls: TlsConnector::from(Arc::new(config)) }
            }
        };
        Ok(Self { target: Arc::new(target) })
    }

    async fn open(target: Arc<Target>) -> io::Result<Stream> {
        match &*target {
            Target::Tcp { host, port } => Ok(Stream::Tcp(tcp(host, *port).await?)),
            Target::Tls { host, port, name, tls } => {
                let stream = tcp(host, *port).await?;
                Ok(Stream::Tls(Box::new(tls.connect(name.clone(), stream).await?)))
            }
            Target::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
        }
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let open = Self::open(self.target.clone());
        Box::pin(async move {
            match tokio::time::timeout(CONNECT_TIMEOUT, open).await {
                Ok(stream) => Ok(TokioIo::new(stream?)),
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()),
                )),
            }
        })
    }
}

/// An open connection of any kind.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Runs `$call` on whichever stream is inside.
macro_rules! forward {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Tcp(inner) => {
                let $stream = Pin::new(inner);
                $call
            }
            Stream::Tls(inner) => {
                let $stream = Pin::new(inner);
                $call
            }
            Stream::Unix(inner) => {
                let $stream = Pin::new(inner);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        forward!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(self, stream => stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }
}
