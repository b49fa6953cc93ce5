//! An S3 server of a test's own: `s3s-fs` over a temporary folder, at a port of loopback that the system chose. Buckets
//! are folders, objects are files, so that a test can look at them and damage them.
//!
//! It says nothing of checksums of parts, as some stores do not; what it answers is otherwise what S3 answers.

mod moto;
mod proxy;

pub use moto::Moto;
pub use proxy::{Fault, Proxy, Seen};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    thread::JoinHandle,
};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// The one pair of keys that a server knows.
pub const KEY_ID: &str = "planforge-test";
pub const SECRET: &str = "a secret of tests alone";
/// The bucket that every server begins with.
pub const BUCKET: &str = "farm";

/// A server that runs until it is stopped or dropped. It has threads of its own: clocks and runtimes of tests are not its.
#[derive(Debug)]
pub struct S3Server {
    folder: TempDir,
    address: SocketAddr,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl S3Server {
    /// Starts one with an empty bucket.
    ///
    /// # Panics
    /// Where this machine gives no port or folder.
    pub fn start() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        fs::create_dir(folder.path().join(BUCKET)).expect("a bucket");
        let (address, running) = serve(folder.path(), "127.0.0.1:0".parse().expect("an address")).expect("a server");
        Self { folder, address, running: Some(running) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://HOST:PORT`
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes an empty bucket.
    pub fn make_bucket(&self, name: &str) {
        fs::create_dir(self.folder.path().join(name)).expect("a bucket");
    }

    /// The file of an object.
    pub fn object(&self, bucket: &str, key: &str) -> PathBuf {
        self.folder.path().join(bucket).join(key)
    }

    /// Where all that it stores lies.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Keys of all objects of a bucket, in order.
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        let root = self.folder.path().join(bucket);
        let mut keys = Vec::new();
        list(&root, &root, &mut keys);
        keys.sort();
        keys
    }

    /// A file with the keys, as `--blobs-keys` reads it, that this user alone can read.
    pub fn keys_file(&self) -> PathBuf {
        let path = self.folder.path().join("keys");
        fs::write(&path, keys_text(KEY_ID, SECRET)).expect("a file of keys");
        close(&path);
        path
    }

    /// Ends it; its port answers no more.
    pub fn stop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            let _ = stop.send(());
            thread.join().expect("the server ends");
        }
    }

    /// Starts a stopped server at the same port again.
    ///
    /// # Panics
    /// Where somebody else took the port meanwhile.
    pub fn start_again(&mut self) {
        let (_, running) = serve(self.folder.path(), self.address).expect("the same port");
        self.running = Some(running);
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What stands in a file of keys.
pub fn keys_text(id: &str, secret: &str) -> String {
    format!("aws_access_key_id = {id}\naws_secret_access_key = {secret}\n")
}

/// Lets nobody but this user read a file.
pub fn close(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its own file");
}

type Running = (oneshot::Sender<()>, JoinHandle<()>);

fn serve(folder: &Path, at: SocketAddr) -> io::Result<(SocketAddr, Running)> {
    let listener = std::net::TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let files = FileSystem::new(folder).map_err(|_| io::Error::other("the folder cannot be served"))?;
    let mut service = S3ServiceBuilder::new(files);
    service.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
    let service = service.build();
    let (stop, stopped) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let thread = std::thread::spawn(move || {
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let accepting = async {
                loop {
                    let Ok((stream, _)) = listener.accept().await else { continue };
                    let service = service.clone();
                    tokio::spawn(async move {
                        let http = Builder::new(TokioExecutor::new());
                        // A client that goes is no matter of the server.
                        let _ = http.serve_connection(TokioIo::new(stream), service).await;
                    });
                }
            };
            tokio::select! {
                () = accepting => {}
                _ = stopped => {}
            }
        });
        runtime.shutdown_background();
    });
    Ok((address, (stop, thread)))
}

fn list(root: &Path, folder: &Path, keys: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            list(root, &path, keys);
        } else if let Ok(key) = path.strip_prefix(root) {
            keys.push(key.to_string_lossy().into_owned());
        }
    }
}
