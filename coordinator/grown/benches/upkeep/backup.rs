//! A farm of 10,000 engines copied and restored, every byte verified, beside the same files copied by `cp` and `sync`.

use crate::{folder, now_ms, scripted::Outcome};
use planforge_backup::{How, backup, check, restore};
use planforge_grown::{Size, grow};
use std::{path::Path, process::Command, time::Instant};

/// Of a hundred jobs 62 build an engine.
const FINISHED: usize = 16_200;
const PLAN_BYTES: usize = 256 << 10;
const ROUNDS: usize = 3;

pub async fn measure() -> Outcome {
    let folder = folder()?;
    let farm = folder.path().join("farm");
    std::fs::create_dir_all(&farm)?;
    let size = Size { waiting: 1_000, finished: FINISHED, plan_bytes: Some(PLAN_BYTES) };
    let grown = grow(&farm, size, now_ms()?, |_| ()).await?;
    println!("{} engines, {} jobs, plans of {} KiB", grown.engines, grown.jobs, PLAN_BYTES >> 10);
    let mut figures = [const { Vec::new() }; 5];
    let [plain, copied, linked, restored, checked] = &mut figures;
    for round in 0..ROUNDS {
        let to = |name: &str| folder.path().join(format!("{name}-{round}"));
        let begin = Instant::now();
        copy(&farm, &to("plain"))?;
        plain.push(begin.elapsed().as_secs_f64());
        std::fs::remove_dir_all(to("plain"))?;
        let begin = Instant::now();
        let made = backup(&farm, &to("copy"), How::Copy, "bench").await?;
        copied.push(begin.elapsed().as_secs_f64());
        if made.blobs < 2 * grown.engines || !made.lacking.is_empty() {
            return Err(format!("the backup lacks something: {made:?}").into());
        }
        let begin = Instant::now();
        backup(&farm, &to("link"), How::Link, "bench").await?;
        linked.push(begin.elapsed().as_secs_f64());
        std::fs::remove_dir_all(to("link"))?;
        let begin = Instant::now();
        let back = restore(&to("copy"), &to("restored")).await?;
        restored.push(begin.elapsed().as_secs_f64());
        if (back.blobs, back.blob_bytes) != (made.blobs, made.blob_bytes) {
            return Err(format!("{back:?} was restored of {made:?}").into());
        }
        std::fs::remove_dir_all(to("copy"))?;
        let begin = Instant::now();
        let found = check(&to("restored"), true).await?;
        checked.push(begin.elapsed().as_secs_f64());
        println!("round {round}: {} blobs, {} MiB; checked: {found:?}", back.blobs, back.blob_bytes >> 20);
        std::fs::remove_dir_all(to("restored"))?;
    }
    for times in &mut figures {
        times.sort_by(f64::total_cmp);
    }
    let [plain, ..] = &figures;
    let beside = plain.get(ROUNDS / 2).copied().unwrap_or(f64::NAN);
    let names = ["cp and sync", "backup", "backup with links", "restore", "check of what was restored"];
    for (name, times) in names.iter().zip(&figures) {
        let median = times.get(ROUNDS / 2).copied().unwrap_or(f64::NAN);
        println!("{name:<28} {median:>8.2} s, {:>5.2} of cp; all {times:.2?}", median / beside);
    }
    Ok(())
}

/// What an administrator does who has no backup: neither consistent nor verified.
fn copy(from: &Path, to: &Path) -> Outcome {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status()?;
    let synced = Command::new("sync").arg("--file-system").arg(to).status()?;
    if copied.success() && synced.success() { Ok(()) } else { Err("cp or sync failed".into()) }
}
