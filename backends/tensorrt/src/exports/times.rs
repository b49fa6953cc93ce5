//! `--exportTimes`: every query of the run, in milliseconds.

use super::{
    ExportError,
    lexer::{Lexer, each_record, number_of},
};
use std::io::Read;

/// Queries that are kept; those of a longer run are counted.
const MAX_QUERIES: usize = 1 << 20;

/// Raw samples of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimesExport {
    /// In the order run. 8.4 lists warm-up queries too.
    pub queries: Vec<QueryTime>,
    /// Records without a compute time, or with one that is no number.
    pub unusable: u64,
    /// Queries beyond what is kept.
    pub left_out: u64,
}

/// One query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryTime {
    /// When it was enqueued; six digits of the time since the run's start.
    pub start_ms: f64,
    /// Difference of two absolute times: coarse in long runs.
    pub enqueue_ms: f64,
    pub host_to_device_ms: f64,
    pub compute_ms: f64,
    pub device_to_host_ms: f64,
    /// Transfers and compute together.
    pub latency_ms: f64,
}

/// Reads the file, whatever its generation.
pub fn read_times(source: impl Read) -> Result<TimesExport, ExportError> {
    const EXPECTED: &str = "times";
    let mut export = TimesExport::default();
    each_record(&mut Lexer::plain(source), EXPECTED, |fields| {
        let value = |names: &[&str]| number_of(fields, names);
        let Some(compute_ms) = value(&["computeMs"]).filter(|time| time.is_finite()) else {
            export.unusable += u64::from(value(&["computeMs", "startEnqMs", "latencyMs"]).is_some());
            return;
        };
        if export.queries.len() >= MAX_QUERIES {
            export.left_out += 1;
            return;
        }
        let start_ms = value(&["startEnqMs"]).unwrap_or(f64::NAN);
        let host_to_device_ms = value(&["h2dMs", "inMs"]).unwrap_or(f64::NAN);
        let device_to_host_ms = value(&["d2hMs", "outMs"]).unwrap_or(f64::NAN);
        export.queries.push(QueryTime {
            start_ms,
            enqueue_ms: value(&["endEnqMs"]).unwrap_or(f64::NAN) - start_ms,
            host_to_device_ms,
            compute_ms,
            device_to_host_ms,
            latency_ms: value(&["latencyMs"]).unwrap_or(host_to_device_ms + compute_ms + device_to_host_ms),
        });
    })?;
    if export.queries.is_empty() && export.unusable == 0 {
        return Err(ExportError::Nothing { expected: EXPECTED });
    }
    Ok(export)
}
