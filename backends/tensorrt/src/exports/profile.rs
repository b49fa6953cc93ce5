//! `--exportProfile`: times per layer.

use super::{
    ExportError,
    lexer::{Lexer, each_record, number_of, text_of},
};
use crate::log::ProfileTable;
use std::io::Read;

/// More layers than any engine has.
const MAX_LAYERS: usize = 100_000;

/// Names of all layers together.
const MAX_NAMES_BYTES: usize = 64 << 20;

/// Times per layer, averaged over runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileExport {
    /// Profiled runs.
    pub runs: Option<u64>,
    pub layers: Vec<ProfiledLayer>,
    /// Records that name a layer but no time.
    pub unusable: u64,
    /// Layers beyond what is kept.
    pub left_out: u64,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfiledLayer {
    pub name: String,
    /// Over all runs.
    pub time_ms: f64,
    /// Of one run.
    pub average_ms: f64,
    /// Files before 8.4 have none.
    pub median_ms: Option<f64>,
    /// Of all layers' time.
    pub percent: f64,
}

impl ProfiledLayer {
    /// The median, or the average where there is none.
    pub fn typical_ms(&self) -> f64 {
        self.median_ms.unwrap_or(self.average_ms)
    }
}

/// Reads the file, whatever its generation.
pub fn read_profile(source: impl Read) -> Result<ProfileExport, ExportError> {
    const EXPECTED: &str = "profile";
    let mut export = ProfileExport::default();
    let mut names_bytes = 0;
    each_record(&mut Lexer::plain(source), EXPECTED, |fields| {
        let value = |name: &str| number_of(fields, &[name]);
        let Some(name) = text_of(fields, "name") else {
            if let Some(count) = value("count").filter(|count| *count >= 0.0) {
                export.runs.get_or_insert(count as u64);
            }
            return;
        };
        let (time, average) = (value("timeMs"), value("averageMs"));
        let Some(average_ms) = average.or_else(|| Some(time? / export.runs.filter(|runs| *runs > 0)? as f64)) else {
            export.unusable += 1;
            return;
        };
        names_bytes += name.len();
        if export.layers.len() >= MAX_LAYERS || names_bytes > MAX_NAMES_BYTES {
            export.left_out += 1;
            return;
        }
        export.layers.push(ProfiledLayer {
            name: name.to_owned(),
            time_ms: time.unwrap_or(f64::NAN),
            average_ms,
            median_ms: value("medianMs"),
            percent: value("percentage").unwrap_or(f64::NAN),
        });
    })?;
    if export.layers.is_empty() && export.runs.is_none() && export.unusable == 0 {
        return Err(ExportError::Nothing { expected: EXPECTED });
    }
    Ok(export)
}

/// The console's table, where there is no file: fewer digits, and layers that took no time are missing.
impl From<ProfileTable> for ProfileExport {
    fn from(table: ProfileTable) -> Self {
        let layers = table.rows.into_iter().map(|row| ProfiledLayer {
            name: row.name,
            time_ms: row.time_ms,
            average_ms: row.average_ms,
            median_ms: row.median_ms,
            percent: row.percent,
        });
        Self { runs: table.iterations, layers: layers.collect(), ..Self::default() }
    }
}
