//! `planforge gc`: takes away what nobody needs any more, as the farm's policy says.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    tables,
};
use planforge_proto::{v1, view::CollectedView};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Say what would go; nothing does
    #[arg(long)]
    dry_run: bool,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let request = v1::CollectGarbageRequest { dry_run: args.dry_run };
    let reply = Farm::with(context, Need::Answers, async |farm| {
        Ok(farm.rpc().collect_garbage(request).await.map_err(|e| farm.error(e))?.into_inner())
    });
    let reply = reply.await?;
    if !reply.gone.is_empty() {
        context.printer.data(&tables::gone(&reply.gone))?;
    }
    let unnamed = reply.engines.saturating_sub(reply.gone.len() as u64);
    if unnamed > 0 {
        context.printer.note(&format!("and {unnamed} more engines"));
    }
    let would = if reply.dry_run { "would go" } else { "are gone" };
    let mut said = format!(
        "{} ended jobs and {} builds ({}) {would}",
        reply.jobs,
        reply.engines,
        tables::bytes(reply.engine_bytes)
    );
    if !reply.dry_run {
        said.push_str(&format!("; {} freed on the disk", tables::bytes(reply.blob_bytes)));
    }
    context.printer.note(&said);
    context.printer.note(&format!(
        "{} events, {} logs, {} files that no job names and {} measurements with newer ones {would}",
        reply.events, reply.logs, reply.files, reply.reports
    ));
    context.printer.object(&serde_json::json!(CollectedView::from(reply)))
}
