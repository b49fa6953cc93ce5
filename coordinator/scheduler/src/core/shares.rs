//! A link for reading without a token. The core has no part in it: it holds what the store keeps.

use planforge_types::Digest;
use serde::{Deserialize, Serialize};

/// What a link shows, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shared {
    /// A request, by its id.
    Request(String),
    Model(Digest),
}

/// Whoever has the secret may read one thing of a project until a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareRecord {
    pub id: String,
    /// Looking up a hash tells an attacker nothing about secrets.
    pub secret_hash: Digest,
    /// Whose jobs and engines it shows; `None`: every project's.
    pub project: Option<String>,
    pub of: Shared,
    /// Name of the token that made it, or `local`.
    pub actor: String,
    /// Id of that token: a link is worth nothing once it is revoked. Empty: the owner's socket.
    pub token: String,
    pub created_ms: u64,
    /// From this time on the link is as good as absent.
    pub expires_ms: u64,
    /// When somebody last read it; 0: nobody did. The store keeps it apart.
    #[serde(skip)]
    pub opened_ms: u64,
}
