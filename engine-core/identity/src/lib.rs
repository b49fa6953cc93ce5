//! Which model is which, and the tensors that come with it: digests by which models are told apart, numpy's archives.
//!
//! | module | holds |
//! |---|---|
//! | [`model`] | a model's files and their digest |
//! | [`identify`](mod@identify) | the identity of the model at a path, from the cache where it can be |
//! | [`graph_digest`] | digests of the graph and of its structure, which offer reuse |
//! | [`digest_cache`] | digests of files that did not change |
//! | [`npz`] | tensors in numpy's archives: test sets, inputs and outputs |
//!
//! Must not know: graphs as compilers see them, devices, jobs.

pub mod digest_cache;
pub mod graph_digest;
pub mod identify;
pub mod model;
mod npy;
pub mod npz;

pub use digest_cache::DigestCache;
pub use identify::{IdentityError, identify};
pub use model::{IdentifiedFile, ModelIdentity};
