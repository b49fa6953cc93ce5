//! `planforge requests`: who asked for how much, and how it stands.

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
    view::{self, RequestView},
};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only requests in this state: open, succeeded, or failed for those of which some jobs ended without success
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    state: Vec<v1::RequestState>,
    /// Only requests made within this time, such as 12h or 3d
    #[arg(long, value_name = "AGE", value_parser = ages::parse)]
    since: Option<u64>,
    /// Only requests made longer ago than this
    #[arg(long, value_name = "AGE", value_parser = ages::parse)]
    until: Option<u64>,
    /// At most this many, newest first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// All of them
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

fn parse_state(text: &str) -> Result<v1::RequestState, String> {
    view::request_state_from_name(text).ok_or_else(|| format!("'{text}' is none of open, succeeded, failed"))
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let ago = |age_ms: Option<u64>| age_ms.map_or(0, |age_ms| tables::now_ms().saturating_sub(age_ms));
    let request = v1::ListRequestsRequest {
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        states: args.state.iter().map(|state| i32::from(*state)).collect(),
        since_ms: ago(args.since),
        until_ms: ago(args.until),
        limit: if args.all { u32::MAX } else { args.limit },
        with_total: true,
        ..Default::default()
    };
    let found = Farm::with(context, Need::Answers, async |farm| lists::page_of_requests(farm, request.clone()).await);
    let page = found.await?;
    let (rest, more, total) = (page.rest("requests"), page.more, page.total);
    match page.rows.is_empty() {
        true => context.printer.note("no requests"),
        false => context.printer.data(&tables::history::requests(&page.rows, tables::now_ms()))?,
    }
    if let Some(rest) = rest {
        context.printer.note(&rest);
    }
    let requests: Vec<_> = page.rows.into_iter().map(RequestView::from).collect();
    context.printer.object(&serde_json::json!({ "requests": requests, "more": more, "total": total }))
}
