//! Which model has an engine for which device kind: the first page.

use crate::{
    format,
    lists::first_steps,
    rows::{Pill, figures_of, is_marked, model_name, spec_words, toolchain},
    table::{Cell, Column, Part, Table, column, words},
};
use planforge_proto::v1;
use planforge_report::disturbance;
use planforge_types::{BuildSpec, Toolchain};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Rows and columns that are shown at once; there are more pages of rows, and more columns are folded.
const ROWS_MAX: usize = 60;
const COLUMNS_MAX: usize = 24;
/// Cells of a page, which bound its bytes: where there are many columns it has fewer rows, but so many at least.
const CELLS_MAX: usize = 300;
const ROWS_MIN: usize = 10;
/// A cell of a family of device kinds has about so many times the bytes of another.
const FOLDED: usize = 3;
/// A version of a model that is slower than the one before by more than this factor is called slower.
const SLOWER: f64 = 1.05;

/// What is known of the models of a page.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Their cells are of these models alone, by the names of their engines where there are any.
    pub declarations: Vec<v1::Declaration>,
    /// What engines call models that a declaration calls by a name of its own, by their digests.
    pub names: BTreeMap<String, String>,
    /// Newest first.
    pub engines: Vec<Built>,
    /// Newest first.
    pub live: Vec<Work>,
    /// Newest first.
    pub failed: Vec<Work>,
}

impl Known {
    /// What the model of a declared cell is called here: a declaration has a name of its own for it, engines the name of
    /// its file.
    pub fn name_of<'a>(names: &'a BTreeMap<String, String>, cell: &'a v1::DeclaredCell) -> &'a str {
        names.get(&cell.model_digest).unwrap_or(&cell.model)
    }
}

/// The newest engine of a key.
#[derive(Clone, Debug, Default)]
pub struct Built {
    pub model: String,
    pub model_digest: String,
    pub sku: String,
    pub spec_json: String,
    pub toolchain_json: String,
    pub plan: String,
    pub created_ms: u64,
    pub median_ms: Option<f64>,
    /// Every window that counts was.
    pub disturbed: bool,
    pub accurate: bool,
    pub simulated: bool,
}

impl Built {
    /// Whether the other was built by the same toolchain to the same spec, whichever version of this program wrote it.
    fn is_like(&self, other: &Self) -> bool {
        fn same<T: serde::de::DeserializeOwned + PartialEq>(left: &str, right: &str) -> bool {
            let read = |json| serde_json::from_str::<T>(json).ok();
            left == right || read(left).is_some_and(|left| Some(left) == read(right))
        }
        same::<Toolchain>(&self.toolchain_json, &other.toolchain_json)
            && same::<BuildSpec>(&self.spec_json, &other.spec_json)
    }
}

