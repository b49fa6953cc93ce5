//! The page as a browser gets it: what it shows, what it escapes, and what its events bring.

mod served;
#[path = "it/support/mod.rs"]
mod support;

#[path = "page_parts/acts.rs"]
mod acts;
#[path = "page_parts/engines.rs"]
mod engines;

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use planforge_coordinator::{auth::Actor, farm::Farm};
use planforge_proto::v1::{self, agent_message::Kind};
use serde_json::Value;
use served::{DEADLINE, Served};
use std::collections::VecDeque;
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

async fn succeed_with(served: &Served, agent: &mut Agent, assign: &v1::Assign, report: &str) {
    let store = |bytes: &str| served.coordinator.blobs().store(Bytes::from(bytes.to_owned()));
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
    let queue = served.get("/jobs").await.text();
    assert!(queue.contains(&format!("/jobs/{running}")) && queue.contains("60 of 91"), "{queue}");
    let depth = queue.split("id=\"depths-rows\"").nth(1).and_then(|rest| rest.split("</tbody>").next()).unwrap();
    assert!(depth.contains(">90<") && depth.contains("1, 1 busy"), "{depth}");
    // What runs comes first, then what is served first.
    let at = |what: &str| queue.find(what).unwrap_or_else(|| panic!("no {what}: {queue}"));
    assert!(at("running.onnx") < at("waiting0.onnx") && at("waiting0.onnx") < at("waiting7.onnx"));
    assert!(queue.contains("jobs are likely served before it"), "says why they wait: {queue}");
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
    for path in ["/jobs", "/engines", "/?by=spec"] {
        let text = served.get(path).await.text();
        for words in ["fp32, 1 thread, level 5<", "fp32, 2 threads<"] {
            assert_eq!(text.matches(words).count(), 1, "{words}, at {path}: {text}");
        }
    }
    let text = served.get("/").await.text();
    assert!(text.contains("<dt>Failed</dt><dd>0<small> of the last 2</small></dd>"), "{text}");
    assert!(text.contains("<a class=\"skip\" href=\"#content\">") && text.contains("<main id=\"content\""), "{text}");
}

