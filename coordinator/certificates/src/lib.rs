//! Certificates of agents: this coordinator's own authority over them, what one says that was shown, and whose are
//! believed.
//!
//! An enrolled agent's certificate is a token: what a token's secret is to others, its key is to it. So everything that
//! holds for agents' tokens (one agent, revocation, limits) holds for it, and the authority keeps no list of its own.

mod authority;
mod der;
mod trust;

pub use authority::{Authority, AuthorityError, CERTIFICATE_LIFE, Issued, PublicKey};
pub use der::{Shown, hosts, names};
pub use trust::authorities;

use planforge_types::Digest;

/// Under what an enrolled key is known. No secret of a token has this hash: each begins in its own way.
pub fn key_hash(public_key_info: &[u8]) -> Digest {
    Digest::of(&[b"planforge agent key\n", public_key_info].concat())
}
