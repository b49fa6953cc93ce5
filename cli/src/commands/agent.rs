//! `planforge agent`: this host's devices for a coordinator elsewhere.

use crate::{
    backends,
    context::Context,
    credentials::token,
    failure::Failure,
    farm::Place,
    local::{OwnersWay, state_folder},
    signals,
};
use planforge_agent::{AgentConfig, HostDevices};
use std::{path::PathBuf, sync::Arc};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name under which the farm knows this agent; the host's by default
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Folder of this agent's own state; DATA/agent by default
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Folder of the locks of devices and cores, the same for every agent and container of one host; PLANFORGE_LOCK_DIR names it too
    #[arg(long, value_name = "DIR")]
    lock_dir: Option<PathBuf>,
    /// Fail jobs that need plugins, which are native code, whatever the farm allows
    #[arg(long)]
    refuse_plugins: bool,
    /// Longest one build with its measurement may run, in seconds; a job of several builds may run as often as long
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    job_limit_s: Option<u64>,
    /// How long running jobs may go on after SIGTERM, in seconds
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(0..=604_800))]
    drain_s: Option<u64>,
    /// Longest one measurement may take, in seconds, even where comparisons need more
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    measure_budget_s: Option<u64>,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let data = context.settings.data_folder()?;
    let endpoint = match Place::choose(&context.settings)? {
        Place::Server(endpoint) => endpoint,
        Place::ThisMachine(_) => {
            return Err(Failure::usage("which coordinator? no --server was given").hint(
                "planforge agent --server https://HOST:PORT --ca FILE --token-file FILE; planforge up needs none",
            ));
        }
    };
    let state = args.state.unwrap_or_else(|| state_folder(&data));
    let devices = Arc::new(HostDevices::new(backends::compilers(), Some(state.clone())));
    let token = token(&context.settings)?;
    // Not looked at further: a coordinator that does not answer now may do so soon, and the agent tries until then.
    let way = if token.is_none() { OwnersWay::find(&endpoint)? } else { None };
    let endpoint = way.as_ref().map_or(endpoint, |way| way.endpoint.clone());
    let mut config = AgentConfig::new(endpoint, token, state, devices)?;
    if let Some(name) = args.name {
        config.name = name;
    }
    if let Some(lock_dir) = args.lock_dir {
        config.lock_dir = lock_dir;
    }
    config.refuse_plugins = args.refuse_plugins;
    const MS_PER_S: u64 = 1000;
    let limits = &mut config.limits;
    limits.job_ms = args.job_limit_s.map_or(limits.job_ms, |s| s * MS_PER_S);
    limits.drain_ms = args.drain_s.map_or(limits.drain_ms, |s| s * MS_PER_S);
    if let Some(asked_s) = args.measure_budget_s {
        (limits.measure_budget_ms, limits.strict_measure_budget) = (asked_s * MS_PER_S, true);
    }
    context.printer.note(&format!("agent {} for {}", config.name, config.endpoint));
    planforge_agent::run(config, signals::interrupted()).await?;
    Ok(())
}
