//! `engines.lock`: which engine each cell has. One block a cell, in the cells' order: equal cells are equal text.

use crate::{cell::CellId, declaration::is_plain_name, reader::line_at};
use planforge_report::matrix::StandIn;
use planforge_types::{BuildSpec, Digest, EngineKey, Sku, Toolchain};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt::Write as _};
use toml::Spanned;

/// Raised whenever a field changes its meaning; a newer lock is refused by an older program. A lock is written with the
/// oldest version that has all that it holds: 2 has engines that stand in.
pub const VERSION: u64 = 2;
/// Largest lock that is read: a block is under a kilobyte.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Blocks that one lock may have.
const MAX_CELLS: usize = 100_000;

/// A merge's marks. The fourth stands in conflicts that show the common ancestor.
const MARKS: [&str; 4] = ["<<<<<<< ", "=======", ">>>>>>> ", "||||||| "];

const HEADER: &str = "\
# Which engine each model has on each device kind. Written by `planforge sync`; commit it, and let nobody edit it.
# After a merge that left conflict marks, take either side and run `planforge sync`.
";

/// The figures of a measurement that people look at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Headline {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput_per_s: Option<f64>,
}

/// The engine of a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Locked {
    pub model: Digest,
    pub toolchain: Toolchain,
    /// Complete: the one that went into the key.
    pub spec: BuildSpec,
    pub engine_key: EngineKey,
    pub plan: Digest,
    pub plan_bytes: u64,
    /// The coordinator that it was locked at, for people.
    pub farm: String,
    #[serde(flatten)]
    pub headline: Headline,
    /// The plan whose place it took, which gates hold it against.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_plan: Option<Digest>,
}

/// An engine of another device kind that stands in for a cell of which there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Standing {
    /// The plan, which is that of the cell of the same model and spec for `stand_in.built_for`.
    pub plan: Digest,
    #[serde(flatten)]
    pub stand_in: StandIn,
}

/// A whole lock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lock {
    pub cells: BTreeMap<CellId, Locked>,
    pub stand_ins: BTreeMap<CellId, Standing>,
}

/// Why a text is no lock. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    #[error("{first}: a merge left its conflict marks, from line {first} to line {last}")]
    Conflict { first: usize, last: usize },
    #[error("{second}: the engine of {cell} stands twice, in lines {first} and {second}")]
    Duplicate { cell: CellId, first: usize, second: usize },
    #[error("{line}: the lock has version {found}; this program knows {VERSION}")]
    Newer { line: usize, found: u64 },
    #[error(
        "{line}: the block of {cell} is not what was written: its engine key is not that of its model, device kind, toolchain and spec"
    )]
    Edited { line: usize, cell: CellId },
    #[error("{line}: {reason}")]
    Malformed { line: usize, reason: String },
}

