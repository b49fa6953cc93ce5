//! Every log and export in a folder of real recordings parses and agrees with the `EXPECTED.json` there.
//!
//! `PLANFORGE_TRTEXEC_SAMPLES` names the folder; files are recognised by what they hold, not by their names. Where a
//! file is strict JSON, a strict parser's values are the second opinion.
#![expect(clippy::print_stderr, reason = "says what was compared")]

use planforge_tensorrt::{
    acceptance::Exit,
    exports::{FileKind, join, read_layer_info, read_output, read_profile, read_times, recognise},
    failure::{Ended, Step, diagnose},
    log::{LogFacts, LogReader, Stream, Summary, Verdict},
    plan::{PlanHeader, PlanLayout},
    timing_cache::TimingCacheHeader,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const VARIABLE: &str = "PLANFORGE_TRTEXEC_SAMPLES";

#[test]
fn real_recordings_agree() {
    let Some(folder) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        return planforge_skipped::skipped(format_args!("{VARIABLE} is not set, so no real recording was read"));
    };
    let expected: Value = match fs::read(folder.join("EXPECTED.json")) {
        Ok(bytes) => serde_json::from_slice(&bytes).expect("EXPECTED.json is JSON"),
        Err(error) => panic!("no EXPECTED.json in {}: {error}", folder.display()),
    };
    let mut run = Run { expected, ..Run::default() };
    for path in files(&folder) {
        let name = path.strip_prefix(&folder).expect("walked from the folder").to_string_lossy().into_owned();
        run.file(&name, &path);
    }
    for (kind, count) in &run.kinds {
        eprintln!("{count:4} x {kind}");
    }
    eprintln!("{} values compared with EXPECTED.json", run.compared);
    for name in run.expected.as_object().expect("an object by file name").keys() {
        if !run.seen.contains(name) {
            run.problems.push(format!("{name}: expected, but there is no such file"));
        }
    }
    assert!(run.problems.is_empty(), "{} problems:\n{}", run.problems.len(), run.problems.join("\n"));
    assert!(!run.kinds.is_empty(), "{} holds nothing to read", folder.display());
}

