//! Lists of requests, events and projects: parts, filters, counts, and whose they are; engines with reports of few words.

use crate::{
    store::{event, job},
    support::{actor, agent::Agent, bench::Bench, blobs::MemBlobs, digest_of, model, open, request, show, until_state},
};
use planforge_coordinator::{
    auth::Actor,
    core::{Change, Event, Job, JobState, ProjectRecord, RequestRecord},
    farm::{Farm, FarmConfig, SystemClock},
    store::{
        Count, EventListFilter, ListedRequest, MemStore, RequestFilter,
        RequestState::{Failed, Open, Succeeded},
        SqliteStore, Store,
    },
};
use planforge_proto::{ErrorCode, v1};
use planforge_report::{figures::Figures, testing::sample_report};
use std::{collections::BTreeSet, sync::Arc};

pub(crate) fn request_of(id: &str, project: &str, jobs: &[&str], created_ms: u64) -> Change {
    Change::Request(RequestRecord {
        id: id.into(),
        project: project.into(),
        actor: "me".into(),
        idempotency_key: String::new(),
        fingerprint: digest_of(id),
        jobs: jobs.iter().map(|id| (*id).into()).collect(),
        created_ms,
    })
}

/// Every part of a list, three rows each.
async fn requests(store: &dyn Store, filter: RequestFilter) -> Vec<ListedRequest> {
    let (mut found, mut behind) = (Vec::new(), None);
    loop {
        let part = store.part_of_requests(RequestFilter { behind, limit: 3, ..filter.clone() }).await.unwrap();
        assert!(part.items.len() <= 3);
        found.extend(part.items);
        behind = part.rest;
        if behind.is_none() {
            break;
        }
        assert!(found.len() < 100, "the list has no end");
    }
    let count = store.count_requests(filter).await.unwrap();
    assert_eq!(count, Count { count: found.len() as u64, is_exact: true });
    found
}

async fn ids(store: &dyn Store, filter: RequestFilter) -> Vec<String> {
    requests(store, filter).await.into_iter().map(|listed| listed.request.id).collect()
}

async fn events(store: &dyn Store, filter: EventListFilter) -> Vec<u64> {
    let (mut found, mut before): (Vec<Event>, _) = (Vec::new(), None);
    loop {
        let part = store.part_of_events(EventListFilter { before, limit: 4, ..filter.clone() }).await.unwrap();
        assert!(part.items.len() <= 4);
        found.extend(part.items);
        before = part.rest;
        if before.is_none() {
            break;
        }
        assert!(found.len() < 100, "the list has no end");
    }
    assert_eq!(store.count_events(filter).await.unwrap().count, found.len() as u64);
    found.into_iter().map(|event| event.seq).collect()
}

