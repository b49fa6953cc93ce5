//! Which of several reports is faster, as far as their raw samples can tell.
//!
//! Five verdicts: *faster*, *slower*, *same*, *ambiguous* (the interval of the ratio is too wide), *cannot tell* (the
//! reports do not measure the same thing, or one of them too little of it: fewer windows than
//! [`COMPARABLE_WINDOWS`] say nothing of how much windows differ). The interval of a ratio of medians follows from those
//! of the two medians, which count windows and how alike neighbours are. Whoever swaps two reports gets the opposite
//! verdict with the inverse ratio and bounds, always.
//!
//! 64 reports are 2,016 pairs, of which a hundred would be told apart by chance if each were wrong once in twenty times.
//! The intervals of one comparison therefore hold *together* with 95 %: each pair has its share of the remaining 5 %
//! (Bonferroni; Dunn, *Multiple Comparisons among Means*, 1961).
//!
//! Reports of one model on one SKU form a group, whose first report is the group's base: that is how toolchains,
//! specs and weights are compared. Between SKUs there is a ratio, but the verdict says that the devices differ. What a
//! foreign plan loses is said apart ([`mod@portability`]), and so is where two engines spend their time differently
//! ([`layers`]).
//!
//! Precisions may differ: what is judged is speed, and how far off the outputs of the two are stands beside it
//! ([`accuracy`]), for nobody takes the one without the other.

pub mod accuracy;
pub mod gate;
pub mod layers;
mod pace;
pub mod portability;
mod precedent;
mod row;

pub use precedent::precedent;
pub use row::Row;

use crate::{
    Report, SamplesError,
    imported::{Against, Imported},
};
use accuracy::AccuracyDifference;
use layers::LayerDifference;
use planforge_stats::{CI_CONFIDENCE, COMPARABLE_WINDOWS, NoInterval, Place, RatioInterval, ratio_interval};
use planforge_types::Sku;
use portability::{Portability, portability};
use serde::{Deserialize, Serialize};

/// Raised whenever a field changes its meaning or goes away.
pub const COMPARISON_SCHEMA_VERSION: u32 = 1;

/// Most reports compared at once; every pair is judged.
pub const MAX_REPORTS: usize = 64;

/// Most reports that one is held against at once.
pub const MAX_AGAINST_BASELINE: usize = 1024;

/// Ratios this close to 1 make no difference that anybody would act on; two measurements of one plan differ as much.
/// Ratios are close from 1 / (1 + margin) to 1 + margin, so that neither report has the better of it.
pub const SAME_MARGIN: f64 = 0.02;

/// The same for reports of which one was measured on a disturbed device.
pub const DISTURBED_MARGIN: f64 = 0.10;

/// Samples below which a median has no interval worth the name.
const MIN_SAMPLES: u64 = 6;

/// How the second report of a pair stands to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Faster,
    Slower,
    Same,
    Ambiguous,
    CannotTell,
}

impl Verdict {
    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Same => "same",
            Self::Ambiguous => "ambiguous",
            Self::CannotTell => "cannot tell",
        }
    }
}

/// Several reports side by side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub schema_version: u32,
    /// In the order given.
    pub rows: Vec<Row>,
    /// Every pair of a group, and the first report against every report outside its group; the earlier one is the base.
    pub pairs: Vec<Pair>,
    /// Reports of one model on one SKU, in the order of their first reports.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// What each foreign plan among the rows loses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub portability: Vec<ForeignRow>,
    /// What the verdicts rest on; absent in comparisons of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
    /// What each row was compared with, where each has a baseline of its own ([`compare_each`]); else empty. A row without
    /// one is a baseline of others, or there was none for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<Option<usize>>,
    /// Every report was compared with the first, and with no other: [`Scheme::Baseline`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub against_first: bool,
    /// Where engines spend their time differently; empty unless asked for, see [`Comparison::with_layers`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerDifference>,
    /// Figures that were measured elsewhere, beside the rows that they fit; see [`Comparison::with_imported`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<ImportedRow>,
}

/// A row beside a figure that was measured elsewhere: never judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImportedRow {
    /// Index of the row.
    pub row: usize,
    pub figure: Imported,
    /// The figure's median over the row's: 2 is twice as fast. Absent where it would mean nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<f64>,
    pub reason: String,
}

