//! Browsers that are signed in, and the links that sign one in: kept as hashes.
//!
//! Links are in memory until the process ends. Sessions outlive it in a file of the data folder, so that nobody is signed
//! out when a coordinator is started again; what cannot be read of that file signs browsers out and nothing else.
//!
//! A browser never holds a token. It holds the secret of a *session*, which rests on what its maker showed
//! ([`Proof`]): a session of a token that was revoked or ran out is worth nothing from that moment on.
//!
//! A *link* is worth one session, once, for a short time. Looking at it uses nothing up.

use crate::{
    auth::{Actor, Proof, Role},
    core::Now,
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::{Digest, durable};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// A session ends this long after it began, if nothing ends it sooner.
pub const SESSION_SECONDS: u32 = 30 * 24 * 3600;
/// Sessions and unused links at once, each; the one that would end first gives way.
const KEPT_MAX: usize = 1_000;
/// Longest secret that is hashed.
const SECRET_MAX_BYTES: usize = 256;

/// A link that signs one browser in.
#[derive(Clone, Debug)]
pub struct LoginLink {
    /// Path and query on the coordinator; holds the secret.
    pub path: String,
    pub life: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    proof: Proof,
    /// On the monotonic clock.
    ends_ms: u64,
}

/// Entries by the hash of their secret.
#[derive(Debug, Default)]
struct Secrets(BTreeMap<Digest, Entry>);

impl Secrets {
    fn add(&mut self, secret: &str, proof: Proof, now_ms: u64, life_ms: u64) {
        self.0.retain(|_, entry| entry.ends_ms > now_ms);
        if self.0.len() >= KEPT_MAX
            && let Some(first) = self.0.iter().min_by_key(|(_, entry)| entry.ends_ms).map(|(hash, _)| *hash)
        {
            self.0.remove(&first);
        }
        self.0.insert(Digest::of(secret.as_bytes()), Entry { proof, ends_ms: now_ms.saturating_add(life_ms) });
    }

    fn find(&self, secret: &str, now_ms: u64) -> Option<Proof> {
        let entry = self.0.get(&hash(secret)?)?;
        (entry.ends_ms > now_ms).then_some(entry.proof)
    }

    /// Removes it, and tells what it was worth.
    fn take(&mut self, secret: &str, now_ms: u64) -> Option<Proof> {
        let entry = self.0.remove(&hash(secret)?)?;
        (entry.ends_ms > now_ms).then_some(entry.proof)
    }
}

fn hash(secret: &str) -> Option<Digest> {
    (secret.len() <= SECRET_MAX_BYTES).then(|| Digest::of(secret.as_bytes()))
}

/// What is known of browsers.
#[derive(Debug, Default)]
struct Known {
    links: Secrets,
    sessions: Secrets,
}

/// A session as it is kept in the file.
#[derive(Serialize, Deserialize)]
struct KeptSession {
    /// Hash of its secret.
    hash: Digest,
    /// Hash of the token that it rests on; none: the owner of the data folder.
    token: Option<Digest>,
    /// By the time of day.
    ends_ms: u64,
}

/// What the farm knows of browsers, and the file that keeps it.
#[derive(Debug, Default)]
pub(super) struct Logins {
    known: Mutex<Known>,
    /// `None`: sessions end with the process.
    file: Option<PathBuf>,
    /// One writes the file at a time, and each what is known then.
    writing: Mutex<()>,
}

impl Logins {
    /// Begins with the sessions of a file that have not ended.
    pub fn of_file(file: Option<PathBuf>, now: Now) -> Self {
        let mut sessions = Secrets::default();
        let read = file.as_ref().map_or_else(
            || Ok(Vec::new()),
            |file| match fs::read(file) {
                Ok(text) => serde_json::from_slice::<Vec<KeptSession>>(&text).map_err(io::Error::from),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
                Err(error) => Err(error),
            },
        );
        let kept = read.unwrap_or_else(|error| {
            let file = file.as_deref().map(|file| file.display().to_string()).unwrap_or_default();
            tracing::warn!(%error, file, "cannot read who was signed in: browsers sign in again");
            Vec::new()
        });
        for KeptSession { hash, token, ends_ms } in kept {
            // A clock that was set back lets none last longer than a new one would.
            let left_ms = ends_ms.saturating_sub(now.wall_ms).min(u64::from(SESSION_SECONDS) * 1_000);
            if left_ms > 0 {
                let proof = token.map_or(Proof::Owner, Proof::Token);
                sessions.0.insert(hash, Entry { proof, ends_ms: now.mono_ms.saturating_add(left_ms) });
            }
        }
        Self { known: Mutex::new(Known { sessions, ..Known::default() }), file, writing: Mutex::default() }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Known) -> T) -> T {
        work(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes the sessions durable that there are now.
    fn keep(&self, now: Now) {
        let Some(file) = &self.file else { return };
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = self.with(|known| {
            let kept = |(hash, entry): (&Digest, &Entry)| KeptSession {
                hash: *hash,
                token: match entry.proof {
                    Proof::Owner => None,
                    Proof::Token(hash) => Some(hash),
                },
                ends_ms: now.wall_ms.saturating_add(entry.ends_ms.saturating_sub(now.mono_ms)),
            };
            known.sessions.0.iter().map(kept).collect::<Vec<_>>()
        });
        let written = serde_json::to_vec(&kept).map_err(io::Error::from);
        if let Err(error) = written.and_then(|text| durable::write_private(file, &text)) {
            let file = file.display();
            tracing::warn!(%error, %file, "cannot keep who is signed in: a restart signs browsers out");
        }
    }
}

impl super::Farm {
    fn with_logins<T>(&self, work: impl FnOnce(&mut Known, u64) -> T) -> T {
        let now_ms = self.clock().mono_ms();
        self.inner.logins.with(|known| work(known, now_ms))
    }

    fn keep_logins(&self) {
        self.inner.logins.keep(Now { mono_ms: self.clock().mono_ms(), wall_ms: self.clock().wall_ms() });
    }

    /// Who a proof stands for, while it is good.
    pub fn actor_of(&self, proof: Proof) -> Option<Actor> {
        match proof {
            Proof::Owner => Some(Actor::local()),
            Proof::Token(hash) => self.holder_of(hash),
        }
    }

    /// A link that signs one browser in as the holder of `proof`.
    pub fn make_login_link(&self, actor: &Actor, proof: Proof) -> Result<LoginLink, ApiError> {
        if actor.role != Role::Admin {
            let message = format!("token '{}' has role {}; links are made with role admin", actor.name, actor.role);
            return Err(ApiError::new(ErrorCode::PermissionDenied, message)
                .with_hint("sign in with your token on the page itself, at /login"));
        }
        self.note(actor, "login.link", "", "");
        let secret = hex::encode(self.random_bytes::<32>());
        let life_ms = self.config().login_link_ms;
        self.with_logins(|logins, now_ms| logins.links.add(&secret, proof, now_ms, life_ms));
        Ok(LoginLink { path: format!("/login?once={secret}"), life: Duration::from_millis(life_ms) })
    }

    /// Uses a link up: the secret of a session; `None` for one that is unknown, used, too old, or whose maker lost the
    /// right.
    pub fn redeem_login_link(&self, secret: &str) -> Option<String> {
        let proof = self.with_logins(|logins, now_ms| logins.links.take(secret, now_ms))?;
        self.actor_of(proof)?;
        Some(self.begin_session(proof))
    }

    /// The secret of a new session.
    pub fn begin_session(&self, proof: Proof) -> String {
        let secret = hex::encode(self.random_bytes::<32>());
        let life_ms = u64::from(SESSION_SECONDS) * 1_000;
        self.with_logins(|logins, now_ms| logins.sessions.add(&secret, proof, now_ms, life_ms));
        self.keep_logins();
        secret
    }

    /// What a session rests on, while it lasts.
    pub fn session_proof(&self, secret: &str) -> Option<Proof> {
        self.with_logins(|logins, now_ms| logins.sessions.find(secret, now_ms))
    }

    /// Ends a session; an unknown one is none already.
    pub fn end_session(&self, secret: &str) {
        if self.with_logins(|logins, now_ms| logins.sessions.take(secret, now_ms)).is_some() {
            self.keep_logins();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_good_until_its_end_and_taken_once() {
        let mut secrets = Secrets::default();
        secrets.add("a", Proof::Owner, 1_000, 500);
        assert_eq!(secrets.find("a", 1_499), Some(Proof::Owner));
        assert_eq!(secrets.find("a", 1_500), None, "over");
        assert_eq!(secrets.find("b", 1_000), None);
        assert_eq!(secrets.take("a", 1_499), Some(Proof::Owner));
        assert_eq!(secrets.take("a", 1_499), None, "once");
        secrets.add("late", Proof::Owner, 1_000, 500);
        assert_eq!(secrets.take("late", 1_500), None, "too old");
    }

    #[test]
    fn sessions_outlive_the_process_until_they_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sessions.json");
        let at = |mono_ms, wall_ms| Now { mono_ms, wall_ms };
        let find = |logins: &Logins, secret: &str, now_ms| logins.with(|known| known.sessions.find(secret, now_ms));
        let token = Proof::Token(Digest::of(b"token"));
        let first = Logins::of_file(Some(file.clone()), at(5_000, 1_000_000));
        first.with(|known| known.sessions.add("owner's", Proof::Owner, 5_000, 500));
        first.with(|known| known.sessions.add("token's", token, 5_000, 900));
        first.keep(at(5_000, 1_000_000));
        assert!(!fs::read_to_string(&file).unwrap().contains("owner's"), "no secret stands in it");
        // The other process's clock begins anew.
        let second = Logins::of_file(Some(file.clone()), at(10, 1_000_499));
        assert_eq!((find(&second, "owner's", 10), find(&second, "owner's", 11)), (Some(Proof::Owner), None));
        let third = Logins::of_file(Some(file.clone()), at(10, 1_000_600));
        assert_eq!((find(&third, "owner's", 10), find(&third, "token's", 10)), (None, Some(token)));
        fs::write(&file, "nothing").unwrap();
        assert_eq!(find(&Logins::of_file(Some(file), at(10, 1_000_000)), "token's", 10), None);
    }

    #[test]
    fn the_one_that_ends_first_gives_way() {
        let mut secrets = Secrets::default();
        for number in 0..=KEPT_MAX {
            secrets.add(&number.to_string(), Proof::Owner, number as u64, 1_000_000);
        }
        assert_eq!(secrets.0.len(), KEPT_MAX);
        assert_eq!(secrets.find("0", 0), None);
        assert!(secrets.find("1", 0).is_some() && secrets.find(&KEPT_MAX.to_string(), 0).is_some());
    }
}