pub(crate) async fn conforms(store: &dyn Store) {
    let epoch = store.acquire("one", 1).await.unwrap();
    let change = |id: &str, state| Change::Job(Arc::new(job(id, state, 5)));
    // The same job twice in a request, and one job of two requests.
    let asked = vec![
        change("a1", JobState::Queued),
        change("a2", JobState::Queued),
        change("b1", JobState::Succeeded),
        Change::JobProject { project: "red".into(), job: "a1".into(), created_ms: 5 },
        Change::JobProject { project: "blue".into(), job: "b1".into(), created_ms: 5 },
        request_of("one", "red", &["a1", "a2", "a1"], 10),
        request_of("two", "red", &["a2"], 10),
        request_of("three", "blue", &["b1"], 11),
        request_of("four", "blue", &["a1"], 12),
    ];
    store.commit(epoch, asked).await.unwrap();
    let any = RequestFilter::default;
    let red = || RequestFilter { project: Some("red".into()), ..any() };
    let in_state = |state| RequestFilter { states: vec![state], ..any() };
    assert_eq!(ids(store, any()).await, ["four", "three", "two", "one"]);
    assert_eq!(ids(store, red()).await, ["two", "one"]);
    assert_eq!(ids(store, in_state(Open)).await, ["four", "two", "one"]);
    assert_eq!(ids(store, in_state(Succeeded)).await, ["three"]);
    let one = requests(store, red()).await.remove(1);
    assert_eq!((one.jobs, one.live, one.lost, one.state()), (2, 2, 0, Open));
    // They stand as their jobs do: one of them ends well, the other not.
    store.commit(epoch, vec![change("a1", JobState::Running)]).await.unwrap();
    store.commit(epoch, vec![change("a1", JobState::Succeeded)]).await.unwrap();
    assert_eq!(ids(store, in_state(Open)).await, ["two", "one"]);
    store.commit(epoch, vec![change("a2", JobState::Cancelled)]).await.unwrap();
    assert_eq!(ids(store, in_state(Open)).await, Vec::<String>::new());
    assert_eq!(ids(store, in_state(Failed)).await, ["two", "one"]);
    let both = RequestFilter { states: vec![Failed, Succeeded], ..any() };
    assert_eq!(ids(store, both).await, ["four", "three", "two", "one"]);
    assert_eq!(ids(store, RequestFilter { states: vec![Failed], ..red() }).await, ["two", "one"]);
    assert_eq!(ids(store, RequestFilter { since_ms: Some(11), until_ms: Some(11), ..any() }).await, ["three"]);
    // Another job takes the place of one, and counts in its stead; where the request has that already, once.
    let take = |request: &str, from: &str, to: &str| Change::Fallback {
        request: request.into(),
        from: from.into(),
        to: to.into(),
    };
    let stands = async |id: &str| {
        let listed = requests(store, any()).await.into_iter().find(|listed| listed.request.id == id).unwrap();
        let jobs: Vec<String> = listed.request.jobs.iter().map(|job| job.as_str().to_owned()).collect();
        (jobs.join(" "), (listed.jobs, listed.live, listed.lost), listed.state())
    };
    let asked = vec![
        change("d1", JobState::Queued),
        change("d2", JobState::Queued),
        request_of("five", "red", &["d1", "b1", "d1"], 9),
        request_of("six", "red", &["d1", "d2"], 8),
    ];
    store.commit(epoch, asked).await.unwrap();
    let replaced = vec![
        change("e1", JobState::Queued),
        take("five", "d1", "e1"),
        take("six", "d1", "d2"),
        change("d1", JobState::Failed),
    ];
    store.commit(epoch, replaced).await.unwrap();
    assert_eq!(stands("five").await, ("e1 b1 e1".into(), (2, 1, 0), Open));
    assert_eq!(stands("six").await, ("d2 d2".into(), (1, 1, 0), Open));
    store.commit(epoch, vec![change("e1", JobState::Succeeded), change("d2", JobState::Failed)]).await.unwrap();
    assert_eq!(stands("five").await, ("e1 b1 e1".into(), (2, 0, 0), Succeeded));
    assert_eq!(stands("six").await, ("d2 d2".into(), (1, 0, 1), Failed));
    // All in one: the request, its job, its end, and who takes its place, which has ended already.
    let at_once = vec![
        change("g1", JobState::Queued),
        request_of("seven", "red", &["g1"], 7),
        change("g2", JobState::Succeeded),
        take("seven", "g1", "g2"),
        change("g1", JobState::Failed),
    ];
    store.commit(epoch, at_once).await.unwrap();
    assert_eq!(stands("seven").await, ("g2".into(), (1, 0, 0), Succeeded));
    for id in ["five", "six", "seven"] {
        store.commit(epoch, vec![Change::ForgetRequest(id.into())]).await.unwrap();
    }
    // What became of a job is known of its requests when the job itself is kept no more.
    let ended: Job = job("a2", JobState::Cancelled, 5);
    store.commit(epoch, vec![Change::ForgetJob(Box::new(ended))]).await.unwrap();
    assert_eq!(ids(store, in_state(Failed)).await, ["two", "one"]);
    store.commit(epoch, vec![Change::ForgetRequest("two".into())]).await.unwrap();
    assert_eq!(ids(store, any()).await, ["four", "three", "one"]);

    let what = |seq, id, what: &str| match event(seq, id) {
        Change::Event(event) => Change::Event(Event { what: what.into(), ..event }),
        other => other,
    };
    let happened =
        (1..=12).map(|seq| what(seq, ["a1", "b1", "c1"][seq as usize % 3], ["leased", "built"][seq as usize % 2]));
    store.commit(epoch, happened.collect()).await.unwrap();
    let any = EventListFilter::default;
    assert_eq!(events(store, any()).await, (1..=12).rev().collect::<Vec<_>>());
    assert_eq!(events(store, EventListFilter { after: 9, ..any() }).await, [12, 11, 10]);
    assert_eq!(events(store, EventListFilter { after: 12, ..any() }).await, Vec::<u64>::new());
    let of_jobs = EventListFilter { jobs: vec!["b1".into(), "c1".into()], after: 4, ..any() };
    assert_eq!(events(store, of_jobs).await, [11, 10, 8, 7, 5]);
    assert_eq!(events(store, EventListFilter { kinds: vec!["built".into()], ..any() }).await, [11, 9, 7, 5, 3, 1]);
    assert_eq!(events(store, EventListFilter { project: Some("blue".into()), ..any() }).await, [10, 7, 4, 1]);
    let both = EventListFilter { project: Some("red".into()), kinds: vec!["leased".into(), "built".into()], ..any() };
    assert_eq!(events(store, both).await, [12, 9, 6, 3]);
}

