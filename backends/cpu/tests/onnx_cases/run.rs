//! One case through the reference, the optimised graph and the native engine.

use crate::{
    case::{Case, Failure, bake, needs_constants, read_protos, tensor},
    support::{self, Silent},
};
use planforge_backend::{Cancel, CompileRequest, Compiler, LoadOptions};
use planforge_cpu::CpuCompiler;
use planforge_device::CpuLevel;
use planforge_graph::{interpreter, ir::Tensor};
use planforge_import::{Problem, Refusal, import};
use planforge_onnx::Model;
use planforge_types::{Digest, HostTensor};
use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

/// What became of a case.
#[derive(Debug)]
pub enum Outcome {
    Passed {
        /// Some inputs had to be constants, because shapes follow from them.
        constants: bool,
    },
    Refused {
        /// The first problem in a form that cases share.
        reason: String,
        message: String,
    },
    Wrong(String),
}

/// What the engine of a native plan gives.
fn native_outputs(model: &[u8], inputs: &BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.onnx");
    fs::write(&path, model)?;
    let level = *CpuLevel::detect().last().ok_or("this CPU is below every level")?;
    let request = CompileRequest { model_digest: Digest::of(model), ..support::request(&path, level, folder.path()) };
    let plan = CpuCompiler.compile(&request, &Silent, &Cancel::default())?;
    let mut meter = CpuCompiler.load(&plan.path, &LoadOptions::default())?;
    meter.bind(&inputs.iter().map(|(name, tensor)| (name.clone(), HostTensor::from(tensor))).collect())?;
    let outputs = meter.run()?;
    outputs.into_iter().map(|(name, tensor)| Ok((name, Tensor::try_from(tensor)?))).collect()
}

/// Runs a case; what panics is a wrong answer.
pub fn run(root: &Path, case: &Case) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| attempt(root, case))) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::Wrong(error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
            Outcome::Wrong(format!("panic: {text}"))
        }
    }
}

fn attempt(root: &Path, case: &Case) -> Result<Outcome, Failure> {
    let folder = root.join(&case.name);
    let bytes = fs::read(folder.join("model.onnx"))?;
    let data = folder.join("test_data_set_0");
    // Of a sequence or an optional nothing is read: importing the model names it.
    let protos = read_protos(&data, "input").unwrap_or_default();
    let mut last = None;
    // All inputs variable first, then fewer and fewer, until what shapes follow from is constant.
    for kept in [usize::MAX, 1, 0] {
        let baked = bake(&bytes, &protos, kept)?;
        let model = match Model::from_bytes(baked.clone().into()) {
            Ok(model) => model,
            Err(error) => return Ok(Outcome::Refused { reason: "the file".into(), message: error.to_string() }),
        };
        let graph = match import(&model, None) {
            Ok(graph) => graph,
            Err(error) if needs_constants(&error) && kept > 0 => {
                last = Some(error);
                continue;
            }
            Err(error) => {
                last = Some(error);
                break;
            }
        };
        let expected = read_protos(&data, "output")?.iter().map(tensor).collect::<Result<Vec<_>, _>>()?;
        let names = model.graph().input.iter().map(|input| input.name.clone());
        let inputs = names.zip(&protos).map(|(name, proto)| Ok((name, tensor(proto)?)));
        let inputs = inputs.collect::<Result<BTreeMap<_, _>, Failure>>()?;
        let order: Vec<String> = graph.outputs.iter().map(|output| output.name.clone()).collect();
        let compare = |path: &str, outputs: Result<BTreeMap<String, Tensor>, Failure>| match outputs {
            Ok(outputs) if outputs.len() == expected.len() => order
                .iter()
                .zip(&expected)
                .find_map(|(name, expected)| case.differs(&outputs[name], expected))
                .map(|wrong| format!("{path}: {wrong}")),
            Ok(outputs) => Some(format!("{path}: {} outputs instead of {}", outputs.len(), expected.len())),
            Err(error) => Some(format!("{path}: {error}")),
        };
        let reference = compare("reference", interpreter::execute(&graph, &inputs).map_err(Into::into));
        let optimized = planforge_passes::pipeline(graph, planforge_passes::Target::default())?.graph;
        let optimized = || compare("optimised", interpreter::execute(&optimized, &inputs).map_err(Into::into));
        let native = || compare("native", native_outputs(&baked, &inputs));
        return Ok(match reference.or_else(optimized).or_else(native) {
            Some(wrong) => Outcome::Wrong(wrong),
            None => Outcome::Passed { constants: kept != usize::MAX },
        });
    }
    let error = last.ok_or("no attempt was made")?;
    Ok(Outcome::Refused { reason: reason(&error.problems[0]), message: error.to_string() })
}

/// Why, without the names of one model.
fn reason(problem: &Problem) -> String {
    match problem {
        Problem::Operator { op_type, .. } => format!("operator {op_type}"),
        Problem::Opset { version, .. } => format!("opset {version}"),
        Problem::Element { element, .. } => format!("element type {element}"),
        Problem::Attribute { attribute, .. } => format!("attribute {attribute}"),
        Problem::Node { refusal, .. } => match refusal {
            Refusal::Attribute { name, reason } => format!("attribute {name} {reason}"),
            Refusal::NotConstant { what } => format!("{what} is not constant"),
            Refusal::Element(element) => format!("element type {element}"),
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}
