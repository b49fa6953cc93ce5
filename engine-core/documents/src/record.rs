//! What was measured on what, and how: everything that somebody needs to measure it again, or to doubt it.
//!
//! What a report does not hold is said to be *not recorded*, never left out: nobody should wonder whether ECC was off or
//! nobody looked.

mod host;
mod state;

use crate::figure;
use planforge_report::{
    Report, StopReason,
    format::{bytes, milliseconds},
};
use planforge_types::fingerprint::{CpuFacts, GpuFacts};

/// Said where a report does not hold something.
pub const NOT_RECORDED: &str = "not recorded";

/// A part of the record: its heading, and lines of name and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub heading: &'static str,
    pub lines: Vec<(String, String)>,
}

fn or_not<T>(value: Option<T>, words: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NOT_RECORDED.to_owned(), words)
}

fn text(value: &str) -> String {
    if value.is_empty() { NOT_RECORDED.to_owned() } else { value.to_owned() }
}

/// All of it.
pub fn parts(report: &Report) -> Vec<Part> {
    let mut parts = vec![engine(report), device(report)];
    parts.push(Part { heading: "Host", lines: host::lines(report) });
    parts.push(Part { heading: "State of the device while it was measured", lines: state::lines(report) });
    parts.push(measurement(report));
    parts.push(origin(report));
    parts
}

fn engine(report: &Report) -> Part {
    let spec = &report.spec;
    let mut lines = vec![
        line("model", format!("{} ({})", report.model.name, report.model.digest)),
        line("engine key", report.engine_key.to_string()),
        line("plan", format!("{}, {}", report.plan.digest, bytes(report.plan.bytes))),
        line("built for", report.built_for().to_string()),
        line("measured on", figure::measured_on(report).to_string()),
        line("toolchain", report.toolchain.to_string()),
        line("precision", spec.precision.to_string()),
        line("optimisation level", spec.optimization_level.0.to_string()),
    ];
    let profiles = spec.profiles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    lines.push(line("profiles", if profiles.is_empty() { "shapes of the model".into() } else { profiles }));
    lines.extend(spec.threads.map(|threads| line("threads", threads.to_string())));
    lines.extend(spec.workspace_mib.map(|mib| line("workspace", format!("{mib} MiB"))));
    lines.extend(spec.hardware_compatibility.clone().map(|level| line("hardware compatibility", level)));
    lines.extend(spec.version_compatible.then(|| line("version compatible", "yes".into())));
    lines.extend(spec.approximate_gelu.then(|| line("approximate GELU", "allowed".into())));
    lines.extend(spec.options.iter().map(|(name, value)| line(&format!("option {name}"), value.clone())));
    for port in &report.inputs {
        let shape: Vec<String> =
            port.shape.iter().map(|size| size.map_or("?".into(), |size| size.to_string())).collect();
        lines.push(line(&format!("input {}", port.name), format!("{} of {}", shape.join("x"), port.element)));
    }
    lines.extend(
        report.toolchain.components.iter().map(|(name, version)| line(&format!("library {name}"), version.clone())),
    );
    lines.push(line("build command", build_command(report)));
    if let Some(cache) = &report.cache {
        lines.push(line("tuning cache", if cache.warm { "warm" } else { "cold" }.into()));
    }
    Part { heading: "Engine", lines }
}

/// As a shell would take it.
fn build_command(report: &Report) -> String {
    let quoted = |word: &String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+%@".contains(c);
        match !word.is_empty() && word.chars().all(plain) {
            true => word.clone(),
            false => format!("'{}'", word.replace('\'', "'\\''")),
        }
    };
    if !report.build_argv.is_empty() {
        report.build_argv.iter().map(quoted).collect::<Vec<_>>().join(" ")
    } else if report.build_ms.is_some() && report.host.is_some() {
        "none: the compiler ran inside planforge".into()
    } else {
        "not recorded: the plan was built by another job".into()
    }
}

fn device(report: &Report) -> Part {
    let device = &report.device;
    let mut lines = vec![line("device", device.name.clone()), line("memory", format!("{} MiB", device.memory_mib))];
    if let Some(gpu) = &device.gpu {
        lines.extend(of_gpu(gpu, report));
    }
    if let Some(cpu) = &device.cpu {
        lines.extend(of_cpu(cpu));
    }
    Part { heading: "Device", lines }
}

fn of_gpu(gpu: &GpuFacts, report: &Report) -> Vec<(String, String)> {
    let mhz = |clock: Option<u32>| or_not(clock, |mhz| format!("{mhz} MHz"));
    vec![
        line("UUID", text(&gpu.uuid)),
        line("PCI", format!("{} at {}", text(&gpu.pci_id), or_not(gpu.pci_bus.clone(), |bus| bus))),
        line("interconnect", interconnect(gpu, report)),
        line("compute capability", text(&gpu.compute_capability)),
        line("multiprocessors", or_not(gpu.sm_count, |count| count.to_string())),
        line("memory bus", or_not(gpu.memory_bus_bits, |bits| format!("{bits} bit"))),
        line("highest SM clock", mhz(gpu.max_sm_clock_mhz)),
        line("highest memory clock", mhz(gpu.max_memory_clock_mhz)),
        line("power limit", or_not(gpu.power_limit_w, |watt| format!("{watt:.0} W"))),
        line("ECC", or_not(gpu.ecc, |on| if on { "on" } else { "off" }.to_owned())),
        line("VBIOS", or_not(gpu.vbios.clone(), |vbios| vbios)),
        line("driver", text(&gpu.driver)),
        line("CUDA of the driver", text(&gpu.cuda_driver)),
        line("MIG", gpu.mig.clone().unwrap_or_else(|| "none".into())),
        line("virtualised", gpu.virtualization.clone().unwrap_or_else(|| "no".into())),
    ]
}

