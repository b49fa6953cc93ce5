//! How fast stored blobs are looked through, and what claims notice of it. Windows without a scrub and with one at several
//! rates take turns.

use crate::{
    folder,
    scripted::{Bench, Outcome},
    work::{Claims, Work},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const BLOBS: usize = 512;
const BLOB_BYTES: usize = 4 << 20;
const WINDOW: Duration = Duration::from_secs(4);
const ROUNDS: usize = 8;
const NO_LIMIT: u64 = 1 << 40;
/// Of the background, of `planforge admin scrub`, and as fast as the machine can.
const RATES: [u64; 3] = [8 << 20, 64 << 20, NO_LIMIT];

pub async fn measure() -> Outcome {
    let folder = folder()?;
    let bench = Bench::start(folder.path()).await?;
    for number in 0..BLOBS {
        let mut bytes = vec![0_u8; BLOB_BYTES];
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            let mixed = (number * BLOB_BYTES + at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&mixed.to_le_bytes());
        }
        bench.coordinator.blobs().store(bytes.into()).await?;
    }
    let begin = Instant::now();
    let report = bench.coordinator.blobs().scrub(NO_LIMIT, |_| ()).await?;
    let mib = report.bytes as f64 / f64::from(1 << 20);
    println!("scrub: {:.0} MiB/s of {mib:.0} MiB on a farm that rests", mib / begin.elapsed().as_secs_f64());
    let mut work = Work::begin(&bench).await?;
    work.go(&bench, WINDOW, &mut Vec::new()).await?;
    let mut idle = Vec::new();
    let mut busy = RATES.map(|_| (Vec::new(), 0, Duration::ZERO));
    for _ in 0..ROUNDS {
        work.go(&bench, WINDOW, &mut idle).await?;
        for (rate, (claims, bytes, took)) in RATES.into_iter().zip(&mut busy) {
            let (blobs, looked) = (bench.coordinator.blobs().clone(), Arc::new(AtomicU64::new(0)));
            let (telling, begin) = (looked.clone(), Instant::now());
            let scrubbing = tokio::spawn(async move {
                loop {
                    let done = telling.load(Ordering::Relaxed);
                    let told = blobs.scrub(rate, |report| telling.store(done + report.bytes, Ordering::Relaxed));
                    if told.await.is_err() {
                        return;
                    }
                }
            });
            work.go(&bench, WINDOW, claims).await?;
            *bytes += looked.load(Ordering::Relaxed);
            *took += begin.elapsed();
            scrubbing.abort();
        }
    }
    let idle = Claims::of(idle);
    idle.row("claims while nothing is looked at", &idle);
    for (rate, (claims, bytes, took)) in RATES.into_iter().zip(busy) {
        let limit = if rate == NO_LIMIT { "without a limit".to_owned() } else { format!("at {} MiB/s", rate >> 20) };
        let reached = bytes as f64 / f64::from(1 << 20) / took.as_secs_f64();
        Claims::of(claims).row(&format!("{limit} ({reached:.0} MiB/s)"), &idle);
    }
    bench.coordinator.shutdown().await;
    Ok(())
}
