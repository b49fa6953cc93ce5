//! The page as a browser gets it: what it shows, what it escapes, and what its events bring.

mod served;
#[path = "it/support/mod.rs"]
mod support;

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use planforge_coordinator::{auth::Actor, farm::Farm};
use planforge_proto::v1::{self, agent_message::Kind};
use serde_json::Value;
use served::{DEADLINE, Served};
use support::{SKU, agent::Agent};

const REPORT: &str = r#"{"schema_version":1,"latency_ms":{"count":500,"median":1.25,"p90":1.5,"p99":2.0,"ci_low":1.2,
    "ci_high":1.3},"throughput_per_s":801.5,"batch":1,"build_ms":2500.0,"peak_memory_bytes":52428800,
    "layers":[{"name":"conv<1>","kind":"conv","tactic":"im2col-8x8","median_ms":0.9,"flops":90000000,"bytes":9000},
              {"name":"fc","kind":"gemm","tactic":"tile-6x16","median_ms":0.3}],
    "ceilings":{"measured_unix_ms":1763600000000,"conditions":{"threads":"2"},"copy_gb_s":20.0,"tflop_s":{"fp32":0.2}},
    "batches":{"points":[{"batch":1,"throughput_per_s":802.0},{"batch":8,"problem":"out of <memory>"}],"best":1},
    "findings":[{"code":"contention","severity":"warning","message":"another process used the device"}]}"#;

async fn submit(served: &Served, name: &str) -> String {
    submit_as(served, name, "{}").await
}

async fn submit_as(served: &Served, name: &str, spec: &str) -> String {
    let file = Bytes::from(format!("model {name}"));
    let digest = served.coordinator.blobs().store(file.clone()).await.unwrap().to_string();
    let files = vec![v1::ModelFile { name: "m.onnx".into(), digest: digest.clone(), size_bytes: file.len() as u64 }];
    let model = v1::Model { digest, name: name.into(), files, ..Default::default() };
    let request = v1::SubmitRequest {
        models: vec![model],
        skus: vec![SKU.into()],
        specs_json: vec![spec.into()],
        ..Default::default()
    };
    let reply = served.coordinator.farm().submit(&Actor::local(), request).await.unwrap();
    assert!(reply.missing_blobs.is_empty());
    reply.jobs[0].id.clone()
}

/// Lets the agent finish what it was given, with [`REPORT`].
async fn succeed(served: &Served, agent: &mut Agent, assign: &v1::Assign) {
    succeed_with(served, agent, assign, REPORT).await;
}

async fn succeed_with(served: &Served, agent: &mut Agent, assign: &v1::Assign, report: &'static str) {
    let store = |bytes: &'static str| served.coordinator.blobs().store(Bytes::from_static(bytes.as_bytes()));
    let plan = Bytes::from(support::agent::plan_of(assign, &assign.lease.as_ref().unwrap().job));
    let finished = v1::Finished {
        lease: assign.lease.clone(),
        outcome: "succeeded".into(),
        plan_bytes: plan.len() as u64,
        plan_digest: served.coordinator.blobs().store(plan).await.unwrap().to_string(),
        card_digest: store("{}").await.unwrap().to_string(),
        report_digest: store(report).await.unwrap().to_string(),
        log_digest: store("compiling <fast>\ndone\n").await.unwrap().to_string(),
        accurate: true,
        ..Default::default()
    };
    agent.say(Kind::Finished(finished)).await;
    assert!(agent.acknowledged().await.accepted);
}

fn farm(served: &Served) -> &Farm {
    served.coordinator.farm()
}

