//! CPU microkernels per instruction-set level behind safe calls. Knows tensors as slices; knows nothing of graphs, plans or jobs.
//!
//! | module | holds |
//! |---|---|
//! | [`isa`] | instruction-set levels, and the token without which no kernel of a level can be called |
//! | [`pool`], [`cores`] | the engine's own threads, and the cores they stay on |
//! | [`watch`] | when each of those threads was at work |
//! | [`pace`] | how fast those cores are right now |
//! | [`gemm`] | packed f32 GEMM microkernels and drivers with a fused epilogue |
//! | [`conv`] | convolution as GEMM over gathered rows |
//! | [`depthwise`] | depthwise convolution |
//! | [`window`] | max, average and global pooling |
//! | [`math`] | vectorisable exp, erf, tanh and the activations made of them |
//! | [`pointwise`] | unary and broadcasting binary operators |
//! | [`rows`] | softmax and layer normalisation over the last axis |
//! | [`shuffle`] | transpose, gather and layout changes |
//! | [`trees`] | ensembles of decision trees |
//! | [`classes`] | labels and probabilities from scores |
//!
//! Invariant: a kernel called with an [`isa::Isa`] of one level executes no instruction above that level.

pub mod classes;
pub mod conv;
pub mod cores;
pub mod depthwise;
pub mod gemm;
pub mod isa;
pub mod math;
pub mod pace;
pub mod pointwise;
pub mod pool;
pub mod rows;
pub mod shuffle;
mod sync;
pub mod trees;
mod vector;
pub mod watch;
pub mod window;
