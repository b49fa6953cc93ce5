//! An engine's medians, build after build: what is noise, and since which build its level is another.

use crate::{
    format,
    rows::{model_name, spec_words, toolchain},
};
use askama::Template;
use planforge_charts::{Axis, Basis, Caption, History, Moment, Unit};
use planforge_proto::v1;
use planforge_report::history::{Build, Step, noise, steps};
use planforge_types::BuildSpec;
use serde::Serialize;
use std::collections::BTreeMap;

/// Builds that a chart has room for; the newest are shown.
const BUILDS: usize = 120;
/// Lines of one page.
const LINES: usize = 6;

/// Builds of one model, by its name, for one device kind by one spec, oldest first.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub model: String,
    pub sku: String,
    #[serde(skip)]
    key: String,
    /// The spec in words.
    pub spec: String,
    pub builds: Vec<Build>,
    pub changes: Vec<Step>,
    /// Between these medians builds differ by noise alone.
    pub noise_ms: Option<(f64, f64)>,
}

/// A spec as text that is the same for the same spec.
fn canonical(spec_json: &str) -> String {
    let spec = serde_json::from_str::<BuildSpec>(spec_json).ok();
    spec.and_then(|spec| serde_json::to_string(&spec.canonical()).ok()).unwrap_or_else(|| spec_json.to_owned())
}

/// A reply's lines of several builds each, most builds first.
pub fn lines(told: &[v1::HistoryLine]) -> Vec<Line> {
    let mut found: BTreeMap<(String, String, String), (String, Vec<Build>)> = BTreeMap::new();
    for part in told {
        let key = (part.model.clone(), part.sku.clone(), canonical(&part.spec_json));
        let (_, builds) = found.entry(key).or_insert_with(|| (spec_words(&part.spec_json), Vec::new()));
        let toolchains: Vec<String> = part.toolchains_json.iter().map(|json| toolchain(json, "")).collect();
        builds.extend(part.builds.iter().map(|build| Build {
            job: build.job.clone(),
            created_ms: build.created_ms,
            median_ms: build.median_ms,
            disturbed: build.disturbed,
            plan_digest: build.plan_digest.clone(),
            model_digest: build.model_digest.clone(),
            toolchain: toolchains.get(build.toolchain as usize).cloned().unwrap_or_default(),
        }));
    }
    let several = found.into_iter().filter(|(_, (_, builds))| builds.len() > 1);
    let line = |((model, sku, key), (spec, mut builds)): ((String, String, String), (String, Vec<Build>))| {
        builds.sort_by_key(|build| build.created_ms);
        let (changes, noise_ms) = (steps(&builds), noise(&builds));
        Line { model, sku, key, spec, builds, changes, noise_ms }
    };
    let mut lines: Vec<Line> = several.map(line).collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.builds.len()));
    lines
}

/// The line that an engine is of, where there is one.
pub fn line_of(told: &[v1::HistoryLine], of: &v1::Engine) -> Option<Line> {
    let spec = canonical(&of.spec_json);
    let (name, is_named) = (model_name(of.model.as_ref()), of.model.is_some());
    lines(told).into_iter().find(|line| is_named && line.sku == of.sku && line.model == name && line.key == spec)
}

impl Line {
    fn chart(&self, id: &str) -> String {
        let builds = &self.builds[self.builds.len().saturating_sub(BUILDS)..];
        let dates: Vec<String> = builds.iter().map(|build| format::iso(build.created_ms)[..10].to_owned()).collect();
        let remarks: Vec<String> = builds
            .iter()
            .map(|build| {
                let step = self.changes.iter().find(|step| step.job == build.job);
                let step = step.map(|step| format!("{} from here on", step.how()));
                step.or_else(|| build.disturbed.then(|| "disturbed".to_owned())).unwrap_or_default()
            })
            .collect();
        let moments: Vec<Moment<'_>> = builds
            .iter()
            .zip(dates.iter().zip(&remarks))
            .map(|(build, (label, remark))| Moment { label, value: build.median_ms, between: None, remark })
            .collect();
        let title = format!("Median of {} on {}, build after build", self.model, self.sku);
        let caption = Caption { id, title: &title, basis: Basis::Measured };
        let y = Axis { name: "median latency", unit: Unit::Milliseconds };
        History { caption, y, moments: &moments, noise: self.noise_ms }.svg()
    }
}

