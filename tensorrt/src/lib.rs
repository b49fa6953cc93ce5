//! TensorRT driven through `trtexec`, 8.4 to 11.x: which flags a version has, what a build spec means on its command
//! line, how it is run, and what its log, exports and plans say. Knows nothing of jobs, networks or databases.
//!
//! TensorRT itself is never linked: a crash, an abort or a hang stays in a process of its own.

mod compiler;

pub use compiler::TensorRtCompiler;
