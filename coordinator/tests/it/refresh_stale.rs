//! Engines that are stale or outdated are found, told with the reason, and built again; a canary goes first.

use crate::support::{SKU, bench::Bench, model, request, state, until_state};
use planforge_coordinator::auth::Actor;
use planforge_proto::{
    ErrorCode,
    v1::{self, JobKind, JobState, agent_message::Kind as Say},
};
use planforge_report::testing::sample_report;
use planforge_types::Toolchain;

/// Builds an engine of a model; the plan of a longer name is larger.
async fn build(bench: &mut Bench, name: &str, median_ms: f64) -> v1::Job {
    let job = bench.submit(request(model(&bench.blobs, name))).await;
    end_next(bench, median_ms).await;
    until_state(&bench.farm, &job.id, JobState::Succeeded).await
}

/// Lets the agent end what it is given next, measured with such a median.
async fn end_next(bench: &mut Bench, median_ms: f64) -> v1::Job {
    let assign = bench.agent.assigned().await;
    let job = assign.job.clone().unwrap();
    let lot = format!("{} {}", job.id, "x".repeat(job.model.as_ref().unwrap().name.len() * 100));
    let finished = bench.finished(&assign, &lot, |finished| {
        let mut report = sample_report(median_ms);
        report.simulated = true;
        report.plan.digest = finished.plan_digest.parse().unwrap();
        report.model.digest = job.model.as_ref().unwrap().digest.parse().unwrap();
        report.toolchain = serde_json::from_str::<Toolchain>(&job.toolchain_json).unwrap();
        report.provenance.job = job.id.clone();
        serde_json::to_vec(&report).unwrap()
    });
    if job.kind() == JobKind::Build {
        let built = v1::Built {
            lease: assign.lease.clone(),
            plan_digest: finished.plan_digest.clone(),
            plan_bytes: finished.plan_bytes,
            card_digest: finished.card_digest.clone(),
            builds: 1,
        };
        bench.agent.say(Say::Built(built)).await;
    }
    bench.finish(finished).await;
    job
}

async fn refresh(bench: &Bench, asked: v1::RefreshRequest) -> v1::RefreshReply {
    bench.farm.refresh(&Actor::local(), asked).await.unwrap()
}

fn dry() -> v1::RefreshRequest {
    v1::RefreshRequest { dry_run: true, ..v1::RefreshRequest::default() }
}

fn name(cell: &v1::RefreshedCell) -> &str {
    &cell.engine.as_ref().unwrap().model.as_ref().unwrap().name
}

#[tokio::test]
async fn after_an_upgrade_a_canary_goes_first_and_the_others_follow_where_it_is_not_slower() {
    let mut bench = Bench::new().await;
    for name in ["larger-one", "small", "largest-of-all"] {
        build(&mut bench, name, 1.0).await;
    }
    let fresh = refresh(&bench, dry()).await;
    assert_eq!((fresh.cells.len(), fresh.looked_at), (0, 3), "{:?}", fresh.cells);
    bench.upgrade("native 2").await;
    let told = refresh(&bench, dry()).await;
    assert_eq!(told.cells.len(), 3);
    assert!(told.cells.iter().all(|cell| cell.reasons == ["toolchain"] && cell.job.is_empty()), "{:?}", told.cells);
    let canaries: Vec<&str> = told.cells.iter().filter(|cell| cell.canary).map(name).collect();
    assert_eq!(canaries, ["small"], "the smallest goes first");
    let jobs = bench.farm.list_jobs(&Actor::local(), v1::ListJobsRequest::default()).await.unwrap();
    assert_eq!(jobs.jobs.len(), 3, "a dry run submits nothing");

    let begun = refresh(&bench, v1::RefreshRequest::default()).await;
    let canary = begun.cells.iter().find(|cell| cell.canary).unwrap().job.clone();
    let others: Vec<&v1::RefreshedCell> = begun.cells.iter().filter(|cell| !cell.canary).collect();
    for other in &others {
        let job = bench.farm.get_job(&Actor::local(), &other.job).await.unwrap();
        assert_eq!((state(&job), &job.needs, other.follows_canary), (JobState::Blocked, &vec![canary.clone()], true));
    }
    // What is under way is not asked for again.
    let again = refresh(&bench, v1::RefreshRequest::default()).await;
    assert!(again.cells.iter().all(|cell| cell.under_way), "{:?}", again.cells);
    assert!(again.cells.iter().zip(&begun.cells).all(|(one, other)| one.job == other.job));

    let first = end_next(&mut bench, 1.01).await;
    assert_eq!(first.id, canary);
    until_state(&bench.farm, &canary, JobState::Succeeded).await;
    for _ in &others {
        end_next(&mut bench, 1.0).await;
    }
    for other in &others {
        until_state(&bench.farm, &other.job, JobState::Succeeded).await;
    }
    assert!(refresh(&bench, dry()).await.cells.is_empty(), "everything is fresh again");
}

