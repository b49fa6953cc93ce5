//! Jobs that need jobs: order, failures and cancels along the edges, priorities, forecasts, and a chain of thousands.

use crate::support::{actor, agent::Agent, blobs::MemBlobs, model, open, request, state, until_state};
use planforge_coordinator::{auth::Actor, farm::Farm, store::MemStore};
use planforge_proto::{
    ErrorCode,
    v1::{self, FailureClass, JobState},
};
use std::sync::Arc;

async fn farm() -> (Farm, MemBlobs) {
    let blobs = MemBlobs::default();
    (open(Arc::new(MemStore::new()), &blobs).await, blobs)
}

async fn submit(farm: &Farm, request: v1::SubmitRequest) -> v1::SubmitReply {
    farm.submit(&Actor::local(), request).await.unwrap()
}

/// A build of `name` that needs `needs`.
fn after(blobs: &MemBlobs, name: &str, needs: &[&str]) -> v1::SubmitRequest {
    v1::SubmitRequest { needs: needs.iter().map(|id| (*id).to_owned()).collect(), ..request(model(blobs, name)) }
}

async fn job(farm: &Farm, id: &str) -> v1::Job {
    farm.get_job(&Actor::local(), id).await.unwrap()
}

#[tokio::test]
async fn a_job_begins_when_all_it_needs_have_succeeded() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let first = submit(&farm, after(&blobs, "first", &[])).await;
    let second = submit(&farm, after(&blobs, "second", &[])).await;
    // A job by its id, another by its request.
    let last = submit(&farm, after(&blobs, "last", &[&first.jobs[0].id, &second.request_id])).await.jobs.remove(0);
    assert_eq!((state(&last), last.needed.len(), last.needs.len()), (JobState::Blocked, 2, 2));
    let told = job(&farm, &last.id).await;
    assert!(told.waiting_reason.contains(&first.jobs[0].id), "{}", told.waiting_reason);
    assert_eq!(job(&farm, &first.jobs[0].id).await.needed_by, std::slice::from_ref(&last.id));
    for _ in 0..2 {
        let assign = agent.assigned().await;
        assert_ne!(assign.job.as_ref().unwrap().id, last.id);
        agent.succeed(&blobs, &assign).await;
        agent.acknowledged().await;
    }
    let assign = agent.assigned().await;
    assert_eq!(assign.job.as_ref().unwrap().id, last.id);
    agent.succeed(&blobs, &assign).await;
    agent.acknowledged().await;
    let done = until_state(&farm, &last.id, JobState::Succeeded).await;
    assert_eq!((done.needs.len(), done.needed.len()), (0, 2), "what it needed is kept");
    // What has succeeded already is waited for no more, and a stored engine answers.
    let again = submit(&farm, after(&blobs, "last", &[&first.jobs[0].id])).await.jobs.remove(0);
    assert_eq!((state(&again), again.cached), (JobState::Succeeded, true));
}

#[tokio::test]
async fn a_failure_skips_all_that_need_it_and_says_why() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let first = submit(&farm, after(&blobs, "first", &[])).await.jobs.remove(0);
    let second = submit(&farm, after(&blobs, "second", &[&first.id])).await.jobs.remove(0);
    let third = submit(&farm, after(&blobs, "third", &[&second.id])).await.jobs.remove(0);
    let assign = agent.assigned().await;
    agent.fail(&assign, FailureClass::Model, "operator Frobnicate is unknown").await;
    agent.acknowledged().await;
    for id in [&second.id, &third.id] {
        let skipped = until_state(&farm, id, JobState::Skipped).await;
        let failure = skipped.failure.unwrap();
        assert_eq!(failure.class(), FailureClass::Model);
        assert!(failure.message.contains(&first.id) && failure.message.contains("Frobnicate"), "{}", failure.message);
        assert!(failure.hint.contains("retry"), "{}", failure.hint);
    }
    let refused = farm.submit(&Actor::local(), after(&blobs, "fourth", &[&first.id])).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Refused);
    assert!(refused.message.contains(&first.id) && refused.message.contains("failed"), "{refused}");
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_waited_for() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    let first = submit(&farm, after(&blobs, "first", &[])).await.jobs.remove(0);
    let foreseen = async |needs: &[&str]| {
        farm.dry_run(&Actor::local(), after(&blobs, "second", needs)).await.unwrap().combinations.remove(0)
    };
    let told = foreseen(&[&first.id]).await;
    assert_eq!((told.would.as_str(), &told.job), ("block", &first.id));
    assert!(told.detail.contains(&first.id), "{}", told.detail);
    let assign = agent.assigned().await;
    agent.fail(&assign, FailureClass::Model, "no").await;
    agent.acknowledged().await;
    until_state(&farm, &first.id, JobState::Failed).await;
    let told = foreseen(&[&first.id]).await;
    assert_eq!(told.would, "refuse");
    assert!(told.detail.contains("failed"), "{}", told.detail);
    assert_eq!(foreseen(&[]).await.would, "build");
}