impl LockError {
    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => {
                "take either side of each conflict and run planforge sync: it builds nothing twice"
            }
            Self::Duplicate { .. } => "take one of the two blocks out and run planforge sync",
            Self::Newer { .. } => "a newer release wrote it: upgrade planforge",
            Self::Edited { .. } => "take the block out, or the file as it was committed, and run planforge sync",
            Self::Malformed { .. } => {
                "take the file as it was committed (git checkout engines.lock), or remove it and run planforge sync"
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLock {
    #[serde(rename = "version")]
    _version: u64,
    #[serde(default)]
    engine: Vec<Spanned<RawCell>>,
    #[serde(default)]
    stand_in: Vec<Spanned<RawStandIn>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStandIn {
    model: String,
    sku: Sku,
    spec: String,
    built_for: Sku,
    plan_digest: Digest,
    loss_low: f64,
    loss_high: f64,
    models: usize,
    boards: [usize; 2],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCell {
    model: String,
    sku: Sku,
    spec: String,
    model_digest: Digest,
    toolchain: Toolchain,
    build: String,
    engine_key: EngineKey,
    plan_digest: Digest,
    plan_bytes: u64,
    #[serde(default)]
    farm: String,
    median_ms: Option<f64>,
    p99_ms: Option<f64>,
    throughput_per_s: Option<f64>,
    base_plan: Option<Digest>,
}

impl Lock {
    /// Reads a lock.
    ///
    /// # Errors
    /// What is wrong with it, and in which line; see [`LockError`].
    pub fn parse(text: &str) -> Result<Self, LockError> {
        if text.len() > MAX_BYTES {
            return Err(LockError::Malformed {
                line: 1,
                reason: format!("{} bytes are too long for a lock", text.len()),
            });
        }
        conflicts(text)?;
        let malformed = |error: toml::de::Error| LockError::Malformed {
            line: line_at(text, error.span().map_or(0, |span| span.start)),
            reason: error.message().to_owned(),
        };
        // Before anything else of it: a newer lock may have whatever it likes.
        let document = toml::de::DeTable::parse(text).map_err(malformed)?;
        let version = document.get_ref().iter().find(|(name, _)| name.get_ref().as_ref() == "version");
        let Some((name, value)) = version else {
            return Err(LockError::Malformed { line: 1, reason: "it has no version: this is no engines.lock".into() });
        };
        let line = line_at(text, name.span().start);
        match value.get_ref().as_integer().and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok())
        {
            Some(1..=VERSION) => {}
            Some(found) if found > VERSION => return Err(LockError::Newer { line, found }),
            _ => return Err(LockError::Malformed { line, reason: "the version is no number of a lock".into() }),
        }
        let raw: RawLock = toml::from_str(text).map_err(malformed)?;
        if raw.engine.len() + raw.stand_in.len() > MAX_CELLS {
            return Err(LockError::Malformed {
                line: 1,
                reason: format!("it has {} engines, more than {MAX_CELLS}", raw.engine.len() + raw.stand_in.len()),
            });
        }
        let mut cells = BTreeMap::new();
        let mut lines: BTreeMap<CellId, usize> = BTreeMap::new();
        for raw in raw.engine {
            let line = line_at(text, raw.span().start);
            let (id, locked) = read_cell(raw.into_inner(), line)?;
            if let Some(first) = lines.insert(id.clone(), line) {
                return Err(LockError::Duplicate { cell: id, first, second: line });
            }
            cells.insert(id, locked);
        }
        let (mut stand_ins, mut lines) = (BTreeMap::new(), BTreeMap::<CellId, usize>::new());
        for raw in raw.stand_in {
            let line = line_at(text, raw.span().start);
            let (id, standing) = read_standing(raw.into_inner(), line)?;
            if let Some(first) = lines.insert(id.clone(), line) {
                return Err(LockError::Duplicate { cell: id, first, second: line });
            }
            stand_ins.insert(id, standing);
        }
        Ok(Self { cells, stand_ins })
    }

    /// What stands in for cells of `model` for `sku`: the cell, and the one whose engine it is. What stood in for an engine
    /// that is not locked any more stands in no longer.
    pub fn standing<'a>(
        &'a self,
        model: &'a str,
        sku: &'a Sku,
    ) -> impl Iterator<Item = (&'a CellId, &'a Standing, CellId)> {
        let of = self.stand_ins.iter().filter(move |(id, _)| id.model == model && id.sku == *sku);
        of.filter_map(|(id, standing)| {
            let own = CellId { sku: standing.stand_in.built_for.clone(), ..id.clone() };
            let is_locked = self.cells.get(&own).is_some_and(|locked| locked.plan == standing.plan);
            (is_locked && !self.cells.contains_key(id)).then_some((id, standing, own))
        })
    }

    /// Takes from an earlier lock what still stands in.
    pub fn keep_standing(&mut self, old: &Self) {
        for (id, standing) in &old.stand_ins {
            self.stand_ins.insert(id.clone(), standing.clone());
        }
        let stands: Vec<CellId> = self
            .stand_ins
            .keys()
            .filter(|id| self.standing(&id.model, &id.sku).any(|(known, ..)| known == *id))
            .cloned()
            .collect();
        self.stand_ins.retain(|id, _| stands.contains(id));
    }

    /// The lock's text.
    pub fn render(&self) -> String {
        let version = if self.stand_ins.is_empty() { 1 } else { VERSION };
        let mut text = format!("{HEADER}version = {version}\n");
        for (id, locked) in &self.cells {
            let _ = write!(text, "\n[[engine]]\n");
            let mut line = |name: &str, value: String| {
                let _ = writeln!(text, "{name} = {value}");
            };
            line("model", quoted(&id.model));
            line("sku", quoted(id.sku.as_str()));
            line("spec", quoted(&id.spec));
            line("model_digest", quoted(&locked.model.to_string()));
            line("toolchain", toolchain(&locked.toolchain));
            line("build", quoted(&locked.spec.to_canonical_json()));
            line("engine_key", quoted(&locked.engine_key.to_string()));
            line("plan_digest", quoted(&locked.plan.to_string()));
            line("plan_bytes", locked.plan_bytes.to_string());
            line("farm", quoted(&locked.farm));
            for (name, figure) in [
                ("median_ms", locked.headline.median_ms),
                ("p99_ms", locked.headline.p99_ms),
                ("throughput_per_s", locked.headline.throughput_per_s),
            ] {
                if let Some(figure) = figure.filter(|figure| figure.is_finite()) {
                    line(name, float(figure));
                }
            }
            if let Some(base) = locked.base_plan {
                line("base_plan", quoted(&base.to_string()));
            }
        }
        for (id, Standing { plan, stand_in }) in &self.stand_ins {
            let _ = write!(text, "\n[[stand_in]]\n");
            let mut line = |name: &str, value: String| {
                let _ = writeln!(text, "{name} = {value}");
            };
            line("model", quoted(&id.model));
            line("sku", quoted(id.sku.as_str()));
            line("spec", quoted(&id.spec));
            line("built_for", quoted(stand_in.built_for.as_str()));
            line("plan_digest", quoted(&plan.to_string()));
            line("loss_low", float(stand_in.loss_low));
            line("loss_high", float(stand_in.loss_high));
            line("models", stand_in.models.to_string());
            line("boards", format!("[{}, {}]", stand_in.boards[0], stand_in.boards[1]));
        }
        text
    }
}

/// With its point, so that it stays a number with one.
fn float(figure: f64) -> String {
    let text = figure.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

fn read_standing(raw: RawStandIn, line: usize) -> Result<(CellId, Standing), LockError> {
    let RawStandIn { model, sku, spec, built_for, plan_digest, loss_low, loss_high, models, boards } = raw;
    plain(&[&model, &spec], line)?;
    let wrong = |reason: &str| Err(LockError::Malformed { line, reason: reason.into() });
    if !(loss_low.is_finite() && loss_high.is_finite() && loss_low <= loss_high) {
        return wrong("its loss is no interval");
    }
    if built_for == sku {
        return wrong("an engine does not stand in for its own device kind");
    }
    let stand_in = StandIn { built_for, loss_low, loss_high, models, boards };
    Ok((CellId { model, sku, spec }, Standing { plan: plan_digest, stand_in }))
}

/// Refuses what is no name of a model or spec.
fn plain(names: &[&str], line: usize) -> Result<(), LockError> {
    match names.iter().find(|name| !is_plain_name(name)) {
        None => Ok(()),
        Some(name) => {
            let name: String = name.chars().take(80).collect();
            Err(LockError::Malformed { line, reason: format!("'{name}' is no name of a model or spec") })
        }
    }
}

fn read_cell(raw: RawCell, line: usize) -> Result<(CellId, Locked), LockError> {
    plain(&[&raw.model, &raw.spec], line)?;
    let spec =
        BuildSpec::parse(&raw.build).map_err(|error| LockError::Malformed { line, reason: error.to_string() })?;
    let id = CellId { model: raw.model, sku: raw.sku, spec: raw.spec };
    if EngineKey::new(&raw.model_digest, &id.sku, &raw.toolchain, &spec) != raw.engine_key {
        return Err(LockError::Edited { line, cell: id });
    }
    if [raw.median_ms, raw.p99_ms, raw.throughput_per_s].into_iter().flatten().any(|figure| !figure.is_finite()) {
        return Err(LockError::Malformed { line, reason: "a figure of it is no number".into() });
    }
    let headline = Headline { median_ms: raw.median_ms, p99_ms: raw.p99_ms, throughput_per_s: raw.throughput_per_s };
    let locked = Locked {
        model: raw.model_digest,
        toolchain: raw.toolchain,
        spec,
        engine_key: raw.engine_key,
        plan: raw.plan_digest,
        plan_bytes: raw.plan_bytes,
        farm: raw.farm,
        headline,
        base_plan: raw.base_plan,
    };
    Ok((id, locked))
}

/// Refuses a text with the marks of a merge: they begin a line, which nothing in a lock does.
fn conflicts(text: &str) -> Result<(), LockError> {
    let marked = |line: &str| MARKS.iter().any(|mark| line.starts_with(mark));
    let mut lines = text.lines().enumerate().filter(|(_, line)| marked(line)).map(|(index, _)| index + 1);
    match lines.next() {
        None => Ok(()),
        Some(first) => Err(LockError::Conflict { first, last: lines.last().unwrap_or(first) }),
    }
}

/// A text as TOML: literal where that can be, so that JSON in it stays readable.
fn quoted(text: &str) -> String {
    if text.contains('"') && !text.contains(|c: char| c == '\'' || c.is_control()) {
        return format!("'{text}'");
    }
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out + "\""
}

fn toolchain(toolchain: &Toolchain) -> String {
    let mut text = format!("{{ backend = {}, version = {}", quoted(&toolchain.backend), quoted(&toolchain.version));
    if !toolchain.components.is_empty() {
        let components =
            toolchain.components.iter().map(|(name, version)| format!("{} = {}", quoted(name), quoted(version)));
        let _ = write!(text, ", components = {{ {} }}", components.collect::<Vec<_>>().join(", "));
    }
    text + " }"
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn id(model: &str, sku: &str) -> CellId {
        CellId { model: model.into(), sku: sku.parse().unwrap(), spec: "default".into() }
    }

    /// A locked engine of the cell; `plan` tells engines of one key apart.
    pub(crate) fn locked(id: &CellId, plan: &str) -> Locked {
        let toolchain = Toolchain {
            backend: "tensorrt".into(),
            version: "10.3.0".into(),
            components: BTreeMap::from([("cuda".to_owned(), "12.4".to_owned())]),
        };
        let (model, spec) = (Digest::of(id.model.as_bytes()), BuildSpec::default());
        Locked {
            engine_key: EngineKey::new(&model, &id.sku, &toolchain, &spec),
            model,
            toolchain,
            spec,
            plan: Digest::of(plan.as_bytes()),
            plan_bytes: 1234,
            farm: "https://farm.example".into(),
            headline: Headline { median_ms: Some(2.0), p99_ms: Some(2.25), throughput_per_s: None },
            base_plan: None,
        }
    }

    pub(crate) fn lock(cells: &[(&str, &str)]) -> Lock {
        let one = |(model, sku): &(&str, &str)| {
            let id = id(model, sku);
            let locked = locked(&id, "plan");
            (id, locked)
        };
        Lock { cells: cells.iter().map(one).collect(), ..Lock::default() }
    }

    pub(crate) fn standing(built_for: &str, plan: &str) -> Standing {
        let stand_in = StandIn {
            built_for: built_for.parse().unwrap(),
            loss_low: -0.0125,
            loss_high: 0.0,
            models: 3,
            boards: [2, 4],
        };
        Standing { plan: Digest::of(plan.as_bytes()), stand_in }
    }

    #[test]
    fn what_stands_in_comes_back_and_only_for_as_long_as_its_engine_is_locked() {
        let mut lock = lock(&[("a", "t4"), ("b", "t4"), ("b", "l4")]);
        assert!(lock.render().contains("version = 1\n"), "an older program reads what it knows");
        lock.stand_ins.insert(id("a", "l4"), standing("t4", "plan"));
        let text = lock.render();
        assert!(text.contains("version = 2\n") && text.contains("[[stand_in]]\nmodel = \"a\"\nsku = \"l4\""), "{text}");
        assert!(text.contains("loss_low = -0.0125\nloss_high = 0.0\n") && text.contains("boards = [2, 4]"), "{text}");
        assert_eq!(Lock::parse(&text).unwrap(), lock);
        let l4: Sku = "l4".parse().unwrap();
        let standing_in = |lock: &Lock, model: &str| lock.standing(model, &l4).map(|(.., own)| own).collect::<Vec<_>>();
        assert_eq!(standing_in(&lock, "a"), [id("a", "t4")]);
        lock.stand_ins.insert(id("b", "l4"), standing("t4", "plan"));
        assert!(standing_in(&lock, "b").is_empty(), "there is an engine of its own");
        let mut newer = self::lock(&[("a", "t4"), ("b", "t4")]);
        newer.keep_standing(&lock);
        assert_eq!(newer.stand_ins.len(), 2);
        newer.cells.get_mut(&id("a", "t4")).unwrap().plan = Digest::of(b"built anew");
        newer.keep_standing(&lock);
        assert_eq!(newer.stand_ins.keys().collect::<Vec<_>>(), [&id("b", "l4")]);
    }

    #[test]
    fn a_stand_in_that_says_nothing_is_refused() {
        let mut lock = lock(&[("a", "t4")]);
        lock.stand_ins.insert(id("a", "l4"), standing("t4", "plan"));
        let text = lock.render();
        let block = &text[text.find("\n[[stand_in]]").unwrap()..];
        for (broken, said) in [
            (text.replace("loss_high = 0.0", "loss_high = nan"), "no interval"),
            (text.replace("loss_low = -0.0125", "loss_low = 0.5"), "no interval"),
            (text.replace("sku = \"l4\"", "sku = \"t4\""), "its own device kind"),
            (text.replace("models = 3\n", ""), "missing field `models`"),
            (format!("{text}{block}"), "stands twice"),
        ] {
            let error = Lock::parse(&broken).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn a_lock_comes_back_and_equal_cells_are_equal_text() {
        let mut lock = lock(&[("b", "t4"), ("a", "t4"), ("a", "l4")]);
        lock.cells.get_mut(&id("b", "t4")).unwrap().base_plan = Some(Digest::of(b"before"));
        let text = lock.render();
        assert_eq!(Lock::parse(&text).unwrap(), lock);
        assert_eq!(Lock::parse(&text).unwrap().render(), text);
        let order: Vec<usize> = ["\"l4\"", "model = \"b\""].iter().map(|part| text.find(part).unwrap()).collect();
        assert!(order.is_sorted(), "{text}");
        assert!(text.contains("median_ms = 2.0\n") && !text.contains("throughput"), "{text}");
        assert_eq!(Lock::parse(&Lock::default().render()).unwrap(), Lock::default());
    }

    #[test]
    fn conflict_marks_are_named_by_line() {
        let text = lock(&[("a", "t4")]).render();
        let marked = text.replace("\n[[engine]]\n", "\n<<<<<<< HEAD\n[[engine]]\n") + "=======\n>>>>>>> other\n";
        let first = marked.lines().position(|line| line.starts_with("<<<<")).unwrap() + 1;
        let error = Lock::parse(&marked).unwrap_err();
        assert_eq!(error, LockError::Conflict { first, last: marked.lines().count() });
        assert!(error.hint().contains("planforge sync"));
    }

    #[test]
    fn a_cell_that_stands_twice_is_named_with_both_lines() {
        let text = lock(&[("a", "t4")]).render();
        let block = &text[text.find("\n[[engine]]").unwrap()..];
        let twice = format!("{text}{block}");
        let Err(LockError::Duplicate { cell, first, second }) = Lock::parse(&twice) else { panic!("{twice}") };
        assert_eq!(cell, id("a", "t4"));
        let lines: Vec<&str> = twice.lines().collect();
        assert!(
            first < second && lines[first - 1] == "[[engine]]" && lines[second - 1] == "[[engine]]",
            "{first} {second}"
        );
    }

    #[test]
    fn foreign_and_edited_locks_are_refused_by_name() {
        let text = lock(&[("a", "t4")]).render();
        let error = |text: String| Lock::parse(&text).unwrap_err();
        let newer = error(text.replace("version = 1\n", "version = 7\nshape = \"other\"\n"));
        assert!(matches!(newer, LockError::Newer { found: 7, .. }), "{newer}");
        assert!(newer.hint().contains("upgrade"));
        let edited = error(text.replace("10.3.0", "10.4.0"));
        assert!(matches!(&edited, LockError::Edited { cell, .. } if *cell == id("a", "t4")), "{edited}");
        for (broken, said) in [
            (text.replace("version = 1\n", ""), "no version"),
            (text.replace("version = 1\n", "version = 0\n"), "no number of a lock"),
            (text.replace("farm =", "frm ="), "unknown field"),
            (text.replace("model = \"a\"", "model = \"../a\""), "no name"),
            (text.replace("plan_bytes = 1234", "plan_bytes = x"), ""),
            (text.replace("median_ms = 2.0", "median_ms = nan"), "no number"),
            ("{\"lock\": 1}".into(), ""),
        ] {
            let found = error(broken);
            assert!(
                matches!(found, LockError::Malformed { .. }) && found.to_string().contains(said),
                "{said}: {found}"
            );
        }
    }

    #[test]
    fn texts_are_quoted_so_that_they_come_back() {
        for text in ["plain", "with \"quotes\"", "it's \"both\"", "back\\slash", "line\nbreak", "\u{7f}"] {
            let document: toml::Table = toml::from_str(&format!("x = {}", quoted(text))).unwrap();
            assert_eq!(document["x"].as_str(), Some(text));
        }
    }
}