#[tokio::test]
async fn an_empty_farm_says_the_next_command() {
    let served = Served::start_with(|config| config.public_url = "https://farm.example".into()).await;
    let page = served.get("/").await;
    assert_eq!((page.status.as_u16(), page.header("content-type")), (200, "text/html; charset=utf-8"));
    let policy = page.header("content-security-policy");
    assert!(policy.contains("default-src 'self'") && !policy.contains("unsafe"), "{policy}");
    let text = page.text();
    assert!(text.contains("planforge agent --server https://farm.example"), "{text}");
    assert!(text.contains("planforge submit"), "{text}");
    assert!(!text.contains("<script>") && !text.contains("style=") && !text.contains("onclick"), "{text}");
    for attribute in ["src=\"/assets/", "href=\"/assets/"] {
        let rest = text.split(attribute).nth(1).expect("an asset");
        let asset = served.get(&format!("/assets/{}", rest.split('"').next().unwrap())).await;
        assert_eq!(asset.status, 200);
        assert!(asset.header("cache-control").contains("immutable"));
    }
    assert_eq!(served.get("/assets/page-000000000000.css").await.status, 404);
}

#[tokio::test]
async fn counts_are_those_of_the_farm_and_what_runs_is_shown_however_much_waits() {
    // The agent says nothing while it works: its lease outlasts the test on any machine.
    let served = Served::start_with(|config| config.farm.lease_ms = 3_600_000).await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let running = submit(&served, "running.onnx").await;
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    for number in 0..90 {
        submit(&served, &format!("waiting{number}.onnx")).await;
    }
    let text = served.get("/").await.text();
    for (name, count) in [("Running", 1), ("Waiting", 90)] {
        assert!(text.contains(&format!("<dt>{name}</dt><dd>{count}</dd>")), "{name}: {text}");
    }
    assert!(text.contains(&format!("/jobs/{running}")), "{text}");
    assert!(text.contains("31 more run or wait"), "{text}");
}

#[tokio::test]
async fn jobs_and_engines_of_one_model_are_told_apart_by_their_specs() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    for spec in ["{}", r#"{"threads":1,"optimization_level":5}"#] {
        let id = submit_as(&served, "m.onnx", spec).await;
        let assign = agent.assigned().await;
        succeed(&served, &mut agent, &assign).await;
        support::until_state(farm(&served), &id, v1::JobState::Succeeded).await;
    }
    let text = served.get("/").await.text();
    for words in ["fp32, 1 thread, level 5<", "fp32, 2 threads<"] {
        assert_eq!(text.matches(words).count(), 2, "{words}, in the jobs and in the engines: {text}");
    }
    assert!(text.contains("<dt>Failed</dt><dd>0<small> of the last 2</small></dd>"), "{text}");
    assert!(text.contains("<a class=\"skip\" href=\"#content\">") && text.contains("<main id=\"content\""), "{text}");
}

#[tokio::test]
async fn names_are_escaped_wherever_they_show() {
    let served = Served::start().await;
    let _agent = Agent::usual(farm(&served), "a<b>").await;
    let id = submit(&served, "<script>alert(1)</script>.onnx").await;
    let events = events(&served, &format!("/jobs/{id}/events"), None).await;
    for path in ["/".to_owned(), format!("/jobs/{id}")] {
        let text = served.get(&path).await.text();
        assert!(text.contains("alert(1)"), "{text}");
        assert!(!text.contains("<script>alert"), "{text}");
    }
    let fragment = next(events, |event| event["id"] == "job-head").await.0;
    let html = fragment["html"].as_str().unwrap();
    assert!(html.contains("alert(1)") && !html.contains("<script>"), "{html}");
    let missing =
        served.send(served.request(Method::GET, "/jobs/%3Cscript%3E").header("accept", "text/html"), "").await;
    assert!(missing.status.is_client_error() && !missing.text().contains("<script>"), "{}", missing.text());
}

