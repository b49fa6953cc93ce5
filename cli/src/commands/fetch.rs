//! `planforge fetch`: finished engines, verified, each whole or not at all.
//!
//! In a project that has a lock, the engines that are locked; otherwise the newest of a model's default spec, unless one
//! is named: what somebody tried beside it never answers.

mod choose;
mod compatible;
mod deliver;
mod locked;
mod newest;
mod stand_in;

use crate::{
    context::Context,
    declared::{Inputs, Project},
    failure::Failure,
    settings::Key,
};
use planforge_types::{BuildSpec, Sku, ToolchainConstraint};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model by its name in planforge.toml or its ONNX file, or digest of a model, engine key or plan; every model of
    /// engines.lock by default
    #[arg(value_name = "MODEL|DIGEST")]
    what: Option<String>,
    /// Device kind that the engine is for; this machine's devices by default; repeat for several [env: PLANFORGE_SKUS]
    #[arg(long = "sku", value_name = "SKU", value_delimiter = ',')]
    skus: Vec<Sku>,
    /// Only an engine of this toolchain, such as native or 'tensorrt>=10.3,<11'; asks the farm, not the lock
    #[arg(long, value_name = "CONSTRAINT")]
    toolchain: Option<ToolchainConstraint>,
    /// Only engines of this spec: a name of planforge.toml, or a JSON document, which asks the farm; the lock's specs, else
    /// the default spec, by default
    #[arg(long, value_name = "NAME|JSON", value_parser = parse_spec)]
    spec: Option<Spec>,
    /// File or folder for the plans; the project's layout, else MODEL.DIGEST.SKU.plan here, by default
    #[arg(short, long, value_name = "DIR|FILE")]
    output: Option<PathBuf>,
    /// Write the engine card, the facts of the build, beside the plan
    #[arg(long)]
    card: bool,
    /// Fetch an engine even when its outputs differ from the reference
    #[arg(long)]
    allow_inaccurate: bool,
    /// Ask the farm, whatever engines.lock says
    #[arg(long)]
    unlocked: bool,
    /// Take locked engines from a copy of the farm's blobs and ask no coordinator: the folder that holds sha256/, or its URL;
    /// where the environment or planforge.toml names one, it answers while the coordinator is away [env: PLANFORGE_BLOBS]
    #[arg(long, value_name = "DIR|URL", conflicts_with_all = ["unlocked", "card", "toolchain"])]
    blobs: Option<String>,
    /// Read engines that are here already, instead of trusting that nobody touched them since they were fetched
    #[arg(long)]
    verify: bool,
    /// Where nothing was built for a device kind that is named, nor measured there, take the engine of one that this file shows
    /// to be interchangeable with it: what `planforge matrix -o FILE.json` wrote of three models and more. Said, and written
    /// to engines.lock
    #[arg(long, value_name = "FILE.json")]
    classes: Option<PathBuf>,
    /// Say of every engine that was considered why it was taken or not
    #[arg(long)]
    explain: bool,
}

/// What `--spec` names.
#[derive(Clone, Debug)]
enum Spec {
    Name(String),
    Document(Box<BuildSpec>),
}

fn parse_spec(text: &str) -> Result<Spec, String> {
    if !text.trim_start().starts_with('{') {
        return Ok(Spec::Name(text.to_owned()));
    }
    BuildSpec::parse(text).map(|spec| Spec::Document(Box::new(spec))).map_err(|error| error.to_string())
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let project = Project::find()?;
    let lock = match (&project, args.unlocked) {
        (Some(project), false) => project.lock()?,
        _ => None,
    };
    if let (Some(project), Some(lock)) = (&project, &lock)
        && let Some(chosen) = locked::choose(context, &args, project, lock)?
    {
        return locked::run(context, &args, project, chosen);
    }
    if args.blobs.is_some() {
        return Err(Failure::usage("--blobs has bytes alone: which engine is meant has to stand in engines.lock")
            .hint("planforge sync writes it, where a coordinator is"));
    }
    let Some(what) = args.what.clone() else {
        let failure = Failure::usage("which model? none was named, and no engines.lock is here that names all");
        return Err(
            failure.hint("planforge fetch MODEL takes a model's default engine; planforge sync writes engines.lock")
        );
    };
    let asked = Asked::of(context, &args, project.as_ref())?;
    newest::run(context, &args, &what, &asked)
}

