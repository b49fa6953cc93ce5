//! The layers of an engine: a table that sorts by its heads and is read a page at a time, for an engine may have thousands.

use crate::{
    format,
    reading::Reading,
    table::{Cell, Column, Empty, Part, Table, column, figures, words},
};
use planforge_advice::bound;
use planforge_charts::shortened;
use planforge_report::{LayerTime, Roofline};
use serde::Serialize;

/// Layers of one page.
pub const ROWS: usize = 50;
/// Characters of a name; the JSON has it whole.
const NAME_CHARACTERS: usize = 96;
const TACTIC_CHARACTERS: usize = 64;

/// What layers are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// The slowest first.
    #[default]
    Time,
    /// As they run.
    Order,
    Name,
    Kind,
    Type,
    /// What is farthest below its ceiling first.
    Reached,
}

impl By {
    pub const NAMES: [&'static str; 6] = ["time", "order", "name", "kind", "type", "reached"];
    const ALL: [Self; 6] = [Self::Time, Self::Order, Self::Name, Self::Kind, Self::Type, Self::Reached];

    pub fn named(name: &str) -> Option<Self> {
        if name.is_empty() {
            return Some(Self::Time);
        }
        Self::NAMES.iter().position(|known| *known == name).map(|at| Self::ALL[at])
    }

    pub(crate) fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Which layers are looked at, and how.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub by: By,
    /// The first that is shown.
    pub from: usize,
    /// Only those with this in their name, kind or tactic.
    pub find: String,
    /// The page's own address without what is asked here; empty: nothing leads on.
    pub address: String,
}

impl Asked {
    /// Address of the same page with another order or place.
    fn to(&self, by: By, from: usize) -> String {
        if self.address.is_empty() {
            return String::new();
        }
        let mut pairs = Vec::new();
        if by != By::Time {
            pairs.push(format!("layers={}", by.name()));
        }
        if !self.find.is_empty() {
            pairs.push(format!("find={}", format::encoded(&self.find)));
        }
        if from > 0 {
            pairs.push(format!("from={from}"));
        }
        let query = if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) };
        format!("{}{query}#layers", self.address)
    }
}

/// One layer as it is told.
#[derive(Clone, Debug, Serialize)]
pub struct Told<'a> {
    #[serde(flatten)]
    layer: &'a LayerTime,
    /// Place among the layers as they run, from 1.
    place: usize,
    share: f64,
    /// Operations and bytes a second, in words.
    rates: String,
    /// Share of the ceiling that binds, estimated; absent where none is known.
    of_ceiling: Option<f64>,
    reached: String,
    bound_by: &'static str,
}

/// The layers that are asked for, in their order; all of them, whatever the page.
pub fn told<'a>(reading: &'a Reading, asked: &Asked) -> Vec<Told<'a>> {
    let total: f64 = reading.layers.iter().map(|layer| layer.median_ms).sum();
    if !(total > 0.0 && total.is_finite()) {
        return Vec::new();
    }
    let sought = asked.find.to_lowercase();
    let is_sought = |layer: &LayerTime| {
        sought.is_empty()
            || [&layer.name, &layer.kind, &layer.tactic].iter().any(|text| text.to_lowercase().contains(&sought))
    };
    let layers = reading.layers.iter().enumerate().filter(|(_, layer)| is_sought(layer));
    let mut told: Vec<Told<'a>> = layers
        .map(|(index, layer)| {
            let line = Roofline::of(layer, reading.ceilings.as_ref());
            let bound = reading.whole.as_ref().and_then(|report| bound::of_layer(layer, report));
            Told {
                layer,
                place: index + 1,
                share: layer.median_ms / total,
                rates: line.as_ref().map(Roofline::rates).unwrap_or_default(),
                of_ceiling: line.as_ref().and_then(|line| line.ceiling).map(|(_, share)| share),
                reached: line.as_ref().and_then(Roofline::of_ceiling).unwrap_or_default(),
                bound_by: bound.map_or("", bound::Bottleneck::words),
            }
        })
        .collect();
    let type_of = |told: &Told<'a>| told.layer.precision.clone().unwrap_or_default();
    match asked.by {
        By::Time => told.sort_by(|a, b| b.layer.median_ms.total_cmp(&a.layer.median_ms)),
        By::Order => {}
        By::Name => told.sort_by(|a, b| a.layer.name.cmp(&b.layer.name)),
        By::Kind => told.sort_by(|a, b| (&a.layer.kind, a.place).cmp(&(&b.layer.kind, b.place))),
        By::Type => told.sort_by_key(|told| (type_of(told), told.place)),
        By::Reached => {
            let share = |told: &Told<'a>| told.of_ceiling.unwrap_or(f64::INFINITY);
            told.sort_by(|a, b| share(a).total_cmp(&share(b)).then(a.place.cmp(&b.place)));
        }
    }
    told
}

