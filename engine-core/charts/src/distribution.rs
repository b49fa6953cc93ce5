//! How samples are spread: one set as a histogram with its quantiles, several as shares that lie at or below a value.

use crate::{
    plot::{Area, Axis, Caption, SERIES, Ticks, legend, legend_height},
    scale::Scale,
    svg::{Anchor, Svg},
};

const SIZE: (f64, f64) = (640.0, 300.0);

/// Most and fewest bars of a histogram.
const BINS: (usize, usize) = (8, 48);

/// Beyond this multiple of the way from the least sample to the 99th percentile nothing is drawn, only said: a single
/// straggler would press everything else into one bar.
const CUT: f64 = 1.6;

/// Points that a line of shares has at most.
const STEPS: usize = 160;

/// A quantile, as its report states it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantile<'a> {
    /// `p99`.
    pub name: &'a str,
    pub value: f64,
}

/// One set of samples.
#[derive(Clone, Copy, Debug)]
pub struct Distribution<'a> {
    pub caption: Caption<'a>,
    pub x: Axis<'a>,
    pub samples: &'a [f64],
    /// Marked with lines, as they are given.
    pub quantiles: &'a [Quantile<'a>],
}

/// Several sets of samples beside each other.
#[derive(Clone, Copy, Debug)]
pub struct Shares<'a> {
    pub caption: Caption<'a>,
    pub x: Axis<'a>,
    pub series: &'a [(&'a str, &'a [f64])],
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// By nearest rank: where the picture ends, no figure.
fn rank(sorted: &[f64], share: f64) -> f64 {
    sorted.get((share * sorted.len() as f64) as usize).or(sorted.last()).copied().unwrap_or(0.0)
}

/// Where a picture of sorted samples begins and ends.
fn range(sorted: &[f64]) -> (f64, f64) {
    let (low, high) = (sorted.first().copied().unwrap_or(0.0), sorted.last().copied().unwrap_or(1.0));
    let cut = low + (rank(sorted, 0.99) - low) * CUT;
    if high > cut && cut > low { (low, cut) } else { (low, high) }
}

impl Distribution<'_> {
    /// How many samples lie in each of equally wide parts between two values.
    fn counts(sorted: &[f64], (low, high): (f64, f64)) -> Vec<u64> {
        // Freedman and Diaconis: twice the middle half's width over the cube root of the count.
        let middle = rank(sorted, 0.75) - rank(sorted, 0.25);
        let width = 2.0 * middle / (sorted.len().max(1) as f64).cbrt();
        let bins = if width > 0.0 { ((high - low) / width).ceil() } else { BINS.0 as f64 };
        let bins = (bins as usize).clamp(BINS.0, BINS.1);
        let mut counts = vec![0; bins];
        for sample in sorted.iter().filter(|sample| **sample <= high) {
            let share = if high > low { (sample - low) / (high - low) } else { 0.0 };
            counts[((share * bins as f64) as usize).min(bins - 1)] += 1;
        }
        counts
    }

    /// The picture.
    pub fn svg(&self) -> String {
        let sorted = sorted(self.samples);
        let (low, high) = range(&sorted);
        let unit = self.x.unit.scaled(high);
        let beyond = sorted.iter().filter(|sample| **sample > high).count();
        let said = self.quantiles.iter().map(|q| format!("{} {}", q.name, self.x.unit.figure(q.value)));
        let mut words = format!("{} of {} samples: {}", self.x.name, sorted.len(), said.collect::<Vec<_>>().join(", "));
        if beyond > 0 {
            let most = self.x.unit.figure(sorted.last().copied().unwrap_or(0.0));
            words.push_str(&format!("; {beyond} samples are beyond the picture, up to {most}"));
        }
        let mut svg = self.caption.open(SIZE, &words);
        let rows = self.quantiles.len() as f64;
        let area = Area::new(52.0, SIZE.0 - 12.0, 34.0 + 15.0 * rows, SIZE.1 - 40.0);
        let counts = Self::counts(&sorted, (low, high));
        let most = counts.iter().copied().max().unwrap_or(0).max(1);
        let x = Scale::linear(low, high, area.left, area.right);
        let y = Scale::linear(0.0, most as f64, area.bottom, area.top);
        let count = crate::Unit::Count.scaled(most as f64);
        area.y_axis(&mut svg, &Ticks { scale: &y, unit: count, name: "samples", logarithmic: false });
        area.x_axis(&mut svg, &Ticks { scale: &x, unit, name: self.x.name, logarithmic: false });
        let width = (area.right - area.left) / counts.len() as f64;
        let bin = (x.bounds().1 - x.bounds().0) / counts.len() as f64;
        for (index, found) in counts.iter().enumerate().filter(|(_, found)| **found > 0) {
            let from = x.bounds().0 + bin * index as f64;
            let said = format!("{} to {}: {found}", unit.figure(from), unit.figure(from + bin));
            let (left, top) = (area.left + width * index as f64, y.at(*found as f64));
            svg.rect("class=\"f1\"", (left + 0.5, top), (width - 1.0, area.bottom - top), Some(&said));
        }
        for (index, quantile) in self.quantiles.iter().enumerate() {
            let (at, row) = (x.at(quantile.value), 32.0 + 15.0 * index as f64);
            let more = if quantile.value > high { " →" } else { "" };
            let label = format!("{} {}{more}", quantile.name, unit.figure(quantile.value));
            svg.line("k", (at, row + 3.0), (at, area.bottom));
            let takes = label.chars().count() as f64 * crate::plot::CHARACTER;
            let (place, anchor) =
                if at + takes > area.right { (at - 4.0, Anchor::End) } else { (at + 4.0, Anchor::Start) };
            svg.text("h", (place, row + 8.0), anchor, &label);
        }
        svg.end()
    }
}

