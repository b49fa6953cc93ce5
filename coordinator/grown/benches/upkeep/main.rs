//! What keeping a farm costs: a backup and its restore, taking away what is old while the farm works, and looking for rot.
//!
//! `cargo bench -p planforge-grown --bench upkeep [-- backup|gc|scrub]` prints one table each, on farms that it makes in
//! the current folder, or in the one that `PLANFORGE_BENCH_FOLDER` names, and takes away again (up to 12 GB).

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]
#![allow(dead_code, reason = "benchmarks share what is scripted, and each uses a part")]

mod backup;
mod gc;
#[path = "../../../benches/scripted/mod.rs"]
mod scripted;
mod scrub;
mod work;

use scripted::Outcome;
use std::{env::var_os, path::PathBuf, time::SystemTime, time::UNIX_EPOCH};

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let runtime = tokio::runtime::Runtime::new()?;
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    if wanted("backup") {
        runtime.block_on(backup::measure())?;
    }
    if wanted("gc") {
        runtime.block_on(gc::measure())?;
    }
    if wanted("scrub") {
        runtime.block_on(scrub::measure())?;
    }
    Ok(())
}

/// A folder that goes when the measurement ends.
fn folder() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in(var_os("PLANFORGE_BENCH_FOLDER").map_or(PathBuf::from("."), PathBuf::from))
}

fn now_ms() -> Result<u64, scripted::Trouble> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64)
}