/// Charts of lines, each with what changed.
#[derive(Clone, Debug, Template)]
#[template(path = "history.html")]
pub struct Lines {
    id: &'static str,
    lines: Vec<Shown>,
    /// Lines that are not shown.
    unseen: usize,
    /// Whether jobs may be led to.
    leads: bool,
}

#[derive(Clone, Debug)]
struct Shown {
    chart: String,
    spec: String,
    builds: usize,
    /// Job of the first build, what was found, and what else changed.
    steps: Vec<(String, String, String)>,
}

impl Lines {
    /// `leads`: whoever looks may see the jobs.
    pub fn of(id: &'static str, lines: &[Line], leads: bool) -> Self {
        let shown = lines.iter().take(LINES).enumerate().map(|(number, line)| Shown {
            chart: line.chart(&format!("c-history{number}")),
            spec: line.spec.clone(),
            builds: line.builds.len(),
            steps: line
                .changes
                .iter()
                .rev()
                .map(|step| {
                    let (before, after) = (format::milliseconds(step.before_ms), format::milliseconds(step.after_ms));
                    let found = format!("{}: {before} to {after}", step.how());
                    let with = if step.with.is_empty() { "nothing else known".into() } else { step.with.join(", ") };
                    (step.job.clone(), found, with)
                })
                .collect(),
        });
        Self { id, lines: shown.collect(), unseen: lines.len().saturating_sub(LINES), leads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(index: u64, median_ms: f64) -> v1::HistoryBuild {
        v1::HistoryBuild {
            job: format!("job-{index}"),
            created_ms: 1_763_600_000_000 + index * 86_400_000,
            median_ms,
            model_digest: "aa".into(),
            toolchain: u32::from(index >= 30),
            ..v1::HistoryBuild::default()
        }
    }

    #[test]
    fn the_build_that_changed_the_level_is_marked_and_named() {
        let level = |index: u64| if index < 30 { 2.0 } else { 2.2 } + 0.001 * (index % 7) as f64;
        let toolchain = |version| format!(r#"{{"backend":"native","version":"{version}","components":{{}}}}"#);
        let told = v1::HistoryLine {
            model: "<net>.onnx".into(),
            sku: "t4".into(),
            spec_json: "{}".into(),
            toolchains_json: vec![toolchain("0"), toolchain("1")],
            builds: (0..60).rev().map(|index| build(index, level(index))).collect(),
        };
        let engine = v1::Engine {
            model: Some(v1::Model { name: "<net>.onnx".into(), digest: "aa".into(), ..v1::Model::default() }),
            sku: "t4".into(),
            spec_json: "{}".into(),
            ..v1::Engine::default()
        };
        let line = line_of(std::slice::from_ref(&told), &engine).unwrap();
        assert_eq!((line.builds.len(), line.builds[0].job.as_str()), (60, "job-0"));
        let html = Lines::of("history", &[line], true).render().unwrap();
        for part in
            ["within the band: noise", "% slower from here on", "href=\"/jobs/job-30\"", "toolchain native 0 to"]
        {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert!(!html.contains("<net>"), "{html}");
        let other = v1::Engine { spec_json: r#"{"precision":"fp16"}"#.into(), ..engine.clone() };
        assert!(line_of(std::slice::from_ref(&told), &other).is_none());
        let one = v1::HistoryLine { builds: vec![build(1, 1.0)], ..told };
        assert!(line_of(&[one], &engine).is_none(), "one build alone is no history");
    }
}
