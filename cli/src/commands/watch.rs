//! `planforge watch`: jobs as they change.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    settings::Key,
    signals, tables,
    wait::{self, Events},
};
use planforge_proto::{
    v1,
    view::{self, JobView},
};
use std::collections::BTreeMap;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Jobs to follow until they end; without any, everything in the project until Ctrl-C
    #[arg(value_name = "JOB")]
    ids: Vec<String>,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let watched = Farm::with(context, Need::Work, async |farm| {
        tokio::select! {
            result = follow(context, farm, args) => result,
            () = signals::interrupted() => Err(Failure::interrupted()),
        }
    });
    watched.await
}

async fn follow(context: &Context<'_>, farm: &Farm, args: Args) -> Result<(), Failure> {
    let named = !args.ids.is_empty();
    let request = v1::WatchJobsRequest {
        ids: args.ids,
        after_event: 0,
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        until_ended: named,
    };
    let mut events = Events::open(farm, request).await?;
    let mut last: BTreeMap<String, v1::Job> = BTreeMap::new();
    while let Some((_, event)) = events.next(farm).await? {
        let Some(job) = event.job else { continue };
        if context.printer.json {
            // A stream has no end to wait for: one object a line.
            context.printer.line_object(&serde_json::json!({
                "seq": event.seq,
                "at_ms": event.at_ms,
                "actor": event.actor,
                "what": event.what,
                "detail": event.detail,
                "job": JobView::from(job.clone()),
            }))?;
        } else {
            let name = tables::model_name(job.model.as_ref());
            let detail = if event.detail.is_empty() { String::new() } else { format!("  {}", event.detail) };
            let line = format!("{}  {name}  {}  {}  {}{detail}", job.id, job.sku, event.what, tables::state(&job));
            context.printer.endless_line(&line)?;
        }
        last.insert(job.id.clone(), job);
    }
    let ended: Vec<_> = last.into_values().filter(|job| view::is_ended(job.state())).collect();
    if named && !wait::tell_failures(context.printer, &ended) {
        return Err(Failure::jobs_failed());
    }
    Ok(())
}
