//! What an agent says is checked: bytes that it calls a plan are an engine only when they say that they are the job's.

use crate::support::{
    SKU,
    agent::{Agent, native_plan, plan_of, success},
    blobs::MemBlobs,
    model, open, request, until_state,
};
use planforge_coordinator::{auth::Actor, farm::Farm, store::MemStore};
use planforge_proto::v1::{self, FailureClass, JobState, agent_message::Kind as Say};
use std::sync::Arc;

fn named(blobs: &MemBlobs, assign: &v1::Assign, plan: &[u8]) -> v1::Finished {
    let (plan_digest, plan_bytes) = (blobs.insert(plan).to_string(), plan.len() as u64);
    v1::Finished { plan_digest, plan_bytes, ..success(blobs, assign) }
}

async fn engines(farm: &Farm) -> usize {
    farm.list_engines(&Actor::local(), v1::ListEnginesRequest::default()).await.unwrap().engines.len()
}

#[tokio::test]
async fn random_bytes_are_no_engine_and_the_job_names_who_said_so() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let mut agent = Agent::usual(&farm, "liar").await;
    let job = farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap().jobs.remove(0);
    let random: Vec<u8> = (0..5_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for attempt in 1..=3 {
        let assign = agent.assigned().await;
        assert_eq!(assign.lease.as_ref().unwrap().attempt, attempt);
        assert_eq!(assign.job.as_ref().unwrap().kind(), v1::JobKind::Build, "nothing of it is measured");
        let finished = named(&blobs, &assign, &random);
        let built = v1::Built {
            lease: assign.lease.clone(),
            plan_digest: finished.plan_digest.clone(),
            plan_bytes: finished.plan_bytes,
            card_digest: finished.card_digest.clone(),
            builds: 1,
        };
        agent.say(Say::Built(built)).await;
        agent.say(Say::Finished(finished)).await;
        agent.acknowledged().await;
    }
    let failed = until_state(&farm, &job.id, JobState::Failed).await;
    let failure = failed.failure.clone().unwrap();
    assert_eq!((failure.class(), failed.plan_digest.as_str()), (FailureClass::Infrastructure, ""));
    assert!(failure.message.contains("host-liar") && failure.message.contains("no plan file"), "{failure:?}");
    let first = failed.attempts[0].failure.clone().unwrap();
    assert!(first.hint.contains("planforge token revoke"), "{first:?}");
    assert_eq!(engines(&farm).await, 0);
    // It is not remembered as the model's fault: the next request is work for an honest one.
    let again = farm.submit(&Actor::local(), request(model(&blobs, "m"))).await.unwrap().jobs.remove(0);
    assert!(!again.cached);
    let assign = agent.assigned().await;
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    until_state(&farm, &again.id, JobState::Succeeded).await;
    assert_eq!(engines(&farm).await, 1);
}

#[tokio::test]
async fn a_plan_of_something_else_is_refused_with_what_does_not_fit() {
    let blobs = MemBlobs::default();
    let farm = open(Arc::new(MemStore::new()), &blobs).await;
    let mut agent = Agent::usual(&farm, "a").await;
    let submit = async |name: &str| farm.submit(&Actor::local(), request(model(&blobs, name))).await.unwrap();
    for (round, words) in ["from the model", "not cpu-x86-64-v3", "not native 1", "built as"].into_iter().enumerate() {
        let job = submit(&format!("m{round}")).await.jobs.remove(0);
        let assign = agent.assigned().await;
        let asked = assign.job.clone().unwrap();
        let (model, toolchain) = (asked.model.as_ref().unwrap().digest.clone(), asked.toolchain_json.clone());
        let plan = match round {
            0 => native_plan(&"ab".repeat(32), SKU, &toolchain, &asked.spec_json, ""),
            1 => native_plan(&model, "cpu-x86-64-v2", &toolchain, &asked.spec_json, ""),
            2 => native_plan(&model, SKU, r#"{"backend":"native","version":"2"}"#, &asked.spec_json, ""),
            _ => native_plan(&model, SKU, &toolchain, r#"{"threads":7}"#, ""),
        };
        agent.say(Say::Finished(named(&blobs, &assign, &plan))).await;
        agent.acknowledged().await;
        let seen = farm.get_job(&Actor::local(), &job.id).await.unwrap();
        let said = seen.attempts[0].failure.clone().unwrap().message;
        assert!(said.contains(words), "{words}: {said}");
        // The next attempt is an honest one.
        let assign = agent.assigned().await;
        let plan = plan_of(&assign, "honest");
        agent.say(Say::Finished(named(&blobs, &assign, &plan))).await;
        agent.acknowledged().await;
        until_state(&farm, &job.id, JobState::Succeeded).await;
    }
    // A failed attempt leaves no foreign plan to be measured, either.
    let job = submit("last").await.jobs.remove(0);
    let assign = agent.assigned().await;
    let foreign = native_plan(&"cd".repeat(32), SKU, &assign.job.clone().unwrap().toolchain_json, "{}", "");
    let failure =
        v1::Failure { class: FailureClass::Infrastructure.into(), message: "died".into(), ..Default::default() };
    let failed = v1::Finished { outcome: "failed".into(), failure: Some(failure), ..named(&blobs, &assign, &foreign) };
    agent.say(Say::Finished(failed)).await;
    agent.acknowledged().await;
    assert_eq!(agent.assigned().await.job.unwrap().kind(), v1::JobKind::Build);
    assert_eq!(farm.get_job(&Actor::local(), &job.id).await.unwrap().plan_digest, "");
}