#[tokio::test]
async fn names_are_escaped_wherever_they_show() {
    let served = Served::start().await;
    let _agent = Agent::usual(farm(&served), "a<b>").await;
    let id = submit(&served, "<script>alert(1)</script>.onnx").await;
    let events = events(&served, &format!("/events?topic=/jobs/{id}")).await;
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
async fn what_jobs_may_ask_of_a_device_stands_on_its_card_and_at_its_agent() {
    let served = Served::start().await;
    let gpu = r#"{"kind":"gpu","name":"scripted","memory_mib":9856,"gpu":{"driver":"570.86.10","mig":"1g.10gb"}}"#;
    let own = v1::Device { fingerprint_json: gpu.into(), ..support::agent::device("gpu0", SKU, "native 1") };
    let hello = support::agent::hello("a", vec![own]);
    let labels = vec!["zone=b&c".into(), "quiet".into()];
    let mut agent = Agent::connect(farm(&served), v1::Hello { labels, ..hello }).await;
    assert!(agent.next().await.is_some());
    let text = served.get("/devices").await.text();
    for words in ["driver 570.86.10", "MIG slice 1g.10gb", r#"<code class="chip">quiet</code>"#, "quiet zone=b&#38;c"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("zone=b&c"), "{text}");
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
        for path in ["/jobs", "/engines"] {
            let list = served.get(path).await.text();
            assert_eq!(list.matches("1.25 ms*").count(), marks, "{list}");
            assert_eq!(list.matches("* every window of this measurement was disturbed").count(), marks);
        }
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
    for (path, state) in [("/", "fresh"), ("/jobs", "succeeded"), (&*format!("/requests/{}", job.request_id), "fresh")]
    {
        let text = served.get(path).await.text();
        assert!(text.contains("1.25 ms") && text.contains(state), "{path}: {text}");
    }
    let plan = served.get(&format!("/plans/{}", job.plan_digest)).await.text();
    assert!(
        plan.contains("1.25 ms") && plan.contains("im2col-8x8") && plan.contains("Where it was measured"),
        "{plan}"
    );
    let digest = &job.model.as_ref().unwrap().digest;
    let model = served.get(&format!("/models/{digest}")).await.text();
    assert!(model.contains(&format!("/plans/{}", job.plan_digest)) && model.contains(&id), "{model}");

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
async fn lists_follow_the_farm_row_by_row() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let stream = events(&served, "/events?topic=/jobs&topic=/engines").await;
    let (whole, stream) = next(stream, |part| part["id"] == "jobs").await;
    assert_eq!(whole["t"], 0, "{whole}");
    let first = submit(&served, "first.onnx").await;
    let (_, stream) = next(stream, |part| part["id"] == "jobs" && html(part).contains(&first)).await;
    let second = submit(&served, "second.onnx").await;
    let (rows, stream) = next(stream, |part| part["id"] == "jobs-rows" && !part["order"].is_null()).await;
    assert!(html(&rows).contains(&second), "the row that came, with its place: {rows}");
    assert_eq!(rows["order"].as_array().map(Vec::len), Some(2), "{rows}");
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    succeed(&served, &mut agent, &assign).await;
    let (_, stream) = next(stream, |part| part["t"] == 1 && html(part).contains("first.onnx")).await;
    drop(stream);
}

#[tokio::test]
async fn the_first_page_shows_models_as_they_come_and_what_becomes_of_them() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let mut stream = events(&served, "/events?topic=/").await;
    // One behind, before and between what is shown already.
    for name in ["m.onnx", "z.onnx", "a.onnx", "n.onnx"] {
        submit(&served, name).await;
        (_, stream) = next(stream, |part| html(part).contains(name)).await;
    }
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    succeed(&served, &mut agent, &assign).await;
    let engine = |part: &Value| html(part).contains("m.onnx") && html(part).contains("/plans/");
    next(stream, engine).await;
}

#[tokio::test]
async fn a_browser_that_has_the_state_is_sent_only_what_changes() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let id = submit(&served, "digits.onnx").await;
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    support::until_state(farm(&served), &id, v1::JobState::Running).await;
    let page = served.get(&format!("/jobs/{id}")).await.text();
    assert!(page.contains("submitted"), "history needs no script: {page}");
    assert!(page.contains("host-a") && !page.contains(">a<"), "an agent is called by its host: {page}");
    let state = page.split("data-state=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let stream = events(&served, &format!("/events?topic=/jobs/{id}&state={state}")).await;
    succeed(&served, &mut agent, &assign).await;
    let (first, stream) = next(stream, |_| true).await;
    assert!(!html(&first).contains("submitted"), "the page has that: {first}");
    next(stream, |part| part["id"] == "history-rows" && html(part).contains("succeeded")).await;
}

#[tokio::test]
async fn every_page_is_json_too_with_its_filters_and_pages() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let id = submit(&served, "digits.onnx").await;
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    succeed(&served, &mut agent, &assign).await;
    let job = support::until_state(farm(&served), &id, v1::JobState::Succeeded).await;
    for number in 0..61 {
        submit(&served, &format!("waiting{number}.onnx")).await;
    }
    let model = &job.model.as_ref().unwrap().digest;
    let (request, plan) = (&job.request_id, &job.plan_digest);
    for (path, list) in [
        ("/".to_owned(), "coverage"),
        ("/jobs".into(), "jobs"),
        (format!("/jobs/{id}"), "history"),
        (format!("/requests/{request}"), "jobs"),
        ("/engines".into(), "engines"),
        (format!("/plans/{plan}"), "engine"),
        (format!("/models/{model}"), "engines"),
        ("/devices".into(), "devices"),
        ("/farm".into(), "caches"),
        ("/activity".into(), "ended"),
        ("/api".into(), "routes"),
    ] {
        let page = served.get(&path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text());
        let text = page.text();
        let link = text.split("json-link\"><a href=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        let json = served.get(&link.replace("&#38;", "&")).await.json();
        assert!(!json[list].is_null(), "{path}: {json}");
    }
    let coverage = served.get("/?format=json&model=digits.onnx").await.json();
    assert_eq!(
        (coverage["coverage"][0]["state"].as_str(), coverage["coverage"].as_array().map(Vec::len)),
        (Some("fresh"), Some(1))
    );
    // 62 models, a page of them at a time, and each once.
    let mut models = std::collections::BTreeSet::new();
    let mut from = serde_json::json!(0);
    while !from.is_null() {
        let part = served.get(&format!("/?format=json&from={from}")).await.json();
        let slots = part["coverage"].as_array().cloned().unwrap_or_default();
        assert!(slots.iter().all(|slot| models.insert(slot["model"].to_string())), "{from}: {part}");
        assert_eq!((part["models"].as_u64(), &part["from"]), (Some(62), &from));
        assert_eq!(part["more"], !part["next_from"].is_null());
        from = part["next_from"].clone();
    }
    assert_eq!(models.len(), 62);
    let page = served.get("/").await.text();
    assert!(page.contains("1 to 60 of 62 models") && page.contains("/?from=60"), "{page}");
    for far in ["/?from=18446744073709551615&row=18446744073709551615", "/?from=1000"] {
        assert_eq!(served.get(far).await.status, 200, "{far}");
    }
    let last = served.get("/?from=1000").await.text();
    assert!(last.contains("61 to 62 of 62 models"), "{last}");
    let first = served.get("/jobs?state=waiting&format=json").await.json();
    let text = served.get("/jobs?state=waiting").await.text();
    let more = text.split("rel=\"next\"").next().and_then(|before| before.rsplit("href=\"").next());
    let more = more.and_then(|rest| rest.split('"').next()).unwrap().replace("&#38;", "&");
    let second = served.get(&format!("{more}&format=json")).await.json();
    let count = |page: &Value| page["jobs"].as_array().map(Vec::len).unwrap_or_default();
    assert_eq!(first["total"].as_u64().map(|total| total as usize), Some(count(&first) + count(&second)), "{more}");
    assert!(served.get("/jobs?stat=queued").await.text().contains("no filter"), "a misspelt filter shows nothing");
    assert_eq!(served.get("/jobs?stat=queued&format=json").await.status, 400);
}

#[tokio::test]
async fn the_page_names_every_route_of_the_api() {
    let served = Served::start().await;
    let json = served.get("/api?format=json").await.json();
    let told: Vec<&str> = json["routes"].as_array().unwrap().iter().filter_map(|row| row["route"].as_str()).collect();
    let mut found = Vec::new();
    let sources = [
        include_str!("../src/http/api.rs"),
        include_str!("../src/http/declared.rs"),
        include_str!("../src/http/pauses.rs"),
        include_str!("../src/http/scrub.rs"),
        include_str!("../src/http/shares.rs"),
    ];
    for rest in sources.iter().flat_map(|source| source.split(".route(\"").skip(1)) {
        let (path, rest) = rest.split_once('"').unwrap();
        let handlers = rest.split(".route(").next().unwrap().lines().next().unwrap();
        let methods = [("get(", "GET"), ("post(", "POST")];
        found.extend(
            methods.iter().filter(|(call, _)| handlers.contains(call)).map(|(_, name)| format!("{name} {path}")),
        );
    }
    found.sort();
    let mut told: Vec<String> = told.into_iter().map(str::to_owned).collect();
    told.sort();
    assert_eq!(told, found);
}

#[tokio::test]
async fn a_person_cancels_and_repeats_jobs_from_the_page_and_nobody_else_does() {
    let served = Served::start_with(|config| config.farm.lease_ms = 3_600_000).await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    submit(&served, "before.onnx").await;
    agent.assigned().await;
    let id = submit(&served, "digits.onnx").await;
    let kind = ("content-type", "application/x-www-form-urlencoded");
    let form = format!("token={}&next=%2F", served.admin_token());
    let login = served.send(served.stranger(Method::POST, "/login").header(kind.0, kind.1), form).await;
    let cookie = login.header("set-cookie").split(';').next().unwrap().to_owned();
    let own = format!("http://{}", served.address());
    let act = |path: &str, origin: Option<&str>| {
        let mut request = served.stranger(Method::POST, path).header(kind.0, kind.1).header("cookie", &cookie);
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        served.send(request, format!("id={id}"))
    };
    assert!(served.get("/jobs").await.text().contains("action=\"/do/cancel\""), "who may sees the button");
    // A log-in alone changes nothing: the request says that it comes from the page.
    assert_eq!(act("/do/cancel", None).await.status, 401);
    assert_eq!(act("/do/cancel", Some("http://127.0.0.1:1")).await.status, 403);
    assert_eq!(act("/api/v1/gc", Some(&own)).await.status, 415, "and lets nothing else be done");
    assert_ne!(served.get(&format!("/api/v1/jobs/{id}")).await.json()["state"], "cancelled");

    let done = act("/do/cancel", Some(&own)).await;
    assert_eq!((done.status.as_u16(), done.header("location")), (303, &*format!("/jobs/{id}")), "{}", done.text());
    support::until_state(farm(&served), &id, v1::JobState::Cancelled).await;
    let again = act("/do/retry", Some(&own)).await;
    let location = again.header("location").to_owned();
    assert!(again.status == 303 && location.starts_with("/jobs/") && !location.ends_with(&id), "{}", again.text());
    let copy = served.get(&format!("/api/v1{location}")).await.json();
    assert_eq!((copy["model"]["name"].as_str(), copy["sku"].as_str()), (Some("digits.onnx"), Some(SKU)));
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
    let stream = events(&served, "/events?topic=/").await;
    let (_, mut stream) = next(stream, |part| part["id"] == "coverage").await;
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
    /// That came and were not looked at yet.
    parts: VecDeque<Value>,
}

async fn events(served: &Served, path: &str) -> Events {
    let request = served.request(Method::GET, path).header("accept", "text/event-stream");
    let (head, body) = served.open(request, "").await;
    let headers: &HeaderMap = &head.headers;
    assert_eq!((head.status.as_u16(), headers["content-type"].to_str().unwrap()), (200, "text/event-stream"));
    Events { body, text: String::new(), parts: VecDeque::new() }
}

/// The next part of an update that fits, with the update's topic as `t`; and the stream to go on with.
async fn next(mut events: Events, fits: impl Fn(&Value) -> bool) -> (Value, Events) {
    let found = tokio::time::timeout(DEADLINE, async {
        loop {
            while let Some(part) = events.parts.pop_front() {
                if fits(&part) {
                    return part;
                }
            }
            while let Some(end) = events.text.find("\n\n") {
                let event: String = events.text.drain(..end + 2).collect();
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                let Some(data) = field("data:") else { continue };
                let update: Value = serde_json::from_str(data).unwrap();
                for part in update["parts"].as_array().unwrap() {
                    let mut part = part.clone();
                    part["t"] = update["t"].clone();
                    if let Some(rows) = part["rows"].as_object() {
                        part["html"] = rows.values().filter_map(Value::as_str).collect::<String>().into();
                    }
                    events.parts.push_back(part);
                }
            }
            if !events.parts.is_empty() {
                continue;
            }
            let frame = events.body.frame().await.expect("the stream goes on").unwrap();
            if let Ok(data) = frame.into_data() {
                events.text.push_str(std::str::from_utf8(&data).unwrap());
            }
        }
    });
    let value = found.await.expect("the update comes in time");
    (value, events)
}

fn html(part: &Value) -> &str {
    part["html"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn reports_are_compared_under_an_address_that_stays() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let (mut jobs, mut last) = (Vec::new(), None);
    for (spec, centre_ms) in [("{}", 1.0), (r#"{"threads":1}"#, 2.0)] {
        let id = submit_as(&served, "digits.onnx", spec).await;
        let assign = agent.assigned().await;
        agent.started(&assign).await;
        let report = serde_json::to_string(&planforge_report::testing::sample_report(centre_ms)).unwrap();
        succeed_with(&served, &mut agent, &assign, &report).await;
        last = Some(support::until_state(farm(&served), &id, v1::JobState::Succeeded).await);
        jobs.push(id);
    }
    let last = last.unwrap();
    let address = format!("/compare?of={},{}", jobs[0], last.plan_digest);
    let page = served.get(&address).await;
    let text = page.text();
    assert_eq!(page.status, 200, "{text}");
    assert!(text.contains("2.00x the time of 1"), "{text}");
    assert!(text.contains(&format!("href=\"/jobs/{}\"", jobs[0])), "each report is shown where it lies");
    let told = served.get(&format!("{address}&format=json")).await.json();
    assert_eq!(told["comparison"]["pairs"][0]["verdict"], "slower", "{told}");
    // All engines of a model, the fastest first; its page leads here.
    let model = &last.model.as_ref().unwrap().digest;
    let leads = format!("/compare?model={model}");
    assert!(served.get(&format!("/models/{model}")).await.text().contains(&leads));
    let steps = served.get(&format!("{leads}&steps=differences")).await;
    assert_eq!(steps.status, 200, "{}", steps.text());
    assert!(steps.text().contains("Where the time differs"), "{}", steps.text());
    // What cannot be compared is said.
    for (asked, status, words) in [
        (format!("of={}", jobs[0]), 400, "at least two"),
        (format!("of={},nosuchjob123", jobs[0]), 404, "nosuchjob123"),
        (format!("of={},{}", jobs[0], "0".repeat(64)), 404, "no engine"),
        ("model=nothing".into(), 404, "no engine"),
    ] {
        let page = served.get(&format!("/compare?{asked}")).await;
        assert_eq!(page.status, status, "{asked}: {}", page.text());
        assert!(page.text().contains(words), "{asked}: {}", page.text());
    }
}
