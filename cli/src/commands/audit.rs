//! `planforge audit`: who did what to the farm, from where, and what came of it.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    lists, tables,
};
use planforge_proto::{v1, view::AuditView};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only what this token did, or 'local' for the owner of the data folder
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Only acts that begin so, such as token or agent.drain
    #[arg(long, value_name = "WHAT")]
    what: Option<String>,
    /// Only of the last days
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=36_500))]
    days: Option<u64>,
    /// Newest lines that are shown
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Every line that is kept, for an export: planforge audit --all --json
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    Farm::with(context, Need::Answers, async |farm| show(context, farm, args.clone()).await).await
}

async fn show(context: &Context<'_>, farm: &Farm, args: Args) -> Result<(), Failure> {
    let request = v1::ListAuditRequest {
        actor: args.actor.unwrap_or_default(),
        what: args.what.unwrap_or_default(),
        project: String::new(),
        since_ms: args.days.map_or(0, |days| tables::now_ms().saturating_sub(days * DAY_MS)),
        limit: if args.all { u32::MAX } else { args.limit },
        ..v1::ListAuditRequest::default()
    };
    let page = lists::page_of_audit(farm, request).await?;
    let (rest, more, records) = (page.rest("lines"), page.more, page.rows);
    if records.is_empty() {
        context.printer.note("the audit log has no such lines");
    } else {
        context.printer.data(&tables::projects::audit(&records))?;
    }
    if let Some(rest) = rest {
        context.printer.note(&rest);
    }
    let records: Vec<_> = records.into_iter().map(AuditView::from).collect();
    context.printer.object(&serde_json::json!({ "audit": records, "more": more }))
}
