//! Reports as documents that people show to others: one HTML file, Markdown for a pull request, CSV for whoever computes
//! on.
//!
//! | module | holds |
//! |---|---|
//! | [`figure`] | the numbers of a report, each with unit and what it rests on |
//! | [`record`] | what was measured on what, and how: device, host, toolchain, state around the windows |
//! | [`story`] | what each step of a tuning brought |
//! | [`chart`] | a report's charts |
//! | [`html`] | the file: no network, no script, a policy that forbids both |
//! | [`markdown`] | a comment of a pull request |
//! | [`csv`] | one line a figure |
//! | [`sweep`] | the reports of one request: speed-ups, axes, best points, before the reports themselves |
//! | [`matrix`] | plans of one model built for and measured on several device kinds |
//!
//! A document says nothing that its reports do not hold: every number of it is one of the report's, or follows from the
//! report's raw samples; a test derives them again.

pub mod chart;
pub mod csv;
pub mod figure;
pub mod html;
pub mod markdown;
pub mod matrix;
pub mod record;
pub mod story;
pub mod sweep;

use planforge_report::{
    Report,
    compare::{Comparison, portability::Portability},
};

/// What a document is made of.
#[derive(Debug)]
pub struct Dossier<'a> {
    /// At least one, the newest or the base first.
    pub reports: &'a [Report],
    /// Of each report, where it measured a plan that was built for another device kind.
    pub portability: &'a [Option<Portability>],
    /// How they stand to each other, where there are several.
    pub comparison: Option<&'a Comparison>,
}

impl Dossier<'_> {
    /// What the document is about, on one line.
    pub fn title(&self) -> String {
        match self.reports {
            [] => "no report".into(),
            [one] => format!("{} on {}", one.model.name, figure::measured_on(one)),
            [first, rest @ ..] => {
                let same = rest.iter().all(|report| report.model.name == first.model.name);
                let what = if same { first.model.name.as_str() } else { "engines" };
                format!("{what}: {} reports", self.reports.len())
            }
        }
    }
}

#[cfg(test)]
mod tests;
