//! `planforge history`: how fast a model's engines were, build after build, and since which build that is another.
//!
//! A *line* is what stays comparable from build to build: see `planforge_report::history`.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    lists,
    settings::Key,
    tables::{self, milliseconds, specs},
};
use planforge_proto::{ErrorCode, v1};
use planforge_report::{
    disturbance,
    history::{Build, Step, steps},
};
use planforge_stats::change::LEAST;
use planforge_types::BuildSpec;
use serde::Serialize;
use std::{collections::BTreeMap, path::Path};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model, by name or beginning of its digest; of a file here its name
    model: String,
    /// Only engines for this device kind
    #[arg(long, value_name = "SKU", default_value = "", hide_default_value = true)]
    sku: String,
    /// Every build below its line, the oldest first
    #[arg(long)]
    all: bool,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let path = Path::new(&args.model);
    // What is built from a file here is called as the file is.
    let file = path.file_name().filter(|_| path.is_file());
    let model = file.map_or_else(|| args.model.clone(), |name| name.to_string_lossy().into_owned());
    let request = v1::GetHistoryRequest {
        model: model.clone(),
        sku: args.sku,
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        ..Default::default()
    };
    let found = Farm::with(context, Need::Answers, async |farm| lists::history(farm, request.clone()).await);
    let lines = lines(found.await?);
    if lines.is_empty() {
        return Err(Failure::new(ErrorCode::NotFound, format!("no engine of '{model}' was ever measured"))
            .hint("planforge engines lists what there is"));
    }
    let each = if args.all { lines.iter().map(builds).collect() } else { String::new() };
    context.printer.data(&format!("{}{each}", shown(&lines)))?;
    context.printer.object(&serde_json::json!({ "lines": lines }))
}

/// Builds of one model, by its name, for one device kind by one spec, oldest first.
#[derive(Debug, Serialize)]
pub struct Line {
    pub model: String,
    pub sku: String,
    pub spec: serde_json::Value,
    pub builds: Vec<Build>,
    pub changes: Vec<Step>,
}

/// The lines of a history's pages as whole ones, most builds first.
fn lines(parts: Vec<v1::HistoryLine>) -> Vec<Line> {
    let mut found: BTreeMap<(String, String, String), Vec<Build>> = BTreeMap::new();
    for part in parts {
        let toolchains: Vec<String> = part.toolchains_json.iter().map(|json| tables::toolchain(json)).collect();
        let build = |build: v1::HistoryBuild| Build {
            disturbed: build.disturbed,
            toolchain: toolchains.get(build.toolchain as usize).cloned().unwrap_or_default(),
            model_digest: build.model_digest,
            job: build.job,
            created_ms: build.created_ms,
            median_ms: build.median_ms,
            plan_digest: build.plan_digest,
        };
        let line = found.entry((part.model, part.sku, canonical(&part.spec_json))).or_default();
        line.extend(part.builds.into_iter().map(build));
    }
    let line = |((model, sku, spec), mut builds): ((String, String, String), Vec<Build>)| {
        builds.sort_by_key(|build| build.created_ms);
        let changes = steps(&builds);
        let spec = serde_json::from_str(&spec).unwrap_or_default();
        Line { model, sku, spec, builds, changes }
    };
    let mut lines: Vec<Line> = found.into_iter().map(line).collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.builds.len()));
    lines
}

/// A spec as text that is the same for the same spec; what cannot be read stays as it is.
fn canonical(spec_json: &str) -> String {
    let spec = serde_json::from_str::<BuildSpec>(spec_json).ok();
    spec.and_then(|spec| serde_json::to_string(&spec.canonical()).ok()).unwrap_or_else(|| spec_json.to_owned())
}

