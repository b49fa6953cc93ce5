//! Reports in documents: as a report file holds one, and as the command line's `--json` prints one or several.

use crate::{Contradiction, REPORT_SCHEMA_VERSION, Report, SamplesError};
use serde_json::Value;

/// Members of printed documents that hold reports: of `report`, `bench --baseline`, `build`, `jobs` and `engines`.
const HOLDERS: [&str; 5] = ["reports", "baseline", "report", "jobs", "engines"];

/// Why a document is no report that anybody should read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("no report is in it")]
    Nothing,
    #[error("its schema version is {0}, this planforge reads up to {REPORT_SCHEMA_VERSION}")]
    Version(u64),
    #[error("its samples are damaged: {0}")]
    Samples(#[from] SamplesError),
    #[error("{0}")]
    Contradiction(#[from] Contradiction),
}

impl ReadError {
    /// What to do next; empty where the error says it all.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Contradiction(_) | Self::Samples(_) => Contradiction::HINT,
            Self::Version(_) => "a newer planforge wrote it: read it with that one",
            Self::Nothing => "a report file holds what planforge report JOB --json or planforge bench -o prints",
            Self::Json(_) => "",
        }
    }
}

impl Report {
    /// Reads one report whose figures are those of its samples.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(document: &[u8]) -> Result<Self, ReadError> {
        Self::from_document(serde_json::from_slice(document)?)
    }

    /// Reads every report of a file: alone, in a list, one after the other, or inside of what `--json` prints.
    ///
    /// # Errors
    /// Why it holds none, or the number of the first that is none, from 1, and why.
    pub fn parse_all(text: &[u8]) -> Result<Vec<Self>, (usize, ReadError)> {
        let mut found = Vec::new();
        for document in serde_json::Deserializer::from_slice(text).into_iter::<Value>() {
            collect(document.map_err(|error| (1, error.into()))?, &mut found);
        }
        if found.is_empty() {
            return Err((1, ReadError::Nothing));
        }
        let read = |(index, document)| Self::from_document(document).map_err(|error| (index + 1, error));
        found.into_iter().enumerate().map(read).collect()
    }

    fn from_document(document: Value) -> Result<Self, ReadError> {
        if let Some(version) = document.get("schema_version").and_then(Value::as_u64)
            && version > u64::from(REPORT_SCHEMA_VERSION)
        {
            return Err(ReadError::Version(version));
        }
        let report: Self = serde_json::from_value(document)?;
        match report.contradiction()? {
            Some(contradiction) => Err(contradiction.into()),
            None => Ok(report),
        }
    }
}

/// The documents that are meant as reports, in the order they stand in.
fn collect(document: Value, found: &mut Vec<Value>) {
    match document {
        Value::Array(items) => items.into_iter().for_each(|item| collect(item, found)),
        Value::Object(fields) if fields.contains_key("schema_version") && !fields.contains_key("pairs") => {
            found.push(Value::Object(fields));
        }
        Value::Object(mut fields) => {
            HOLDERS.iter().filter_map(|name| fields.remove(*name)).for_each(|held| collect(held, found));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample_report;
    use serde_json::json;

    fn medians(text: &str) -> Vec<f64> {
        Report::parse_all(text.as_bytes()).unwrap().iter().map(|report| report.latency_ms.median).collect()
    }

    #[test]
    fn what_is_printed_is_read_again() {
        let (one, two) = (sample_report(1.0), sample_report(2.0));
        let both = [one.latency_ms.median, two.latency_ms.median];
        let line = |report: &Report| serde_json::to_string(report).unwrap();
        assert_eq!(medians(&line(&one)), both[..1]);
        assert_eq!(medians(&format!("{}\n{}\n", line(&one), line(&two))), both);
        assert_eq!(medians(&json!([one, two]).to_string()), both);
        let printed = json!({ "reports": [one, two], "artifacts": [[], []], "portability": [null, null] });
        assert_eq!(medians(&printed.to_string()), both);
        assert_eq!(medians(&format!("{0:#}\n{0:#}", json!({ "reports": [one] }))), [both[0]; 2]);
        let jobs = json!({ "request_id": "r", "jobs": [{ "report": one }, { "report": null }, { "report": two }] });
        assert_eq!(medians(&jobs.to_string()), both);
        let beside = json!({ "report": two, "baseline": one, "comparison": { "schema_version": 1, "pairs": [] } });
        assert_eq!(medians(&beside.to_string()), both);
    }

    #[test]
    fn what_is_no_report_says_why() {
        let why = |text: &str| {
            let (number, error) = Report::parse_all(text.as_bytes()).unwrap_err();
            format!("{number}: {error}")
        };
        assert_eq!(why("{}"), "1: no report is in it");
        assert_eq!(why(r#"{"jobs":[]}"#), "1: no report is in it");
        assert_eq!(why("3"), "1: no report is in it");
        assert!(why("nothing").contains("expected"));
        assert!(why(r#"{"schema_version": 99}"#).contains("its schema version is 99"));
        assert!(why(r#"{"schema_version": 1}"#).contains("missing field"));
        let mut wrong = sample_report(2.0);
        wrong.latency_ms.median *= 0.5;
        let told = why(&json!({ "reports": [sample_report(1.0), wrong] }).to_string());
        assert!(told.starts_with("2: latency_ms.median is stated as "), "{told}");
        let text = serde_json::to_vec(&wrong).unwrap();
        let error = Report::parse(&text).unwrap_err();
        assert!(matches!(&error, ReadError::Contradiction(found) if found.field == "latency_ms.median"), "{error}");
        assert!(error.hint().contains("planforge bench"));
    }
}
