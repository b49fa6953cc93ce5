//! Every method of every service × who calls. A method that is not listed here fails the test.

use crate::{
    served,
    support::SKU,
    world::{Client, EVERYBODY, Who, World, make_token, request_of},
};
use futures::StreamExt as _;
use planforge_proto::v1;
use std::fmt::Debug;
use tonic::{Code, Response, Status, Streaming};

/// What a method answers everybody, in the order of [`EVERYBODY`].
fn expected(method: &str) -> [Code; 6] {
    use Code::{NotFound as Gone, Ok, PermissionDenied as No, Unauthenticated as Out};
    match method {
        // Own, Foreign, FarmAdmin, ProjectAdmin, Agent, Nobody
        "GetServerInfo" => [Ok, Ok, Ok, Ok, Ok, Out],
        // Who only names a digest is asked for the bytes.
        "Submit" | "DryRun" => [Ok, Ok, Ok, Ok, No, Out],
        "ListJobs" | "ListRequests" | "ListEvents" | "ListEngines" | "GetHistory" | "ListReports" | "ListCaches"
        | "ListProjects" | "ListPins" | "ListPauses" | "ListDeclarations" | "DeclareEngines" | "Refresh" => {
            [Ok, Ok, Ok, Ok, No, Out]
        }
        "CreateShare" => [Ok, Gone, Ok, Ok, No, Out],
        "ListShares" => [Ok, Ok, Ok, Ok, No, Out],
        // There is none; what each ends is tried in `shares`.
        "RevokeShare" => [Gone, Gone, Gone, Gone, No, Out],
        // Pins are of plans that the project has; each takes away what it pinned before.
        "GetJob" | "WatchJobs" | "ReadLog" | "CancelJobs" | "SetPriority" | "FindEngine" | "PinEngines"
        | "UnpinEngines" => [Ok, Gone, Ok, Ok, No, Out],
        "ListDevices" | "ListPlugins" => [Ok, Ok, Ok, Ok, Ok, Out],
        "CreateToken" | "ListTokens" | "RevokeToken" | "CreateLoginLink" | "SetProject" | "ListAudit" => {
            [No, No, Ok, Ok, No, Out]
        }
        "RebindToken" | "ListAgents" | "DrainAgent" | "ResumeAgent" | "ForgetAgent" | "DropCache" | "AllowPlugin"
        | "ForbidPlugin" | "Pause" | "CollectGarbage" | "Scrub" => [No, No, Ok, No, No, Out],
        // Nothing is paused; whoever hears so was let in.
        "Resume" => [No, No, Gone, No, No, Out],
        // An administrator's token may join; one of a project not, for an agent works for every project.
        "Session" => [No, No, Ok, No, Ok, Out],
        other => panic!("{other} is not in the matrix: say who may call it, and what they may see"),
    }
}

