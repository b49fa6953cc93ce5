//! `planforge inspect`: what a plan or an ONNX file holds.

use crate::{backends, context::Context, failure::Failure, request::models, tables};
use planforge_backend::PlanIdentity;
use planforge_cpu::PlanError;
use planforge_types::BackendError;
use std::{
    error::Error,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

/// The first bytes of a native plan.
const PLAN_MAGIC: &[u8] = b"PLANFORG";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Plan or ONNX file
    #[arg(value_name = "PLAN|ONNX")]
    file: PathBuf,
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    if backends::is_cuda_plan(&args.file)? {
        let inspection = planforge_cuda::inspect(&args.file).map_err(BackendError::from)?;
        context.printer.data(&inspection.to_string())?;
        return context.printer.object(&inspection);
    }
    if is_plan(&args.file)? {
        let inspection = inspect_plan(&args.file)?;
        context.printer.data(&inspection.to_string())?;
        return context.printer.object(&inspection);
    }
    // A plan of ONNX Runtime is an ONNX file that says what it was built as.
    let compiler =
        backends::of_plan(&args.file)?.filter(|compiler| compiler.backend() == planforge_onnxruntime::BACKEND);
    let built_as = compiler.map(|compiler| compiler.identify(&args.file)).transpose()?;
    onnx(context, &args.file, built_as)
}

/// What a plan for a CPU holds, all of it checked.
fn inspect_plan(path: &Path) -> Result<planforge_cpu::Inspection, Failure> {
    planforge_cpu::inspect(path).map_err(|error| {
        let message = match error.source() {
            Some(source) if matches!(error, PlanError::Open { .. }) => format!("{error}: {source}"),
            _ => error.to_string(),
        };
        Failure::usage(message).hint("fetch or build the plan again")
    })
}

fn is_plan(path: &Path) -> Result<bool, Failure> {
    let failed = |e: std::io::Error| Failure::io("read", path, &e);
    let mut first = Vec::new();
    File::open(path).and_then(|file| file.take(PLAN_MAGIC.len() as u64).read_to_end(&mut first)).map_err(failed)?;
    Ok(first == PLAN_MAGIC)
}

fn onnx(context: &Context<'_>, path: &Path, built_as: Option<PlanIdentity>) -> Result<(), Failure> {
    let identity = models::identify(&context.settings, path)?.model;
    let model = planforge_onnx::Model::open(path).map_err(|e| Failure::usage(e.to_string()).hint(e.hint()))?;
    let graph = model.graph();
    let mut operators = std::collections::BTreeMap::<&str, usize>::new();
    for node in &graph.node {
        *operators.entry(node.op_type.as_str()).or_default() += 1;
    }
    let bytes: u64 = identity.files.iter().map(|file| file.size_bytes).sum();
    let counted: Vec<_> = operators.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let mut lines = Vec::new();
    if let Some(plan) = &built_as {
        lines.push(format!("built from {} sha256:{}", plan.model_name, plan.model_digest));
        lines.push(format!("for        {}, by {}", plan.sku, plan.toolchain));
        lines.push(format!("as         {}", plan.spec.to_canonical_json()));
    }
    lines.extend([
        format!("model      {} sha256:{}", identity.name, identity.digest),
        format!("graph      sha256:{}", identity.graph_digest),
        format!("structure  sha256:{}", identity.structure_digest),
        format!("size       {} in {} files", tables::bytes(bytes), identity.files.len()),
        format!("nodes      {}, {} initializers", graph.node.len(), graph.initializer.len()),
        format!("operators  {}", counted.join(", ")),
    ]);
    let names = |infos: &[planforge_onnx::proto::ValueInfoProto]| -> Vec<String> {
        infos.iter().map(|info| info.name.clone()).collect()
    };
    lines.push(format!("inputs     {}", names(&graph.input).join(", ")));
    lines.push(format!("outputs    {}", names(&graph.output).join(", ")));
    context.printer.lines(lines)?;
    context.printer.object(&serde_json::json!({
        "model": planforge_proto::view::ModelView::from(identity.clone()),
        "built_as": built_as,
        "nodes": graph.node.len(),
        "initializers": graph.initializer.len(),
        "operators": operators,
        "inputs": names(&graph.input),
        "outputs": names(&graph.output),
    }))
}
