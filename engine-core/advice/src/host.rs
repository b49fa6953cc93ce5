//! Rules about what the host does around the device's work.

use crate::{
    bound::{ENQUEUE, TRANSFERS},
    rule::{Advice, Case, Evidence, Rule},
};
use planforge_report::{ModeSplit, Severity, format::milliseconds};

pub(crate) const RULES: &[Rule] = &[transfers, launches, workspace];

fn modes<'a>(case: &Case<'a>) -> impl Iterator<Item = &'a ModeSplit> {
    let modes = case.report.split.iter().flat_map(|split| &split.modes);
    modes.filter(|mode| mode.compute.median > 0.0 && mode.compute.median.is_finite())
}

fn transfers(case: &Case<'_>) -> Option<Advice> {
    let copies = |mode: &ModeSplit| [mode.h2d, mode.d2h].into_iter().flatten().map(|part| part.median).sum::<f64>();
    let mode = modes(case).find(|mode| mode.transfers)?;
    let (ms, compute) = (copies(mode), mode.compute.median);
    (ms >= TRANSFERS * compute).then(|| Advice {
        code: "transfers-dominate",
        severity: Severity::Warning,
        message: format!(
            "copies between host and device take {} for {} of work",
            milliseconds(ms),
            milliseconds(compute)
        ),
        evidence: Evidence::measured("time of copies over that of the work", ms / compute, TRANSFERS),
        advice: "pin the host's memory, send several items at once, and keep on the device what the next step takes \
                 from there"
            .into(),
    })
}

fn launches(case: &Case<'_>) -> Option<Advice> {
    let mode = modes(case).find(|mode| !mode.cuda_graph && mode.enqueue.is_some())?;
    let (enqueue, compute) = (mode.enqueue?.median, mode.compute.median);
    if enqueue < ENQUEUE * compute {
        return None;
    }
    let graph = modes(case).find(|other| other.cuda_graph && other.transfers == mode.transfers);
    let graph = graph.map(|graph| format!("; as a CUDA graph the work takes {}", milliseconds(graph.compute.median)));
    Some(Advice {
        code: "launch-bound",
        severity: Severity::Warning,
        message: format!(
            "handing an execution over takes the host {} for {} of work: the device waits for launches{}",
            milliseconds(enqueue),
            milliseconds(compute),
            graph.unwrap_or_default()
        ),
        evidence: Evidence::measured("time of enqueuing over that of the work", enqueue / compute, ENQUEUE),
        advice: "capture the execution as a CUDA graph, or send larger batches".into(),
    })
}

/// What builders say when a tactic had too little memory.
const LACKED: [&str; 2] = ["workspace-too-small", "tactics-skipped-memory"];

fn workspace(case: &Case<'_>) -> Option<Advice> {
    let said = case.report.findings.iter().filter(|finding| LACKED.contains(&finding.code.as_str())).count();
    let limit = case.report.spec.workspace_mib.map(|mib| format!(" ({mib} MiB were allowed)")).unwrap_or_default();
    (said > 0).then(|| Advice {
        code: "workspace-small",
        severity: Severity::Warning,
        message: format!("the builder left out tactics for lack of scratch memory{limit}"),
        evidence: Evidence::measured("findings of the builder about memory", said as f64, 1.0),
        advice: "build again with more (--workspace-mib), on a device that nothing else uses".into(),
    })
}
