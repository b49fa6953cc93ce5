//! One suite that every store passes, and what only a database can go through.

use crate::{declared_store, notes_store, shares_store, support::SKU};
use planforge_coordinator::{
    core::{
        Agent, ArtifactRef, CacheBeside, CacheRecord, CacheRef, Change, Covered, Engine, EngineRef, Event, Failure,
        Job, JobId, JobState, JoinedBy, Model, ModelFile, PauseRecord, PausedKind, PlanRef, PluginRecord, Refusal,
        Report, RequestRecord, Stored, Tenure, TokenRecord, Told, Want, Window,
    },
    store::{
        Count, EngineFilter, EventFilter, JobFilter, JobOrder, MemStore, ReportFilter, SqliteStore, Store, StoreError,
    },
};
use planforge_types::{
    BuildSpec, Digest, EngineKey, FailureClass, Toolchain,
    order::{BaselineAsk, MeasureAsk},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

pub(crate) fn job(id: &str, state: JobState, created_ms: u64) -> Job {
    let digest = Digest::of(id.as_bytes());
    let model = Model {
        digest,
        graph_digest: None,
        structure_digest: None,
        name: format!("{id}.onnx"),
        files: vec![ModelFile { name: id.into(), digest, size_bytes: 1 }],
    };
    let want = Want {
        request: "r".into(),
        project: "red".into(),
        actor: "me".into(),
        priority: 1,
        tags: Vec::new(),
        no_fallback: false,
        require: planforge_types::Requirement::default(),
    };
    Job {
        state,
        key: Some(key(id)),
        constraint: "native".into(),
        toolchain: Some(toolchain()),
        ended_ms: if state.is_terminal() { created_ms + 1 } else { 0 },
        ..Job::queued(id.into(), model, SKU.parse().unwrap(), BuildSpec::default(), want, created_ms)
    }
}

fn toolchain() -> Toolchain {
    Toolchain { backend: "native".into(), version: "1".into(), components: BTreeMap::new() }
}

pub(crate) fn key(id: &str) -> EngineKey {
    EngineKey::new(&Digest::of(id.as_bytes()), &SKU.parse().unwrap(), &toolchain(), &BuildSpec::default())
}

pub(crate) fn event(seq: u64, id: &str) -> Change {
    Change::Event(Event {
        seq,
        at_ms: seq,
        job: id.into(),
        actor: "me".into(),
        what: "submitted".into(),
        state: JobState::Queued,
        attempt: 0,
        phase: "compile".into(),
        detail: "it's \"quoted\"".into(),
    })
}

pub(crate) fn engine(id: &str, plan: &str, created_ms: u64) -> Engine {
    Engine {
        unmeasured: false,
        from: None,
        key: key(id),
        plan: PlanRef { digest: Digest::of(plan.as_bytes()), size_bytes: 3, card: None, builds: 1 },
        model: job(id, JobState::Succeeded, 1).model,
        sku: SKU.parse().unwrap(),
        toolchain: toolchain(),
        spec: BuildSpec::default(),
        accurate: true,
        inputs: None,
        created_ms,
        seq: 0,
        job: id.into(),
        simulated: false,
        project: "red".into(),
    }
}

pub(crate) fn report(id: &str, plan: &str, text: &str, created_ms: u64, eval: Option<Digest>) -> Report {
    Report {
        digest: Digest::of(text.as_bytes()),
        plan: Digest::of(plan.as_bytes()),
        key: Some(key(id)),
        job: id.into(),
        sku: SKU.parse().unwrap(),
        eval,
        measure: MeasureAsk::default(),
        artifacts: Vec::new(),
        created_ms,
        document: text.into(),
    }
}

fn cache(scope: &str, generation: u32, content: Option<&str>) -> CacheRecord {
    CacheRecord {
        scope: Digest::of(scope.as_bytes()),
        generation,
        cache: content
            .map(|content| CacheRef { digest: Digest::of(content.as_bytes()), size_bytes: content.len() as u64 }),
        previous: Some(Digest::of(b"before")),
        sku: SKU.parse().unwrap(),
        device_name: "NVIDIA \"H100\"".into(),
        toolchain: toolchain(),
        job: "aa1".into(),
        attempt: 2,
        agent: "host".into(),
        device: "GPU-1".into(),
        published_ms: u64::from(generation),
        beside: vec![CacheBeside {
            cache: CacheRef { digest: Digest::of(b"beside"), size_bytes: 6 },
            job: "aa2".into(),
            agent: "other".into(),
        }],
    }
}

fn pause(name: &str, until_ms: u64, window: Option<Window>) -> PauseRecord {
    PauseRecord {
        kind: PausedKind::Sku,
        name: name.into(),
        shown: name.into(),
        reason: "new driver".into(),
        actor: "root".into(),
        own: false,
        since_ms: 4,
        until_ms,
        window,
    }
}

fn plugin(name: &str) -> PluginRecord {
    PluginRecord { digest: Digest::of(name.as_bytes()), name: name.into(), actor: "root".into(), allowed_ms: 4 }
}

fn ids(jobs: &[Job]) -> Vec<&str> {
    jobs.iter().map(|job| job.id.as_str()).collect()
}

/// What every store promises.
pub(crate) async fn conforms(store: &dyn Store) {
    assert_eq!(store.load().await.unwrap().last_event, 0);
    let epoch = store.acquire("first", 1).await.unwrap();
    let change = |id: &str, state, created_ms| Change::Job(Arc::new(job(id, state, created_ms)));
    let in_project = |project: &str, id: &str, created_ms| Change::JobProject {
        project: project.into(),
        job: id.into(),
        created_ms,
    };
    let mut changes = vec![
        change("aa1", JobState::Queued, 1),
        in_project("red", "aa1", 1),
        event(1, "aa1"),
        change("ab2", JobState::Queued, 2),
        in_project("red", "ab2", 2),
        in_project("blue", "ab2", 2),
        event(2, "ab2"),
    ];
    // Many rows of one kind in one commit.
    changes.extend((3..203).map(|seq| event(seq, "ab2")));
    store.commit(epoch, changes).await.unwrap();
    // The same record twice in one commit: as it last stood.
    let ended = vec![change("aa1", JobState::Running, 1), change("aa1", JobState::Succeeded, 1), event(203, "aa1")];
    store.commit(epoch, ended).await.unwrap();
    let snapshot = store.load().await.unwrap();
    assert_eq!((ids(&snapshot.jobs), snapshot.last_event), (vec!["ab2"], 203));

    let all = |filter: JobFilter| JobFilter { limit: 10, ..filter };
    let list = async |filter| ids(&store.jobs(all(filter)).await.unwrap()).join(" ");
    let any = JobFilter::default;
    assert_eq!(list(any()).await, "ab2 aa1");
    assert_eq!(list(JobFilter { project: Some("blue".into()), ..any() }).await, "ab2");
    assert_eq!(list(JobFilter { states: vec![JobState::Succeeded, JobState::Failed], ..any() }).await, "aa1");
    assert_eq!(list(JobFilter { ids: vec!["aa1".into(), "zz".into()], ..any() }).await, "aa1");
    assert_eq!(list(JobFilter { sku: Some("t4".into()), ..any() }).await, "");
    assert_eq!(list(JobFilter { model: Some("aa1.onnx".into()), ..any() }).await, "aa1");
    let prefix = Digest::of(b"ab2").to_string()[..8].to_owned();
    assert_eq!(list(JobFilter { model: Some(prefix), ..any() }).await, "ab2");
    assert_eq!(store.jobs(JobFilter { limit: 1, ..any() }).await.unwrap().len(), 1);
    assert_eq!(list(JobFilter { behind: Some((2, "ab2".into())), ..any() }).await, "aa1");
    assert_eq!(list(JobFilter { behind: Some((2, "ab3".into())), ..any() }).await, "ab2 aa1", "of one time by name");
    assert_eq!(list(JobFilter { behind: Some((1, "aa1".into())), ..any() }).await, "");
    assert_eq!(store.job(&"aa1".into()).await.unwrap(), Some(job("aa1", JobState::Succeeded, 1)));
    assert_eq!(store.job(&"none".into()).await.unwrap(), None);
    let found = async |prefix: &str, limit| store.job_ids(prefix, None, limit).await.unwrap().len();
    assert_eq!((found("a", 10).await, found("a", 1).await, found("aa", 10).await, found("b", 10).await), (2, 1, 1, 0));
    assert_eq!(store.job_ids("a", Some("blue"), 10).await.unwrap(), [JobId::from("ab2")]);

    let events = store.events(EventFilter { after: 201, limit: 10, ..EventFilter::default() }).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [202, 203]);
    assert_eq!(events[0].detail, "it's \"quoted\"");
    let of_job = EventFilter { jobs: vec![JobId::from("aa1")], limit: 10, ..EventFilter::default() };
    assert_eq!(store.events(of_job).await.unwrap().len(), 2);
    let of_blue = EventFilter { project: Some("blue".into()), limit: 3, ..EventFilter::default() };
    assert_eq!(store.events(of_blue).await.unwrap().iter().map(|e| e.seq).collect::<Vec<_>>(), [2, 3, 4]);

    engines(store, epoch).await;
    records(store, epoch).await;
    declared_store::pins(store, epoch).await;
    declared_store::declarations(store, epoch).await;
    shares_store::shares(store, epoch).await;
    shares_store::heaps(store, &["red", "blue"]).await;
    notes_store::notes(store).await;
    lists(store, epoch).await;
    declared_store::pinned_builds(store, epoch).await;

    let next = store.acquire("second", 2).await.unwrap();
    assert!(next > epoch);
    let fenced = Err(StoreError::Fenced { mine: epoch, current: next });
    assert_eq!((store.check(epoch).await, store.check(next).await), (fenced, Ok(())));
    let late = store.commit(epoch, vec![change("late", JobState::Queued, 9)]).await;
    assert_eq!(late, Err(StoreError::Fenced { mine: epoch, current: next }));
    assert_eq!(store.job(&"late".into()).await.unwrap(), None, "an old leader changes nothing");
    store.commit(next, vec![change("late", JobState::Queued, 9)]).await.unwrap();
}

