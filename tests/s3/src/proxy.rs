//! A proxy before a server, which does to requests what networks and busy stores do to them. One request a connection.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// What a request asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Counts all requests from 1.
    pub number: usize,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is passed on, and so is the answer.
    None,
    /// The connection ends before anything is passed on.
    Refused,
    /// Nothing is passed on; the answer has this status and S3 error code.
    Answered(u16, &'static str),
    /// Passed on after so long.
    Slow(Duration),
    /// Passed on and done; the answer is lost.
    AnswerLost,
}

type Decide = Arc<dyn Fn(&Seen) -> Fault + Send + Sync>;

struct Inner {
    to: SocketAddr,
    decide: Mutex<Decide>,
    seen: Mutex<Vec<Seen>>,
    ended: AtomicBool,
}

/// A proxy that runs until it is dropped.
pub struct Proxy {
    address: SocketAddr,
    inner: Arc<Inner>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Passes everything on to `to`, until it is told otherwise.
    ///
    /// # Panics
    /// Where this machine gives no port.
    pub fn before(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = listener.local_addr().expect("its address");
        let decide: Decide = Arc::new(|_| Fault::None);
        let inner =
            Arc::new(Inner { to, decide: Mutex::new(decide), seen: Mutex::default(), ended: AtomicBool::new(false) });
        let accepting = inner.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), inner) = (stream, accepting.clone()) else { continue };
                std::thread::spawn(move || {
                    // What breaks here is seen by both ends, which is what the proxy is for.
                    let _ = pass(&inner, stream);
                });
            }
        });
        Self { address, inner }
    }

    /// `http://HOST:PORT`
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Decides about every request from now on.
    pub fn decide(&self, decide: impl Fn(&Seen) -> Fault + Send + Sync + 'static) {
        *self.inner.decide.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(decide);
    }

    /// Every request that came.
    pub fn seen(&self) -> Vec<Seen> {
        self.inner.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.inner.ended.store(true, Ordering::SeqCst);
        // Wakes whoever accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn pass(inner: &Inner, mut client: TcpStream) -> io::Result<()> {
    let Some((head, body)) = request(&mut client)? else { return Ok(()) };
    let seen = {
        let mut all = inner.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut words = head.split(' ');
        let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default());
        let seen = Seen { method, target: target.to_owned(), number: all.len() + 1 };
        all.push(seen.clone());
        seen
    };
    let decide = inner.decide.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match decide(&seen) {
        Fault::None => {}
        Fault::Refused => return client.shutdown(Shutdown::Both),
        Fault::Answered(status, code) => {
            let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>asked to</Message></Error>");
            let text = if seen.method == "HEAD" { String::new() } else { text };
            let head = format!(
                "HTTP/1.1 {status} {code}\r\ncontent-type: application/xml\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                text.len()
            );
            client.write_all(head.as_bytes())?;
            return client.write_all(text.as_bytes());
        }
        Fault::Slow(pause) => wait(pause),
        Fault::AnswerLost => {
            let mut server = forward(inner, &head, &body)?;
            io::copy(&mut server, &mut io::sink())?;
            return client.shutdown(Shutdown::Both);
        }
    }
    let mut server = forward(inner, &head, &body)?;
    io::copy(&mut server, &mut client)?;
    client.shutdown(Shutdown::Both)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a slow network is what this is, and what starts elsewhere can only be asked again"
)]
pub(crate) fn wait(pause: Duration) {
    std::thread::sleep(pause);
}

/// Sends a request on, over a connection that ends with its answer.
fn forward(inner: &Inner, head: &str, body: &[u8]) -> io::Result<TcpStream> {
    let mut server = TcpStream::connect(inner.to)?;
    let (first, rest) = head.split_once("\r\n").unwrap_or((head, ""));
    server.write_all(format!("{first}\r\nconnection: close\r\n{rest}").as_bytes())?;
    server.write_all(body)?;
    Ok(server)
}

/// Head and body of a request; `None` where the connection ended without one.
fn request(client: &mut TcpStream) -> io::Result<Option<(String, Vec<u8>)>> {
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        match client.read(&mut piece)? {
            0 => return Ok(None),
            count => bytes.extend_from_slice(&piece[..count]),
        }
    };
    let mut body = bytes.split_off(end);
    let head = String::from_utf8_lossy(&bytes).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    while body.len() < length.unwrap_or(0) {
        match client.read(&mut piece)? {
            0 => return Ok(None),
            count => body.extend_from_slice(&piece[..count]),
        }
    }
    Ok(Some((head, body)))
}
