//! How models stand on a farm as years leave it: told of every engine and job, however many there are.

use planforge_coordinator::{
    auth::Actor,
    blobs::{LocalBlobs, LocalBlobsOptions},
    farm::{Farm, FarmConfig, SystemClock},
    store::{CoverageFilter, SqliteStore},
};
use planforge_grown::{PROJECTS, Size, grow};
use planforge_proto::v1;
use std::{collections::BTreeMap, sync::Arc};

/// More keys than any list brings at once.
const SIZE: Size = Size { waiting: 300, finished: 6_000, plan_bytes: None };
const NOW_MS: u64 = 1_800_000_000_000;

/// Something by model and device kind.
type Places<T> = BTreeMap<(String, String), T>;

/// Of each place the first, which is the newest.
fn newest<T>(all: impl Iterator<Item = ((String, String), T)>) -> Places<T> {
    let mut places = Places::new();
    for (place, one) in all {
        places.entry(place).or_insert(one);
    }
    places
}

async fn engines(farm: &Farm, project: &str) -> Vec<v1::Engine> {
    let (mut engines, mut cursor) = (Vec::new(), String::new());
    loop {
        let request = v1::ListEnginesRequest { project: project.into(), cursor, limit: 1_000, ..Default::default() };
        let reply = farm.list_engines(&Actor::local(), request).await.expect("engines");
        engines.extend(reply.engines);
        cursor = reply.next_cursor;
        if cursor.is_empty() {
            return engines;
        }
    }
}

async fn jobs(farm: &Farm, project: &str, state: v1::JobState, order: v1::JobOrder) -> Places<String> {
    let (mut jobs, mut cursor) = (Vec::new(), String::new());
    loop {
        let request = v1::ListJobsRequest {
            project: project.into(),
            states: vec![state.into()],
            order: order.into(),
            limit: 1_000,
            cursor,
            ..Default::default()
        };
        let reply = farm.list_jobs(&Actor::local(), request).await.expect("jobs");
        jobs.extend(reply.jobs);
        cursor = reply.next_cursor;
        if cursor.is_empty() {
            break;
        }
    }
    newest(jobs.into_iter().map(|job| ((job.model.unwrap_or_default().name, job.sku), job.id)))
}

#[tokio::test]
async fn every_engine_and_job_is_told_of_on_some_page() {
    let folder = tempfile::tempdir().unwrap();
    grow(folder.path(), SIZE, NOW_MS, |_| ()).await.expect("the farm grows");
    let store = SqliteStore::open(&folder.path().join("farm.db")).await.expect("the database opens");
    let blobs = LocalBlobs::open(folder.path().join("blobs"), LocalBlobsOptions::default()).expect("the blobs open");
    let config = FarmConfig { seed: Some(3), ..FarmConfig::default() };
    let farm = Farm::open(Arc::new(store), Arc::new(blobs), config, Arc::new(SystemClock::new())).await.unwrap();
    let actor = Actor::local();
    for project in ["", PROJECTS[1]] {
        let filter =
            CoverageFilter { project: Some(project.to_owned()).filter(|name| !name.is_empty()), ..Default::default() };
        let (mut built, mut live, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let (mut from, mut count) = (0, 1);
        while from < count {
            let models = farm.covered_models(&actor, &filter, from, 7).await.unwrap();
            (from, count) = (from + models.names.len() as u64, models.count);
            let coverage = farm.coverage(&actor, &filter, models.names, false).await.unwrap();
            let figures = |engine: planforge_coordinator::store::Standing| {
                ((engine.model, engine.sku), (engine.plan, engine.median_ms, engine.created_ms))
            };
            built.extend(coverage.engines.into_iter().map(figures));
            live.extend(coverage.live.into_iter().map(|job| ((job.model, job.sku), job.id.to_string())));
            failed.extend(coverage.failed.into_iter().map(|job| ((job.model, job.sku), job.id.to_string())));
        }
        let all = engines(&farm, project).await;
        assert_eq!(built.len(), all.len(), "{project}: as many as there are keys");
        assert!(!project.is_empty() || all.len() > 400, "{}", all.len());
        let built = newest(built.into_iter());
        let wanted = newest(all.into_iter().map(|engine| {
            let report: serde_json::Value = serde_json::from_str(&engine.report_json).unwrap();
            let median = report["latency_ms"]["median"].as_f64();
            ((engine.model.unwrap().name, engine.sku), (engine.plan_digest, median, engine.created_ms))
        }));
        assert_eq!(built, wanted, "{project}");
        assert_eq!(newest(live.into_iter()), jobs(&farm, project, v1::JobState::Queued, v1::JobOrder::Newest).await);
        // Those alone that ended after the newest engine.
        let failures = jobs(&farm, project, v1::JobState::Failed, v1::JobOrder::Ended).await;
        assert!(!failed.is_empty() && failed.len() < failures.len(), "{project}: {} {}", failed.len(), failures.len());
        for (place, job) in failed {
            assert_eq!(failures.get(&place), Some(&job), "{project}: {place:?}");
        }
    }
    farm.close().await;
}
