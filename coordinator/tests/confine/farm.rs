//! What a project hears of another's work, and what its administrators may do.

use crate::{
    support::{self, SKU, actor, agent::Agent, blobs::MemBlobs, model, request},
    world::{Who, World, make_token, model_of, request_of},
};
use http::Method;
use planforge_coordinator::{
    auth::{Actor, Proof},
    farm::{Farm, FarmConfig, SystemClock},
    store::MemStore,
};
use planforge_proto::{ErrorCode, v1};
use planforge_types::Digest;
use std::sync::Arc;
use tonic::Code;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_digest_alone_gets_no_engine_and_the_bytes_do() {
    let world = World::new().await;
    let mut blue = world.client(Who::Foreign).await;
    // As its own: under another name.
    let named = v1::Model {
        name: "blue-model.onnx".into(),
        files: vec![v1::ModelFile { name: "blue-model.onnx".into(), ..world.model.files[0].clone() }],
        ..world.model.clone()
    };
    for more in [v1::SubmitRequest::default(), v1::SubmitRequest { force: true, ..Default::default() }] {
        let ask = v1::SubmitRequest { force: more.force, ..request_of(&named) };
        let reply = blue.submit(ask.clone()).await.unwrap().into_inner();
        assert!(reply.jobs.is_empty(), "{reply:?}");
        let asked_for = std::slice::from_ref(&world.model.digest);
        assert_eq!(reply.missing_blobs, asked_for, "as for a model that nobody has");
        let foreseen = blue.dry_run(ask).await.unwrap().into_inner();
        assert_eq!(foreseen.combinations[0].would, "upload");
        assert_eq!(foreseen.combinations[0].engine_key, "");
    }
    let blob = format!("/v1/blobs/sha256/{}", world.model.digest);
    let unseen = world.served.send(world.http(Who::Foreign, Method::GET, &blob), "").await;
    let nowhere = format!("/v1/blobs/sha256/{}", Digest::of(b"never stored"));
    let absent = world.served.send(world.http(Who::Foreign, Method::GET, &nowhere), "").await;
    let words = |answer: &crate::served::Answer| answer.text().replace(&world.model.digest, "").len();
    assert_eq!((unseen.status, unseen.headers.len()), (absent.status, absent.headers.len()));
    assert_eq!(words(&unseen), absent.text().replace(&Digest::of(b"never stored").to_string(), "").len());

    assert_eq!(world.upload(Who::Foreign, &world.model_bytes).await, 201, "it has to send them");
    let reply = blue.submit(request_of(&named)).await.unwrap().into_inner();
    assert!(reply.jobs[0].cached, "identical work is done once: {reply:?}");
    assert_eq!(reply.jobs[0].plan_digest, world.job.plan_digest);
    let plan = format!("/v1/blobs/sha256/{}", world.job.plan_digest);
    assert_eq!(world.served.send(world.http(Who::Foreign, Method::GET, &plan), "").await.status, 200);
    let engine = v1::FindEngineRequest { plan_digest: world.job.plan_digest.clone(), ..Default::default() };
    let engine = blue.find_engine(engine).await.unwrap().into_inner();
    assert_eq!(engine.model.as_ref().unwrap().name, "blue-model.onnx", "what red calls it is red's");
    assert_eq!((engine.project.as_str(), engine.job.as_str()), ("blue", reply.jobs[0].id.as_str()));
    let listed = blue.list_engines(v1::ListEnginesRequest::default()).await.unwrap().into_inner().engines;
    let named: Vec<&str> = listed.iter().filter_map(|engine| engine.model.as_ref()).map(|model| &*model.name).collect();
    assert_eq!((named, &*listed[0].project, &*listed[0].job), (vec!["blue-model.onnx"], "blue", &*reply.jobs[0].id));
    // Red's log stays red's.
    let log = format!("/v1/blobs/sha256/{}", world.log_digest);
    assert_eq!(world.served.send(world.http(Who::Foreign, Method::GET, &log), "").await.status, 404);
    assert_eq!(world.served.send(world.http(Who::Own, Method::GET, &log), "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_farm_that_shares_projects_takes_the_digest() {
    let world = World::with(|config| config.farm.share_projects = true).await;
    let mut blue = world.client(Who::Foreign).await;
    let reply = blue.submit(request_of(&world.model)).await.unwrap().into_inner();
    assert!(reply.jobs[0].cached, "{reply:?}");
    let blob = format!("/v1/blobs/sha256/{}", world.model.digest);
    assert_eq!(world.served.send(world.http(Who::Foreign, Method::GET, &blob), "").await.status, 200);
    // Agents read what they are leased all the same.
    assert_eq!(world.served.send(world.http(Who::Agent, Method::GET, &blob), "").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_reads_what_it_was_leased_as_long_as_it_holds_it() {
    let mut world = World::new().await;
    drop(world.agent.take());
    let farm = world.served.coordinator.farm().clone();
    let secret = make_token(&world.served, "leased", "agent", "").await.secret;
    let (proof, holder) = (Proof::Token(Digest::of(secret.as_bytes())), farm.authenticate(&secret).await.unwrap());
    let holder = holder.unwrap();
    let hello = support::agent::hello("leased", vec![support::agent::device("cpu0", SKU, "native 1")]);
    let mut agent = Agent::with_token(&farm, &secret, hello).await.unwrap();
    agent.next().await.expect("a welcome");
    let bytes = b"another model of red";
    let other = model_of("other.onnx", bytes);
    assert_eq!(world.upload(Who::Own, bytes).await, 201);
    let digest = Digest::of(bytes);
    let reads = async |digest| farm.may_read_blob(&holder, proof, digest).await.unwrap();
    assert!(!reads(digest).await, "not before it is leased");
    world.client(Who::Own).await.submit(request_of(&other)).await.unwrap();
    let assign = agent.assigned().await;
    assert!(reads(digest).await);
    assert!(!reads(world.model.digest.parse().unwrap()).await, "nor another job's model");
    agent.fail(&assign, v1::FailureClass::Model, "no").await;
    assert!(agent.acknowledged().await.accepted);
    assert!(!reads(digest).await, "nor afterwards");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_administrator_of_one_project_manages_that_project_alone() {
    let world = World::new().await;
    let mut red = world.client(Who::ProjectAdmin).await;
    let token = |name: &str, role: &str, project: &str| v1::CreateTokenRequest {
        name: name.into(),
        role: role.into(),
        project: project.into(),
        ttl_s: 0,
    };
    let made = red.create_token(token("red-ci", "submit", "")).await.unwrap().into_inner();
    let listed = red.list_tokens(v1::ListTokensRequest {}).await.unwrap().into_inner().tokens;
    assert!(listed.iter().all(|token| token.project == "red"), "{listed:?}");
    assert!(listed.iter().any(|token| token.id == made.id), "what it makes belongs to its project");
    for refused in [token("x", "submit", "blue"), token("x", "agent", "red"), token("x", "admin", "blue")] {
        assert_eq!(red.create_token(refused).await.unwrap_err().code(), Code::PermissionDenied);
    }
    let foreign = make_token(&world.served, "blue-ci", "submit", "blue").await;
    for id in [&foreign.id, &"blue-ci".to_owned(), &"farm-admin".to_owned()] {
        let revoke = red.revoke_token(v1::RevokeTokenRequest { id: id.clone() }).await;
        assert_eq!(revoke.unwrap_err().code(), Code::NotFound, "{id}");
    }
    // Limits below the farm's, and never above.
    let set = |name: &str, max_jobs| v1::SetProjectRequest {
        name: name.into(),
        max_jobs: Some(max_jobs),
        ..v1::SetProjectRequest::default()
    };
    let mut admin = world.client(Who::FarmAdmin).await;
    admin.set_project(set("red", 10)).await.unwrap();
    let project = red.set_project(set("red", 1_000)).await.unwrap().into_inner().project.unwrap();
    assert_eq!((project.max_jobs, project.own_max_jobs, project.jobs_limit), (10, 1_000, 10));
    let project = red.set_project(set("red", 5)).await.unwrap().into_inner().project.unwrap();
    assert_eq!(project.jobs_limit, 5);
    assert_eq!(red.set_project(set("blue", 5)).await.unwrap_err().code(), Code::PermissionDenied);
    let share = v1::SetProjectRequest { name: "red".into(), share: Some(9), ..Default::default() };
    assert_eq!(red.set_project(share).await.unwrap_err().code(), Code::PermissionDenied);
    let projects = red.list_projects(v1::ListProjectsRequest::default()).await.unwrap().into_inner().projects;
    assert_eq!(projects.iter().map(|project| project.name.as_str()).collect::<Vec<_>>(), ["red"]);
    // What it did stands in the log, which it reads of its own project.
    let lines = red.list_audit(v1::ListAuditRequest::default()).await.unwrap().into_inner().records;
    assert!(lines.iter().all(|line| line.project == "red"), "{lines:?}");
    assert!(lines.iter().any(|line| line.what == "token.create" && line.actor == "red-admin"), "{lines:?}");
}

/// A farm in memory whose projects are not kept apart by what they sent.
async fn plain_farm() -> (Farm, MemBlobs) {
    let blobs = MemBlobs::default();
    let (config, clock) = (FarmConfig { seed: Some(7), ..FarmConfig::default() }, Arc::new(SystemClock::new()));
    let farm = Farm::open(Arc::new(MemStore::new()), Arc::new(blobs.clone()), config, clock).await.unwrap();
    (farm, blobs)
}

async fn foreseen(farm: &Farm, request: v1::SubmitRequest) -> v1::Foreseen {
    let reply = farm.dry_run(&Actor::local(), request).await.unwrap();
    reply.combinations.into_iter().next().unwrap()
}

#[tokio::test]
async fn a_dry_run_says_what_the_submission_does() {
    let (farm, blobs) = plain_farm().await;
    let ask = request(model(&blobs, "m"));
    assert_eq!(foreseen(&farm, ask.clone()).await.would, "refuse", "nobody has such a device");
    let waiting = v1::SubmitRequest { wait_for_device: true, ..ask.clone() };
    assert_eq!(foreseen(&farm, waiting).await.would, "wait");
    let mut agent = Agent::usual(&farm, "a").await;
    let before = foreseen(&farm, ask.clone()).await;
    assert_eq!(before.would, "build");
    let events = farm.stats().await.unwrap().last_event;
    let job = farm.submit(&Actor::local(), ask.clone()).await.unwrap().jobs.remove(0);
    assert_eq!(farm.stats().await.unwrap().last_event, events + 2, "only the submission did anything");
    assert_eq!((before.engine_key.as_str(), before.toolchain_json.as_str()), (&*job.engine_key, &*job.toolchain_json));
    let assign = agent.assigned().await;
    let during = foreseen(&farm, ask.clone()).await;
    assert_eq!((during.would.as_str(), during.job.as_str()), ("join", job.id.as_str()));
    let others = v1::SubmitRequest { builds: 3, ..ask.clone() };
    let behind = foreseen(&farm, others.clone()).await;
    assert_eq!((behind.would.as_str(), behind.job.as_str()), ("build", job.id.as_str()));
    agent.succeed(&blobs, &assign).await;
    assert!(agent.acknowledged().await.accepted);
    // Threads left open find the engine that was built with those of the device.
    let after = foreseen(&farm, ask.clone()).await;
    let answered = farm.submit(&Actor::local(), ask.clone()).await.unwrap().jobs.remove(0);
    assert!(answered.cached);
    assert_eq!((after.would.as_str(), after.plan_digest.as_str()), ("answer", answered.plan_digest.as_str()));
    assert_eq!(after.engine_key, answered.engine_key);
    assert_eq!(foreseen(&farm, others).await.would, "build", "chosen from fewer builds is no answer");
    assert_eq!(foreseen(&farm, v1::SubmitRequest { force: true, ..ask.clone() }).await.would, "build");
    blobs.remove(answered.plan_digest.parse().unwrap());
    assert_eq!(foreseen(&farm, ask).await.would, "build", "its plan is gone");

    let failing = request(model(&blobs, "bad"));
    let job = farm.submit(&Actor::local(), failing.clone()).await.unwrap().jobs.remove(0);
    let assign = agent.assigned().await;
    agent.fail(&assign, v1::FailureClass::Model, "no such operator").await;
    assert!(agent.acknowledged().await.accepted);
    let known = foreseen(&farm, failing).await;
    assert!(known.would == "fail" && known.detail.contains(&job.id), "{known:?}");

    let twice =
        v1::SubmitRequest { toolchains: vec!["native".into(), "native=1".into()], ..request(model(&blobs, "twice")) };
    let reply = farm.dry_run(&Actor::local(), twice).await.unwrap();
    let would: Vec<&str> = reply.combinations.iter().map(|one| one.would.as_str()).collect();
    assert_eq!(would, ["build", "join"]);
    let missing = v1::Model { name: "n".into(), ..model_of("n", b"not stored") };
    let reply = farm.dry_run(&Actor::local(), request(missing.clone())).await.unwrap();
    assert_eq!(reply.missing_blobs, [missing.digest]);
    for role in ["read", "agent"] {
        let error = farm.dry_run(&actor("x", role, None), request(model(&blobs, "m"))).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::PermissionDenied, "{role}");
    }
}
