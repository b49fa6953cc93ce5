//! Which model has an engine for which device kind: the first page.

use crate::{
    format,
    lists::first_steps,
    rows::{Pill, figures_of, is_marked, model_name, spec_words, toolchain},
    table::{Cell, Part, Table, column, words},
};
use planforge_proto::v1;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Rows and columns that are shown at once; filters reach the others.
const ROWS_MAX: usize = 60;
const COLUMNS_MAX: usize = 24;
/// A version of a model that is slower than the one before by more than this factor is called slower.
const SLOWER: f64 = 1.05;

/// What is known of engines, as far as it was read.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub declarations: Vec<v1::Declaration>,
    /// Newest first.
    pub engines: Vec<v1::Engine>,
    pub live: Vec<v1::Job>,
    /// Newest first.
    pub failed: Vec<v1::Job>,
    /// There is more than was read: filters narrow it.
    pub is_cut: bool,
}

/// What rows are told apart by beside the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    #[default]
    Model,
    Spec,
    Toolchain,
}

/// One model on one device kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Slot {
    pub model: String,
    /// Spec or toolchain, where rows are told apart by it.
    pub by: String,
    pub sku: String,
    /// fresh, stale, slower, building, waiting, missing, failed, disturbed or unmeasured; of a request cancelled, too.
    pub state: &'static str,
    /// Why, where a word is not enough.
    pub why: String,
    pub plan: String,
    pub job: String,
    pub median_ms: Option<f64>,
    /// The median comes from disturbed windows alone.
    pub disturbed: bool,
    pub accurate: bool,
    /// On a device that is not there.
    pub simulated: bool,
}

impl Slot {
    fn pill(&self) -> Pill {
        let (sign, class) = match self.state {
            "fresh" => ("✓", "good"),
            "stale" | "slower" | "disturbed" => ("!", "warn"),
            "building" => ("▶", "go"),
            "failed" => ("✕", "bad"),
            "missing" => ("○", "bad"),
            "cancelled" => ("⊘", "off"),
            _ => ("◷", "wait"),
        };
        let text = if self.state == "unmeasured" { "built, not measured" } else { self.state };
        Pill::new(text, sign, class)
    }
}

type Place = (String, String, String);

/// Every model, what it is told apart by, and device kind of which something is known.
pub fn slots(known: &Known, by: By) -> Vec<Slot> {
    let told = |spec: &str, tools: String| match by {
        By::Model => String::new(),
        By::Spec => spec_words(spec),
        By::Toolchain => tools,
    };
    let place = |model: Option<&v1::Model>, spec: &str, tools: String, sku: &str| -> Place {
        (model_name(model), told(spec, tools), sku.to_owned())
    };
    let mut engines: BTreeMap<Place, Vec<&v1::Engine>> = BTreeMap::new();
    for engine in &known.engines {
        let tools = toolchain(&engine.toolchain_json, "");
        engines.entry(place(engine.model.as_ref(), &engine.spec_json, tools, &engine.sku)).or_default().push(engine);
    }
    let of_jobs = |jobs: &[v1::Job]| {
        let mut found: BTreeMap<Place, v1::Job> = BTreeMap::new();
        for job in jobs {
            let tools = toolchain(&job.toolchain_json, &job.toolchain_constraint);
            found.entry(place(job.model.as_ref(), &job.spec_json, tools, &job.sku)).or_insert_with(|| job.clone());
        }
        found
    };
    let (live, failed) = (of_jobs(&known.live), of_jobs(&known.failed));
    // What is declared, by the digests that it may have.
    let mut declared: BTreeMap<Place, BTreeSet<&str>> = BTreeMap::new();
    for declaration in &known.declarations {
        for cell in &declaration.cells {
            let spec = declaration.specs.iter().find(|spec| spec.name == cell.spec);
            let (json, tools) = spec.map_or(("", ""), |spec| (spec.spec_json.as_str(), spec.toolchain.as_str()));
            // A declaration calls a model by its name there; engines by the name of its file.
            let engine = known
                .engines
                .iter()
                .find(|engine| engine.model.as_ref().is_some_and(|model| model.digest == cell.model_digest));
            let name = engine.map_or_else(|| cell.model.clone(), |engine| model_name(engine.model.as_ref()));
            let place = (name, told(json, toolchain("", tools)), cell.sku.clone());
            declared.entry(place).or_default().insert(&cell.model_digest);
        }
    }
    let places: BTreeSet<&Place> =
        engines.keys().chain(live.keys()).chain(failed.keys()).chain(declared.keys()).collect();
    let slot = |place: &Place| {
        let built = engines.get(place).map_or(&[][..], Vec::as_slice);
        slot(place, built, live.get(place), failed.get(place), declared.get(place))
    };
    places.into_iter().map(slot).collect()
}

