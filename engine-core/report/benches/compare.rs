//! What comparing many reports takes: 1,000 against one baseline, and every pair of 64, reading them included.
//!
//! ```sh
//! cargo bench --locked -p planforge-report --features testing --bench compare
//! ```

#![expect(clippy::print_stdout, reason = "benchmarks print what they measured")]

use planforge_report::{
    Report,
    compare::{MAX_REPORTS, Scheme, compare_among},
    testing::usual_report,
};
use std::time::{Duration, Instant};

const AGAINST: usize = 1000;
const ROUNDS: usize = 5;
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
    let reports: Vec<Report> = (0..=AGAINST as u64).map(|seed| usual_report(seed, 1.0)).collect();
    let texts: Vec<String> =
        reports.iter().map(|report| serde_json::to_string(report).expect("a report is JSON")).collect();
    let bytes: usize = texts.iter().map(String::len).sum();
    println!(
        "reports of {} windows and {} samples, {} KiB each",
        reports[0].windows.len(),
        reports[0].latency_ms.count,
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
