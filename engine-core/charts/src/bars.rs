//! Horizontal bars, one a part: what takes how long, with words beside each.

use crate::{
    plot::{CHARACTER, Caption, SERIES, shortened},
    scale::Scale,
    svg::{Anchor, Svg, escaped},
    unit::Unit,
};

const WIDTH: f64 = 640.0;
const ROW: f64 = 21.0;

/// Names take at most this much of a chart.
const NAME_CHARACTERS: usize = 34;

/// One bar.
#[derive(Clone, Copy, Debug)]
pub struct Bar<'a> {
    pub name: &'a str,
    pub value: f64,
    /// Stands behind the figure: `45 % of memory`.
    pub note: &'a str,
    /// Index of its kind in `Bars::kinds`: the pattern that it is filled with.
    pub kind: usize,
}

/// Bars below each other, in the order given.
#[derive(Clone, Copy, Debug)]
pub struct Bars<'a> {
    pub caption: Caption<'a>,
    pub unit: Unit,
    pub bars: &'a [Bar<'a>],
    /// What the patterns stand for; empty where they mean nothing.
    pub kinds: &'a [&'a str],
}

impl Bars<'_> {
    /// The picture.
    pub fn svg(&self) -> String {
        let largest = self.bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
        let unit = self.unit.scaled(largest);
        let head = if self.kinds.is_empty() { 22.0 } else { 44.0 };
        let size = (WIDTH, head + ROW * self.bars.len() as f64 + 8.0);
        let said = self.bars.iter().take(5).map(|bar| format!("{} {}", bar.name, unit.figure(bar.value)));
        let more = self.bars.len().saturating_sub(5);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let mut svg = self.caption.open(size, &format!("{}{more}", said.collect::<Vec<_>>().join(", ")));
        patterns(&mut svg, self.caption.id, self.kinds.len().clamp(1, SERIES));
        self.kinds(&mut svg);
        let named = self.bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0).min(NAME_CHARACTERS);
        let left = 8.0 + named as f64 * CHARACTER;
        let figure = |bar: &Bar<'_>| {
            let space = if bar.note.is_empty() { "" } else { "  " };
            format!("{}{space}{}", unit.figure(bar.value), bar.note)
        };
        let noted = self.bars.iter().map(|bar| figure(bar).chars().count()).max().unwrap_or(0).min(44);
        let right = (WIDTH - 10.0 - noted as f64 * CHARACTER).max(left + 60.0);
        let x = Scale::linear(0.0, largest.max(f64::MIN_POSITIVE), left, right);
        for (index, bar) in self.bars.iter().enumerate() {
            let y = head + ROW * index as f64;
            svg.text("", (left - 6.0, y + 14.0), Anchor::End, &shortened(bar.name, NAME_CHARACTERS));
            let said = format!("{}: {}", bar.name, figure(bar));
            let width = (x.at(bar.value) - left).max(1.0);
            svg.rect(&paint(self.caption.id, bar.kind), (left, y + 3.0), (width, ROW - 6.0), Some(&said));
            svg.text("t", (left + width + 6.0, y + 14.0), Anchor::Start, &figure(bar));
        }
        svg.line("a", (left, head), (left, size.1 - 8.0));
        svg.end()
    }

    /// What the patterns stand for.
    fn kinds(&self, svg: &mut Svg) {
        let mut x = 8.0;
        for (kind, name) in self.kinds.iter().enumerate() {
            svg.rect(&paint(self.caption.id, kind), (x, 20.0), (14.0, 12.0), None);
            svg.text("", (x + 19.0, 30.0), Anchor::Start, name);
            x += 34.0 + name.chars().count() as f64 * CHARACTER;
        }
    }
}

fn paint(id: &str, kind: usize) -> String {
    format!("class=\"o{0}\" fill=\"url(#{1}-p{0})\"", kind % SERIES + 1, escaped(id))
}

/// Fillings that differ without colour: plain, lines in four directions, dots.
fn patterns(svg: &mut Svg, id: &str, count: usize) {
    const LINES: [&str; SERIES] =
        ["", "M0 6L6 0", "M0 0L6 6", "M0 3H6", "M3 0V6", "M2 3a1 1 0 1 0 2 0a1 1 0 1 0 -2 0z"];
    svg.raw("<defs>");
    for (index, line) in LINES.iter().enumerate().take(count) {
        let (id, number) = (escaped(id), index + 1);
        svg.raw(&format!(
            "<pattern id=\"{id}-p{number}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
             <path class=\"f{number}\" d=\"M0 0H6V6H0z\"/><path class=\"i\" d=\"{line}\"/></pattern>"
        ));
    }
    svg.raw("</defs>");
}
