//! Every route × who calls. A route that is not listed here fails the test.

use crate::world::{EVERYBODY, Who, World};
use http::Method;
use std::{fs, path::Path};

/// Methods and patterns of every route, read from the sources: `GET /api/v1/jobs/{id}`.
fn routes() -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("sources") {
            let path = entry.expect("a file").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                routes_of(&fs::read_to_string(&path).expect("a source"), &mut found);
            }
        }
    }
    found.sort();
    found.dedup();
    assert!(found.len() > 35, "{found:?}");
    found
}

fn routes_of(source: &str, found: &mut Vec<String>) {
    for rest in source.split(".route(").skip(1) {
        let (pattern, rest) = match rest.trim_start().strip_prefix('"') {
            Some(rest) => rest.split_once('"').expect("a pattern ends"),
            // A constant of the same source; what else stands there is no route of ours.
            None => {
                let (name, rest) = rest.split_once(',').expect("a pattern and its handlers");
                let Some((_, value)) = source.split_once(&format!("const {name}: &str = \"")) else { continue };
                (value.split('"').next().expect("a text ends"), rest)
            }
        };
        // To the parenthesis that closes the route.
        let mut depth = 1;
        let end = rest.find(|c: char| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        let handlers = &rest[..end.expect("a route ends")];
        for method in ["get", "head", "post", "patch", "put", "delete"] {
            let calls = handlers
                .match_indices(&format!("{method}("))
                .any(|(at, _)| !handlers[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_'));
            if calls {
                found.push(format!("{} {pattern}", method.to_uppercase()));
            }
        }
    }
}

/// What a route answers everybody, in the order of [`EVERYBODY`].
fn expected(route: &str) -> [u16; 6] {
    match route {
        // Own, Foreign, FarmAdmin, ProjectAdmin, Agent, Nobody
        "GET /healthz" | "GET /readyz" | "GET /login" | "GET /assets/{name}" => [200; 6],
        "GET /favicon.ico" => [308; 6],
        // Nobody is known by a token here: what counts is the form.
        "POST /login" => [401; 6],
        "POST /logout" => [303; 6],
        "GET /" | "GET /events" | "GET /jobs" | "GET /engines" | "GET /farm" | "GET /activity" => {
            [200, 200, 200, 200, 403, 401]
        }
        // As the routes of the API that say the same.
        "GET /devices" | "GET /api" => [200, 200, 200, 200, 200, 401],
        "GET /jobs/{id}"
        | "GET /jobs/{id}/clone"
        | "GET /requests/{id}"
        | "GET /plans/{digest}"
        | "GET /models/{digest}" => [200, 404, 200, 200, 403, 401],
        // Its report is too short to be compared; who may not see the job hears nothing of it.
        "GET /compare" => [422, 404, 422, 422, 403, 401],
        // What the page does, with a token: back to the page of what it was done to.
        "POST /do/cancel" => [303, 404, 303, 303, 403, 401],
        "POST /do/retry" | "POST /do/clone" | "POST /do/priority" => [303, 404, 303, 303, 403, 401],
        // Shows the link, once; what it opens is tried in `shares`.
        "POST /do/share" => [200, 404, 200, 200, 403, 401],
        // There is none.
        "POST /do/unshare" | "POST /api/v1/shares/{id}/revoke" => [404, 404, 404, 404, 403, 401],
        "GET /api/v1/shares" => [200, 200, 200, 200, 403, 401],
        "POST /api/v1/shares" => [201, 404, 201, 201, 403, 401],
        // Whoever comes, and by whatever token: what counts is the secret.
        "GET /shared/{secret}"
        | "GET /shared/{secret}/events"
        | "GET /shared/{secret}/jobs/{id}"
        | "GET /shared/{secret}/plans/{digest}" => [404; 6],
        "POST /do/drain" | "POST /do/resume" | "POST /do/project" | "POST /do/scrub" => [403, 403, 303, 403, 403, 401],
        // Shows what would go.
        "POST /do/gc" => [403, 403, 200, 403, 403, 401],
        // There is none; whoever hears so was let in.
        "POST /do/unpin" | "POST /do/forget" => [403, 403, 404, 403, 403, 401],
        "POST /do/revoke" => [403, 403, 404, 404, 403, 401],
        // Of the whole farm.
        "GET /metrics" => [403, 403, 200, 403, 403, 401],
        "GET /api/v1/info" | "GET /api/v1/devices" | "GET /api/v1/plugins" => [200, 200, 200, 200, 200, 401],
        "GET /api/v1/jobs"
        | "GET /api/v1/requests"
        | "GET /api/v1/events"
        | "GET /api/v1/engines"
        | "GET /api/v1/reports"
        | "GET /api/v1/caches"
        | "GET /api/v1/pins"
        | "GET /api/v1/pauses"
        | "GET /api/v1/declarations"
        | "POST /api/v1/declarations"
        | "POST /api/v1/refresh"
        | "GET /api/v1/projects" => [200, 200, 200, 200, 403, 401],
        "POST /api/v1/jobs" => [201, 200, 201, 201, 403, 401],
        "GET /api/v1/jobs/{id}" | "GET /api/v1/jobs/{id}/log" | "GET /api/v1/engines/find" => {
            [200, 404, 200, 200, 403, 401]
        }
        // Of plans that the project has; each takes away what it pinned before.
        "POST /api/v1/pins" | "POST /api/v1/pins/remove" => [200, 404, 200, 200, 403, 401],
        "POST /api/v1/jobs/{id}/priority" => [200, 404, 200, 200, 403, 401],
        "POST /api/v1/jobs/{id}/cancel" => [200, 404, 200, 200, 403, 401],
        "GET /api/v1/audit" => [403, 403, 200, 200, 403, 401],
        "POST /api/v1/gc" => [403, 403, 200, 403, 403, 401],
        "GET /api/v1/agents" => [403, 403, 200, 403, 403, 401],
        "POST /api/v1/agents/{agent}/drain"
        | "POST /api/v1/agents/{agent}/resume"
        | "POST /api/v1/agents/{agent}/forget" => [403, 403, 200, 403, 403, 401],
        "POST /api/v1/pauses" => [403, 403, 200, 403, 403, 401],
        // There is none; whoever hears so was let in.
        "POST /api/v1/pauses/resume" => [403, 403, 404, 403, 403, 401],
        "POST /api/v1/caches/{scope}/drop" => [403, 403, 404, 403, 403, 401],
        "POST /api/v1/blobs/{hex}/verify" | "POST /api/v1/blobs/scrub" => [403, 403, 200, 403, 403, 401],
        "GET /v1/blobs/sha256/{hex}" => [200, 404, 200, 200, 404, 401],
        // 200: it is there; 201: send it.
        "POST /v1/uploads" => [200, 201, 200, 200, 201, 401],
        // This farm certifies nobody; who may have a certificate is told in `tests/enrollment.rs`.
        "POST /v1/enroll" | "POST /v1/certificate" => [400, 400, 400, 400, 400, 401],
        // Somebody else's upload does not exist.
        "HEAD /v1/uploads/{id}"
        | "PATCH /v1/uploads/{id}"
        | "DELETE /v1/uploads/{id}"
        | "POST /v1/uploads/{id}/address"
        | "POST /v1/uploads/{id}/parts" => [404, 404, 404, 404, 404, 401],
        other => panic!("{other} is not in the matrix: say who may call it, and what they may see"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_answers_everybody_as_it_should() {
    let world = World::new().await;
    // An upload of somebody who is none of the callers.
    let uploader = crate::world::make_token(&world.served, "uploader", "submit", "red").await.secret;
    let announced = serde_json::json!({ "digest": "3".repeat(64), "size_bytes": 3 }).to_string();
    let begin = world.served.stranger(Method::POST, "/v1/uploads").header("content-type", "application/json");
    let begun = world.served.send(begin.header("authorization", format!("Bearer {uploader}")), announced).await;
    let upload = begun.header("location").rsplit('/').next().unwrap_or_default().to_owned();
    assert!(!upload.is_empty(), "{}", begun.text());

    let mut routes = routes();
    // What takes something away comes last.
    routes.sort_by_key(|route| match route.as_str() {
        // After everybody has declared something.
        "GET /api/v1/declarations" => 1,
        route if route.starts_with("POST /do/") => 1,
        route if route.ends_with("/forget") || route.ends_with("/cancel") => 2,
        _ => 0,
    });
    let mut wrong = Vec::new();
    for route in &routes {
        for (who, expected) in EVERYBODY.into_iter().zip(expected(route)) {
            let (status, words) = call(&world, who, route, &upload).await;
            if status != expected {
                wrong.push(format!("{route} answers {who:?} {status} instead of {expected}: {words}"));
            }
            if matches!(who, Who::Foreign | Who::Agent | Who::Nobody) && status < 300 {
                let told = world.marks().into_iter().filter(|mark| words.contains(mark));
                wrong.extend(told.map(|mark| format!("{route} tells {who:?} of {mark}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn call(world: &World, who: Who, route: &str, upload: &str) -> (u16, String) {
    let (method, pattern) = route.split_once(' ').expect("a method and a pattern");
    let (model, plan) = (&world.model.digest, &world.job.plan_digest);
    let hex = if pattern.contains("verify") { model } else { plan };
    let id = match pattern {
        "/requests/{id}" => &world.job.request_id,
        pattern if pattern.starts_with("/v1/uploads") => upload,
        _ => &world.job.id,
    };
    let digest = if pattern.starts_with("/models") { model } else { plan };
    let mut path = pattern.replace("{id}", id).replace("{hex}", hex).replace("{agent}", "builder");
    path = path.replace("{scope}", &"0".repeat(64)).replace("{name}", "nothing").replace("{digest}", digest);
    path = path.replace("{secret}", &"5".repeat(64));
    match pattern {
        "/api/v1/engines/find" | "/api/v1/reports" => path.push_str(&format!("?plan_digest={plan}")),
        "/assets/{name}" => path = asset(world).await,
        "/events" => path.push_str("?topic=/"),
        "/shared/{secret}/events" => path.push_str("?of=/"),
        "/compare" => path.push_str(&format!("?of={}", world.job.id)),
        _ => {}
    }
    let body = match route {
        "POST /api/v1/jobs" => serde_json::json!({
            "models": [{
                "digest": model, "name": world.model.name,
                "files": [{ "name": world.model.name, "digest": model, "size_bytes": world.model_bytes.len() }],
            }],
            "skus": [crate::support::SKU],
        })
        .to_string(),
        "POST /v1/uploads" => serde_json::json!({ "digest": model, "size_bytes": world.model_bytes.len() }).to_string(),
        "POST /v1/uploads/{id}/address" => serde_json::json!({ "offset": 0, "sha256": model }).to_string(),
        "POST /v1/uploads/{id}/parts" => serde_json::json!({ "offset": 0, "sha256": model, "etag": "a" }).to_string(),
        "POST /login" => "token=nonsense".into(),
        "POST /do/cancel" | "POST /do/retry" => format!("id={}", world.job.id),
        "POST /do/priority" => format!("id={}&priority=2", world.job.id),
        "POST /do/clone" => format!("id={}&skus={}&priority=0", world.job.id, crate::support::SKU),
        "POST /do/share" => format!("request={}&days=2", world.job.request_id),
        "POST /do/unshare" => "id=nosuchlink".into(),
        "POST /api/v1/shares" => serde_json::json!({ "request_id": world.job.request_id }).to_string(),
        "POST /do/drain" | "POST /do/resume" => "agent=builder".into(),
        "POST /do/forget" => "agent=nosuchagent".into(),
        "POST /do/revoke" => "id=nosuchtoken".into(),
        "POST /do/unpin" => format!("pin={}.nobody.none", "6".repeat(64)),
        "POST /do/project" => "name=red&share=1".into(),
        "POST /do/gc" | "POST /do/scrub" => String::new(),
        "POST /api/v1/agents/{agent}/forget" => r#"{"force":true}"#.into(),
        // As the project that calls.
        "POST /api/v1/declarations" => crate::world::declaration(world, who).to_string(),
        "POST /api/v1/pins" | "POST /api/v1/pins/remove" => serde_json::json!({ "plan_digests": [plan] }).to_string(),
        "POST /api/v1/jobs/{id}/priority" => r#"{"priority":3}"#.into(),
        "POST /api/v1/pauses" => {
            serde_json::json!({ "kind": "sku", "name": crate::support::SKU, "for_ms": 1 }).to_string()
        }
        "POST /api/v1/pauses/resume" => {
            serde_json::json!({ "kind": "sku", "name": crate::support::SKU, "window": true }).to_string()
        }
        "POST /api/v1/refresh" => r#"{"dry_run":true}"#.into(),
        _ if method == "POST" => "{}".into(),
        _ => String::new(),
    };
    let kind = match method {
        "PATCH" => "application/partial-upload",
        "POST" if matches!(pattern, "/login" | "/logout") || pattern.starts_with("/do/") => {
            "application/x-www-form-urlencoded"
        }
        _ => "application/json",
    };
    let mut request = world.http(who, method.parse().expect("a method"), &path);
    if !matches!(method, "GET" | "HEAD") {
        request = request.header("content-type", kind).header("upload-offset", 0);
    }
    if pattern == "/events" {
        // Has no end: its head says whether it is given.
        let (head, _body) = world.served.open(request, body).await;
        return (head.status.as_u16(), String::new());
    }
    let answer = world.served.send(request, body).await;
    (answer.status.as_u16(), answer.text())
}

/// The path of something that the page is made of.
async fn asset(world: &World) -> String {
    let page = world.served.send(world.served.stranger(Method::GET, "/login"), "").await.text();
    let at = page.find("/assets/").expect("the page names its parts");
    page[at..].split('"').next().expect("a path").to_owned()
}
