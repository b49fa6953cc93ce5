//! Finding reports: by job, engine key, plan or its digest, or in a file.

#[cfg(feature = "local")]
use crate::backends;
use crate::{context::Context, failure::Failure, farm::Farm, lists, request::models, settings::Key};
use planforge_proto::{ErrorCode, v1, view};
use planforge_report::{ReadError, Report};
use planforge_types::{Digest, Sku, ToolchainConstraint};
use std::{fs, path::Path};

/// Largest report file that is read: raw samples are bounded far below.
const REPORT_MAX_BYTES: u64 = 64 * 1024 * 1024;

/// What is compared, apart from report files.
#[derive(Debug)]
pub enum Selection {
    /// Names on the command line.
    Names,
    /// The jobs of a request.
    Request(String),
    /// Engines of a model, by name or digest.
    Model(String),
}

/// Whether every one of `names` is a report file, so that no farm is needed.
pub fn all_are_files(names: &[String]) -> bool {
    names.iter().all(|name| is_report_file(Path::new(name)))
}

/// Whether the path is taken for a report's. A plan's stands for the reports that the farm has of it.
pub fn is_report_file(path: &Path) -> bool {
    path.is_file() && !is_plan_file(path)
}

/// The small client knows no formats, only names.
#[cfg(not(feature = "local"))]
fn is_plan_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "plan")
}

#[cfg(feature = "local")]
fn is_plan_file(path: &Path) -> bool {
    // What cannot be read is told where it is read.
    path.is_file() && backends::of_plan(path).is_ok_and(|backend| backend.is_some())
}

/// Every report in a file, at least one: alone, or as `--json` printed it.
pub fn read_file(path: &Path) -> Result<Vec<Report>, Failure> {
    let bytes = fs::metadata(path).map_err(|e| Failure::io("read", path, &e))?.len();
    if bytes > REPORT_MAX_BYTES {
        return Err(Failure::usage(format!("{} is no report: it has {bytes} bytes", path.display())));
    }
    let text = fs::read(path).map_err(|e| Failure::io("read", path, &e))?;
    Report::parse_all(&text).map_err(|(number, error)| {
        let name =
            if number > 1 { format!("report {number} of {}", path.display()) } else { path.display().to_string() };
        Failure::usage(refusal(&name, &error)).hint(error.hint())
    })
}

/// The one report that a worker left.
pub fn of_worker(path: &Path) -> Result<Report, Failure> {
    let report = read_file(path)?.into_iter().next();
    report.ok_or_else(|| Failure::new(ErrorCode::Internal, format!("{} holds no report", path.display())))
}

/// Why the document called `name` is not read.
fn refusal(name: &str, error: &ReadError) -> String {
    match error {
        ReadError::Contradiction(found) => format!("the report {name} contradicts itself: {found}"),
        other => format!("{name} is no report: {other}"),
    }
}

/// Why a report that the farm keeps of `name` is not read.
fn unreadable(name: &str, error: &ReadError) -> Failure {
    let message = match error {
        ReadError::Contradiction(found) => format!("the report of '{name}' contradicts itself: {found}"),
        other => format!("a report of '{name}' cannot be read: {other}"),
    };
    Failure::new(ErrorCode::Internal, message).hint(error.hint())
}

/// A report and the files that its measurement left.
#[derive(Clone, Debug)]
pub struct Found {
    pub report: Report,
    pub artifacts: Vec<v1::Artifact>,
}

impl Found {
    /// One of a file, where nothing lies beside it.
    pub fn alone(report: Report) -> Self {
        Self { report, artifacts: Vec::new() }
    }
}

/// The report that a job tells of itself; `None` where it has none.
pub fn of_job(job: &v1::Job) -> Result<Option<Found>, Failure> {
    if job.report_json.is_empty() {
        return Ok(None);
    }
    let report = Report::parse(job.report_json.as_bytes()).map_err(|error| unreadable(&job.id, &error))?;
    Ok(Some(Found { report, artifacts: job.artifacts.clone() }))
}

/// Every report that `name` stands for, newest first; at least one.
pub async fn find(context: &Context<'_>, farm: &Farm, name: &str) -> Result<Vec<Report>, Failure> {
    Ok(find_all(context, farm, name).await?.into_iter().map(|found| found.report).collect())
}

