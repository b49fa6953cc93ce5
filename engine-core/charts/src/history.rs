//! One figure over time: a point for each measurement with its interval, and the band within which differences are noise.

use crate::{
    plot::{Area, Axis, Caption, Ticks},
    scale::Scale,
    svg::Anchor,
};

const SIZE: (f64, f64) = (640.0, 260.0);

/// Measurements by which their place on the axis is told, at most.
const LABELS: usize = 6;

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// When, or by which version: `2026-11-20`.
    pub label: &'a str,
    pub value: f64,
    pub between: Option<(f64, f64)>,
    /// Of another mark than the others and named so: `disturbed`; empty for what is as usual.
    pub remark: &'a str,
}

/// Measurements from the oldest to the newest, equally far apart.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    pub caption: Caption<'a>,
    pub y: Axis<'a>,
    pub moments: &'a [Moment<'a>],
    /// Differences within these bounds mean nothing.
    pub noise: Option<(f64, f64)>,
}

impl History<'_> {
    fn words(&self) -> String {
        let figure = |moment: &Moment<'_>| format!("{} {}", moment.label, self.y.unit.figure(moment.value));
        let ends = [self.moments.first(), self.moments.last()];
        let ends: Vec<String> = ends.into_iter().flatten().map(figure).collect();
        let figure = |value: f64| self.y.unit.figure(value);
        let noise = self
            .noise
            .map(|(low, high)| format!("; differences between {} and {} are noise", figure(low), figure(high)));
        let remarked = self.moments.iter().filter(|moment| !moment.remark.is_empty()).count();
        let remarked = if remarked > 0 { format!("; {remarked} have a remark") } else { String::new() };
        let count = self.moments.len();
        format!("{} of {count} measurements, {}{}{remarked}", self.y.name, ends.join(" to "), noise.unwrap_or_default())
    }

    /// The picture.
    pub fn svg(&self) -> String {
        let mut svg = self.caption.open(SIZE, &self.words());
        let area = Area::new(64.0, SIZE.0 - 20.0, 40.0, SIZE.1 - 32.0);
        let ends = self.moments.iter().map(|moment| moment.between.unwrap_or((moment.value, moment.value)));
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for (from, to) in ends.chain(self.noise) {
            (low, high) = (low.min(from), high.max(to));
        }
        let (low, high) = if low.is_finite() && high.is_finite() { (low, high) } else { (0.0, 1.0) };
        let room = ((high - low) * 0.1).max(high.abs() * 0.02);
        let y = Scale::linear(
            (low - room).max(if low >= 0.0 { 0.0 } else { f64::MIN }),
            high + room,
            area.bottom,
            area.top,
        );
        let last = self.moments.len().saturating_sub(1).max(1) as f64;
        let x = Scale::linear(0.0, last, area.left + 20.0, area.right - 30.0);
        let unit = self.y.unit.scaled(high);
        if let Some((from, to)) = self.noise {
            let (top, bottom) = (y.at(to), y.at(from));
            let said = format!("noise: {} to {}", unit.figure(from), unit.figure(to));
            svg.rect("class=\"b\"", (area.left, top), (area.right - area.left, bottom - top), Some(&said));
            svg.text("q", (area.right - 4.0, top - 3.0), Anchor::End, "within the band: noise");
        }
        area.y_axis(&mut svg, &Ticks { scale: &y, unit, name: self.y.name, logarithmic: false });
        svg.line("a", (area.left, area.bottom), (area.right, area.bottom));
        let points: Vec<(f64, f64)> =
            (self.moments.iter().enumerate()).map(|(index, moment)| (x.at(index as f64), y.at(moment.value))).collect();
        svg.path("l s1", &points);
        let every = self.moments.len().div_ceil(LABELS).max(1);
        for (index, (moment, (at_x, at_y))) in self.moments.iter().zip(&points).enumerate() {
            if index % every == 0 {
                svg.text("t", (*at_x, area.bottom + 16.0), Anchor::Middle, moment.label);
            }
            if let Some((from, to)) = moment.between {
                svg.line("w", (*at_x, y.at(from)), (*at_x, y.at(to)));
            }
            let remark = if moment.remark.is_empty() { String::new() } else { format!(", {}", moment.remark) };
            let said = format!("{}: {}{remark}", moment.label, unit.figure(moment.value));
            svg.marker(if remark.is_empty() { 0 } else { 5 }, (*at_x, *at_y), Some(&said));
        }
        svg.end()
    }
}
