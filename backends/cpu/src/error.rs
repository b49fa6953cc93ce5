//! Why an engine could not be made or run.

use super::{memory::OutOfMemory, program::ProgramError};
use planforge_graph::reference::OpError;
use planforge_kernels_cpu::{nest::NestError, trees::TreesError};

/// Why an engine could not be made or run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the plan's program does not hold together")]
    Program(#[from] ProgramError),
    #[error("its steps have no room")]
    Memory(#[from] OutOfMemory),
    #[error("step {step}")]
    Reference {
        step: String,
        #[source]
        source: OpError,
    },
    #[error("step {step}")]
    Trees {
        step: String,
        #[source]
        source: TreesError,
    },
    #[error("step {step}")]
    Loops {
        step: String,
        #[source]
        source: NestError,
    },
    #[error("step {step}: index {index} is outside of a table of {size} lines")]
    Index { step: String, index: i64, size: usize },
}