/// What answers requests for the key of `id`.
async fn stored_engine(store: &dyn Store, id: &str) -> EngineRef {
    let mut stored = store.stored(vec![key("none"), key(id)]).await.unwrap();
    assert_eq!(stored.remove(&key("none")), Some(Stored::default()));
    stored.remove(&key(id)).and_then(|stored| stored.engine).expect("the engine is stored")
}

async fn engines(store: &dyn Store, epoch: u64) {
    let eval = Digest::of(b"eval");
    let seen = |id: &str| Change::EngineProject { key: key(id), project: "red".into() };
    let changes = vec![
        Change::Engine(Box::new(engine("aa1", "plan1", 10))),
        seen("aa1"),
        seen("aa1"),
        Change::Report(Box::new(report("aa1", "plan1", "{\"n\":1}", 10, None))),
        Change::Engine(Box::new(engine("ab2", "plan2", 11))),
        Change::Engine(Box::new(engine("aa1", "plan3", 12))),
        Change::Report(Box::new(report("aa1", "plan3", "{\"n\":2}", 12, None))),
        Change::Report(Box::new(report("aa1", "plan3", "{\"n\":3}", 13, Some(eval)))),
    ];
    store.commit(epoch, changes).await.unwrap();
    let list = async |filter: EngineFilter| {
        let engines = store.engines(EngineFilter { limit: 10, ..filter }).await.unwrap();
        engines.iter().map(|engine| engine.created_ms).collect::<Vec<_>>()
    };
    let any = EngineFilter::default;
    assert_eq!(list(any()).await, [12, 11], "of each key the newest");
    assert_eq!(list(EngineFilter { project: Some("red".into()), ..any() }).await, [12]);
    assert_eq!(list(EngineFilter { key: Some(key("ab2")), ..any() }).await, [11]);
    assert_eq!(list(EngineFilter { plan: Some(Digest::of(b"plan1")), ..any() }).await, [10], "older plans by name");
    assert_eq!(list(EngineFilter { model: Some("ab2.onnx".into()), sku: Some(SKU.into()), ..any() }).await, [11]);
    let behind = Some((12, key("aa1"), Digest::of(b"plan3")));
    assert_eq!(list(EngineFilter { behind, ..any() }).await, [11]);
    let reports = async |filter: ReportFilter| {
        let reports = store.reports(ReportFilter { limit: 10, ..filter }).await.unwrap();
        reports.iter().map(|report| report.created_ms).collect::<Vec<_>>()
    };
    assert_eq!(reports(ReportFilter { plan: Some(Digest::of(b"plan3")), ..ReportFilter::default() }).await, [13, 12]);
    assert_eq!(reports(ReportFilter { key: Some(key("aa1")), ..ReportFilter::default() }).await, [13, 12, 10]);
    let newest = store.newest_reports(vec!["zz".into(), "aa1".into()]).await.unwrap();
    assert_eq!(newest.iter().map(|report| (report.job.as_str(), report.created_ms)).collect::<Vec<_>>(), [("aa1", 13)]);
    assert!(store.newest_reports(Vec::new()).await.unwrap().is_empty());
    assert!(reports(ReportFilter { job: Some("zz".into()), ..ReportFilter::default() }).await.is_empty());
    assert!(reports(ReportFilter { sku: Some("t4".into()), ..ReportFilter::default() }).await.is_empty());
    let behind = Some((12, Digest::of(b"{\"n\":2}")));
    let rest = ReportFilter { sku: Some(SKU.into()), behind, ..ReportFilter::default() };
    assert_eq!(reports(rest).await, [10]);
    let known = stored_engine(store, "aa1").await;
    assert_eq!(known.plan.digest, Digest::of(b"plan3"));
    assert_eq!(known.reports.keys().map(|covered| covered.eval).collect::<Vec<_>>(), [Some(eval)]);
    assert_eq!(known.report, Some(Digest::of(b"{\"n\":2}")));
    let (streams, batches, inputs) = (vec![1, 4], vec![1, 32], Some(Digest::of(b"inputs")));
    let module = Some(Digest::of(b"module"));
    let baselines = vec![BaselineAsk { name: "torch-compile".into(), module }];
    let measure = MeasureAsk {
        streams,
        trace: true,
        batches,
        warm_up_ms: 500,
        min_windows: 9,
        inputs,
        time_inputs: true,
        baselines,
    };
    let artifact = ArtifactRef { name: "t.nsys-rep".into(), digest: Digest::of(b"t"), size_bytes: 9 };
    let swept = Report {
        measure: measure.clone(),
        artifacts: vec![artifact.clone()],
        ..report("aa1", "plan3", "{\"n\":4}", 14, None)
    };
    let many = PlanRef { builds: 5, ..engine("ab2", "plan2", 11).plan };
    let selection = Engine { plan: many, ..engine("ab2", "plan2", 11) };
    let changes = vec![Change::Report(Box::new(swept.clone())), Change::Engine(Box::new(selection))];
    store.commit(epoch, changes).await.unwrap();
    let newest = ReportFilter { plan: Some(Digest::of(b"plan3")), limit: 1, ..ReportFilter::default() };
    assert_eq!(store.reports(newest).await.unwrap(), std::slice::from_ref(&swept));
    let (aa1, ab2) = (stored_engine(store, "aa1").await, stored_engine(store, "ab2").await);
    let covered = Covered { eval: None, measure };
    let told = Told { report: Some(swept.digest), accurate: true };
    assert_eq!(aa1.reports.get(&covered), Some(&told));
    assert_eq!((aa1.plan.builds, ab2.plan.builds), (1, 5));
    an_engine_stored_later_is_newer_whatever_the_clock_says(store, epoch).await;
    what_reports_found_is_known_by_the_inputs_they_were_made_on(store, epoch).await;
}

