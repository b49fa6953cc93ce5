//! `planforge best`: which engine of a model answers a question, of all that were measured.

use crate::{
    ages,
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    lists,
    request::models,
    settings::Key,
    tables,
};
use planforge_proto::{ErrorCode, v1};
use planforge_report::{
    Report,
    best::{Answer, Bounds, Candidate, Goal, best},
    format::{bytes, milliseconds, per_second, percent},
};
use planforge_types::Sku;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Largest price list that is read.
const PRICES_MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// ONNX file, or a model's name or the beginning of its digest
    model: String,
    /// Only engines for these device kinds; `any` for all of them
    #[arg(long, value_name = "SKU", value_delimiter = ',', default_value = "any")]
    sku: Vec<String>,
    /// What the answer is best in: throughput, latency, p99, memory, size, accuracy or cost
    #[arg(long, value_name = "GOAL", value_parser = goal, default_value = "throughput")]
    by: Goal,
    /// At most this median latency, such as 5ms or 800us
    #[arg(long, value_name = "TIME", value_parser = ages::milliseconds)]
    median: Option<f64>,
    /// At most this 99th percentile, such as 5ms or 800us
    #[arg(long, value_name = "TIME", value_parser = ages::milliseconds)]
    p99: Option<f64>,
    /// At least this many items per second
    #[arg(long, value_name = "PER_S")]
    throughput: Option<f64>,
    /// At most this much memory of the loaded engine
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u64>,
    /// At least this top-1 accuracy
    #[arg(long, value_name = "PERCENT")]
    top1: Option<f64>,
    /// Outputs off by at most this much of their scale
    #[arg(long, value_name = "ERROR")]
    max_error: Option<f64>,
    /// TOML file with a price per hour of each device kind: `t4 = 0.35`
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    /// Only what no other beats in latency, throughput, accuracy and size at once
    #[arg(long)]
    pareto: bool,
}

fn goal(text: &str) -> Result<Goal, String> {
    let names = Goal::ALL.map(Goal::name).join(", ");
    Goal::ALL.into_iter().find(|goal| goal.name() == text).ok_or_else(|| format!("name one of {names}"))
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let prices = args.prices.as_deref().map(prices).transpose()?.unwrap_or_default();
    if args.by == Goal::Cost && args.prices.is_none() {
        return Err(Failure::usage("nothing says what devices cost").hint("add --prices FILE"));
    }
    let skus = wanted(&args.sku)?;
    let model = match Path::new(&args.model).is_file() {
        true => models::identify(&context.settings, Path::new(&args.model))?.model.digest,
        false => args.model.clone(),
    };
    let request = v1::ListEnginesRequest {
        model,
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        limit: u32::MAX,
        ..Default::default()
    };
    let engines = Farm::with(context, Need::Answers, async |farm| lists::engines(farm, request.clone()).await).await?;
    let (mut engines, mut reports) = (engines, Vec::new());
    engines.retain(|engine| skus.is_empty() || skus.iter().any(|sku| sku.as_str() == engine.sku));
    engines.retain(|engine| match Report::parse(engine.report_json.as_bytes()) {
        Ok(report) => {
            reports.push(report);
            true
        }
        Err(_) => false,
    });
    if reports.is_empty() {
        let on = if skus.is_empty() { String::new() } else { format!(" for {}", args.sku.join(", ")) };
        return Err(Failure::new(ErrorCode::NotFound, format!("no measured engine of {}{on}", args.model))
            .hint("planforge engines lists what there is; planforge submit MODEL --wait builds and measures"));
    }
    let bounds = Bounds {
        median_ms: args.median,
        p99_ms: args.p99,
        throughput_per_s: args.throughput,
        memory_bytes: args.memory_mib.map(|mib| mib << 20),
        top1: args.top1.map(|percent| percent / 100.0),
        max_error: args.max_error,
    };
    let mut answer = best(&reports, args.by, bounds, |sku| prices.get(sku).copied());
    if args.pareto {
        answer.candidates.retain(|candidate| candidate.on_front);
    }
    tell(context, &answer, &engines, &reports)?;
    match answer.candidates.is_empty() {
        true => Err(Failure::new(ErrorCode::NotFound, "no measured engine keeps what is asked for")
            .hint("loosen a bound, or build more: other batches, precisions or device kinds")),
        false => Ok(()),
    }
}

/// Device kinds that were named; none for all.
fn wanted(names: &[String]) -> Result<Vec<Sku>, Failure> {
    if names.iter().any(|name| name == "any") {
        return Ok(Vec::new());
    }
    let skus = names.iter().map(|name| name.parse::<Sku>().map_err(|error| Failure::usage(error.to_string())));
    skus.collect()
}

