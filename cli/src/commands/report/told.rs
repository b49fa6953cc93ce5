//! A story that was told: its steps and the reports that they rest on, kept as JSON and told again from there.

use crate::failure::Failure;
use planforge_documents::story::Step;
use planforge_report::Report;
use serde::Deserialize;
use std::{fs, path::Path};

/// What a story is made of.
#[derive(Debug, Default)]
pub struct Told {
    pub reports: Vec<Report>,
    pub steps: Vec<Step>,
}

/// Whether a file is named as stories are that were told, not as models.
pub fn is_told(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "json")
}

/// Reads a story. Every figure of its reports has to follow from their samples.
pub fn read(path: &Path) -> Result<Told, Failure> {
    #[derive(Deserialize)]
    struct Document {
        steps: Vec<Step>,
    }
    let bytes = fs::read(path).map_err(|error| Failure::io("read", path, &error))?;
    let unlike = |why: String| {
        Failure::usage(format!("{} is no story: {why}", path.display()))
            .hint("planforge report --story MODEL.onnx -o story.json writes one")
    };
    let Document { steps } = serde_json::from_slice(&bytes).map_err(|error| unlike(error.to_string()))?;
    let reports = Report::parse_all(&bytes);
    let reports = reports.map_err(|(number, error)| unlike(format!("report {number}: {error}")))?;
    Ok(Told { reports, steps })
}