async fn what_reports_found_is_known_by_the_inputs_they_were_made_on(store: &dyn Store, epoch: u64) {
    let given = |inputs: &str| MeasureAsk { inputs: Some(Digest::of(inputs.as_bytes())), ..MeasureAsk::default() };
    let built = Engine { inputs: given("a").inputs, ..engine("ad4", "plan4", 40) };
    let of = |measure: MeasureAsk, text: &str, at_ms| Report { measure, ..report("ad4", "plan4", text, at_ms, None) };
    let own = of(given("a"), "{\"accurate\":true,\"n\":40}", 40);
    let other = of(given("b"), "{\"accurate\":false,\"n\":41}", 41);
    let usual = of(MeasureAsk::default(), "{\"accurate\":false,\"n\":42}", 42);
    let reports = [&own, &other, &usual].map(|report| Change::Report(Box::new(report.clone())));
    store.commit(epoch, [vec![Change::Engine(Box::new(built))], reports.to_vec()].concat()).await.unwrap();
    let known = stored_engine(store, "ad4").await;
    let told = |measure: MeasureAsk| known.answer(&Covered { eval: None, measure });
    let report = |report: &Report, accurate| Some(Told { report: Some(report.digest), accurate });
    assert_eq!(told(given("a")), report(&own, true));
    assert_eq!(told(given("b")), report(&other, false));
    assert_eq!(told(MeasureAsk::default()), report(&usual, false));
    assert_eq!(told(given("c")), None);
    assert_eq!(told(MeasureAsk { time_inputs: true, ..given("a") }), None, "timed on them is another figure");
}

