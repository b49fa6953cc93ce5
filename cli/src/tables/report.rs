//! A report on one screen: what was measured, the numbers, and what to know before trusting them.

use super::headless;
use planforge_report::{
    ArtifactRef, BatchPoint, BatchSweep, BuildSelection, BuildTrial, CacheUse, Finding, LayerTime, ModeSplit, Numerics,
    ProfilePoint, ProfileSwitch, Report, Roofline, Severity, StopReason, StreamPoint, StreamSweep, disturbance,
    format::{bytes, milliseconds, per_second, percent},
    gelu,
};
use planforge_stats::MedianInterval;
use std::collections::BTreeMap;

/// Layers that are shown; the JSON has all.
const SHOWN_LAYERS: usize = 8;

/// Longest layer name and reason shown; findings are shown whole.
const SHOWN_CHARS: usize = 160;

/// The report as plain text, one fact a line; with what a foreign plan loses, in words.
pub fn render(report: &Report, loss: Option<&str>) -> String {
    let mut text = String::new();
    if report.simulated {
        text.push_str("SIMULATED: measured on a scripted device, no number is real\n");
    }
    let mut rows = headless();
    rows.add_rows(Facts(report).lines(loss).into_iter().map(|(name, text)| [name.to_owned(), text]));
    text.push_str(&super::render(rows, &[]));
    text
}

/// A report, read line by line.
struct Facts<'a>(&'a Report);

