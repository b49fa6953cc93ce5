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
mod prepared;

use case::{Case, Failure};
use emulator::{
    Emulator,
    host::{Host, kernels},
};
use prepared::{Outcome, Prepared, judge, prepare};
use rayon::prelude::*;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

fn attempt(emulator: &Emulator, root: &Path, case: &Case) -> Result<Outcome, Failure> {
    let Prepared { lowered, inputs, expected } = match prepare(root, case)? {
        Ok(prepared) => prepared,
        Err(why) => return Ok(Outcome::Refused(why)),
    };
    let program = &lowered.program;
    let mut host = Host::new(emulator, program, &lowered.weights, &inputs);
    for step in &program.steps {
        let choice = kernels(program, step);
        let Some((kernel, as_)) = choice.first() else {
            return Ok(Outcome::Refused(format!("no kernel of ours computes {}", step.work.kind())));
        };
        host.run(step, kernel, *as_)?;
    }
    for (number, name, expected) in &expected {
        if let Some(wrong) = case.differs(&host.output(*number), expected) {
            return Ok(Outcome::Wrong(format!("{name}: {wrong}")));
        }
    }
    Ok(Outcome::Passed)
}

#[test]
#[ignore = "takes ten minutes the first time; see above"]
fn backend_cases_that_have_device_code_pass() -> Result<(), Failure> {
    let Some(emulator) = Emulator::new() else { return Ok(()) };
    let (root, cases) = prepared::cases()?;
    let run = |case: &Case| match catch_unwind(AssertUnwindSafe(|| attempt(&emulator, &root, case))) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::Wrong(error.to_string()),
        Err(_) => Outcome::Wrong("it panics".into()),
    };
    let outcomes: Vec<(&Case, Outcome)> = cases.par_iter().map(|case| (case, run(case))).collect();
    judge(&outcomes);
    Ok(())
}
