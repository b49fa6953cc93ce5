//! From a one-time token to an agent's certificate.
//!
//! What is kept of an enrolled agent is a token of role agent that belongs to it from the start, has the name of the
//! one-time token, and whose secret is the agent's key: nobody has it but the agent. It does not expire; certificates
//! do, and are renewed for as long as it is not revoked.

use super::{Farm, convert, tokens::to_the_end};
use crate::{
    auth::{Proof, Role},
    core::{Change, TokenRecord},
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::Digest;

const ANOTHER: &str = "have an administrator make one: planforge token create NAME --role enroll";

fn refused(code: ErrorCode, message: String) -> ApiError {
    ApiError::new(code, message).with_hint(ANOTHER)
}

impl Farm {
    /// Trades the one-time token behind `proof` for the membership of the agent with that key: once, however many ask at
    /// the same moment.
    pub async fn enroll(&self, proof: Proof, agent: &str, key: Digest) -> Result<(), ApiError> {
        let agent = convert::agent_id(agent)?.ok_or_else(|| convert::invalid("an enrollment names its agent"))?;
        let Proof::Token(hash) = proof else {
            return Err(refused(ErrorCode::PermissionDenied, "an agent enrolls with a one-time token".into()));
        };
        let id = agent.clone();
        let joined_by = self.ask(move |state, _| state.joined_by(&id).cloned()).await?;
        let now_ms = self.clock().wall_ms();
        let fresh_id = self.fresh_id();
        let (used, fresh) = self.tokens().with(|known| {
            let token = known.good(hash, now_ms)?.clone();
            if token.role.parse() != Ok(Role::Enroll) {
                let message = format!("the token '{}' has role {}, not enroll", token.name, token.role);
                return Err(refused(ErrorCode::PermissionDenied, message));
            }
            known.may_stand_for(&token, &agent, joined_by.as_ref(), now_ms)?;
            if known.by_hash.contains_key(&key) {
                return Err(refused(ErrorCode::Conflict, "this key is enrolled already".into()));
            }
            let fresh = TokenRecord {
                id: fresh_id,
                role: Role::Agent.to_string(),
                project: None,
                secret_hash: key,
                created_ms: now_ms,
                expires_ms: 0,
                last_used_ms: 0,
                agent: Some(agent.clone()),
                ..token.clone()
            };
            // From here on nobody else enrolls with it, although that is not durable yet.
            known.set_revoked(hash, true);
            Ok((token.id, fresh))
        })?;
        let farm = self.clone();
        to_the_end(async move {
            let changes = vec![Change::TokenRevoked { id: used }, Change::TokenMade(fresh.clone())];
            let kept = farm.commit(changes).await;
            farm.tokens().with(|known| match &kept {
                Ok(()) => {
                    tracing::info!(token = fresh.name, agent = fresh.agent, "an agent was enrolled");
                    known.by_hash.insert(key, fresh);
                }
                Err(_) => known.set_revoked(hash, false),
            });
            kept
        })
        .await
    }

    /// The agent that an enrolled key belongs to, while it is good.
    pub fn enrolled(&self, key: Digest) -> Result<String, ApiError> {
        let now_ms = self.clock().wall_ms();
        let agent = self.tokens().with(|known| known.good(key, now_ms).map(|token| token.agent.clone()))?;
        agent.ok_or_else(|| refused(ErrorCode::PermissionDenied, "this key belongs to no agent any more".into()))
    }

    /// What time it is here.
    pub fn wall_ms(&self) -> u64 {
        self.clock().wall_ms()
    }

    /// Whether an agent was ever enrolled with that key.
    pub fn knows_key(&self, key: Digest) -> bool {
        self.tokens().with(|known| known.by_hash.contains_key(&key))
    }
}
