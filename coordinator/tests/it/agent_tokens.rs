//! One token, one agent: binding, revocation, expiry, limits, and what an administrator does about agents.

use crate::support::{
    DEADLINE, SKU, TestClock,
    agent::{Agent, device, hello, success},
    blobs::MemBlobs,
    model, open, request, until, until_state,
};
use futures::StreamExt as _;
use planforge_coordinator::{
    auth::{Actor, Proof},
    core::ATTEMPT_REPORTS_MAX,
    farm::{Farm, FarmConfig},
    store::{MemStore, SqliteStore, Store},
};
use planforge_proto::{
    ErrorCode, protocol,
    v1::{self, JobState, agent_message::Kind as Say, coordinator_message::Kind as Hear},
};
use planforge_types::Digest;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

async fn farm() -> (Farm, MemBlobs) {
    let blobs = MemBlobs::default();
    (open(Arc::new(MemStore::new()), &blobs).await, blobs)
}

/// The secret of a new token.
async fn token(farm: &Farm, name: &str, role: &str) -> String {
    let ask = v1::CreateTokenRequest { name: name.into(), role: role.into(), ..v1::CreateTokenRequest::default() };
    farm.create_token(&Actor::local(), ask).await.unwrap().secret
}

fn cpu() -> Vec<v1::Device> {
    vec![device("cpu0", SKU, "native 1")]
}

async fn join(farm: &Farm, secret: &str, id: &str) -> Agent {
    let mut agent = Agent::with_token(farm, secret, hello(id, cpu())).await.unwrap();
    match agent.next().await {
        Some(Hear::Welcome(_)) => agent,
        other => panic!("{id} was not welcomed: {other:?}"),
    }
}

/// The refusal that ends the stream; other messages may come before it.
async fn refusal(agent: &mut Agent) -> v1::Refused {
    loop {
        match agent.next().await {
            Some(Hear::Refused(refused)) => {
                assert!(!refused.reason.is_empty() && !refused.hint.is_empty(), "{refused:?}");
                assert_eq!(agent.next().await, None, "the stream ends");
                return refused;
            }
            Some(_) => {}
            None => panic!("the stream of {} ended without a reason", agent.id),
        }
    }
}

async fn refused(farm: &Farm, secret: &str, hello: v1::Hello) -> v1::Refused {
    refusal(&mut Agent::with_token(farm, secret, hello).await.unwrap()).await
}

async fn agents(farm: &Farm) -> Vec<v1::Agent> {
    farm.list_agents(&Actor::local()).await.unwrap().agents
}

async fn submit(farm: &Farm, blobs: &MemBlobs, name: &str) -> v1::Job {
    farm.submit(&Actor::local(), request(model(blobs, name))).await.unwrap().jobs.remove(0)
}

#[tokio::test]
async fn a_token_belongs_to_the_agent_that_used_it_first() {
    let (farm, _) = farm().await;
    let secret = token(&farm, "builder", "agent").await;
    let first = join(&farm, &secret, "a").await;
    let told = refused(&farm, &secret, hello("b", cpu())).await;
    assert!(told.lasting && told.reason.contains("'builder'") && told.reason.contains("agent b"), "{told:?}");
    assert!(told.hint.contains("planforge token rebind builder"), "{told:?}");
    let known = agents(&farm).await;
    assert_eq!(known.iter().map(|a| (a.id.as_str(), a.token.as_str())).collect::<Vec<_>>(), [("a", "builder")]);
    let listed = farm.list_tokens(&Actor::local()).await.unwrap().tokens;
    assert_eq!((listed[0].agent.as_str(), listed[0].agent_name.as_str()), ("a", "host-a"));
    // Its own agent comes back as often as it likes.
    drop(first);
    join(&farm, &secret, "a").await;
}

