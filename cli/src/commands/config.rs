//! `planforge config`: whether `planforge.toml` is right, what it may say, and what the farm knows of it.

use crate::{
    context::Context,
    declared::{Inputs, Project, setting_keys},
    failure::Failure,
    farm::{Farm, Need},
    lists,
    settings::{Key, PROJECT_FILE},
    tables,
};
use clap::Subcommand;
use planforge_fleet::{declaration::Source, schema};
use planforge_proto::{ErrorCode, v1, view::DeclarationView};
use std::collections::BTreeSet;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Read planforge.toml and every file that it names; what is wrong is said with file and line
    Check,
    /// Print the JSON Schema of planforge.toml, for editors
    Schema,
    /// List which engines should exist, as the farm knows it: what each repository's last sync declared
    Farm {
        /// Only this repository, cell by cell
        #[arg(value_name = "REPOSITORY")]
        name: Option<String>,
    },
    /// Have the farm forget what a repository declared that is no more
    Forget {
        /// As 'planforge config farm' lists it
        #[arg(value_name = "REPOSITORY")]
        name: String,
    },
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Check => check(context),
        Action::Schema => {
            let schema = schema::schema(&setting_keys());
            let text = serde_json::to_string_pretty(&schema).unwrap_or_default();
            context.printer.data(&text)?;
            context.printer.object(&schema)
        }
        Action::Farm { name } => context.block_on(declared(context, name)),
        Action::Forget { name } => context.block_on(forget(context, name)),
    }
}

fn check(context: &Context<'_>) -> Result<(), Failure> {
    let Some(project) = Project::find()? else {
        return Err(Failure::usage(format!("there is no {PROJECT_FILE} in this folder or above it")));
    };
    let declaration = &project.declaration;
    let inputs = Inputs::of(context, &project)?;
    if declaration.names_every_sku() {
        // Classes stand for what the farm has, which sync and check ask.
        let cells = declaration.cells(&BTreeSet::new(), &project.boards);
        let cells = cells.map_err(|error| Failure::usage(error.to_string()).hint(error.hint()))?;
        if let Some((one, other)) = declaration.layout.collision(&cells) {
            let file = declaration.layout.file(one);
            return Err(Failure::usage(format!("the engines of {one} and of {other} would both be {file}"))
                .hint("name {model}, {sku} and {spec} in layout.file"));
        }
    }
    let mut rows = tables::table(&["model", "from", "digest", "targets", "specs"]);
    let mut models = Vec::new();
    for (name, model) in &declaration.models {
        let from = match &model.source {
            Source::Path(path) => path.clone(),
            Source::Url { url, .. } => url.clone(),
        };
        let digest = inputs.models[name].to_string();
        let targets: Vec<String> = model.targets.iter().map(ToString::to_string).collect();
        rows.add_row([name, &from, tables::short(&digest), &targets.join(", "), &model.specs.join(", ")]);
        models.push(serde_json::json!({
            "name": name, "from": from, "digest": digest, "targets": targets, "specs": model.specs,
        }));
    }
    if models.is_empty() {
        context.printer.note("settings alone: no models are declared");
    } else {
        context.printer.data(&tables::render(rows, &[]))?;
    }
    context.printer.note(&format!("{} is right", project.folder.join(PROJECT_FILE).display()));
    let lock = project.lock()?.map(|lock| lock.cells.len());
    context.printer.object(&serde_json::json!({
        "file": project.folder.join(PROJECT_FILE),
        "models": models,
        "specs": declaration.specs.keys().collect::<Vec<_>>(),
        "locked_engines": lock,
    }))
}

fn project(context: &Context<'_>) -> String {
    context.settings.get(Key::Project).unwrap_or_default().into()
}

async fn declared(context: &Context<'_>, name: Option<String>) -> Result<(), Failure> {
    let request = v1::ListDeclarationsRequest {
        project: project(context),
        name: name.clone().unwrap_or_default(),
        ..Default::default()
    };
    let found =
        Farm::with(context, Need::Answers, async |farm| lists::declarations(farm, request.clone()).await).await?;
    let printer = context.printer;
    match (&name, found.is_empty()) {
        (None, true) => printer.note("nothing is declared: planforge sync tells the farm what planforge.toml says"),
        (Some(name), true) => {
            return Err(Failure::new(ErrorCode::NotFound, format!("the farm knows no repository '{name}'"))
                .hint("planforge config farm lists those that it knows"));
        }
        (None, false) => printer.data(&tables::declared::repositories(&found, tables::now_ms()))?,
        (Some(_), false) => printer.data(&tables::declared::cells(&found))?,
    }
    let views: Vec<DeclarationView> = found.into_iter().map(Into::into).collect();
    printer.object(&serde_json::json!({ "declarations": views }))
}

async fn forget(context: &Context<'_>, name: String) -> Result<(), Failure> {
    let request = v1::DeclareEnginesRequest { project: project(context), name: name.clone(), ..Default::default() };
    Farm::with(context, Need::Answers, async |farm| {
        farm.rpc().declare_engines(request.clone()).await.map(drop).map_err(|e| farm.error(e))
    })
    .await?;
    context.printer.note(&format!("the farm has forgotten what {name} declared"));
    context.printer.object(&serde_json::json!({ "forgotten": name }))
}