/// How the board hangs on its host: the link as negotiated while it was measured, what it could be, and its form.
fn interconnect(gpu: &GpuFacts, report: &Report) -> String {
    let link = |generation: u32, width: u32| format!("PCIe {generation} x{width}");
    let most = gpu.pcie_max_generation.zip(gpu.pcie_max_width).map(|(generation, width)| link(generation, width));
    // The highest of all readings: between windows an idle board lowers its link.
    let seen = report.telemetry.seen.as_ref();
    let seen = seen.and_then(|seen| seen.pcie_generation.zip(seen.pcie_width));
    let now = seen.map(|(generation, width)| link(generation.max as u32, width.max as u32));
    let lanes = match (now, most) {
        (Some(now), Some(most)) => format!("{now} negotiated, {most} at most"),
        (Some(now), None) => format!("{now} negotiated"),
        (None, Some(most)) => format!("{most} at most; what was negotiated was not recorded"),
        (None, None) => NOT_RECORDED.into(),
    };
    let sku = figure::measured_on(report).as_str();
    let form = [("sxm", "SXM module"), ("pcie", "PCIe card"), ("nvl", "PCIe card with NVLink bridges")];
    let form = form.iter().find(|(part, _)| sku.split('-').any(|word| word.starts_with(part)));
    form.map_or(lanes.clone(), |(_, words)| format!("{words}, {lanes}"))
}

fn of_cpu(cpu: &CpuFacts) -> Vec<(String, String)> {
    let kib = |size: Option<u32>| or_not(size, |kib| bytes(u64::from(kib) << 10));
    let model = match (cpu.family, cpu.model, cpu.stepping) {
        (Some(family), Some(model), Some(stepping)) => format!("family {family}, model {model}, stepping {stepping}"),
        _ => NOT_RECORDED.into(),
    };
    vec![
        line("architecture", text(&cpu.architecture)),
        line("make", format!("{}, {model}", text(&cpu.vendor))),
        line("microcode", or_not(cpu.microcode.clone(), |code| code)),
        line(
            "cores",
            format!(
                "{} usable of {} ({} hardware threads, {} sockets, {} NUMA nodes)",
                cpu.usable_cores, cpu.physical_cores, cpu.logical_cpus, cpu.sockets, cpu.numa_nodes
            ),
        ),
        line("caches", format!("L1d {}, L2 {}, L3 {}", kib(cpu.l1d_kib), kib(cpu.l2_kib), kib(cpu.l3_kib))),
        line("highest clock", or_not(cpu.max_mhz, |mhz| format!("{mhz} MHz"))),
        line("hypervisor", if cpu.hypervisor { "yes: neighbours may disturb unseen" } else { "none seen" }.into()),
        line("instruction sets", text(&cpu.features.join(" "))),
        line("power limit", "not available: the system tells none of a CPU".into()),
    ]
}

fn measurement(report: &Report) -> Part {
    let plan = &report.experiment;
    let stop = match plan.stop {
        StopReason::Confident => "the median was known as well as asked",
        StopReason::BudgetSpent => "the time was spent",
        StopReason::SampleLimit => "as many samples as a report keeps",
    };
    let mut lines = vec![
        line("began", figure_date(report.provenance.measured_unix_ms)),
        line("warm-up", format!("{} executions, {}", plan.warm_up_iterations, milliseconds(plan.warm_up_ms))),
        line("aimed for", format!("±{:.1} % of the median", plan.target_relative_ci * 100.0)),
        line("budget", milliseconds(plan.budget_ms)),
        line("took", milliseconds(plan.elapsed_ms)),
        line("ended because", stop.into()),
    ];
    lines.extend(discarded(report));
    lines.extend(report.phases_ms.iter().map(|(phase, ms)| line(&format!("phase {phase}"), milliseconds(*ms))));
    if let Some(ceilings) = &report.ceilings {
        lines.push(line("ceilings", ceilings.describe()));
    }
    Part { heading: "Measurement", lines }
}

/// Windows that do not count or count although they were disturbed, each with why.
fn discarded(report: &Report) -> Vec<(String, String)> {
    let disturbed = report.windows.iter().enumerate().filter(|(_, window)| !window.tainted.is_empty());
    let told = disturbed.map(|(index, window)| {
        let what = if window.kept_tainted { "kept" } else { "discarded" };
        line(&format!("window {} {what}", index + 1), window.tainted.join("; "))
    });
    let told: Vec<_> = told.collect();
    if told.is_empty() { vec![line("windows discarded", "none".into())] } else { told }
}

fn figure_date(unix_ms: u64) -> String {
    format!("{} (UTC)", planforge_report::format::date(unix_ms))
}

fn origin(report: &Report) -> Part {
    let from = &report.provenance;
    let mut lines = vec![
        line("job", format!("{}, attempt {}", from.job, from.attempt)),
        line("agent", from.agent.clone()),
        line("planforge", from.planforge_version.clone()),
        line("report schema", report.schema_version.to_string()),
    ];
    let kept = |artifact: &planforge_report::ArtifactRef| {
        line(&format!("file {}", artifact.name), format!("{}, {}", artifact.digest, bytes(artifact.bytes)))
    };
    lines.extend(report.artifacts.iter().map(kept));
    Part { heading: "Origin", lines }
}

fn line(name: &str, text: String) -> (String, String) {
    (name.to_owned(), text)
}
