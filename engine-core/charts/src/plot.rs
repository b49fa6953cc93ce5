//! What every chart with two axes has: the frame, its axes and ticks, the legend, and what its numbers rest on.

use crate::{
    scale::Scale,
    svg::{Anchor, Svg},
    unit::{Scaled, Unit},
};

/// Series that differ in marker, dash, pattern and colour; later ones begin again.
pub const SERIES: usize = 6;

/// Characters of a title above a chart; who hears it hears all.
const TITLE_CHARACTERS: usize = 64;

/// What a chart's numbers rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Basis {
    Measured,
    /// Derived from what was counted or modelled.
    Estimated,
    /// Taken over from another tool's files.
    Imported,
    /// Of a scripted device: no number is real.
    Simulated,
}

impl Basis {
    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Estimated => "estimated",
            Self::Imported => "imported",
            Self::Simulated => "SIMULATED, no number is real",
        }
    }
}

/// What a chart is called.
#[derive(Clone, Copy, Debug)]
pub struct Caption<'a> {
    /// Begins the names of its elements: once in a page.
    pub id: &'a str,
    pub title: &'a str,
    pub basis: Basis,
}

impl Caption<'_> {
    /// Begins the chart; `words` are what is heard of it.
    pub(crate) fn open(&self, size: (f64, f64), words: &str) -> Svg {
        let basis = self.basis.words();
        let mut svg = Svg::new(self.id, size, self.title, &format!("{words} ({basis})"));
        svg.text("z", (4.0, 12.0), Anchor::Start, &shortened(self.title, TITLE_CHARACTERS));
        svg.text("q", (size.0 - 4.0, 11.0), Anchor::End, basis);
        svg
    }
}

/// What an axis counts.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    pub name: &'a str,
    pub unit: Unit,
}

/// The part of a chart between its axes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
}

/// Ticks of an axis below or beside the area, with their grid lines.
pub(crate) struct Ticks<'a> {
    pub scale: &'a Scale,
    pub unit: Scaled,
    pub name: &'a str,
    pub logarithmic: bool,
}

impl Ticks<'_> {
    fn labels(&self, wanted: usize) -> Vec<(f64, String)> {
        // Round in the unit that is shown, not in that of the values.
        if self.logarithmic {
            let (ticks, _) = self.scale.ticks(wanted);
            return ticks.into_iter().map(|tick| (self.scale.at(tick), self.unit.power(tick))).collect();
        }
        let (low, high) = self.scale.bounds();
        let shown = Scale::linear(low / self.unit.size, high / self.unit.size, 0.0, 1.0);
        let (ticks, step) = shown.ticks(wanted);
        let label = |tick: f64| {
            (self.scale.at(tick * self.unit.size), self.unit.tick(tick * self.unit.size, step * self.unit.size))
        };
        ticks.into_iter().map(label).collect()
    }
}

impl Area {
    pub fn new(left: f64, right: f64, top: f64, bottom: f64) -> Self {
        Self { left, right, top, bottom }
    }

    /// The axis below.
    pub fn x_axis(&self, svg: &mut Svg, ticks: &Ticks<'_>) {
        for (x, label) in ticks.labels(7) {
            svg.line("g", (x, self.top), (x, self.bottom));
            svg.text("t", (x, self.bottom + 14.0), Anchor::Middle, &label);
        }
        self.x_line(svg, &ticks.unit.heading(ticks.name));
    }

    /// The line below, and what is along it.
    pub fn x_line(&self, svg: &mut Svg, heading: &str) {
        svg.line("a", (self.left, self.bottom), (self.right, self.bottom));
        svg.text("t", ((self.left + self.right) / 2.0, self.bottom + 30.0), Anchor::Middle, heading);
    }

    /// The axis at the left; its heading stands above it.
    pub fn y_axis(&self, svg: &mut Svg, ticks: &Ticks<'_>) {
        for (y, label) in ticks.labels(5) {
            svg.line("g", (self.left, y), (self.right, y));
            svg.text("t", (self.left - 6.0, y + 4.0), Anchor::End, &label);
        }
        svg.line("a", (self.left, self.top), (self.left, self.bottom));
        svg.text("t", (4.0, self.top - 10.0), Anchor::Start, &ticks.unit.heading(ticks.name));
    }
}

/// Names of series with their marks, in lines of at most `width`; the height that they take.
pub(crate) fn legend(svg: &mut Svg, names: &[&str], (left, top): (f64, f64), width: f64) -> f64 {
    let (mut x, mut y) = (left, top);
    for (series, name) in names.iter().enumerate() {
        let name = shortened(name, 48);
        let takes = 20.0 + name.chars().count() as f64 * CHARACTER;
        if x > left && x + takes > left + width {
            (x, y) = (left, y + 18.0);
        }
        svg.line(&format!("l s{}", series % SERIES + 1), (x, y), (x + 14.0, y));
        svg.marker(series, (x + 7.0, y), None);
        svg.text("", (x + 20.0, y + 4.0), Anchor::Start, &name);
        x += takes + 14.0;
    }
    y - top + 18.0
}

/// As [`legend`] would take.
pub(crate) fn legend_height(names: &[&str], width: f64) -> f64 {
    if names.len() < 2 {
        return 0.0;
    }
    let mut probe = Svg::new("", (0.0, 0.0), "", "");
    legend(&mut probe, names, (0.0, 0.0), width)
}

/// How wide a character of a label is, about.
pub(crate) const CHARACTER: f64 = 6.4;

/// A long name by its beginning and end, which tell most.
pub fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let end = (most - 1) / 3;
    let begin = most - 1 - end;
    let (head, tail): (String, String) = (text.chars().take(begin).collect(), text.chars().skip(count - end).collect());
    format!("{}…{}", head.trim_end(), tail.trim_start())
}
