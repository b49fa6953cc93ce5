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
    /// At most this many, newest first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// All of them
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub async fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let request = v1::ListEnginesRequest {
        model: args.model,
        sku: args.sku,
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        limit: if args.all { u32::MAX } else { args.limit },
        with_total: true,
        ..Default::default()
    };
    let found = Farm::with(context, Need::Answers, async |farm| {
        Ok((lists::page_of_engines(farm, request.clone()).await?, older::devices(farm).await))
    });
    let (page, devices) = found.await?;
    let (rest, more, total) = (page.rest("engines"), page.more, page.total);
    let engines = page.rows;
    if engines.is_empty() {
        context.printer.note("no engines");
    } else {
        context.printer.data(&tables::engines(&engines, tables::now_ms()))?;
    }
    if let Some(rest) = rest {
        context.printer.note(&rest);
    }
    let engines: Vec<Listed> = engines.into_iter().map(|engine| Listed::of(engine, &devices)).collect();
    let older = engines.iter().filter(|listed| listed.older_compiler.is_some()).count();
    if older > 0 {
        context.printer.note(&format!(
            "{older} of them by an older compiler: another revision of native would build them now (--json says which)"
        ));
    }
    context.printer.object(&serde_json::json!({ "engines": engines, "more": more, "total": total }))
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