impl ImportedRow {
    /// As people read it; rows count from 1.
    pub fn words(&self) -> String {
        let times = self.times.map(|times| format!("{times:.2}x as fast, ")).unwrap_or_default();
        format!("{} beside {}: {times}not judged: {}", self.row + 1, self.figure.label(), self.reason)
    }
}

/// What the verdicts of a comparison rest on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Basis {
    /// How far from 1 a ratio of undisturbed measurements has to be: up to 1 + margin and down to 1 / (1 + margin) count as
    /// none.
    pub margin: f64,
    /// The same where one of the two was disturbed.
    pub disturbed_margin: f64,
    /// Pairs that have an interval.
    pub pairs: usize,
    /// Confidence with which all of them hold at once.
    pub together: f64,
    /// Confidence that each has for that.
    pub each: f64,
}

impl Basis {
    fn of(pairs: usize) -> Self {
        let each = 1.0 - (1.0 - CI_CONFIDENCE) / pairs.max(1) as f64;
        Self { margin: SAME_MARGIN, disturbed_margin: DISTURBED_MARGIN, pairs, together: CI_CONFIDENCE, each }
    }

    /// As people read it, a line.
    pub fn words(&self) -> String {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let (margin, disturbed) = (percent(self.margin), percent(self.disturbed_margin));
        let together = match self.pairs {
            0 | 1 => String::new(),
            pairs => format!("; the intervals of all {pairs} pairs hold at once with {}", percent(self.together)),
        };
        format!("differences within {margin} count as none, within {disturbed} where a device was disturbed{together}")
    }

    /// The confidence of each interval, to as many digits as set it apart from 100 %.
    fn each_words(&self) -> String {
        let places = (-((1.0 - self.each) * 10.0).log10()).ceil().max(0.0) as usize;
        let digits = format!("{:.places$}", self.each * 100.0);
        let digits = if places > 0 { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
        format!("{digits} %")
    }
}

/// A foreign plan among the rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeignRow {
    /// Index of the row.
    pub row: usize,
    #[serde(flatten)]
    pub cell: Portability,
}

/// Reports that were measured on the same SKU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub sku: String,
    pub model: String,
    /// Indices of the rows; the first is what the others are judged against.
    pub rows: Vec<usize>,
}

impl Comparison {
    /// What row `other` is judged against: its group's first, else the first report of all.
    fn base_of(&self, other: usize) -> Option<usize> {
        if !self.bases.is_empty() {
            return self.bases.get(other).copied().flatten();
        }
        let group = self.groups.iter().find(|group| group.rows.contains(&other))?;
        let own = group.rows.first().copied().filter(|base| *base != other && !self.against_first);
        own.or(Some(0))
    }

    /// The verdict on row `other`.
    pub fn against_base(&self, other: usize) -> Option<&Pair> {
        let base = self.base_of(other)?;
        self.pairs.iter().find(|pair| pair.base == base && pair.other == other)
    }

    /// With what the steps of `reports`, the ones that were compared, differ in from those of their base.
    pub fn with_layers(mut self, reports: &[Report]) -> Self {
        let of_row = |other: usize| {
            let base = self.base_of(other).filter(|base| *base != other)?;
            let (left, right) = (reports.get(base)?, reports.get(other)?);
            same_work(left, right).then(|| layers::difference((base, other), left, right)).flatten()
        };
        self.layers = (0..self.rows.len()).filter_map(of_row).collect();
        self
    }

    /// With `figures` that were measured elsewhere beside those of `reports`, the ones that were compared, which they fit.
    pub fn with_imported(mut self, reports: &[Report], figures: &[Imported]) -> Self {
        let pairs = reports.iter().enumerate().flat_map(|(row, report)| figures.iter().map(move |f| (row, report, f)));
        let beside = pairs.filter_map(|(row, report, figure)| {
            let Against { times, reason, .. } = figure.against(report)?;
            Some(ImportedRow { row, figure: figure.clone(), times, reason })
        });
        self.imported = beside.collect();
        self
    }
}

/// One report against another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Index of the row compared with.
    pub base: usize,
    pub other: usize,
    pub verdict: Verdict,
    /// Median latency of the other over the base's: below 1 the other is faster. Absent when it would mean nothing.
    pub ratio: Option<f64>,
    pub ratio_low: Option<f64>,
    pub ratio_high: Option<f64>,
    /// Why the verdict is what it is.
    pub reason: String,
    /// What differs between the two and is being compared: device, toolchain, threads, ...
    pub differences: Vec<String>,
    /// The two were measured on different SKUs: the ratio says which device is faster, not which engine is better.
    #[serde(default)]
    pub across_devices: bool,
    /// How far off the outputs of the two are; where they compute in different precisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<AccuracyDifference>,
}

