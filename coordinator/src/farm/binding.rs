//! Which agent a token belongs to.
//!
//! A token of role agent belongs to the agent that used it first; an administrator gives it to another. So one token is
//! one agent: whoever copies it joins under that identity or not at all, and cannot invent a fleet. An identity that
//! somebody else's good token, an administrator's token or the owner's socket stands for is nobody's to take at first use.
//! Administrators' tokens and the owner's socket are bound to nothing: who holds them may rebind anything anyhow.

use super::{Farm, tokens::Known};
use crate::{
    auth::{Actor, Proof, Role},
    core::{AuditKind, Change, Farewell, Input, JoinedBy, TokenRecord},
};
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_types::Digest;

/// What to do about a token that is worth nothing any more.
const NEW_TOKEN: &str = "ask an administrator for a new one: planforge token create NAME --role agent";

/// Whether nothing but time or an administrator stands between a token and its use.
fn is_good(token: &TokenRecord, now_ms: u64) -> bool {
    !token.revoked && (token.expires_ms == 0 || token.expires_ms > now_ms)
}

fn is_agents(token: &TokenRecord) -> bool {
    token.role.parse() == Ok(Role::Agent)
}

/// Why a token is worth nothing, where it is.
fn worthless(token: Option<&TokenRecord>, now_ms: u64) -> Option<ApiError> {
    let message = match token {
        Some(token) if is_good(token, now_ms) => return None,
        Some(token) if token.revoked => format!("the token '{}' was revoked", token.name),
        Some(token) => format!("the token '{}' has expired", token.name),
        None => "the token is unknown".to_owned(),
    };
    Some(ApiError::new(ErrorCode::Unauthenticated, message).with_hint(NEW_TOKEN))
}

fn belongs_to_another(token: &TokenRecord, owner: &str, agent: &str) -> ApiError {
    let message = format!("the token '{}' belongs to agent {owner}; this is agent {agent}", token.name);
    ApiError::new(ErrorCode::PermissionDenied, message).with_hint(format!(
        "every agent has a token of its own: planforge token create NAME --role agent; an administrator gives this one to \
         another agent with: planforge token rebind {}",
        token.name
    ))
}

fn taken(agent: &str, by: &str, token: &str) -> ApiError {
    let message = format!("an agent with the identity {agent} joins {by} already; the token '{token}' is another's");
    ApiError::new(ErrorCode::PermissionDenied, message).with_hint(format!(
        "give this agent a state folder of its own, or have an administrator allow it: planforge token rebind {token} --agent \
         {agent}"
    ))
}

impl Known {
    /// A good token other than `token` that the identity belongs to.
    fn owner_of(&self, agent: &str, token: &TokenRecord, now_ms: u64) -> Option<&TokenRecord> {
        let mut others = self.by_hash.values().filter(|other| other.id != token.id && is_good(other, now_ms));
        others.find(|other| other.agent.as_deref() == Some(agent))
    }

    /// The token of this hash, while it is good.
    pub fn good(&self, hash: Digest, now_ms: u64) -> Result<&TokenRecord, ApiError> {
        let token = self.by_hash.get(&hash);
        match worthless(token, now_ms) {
            Some(error) => Err(error),
            None => token.ok_or_else(Farm::gone),
        }
    }

    pub fn set_revoked(&mut self, hash: Digest, revoked: bool) {
        if let Some(token) = self.by_hash.get_mut(&hash) {
            token.revoked = revoked;
        }
    }

    /// By what else than an agent's token that identity joins.
    fn otherwise(&self, joined_by: Option<&JoinedBy>, now_ms: u64) -> Option<String> {
        match joined_by {
            Some(JoinedBy::Owner) => Some("over its owner's socket".to_owned()),
            Some(JoinedBy::Token(id)) => {
                let mut good = self.by_hash.values().filter(|other| other.id == *id && is_good(other, now_ms));
                good.find(|other| !is_agents(other)).map(|other| format!("with the token '{}'", other.name))
            }
            Some(JoinedBy::Unknown) | None => None,
        }
    }

    /// Refuses a token for an identity that somebody else stands for, unless an administrator gave it that one.
    pub fn may_stand_for(
        &self,
        token: &TokenRecord,
        agent: &str,
        joined_by: Option<&JoinedBy>,
        now_ms: u64,
    ) -> Result<(), ApiError> {
        match &token.agent {
            Some(bound) if bound == agent => return Ok(()),
            Some(bound) => return Err(belongs_to_another(token, bound, agent)),
            None => {}
        }
        let owner = self.owner_of(agent, token, now_ms).map(|owner| format!("with the token '{}'", owner.name));
        match owner.or_else(|| self.otherwise(joined_by, now_ms)) {
            Some(by) => Err(taken(agent, &by, &token.name)),
            None => Ok(()),
        }
    }

    /// `None`: the token may be bound to the agent. Otherwise who it is, or why not.
    fn settled(&self, hash: Digest, agent: &str, now_ms: u64) -> Option<Result<JoinedBy, ApiError>> {
        let token = self.by_hash.get(&hash);
        if let Some(error) = worthless(token, now_ms) {
            return Some(Err(error));
        }
        let token = token?;
        let joined = || Ok(JoinedBy::Token(token.id.clone()));
        match &token.agent {
            _ if !is_agents(token) => Some(joined()),
            Some(bound) if bound == agent => Some(joined()),
            Some(bound) => Some(Err(belongs_to_another(token, bound, agent))),
            None => {
                let owner = self.owner_of(agent, token, now_ms)?;
                Some(Err(taken(agent, &format!("with the token '{}'", owner.name), &token.name)))
            }
        }
    }
}