impl Facts<'_> {
    fn lines(&self, loss: Option<&str>) -> Vec<(&'static str, String)> {
        let stats = &self.0.latency_ms;
        let mut lines = vec![
            ("model", format!("{} ({})", self.0.model.name, self.0.model.digest.short())),
            ("engine", format!("{} for {}, {}", self.0.plan.digest.short(), self.0.built_for(), self.built_with())),
            ("device", format!("{} on {}", self.0.device.name, self.0.provenance.agent)),
        ];
        if let Some(foreign) = &self.0.foreign {
            lines.push(("foreign", format!("built for {}, measured on {}", foreign.built_for, foreign.measured_on)));
        }
        lines.extend(loss.map(|words| ("loss", words.to_owned())));
        lines.push((
            "latency",
            format!(
                "{} median ({}), p90 {}, p95 {}, p99 {}, max {}",
                disturbance::marked(milliseconds(stats.median), self.0.wholly_disturbed().is_some()),
                MedianInterval::words(self.0.interval(), stats.median),
                milliseconds(stats.p90),
                milliseconds(stats.p95),
                milliseconds(stats.p99),
                milliseconds(stats.max),
            ),
        ));
        lines.extend(planforge_documents::chart::spark(self.0).map(|line| ("spread", line)));
        lines.push(("throughput", format!("{} at batch {}", per_second(self.0.throughput_per_s), self.0.batch)));
        lines.push(("samples", self.samples_line()));
        lines.push(("size", self.size_line()));
        lines.extend(self.0.host.as_ref().map(|_| ("energy", planforge_documents::figure::energy_words(self.0))));
        lines.extend(self.split_lines());
        lines.extend(self.0.points.iter().map(|point| ("point", point_line(point))));
        lines.extend(self.0.switches.iter().map(|switch| ("switch", switch_line(switch))));
        lines.extend(self.0.streams.iter().flat_map(stream_lines));
        lines.extend(self.0.batches.iter().flat_map(batch_lines));
        lines.extend(self.0.baselines.iter().map(|baseline| ("beside", cut(&self.0.baseline_words(baseline)))));
        if let Some(build_ms) = self.0.build_ms {
            lines.push((
                "build",
                format!("{}{}", milliseconds(build_ms), self.0.cache.as_ref().map_or("", cache_words)),
            ));
        }
        lines.extend(self.0.selection.iter().flat_map(selection_lines));
        lines.push(("outputs", self.outputs_line()));
        lines.extend(self.0.given_inputs.iter().map(|given| ("inputs", cut(&given.words()))));
        if let Some(accuracy) = &self.0.accuracy {
            let reference = accuracy.reference_top1.map(|top1| format!(", reference {}", percent(top1)));
            let reference = reference.unwrap_or_default();
            lines.push(("accuracy", format!("{} top-1 of {} rows{reference}", percent(accuracy.top1), accuracy.rows)));
        }
        let shares = |shares: &BTreeMap<String, f64>| {
            let mut shares: Vec<_> = shares.iter().collect();
            shares.sort_by(|a, b| b.1.total_cmp(a.1));
            shares.iter().map(|(name, share)| format!("{name} {}", percent(**share))).collect::<Vec<_>>().join(", ")
        };
        if !self.0.precision_time.is_empty() {
            lines.push(("precision", format!("{} of the layers' time", shares(&self.0.precision_time))));
        }
        if !self.0.weight_bytes.is_empty() {
            let types = self.0.weight_bytes.iter().map(|(name, size)| format!("{name} {}", bytes(*size)));
            lines.push(("weights", types.collect::<Vec<_>>().join(", ")));
        }
        lines.extend(gelu::words(&self.0.gelu).map(|text| ("GELU", text)));
        lines.extend(self.ceilings_line().map(|text| ("ceilings", text)));
        lines.extend(self.slowest_layers());
        let kept = |artifact: &ArtifactRef| {
            format!("{} ({}, {})", cut(&artifact.name), bytes(artifact.bytes), artifact.digest.short())
        };
        lines.extend(self.0.artifacts.iter().map(|artifact| ("artifact", kept(artifact))));
        lines.extend(self.0.findings.iter().map(|finding| ("finding", finding_line(finding))));
        lines.extend(self.is_marked().then(|| (disturbance::MARK, disturbance::MEANING.to_owned())));
        lines
    }

    /// Whether one of the medians comes from disturbed windows alone.
    fn is_marked(&self) -> bool {
        let of_points = self.0.points.iter().map(|point| point.disturbed);
        let of_batches = self.0.batches.iter().flat_map(|sweep| &sweep.points).map(|point| point.disturbed);
        self.0.wholly_disturbed().is_some() || of_points.chain(of_batches).any(|disturbed| disturbed)
    }

    fn built_with(&self) -> String {
        let precision = self.0.spec.precision.to_string();
        let threads = match self.0.spec.threads {
            Some(1) => ", 1 thread".to_owned(),
            Some(count) => format!(", {count} threads"),
            None => String::new(),
        };
        format!("{}, {precision}{threads}", self.0.toolchain)
    }

    fn split_lines(&self) -> Vec<(&'static str, String)> {
        let modes = self.0.split.iter().flat_map(|split| &split.modes);
        modes.map(|mode| ("split", split_line(mode))).collect()
    }

    fn samples_line(&self) -> String {
        let discarded = self.0.windows.len() - self.0.counted_windows().len();
        let stop = match self.0.experiment.stop {
            StopReason::Confident => "until confident",
            StopReason::BudgetSpent => "until the budget was spent",
            StopReason::SampleLimit => "up to the sample limit",
        };
        format!(
            "{} in {} windows, {discarded} discarded, {stop} ({})",
            self.0.latency_ms.count,
            self.0.windows.len() - discarded,
            milliseconds(self.0.experiment.elapsed_ms)
        )
    }

    fn size_line(&self) -> String {
        let parts = [("building", self.0.build_memory_bytes), ("running", self.0.run_memory_bytes)];
        let parts = parts.iter().filter_map(|(what, peak)| Some(format!("{} {what}", bytes((*peak)?))));
        let parts = parts.collect::<Vec<_>>().join(", ");
        let parts = if parts.is_empty() { parts } else { format!(" ({parts})") };
        let peak = self.0.peak_memory_bytes.map(|peak| format!(", worker at most {}{parts}", bytes(peak)));
        let peak = peak.unwrap_or_default();
        format!("plan {}, engine {} in memory{peak}", bytes(self.0.plan.bytes), bytes(self.0.engine_memory_bytes))
    }

    fn outputs_line(&self) -> String {
        match &self.0.numerics {
            Some(numerics) => match &numerics.skipped {
                Some(reason) => format!("not compared: {}", cut(reason)),
                None => format!(
                    "{}: off by {:.1e} of their scale{}, {:.0e} allowed ({}){}",
                    if numerics.passed { "right" } else { "WRONG" },
                    numerics.max_error,
                    self.root_mean_square(numerics),
                    numerics.threshold,
                    numerics.oracle,
                    numerics.independent.as_ref().map_or(String::new(), |held| format!("; {}", cut(&held.words())))
                ),
            },
            None => "not compared".into(),
        }
    }

    /// Said where single elements are off by more than the whole may be.
    fn root_mean_square(&self, numerics: &Numerics) -> String {
        let largest = numerics.outputs.iter().map(|output| output.relative_rms).fold(0.0, f64::max);
        let beyond = numerics.max_error > numerics.threshold;
        if beyond { format!(", by root mean square {largest:.1e}") } else { String::new() }
    }

    /// What the layers are held against; nothing where no layer has counts.
    fn ceilings_line(&self) -> Option<String> {
        self.0.layers.iter().any(|layer| layer.flops > 0 || layer.bytes > 0).then(|| match &self.0.ceilings {
            Some(ceilings) => cut(&ceilings.describe()),
            None => "not known: what this device reaches was not measured".into(),
        })
    }

    fn slowest_layers(&self) -> Vec<(&'static str, String)> {
        let total_ms: f64 = self.0.layers.iter().map(|layer| layer.median_ms).sum();
        let mut layers: Vec<_> = self.0.layers.iter().collect();
        layers.sort_by(|a, b| b.median_ms.total_cmp(&a.median_ms));
        let line = |layer: &&LayerTime| {
            let share = 100.0 * layer.median_ms / total_ms.max(f64::MIN_POSITIVE);
            let name = cut(&layer.name);
            let precision = layer.precision.as_ref().map(|precision| format!(" in {precision}")).unwrap_or_default();
            let kind = format!("{}{precision} by {}", layer.kind, cut(&layer.tactic));
            let reached = Roofline::of(layer, self.0.ceilings.as_ref()).map(|roofline| roofline.describe());
            let reached = reached.map(|words| format!("  {words}")).unwrap_or_default();
            let counted = layer.counters.as_ref().map(|counters| format!("  counted: {}", counters.describe()));
            let counted = counted.unwrap_or_default();
            format!("{share:4.1} %  {}{reached}{counted}  {kind}  {name}", milliseconds(layer.median_ms))
        };
        layers.iter().take(SHOWN_LAYERS).map(|layer| ("layer", line(layer))).collect()
    }
}

