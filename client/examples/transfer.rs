//! How fast blobs go through this client, beside another build of it.
//!
//!     transfer [--mib 1024] [--folder DIR]                         one download and one upload, in seconds
//!     transfer --beside OTHER [--rounds 12] [--mib 1024] [--folder DIR]
//!
//! OTHER is this example built from another state of the crate. The two take turns, each in a process of its own; what
//! is printed is how this one's speed stands to the other's (above 1 it is faster): the median over the rounds with its
//! 95 % interval. Only what was measured within one round is held against each other, for a shared machine is busier at
//! one time than at another. The server is a small one in the same process, the same on both sides: it makes up what is downloaded and
//! throws away what is uploaded, so that the client is what is seen. A file lies in the folder at either end.

use axum::{
    Json, Router,
    body::Body,
    extract::{Path as Segment, State},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::{get, patch, post},
};
use bytes::Bytes;
use planforge_client::{Blobs, Endpoint};
use planforge_stats::{CI_CONFIDENCE, NoInterval, median_interval};
use planforge_types::{Digest, DigestWriter};
use std::{
    collections::HashMap,
    error::Error,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Instant,
};
use tokio_stream::StreamExt as _;

type Outcome<T> = Result<T, Box<dyn Error>>;

const MIB: usize = 1 << 20;
/// Moved before anything is timed.
const WARM_UP_MIB: usize = 64;

struct Options {
    beside: Option<PathBuf>,
    rounds: usize,
    mib: usize,
    folder: PathBuf,
}

fn options() -> Outcome<Options> {
    let mut found = Options { beside: None, rounds: 12, mib: 1024, folder: std::env::temp_dir() };
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--beside" => found.beside = Some(value.into()),
            "--rounds" => found.rounds = value.parse()?,
            "--mib" => found.mib = value.parse()?,
            "--folder" => found.folder = value.into(),
            _ => return Err(format!("unknown flag {flag}").into()),
        }
    }
    Ok(found)
}

/// One block of a blob; a blob is as many of them as it has MiB.
fn block() -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..MIB).map(|_| next()).collect()
}

fn digest_of(mib: usize) -> Digest {
    let (mut writer, block) = (DigestWriter::new(), block());
    (0..mib).for_each(|_| writer.update(&block));
    writer.finish()
}

/// Sizes by digest, and what they are made of.
type Stored = Arc<(HashMap<String, usize>, Bytes)>;

async fn download(State(blobs): State<Stored>, Segment(digest): Segment<String>) -> Response {
    let Some(mib) = blobs.0.get(&digest).copied() else { return StatusCode::NOT_FOUND.into_response() };
    let blocks = tokio_stream::iter(std::iter::repeat_n(blobs.1.clone(), mib)).map(Ok::<_, io::Error>);
    ([(header::CONTENT_LENGTH, (mib * MIB).to_string())], Body::from_stream(blocks)).into_response()
}

async fn open() -> Response {
    let headers = [("location", "/v1/uploads/1"), ("upload-offset", "0")];
    (StatusCode::CREATED, headers, Json(serde_json::json!({"state": "open"}))).into_response()
}

async fn append(body: Body) -> StatusCode {
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        if piece.is_err() {
            return StatusCode::BAD_REQUEST;
        }
    }
    StatusCode::CREATED
}

/// Downloads and uploads one blob; seconds of each.
async fn transfer(blobs: &Blobs, digest: Digest, file: &Path) -> Outcome<[f64; 2]> {
    let started = Instant::now();
    blobs.download_to_cache(digest, file).await?;
    let down_s = started.elapsed().as_secs_f64();
    let started = Instant::now();
    blobs.upload(file, digest).await?;
    let up_s = started.elapsed().as_secs_f64();
    fs::remove_file(file)?;
    Ok([down_s, up_s])
}

async fn once(options: &Options) -> Outcome<[f64; 2]> {
    let (warm_up, digest) = (digest_of(WARM_UP_MIB), digest_of(options.mib));
    let sizes = HashMap::from([(warm_up.to_string(), WARM_UP_MIB), (digest.to_string(), options.mib)]);
    let router = Router::new()
        .route("/v1/blobs/sha256/{digest}", get(download))
        .route("/v1/uploads", post(open))
        .route("/v1/uploads/{id}", patch(append))
        .with_state(Arc::new((sizes, block())));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let blobs = Blobs::new(&Endpoint::Http { host: "127.0.0.1".into(), port }, None)?;
    let file = options.folder.join(format!("transfer-{}", std::process::id()));
    transfer(&blobs, warm_up, &file).await?;
    transfer(&blobs, digest, &file).await
}

/// Runs `program` once and reads what it prints.
fn run(program: &Path, options: &Options) -> Outcome<[f64; 2]> {
    let output = Command::new(program)
        .args(["--mib", &options.mib.to_string(), "--folder"])
        .arg(&options.folder)
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let numbers = text.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()?;
    numbers.try_into().map_err(|_| format!("{} printed '{text}'", program.display()).into())
}

fn compare(options: &Options, other: &Path) -> Outcome<()> {
    let this = std::env::current_exe()?;
    let (mut ours, mut theirs) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..options.rounds {
        // Whoever goes first finds a quieter machine: take turns.
        let (our, their) = if round % 2 == 0 {
            let our = run(&this, options)?;
            (our, run(other, options)?)
        } else {
            let their = run(other, options)?;
            (run(&this, options)?, their)
        };
        for way in 0..2 {
            ours[way].push(our[way]);
            theirs[way].push(their[way]);
        }
    }
    for (way, name) in ["down", "up"].into_iter().enumerate() {
        let rate = |seconds: &[f64]| options.mib as f64 / planforge_stats::median(seconds);
        let (our, their) = (rate(&ours[way]), rate(&theirs[way]));
        // Seconds of the other over ours: the ratio of the speeds.
        let pairs = theirs[way].iter().zip(&ours[way]);
        let ratios: Vec<f64> = pairs.map(|(their_s, our_s)| their_s / our_s).collect();
        let ratio = planforge_stats::median(&ratios);
        let interval = median_interval(&ratios, &vec![1; ratios.len()], CI_CONFIDENCE).map_err(NoInterval::words)?;
        let (low, high) = (interval.low, interval.high);
        writeln!(
            io::stdout(),
            "{name}: {our:.0} MiB/s, beside {their:.0} MiB/s: {ratio:.3} ({low:.3} to {high:.3}), {} rounds",
            options.rounds
        )?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let options = options()?;
    if let Some(other) = &options.beside {
        return compare(&options, other);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let [down_s, up_s] = runtime.block_on(once(&options))?;
    writeln!(io::stdout(), "{down_s} {up_s}")?;
    Ok(())
}
