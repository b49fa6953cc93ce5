//! Puts a report together from what the steps of a job found, and writes documents to disk.

use super::{
    extra::ExtraMeasurements,
    memory::PeakMemory,
    run::{Built, model_ref},
};
use crate::{measure::Measurement, verify::Verdict};
use planforge_report::{
    ArtifactRef, BuildSelection, Finding, Foreign, GivenInputs, Provenance, REPORT_SCHEMA_VERSION, Report, Samples,
};
use planforge_types::{
    NamedTensors, Port,
    fingerprint::DeviceFingerprint,
    order::{Artifact, WorkOrder},
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
};

/// Everything a report is made of.
pub(super) struct Parts<'a> {
    pub order: &'a WorkOrder,
    pub device: &'a DeviceFingerprint,
    pub built: Built,
    pub phases_ms: BTreeMap<String, f64>,
    pub measured_unix_ms: u64,
    pub inputs: Vec<Port>,
    pub bound: &'a NamedTensors,
    pub engine_memory_bytes: u64,
    pub measurement: Measurement,
    pub selection: Option<BuildSelection>,
    pub extra: ExtraMeasurements,
    pub artifacts: &'a [Artifact],
    pub verdict: Verdict,
    pub memory: &'a PeakMemory,
    pub given: Option<GivenInputs>,
}

pub(super) fn assemble(parts: Parts<'_>) -> Report {
    let Parts { order, built, measurement, extra, verdict, .. } = parts;
    let inputs = parts.inputs.into_iter().map(|port| bound_port(port, parts.bound)).collect::<Vec<_>>();
    let batch = batch(&inputs);
    let mut findings = verdict.findings;
    findings.extend(measurement.findings);
    for more in [built.findings, extra.findings, parts.selection.iter().filter_map(unstable).collect()] {
        add_once(&mut findings, more);
    }
    let built_for = order.built_for.clone().filter(|sku| *sku != order.sku);
    Report {
        schema_version: REPORT_SCHEMA_VERSION,
        simulated: order.simulated,
        provenance: Provenance {
            job: order.job.clone(),
            attempt: order.attempt,
            agent: order.agent.clone(),
            planforge_version: env!("CARGO_PKG_VERSION").to_owned(),
            measured_unix_ms: parts.measured_unix_ms,
        },
        model: model_ref(order),
        engine_key: order.engine_key,
        plan: built.plan,
        sku: order.sku.clone(),
        device: parts.device.clone(),
        toolchain: order.toolchain.clone(),
        spec: order.spec.clone(),
        foreign: built_for.map(|built_for| Foreign { built_for, measured_on: order.sku.clone() }),
        inputs,
        given_inputs: parts.given,
        batch,
        latency_ms: measurement.stats,
        throughput_per_s: batch as f64 * 1e3 / measurement.stats.mean.max(f64::MIN_POSITIVE),
        experiment: measurement.experiment,
        windows: measurement.windows,
        samples: Samples::encode(&measurement.samples),
        layers: extra.layers,
        ceilings: extra.ceilings,
        precision_time: extra.precision_time,
        weight_bytes: extra.weight_bytes,
        gelu: extra.gelu,
        split: extra.split,
        points: extra.points,
        switches: extra.switches,
        streams: extra.streams,
        batches: extra.batches,
        baselines: extra.baselines,
        selection: parts.selection,
        cache: built.cache,
        artifacts: parts.artifacts.iter().map(artifact_ref).collect(),
        build_ms: built.build_ms,
        phases_ms: parts.phases_ms,
        peak_memory_bytes: parts.memory.of_process(),
        build_memory_bytes: parts.memory.of_builds(),
        run_memory_bytes: parts.memory.of_runs(),
        engine_memory_bytes: parts.engine_memory_bytes,
        numerics: verdict.numerics,
        accuracy: verdict.accuracy,
        accurate: verdict.accurate,
        telemetry: measurement.telemetry,
        host: Some(planforge_device::host::record(parts.device, &order.scratch)),
        build_argv: argv(&built.facts),
        findings,
    }
}

/// The command that a compiler says it ran.
fn argv(facts: &serde_json::Value) -> Vec<String> {
    let words = facts["argv"].as_array().into_iter().flatten();
    words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
}

/// The port with every dimension as it was bound.
fn bound_port(port: Port, bound: &NamedTensors) -> Port {
    match bound.get(&port.name) {
        Some(tensor) => Port { shape: tensor.shape.iter().map(|size| Some(*size as u64)).collect(), ..port },
        None => port,
    }
}

fn artifact_ref(artifact: &Artifact) -> ArtifactRef {
    ArtifactRef { name: artifact.name.clone(), digest: artifact.digest, bytes: artifact.bytes }
}

fn unstable(selection: &BuildSelection) -> Option<Finding> {
    let message = || {
        format!(
            "{} builds differ by {:.1} %, more than their measurements: build several and keep the best",
            selection.builds.len(),
            selection.spread * 100.0
        )
    };
    selection.unstable.then(|| Finding::warning("build-unstable", message()))
}

/// Adds findings whose code is not there yet: a tool repeats itself in every window, in other numbers.
pub(super) fn add_once(findings: &mut Vec<Finding>, more: Vec<Finding>) {
    for finding in more {
        // Points and baselines fail each for a reason of its own.
        let own = ["point-failed", "no-baseline", "baseline-differs"].contains(&finding.code.as_str());
        let repeats = |have: &Finding| have.code == finding.code && (have.message == finding.message || !own);
        if !findings.iter().any(repeats) {
            findings.push(finding);
        }
    }
}

/// The batch that bound inputs have.
pub(super) fn batch_of(inputs: &NamedTensors) -> u64 {
    shared_first(inputs.values().map(|tensor| tensor.shape.first().map(|size| *size as u64)))
}

/// First dimension that all inputs share; 1 when they share none.
fn batch(inputs: &[Port]) -> u64 {
    shared_first(inputs.iter().map(|port| port.shape.first().copied().flatten()))
}

/// The size that all share; 1 when they share none.
pub(super) fn shared_first(mut firsts: impl Iterator<Item = Option<u64>>) -> u64 {
    match firsts.next().flatten() {
        Some(first) if firsts.all(|other| other == Some(first)) => first,
        _ => 1,
    }
}

/// Writes `document` as JSON, whole or not at all as far as the disk tells.
pub(super) fn write_json(path: &Path, document: &impl Serialize) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    serde_json::to_writer(&mut file, document)?;
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_types::ElementType;

    fn port(shape: &[Option<u64>]) -> Port {
        Port { name: "x".into(), element: ElementType::F32, shape: shape.to_vec() }
    }

    #[test]
    fn the_batch_is_what_all_inputs_share() {
        assert_eq!(batch(&[port(&[Some(8), Some(3)]), port(&[Some(8)])]), 8);
        assert_eq!(batch(&[port(&[Some(8)]), port(&[Some(4)])]), 1);
        assert_eq!(batch(&[port(&[])]), 1);
        assert_eq!(batch(&[]), 1);
    }
}