async fn an_engine_stored_later_is_newer_whatever_the_clock_says(store: &dyn Store, epoch: u64) {
    let other = |text: &str, at_ms| Report { job: "ff".into(), ..report("ac3", "late", text, at_ms, None) };
    for (seq, plan, created_ms) in [(7, "early", 500), (8, "late", 20)] {
        let change = Change::Engine(Box::new(Engine { seq, ..engine("ac3", plan, created_ms) }));
        store.commit(epoch, vec![change]).await.unwrap();
    }
    let own = report("ac3", "late", "{\"own\":1}", 20, None);
    let reports = [other("{\"set back\":1}", 3), own.clone(), other("{\"later\":1}", 30)];
    store.commit(epoch, reports.into_iter().map(|report| Change::Report(Box::new(report))).collect()).await.unwrap();
    let known = stored_engine(store, "ac3").await;
    assert_eq!((known.plan.digest, known.report), (Digest::of(b"late"), Some(own.digest)));
    let filter = EngineFilter { key: Some(key("ac3")), limit: 10, ..EngineFilter::default() };
    let listed = store.engines(filter).await.unwrap();
    assert_eq!(listed.iter().map(|engine| engine.plan.digest).collect::<Vec<_>>(), [Digest::of(b"late")]);
}

/// Lists by everything that they can be asked by, read part by part, and their counts.
async fn lists(store: &dyn Store, epoch: u64) {
    let states = [JobState::Queued, JobState::Running, JobState::Succeeded, JobState::Failed];
    let jobs: Vec<Job> = (0..60_u64)
        .map(|number| {
            // Several of one time, which the id tells apart.
            let at_ms = 1_000 + number / 3;
            let mut one = job(&format!("li{number:03}"), states[number as usize % 4], at_ms);
            one.model = job(&format!("model{}", number % 5), JobState::Queued, 1).model;
            one.sku = ["t4", SKU][number as usize % 2].parse().unwrap();
            let project = ["green", "yellow"][usize::from(number % 3 == 0)];
            one.wants[0].project = project.into();
            one.wants[0].tags = if number % 4 < 2 { vec!["nightly".into()] } else { Vec::new() };
            if number % 6 == 0 {
                one.wants[0].tags.push("team=vision".into());
            }
            one
        })
        .collect();
    let mut changes = Vec::new();
    for job in &jobs {
        // As they were submitted first: what is counted follows their states.
        let submitted = Job { state: JobState::Queued, ended_ms: 0, ..job.clone() };
        let project = job.wants[0].project.clone();
        changes.push(Change::Job(Arc::new(submitted)));
        changes.push(Change::JobProject { project, job: job.id.clone(), created_ms: job.created_ms });
    }
    store.commit(epoch, changes).await.unwrap();
    store.commit(epoch, jobs.iter().map(|job| Change::Job(Arc::new(job.clone()))).collect()).await.unwrap();

    let any = || JobFilter { since_ms: Some(1_000), until_ms: Some(1_020), limit: 7, ..JobFilter::default() };
    let digest = jobs[2].model.digest.to_string();
    let own = |project: &str| Some(project.to_owned());
    let filters = [
        any(),
        JobFilter { states: vec![JobState::Failed], ..any() },
        JobFilter { states: vec![JobState::Queued, JobState::Running], ..any() },
        JobFilter { project: own("yellow"), ..any() },
        JobFilter { project: own("green"), states: vec![JobState::Succeeded, JobState::Failed], ..any() },
        JobFilter { sku: Some("t4".into()), ..any() },
        JobFilter { sku: Some(SKU.into()), states: vec![JobState::Running], project: own("green"), ..any() },
        JobFilter { model: Some("model3.onnx".into()), ..any() },
        JobFilter { model: Some(digest[..9].into()), ..any() },
        JobFilter { model: Some(digest), states: vec![JobState::Queued], sku: Some("t4".into()), ..any() },
        JobFilter { tags: vec!["nightly".into()], ..any() },
        JobFilter { tags: vec!["nightly".into(), "team=vision".into()], project: own("yellow"), ..any() },
        JobFilter { tags: vec!["team=vision".into()], states: vec![JobState::Succeeded], ..any() },
        JobFilter { tags: vec!["nobody".into()], ..any() },
        JobFilter { since_ms: Some(1_004), until_ms: Some(1_009), ..any() },
        JobFilter { ids: jobs[..9].iter().map(|job| job.id.clone()).collect(), project: own("green"), ..any() },
    ];
    for filter in filters {
        for order in [JobOrder::Newest, JobOrder::Oldest, JobOrder::Ended] {
            let filter = JobFilter { order, ..filter.clone() };
            let wanted = listed(&jobs, &filter);
            let (mut found, mut behind, mut parts) = (Vec::new(), None, 0);
            loop {
                let part = store.part_of_jobs(JobFilter { behind, ..filter.clone() }).await.unwrap();
                assert!(part.items.len() <= filter.limit);
                found.extend(part.items.into_iter().map(|job| job.id));
                behind = part.rest;
                parts += 1;
                if behind.is_none() {
                    break;
                }
                assert!(parts < 100, "the list has no end: {filter:?}");
            }
            assert_eq!(found, wanted, "{filter:?}");
            assert!(parts <= wanted.len() / 7 + 1, "{parts} parts for {}", wanted.len());
            let count = store.count_jobs(filter.clone()).await.unwrap();
            assert_eq!((count.count, count.is_exact), (wanted.len() as u64, true), "{filter:?}");
        }
    }
    let counts = store.job_counts(Some("yellow")).await.unwrap();
    assert_eq!(counts.values().sum::<u64>(), 20);
    assert_eq!(counts.get(&("t4".into(), JobState::Succeeded)), Some(&5));
    let of_sku = JobFilter { sku: Some("t4".into()), states: vec![JobState::Succeeded], ..JobFilter::default() };
    assert_eq!(store.count_jobs(of_sku).await.unwrap(), Count { count: 15, is_exact: true });
    let of_project = JobFilter { project: own("green"), ..JobFilter::default() };
    assert_eq!(store.count_jobs(of_project).await.unwrap(), Count { count: 40, is_exact: true });
    let waiting = &[JobState::Queued, JobState::Unplaceable];
    let asked: Vec<String> = (0..40).map(|kind| format!("nobody{kind}")).chain(["l4".into(), "t4".into()]).collect();
    assert_eq!(store.oldest_waiting(asked, waiting).await.unwrap(), [("t4".to_owned(), 1_000)].into());
    assert_eq!(store.oldest_waiting(Vec::new(), waiting).await.unwrap(), [].into());
    assert_eq!(store.oldest_waiting(vec!["t4".into()], &[JobState::Blocked]).await.unwrap(), [].into());
    // What comes meanwhile is no part of what is being read.
    let first = store.part_of_jobs(JobFilter { limit: 3, ..JobFilter::default() }).await.unwrap();
    let late = job("li999", JobState::Queued, 5_000);
    store.commit(epoch, vec![Change::Job(Arc::new(late))]).await.unwrap();
    let next = store.part_of_jobs(JobFilter { limit: 3, behind: first.rest, ..JobFilter::default() }).await.unwrap();
    assert_eq!(ids(&next.items), ["li056", "li055", "li054"]);
}

