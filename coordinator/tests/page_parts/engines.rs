//! Engines as the page shows them: charts, layers that sort, advice and history; every table as JSON; what a link follows.

use super::*;

/// A report with many layers, as an engine of a large model has them.
fn report(layers: usize, centre_ms: f64) -> String {
    let mut report =
        planforge_report::testing::with_ceilings_and_batches(planforge_report::testing::sample_report(centre_ms));
    let layer = |index: usize| planforge_report::LayerTime {
        name: format!("/stage{}/block{index}/conv/Conv + /stage/block{index}/relu/Relu", index % 4),
        kind: ["conv", "gemm", "add"][index % 3].into(),
        tactic: format!("sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_tilesize128x128x64_{index}"),
        median_ms: 0.001 * (1 + index * 7919 % 1009) as f64,
        flops: 1_000_000,
        bytes: 10_000,
        precision: Some(["fp16", "fp32"][index % 2].into()),
        ..planforge_report::LayerTime::default()
    };
    report.layers = (0..layers).map(layer).collect();
    serde_json::to_string(&report).unwrap()
}

async fn built(served: &Served, agent: &mut Agent, name: &str, report: &str) -> v1::Job {
    let id = submit(served, name).await;
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    succeed_with(served, agent, &assign, report).await;
    support::until_state(farm(served), &id, v1::JobState::Succeeded).await
}

#[tokio::test]
async fn an_engine_of_two_thousand_layers_has_charts_and_sorts_within_a_small_page() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let job = built(&served, &mut agent, "large.onnx", &report(2_000, 1.0)).await;
    let address = format!("/plans/{}", job.plan_digest);
    let page = served.get(&address).await.text();
    assert!(page.len() <= 150_000, "{} bytes", page.len());
    for part in ["Latency distribution", "Median of each window", "Roofline", "Time of layers", "Throughput by batch"] {
        assert!(page.contains(part), "{part}");
    }
    for part in ["1 to 50 of 2,000", "Types of layers and weights", "Find a layer", "/assets/charts-"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains(" style=") && !page.contains("<style"), "the policy allows none");
    // Sorted by its heads, and looked through, by links and a form alone.
    let sorted = served.get(&format!("{address}?layers=name&from=50")).await.text();
    assert!(sorted.contains("aria-sort=\"ascending\"") && sorted.contains("51 to 100 of 2,000"), "{sorted}");
    let found = served.get(&format!("{address}?find=block1999/")).await.text();
    assert_eq!(found.matches("<tr data-key=\"2000\"").count(), 1, "{found}");
    assert_eq!(served.get(&format!("{address}?layers=nothing")).await.status, 400);
    let told = served.get(&format!("{address}?layers=kind&format=json")).await.json();
    let layers = told["layers"].as_array().unwrap();
    assert!(layers.len() == 2_000 && layers[0]["kind"] == "add", "{}", layers[0]);
    // The same on the job, and for who has a link.
    assert!(served.get(&format!("/jobs/{}?layers=name", job.id)).await.text().contains("aria-sort=\"ascending\""));
}

