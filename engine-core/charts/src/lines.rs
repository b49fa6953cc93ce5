//! What grows with one number, batches or streams: points with their intervals, lines between them, the knee.

use crate::{
    plot::{Area, Axis, Caption, SERIES, Ticks, legend, legend_height},
    scale::Scale,
    svg::Anchor,
};

const SIZE: (f64, f64) = (640.0, 280.0);

/// One point of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    /// Where the value lies with the usual confidence, where that is known.
    pub between: Option<(f64, f64)>,
}

/// A line through points, by ascending `x`.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    pub name: &'a str,
    pub points: Vec<Point>,
}

/// A place that is named: `knee`.
#[derive(Clone, Copy, Debug)]
pub struct Mark<'a> {
    pub x: f64,
    pub name: &'a str,
}

/// Lines over one number that is doubled from point to point.
#[derive(Clone, Copy, Debug)]
pub struct Lines<'a> {
    pub caption: Caption<'a>,
    pub x: Axis<'a>,
    pub y: Axis<'a>,
    pub lines: &'a [Line<'a>],
    pub marks: &'a [Mark<'a>],
}

impl Lines<'_> {
    fn points(&self) -> impl Iterator<Item = &Point> {
        self.lines.iter().flat_map(|line| &line.points)
    }

    fn words(&self) -> String {
        let line = |line: &Line<'_>| {
            let points = line.points.iter().take(12);
            let figure = |point: &Point| format!("{} at {}", self.y.unit.figure(point.y), self.x.unit.figure(point.x));
            format!("{}: {}", line.name, points.map(figure).collect::<Vec<_>>().join(", "))
        };
        let marks = self.marks.iter().map(|mark| format!("{} at {}", mark.name, self.x.unit.figure(mark.x)));
        let parts: Vec<String> = self.lines.iter().map(line).chain(marks).collect();
        format!("{} by {}. {}", self.y.name, self.x.name, parts.join("; "))
    }

    /// The picture.
    pub fn svg(&self) -> String {
        let names: Vec<&str> = self.lines.iter().map(|line| line.name).collect();
        let below = legend_height(&names, SIZE.0 - 72.0);
        let mut svg = self.caption.open((SIZE.0, SIZE.1 + below), &self.words());
        let area = Area::new(64.0, SIZE.0 - 20.0, 44.0, SIZE.1 - 40.0);
        let least = self.points().map(|point| point.x).fold(f64::INFINITY, f64::min);
        let most = self.points().map(|point| point.x).fold(0.0, f64::max);
        let top = self.points().map(|point| point.between.map_or(point.y, |(_, high)| high.max(point.y)));
        let top = top.fold(0.0, f64::max);
        let x =
            Scale::logarithmic(if least.is_finite() { least } else { 1.0 }, most, area.left + 16.0, area.right - 40.0);
        let y = Scale::linear(0.0, top.max(f64::MIN_POSITIVE) * 1.06, area.bottom, area.top);
        let (unit, across) = (self.y.unit.scaled(top), self.x.unit.scaled(most));
        area.y_axis(&mut svg, &Ticks { scale: &y, unit, name: self.y.name, logarithmic: false });
        area.x_line(&mut svg, &across.heading(self.x.name));
        let mut places: Vec<f64> = self.points().map(|point| point.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let mut free = f64::NEG_INFINITY;
        for place in places {
            svg.line("g", (x.at(place), area.bottom), (x.at(place), area.bottom + 4.0));
            if x.at(place) >= free {
                svg.text("t", (x.at(place), area.bottom + 16.0), Anchor::Middle, &across.figure(place));
                free = x.at(place) + 30.0;
            }
        }
        for (row, mark) in self.marks.iter().enumerate() {
            // At the foot, where no value is written, and on the side that has room.
            let (at, label) = (x.at(mark.x), area.bottom - 8.0 - 13.0 * row as f64);
            svg.line("k", (at, area.top), (at, area.bottom));
            let (beside, anchor) = match at > f64::midpoint(area.left, area.right) {
                true => (at - 4.0, Anchor::End),
                false => (at + 4.0, Anchor::Start),
            };
            svg.text("h", (beside, label), anchor, &format!("{} {}", mark.name, across.figure(mark.x)));
        }
        let direct = self.lines.len() == 1 && self.points().count() <= 10;
        for (series, line) in self.lines.iter().enumerate() {
            let points: Vec<(f64, f64)> = line.points.iter().map(|point| (x.at(point.x), y.at(point.y))).collect();
            svg.path(&format!("l s{}", series % SERIES + 1), &points);
            for (point, (at_x, at_y)) in line.points.iter().zip(&points) {
                if let Some((low, high)) = point.between {
                    svg.line("w", (*at_x, y.at(low)), (*at_x, y.at(high)));
                }
                let (value, over) = (unit.figure(point.y), across.figure(point.x));
                svg.marker(series, (*at_x, *at_y), Some(&format!("{} at {over}: {value}", line.name)));
                if direct {
                    // The first would cross the axis.
                    let is_first = *at_x < area.left + 24.0;
                    let (from, anchor) = if is_first { (at_x - 8.0, Anchor::Start) } else { (*at_x, Anchor::Middle) };
                    svg.text("t", (from, at_y - 8.0), anchor, &value);
                }
            }
        }
        if names.len() > 1 {
            legend(&mut svg, &names, (64.0, SIZE.1 + 4.0), SIZE.0 - 72.0);
        }
        svg.end()
    }
}
