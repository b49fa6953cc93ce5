//! What the templates show, made from the contract's messages. Text stays text: askama escapes it.

use crate::format;
use planforge_proto::{
    v1,
    view::{failure_class_name, is_ended, kind_name, state_name},
};
use planforge_report::{
    BatchSweep, StreamSweep,
    check::check_document,
    compare::portability::Portability,
    disturbance,
    figures::{Figures, WindowFigures},
};
use planforge_types::{BuildSpec, Toolchain, preparation::PrepareAsk};

/// Of a model's digest that is told beside its name.
const SOURCE_CHARACTERS: usize = 12;

/// A state as a pill: a word, a sign that is not colour, and a class for colour.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pill {
    pub text: String,
    pub sign: &'static str,
    pub class: &'static str,
}

impl Pill {
    pub fn new(text: impl Into<String>, sign: &'static str, class: &'static str) -> Self {
        Self { text: text.into(), sign, class }
    }

    pub fn of_state(state: v1::JobState) -> Self {
        use v1::JobState::*;
        let (sign, class) = match state {
            Leased | Running => ("▶", "go"),
            Succeeded => ("✓", "good"),
            Failed => ("✕", "bad"),
            Cancelled | Skipped => ("⊘", "off"),
            Unplaceable | Blocked => ("‖", "warn"),
            Queued | Unspecified => ("◷", "wait"),
        };
        Self::new(state_name(state), sign, class)
    }

    fn of_outcome(outcome: &str) -> Self {
        let (sign, class) = match outcome {
            "running" => ("▶", "go"),
            "succeeded" => ("✓", "good"),
            "failed" => ("✕", "bad"),
            "lost" => ("?", "warn"),
            _ => ("⊘", "off"),
        };
        Self::new(outcome, sign, class)
    }
}

/// A button that changes something: a form of its own, so that it works without scripts.
#[derive(Clone, Debug, Default)]
pub struct Act {
    /// `/do/cancel`
    pub action: &'static str,
    pub name: &'static str,
    pub value: String,
    pub text: &'static str,
    /// For who hears it: which row is meant.
    pub label: String,
    /// Cannot be taken back: it is asked for twice.
    pub is_grave: bool,
}

/// The figures of a report, which may not be there or not be readable.
pub(crate) fn figures_of(report_json: &str) -> Option<Figures> {
    if report_json.is_empty() {
        return None;
    }
    Figures::parse(report_json).inspect_err(|error| tracing::debug!(%error, "unreadable report")).ok()
}

/// The median, marked where every window was disturbed.
pub(crate) fn median(figures: Option<&Figures>) -> String {
    let known = figures.and_then(|figures| Some((figures.latency_ms.median?, is_marked(figures))));
    known.map_or_else(dash, |(ms, marked)| disturbance::marked(format::milliseconds(ms), marked))
}

pub(crate) fn is_marked(figures: &Figures) -> bool {
    figures.wholly_disturbed().is_some()
}

pub(crate) fn throughput(figures: Option<&Figures>) -> String {
    figures.and_then(|figures| figures.throughput_per_s).map_or_else(dash, format::per_second)
}

pub(crate) fn dash() -> String {
    "–".into()
}

pub(crate) fn time(unix_ms: u64) -> Option<String> {
    (unix_ms != 0).then(|| format::iso(unix_ms))
}

/// A toolchain for people; a document of another form is shown as it is.
pub(crate) fn toolchain(json: &str, constraint: &str) -> String {
    match serde_json::from_str::<Toolchain>(json) {
        Ok(toolchain) => toolchain.to_string(),
        Err(_) if !json.is_empty() => json.to_owned(),
        Err(_) if !constraint.is_empty() => constraint.to_owned(),
        Err(_) => "any".into(),
    }
}

/// A spec for people; lists that leave it out say nothing.
pub(crate) fn spec_words(json: &str) -> String {
    serde_json::from_str::<BuildSpec>(json).map(|spec| spec.words()).unwrap_or_default()
}