fn slot(
    (model, by, sku): &Place,
    built: &[&v1::Engine],
    live: Option<&v1::Job>,
    failed: Option<&v1::Job>,
    declared: Option<&BTreeSet<&str>>,
) -> Slot {
    let mut slot = Slot { model: model.clone(), by: by.clone(), sku: sku.clone(), accurate: true, ..Slot::default() };
    let newest = built.first();
    if let Some(engine) = newest {
        let figures = figures_of(&engine.report_json);
        slot.plan.clone_from(&engine.plan_digest);
        slot.median_ms = figures.as_ref().and_then(|figures| figures.latency_ms.median);
        slot.disturbed = figures.as_ref().is_some_and(is_marked);
        slot.accurate = engine.accurate;
        slot.simulated = engine.simulated || figures.as_ref().is_some_and(|figures| figures.simulated);
        slot.state = match slot.median_ms {
            None => "unmeasured",
            Some(_) if slot.disturbed => "disturbed",
            Some(_) => "fresh",
        };
        let digest = |engine: &v1::Engine| engine.model.as_ref().map(|model| model.digest.clone()).unwrap_or_default();
        let before = built[1..].iter().find(|other| {
            digest(other) != digest(engine)
                && (&other.spec_json, &other.toolchain_json) == (&engine.spec_json, &engine.toolchain_json)
        });
        let then = before.and_then(|other| figures_of(&other.report_json)?.latency_ms.median);
        if let (Some(now), Some(then)) = (slot.median_ms, then)
            && now > then * SLOWER
        {
            slot.state = "slower";
            slot.why = format!("{} before", format::milliseconds(then));
        }
        if declared.is_some_and(|digests| !built.iter().any(|engine| digests.contains(digest(engine).as_str()))) {
            slot.state = "stale";
            slot.why = "the model changed since".into();
        }
    } else if declared.is_some() {
        slot.state = "missing";
        slot.why = "declared, not built".into();
    }
    if let Some(job) = failed
        && newest.is_none_or(|engine| engine.created_ms < job.ended_ms)
    {
        slot.state = "failed";
        slot.job.clone_from(&job.id);
        slot.why = job.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default();
    }
    if let Some(job) = live {
        let runs = matches!(job.state(), v1::JobState::Running | v1::JobState::Leased);
        slot.state = if runs { "building" } else { "waiting" };
        slot.job.clone_from(&job.id);
        slot.why.clone_from(&job.phase);
    }
    slot
}

/// The matrix: a row for each model, a column for each device kind.
pub fn table(slots: &[Slot], is_cut: bool, server: &str) -> Table {
    let skus: BTreeSet<&str> = slots.iter().map(|slot| slot.sku.as_str()).collect();
    let folded = skus.len().saturating_sub(COLUMNS_MAX);
    let skus: Vec<&str> = skus.into_iter().take(COLUMNS_MAX).collect();
    let columns: Vec<_> = [column("Model", "wide")].into_iter().chain(skus.iter().map(|sku| words(sku))).collect();
    let mut table = Table::new("coverage", "Models by device kind", &columns);
    table.empty = first_steps(server);
    let mut rows: BTreeMap<(&str, &str), BTreeMap<&str, &Slot>> = BTreeMap::new();
    for slot in slots {
        rows.entry((&slot.model, &slot.by)).or_default().insert(&slot.sku, slot);
    }
    let unseen = rows.len().saturating_sub(ROWS_MAX);
    for ((model, by), row) in rows.into_iter().take(ROWS_MAX) {
        let mut name = vec![Part::Text(model.to_owned())];
        if !by.is_empty() {
            name.extend([Part::Break, Part::Muted(by.to_owned())]);
        }
        let cells = skus.iter().map(|sku| row.get(sku).map_or_else(Cell::default, |slot| cell(slot)));
        let cells: Vec<Cell> = [Cell::of(name)].into_iter().chain(cells).collect();
        table.push(format!("{model} {by}"), "", cells);
    }
    let more = [(unseen, "more models"), (folded, "more device kinds")];
    table.notes.extend(
        more.into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{} {what}: name one above to see it.", format::grouped(count as u64))),
    );
    if is_cut {
        table.notes.push("There is more than was looked at: name a model or a device kind above.".into());
    }
    table
}

fn cell(slot: &Slot) -> Cell {
    let href = match (slot.job.as_str(), slot.plan.as_str()) {
        ("", "") => String::new(),
        ("", plan) => format!("/plans/{plan}"),
        (job, _) => format!("/jobs/{job}"),
    };
    let mut parts = vec![Part::Pill { href, pill: slot.pill() }];
    if let Some(ms) = slot.median_ms {
        parts.extend([Part::Text(" ".into()), Part::Strong(format::milliseconds(ms))]);
    }
    if !slot.accurate {
        parts.push(Part::tag("not verified", "bad"));
    }
    if slot.simulated {
        parts.push(Part::tag("simulated", "warn"));
    }
    if !slot.why.is_empty() {
        parts.extend([Part::Break, Part::Muted(slot.why.clone())]);
    }
    // A table's head is not seen on a phone.
    Cell { label: slot.sku.clone(), ..Cell::of(parts) }
}

