//! `planforge jobs`: what is queued, running and done.

use crate::{
    ages,
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
    /// Only jobs with this tag, as `submit --tag` took it; repeat for jobs with all of them
    #[arg(long, value_name = "NAME[=VALUE]")]
    tag: Vec<String>,
    /// Only jobs submitted within this time, such as 12h or 3d
    #[arg(long, value_name = "AGE", value_parser = ages::parse)]
    since: Option<u64>,
    /// Only jobs submitted longer ago than this
    #[arg(long, value_name = "AGE", value_parser = ages::parse)]
    until: Option<u64>,
    /// Which come first: newest, oldest, or ended for those that ended last
    #[arg(long, value_name = "ORDER", default_value = "newest", value_parser = parse_order)]
    sort: v1::JobOrder,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// All of them
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

fn parse_order(text: &str) -> Result<v1::JobOrder, String> {
    view::order_from_name(text).ok_or_else(|| format!("'{text}' is none of newest, oldest, ended"))
}

fn parse_state(text: &str) -> Result<v1::JobState, String> {
    view::state_from_name(text).ok_or_else(|| format!("'{text}' is not a job state"))
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let request = v1::ListJobsRequest {
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        states: args.state.iter().map(|s| i32::from(*s)).collect(),
        ids: args.ids,
        limit: if args.all { u32::MAX } else { args.limit },
        with_reports: true,
        tags: args.tag,
        since_ms: args.since.map_or(0, |age_ms| tables::now_ms().saturating_sub(age_ms)),
        until_ms: args.until.map_or(0, |age_ms| tables::now_ms().saturating_sub(age_ms)),
        order: args.sort.into(),
        with_total: true,
        sku: args.sku,
        model: args.model,
        request_id: args.request,
        ..Default::default()
    };
    let page =
        Farm::with(context, Need::Answers, async |farm| lists::page_of_jobs(farm, request.clone()).await).await?;
    let (rest, more, total) = (page.rest("jobs"), page.more, page.total);
    let jobs = page.rows;
    if jobs.is_empty() {
        context.printer.note("no jobs");
    } else {
        context.printer.data(&tables::jobs(&jobs, tables::now_ms()))?;
    }
    if let Some(rest) = rest {
        context.printer.note(&rest);
    }
    let jobs: Vec<_> = jobs.into_iter().map(JobView::from).collect();
    context.printer.object(&serde_json::json!({ "jobs": jobs, "more": more, "total": total }))
}
