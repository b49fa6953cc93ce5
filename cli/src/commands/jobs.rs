//! `planforge jobs`: what is queued, running and done.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    lists,
    settings::Key,
    tables,
};
use planforge_proto::{
    v1,
    view::{self, JobView},
};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these jobs; unique beginnings of ids are enough
    ids: Vec<String>,
    /// Only jobs in this state: blocked, queued, leased, running, succeeded, failed, cancelled, skipped, unplaceable
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    state: Vec<v1::JobState>,
    /// Only jobs for this device kind
    #[arg(long, value_name = "SKU", default_value = "", hide_default_value = true)]
    sku: String,
    /// Only jobs of this model, by name or beginning of its digest
    #[arg(long, value_name = "MODEL", default_value = "", hide_default_value = true)]
    model: String,
    /// Only jobs of this request
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request: String,
    /// At most this many, newest first
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,
}

fn parse_state(text: &str) -> Result<v1::JobState, String> {
    view::state_from_name(text).ok_or_else(|| format!("'{text}' is not a job state"))
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let request = v1::ListJobsRequest {
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        states: args.state.iter().map(|s| i32::from(*s)).collect(),
        ids: args.ids,
        limit: args.limit,
        with_reports: true,
        sku: args.sku,
        model: args.model,
        request_id: args.request,
        ..Default::default()
    };
    let page = Farm::with(context, Need::Answers, async |farm| lists::page_of_jobs(farm, request).await).await?;
    let (jobs, more) = (page.rows, page.more);
    if jobs.is_empty() {
        context.printer.note("no jobs");
    } else {
        context.printer.data(&tables::jobs(&jobs, tables::now_ms()))?;
    }
    if more {
        context.printer.note(&tables::there_are_more(jobs.len(), "jobs"));
    }
    let jobs: Vec<_> = jobs.into_iter().map(JobView::from).collect();
    context.printer.object(&serde_json::json!({ "jobs": jobs, "more": more }))
}