#[tokio::test]
async fn an_engine_tells_its_history_and_what_changed() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let mut last = None;
    for number in 0..24 {
        // Other weights under one name: builds that follow each other.
        let file = Bytes::from(format!("model of day {number}"));
        let digest = served.coordinator.blobs().store(file.clone()).await.unwrap().to_string();
        let files = vec![v1::ModelFile { name: "m".into(), digest: digest.clone(), size_bytes: file.len() as u64 }];
        let model = v1::Model { digest, name: "nightly.onnx".into(), files, ..Default::default() };
        let request = v1::SubmitRequest {
            models: vec![model],
            skus: vec![SKU.into()],
            specs_json: vec!["{}".into()],
            ..Default::default()
        };
        let reply = farm(&served).submit(&Actor::local(), request).await.unwrap();
        let assign = agent.assigned().await;
        agent.started(&assign).await;
        // No two are the same document: it would be one measurement.
        let centre_ms = if number < 12 { 1.0 } else { 1.5 } + 0.0001 * f64::from(number * 7 % 24);
        succeed_with(&served, &mut agent, &assign, &report(2, centre_ms)).await;
        last = Some(support::until_state(farm(&served), &reply.jobs[0].id, v1::JobState::Succeeded).await);
    }
    let address = format!("/plans/{}", last.unwrap().plan_digest);
    let page = served.get(&address).await.text();
    for part in ["24 builds", "within the band: noise", "% slower", "changed with it: weights"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let told = served.get(&format!("{address}?format=json")).await.json();
    assert_eq!(told["history"]["builds"].as_array().map(Vec::len), Some(24), "{told}");
    assert_eq!(told["history"]["changes"].as_array().map(Vec::len), Some(1), "{told}");
}

/// Where the JSON of a page has what each of its tables shows.
const TABLES: [(&str, &str); 22] = [
    ("coverage", "/coverage"),
    ("projects", "/projects"),
    ("jobs", "/jobs"),
    ("depths", "/depths"),
    ("ended", "/ended"),
    ("history", "/history"),
    ("layers", "/layers"),
    ("precisions", "/layers"),
    ("engines", "/engines"),
    ("reports", "/reports"),
    ("pairs", "/comparison/pairs"),
    ("pins", "/pins"),
    ("agents", "/agents"),
    ("stored", "/stored"),
    ("storage", "/storage"),
    ("kept", "/kept"),
    ("tokens", "/tokens"),
    ("shares", "/shares"),
    ("caches", "/caches"),
    ("plugins", "/plugins"),
    ("versions", "/versions"),
    ("audit", "/audit"),
];

#[tokio::test]
async fn every_table_of_every_page_is_also_json() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let job = built(&served, &mut agent, "digits.onnx", &report(4, 1.0)).await;
    let other = built(&served, &mut agent, "digits2.onnx", &report(4, 2.0)).await;
    submit(&served, "waits.onnx").await;
    let model = job.model.as_ref().unwrap().digest.clone();
    let paths = [
        "/".to_owned(),
        "/jobs".into(),
        format!("/jobs/{}", job.id),
        format!("/requests/{}", job.request_id),
        "/engines".into(),
        format!("/plans/{}", job.plan_digest),
        format!("/models/{model}"),
        format!("/compare?of={},{}", job.id, other.id),
        "/devices".into(),
        "/farm".into(),
        "/activity".into(),
        "/api".into(),
    ];
    let mut seen = 0;
    for path in paths {
        let page = served.get(&path).await.text();
        let joint = if path.contains('?') { '&' } else { '?' };
        let told = served.get(&format!("{path}{joint}format=json")).await.json();
        for rest in page.split("<tbody id=\"").skip(1) {
            let id = rest.split("-rows\"").next().unwrap();
            let special = match (path.starts_with("/compare"), id) {
                (true, "reports") => Some("/comparison/rows"),
                (false, "routes") => Some("/routes"),
                _ => None,
            };
            let known = TABLES.iter().find(|(table, _)| *table == id).map(|(_, pointer)| *pointer);
            let pointer = special.or(known).unwrap_or_else(|| panic!("{path}: nobody says where {id} is as JSON"));
            let found = told.pointer(pointer).unwrap_or_else(|| panic!("{path}: no {pointer} in {told:#}"));
            assert!(found.as_array().is_some_and(|rows| !rows.is_empty()) || found.is_object(), "{path} {id}: {found}");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} tables");
}

