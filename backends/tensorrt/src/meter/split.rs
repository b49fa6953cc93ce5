//! Where the latency goes: the same plan in the comparable mode, with transfers, and without a CUDA graph.

use super::{TensorRtSession, Timed};
use crate::{
    exports::QueryTime,
    log::{LatencyRow, Summary},
};
use planforge_backend::Window;
use planforge_report::{LatencySplit, ModeSplit, PartStats};
use planforge_tensorrt_rules::{command::Mode, preflight::WINDOW_MS};
use planforge_types::BackendError;

/// Executions of each mode beside the headline's, at least.
const ITERATIONS: u32 = 20;

/// The comparable mode from the last window, the two others from a short process each.
pub(super) fn measure(meter: &mut TensorRtSession) -> Result<LatencySplit, BackendError> {
    let window = Window { iterations: ITERATIONS, duration_ms: WINDOW_MS };
    let comparable = match meter.last.take() {
        Some(timed) => timed,
        None => meter.timed(Mode::default(), 1, window)?,
    };
    let mut modes = vec![parts(&comparable)];
    meter.last = Some(comparable);
    for mode in [Mode { cuda_graph: true, transfers: true }, Mode { cuda_graph: false, transfers: false }] {
        modes.push(parts(&meter.timed(mode, 1, window)?));
    }
    Ok(LatencySplit { modes })
}

fn parts(timed: &Timed) -> ModeSplit {
    let of = |part: fn(&QueryTime) -> f64| PartStats::of(&timed.queries.iter().map(part).collect::<Vec<_>>());
    let transfers = timed.mode.transfers;
    let summary = &timed.facts.summary;
    // The log's own figures have their full precision; differences of exported absolute times lose it.
    let enqueue = summary.rows.get(Summary::ENQUEUE).map(row).or_else(|| of(|query| query.enqueue_ms));
    ModeSplit {
        cuda_graph: timed.mode.cuda_graph,
        spin_wait: true,
        transfers,
        executions: timed.queries.len() as u64,
        compute: of(|query| query.compute_ms).unwrap_or_default(),
        enqueue,
        h2d: of(|query| query.host_to_device_ms).filter(|_| transfers),
        d2h: of(|query| query.device_to_host_ms).filter(|_| transfers),
        host: of(|query| query.latency_ms),
        tool_executions_per_s: summary.throughput_qps.filter(|qps| qps.is_finite()),
        rotated_inputs: false,
    }
}

/// A line of the tool's summary.
fn row(row: &LatencyRow) -> PartStats {
    let p99 = row.percentiles.iter().find(|(percent, _)| *percent == 99.0).map(|(_, value)| *value);
    PartStats { min: row.min_ms, median: row.median_ms, mean: row.mean_ms, max: row.max_ms, p99 }
}
