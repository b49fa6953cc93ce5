//! `planforge priority`: which waiting jobs come first.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    lists, tables,
};
use planforge_proto::{v1, view::JobView};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Jobs that have not ended; unique beginnings of ids are enough
    #[arg(required = true, value_name = "JOB")]
    ids: Vec<String>,
    /// Higher first; what nobody set is 0
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    to: i32,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let (jobs, remarks) = Farm::with(context, Need::Answers, async |farm| set(farm, &args).await).await?;
    context.printer.data(&tables::jobs(&jobs, tables::now_ms()))?;
    for (job, remark) in jobs.iter().zip(&remarks).filter(|(_, remark)| !remark.is_empty()) {
        context.printer.note(&format!("{}: {remark}", job.id));
    }
    let jobs: Vec<_> = jobs.into_iter().map(JobView::from).collect();
    context.printer.object(&serde_json::json!({ "jobs": jobs, "remarks": remarks }))
}

async fn set(farm: &Farm, args: &Args) -> Result<(Vec<v1::Job>, Vec<String>), Failure> {
    let (mut jobs, mut remarks) = (Vec::with_capacity(args.ids.len()), Vec::with_capacity(args.ids.len()));
    for ids in args.ids.chunks(lists::NAMED_MAX) {
        let request = v1::SetPriorityRequest { ids: ids.to_vec(), priority: args.to };
        let reply = farm.rpc().set_priority(request).await.map_err(|e| farm.error(e))?.into_inner();
        jobs.extend(reply.jobs);
        remarks.extend(reply.remarks);
    }
    lists::complete(farm, &mut jobs).await?;
    Ok((jobs, remarks))
}
