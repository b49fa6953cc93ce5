//! NVIDIA devices: libraries found at run time, kernels compiled at run time, nothing linked.
//!
//! | module | holds |
//! |---|---|
//! | [`libraries`] | where driver, NVRTC, cuBLASLt and cuDNN are, and what is missing |
//! | `calls` | the functions of NVRTC, cuBLASLt and cuDNN, from the files that were chosen |
//! | [`nvrtc`] | CUDA C++ to a cubin for one exact architecture, cached by everything that decides it |
//! | [`compilers`] | the same in processes of their own, which do not wait for one another |
//! | [`messages`] | processes that answer, and what is said to them |
//! | [`cubin`] | machine code that was checked: what a device loads |
//! | [`device`] | one GPU: context, memory, streams, events, captured graphs |
//! | [`check`] | whether a device can still be used |
//! | [`pinned`] | host memory for copies in stream order |
//! | [`blaslt`] | matrix products with epilogues, and the search over their algorithms |
//! | [`dnn`] | cuDNN operation graphs: description, engines that run them, plans |
//! | `pool` | streams that are lent again |
//! | [`nvtx`] | named ranges for profilers |
//!
//! Every library is optional: a function that needs one takes the token that only a loaded library gives.

pub mod blaslt;
mod calls;
pub mod check;
pub mod compilers;
pub mod cubin;
pub mod device;
pub mod dnn;
pub mod libraries;
pub mod messages;
pub mod nvrtc;
pub mod nvtx;
pub mod pinned;
mod pool;
