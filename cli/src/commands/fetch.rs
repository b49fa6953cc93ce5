//! `planforge fetch`: a finished engine, verified, complete or not at all.

use crate::{
    context::Context,
    failure::Failure,
    farm::{Farm, Need},
    older::{self, OlderCompiler},
    plans,
    request::models,
    settings::Key,
    tables,
};
use planforge_proto::{ErrorCode, v1, view::EngineView};
use planforge_types::{BuildSpec, Digest, Sku, ToolchainConstraint};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// ONNX file, or digest of a model, engine key or plan
    #[arg(value_name = "MODEL|DIGEST")]
    what: String,
    /// Device kind that the engine was built for; needed to find it by model
    #[arg(long, value_name = "SKU")]
    sku: Option<Sku>,
    /// Only an engine of this toolchain, such as native or 'tensorrt>=10.3,<11'
    #[arg(long, value_name = "CONSTRAINT")]
    toolchain: Option<ToolchainConstraint>,
    /// Only an engine of this build spec, a JSON document; any, newest first, by default
    #[arg(long, value_name = "JSON", value_parser = parse_spec)]
    spec: Option<BuildSpec>,
    /// File or folder for the plan; MODEL.SKU.plan here by default
    #[arg(short, long, value_name = "DIR|FILE")]
    output: Option<PathBuf>,
    /// Write the engine card, the facts of the build, beside the plan
    #[arg(long)]
    card: bool,
    /// Fetch an engine even when its outputs differ from the reference
    #[arg(long)]
    allow_inaccurate: bool,
}

fn parse_spec(text: &str) -> Result<BuildSpec, String> {
    serde_json::from_str(text).map_err(|e| format!("not a build spec: {e}"))
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let wanted = Wanted::of(context, &args.what)?;
    if matches!(wanted, Wanted::Model { .. }) && args.sku.is_none() {
        return Err(Failure::usage("which engine of the model? no --sku was given")
            .hint("planforge engines lists what is there; planforge devices lists the flags"));
    }
    let fetched = Farm::with(context, Need::Answers, async |farm| fetch(context, farm, args, wanted).await);
    context.block_on(fetched)
}

/// The command's JSON object; scripts read its first members line by line.
#[derive(serde::Serialize)]
struct Fetched<'a> {
    path: &'a Path,
    plan_digest: String,
    card_path: Option<&'a Path>,
    engine: EngineView,
    /// Of the newest engine of a model, when a newer compiler would build another.
    #[serde(skip_serializing_if = "Option::is_none")]
    older_compiler: Option<OlderCompiler>,
}

/// What the argument stands for.
enum Wanted {
    Model {
        digest: String,
        name: String,
    },
    /// A digest that says nothing of what it is the digest of.
    Digest(Digest),
}

impl Wanted {
    fn of(context: &Context<'_>, what: &str) -> Result<Self, Failure> {
        let path = Path::new(what);
        if let (Ok(digest), false) = (what.parse(), path.exists()) {
            return Ok(Self::Digest(digest));
        }
        let local = models::identify(&context.settings, path)?;
        Ok(Self::Model { digest: local.model.digest, name: local.model.name })
    }
}

async fn fetch(context: &Context<'_>, farm: &Farm, args: Args, wanted: Wanted) -> Result<(), Failure> {
    let base = v1::FindEngineRequest {
        sku: args.sku.as_ref().map(ToString::to_string).unwrap_or_default(),
        spec_json: match &args.spec {
            Some(spec) => crate::request::spec_documents(std::slice::from_ref(spec))?.remove(0),
            None => String::new(),
        },
        toolchain: args.toolchain.as_ref().map(ToString::to_string).unwrap_or_default(),
        allow_inaccurate: args.allow_inaccurate,
        project: context.settings.get(Key::Project).unwrap_or_default().into(),
        ..Default::default()
    };
    let Found { engine, by_model } = find(farm, base, &args, &wanted).await?;
    // Whoever names a key or a plan knows which one it is.
    let older_compiler = match by_model {
        true => OlderCompiler::of(&engine, &older::devices(farm).await),
        false => None,
    };
    if !engine.inputs_digest.is_empty() {
        context.printer.warn(&format!(
            "this engine's outputs were compared on given inputs sha256:{} when it was built, not on made ones",
            tables::short(&engine.inputs_digest)
        ));
    }
    let digest = engine.plan_digest.parse().map_err(|e| {
        Failure::new(ErrorCode::Internal, format!("the coordinator names the plan by something else: {e}"))
    })?;
    let name = plans::file_name(engine.model.as_ref(), &engine.sku);
    let path = plans::destination(args.output.as_deref().unwrap_or(Path::new("./")), &name);
    plans::download(context, farm, digest, engine.plan_bytes, &path).await?;
    let mut card_path = None;
    if args.card {
        let digest = engine.card_digest.parse().map_err(|_| {
            Failure::new(ErrorCode::NotFound, format!("the engine {} has no card", tables::short(&engine.engine_key)))
        })?;
        let mut name = path.clone().into_os_string();
        name.push(".card.json");
        let card = PathBuf::from(name);
        plans::download(context, farm, digest, 0, &card).await?;
        card_path = Some(card);
    }
    context.printer.data(&path.display().to_string())?;
    context.printer.note(&format!(
        "{} for {}: {}, sha256:{} verified",
        tables::model_name(engine.model.as_ref()),
        engine.sku,
        tables::bytes(engine.plan_bytes),
        engine.plan_digest
    ));
    if engine.simulated {
        context
            .printer
            .warn("simulated: a scripted device built this, so it is no engine and its numbers mean nothing");
    }
    if let Some(older) = &older_compiler {
        older.tell(&engine, context.printer);
    }
    context.printer.object(&Fetched {
        path: &path,
        card_path: card_path.as_deref(),
        plan_digest: engine.plan_digest.clone(),
        engine: EngineView::from(engine),
        older_compiler,
    })
}