/// A job that lives, or one that failed.
#[derive(Clone, Debug, Default)]
pub struct Work {
    pub id: String,
    pub model: String,
    pub sku: String,
    /// The three that tell rows apart; empty where the model alone does.
    pub spec_json: String,
    pub toolchain_json: String,
    pub constraint: String,
    /// It is leased or running.
    pub runs: bool,
    /// 0 while it lives.
    pub ended_ms: u64,
    /// What it does or how it failed.
    pub why: String,
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
    let told = |spec: &str, tools: &dyn Fn() -> String| match by {
        By::Model => String::new(),
        By::Spec => spec_words(spec),
        By::Toolchain => tools(),
    };
    let mut engines: BTreeMap<Place, Vec<&Built>> = BTreeMap::new();
    for engine in &known.engines {
        let by = told(&engine.spec_json, &|| toolchain(&engine.toolchain_json, ""));
        engines.entry((engine.model.clone(), by, engine.sku.clone())).or_default().push(engine);
    }
    let of_jobs = |jobs: &[Work]| {
        let mut found: BTreeMap<Place, Work> = BTreeMap::new();
        for job in jobs {
            let by = told(&job.spec_json, &|| toolchain(&job.toolchain_json, &job.constraint));
            found.entry((job.model.clone(), by, job.sku.clone())).or_insert_with(|| job.clone());
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
            let by = told(json, &|| toolchain("", tools));
            let place = (Known::name_of(&known.names, cell).to_owned(), by, cell.sku.clone());
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
    built: &[&Built],
    live: Option<&Work>,
    failed: Option<&Work>,
    declared: Option<&BTreeSet<&str>>,
) -> Slot {
    let mut slot = Slot { model: model.clone(), by: by.clone(), sku: sku.clone(), accurate: true, ..Slot::default() };
    let newest = built.first();
    if let Some(engine) = newest {
        slot.plan.clone_from(&engine.plan);
        slot.median_ms = engine.median_ms;
        slot.disturbed = engine.disturbed;
        slot.accurate = engine.accurate;
        slot.simulated = engine.simulated;
        slot.state = match slot.median_ms {
            None => "unmeasured",
            Some(_) if slot.disturbed => "disturbed",
            Some(_) => "fresh",
        };
        let before = built[1..].iter().find(|other| other.model_digest != engine.model_digest && other.is_like(engine));
        if let (Some(now), Some(then)) = (slot.median_ms, before.and_then(|other| other.median_ms))
            && now > then * SLOWER
        {
            slot.state = "slower";
            slot.why = format!("{} before", format::milliseconds(then));
        }
        if declared.is_some_and(|digests| !built.iter().any(|engine| digests.contains(engine.model_digest.as_str()))) {
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
        slot.why.clone_from(&job.why);
    }
    if let Some(job) = live {
        slot.state = if job.runs { "building" } else { "waiting" };
        slot.job.clone_from(&job.id);
        slot.why.clone_from(&job.why);
    }
    slot
}

/// Part of the models, by name.
#[derive(Clone, Debug, Default)]
pub struct Window {
    pub names: Vec<String>,
    /// The number of the first.
    pub from: usize,
    /// How many there are.
    pub count: usize,
    /// Device kinds of all of them.
    pub skus: BTreeSet<String>,
}

impl Window {
    /// How many models a page has, by the device kinds that it has columns for.
    pub fn size(skus: &BTreeSet<&str>) -> usize {
        let cells = match skus.len() > COLUMNS_MAX {
            true => FOLDED * families(skus).values().collect::<BTreeSet<_>>().len(),
            false => skus.len(),
        };
        (CELLS_MAX / cells.max(1)).clamp(ROWS_MIN, ROWS_MAX)
    }

    /// Which of the models of which something stands may be on the page from number `from`, beside so many that are only
    /// declared: from which number, and how many.
    pub fn standing(from: usize, declared: usize) -> (usize, usize) {
        let first = from.saturating_sub(declared);
        (first, from.saturating_add(ROWS_MAX) - first)
    }

    /// The page of `size` models from number `from` of those of which something stands, `count` in all, and between them by
    /// name of those that are only declared. `stands` are the ones that [`Self::standing`] says.
    pub fn merged(stands: Vec<String>, count: usize, declared: BTreeSet<String>, (from, size): (usize, usize)) -> Self {
        let (first, _) = Self::standing(from, declared.len());
        let count = count + declared.len();
        let (mut stands, mut declared) = (stands.into_iter().peekable(), declared.into_iter().peekable());
        // Numbers of declared models ahead of all that were read are too high, and still below the page's.
        let all = std::iter::from_fn(|| match (stands.peek(), declared.peek()) {
            (Some(stand), Some(other)) if other < stand => declared.next(),
            (Some(_), _) => stands.next(),
            (None, _) => declared.next(),
        });
        let names = all.skip(from - first).take(size).collect();
        Self { names, from, count, skus: BTreeSet::new() }
    }

    /// Where a page begins that was asked for behind the end.
    pub fn within(from: usize, size: usize, count: usize) -> usize {
        from.min(count.saturating_sub(1) / size * size)
    }

    /// Whether something that begins to stand here changes what the page shows: a model of it or between its models, or a
    /// device kind that has no column yet.
    pub fn may_show(&self, model: &str, sku: &str) -> bool {
        let is_last = self.next().is_none();
        let ends_before = self.names.last().is_none_or(|last| last.as_str() < model);
        let begins_behind = self.from > 0 && self.names.first().is_some_and(|first| model < first.as_str());
        !self.skus.contains(sku) || !((ends_before && !is_last) || begins_behind)
    }

    /// Where the next page begins.
    pub fn next(&self) -> Option<usize> {
        Some(self.from + self.names.len()).filter(|next| *next < self.count && !self.names.is_empty())
    }
}

/// Which part of the matrix is looked at, and where its addresses lead.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Rows of the first model that were shown before.
    pub row: usize,
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

    /// Where the page begins that shows models from number `from`, without so many rows of the first.
    fn at(&self, from: usize, row: usize) -> String {
        let mut at = self.clone();
        for (name, number) in [("from", from), ("row", row)] {
            if number > 0 {
                at.address = at.with(name, &number.to_string());
            }
        }
        at.address
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

/// The matrix of a window's models: a row for each, or several where they are told apart; a column for each device kind, or
/// for each family of them where there are many.
pub fn table(window: &Window, slots: &[Slot], is_cut: bool, server: &str, asked: &Asked) -> Table {
    let skus: BTreeSet<&str> =
        window.skus.iter().map(String::as_str).chain(slots.iter().map(|slot| slot.sku.as_str())).collect();
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
    // Where nothing leads on, all that fits is there at once.
    let size = if asked.address.is_empty() { ROWS_MAX } else { Window::size(&skus) };
    let keys: Vec<(&str, &str)> = rows.keys().copied().collect();
    for ((model, by), row) in rows.into_iter().skip(asked.row).take(size) {
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
    let end = asked.row.saturating_add(size);
    let (last, more) = match keys.get(end) {
        // The page ends within the models, perhaps within one.
        Some((model, _)) => {
            let number = window.from + window.names.partition_point(|name| name.as_str() < *model);
            let row = keys[..end].iter().rev().take_while(|(before, _)| before == model).count();
            (number + usize::from(row > 0), Some((number, row)))
        }
        None => (window.from + window.names.len(), window.next().map(|next| (next, 0))),
    };
    if window.from > 0 || asked.row > 0 || more.is_some() {
        let (first, count) = (window.from + 1, window.count as u64);
        table.notes.push(format!("{first} to {} of {} models", last.max(first), format::grouped(count)));
        table.back = match (asked.row, window.from) {
            (0, 0) => String::new(),
            (0, from) => asked.at(from.saturating_sub(size), 0),
            (row, from) => asked.at(from, row.saturating_sub(size)),
        };
        table.more = more.map_or_else(String::new, |(from, row)| asked.at(from, row));
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
    let slots = slots_of_request(jobs);
    let names: BTreeSet<&String> = slots.iter().map(|slot| &slot.model).collect();
    let names: Vec<String> = names.into_iter().cloned().collect();
    let window = Window { count: names.len(), names, ..Window::default() };
    table(&window, &slots, false, "", &Asked::default())
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

    fn engine(name: &str, digest: &str, median_ms: Option<f64>, created_ms: u64) -> Built {
        Built {
            model: name.into(),
            model_digest: digest.into(),
            sku: "t4".into(),
            plan: format!("{name}-{digest}"),
            median_ms,
            accurate: true,
            created_ms,
            ..Built::default()
        }
    }

    #[test]
    fn what_stands_on_no_place_of_a_page_is_not_shown_there() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let part = |from| Window { names: names(&["d", "f"]), from, count: 9, skus: ["t4".to_owned()].into() };
        let shows = |window: &Window| ["a", "d", "e", "f", "g"].map(|model| window.may_show(model, "t4"));
        assert_eq!(shows(&part(0)), [true, true, true, true, false]);
        assert_eq!(shows(&part(3)), [false, true, true, true, false]);
        assert_eq!(shows(&part(7)), [false, true, true, true, true], "the last page");
        assert!(part(3).may_show("a", "a100"), "a column more");
        assert!(Window { names: Vec::new(), count: 0, ..part(0) }.may_show("a", "t4"));
    }

    fn window(slots: &[Slot]) -> Window {
        let names: BTreeSet<&String> = slots.iter().map(|slot| &slot.model).collect();
        let names: Vec<String> = names.into_iter().cloned().collect();
        Window { count: names.len(), names, ..Window::default() }
    }

    #[test]
    fn every_state_is_told_from_what_is_known() {
        let job = |name: &str, ended_ms: u64, why: &str| Work {
            id: format!("job-{name}"),
            model: name.into(),
            sku: "t4".into(),
            ended_ms,
            why: why.into(),
            ..Work::default()
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
            names: BTreeMap::from([("fresh".into(), "fresh.onnx".into())]),
            engines: vec![
                engine("mended", "d", Some(1.0), 99),
                engine("slow", "2", Some(2.0), 20),
                engine("slow", "1", Some(1.0), 10),
                engine("old", "old", Some(1.0), 10),
                engine("fresh.onnx", "fresh", Some(1.0), 10),
                Built { disturbed: true, ..engine("noisy", "n", Some(1.0), 10) },
                engine("bare", "b", None, 10),
            ],
            live: vec![Work { runs: true, ..job("busy", 0, "") }, job("queued", 0, "")],
            failed: vec![job("broken", 50, "no <room>"), job("mended", 50, "before")],
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
        let html = table(&window(&slots), &slots, false, "http://farm", &Asked::default()).render().unwrap();
        assert!(html.contains("no &#60;room&#62;") && html.contains("/jobs/job-broken"), "{html}");
        let empty = table(&Window::default(), &[], false, "http://farm", &Asked::default()).render().unwrap();
        assert_eq!(empty.matches("<code tabindex").count(), 3, "three commands to type: {empty}");
    }

    #[test]
    fn only_what_was_built_alike_is_slower_than_before() {
        let spec = |precision: &str| format!(r#"{{"precision":"{precision}"}}"#);
        let of = |digest: &str, spec_json: String, ms: f64, created_ms: u64| Built {
            spec_json,
            toolchain_json: r#"{"backend":"native","version":"1"}"#.into(),
            ..engine("m", digest, Some(ms), created_ms)
        };
        let state = |engines: Vec<Built>| slots(&Known { engines, ..Known::default() }, By::Model)[0].state;
        assert_eq!(state(vec![of("2", spec("fp32"), 2.0, 2), of("1", spec("fp32"), 1.0, 1)]), "slower");
        assert_eq!(state(vec![of("2", spec("fp32"), 2.0, 2), of("1", spec("fp16"), 1.0, 1)]), "fresh");
        // As another version wrote the same.
        let spaced = r#"{ "precision": "fp32" }"#.to_owned();
        assert_eq!(state(vec![of("2", spec("fp32"), 2.0, 2), of("1", spaced, 1.0, 1)]), "slower");
    }

    #[test]
    fn models_that_are_only_declared_stand_between_the_others_on_every_page() {
        let standing: Vec<String> = (0..200).map(|number| format!("m{number:03}")).collect();
        let declared: BTreeSet<String> =
            (0..200).step_by(7).map(|number| format!("m{number:03}x")).chain(["a".into(), "z".into()]).collect();
        let all: BTreeSet<String> = standing.iter().cloned().chain(declared.clone()).collect();
        let mut seen = Vec::new();
        let mut from = Some(0);
        while let Some(at) = from {
            let (first, limit) = Window::standing(at, declared.len());
            let read = standing.iter().skip(first).take(limit).cloned().collect();
            let window = Window::merged(read, standing.len(), declared.clone(), (at, 40));
            assert_eq!(window.count, all.len());
            from = window.next();
            seen.extend(window.names);
        }
        assert_eq!(seen, all.into_iter().collect::<Vec<_>>());
        let within = [(500, 231), (70, 231), (5, 0)].map(|(from, count)| Window::within(from, 60, count));
        assert_eq!(within, [180, 70, 0]);
    }

    #[test]
    fn a_thousand_device_kinds_are_folded_and_every_model_is_reached() {
        let slot = |model: usize, sku: usize| Slot {
            model: format!("model{model:04}.onnx"),
            sku: format!("family{:02}-kind{sku:04}", sku % 20),
            state: ["fresh", "fresh", "fresh", "failed", "missing"][(model + sku / 20) % 5],
            accurate: true,
            ..Slot::default()
        };
        let slots: Vec<Slot> = (120..130).flat_map(|model| (0..1_000).map(move |sku| slot(model, sku))).collect();
        let asked = Asked { row: 0, address: "/?by=spec".into() };
        let of_page = Window { from: 120, count: 1_000, ..window(&slots) };
        let table = table(&of_page, &slots, false, "", &asked);
        assert_eq!((table.columns.len(), table.rows.len()), (21, ROWS_MIN));
        assert_eq!((table.more.as_str(), table.back.as_str()), ("/?by=spec&from=130", "/?by=spec&from=110"));
        assert_eq!(table.columns[1].name, "family00 (50 kinds)");
        let first = &table.rows[0];
        assert_eq!(first.key.trim(), "model0120.onnx");
        assert_eq!(first.cells[1].words(), "10 failed 10 missing 30 fresh");
        use askama::Template as _;
        let html = table.render().unwrap();
        assert!(html.contains("/?by=spec&#38;model=model0120.onnx&#38;sku=family00-%2A"), "{html}");
        assert!(html.len() < 130_000, "{} bytes", html.len());
        assert!(table.notes.iter().any(|note| note == "121 to 130 of 1,000 models"), "{:?}", table.notes);
        // More families than columns: the last ones are one.
        let wide: Vec<Slot> = (0..1_000).map(|sku| Slot { sku: format!("f{sku:03}-x"), ..slot(1, sku) }).collect();
        let table = super::table(&window(&wide), &wide, false, "", &Asked::default());
        assert_eq!(table.columns.len(), 1 + COLUMNS_MAX);
        assert!(table.columns.iter().any(|column| column.name == "other (977 kinds)"), "{:?}", table.columns);
    }

    #[test]
    fn a_page_of_few_device_kinds_stays_small_whatever_stands_on_them() {
        let skus: Vec<String> = (0..COLUMNS_MAX).map(|sku| format!("a-device-kind-{sku}")).collect();
        let size = Window::size(&skus.iter().map(String::as_str).collect());
        assert_eq!((size, Window::size(&BTreeSet::from(["t4"])), Window::size(&BTreeSet::new())), (12, 60, 60));
        let slot = |model: usize, sku: &String| Slot {
            model: format!("a-model-with-a-name-{model:02}.onnx"),
            sku: sku.clone(),
            state: "disturbed",
            plan: "0".repeat(64),
            median_ms: Some(1.5),
            disturbed: true,
            simulated: true,
            ..Slot::default()
        };
        let slots: Vec<Slot> = (0..size).flat_map(|model| skus.iter().map(move |sku| slot(model, sku))).collect();
        use askama::Template as _;
        let asked = Asked { address: "/".into(), ..Asked::default() };
        let html = table(&window(&slots), &slots, false, "", &asked).render().unwrap();
        assert!(html.len() < 130_000, "{} bytes", html.len());
    }

    #[test]
    fn rows_that_are_told_apart_are_all_reached_too() {
        let by = |model: &str, number: usize| Slot {
            model: model.into(),
            by: format!("spec {number:03}"),
            sku: "t4".into(),
            state: "fresh",
            ..Slot::default()
        };
        let few = (0..5).map(|number| by("a", number));
        let slots: Vec<Slot> = few.chain((0..130).map(|number| by("b", number))).chain([by("c", 0)]).collect();
        let mut seen = Vec::new();
        let (mut address, mut pages) = ("/?by=spec".to_owned(), 0);
        while !address.is_empty() {
            let number = |name: &str| {
                let value = address.split(['?', '&']).find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
                value.map_or(0, |value| value.parse().unwrap())
            };
            let (from, row): (usize, usize) = (number("from"), number("row"));
            let all = window(&slots);
            let names = all.names[from..].to_vec();
            let of_page: Vec<Slot> = slots.iter().filter(|slot| names.contains(&slot.model)).cloned().collect();
            let asked = Asked { row, address: "/?by=spec".into() };
            let table = table(&Window { from, names, ..all }, &of_page, false, "", &asked);
            seen.extend(table.rows.iter().map(|row| row.key.clone()));
            (address, pages) = (table.more, pages + 1);
        }
        let expected: Vec<String> = slots.iter().map(|slot| format!("{} {}", slot.model, slot.by)).collect();
        assert_eq!((seen, pages), (expected, 3));
    }
}
