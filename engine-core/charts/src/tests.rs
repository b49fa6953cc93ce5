//! What holds for every chart, whatever it is given.

use crate::{
    Axis, Bar, Bars, Basis, Caption, Ceiling, Cell, Distribution, Heat, History, Line, Lines, Mark, Moment, Point,
    Quantile, RooflineChart, STYLE, Shares, Spot, Unit,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

const LATENCY: Axis<'_> = Axis { name: "latency", unit: Unit::Milliseconds };

/// Every chart, of these numbers and with this name.
fn all(values: &[f64], name: &str) -> Vec<String> {
    let caption = |id: &'static str| Caption { id, title: name, basis: Basis::Measured };
    let quantiles: Vec<_> = values.iter().take(4).map(|value| Quantile { name, value: *value }).collect();
    let distribution = Distribution { caption: caption("a"), x: LATENCY, samples: values, quantiles: &quantiles };
    let shares =
        Shares { caption: caption("b"), x: LATENCY, series: &[(name, values), ("other", &[1.0, 2.0]), ("none", &[])] };
    let bars: Vec<Bar<'_>> =
        (values.iter().enumerate()).map(|(kind, value)| Bar { name, value: *value, note: name, kind }).collect();
    let bars = Bars { caption: caption("c"), unit: Unit::Milliseconds, bars: &bars, kinds: &[name, "other"] };
    let point = |(index, value): (usize, &f64)| Point {
        x: 2f64.powi(index as i32 % 10),
        y: *value,
        between: Some((value * 0.9, value * 1.1)),
    };
    let line = Line { name, points: values.iter().enumerate().map(point).collect() };
    let one = [line.clone()];
    let two = [line.clone(), Line { name: "other", ..line }];
    let y = Axis { name, unit: Unit::PerSecond };
    let marks = [Mark { x: values.first().copied().unwrap_or(1.0), name }];
    let x = Axis { name: "batch", unit: Unit::Count };
    let single = Lines { caption: caption("d"), x, y, lines: &one, marks: &marks };
    let double = Lines { caption: caption("e"), x, y, lines: &two, marks: &[] };
    let moments: Vec<Moment<'_>> = (values.iter())
        .map(|value| Moment { label: name, value: *value, between: Some((value * 0.9, value * 1.1)), remark: name })
        .collect();
    let history = History { caption: caption("f"), y: LATENCY, moments: &moments, noise: Some((1.0, 1.1)) };
    let cells: Vec<Vec<Cell<'_>>> = values.iter().map(|value| vec![Cell::Value(*value), Cell::Empty(name)]).collect();
    let rows = vec![name; cells.len()];
    let heat = Heat {
        caption: caption("g"),
        unit: Unit::Times,
        axes: (name, "measured on"),
        rows: &rows,
        columns: &[name, "t4"],
        cells: &cells,
    };
    let spots: Vec<Spot<'_>> = (values.iter().enumerate())
        .map(|(kind, value)| Spot { name, flop_per_byte: *value, flop_per_s: value * 1e9, kind, reached: name })
        .collect();
    let ceilings = [Ceiling { name, flop_per_s: values.first().copied().unwrap_or(1e12) }];
    let roofline = RooflineChart {
        caption: caption("h"),
        copy_bytes_per_s: values.last().copied(),
        ceilings: &ceilings,
        spots: &spots,
        kinds: &[name, "gemm"],
        left_out: 2,
    };
    vec![
        distribution.svg(),
        shares.svg(),
        bars.svg(),
        single.svg(),
        double.svg(),
        history.svg(),
        heat.svg(),
        roofline.svg(),
    ]
}

/// Reads an SVG as strictly as XML is read: the values of every attribute of that name.
fn well_formed(svg: &str, attribute: &str) -> Vec<String> {
    let (mut open, mut found, mut rest) = (Vec::new(), Vec::new(), svg);
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "a stray > in {svg}");
        let end = at + rest[at..].find('>').unwrap_or_else(|| panic!("an open element in {svg}"));
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "{svg}");
            continue;
        }
        let (name, attributes) = tag.trim_end_matches('/').split_once(' ').unwrap_or((tag.trim_end_matches('/'), ""));
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
        let parts: Vec<&str> = attributes.split('"').collect();
        assert!(parts.len() % 2 == 1, "{tag}");
        for pair in parts.chunks_exact(2) {
            let key = pair[0].trim().strip_suffix('=').unwrap_or_else(|| panic!("{tag}"));
            assert!(!pair[1].contains('<') && key != "style" && !key.starts_with("on"), "{tag}");
            if key == attribute {
                found.push(pair[1].to_owned());
            }
        }
        if !tag.ends_with('/') {
            open.push(name.to_owned());
        }
    }
    assert!(open.is_empty(), "{open:?}");
    found
}