pub(crate) fn model_name(model: Option<&v1::Model>) -> String {
    match model {
        Some(model) if !model.name.is_empty() => model.name.clone(),
        Some(model) => format::short(&model.digest),
        None => dash(),
    }
}

/// A job in the list.
#[derive(Clone, Debug)]
pub struct JobRow {
    pub id: String,
    pub pill: Pill,
    pub ended: bool,
    pub model: String,
    pub model_digest: String,
    pub sku: String,
    pub toolchain: String,
    /// What its spec asks for: jobs of one model and device kind look alike without.
    pub spec: String,
    /// What it does now, why it waits, or how it ended.
    pub detail: String,
    /// 0..=100 while it runs.
    pub progress: Option<u32>,
    pub median: String,
    /// The median comes from disturbed windows alone.
    pub is_marked: bool,
    pub throughput: String,
    pub cached: bool,
    pub simulated: bool,
    /// When it last changed in a way that people ask for: ended, started or was created.
    pub when: Option<String>,
}

impl JobRow {
    pub fn new(job: &v1::Job) -> Self {
        let state = job.state();
        let figures = figures_of(&job.report_json);
        Self {
            id: job.id.clone(),
            pill: Pill::of_state(state),
            ended: is_ended(state),
            model: model_name(job.model.as_ref()),
            model_digest: job.model.as_ref().map(|model| format::short(&model.digest)).unwrap_or_default(),
            sku: job.sku.clone(),
            toolchain: toolchain(&job.toolchain_json, &job.toolchain_constraint),
            spec: spec_words(&job.spec_json),
            detail: detail(job),
            progress: progress(job),
            median: median(figures.as_ref()),
            is_marked: figures.as_ref().is_some_and(is_marked),
            throughput: throughput(figures.as_ref()),
            cached: job.cached,
            simulated: figures.as_ref().is_some_and(|figures| figures.simulated),
            when: [job.ended_ms, job.started_ms, job.created_ms].into_iter().find_map(time),
        }
    }
}

fn progress(job: &v1::Job) -> Option<u32> {
    (job.state() == v1::JobState::Running).then(|| (job.progress.clamp(0.0, 1.0) * 100.0).round() as u32)
}

fn detail(job: &v1::Job) -> String {
    if let Some(failure) = &job.failure {
        return failure.message.clone();
    }
    match job.state() {
        state if is_ended(state) => String::new(),
        v1::JobState::Running | v1::JobState::Leased if job.agent.is_empty() => job.phase.clone(),
        v1::JobState::Running if !job.phase.is_empty() => format!("{} on {}", job.phase, job.agent),
        v1::JobState::Running | v1::JobState::Leased => format!("on {}", job.agent),
        _ => job.waiting_reason.clone(),
    }
}

/// A finished engine in the list.
#[derive(Clone, Debug)]
pub struct EngineRow {
    pub model: String,
    pub model_digest: String,
    pub sku: String,
    pub toolchain: String,
    pub spec: String,
    pub median: String,
    /// The median comes from disturbed windows alone.
    pub is_marked: bool,
    pub throughput: String,
    pub builds: u32,
    pub size: String,
    pub accurate: bool,
    /// Its build was verified on given inputs alone.
    pub given_inputs: bool,
    pub simulated: bool,
    pub job: Option<String>,
    pub created: Option<String>,
    pub fetch: String,
}

impl EngineRow {
    pub fn new(engine: &v1::Engine, server: &str) -> Self {
        let figures = figures_of(&engine.report_json);
        Self {
            model: model_name(engine.model.as_ref()),
            model_digest: engine.model.as_ref().map(|model| format::short(&model.digest)).unwrap_or_default(),
            sku: engine.sku.clone(),
            toolchain: toolchain(&engine.toolchain_json, ""),
            spec: spec_words(&engine.spec_json),
            median: median(figures.as_ref()),
            is_marked: figures.as_ref().is_some_and(is_marked),
            throughput: throughput(figures.as_ref()),
            builds: engine.builds.max(1),
            size: format::bytes(engine.plan_bytes),
            accurate: engine.accurate,
            given_inputs: !engine.inputs_digest.is_empty(),
            simulated: engine.simulated || figures.is_some_and(|figures| figures.simulated),
            job: (!engine.job.is_empty()).then(|| engine.job.clone()),
            created: time(engine.created_ms),
            fetch: fetch_command(&engine.plan_digest, server),
        }
    }
}