#[tokio::test]
async fn requests_and_events_are_listed_from_memory() {
    conforms(&MemStore::new()).await;
}

#[tokio::test]
async fn requests_and_events_are_listed_by_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("farm.db")).await.unwrap();
    conforms(&store).await;
    store.close().await.unwrap();
}

#[tokio::test]
async fn requests_and_events_of_a_project_are_its_own_and_come_in_pages() {
    let blobs = MemBlobs::default();
    // The agent says nothing while it works: its lease outlasts the test on any machine.
    let config = FarmConfig { lease_ms: 3_600_000, seed: Some(7), ..FarmConfig::default() };
    let (store, clock) = (Arc::new(MemStore::new()), Arc::new(SystemClock::new()));
    let farm = Farm::open(store, Arc::new(blobs.clone()), config, clock).await.unwrap();
    let _agent = Agent::usual(&farm, "a").await;
    let red = actor("ci", "submit", Some("red"));
    let blue = actor("blue-ci", "submit", Some("blue"));
    let mut jobs = Vec::new();
    for (who, name) in [(&red, "m0"), (&red, "m1"), (&blue, "m2"), (&red, "m3"), (&blue, "m0")] {
        let model = model(&blobs, name);
        show(&farm, who, &model).await;
        jobs.push(farm.submit(who, request(model)).await.unwrap().jobs.remove(0));
    }
    let list = async |who: &Actor, ask: v1::ListRequestsRequest| {
        let (mut ask, mut found, mut total) =
            (v1::ListRequestsRequest { limit: 2, with_total: true, ..ask }, Vec::new(), 0);
        loop {
            let reply = farm.list_requests(who, ask.clone()).await.unwrap();
            assert!(reply.requests.len() <= 2);
            total = total.max(reply.total);
            found.extend(reply.requests);
            ask.cursor = reply.next_cursor;
            if ask.cursor.is_empty() {
                assert_eq!(total, found.len() as u64);
                return found;
            }
        }
    };
    let any = v1::ListRequestsRequest::default;
    let own = list(&red, any()).await;
    assert_eq!(own.len(), 3);
    assert!(own.iter().all(|request| request.project == "red" && request.actor == "ci"), "{own:?}");
    assert!(own.windows(2).all(|pair| (pair[0].created_ms, &pair[0].id) > (pair[1].created_ms, &pair[1].id)));
    assert_eq!(list(&Actor::local(), any()).await.len(), 5);
    assert_eq!(list(&Actor::local(), v1::ListRequestsRequest { project: "blue".into(), ..any() }).await.len(), 2);
    let cancel = v1::CancelJobsRequest { ids: vec![jobs[1].id.clone()], ..Default::default() };
    farm.cancel_jobs(&red, cancel).await.unwrap();
    let in_state = |state: v1::RequestState| v1::ListRequestsRequest { states: vec![state.into()], ..any() };
    let failed = list(&red, in_state(v1::RequestState::Failed)).await;
    assert_eq!(failed.iter().map(|request| request.id.as_str()).collect::<Vec<_>>(), [jobs[1].request_id.as_str()]);
    assert_eq!((failed[0].jobs, failed[0].live_jobs, failed[0].failed_jobs), (1, 0, 1));
    assert_eq!(list(&red, in_state(v1::RequestState::Open)).await.len(), 2);

    let list = async |who: &Actor, ask: v1::ListEventsRequest| {
        let (mut ask, mut found) = (v1::ListEventsRequest { limit: 2, ..ask }, Vec::new());
        loop {
            let reply = farm.list_events(who, ask.clone()).await.unwrap();
            found.extend(reply.events);
            ask.cursor = reply.next_cursor;
            if ask.cursor.is_empty() {
                return found;
            }
        }
    };
    let any = v1::ListEventsRequest::default;
    let all = list(&Actor::local(), any()).await;
    assert!(all.windows(2).all(|pair| pair[0].seq > pair[1].seq), "the latest first");
    let own: BTreeSet<&str> = [0, 1, 3].into_iter().map(|number: usize| jobs[number].id.as_str()).collect();
    let seen = list(&red, any()).await;
    assert_eq!(seen.iter().map(|event| event.job.as_str()).collect::<BTreeSet<_>>(), own);
    // Blue joined a job of red's: it does not hear whose it was.
    let told = list(&blue, v1::ListEventsRequest { jobs: vec![jobs[4].id.clone()], ..any() }).await;
    assert_eq!(jobs[4].id, jobs[0].id);
    assert!(!told.is_empty() && told.iter().all(|event| event.actor != "ci"), "{told:?}");
    let cancelled = list(&red, v1::ListEventsRequest { kinds: vec!["cancelled".into()], ..any() }).await;
    assert_eq!(cancelled.len(), 1);
    assert_eq!((cancelled[0].job.as_str(), cancelled[0].state()), (jobs[1].id.as_str(), v1::JobState::Cancelled));
    let after = v1::ListEventsRequest { after: cancelled[0].seq - 1, ..any() };
    assert!(list(&red, after).await.iter().all(|event| event.seq >= cancelled[0].seq));

    let refused = async |who: &Actor, ask: v1::ListEventsRequest| farm.list_events(who, ask).await.unwrap_err().code;
    let of_blue = v1::ListEventsRequest { jobs: vec![jobs[2].id.clone()], ..any() };
    assert_eq!(refused(&red, of_blue).await, ErrorCode::NotFound);
    let elsewhere = v1::ListEventsRequest { project: "blue".into(), ..any() };
    assert_eq!(refused(&red, elsewhere).await, ErrorCode::PermissionDenied);
    assert_eq!(refused(&actor("a", "agent", None), any()).await, ErrorCode::PermissionDenied);
    let astray = v1::ListEventsRequest { cursor: "x".into(), ..any() };
    assert_eq!(refused(&red, astray).await, ErrorCode::InvalidArgument);
    let astray = v1::ListRequestsRequest { cursor: "x".into(), ..Default::default() };
    assert_eq!(farm.list_requests(&red, astray).await.unwrap_err().code, ErrorCode::InvalidArgument);
    farm.close().await;
}