/// One mode of running: its name, then the parts by their medians.
fn split_line(mode: &ModeSplit) -> String {
    let graph = if mode.cuda_graph { "CUDA graph" } else { "no CUDA graph" };
    let transfers = match (mode.transfers, mode.rotated_inputs) {
        (true, _) => "with transfers",
        (false, true) => "other inputs each time",
        (false, false) => "no transfers",
    };
    let parts = [
        ("in", mode.h2d),
        ("compute", Some(mode.compute)),
        ("out", mode.d2h),
        ("enqueue", mode.enqueue),
        ("host", mode.host),
    ];
    let parts = parts.iter().filter_map(|(name, part)| Some(format!("{name} {}", milliseconds(part.as_ref()?.median))));
    let parts = parts.collect::<Vec<_>>().join(", ");
    let told = mode.tool_executions_per_s.map(|rate| format!("; the tool counts {}", per_second(rate)));
    format!("{graph}, {transfers}: {parts}{}", told.unwrap_or_default())
}

fn switch_line(switch: &ProfileSwitch) -> String {
    format!(
        "to profile {}: {} the first time, {} later; an execution then takes {}, later ones {}",
        switch.profile,
        milliseconds(switch.first_ms),
        milliseconds(switch.again_ms.median),
        milliseconds(switch.first_run_ms),
        milliseconds(switch.run_ms.median)
    )
}

