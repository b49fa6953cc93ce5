//! Another server that speaks S3 and that nobody here wrote: `moto`, a Python package. It checks no signatures.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Where `test.sh` installs it.
const PROGRAM: &str = "../../target/onnx-venv/bin/moto_server";
/// Python takes its time.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// It asks that what is private be asked for with a signature, and looks at none.
const SIGNED: &str =
    "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00";

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Moto {
    child: Child,
    address: SocketAddr,
}

impl Moto {
    /// Starts one with an empty bucket. `None`: it is not installed, which counts as a skipped test.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start() -> Option<Self> {
        let program = std::env::var_os("PLANFORGE_TEST_MOTO")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(PROGRAM), Into::into);
        if !program.exists() {
            planforge_skipped::skipped(format!("moto's server is not installed ({})", program.display()));
            return None;
        }
        // Free now; whoever takes it meanwhile makes the start fail.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("moto starts");
        let moto = Self { child, address };
        let until = Instant::now() + STARTS_WITHIN;
        while !moto.ask("PUT", &format!("/{}", crate::BUCKET), b"").is_ok_and(|answer| answer.contains(" 200 ")) {
            assert!(Instant::now() < until, "moto does not answer at {address}");
            crate::proxy::wait(Duration::from_millis(100));
        }
        Some(moto)
    }

    /// `http://HOST:PORT`
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes other bytes in the place of an object's.
    pub fn overwrite(&self, key: &str, bytes: &[u8]) {
        let answer = self.ask("PUT", &format!("/{}/{key}", crate::BUCKET), bytes).expect("moto answers");
        assert!(answer.contains(" 200 "), "{answer}");
    }

    /// Multipart uploads that nobody completed or gave up.
    pub fn open_uploads(&self) -> usize {
        let answer = self.ask("GET", &format!("/{}?uploads", crate::BUCKET), b"").expect("moto answers");
        answer.matches("<UploadId>").count()
    }

    fn ask(&self, method: &str, target: &str, body: &[u8]) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\nauthorization: {SIGNED}\r\nconnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // It has nothing to lose; what cannot be killed has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
