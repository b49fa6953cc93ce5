//! The connector under gRPC: TCP, TLS and Unix sockets. Blobs have connections of their own.

use crate::{
    Endpoint,
    tls::{self, TlsError},
};
use http::Uri;
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use std::{
    future::Future,
    io,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream, rustls::pki_types::ServerName};

/// Longest a connection may take to open, name look-up and TLS handshake included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
    ///
    /// # Errors
    ///
    /// Where the endpoint uses TLS: its CA file cannot be read or holds no certificate, this system trusts no root, or
    /// the host cannot be a server's name.
    pub fn new(endpoint: &Endpoint) -> Result<Self, TlsError> {
        let target = match endpoint {
            Endpoint::Http { host, port } => Target::Tcp { host: host.clone(), port: *port },
            Endpoint::Unix(path) => Target::Unix(path.clone()),
            Endpoint::Https { host, port, ca_file, identity } => {
                let config = tls::verified(ca_file.as_deref(), identity.as_ref(), tls::HTTP2)?;
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