/// What became of a request, as a matrix.
pub fn of_request(jobs: &[v1::Job]) -> Table {
    table(&slots_of_request(jobs), false, "")
}

pub fn slots_of_request(jobs: &[v1::Job]) -> Vec<Slot> {
    let several: BTreeSet<String> = jobs.iter().map(|job| spec_words(&job.spec_json)).collect();
    let slot = |job: &v1::Job| {
        let figures = figures_of(&job.report_json);
        let median_ms = figures.as_ref().and_then(|figures| figures.latency_ms.median);
        let disturbed = figures.as_ref().is_some_and(is_marked);
        use v1::JobState::*;
        let state = match job.state() {
            Succeeded if disturbed => "disturbed",
            Succeeded if median_ms.is_none() => "unmeasured",
            Succeeded => "fresh",
            Failed => "failed",
            Cancelled | Skipped => "cancelled",
            Running | Leased => "building",
            _ => "waiting",
        };
        let spec = spec_words(&job.spec_json);
        Slot {
            model: model_name(job.model.as_ref()),
            by: if several.len() > 1 { spec } else { toolchain(&job.toolchain_json, &job.toolchain_constraint) },
            sku: job.sku.clone(),
            state,
            why: job.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default(),
            plan: job.plan_digest.clone(),
            job: job.id.clone(),
            median_ms,
            disturbed,
            accurate: job.state() != Succeeded || job.accurate,
            simulated: figures.is_some_and(|figures| figures.simulated),
        }
    };
    jobs.iter().map(slot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str, digest: &str) -> Option<v1::Model> {
        Some(v1::Model { name: name.into(), digest: digest.into(), ..Default::default() })
    }

    fn engine(name: &str, digest: &str, sku: &str, report: &str, created_ms: u64) -> v1::Engine {
        v1::Engine {
            model: model(name, digest),
            sku: sku.into(),
            plan_digest: format!("{name}-{digest}-{sku}"),
            report_json: report.into(),
            accurate: true,
            created_ms,
            ..Default::default()
        }
    }

    #[test]
    fn every_state_is_told_from_what_is_known() {
        let report = |ms: f64| format!(r#"{{"latency_ms":{{"median":{ms:?}}}}}"#);
        let disturbed =
            r#"{"latency_ms":{"median":1.0},"windows":[{"iterations":4,"tainted":["x"],"kept_tainted":true}]}"#;
        let job = |name: &str, ended_ms: u64, message: &str| v1::Job {
            id: format!("job-{name}"),
            model: model(name, "d"),
            sku: "t4".into(),
            ended_ms,
            failure: Some(v1::Failure { message: message.into(), ..Default::default() }).filter(|_| ended_ms > 0),
            ..Default::default()
        };
        let cell = |model: &str, digest: &str| v1::DeclaredCell {
            model: model.into(),
            model_digest: digest.into(),
            sku: "t4".into(),
            ..Default::default()
        };
        let known = Known {
            declarations: vec![v1::Declaration {
                cells: vec![cell("absent", "x"), cell("old", "new"), cell("shop", "fresh")],
                ..Default::default()
            }],
            engines: vec![
                engine("slow", "2", "t4", &report(2.0), 20),
                engine("slow", "1", "t4", &report(1.0), 10),
                engine("old", "old", "t4", &report(1.0), 10),
                engine("fresh.onnx", "fresh", "t4", &report(1.0), 10),
                engine("noisy", "n", "t4", disturbed, 10),
                engine("bare", "b", "t4", "", 10),
                engine("mended", "d", "t4", &report(1.0), 99),
            ],
            live: vec![
                v1::Job { state: v1::JobState::Running.into(), ..job("busy", 0, "") },
                v1::Job { state: v1::JobState::Unplaceable.into(), ..job("queued", 0, "") },
            ],
            failed: vec![job("broken", 50, "no <room>"), job("mended", 50, "before")],
            is_cut: false,
        };
        let slots = slots(&known, By::Model);
        let states: BTreeMap<&str, &str> = slots.iter().map(|slot| (slot.model.as_str(), slot.state)).collect();
        let expected = [
            ("absent", "missing"),
            ("bare", "unmeasured"),
            ("broken", "failed"),
            ("busy", "building"),
            ("fresh.onnx", "fresh"),
            ("mended", "fresh"),
            ("noisy", "disturbed"),
            ("old", "stale"),
            ("queued", "waiting"),
            ("slow", "slower"),
        ];
        assert_eq!(states.into_iter().collect::<Vec<_>>(), expected);
        use askama::Template as _;
        let html = table(&slots, false, "http://farm").render().unwrap();
        assert!(html.contains("no &#60;room&#62;") && html.contains("/jobs/job-broken"), "{html}");
        let empty = table(&[], false, "http://farm").render().unwrap();
        assert_eq!(empty.matches("<code tabindex").count(), 3, "three commands to type: {empty}");
    }
}