/// Methods whose answers tell a foreign project nothing of red's although they succeed are checked for its marks.
async fn call(world: &World, client: &mut Client, who: Who, method: &str) -> Result<String, Status> {
    fn words<T: Debug>(reply: Response<T>) -> String {
        format!("{:?}", reply.into_inner())
    }
    async fn first<T: Debug>(stream: Result<Response<Streaming<T>>, Status>) -> Result<String, Status> {
        match stream?.into_inner().next().await {
            Some(item) => item.map(|item| format!("{item:?}")),
            None => Ok(String::new()),
        }
    }
    let job = world.job.id.clone();
    let plan_digest = world.job.plan_digest.clone();
    let farm = &world.served;
    match method {
        "GetServerInfo" => client.get_server_info(v1::GetServerInfoRequest {}).await.map(words),
        "Submit" => client.submit(request_of(&world.model)).await.map(words),
        "DryRun" => client.dry_run(request_of(&world.model)).await.map(words),
        "ListJobs" => client.list_jobs(v1::ListJobsRequest::default()).await.map(words),
        "ListRequests" => client.list_requests(v1::ListRequestsRequest::default()).await.map(words),
        "ListEvents" => client.list_events(v1::ListEventsRequest::default()).await.map(words),
        "GetJob" => client.get_job(v1::GetJobRequest { id: job }).await.map(words),
        "WatchJobs" => {
            first(client.watch_jobs(v1::WatchJobsRequest { ids: vec![job], ..Default::default() }).await).await
        }
        "ReadLog" => first(client.read_log(v1::ReadLogRequest { id: job, ..Default::default() }).await).await,
        "CancelJobs" => {
            client.cancel_jobs(v1::CancelJobsRequest { ids: vec![job], ..Default::default() }).await.map(words)
        }
        "SetPriority" => client.set_priority(v1::SetPriorityRequest { ids: vec![job], priority: 3 }).await.map(words),
        "CreateShare" => {
            let request_id = world.job.request_id.clone();
            client.create_share(v1::CreateShareRequest { request_id, ..Default::default() }).await.map(words)
        }
        "ListShares" => client.list_shares(v1::ListSharesRequest::default()).await.map(words),
        "RevokeShare" => client.revoke_share(v1::RevokeShareRequest { id: "nosuchlink".into() }).await.map(words),
        "ListDevices" => client.list_devices(v1::ListDevicesRequest::default()).await.map(words),
        "GetHistory" => {
            let model = world.model.digest.clone();
            client.get_history(v1::GetHistoryRequest { model, ..Default::default() }).await.map(words)
        }
        "ListEngines" => client.list_engines(v1::ListEnginesRequest::default()).await.map(words),
        "FindEngine" => {
            client.find_engine(v1::FindEngineRequest { plan_digest, ..Default::default() }).await.map(words)
        }
        "ListReports" => {
            client.list_reports(v1::ListReportsRequest { plan_digest, ..Default::default() }).await.map(words)
        }
        "CreateToken" => {
            let ask = v1::CreateTokenRequest { name: format!("by {who:?}"), role: "read".into(), ..Default::default() };
            client.create_token(ask).await.map(words)
        }
        "ListTokens" => client.list_tokens(v1::ListTokensRequest {}).await.map(words),
        "RevokeToken" => {
            let spare = make_token(farm, &format!("spare of {who:?}"), "read", "red").await;
            client.revoke_token(v1::RevokeTokenRequest { id: spare.id }).await.map(words)
        }
        "RebindToken" => {
            let spare = make_token(farm, &format!("agent of {who:?}"), "agent", "").await;
            client.rebind_token(v1::RebindTokenRequest { id: spare.id, agent: String::new() }).await.map(words)
        }
        "ListAgents" => client.list_agents(v1::ListAgentsRequest {}).await.map(words),
        "DrainAgent" => client.drain_agent(v1::DrainAgentRequest { agent: "builder".into() }).await.map(words),
        "ResumeAgent" => client.resume_agent(v1::ResumeAgentRequest { agent: "builder".into() }).await.map(words),
        "ForgetAgent" => {
            client.forget_agent(v1::ForgetAgentRequest { agent: "builder".into(), force: true }).await.map(words)
        }
        "CreateLoginLink" => client.create_login_link(v1::CreateLoginLinkRequest {}).await.map(words),
        "ListCaches" => client.list_caches(v1::ListCachesRequest::default()).await.map(words),
        "DropCache" => match client.drop_cache(v1::DropCacheRequest { scope: "0".repeat(64) }).await {
            // There is none; whoever hears so was let in.
            Err(status) if status.code() == Code::NotFound => Ok(String::new()),
            other => other.map(words),
        },
        "ListPlugins" => client.list_plugins(v1::ListPluginsRequest {}).await.map(words),
        "ListPauses" => client.list_pauses(v1::ListPausesRequest {}).await.map(words),
        "Pause" => {
            let ask = v1::PauseRequest { kind: "sku".into(), name: SKU.into(), for_ms: 1, ..Default::default() };
            client.pause(ask).await.map(words)
        }
        "Resume" => {
            let ask = v1::ResumeRequest { kind: "sku".into(), name: SKU.into(), window: true };
            client.resume(ask).await.map(words)
        }
        "AllowPlugin" => {
            let ask = v1::AllowPluginRequest { digest: "1".repeat(64), name: "p".into() };
            client.allow_plugin(ask).await.map(words)
        }
        "ForbidPlugin" => match client.forbid_plugin(v1::ForbidPluginRequest { digest: "2".repeat(64) }).await {
            Err(status) if status.code() == Code::NotFound => Ok(String::new()),
            other => other.map(words),
        },
        "ListProjects" => client.list_projects(v1::ListProjectsRequest::default()).await.map(words),
        "SetProject" => {
            let ask = v1::SetProjectRequest { name: "red".into(), max_jobs: Some(1_000), ..Default::default() };
            client.set_project(ask).await.map(words)
        }
        "CollectGarbage" => client.collect_garbage(v1::CollectGarbageRequest { dry_run: true }).await.map(words),
        "ListAudit" => client.list_audit(v1::ListAuditRequest::default()).await.map(words),
        "PinEngines" => {
            let ask = v1::PinEnginesRequest { plan_digests: vec![plan_digest], ..Default::default() };
            client.pin_engines(ask).await.map(words)
        }
        "ListPins" => client.list_pins(v1::ListPinsRequest::default()).await.map(words),
        "UnpinEngines" => {
            let ask = v1::UnpinEnginesRequest { plan_digests: vec![plan_digest], ..Default::default() };
            client.unpin_engines(ask).await.map(words)
        }
        "DeclareEngines" => {
            let view: planforge_proto::view::DeclareView =
                serde_json::from_value(crate::world::declaration(world, who)).expect("a declaration");
            client.declare_engines(v1::DeclareEnginesRequest::from(view)).await.map(words)
        }
        "ListDeclarations" => client.list_declarations(v1::ListDeclarationsRequest::default()).await.map(words),
        "Refresh" => client.refresh(v1::RefreshRequest { dry_run: true, ..Default::default() }).await.map(words),
        "Scrub" => first(client.scrub(v1::ScrubRequest::default()).await).await,
        "Session" => session(world, who).await,
        other => panic!("{other} is not in the matrix: say how it is called"),
    }
}