impl Pair {
    /// The verdict on its other report, as people read it; rows count from 1.
    pub fn verdict_words(&self) -> String {
        let base = self.base + 1;
        match self.ratio {
            Some(ratio) if self.across_devices => format!("another device kind: {ratio:.2}x the time of {base}"),
            Some(ratio) => format!("{} against {base} ({ratio:.2}x the time)", self.verdict.words()),
            None => format!("{} against {base}", self.verdict.words()),
        }
    }

    /// Why the verdict is what it is, and what differs, as people read it.
    pub fn reason_words(&self) -> String {
        let differences = match self.differences.is_empty() {
            true => String::new(),
            false => format!(" [{}]", self.differences.join("; ")),
        };
        let accuracy = self.accuracy.map(|accuracy| format!("; {}", accuracy.words())).unwrap_or_default();
        format!("{}{accuracy}{differences}", self.reason)
    }

    /// Which device is the faster one is no verdict on engines.
    pub fn judged_words(&self) -> &'static str {
        if self.across_devices && self.ratio.is_some() { "not judged" } else { self.verdict.words() }
    }
}

/// Why reports cannot be put side by side at all.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error("a comparison needs at least two reports, {0} given")]
    TooFew(usize),
    #[error("{count} reports are more than the {most} that can be compared at once")]
    TooMany { count: usize, most: usize },
    #[error("report {index} cannot be read: its samples are damaged")]
    Samples { index: usize, source: SamplesError },
}

/// What is compared with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Every pair within each SKU, and the first report with all others.
    Groups,
    /// The first report with each of the others, wherever that was measured.
    Baseline,
}

impl Scheme {
    /// Most reports compared at once.
    fn most(self) -> usize {
        match self {
            Self::Groups => MAX_REPORTS,
            Self::Baseline => MAX_AGAINST_BASELINE + 1,
        }
    }
}

/// Compares `reports`: within each SKU, and the first with all others.
pub fn compare(reports: &[Report]) -> Result<Comparison, CompareError> {
    compare_among(reports, &[], Scheme::Groups)
}

/// As [`compare`], by a scheme; foreign plans are held against engines of `others` too, which are not compared otherwise.
pub fn compare_among(reports: &[Report], others: &[Report], scheme: Scheme) -> Result<Comparison, CompareError> {
    check_count(reports, scheme.most())?;
    let groups = groups(reports);
    let grouped = |base: usize, other: usize| groups.iter().any(|g| g.rows.contains(&base) && g.rows.contains(&other));
    let last_base = if scheme == Scheme::Baseline { 1 } else { reports.len() };
    let all = (0..last_base).flat_map(|base| (base + 1..reports.len()).map(move |other| (base, other)));
    let wanted: Vec<(usize, usize)> = all.filter(|(base, other)| *base == 0 || grouped(*base, *other)).collect();
    let comparison = judged(reports, others, groups, wanted)?;
    Ok(Comparison { against_first: scheme == Scheme::Baseline, ..comparison })
}

/// Compares each report with the one that `bases` names for it, and with no other.
pub fn compare_each(
    reports: &[Report],
    others: &[Report],
    bases: &[Option<usize>],
) -> Result<Comparison, CompareError> {
    check_count(reports, 2 * MAX_AGAINST_BASELINE)?;
    let named = bases.iter().enumerate().take(reports.len());
    let wanted = named.filter_map(|(other, base)| Some(((*base).filter(|base| *base < reports.len())?, other)));
    let comparison = judged(reports, others, groups(reports), wanted.collect())?;
    Ok(Comparison { bases: bases.to_vec(), ..comparison })
}

/// One report by itself, for figures to be put beside it.
///
/// # Errors
/// When its samples are damaged.
pub fn alone(report: &Report) -> Result<Comparison, CompareError> {
    let reports = std::slice::from_ref(report);
    judged(reports, &[], groups(reports), Vec::new())
}

fn check_count(reports: &[Report], most: usize) -> Result<(), CompareError> {
    match reports.len() {
        count @ 0..2 => Err(CompareError::TooFew(count)),
        count if count > most => Err(CompareError::TooMany { count, most }),
        _ => Ok(()),
    }
}

