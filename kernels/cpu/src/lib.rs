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
//! | [`nest`] | loops over any axes: element-wise programs over operands of any type, reductions, softmax and running sums |
//! | [`quantized`] | products, convolutions and pools of 8-bit integers |
//! | [`rows`] | softmax and layer normalisation over the last axis |
//! | [`fourier`] | discrete Fourier transforms of any length |
//! | [`lookup`] | elements found by indices, the first of lines in order |
//! | [`recurrent`] | RNN, GRU and LSTM |
//! | [`regions`] | regions of images, sampled into grids |
//! | [`resample`] | lines as weighted sums of other lines |
//! | [`shuffle`] | transpose, gather and layout changes |
//! | [`trees`] | ensembles of decision trees |
//! | [`classes`] | labels and probabilities from scores |
//!
//! Invariant: a kernel called with an [`isa::Isa`] of one level executes no instruction above that level.

pub mod classes;
pub mod conv;
pub mod cores;
pub mod depthwise;
pub mod fourier;
pub mod gemm;
pub mod isa;
pub mod lookup;
pub mod math;
pub mod nest;
pub mod pace;
pub mod pointwise;
pub mod pool;
pub mod quantized;
pub mod recurrent;
pub mod regions;
pub mod resample;
pub mod rows;
pub mod shuffle;
mod sync;
#[cfg(target_arch = "x86_64")]
mod tiles;
pub mod trees;
mod vector;
pub mod watch;
pub mod window;
