//! `planforge caches`: the timing and tactic caches that the farm keeps.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    tables,
};
use clap::Subcommand;
use planforge_proto::{v1, view::CacheView};
use planforge_types::Sku;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// List the newest cache of each device kind and toolchain, and the build it came from
    List {
        /// Only of this device kind
        #[arg(long, value_name = "SKU")]
        sku: Option<Sku>,
    },
    /// Let the next build begin without it, whatever copies agents still have
    Drop {
        /// Scope of the cache as `list` shows it, or its first characters
        scope: String,
    },
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    Farm::with(context, Need::Answers, async |farm| act(context, farm, args.action.clone()).await).await
}

async fn act(context: &Context<'_>, farm: &Farm, action: Action) -> Result<(), Failure> {
    match action {
        Action::List { sku } => {
            let sku = sku.as_ref().map(ToString::to_string).unwrap_or_default();
            let reply = farm.rpc().list_caches(v1::ListCachesRequest { sku }).await;
            let caches = reply.map_err(|e| farm.error(e))?.into_inner().caches;
            context.printer.data(&tables::caches(&caches, tables::now_ms()))?;
            let caches: Vec<_> = caches.into_iter().map(CacheView::from).collect();
            context.printer.object(&serde_json::json!({ "caches": caches }))
        }
        Action::Drop { scope } => {
            let reply = farm.rpc().drop_cache(v1::DropCacheRequest { scope }).await;
            let cache = reply.map_err(|e| farm.error(e))?.into_inner().cache.unwrap_or_default();
            context.printer.note(&format!(
                "the timing cache of {} with {} is dropped: its next build begins without one",
                cache.sku,
                tables::toolchain(&cache.toolchain_json)
            ));
            context.printer.object(&serde_json::json!({ "cache": CacheView::from(cache) }))
        }
    }
}
