//! Reports as a document: to a file, or to stdout.

use crate::{context::Context, failure::Failure};
use clap::ValueEnum;
use planforge_documents::{Dossier, csv, html, markdown, sweep};
use planforge_proto::ErrorCode;
use planforge_report::{
    Report,
    compare::{MAX_REPORTS, Scheme, compare_among, portability::Portability},
    format::bytes,
    sweep::Sweep,
};
use planforge_types::durable;
use serde_json::Value;
use std::path::Path;

/// A kind of document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Json,
    Csv,
    Markdown,
    Html,
}

impl Format {
    /// By a file's ending.
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "json" => Some(Self::Json),
            "csv" => Some(Self::Csv),
            "md" | "markdown" => Some(Self::Markdown),
            "html" | "htm" => Some(Self::Html),
            _ => None,
        }
    }
}

/// What is to be written; `None` where reports are shown on the screen.
pub fn format(asked: Option<Format>, output: Option<&Path>) -> Result<Option<Format>, Failure> {
    match (asked, output) {
        (Some(format), _) => Ok(Some(format)),
        (None, None) => Ok(None),
        (None, Some(path)) => Format::of(path).map(Some).ok_or_else(|| {
            Failure::usage(format!("the ending of {} names no format", path.display()))
                .hint("name one with --format json, csv, markdown or html")
        }),
    }
}

/// The document. Several reports are compared, as far as they can be.
pub fn render(
    format: Format,
    reports: &[Report],
    cells: &[Option<Portability>],
    own: &[Report],
    sweep: Option<&Sweep>,
    object: &Value,
) -> Result<String, Failure> {
    let comparison = match reports.len() {
        0 | 1 => None,
        // Of more the sweep says how they stand; every pair of them is nobody's question.
        count if sweep.is_some() && count > MAX_REPORTS => None,
        _ => Some(compare_among(reports, own, Scheme::Groups).map_err(|error| Failure::usage(error.to_string()))?),
    };
    let dossier = Dossier { reports, portability: cells, comparison: comparison.as_ref() };
    Ok(match format {
        Format::Html => sweep.map_or_else(|| html::render(&dossier), |sweep| html::sweep(&dossier, sweep)),
        Format::Markdown => sweep.map_or_else(|| markdown::render(&dossier), |sweep| sweep::markdown(&dossier, sweep)),
        Format::Csv => csv::render(&dossier),
        Format::Json => pretty(object)?,
    })
}

/// An object as a document for people.
pub fn pretty(object: &Value) -> Result<String, Failure> {
    serde_json::to_string_pretty(object)
        .map_err(|error| Failure::new(ErrorCode::Internal, format!("cannot write the reports as JSON: {error}")))
}

/// To the file that was named, or to stdout.
pub fn write(context: &Context<'_>, output: Option<&Path>, document: &str, object: &Value) -> Result<(), Failure> {
    match output {
        Some(path) => {
            durable::write(path, document.as_bytes()).map_err(|error| Failure::io("write", path, &error))?;
            context.printer.note(&format!("{}: {}", path.display(), bytes(document.len() as u64)));
        }
        None => context.printer.data(document)?,
    }
    context.printer.object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_names_a_format_unless_another_is_asked_for() {
        let named = |path: &str| format(None, Some(Path::new(path))).ok().flatten();
        assert_eq!(
            ["a.html", "b.MD", "c.md", "d.csv", "e.json", "f.txt", "g"].map(named),
            [Some(Format::Html), None, Some(Format::Markdown), Some(Format::Csv), Some(Format::Json), None, None]
        );
        assert_eq!(format(Some(Format::Csv), Some(Path::new("f.txt"))).ok(), Some(Some(Format::Csv)));
        assert_eq!(format(None, None).ok(), Some(None));
    }
}