fn point_line(point: &ProfilePoint) -> String {
    let shape = |(name, shape): (&String, &Vec<u64>)| {
        format!("{name}:{}", shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x"))
    };
    let shapes = cut(&point.shapes.iter().map(shape).collect::<Vec<_>>().join(" "));
    let place = format!("profile {} {} ({shapes})", point.profile, point.at.name());
    match (&point.latency_ms, &point.problem) {
        (Some(stats), _) => format!(
            "{place}: {} median ({}), {} at batch {}",
            disturbance::marked(milliseconds(stats.median), point.disturbed),
            MedianInterval::words(stats.interval, stats.median),
            per_second(point.throughput_per_s.unwrap_or(0.0)),
            point.batch,
        ),
        (None, problem) => format!("{place}: not measured: {}", cut(problem.as_deref().unwrap_or("no reason told"))),
    }
}

/// How a point of a sweep stands out.
fn mark(at: u32, knee: Option<u32>, best: Option<u32>) -> &'static str {
    match (knee == Some(at), best == Some(at)) {
        (true, true) => ", knee and best",
        (true, false) => ", knee",
        (false, true) => ", best",
        (false, false) => "",
    }
}

fn batch_lines(sweep: &BatchSweep) -> Vec<(&'static str, String)> {
    let line = |point: &BatchPoint| {
        let words = match (&point.latency_ms, &point.problem) {
            (Some(stats), _) => format!(
                "{} median ({}), p99 {}, {}{}",
                disturbance::marked(milliseconds(stats.median), point.disturbed),
                MedianInterval::words(stats.interval, stats.median),
                milliseconds(stats.p99),
                per_second(point.throughput_per_s.unwrap_or(0.0)),
                mark(point.batch, sweep.knee, sweep.best),
            ),
            (None, problem) => format!("not measured: {}", cut(problem.as_deref().unwrap_or("no reason told"))),
        };
        ("batch", format!("{}: {words}", point.batch))
    };
    sweep.points.iter().map(line).collect()
}

fn stream_lines(sweep: &StreamSweep) -> Vec<(&'static str, String)> {
    let line = |point: &StreamPoint| {
        let (streams, rate) = (point.streams, per_second(point.throughput_per_s));
        let (median, p99) = (milliseconds(point.median_ms), milliseconds(point.p99_ms));
        ("streams", format!("{streams}: {rate}, {median} median, p99 {p99}{}", mark(streams, sweep.knee, sweep.best)))
    };
    sweep.points.iter().map(line).collect()
}

fn cache_words(cache: &CacheUse) -> &'static str {
    if cache.warm { ", from a warm cache" } else { ", from a cold cache" }
}

fn selection_lines(selection: &BuildSelection) -> Vec<(&'static str, String)> {
    let steady = if selection.unstable { "more than their measurements differ" } else { "within what they measure" };
    let disturbed = match selection.disturbed {
        0 => String::new(),
        some => format!("; {some} measured on a device that was disturbed all the time"),
    };
    let anew = if selection.remeasured { "; the kept one was measured anew after the choice" } else { "" };
    let apart = percent(selection.spread);
    let spread = format!("{} builds, {apart} apart, {steady}{disturbed}{anew}", selection.builds.len());
    let line = |build: &BuildTrial| {
        let wrong = if build.accurate { "" } else { ", WRONG outputs" };
        let kept = if build.kept { ", kept" } else { "" };
        let cache = build.cache.as_ref().map_or("", cache_words);
        let (median, built) = (milliseconds(build.median_ms), milliseconds(build.build_ms));
        ("trial", format!("{}: {median} median, built in {built}{cache}{wrong}{kept}", build.plan_digest.short()))
    };
    let mut lines = vec![("builds", spread)];
    lines.extend(selection.builds.iter().map(line));
    lines.extend(selection.failed.iter().map(|reason| ("trial", format!("failed: {}", cut(reason)))));
    lines
}

