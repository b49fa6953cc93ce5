//! `planforge pins`: who of a project wants which engine kept, and until when.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    lists,
    request::models,
    settings::Key,
    tables,
};
use clap::Subcommand;
use planforge_proto::{ErrorCode, v1, view::PinView};
use planforge_types::Digest;
use std::path::Path;

const DAY_S: u64 = 24 * 60 * 60;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// List pins, newest first
    List {
        /// Only those of this token
        #[arg(long, value_name = "NAME")]
        owner: Option<String>,
        /// Rows to show
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// All of them
        #[arg(long, conflicts_with = "limit")]
        all: bool,
    },
    /// Want engines kept; a pin that is there already lasts longer by it, never shorter
    Add {
        /// Plan files, or digests of plans or engine keys
        #[arg(value_name = "PLAN|DIGEST", required = true)]
        plans: Vec<String>,
        /// For so long from now on
        #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=3_660))]
        days: u64,
        /// Why, for people
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
    },
    /// Take pins away
    Remove {
        /// Plan files, or digests of plans or engine keys
        #[arg(value_name = "PLAN|DIGEST", required = true)]
        plans: Vec<String>,
        /// Of this token instead of one's own; needs role admin
        #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
        owner: String,
    },
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    Farm::with(context, Need::Answers, async |farm| act(context, farm, args.action.clone()).await).await
}

async fn act(context: &Context<'_>, farm: &Farm, action: Action) -> Result<(), Failure> {
    let printer = context.printer;
    let project: String = context.settings.get(Key::Project).unwrap_or_default().into();
    let views = |pins: Vec<v1::Pin>| pins.into_iter().map(PinView::from).collect::<Vec<_>>();
    match action {
        Action::List { owner, limit, all } => {
            let (owner, limit) = (owner.unwrap_or_default(), if all { u32::MAX } else { limit });
            let request = v1::ListPinsRequest { project, owner, limit, ..Default::default() };
            let page = lists::page_of_pins(farm, request).await?;
            let rest = page.rest("pins");
            match page.rows.is_empty() {
                true => printer.note("no pins: planforge sync and planforge check pin what engines.lock names"),
                false => printer.data(&tables::declared::pins(&page.rows, tables::now_ms()))?,
            }
            if let Some(rest) = rest {
                printer.note(&rest);
            }
            printer.object(&serde_json::json!({ "pins": views(page.rows), "more": page.more }))
        }
        Action::Add { plans, days, reason } => {
            let plan_digests = plans_of(context, farm, &plans).await?;
            let request = v1::PinEnginesRequest { project, plan_digests, reason, ttl_s: days * DAY_S };
            let reply = farm.rpc().pin_engines(request).await.map_err(|e| farm.error(e))?.into_inner();
            printer.data(&tables::declared::pins(&reply.pins, tables::now_ms()))?;
            printer.object(&serde_json::json!({ "pins": views(reply.pins), "unknown": reply.unknown }))?;
            match reply.unknown.as_slice() {
                [] => Ok(()),
                unknown => {
                    let message = format!("not pinned, for the project does not have them: {}", unknown.join(", "));
                    Err(Failure::new(ErrorCode::NotFound, message).hint("planforge engines lists what is there"))
                }
            }
        }
        Action::Remove { plans, owner } => {
            let plan_digests = plans_of(context, farm, &plans).await?;
            let request = v1::UnpinEnginesRequest { project, plan_digests, owner };
            let reply = farm.rpc().unpin_engines(request).await.map_err(|e| farm.error(e))?.into_inner();
            printer.note(&format!("{} pins are gone", reply.pins.len()));
            printer.object(&serde_json::json!({ "removed": views(reply.pins) }))
        }
    }
}

/// Digests of the plans that are named by file, by digest, or by their engine's key.
async fn plans_of(context: &Context<'_>, farm: &Farm, named: &[String]) -> Result<Vec<String>, Failure> {
    let mut plans = Vec::with_capacity(named.len());
    for text in named {
        let path = Path::new(text);
        let Ok(digest) = text.parse::<Digest>() else {
            plans.push(models::hash(path)?.0);
            continue;
        };
        let request = v1::FindEngineRequest {
            engine_key: digest.to_string(),
            allow_inaccurate: true,
            project: context.settings.get(Key::Project).unwrap_or_default().into(),
            ..Default::default()
        };
        match farm.rpc().find_engine(request).await.map_err(|e| farm.error(e)) {
            Ok(engine) => plans.push(engine.into_inner().plan_digest),
            // No key, so it is the plan itself.
            Err(failure) if [ErrorCode::NotFound, ErrorCode::Gone].map(ErrorCode::name).contains(&failure.name) => {
                plans.push(digest.to_string());
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(plans)
}
