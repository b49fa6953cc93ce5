//! A timeline in the trace-event format that Perfetto and browsers' viewers open: a row for each of the engine's threads,
//! a slice for each step at the time when it ran. On the first row executions hold steps and steps hold the thread's own
//! part of their loops; the other rows hold theirs.

use super::{engine_error, layer};
use crate::engine::{Engine, Watched};
use planforge_backend::KeptFile;
use planforge_types::{BackendError, FailureClass};
use serde::Serialize;
use serde_json::{Value, json};
use std::{fs, path::Path, time::Instant};

/// Executions on the timeline, after as many that are not.
const EXECUTIONS: usize = 5;
const FILE: &str = "timeline.trace.json";

/// Everything is one process.
const PROCESS: u32 = 1;

/// Records some executions one after the other and writes the timeline into `scratch`.
pub(super) fn record(
    engine: &mut Engine,
    threads: usize,
    level: &str,
    scratch: &Path,
) -> Result<KeptFile, BackendError> {
    for _ in 0..EXECUTIONS {
        engine.run().map_err(|error| engine_error(&error))?;
    }
    let began = Instant::now();
    let executions: Vec<Vec<Watched>> = (0..EXECUTIONS)
        .map(|_| engine.run_watched())
        .collect::<Result<_, _>>()
        .map_err(|error| engine_error(&error))?;
    let path = scratch.join(FILE);
    let failed = |error: std::io::Error| {
        BackendError::new(FailureClass::Infrastructure, format!("cannot write {}: {error}", path.display()))
    };
    let document = document(engine, threads, level, began, &executions);
    fs::write(&path, serde_json::to_vec(&document).map_err(|error| failed(error.into()))?).map_err(failed)?;
    Ok(KeptFile { name: FILE.into(), path })
}

#[derive(Serialize)]
struct Document {
    #[serde(rename = "traceEvents")]
    events: Vec<Value>,
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
}

/// Rows are counted from 1, as threads are from 0.
fn row(thread: usize) -> usize {
    thread + 1
}

fn document(engine: &Engine, threads: usize, level: &str, began: Instant, executions: &[Vec<Watched>]) -> Document {
    let program = engine.program();
    let us = |at: Instant| at.saturating_duration_since(began).as_secs_f64() * 1e6;
    let slice = |thread: usize, name: &str, (from, to): (Instant, Instant), args: Value| {
        json!({
            "ph": "X", "pid": PROCESS, "tid": row(thread), "name": name, "ts": us(from), "dur": us(to) - us(from),
            "args": args,
        })
    };
    let named = |thread: usize| {
        let name = if thread == 0 { "thread 0 (executions and steps)".to_owned() } else { format!("thread {thread}") };
        json!({ "ph": "M", "pid": PROCESS, "tid": row(thread), "name": "thread_name", "args": { "name": name } })
    };
    let mut events: Vec<Value> = (0..threads).map(named).collect();
    for (index, steps) in executions.iter().enumerate() {
        if let (Some(first), Some(last)) = (steps.first(), steps.last()) {
            events.push(slice(0, &format!("execution {index}"), (first.from, last.to), Value::Null));
        }
        for (step, watched) in program.steps.iter().zip(steps) {
            let took_ms = watched.to.saturating_duration_since(watched.from).as_secs_f64() * 1e3;
            let told = layer(program, step, level, took_ms);
            let args = json!({
                "execution": index, "kind": told.kind, "tactic": told.tactic, "flops": told.flops, "bytes": told.bytes,
            });
            events.push(slice(0, &told.name, (watched.from, watched.to), args));
            for stint in &watched.stints {
                let args = json!({ "execution": index, "tasks": stint.tasks });
                let name = if stint.thread == 0 { "own part" } else { told.name.as_str() };
                events.push(slice(stint.thread, name, (stint.from, stint.to), args));
            }
        }
    }
    Document { events, unit: "ms" }
}
