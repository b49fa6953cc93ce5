//! Tokens: made once, kept as hashes, looked up in memory.

use super::{
    convert,
    leader::{Message, Shared},
};
use crate::{
    auth::{Actor, Role},
    core::{Change, TokenRecord},
};
use planforge_engine_core::identity::Digest;
use planforge_proto::{ApiError, ErrorCode, v1};
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Every secret begins with it, so that leaked ones are found.
const SECRET_PREFIX: &str = "pf_";
/// Tokens that exist at once, revoked ones too.
const TOKENS_MAX: usize = 10_000;
/// A token's last use is written at most this often.
const LAST_USED_STEP_MS: u64 = 60 * 60 * 1_000;
/// Longest secret that is hashed.
const SECRET_MAX_BYTES: usize = 256;

/// Tokens by the hash of their secret. Looking up a hash tells an attacker nothing about secrets.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    by_hash: Mutex<BTreeMap<Digest, TokenRecord>>,
}

impl Tokens {
    pub fn new(tokens: Vec<TokenRecord>) -> Self {
        Self { by_hash: Mutex::new(tokens.into_iter().map(|token| (token.secret_hash, token)).collect()) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<Digest, TokenRecord>) -> T) -> T {
        work(&mut self.by_hash.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(super) fn admin(actor: &Actor) -> Result<(), ApiError> {
    if actor.role == Role::Admin {
        return Ok(());
    }
    let message = format!("token '{}' has role {}; tokens are managed with role admin", actor.name, actor.role);
    Err(ApiError::new(ErrorCode::PermissionDenied, message))
}

impl super::Farm {
    async fn keep_token(&self, token: TokenRecord) -> Result<(), ApiError> {
        self.commit(vec![Change::Token(token.clone())]).await?;
        self.tokens().with(|tokens| tokens.insert(token.secret_hash, token));
        Ok(())
    }

    pub(super) async fn make_token(
        &self,
        actor: &Actor,
        request: v1::CreateTokenRequest,
    ) -> Result<v1::CreateTokenReply, ApiError> {
        admin(actor)?;
        let role: Role = request.role.parse().map_err(convert::invalid)?;
        let fine = !request.name.is_empty() && request.name.len() <= 64 && !request.name.contains(char::is_control);
        if !fine {
            return Err(convert::invalid("a token has a name of 1 to 64 bytes without control characters"));
        }
        let project = if request.project.is_empty() { None } else { Some(convert::project(&request.project)?) };
        let taken = self.tokens().with(|tokens| {
            if tokens.len() >= TOKENS_MAX {
                return Some(ApiError::new(
                    ErrorCode::ResourceExhausted,
                    format!("there are {TOKENS_MAX} tokens already"),
                ));
            }
            let same = tokens.values().any(|token| !token.revoked && token.name == request.name);
            same.then(|| {
                let message = format!("a token named '{}' exists already", request.name);
                ApiError::new(ErrorCode::Conflict, message).with_hint("revoke it first, or choose another name")
            })
        });
        if let Some(error) = taken {
            return Err(error);
        }
        let secret = format!("{SECRET_PREFIX}{}", hex::encode(self.random_bytes::<32>()));
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
        };
        let id = token.id.clone();
        self.keep_token(token).await?;
        Ok(v1::CreateTokenReply { id, secret })
    }

    pub(super) fn tokens_out(&self, actor: &Actor) -> Result<v1::ListTokensReply, ApiError> {
        admin(actor)?;
        let mut tokens: Vec<v1::Token> = self.tokens().with(|t| t.values().map(convert::token_out).collect());
        tokens.sort_by(|left, right| (left.created_ms, &left.id).cmp(&(right.created_ms, &right.id)));
        Ok(v1::ListTokensReply { tokens })
    }

    pub(super) async fn end_token(&self, actor: &Actor, id: &str) -> Result<v1::RevokeTokenReply, ApiError> {
        admin(actor)?;
        let found = self.tokens().with(|tokens| {
            let mut fits = tokens.values().filter(|token| token.id == id || (!token.revoked && token.name == id));
            (fits.next().cloned(), fits.next().is_some())
        });
        let (Some(mut token), false) = found else {
            let message = format!("no token has the id or name '{}'", id.escape_debug());
            return Err(ApiError::new(ErrorCode::NotFound, message));
        };
        token.revoked = true;
        let reply = v1::RevokeTokenReply { token: Some(convert::token_out(&token)) };
        self.keep_token(token).await?;
        Ok(reply)
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
        let (actor, stale) = self.tokens().with(|tokens| {
            let token = tokens.get_mut(&hash)?;
            if token.revoked || (token.expires_ms != 0 && token.expires_ms <= now_ms) {
                return None;
            }
            let role = token.role.parse().ok()?;
            let actor = Actor { name: token.name.clone(), role, project: token.project.clone() };
            let stale = now_ms.saturating_sub(token.last_used_ms) >= LAST_USED_STEP_MS;
            if stale {
                token.last_used_ms = now_ms;
            }
            Some((actor, stale.then(|| token.clone())))
        })?;
        if let Some(token) = stale {
            // Coarse and not waited for: losing it loses nothing that was promised.
            let (answer, _) = tokio::sync::oneshot::channel();
            let _ = self.try_tell(Message::Commit { changes: vec![Change::Token(token)], answer });
        }
        Some(actor)
    }
}

impl Shared {
    /// Why the farm takes no writes now.
    pub fn trouble(&self) -> Option<ApiError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
