//! The backend cases of ONNX in fp32 on the GPU that is there: what has device code gives what the case expects, by the
//! first tactics that work. The executable runs by itself, so it can be carried to a GPU host with the cases:
//!
//! ```text
//! PLANFORGE_ONNX_CASES=$PWD/target/onnx-cases cargo test -p planforge-cuda --test cases_on_a_device -- --ignored
//! ```
#![expect(clippy::print_stderr, reason = "says what was refused")]

#[path = "../../cpu/tests/onnx_cases/case.rs"]
mod case;
mod prepared;

use case::{Case, Failure};
use planforge_cuda::{
    runtime::{Constants, Context, Device, Kernels},
    tune::{Effort, Times, tune},
};
use planforge_graph::ir::Tensor;
use prepared::{Outcome, Prepared, judge, prepare};
use rayon::prelude::*;

/// First proposals only.
const EFFORT: Effort =
    Effort { compiled: 0, algorithms: 2, libraries: true, tiles: 2, compares: false, tries_late: false };

fn attempt(device: &Device, case: &Case, prepared: Prepared) -> Result<Outcome, Failure> {
    let Prepared { lowered, inputs, expected } = prepared;
    let mut program = lowered.program;
    let weights = Constants::upload(device, &lowered.weights)?;
    tune(device, &mut program, &weights, EFFORT, &mut Times::new(), &mut |_, _, _| true)?;
    let context = Context::new(device, &program, weights, &mut Kernels::new())?;
    for (edge, buffer) in program.inputs.iter().zip(&context.memory.inputs) {
        buffer.write(0, inputs[&edge.name].bytes())?;
    }
    for buffer in &context.memory.outputs {
        // What is left from before must not pass for a result.
        buffer.fill(0xff)?;
    }
    device.gpu.synchronize()?;
    context.launch()?;
    context.stream().synchronize()?;
    for (number, name, expected) in &expected {
        let edge = &program.outputs[*number];
        let shape: Vec<usize> = edge.shape.iter().map(|dim| *dim as usize).collect();
        let mut bytes = vec![0; shape.iter().product::<usize>() * edge.element.bytes()];
        context.memory.outputs[*number].read(0, &mut bytes)?;
        let got = Tensor::new(edge.element, shape, bytes.into())?;
        if let Some(wrong) = case.differs(&got, expected) {
            return Ok(Outcome::Wrong(format!("{name}: {wrong}")));
        }
    }
    Ok(Outcome::Passed)
}

#[test]
#[ignore = "takes a GPU and the cases; see above"]
fn backend_cases_that_have_device_code_pass() -> Result<(), Failure> {
    let device = match Device::open(None, None) {
        Ok(device) => device,
        Err(error) => {
            assert!(std::env::var_os("PLANFORGE_NEED_GPU").is_none(), "{error}");
            planforge_skipped::skipped(error);
            return Ok(());
        }
    };
    let (root, cases) = prepared::cases()?;
    let prepared: Vec<_> =
        cases.par_iter().map(|case| prepare(&root, case).map_err(|error| error.to_string())).collect();
    // All at once, on all cores.
    let programs = prepared.iter().flatten().flatten();
    let sources: Vec<_> = programs.flat_map(|of| of.lowered.program.sources.iter().cloned()).collect();
    device.compile_all(&sources)?;
    let run = |case: &Case, prepared| match prepared {
        Ok(Ok(prepared)) => attempt(&device, case, prepared).unwrap_or_else(|error| Outcome::Wrong(error.to_string())),
        Ok(Err(why)) => Outcome::Refused(why),
        Err(error) => Outcome::Wrong(error),
    };
    let outcomes: Vec<(&Case, Outcome)> =
        cases.iter().zip(prepared).map(|(case, prepared)| (case, run(case, prepared))).collect();
    judge(&outcomes);
    Ok(())
}