/// What to type to get exactly this plan.
fn fetch_command(plan_digest: &str, server: &str) -> String {
    format!("planforge fetch {plan_digest} --server {server}")
}

/// A name and a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    pub name: &'static str,
    pub value: String,
    /// Where it leads; empty: nowhere.
    pub href: String,
}

impl Fact {
    /// A sentence rather than a figure.
    pub(crate) fn is_long(&self) -> bool {
        self.value.chars().count() > 22
    }
}

fn fact(name: &'static str, value: impl Into<String>) -> Option<Fact> {
    Some(Fact { name, value: value.into(), href: String::new() }).filter(|fact| !fact.value.is_empty())
}

/// A fact that leads to the page of what it names.
fn linked(name: &'static str, value: &str, folder: &str) -> Option<Fact> {
    fact(name, value).map(|fact| Fact { href: format!("/{folder}/{value}"), ..fact })
}

/// One attempt of a job.
#[derive(Clone, Debug)]
pub struct AttemptRow {
    pub number: u32,
    pub pill: Pill,
    pub agent: String,
    pub device: String,
    pub started: Option<String>,
    pub took: String,
    pub failure: String,
}

/// One point of a sweep.
#[derive(Clone, Debug)]
pub struct SweepRow {
    /// `4 streams`, `batch 8`.
    pub what: String,
    pub median: String,
    /// The median comes from disturbed windows alone.
    pub is_marked: bool,
    pub p99: String,
    pub throughput: String,
    /// Knee, best, or why there are no numbers.
    pub note: String,
}

/// Everything on a job's page.
#[derive(Clone, Debug)]
pub struct JobDetail {
    pub row: JobRow,
    pub facts: Vec<Fact>,
    pub failure: Option<FailureBox>,
    pub fetch: Option<String>,
    pub priority: i32,
    pub spec: String,
    pub attempts: Vec<AttemptRow>,
    /// Headline figures; empty until measured.
    pub figures: Vec<Fact>,
    pub sweeps: Vec<SweepRow>,
    /// What the mark at a median means; empty where none has it.
    pub legend: String,
    /// Why the report is not shown although there is one.
    pub refused: String,
    pub findings: Vec<Finding>,
    pub artifacts: Vec<ArtifactRow>,
    pub simulated: bool,
}

/// A file beside the report.
#[derive(Clone, Debug)]
pub struct ArtifactRow {
    pub name: String,
    pub digest: String,
    pub size: String,
}

#[derive(Clone, Debug)]
pub struct FailureBox {
    pub class: String,
    pub message: String,
    pub hint: String,
}

#[derive(Clone, Debug)]
pub struct Finding {
    pub severity: String,
    pub message: String,
}

impl JobDetail {
    /// What may be done to it.
    pub fn acts(&self) -> Vec<Act> {
        let (action, text) = if self.row.ended { ("/do/retry", "Submit again") } else { ("/do/cancel", "Cancel") };
        vec![Act { action, name: "id", value: self.row.id.clone(), text, ..Act::default() }]
    }

    /// What somebody with a link may read of it: nothing of other jobs, of agents and devices, or of who asked, and nothing
    /// that takes a token to get. `within` is the address of the link.
    #[must_use]
    pub fn for_readers(mut self, within: &str) -> Self {
        const SHOWN: [&str; 8] =
            ["Kind", "Project", "Tags", "Model digest", "Engine key", "Plan digest", "Builds", "Also measured"];
        self.facts.retain(|fact| SHOWN.contains(&fact.name));
        for fact in &mut self.facts {
            fact.href = match fact.name {
                "Plan digest" => format!("{within}{}", fact.href),
                _ => String::new(),
            };
        }
        self.fetch = None;
        self.artifacts.clear();
        self.attempts.clear();
        self
    }

