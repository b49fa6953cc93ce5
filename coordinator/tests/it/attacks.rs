//! What hostile holders of good tokens tried, again: a fleet invented with one token, a flood of words, a queue filled by
//! one project. `PLANFORGE_ATTACK_SCALE=20` makes them as large as they were.

use crate::support::{
    self, SKU, actor,
    agent::{Agent, device, hello},
    blobs::MemBlobs,
    model, request,
};
use planforge_coordinator::{
    auth::Actor,
    farm::{Farm, FarmConfig, SystemClock},
    store::{EventFilter, MemStore, Store},
};
use planforge_proto::{ErrorCode, v1, v1::coordinator_message::Kind};
use std::{sync::Arc, time::Duration};

fn scale() -> usize {
    std::env::var("PLANFORGE_ATTACK_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

async fn farm_of(max_live_jobs: usize) -> (Farm, MemBlobs, Arc<MemStore>) {
    let (blobs, store) = (MemBlobs::default(), Arc::new(MemStore::new()));
    // The agents here say nothing while a queue is filled, however long that takes.
    let config = FarmConfig { max_live_jobs, seed: Some(3), lease_ms: 3_600_000, ..FarmConfig::default() };
    let clock = Arc::new(SystemClock::new());
    let farm = Farm::open(store.clone(), Arc::new(blobs.clone()), config, clock).await.unwrap();
    (farm, blobs, store)
}

async fn agents_token(farm: &Farm, name: &str) -> String {
    let ask = v1::CreateTokenRequest { name: name.into(), role: "agent".into(), ..Default::default() };
    farm.create_token(&Actor::local(), ask).await.unwrap().secret
}

/// 20,000 identities of one token at full scale.
#[tokio::test]
async fn a_fleet_invented_with_one_token_is_one_agent() {
    let (farm, ..) = farm_of(1_000).await;
    let secret = agents_token(&farm, "copied").await;
    let first = Agent::with_token(&farm, &secret, hello("first", vec![device("cpu0", SKU, "native 1")])).await;
    let mut first = first.unwrap();
    assert!(matches!(first.next().await, Some(Kind::Welcome(_))));
    let mut refused = 0;
    for number in 0..1_000 * scale() {
        let invented = hello(&format!("invented{number}"), vec![device("cpu0", SKU, "native 1")]);
        match Agent::with_token(&farm, &secret, invented).await {
            // No more streams of this token just now.
            Err(error) => {
                assert_eq!(error.code, ErrorCode::ResourceExhausted, "{error}");
                refused += 1;
                tokio::task::yield_now().await;
            }
            Ok(mut invented) => match invented.next().await {
                Some(Kind::Refused(_)) | None => refused += 1,
                other => panic!("{number} is let in: {other:?}"),
            },
        }
    }
    assert_eq!(refused, 1_000 * scale());
    let agents = farm.list_agents(&Actor::local()).await.unwrap().agents;
    assert_eq!(agents.len(), 1, "{agents:?}");
    // Another agent with a token of its own is let in meanwhile.
    let other = agents_token(&farm, "honest").await;
    let mut honest = Agent::with_token(&farm, &other, hello("honest", vec![])).await.unwrap();
    assert!(matches!(honest.next().await, Some(Kind::Welcome(_))));
}

/// 72 MiB of events came in 6 s when nothing counted them.
#[tokio::test]
async fn a_flood_of_progress_costs_the_database_little() {
    let (farm, blobs, store) = farm_of(1_000).await;
    let secret = agents_token(&farm, "loud").await;
    let hello = hello("loud", vec![device("cpu0", SKU, "native 1")]);
    let mut agent = Agent::with_token(&farm, &secret, hello).await.unwrap();
    assert!(matches!(agent.next().await, Some(Kind::Welcome(_))));
    farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap();
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    // As much as one stream may say at once: what is beyond waits, and is no event either.
    for number in 0..4_000 {
        let (phase, detail) = (format!("phase {number}"), "x".repeat(16 * 1024));
        let progress = v1::Progress { lease: assign.lease.clone(), phase, fraction: 0.5, detail };
        agent.say(v1::agent_message::Kind::Progress(progress)).await;
    }
    support::until("the attempt to be given up", || async {
        let stats = farm.stats().await.unwrap();
        stats.attempts.values().any(|ended| *ended > 0).then_some(())
    })
    .await;
    let filter = EventFilter { limit: usize::MAX, ..EventFilter::default() };
    let events = store.events(filter).await.unwrap();
    let bytes: usize = events.iter().map(|event| event.detail.len() + event.phase.len()).sum();
    assert!(bytes < 8 << 20, "{} events of {bytes} bytes", events.len());
}

/// 100,000 jobs at full scale, of which one project wanted all.
#[tokio::test]
async fn one_project_fills_its_part_of_the_queue_and_others_go_on() {
    let places = 5_000 * scale();
    let (farm, blobs, _) = farm_of(places).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let (red, blue) = (actor("r", "submit", Some("red")), actor("b", "submit", Some("blue")));
    let specs: Vec<String> = (1..=4_u64).map(|mib| format!(r#"{{"workspace_mib":{mib}}}"#)).collect();
    let ask_of = |names: &[String]| v1::SubmitRequest {
        models: names.iter().map(|name| model(&blobs, name)).collect(),
        specs_json: specs.clone(),
        ..request(model(&blobs, "red"))
    };
    let (mut taken, mut batch, mut number) = (0, 250, 0);
    let refusal = loop {
        let names: Vec<String> = (0..batch).map(|at| format!("red {number} {at}")).collect();
        let ask = ask_of(&names);
        for model in &ask.models {
            support::show(&farm, &red, model).await;
        }
        number += 1;
        match farm.submit(&red, ask).await {
            Ok(reply) => taken += reply.jobs.len(),
            Err(error) if batch == 1 => break error,
            Err(_) => batch = (batch / 4).max(1),
        }
    };
    assert_eq!(refusal.code, ErrorCode::ResourceExhausted);
    assert!(refusal.message.contains("project red") && refusal.hint.contains("share"), "{refusal:?}");
    assert!((places * 3 / 4..places * 4 / 5 + 1).contains(&taken), "{taken} of {places}");

    // Blue finds room, and its turn comes at once.
    let wanted = request(model(&blobs, "blue"));
    support::show(&farm, &blue, &wanted.models[0]).await;
    let job = farm.submit(&blue, wanted).await.unwrap().jobs.remove(0);
    let first = agent.assigned().await;
    agent.fail(&first, v1::FailureClass::Model, "done").await;
    agent.acknowledged().await;
    let mut served = Vec::new();
    for _ in 0..2 {
        let assign = agent.assigned().await;
        served.push(assign.lease.clone().unwrap().job);
        agent.fail(&assign, v1::FailureClass::Model, "done").await;
        agent.acknowledged().await;
    }
    assert!(served.contains(&job.id), "a project that floods the queue delays its own jobs alone");

    // A quota is the project's own, and named.
    let quota = v1::SetProjectRequest { name: "blue".into(), max_jobs: Some(1), ..Default::default() };
    farm.set_project(&Actor::local(), quota).await.unwrap();
    let several = ask_of(&["blue 1".to_owned(), "blue 2".to_owned()]);
    for model in &several.models {
        support::show(&farm, &blue, model).await;
    }
    let error = farm.submit(&blue, several).await.unwrap_err();
    assert!(error.message.contains("quota of 1") && error.message.contains("project blue"), "{}", error.message);
    // Whoever is refused in a row hides nothing from the audit log.
    let audit = v1::ListAuditRequest { what: "project".into(), ..Default::default() };
    let lines = tokio::time::timeout(Duration::from_secs(30), farm.list_audit(&Actor::local(), audit)).await;
    assert_eq!(lines.unwrap().unwrap().records.len(), 1);
}
