//! Links for reading without a token, as JSON.

use crate::v1;
use serde::{Deserialize, Serialize};

/// A link; its secret is told once, when it is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShareView {
    pub id: String,
    /// `null`: every project's.
    pub project: Option<String>,
    /// Name of the token that made it, or `local`.
    pub actor: String,
    /// Either the request,
    pub request_id: Option<String>,
    /// or the model that it shows.
    pub model_digest: Option<String>,
    pub created_ms: u64,
    pub expires_ms: u64,
    /// When somebody last read it; `null`: nobody did.
    pub opened_ms: Option<u64>,
}

impl From<v1::Share> for ShareView {
    fn from(share: v1::Share) -> Self {
        Self {
            id: share.id,
            project: super::some_text(share.project),
            actor: share.actor,
            request_id: super::some_text(share.request_id),
            model_digest: super::some_text(share.model_digest),
            created_ms: share.created_ms,
            expires_ms: share.expires_ms,
            opened_ms: (share.opened_ms > 0).then_some(share.opened_ms),
        }
    }
}