/// As [`find`], with the files beside each report.
pub async fn find_all(context: &Context<'_>, farm: &Farm, name: &str) -> Result<Vec<Found>, Failure> {
    let path = Path::new(name);
    if is_report_file(path) {
        return Ok(read_file(path)?.into_iter().map(Found::alone).collect());
    }
    let named = match is_plan_file(path) {
        true => Some(models::hash(path)?.0),
        false => name.parse::<Digest>().ok().map(|digest| digest.to_string()),
    };
    let requests = match named {
        Some(text) => vec![
            v1::ListReportsRequest { plan_digest: text.clone(), ..Default::default() },
            v1::ListReportsRequest { engine_key: text, ..Default::default() },
        ],
        None => vec![v1::ListReportsRequest { job: name.to_owned(), ..Default::default() }],
    };
    for request in requests {
        let reports = listed(farm, request, name).await?;
        if !reports.is_empty() {
            return Ok(reports);
        }
    }
    let jobs = v1::GetJobRequest { id: name.to_owned() };
    if let Ok(job) = farm.rpc().get_job(jobs).await {
        return Err(without_report(&job.into_inner()));
    }
    let project = context.settings.get(Key::Project).map(|p| format!(" in project {p}")).unwrap_or_default();
    Err(Failure::new(ErrorCode::NotFound, format!("no report of '{name}'{project}")).hint(
        "name a job (planforge jobs), an engine key or plan digest in full (planforge engines --json), a plan of the farm or a report file",
    ))
}

/// Why a job has no report: what it failed with, or where it stands.
fn without_report(job: &v1::Job) -> Failure {
    let state = view::state_name(job.state());
    let lacks = format!("job {} for {} has no report: {state}", job.id, job.sku);
    let Some(failed) = &job.failure else {
        let failure = Failure::new(ErrorCode::NotFound, lacks);
        return match view::is_ended(job.state()) {
            true => failure.hint(format!("planforge jobs {}", job.id)),
            false => failure.hint(format!("planforge watch {} waits for its end", job.id)),
        };
    };
    let class = view::failure_class_name(failed.class());
    let logs = format!("planforge logs {} has its log", job.id);
    let hint = if failed.hint.is_empty() { logs } else { format!("{}; {logs}", failed.hint) };
    Failure::new(ErrorCode::NotFound, format!("{lacks} [{class}]: {}", failed.message)).hint(hint)
}

/// The reports that the farm lists for a request, newest first; none when it knows nothing of `name`.
pub async fn listed(farm: &Farm, request: v1::ListReportsRequest, name: &str) -> Result<Vec<Found>, Failure> {
    let reply = match lists::reports(farm, request).await {
        Ok(reply) => reply,
        Err(failure) if failure.name == ErrorCode::NotFound.name() => return Ok(Vec::new()),
        Err(failure) => return Err(failure),
    };
    let mut facts = reply.facts.into_iter();
    let mut reports = Vec::with_capacity(reply.reports_json.len());
    for text in &reply.reports_json {
        let report = Report::parse(text.as_bytes()).map_err(|error| unreadable(name, &error))?;
        // A coordinator of an older version tells no facts.
        let artifacts = facts.next().unwrap_or_default().artifacts;
        reports.push(Found { report, artifacts });
    }
    reports.sort_by_key(|found| std::cmp::Reverse(found.report.provenance.measured_unix_ms));
    Ok(reports)
}

/// The reports of a request's jobs: by device kind as they were asked for, older toolchains and plainer specs first.
/// A job without one is left out with a warning, or refused when `all` have to be there.
pub async fn of_request(context: &Context<'_>, farm: &Farm, id: &str, all: bool) -> Result<Vec<Report>, Failure> {
    let request = v1::ListJobsRequest {
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        request_id: id.to_owned(),
        limit: u32::MAX,
        ..Default::default()
    };
    let mut jobs = lists::jobs(farm, request).await?;
    jobs.reverse();
    let mut found = Vec::with_capacity(jobs.len());
    for job in jobs {
        // One by one: a report is long, and of a job only its own is wanted.
        let request = v1::GetJobRequest { id: job.id };
        let job = farm.rpc().get_job(request).await.map_err(|e| farm.error(e))?.into_inner();
        if job.report_json.is_empty() {
            let failure = without_report(&job);
            if all {
                return Err(failure);
            }
            context.printer.warn(&failure.to_string());
            continue;
        }
        found.push(Report::parse(job.report_json.as_bytes()).map_err(|error| unreadable(&job.id, &error))?);
    }
    // Device kinds stay in the order in which they were asked for.
    let mut kinds: Vec<Sku> = Vec::new();
    for report in &found {
        if !kinds.contains(&report.sku) {
            kinds.push(report.sku.clone());
        }
    }
    sort_by_age(&mut found);
    found.sort_by_key(|report| kinds.iter().position(|sku| *sku == report.sku));
    Ok(found)
}

