//! Finding reports: by job, engine key, plan digest, or in a file.

use crate::{commands::Context, failure::Failure, farm::Farm, settings::Key};
use planforge_engine_core::{
    identity::Digest,
    report::{REPORT_SCHEMA_VERSION, Report},
};
use planforge_proto::{ErrorCode, v1};
use std::{fs, path::Path};

/// Largest report file that is read: raw samples are bounded far below.
const REPORT_MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Whether every one of `names` is a report file, so that no farm is needed.
pub fn all_are_files(names: &[String]) -> bool {
    names.iter().all(|name| Path::new(name).is_file())
}

/// The report in a file.
pub fn read_file(path: &Path) -> Result<Report, Failure> {
    let bytes = fs::metadata(path).map_err(|e| Failure::io("read", path, &e))?.len();
    if bytes > REPORT_MAX_BYTES {
        return Err(Failure::usage(format!("{} is no report: it has {bytes} bytes", path.display())));
    }
    let text = fs::read(path).map_err(|e| Failure::io("read", path, &e))?;
    parse(&text).map_err(|reason| Failure::usage(format!("{} is no report: {reason}", path.display())))
}

/// Reads a report, or says why it cannot be one.
fn parse(text: &[u8]) -> Result<Report, String> {
    #[derive(serde::Deserialize)]
    struct Version {
        schema_version: u32,
    }
    let version: Version = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    if version.schema_version > REPORT_SCHEMA_VERSION {
        return Err(format!(
            "its schema version is {}, this planforge reads up to {REPORT_SCHEMA_VERSION}",
            version.schema_version
        ));
    }
    serde_json::from_slice(text).map_err(|e| e.to_string())
}

/// A report and the files that its measurement left.
#[derive(Clone, Debug)]
pub struct Found {
    pub report: Report,
    pub artifacts: Vec<v1::Artifact>,
}

/// Every report that `name` stands for, newest first; at least one.
pub async fn find(context: &Context<'_>, farm: &Farm, name: &str) -> Result<Vec<Report>, Failure> {
    Ok(find_all(context, farm, name).await?.into_iter().map(|found| found.report).collect())
}

/// As [`find`], with the files beside each report.
pub async fn find_all(context: &Context<'_>, farm: &Farm, name: &str) -> Result<Vec<Found>, Failure> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok(vec![Found { report: read_file(path)?, artifacts: Vec::new() }]);
    }
    let requests = match name.parse::<Digest>() {
        Ok(digest) => {
            let text = digest.to_string();
            vec![
                v1::ListReportsRequest { plan_digest: text.clone(), ..Default::default() },
                v1::ListReportsRequest { engine_key: text, ..Default::default() },
            ]
        }
        Err(_) => vec![v1::ListReportsRequest { job: name.to_owned(), ..Default::default() }],
    };
    for request in requests {
        let reply = farm.rpc().list_reports(request).await.map_err(|e| farm.error(e));
        let reply = match reply {
            Ok(reply) => reply.into_inner(),
            Err(failure) if failure.name == ErrorCode::NotFound.name() => continue,
            Err(failure) => return Err(failure),
        };
        let mut facts = reply.facts.into_iter();
        let mut reports = Vec::with_capacity(reply.reports_json.len());
        for text in &reply.reports_json {
            let report = parse(text.as_bytes()).map_err(|reason| {
                Failure::new(ErrorCode::Internal, format!("a report of '{name}' cannot be read: {reason}"))
            })?;
            // A coordinator of an older version tells no facts.
            let artifacts = facts.next().unwrap_or_default().artifacts;
            reports.push(Found { report, artifacts });
        }
        reports.sort_by_key(|found| std::cmp::Reverse(found.report.provenance.measured_unix_ms));
        if !reports.is_empty() {
            return Ok(reports);
        }
    }
    let project = context.settings.get(Key::Project).map(|p| format!(" in project {p}")).unwrap_or_default();
    Err(Failure::new(ErrorCode::NotFound, format!("no report of '{name}'{project}")).hint(
        "name a job (planforge jobs), an engine key or plan digest in full (planforge engines --json) or a report file",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_report_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("r.json");
        let failure = |text: &str| {
            fs::write(&file, text).unwrap();
            let failure = read_file(&file).unwrap_err();
            assert_eq!(failure.exit_code, 2);
            failure.to_string()
        };
        assert!(failure("{}").contains("r.json is no report: missing field `schema_version`"));
        assert!(failure("{\"schema_version\": 99}").contains("its schema version is 99"));
        assert!(failure("nothing").contains("is no report"));
    }
}
