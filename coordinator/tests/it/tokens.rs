//! Tokens under many hands at once: what was acknowledged holds, also after a restart.

use crate::support::{DEADLINE, TestClock, blobs::MemBlobs, open};
use planforge_coordinator::{
    auth::Actor,
    farm::{Farm, FarmConfig},
    store::{MemStore, SqliteStore, Store, StoreError},
};
use planforge_proto::{ErrorCode, v1};
use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Longer than the step in which last uses are written.
const TWO_HOURS_MS: u64 = 2 * 60 * 60 * 1_000;
const TOKENS: usize = 400;

async fn farm(store: Arc<dyn Store>, clock: &Arc<TestClock>) -> Farm {
    let config = FarmConfig { seed: Some(3), ..FarmConfig::default() };
    Farm::open(store, Arc::new(MemBlobs::default()), config, clock.clone()).await.unwrap()
}

fn ask(name: &str) -> v1::CreateTokenRequest {
    v1::CreateTokenRequest { name: name.into(), role: "submit".into(), ..v1::CreateTokenRequest::default() }
}

async fn works(farm: &Farm, token: &v1::CreateTokenReply) -> bool {
    farm.authenticate(&token.secret).await.unwrap().is_some()
}

/// Revokes every second of many tokens while all of them are used and their last use is due to be written.
async fn revocations_hold(open: impl AsyncFn() -> Arc<dyn Store>) {
    let clock = Arc::new(TestClock(AtomicU64::new(TWO_HOURS_MS)));
    let first = farm(open().await, &clock).await;
    let mut tokens = Vec::new();
    for index in 0..TOKENS {
        tokens.push(first.create_token(&Actor::local(), ask(&format!("t{index}"))).await.unwrap());
    }
    let mut hands = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        clock.0.fetch_add(TWO_HOURS_MS, Ordering::SeqCst);
        if index % 2 == 0 {
            let (farm, id) = (first.clone(), token.id.clone());
            hands.push(tokio::spawn(async move {
                farm.revoke_token(&Actor::local(), &id).await.unwrap();
                String::new()
            }));
        }
        // Uses before, during and after the revocation.
        for _ in 0..3 {
            let (farm, token, clock) = (first.clone(), token.clone(), clock.clone());
            hands.push(tokio::spawn(async move {
                for _ in 0..4 {
                    works(&farm, &token).await;
                    clock.0.fetch_add(TWO_HOURS_MS, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                }
                token.id
            }));
        }
    }
    for hand in hands {
        tokio::time::timeout(DEADLINE, hand).await.unwrap().unwrap();
    }
    let standing = async |farm: &Farm, when: &str| {
        for (index, token) in tokens.iter().enumerate() {
            assert_eq!(works(farm, token).await, index % 2 == 1, "token {index} {when}");
        }
        let listed = farm.list_tokens(&Actor::local()).await.unwrap().tokens;
        let revoked: BTreeSet<String> = listed.iter().filter(|t| t.revoked).map(|t| t.id.clone()).collect();
        assert_eq!(revoked.len(), TOKENS / 2, "{when}");
    };
    standing(&first, "before the restart").await;
    first.close().await;
    let second = farm(open().await, &clock).await;
    standing(&second, "after a restart").await;
    let listed = second.list_tokens(&Actor::local()).await.unwrap().tokens;
    let used = listed.iter().filter(|token| !token.revoked && token.last_used_ms > 0).count();
    assert_eq!(used, TOKENS / 2, "what was used and not revoked says so");
    second.close().await;
}

async fn sqlite(file: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(file).await.unwrap())
}

#[tokio::test]
async fn revoked_tokens_stay_revoked_whatever_happens_beside() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    revocations_hold(async || sqlite(&file).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn revoked_tokens_stay_revoked_on_many_threads() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    revocations_hold(async || sqlite(&file).await).await;
    let store = Arc::new(MemStore::new());
    revocations_hold(async || store.clone() as Arc<dyn Store>).await;
}

#[tokio::test]
async fn a_name_is_given_once_however_many_ask_at_once() {
    let store = Arc::new(MemStore::new());
    let farm = open(store.clone(), &MemBlobs::default()).await;
    let local = Actor::local();
    let made = futures::future::join_all((0..20).map(|_| farm.create_token(&local, ask("ci")))).await;
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1, "{made:?}");
    for error in made.into_iter().filter_map(Result::err) {
        assert_eq!(error.code, ErrorCode::Conflict);
    }
    assert_eq!(store.tokens().await.unwrap().len(), 1);
    // A name is free again when its token was revoked, or could not be kept.
    farm.revoke_token(&local, "ci").await.unwrap();
    farm.create_token(&local, ask("ci")).await.unwrap();
    store.set_fault(Some(StoreError::Full { detail: "disk".into() }));
    assert_eq!(farm.create_token(&local, ask("other")).await.unwrap_err().code, ErrorCode::ResourceExhausted);
    store.set_fault(None);
    farm.create_token(&local, ask("other")).await.unwrap();
}

#[tokio::test]
async fn a_revocation_whose_caller_goes_away_is_whole() {
    let store = Arc::new(MemStore::new());
    let farm = open(store.clone(), &MemBlobs::default()).await;
    let made = farm.create_token(&Actor::local(), ask("ci")).await.unwrap();
    {
        // Asked once, then dropped, as a server drops the call of a client that hung up.
        let local = Actor::local();
        let mut revoking = Box::pin(farm.revoke_token(&local, &made.id));
        assert!(futures::poll!(&mut revoking).is_pending());
    }
    let is_revoked = || async { store.tokens().await.unwrap()[0].revoked.then_some(()) };
    crate::support::until("the revocation to be stored", is_revoked).await;
    crate::support::until("memory to follow", || async { (!works(&farm, &made).await).then_some(()) }).await;
}

#[tokio::test]
async fn what_has_expired_stays_expired_when_the_clock_is_set_back() {
    let clock = Arc::new(TestClock(AtomicU64::new(TWO_HOURS_MS)));
    let farm = farm(Arc::new(MemStore::default()), &clock).await;
    let brief = v1::CreateTokenRequest { ttl_s: 60, ..ask("brief") };
    let brief = farm.create_token(&Actor::local(), brief).await.unwrap();
    let lasting = farm.create_token(&Actor::local(), ask("lasting")).await.unwrap();
    assert!(works(&farm, &brief).await);
    clock.0.fetch_add(61_000, Ordering::SeqCst);
    assert!(!works(&farm, &brief).await);
    for back_ms in [61_000, TWO_HOURS_MS] {
        clock.0.store(TWO_HOURS_MS + 61_000 - back_ms, Ordering::SeqCst);
        assert!(!works(&farm, &brief).await, "set back by {back_ms} ms");
        assert!(works(&farm, &lasting).await);
    }
    // Nothing is made before what was made earlier.
    let later = farm.create_token(&Actor::local(), ask("later")).await.unwrap();
    let tokens = farm.list_tokens(&Actor::local()).await.unwrap().tokens;
    let made = |id: &str| tokens.iter().find(|token| token.id == id).unwrap().created_ms;
    assert!(made(&later.id) >= made(&lasting.id));
}