/// The ids of a list as it is meant.
fn listed(jobs: &[Job], filter: &JobFilter) -> Vec<JobId> {
    let fits = |job: &&Job| {
        let want = &job.wants[0];
        (filter.states.is_empty() || filter.states.contains(&job.state))
            && filter.project.as_ref().is_none_or(|project| want.project == *project)
            && filter.sku.as_ref().is_none_or(|sku| job.sku.as_str() == sku)
            && filter
                .model
                .as_ref()
                .is_none_or(|model| job.model.name == *model || job.model.digest.to_string().starts_with(model))
            && filter.tags.iter().all(|tag| want.tags.contains(tag))
            && (filter.ids.is_empty() || filter.ids.contains(&job.id))
            && filter.since_ms.is_none_or(|since| job.created_ms >= since)
            && filter.until_ms.is_none_or(|until| job.created_ms <= until)
            && (filter.order != JobOrder::Ended || job.ended_ms > 0)
    };
    let mut found: Vec<&Job> = jobs.iter().filter(fits).collect();
    found.sort_by_key(|job| (if filter.order == JobOrder::Ended { job.ended_ms } else { job.created_ms }, &job.id));
    if filter.order != JobOrder::Oldest {
        found.reverse();
    }
    found.into_iter().map(|job| job.id.clone()).collect()
}

