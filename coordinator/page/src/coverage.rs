//! Which model has an engine for which device kind: the first page.

use crate::{
    format,
    lists::first_steps,
    rows::{Pill, figures_of, is_marked, model_name, spec_words, toolchain},
    table::{Cell, Column, Part, Table, column, words},
};
use planforge_proto::v1;
use planforge_report::disturbance;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Rows and columns that are shown at once; there are more pages of rows, and more columns are folded.
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
        // Whose place another one took, that one says how it stands, but for the toolchain.
        for job in jobs.iter().filter(|job| job.fallback.is_empty() || by == By::Toolchain) {
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

/// Which part of the matrix is looked at, and where its addresses lead.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The first row.
    pub from: usize,
    /// Address of the page with its filters, but for where it begins; empty: nothing leads on.
    pub address: String,
}

impl Asked {
    fn with(&self, name: &str, value: &str) -> String {
        if self.address.is_empty() {
            return String::new();
        }
        let joint = if self.address.contains('?') { '&' } else { '?' };
        format!("{}{joint}{name}={}", self.address, format::encoded(value))
    }
}

/// Device kinds by families: `a100-sxm4-40gb` is of `a100`. Of more families than columns the last ones are one together.
fn families<'a>(skus: &BTreeSet<&'a str>) -> BTreeMap<&'a str, &'a str> {
    let family = |sku: &'a str| sku.split_once('-').map_or(sku, |(family, _)| family);
    let names: BTreeSet<&str> = skus.iter().map(|sku| family(sku)).collect();
    let kept: BTreeSet<&str> = match names.len() > COLUMNS_MAX {
        true => names.into_iter().take(COLUMNS_MAX - 1).collect(),
        false => names,
    };
    let named = |sku: &'a str| Some(family(sku)).filter(|family| kept.contains(family)).unwrap_or("other");
    skus.iter().map(|sku| (*sku, named(sku))).collect()
}

/// The matrix: a row for each model, a column for each device kind, or for each family of them where there are many.
pub fn table(slots: &[Slot], is_cut: bool, server: &str, asked: &Asked) -> Table {
    let skus: BTreeSet<&str> = slots.iter().map(|slot| slot.sku.as_str()).collect();
    let is_folded = skus.len() > COLUMNS_MAX;
    let families = if is_folded { families(&skus) } else { skus.iter().map(|sku| (*sku, *sku)).collect() };
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    families.values().for_each(|family| *sizes.entry(family).or_default() += 1);
    let heading = |(family, size): (&&str, &usize)| match (is_folded, *size) {
        (true, 2..) if *family != "other" => {
            let column = words(&format!("{family} ({size} kinds)"));
            Column { href: asked.with("sku", &format!("{family}-*")), ..column }
        }
        (true, 2..) => words(&format!("{family} ({size} kinds)")),
        _ => words(family),
    };
    let columns: Vec<_> = [column("Model", "wide")].into_iter().chain(sizes.iter().map(heading)).collect();
    let mut table = Table::new("coverage", "Models by device kind", &columns);
    table.empty = first_steps(server);
    let mut rows: BTreeMap<(&str, &str), BTreeMap<&str, Vec<&Slot>>> = BTreeMap::new();
    for slot in slots {
        let row = rows.entry((&slot.model, &slot.by)).or_default();
        row.entry(families[slot.sku.as_str()]).or_default().push(slot);
    }
    let count = rows.len();
    let from = asked.from.min(count.saturating_sub(1) / ROWS_MAX * ROWS_MAX);
    for ((model, by), row) in rows.into_iter().skip(from).take(ROWS_MAX) {
        let mut name = vec![Part::Text(model.to_owned())];
        if !by.is_empty() {
            name.extend([Part::Break, Part::Muted(by.to_owned())]);
        }
        let in_column = |family: &&str| match row.get(family).map(Vec::as_slice) {
            None | Some([]) => Cell::default(),
            Some([one]) if !is_folded || sizes[family] == 1 => cell(one),
            Some(slots) => folded(family, slots, asked, model),
        };
        let cells: Vec<Cell> = [Cell::of(name)].into_iter().chain(sizes.keys().map(in_column)).collect();
        table.push(format!("{model} {by}"), "", cells);
    }
    if count > ROWS_MAX {
        let last = (from + ROWS_MAX).min(count);
        table.notes.push(format!("{} to {last} of {} models", from + 1, format::grouped(count as u64)));
        let place = |from: usize| if from == 0 { asked.address.clone() } else { asked.with("from", &from.to_string()) };
        table.back = if from > 0 { place(from.saturating_sub(ROWS_MAX)) } else { String::new() };
        table.more = if last < count { place(last) } else { String::new() };
    }
    if is_folded {
        table.notes.push(format!("{} device kinds, folded by family.", format::grouped(skus.len() as u64)));
    }
    let legend = disturbance::legend(slots.iter().any(|slot| slot.disturbed));
    table.notes.extend(Some(legend).filter(|legend| !legend.is_empty()));
    if is_cut {
        table.notes.push("There is more than was looked at: name a model or a device kind above.".into());
    }
    table
}