#[tokio::test]
async fn a_request_shows_its_progress_what_needs_what_and_the_comparison_when_it_is_done() {
    let served = Served::start().await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let file = Bytes::from("a model");
    let digest = served.coordinator.blobs().store(file.clone()).await.unwrap().to_string();
    let files = vec![v1::ModelFile { name: "m.onnx".into(), digest: digest.clone(), size_bytes: file.len() as u64 }];
    let request = v1::SubmitRequest {
        models: vec![v1::Model { digest, name: "m.onnx".into(), files, ..Default::default() }],
        skus: vec![SKU.into()],
        specs_json: vec!["{}".into(), r#"{"threads":1}"#.into()],
        ..Default::default()
    };
    let reply = farm(&served).submit(&Actor::local(), request).await.unwrap();
    let address = format!("/requests/{}", reply.request_id);
    let page = served.get(&address).await.text();
    assert!(page.contains("0 of 2 jobs ended") && !page.contains("Pair by pair"), "{page}");
    let watched = events(&served, &format!("/events?topic={address}")).await;
    for number in [0_u32, 1] {
        let assign = agent.assigned().await;
        agent.started(&assign).await;
        succeed_with(&served, &mut agent, &assign, &report(4, 1.0 + f64::from(number))).await;
    }
    let (_, _watched) = next(watched, |part| html(part).contains("2 of 2 jobs ended")).await;
    let page = served.get(&address).await.text();
    for part in ["2 of 2 jobs ended", "2 succeeded", "Pair by pair", "x the time of 1"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let told = served.get(&format!("{address}?format=json")).await.json();
    let found = (&told["progress"]["ended"], told["comparison"]["pairs"].as_array().map(Vec::len));
    assert_eq!(found, (&2.into(), Some(1)), "{told:#}");
}

#[tokio::test]
async fn who_has_a_link_hears_what_changes_until_it_ends() {
    let served = Served::start_with(|config| config.farm.lease_ms = 3_600_000).await;
    let mut agent = Agent::usual(farm(&served), "a").await;
    let id = submit(&served, "digits.onnx").await;
    let assign = agent.assigned().await;
    agent.started(&assign).await;
    let job = support::until_state(farm(&served), &id, v1::JobState::Running).await;
    let ask = v1::CreateShareRequest { request_id: job.request_id, ..Default::default() };
    let made = farm(&served).create_share(&Actor::local(), ask).await.unwrap();
    let page = served.send(served.stranger(Method::GET, &made.path), "").await.text();
    let address = page.split("data-events=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let address = address.replace("&#38;", "&");
    assert!(address.starts_with(&made.path), "nothing but the link is asked: {address}");
    // Without a token: the link is all that there is.
    let open = async |address: &str| {
        let (head, body) = served.open(served.stranger(Method::GET, address), "").await;
        assert_eq!(head.status, 200);
        Events { body, text: String::new(), parts: VecDeque::new() }
    };
    let state = page.split("data-state=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let stream = open(&format!("{address}&state={state}")).await;
    let of_job = open(&format!("{}/events?of=/jobs/{id}", made.path)).await;
    succeed_with(&served, &mut agent, &assign, &report(4, 1.0)).await;
    let (part, stream) = next(stream, |part| html(part).contains("1 of 1 job ended")).await;
    assert!(!part.to_string().contains("agent"), "{part}");
    let (_, of_job) =
        next(of_job, |part| part["id"] == "job-result" && html(part).contains("Latency distribution")).await;
    let gone = served.send(served.stranger(Method::GET, &format!("{}/events?of=/farm", made.path)), "").await;
    assert_eq!(gone.status, 404);
    let share = v1::RevokeShareRequest { id: made.share.unwrap().id };
    farm(&served).revoke_share(&Actor::local(), share).await.unwrap();
    // Both end by themselves, and cannot be begun anew.
    for mut events in [stream, of_job] {
        let end = async { while events.body.frame().await.is_some_and(|frame| frame.is_ok()) {} };
        tokio::time::timeout(DEADLINE, end).await.expect("the stream ends with the link");
    }
    assert_eq!(served.send(served.stranger(Method::GET, &address), "").await.status, 404);
}
