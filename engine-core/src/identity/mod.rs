//! Which model is which: the digests by which models are told apart.

pub mod digest_cache;
pub mod graph_digest;
pub mod model;

pub use digest_cache::DigestCache;
pub use model::{IdentifiedFile, IdentityError, ModelIdentity, identify};