#[tokio::test]
async fn projects_come_in_pages_by_name_and_none_is_left_out() {
    let store = Arc::new(MemStore::new());
    let epoch = store.acquire("before", 1).await.unwrap();
    let names: Vec<String> = (0..1_050).map(|number| format!("p{number:04}")).collect();
    let project = |name: &String| Change::Project(ProjectRecord { share: 2, ..ProjectRecord::usual(name) });
    store.commit(epoch, names.iter().map(project).collect()).await.unwrap();
    let farm = open(store, &MemBlobs::default()).await;
    for (limit, pages) in [(0, 2), (400, 3), (1_050, 2)] {
        let (mut ask, mut found, mut count) = (v1::ListProjectsRequest { limit, cursor: String::new() }, Vec::new(), 0);
        loop {
            let reply = farm.list_projects(&Actor::local(), ask.clone()).await.unwrap();
            found.extend(reply.projects.into_iter().map(|project| project.name));
            count += 1;
            ask.cursor = reply.next_cursor;
            if ask.cursor.is_empty() {
                break;
            }
        }
        assert_eq!((&found, count), (&names, pages), "at most {limit}");
    }
    let own = actor("ci", "read", Some("p0003"));
    let reply = farm.list_projects(&own, v1::ListProjectsRequest::default()).await.unwrap();
    assert_eq!((reply.projects.len(), reply.next_cursor.as_str()), (1, ""));
    let astray = v1::ListProjectsRequest { cursor: "zz".into(), ..Default::default() };
    assert_eq!(farm.list_projects(&own, astray).await.unwrap_err().code, ErrorCode::InvalidArgument);
    farm.close().await;
}