/// How a model stands on several device kinds: how many of each state, the worst first.
fn folded(family: &str, slots: &[&Slot], asked: &Asked, model: &str) -> Cell {
    let rank = |state: &str| match state {
        "failed" => 0,
        "missing" => 1,
        "slower" | "stale" | "disturbed" => 2,
        "building" => 3,
        "fresh" => 5,
        _ => 4,
    };
    let mut states: BTreeMap<(u8, &str), (usize, Pill)> = BTreeMap::new();
    for slot in slots {
        let entry = states.entry((rank(slot.state), slot.state)).or_insert_with(|| (0, slot.pill()));
        entry.0 += 1;
    }
    let narrowed = Asked { address: asked.with("model", model), ..Asked::default() };
    let href = if family == "other" { narrowed.address } else { narrowed.with("sku", &format!("{family}-*")) };
    let mut parts = Vec::new();
    for (count, pill) in states.into_values() {
        let text = format!("{} {}", format::grouped(count as u64), pill.text);
        parts.extend([Part::Pill { href: href.clone(), pill: Pill { text, ..pill } }, Part::Text(" ".into())]);
    }
    Cell { label: family.to_owned(), ..Cell::of(parts) }
}

fn cell(slot: &Slot) -> Cell {
    let href = match (slot.job.as_str(), slot.plan.as_str()) {
        ("", "") => String::new(),
        ("", plan) => format!("/plans/{plan}"),
        (job, _) => format!("/jobs/{job}"),
    };
    let mut parts = vec![Part::Pill { href, pill: slot.pill() }];
    if let Some(ms) = slot.median_ms {
        // What is known of disturbed windows alone is not to be counted on.
        let figure = disturbance::marked(format::milliseconds(ms), slot.disturbed);
        parts.extend([Part::Text(" ".into()), if slot.disturbed { Part::Text(figure) } else { Part::Strong(figure) }]);
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
    table(&slots_of_request(jobs), false, "", &Asked::default())
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
            failed: vec![
                job("broken", 50, "no <room>"),
                job("mended", 50, "before"),
                v1::Job { fallback: "another".into(), ..job("fresh.onnx", 50, "no operator") },
            ],
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
        let html = table(&slots, false, "http://farm", &Asked::default()).render().unwrap();
        assert!(html.contains("no &#60;room&#62;") && html.contains("/jobs/job-broken"), "{html}");
        let empty = table(&[], false, "http://farm", &Asked::default()).render().unwrap();
        assert_eq!(empty.matches("<code tabindex").count(), 3, "three commands to type: {empty}");
    }

    #[test]
    fn a_thousand_models_on_a_thousand_device_kinds_are_folded_and_every_one_is_reached() {
        let slot = |model: usize, sku: usize| Slot {
            model: format!("model{model:04}.onnx"),
            sku: format!("family{:02}-kind{sku:04}", sku % 20),
            state: ["fresh", "fresh", "fresh", "failed", "missing"][(model + sku / 20) % 5],
            accurate: true,
            ..Slot::default()
        };
        let slots: Vec<Slot> = (0..1_000).flat_map(|model| (0..1_000).map(move |sku| slot(model, sku))).collect();
        let asked = Asked { from: 120, address: "/?by=spec".into() };
        let table = table(&slots, false, "", &asked);
        assert_eq!((table.columns.len(), table.rows.len()), (21, ROWS_MAX));
        assert_eq!((table.more.as_str(), table.back.as_str()), ("/?by=spec&from=180", "/?by=spec&from=60"));
        assert_eq!(table.columns[1].name, "family00 (50 kinds)");
        let first = &table.rows[0];
        assert_eq!(first.key.trim(), "model0120.onnx");
        assert_eq!(first.cells[1].words(), "10 failed 10 missing 30 fresh");
        use askama::Template as _;
        let html = table.render().unwrap();
        assert!(html.contains("/?by=spec&#38;model=model0120.onnx&#38;sku=family00-%2A"), "{html}");
        assert!(table.notes.iter().any(|note| note == "121 to 180 of 1,000 models"), "{:?}", table.notes);
        // More families than columns: the last ones are one.
        let wide: Vec<Slot> = (0..1_000).map(|sku| Slot { sku: format!("f{sku:03}-x"), ..slot(1, sku) }).collect();
        let table = super::table(&wide, false, "", &Asked::default());
        assert_eq!(table.columns.len(), 1 + COLUMNS_MAX);
        assert!(table.columns.iter().any(|column| column.name == "other (977 kinds)"), "{:?}", table.columns);
    }
}
