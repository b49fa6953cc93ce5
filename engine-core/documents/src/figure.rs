//! The numbers of a report, each with its name, its unit and what it rests on.

use planforge_charts::Basis;
use planforge_report::{
    Report, disturbance,
    format::{bytes, milliseconds, per_second, percent},
};
use planforge_stats::{LatencyStats, MedianInterval};
use planforge_types::Sku;

/// One number.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub name: &'static str,
    /// Of `value`: `ms`, `bytes`, `1/s`, `share`; empty for what is counted.
    pub unit: &'static str,
    pub value: f64,
    /// As people read it, with a unit of its own size.
    pub text: String,
    pub basis: Basis,
}

/// What a report's measured numbers rest on.
pub fn basis(report: &Report) -> Basis {
    if report.simulated { Basis::Simulated } else { Basis::Measured }
}

/// What is derived of counts rests on less.
pub fn estimate(report: &Report) -> Basis {
    if report.simulated { Basis::Simulated } else { Basis::Estimated }
}

/// The device kind that it ran on.
pub fn measured_on(report: &Report) -> &Sku {
    report.measured_on()
}

/// What tells a report from others beside it: `t4, tensorrt 10.3, fp16, batch 8`.
pub fn label(report: &Report) -> String {
    let toolchain = format!("{} {}", report.toolchain.backend, report.toolchain.version);
    let built = report.foreign.as_ref().map(|foreign| format!(", built for {}", foreign.built_for)).unwrap_or_default();
    let (sku, precision) = (measured_on(report), report.spec.precision);
    format!("{sku}, {toolchain}, {precision}, batch {}{built}", report.batch)
}

struct Of<'a>(&'a Report);

impl Of<'_> {
    fn ms(&self, name: &'static str, value: f64) -> Figure {
        Figure { name, unit: "ms", value, text: milliseconds(value), basis: basis(self.0) }
    }

    fn bytes(&self, name: &'static str, value: u64) -> Figure {
        Figure { name, unit: "bytes", value: value as f64, text: bytes(value), basis: basis(self.0) }
    }

    fn count(&self, name: &'static str, value: u64) -> Figure {
        Figure { name, unit: "", value: value as f64, text: value.to_string(), basis: basis(self.0) }
    }
}

/// What stands above everything else.
pub fn headline(report: &Report) -> Vec<Figure> {
    let of = Of(report);
    let stats = &report.latency_ms;
    let mut median = of.ms("median latency", stats.median);
    median.text = disturbance::marked(median.text, report.wholly_disturbed().is_some());
    let throughput = Figure {
        name: "throughput",
        unit: "1/s",
        value: report.throughput_per_s,
        text: per_second(report.throughput_per_s),
        basis: basis(report),
    };
    let mut figures = vec![median, of.ms("p99 latency", stats.p99), throughput, of.count("batch", report.batch)];
    figures.push(of.bytes("plan", report.plan.bytes));
    figures.push(of.bytes("engine in memory", report.engine_memory_bytes));
    figures.extend(report.build_ms.map(|ms| of.ms("build", ms)));
    figures.extend(report.build_memory_bytes.map(|size| of.bytes("memory while building", size)));
    figures.extend(report.run_memory_bytes.map(|size| of.bytes("memory while running", size)));
    figures.extend(report.accuracy.as_ref().map(|accuracy| Figure {
        name: "top-1 accuracy",
        unit: "share",
        value: accuracy.top1,
        text: percent(accuracy.top1),
        basis: basis(report),
    }));
    figures.extend(energy(report));
    let compared = report.numerics.as_ref().filter(|numerics| numerics.skipped.is_none());
    figures.extend(compared.map(|numerics| Figure {
        name: "largest error of outputs",
        unit: "share",
        value: numerics.max_error,
        text: format!("{:.1e} of their scale", numerics.max_error),
        basis: basis(report),
    }));
    figures
}

/// What one execution uses, where the device counts it.
fn energy(report: &Report) -> Option<Figure> {
    let value = report.energy_per_execution_uj()? / 1e6;
    Some(Figure { name: "energy per inference", unit: "J", value, text: joules(value), basis: basis(report) })
}

/// `12.3 mJ`, with the digits that mean something.
fn joules(joules: f64) -> String {
    match joules {
        value if value < 1e-3 => format!("{:.1} uJ", value * 1e6),
        value if value < 1.0 => format!("{:.1} mJ", value * 1e3),
        value => format!("{value:.2} J"),
    }
}

/// What one execution uses, with what the counter covers, or why nobody knows.
pub fn energy_words(report: &Report) -> String {
    let is_gpu = report.device.gpu.is_some();
    let counter = if is_gpu { "the board's own counter" } else { "the counters of the processor's packages (RAPL)" };
    match energy(report) {
        Some(figure) => {
            format!("{} an execution at batch {}, by {counter}, idling included", figure.text, report.batch)
        }
        None if report.host.is_none() => "not recorded".into(),
        None if is_gpu => "not available: the driver counts none for this board".into(),
        None => "not available: this host shows no counter, or only to the administrator".into(),
    }
}

/// The latency's statistics, all of them of the raw samples.
pub fn latency(report: &Report) -> Vec<Figure> {
    let of = Of(report);
    let LatencyStats { min, median, mean, stddev, p90, p95, p99, max, count, .. } = report.latency_ms;
    let mut figures = vec![of.ms("min", min), of.ms("median", median)];
    if let Ok(MedianInterval { low, high, .. }) = report.interval() {
        figures.extend([of.ms("median at least (95 %)", low), of.ms("median at most (95 %)", high)]);
    }
    figures.extend([
        of.ms("mean", mean),
        of.ms("standard deviation", stddev),
        of.ms("p90", p90),
        of.ms("p95", p95),
        of.ms("p99", p99),
        of.ms("max", max),
        of.count("samples", count),
        of.count("windows that count", report.window_count() as u64),
        of.count("windows discarded", (report.windows.len() - report.counted_windows().len()) as u64),
    ]);
    figures
}

/// How sure the median is, or why nobody knows.
pub fn sureness(report: &Report) -> String {
    MedianInterval::words(report.interval(), report.latency_ms.median)
}