async fn records(store: &dyn Store, epoch: u64) {
    let request = RequestRecord {
        id: "req1".into(),
        project: "red".into(),
        actor: "me".into(),
        idempotency_key: "once".into(),
        fingerprint: Digest::of(b"f"),
        jobs: vec!["aa1".into()],
        created_ms: 3,
    };
    let silent = |id: &str| RequestRecord { id: id.into(), idempotency_key: String::new(), ..request.clone() };
    let failure = Failure::new(FailureClass::Model, "no", "");
    let refusal = |id: &str| Refusal { key: key(id), job: id.into(), failure: failure.clone() };
    let agent = Agent {
        id: "a".into(),
        name: "host".into(),
        version: "0".into(),
        devices: Vec::new(),
        seen_ms: 5,
        joined_by: JoinedBy::Token("t".into()),
        protocol: 2,
        drained: true,
        memory_bytes: 1 << 34,
        labels: [("zone".to_owned(), "b".to_owned())].into(),
    };
    let token = TokenRecord {
        id: "t".into(),
        name: "ci".into(),
        role: "submit".into(),
        project: None,
        secret_hash: Digest::of(b"s"),
        created_ms: 1,
        expires_ms: 0,
        revoked: false,
        last_used_ms: 0,
        agent: None,
    };
    let changes = vec![
        Change::Request(request.clone()),
        Change::Request(silent("req2")),
        Change::Request(silent("req3")),
        Change::Refusal(refusal("ab2")),
        Change::Refusal(refusal("aa1")),
        Change::Agent(Box::new(agent.clone())),
        Change::TokenMade(token.clone()),
        Change::Cache(Box::new(cache("h100", 1, Some("first")))),
        Change::Cache(Box::new(cache("t4", 1, Some("other")))),
        Change::Plugin(plugin("a.so")),
        Change::Plugin(plugin("b.so")),
        Change::Pause(Box::new(pause("t4", 0, None))),
        Change::Pause(Box::new(pause("h100", 9, None))),
    ];
    store.commit(epoch, changes).await.unwrap();
    let weekly = Some(Window { days: 1, start_minute: 60, minutes: 30 });
    let changes = vec![
        Change::Cache(Box::new(cache("h100", 2, None))),
        Change::ForgetPlugin(plugin("a.so").digest),
        // Beside the one of the same kind, and in place of it.
        Change::Pause(Box::new(pause("t4", 0, weekly))),
        Change::Pause(Box::new(pause("t4", 7, None))),
        Change::Resume(pause("h100", 9, None).id()),
        Change::ForgetRefusal(key("aa1")),
        Change::Agent(Box::new(Agent { seen_ms: 6, ..agent.clone() })),
    ];
    store.commit(epoch, changes).await.unwrap();
    assert_eq!(store.request("red", "once").await.unwrap(), Some(request));
    assert_eq!(store.request("blue", "once").await.unwrap(), None);
    assert_eq!(store.request("red", "").await.unwrap(), None);
    assert_eq!(store.tokens().await.unwrap(), std::slice::from_ref(&token));
    let snapshot = store.load().await.unwrap();
    assert_eq!(snapshot.plugins, [plugin("b.so")]);
    assert_eq!(snapshot.pauses, [pause("t4", 7, None), pause("t4", 0, weekly)]);
    let mut caches = snapshot.caches;
    caches.sort_by_key(|cache| cache.generation);
    assert_eq!(caches, [cache("t4", 1, Some("other")), cache("h100", 2, None)], "of each scope the newest, or none");
    let stored = store.stored(vec![key("ab2"), key("aa1")]).await.unwrap();
    assert_eq!([&stored[&key("ab2")].refusal, &stored[&key("aa1")].refusal], [&Some(refusal("ab2")), &None]);
    assert_eq!(snapshot.agents, [Agent { seen_ms: 6, ..agent }]);
    tokens(store, epoch, &token).await;
}

/// Whatever the order in which a token's making, uses and revocation are written, none undoes another.
async fn tokens(store: &dyn Store, epoch: u64, made: &TokenRecord) {
    let make = || Change::TokenMade(made.clone());
    let used = |at_ms| Change::TokenUsed { id: made.id.clone(), at_ms };
    let revoked = || Change::TokenRevoked { id: made.id.clone() };
    let stands = async |revoked, last_used_ms| {
        assert_eq!(store.tokens().await.unwrap(), [TokenRecord { revoked, last_used_ms, ..made.clone() }]);
    };
    store.commit(epoch, vec![used(50)]).await.unwrap();
    stands(false, 50).await;
    store.commit(epoch, vec![used(60), used(40)]).await.unwrap();
    stands(false, 60).await;
    store.commit(epoch, vec![revoked(), used(70)]).await.unwrap();
    stands(true, 70).await;
    for late in [vec![used(65)], vec![make()], vec![used(10), make(), used(20)], vec![revoked()]] {
        store.commit(epoch, late).await.unwrap();
        stands(true, 70).await;
    }
    let unknown = vec![Change::TokenRevoked { id: "none".into() }, Change::TokenUsed { id: "none".into(), at_ms: 1 }];
    store.commit(epoch, unknown).await.unwrap();
    stands(true, 70).await;
    // All in one commit, in every order.
    for (round, order) in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]].into_iter().enumerate() {
        let id = format!("u{round}");
        let changes = order.map(|which| match which {
            0 => Change::TokenMade(TokenRecord {
                id: id.clone(),
                secret_hash: Digest::of(id.as_bytes()),
                ..made.clone()
            }),
            1 => Change::TokenUsed { id: id.clone(), at_ms: 9 },
            _ => Change::TokenRevoked { id: id.clone() },
        });
        store.commit(epoch, changes.into()).await.unwrap();
        let tokens = store.tokens().await.unwrap();
        let token = tokens.iter().find(|token| token.id == id).unwrap();
        assert_eq!((token.revoked, token.last_used_ms), (true, 9), "{order:?}");
    }
}