    /// An engine as the job that built it would show it.
    pub fn of_engine(engine: &v1::Engine, server: &str) -> Self {
        let job = v1::Job {
            id: engine.job.clone(),
            state: v1::JobState::Succeeded.into(),
            kind: v1::JobKind::Build.into(),
            project: engine.project.clone(),
            engine_key: engine.engine_key.clone(),
            model: engine.model.clone(),
            sku: engine.sku.clone(),
            toolchain_json: engine.toolchain_json.clone(),
            spec_json: engine.spec_json.clone(),
            plan_digest: engine.plan_digest.clone(),
            plan_bytes: engine.plan_bytes,
            report_json: engine.report_json.clone(),
            accurate: engine.accurate,
            builds: engine.builds,
            ended_ms: engine.created_ms,
            ..v1::Job::default()
        };
        let mut detail = Self::new(&job, None, server);
        // What an engine is, is no matter of how it was asked for.
        detail.facts.retain(|fact| !["Kind", "Priority"].contains(&fact.name));
        detail.facts.extend(linked("Job", &engine.job, "jobs"));
        detail
    }

    /// `portability` is what a foreign plan loses here.
    pub fn new(job: &v1::Job, portability: Option<&Portability>, server: &str) -> Self {
        // Older coordinators took reports without looking.
        let refused = match job.report_json.as_str() {
            "" => String::new(),
            document => check_document(document).err().unwrap_or_default(),
        };
        let readable = figures_of(&job.report_json).filter(|_| refused.is_empty());
        let figures = readable.unwrap_or_default();
        let sweeps = sweep_rows(&figures);
        let legend = disturbance::legend(is_marked(&figures) || sweeps.iter().any(|row| row.is_marked));
        let foreign = portability.map(|cell| Finding {
            severity: "foreign".into(),
            message: format!("built for {}, measured on {}; loss: {}", cell.built_for, cell.measured_on, cell.words()),
        });
        let facts = [
            fact("Kind", kind_name(job.kind())),
            fact("Project", &*job.project),
            fact("Submitted by", &*job.actor),
            fact("Agent", &*job.agent),
            fact("Device", &*job.device),
            fact("Priority", job.priority.to_string()),
            fact("Tags", job.tags.join(", ")),
            fact("Requires", job.requires.join(", ")),
            linked("Request", &job.request_id, "requests"),
            linked("Model digest", job.model.as_ref().map_or("", |model| &model.digest), "models"),
            fact("Engine key", &*job.engine_key),
            linked("Plan digest", &job.plan_digest, "plans"),
            fact("Builds", if job.builds > 1 { job.builds.to_string() } else { String::new() }),
            fact("Also measured", also_measured(job.measure.as_ref())),
            fact(preparation_is(job), preparation(job)),
            linked("Prepared by", prepared_by(job), "jobs"),
            linked("Prepared model", made(job).map_or("", |model| &model.digest), "models"),
            linked("Fallback", &job.fallback, "jobs"),
            linked("In place of", job.tried.last().map_or("", |one| &one.job), "jobs"),
            fact("Refused by", job.tried.iter().map(refusal).collect::<Vec<_>>().join("; ")),
            fact("Needs", job.needed.join(", ")),
            fact("Waits for", job.needs.join(", ")),
            fact("Needed by", job.needed_by.join(", ")),
        ];
        let failure = job.failure.as_ref().map(|failure| FailureBox {
            class: failure_class_name(failure.class()),
            message: failure.message.clone(),
            hint: failure.hint.clone(),
        });
        Self {
            row: JobRow::new(job),
            facts: facts.into_iter().flatten().collect(),
            failure,
            fetch: (!job.plan_digest.is_empty()).then(|| fetch_command(&job.plan_digest, server)),
            priority: job.priority,
            spec: pretty(&job.spec_json),
            attempts: job.attempts.iter().rev().map(attempt_row).collect(),
            figures: headline(&figures, job),
            sweeps,
            legend,
            refused,
            findings: foreign
                .into_iter()
                .chain(figures.findings.into_iter().map(|f| Finding { severity: f.severity, message: f.message }))
                .collect(),
            artifacts: job
                .artifacts
                .iter()
                .map(|artifact| ArtifactRow {
                    name: artifact.name.clone(),
                    digest: artifact.digest.clone(),
                    size: format::bytes(artifact.size_bytes),
                })
                .chain(prepared_files(job))
                .collect(),
            simulated: figures.simulated,
        }
    }
}

