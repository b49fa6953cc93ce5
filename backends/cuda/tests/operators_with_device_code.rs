//! Which operators of the importer's table have device code: held to the backend cases of ONNX, none of which runs here.
#![expect(clippy::print_stderr, reason = "says what was looked at")]

#[expect(dead_code, reason = "nothing is compared here")]
#[path = "../../cpu/tests/onnx_cases/case.rs"]
mod case;

use case::{Failure, bake, needs_constants, read_protos};
use planforge_cuda::{lower::lower, operators::has_device_code, view::Kind};
use planforge_import::import;
use planforge_onnx::Model;
use planforge_passes::Target;
use planforge_plan::operators::Operator;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Whether every node of a case has device code, with its inputs given or as constants; `None` where the importer
/// refuses it.
fn lowers(folder: &Path) -> Result<Option<bool>, Failure> {
    let bytes = fs::read(folder.join("model.onnx"))?;
    let protos = read_protos(&folder.join("test_data_set_0"), "input").unwrap_or_default();
    let mut imported = None;
    for kept in [usize::MAX, 1, 0] {
        let Ok(model) = Model::from_bytes(bake(&bytes, &protos, kept)?.into()) else { break };
        let graph = match import(&model, None) {
            Ok(graph) => graph,
            Err(error) if needs_constants(&error) && kept > 0 => continue,
            Err(_) => break,
        };
        let graph = planforge_passes::pipeline(graph, Target::default())?.graph;
        // What constants made of it is no operator any more.
        let computes = !graph.nodes.is_empty();
        if computes && lower(&graph, Kind::F32).is_ok() {
            return Ok(Some(true));
        }
        imported = imported.or(computes.then_some(false));
    }
    Ok(imported)
}

#[test]
fn what_is_listed_has_device_code_in_some_case() -> Result<(), Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/onnx-cases");
    if !root.exists() {
        planforge_skipped::skipped("the backend cases are not generated");
        return Ok(());
    }
    held_to_cases(&root, "")
}

#[test]
fn what_is_listed_of_ml_has_device_code_in_some_case() -> Result<(), Failure> {
    held_to_cases(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../cpu/tests/onnx_cases/ml"), "ai.onnx.ml")
}

fn held_to_cases(root: &Path, domain: &str) -> Result<(), Failure> {
    let mut seen: BTreeMap<String, BTreeSet<bool>> = BTreeMap::new();
    for case in case::list(root)? {
        // One operator is looked at where it stands alone.
        let [operator] = &case.operators[..] else { continue };
        if let Some(lowers) = lowers(&root.join(&case.name))? {
            seen.entry(operator.clone()).or_default().insert(lowers);
        }
    }
    let known = planforge_cpu::operators();
    let listed = |name: &str| -> Option<&Operator> { known.iter().find(|op| op.domain == domain && op.name == name) };
    let without: Vec<&str> =
        seen.iter().filter(|(_, lowers)| !lowers.contains(&true)).map(|(name, _)| name.as_str()).collect();
    eprintln!("{} operators seen; without device code: {without:?}", seen.len());
    let mistaken: Vec<&String> = seen
        .iter()
        .filter(|(name, lowers)| listed(name).is_some_and(|of| has_device_code(of) != lowers.contains(&true)))
        .map(|(name, _)| name)
        .collect();
    assert!(mistaken.is_empty(), "listed otherwise than they are: {mistaken:?}");
    Ok(())
}
