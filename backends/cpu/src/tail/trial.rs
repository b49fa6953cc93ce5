//! One run of an engine while it is built. What only data decides may hold a form of an operator that is not known, and
//! a model may leave open of which rank an output is; both show when it runs.

use super::{TailKernels, run_fragment};
use crate::{
    assemble::WeightPlan,
    engine::Engine,
    error::EngineError,
    memory::{AlignedBytes, Weights},
    program::Program,
};
use planforge_graph::ir::{Computer, ElementType, TailError, TailOutput, Tensor};
use planforge_import::Fragment;
use planforge_kernels_cpu::{isa::Isa, pool::ThreadPool};
use planforge_types::Port;
use std::{collections::BTreeMap, io::Cursor, sync::Arc};

/// What a run came to.
pub(crate) enum Trial {
    Outputs(BTreeMap<String, Tensor>),
    /// The made-up inputs may be at fault.
    Failed(TailError),
}

/// Runs `program` and what is behind it on made-up inputs.
pub(crate) fn outputs(
    program: &Program,
    weights: &WeightPlan,
    fragment: &Fragment,
    isa: Isa,
    pool: &Arc<ThreadPool>,
) -> Result<Trial, EngineError> {
    let mut data = AlignedBytes::zeroed(weights.bytes() as usize)?;
    // Memory of that size takes whatever is written.
    let _ = weights.write(&mut Cursor::new(data.bytes_mut()));
    let mut engine = Engine::new(program.clone(), Weights::owned(data), isa, Arc::clone(pool))?;
    for (index, port) in program.inputs.iter().enumerate() {
        let count: usize = port.shape.iter().product();
        let bytes = match port.element {
            ElementType::F32 => {
                // Between nothing and one, as images are.
                let values: Vec<f32> = (0..count).map(|at| (at * 7919 % 1009) as f32 / 1009.0).collect();
                bytemuck::cast_slice(&values).to_vec()
            }
            element => vec![0; count * element.bytes()],
        };
        engine.set_input(index, &bytes);
    }
    engine.run()?;
    let kernels: Arc<dyn Computer> = Arc::new(TailKernels::new(isa, Arc::clone(pool), fragment));
    // What made-up inputs come to is no measure of bounds.
    Ok(match run_fragment(&engine, &fragment.unbounded(), &kernels) {
        Ok(outputs) => Trial::Outputs(outputs),
        Err(error) => Trial::Failed(error),
    })
}

/// What is said of the outputs of a tail: what the model declares, else what a run gave.
pub(crate) fn ports(declared: &[TailOutput], made: Option<&BTreeMap<String, Tensor>>) -> Result<Vec<Port>, String> {
    let port = |output: &TailOutput| {
        let found = || made.and_then(|made| made.get(&output.name));
        let open = || found().map(|tensor| (tensor.element(), vec![None; tensor.rank()]));
        let (element, shape) = output.declared.clone().or_else(open).ok_or_else(|| output.name.clone())?;
        // What is declared otherwise than it is, is as it is.
        let differs = |tensor: &&Tensor| {
            let sizes = tensor.shape().iter().zip(&shape);
            let same =
                sizes.into_iter().all(|(&size, declared)| declared.is_none_or(|declared| declared == size as u64));
            tensor.rank() != shape.len() || !same
        };
        let shape = match found().filter(differs) {
            Some(tensor) => vec![None; tensor.rank()],
            None => shape,
        };
        let element = found().map_or(element, Tensor::element);
        Ok(Port { name: output.name.clone(), element, shape })
    };
    declared.iter().map(port).collect()
}