/// What a job's preparation is to it.
fn preparation_is(job: &v1::Job) -> &'static str {
    match &job.preparation {
        _ if job.kind() == v1::JobKind::Prepare => "Makes",
        Some(from) if from.as_calibration => "Calibrated like",
        _ => "Prepared from",
    }
}

/// What a job makes of its model, or from what its model was made, in words.
fn preparation(job: &v1::Job) -> String {
    let Some(preparation) = &job.preparation else { return String::new() };
    let ask = serde_json::from_str::<PrepareAsk>(&preparation.ask_json).map(|ask| ask.words()).unwrap_or_default();
    match job.kind() {
        v1::JobKind::Prepare => ask,
        _ => {
            let source = &preparation.source_digest;
            let short = &source[..source.floor_char_boundary(SOURCE_CHARACTERS)];
            format!("{} ({short}), {ask}", preparation.source_name)
        }
    }
}

fn prepared_by(job: &v1::Job) -> &str {
    let other = job.preparation.as_ref().filter(|_| job.kind() != v1::JobKind::Prepare);
    other.map_or("", |preparation| &preparation.job)
}

fn made(job: &v1::Job) -> Option<&v1::Model> {
    job.preparation.as_ref().and_then(|preparation| preparation.made.as_ref())
}

/// What a job made of its model, as files.
fn prepared_files(job: &v1::Job) -> Vec<ArtifactRow> {
    let document = job.preparation.iter().filter(|preparation| !preparation.document_digest.is_empty());
    let document = document.map(|preparation| ArtifactRow {
        name: "preparation.json".into(),
        digest: preparation.document_digest.clone(),
        size: String::new(),
    });
    let files = made(job).into_iter().flat_map(|model| &model.files).map(|file| ArtifactRow {
        name: file.name.clone(),
        digest: file.digest.clone(),
        size: format::bytes(file.size_bytes),
    });
    document.chain(files).collect()
}

/// A toolchain that cannot build a job's model, and why.
fn refusal(tried: &v1::Tried) -> String {
    format!("{}: {}", toolchain(&tried.toolchain_json, ""), tried.message)
}