#[tokio::test]
async fn a_median_of_disturbed_windows_alone_is_marked_in_lists_and_on_its_job() {
    const DISTURBED: &str = r#"{"schema_version":1,"latency_ms":{"median":1.25},"windows":[
        {"iterations":40,"tainted":["throttled: thermal"]},
        {"iterations":40,"tainted":["hypervisor took: 9 %"],"kept_tainted":true}],
        "batches":{"points":[{"batch":1,"throughput_per_s":802.0}]}}"#;
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    for (name, report, marks) in [("quiet.onnx", REPORT, 0), ("disturbed.onnx", DISTURBED, 1)] {
        let id = submit(&served, name).await;
        let assign = agent.assigned().await;
        succeed_with(&served, &mut agent, &assign, report).await;
        support::until_state(farm(&served), &id, v1::JobState::Succeeded).await;
        let overview = served.get("/").await.text();
        assert_eq!(overview.matches("1.25 ms*").count(), 2 * marks, "in the jobs and in the engines: {overview}");
        assert_eq!(overview.matches("* every window of this measurement was disturbed").count(), 2 * marks);
        let detail = served.get(&format!("/jobs/{id}")).await.text();
        assert_eq!(detail.matches("1.25 ms*").count(), marks, "{detail}");
        assert_eq!(detail.matches("* every window of this measurement").count(), marks, "{detail}");
    }
}

#[tokio::test]
async fn a_finished_job_shows_its_report_log_and_fetch_command() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let id = submit(&served, "digits.onnx").await;
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    succeed(&served, &mut agent, &assign).await;
    let job = support::until_state(farm(&served), &id, v1::JobState::Succeeded).await;

    let page = served.get(&format!("/jobs/{id}")).await.text();
    for shown in [
        "1.25 ms",
        "802/s",
        "2.50 s",
        "50.0 MiB",
        "im2col-8x8",
        "75.0 %",
        "100 GFLOP/s, 0.0 GB/s",
        "50 % of compute",
        "copy 20 GB/s, fp32 200 GFLOP/s (measured 2025-11-20, threads 2)",
        "batch 8",
        "out of &#60;memory&#62;",
        "another process used the device",
        "compiling &#60;fast&#62;",
        &format!("planforge fetch {}", job.plan_digest),
    ] {
        assert!(page.contains(shown), "missing {shown}: {page}");
    }
    let overview = served.get("/").await.text();
    assert!(overview.contains("1.25 ms") && overview.contains("succeeded"), "{overview}");

    let view = served.get(&format!("/api/v1/jobs/{id}")).await.json();
    assert_eq!(
        (view["state"].as_str(), view["report"]["latency_ms"]["median"].as_f64()),
        (Some("succeeded"), Some(1.25))
    );
    let engines = served.get(&format!("/api/v1/engines?sku={SKU}")).await.json();
    assert_eq!(engines["engines"][0]["plan_digest"], view["plan_digest"]);
    let log = served.get(&format!("/api/v1/jobs/{id}/log")).await;
    assert_eq!(
        (log.text().as_str(), log.header("content-type")),
        ("compiling <fast>\ndone\n", "text/plain; charset=utf-8")
    );
}

#[tokio::test]
async fn the_overview_follows_the_farm() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let stream = events(&served, "/events", None).await;
    let (_, stream) = next(stream, |event| event["id"] == "jobs").await;
    let id = submit(&served, "later.onnx").await;
    let (_, stream) = next(stream, |event| event["id"] == "jobs" && html(event).contains(&id)).await;
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    succeed(&served, &mut agent, &assign).await;
    let (_, stream) = next(stream, |event| event["id"] == "engines" && html(event).contains("later.onnx")).await;
    drop(stream);
}

#[tokio::test]
async fn a_browser_that_comes_back_gets_the_history_it_missed() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let id = submit(&served, "digits.onnx").await;
    let path = format!("/jobs/{id}/events");
    let stream = events(&served, &path, None).await;
    let (first, stream) = next(stream, |event| event["id"] == "history").await;
    assert!(html(&first).contains("submitted"), "{first}");
    drop(stream);

    let assign = agent.assigned().await;
    agent.started(&assign).await;
    succeed(&served, &mut agent, &assign).await;
    support::until_state(farm(&served), &id, v1::JobState::Succeeded).await;
    let mut stream = events(&served, &path, Some(first["seq"].as_str().unwrap())).await;
    let mut seen = String::new();
    while !seen.contains("succeeded") {
        let (event, rest) = next(stream, |event| event["id"] == "history").await;
        seen.push_str(html(&event));
        stream = rest;
    }
    assert!(seen.contains("leased") && !seen.contains("submitted"), "{seen}");
}

