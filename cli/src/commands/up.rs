//! `planforge up`: a coordinator and this machine's agent in one process.

use super::coordinator::{ListenArgs, announce, reload, superseded};
use crate::{
    context::Context,
    failure::Failure,
    local::{Agent, DataFolder, state_folder},
};
use planforge_client::Endpoint;
use std::time::Duration;

/// How often the agent is looked after.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    listen: ListenArgs,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let folder = DataFolder::open(&context.settings.data_folder()?)?;
    let Some((coordinator, mut asked)) = args.listen.start(context, &folder).await? else { return Ok(()) };
    let cache_bytes = context.settings.agent_cache_bytes()?;
    let mut agent = Agent::start(Endpoint::unix(folder.socket_path()), &state_folder(folder.path()), cache_bytes)?;
    let _record = announce(context, &coordinator, &folder)?;
    let result = tokio::select! {
        () = asked.until_ended(|| reload(context, &coordinator)) => Ok(()),
        failure = watch(&mut agent) => Err(failure),
        failure = superseded(&coordinator, args.listen.is_shared(context)?) => Err(failure),
    };
    context.printer.note("ending: what was accepted is kept");
    if result.is_ok() {
        agent.stop().await;
    }
    coordinator.shutdown().await;
    result
}

/// Returns only when the agent cannot go on.
async fn watch(agent: &mut Agent) -> Failure {
    loop {
        if let Err(failure) = agent.check().await {
            return failure;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}