/// The table of one page of them.
pub fn table(reading: &Reading, asked: &Asked) -> Table {
    let sorted = |column: Column, by: By| {
        let descending = by == By::Time;
        column.sorted_by(asked.to(by, 0), (asked.by == by).then_some(descending))
    };
    let columns = [
        sorted(figures("No."), By::Order),
        sorted(column("Layer and tactic", "wide layer"), By::Name),
        sorted(words("Kind"), By::Kind),
        sorted(words("Type"), By::Type),
        sorted(figures("Time"), By::Time),
        figures("Share"),
        column("Share as a bar", "bar-cell unseen"),
        sorted(words("Of the ceiling"), By::Reached),
        words("Bound by"),
    ];
    let mut table = Table::new("layers", "Layers", &columns);
    let all = told(reading, asked);
    let slowest = all.iter().map(|told| told.layer.median_ms).fold(0.0, f64::max);
    table.empty = Empty::new(match asked.find.as_str() {
        "" => "What its layers take is not known.".to_owned(),
        find => format!("No layer has '{}' in its name, kind or tactic.", find.escape_debug()),
    });
    let (count, from) = (all.len(), asked.from.min(all.len().saturating_sub(1) / ROWS * ROWS));
    for told in all.into_iter().skip(from).take(ROWS) {
        let layer = told.layer;
        let mut name = vec![Part::Text(shortened(&layer.name, NAME_CHARACTERS))];
        if !layer.tactic.is_empty() {
            name.extend([Part::Break, Part::Code(shortened(&layer.tactic, TACTIC_CHARACTERS))]);
        }
        let mut reached = vec![Part::Text(told.reached)];
        if !told.rates.is_empty() {
            reached.extend([Part::Break, Part::Muted(told.rates)]);
        }
        if let Some(counters) = &layer.counters {
            reached.extend([Part::Break, Part::Muted(format!("counted: {}", counters.describe()))]);
        }
        table.push(
            told.place.to_string(),
            "",
            [
                Cell::text(told.place.to_string()),
                Cell::of(name),
                Cell::text(&*layer.kind),
                Cell::text(layer.precision.as_deref().unwrap_or_default()),
                Cell::text(format::milliseconds(layer.median_ms)).strong(true),
                Cell::text(format::percent(told.share)),
                Cell::of([Part::Bar((layer.median_ms / slowest * 100.0).clamp(0.0, 100.0).round() as u32)]),
                Cell::of(reached),
                Cell::text(told.bound_by),
            ],
        );
    }
    if reading.layers.iter().all(|layer| layer.precision.is_none()) {
        table = table.without("Type");
    }
    if count > ROWS {
        let last = (from + ROWS).min(count);
        table.notes.push(format!("{} to {last} of {}", from + 1, format::grouped(count as u64)));
        table.back = if from > 0 { asked.to(asked.by, from.saturating_sub(ROWS)) } else { String::new() };
        table.more = if last < count { asked.to(asked.by, last) } else { String::new() };
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use askama::Template as _;
    use planforge_report::testing::sample_report;

    fn reading(count: usize) -> Reading {
        let mut report = sample_report(1.0);
        let layer = |index: usize| LayerTime {
            name: format!("/backbone/stage/block{index}/conv/Conv + /backbone/stage/block{index}/relu/Relu"),
            kind: ["conv", "gemm", "add"][index % 3].into(),
            tactic: format!("sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_tilesize128x128x64_{index}"),
            median_ms: 0.001 * (1 + index * 7919 % 1009) as f64,
            flops: 1_000_000,
            bytes: 10_000,
            precision: Some(["fp16", "fp32"][index % 2].into()),
            ..LayerTime::default()
        };
        report.layers = (0..count).map(layer).collect();
        Reading::of(&serde_json::to_string(&report).unwrap())
    }

    fn asked(by: &str, from: usize) -> Asked {
        Asked { by: By::named(by).unwrap(), from, address: "/plans/p".into(), ..Asked::default() }
    }

    #[test]
    fn layers_sort_by_each_head_and_go_on_where_the_page_ends() {
        let reading = reading(2_000);
        let times = |asked: &Asked| told(&reading, asked).iter().map(|told| told.layer.median_ms).collect::<Vec<_>>();
        assert!(times(&asked("", 0)).is_sorted_by(|a, b| a >= b));
        assert!(told(&reading, &asked("kind", 0)).is_sorted_by(|a, b| a.layer.kind <= b.layer.kind));
        assert!(told(&reading, &asked("order", 0)).is_sorted_by(|a, b| a.place < b.place));
        assert!(By::named("nothing").is_none());
        for (at, name) in By::NAMES.iter().enumerate() {
            assert_eq!(By::named(name), Some(By::ALL[at]), "{name}");
        }
        let html = table(&reading, &asked("kind", 50)).render().unwrap();
        assert_eq!(html.matches("<tr data-key").count(), ROWS);
        for part in [
            "51 to 100 of 2,000",
            "href=\"/plans/p?layers=kind&#38;from=100#layers\"",
            "href=\"/plans/p?layers=kind#layers\"",
            "aria-sort=\"ascending\"",
            "href=\"/plans/p?layers=reached#layers\"",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert_eq!(html.matches("aria-sort").count(), 1);
        assert!(html.len() < 60_000, "{} bytes", html.len());
        // Past the end is the last page.
        assert_eq!(table(&reading, &asked("", 99_999)).rows.len(), ROWS);
    }

    #[test]
    fn what_is_looked_for_is_in_name_kind_or_tactic() {
        let reading = reading(30);
        let find = |find: &str| told(&reading, &Asked { find: find.into(), ..asked("", 0) }).len();
        assert_eq!((find("BLOCK7/"), find("gemm"), find("tilesize128x128x64_29"), find("nothing")), (1, 30, 1, 0));
        let none = table(&reading, &Asked { find: "<b>".into(), ..asked("", 0) }).render().unwrap();
        assert!(none.contains("No layer has &#39;&#60;b&#62;&#39;"), "{none}");
    }
}
