//! Who is who: the names by which models, devices, toolchains, specs and engines are told apart.

pub mod digest;
pub mod digest_cache;
pub mod graph_digest;
pub mod key;
pub mod model;
pub mod resolve;
pub mod sku;
pub mod spec;
pub mod toolchain;

pub use digest::{Digest, DigestWriter};
pub use digest_cache::DigestCache;
pub use key::EngineKey;
pub use model::{IdentifiedFile, IdentityError, ModelIdentity, identify};
pub use resolve::{ResolveError, resolve_spec, resolve_toolchain};
pub use sku::Sku;
pub use spec::{BuildSpec, DimRange, OptimizationLevel, OptimizationProfile, Precision, SpecError};
pub use toolchain::{Toolchain, ToolchainConstraint};

#[cfg(test)]
mod key_tests;