impl Shares<'_> {
    /// The picture.
    pub fn svg(&self) -> String {
        let sets: Vec<Vec<f64>> = self.series.iter().map(|(_, samples)| sorted(samples)).collect();
        let ranges: Vec<(f64, f64)> = sets.iter().filter(|set| !set.is_empty()).map(|set| range(set)).collect();
        let low = ranges.iter().map(|(low, _)| *low).fold(f64::INFINITY, f64::min);
        let high = ranges.iter().map(|(_, high)| *high).fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low.is_finite() { (low, high) } else { (0.0, 1.0) };
        let unit = self.x.unit.scaled(high);
        let said = self.series.iter().zip(&sets).map(|((name, _), set)| {
            format!("{name}: half of {} samples at or below {}", set.len(), self.x.unit.figure(rank(set, 0.5)))
        });
        let mut svg = self.caption.open(self.size(), &said.collect::<Vec<_>>().join("; "));
        let names: Vec<&str> = self.series.iter().map(|(name, _)| *name).collect();
        let area = Area::new(52.0, SIZE.0 - 12.0, 40.0, SIZE.1 - 40.0);
        // Devices differ by far more than samples of one device do.
        let far = low > 0.0 && high / low > 8.0;
        let x = if far {
            Scale::logarithmic(low, high, area.left, area.right)
        } else {
            Scale::linear(low, high, area.left, area.right)
        };
        let y = Scale::linear(0.0, 1.0, area.bottom, area.top);
        let share = crate::Unit::Share.scaled(1.0);
        area.y_axis(&mut svg, &Ticks { scale: &y, unit: share, name: "samples at or below", logarithmic: false });
        area.x_axis(&mut svg, &Ticks { scale: &x, unit, name: self.x.name, logarithmic: far });
        for (series, set) in sets.iter().enumerate().filter(|(_, set)| !set.is_empty()) {
            Self::steps(&mut svg, series, set, (&x, &y));
        }
        legend(&mut svg, &names, (52.0, SIZE.1 + 6.0), SIZE.0 - 64.0);
        svg.end()
    }

    fn size(&self) -> (f64, f64) {
        let names: Vec<&str> = self.series.iter().map(|(name, _)| *name).collect();
        (SIZE.0, SIZE.1 + legend_height(&names, SIZE.0 - 64.0).max(18.0))
    }

    fn steps(svg: &mut Svg, series: usize, set: &[f64], (x, y): (&Scale, &Scale)) {
        let last = set.len() - 1;
        let wanted = STEPS.min(set.len());
        let share = |index: usize| (index + 1) as f64 / set.len() as f64;
        let at = |step: usize| if wanted > 1 { step * last / (wanted - 1) } else { last };
        let mut points = vec![(x.at(set[0]), y.at(0.0))];
        points.extend((0..wanted).map(at).map(|index| (x.at(set[index]), y.at(share(index)))));
        svg.path(&format!("l s{}", series % SERIES + 1), &points);
        for part in [0.1, 0.5, 0.9] {
            let index = (part * last as f64) as usize;
            svg.marker(series, (x.at(set[index]), y.at(share(index))), None);
        }
    }
}