#[tokio::test]
async fn memory_conforms() {
    conforms(&MemStore::new()).await;
}

#[tokio::test]
async fn sqlite_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
    conforms(&store).await;
    store.close().await.unwrap();
}

async fn sqlite(file: &Path) -> SqliteStore {
    SqliteStore::open(file).await.unwrap()
}

#[tokio::test]
async fn sqlite_forgets_nothing_when_it_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    let store = sqlite(&file).await;
    let epoch = store.acquire("one", 1).await.unwrap();
    let change = Change::Job(Arc::new(job("aa1", JobState::Queued, 1)));
    store.commit(epoch, vec![change, event(1, "aa1")]).await.unwrap();
    // Dropped without a word, as by a kill.
    drop(store);
    let store = sqlite(&file).await;
    let snapshot = store.load().await.unwrap();
    assert_eq!((ids(&snapshot.jobs), snapshot.last_event), (vec!["aa1"], 1));
    assert_eq!(store.acquire("two", 2).await.unwrap(), epoch + 1);
}

#[tokio::test]
async fn sqlite_commits_what_waits_together_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder.path().join("farm.db")).await;
    let epoch = store.acquire("one", 1).await.unwrap();
    let commits = (1..=300).map(|seq| store.commit(epoch, vec![event(seq, "aa1")]));
    for result in futures::future::join_all(commits).await {
        result.unwrap();
    }
    let events = store.events(EventFilter { limit: 1_000, ..EventFilter::default() }).await.unwrap();
    assert!(events.iter().map(|event| event.seq).eq(1..=300));
}

#[tokio::test]
async fn a_full_database_refuses_whole_commits_and_recovers_nothing_half() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    let store = SqliteStore::open_limited(&file, Some(600 * 1024)).await.unwrap();
    let epoch = store.acquire("one", 1).await.unwrap();
    let big = |id: u64| {
        let mut big = job(&format!("job{id:03}"), JobState::Queued, id);
        big.constraint = "x".repeat(20_000);
        vec![Change::Job(Arc::new(big)), event(id, "job")]
    };
    let mut stored = 0;
    let refused = loop {
        match store.commit(epoch, big(stored + 1)).await {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100, "the limit is never reached");
    };
    assert!(matches!(refused, StoreError::Full { .. }), "{refused:?}");
    let snapshot = store.load().await.unwrap();
    assert_eq!((snapshot.jobs.len() as u64, snapshot.last_event), (stored, stored), "neither half is there");
    store.close().await.unwrap();
    let store = sqlite(&file).await;
    let epoch = store.acquire("two", 2).await.unwrap();
    store.commit(epoch, big(stored + 1)).await.unwrap();
}

#[tokio::test]
async fn a_database_of_a_newer_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    sqlite(&file).await.close().await.unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
    let mut connection = <sqlx::SqliteConnection as sqlx::Connection>::connect_with(&options).await.unwrap();
    sqlx::query("INSERT INTO schema_versions (version, applied_ms) VALUES (99, 0)")
        .execute(&mut connection)
        .await
        .unwrap();
    let error = SqliteStore::open(&file).await.unwrap_err();
    assert!(error.message.contains("schema version 99"), "{}", error.message);
    assert!(error.message.contains(&file.display().to_string()), "{}", error.message);
    assert_eq!(error.code.exit_code(), 70, "trying again changes nothing");
}

