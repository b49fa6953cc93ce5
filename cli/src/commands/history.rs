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
    figures::Figures,
    history::{Build, Step, steps},
};
use planforge_stats::change::LEAST;
use planforge_types::BuildSpec;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model, by name or beginning of its digest
    model: String,
    /// Only engines for this device kind
    #[arg(long, value_name = "SKU", default_value = "", hide_default_value = true)]
    sku: String,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let request = v1::ListEnginesRequest {
        model: args.model.clone(),
        sku: args.sku,
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        limit: u32::MAX,
        brief_reports: true,
        ..Default::default()
    };
    let page = Farm::with(context, Need::Answers, async |farm| lists::page_of_engines(farm, request.clone()).await);
    let lines = lines(page.await?.rows);
    if lines.is_empty() {
        return Err(Failure::new(ErrorCode::NotFound, format!("no engine of '{}' was ever measured", args.model))
            .hint("planforge engines lists what there is"));
    }
    context.printer.data(&shown(&lines))?;
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

/// Engines as lines, most builds first.
fn lines(engines: Vec<v1::Engine>) -> Vec<Line> {
    let mut found: BTreeMap<(String, String, String), Vec<Build>> = BTreeMap::new();
    for engine in engines {
        let figures = Figures::parse(&engine.report_json).unwrap_or_default();
        // Simulated figures say nothing of any device.
        let Some(median_ms) = figures.latency_ms.median.filter(|_| !engine.simulated) else { continue };
        let line =
            (tables::model_name(engine.model.as_ref()).to_owned(), engine.sku.clone(), canonical(&engine.spec_json));
        found.entry(line).or_default().push(Build {
            disturbed: figures.wholly_disturbed().is_some(),
            toolchain: tables::toolchain(&engine.toolchain_json),
            model_digest: engine.model.map(|model| model.digest).unwrap_or_default(),
            job: engine.job,
            created_ms: engine.created_ms,
            median_ms,
            plan_digest: engine.plan_digest,
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(index: u64, median_ms: f64, weights: &str) -> v1::Engine {
        let toolchain = if index < 40 { "6" } else { "7" };
        v1::Engine {
            model: Some(v1::Model { name: "net.onnx".into(), digest: weights.into(), ..v1::Model::default() }),
            sku: "t4".into(),
            spec_json: "{}".into(),
            toolchain_json: format!(r#"{{"backend":"native","version":"{toolchain}","components":{{}}}}"#),
            report_json: format!(r#"{{"latency_ms":{{"median":{median_ms}}}}}"#),
            job: format!("job-{index}"),
            created_ms: index,
            ..v1::Engine::default()
        }
    }

    #[test]
    fn the_first_bad_build_is_named_with_what_changed() {
        let level = |index: u64| if index < 40 { 2.0 } else { 2.2 } + 0.001 * (index % 7) as f64;
        // As a farm lists them: newest first.
        let engines: Vec<v1::Engine> = (0..60).rev().map(|index| engine(index, level(index), "aa")).collect();
        let found = lines(engines);
        let [line] = &found[..] else { panic!("{found:?}") };
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
    fn other_specs_are_other_lines_and_what_is_no_measurement_is_in_none() {
        let mut fp16 = engine(1, 1.0, "aa");
        fp16.spec_json = r#"{"precision":"fp16"}"#.into();
        let simulated = v1::Engine { simulated: true, ..engine(2, 9.0, "aa") };
        let unmeasured = v1::Engine { report_json: String::new(), ..engine(3, 9.0, "aa") };
        let newer = engine(4, 1.0, "bb");
        let found = lines(vec![newer, unmeasured, simulated, fp16, engine(0, 1.0, "aa")]);
        assert_eq!(found.iter().map(|line| line.builds.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(found[0].builds[0].model_digest, "aa", "the oldest first, whatever its weights");
    }
}