/// The verdicts on `wanted` pairs.
fn judged(
    reports: &[Report],
    others: &[Report],
    groups: Vec<Group>,
    wanted: Vec<(usize, usize)>,
) -> Result<Comparison, CompareError> {
    let hindered = wanted.into_iter().map(|(base, other)| (base, other, incomparable(&reports[base], &reports[other])));
    let wanted: Vec<(usize, usize, Option<String>)> = hindered.collect();
    let basis = Basis::of(wanted.iter().filter(|(_, _, hindrance)| hindrance.is_none()).count());
    let read = |(index, report)| place(report, basis.each).map_err(|source| CompareError::Samples { index, source });
    let places = reports.iter().enumerate().map(read).collect::<Result<Vec<_>, CompareError>>()?;
    let pairs = wanted.into_iter().map(|(base, other, hindrance)| match hindrance {
        Some(reason) => untold(base, other, reports, reason),
        None => pair(base, other, reports, &places, &basis),
    });
    let pairs = pairs.collect();
    let rows = reports.iter().map(Row::of).collect();
    let foreign = reports.iter().enumerate().filter(|(_, report)| report.foreign.is_some());
    let known: Vec<&Report> = reports.iter().chain(others).collect();
    let portability =
        foreign.filter_map(|(row, report)| Some(ForeignRow { row, cell: portability(report, known.iter().copied())? }));
    let portability = portability.collect();
    let basis = Some(basis);
    Ok(Comparison {
        schema_version: COMPARISON_SCHEMA_VERSION,
        rows,
        pairs,
        groups,
        portability,
        basis,
        bases: Vec::new(),
        against_first: false,
        layers: Vec::new(),
        imported: Vec::new(),
    })
}

/// Where the raw samples of a report say that its median lies.
enum Known {
    /// With the confidence asked for.
    Surely(Place),
    /// Windows resemble their neighbours too much for that: as far as they wandered, see [`Place::wandering`].
    Roughly(Place),
    Not(NoInterval),
}

impl Known {
    fn place(&self) -> Result<(&Place, bool), NoInterval> {
        match self {
            Self::Surely(place) => Ok((place, false)),
            Self::Roughly(place) => Ok((place, true)),
            Self::Not(reason) => Err(*reason),
        }
    }
}

fn place(report: &Report, confidence: f64) -> Result<Known, SamplesError> {
    let (samples, sizes) = (report.samples.decode()?, report.counted_windows());
    Ok(match Place::of(&samples, &sizes, confidence) {
        Ok(place) => Known::Surely(place),
        Err(NoInterval::Alike) => {
            Place::wandering(&samples, &sizes).map_or(Known::Not(NoInterval::Alike), Known::Roughly)
        }
        Err(reason) => Known::Not(reason),
    })
}

/// Why nothing is known of the ratio to a report whose samples do not tell where their median lies.
fn unknown(report: &Report, reason: NoInterval) -> String {
    format!(
        "where the median of the report for {} lies is not known: {} (measure it again, with more time)",
        report.sku,
        reason.words()
    )
}

/// Reports of one model (or of one structure) on one SKU.
fn groups(reports: &[Report]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, report) in reports.iter().enumerate() {
        let fits = |group: &Group| {
            let first = &reports[group.rows[0]];
            measured_on(first) == measured_on(report) && same_work(first, report)
        };
        match groups.iter_mut().find(|group| fits(group)) {
            Some(group) => group.rows.push(index),
            None => groups.push(Group {
                sku: measured_on(report).to_string(),
                model: report.model.name.clone(),
                rows: vec![index],
            }),
        }
    }
    groups
}

/// The SKU whose device ran the engine.
fn measured_on(report: &Report) -> &Sku {
    report.foreign.as_ref().map_or(&report.sku, |foreign| &foreign.measured_on)
}

/// Another weight file of the same structure runs the same work.
fn same_work(left: &Report, right: &Report) -> bool {
    let structure = (left.model.structure_digest, right.model.structure_digest);
    left.model.digest == right.model.digest || matches!(structure, (Some(a), Some(b)) if a == b)
}

/// A pair that nothing can be told of.
fn untold(base: usize, other: usize, reports: &[Report], reason: String) -> Pair {
    let (left, right) = (&reports[base], &reports[other]);
    Pair {
        base,
        other,
        verdict: Verdict::CannotTell,
        ratio: None,
        ratio_low: None,
        ratio_high: None,
        reason,
        differences: differences(left, right),
        across_devices: measured_on(left) != measured_on(right),
        accuracy: accuracy::difference(left, right),
    }
}

