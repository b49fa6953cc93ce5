//! cuDNN operation graphs: a pattern of operations is described, the library names the engines that run it as one
//! kernel, and a plan is made of one of them.
//!
//! | module | holds |
//! |---|---|
//! | [`descriptor`] | the library's objects, owned; its statuses with their last words |
//! | [`graph`] | tensors and operations of a pattern |
//! | [`plan`] | engines, plans, running them |
//! | [`site`] | the device that a plan is for: this thread's, or one that is elsewhere |
//!
//! Order matters: convolution → residual → bias → activation is what the library has ready-made kernels for; bias before
//! residual is the same sum, but compiled at run time.

pub mod descriptor;
pub mod graph;
pub mod plan;
pub mod site;

pub use descriptor::{DnnError, Handle};
pub use graph::{Activation, ConvPattern, DataType, Pattern, ProductPattern, Sdpa, Tensor, Uid};
pub use plan::{Binding, Engine, Plan};
pub use site::{Properties, Site};