/// Prices per hour by device kind.
fn prices(path: &Path) -> Result<BTreeMap<String, f64>, Failure> {
    let size = fs::metadata(path).map_err(|e| Failure::io("read", path, &e))?.len();
    if size > PRICES_MAX_BYTES {
        return Err(Failure::usage(format!("{} is no price list: it has {size} bytes", path.display())));
    }
    let text = fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))?;
    let prices: BTreeMap<String, f64> = toml::from_str(&text).map_err(|error| {
        Failure::usage(format!("{}: {}", path.display(), error.message())).hint("a line for each: t4 = 0.35")
    })?;
    match prices.iter().find(|(_, price)| !(price.is_finite() && **price > 0.0)) {
        Some((sku, price)) => Err(Failure::usage(format!("{}: {sku} = {price} is no price", path.display()))),
        None => Ok(prices),
    }
}

fn tell(context: &Context<'_>, answer: &Answer, engines: &[v1::Engine], reports: &[Report]) -> Result<(), Failure> {
    let printer = context.printer;
    if !answer.candidates.is_empty() {
        printer.data(&table(answer, reports))?;
    }
    for out in &answer.left_out {
        let report = &reports[out.report];
        printer.note(&format!("not {} {} at batch {}: {}", report.sku, report.spec.precision, out.batch, out.reason));
    }
    let key = |index: usize| engines[index].engine_key.clone();
    let document = |index: usize, point: serde_json::Value| {
        let mut point = point;
        let report = &reports[index];
        point["engine_key"] = key(index).into();
        point["plan_digest"] = report.plan.digest.to_string().into();
        point["sku"] = report.sku.as_str().into();
        point["toolchain"] = report.toolchain.to_string().into();
        point["precision"] = report.spec.precision.to_string().into();
        point["simulated"] = report.simulated.into();
        point
    };
    let candidates: Vec<_> = answer.candidates.iter().map(|one| document(one.report, serde_json::json!(one))).collect();
    let left_out: Vec<_> = answer.left_out.iter().map(|one| document(one.report, serde_json::json!(one))).collect();
    printer.object(&serde_json::json!({
        "goal": answer.goal, "bounds": answer.bounds, "candidates": candidates, "left_out": left_out,
    }))
}

fn table(answer: &Answer, reports: &[Report]) -> String {
    let with_cost = answer.candidates.iter().any(|candidate| candidate.cost_per_million.is_some());
    let mut columns =
        vec!["#", "sku", "toolchain", "spec", "median", "p99", "throughput", "memory", "plan", "top-1", "error"];
    columns.extend(with_cost.then_some("cost/M"));
    columns.push("front");
    let mut rows = tables::table(&columns);
    for (place, candidate) in answer.candidates.iter().enumerate() {
        rows.add_row(cells(place, candidate, &reports[candidate.report], with_cost));
    }
    let numeric: Vec<usize> = (4..columns.len() - 1).collect();
    tables::render(rows, &numeric)
}

fn cells(place: usize, candidate: &Candidate, report: &Report, with_cost: bool) -> Vec<String> {
    let dash = || "-".to_owned();
    let threads = report.spec.threads.map(|threads| format!(" {threads}t")).unwrap_or_default();
    let simulated = if report.simulated { " simulated" } else { "" };
    let mut cells = vec![
        (place + 1).to_string(),
        report.sku.to_string(),
        report.toolchain.to_string(),
        format!("{} b{}{threads}{simulated}", report.spec.precision, candidate.batch),
        milliseconds(candidate.median_ms),
        milliseconds(candidate.p99_ms),
        per_second(candidate.throughput_per_s),
        bytes(candidate.memory_bytes),
        bytes(candidate.plan_bytes),
        candidate.top1.map_or_else(dash, percent),
        candidate.max_error.map_or_else(dash, |error| format!("{error:.1e}")),
    ];
    if with_cost {
        cells.push(candidate.cost_per_million.map_or_else(dash, |cost| format!("{cost:.4}")));
    }
    cells.push(if candidate.on_front { "yes" } else { "" }.to_owned());
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_list_is_read_and_nonsense_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("prices.toml");
        let read = |text: &str| {
            fs::write(&file, text).unwrap();
            prices(&file)
        };
        assert_eq!(read("t4 = 0.35\n\"h100-sxm\" = 4\n").unwrap()["h100-sxm"], 4.0);
        assert!(read("t4 = -1\n").unwrap_err().to_string().contains("t4 = -1 is no price"));
        assert!(read("t4 = \"cheap\"\n").unwrap_err().to_string().contains("prices.toml"));
    }
}