struct Found {
    engine: v1::Engine,
    /// As the newest of its model.
    by_model: bool,
}

async fn find(farm: &Farm, base: v1::FindEngineRequest, args: &Args, wanted: &Wanted) -> Result<Found, Failure> {
    let (tries, described) = match wanted {
        Wanted::Model { digest, name } => {
            let by_model = v1::FindEngineRequest { model_digest: digest.clone(), ..base };
            (vec![by_model], format!("{name} (sha256:{})", tables::short(digest)))
        }
        Wanted::Digest(digest) => {
            let text = digest.to_string();
            let by_plan = v1::FindEngineRequest { plan_digest: text.clone(), ..base.clone() };
            let by_key = v1::FindEngineRequest { engine_key: text.clone(), ..base.clone() };
            let by_model = v1::FindEngineRequest { model_digest: text.clone(), ..base };
            let mut tries = vec![by_plan, by_key];
            if args.sku.is_some() {
                tries.insert(0, by_model);
            }
            (tries, format!("sha256:{}", digest.short()))
        }
    };
    for request in tries {
        let by_model = !request.model_digest.is_empty();
        match farm.rpc().find_engine(request).await.map_err(|e| farm.error(e)) {
            Ok(engine) => return Ok(Found { engine: engine.into_inner(), by_model }),
            Err(failure) if failure.name == ErrorCode::NotFound.name() => {}
            Err(failure) => return Err(failure),
        }
    }
    if let (Wanted::Digest(digest), Some(sku)) = (wanted, &args.sku) {
        refuse_other_sku(farm, digest, sku).await?;
    }
    let sku = args.sku.as_ref().map(|sku| format!(" for {sku}")).unwrap_or_default();
    let mut message = format!("no engine of {described}{sku}");
    if let Some(toolchain) = &args.toolchain {
        message.push_str(&format!(" with {toolchain}"));
    }
    let hint = match wanted {
        Wanted::Model { .. } => format!("build it with: planforge submit {}{} --wait", args.what, flag(args)),
        Wanted::Digest(_) => "planforge engines lists what is there".to_owned(),
    };
    Err(Failure::new(ErrorCode::NotFound, message).hint(hint))
}

/// A plan or engine that is there, but for another device kind than `sku`, is refused by name.
async fn refuse_other_sku(farm: &Farm, digest: &Digest, sku: &Sku) -> Result<(), Failure> {
    let by_plan = v1::FindEngineRequest { plan_digest: digest.to_string(), ..Default::default() };
    let by_key = v1::FindEngineRequest { engine_key: digest.to_string(), ..Default::default() };
    for request in [by_plan, by_key] {
        let Ok(reply) = farm.rpc().find_engine(v1::FindEngineRequest { allow_inaccurate: true, ..request }).await
        else {
            continue;
        };
        let engine = reply.into_inner();
        if engine.sku != sku.as_str() {
            let message = format!("sha256:{} is an engine for {}, not for {sku}", digest.short(), engine.sku);
            return Err(Failure::new(ErrorCode::Refused, message).hint(format!(
                "an engine runs best, and often only, where it was built: planforge fetch MODEL --sku {sku}"
            )));
        }
    }
    Ok(())
}

fn flag(args: &Args) -> String {
    args.sku.as_ref().map(|sku| format!(" --sku {sku}")).unwrap_or_default()
}