impl Farm {
    /// Who joins as `agent`; binds an agent's token at its first use.
    pub(super) async fn bind(&self, proof: Proof, agent: &str) -> Result<JoinedBy, ApiError> {
        let Proof::Token(hash) = proof else { return Ok(JoinedBy::Owner) };
        let now_ms = self.clock().wall_ms();
        if let Some(settled) = self.tokens().with(|known| known.settled(hash, agent, now_ms)) {
            return settled;
        }
        let id = agent.to_owned();
        let before = self.ask(move |state, _| state.joined_by(&id).cloned()).await?;
        let bound = self.tokens().with(|known| {
            if let Some(settled) = known.settled(hash, agent, now_ms) {
                return settled.map(|joined| (joined, false));
            }
            let by = known.otherwise(before.as_ref(), now_ms);
            let token = known.by_hash.get_mut(&hash).ok_or_else(Self::gone)?;
            match by {
                Some(by) => Err(taken(agent, &by, &token.name)),
                None => {
                    // From here on others are refused, although it is not durable yet.
                    token.agent = Some(agent.to_owned());
                    Ok((JoinedBy::Token(token.id.clone()), true))
                }
            }
        });
        let (joined, fresh) = bound?;
        if let (true, JoinedBy::Token(id)) = (fresh, &joined) {
            let change = Change::TokenBound { id: id.clone(), agent: Some(agent.to_owned()) };
            if let Err(error) = self.commit(vec![change]).await {
                self.tokens().with(|known| {
                    if let Some(token) = known.by_hash.get_mut(&hash)
                        && token.agent.as_deref() == Some(agent)
                    {
                        token.agent = None;
                    }
                });
                return Err(error);
            }
            tracing::info!(token = id, agent, "a token belongs to its first agent from now on");
        }
        Ok(joined)
    }

    /// Why whoever showed `proof` may not go on, as `agent` where it said that it is one; `None`: it may.
    pub(super) fn shut_out(&self, proof: Proof, agent: Option<&str>) -> Option<ApiError> {
        let Proof::Token(hash) = proof else { return None };
        let now_ms = self.clock().wall_ms();
        self.tokens().with(|known| {
            let token = known.by_hash.get(&hash);
            if let Some(error) = worthless(token, now_ms) {
                return Some(error);
            }
            let (token, agent) = (token?, agent?);
            let bound = token.agent.as_deref().filter(|bound| is_agents(token) && *bound != agent)?;
            Some(belongs_to_another(token, bound, agent))
        })
    }

    /// Why `proof` is not worth any more what it was, where that is so.
    pub fn objection(&self, proof: Proof) -> Option<ApiError> {
        self.shut_out(proof, None)
    }

    /// Whether a token of role agent stands behind `proof`.
    pub(super) fn is_agents_token(&self, proof: Proof) -> Option<Digest> {
        let Proof::Token(hash) = proof else { return None };
        self.tokens().with(|known| known.by_hash.get(&hash).is_some_and(is_agents)).then_some(hash)
    }

    /// Gives an agent's token to another agent, or to the next one that uses it. Needs role admin.
    pub async fn rebind_token(
        &self,
        actor: &Actor,
        request: v1::RebindTokenRequest,
    ) -> Result<v1::RebindTokenReply, ApiError> {
        let words = format!("{} to {}", request.id, request.agent);
        self.audited(actor, AuditKind::Admin, "token.rebind", &words, self.rebind_token_now(actor, request)).await
    }

    async fn rebind_token_now(
        &self,
        actor: &Actor,
        request: v1::RebindTokenRequest,
    ) -> Result<v1::RebindTokenReply, ApiError> {
        super::tokens::admin(actor)?;
        let agent = super::convert::agent_id(&request.agent)?;
        let (id, hash) = self.token_of(actor, &request.id)?;
        let refusal = self.tokens().with(|known| known.by_hash.get(&hash).and_then(not_to_be_bound));
        if let Some(error) = refusal {
            return Err(error);
        }
        let why = Farewell::lasting("the token was given to another agent by an administrator", NEW_TOKEN);
        let farm = self.clone();
        let token = super::tokens::to_the_end(async move {
            farm.input(Input::RebindToken { token: id, agent: agent.clone(), why }).await?;
            Ok(farm.tokens().with(|known| {
                let token = known.by_hash.get_mut(&hash)?;
                token.agent = agent;
                Some(token.clone())
            }))
        })
        .await?;
        let name = token.as_ref().map(|token| token.name.clone()).unwrap_or_default();
        tracing::info!(token = name, actor = actor.name, "a token was rebound");
        Ok(v1::RebindTokenReply { token: self.tokens_named(token.into_iter().collect()).await?.pop() })
    }
}

fn not_to_be_bound(token: &TokenRecord) -> Option<ApiError> {
    if !is_agents(token) && token.role.parse() != Ok(Role::Enroll) {
        let message =
            format!("the token '{}' has role {}: only agents' tokens belong to an agent", token.name, token.role);
        return Some(super::convert::invalid(message));
    }
    token.revoked.then(|| {
        ApiError::new(ErrorCode::Conflict, format!("the token '{}' is revoked", token.name)).with_hint(NEW_TOKEN)
    })
}
