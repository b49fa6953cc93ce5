//! A way to a coordinator that can be cut, and that can keep the coordinator's answers to itself.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// What a connection's bytes are looked through for, and where replies end.
#[derive(Debug, Default)]
struct Switch {
    /// From the request on in which these bytes come, no reply on its connection gets through. Used once.
    swallow: Mutex<Option<Vec<u8>>>,
    swallowed: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

/// Listens on a port of its own and passes on what comes, both ways.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    switch: Arc<Switch>,
}

/// The address in `http://HOST:PORT`.
fn address_in(url: &str) -> SocketAddr {
    url.trim_start_matches("http://").parse().expect("an address with a port")
}

impl Proxy {
    /// A way to `http://HOST:PORT`.
    pub fn to(url: &str) -> Self {
        let target = Arc::new(Mutex::new(address_in(url)));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let switch = Arc::new(Switch::default());
        let (shared, pointed) = (switch.clone(), target.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let target = *pointed.lock().unwrap_or_else(PoisonError::into_inner);
                // Nobody listens there now: the caller sees its connection end.
                let Ok(server) = TcpStream::connect(target) else { continue };
                carry(&client, &server, &shared);
            }
        });
        Self { address, target, switch }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Leads to another `http://HOST:PORT` from now on, as a load balancer does whose back end is gone.
    pub fn point_at(&self, url: &str) {
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = address_in(url);
    }

    /// Cuts every connection that is open now.
    pub fn cut(&self) {
        for stream in self.switch.open().drain(..) {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lets nothing back to whoever sends these bytes next, once.
    pub fn swallow_replies_to(&self, bytes: &[u8]) {
        self.switch.swallowed.store(false, Ordering::SeqCst);
        *self.switch.swallow.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes.to_vec());
    }

    /// Whether such a request has passed since.
    pub fn has_swallowed(&self) -> bool {
        self.switch.swallowed.load(Ordering::SeqCst)
    }
}

impl Switch {
    fn open(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn carry(client: &TcpStream, server: &TcpStream, switch: &Arc<Switch>) {
    let clone = |stream: &TcpStream| stream.try_clone().expect("a stream has another handle");
    switch.open().extend([clone(client), clone(server)]);
    let mute = Arc::new(AtomicBool::new(false));
    let (from, to, shared, quiet) = (clone(client), clone(server), switch.clone(), mute.clone());
    thread::spawn(move || pass(from, to, &|bytes| shared.look(bytes, &quiet), &|| false));
    let (from, to) = (clone(server), clone(client));
    thread::spawn(move || pass(from, to, &|_| (), &|| mute.load(Ordering::SeqCst)));
}

impl Switch {
    /// Whether this is the request whose reply is to be lost. Decided before it is passed on.
    fn look(&self, bytes: &[u8], mute: &AtomicBool) {
        let mut swallow = self.swallow.lock().unwrap_or_else(PoisonError::into_inner);
        if swallow.as_ref().is_some_and(|wanted| bytes.windows(wanted.len()).any(|part| part == wanted.as_slice())) {
            *swallow = None;
            mute.store(true, Ordering::SeqCst);
            self.swallowed.store(true, Ordering::SeqCst);
        }
    }
}

/// Passes bytes on until either side ends; what comes while it is mute is lost.
fn pass(mut from: TcpStream, mut to: TcpStream, look: &dyn Fn(&[u8]), is_mute: &dyn Fn() -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        look(&buffer[..count]);
        if !is_mute() && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}
