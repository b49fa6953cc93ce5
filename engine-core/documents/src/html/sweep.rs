//! A sweep as a file: its own section first, then the reports that it is made of.

use super::{
    render_after,
    write::{Table, exact, figure, words},
};
use crate::{
    Dossier,
    sweep::{SPEED_UP_COLUMNS, best, line_words, speed_ups},
};
use planforge_charts::{Axis, Basis, Caption, Line as Drawn, Lines, Mark, Point as Spot, Unit};
use planforge_report::{
    Report,
    sweep::{Line, SpeedUp, Sweep},
};

/// Lines of one axis that one chart draws.
const LINES_DRAWN: usize = 6;

/// The file.
pub fn render(dossier: &Dossier<'_>, sweep: &Sweep) -> String {
    render_after(dossier, &section(dossier.reports, sweep))
}

fn section(reports: &[Report], sweep: &Sweep) -> String {
    let mut out = "<section aria-labelledby=\"sweep\">\n<h2 id=\"sweep\">The sweep</h2>\n".to_owned();
    if sweep.speed_ups.is_empty() {
        out.push_str("<p>No report has a baseline, so there is no speed-up to tell.</p>\n");
    } else {
        let columns = SPEED_UP_COLUMNS.map(|name| (name, matches!(name, "batch" | "speed-up")));
        let imported = sweep.speed_ups.iter().any(|one| one.imported);
        let basis = if imported { "measured, and imported where it says so" } else { "measured" };
        let title = format!("Speed-up against the baseline ({basis}), batch 1 and 8 first");
        let mut table = Table::new("Speed-ups", &title, &columns);
        for (cells, one) in speed_ups(reports, sweep).iter().zip(&sweep.speed_ups) {
            let mut cells: Vec<String> = cells.iter().map(|cell| words(cell)).collect();
            if let Some(times) = one.times {
                cells[4] = exact(times, &speed_up_words(one));
            }
            table.row(&cells);
        }
        out.push_str(&table.end());
    }
    out.push_str("<ul>\n");
    let lines = sweep.lines.iter().filter(|line| line.best.is_some()).map(line_words);
    for line in best(sweep).into_iter().chain(lines).chain(sweep.missing.iter().cloned()) {
        out.push_str(&format!("<li>{}</li>\n", words(&line)));
    }
    out.push_str("</ul>\n");
    for (index, axis) in sweep.axes.iter().enumerate() {
        if let Some(svg) = chart(reports, sweep, axis, &format!("sweep{}", index + 1)) {
            out.push_str(&figure(&svg));
        }
    }
    out.push_str("</section>\n");
    out
}

fn speed_up_words(one: &SpeedUp) -> String {
    let bounds = one.times_low.zip(one.times_high).map(|(low, high)| format!(" ({low:.2} to {high:.2})"));
    let mark = if one.imported { " (imported)" } else { "" };
    format!("{:.2}x{}{mark}", one.times.unwrap_or_default(), bounds.unwrap_or_default())
}

/// Throughput along an axis of numbers.
fn chart(reports: &[Report], sweep: &Sweep, axis: &str, id: &str) -> Option<String> {
    let numbered = |index: &usize| -> Option<Spot> {
        let point = &sweep.points[*index];
        let x = point.at.get(axis)?.parse().ok()?;
        Some(Spot { x, y: point.throughput_per_s, between: None })
    };
    let lines: Vec<(&Line, Vec<Spot>)> = (sweep.lines.iter().filter(|line| line.axis == axis))
        .filter_map(|line| Some((line, line.points.iter().map(numbered).collect::<Option<Vec<_>>>()?)))
        .take(LINES_DRAWN)
        .collect();
    let names: Vec<String> = (lines.iter())
        .map(|(line, _)| line.with.values().cloned().collect::<Vec<_>>().join(", "))
        .map(|name| if name.is_empty() { "throughput".to_owned() } else { name })
        .collect();
    let drawn: Vec<Drawn<'_>> =
        lines.iter().zip(&names).map(|((_, points), name)| Drawn { name, points: points.clone() }).collect();
    let knee = match lines.as_slice() {
        [] => return None,
        [(only, _)] => only.knee.as_ref().and_then(|knee| knee.parse().ok()),
        _ => None,
    };
    let marks: Vec<Mark<'_>> = knee.map(|x| Mark { x, name: "knee at" }).into_iter().collect();
    let basis = if reports.iter().any(|report| report.simulated) { Basis::Simulated } else { Basis::Measured };
    let title = format!("Throughput by {axis}");
    let caption = Caption { id, title: &title, basis };
    let (x, y) = (Axis { name: axis, unit: Unit::Count }, Axis { name: "throughput", unit: Unit::PerSecond });
    Some(Lines { caption, x, y, lines: &drawn, marks: &marks }.svg())
}

#[cfg(test)]
mod tests {
    use super::*;
    use planforge_report::testing::sample_report;

    #[test]
    fn a_sweep_begins_with_its_speed_ups_and_draws_its_axes() {
        let at = |threads: u32, backend: &str, ms: f64| {
            let mut report = sample_report(ms);
            report.spec.threads = Some(threads);
            report.toolchain.backend = backend.into();
            report
        };
        let reports =
            [at(1, "native", 2.0), at(2, "native", 1.0), at(1, "onnxruntime", 4.0), at(2, "onnxruntime", 3.0)];
        let sweep = Sweep::of(&reports, Some("onnxruntime"));
        let dossier = Dossier { reports: &reports, portability: &[const { None }; 4], comparison: None };
        let page = render(&dossier, &sweep);
        let (first, rest) = (page.find("The sweep").unwrap(), page.find("id=\"r1\"").unwrap());
        assert!(first < rest && page.contains("Throughput by threads"), "{page}");
        assert!(page.contains("knee at") || page.contains("best at"), "{page}");
        let text = crate::sweep::markdown(&dossier, &sweep);
        assert!(
            text.starts_with("### Speed-up against the baseline") && text.contains("| 1 | cpu-x86-64-v3 |"),
            "{text}"
        );
    }
}
