//! Reports as one HTML file: it fetches nothing and runs nothing, and says so in a policy that browsers hold it to.

mod compared;
mod matrix;
mod single;
mod sweep;
mod write;

pub use {matrix::render as matrix, sweep::render as sweep};

use crate::{Dossier, figure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};
use write::words;

/// The file's beginning, up to its body; `title` is markup.
fn head(title: &str) -> String {
    let style = format!("{}{}", planforge_charts::STYLE, include_str!("document.css"));
    let digest = STANDARD.encode(Sha256::digest(style.as_bytes()));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{digest}'; \
         base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"generator\" content=\"planforge {}\">\n<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// The file.
pub fn render(dossier: &Dossier<'_>) -> String {
    render_after(dossier, "")
}

/// The file, with a section before those of the reports; `first` is markup.
fn render_after(dossier: &Dossier<'_>, first: &str) -> String {
    let title = words(&dossier.title());
    let labels: Vec<String> = dossier.reports.iter().map(figure::label).collect();
    let mut page = head(&title);
    page.push_str(&format!("<header>\n<h1>{title}</h1>\n"));
    if dossier.reports.iter().any(|report| report.simulated) {
        page.push_str("<p class=\"simulated\">SIMULATED: measured on a scripted device, no number is real</p>\n");
    }
    page.push_str(
        "<p class=\"lead\">Latencies are measured; every figure of them follows from the raw samples in the report. \
         Shares of ceilings are estimated: operations and bytes are counted from shapes.</p>\n</header>\n<main>\n",
    );
    page.push_str(first);
    if dossier.reports.len() > 1 {
        page.push_str("<nav aria-label=\"Reports\"><ol>\n");
        for (index, label) in labels.iter().enumerate() {
            page.push_str(&format!("<li><a href=\"#r{}\">{}</a></li>\n", index + 1, words(label)));
        }
        page.push_str("</ol></nav>\n");
        page.push_str(&compared::section(dossier, &labels));
    }
    for (index, report) in dossier.reports.iter().enumerate() {
        page.push_str(&single::section(dossier, report, index + 1, &labels[index]));
    }
    page.push_str("</main>\n<footer>");
    page.push_str(&format!(
        "Written by planforge {}. Numbers carry their exact values in <code>data</code> elements; \
         <code>planforge report --format json</code> has the raw samples.",
        env!("CARGO_PKG_VERSION")
    ));
    page.push_str("</footer>\n</body>\n</html>\n");
    page
}
