//! Tokens: made once, kept as hashes, looked up in memory.

use super::{convert, leader::Message, requests::visible_project};
use crate::{
    auth::{Actor, Role},
    core::{Change, Farewell, Input, TokenRecord},
};
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_types::Digest;
use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::{Mutex, PoisonError},
};

/// Every secret begins with it, so that leaked ones are found.
const SECRET_PREFIX: &str = "pf_";
/// Tokens that exist at once, revoked ones too.
const TOKENS_MAX: usize = 10_000;
/// Tokens of one project, beyond which only administrators of the whole farm make more.
const PROJECT_TOKENS_MAX: usize = 1_000;
/// A token's last use is written at most this often.
const LAST_USED_STEP_MS: u64 = 60 * 60 * 1_000;
/// Longest secret that is hashed.
const SECRET_MAX_BYTES: usize = 256;

/// The tokens in memory. What happens to one is a change of its own in the store and one field here, so that a use and a
/// revocation cannot undo each other.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// By the hash of their secret: looking up a hash tells an attacker nothing about secrets.
    pub by_hash: BTreeMap<Digest, TokenRecord>,
    /// Names of tokens that are being made durable: taken, and counted, until that is decided.
    making: BTreeSet<String>,
}

#[derive(Debug, Default)]
pub(super) struct Tokens {
    known: Mutex<Known>,
}

impl Tokens {
    pub fn new(tokens: Vec<TokenRecord>) -> Self {
        let by_hash = tokens.into_iter().map(|token| (token.secret_hash, token)).collect();
        Self { known: Mutex::new(Known { by_hash, making: BTreeSet::new() }) }
    }

