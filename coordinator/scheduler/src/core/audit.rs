//! One line of the audit log. The core writes none itself: it holds what the store keeps.

use serde::{Deserialize, Serialize};

/// Lines of each kind are kept up to a bound of their own: whoever makes many of one kind hides none of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditKind {
    /// Tokens, agents, plugins, projects, caches: what needs an administrator.
    Admin,
    /// Submissions, cancellations, uploads, sessions.
    #[default]
    Use,
    /// Whatever was refused for want of a right, and callers who were not let in.
    Denied,
}

impl AuditKind {
    pub const ALL: [Self; 3] = [Self::Admin, Self::Use, Self::Denied];

    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Use => "use",
            Self::Denied => "denied",
        }
    }
}

/// Who did what, from where, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditLine {
    /// Rises; given by the store.
    #[serde(skip)]
    pub seq: u64,
    pub at_ms: u64,
    pub kind: AuditKind,
    /// Name of the token, or `local`; empty: nobody who was let in.
    pub actor: String,
    pub role: String,
    /// That the caller belongs to, or that was acted on; empty: the whole farm.
    pub project: String,
    /// Id of the token; empty: the owner's socket.
    pub token: String,
    /// Address, or `unix`.
    pub from: String,
    pub what: String,
    /// Which job, token, agent, ...
    pub object: String,
    /// `ok`, or the code of the refusal.
    pub outcome: String,
    pub detail: String,
}
