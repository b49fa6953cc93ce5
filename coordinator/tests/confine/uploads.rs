//! Whoever announces uploads takes nothing from others.

use crate::world::{Who, World};
use http::Method;
use planforge_coordinator::blobs::LocalBlobsOptions;
use planforge_proto::v1;
use planforge_types::Digest;
use serde_json::json;
use std::time::Duration;

async fn announce(world: &World, who: Who, digest: Digest, size_bytes: u64) -> crate::served::Answer {
    let request = world.http(who, Method::POST, "/v1/uploads").header("content-type", "application/json");
    world.served.send(request, json!({ "digest": digest, "size_bytes": size_bytes }).to_string()).await
}

fn digest(number: u32) -> Digest {
    Digest::of(&number.to_le_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announcements_without_a_byte_are_their_tokens_own_trouble() {
    let world = World::new().await;
    let mut opened = 0;
    let refused = loop {
        let answer = announce(&world, Who::Foreign, digest(opened), 10).await;
        if answer.status != 201 {
            break answer;
        }
        opened += 1;
        assert!(opened < 1_024, "one token has no end");
    };
    let problem = refused.problem(413, "resource-exhausted");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("the token 'blue-submit'") && detail.contains(&opened.to_string()), "{problem}");
    assert!(problem["hint"].as_str().unwrap().contains("abandon"), "{problem}");
    // Nobody else is refused anything.
    assert_eq!(world.upload(Who::Own, b"of red").await, 201);
    assert_eq!(world.upload(Who::FarmAdmin, b"of the farm").await, 201);
    assert_eq!(world.upload(Who::Agent, b"a plan").await, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announcements_of_all_room_there_is_take_none() {
    // A room of the farm's own: that of this machine's disk is others' too, and comes and goes.
    let room_bytes = 16 << 20;
    let world = World::with(|config| config.blobs.max_bytes = Some(room_bytes)).await;
    let free = || world.served.coordinator.blobs().available_bytes().unwrap().unwrap();
    let before = free();
    assert!(before > room_bytes / 10 * 9, "{before}");
    for (number, who) in [(1, Who::Foreign), (2, Who::Foreign), (3, Who::Own)] {
        let answer = announce(&world, who, digest(number), room_bytes / 10 * 9).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        assert_eq!(free(), before, "nothing came yet");
    }
    assert_eq!(world.upload(Who::Own, b"of red").await, 201);
    // Of more than the farm may store nothing could come.
    let beyond = announce(&world, Who::Foreign, digest(4), room_bytes + 1).await;
    let problem = beyond.problem(507, "resource-exhausted");
    assert!(problem["detail"].as_str().unwrap().contains("within the farm's quota"), "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announcement_of_more_than_the_disk_is_refused() {
    let world = World::new().await;
    let beyond = announce(&world, Who::Foreign, digest(1), u64::MAX / 2).await;
    let problem = beyond.problem(507, "resource-exhausted");
    assert!(problem["detail"].as_str().unwrap().contains("on the disk of"), "{problem}");
    assert_eq!(world.upload(Who::Own, b"of red").await, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_never_got_a_byte_is_forgotten_after_minutes() {
    assert!(LocalBlobsOptions::default().empty_upload_ttl <= Duration::from_secs(600));
    let world = World::with(|config| config.blobs.empty_upload_ttl = Duration::ZERO).await;
    let begun = announce(&world, Who::Foreign, digest(1), 10).await;
    let moving = announce(&world, Who::Foreign, digest(2), 10).await;
    let patch = world
        .http(Who::Foreign, Method::PATCH, moving.header("location"))
        .header("content-type", "application/partial-upload")
        .header("upload-offset", 0);
    assert_eq!(world.served.send(patch, "12345").await.status, 204);
    assert_eq!(world.served.coordinator.blobs().collect_stale_uploads().await, 1);
    let head = async |answer: &crate::served::Answer| {
        world.served.send(world.http(Who::Foreign, Method::HEAD, answer.header("location")), "").await.status.as_u16()
    };
    assert_eq!((head(&begun).await, head(&moving).await), (404, 204));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_is_its_tokens_and_bytes_that_others_sent_are_not_lent() {
    let world = World::new().await;
    let bytes = vec![7; 1_000];
    let begun = announce(&world, Who::Own, Digest::of(&bytes), 1_000).await;
    let location = begun.header("location").to_owned();
    let patch = |who, location: &str, offset: usize, complete: &'static str| {
        world
            .http(who, Method::PATCH, location)
            .header("content-type", "application/partial-upload")
            .header("upload-complete", complete)
            .header("upload-offset", offset)
    };
    let part = world.served.send(patch(Who::Own, &location, 0, "?0"), bytes[..999].to_vec()).await;
    assert_eq!(part.status, 204, "{}", part.text());
    // Who knows the last byte alone would have the rest of it.
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    let other = announce(&world, Who::Foreign, Digest::of(&bytes), 1_000).await;
    assert_eq!((other.status.as_u16(), other.header("upload-offset")), (201, "0"));
    assert_ne!(other.header("location"), location);
    for (method, request) in [
        ("HEAD", world.http(Who::Foreign, Method::HEAD, &location)),
        ("PATCH", patch(Who::Foreign, &location, 999, "?1")),
        ("DELETE", world.http(Who::Foreign, Method::DELETE, &location)),
    ] {
        assert_eq!(world.served.send(request, vec![7; 1]).await.status, 404, "{method}");
    }
    assert_eq!(world.served.send(patch(Who::Own, &location, 999, "?1"), vec![7; 1]).await.status, 201);
    // Both send the same, and both have it.
    assert_eq!(world.upload(Who::Foreign, &bytes).await, 201);
    let again = announce(&world, Who::Foreign, Digest::of(&bytes), 1_000).await;
    assert_eq!((again.status.as_u16(), again.json()["state"].as_str()), (200, Some("exists")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_projects_quota_is_its_own_and_says_so() {
    let world = World::new().await;
    let stored = {
        let mut admin = world.client(Who::FarmAdmin).await;
        let projects = admin.list_projects(v1::ListProjectsRequest::default()).await.unwrap().into_inner().projects;
        let red = projects.iter().find(|project| project.name == "red").expect("red is there");
        let quota = v1::SetProjectRequest {
            name: "red".into(),
            max_stored_bytes: Some(red.stored_bytes + 100),
            ..Default::default()
        };
        admin.set_project(quota).await.unwrap();
        red.stored_bytes
    };
    assert!(stored >= world.model_bytes.len() as u64 + world.job.plan_bytes, "{stored}");
    assert_eq!(world.upload(Who::Own, &[1; 60]).await, 201);
    let refused = announce(&world, Who::Own, digest(1), 41).await;
    let problem = refused.problem(413, "resource-exhausted");
    assert!(problem["detail"].as_str().unwrap().contains("project red has no room for 41 bytes"), "{problem}");
    assert!(problem["hint"].as_str().unwrap().contains("planforge projects set"), "{problem}");
    assert_eq!(announce(&world, Who::Own, digest(2), 30).await.status, 201);
    assert_eq!(announce(&world, Who::Own, digest(3), 11).await.status, 413, "what it announced counts for itself");
    assert_eq!(world.upload(Who::Foreign, &[2; 500]).await, 201, "and for nobody else");
    // At its quota it builds nothing new, and what is stored still answers.
    let mut admin = world.client(Who::FarmAdmin).await;
    let quota = v1::SetProjectRequest { name: "red".into(), max_stored_bytes: Some(1), ..Default::default() };
    admin.set_project(quota).await.unwrap();
    let mut red = world.client(Who::Own).await;
    let again = red.submit(crate::world::request_of(&world.model)).await.unwrap().into_inner();
    assert!(again.jobs[0].cached, "{again:?}");
    let forced = v1::SubmitRequest { force: true, ..crate::world::request_of(&world.model) };
    let error = planforge_proto::ApiError::from(red.submit(forced).await.unwrap_err());
    assert_eq!(error.code, planforge_proto::ErrorCode::ResourceExhausted);
    assert!(error.message.contains("project red stores"), "{}", error.message);
}