#[tokio::test]
async fn a_person_logs_in_with_a_token_and_out_again() {
    let served = Served::start().await;
    let page = served.stranger(Method::GET, "/jobs/1").header("accept", "text/html,*/*");
    let away = served.send(page, "").await;
    assert_eq!((away.status.as_u16(), away.header("location")), (303, "/login?next=/jobs/1"));
    let form = |token: &str| {
        let request =
            served.stranger(Method::POST, "/login").header("content-type", "application/x-www-form-urlencoded");
        served.send(request, format!("token={token}&next=%2F%2Fevil.example"))
    };
    for bad in ["", "pf_0000", "a%0d%0aSet-Cookie:x"] {
        let refused = form(bad).await;
        assert_eq!(refused.status, 401);
        assert!(refused.headers.get("set-cookie").is_none() && refused.text().contains("role=\"alert\""));
    }
    let accepted = form(&served.admin_token()).await;
    assert_eq!((accepted.status.as_u16(), accepted.header("location")), (303, "/"));
    let cookie = accepted.header("set-cookie").to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && cookie.contains("Path=/"), "{cookie}");
    assert!(!cookie.contains(&served.admin_token()), "a browser holds no token");
    let pair = cookie.split(';').next().unwrap();
    let with_cookie = || served.stranger(Method::GET, "/").header("cookie", pair).header("accept", "text/html");
    let inside = served.send(with_cookie(), "").await;
    assert!(inside.status.is_success() && inside.text().contains("admin (admin)") && inside.text().contains("Log out"));
    let out = served.send(served.stranger(Method::POST, "/logout").header("cookie", pair), "").await;
    assert!(out.header("set-cookie").contains("Max-Age=0"));
    let after = served.send(with_cookie(), "").await;
    assert_eq!(
        (after.status.as_u16(), after.header("location")),
        (303, "/login?next=/"),
        "whoever kept it has nothing"
    );
}

#[tokio::test]
async fn a_shutdown_ends_streams_and_is_bounded() {
    let served = Served::start().await;
    let stream = events(&served, "/events", None).await;
    let (_, mut stream) = next(stream, |event| event["id"] == "jobs").await;
    let coordinator = served.coordinator;
    tokio::time::timeout(DEADLINE, coordinator.shutdown()).await.expect("the shutdown ends");
    while let Some(frame) = tokio::time::timeout(DEADLINE, stream.body.frame()).await.expect("the stream ends") {
        if frame.is_err() {
            break;
        }
    }
}

/// An open event stream.
struct Events {
    body: Incoming,
    text: String,
}

async fn events(served: &Served, path: &str, last: Option<&str>) -> Events {
    let mut request = served.request(Method::GET, path).header("accept", "text/event-stream");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let (head, body) = served.open(request, "").await;
    let headers: &HeaderMap = &head.headers;
    assert_eq!((head.status.as_u16(), headers["content-type"].to_str().unwrap()), (200, "text/event-stream"));
    Events { body, text: String::new() }
}

/// The next event that fits, as its data with the event's id as `seq`; and the stream to go on with.
async fn next(mut events: Events, fits: impl Fn(&Value) -> bool) -> (Value, Events) {
    let found = tokio::time::timeout(DEADLINE, async {
        loop {
            while let Some(end) = events.text.find("\n\n") {
                let event: String = events.text.drain(..end + 2).collect();
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                let Some(data) = field("data:") else { continue };
                let mut value: Value = serde_json::from_str(data).unwrap();
                value["seq"] = field("id:").unwrap_or_default().into();
                if fits(&value) {
                    return value;
                }
            }
            let frame = events.body.frame().await.expect("the stream goes on").unwrap();
            if let Ok(data) = frame.into_data() {
                events.text.push_str(std::str::from_utf8(&data).unwrap());
            }
        }
    });
    let value = found.await.expect("the event comes in time");
    (value, events)
}

fn html(event: &Value) -> &str {
    event["html"].as_str().unwrap_or_default()
}
