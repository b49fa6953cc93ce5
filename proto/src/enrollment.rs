//! How an agent has its key certified: JSON over HTTP, as the agent is no member of the farm yet.
//!
//! ```text
//! POST /v1/enroll        Enrollment, with a one-time token     200 Certified
//! POST /v1/certificate   {}, over TLS with the certificate     200 Certified, for another while
//! ```

use serde::{Deserialize, Serialize};

/// What an agent asks with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrollment {
    pub agent_id: String,
    /// The key's public half: a point of P-256, uncompressed.
    pub public_key: Vec<u8>,
    /// By the key, over [`words`]: whoever asks has it. ECDSA with SHA-256, in DER.
    pub signature: Vec<u8>,
}

/// What the key of an enrollment signs.
pub fn words(agent_id: &str) -> Vec<u8> {
    format!("planforge enrollment of agent {agent_id}").into_bytes()
}

/// A certificate, as the coordinator gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certified {
    /// PEM.
    pub certificate: String,
    /// When it ends, in milliseconds since 1970.
    pub expires_ms: u64,
    /// How long to wait with asking for the next one.
    pub renew_in_s: u64,
}
