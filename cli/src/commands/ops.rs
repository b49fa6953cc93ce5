//! `planforge ops`: which operators a compiler of ours knows, from the importer's own tables. Needs no device.

use crate::{context::Context, failure::Failure, tables};
use planforge_cuda::operators::has_device_code;
use planforge_plan::operators::Operator;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whose operators: of engines for processors, or of engines for NVIDIA devices
    #[arg(long, value_enum, value_name = "BACKEND", default_value_t = Backend::Native)]
    backend: Backend,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Backend {
    /// Native engines on processors
    Native,
    /// Native engines on NVIDIA devices
    Cuda,
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let (backend, is_known): (_, fn(&Operator) -> bool) = match args.backend {
        Backend::Native => ("native", |_| true),
        Backend::Cuda => ("cuda", has_device_code),
    };
    let operators: Vec<Operator> = planforge_cpu::operators().into_iter().filter(is_known).collect();
    let mut table = tables::table(&["operator", "domain", "opsets"]);
    for operator in &operators {
        let opsets = operator.opsets.map_or_else(|| "-".to_owned(), |[first, last]| format!("{first} to {last}"));
        let domain = if operator.domain.is_empty() { "ai.onnx" } else { operator.domain.as_str() };
        table.add_row([operator.name.as_str(), domain, &opsets]);
    }
    context.printer.data(&tables::render(table, &[]))?;
    context.printer.note(&format!(
        "{} operators; a form of one that is not known is refused by name (`planforge explain MODEL`)",
        operators.len()
    ));
    context.printer.object(&serde_json::json!({ "backend": backend, "operators": operators }))
}
