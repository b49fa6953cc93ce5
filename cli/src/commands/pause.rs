//! `planforge pause` and `planforge resume`: device kinds, projects and agents that get no more jobs for a while, or in
//! windows that come again.

use crate::{
    ages,
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    tables, times,
};
use clap::Subcommand;
use planforge_proto::{v1, view::PauseView};

const MINUTE_MS: u64 = 60_000;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// List what is paused
    List,
    /// Have jobs for a device kind wait; what runs goes on
    Sku(Asked),
    /// Have the jobs of a project wait; those that another project asked for too go on
    Project(Asked),
    /// Give an agent no jobs
    Agent(Asked),
}

#[derive(Clone, Debug, clap::Args)]
struct Asked {
    /// Device kind, project, or id or name of the agent
    name: String,
    /// How long, such as 2h; without it and --until, until it is resumed
    #[arg(long = "for", value_name = "AGE", value_parser = ages::parse, conflicts_with = "until")]
    for_ms: Option<u64>,
    /// Until when, UTC, such as 2026-11-26T18:00Z
    #[arg(long, value_name = "TIME", value_parser = times::parse)]
    until: Option<u64>,
    /// Why, for those who wait
    #[arg(long, value_name = "WORDS", default_value = "", hide_default_value = true)]
    reason: String,
    /// Again and again: 'day', or days such as sat,sun; --at says when, --for how long
    #[arg(long, value_name = "DAYS", value_parser = times::days, requires = "at", requires = "for_ms")]
    every: Option<times::Days>,
    /// With --every: the time of the day, UTC, such as 22:00
    #[arg(long, value_name = "HH:MM", value_parser = times::minute_of_day, requires = "every")]
    at: Option<u32>,
}

/// Arguments of `resume`.
#[derive(Debug, clap::Args)]
pub struct ResumeArgs {
    #[command(subcommand)]
    action: Resumed,
}

#[derive(Clone, Debug, Subcommand)]
enum Resumed {
    /// Let jobs for a device kind run again
    Sku(Named),
    /// Let the jobs of a project run again
    Project(Named),
    /// Give an agent jobs again that was paused
    Agent(Named),
}

#[derive(Clone, Debug, clap::Args)]
struct Named {
    /// Device kind, project, or id or name of the agent
    name: String,
    /// Take back the window that comes again, not the pause beside it
    #[arg(long)]
    window: bool,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    Farm::with(context, Need::Lasting, async |farm| match args.action.clone() {
        Action::List => list(context, farm).await,
        Action::Sku(asked) => pause(context, farm, "sku", asked).await,
        Action::Project(asked) => pause(context, farm, "project", asked).await,
        Action::Agent(asked) => pause(context, farm, "agent", asked).await,
    })
    .await
}

async fn list(context: &Context<'_>, farm: &Farm) -> Result<(), Failure> {
    let reply = farm.rpc().list_pauses(v1::ListPausesRequest {}).await;
    let pauses = reply.map_err(|e| farm.error(e))?.into_inner().pauses;
    if pauses.is_empty() {
        context.printer.note("nothing is paused");
    } else {
        context.printer.data(&tables::pauses(&pauses))?;
    }
    let pauses: Vec<_> = pauses.into_iter().map(PauseView::from).collect();
    context.printer.object(&serde_json::json!({ "pauses": pauses }))
}

async fn pause(context: &Context<'_>, farm: &Farm, kind: &str, asked: Asked) -> Result<(), Failure> {
    let Asked { name, for_ms, until, reason, every, at } = asked;
    let for_ms = for_ms.unwrap_or_default();
    let window = every.zip(at).map(|(days, start_minute)| v1::PauseWindow {
        days: days.0,
        start_minute,
        minutes: u32::try_from(for_ms / MINUTE_MS).unwrap_or(u32::MAX),
    });
    let for_ms = if window.is_some() { 0 } else { for_ms };
    let until_ms = until.unwrap_or_default();
    let request = v1::PauseRequest { kind: kind.into(), name, reason, for_ms, until_ms, window };
    let reply = farm.rpc().pause(request).await.map_err(|e| farm.error(e))?.into_inner();
    let pause = reply.pause.unwrap_or_default();
    context.printer.note(&format!("{} {} is paused {}", pause.kind, pause.shown, tables::pause_time(&pause)));
    context.printer.object(&serde_json::json!({ "pause": PauseView::from(pause) }))
}

pub async fn resume(context: &Context<'_>, args: ResumeArgs) -> Result<(), Failure> {
    let (kind, Named { name, window }) = match args.action {
        Resumed::Sku(named) => ("sku", named),
        Resumed::Project(named) => ("project", named),
        Resumed::Agent(named) => ("agent", named),
    };
    Farm::with(context, Need::Lasting, async |farm| {
        let request = v1::ResumeRequest { kind: kind.into(), name: name.clone(), window };
        let reply = farm.rpc().resume(request).await.map_err(|e| farm.error(e))?.into_inner();
        let pause = reply.pause.unwrap_or_default();
        context.printer.note(&format!("{} {} gets jobs again", pause.kind, pause.shown));
        context.printer.object(&serde_json::json!({ "resumed": PauseView::from(pause) }))
    })
    .await
}