#[test]
fn charts_say_their_numbers_and_what_they_rest_on() {
    let samples: Vec<f64> = (0..200).map(|index| 1.0 + f64::from(index % 17) / 100.0).collect();
    let charts = all(&samples[..8], "conv1");
    for chart in &charts {
        assert!(chart.contains("role=\"img\"") && chart.contains("<title id=") && chart.contains("(measured)</desc>"));
        assert!(!chart.contains("NaN") && !chart.contains("inf\""), "{chart}");
    }
    assert!(charts[0].contains("of 8 samples: conv1 1.000 ms, conv1 1.010 ms"), "{}", charts[0]);
    assert!(charts[3].contains("1.000/s at 1,") || charts[3].contains("1.000/s at 1"), "{}", charts[3]);
    assert!(charts[6].contains(">1.000x</text>") && charts[6].contains("measured on"), "{}", charts[6]);
    assert!(charts[7].contains("2 parts are not drawn"), "{}", charts[7]);
    let names: BTreeSet<String> = charts.iter().flat_map(|chart| well_formed(chart, "id")).collect();
    assert_eq!(
        names.len(),
        charts.iter().map(|chart| well_formed(chart, "id").len()).sum::<usize>(),
        "names are used once"
    );
}

#[test]
fn every_class_has_a_style() {
    let mut seen = BTreeSet::new();
    for chart in all(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 0.5], "x") {
        let classes = well_formed(&chart, "class");
        seen.extend(classes.iter().flat_map(|class| class.split(' ').map(str::to_owned)));
    }
    assert!(seen.len() > 20, "{seen:?}");
    for class in seen {
        let is_there =
            STYLE.split(&format!(".{class}")).skip(1).any(|after| !after.starts_with(|c: char| c.is_alphanumeric()));
        assert!(is_there, ".{class} has no style");
    }
}

#[test]
fn a_straggler_is_said_and_does_not_press_the_others_together() {
    let mut samples: Vec<f64> = (0..1000).map(|index| 1.0 + f64::from(index % 31) / 1000.0).collect();
    samples[7] = 80.0;
    let caption = Caption { id: "x", title: "latency", basis: Basis::Simulated };
    let quantiles = [Quantile { name: "max", value: 80.0 }];
    let svg = Distribution { caption, x: LATENCY, samples: &samples, quantiles: &quantiles }.svg();
    assert!(svg.contains("1 samples are beyond the picture, up to 80.00 ms"), "{svg}");
    assert!(svg.contains("max 80.00 ms →") && svg.contains("SIMULATED, no number is real"), "{svg}");
    let bars = well_formed(&svg, "height").len();
    assert!(bars > 8, "{bars} bars");
    // All that are in the picture are in its bars.
    let counted: u64 = svg
        .split("class=\"f1\"")
        .skip(1)
        .filter_map(|rest| rest.split_once("</title>")?.0.rsplit_once(": ")?.1.parse::<u64>().ok())
        .sum();
    assert_eq!(counted, 999);
}

#[test]
fn the_name_of_a_mark_lies_within_the_picture_and_beside_no_value() {
    let points: Vec<Point> = (0..5).map(|power| 2f64.powi(power)).map(|x| Point { x, y: x, between: None }).collect();
    let (lines, caption) = ([Line { name: "batch", points }], Caption { id: "x", title: "t", basis: Basis::Measured });
    let (x, y) = (Axis { name: "batch", unit: Unit::Count }, Axis { name: "throughput", unit: Unit::PerSecond });
    for (at, ends) in [(1.0, false), (16.0, true)] {
        let marks = [Mark { x: at, name: "knee" }];
        let svg = Lines { caption, x, y, lines: &lines, marks: &marks }.svg();
        let text = svg.split("<text ").find(|text| text.contains(">knee ")).unwrap();
        assert_eq!(text.contains("text-anchor=\"end\""), ends, "{svg}");
    }
}

#[test]
fn what_has_no_numbers_is_a_chart_all_the_same() {
    for chart in all(&[], "nothing") {
        well_formed(&chart, "id");
    }
    let mut endless = all(&[f64::NAN, f64::INFINITY, 0.0, -1.0], "odd");
    endless.extend(all(&[0.0, 0.0], "zero"));
    for chart in endless {
        let places = ["d", "x", "y", "width", "height"].map(|name| well_formed(&chart, name));
        assert!(places.iter().flatten().all(|at| !at.contains("NaN") && !at.contains("inf")), "{chart}");
    }
}

proptest! {
    /// Whatever the numbers and names, every chart is one whole element that runs nothing.
    #[test]
    fn charts_are_well_formed(values in prop::collection::vec(any::<f64>(), 0..12), name in any::<String>()) {
        for chart in all(&values, &name) {
            well_formed(&chart, "class");
            prop_assert!(!chart.to_lowercase().contains("<script"));
        }
    }
}
