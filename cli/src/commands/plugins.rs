//! `planforge plugins`: which plugin libraries, native code, this farm's workers may load.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    request::models,
    tables,
};
use clap::Subcommand;
use planforge_proto::{v1, view::PluginView};
use planforge_types::Digest;
use std::path::Path;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// List what is allowed, and by whom
    List,
    /// Let build specs name a plugin: its code will run on every agent that builds with it
    Allow {
        /// The library, or its SHA-256
        #[arg(value_name = "FILE|DIGEST")]
        plugin: String,
    },
    /// Take it back: jobs that wait with the plugin fail, what runs goes on
    Forbid {
        /// The library, or its SHA-256
        #[arg(value_name = "FILE|DIGEST")]
        plugin: String,
    },
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    Farm::with(context, Need::Answers, async |farm| act(context, farm, args.action.clone()).await).await
}

/// Digest, and name where it is a file.
fn named(plugin: &str) -> Result<(String, String), Failure> {
    let path = Path::new(plugin);
    if !path.exists()
        && let Ok(digest) = plugin.parse::<Digest>()
    {
        return Ok((digest.to_string(), String::new()));
    }
    let (digest, _) = models::hash(path)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok((digest, name))
}

async fn act(context: &Context<'_>, farm: &Farm, action: Action) -> Result<(), Failure> {
    match action {
        Action::List => {
            let reply = farm.rpc().list_plugins(v1::ListPluginsRequest {}).await;
            let plugins = reply.map_err(|e| farm.error(e))?.into_inner().plugins;
            context.printer.data(&tables::plugins(&plugins, tables::now_ms()))?;
            let plugins: Vec<_> = plugins.into_iter().map(PluginView::from).collect();
            context.printer.object(&serde_json::json!({ "plugins": plugins }))
        }
        Action::Allow { plugin } => {
            let (digest, name) = named(&plugin)?;
            let reply = farm.rpc().allow_plugin(v1::AllowPluginRequest { digest, name }).await;
            let plugin = reply.map_err(|e| farm.error(e))?.into_inner().plugin.unwrap_or_default();
            context.printer.note(&format!("the plugin sha256:{} is allowed", plugin.digest));
            context.printer.object(&serde_json::json!({ "plugin": PluginView::from(plugin) }))
        }
        Action::Forbid { plugin } => {
            let (digest, _) = named(&plugin)?;
            let reply = farm.rpc().forbid_plugin(v1::ForbidPluginRequest { digest }).await;
            let plugin = reply.map_err(|e| farm.error(e))?.into_inner().plugin.unwrap_or_default();
            context.printer.note(&format!("the plugin sha256:{} is not allowed any more", plugin.digest));
            context.printer.object(&serde_json::json!({ "plugin": PluginView::from(plugin) }))
        }
    }
}
