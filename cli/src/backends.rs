//! The backends of this program: one list, used by the agent, its workers and every command that loads a plan.

use crate::failure::Failure;
use planforge_engine_core::{
    backend::{Compiler, PLAN_HEAD_BYTES},
    native::NativeCompiler,
};
use planforge_onnxruntime::OnnxRuntimeCompiler;
use planforge_tensorrt::TensorRtCompiler;
use std::{fs::File, io::Read as _, path::Path};

/// Every backend, the dependency-free one first.
pub fn compilers() -> Vec<Box<dyn Compiler>> {
    vec![
        Box::new(NativeCompiler),
        Box::new(TensorRtCompiler::default()),
        Box::new(OnnxRuntimeCompiler::of_environment()),
    ]
}

/// The backend whose plan the file is; `None` when it is nobody's.
pub fn of_plan(plan: &Path) -> Result<Option<Box<dyn Compiler>>, Failure> {
    let mut head = Vec::new();
    let read = File::open(plan).and_then(|file| file.take(PLAN_HEAD_BYTES).read_to_end(&mut head));
    read.map_err(|e| Failure::io("read", plan, &e))?;
    Ok(compilers().into_iter().find(|compiler| compiler.recognises(&head)))
}
