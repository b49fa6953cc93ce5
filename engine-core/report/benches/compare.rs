//! What comparing many reports takes: 1,000 against one baseline, and every pair of 64, reading them included.
//!
//! ```sh
//! cargo bench --locked -p planforge-report --features testing --bench compare
//! ```

#![expect(clippy::print_stdout, reason = "benchmarks print what they measured")]

use planforge_report::{
    Report, Samples,
    compare::{MAX_REPORTS, Scheme, compare_among},
    samples,
    testing::sample_report,
};
use planforge_stats::latency_stats;
use std::time::{Duration, Instant};

const AGAINST: usize = 1000;
const ROUNDS: usize = 5;
/// As a usual measurement of an engine of a millisecond leaves it.
const WINDOWS: usize = 24;
const IN_WINDOW: usize = 200;

/// A report of noise that `seed` decides.
fn report(seed: u64) -> Report {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let latencies: Vec<f64> = (0..WINDOWS * IN_WINDOW).map(|_| samples::whole_ns_ms(1.0 + 0.02 * noise())).collect();
    let mut report = sample_report(1.0);
    let template = report.windows[0].clone();
    report.windows = latencies
        .chunks(IN_WINDOW)
        .map(|window| {
            let mut record = template.clone();
            record.iterations = IN_WINDOW as u32;
            record.duration_ms = window.iter().sum();
            record.median_ms = planforge_stats::median(window);
            record
        })
        .collect();
    report.samples = Samples::encode(&latencies);
    report.latency_ms = latency_stats(&latencies, &[IN_WINDOW; WINDOWS]).expect("there are samples");
    report.throughput_per_s = 1e3 / report.latency_ms.mean;
    report
}

/// Median of several rounds.
fn timed(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            work();
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}

fn main() {
    let reports: Vec<Report> = (0..=AGAINST as u64).map(report).collect();
    let texts: Vec<String> =
        reports.iter().map(|report| serde_json::to_string(report).expect("a report is JSON")).collect();
    let bytes: usize = texts.iter().map(String::len).sum();
    println!(
        "reports of {WINDOWS} windows and {} samples, {} KiB each",
        WINDOWS * IN_WINDOW,
        (bytes / texts.len()) >> 10
    );
    let read = timed(|| {
        for text in &texts {
            Report::parse(text.as_bytes()).expect("a report");
        }
    });
    println!("reading and checking {}: {read:.2?}", texts.len());
    let against = timed(|| {
        compare_among(&reports, &[], Scheme::Baseline).expect("they can be compared");
    });
    println!("{AGAINST} against one baseline: {against:.2?}");
    let pairs = timed(|| {
        compare_among(&reports[..MAX_REPORTS], &[], Scheme::Groups).expect("they can be compared");
    });
    println!("every pair of {MAX_REPORTS}: {pairs:.2?}");
}