/// The newest report of the model on each of `skus` (none: wherever it has engines) with each of `toolchains` (none: with
/// whatever it was built), in that order. What is missing is refused, so that nothing is compared by accident.
pub async fn of_model(
    context: &Context<'_>,
    farm: &Farm,
    model: &str,
    skus: &[Sku],
    toolchains: &[ToolchainConstraint],
) -> Result<Vec<Report>, Failure> {
    let request = v1::ListEnginesRequest {
        model: model.to_owned(),
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        limit: u32::MAX,
        ..Default::default()
    };
    let engines = lists::engines(farm, request).await?;
    let mut reports = Vec::new();
    for engine in engines.iter().filter(|engine| !engine.report_json.is_empty()) {
        let report = Report::parse(engine.report_json.as_bytes());
        reports.push(report.map_err(|error| unreadable(&engine.engine_key, &error))?);
    }
    reports.sort_by_key(|report| std::cmp::Reverse(report.provenance.measured_unix_ms));
    let mut wanted: Vec<Sku> = skus.to_vec();
    if wanted.is_empty() {
        wanted = reports.iter().map(|report| report.sku.clone()).collect();
        wanted.sort_unstable();
        wanted.dedup();
    }
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for sku in &wanted {
        let mut here: Vec<&Report> = reports.iter().filter(|report| report.sku == *sku).collect();
        if toolchains.is_empty() {
            // One of each toolchain and spec, the newest.
            let mut kept: Vec<Report> = Vec::new();
            for report in here.drain(..) {
                if !kept.iter().any(|k| k.toolchain == report.toolchain && k.spec == report.spec) {
                    kept.push(report.clone());
                }
            }
            sort_by_age(&mut kept);
            if kept.is_empty() {
                missing.push(sku.to_string());
            }
            found.extend(kept);
        }
        for constraint in toolchains {
            match here.iter().find(|report| constraint.matches(&report.toolchain)) {
                Some(report) => found.push((*report).clone()),
                None => missing.push(format!("{sku} with {constraint}")),
            }
        }
    }
    if found.is_empty() && missing.is_empty() {
        missing.push("any device kind".into());
    }
    match missing.is_empty() {
        true => Ok(found),
        false => Err(Failure::new(ErrorCode::NotFound, format!("no measured engine of {model} for {}", missing.join("; ")))
            .hint("planforge submit MODEL --sku SKU --toolchain CONSTRAINT --wait makes it; planforge engines lists what is there")),
    }
}

/// Older toolchains first, then plainer specs; otherwise as they were.
fn sort_by_age(reports: &mut [Report]) {
    let version = |report: &Report| -> Vec<u64> {
        report.toolchain.version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
    };
    let asked = |report: &Report| {
        let spec = &report.spec;
        u8::from(spec.hardware_compatibility.is_some()) + u8::from(spec.version_compatible)
    };
    reports.sort_by_key(|report| (report.toolchain.backend.clone(), version(report), asked(report)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_failed_says_so_where_its_report_is_asked_for() {
        let failed = v1::Failure {
            class: v1::FailureClass::Model.into(),
            message: "TensorRT 10.3.0 has no operator Det".into(),
            hint: "bring a plugin".into(),
            lacked: String::new(),
            reason: String::new(),
        };
        let mut job = v1::Job { id: "abc".into(), sku: "t4".into(), ..Default::default() };
        job.set_state(v1::JobState::Failed);
        job.failure = Some(failed);
        let told = without_report(&job);
        assert_eq!(
            told.to_string(),
            "job abc for t4 has no report: failed [model]: TensorRT 10.3.0 has no operator Det"
        );
        assert_eq!(told.hint, "bring a plugin; planforge logs abc has its log");
        job.failure = None;
        job.set_state(v1::JobState::Running);
        let told = without_report(&job);
        assert_eq!(told.to_string(), "job abc for t4 has no report: running");
        assert!(told.hint.contains("watch abc"), "{}", told.hint);
    }

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
        assert!(failure("{}").contains("r.json is no report: no report is in it"));
        assert!(failure("{\"schema_version\": 99}").contains("its schema version is 99"));
        assert!(failure("nothing").contains("is no report"));
    }
}
