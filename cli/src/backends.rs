//! The backends of this program: one list, used by the agent, its workers and every command that loads a plan.

use planforge_engine_core::{backend::Compiler, native::NativeCompiler};
use planforge_onnxruntime::OnnxRuntimeCompiler;
use planforge_tensorrt::TensorRtCompiler;

/// Every backend, the dependency-free one first.
pub fn compilers() -> Vec<Box<dyn Compiler>> {
    vec![
        Box::new(NativeCompiler),
        Box::new(TensorRtCompiler::default()),
        Box::new(OnnxRuntimeCompiler::of_environment()),
    ]
}
