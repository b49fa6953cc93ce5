//! The backend cases of ONNX as programs with inputs and expected results, or why there is no program.

use super::case::{Case, Failure, bake, needs_constants, read_protos, tensor};
use planforge_cuda::{
    lower::{Lowered, lower},
    view::Kind,
};
use planforge_graph::ir::Tensor;
use planforge_import::import;
use planforge_onnx::Model;
use planforge_passes::Target;
use std::{collections::BTreeMap, fs, path::Path};

/// A case that has device code.
pub struct Prepared {
    pub lowered: Lowered,
    pub inputs: BTreeMap<String, Tensor>,
    /// By the number of the program's output.
    pub expected: Vec<(usize, String, Tensor)>,
}

/// The program of a case in fp32; an error of the second kind is why it is refused.
pub fn prepare(root: &Path, case: &Case) -> Result<Result<Prepared, String>, Failure> {
    let folder = root.join(&case.name);
    let bytes = fs::read(folder.join("model.onnx"))?;
    let data = folder.join("test_data_set_0");
    let protos = read_protos(&data, "input").unwrap_or_default();
    for kept in [usize::MAX, 1, 0] {
        let model = match Model::from_bytes(bake(&bytes, &protos, kept)?.into()) {
            Ok(model) => model,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let graph = match import(&model, None) {
            Ok(graph) => graph,
            Err(error) if needs_constants(&error) && kept > 0 => continue,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let names = model.graph().input.iter().map(|input| input.name.clone());
        let inputs = names.zip(&protos).map(|(name, proto)| Ok((name, tensor(proto)?)));
        let inputs = inputs.collect::<Result<BTreeMap<_, _>, Failure>>()?;
        let expected = read_protos(&data, "output")?.iter().map(tensor).collect::<Result<Vec<_>, _>>()?;
        let order: Vec<String> = graph.outputs.iter().map(|output| output.name.clone()).collect();
        let graph = planforge_passes::pipeline(graph, Target::default())?.graph;
        let lowered = match lower(&graph, Kind::F32) {
            Ok(lowered) => lowered,
            Err(error) => return Ok(Err(error.to_string())),
        };
        lowered.program.check()?;
        let number = |name: &String| {
            let found = lowered.program.outputs.iter().position(|edge| edge.name == *name);
            found.ok_or_else(|| Failure::from(format!("the program has no output {name}")))
        };
        let expected = order.into_iter().zip(expected);
        let expected = expected.map(|(name, tensor)| Ok((number(&name)?, name, tensor)));
        let expected = expected.collect::<Result<Vec<_>, Failure>>()?;
        return Ok(Ok(Prepared { lowered, inputs, expected }));
    }
    Ok(Err("its shapes follow from what is no constant".into()))
}

/// What came of a case.
pub enum Outcome {
    Passed,
    /// It has no device code, or is refused before.
    Refused(String),
    Wrong(String),
}

/// Says what was refused and how many passed; fails where anything is wrong.
pub fn judge(outcomes: &[(&Case, Outcome)]) {
    let mut wrong = Vec::new();
    let (mut passed, mut refused) = (0, 0);
    for (case, outcome) in outcomes {
        match outcome {
            Outcome::Passed => passed += 1,
            Outcome::Refused(why) => {
                refused += 1;
                let of = if case.in_filter() { "must be known" } else { "need not be known" };
                eprintln!("refused {} ({}; {of}): {}", case.name, case.operators.join(", "), why.replace('\n', "; "));
            }
            Outcome::Wrong(why) => wrong.push(format!("{}: {why}", case.name)),
        }
    }
    eprintln!("{passed} of {} pass, {refused} are refused, {} are wrong", outcomes.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The cases of the folder that the environment names, those alone whose name it asks for.
pub fn cases() -> Result<(std::path::PathBuf, Vec<Case>), Failure> {
    let root = std::path::PathBuf::from(std::env::var("PLANFORGE_ONNX_CASES")?);
    let only = std::env::var("PLANFORGE_ONNX_CASE").ok();
    let mut cases = super::case::list(&root)?;
    cases.retain(|case| only.as_ref().is_none_or(|only| case.name.contains(only.as_str())));
    Ok((root, cases))
}
