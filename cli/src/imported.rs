//! Files of figures that were measured elsewhere (`--imported`).

use crate::failure::Failure;
use planforge_report::{
    Report,
    imported::{self, Imported},
};
use std::{fs, path::Path};

/// Largest file of figures that is read.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The figures of a file; none where none is named.
pub fn read(path: Option<&Path>) -> Result<Vec<Imported>, Failure> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let failed = |error: std::io::Error| Failure::io("read", path, &error);
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes > MAX_BYTES {
        return Err(Failure::usage(format!("{} has {bytes} bytes: no file of figures", path.display())));
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    imported::parse(&text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())).hint(error.hint()))
}

/// Refuses figures of which none is of what was measured: nothing would be told of them.
pub fn some_fit(figures: &[Imported], reports: &[Report]) -> Result<(), Failure> {
    let fits = |figure: &Imported| reports.iter().any(|report| figure.against(report).is_some());
    if figures.is_empty() || figures.iter().any(fits) {
        return Ok(());
    }
    let measured = reports.iter().map(|report| format!("{} on {} b{}", report.model.name, report.sku, report.batch));
    let mut measured: Vec<String> = measured.collect();
    measured.dedup();
    measured.truncate(4);
    let message = format!("no imported figure is of what was measured: {}", figures[0].words());
    Err(Failure::usage(message).hint(format!("measured is {}", measured.join(", "))))
}