fn pair(base: usize, other: usize, reports: &[Report], places: &[Known], basis: &Basis) -> Pair {
    let untold = |reason: String| untold(base, other, reports, reason);
    let (left, right) = (&reports[base], &reports[other]);
    // As where the interval is too wide: there is a ratio, and nothing says how far it may be off.
    let unbounded = |report: &Report, reason: NoInterval| {
        let ratio = Some(right.latency_ms.median / left.latency_ms.median).filter(|ratio| ratio.is_finite());
        Pair { verdict: Verdict::Ambiguous, ratio, ..untold(unknown(report, reason)) }
    };
    let (below, above, roughly) = match (places[base].place(), places[other].place()) {
        (Ok((below, one)), Ok((above, two))) => (below, above, one || two),
        (Err(reason), _) => return unbounded(left, reason),
        (_, Err(reason)) => return unbounded(right, reason),
    };
    let Some(interval) = ratio_interval(below, above) else {
        return untold("a report holds no latency to divide by".into());
    };
    let condition = Condition {
        disturbed: disturbed(left) || disturbed(right),
        roughly,
        apart: pace::apart(left, right).unwrap_or(0.0),
    };
    let (verdict, mut reason) = judge(&interval, condition, basis);
    if measured_on(left) != measured_on(right) {
        reason = format!("on different device kinds, {} and {}: {reason}", measured_on(left), measured_on(right));
    }
    let bound = |value: f64| Some(value).filter(|value| value.is_finite());
    Pair {
        verdict,
        ratio: Some(interval.ratio()),
        ratio_low: bound(interval.low()),
        ratio_high: bound(interval.high()),
        ..untold(reason)
    }
}

/// Why the two do not measure the same thing; `None` when they do.
fn incomparable(left: &Report, right: &Report) -> Option<String> {
    let differ = |what: &str, a: String, b: String| Some(format!("{what} differ: {a} and {b}"));
    if left.simulated != right.simulated {
        return Some("one of the two is simulated: its numbers are made up, the other's are measured".into());
    }
    if !same_work(left, right) {
        let name = |report: &Report| format!("{} ({})", report.model.name, report.model.digest.short());
        return differ("models", name(left), name(right));
    }
    let shapes = |report: &Report| {
        let shape = |port: &planforge_types::Port| {
            let dims = port.shape.iter().map(|dim| dim.map_or("?".to_owned(), |size| size.to_string()));
            format!("{}:{}", port.name, dims.collect::<Vec<_>>().join("x"))
        };
        report.inputs.iter().map(shape).collect::<Vec<_>>().join(", ")
    };
    if left.inputs != right.inputs {
        return differ("inputs", shapes(left), shapes(right));
    }
    let (a, b) = (timed_on(left), timed_on(right));
    if a != b {
        return differ("the values that were timed", a, b);
    }
    if let (Some(a), Some(b)) = (mode(left), mode(right))
        && a != b
    {
        return differ("modes of running", a, b);
    }
    for report in [left, right] {
        if !report.accurate {
            return Some(format!("the outputs of the engine for {} are wrong, so its speed means nothing", report.sku));
        }
        if report.latency_ms.count < MIN_SAMPLES {
            return Some(format!("the report for {} has only {} samples", report.sku, report.latency_ms.count));
        }
        let windows = report.window_count();
        if windows < COMPARABLE_WINDOWS {
            let have = if windows == 1 { "one window".into() } else { format!("{windows} windows") };
            return Some(format!(
                "too few windows: the report for {} has {have}, a comparison takes {COMPARABLE_WINDOWS} (measure it again, \
                 with more time)",
                report.sku
            ));
        }
        if let Some(reason) = report.wholly_disturbed() {
            return Some(format!("every window of the report for {} was disturbed ({reason})", report.sku));
        }
    }
    pace::hindrance(left, right)
}

/// Whose values were timed, where an engine's time may depend on them.
fn timed_on(report: &Report) -> String {
    match report.given_inputs.as_ref().filter(|given| given.timed) {
        Some(given) => format!("given inputs sha256:{}", given.digest.short()),
        None => "made inputs".into(),
    }
}

