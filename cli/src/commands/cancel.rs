//! `planforge cancel`: jobs that shall not go on.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    lists, tables,
};
use planforge_proto::{v1, view::JobView};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Jobs to cancel; unique beginnings of ids are enough
    #[arg(required = true, value_name = "JOB")]
    ids: Vec<String>,
    /// Why, for the job's history
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let farm = Farm::open(context, Need::Answers).await?;
    let mut jobs = Vec::with_capacity(args.ids.len());
    for ids in args.ids.chunks(lists::NAMED_MAX) {
        let request =
            v1::CancelJobsRequest { ids: ids.to_vec(), reason: args.reason.clone(), request_id: String::new() };
        jobs.extend(farm.rpc().cancel_jobs(request).await.map_err(|e| farm.error(e))?.into_inner().jobs);
    }
    lists::complete(&farm, &mut jobs).await?;
    farm.close(context.printer).await;
    context.printer.data(&tables::jobs(&jobs, tables::now_ms()))?;
    let jobs: Vec<_> = jobs.into_iter().map(JobView::from).collect();
    context.printer.object(&serde_json::json!({ "jobs": jobs }))
}
