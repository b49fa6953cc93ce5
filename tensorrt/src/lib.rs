//! TensorRT driven through `trtexec`, 8.4 to 11.x: which flags a version has, what a build spec means on its command
//! line, how it is run, and what its log, exports and plans say. Knows nothing of jobs, networks or databases.
//!
//! TensorRT itself is never linked: a crash, an abort or a hang stays in a process of its own.
//!
//! | module | holds |
//! |---|---|
//! | [`log`] | the console log, read while it streams in |
//! | [`findings`] | what trtexec warns of, as findings |
//! | [`process`] | one run of a tool that may crash, hang or flood |

mod compiler;
pub mod findings;
pub mod log;
pub mod process;

pub use compiler::TensorRtCompiler;
