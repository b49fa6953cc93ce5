//! What was measured on what, and how: everything that somebody needs to measure it again, or to doubt it.
//!
//! What a report does not hold is said to be *not recorded*, never left out: nobody should wonder whether ECC was off or
//! nobody looked.

use crate::figure;
use planforge_report::{
    Report, StopReason,
    format::{bytes, milliseconds},
};
use planforge_types::{
    fingerprint::{CpuFacts, GpuFacts},
    telemetry::TelemetrySample,
};

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
    parts.push(Part { heading: "State of the device, before and after", lines: state(report) });
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
        line("built for", report.sku.to_string()),
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
    if let Some(cache) = &report.cache {
        lines.push(line("tuning cache", if cache.warm { "warm" } else { "cold" }.into()));
    }
    Part { heading: "Engine", lines }
}

fn device(report: &Report) -> Part {
    let device = &report.device;
    let mut lines = vec![
        line("device", device.name.clone()),
        line("memory", format!("{} MiB", device.memory_mib)),
        line("host system", text(&device.host.os)),
        line("kernel", text(&device.host.kernel)),
    ];
    if let Some(gpu) = &device.gpu {
        lines.extend(of_gpu(gpu));
    }
    if let Some(cpu) = &device.cpu {
        lines.extend(of_cpu(cpu));
    }
    Part { heading: "Device and host", lines }
}

fn of_gpu(gpu: &GpuFacts) -> Vec<(String, String)> {
    let mhz = |clock: Option<u32>| or_not(clock, |mhz| format!("{mhz} MHz"));
    let lane = match (gpu.pcie_max_generation, gpu.pcie_max_width) {
        (Some(generation), Some(width)) => format!("PCIe {generation} x{width} at most"),
        _ => NOT_RECORDED.into(),
    };
    vec![
        line("UUID", text(&gpu.uuid)),
        line("PCI", format!("{} at {}", text(&gpu.pci_id), or_not(gpu.pci_bus.clone(), |bus| bus))),
        line("interconnect", lane),
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
    ]
}

/// One figure of a sample, in words.
type Reading<'a> = &'a dyn Fn(&TelemetrySample) -> Option<String>;

/// Before and after, where at least one of the two is known.
fn state(report: &Report) -> Vec<(String, String)> {
    let (before, after) = (&report.telemetry.before, &report.telemetry.after);
    let both = |name: &str, of: Reading<'_>| {
        let (from, to) = (of(before), of(after));
        let told = from.is_some() || to.is_some();
        let text = format!("{}, then {}", or_not(from, |text| text), or_not(to, |text| text));
        told.then(|| line(name, text))
    };
    let readings: [(&str, Reading<'_>); 9] = [
        ("SM clock", &|s| s.sm_clock_mhz.map(|mhz| format!("{mhz} MHz"))),
        ("memory clock", &|s| s.memory_clock_mhz.map(|mhz| format!("{mhz} MHz"))),
        ("processor clock", &|s| s.cpu_mhz.map(|mhz| format!("{mhz} MHz"))),
        ("temperature", &|s| s.temperature_c.map(|c| format!("{c:.0} °C"))),
        ("power", &|s| s.power_w.map(|watt| format!("{watt:.0} W"))),
        ("power limit", &|s| s.power_limit_w.map(|watt| format!("{watt:.0} W"))),
        ("utilisation", &|s| s.utilization_percent.map(|percent| format!("{percent:.0} %"))),
        ("memory in use", &|s| s.memory_used_mib.map(|mib| format!("{mib} MiB"))),
        ("load average", &|s| s.load_1m.map(|load| format!("{load:.2}"))),
    ];
    let mut lines: Vec<_> = readings.into_iter().filter_map(|(name, of)| both(name, of)).collect();
    if lines.is_empty() {
        lines.push(line("state", NOT_RECORDED.into()));
    }
    let throttled: Vec<&str> = before.throttle.iter().chain(&after.throttle).map(String::as_str).collect();
    lines.push(line("throttled", if throttled.is_empty() { "no".into() } else { throttled.join(", ") }));
    let passed = after.passed_processes.iter().map(|process| (process.pid, &process.name));
    let sharing =
        before.foreign_processes.iter().chain(&after.foreign_processes).map(|process| (process.pid, &process.name));
    let others: Vec<String> = sharing.chain(passed).map(|(pid, name)| format!("{name} ({pid})")).collect();
    lines.push(line("other processes", if others.is_empty() { "none seen".into() } else { others.join(", ") }));
    lines
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
    lines.extend(report.phases_ms.iter().map(|(phase, ms)| line(&format!("phase {phase}"), milliseconds(*ms))));
    if let Some(ceilings) = &report.ceilings {
        lines.push(line("ceilings", ceilings.describe()));
    }
    Part { heading: "Measurement", lines }
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
