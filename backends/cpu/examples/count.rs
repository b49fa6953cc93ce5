//! Does one thing so many times on one thread, for a tool that counts instructions: `tests/bench/instructions.py`.
//!
//!     count run PLAN TIMES       load a plan of fixed shapes, bind zeros, run it
//!     count load PLAN TIMES      read, check and load a plan
//!     count import MODEL TIMES   read a model, name its digests, import and optimise its graph

use planforge_backend::{Compiler as _, LoadOptions, Meter};
use planforge_cpu::CpuCompiler;
use planforge_identity::model::identify_open;
use planforge_onnx::Model;
use planforge_types::HostTensor;
use std::{collections::BTreeMap, error::Error, path::Path};

fn load(plan: &Path) -> Result<Box<dyn Meter>, Box<dyn Error>> {
    Ok(CpuCompiler.load(plan, &LoadOptions { threads: Some(1), ..LoadOptions::default() })?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, path, times] = &arguments[..] else { return Err("count run|load|import FILE TIMES".into()) };
    let (path, times): (&Path, u32) = (path.as_ref(), times.parse()?);
    match what.as_str() {
        "run" => {
            let mut session = load(path)?;
            let mut inputs = BTreeMap::new();
            for port in session.inputs() {
                let shape: Option<Vec<usize>> = port.shape.iter().map(|&dim| dim?.try_into().ok()).collect();
                let shape = shape.ok_or("a plan of varying shapes: nothing says which to run")?;
                let bytes = vec![0; shape.iter().product::<usize>() * port.element.bytes()];
                inputs.insert(port.name, HostTensor { element: port.element, shape, bytes });
            }
            session.bind(&inputs)?;
            for _ in 0..times {
                session.run()?;
            }
        }
        "load" => {
            for _ in 0..times {
                load(path)?;
            }
        }
        "import" => {
            for _ in 0..times {
                let model = Model::open(path)?;
                identify_open(&model)?;
                let graph = planforge_import::import(&model, None)?;
                planforge_passes::pipeline(graph, planforge_passes::Target::default())?;
            }
        }
        other => return Err(format!("count: {other} is none of run, load, import").into()),
    }
    Ok(())
}
