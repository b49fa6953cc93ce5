//! The lines of a run that carry several values.

use super::{
    facts::{Average, Banner, LatencyRow, ListedDevice, Verdict, VerdictLine},
    number::{number, with_unit},
};

/// More percentiles than anybody asks for.
const MAX_PERCENTILES: usize = 64;

/// What a line beginning with `&&&&` is.
pub(super) enum Ampersands {
    Running(Banner),
    End(VerdictLine),
}

/// `&&&& RUNNING TensorRT.trtexec [TensorRT v8401] # ...`
pub(super) fn ampersands(text: &str) -> Option<Ampersands> {
    let (word, rest) = text.strip_prefix("&&&& ")?.split_once(' ')?;
    let rest = rest.strip_prefix("TensorRT.trtexec [TensorRT v")?;
    let (code, rest) = rest.split_once(']')?;
    let version_code = code.parse().ok()?;
    let rest = rest.trim_start();
    let (build_number, rest) = match rest.strip_prefix("[b") {
        Some(rest) => {
            let (build, rest) = rest.split_once(']')?;
            (Some(build.parse().ok()?), rest.trim_start())
        }
        None => (None, rest),
    };
    let banner = Banner { version_code, build_number, command: rest.strip_prefix('#')?.trim().to_owned() };
    match word {
        "RUNNING" => Some(Ampersands::Running(banner)),
        "PASSED" => Some(Ampersands::End(VerdictLine { verdict: Verdict::Passed, banner })),
        "FAILED" => Some(Ampersands::End(VerdictLine { verdict: Verdict::Failed, banner })),
        _ => None,
    }
}

/// `min = 1 ms, max = 2 ms, mean = 1.5 ms, median = 1.5 ms, percentile(99%) = 2 ms`
pub(super) fn latency_row(text: &str) -> Option<LatencyRow> {
    let mut cells = text.split(", ");
    let mut named = |name: &str| value(cells.next()?.trim().strip_prefix(name)?);
    let (min_ms, max_ms, mean_ms, median_ms) = (named("min")?, named("max")?, named("mean")?, named("median")?);
    let mut percentiles = Vec::new();
    for cell in cells.take(MAX_PERCENTILES) {
        let (percent, rest) = cell.trim().strip_prefix("percentile(")?.split_once("%)")?;
        percentiles.push((number(percent)?, value(rest)?));
    }
    Some(LatencyRow { min_ms, max_ms, mean_ms, median_ms, percentiles })
}

/// ` = 1.5 ms`
fn value(text: &str) -> Option<f64> {
    with_unit(text.trim_start().strip_prefix('=')?.trim_start(), "ms")
}

/// `Average on 10 runs - GPU latency: 1 ms - Host latency: 2 ms (enqueue 0.1 ms)`; also the older forms that name
/// other or fewer latencies.
pub(super) fn average(rest: &str) -> Option<Average> {
    let (runs, rest) = rest.split_once(" runs - ")?;
    let (gpu, rest) = rest.strip_prefix("GPU latency: ")?.split_once(" - Host latency: ")?;
    let (host, rest) = rest.split_once(" (enqueue ")?;
    Some(Average {
        runs: runs.parse().ok()?,
        gpu_ms: with_unit(gpu, "ms")?,
        host_ms: with_unit(host, "ms")?,
        enqueue_ms: with_unit(rest.trim_end().strip_suffix(')')?, "ms")?,
    })
}

/// `3930 queries over 200 ms`
pub(super) fn queries_over(rest: &str, unit: &str) -> Option<(u64, f64)> {
    let (queries, rest) = rest.split_once(" queries over ")?;
    Some((queries.parse().ok()?, with_unit(rest, unit)?))
}

/// `Device 0: "NAME" UUID: GPU-...`
pub(super) fn listed_device(rest: &str) -> Option<ListedDevice> {
    let (id, rest) = rest.split_once(": \"")?;
    let (name, uuid) = rest.rsplit_once("\" UUID: ")?;
    Some(ListedDevice { id: id.parse().ok()?, name: name.to_owned(), uuid: uuid.trim().to_owned() })
}

/// `384 bits (ECC disabled)`
pub(super) fn bus_width(rest: &str) -> Option<(u32, Option<bool>)> {
    let (bits, rest) = rest.split_once(" bits")?;
    let ecc = match rest.trim() {
        "(ECC enabled)" => Some(true),
        "(ECC disabled)" => Some(false),
        _ => None,
    };
    Some((bits.parse().ok()?, ecc))
}

/// `8.9`
pub(super) fn capability(rest: &str) -> Option<(u32, u32)> {
    let (major, minor) = rest.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// `10.14.1`, digits and dots alone.
pub(super) fn version(rest: &str) -> Option<&str> {
    let rest = rest.trim();
    let mut parts = rest.split('.');
    let whole = (&mut parts).take(4).all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    (whole && parts.next().is_none() && rest.contains('.')).then_some(rest)
}

/// `CPU 24 MiB, GPU 438 MiB`
pub(super) fn peak_memory(rest: &str) -> Option<(f64, f64)> {
    let (host, device) = rest.trim().strip_prefix("CPU ")?.split_once(", GPU ")?;
    Some((with_unit(host, "MiB")?, with_unit(device, "MiB")?))
}