/// What is asked of an engine that the lock does not name.
#[derive(Debug)]
struct Asked {
    /// `None` for the default one.
    spec: Option<BuildSpec>,
    /// As the declaration calls it.
    spec_name: Option<String>,
    toolchain: ToolchainConstraint,
}

impl Asked {
    fn of(context: &Context<'_>, args: &Args, project: Option<&Project>) -> Result<Self, Failure> {
        let mut asked = Self { spec: None, spec_name: None, toolchain: args.toolchain.clone().unwrap_or_default() };
        match &args.spec {
            None => {}
            Some(Spec::Document(spec)) => asked.spec = Some((**spec).clone()),
            Some(Spec::Name(name)) => {
                let declared =
                    project.and_then(|project| project.declaration.specs.get(name).map(|spec| (project, spec)));
                let Some((project, spec)) = declared else {
                    let known = project.map(|project| project.declaration.specs.keys().cloned().collect::<Vec<_>>());
                    let failure = Failure::usage(format!("no spec is called '{name}'"));
                    return Err(match known {
                        Some(known) => failure.hint(format!("planforge.toml has {}", known.join(", "))),
                        None => failure.hint("specs have names in planforge.toml; a JSON document begins with '{'"),
                    });
                };
                asked.spec = Inputs::of(context, project)?.specs.remove(name);
                asked.spec_name = Some(name.clone());
                if args.toolchain.is_none() {
                    asked.toolchain = spec.toolchain.clone();
                }
            }
        }
        Ok(asked)
    }
}

/// For which device kinds engines are wanted.
#[derive(Clone, Debug)]
enum For {
    /// These, by flags or settings.
    Named(Vec<Sku>),
    /// The best of what each of this machine's devices can run: their kinds, best last.
    ThisMachine(Vec<Vec<Sku>>),
}

impl For {
    fn of(context: &Context<'_>, args: &Args) -> Result<Self, Failure> {
        if !args.skus.is_empty() {
            return Ok(Self::Named(args.skus.clone()));
        }
        let listed = context.settings.list(Key::Skus);
        if !listed.is_empty() {
            let skus = listed.iter().map(|text| text.parse::<Sku>()).collect::<Result<Vec<_>, _>>();
            return skus.map(Self::Named).map_err(|e| Failure::usage(format!("the setting 'skus': {e}")));
        }
        let cache = context.settings.data_folder().ok().map(|data| crate::local::state_folder(&data));
        let mut devices: Vec<Vec<Sku>> = Vec::new();
        for device in planforge_device::discover(cache.as_deref()) {
            if !device.skus.is_empty() && !devices.contains(&device.skus) {
                devices.push(device.skus);
            }
        }
        // Who has a GPU runs engines there; its processor is meant where it is named.
        if devices.iter().flatten().any(|sku| !sku.is_cpu()) {
            devices.retain(|skus| skus.iter().any(|sku| !sku.is_cpu()));
        }
        #[cfg(not(feature = "local"))]
        if devices.iter().flatten().all(Sku::is_cpu) && std::path::Path::new("/proc/driver/nvidia").exists() {
            return Err(Failure::usage("this machine has a GPU, and the small client opens no library that names it")
                .hint("name the device kind with --sku; planforge devices lists the farm's"));
        }
        if devices.is_empty() {
            return Err(Failure::usage("this machine has no device that engines are built for; name one with --sku"));
        }
        Ok(Self::ThisMachine(devices))
    }

    /// For messages.
    fn words(&self) -> String {
        let list = |skus: &[Sku]| skus.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::Named(skus) => list(skus),
            Self::ThisMachine(devices) => {
                let best: Vec<Sku> = devices.iter().filter_map(|skus| skus.last().cloned()).collect();
                format!("this machine ({})", list(&best))
            }
        }
    }
}

/// A path that does not change with the current folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