fn finding_line(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    // Whole, whatever its length: half of a sentence helps nobody.
    format!("{severity}: {} ({})", one_line(&finding.message), finding.code)
}

/// The first part of a long text, on one line, to the end of a word where there is one.
fn cut(text: &str) -> String {
    let line = one_line(text);
    if line.chars().count() <= SHOWN_CHARS {
        return line;
    }
    let begin: String = line.chars().take(SHOWN_CHARS + 1).collect();
    let whole = begin.rfind(' ').filter(|end| *end > begin.len() / 2);
    let end = whole.unwrap_or_else(|| begin.char_indices().nth(SHOWN_CHARS).map_or(begin.len(), |(at, _)| at));
    format!("{}...", begin[..end].trim_end())
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { ' ' } else { c }).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_report::{
        Foreign, WindowRecord,
        testing::{disturbed, sample_report, with_ceilings_and_batches},
    };

    #[test]
    fn people_see_the_numbers_on_one_screen() {
        let mut report = sample_report(1.0);
        insta::assert_snapshot!(render(&report, None));
        report.simulated = true;
        report.foreign = Some(Foreign { built_for: "t4".parse().unwrap(), measured_on: "l4".parse().unwrap() });
        report.accuracy = None;
        report.numerics.as_mut().unwrap().passed = false;
        let message = "line one\nline two ".repeat(20);
        report.findings.push(Finding { code: "inaccurate".into(), severity: Severity::Error, message });
        insta::assert_snapshot!(render(&report, None));
    }

    #[test]
    fn ceilings_and_batches_are_shown() {
        let mut report = with_ceilings_and_batches(sample_report(1.0));
        insta::assert_snapshot!(render(&report, None));
        report.ceilings = None;
        let text = render(&report, None);
        assert!(text.contains("ceilings    not known"), "{text}");
    }

    #[test]
    fn medians_of_disturbed_windows_alone_are_marked() {
        let text = render(&disturbed(sample_report(1.0)), None);
        assert!(text.contains("1.010 ms* median") && text.contains("*           every window"), "{text}");
        let mut report = with_ceilings_and_batches(sample_report(1.0));
        assert!(!render(&report, None).contains("* "));
        report.batches.as_mut().unwrap().points[1].disturbed = true;
        let text = render(&report, None);
        assert!(text.contains("8: 1.010 ms* median") && text.contains("*           every window"), "{text}");
        assert_eq!(text.matches('*').count(), 2, "{text}");
    }

    #[test]
    fn nothing_is_cut_in_the_middle_of_a_word() {
        let words = "seventeen ".repeat(40);
        let shown = cut(&words);
        assert!(shown.chars().count() <= SHOWN_CHARS + 3 && shown.ends_with("seventeen..."), "{shown}");
        assert_eq!(cut(&"x".repeat(400)).len(), SHOWN_CHARS + 3, "a word without end has to be");
        let mut report = sample_report(1.0);
        report.findings.push(Finding::note("long", words.clone()));
        let text = render(&report, None);
        assert_eq!(text.matches("seventeen").count(), 40, "{text}");
    }

    /// Jobs that measure a plan are named after the device kind that they measure on.
    #[test]
    fn a_foreign_plan_is_named_after_what_it_was_built_for() {
        let mut report = sample_report(1.0);
        let (built_for, measured_on) = ("t4".parse().unwrap(), report.sku.clone());
        report.foreign = Some(Foreign { built_for, measured_on });
        let text = render(&report, None);
        assert!(text.contains(" for t4, native") && text.contains("built for t4, measured on cpu-x86-64-v3"), "{text}");
    }

    #[test]
    fn of_one_window_no_interval_is_shown() {
        let mut report = sample_report(1.0);
        let samples = report.samples.decode().unwrap();
        report.windows = vec![WindowRecord { iterations: samples.len() as u32, ..report.windows[0].clone() }];
        let text = render(&report, None);
        assert!(text.contains("median (no interval: one window)"), "{text}");
    }
}
