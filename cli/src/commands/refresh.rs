//! `planforge refresh`: engines that are stale or outdated, built again.

use crate::{
    ages,
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    settings::Key,
    tables,
    wait::{self, Patience, Waiting},
};
use planforge_proto::{v1, view::RefreshedView};
use planforge_types::Sku;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only engines of these models, by name or beginning of their digest
    #[arg(value_name = "MODEL")]
    models: Vec<String>,
    /// Only engines for this device kind; repeat for several
    #[arg(long = "sku", value_name = "SKU", value_delimiter = ',')]
    skus: Vec<Sku>,
    /// Only for this reason: toolchain, driver, model, disturbed, unmeasured or age; repeat for several
    #[arg(long = "reason", value_name = "REASON", value_delimiter = ',')]
    reasons: Vec<String>,
    /// Also what was last measured longer ago than this, such as 30d
    #[arg(long, value_name = "AGE", value_parser = ages::parse)]
    older_than: Option<u64>,
    /// By how much the first engine of a device kind may be slower with another toolchain; the others follow it
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    slower_percent: f64,
    /// Build all at once, none of them first
    #[arg(long)]
    no_canary: bool,
    /// Show what is stale and why; submit nothing
    #[arg(long)]
    dry_run: bool,
    /// Wait until the jobs have ended
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    #[command(flatten)]
    patience: Patience,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    const MS_PER_S: u64 = 1_000;
    let request = v1::RefreshRequest {
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        models: args.models.clone(),
        skus: args.skus.iter().map(ToString::to_string).collect(),
        reasons: args.reasons.clone(),
        older_than_s: args.older_than.unwrap_or(0).div_ceil(MS_PER_S),
        slower_percent: args.slower_percent,
        no_canary: args.no_canary,
        dry_run: args.dry_run,
    };
    Farm::with(context, Need::Lasting, async |farm| {
        let reply = farm.rpc().refresh(request.clone()).await.map_err(|e| farm.error(e))?.into_inner();
        tell(context, &reply, args.dry_run)?;
        let jobs: Vec<v1::Job> = reply.cells.iter().filter(|cell| !cell.job.is_empty()).map(named).collect();
        let ids: Vec<String> = jobs.iter().map(|job| job.id.clone()).collect();
        let refused = reply.cells.iter().any(|cell| !cell.refusal.is_empty());
        let mut succeeded = !refused;
        if args.wait && !ids.is_empty() {
            let jobs = Waiting::new(context.printer, &jobs).finish(farm, &ids, args.patience).await?;
            context.printer.data(&tables::jobs(&jobs, tables::now_ms()))?;
            succeeded &= wait::tell_failures(context.printer, &jobs);
        }
        let cells: Vec<RefreshedView> = reply.cells.into_iter().map(Into::into).collect();
        let object = serde_json::json!({ "cells": cells, "looked_at": reply.looked_at, "more": reply.more });
        context.printer.object(&object)?;
        if succeeded { Ok(()) } else { Err(Failure::jobs_failed()) }
    })
    .await
}

/// A cell's job, as far as is known of it before anybody looks.
fn named(cell: &v1::RefreshedCell) -> v1::Job {
    let engine = cell.engine.clone().unwrap_or_default();
    v1::Job { id: cell.job.clone(), model: engine.model, sku: engine.sku, ..v1::Job::default() }
}

fn tell(context: &Context<'_>, reply: &v1::RefreshReply, dry_run: bool) -> Result<(), Failure> {
    let printer = context.printer;
    if reply.cells.is_empty() {
        printer.note(&format!("{} engines were looked at; none is stale", reply.looked_at));
    } else {
        printer.data(&tables::refreshed(&reply.cells, dry_run))?;
        printer.note(&format!("{} of {} engines are stale", reply.cells.len(), reply.looked_at));
    }
    if reply.more {
        printer.warn("there are more engines than one call looks at: name models or device kinds");
    }
    for cell in reply.cells.iter().filter(|cell| !cell.refusal.is_empty()) {
        let name = cell.engine.as_ref().map_or("", |engine| tables::model_name(engine.model.as_ref()));
        let sku = cell.engine.as_ref().map_or("", |engine| engine.sku.as_str());
        printer.warn(&format!("{name} for {sku} cannot be built again now: {}", cell.refusal));
    }
    Ok(())
}
