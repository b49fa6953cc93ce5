//! The audit log: what stands in it, and what is kept.

use crate::support::{self, actor, agent::Agent, blobs::MemBlobs, model, request};
use planforge_coordinator::{
    auth::Actor,
    farm::{Farm, FarmConfig, SystemClock},
    store::{SqliteStore, Store},
};
use planforge_proto::{ApiError, ErrorCode, v1};
use std::{path::Path, sync::Arc};

async fn farm_on(file: &Path, blobs: &MemBlobs, audit_lines: usize) -> Farm {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(file).await.unwrap());
    let config = FarmConfig { audit_lines, ..FarmConfig::default() };
    Farm::open(store, Arc::new(blobs.clone()), config, Arc::new(SystemClock::new())).await.unwrap()
}

async fn lines(farm: &Farm, what: &str) -> Vec<v1::AuditRecord> {
    let ask = v1::ListAuditRequest { what: what.into(), limit: 5_000, ..Default::default() };
    farm.list_audit(&Actor::local(), ask).await.unwrap().records
}

#[tokio::test]
async fn the_audit_log_says_who_did_what_and_outlives_a_restart() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), MemBlobs::default());
    let file = folder.path().join("farm.db");
    let farm = farm_on(&file, &blobs, 1_000).await;
    let admin = Actor { token: "t1".into(), from: "192.0.2.7".into(), ..actor("boss", "admin", None) };
    let ask = v1::CreateTokenRequest { name: "ci".into(), role: "submit".into(), project: "red".into(), ttl_s: 0 };
    let made = farm.create_token(&admin, ask.clone()).await.unwrap();
    // Durable before it was answered: nothing is waited for here.
    let line = lines(&farm, "token.create").await.remove(0);
    assert_eq!((line.actor.as_str(), line.role.as_str(), line.outcome.as_str()), ("boss", "admin", "ok"));
    assert_eq!((line.token.as_str(), line.from.as_str(), line.project.as_str()), ("t1", "192.0.2.7", ""));
    assert!(line.object.contains("ci (submit of red)"), "{line:?}");
    assert!(!format!("{line:?}").contains(&made.secret));

    let _agent = Agent::usual(&farm, "a").await;
    let red = actor("ci", "submit", Some("red"));
    support::show(&farm, &red, &model(&blobs, "m")).await;
    let job = farm.submit(&red, request(model(&blobs, "m"))).await.unwrap().jobs.remove(0);
    let cancel = v1::CancelJobsRequest { ids: vec![job.id.clone()], ..Default::default() };
    farm.cancel_jobs(&red, cancel).await.unwrap();
    assert_eq!(farm.create_token(&red, ask).await.unwrap_err().code, ErrorCode::PermissionDenied);
    let stranger = ApiError::new(ErrorCode::Unauthenticated, "the token is unknown, expired or revoked");
    farm.note_stranger("198.51.100.1", "/api/v1/jobs", &stranger);
    farm.drain_agent(&admin, v1::DrainAgentRequest { agent: "a".into() }).await.unwrap();
    farm.revoke_token(&admin, &made.id).await.unwrap();
    farm.close().await;

    let farm = farm_on(&file, &blobs, 1_000).await;
    let all = lines(&farm, "").await;
    let told: Vec<(&str, &str, &str)> =
        all.iter().rev().map(|line| (line.what.as_str(), line.actor.as_str(), line.outcome.as_str())).collect();
    for wanted in [
        ("token.create", "boss", "ok"),
        ("agent.join", "token-a", "ok"),
        ("upload", "ci", "ok"),
        ("submit", "ci", "ok"),
        ("cancel", "ci", "ok"),
        ("token.create", "ci", "permission-denied"),
        ("enter", "", "unauthenticated"),
        ("agent.drain", "boss", "ok"),
        ("token.revoke", "boss", "ok"),
    ] {
        assert!(told.contains(&wanted), "{wanted:?} in {told:?}");
    }
    assert!(all.windows(2).all(|pair| pair[0].seq > pair[1].seq), "newest first");
    let stranger = all.iter().find(|line| line.what == "enter").unwrap();
    assert_eq!((stranger.from.as_str(), stranger.object.as_str()), ("198.51.100.1", "/api/v1/jobs"));
    assert!(all.iter().any(|line| line.what == "cancel" && line.object.contains(&job.id)));
    // In pages, and by who did it.
    let page = |cursor: String| v1::ListAuditRequest { limit: 4, cursor, ..Default::default() };
    let (mut cursor, mut paged) = (String::new(), Vec::new());
    loop {
        let reply = farm.list_audit(&Actor::local(), page(cursor)).await.unwrap();
        paged.extend(reply.records);
        cursor = reply.next_cursor;
        if cursor.is_empty() {
            break;
        }
    }
    assert_eq!(paged, all);
    let of_red = v1::ListAuditRequest { project: "red".into(), actor: "ci".into(), ..Default::default() };
    let of_red = farm.list_audit(&Actor::local(), of_red).await.unwrap().records;
    assert!(!of_red.is_empty() && of_red.iter().all(|line| line.project == "red" && line.actor == "ci"));
    for role in ["read", "submit", "agent"] {
        let error = farm.list_audit(&actor("x", role, None), page(String::new())).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::PermissionDenied, "{role}");
    }
}

#[tokio::test]
async fn a_flood_of_refusals_hides_no_act() {
    let (folder, blobs) = (tempfile::tempdir().unwrap(), MemBlobs::default());
    let farm = farm_on(&folder.path().join("farm.db"), &blobs, 100).await;
    let ask = |name: String| v1::CreateTokenRequest { name, role: "read".into(), ..Default::default() };
    farm.create_token(&Actor::local(), ask("first".into())).await.unwrap();
    let reader = actor("nosy", "read", None);
    let busy = actor("busy", "submit", None);
    for number in 0..2_000 {
        farm.create_token(&reader, ask(number.to_string())).await.unwrap_err();
        farm.note_login(&busy, "by its token");
    }
    farm.revoke_token(&Actor::local(), "first").await.unwrap();
    let all = lines(&farm, "").await;
    let of = |actor: &str| all.iter().filter(|line| line.actor == actor).count();
    assert_eq!(of("local"), 2, "what administrators did is all there");
    // Up to the bound, and what came since it was last looked after.
    assert!((1..=100 + 256).contains(&of("nosy")), "{}", of("nosy"));
    assert!((100..=100 + 256).contains(&of("busy")), "{}", of("busy"));
}