#[tokio::test]
async fn a_unique_beginning_finds_its_job_among_any_number_and_another_is_told_with_how_many_there_are() {
    let store = Arc::new(MemStore::new());
    let epoch = store.acquire("before", 1).await.unwrap();
    let mut changes = Vec::new();
    let mut add = |id: &str, project: &str| {
        let mut one = job(id, JobState::Succeeded, 5);
        one.wants[0].project = project.into();
        changes.push(Change::Job(Arc::new(one)));
        changes.push(Change::JobProject { project: project.into(), job: id.into(), created_ms: 5 });
    };
    for number in 0..150 {
        add(&format!("ab{number:04}"), "blue");
    }
    for number in 0..10_001 {
        add(&format!("cd{number:05}"), "blue");
    }
    add("abzz", "red");
    add("ab", "green");
    store.commit(epoch, changes).await.unwrap();
    let farm = open(store, &MemBlobs::default()).await;
    let [red, blue] = ["red", "blue"].map(|project| actor("ci", "read", Some(project)));
    let found = async |who: &Actor, id: &str| farm.get_job(who, id).await.map(|job| job.id);
    assert_eq!(found(&red, "ab").await.unwrap(), "abzz", "behind a hundred of another project");
    assert_eq!(found(&blue, "ab0149").await.unwrap(), "ab0149");
    assert_eq!(found(&Actor::local(), "ab").await.unwrap(), "ab", "an id is no beginning of others");
    for (who, id, count) in
        [(&blue, "ab", "150 jobs"), (&blue, "ab001", "10 jobs"), (&blue, "cd", "more than 10000 jobs")]
    {
        let error = found(who, id).await.unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (ErrorCode::InvalidArgument, &*format!("{count} begin with {id}"))
        );
    }
    assert_eq!(found(&red, "ab00").await.unwrap_err().code, ErrorCode::NotFound);
    farm.close().await;
}

#[tokio::test]
async fn engines_are_listed_with_brief_reports_where_somebody_asks_for_them() {
    let mut bench = Bench::new().await;
    let job = bench.submit(request(model(&bench.blobs, "m"))).await;
    let assign = bench.agent.assigned().await;
    let report = serde_json::to_vec(&sample_report(1.5)).unwrap();
    let finished = bench.finished(&assign, &job.id, |_| report);
    bench.finish(finished).await;
    until_state(&bench.farm, &job.id, v1::JobState::Succeeded).await;
    let listed = async |brief_reports: bool| {
        let asked = v1::ListEnginesRequest { brief_reports, ..v1::ListEnginesRequest::default() };
        bench.farm.list_engines(&Actor::local(), asked).await.unwrap().engines.remove(0).report_json
    };
    let (whole, brief) = (listed(false).await, listed(true).await);
    assert!(brief.len() < whole.len() / 2, "{} of {} bytes: {brief}", brief.len(), whole.len());
    let [whole, brief] = [whole, brief].map(|report| Figures::parse(&report).unwrap());
    assert_eq!(brief.latency_ms.median, whole.latency_ms.median);
    assert!(brief.layers.is_empty() && !whole.layers.is_empty());
}