/// One row a line, and a line of text for each change of its level.
fn shown(lines: &[Line]) -> String {
    let documents: Vec<String> = lines.iter().map(|line| line.spec.to_string()).collect();
    let told = specs::columns(documents.iter().map(String::as_str));
    let headers = ["model", "sku"].into_iter().chain(told.iter().map(|(header, _)| *header));
    let mut rows =
        tables::table(&headers.chain(["builds", "first", "lowest", "newest", "changes"]).collect::<Vec<_>>());
    let mut steps = String::new();
    for (index, line) in lines.iter().enumerate() {
        let median = |build: Option<&Build>| {
            build.map_or("-".to_owned(), |build| disturbance::marked(milliseconds(build.median_ms), build.disturbed))
        };
        let lowest = line.builds.iter().min_by(|a, b| a.median_ms.total_cmp(&b.median_ms));
        let specs = told.iter().map(|(_, cells)| cells.get(index).cloned().unwrap_or_default());
        let figures = [
            line.builds.len().to_string(),
            median(line.builds.first()),
            median(lowest),
            median(line.builds.last()),
            line.changes.len().to_string(),
        ];
        rows.add_row(
            [line.model.clone(), line.sku.clone()].into_iter().chain(specs).chain(figures).collect::<Vec<_>>(),
        );
        steps.extend(line.changes.iter().map(|step| format!("{} on {}: {}\n", line.model, line.sku, step.words())));
    }
    let first = 2 + told.len();
    let is_marked = lines.iter().flat_map(|line| &line.builds).any(|build| build.disturbed);
    let table = tables::explained(tables::render(rows, &(first..first + 5).collect::<Vec<_>>()), is_marked);
    let least = LEAST * 100.0;
    format!("{table}{steps}changes of {least:.0} % and more, of which mere noise shows at most one in 10,000 builds\n")
}

/// One row a build of the line.
fn builds(line: &Line) -> String {
    let mut rows = tables::table(&["job", "built (utc)", "median", "plan", "weights", "toolchain", "remark"]);
    for build in &line.builds {
        let step = line.changes.iter().find(|step| step.job == build.job);
        rows.add_row([
            if build.job.is_empty() { "-".to_owned() } else { build.job.clone() },
            tables::projects::moment(build.created_ms),
            disturbance::marked(milliseconds(build.median_ms), build.disturbed),
            tables::short(&build.plan_digest).to_owned(),
            tables::short(&build.model_digest).to_owned(),
            build.toolchain.clone(),
            step.map(|step| format!("{} from here on", step.how())).unwrap_or_default(),
        ]);
    }
    let spec = serde_json::from_value::<BuildSpec>(line.spec.clone()).map(|spec| spec.words()).unwrap_or_default();
    format!("\n{} on {}: {spec}\n{}", line.model, line.sku, tables::render(rows, &[2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(index: u64, median_ms: f64, weights: &str) -> v1::HistoryBuild {
        v1::HistoryBuild {
            job: format!("job-{index}"),
            created_ms: index,
            median_ms,
            model_digest: weights.into(),
            toolchain: u32::from(index >= 40),
            ..v1::HistoryBuild::default()
        }
    }

    fn part(builds: Vec<v1::HistoryBuild>) -> v1::HistoryLine {
        let toolchain = |version| format!(r#"{{"backend":"native","version":"{version}","components":{{}}}}"#);
        v1::HistoryLine {
            model: "net.onnx".into(),
            sku: "t4".into(),
            spec_json: "{}".into(),
            toolchains_json: vec![toolchain("6"), toolchain("7")],
            builds,
        }
    }

    #[test]
    fn the_first_bad_build_is_named_with_what_changed() {
        let level = |index: u64| if index < 40 { 2.0 } else { 2.2 } + 0.001 * (index % 7) as f64;
        // As a farm tells them: newest first, page by page.
        let builds = |from: u64, to: u64| part((from..to).rev().map(|at| build(at, level(at), "aa")).collect());
        let found = lines(vec![builds(30, 60), builds(0, 30)]);
        let [line] = &found[..] else { panic!("{found:?}") };
        let each = super::builds(line);
        let rows: Vec<&str> = each.lines().filter(|row| row.contains("job-")).collect();
        assert_eq!((rows.len(), rows[40].contains("9.9 % slower from here on")), (60, true), "{each}");
        let [step] = &line.changes[..] else { panic!("{:?}", line.changes) };
        assert_eq!((step.job.as_str(), step.told.as_str()), ("job-40", "job-44"));
        assert_eq!(step.with, ["toolchain native 6 to native 7"]);
        assert!(
            step.words().starts_with("9.9 % slower since job-40: 2.003 ms to 2.202 ms; changed with it: toolchain"),
            "{}",
            step.words()
        );
    }

    #[test]
    fn other_specs_are_other_lines_and_the_oldest_build_comes_first() {
        let fp16 = v1::HistoryLine { spec_json: r#"{"precision":"fp16"}"#.into(), ..part(vec![build(1, 1.0, "aa")]) };
        let found = lines(vec![fp16, part(vec![build(4, 1.0, "bb"), build(0, 1.0, "aa")])]);
        assert_eq!(found.iter().map(|line| line.builds.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(found[0].builds[0].model_digest, "aa", "the oldest first, whatever its weights");
    }
}
