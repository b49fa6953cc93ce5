//! The native compiler and its engines: a graph lowered to steps, a tactic timed for each, memory planned ahead, all
//! of it in one file that is mapped and run.
//!
//! | module | holds |
//! |---|---|
//! | `lower` | graph to steps: layouts, and which operators have a kernel |
//! | `tactic`, `cache` | timing of every step's candidates, and what is remembered of it |
//! | `assemble`, `memory` | packed weights and the place of every buffer |
//! | `program` | the steps and buffers of an engine: what a plan's manifest holds |
//! | `plan` | the file: written, read and checked |
//! | `steps` | each kind of step: its candidates, its checks, how it runs |
//! | `engine`, `error` | a program made ready and run |
//! | `shapes`, `specialize` | a build's profiles; programs of other shapes than the tuned ones |
//! | `compiler`, `meter` | the two backend traits |
//! | `rates` | what the processor reaches |
//! | `operators` | the operators of models that are known |
//! | [`inspect`] | a plan in words and as JSON |
//!
//! Invariant: an engine executes no kernel above its SKU's instruction-set level.
//! Invariant: whatever a plan file holds, loading and running it is an error or an answer, never undefined.

#[cfg(test)]
mod agreement_tests;
mod assemble;
mod cache;
mod compiler;
mod draft;
#[cfg(test)]
mod dynamic_tests;
mod engine;
mod error;
pub mod explain;
#[doc(hidden)]
pub mod fuzzing;
mod gelus;
#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod halves_tests;
mod inspect;
#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod lending_tests;
mod lower;
mod memory;
mod meter;
mod operators;
mod plan;
mod program;
#[cfg(test)]
mod quantized_attention_tests;
#[cfg(test)]
mod quantized_tests;
mod rates;
mod shapes;
#[cfg(test)]
mod shared_constants_tests;
mod specialize;
mod steps;
mod tactic;
mod tail;
#[cfg(test)]
mod tail_tests;
mod target;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trace_tests;

pub use compiler::{CpuCompiler, OPTION_FORCE_TACTIC, toolchain};
pub use inspect::{Inspection, inspect};
pub use meter::CpuSession;
pub use operators::operators;
pub use plan::{Manifest, PlanError, TailSummary};
pub(crate) use plan::{Sections, seal, unseal};
pub use tail::OPTION_BOUNDS;
pub use target::OPTION_FUSION;

/// What the passes are told of processors.
pub(crate) const TARGET: planforge_passes::Target = planforge_passes::Target {
    integer_products: false,
    channel_slices: false,
    halves: false,
    exact_f32: true,
    integer_steps: true,
    unfused: false,
};

/// Raised whenever the same input would give another plan; `golden_tests` holds it to that.
pub const COMPILER_REVISION: u32 = 11;
