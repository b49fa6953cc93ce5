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

/// Whether every node of a case has device code; `None` where the importer refuses it.
fn lowers(folder: &Path) -> Result<Option<bool>, Failure> {
    let bytes = fs::read(folder.join("model.onnx"))?;
    let protos = read_protos(&folder.join("test_data_set_0"), "input").unwrap_or_default();
    for kept in [usize::MAX, 1, 0] {
        let Ok(model) = Model::from_bytes(bake(&bytes, &protos, kept)?.into()) else { return Ok(None) };
        let graph = match import(&model, None) {
            Ok(graph) => graph,
            Err(error) if needs_constants(&error) && kept > 0 => continue,
            Err(_) => return Ok(None),
        };
        let graph = planforge_passes::pipeline(graph, Target::default())?.graph;
        return Ok(Some(lower(&graph, Kind::F32).is_ok()));
    }
    Ok(None)
}

#[test]
fn what_is_listed_has_device_code_in_some_case() -> Result<(), Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/onnx-cases");
    if !root.exists() {
        planforge_skipped::skipped("the backend cases are not generated");
        return Ok(());
    }
    let mut seen: BTreeMap<String, BTreeSet<bool>> = BTreeMap::new();
    for case in case::list(&root)? {
        // One operator is looked at where it stands alone.
        let [operator] = &case.operators[..] else { continue };
        if let Some(lowers) = lowers(&root.join(&case.name))? {
            seen.entry(operator.clone()).or_default().insert(lowers);
        }
    }
    let known = planforge_cpu::operators();
    let listed = |name: &str| -> Option<&Operator> { known.iter().find(|op| op.domain.is_empty() && op.name == name) };
    let without: Vec<&str> =
        seen.iter().filter(|(_, lowers)| !lowers.contains(&true)).map(|(name, _)| name.as_str()).collect();
    eprintln!("{} operators seen; without device code: {without:?}", seen.len());
    for (name, lowers) in &seen {
        let Some(operator) = listed(name) else { continue };
        assert_eq!(has_device_code(operator), lowers.contains(&true), "{name}");
    }
    Ok(())
}