/// Files under `folder`, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("the folder can be listed") {
            let path = entry.expect("an entry can be read").path();
            if path.is_dir() {
                open.push(path);
            } else if !["README.md", "INDEX.json", "EXPECTED.json"].iter().any(|name| path.ends_with(name)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[derive(Default)]
struct Run {
    expected: Value,
    kinds: BTreeMap<String, usize>,
    seen: Vec<String>,
    compared: usize,
    problems: Vec<String>,
}

impl Run {
    fn file(&mut self, name: &str, path: &Path) {
        let bytes = fs::read(path).expect("the file can be read");
        let expected = self.expected.get(name).cloned();
        let kind = match recognise(&bytes, bytes.len() as u64) {
            // Somebody read values out of it, so it is a log.
            FileKind::Unknown if expected.is_some() => FileKind::Log,
            kind => kind,
        };
        let problem = match kind {
            FileKind::Log => {
                self.seen.push(name.to_owned());
                self.log(name, &bytes, expected.as_ref());
                Ok(())
            }
            FileKind::Times => times(&bytes),
            FileKind::Profile => profile(&bytes),
            FileKind::LayerInfo => layer_info(&bytes),
            FileKind::Output => output(&bytes),
            FileKind::Plan => match PlanHeader::read(path) {
                Ok(header) if header.layout != PlanLayout::Unknown => Ok(()),
                Ok(header) => Err(format!("layout unknown: {header:?}")),
                Err(error) => Err(error.to_string()),
            },
            FileKind::TimingCache => TimingCacheHeader::read(path).map(drop).map_err(|error| error.to_string()),
            FileKind::OtherJson | FileKind::Unknown => {
                eprintln!("not read, of another kind: {name}");
                Ok(())
            }
        };
        *self.kinds.entry(format!("{kind:?}")).or_default() += 1;
        if let Err(problem) = problem {
            self.problems.push(format!("{name}: {problem}"));
        }
    }

    fn log(&mut self, name: &str, bytes: &[u8], expected: Option<&Value>) {
        let mut reader = LogReader::new();
        // As a pipe would deliver it.
        bytes.chunks(4093).for_each(|piece| reader.feed(Stream::Merged, piece));
        let facts = reader.finish();
        if facts.errors.seen() > 0 && !facts.passed() {
            let exit = Exit::Code(1);
            let ended = Ended {
                step: Step::Build,
                exit,
                rejected: None,
                facts: &facts,
                file: "the model",
                device: "the device",
            };
            let failure = diagnose(&ended);
            eprintln!("{name}: {:?}, {:?}: {}", failure.class, failure.kind, failure.message);
        }
        let Some(expected) = expected.and_then(Value::as_object) else {
            eprintln!("no expected values: {name}");
            return;
        };
        for (key, value) in expected {
            match actual(&facts, key) {
                Some(actual) if agree(&actual, value) => self.compared += leaves(value),
                Some(actual) => self.problems.push(format!("{name}: {key} is {actual}, expected {value}")),
                None => eprintln!("{name}: {key} is not compared"),
            }
        }
        // Results that were read where an independent reader saw none.
        for key in ["throughput_qps", "total_host_walltime_s", "total_gpu_compute_s", "coefficient_of_variance_percent"]
        {
            let read = actual(&facts, key).unwrap_or(Value::Null);
            if !expected.contains_key(key) && !read.is_null() {
                self.problems.push(format!("{name}: {key} is {read}, expected none"));
            }
        }
    }
}

/// What the reader has under a key of EXPECTED.json; `None` for a key that is not known here.
fn actual(facts: &LogFacts, key: &str) -> Option<Value> {
    let number = |value: Option<f64>| value.map_or(Value::Null, |value| Value::from(value.to_string()));
    let whole = |value: Option<u64>| value.map_or(Value::Null, Value::from);
    let text = |value: Option<&str>| value.map_or(Value::Null, Value::from);
    let (device, engine, run, summary) = (&facts.device, &facts.engine, &facts.run, &facts.summary);
    let pair = |left: Value, right: Value| if left.is_null() { Value::Null } else { Value::Array(vec![left, right]) };
    Some(match key {
        "latency" => latency(summary),
        "verdict" => text(facts.verdict.as_ref().map(|line| match line.verdict {
            Verdict::Passed => "PASSED",
            Verdict::Failed => "FAILED",
        })),
        "version_code" => whole(facts.version_code().map(u64::from)),
        "build_number" => whole(facts.build_number().map(u64::from)),
        "cmdline" => text(facts.banner().map(|banner| banner.command.as_str())),
        "selected_device" => text(device.name.as_deref()),
        "device_id" | "selected_device_id" => whole(device.id.map(u64::from)),
        "device_uuid" => text(device.uuid.as_deref()),
        "compute_capability" => pair(
            whole(device.compute_capability.map(|c| c.0.into())),
            whole(device.compute_capability.map(|c| c.1.into())),
        ),
        "sm_count" => whole(device.sm_count.map(u64::from)),
        "global_memory_mib" => whole(device.global_memory_mib),
        "shared_memory_per_sm_kib" => whole(device.shared_memory_per_sm_kib),
        "memory_bus_bits_ecc" => pair(
            whole(device.memory_bus_bits.map(u64::from)),
            text(device.ecc.map(|ecc| if ecc { "enabled" } else { "disabled" })),
        ),
        "compute_clock_ghz" => number(device.compute_clock_ghz),
        "memory_clock_ghz" => number(device.memory_clock_ghz),
        "tensorrt_version" => text(facts.tensorrt_version.as_deref()),
        "engine_size_mib" => number(engine.size_mib),
        "engine_built_s" => number(engine.built_s),
        "engine_loaded_s" => number(engine.loaded_s),
        "engine_deserialized_s" => number(engine.deserialized_s),
        "engine_generation_s" => number(engine.generation_s),
        "parse_time_s" => number(engine.parse_s),
        "warmup_queries_ms" => pair(whole(run.warm_up_queries), number(run.warm_up_ms)),
        "trace_queries_s" => pair(whole(run.trace_queries), number(run.trace_s)),
        "throughput_qps" => number(summary.throughput_qps),
        "total_host_walltime_s" => number(summary.host_walltime_s),
        "total_gpu_compute_s" => number(summary.gpu_compute_s),
        "coefficient_of_variance_percent" => number(summary.coefficient_of_variance_percent),
        "timing_cache_loaded_bytes" => whole(facts.timing_cache.loaded_bytes),
        "timing_cache_saved_bytes" => whole(facts.timing_cache.saved_bytes),
        _ => return None,
    })
}

fn latency(summary: &Summary) -> Value {
    let rows = summary.rows.iter().map(|(name, row)| {
        let number = |value: f64| Value::from(value.to_string());
        let percentiles: serde_json::Map<String, Value> =
            row.percentiles.iter().map(|(percent, value)| (percent.to_string(), number(*value))).collect();
        let values = [("min", row.min_ms), ("max", row.max_ms), ("mean", row.mean_ms), ("median", row.median_ms)];
        let mut row: serde_json::Map<String, Value> =
            values.into_iter().map(|(name, value)| (name.to_owned(), number(value))).collect();
        row.insert("percentiles".into(), Value::Object(percentiles));
        ((*name).to_owned(), Value::Object(row))
    });
    Value::Object(rows.collect())
}

/// Equal as numbers where both are numbers, whether or not they stand in quotes; else equal.
fn agree(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| agree(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, left)| right.get(key).is_some_and(|right| agree(left, right)))
        }
        _ => match (as_number(left), as_number(right)) {
            (Some(left), Some(right)) => left == right || (left.is_nan() && right.is_nan()),
            _ => match (left, right) {
                (Value::String(left), Value::String(right)) => left.trim() == right.trim(),
                _ => left == right,
            },
        },
    }
}

fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn leaves(value: &Value) -> usize {
    match value {
        Value::Array(values) => values.iter().map(leaves).sum(),
        Value::Object(values) => values.values().map(leaves).sum(),
        _ => 1,
    }
}

fn check(condition: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(problem()) }
}

/// What a strict parser makes of the file, where it can.
fn strict(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

fn times(bytes: &[u8]) -> Result<(), String> {
    let export = read_times(bytes).map_err(|error| error.to_string())?;
    check(export.unusable == 0 && export.left_out == 0 && !export.queries.is_empty(), || "left something out".into())?;
    if let Some(Value::Array(records)) = strict(bytes) {
        check(records.len() == export.queries.len(), || format!("{} records", records.len()))?;
        for (record, query) in records.iter().zip(&export.queries) {
            let same = record["computeMs"].as_f64() == Some(query.compute_ms)
                && record["latencyMs"].as_f64() == Some(query.latency_ms);
            check(same, || format!("{query:?} differs from {record}"))?;
        }
    }
    Ok(())
}

fn profile(bytes: &[u8]) -> Result<(), String> {
    let export = read_profile(bytes).map_err(|error| error.to_string())?;
    check(export.unusable == 0 && export.left_out == 0 && !export.layers.is_empty(), || "left something out".into())?;
    if let Some(Value::Array(records)) = strict(bytes) {
        let records: Vec<&Value> = records.iter().filter(|record| record.get("name").is_some()).collect();
        check(records.len() == export.layers.len(), || format!("{} records", records.len()))?;
        for (record, layer) in records.iter().zip(&export.layers) {
            let same = record["averageMs"].as_f64() == Some(layer.average_ms)
                && record["timeMs"].as_f64() == Some(layer.time_ms)
                && record.get("medianMs").and_then(Value::as_f64) == layer.median_ms
                && (record["name"] == *layer.name || layer.name.contains('\\'));
            check(same, || format!("{layer:?} differs from {record}"))?;
        }
    }
    let joined = join(export, None);
    let shares: f64 = joined.precision_share.values().sum();
    check((shares - 1.0).abs() < 1e-9 || shares == 0.0, || format!("shares add up to {shares}"))
}

fn layer_info(bytes: &[u8]) -> Result<(), String> {
    let info = read_layer_info(bytes).map_err(|error| error.to_string())?;
    check(info.left_out == 0 && !info.layers.is_empty(), || "left something out".into())?;
    if let Some(document) = strict(bytes) {
        let records = document["Layers"].as_array().cloned().unwrap_or_default();
        check(records.len() == info.layers.len(), || format!("{} records", records.len()))?;
        for (record, layer) in records.iter().zip(&info.layers) {
            let name = record.as_str().or(record["Name"].as_str()).unwrap_or_default();
            check(name == layer.name, || format!("{} is named {name}", layer.name))?;
            if record.is_object() {
                let inputs = record["Inputs"].as_array().map_or(0, Vec::len);
                check(inputs == layer.inputs.len(), || format!("{name} has {inputs} inputs"))?;
                let told = layer.inputs.iter().chain(&layer.outputs).all(|tensor| tensor.element.is_some());
                check(told, || format!("{name}: a tensor's type is not known: {:?}", layer.inputs))?;
            }
        }
        let edges = document.get("Bindings").or(document.get("I/O Tensors")).and_then(Value::as_array);
        check(edges.map_or(0, Vec::len) == info.edges.len(), || "edges are missing".into())?;
    }
    Ok(())
}

fn output(bytes: &[u8]) -> Result<(), String> {
    let export = read_output(bytes).map_err(|error| error.to_string())?;
    check(export.left_out == 0, || "left something out".into())?;
    if let Some(Value::Array(records)) = strict(bytes) {
        check(records.len() == export.tensors.len(), || format!("{} records", records.len()))?;
        for (record, tensor) in records.iter().zip(&export.tensors) {
            let values = record["values"].as_array().cloned().unwrap_or_default();
            let same = values.iter().map(Value::as_f64).eq(tensor.values.iter().map(|value| Some(*value)));
            check(same, || format!("{} has other values", tensor.name))?;
        }
    }
    Ok(())
}
