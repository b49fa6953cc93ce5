//! Reports as one HTML file: it fetches nothing and runs nothing, and says so in a policy that browsers hold it to.

mod compared;
mod matrix;
mod single;
pub mod story;
mod sweep;
mod write;

pub use {matrix::render as matrix, sweep::render as sweep};

use crate::{Dossier, figure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use planforge_report::Report;
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
    let labels: Vec<String> = dossier.reports.iter().map(figure::label).collect();
    let mut main = first.to_owned();
    if dossier.reports.len() > 1 {
        main.push_str("<nav aria-label=\"Reports\"><ol>\n");
        for (index, label) in labels.iter().enumerate() {
            main.push_str(&format!("<li><a href=\"#r{}\">{}</a></li>\n", index + 1, words(label)));
        }
        main.push_str("</ol></nav>\n");
        main.push_str(&compared::section(dossier, &labels));
    }
    for (index, report) in dossier.reports.iter().enumerate() {
        main.push_str(&single::section(dossier, report, index + 1, &labels[index]));
    }
    let lead = "Latencies are measured; every figure of them follows from the raw samples in the report. Shares of \
                ceilings are estimated: operations and bytes are counted from shapes.";
    page(&dossier.title(), dossier.reports, lead, &main)
}

/// A whole file of these parts; `main` is markup.
fn page(title: &str, reports: &[Report], lead: &str, main: &str) -> String {
    let title = words(title);
    let mut page = head(&title);
    page.push_str(&format!("<header>\n<h1>{title}</h1>\n"));
    if reports.iter().any(|report| report.simulated) {
        page.push_str("<p class=\"simulated\">SIMULATED: measured on a scripted device, no number is real</p>\n");
    }
    page.push_str(&format!("<p class=\"lead\">{lead}</p>\n</header>\n<main>\n{main}</main>\n<footer>"));
    page.push_str(&format!(
        "Written by planforge {}. Numbers carry their exact values in <code>data</code> elements; \
         <code>planforge report --format json</code> has the raw samples.",
        env!("CARGO_PKG_VERSION")
    ));
    page.push_str("</footer>\n</body>\n</html>\n");
    page
}