/// Opens an agent's stream over the farm's handle, as the port does for who has a certificate or needs none.
async fn session(world: &World, who: Who) -> Result<String, Status> {
    let farm = world.served.coordinator.farm();
    let Some(actor) = farm.authenticate(world.token(who)).await.expect("asked") else {
        return Err(Status::unauthenticated(""));
    };
    let proof = planforge_coordinator::auth::Proof::Token(planforge_types::Digest::of(world.token(who).as_bytes()));
    farm.session(&actor, proof, futures::stream::pending().boxed()).await.map(|_| String::new()).map_err(Status::from)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_answers_everybody_as_it_should() {
    let world = World::new().await;
    let mut clients = Vec::new();
    for who in EVERYBODY {
        clients.push((who, world.client(who).await));
    }
    let mut methods: Vec<String> = served::rpc_methods().into_iter().map(|(_, method)| method).collect();
    // What takes something away comes last.
    methods.sort_by_key(|method| ["CancelJobs", "ForgetAgent"].contains(&method.as_str()));
    let mut wrong = Vec::new();
    for method in &methods {
        for ((who, client), expected) in clients.iter_mut().zip(expected(method)) {
            let answer = call(&world, client, *who, method).await;
            let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
            if code != expected {
                wrong.push(format!("{method} answers {who:?} {code:?} instead of {expected:?}: {answer:?}"));
            }
            if let (Who::Foreign | Who::Agent, Ok(words)) = (*who, answer) {
                let told = world.marks().into_iter().filter(|mark| words.contains(mark));
                wrong.extend(told.map(|mark| format!("{method} tells {who:?} of {mark}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!SKU.is_empty());
}