#[tokio::test]
async fn a_cancel_travels_along_the_edges_and_says_so() {
    let (farm, blobs) = farm().await;
    let first = submit(&farm, v1::SubmitRequest { wait_for_device: true, ..after(&blobs, "first", &[]) }).await;
    let first = &first.jobs[0];
    let second = v1::SubmitRequest { wait_for_device: true, ..after(&blobs, "second", &[&first.id]) };
    let second = submit(&farm, second).await.jobs.remove(0);
    let cancel = v1::CancelJobsRequest { ids: vec![first.id.clone()], ..Default::default() };
    let reply = farm.cancel_jobs(&Actor::local(), cancel).await.unwrap();
    let told = &reply.jobs[0].waiting_reason;
    assert!(told.contains("1 jobs that need it are skipped"), "{told}");
    let skipped = until_state(&farm, &second.id, JobState::Skipped).await;
    assert!(skipped.failure.unwrap().message.contains("was cancelled"));
}

#[tokio::test]
async fn names_that_are_not_there_are_refused_before_anything_is_submitted() {
    let (farm, blobs) = farm().await;
    let _agent = Agent::usual(&farm, "a").await;
    let mine = submit(&farm, after(&blobs, "mine", &[])).await.jobs.remove(0);
    let wrong = farm.submit(&Actor::local(), after(&blobs, "m", &["nosuchjob123"])).await.unwrap_err();
    assert_eq!(wrong.code, ErrorCode::NotFound);
    assert!(wrong.message.contains("nosuchjob123") && wrong.message.contains("default"), "{wrong}");
    // Nor may one wait for what another project does.
    let other = v1::SubmitRequest { project: "other".into(), ..after(&blobs, "m", &[&mine.id]) };
    assert_eq!(farm.submit(&Actor::local(), other).await.unwrap_err().code, ErrorCode::NotFound);
    let many: Vec<String> = (0..2_000).map(|n| format!("job{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let error = farm.submit(&Actor::local(), after(&blobs, "m", &many)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn who_is_needed_is_as_urgent_as_who_needs_it() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    // Keeps the only device busy.
    submit(&farm, after(&blobs, "busy", &[])).await;
    let busy = agent.assigned().await;
    let low = submit(&farm, v1::SubmitRequest { priority: -5, ..after(&blobs, "low", &[]) }).await.jobs.remove(0);
    let between = submit(&farm, v1::SubmitRequest { priority: -3, ..after(&blobs, "between", &[&low.id]) }).await;
    submit(&farm, v1::SubmitRequest { priority: 2, ..after(&blobs, "usual", &[]) }).await;
    submit(&farm, v1::SubmitRequest { priority: 5, ..after(&blobs, "high", &[&between.jobs[0].id]) }).await;
    assert_eq!(job(&farm, &low.id).await.priority, 5, "all the way up");
    agent.succeed(&blobs, &busy).await;
    agent.acknowledged().await;
    assert_eq!(agent.assigned().await.job.unwrap().id, low.id);
}

#[tokio::test]
async fn a_priority_is_changed_while_a_job_waits_and_what_it_needs_follows() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    submit(&farm, after(&blobs, "busy", &[])).await;
    let busy = agent.assigned().await;
    let needed = submit(&farm, v1::SubmitRequest { priority: -9, ..after(&blobs, "needed", &[]) }).await.jobs.remove(0);
    let usual = submit(&farm, after(&blobs, "usual", &[])).await.jobs.remove(0);
    let last = submit(&farm, v1::SubmitRequest { priority: -9, ..after(&blobs, "last", &[&needed.id]) }).await;
    let last = &last.jobs[0];
    let set = async |id: &str, priority| {
        let request = v1::SetPriorityRequest { ids: vec![id.into()], priority };
        farm.set_priority(&Actor::local(), request)
            .await
            .map(|mut reply| (reply.jobs.remove(0), reply.remarks.remove(0)))
    };
    let (told, remark) = set(&last.id, 4).await.unwrap();
    assert_eq!((told.priority, remark.as_str()), (4, ""));
    assert_eq!(job(&farm, &needed.id).await.priority, 4, "what it needs is as urgent");
    // It may not be made less urgent than what waits for it; whoever asks hears so.
    let (told, remark) = set(&needed.id, -20).await.unwrap();
    assert!(told.priority == 4 && remark.contains("priority 4"), "{remark}");
    set(&last.id, -3).await.unwrap();
    assert_eq!(job(&farm, &needed.id).await.priority, -3, "and down again");
    set(&needed.id, 7).await.unwrap();
    assert_eq!((job(&farm, &needed.id).await.priority, job(&farm, &last.id).await.priority), (7, -3));
    assert_eq!(set(&busy.job.as_ref().unwrap().id, 1).await.unwrap().1, "it runs already");
    for wrong in [1_001, -1_001] {
        assert_eq!(set(&usual.id, wrong).await.unwrap_err().code, ErrorCode::InvalidArgument);
    }
    let history = farm.history(&Actor::local(), &last.id).await.unwrap();
    assert_eq!(history.iter().filter(|event| event.what == "priority").count(), 2);
    agent.succeed(&blobs, &busy).await;
    agent.acknowledged().await;
    let next = agent.assigned().await;
    assert_eq!(next.job.as_ref().unwrap().id, needed.id, "not the one that waited longer");
    agent.succeed(&blobs, &next).await;
    agent.acknowledged().await;
    until_state(&farm, &needed.id, JobState::Succeeded).await;
    assert_eq!(set(&needed.id, 1).await.unwrap().1, "it has ended");
}

#[tokio::test]
async fn who_withdraws_takes_its_urgency_along_and_leaves_what_is_needed_urgent() {
    let (farm, blobs) = farm().await;
    let mut agent = Agent::usual(&farm, "a").await;
    submit(&farm, after(&blobs, "busy", &[])).await;
    agent.assigned().await;
    let waiting = |priority, request| v1::SubmitRequest { priority, ..request };
    let (red, blue) = (actor("red", "submit", None), actor("blue", "submit", None));
    let first = farm.submit(&red, waiting(6, after(&blobs, "first", &[]))).await.unwrap().jobs.remove(0);
    let joined = farm.submit(&blue, waiting(0, after(&blobs, "first", &[]))).await.unwrap().jobs.remove(0);
    assert_eq!(joined.id, first.id);
    farm.submit(&blue, waiting(3, after(&blobs, "second", &[&first.id]))).await.unwrap();
    assert_eq!(job(&farm, &first.id).await.priority, 6);
    let cancel = v1::CancelJobsRequest { ids: vec![first.id.clone()], ..Default::default() };
    farm.cancel_jobs(&red, cancel).await.unwrap();
    assert_eq!(job(&farm, &first.id).await.priority, 3, "no less than what waits for it");
}

#[tokio::test]
async fn a_chain_of_thousands_is_skipped_at_once() {
    let (farm, blobs) = farm().await;
    let waiting = |request| v1::SubmitRequest { wait_for_device: true, ..request };
    let first = submit(&farm, waiting(after(&blobs, "first", &[]))).await.jobs.remove(0);
    let mut last = first.id.clone();
    let model = model(&blobs, "link");
    for _ in 0..3_000 {
        let link = v1::SubmitRequest { needs: vec![last], ..request(model.clone()) };
        last = submit(&farm, waiting(link)).await.jobs.remove(0).id;
    }
    let cancel = v1::CancelJobsRequest { ids: vec![first.id.clone()], ..Default::default() };
    farm.cancel_jobs(&Actor::local(), cancel).await.unwrap();
    let skipped = until_state(&farm, &last, JobState::Skipped).await;
    assert!(skipped.failure.unwrap().message.contains(&first.id), "the first cause is told all along");
}
