//! Rates of an engine's parts over their operational intensity, below what the device was measured to reach.

use crate::{
    plot::{Area, Caption, Ticks, legend, legend_height},
    scale::Scale,
    svg::Anchor,
    unit::Unit,
};

const SIZE: (f64, f64) = (640.0, 340.0);

/// A measured highest rate of products.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling<'a> {
    /// `fp16`.
    pub name: &'a str,
    pub flop_per_s: f64,
}

/// One part of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    /// Empty where the mark is not named.
    pub name: &'a str,
    pub flop_per_byte: f64,
    pub flop_per_s: f64,
    /// Index of its kind in [`RooflineChart::kinds`].
    pub kind: usize,
    /// How near it comes to its ceiling, in words; may be empty.
    pub reached: &'a str,
}

/// Parts below ceilings, both axes logarithmic.
#[derive(Clone, Copy, Debug)]
pub struct RooflineChart<'a> {
    pub caption: Caption<'a>,
    /// Bytes a second of a copy; none where that was not measured.
    pub copy_bytes_per_s: Option<f64>,
    pub ceilings: &'a [Ceiling<'a>],
    pub spots: &'a [Spot<'a>],
    pub kinds: &'a [&'a str],
    /// Parts that are not drawn: they move no bytes, compute nothing that is counted, or are too many.
    pub left_out: usize,
}

impl RooflineChart<'_> {
    fn words(&self) -> String {
        let rates = self.ceilings.iter().map(|c| format!("{} {}", c.name, Unit::FlopPerSecond.figure(c.flop_per_s)));
        let copy = self.copy_bytes_per_s.map(|rate| format!("copy {:.0} GB/s", rate / 1e9));
        let ceilings: Vec<String> = copy.into_iter().chain(rates).collect();
        let ceilings = if ceilings.is_empty() { "not measured".to_owned() } else { ceilings.join(", ") };
        let mut fastest: Vec<&Spot<'_>> = self.spots.iter().filter(|spot| !spot.name.is_empty()).collect();
        fastest.sort_by(|a, b| b.flop_per_s.total_cmp(&a.flop_per_s));
        let parts = fastest.iter().take(3).map(|spot| {
            let comma = if spot.reached.is_empty() { "" } else { ", " };
            format!("{} {}{comma}{}", spot.name, Unit::FlopPerSecond.figure(spot.flop_per_s), spot.reached)
        });
        let parts = parts.collect::<Vec<_>>().join("; ");
        let left_out =
            if self.left_out > 0 { format!("; {} parts are not drawn", self.left_out) } else { String::new() };
        format!("{} parts; ceilings: {ceilings}; highest rates: {parts}{left_out}", self.spots.len())
    }

    /// The picture.
    pub fn svg(&self) -> String {
        let below = legend_height(self.kinds, SIZE.0 - 84.0);
        let mut svg = self.caption.open((SIZE.0, SIZE.1 + below), &self.words());
        let area = Area::new(70.0, SIZE.0 - 16.0, 40.0, SIZE.1 - 40.0);
        let highest = self.ceilings.iter().map(|ceiling| ceiling.flop_per_s).fold(0.0, f64::max);
        // The ridges belong into the picture, and every spot.
        let ridges = self.copy_bytes_per_s.filter(|rate| *rate > 0.0);
        let ridges = self.ceilings.iter().filter_map(|ceiling| Some(ceiling.flop_per_s / ridges?));
        let across: Vec<f64> = self.spots.iter().map(|spot| spot.flop_per_byte).chain(ridges).collect();
        let rates: Vec<f64> = self.spots.iter().map(|spot| spot.flop_per_s).chain([highest]).collect();
        let ends = |values: &[f64]| {
            let usable = values.iter().copied().filter(|value| *value > 0.0 && value.is_finite());
            let (low, high) = usable.fold((f64::INFINITY, 0.0), |(l, h): (f64, f64), v| (l.min(v), h.max(v)));
            if low.is_finite() { (low / 2.0, high * 2.0) } else { (0.1, 10.0) }
        };
        let ((left, right), (bottom, top)) = (ends(&across), ends(&rates));
        let x = Scale::logarithmic(left, right, area.left, area.right);
        let y = Scale::logarithmic(bottom, top, area.bottom, area.top);
        let unit = Unit::FlopPerSecond.scaled(top);
        let intensity = Unit::FlopPerByte.scaled(right);
        area.x_axis(&mut svg, &Ticks { scale: &x, unit: intensity, name: "operational intensity", logarithmic: true });
        area.y_axis(&mut svg, &Ticks { scale: &y, unit, name: "rate", logarithmic: true });
        if let Some(copy) = self.copy_bytes_per_s.filter(|rate| *rate > 0.0) {
            // The slope, from the bottom or the left edge to the highest ridge or the edge.
            let until = (if highest > 0.0 { highest / copy } else { right }).min(right);
            let from = left.max(bottom / copy).min(until);
            svg.line("c", (x.at(from), y.at(from * copy)), (x.at(until), y.at(until * copy)));
            let label = format!("copy {:.0} GB/s", copy / 1e9);
            let middle = (from * until).sqrt();
            svg.text("h", (x.at(middle) - 6.0, y.at(middle * copy) - 6.0), Anchor::End, &label);
        }
        for ceiling in self.ceilings.iter().filter(|ceiling| ceiling.flop_per_s > 0.0) {
            let from = self.copy_bytes_per_s.filter(|copy| *copy > 0.0).map_or(left, |copy| ceiling.flop_per_s / copy);
            let level = y.at(ceiling.flop_per_s);
            svg.line("c", (x.at(from.max(left)), level), (area.right, level));
            let label = format!("{} {}", ceiling.name, unit.figure(ceiling.flop_per_s));
            svg.text("h", (area.right - 2.0, level - 4.0), Anchor::End, &label);
        }
        for spot in self.spots {
            let comma = if spot.reached.is_empty() { "" } else { ", " };
            let said = format!("{}: {}{comma}{}", spot.name, unit.figure(spot.flop_per_s), spot.reached);
            let said = Some(said.as_str()).filter(|_| !spot.name.is_empty());
            svg.marker(spot.kind, (x.at(spot.flop_per_byte), y.at(spot.flop_per_s)), said);
        }
        if self.kinds.len() > 1 {
            legend(&mut svg, self.kinds, (70.0, SIZE.1 + 4.0), SIZE.0 - 84.0);
        }
        svg.end()
    }
}
