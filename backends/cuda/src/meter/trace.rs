//! A timeline in the trace-event format that browsers' viewers and Perfetto open: copies, graph and host on rows of
//! their own, then every step of one execution by itself.

use super::{layer, split::Edges};
use crate::{engine::Engine, runtime::RuntimeError};
use planforge_backend::KeptFile;
use planforge_types::{BackendError, FailureClass};
use serde::Serialize;
use std::{fs, path::Path, time::Instant};

/// Executions on the timeline.
const EXECUTIONS: usize = 20;
const FILE: &str = "timeline.trace.json";

/// Rows of the timeline.
const HOST: u32 = 1;
const COPY_IN: u32 = 2;
const COMPUTE: u32 = 3;
const COPY_OUT: u32 = 4;
const STEPS: u32 = 5;
const ROWS: [(u32, &str); 5] = [
    (HOST, "host"),
    (COPY_IN, "copy in"),
    (COMPUTE, "graph"),
    (COPY_OUT, "copy out"),
    (STEPS, "steps, each timed by itself"),
];

/// One stretch of one row, in microseconds from the timeline's begin.
#[derive(Clone, Debug, PartialEq)]
struct Stretch {
    row: u32,
    name: String,
    from_us: f64,
    us: f64,
    detail: serde_json::Value,
}

/// Records some executions one after the other and writes the timeline into `scratch`.
pub(super) fn record(engine: &Engine, scratch: &Path) -> Result<KeptFile, BackendError> {
    let stretches = stretches(engine)?;
    let path = scratch.join(FILE);
    let failed = |error: std::io::Error| {
        BackendError::new(FailureClass::Infrastructure, format!("cannot write {}: {error}", path.display()))
    };
    fs::write(&path, serde_json::to_vec(&document(&stretches)).map_err(|error| failed(error.into()))?)
        .map_err(failed)?;
    Ok(KeptFile { name: FILE.into(), path })
}

fn stretches(engine: &Engine) -> Result<Vec<Stretch>, BackendError> {
    let captured = engine.current()?;
    let failed = |error: planforge_kernels_cuda::device::DeviceError| BackendError::from(RuntimeError::from(error));
    let context = &captured.context;
    let stream = context.stream();
    let mut edges = Edges::of(&engine.device, captured)?;
    let mut stretches = Vec::new();
    stream.synchronize().map_err(failed)?;
    // Device and host clocks meet here: an event on an idle stream happens about when it is recorded.
    let origin = stream.moment().map_err(failed)?;
    let began = Instant::now();
    for execution in 0..EXECUTIONS {
        let host_from = began.elapsed().as_secs_f64() * 1e6;
        let mut moments = vec![stream.moment().map_err(failed)?];
        edges.copy_in(context)?;
        moments.push(stream.moment().map_err(failed)?);
        context.launch()?;
        moments.push(stream.moment().map_err(failed)?);
        edges.copy_out(context)?;
        moments.push(stream.moment().map_err(failed)?);
        let queued = began.elapsed().as_secs_f64() * 1e6;
        moments[3].wait().map_err(failed)?;
        let waited = began.elapsed().as_secs_f64() * 1e6;
        let at: Vec<f64> = moments
            .iter()
            .map(|moment| moment.since_ms(&origin).map(|ms| ms * 1e3))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        let detail = serde_json::json!({ "execution": execution });
        let mut add = |row, name: &str, from_us: f64, to_us: f64| {
            stretches.push(Stretch { row, name: name.into(), from_us, us: to_us - from_us, detail: detail.clone() });
        };
        add(HOST, "enqueue", host_from, queued);
        add(HOST, "wait", queued, waited);
        add(COPY_IN, "copy in", at[0], at[1]);
        add(COMPUTE, "graph", at[1], at[2]);
        add(COPY_OUT, "copy out", at[2], at[3]);
    }
    let mut from_us = began.elapsed().as_secs_f64() * 1e6;
    let times = context.step_times_ms(&engine.device)?;
    for (step, ms) in captured.program.steps.iter().zip(times) {
        let told = layer(&captured.program, step, ms);
        let detail = serde_json::json!({
            "kind": told.kind, "tactic": told.tactic, "flops": told.flops, "bytes": told.bytes, "precision": told.precision,
        });
        stretches.push(Stretch { row: STEPS, name: told.name, from_us, us: ms * 1e3, detail });
        from_us += ms * 1e3;
    }
    Ok(stretches)
}

#[derive(Serialize)]
struct Document {
    #[serde(rename = "traceEvents")]
    events: Vec<serde_json::Value>,
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
}

/// The stretches as complete events, with the gaps in which the device waited for the host.
fn document(stretches: &[Stretch]) -> Document {
    let mut events: Vec<serde_json::Value> = ROWS
        .iter()
        .map(|(row, name)| {
            serde_json::json!({ "ph": "M", "pid": 1, "tid": row, "name": "thread_name", "args": { "name": name } })
        })
        .collect();
    let gaps = gaps(stretches);
    for stretch in stretches.iter().chain(&gaps) {
        events.push(serde_json::json!({
            "ph": "X", "pid": 1, "tid": stretch.row, "name": stretch.name,
            "ts": stretch.from_us, "dur": stretch.us.max(0.0), "args": stretch.detail,
        }));
    }
    Document { events, unit: "ms" }
}

/// From the end of each execution's last copy to the next one's begin, when nothing runs on the device.
fn gaps(stretches: &[Stretch]) -> Vec<Stretch> {
    let row = |row: u32| stretches.iter().filter(move |stretch| stretch.row == row);
    let pairs = row(COPY_OUT).zip(row(COPY_IN).skip(1));
    pairs
        .map(|(out, next)| {
            let from_us = out.from_us + out.us;
            Stretch {
                row: COMPUTE,
                name: "device waits for the host".into(),
                from_us,
                us: next.from_us - from_us,
                detail: serde_json::Value::Null,
            }
        })
        .filter(|gap| gap.us > 0.0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(row: u32, from_us: f64, us: f64) -> Stretch {
        Stretch { row, name: "s".into(), from_us, us, detail: serde_json::Value::Null }
    }

    #[test]
    fn a_timeline_has_its_rows_its_stretches_and_the_gaps_between() {
        let stretches = [
            stretch(COPY_IN, 0.0, 2.0),
            stretch(COMPUTE, 2.0, 5.0),
            stretch(COPY_OUT, 7.0, 1.0),
            stretch(COPY_IN, 11.0, 2.0),
            stretch(COPY_OUT, 15.0, 1.0),
        ];
        let found = gaps(&stretches);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].row, found[0].from_us, found[0].us), (COMPUTE, 8.0, 3.0));
        let text = serde_json::to_value(document(&stretches)).unwrap();
        let events = text["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), ROWS.len() + stretches.len() + 1);
        assert!(events.iter().all(|event| event["pid"] == 1 && event["tid"].is_u64()));
        let complete = events.iter().filter(|event| event["ph"] == "X");
        assert!(complete.clone().count() == 6 && complete.into_iter().all(|event| event["dur"].is_f64()));
    }
}