#[tokio::test]
async fn what_an_older_database_names_is_its_projects() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    let digest = |text: &str| Digest::of(text.as_bytes());
    let mut own = job("aa1", JobState::Succeeded, 1);
    own.plan = Some(PlanRef { digest: digest("plan"), size_bytes: 30, card: Some(digest("card")), builds: 1 });
    (own.report, own.eval) = (Some(digest("report")), Some(digest("labels")));
    // Of another job's model, too: it is kept as long as that is.
    own.model.files.push(ModelFile { name: "table".into(), digest: digest("inputs"), size_bytes: 1 });
    own.spec.calibration = Some(digest("calibration"));
    own.measure.inputs = Some(digest("inputs"));
    {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file).create_if_missing(true);
        let mut connection = <sqlx::SqliteConnection as sqlx::Connection>::connect_with(&options).await.unwrap();
        let versions = "CREATE TABLE schema_versions (version BIGINT PRIMARY KEY, applied_ms BIGINT NOT NULL)";
        sqlx::raw_sql(versions).execute(&mut connection).await.unwrap();
        let scripts = [
            include_str!("../../../migrations/sqlite/0001_farm.sql"),
            include_str!("../../../migrations/sqlite/0002_caches_plugins.sql"),
            include_str!("../../../migrations/sqlite/0003_engine_seq.sql"),
            include_str!("../../../migrations/sqlite/0004_token_changes.sql"),
            include_str!("../../../migrations/sqlite/0005_token_agents.sql"),
        ];
        for (version, script) in (1_i64..).zip(scripts) {
            sqlx::raw_sql(script).execute(&mut connection).await.unwrap();
            let applied = sqlx::query("INSERT INTO schema_versions VALUES ($1, 1)").bind(version);
            applied.execute(&mut connection).await.unwrap();
        }
        let doc = serde_json::to_string(&own).unwrap();
        sqlx::query("INSERT INTO jobs VALUES ('aa1', 'succeeded', 's', 'm', 'd', 1, 2, $1)")
            .bind(doc)
            .execute(&mut connection)
            .await
            .unwrap();
        let engine = serde_json::to_string(&engine("aa1", "newer", 2)).unwrap();
        let insert = "INSERT INTO engines (engine_key, plan_digest, sku, model_name, model_digest, created_ms, doc) \
                      VALUES ($1, $2, 's', 'm', 'd', 1, $3)";
        let insert = sqlx::query(insert).bind(key("aa1").to_string()).bind(digest("newer").to_string());
        insert.bind(engine).execute(&mut connection).await.unwrap();
        let artifacts = format!(r#"[{{"name":"trace","digest":"{}","size_bytes":5}}]"#, digest("trace"));
        let insert = "INSERT INTO reports (digest, plan_digest, engine_key, job, sku, eval_digest, created_ms, document, \
                      artifacts) VALUES ($1, 'p', $2, 'zz', 's', '', 1, '{}', $3)";
        let insert = sqlx::query(insert).bind(digest("other report").to_string()).bind(key("aa1").to_string());
        insert.bind(artifacts).execute(&mut connection).await.unwrap();
        let rest = format!(
            "INSERT INTO job_projects VALUES ('red', 1, 'aa1'); INSERT INTO engine_projects VALUES ('{}', 'green')",
            key("aa1")
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(rest)).execute(&mut connection).await.unwrap();
    }
    let store = sqlite(&file).await;
    for name in ["aa1", "plan", "card", "report", "labels", "calibration", "inputs"] {
        assert!(store.may_see_blob("red", digest(name)).await.unwrap(), "{name}");
        assert!(!store.may_see_blob("blue", digest(name)).await.unwrap(), "{name}");
    }
    for name in ["newer", "other report", "trace"] {
        assert!(store.may_see_blob("green", digest(name)).await.unwrap(), "{name}, of an engine that it may see");
        assert!(!store.may_see_blob("red", digest(name)).await.unwrap(), "{name}");
    }
    assert!(!store.may_see_blob("red", digest("nothing")).await.unwrap());
    assert_eq!((store.stored_bytes("red").await.unwrap(), store.stored_bytes("green").await.unwrap()), (32, 0));
    let given: BTreeSet<Digest> =
        store.held_since_before(Tenure::Given, 3, 10).await.unwrap().into_iter().map(|held| held.digest).collect();
    assert_eq!(given, BTreeSet::from([digest("labels"), digest("calibration")]));
    assert_eq!(store.held_since_before(Tenure::Given, 2, 10).await.unwrap(), [], "since its job's end");
}

#[tokio::test]
async fn tokens_of_an_older_database_stand_as_they_did() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    let token = |id: &str, revoked, last_used_ms| TokenRecord {
        id: id.into(),
        name: format!("name-{id}"),
        role: "agent".into(),
        project: Some("red".into()),
        secret_hash: Digest::of(id.as_bytes()),
        created_ms: 5,
        expires_ms: 0,
        revoked,
        last_used_ms,
        agent: None,
    };
    let before = [token("a", false, 7), token("b", true, 8)];
    {
        // As the version before wrote it: everything in one document.
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file).create_if_missing(true);
        let mut connection = <sqlx::SqliteConnection as sqlx::Connection>::connect_with(&options).await.unwrap();
        let versions = "CREATE TABLE schema_versions (version BIGINT PRIMARY KEY, applied_ms BIGINT NOT NULL)";
        sqlx::raw_sql(versions).execute(&mut connection).await.unwrap();
        let scripts = [
            include_str!("../../../migrations/sqlite/0001_farm.sql"),
            include_str!("../../../migrations/sqlite/0002_caches_plugins.sql"),
            include_str!("../../../migrations/sqlite/0003_engine_seq.sql"),
        ];
        for (version, script) in (1_i64..).zip(scripts) {
            sqlx::raw_sql(script).execute(&mut connection).await.unwrap();
            let applied = sqlx::query("INSERT INTO schema_versions VALUES ($1, 1)").bind(version);
            applied.execute(&mut connection).await.unwrap();
        }
        for token in &before {
            let insert = sqlx::query("INSERT INTO tokens (id, doc) VALUES ($1, $2)").bind(&token.id);
            insert.bind(serde_json::to_string(token).unwrap()).execute(&mut connection).await.unwrap();
        }
    }
    let store = sqlite(&file).await;
    assert_eq!(store.tokens().await.unwrap(), before);
    let epoch = store.acquire("one", 1).await.unwrap();
    let used = |id: &str, at_ms| Change::TokenUsed { id: id.into(), at_ms };
    let changes = vec![used("a", 6), used("b", 9), Change::TokenRevoked { id: "a".into() }];
    store.commit(epoch, changes).await.unwrap();
    store.close().await.unwrap();
    let store = sqlite(&file).await;
    assert_eq!(store.tokens().await.unwrap(), [token("a", true, 7), token("b", true, 9)]);
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let error = SqliteStore::open(&folder.path().join("no/such/farm.db")).await.unwrap_err();
    assert!(error.message.contains("no/such/farm.db"), "{}", error.message);
}
