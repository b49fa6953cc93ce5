//! Links for reading: what each opens, for nobody at all, and how they end.

use crate::world::{Who, World, make_token, model_of, request_of};
use http::Method;
use planforge_coordinator::auth::Actor;
use planforge_proto::v1;
use serde_json::Value;

/// A link that red's submitter makes of its request or its model; its path and its id.
async fn link(world: &World, of: Value) -> (String, String) {
    let make = world.http(Who::Own, Method::POST, "/api/v1/shares").header("content-type", "application/json");
    let made = world.served.send(make, of.to_string()).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let made: Value = serde_json::from_str(&made.text()).unwrap();
    (made["path"].as_str().unwrap().to_owned(), made["share"]["id"].as_str().unwrap().to_owned())
}

async fn read(world: &World, path: &str) -> (u16, String) {
    let answer = world.served.send(world.served.stranger(Method::GET, path), "").await;
    (answer.status.as_u16(), answer.text())
}

/// Another job of red's, of another model and request: what no link of the first shows.
async fn other_job(world: &World) -> v1::Job {
    let bytes = b"other weights of red".to_vec();
    assert_eq!(world.upload(Who::Own, &bytes).await, 201);
    let request = v1::SubmitRequest {
        skus: vec!["t4".into()],
        wait_for_device: true,
        ..request_of(&model_of("other-model.onnx", &bytes))
    };
    world.client(Who::Own).await.submit(request).await.unwrap().into_inner().jobs.remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_shows_what_it_is_of_and_nothing_else() {
    let world = World::new().await;
    let other = other_job(&world).await;
    let (job, plan) = (&world.job, &world.job.plan_digest);
    for of in
        [serde_json::json!({ "request_id": job.request_id }), serde_json::json!({ "model_digest": world.model.digest })]
    {
        let (path, _) = link(&world, of.clone()).await;
        for below in [String::new(), format!("/jobs/{}", job.id), format!("/plans/{plan}")] {
            let (status, page) = read(&world, &format!("{path}{below}")).await;
            assert!(status == 200 && page.contains("red-model") && page.contains("Read-only"), "{of} {below}: {page}");
            let (status, json) = read(&world, &format!("{path}{below}?format=json")).await;
            assert!(status == 200 && json.contains(plan), "{of} {below}: {json}");
            for words in [page, json] {
                for secret in
                    [&*other.id, &*other.request_id, "other-model", "red-submit", "builder", "/do/", "planforge fetch"]
                {
                    assert!(!words.contains(secret), "{of} {below} tells of {secret}: {words}");
                }
            }
        }
        // What it leads to lies below it, and is there.
        let (_, page) = read(&world, &path).await;
        let main = page.split("<main").nth(1).unwrap().split("</main>").next().unwrap();
        let hrefs: Vec<&str> = main.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(hrefs.len() >= 2, "{main}");
        for href in hrefs {
            assert!(href.starts_with(&path), "{href}");
            assert_eq!(read(&world, href).await.0, 200, "{href}");
        }
        for astray in [
            format!("{path}/jobs/{}", other.id),
            format!("{path}/jobs/{}", &job.id[..8]),
            format!("{path}/plans/{}", "0".repeat(64)),
            format!("{path}/devices"),
            format!("{}0", path),
        ] {
            let (status, words) = read(&world, &astray).await;
            assert!(
                status == 404 && !words.contains("red-model") && !words.contains("other-model"),
                "{astray}: {words}"
            );
        }
        // It is no token, and no log-in.
        let secret = path.rsplit('/').next().unwrap();
        for header in
            [("authorization", format!("Bearer {secret}")), ("cookie", format!("planforge_session_7400={secret}"))]
        {
            for route in ["/api/v1/jobs", "/jobs", "/"] {
                let request = world.served.stranger(Method::GET, route).header(header.0, &header.1);
                assert_eq!(world.served.send(request, "").await.status, 401, "{route}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_ends_when_it_is_revoked_or_too_old_or_its_token_is_revoked_and_the_log_says_so() {
    let world = World::new().await;
    let request = serde_json::json!({ "request_id": world.job.request_id });
    let (path, id) = link(&world, request.clone()).await;
    assert_eq!(read(&world, &path).await.0, 200);
    let list = async |who| {
        let answer = world.served.send(world.http(who, Method::GET, "/api/v1/shares"), "").await;
        serde_json::from_str::<Value>(&answer.text()).unwrap()["shares"].as_array().cloned().unwrap_or_default()
    };
    let listed = list(Who::Own).await;
    assert!(listed.len() == 1 && listed[0]["id"] == id.as_str() && listed[0]["project"] == "red", "{listed:?}");
    assert!(list(Who::Foreign).await.is_empty());
    let revoke = async |who| {
        let path = format!("/api/v1/shares/{id}/revoke");
        let ask = world.http(who, Method::POST, &path).header("content-type", "application/json");
        world.served.send(ask, "{}").await.status.as_u16()
    };
    assert_eq!(revoke(Who::Foreign).await, 404);
    assert_eq!(read(&world, &path).await.0, 200, "somebody else's attempt ended nothing");
    assert_eq!(revoke(Who::ProjectAdmin).await, 200, "an administrator of the project ends it");
    assert_eq!((read(&world, &path).await.0, list(Who::Own).await.len()), (404, 0));

    // Good for a second.
    let (path, _) = link(&world, serde_json::json!({ "request_id": world.job.request_id, "ttl_s": 1 })).await;
    crate::support::until("the link to be over", async || (read(&world, &path).await.0 == 404).then_some(())).await;
    assert!(list(Who::Own).await.is_empty());

    // Whoever leaves takes the links along.
    let leaver = make_token(&world.served, "leaver", "submit", "red").await;
    let farm = world.served.coordinator.farm();
    let actor = farm.authenticate(&leaver.secret).await.unwrap().unwrap();
    let ask = v1::CreateShareRequest { request_id: world.job.request_id.clone(), ..Default::default() };
    let path = farm.create_share(&actor, ask).await.unwrap().path;
    assert_eq!(read(&world, &path).await.0, 200);
    farm.revoke_token(&Actor::local(), &leaver.id).await.unwrap();
    assert_eq!(read(&world, &path).await.0, 404);

    let ask = v1::ListAuditRequest { what: "share".into(), ..Default::default() };
    let lines = farm.list_audit(&Actor::local(), ask).await.unwrap().records;
    for what in ["share.create", "share.open", "share.revoke"] {
        assert!(
            lines.iter().any(|line| line.what == what && line.project == "red" && line.outcome == "ok"),
            "{what}: {lines:?}"
        );
    }
    assert!(
        lines.iter().all(|line| !format!("{line:?}").contains(path.rsplit('/').next().unwrap())),
        "no secret is kept"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_is_of_one_thing_that_its_maker_has() {
    let world = World::new().await;
    let (request_id, model_digest) = (world.job.request_id.clone(), world.model.digest.clone());
    let farm = world.served.coordinator.farm();
    let red = Actor::named("r", "submit".parse().unwrap(), Some("red".into()));
    let blue = Actor::named("b", "submit".parse().unwrap(), Some("blue".into()));
    let reader = Actor::named("reads", "read".parse().unwrap(), Some("red".into()));
    let ask = |request_id: &str, model_digest: &str| v1::CreateShareRequest {
        request_id: request_id.into(),
        model_digest: model_digest.into(),
        ..Default::default()
    };
    for (actor, request, code) in [
        (&red, ask("", ""), "invalid-argument"),
        (&red, ask(&request_id, &model_digest), "invalid-argument"),
        (&red, v1::CreateShareRequest { ttl_s: u64::MAX, ..ask(&request_id, "") }, "invalid-argument"),
        (&blue, ask(&request_id, ""), "not-found"),
        (&blue, ask("", &model_digest), "not-found"),
        (&red, ask("nosuchrequest", ""), "not-found"),
        (&reader, ask(&request_id, ""), "permission-denied"),
    ] {
        let error = farm.create_share(actor, request).await.unwrap_err();
        assert_eq!(error.code.name().replace('_', "-"), code, "{error}");
    }
    assert!(farm.list_shares(&reader, v1::ListSharesRequest::default()).await.is_err());
}