/// Two engines that an upgrade made stale: jobs of the canary, which may be 3 % slower, and of who follows it.
async fn upgraded(bench: &mut Bench) -> [String; 2] {
    for name in ["small", "larger-one"] {
        build(bench, name, 1.0).await;
    }
    bench.upgrade("native 2").await;
    let begun = refresh(bench, v1::RefreshRequest { slower_percent: 3.0, ..v1::RefreshRequest::default() }).await;
    ["small", "larger-one"].map(|wanted| begun.cells.iter().find(|cell| name(cell) == wanted).unwrap().job.clone())
}

#[tokio::test]
async fn a_canary_that_is_slower_is_measured_again_and_takes_nothing_along() {
    let mut bench = Bench::new().await;
    let [canary, other] = upgraded(&mut bench).await;
    let kinds = [end_next(&mut bench, 1.5).await, end_next(&mut bench, 1.5).await, end_next(&mut bench, 1.5).await]
        .map(|job| job.kind());
    assert_eq!(kinds, [JobKind::Build, JobKind::Benchmark, JobKind::Benchmark], "only the measurement is repeated");
    let failed = until_state(&bench.farm, &canary, JobState::Failed).await;
    let failure = failed.failure.unwrap();
    assert!(failure.message.contains("at most 3 % slower") && failure.hint.contains("compare"), "{failure:?}");
    let skipped = until_state(&bench.farm, &other, JobState::Skipped).await;
    assert!(skipped.failure.unwrap().message.contains(&canary));
    let engines = bench.farm.list_engines(&Actor::local(), v1::ListEnginesRequest::default()).await.unwrap().engines;
    assert!(engines.iter().all(|engine| engine.toolchain_json.contains(r#""1""#)), "no engine came of it");
    // Nor is anything remembered against the model: who asks for the engine gets it.
    let asked = bench.submit(request(model(&bench.blobs, "small"))).await;
    assert_ne!(state(&asked), JobState::Failed);
}

#[tokio::test]
async fn a_canary_that_is_tried_again_holds_its_followers_as_before() {
    let mut bench = Bench::new().await;
    let [canary, other] = upgraded(&mut bench).await;
    for _ in 0..3 {
        end_next(&mut bench, 1.5).await;
    }
    let failed = until_state(&bench.farm, &canary, JobState::Failed).await;
    until_state(&bench.farm, &other, JobState::Skipped).await;
    // As `planforge retry` asks for both again, from what the farm tells of the jobs.
    let again = |job: &v1::Job, needs: Vec<String>| v1::SubmitRequest {
        models: job.model.clone().into_iter().collect(),
        specs_json: vec![job.spec_json.clone()],
        toolchains: vec![job.toolchain_constraint.clone()],
        tags: job.tags.clone(),
        canary: (!job.canary_plan.is_empty())
            .then(|| v1::Canary { plan_digest: job.canary_plan.clone(), slower_percent: job.canary_slower_percent }),
        needs,
        ..request(job.model.clone().unwrap())
    };
    assert_eq!(failed.canary_slower_percent, 3.0);
    let first = bench.submit(again(&failed, Vec::new())).await;
    let skipped = bench.farm.get_job(&Actor::local(), &other).await.unwrap();
    let follower = bench.submit(again(&skipped, vec![first.id.clone()])).await;
    assert_eq!(state(&follower), JobState::Blocked);
    let told = refresh(&bench, dry()).await;
    assert!(told.cells.iter().all(|cell| cell.under_way), "what is tried again is under way: {:?}", told.cells);
    // Still slower by 5 %: the gate is the one that was asked for, and nothing follows.
    for _ in 0..3 {
        end_next(&mut bench, 1.05).await;
    }
    until_state(&bench.farm, &first.id, JobState::Failed).await;
    until_state(&bench.farm, &follower.id, JobState::Skipped).await;
    let second = bench.submit(again(&failed, Vec::new())).await;
    let follower = bench.submit(again(&skipped, vec![second.id.clone()])).await;
    assert_eq!(end_next(&mut bench, 1.0).await.id, second.id);
    assert_eq!(end_next(&mut bench, 1.0).await.id, follower.id, "it is built once the canary is shown to be as fast");
    until_state(&bench.farm, &follower.id, JobState::Succeeded).await;
}

#[tokio::test]
async fn every_reason_is_told_and_only_those_asked_for_count() {
    let mut bench = Bench::new().await;
    let built = build(&mut bench, "m", 1.0).await;
    let compiled = v1::SubmitRequest { kind: JobKind::Compile.into(), ..request(model(&bench.blobs, "unmeasured")) };
    let compiled = bench.submit(compiled).await;
    let assign = bench.agent.assigned().await;
    bench.agent.succeed(&bench.blobs, &assign).await;
    bench.agent.acknowledged().await;
    until_state(&bench.farm, &compiled.id, JobState::Succeeded).await;
    let reasons = |reply: &v1::RefreshReply| -> Vec<(String, Vec<String>)> {
        reply.cells.iter().map(|cell| (name(cell).to_owned(), cell.reasons.clone())).collect()
    };
    let told = refresh(&bench, dry()).await;
    assert_eq!(reasons(&told), [("unmeasured".to_owned(), vec!["unmeasured".to_owned()])]);
    // A declaration has another model of the name.
    let newer = model(&bench.blobs, "m, newer").digest;
    let declared = v1::DeclareEnginesRequest {
        name: "shop".into(),
        specs: vec![v1::DeclaredSpec { name: "usual".into(), spec_json: "{}".into(), toolchain: String::new() }],
        cells: vec![v1::DeclaredCell {
            model: "m".into(),
            model_digest: newer.clone(),
            sku: SKU.into(),
            target: SKU.into(),
            spec: "usual".into(),
            ..v1::DeclaredCell::default()
        }],
        ..v1::DeclareEnginesRequest::default()
    };
    bench.farm.declare_engines(&Actor::local(), declared).await.unwrap();
    let only = |reason: &str| v1::RefreshRequest { reasons: vec![reason.into()], ..v1::RefreshRequest::default() };
    let told = refresh(&bench, v1::RefreshRequest { dry_run: true, ..only("model") }).await;
    assert_eq!(reasons(&told), [("m".to_owned(), vec!["model".to_owned()])]);
    // Built again is what is declared.
    let begun = refresh(&bench, only("model")).await;
    let job = bench.farm.get_job(&Actor::local(), &begun.cells[0].job).await.unwrap();
    assert_eq!(job.model.unwrap().digest, newer);
    assert_ne!(job.engine_key, built.engine_key);
    // Age counts where somebody names one.
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    let old = v1::RefreshRequest { older_than_s: 1, models: vec!["m".into()], ..dry() };
    assert!(reasons(&refresh(&bench, old).await)[0].1.contains(&"age".to_owned()));
    let error = bench.farm.refresh(&Actor::local(), only("boredom")).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    assert!(error.message.contains("unmeasured"), "it names those that there are: {error}");
}