#[tokio::test]
async fn a_binding_outlives_a_restart_and_holds_from_the_first_of_many_hellos() {
    let folder = tempfile::tempdir().unwrap();
    let (file, blobs) = (folder.path().join("farm.db"), MemBlobs::default());
    let store = async || Arc::new(SqliteStore::open(&file).await.unwrap()) as Arc<dyn Store>;
    let first = open(store().await, &blobs).await;
    let secret = token(&first, "builder", "agent").await;
    let hellos = (0..4).map(|index| Agent::with_token(&first, &secret, hello(&format!("a{index}"), cpu())));
    let mut welcomed = Vec::new();
    for agent in futures::future::join_all(hellos).await {
        let mut agent = agent.unwrap();
        match agent.next().await {
            Some(Hear::Welcome(_)) => welcomed.push(agent.id.clone()),
            Some(Hear::Refused(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(welcomed.len(), 1, "{welcomed:?}");
    first.close().await;
    let second = open(store().await, &blobs).await;
    refused(&second, &secret, hello("other", cpu())).await;
    join(&second, &secret, &welcomed[0]).await;
    second.close().await;
}

#[tokio::test]
async fn nobody_takes_an_identity_that_another_stands_for() {
    let (farm, _) = farm().await;
    let _owners = Agent::usual(&farm, "owned").await;
    let (admin, builder) = (token(&farm, "boss", "admin").await, token(&farm, "builder", "agent").await);
    let _bosses = join(&farm, &admin, "bossed").await;
    let _built = join(&farm, &builder, "built").await;
    let thief = token(&farm, "thief", "agent").await;
    for (id, by) in [("owned", "owner's socket"), ("bossed", "'boss'"), ("built", "'builder'")] {
        let told = refused(&farm, &thief, hello(id, cpu())).await;
        assert!(told.reason.contains(by), "{told:?}");
        assert!(told.hint.contains(&format!("planforge token rebind thief --agent {id}")), "{told:?}");
    }
    // What an administrator says goes, and what stood for an identity no longer does once it is revoked.
    let rebind = v1::RebindTokenRequest { id: "thief".into(), agent: "owned".into() };
    farm.rebind_token(&Actor::local(), rebind).await.unwrap();
    let same = v1::Hello { incarnation: "owned-1".into(), ..hello("owned", cpu()) };
    let mut second = Agent::with_token(&farm, &thief, same).await.unwrap();
    assert!(matches!(second.next().await, Some(Hear::Welcome(_))));
    farm.revoke_token(&Actor::local(), "builder").await.unwrap();
    let heir = token(&farm, "heir", "agent").await;
    join(&farm, &heir, "built").await;
}

#[tokio::test]
async fn rebinding_is_an_administrators_act_and_ends_the_stay_of_the_agent_before() {
    let (farm, _) = farm().await;
    let secret = token(&farm, "builder", "agent").await;
    let mut first = join(&farm, &secret, "a").await;
    let rebind = |id: &str, agent: &str| v1::RebindTokenRequest { id: id.into(), agent: agent.into() };
    let agent = crate::support::actor("builder", "agent", None);
    let denied = farm.rebind_token(&agent, rebind("builder", "b")).await.unwrap_err();
    assert_eq!(denied.code, ErrorCode::PermissionDenied);
    let token_of = token(&farm, "reader", "read").await;
    assert!(!token_of.is_empty());
    let wrong = farm.rebind_token(&Actor::local(), rebind("reader", "b")).await.unwrap_err();
    assert_eq!(wrong.code, ErrorCode::InvalidArgument);
    let moved = farm.rebind_token(&Actor::local(), rebind("builder", "b")).await.unwrap().token.unwrap();
    assert_eq!(moved.agent, "b");
    assert!(refusal(&mut first).await.reason.contains("another agent"));
    refused(&farm, &secret, hello("a", cpu())).await;
    let mut second = join(&farm, &secret, "b").await;
    // To nobody in particular: the next one that uses it.
    farm.rebind_token(&Actor::local(), rebind("builder", "")).await.unwrap();
    refusal(&mut second).await;
    join(&farm, &secret, "c").await;
    refused(&farm, &secret, hello("b", cpu())).await;
}

#[tokio::test]
async fn a_revoked_token_ends_its_agents_session_and_takes_the_lease_back() {
    let (farm, blobs) = farm().await;
    let secret = token(&farm, "builder", "agent").await;
    let mut agent = join(&farm, &secret, "a").await;
    let job = submit(&farm, &blobs, "m").await;
    // More often than a job may fail: none of it is the job's failure.
    for round in 1..=5 {
        let assign = agent.assigned().await;
        assert_eq!(assign.lease.as_ref().unwrap().attempt, round);
        agent.started(&assign).await;
        until_state(&farm, &job.id, JobState::Running).await;
        farm.revoke_token(&Actor::local(), "builder").await.unwrap();
        let seen = farm.get_job(&Actor::local(), &job.id).await.unwrap();
        assert_eq!(seen.state(), JobState::Queued, "as soon as the revocation is acknowledged: {seen:?}");
        assert!(refusal(&mut agent).await.reason.contains("revoked"));
        assert!(Agent::with_token(&farm, &secret, hello("a", cpu())).await.is_err());
        let fresh = token(&farm, "builder", "agent").await;
        agent = join(&farm, &fresh, "a").await;
    }
    let assign = agent.assigned().await;
    agent.succeed(&blobs, &assign).await;
    assert!(agent.acknowledged().await.accepted);
    let done = until_state(&farm, &job.id, JobState::Succeeded).await;
    assert_eq!(done.attempts.len(), 6);
    let first = done.attempts[0].failure.clone().unwrap();
    assert!(first.message.contains("taken back") && first.message.contains("revoked"), "{first:?}");
}

#[tokio::test]
async fn an_end_before_the_revocation_stands_and_one_after_it_is_heard_from_nobody() {
    let (farm, blobs) = farm().await;
    let secret = token(&farm, "builder", "agent").await;
    let mut agent = join(&farm, &secret, "a").await;
    let before = submit(&farm, &blobs, "before").await;
    let assign = agent.assigned().await;
    agent.succeed(&blobs, &assign).await;
    assert!(agent.acknowledged().await.accepted);
    let after = submit(&farm, &blobs, "after").await;
    let assign = agent.assigned().await;
    // A plan that it said it built goes with it, too: nobody vouches for it.
    let end = success(&blobs, &assign);
    let built = v1::Built {
        lease: assign.lease.clone(),
        plan_digest: end.plan_digest.clone(),
        plan_bytes: end.plan_bytes,
        card_digest: end.card_digest.clone(),
        builds: 1,
    };
    agent.say(Say::Built(built)).await;
    until("the plan to be known", || async {
        let seen = farm.get_job(&Actor::local(), &after.id).await.unwrap();
        (!seen.plan_digest.is_empty()).then_some(())
    })
    .await;
    farm.revoke_token(&Actor::local(), "builder").await.unwrap();
    agent.say(Say::Finished(end)).await;
    assert!(refusal(&mut agent).await.lasting);
    assert_eq!(farm.get_job(&Actor::local(), &before.id).await.unwrap().state(), JobState::Succeeded);
    let seen = farm.get_job(&Actor::local(), &after.id).await.unwrap();
    assert_eq!((seen.state(), seen.plan_digest.as_str()), (JobState::Queued, ""), "{seen:?}");
    let engines = farm.list_engines(&Actor::local(), v1::ListEnginesRequest::default()).await.unwrap().engines;
    assert_eq!(engines.iter().map(|engine| engine.job.as_str()).collect::<Vec<_>>(), [before.id.as_str()]);
}

#[tokio::test]
async fn an_expired_token_ends_what_rests_on_it() {
    let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
    let blobs = MemBlobs::default();
    let config = FarmConfig { seed: Some(3), ..FarmConfig::default() };
    let farm = Farm::open(Arc::new(MemStore::new()), Arc::new(blobs.clone()), config, clock.clone()).await.unwrap();
    let ask = v1::CreateTokenRequest { name: "builder".into(), role: "agent".into(), ttl_s: 5, ..Default::default() };
    let secret = farm.create_token(&Actor::local(), ask).await.unwrap().secret;
    let mut agent = join(&farm, &secret, "a").await;
    let job = submit(&farm, &blobs, "m").await;
    let assign = agent.assigned().await;
    // Sooner than an agent counts as silent.
    clock.0.fetch_add(6_000, Ordering::SeqCst);
    // Nothing is believed from then on, whether or not the stream was looked at meanwhile.
    agent.succeed(&blobs, &assign).await;
    assert!(refusal(&mut agent).await.reason.contains("expired"));
    until_state(&farm, &job.id, JobState::Queued).await;
}

#[tokio::test]
async fn a_stream_that_never_says_who_it_is_ends() {
    let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
    let config = FarmConfig { seed: Some(3), ..FarmConfig::default() };
    let store = Arc::new(MemStore::new());
    let farm = Farm::open(store, Arc::new(MemBlobs::default()), config, clock.clone()).await.unwrap();
    let silent = futures::stream::pending().boxed();
    let mut outbound = farm.session(&Actor::local(), Proof::Owner, silent).await.unwrap();
    clock.0.fetch_add(11_000, Ordering::SeqCst);
    let told = tokio::time::timeout(DEADLINE, outbound.next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(told.kind, Some(Hear::Refused(refused)) if refused.reason.contains("no hello within 10000 ms")));
    assert!(tokio::time::timeout(DEADLINE, outbound.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn one_token_has_so_many_sessions_and_hellos_and_no_more() {
    let (farm, _) = farm().await;
    let secret = token(&farm, "builder", "agent").await;
    let actor = farm.authenticate(&secret).await.unwrap().unwrap();
    let proof = Proof::Token(Digest::of(secret.as_bytes()));
    let silent = || futures::stream::pending().boxed();
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(farm.session(&actor, proof, silent()).await.map_err(|e| e.message).expect("within the limit"));
    }
    let error = farm.session(&actor, proof, silent()).await.err().expect("one too many");
    assert_eq!(error.code, ErrorCode::ResourceExhausted);
    assert!(error.message.contains("8 sessions"), "{}", error.message);
    drop(streams);
    let mut agent = until("room again", async || Agent::with_token(&farm, &secret, hello("a", cpu())).await.ok()).await;
    assert!(matches!(agent.next().await, Some(Hear::Welcome(_))));
    // It tells of other devices again and again: each would be written and have every waiting job placed anew.
    for round in 0..200 {
        let devices = vec![device("cpu0", SKU, &format!("native {}", round % 2 + 1))];
        agent.say(Say::Inventory(v1::Inventory { devices })).await;
    }
    let told = refusal(&mut agent).await;
    assert!(told.reason.contains("60 at once") && !told.lasting, "{told:?}");
}

#[tokio::test]
async fn an_attempt_reports_so_much_and_no_more() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let job = submit(&farm, &blobs, "m").await;
    let assign = agent.assigned().await;
    for number in 0..=ATTEMPT_REPORTS_MAX {
        let progress = v1::Progress {
            lease: assign.lease.clone(),
            phase: format!("phase {number} {}", "ä".repeat(500)),
            detail: "ö".repeat(100_000),
            fraction: 0.5,
        };
        agent.say(Say::Progress(progress)).await;
    }
    match agent.next().await {
        Some(Hear::LeaseLost(lost)) => {
            assert!(lost.reason.contains(&format!("more than {ATTEMPT_REPORTS_MAX}")), "{lost:?}");
        }
        other => panic!("{other:?}"),
    }
    let request = v1::WatchJobsRequest { ids: vec![job.id.clone()], ..v1::WatchJobsRequest::default() };
    let mut events = farm.watch(&Actor::local(), request).await.unwrap();
    let mut phases = 0;
    loop {
        let event = tokio::time::timeout(DEADLINE, events.next()).await.unwrap().unwrap().unwrap();
        assert!(event.detail.len() <= 1_024, "{} bytes", event.detail.len());
        if event.what == "requeued" {
            break;
        }
        phases += u32::from(event.what == "phase");
    }
    assert_eq!(phases, ATTEMPT_REPORTS_MAX);
}

#[tokio::test]
async fn every_refusal_says_why() {
    let (farm, _) = farm().await;
    let usual = || hello("a", cpu());
    let broken: [(&str, v1::Hello); 9] = [
        ("its id", v1::Hello { agent_id: String::new(), ..usual() }),
        ("at most 256 bytes", v1::Hello { name: "n".repeat(300), ..usual() }),
        ("0.0.1", v1::Hello { version: "0.0.1".into(), ..usual() }),
        ("99.0.0", v1::Hello { version: "99.0.0".into(), ..usual() }),
        ("protocol 9", v1::Hello { protocol: 9, oldest_protocol: 9, ..usual() }),
        (
            "at most 64 devices",
            v1::Hello { devices: (0..65).map(|n| device(&n.to_string(), SKU, "native 1")).collect(), ..usual() },
        ),
        ("twice", v1::Hello { devices: [cpu(), cpu()].concat(), ..usual() }),
        ("fingerprint", {
            let large = v1::Device { fingerprint_json: "x".repeat(70_000), ..device("cpu0", SKU, "native 1") };
            v1::Hello { devices: vec![large], ..usual() }
        }),
        ("1048576 bytes", {
            let large = |n: usize| v1::Device {
                fingerprint_json: "x".repeat(60_000),
                ..device(&n.to_string(), SKU, "native 1")
            };
            v1::Hello { devices: (0..20).map(large).collect(), ..usual() }
        }),
    ];
    for (words, hello) in broken {
        let mut agent = Agent::connect(&farm, hello).await;
        let told = refusal(&mut agent).await;
        assert!(told.reason.contains(words) && told.lasting, "{words}: {told:?}");
    }
    assert_eq!(agents(&farm).await, [], "none of them is known");
    // Of before protocols were numbered: welcome, for one release.
    let mut before = Agent::connect(&farm, v1::Hello { protocol: 0, oldest_protocol: 0, ..usual() }).await;
    assert!(matches!(before.next().await, Some(Hear::Welcome(welcome)) if welcome.protocol == 1));
    before.say(Say::Started(v1::Started { lease: None })).await;
    assert!(refusal(&mut before).await.reason.contains("no lease"));
    let mut now = Agent::connect(&farm, usual()).await;
    assert!(matches!(now.next().await, Some(Hear::Welcome(welcome)) if welcome.protocol == protocol::PROTOCOL));
}

#[tokio::test]
async fn a_drained_agent_gets_no_jobs_until_it_is_resumed() {
    let store = Arc::new(MemStore::new());
    let blobs = MemBlobs::default();
    let first = open(store.clone(), &blobs).await;
    let _agent = Agent::usual(&first, "a").await;
    let drain = v1::DrainAgentRequest { agent: "host-a".into() };
    let other = crate::support::actor("s", "submit", None);
    assert_eq!(first.drain_agent(&other, drain.clone()).await.unwrap_err().code, ErrorCode::PermissionDenied);
    assert_eq!(first.list_agents(&other).await.unwrap_err().code, ErrorCode::PermissionDenied);
    assert!(first.drain_agent(&Actor::local(), drain).await.unwrap().agent.unwrap().drained);
    let job = submit(&first, &blobs, "m").await;
    assert_eq!(job.state(), JobState::Queued);
    first.close().await;
    let second = open(store, &blobs).await;
    let mut agent = Agent::usual(&second, "a").await;
    let devices = second.list_devices(&Actor::local(), v1::ListDevicesRequest::default()).await.unwrap().devices;
    assert!(devices[0].draining, "also after a restart and a new hello");
    assert_eq!(second.get_job(&Actor::local(), &job.id).await.unwrap().state(), JobState::Queued);
    second.resume_agent(&Actor::local(), v1::ResumeAgentRequest { agent: "a".into() }).await.unwrap();
    assert_eq!(agent.assigned().await.lease.unwrap().job, job.id);
}

#[tokio::test]
async fn what_only_a_forgotten_agent_offered_is_no_longer_accepted() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let job = submit(&farm, &blobs, "m").await;
    agent.assigned().await;
    let forget = |force| v1::ForgetAgentRequest { agent: "a".into(), force };
    let refused = farm.forget_agent(&Actor::local(), forget(false)).await.unwrap_err();
    assert!(refused.code == ErrorCode::Conflict && refused.hint.contains("agents drain host-a"), "{refused:?}");
    farm.drain_agent(&Actor::local(), v1::DrainAgentRequest { agent: "a".into() }).await.unwrap();
    let refused = farm.forget_agent(&Actor::local(), forget(false)).await.unwrap_err();
    assert!(refused.message.contains(&job.id), "it still works: {refused:?}");
    farm.forget_agent(&Actor::local(), forget(true)).await.unwrap();
    assert!(refusal(&mut agent).await.reason.contains("forgot"));
    assert_eq!(agents(&farm).await, []);
    let seen = farm.get_job(&Actor::local(), &job.id).await.unwrap();
    assert_eq!(seen.state(), JobState::Unplaceable, "nobody offers it: {seen:?}");
    let error = farm.submit(&Actor::local(), request(model(&blobs, "n"))).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Refused);
    let unknown = farm.forget_agent(&Actor::local(), forget(false)).await.unwrap_err();
    assert_eq!(unknown.code, ErrorCode::NotFound);
    // One that is away is forgotten at once; it may come back as long as it is let in, and then gets jobs.
    let mut agent = Agent::usual(&farm, "a").await;
    assert_eq!(agent.assigned().await.lease.unwrap().job, job.id);
    drop(agent);
    until("it to be away", || async { agents(&farm).await.iter().all(|agent| !agent.online).then_some(()) }).await;
    farm.forget_agent(&Actor::local(), forget(false)).await.unwrap();
    assert_eq!(farm.get_job(&Actor::local(), &job.id).await.unwrap().state(), JobState::Unplaceable);
}
