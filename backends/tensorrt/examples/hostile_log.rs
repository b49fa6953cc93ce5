//! What ten thousand lines of hostile log cost: `cargo run --release -p planforge-tensorrt --example hostile_log`.
#![expect(clippy::print_stdout, reason = "prints a figure")]

use planforge_tensorrt::log::{LogReader, Stream};
use std::time::{Duration, Instant};

const LINES: usize = 10_000;
const ROUNDS: usize = 15;

fn main() {
    let row = "[01/02/2026-03:04:05] [I] Latency: min = 1 ms, max = 2 ms, mean = 1.5 ms, median = 1.5 ms";
    let kinds: Vec<(&str, Vec<u8>)> = vec![
        ("verbose lines that look like results", b"[01/02/2026-03:04:05] [V] Throughput: 1 qps".to_vec()),
        ("colours and bad bytes", b"\x1b[31m[01/02/2026-03:04:05]\xff [I] \x1b[0m\x1b[\xfe x\x1b".repeat(4)),
        ("rows with 2000 percentiles", (row.to_owned() + &", percentile(99%) = 1 ms".repeat(2000)).into_bytes()),
        ("rows broken at the end", (row.to_owned() + &", percentile(99%) = 1 ms".repeat(300) + ", x").into_bytes()),
        ("averages", b"[I] Average on 10 runs - GPU latency: 1 ms - Host latency: 1 ms (enqueue 1 ms)".to_vec()),
        ("warnings near every finding", b"[W] skipping tactic throughput may be bound by gpu compute time is".to_vec()),
        ("errors of 4 KiB", [b"[E] ".to_vec(), b"x".repeat(4096)].concat()),
        ("continuation lines", b"no prefix at all, with [brackets] and \"quotes\"".to_vec()),
        ("open brackets", b"[".repeat(2000)),
        ("verdicts", b"&&&& PASSED TensorRT.trtexec [TensorRT v999999999999] # x".to_vec()),
    ];
    let mut all = Vec::new();
    for line in 0..LINES {
        all.extend_from_slice(&kinds[line % kinds.len()].1);
        all.push(b'\n');
    }
    println!("{:>8} ms  {LINES} lines, all kinds mixed, {} KiB", millis(cost(&all)), all.len() >> 10);
    for (name, line) in &kinds {
        let log = [line.as_slice(), b"\n"].concat().repeat(LINES);
        println!("{:>8} ms  {LINES} {name}, {} KiB", millis(cost(&log)), log.len() >> 10);
    }
}

/// Median time to read `log` in pieces as a pipe delivers them.
fn cost(log: &[u8]) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            let mut reader = LogReader::new();
            log.chunks(64 << 10).for_each(|piece| reader.feed(Stream::Merged, piece));
            let facts = reader.finish();
            let time = started.elapsed();
            assert!(facts.lines as usize >= LINES);
            time
        })
        .collect();
    times.sort();
    times[ROUNDS / 2]
}

fn millis(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}