    pub fn with<T>(&self, work: impl FnOnce(&mut Known) -> T) -> T {
        work(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Known {
    /// Takes a name for a token that is being made.
    fn reserve(&mut self, name: &str, by_project: Option<&str>) -> Result<(), ApiError> {
        if let Some(project) = by_project {
            let own = self.by_hash.values().filter(|token| token.project.as_deref() == Some(project)).count();
            if own >= PROJECT_TOKENS_MAX {
                let message =
                    format!("project {project} has {PROJECT_TOKENS_MAX} tokens already, revoked ones counted");
                return Err(ApiError::new(ErrorCode::ResourceExhausted, message)
                    .with_hint("an administrator of the whole farm makes more"));
            }
        }
        if self.by_hash.len() + self.making.len() >= TOKENS_MAX {
            let message = format!("there are {TOKENS_MAX} tokens already");
            return Err(ApiError::new(ErrorCode::ResourceExhausted, message));
        }
        let taken = self.by_hash.values().any(|token| !token.revoked && token.name == name);
        if taken || !self.making.insert(name.to_owned()) {
            let message = format!("a token named '{name}' exists already");
            return Err(
                ApiError::new(ErrorCode::Conflict, message).with_hint("revoke it first, or choose another name")
            );
        }
        Ok(())
    }

    pub fn name_of(&self, id: &str) -> Option<String> {
        self.by_hash.values().find(|token| token.id == id).map(|token| token.name.clone())
    }

    /// The only token with that id, or that name among those not revoked.
    fn find(&self, id: &str) -> Option<&TokenRecord> {
        let mut fits = self.by_hash.values().filter(|token| token.id == id || (!token.revoked && token.name == id));
        fits.next().filter(|_| fits.next().is_none())
    }
}

/// Refuses everybody but administrators of the whole farm.
pub(super) fn admin(actor: &Actor) -> Result<(), ApiError> {
    some_admin(actor)?;
    let Some(project) = &actor.project else { return Ok(()) };
    let message =
        format!("the token '{}' administers project {project} alone; this is about the whole farm", actor.name);
    let hint = "ask an administrator of the farm: one whose token belongs to no project";
    Err(ApiError::new(ErrorCode::PermissionDenied, message).with_hint(hint))
}

/// Refuses everybody but administrators, of the farm or of one project.
pub(super) fn some_admin(actor: &Actor) -> Result<(), ApiError> {
    if actor.role == Role::Admin {
        return Ok(());
    }
    let message = format!("the token '{}' has role {}; this needs role admin", actor.name, actor.role);
    let hint = "use an administrator's token, or run it as the owner of the coordinator's data folder, on its machine";
    Err(ApiError::new(ErrorCode::PermissionDenied, message).with_hint(hint))
}

/// Whether a token is one that an administrator looks after: every one, or those of its project.
fn may_manage(actor: &Actor, token: &TokenRecord) -> bool {
    actor.project.is_none() || actor.project == token.project
}

/// Runs `work` to its end even when the caller goes away meanwhile: what the store was told, memory must follow.
pub(super) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::spawn(work).await.unwrap_or_else(|_| Err(super::Farm::gone()))
}

/// Whether a text has the form of the secrets that are made here.
pub fn is_secret(text: &str) -> bool {
    let digits = text.strip_prefix(SECRET_PREFIX);
    digits.is_some_and(|digits| digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl super::Farm {
    /// A secret that nobody has.
    pub fn fresh_secret(&self) -> String {
        format!("{SECRET_PREFIX}{}", hex::encode(self.random_bytes::<32>()))
    }

    pub(super) async fn make_token(
        &self,
        actor: &Actor,
        request: v1::CreateTokenRequest,
        secret: String,
    ) -> Result<v1::CreateTokenReply, ApiError> {
        some_admin(actor)?;
        let role: Role = request.role.parse().map_err(convert::invalid)?;
        let fine = !request.name.is_empty() && request.name.len() <= 64 && !request.name.contains(char::is_control);
        if !fine {
            return Err(convert::invalid("a token has a name of 1 to 64 bytes without control characters"));
        }
        let project = visible_project(actor, &request.project)?;
        if actor.project.is_some() && role == Role::Agent {
            // An agent works for every project.
            admin(actor)?;
        }
        self.tokens().with(|known| known.reserve(&request.name, actor.project.as_deref()))?;
        let created_ms = self.clock().wall_ms();
        let token = TokenRecord {
            id: self.fresh_id(),
            name: request.name,
            role: role.to_string(),
            project,
            secret_hash: Digest::of(secret.as_bytes()),
            created_ms,
            expires_ms: if request.ttl_s == 0 {
                0
            } else {
                created_ms.saturating_add(request.ttl_s.saturating_mul(1_000))
            },
            revoked: false,
            last_used_ms: 0,
            agent: None,
        };
        let id = token.id.clone();
        let farm = self.clone();
        to_the_end(async move {
            let kept = farm.commit(vec![Change::TokenMade(token.clone())]).await;
            farm.tokens().with(|known| {
                known.making.remove(&token.name);
                if kept.is_ok() {
                    known.by_hash.insert(token.secret_hash, token);
                }
            });
            kept
        })
        .await?;
        Ok(v1::CreateTokenReply { id, secret })
    }

    pub(super) async fn tokens_out(&self, actor: &Actor) -> Result<v1::ListTokensReply, ApiError> {
        some_admin(actor)?;
        let mut tokens: Vec<TokenRecord> = self.tokens().with(|known| known.by_hash.values().cloned().collect());
        tokens.retain(|token| may_manage(actor, token));
        tokens.sort_by(|left, right| (left.created_ms, &left.id).cmp(&(right.created_ms, &right.id)));
        Ok(v1::ListTokensReply { tokens: self.tokens_named(tokens).await? })
    }

    /// Tokens for people: with the hosts of the agents that they belong to.
    pub(super) async fn tokens_named(&self, tokens: Vec<TokenRecord>) -> Result<Vec<v1::Token>, ApiError> {
        let agents: Vec<String> = tokens.iter().filter_map(|token| token.agent.clone()).collect();
        let names: BTreeMap<String, String> = match agents.is_empty() {
            true => BTreeMap::new(),
            false => self.ask(move |state, _| state.agent_names(&agents)).await?,
        };
        let named = |token: &TokenRecord| {
            let name = token.agent.as_ref().and_then(|agent| names.get(agent)).cloned().unwrap_or_default();
            v1::Token { agent_name: name, ..convert::token_out(token) }
        };
        Ok(tokens.iter().map(named).collect())
    }

    /// Id and hash of the token of that id or name, among those that the caller looks after.
    pub(super) fn token_of(&self, actor: &Actor, id: &str) -> Result<(String, Digest), ApiError> {
        let named = |known: &mut Known| {
            let token = known.find(id).filter(|token| may_manage(actor, token))?;
            Some((token.id.clone(), token.secret_hash))
        };
        self.tokens().with(named).ok_or_else(|| {
            let message = format!("no token has the id or name '{}'", id.escape_debug());
            ApiError::new(ErrorCode::NotFound, message).with_hint("'planforge token list' shows them")
        })
    }

    pub(super) async fn end_token(&self, actor: &Actor, id: &str) -> Result<v1::RevokeTokenReply, ApiError> {
        some_admin(actor)?;
        let (id, hash) = self.token_of(actor, id)?;
        let name = self.tokens().with(|known| known.by_hash.get(&hash).map(|token| token.name.clone()));
        let why = Farewell::lasting(
            format!("the token '{}' was revoked", name.unwrap_or_default()),
            "ask an administrator for a new one: planforge token create NAME --role agent",
        );
        let farm = self.clone();
        let token = to_the_end(async move {
            // One transaction with the end of what rests on it: whatever an agent said after that is heard from nobody.
            farm.input(Input::RevokeToken { token: id, why }).await?;
            Ok(farm.tokens().with(|known| {
                let token = known.by_hash.get_mut(&hash)?;
                token.revoked = true;
                Some(convert::token_out(token))
            }))
        })
        .await?;
        Ok(v1::RevokeTokenReply { token })
    }

    pub(super) fn holder(&self, secret: &str) -> Option<Actor> {
        if !secret.starts_with(SECRET_PREFIX) || secret.len() > SECRET_MAX_BYTES {
            return None;
        }
        self.holder_of(Digest::of(secret.as_bytes()))
    }

    /// The holder of the token whose secret has this hash, while the token is good.
    pub(super) fn holder_of(&self, hash: Digest) -> Option<Actor> {
        let now_ms = self.clock().wall_ms();
        // A use is not worth a write that is going to be refused.
        let writes = self.shared().trouble().is_none();
        let (actor, stale) = self.tokens().with(|known| {
            let token = known.by_hash.get_mut(&hash)?;
            if token.revoked || (token.expires_ms != 0 && token.expires_ms <= now_ms) {
                return None;
            }
            let role = token.role.parse().ok()?;
            let named = Actor::named(token.name.clone(), role, token.project.clone());
            let actor = Actor { token: token.id.clone(), ..named };
            let stale = writes && now_ms.saturating_sub(token.last_used_ms) >= LAST_USED_STEP_MS;
            if stale {
                token.last_used_ms = now_ms;
            }
            Some((actor, stale.then(|| token.id.clone())))
        })?;
        if let Some(id) = stale {
            // Coarse and not waited for: losing it loses nothing that was promised.
            let (answer, _) = tokio::sync::oneshot::channel();
            let _ = self.try_tell(Message::Commit { changes: vec![Change::TokenUsed { id, at_ms: now_ms }], answer });
        }
        Some(actor)
    }
}
