//! `planforge up`: a coordinator and this machine's agent in one process.

use super::coordinator::{ListenArgs, announce, reload, superseded};
use crate::{
    context::Context,
    failure::Failure,
    local::{Agent, DataFolder, state_folder},
};
use planforge_client::Endpoint;
use planforge_types::{Label, requirement};
use std::time::Duration;

/// How often the agent is looked after.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    listen: ListenArgs,
    /// Label by which jobs may ask for this machine ('planforge submit --require label=NAME=VALUE'); repeat for several
    #[arg(long = "label", value_name = "NAME[=VALUE]")]
    labels: Vec<Label>,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    requirement::labels(args.labels.iter().cloned()).map_err(|error| Failure::usage(error.to_string()))?;
    let folder = DataFolder::open(&context.settings.data_folder()?)?;
    let Some((coordinator, mut asked)) = args.listen.start(context, &folder).await? else { return Ok(()) };
    let bounds = context.settings.agent_bounds()?;
    let (endpoint, state) = (Endpoint::unix(folder.socket_path()), state_folder(folder.path()));
    let mut agent = Agent::start(endpoint, &state, bounds, args.labels)?;
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
