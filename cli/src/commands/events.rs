//! `planforge events`: what happened to jobs, as far back as events are kept.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    lists,
    settings::Key,
    tables,
};
use planforge_proto::{v1, view::EventView};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only events of this job; a unique beginning of its id is enough; repeat for several
    #[arg(long, value_name = "JOB")]
    job: Vec<String>,
    /// Only this kind, such as submitted, leased, built or failed; repeat for several
    #[arg(long, value_name = "KIND")]
    kind: Vec<String>,
    /// Only later ones than the event of this number
    #[arg(long, value_name = "SEQ", default_value_t = 0, hide_default_value = true)]
    after: u64,
    /// At most this many, the latest first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Every one that is kept
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let request = v1::ListEventsRequest {
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        jobs: args.job,
        kinds: args.kind,
        after: args.after,
        limit: if args.all { u32::MAX } else { args.limit },
        with_total: true,
        ..Default::default()
    };
    let found = Farm::with(context, Need::Answers, async |farm| lists::page_of_events(farm, request.clone()).await);
    let page = found.await?;
    let (rest, more, total) = (page.rest("events"), page.more, page.total);
    match page.rows.is_empty() {
        true => context.printer.note("no events: those of jobs that are long over are kept no more"),
        false => context.printer.data(&tables::history::events(&page.rows))?,
    }
    if let Some(rest) = rest {
        context.printer.note(&rest);
    }
    let events: Vec<_> = page.rows.into_iter().map(EventView::from).collect();
    context.printer.object(&serde_json::json!({ "events": events, "more": more, "total": total }))
}
