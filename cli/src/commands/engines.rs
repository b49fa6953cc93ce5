//! `planforge engines`: finished engines, newest first.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    lists,
    older::{self, OlderCompiler},
    settings::Key,
    tables,
};
use planforge_proto::{v1, view::EngineView};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only engines of this model, by name or beginning of its digest
    #[arg(default_value = "", hide_default_value = true)]
    model: String,
    /// Only engines for this device kind
    #[arg(long, value_name = "SKU", default_value = "", hide_default_value = true)]
    sku: String,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: u32,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let request = v1::ListEnginesRequest {
        model: args.model,
        sku: args.sku,
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        limit: args.limit,
        ..Default::default()
    };
    let found = Farm::with(context, Need::Answers, async |farm| {
        Ok((lists::page_of_engines(farm, request).await?, older::devices(farm).await))
    });
    let (page, devices) = found.await?;
    let (engines, more) = (page.rows, page.more);
    if engines.is_empty() {
        context.printer.note("no engines");
    } else {
        context.printer.data(&tables::engines(&engines, tables::now_ms()))?;
    }
    if more {
        context.printer.note(&tables::there_are_more(engines.len(), "engines"));
    }
    let engines: Vec<Listed> = engines.into_iter().map(|engine| Listed::of(engine, &devices)).collect();
    let older = engines.iter().filter(|listed| listed.older_compiler.is_some()).count();
    if older > 0 {
        context.printer.note(&format!(
            "{older} of them by an older compiler: another revision of native would build them now (--json says which)"
        ));
    }
    context.printer.object(&serde_json::json!({ "engines": engines, "more": more }))
}

/// An engine, and whether a newer compiler would build another.
#[derive(serde::Serialize)]
struct Listed {
    #[serde(flatten)]
    engine: EngineView,
    #[serde(skip_serializing_if = "Option::is_none")]
    older_compiler: Option<OlderCompiler>,
}

impl Listed {
    fn of(engine: v1::Engine, devices: &[v1::Device]) -> Self {
        Self { older_compiler: OlderCompiler::of(&engine, devices), engine: EngineView::from(engine) }
    }
}
