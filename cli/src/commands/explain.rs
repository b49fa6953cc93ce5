//! `planforge explain`: what the native compiler would do with a model, and what it cannot. Needs no device.

use crate::{context::Context, failure::Failure};
use planforge_cpu::explain::explain;
use planforge_fleet::shapes;
use planforge_onnx::Model;
use planforge_proto::ErrorCode;
use planforge_types::OptimizationProfile;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// ONNX file
    model: PathBuf,
    /// Shapes of its inputs, such as images:1x3x224x224; of a range the usual size counts
    #[arg(long, value_name = "NAME:SHAPE,...", value_parser = shapes::parse)]
    shapes: Option<OptimizationProfile>,
}

pub fn run(context: &Context<'_>, args: Args) -> Result<(), Failure> {
    let model = Model::open(&args.model).map_err(|e| Failure::usage(e.to_string()).hint(e.hint()))?;
    let explanation = explain(&model, args.shapes.as_ref())
        .map_err(|e| Failure::new(ErrorCode::Internal, e.to_string()).hint("report this with the model's structure"))?;
    context.printer.data(&explanation.to_string())?;
    let mut document = serde_json::to_value(&explanation)
        .map_err(|e| Failure::new(ErrorCode::Internal, format!("cannot write the explanation as JSON: {e}")))?;
    let refused = match explanation.refused.len() {
        0 => None,
        count => {
            let plural = if count == 1 { "" } else { "s" };
            let message = format!("the native compiler refuses {} for {count} reason{plural}", args.model.display());
            Some(Failure::new(ErrorCode::Refused, message).hint(explanation.hint.clone()))
        }
    };
    if let Some(failure) = &refused {
        document["error"] = failure.as_json();
    }
    context.printer.object(&document)?;
    refused.map_or(Ok(()), Err)
}
