//! TensorRT driven through `trtexec`, 8.4 to 11.x: which flags a version has, what a build spec means on its command
//! line, how it is run, and what its log, exports and plans say. Knows nothing of jobs, networks or databases.
//!
//! TensorRT itself is never linked: a crash, an abort or a hang stays in a process of its own.
//!
//! | module | holds |
//! |---|---|
//! | [`discover`] | installations on this host, and what is wrong with the broken ones |
//! | [`log`] | the console log, read while it streams in |
//! | [`process`] | one run of a tool that may crash, hang or flood |
//! | [`exports`] | the JSON files of times, layers and outputs |
//! | [`plan`] | the header of a serialized engine |
//! | [`timing_cache`] | the header of a timing cache |
//! | [`acceptance`] | when a build counts |
//! | `plugins` | plugin libraries that a run names, and what its log says of them |
//! | [`selected`] | whether a run was on the device that was leased |
//! | [`failure`] | why a run failed, in words, with class and retry rule |

pub mod acceptance;
mod compiler;
pub mod discover;
pub mod exports;
pub mod failure;
#[doc(hidden)]
pub mod fuzzing;
pub mod log;
mod meter;
mod plugins;
pub use planforge_tensorrt_rules::plan;
pub mod process;
pub mod selected;
mod tensors;
pub mod timing_cache;
mod tool;

pub use compiler::TensorRtCompiler;
pub use discover::{Discovery, Installation};
pub use tool::host_limits;
