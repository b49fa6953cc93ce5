//! Several reports beside each other.

use super::write::{Table, exact, figure, words};
use crate::{Dossier, chart};
use planforge_report::{
    compare::Comparison,
    disturbance,
    format::{bytes, milliseconds, per_second, percent},
};

pub(super) fn section(dossier: &Dossier<'_>, labels: &[String]) -> String {
    let mut out = "<section aria-labelledby=\"compared\">\n<h2 id=\"compared\">Beside each other</h2>\n".to_owned();
    out.push_str(&dossier.comparison.map(table).unwrap_or_default());
    out.push_str(&chart::shares(dossier.reports, labels, "shares").map(|svg| figure(&svg)).unwrap_or_default());
    out.push_str(&dossier.comparison.map(pairs).unwrap_or_default());
    if let Some(svg) = chart::matrix(dossier.reports, dossier.portability, "matrix") {
        out.push_str("<h3>Plans on device kinds that they were not built for</h3>\n");
        out.push_str(&figure(&svg));
    }
    out.push_str("</section>\n");
    out
}

fn table(comparison: &Comparison) -> String {
    let columns = [
        ("report", false),
        ("model", false),
        ("device kind", false),
        ("toolchain", false),
        ("spec", false),
        ("median", true),
        ("p99", true),
        ("throughput", true),
        ("plan", true),
        ("top-1", true),
        ("verdict", false),
    ];
    let mut table = Table::new("Reports compared", "Figures (measured) and verdicts, each against its base", &columns);
    for (index, row) in comparison.rows.iter().enumerate() {
        let median = disturbance::marked(milliseconds(row.median_ms), row.wholly_disturbed);
        let verdict = comparison.against_base(index).map_or_else(|| "base".to_owned(), |pair| pair.verdict_words());
        let number = index + 1;
        table.row(&[
            format!("<a href=\"#r{number}\">{number}</a>"),
            words(&row.model),
            words(&row.sku),
            words(&row.toolchain),
            words(&row.spec_words()),
            exact(row.median_ms, &median),
            exact(row.p99_ms, &milliseconds(row.p99_ms)),
            exact(row.throughput_per_s, &per_second(row.throughput_per_s)),
            exact(row.plan_bytes as f64, &bytes(row.plan_bytes)),
            row.top1.map_or_else(|| "–".into(), |top1| exact(top1, &percent(top1))),
            words(&verdict),
        ]);
    }
    let mut out = table.end();
    if comparison.rows.iter().any(|row| row.wholly_disturbed) {
        out.push_str(&format!("<p>{}</p>\n", words(&disturbance::legend(true))));
    }
    out
}

/// Why each verdict is what it is.
fn pairs(comparison: &Comparison) -> String {
    let mut out = "<details><summary>Why the verdicts are what they are</summary>\n<ul>\n".to_owned();
    for pair in &comparison.pairs {
        let (base, other) = (pair.base + 1, pair.other + 1);
        let reason = format!("{other} against {base}: {}: {}", pair.judged_words(), pair.reason_words());
        out.push_str(&format!("<li>{}</li>\n", words(&reason)));
    }
    out.push_str("</ul>\n");
    if let Some(basis) = &comparison.basis {
        out.push_str(&format!("<p>{}</p>\n", words(&basis.words())));
    }
    out.push_str("</details>\n");
    out
}
