//! The backend cases of ONNX by generated kernels in fp32, run on the host thread by thread: what has device code gives
//! what the case expects. Takes ten minutes the first time, mostly for compilers:
//!
//! ```text
//! PLANFORGE_ONNX_CASES=$PWD/target/onnx-cases cargo test -p planforge-cuda --test cases_on_the_host -- --ignored
//! ```
#![expect(clippy::print_stderr, reason = "says what was refused")]

#[path = "../../cpu/tests/onnx_cases/case.rs"]
mod case;
mod emulator;

use case::{Case, Failure, bake, needs_constants, read_protos, tensor};
use emulator::{
    Emulator,
    host::{Host, kernels},
};
use planforge_cuda::{lower::lower, view::Kind};
use planforge_import::import;
use planforge_onnx::Model;
use planforge_passes::Target;
use rayon::prelude::*;
use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

enum Outcome {
    Passed,
    /// It has no device code, or is refused before.
    Refused(String),
    Wrong(String),
}

fn attempt(emulator: &Emulator, root: &Path, case: &Case) -> Result<Outcome, Failure> {
    let folder = root.join(&case.name);
    let bytes = fs::read(folder.join("model.onnx"))?;
    let data = folder.join("test_data_set_0");
    let protos = read_protos(&data, "input").unwrap_or_default();
    for kept in [usize::MAX, 1, 0] {
        let model = match Model::from_bytes(bake(&bytes, &protos, kept)?.into()) {
            Ok(model) => model,
            Err(error) => return Ok(Outcome::Refused(error.to_string())),
        };
        let graph = match import(&model, None) {
            Ok(graph) => graph,
            Err(error) if needs_constants(&error) && kept > 0 => continue,
            Err(error) => return Ok(Outcome::Refused(error.to_string())),
        };
        let names = model.graph().input.iter().map(|input| input.name.clone());
        let inputs = names.zip(&protos).map(|(name, proto)| Ok((name, tensor(proto)?)));
        let inputs = inputs.collect::<Result<BTreeMap<_, _>, Failure>>()?;
        let expected = read_protos(&data, "output")?.iter().map(tensor).collect::<Result<Vec<_>, _>>()?;
        let order: Vec<String> = graph.outputs.iter().map(|output| output.name.clone()).collect();
        let graph = planforge_passes::pipeline(graph, Target::default())?.graph;
        let lowered = match lower(&graph, Kind::F32) {
            Ok(lowered) => lowered,
            Err(error) => return Ok(Outcome::Refused(error.to_string())),
        };
        let program = &lowered.program;
        program.check()?;
        let mut host = Host::new(emulator, program, &lowered.weights, &inputs);
        for step in &program.steps {
            let choice = kernels(program, step);
            let Some((kernel, as_)) = choice.first() else {
                return Ok(Outcome::Refused(format!("no kernel of ours computes {}", step.work.kind())));
            };
            host.run(step, kernel, *as_)?;
        }
        for (name, expected) in order.iter().zip(&expected) {
            let number = program.outputs.iter().position(|edge| edge.name == *name).ok_or("an output is missing")?;
            if let Some(wrong) = case.differs(&host.output(number), expected) {
                return Ok(Outcome::Wrong(format!("{name}: {wrong}")));
            }
        }
        return Ok(Outcome::Passed);
    }
    Ok(Outcome::Refused("its shapes follow from what is no constant".into()))
}

#[test]
#[ignore = "takes ten minutes the first time; see above"]
fn backend_cases_that_have_device_code_pass() -> Result<(), Failure> {
    let Some(emulator) = Emulator::new() else { return Ok(()) };
    let root = std::env::var("PLANFORGE_ONNX_CASES")?;
    let root = Path::new(&root);
    let only = std::env::var("PLANFORGE_ONNX_CASE").ok();
    let mut cases = case::list(root)?;
    cases.retain(|case| only.as_ref().is_none_or(|only| case.name.contains(only.as_str())));
    let run = |case: &Case| match catch_unwind(AssertUnwindSafe(|| attempt(&emulator, root, case))) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::Wrong(error.to_string()),
        Err(_) => Outcome::Wrong("it panics".into()),
    };
    let outcomes: Vec<(&Case, Outcome)> = cases.par_iter().map(|case| (case, run(case))).collect();
    let mut wrong = Vec::new();
    let mut passed = 0;
    for (case, outcome) in &outcomes {
        match outcome {
            Outcome::Passed => passed += 1,
            Outcome::Refused(why) => {
                let of = if case.in_filter() { "must be known" } else { "need not be known" };
                eprintln!("refused {} ({}; {of}): {}", case.name, case.operators.join(", "), why.replace('\n', "; "));
            }
            Outcome::Wrong(why) => wrong.push(format!("{}: {why}", case.name)),
        }
    }
    eprintln!("{passed} of {} pass, {} are wrong", cases.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