/// What is measured beside the usual, in words.
fn also_measured(ask: Option<&v1::MeasureAsk>) -> String {
    let Some(ask) = ask else { return String::new() };
    let numbers = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let streams = (!ask.streams.is_empty()).then(|| format!("{} streams", numbers(&ask.streams)));
    let batches = (!ask.batches.is_empty()).then(|| format!("batches {}", numbers(&ask.batches)));
    let trace = ask.trace.then(|| "a timeline".to_owned());
    let warm_up = (ask.warm_up_ms > 0).then(|| format!("warm-up of {} ms at least", ask.warm_up_ms));
    let windows = (ask.min_windows > 0).then(|| format!("{} windows at least", ask.min_windows));
    let inputs = (!ask.inputs_digest.is_empty())
        .then(|| if ask.time_inputs { "given inputs, timed too" } else { "given inputs" }.to_owned());
    let parts = [streams, batches, trace, warm_up, windows, inputs];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// A document as people read it, and change it.
pub fn pretty(json: &str) -> String {
    let value = serde_json::from_str::<serde_json::Value>(json).ok();
    value.and_then(|value| serde_json::to_string_pretty(&value).ok()).unwrap_or_else(|| json.to_owned())
}

fn attempt_row(attempt: &v1::Attempt) -> AttemptRow {
    let took = match (attempt.started_ms, attempt.ended_ms) {
        (started, ended) if started > 0 && ended >= started => format::milliseconds((ended - started) as f64),
        _ => String::new(),
    };
    AttemptRow {
        number: attempt.number,
        pill: Pill::of_outcome(&attempt.outcome),
        agent: attempt.agent.clone(),
        device: attempt.device.clone(),
        started: time(attempt.started_ms),
        took,
        failure: attempt.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default(),
    }
}

fn headline(figures: &Figures, job: &v1::Job) -> Vec<Fact> {
    let latency = &figures.latency_ms;
    let Some(median) = latency.median else { return Vec::new() };
    let ms = |value: Option<f64>| value.map(format::milliseconds).unwrap_or_default();
    let counts = |window: &&WindowFigures| window.iterations > 0 && (window.tainted.is_empty() || window.kept_tainted);
    let interval = match (&latency.no_interval, latency.ci_low, latency.ci_high) {
        (Some(why), ..) => format!("none: {why}"),
        // Older reports have bounds for a single window too, which tell nothing.
        _ if figures.windows.iter().filter(counts).count() == 1 => "none: one window".to_owned(),
        (None, Some(low), Some(high)) => format!("{} … {}", format::milliseconds(low), format::milliseconds(high)),
        _ => String::new(),
    };
    let numerics = figures.numerics.as_ref().map(|numerics| match (&numerics.skipped, numerics.max_error) {
        (Some(why), _) => format!("not compared: {why}"),
        (None, Some(error)) => {
            let beyond = |bound: f64| if numerics.passed && error > bound { " on the whole" } else { "" };
            let bound = numerics.threshold.map(|bound| format!(" (at most {bound:.0e}{})", beyond(bound)));
            let bound = bound.unwrap_or_default();
            format!("{error:.1e}{bound} against {}", numerics.oracle)
        }
        (None, None) => String::new(),
    });
    let accuracy = figures.accuracy.as_ref().and_then(|accuracy| {
        accuracy.top1.map(|top1| format!("{} of {} rows", format::percent(top1), format::grouped(accuracy.rows)))
    });
    let size = |bytes: Option<u64>| bytes.map(format::bytes).unwrap_or_default();
    let all = [
        fact("Latency, median", disturbance::marked(format::milliseconds(median), is_marked(figures))),
        fact("Throughput", figures.throughput_per_s.map(format::per_second).unwrap_or_default()),
        fact("p90", ms(latency.p90)),
        fact("p99", ms(latency.p99)),
        fact("Minimum", ms(latency.min)),
        fact("Confidence interval", interval),
        fact("Samples", latency.count.map(format::grouped).unwrap_or_default()),
        fact("Batch", figures.batch.map(|batch| batch.to_string()).unwrap_or_default()),
        fact("Build time", figures.build_ms.map(format::milliseconds).unwrap_or_default()),
        fact("Plan size", if job.plan_bytes > 0 { format::bytes(job.plan_bytes) } else { String::new() }),
        fact("Peak memory", size(figures.peak_memory_bytes)),
        fact("Memory to build", size(figures.build_memory_bytes)),
        fact("Memory to run", size(figures.run_memory_bytes)),
        fact("Engine memory", size(figures.engine_memory_bytes.filter(|bytes| *bytes > 0))),
        fact("Numeric error", numerics.unwrap_or_default()),
        fact("Top-1 accuracy", accuracy.unwrap_or_default()),
    ];
    all.into_iter().flatten().collect()
}

/// A part of a report that its own version of this program understands.
fn understood<T: serde::de::DeserializeOwned>(value: &serde_json::Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

fn sweep_rows(figures: &Figures) -> Vec<SweepRow> {
    let note = |at: u32, knee: Option<u32>, best: Option<u32>| {
        let marks = [(knee, "knee"), (best, "best")];
        marks.iter().filter(|(mark, _)| *mark == Some(at)).map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
    };
    let mut rows = Vec::new();
    if let Some(sweep) = understood::<StreamSweep>(&figures.streams) {
        rows.extend(sweep.points.iter().map(|point| SweepRow {
            what: format!("{} streams", point.streams),
            median: format::milliseconds(point.median_ms),
            is_marked: false,
            p99: format::milliseconds(point.p99_ms),
            throughput: format::per_second(point.throughput_per_s),
            note: note(point.streams, sweep.knee, sweep.best),
        }));
    }
    if let Some(sweep) = understood::<BatchSweep>(&figures.batches) {
        let shown = |value: Option<f64>, show: fn(f64) -> String| value.map_or_else(|| "–".into(), show);
        rows.extend(sweep.points.iter().map(|point| SweepRow {
            what: format!("batch {}", point.batch),
            median: disturbance::marked(
                shown(point.latency_ms.map(|stats| stats.median), format::milliseconds),
                point.disturbed,
            ),
            is_marked: point.disturbed,
            p99: shown(point.latency_ms.map(|stats| stats.p99), format::milliseconds),
            throughput: shown(point.throughput_per_s, format::per_second),
            note: point.problem.clone().unwrap_or_else(|| note(point.batch, sweep.knee, sweep.best)),
        }));
    }
    rows
}

/// One event of a job's history.
#[derive(Clone, Debug)]
pub struct EventRow {
    pub seq: u64,
    pub at: Option<String>,
    pub actor: String,
    pub what: String,
    pub detail: String,
}

impl EventRow {
    pub fn new(event: &v1::JobEvent) -> Self {
        Self {
            seq: event.seq,
            at: time(event.at_ms),
            actor: event.actor.clone(),
            what: event.what.clone(),
            detail: event.detail.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the page says of the interval of a report with these fields.
    fn interval(latency: &str, windows: &str) -> String {
        let report =
            format!(r#"{{"latency_ms":{{"median":1.25,"ci_low":1.2,"ci_high":1.3{latency}}},"windows":{windows}}}"#);
        let facts = headline(&Figures::parse(&report).unwrap(), &v1::Job::default());
        facts.into_iter().find(|fact| fact.name == "Confidence interval").unwrap().value
    }

    #[test]
    fn a_report_that_contradicts_itself_is_not_shown() {
        let samples = serde_json::to_string(&planforge_report::Samples::encode(&[1.0, 2.0, 3.0])).unwrap();
        let detail = |median: f64| {
            let report_json = format!(r#"{{"latency_ms":{{"median":{median:?}}},"samples":{samples}}}"#);
            JobDetail::new(&v1::Job { report_json, ..Default::default() }, None, "")
        };
        let (good, wrong) = (detail(2.0), detail(0.5));
        assert!(good.refused.is_empty() && !good.figures.is_empty());
        assert!(wrong.figures.is_empty() && wrong.refused.contains("latency_ms.median is stated as 0.5"));
    }

    #[test]
    fn jobs_that_take_each_others_places_lead_to_each_other() {
        let fact = |job: &v1::Job, name: &str| {
            let fact = JobDetail::new(job, None, "").facts.into_iter().find(|fact| fact.name == name).unwrap();
            (fact.value, fact.href)
        };
        let first = v1::Job { fallback: "second".into(), ..Default::default() };
        assert_eq!(fact(&first, "Fallback").1, "/jobs/second");
        let toolchain_json = r#"{"backend":"native","version":"8"}"#.into();
        let tried = v1::Tried { toolchain_json, job: "first".into(), message: "no operator".into() };
        let second = v1::Job { tried: vec![tried], ..Default::default() };
        assert_eq!(fact(&second, "In place of").1, "/jobs/first");
        assert_eq!(fact(&second, "Refused by").0, "native 8: no operator");
    }

    #[test]
    fn one_window_shows_no_interval() {
        let window = r#"{"iterations":40}"#;
        assert!(interval("", "[]").contains(" … "));
        assert!(interval("", &format!("[{window},{window}]")).contains(" … "));
        assert_eq!(interval(r#","no_interval":"one window""#, "[]"), "none: one window");
        // As older reports have it; a discarded window does not count.
        let discarded = r#"{"iterations":40,"tainted":["throttled"]}"#;
        assert_eq!(interval("", &format!("[{window},{discarded}]")), "none: one window");
    }
}