/// Under what two reports were measured.
#[derive(Clone, Copy)]
struct Condition {
    /// Windows count that something disturbed.
    disturbed: bool,
    /// The place of one median is known roughly.
    roughly: bool,
    /// How far apart the cores' paces were: as much of a difference may come from there.
    apart: f64,
}

/// Judged by logarithms, of which those of the other way round are the negatives: so are the verdicts.
fn judge(interval: &RatioInterval, condition: Condition, basis: &Basis) -> (Verdict, String) {
    let Condition { disturbed, roughly, apart } = condition;
    let margin = if disturbed || roughly { basis.disturbed_margin } else { basis.margin };
    let edge = margin.ln_1p() + apart;
    let RatioInterval { log_ratio, log_low, log_high } = *interval;
    let verdict = if log_high < 0.0 && log_ratio <= -edge {
        Verdict::Faster
    } else if log_low > 0.0 && log_ratio >= edge {
        Verdict::Slower
    } else if log_low >= -edge && log_high <= edge {
        Verdict::Same
    } else {
        Verdict::Ambiguous
    };
    let (ratio, low, high) = (interval.ratio(), interval.low(), interval.high());
    let sure = if roughly { "roughly".into() } else { format!("{} interval", basis.each_words()) };
    let range = format!("the ratio of medians is {ratio:.3}, {sure} {low:.3} to {high:.3}");
    let why = match (roughly, disturbed) {
        (true, _) => "neighbouring windows resemble each other too much for an interval, so differences",
        (false, true) => "a device was disturbed, so differences",
        (false, false) => "differences",
    };
    let cores = match apart.exp_m1() * 100.0 {
        percent if percent >= 0.5 => format!(", and {percent:.0} % more, for the cores were so much faster beside one"),
        _ => String::new(),
    };
    (verdict, format!("{range}; {why} within {:.0} % count as none{cores}", margin * 100.0))
}

/// What is being compared: everything that differs and may explain the ratio.
fn differences(left: &Report, right: &Report) -> Vec<String> {
    let facts = |report: &Report| {
        let driver = report.device.gpu.as_ref().map(|gpu| gpu.driver.clone()).unwrap_or_default();
        [
            ("weights", report.model.digest.short()),
            ("sku", measured_on(report).to_string()),
            ("built for", report.foreign.as_ref().map_or("its own".to_owned(), |f| f.built_for.to_string())),
            ("device", report.device.name.clone()),
            ("toolchain", report.toolchain.to_string()),
            ("driver", driver),
            ("precision", report.spec.precision.to_string()),
            ("threads", report.spec.threads.map_or("-".to_owned(), |threads| threads.to_string())),
            ("optimization level", report.spec.optimization_level.0.to_string()),
            ("hardware compatibility", report.spec.hardware_compatibility.clone().unwrap_or_else(|| "none".into())),
            ("version compatible", if report.spec.version_compatible { "yes" } else { "no" }.to_owned()),
            ("strict", if report.spec.strict { "yes" } else { "no" }.to_owned()),
            ("approximate GELU", if report.spec.approximate_gelu { "allowed" } else { "no" }.to_owned()),
            ("workspace MiB", report.spec.workspace_mib.map_or("all".to_owned(), |mib| mib.to_string())),
            ("options", options(report)),
            ("plan", report.plan.digest.short()),
            ("agent", report.provenance.agent.clone()),
        ]
    };
    let pairs = facts(left).into_iter().zip(facts(right));
    pairs.filter(|(a, b)| a.1 != b.1).map(|((name, a), (_, b))| format!("{name}: {a} and {b}")).collect()
}

/// How executions were run, as far as the report tells: `CUDA graph, spin wait, transfers`.
fn mode(report: &Report) -> Option<String> {
    let mode = report.split.as_ref()?.modes.first()?;
    let word = |on: bool, name: &str| format!("{}{name}", if on { "" } else { "no " });
    Some(
        [word(mode.cuda_graph, "CUDA graph"), word(mode.spin_wait, "spin wait"), word(mode.transfers, "transfers")]
            .join(", "),
    )
}

/// Backend options by name.
fn options(report: &Report) -> String {
    let options: Vec<String> = report.spec.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if options.is_empty() { "none".into() } else { options.join(",") }
}

/// Whether windows count that something disturbed.
fn disturbed(report: &Report) -> bool {
    report.windows.iter().any(|window| window.kept_tainted)
}

#[cfg(test)]
pub(super) mod tests;
#[cfg(test)]
mod window_tests;
