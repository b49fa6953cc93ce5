//! What PostgreSQL keeps beside its rows by the statement, SQLite keeps row by row: after the same commits, of many records
//! each, both say the same.

use crate::{
    coverage_store::{asked, built, measured},
    history::request_of,
    postgres::{config, told},
    store::{event, job},
};
use planforge_coordinator::{
    core::{Change, Job, JobState},
    store::{PostgresStore, SqliteStore, Store},
};
use planforge_postgres_server::Server;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use sqlx::{Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

const STATES: [JobState; 7] = [
    JobState::Queued,
    JobState::Leased,
    JobState::Running,
    JobState::Succeeded,
    JobState::Failed,
    JobState::Cancelled,
    JobState::Skipped,
];
const MODELS: [(&str, &str); 4] = [("one", "one.onnx"), ("one", "uno.onnx"), ("two", "two.onnx"), ("three", "")];

/// What a farm may come to be, a commit after the other.
struct Made {
    random: StdRng,
    jobs: BTreeMap<String, Job>,
    next: u64,
}

impl Made {
    fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed), jobs: BTreeMap::new(), next: 0 }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// One of the jobs that are known.
    fn known(&mut self) -> Option<Job> {
        let at = self.random.random_range(0..self.jobs.len().max(1));
        self.jobs.values().nth(at).cloned()
    }

    fn comes(&mut self, changes: &mut Vec<Change>) {
        let at = self.number();
        let id = format!("job{at:04}");
        let project = *["red", "blue"].choose(&mut self.random).unwrap();
        let model = *MODELS.choose(&mut self.random).unwrap();
        let state = if self.random.random_bool(0.1) { JobState::Succeeded } else { JobState::Queued };
        let new = asked(&id, project, model, state, at);
        for change in &new {
            if let Change::Job(job) = change {
                self.jobs.insert(id.clone(), job.as_ref().clone());
            }
        }
        changes.extend(new);
        changes.push(event(at, &id));
    }

    fn changes(&mut self, changes: &mut Vec<Change>) {
        let Some(mut job) = self.known() else { return };
        job.state = *STATES.choose(&mut self.random).unwrap();
        job.ended_ms = if job.state.is_terminal() { self.number() } else { 0 };
        self.jobs.insert(job.id.as_str().into(), job.clone());
        changes.push(Change::Job(Arc::new(job)));
    }

    fn is_asked_for(&mut self, changes: &mut Vec<Change>) {
        let ids: Vec<String> =
            (0..self.random.random_range(1..5)).filter_map(|_| self.known()).map(|job| job.id.to_string()).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let at = self.number();
        changes.push(request_of(&format!("request{at:04}"), "red", &ids, at));
    }

    fn is_shared(&mut self, changes: &mut Vec<Change>) {
        let Some(Job { id: job, created_ms, .. }) = self.known() else { return };
        changes.push(Change::JobProject { project: "green".into(), job, created_ms });
    }

    fn goes(&mut self, changes: &mut Vec<Change>) {
        let Some(job) = self.known() else { return };
        // Nothing else of this commit may be about it.
        if changes.iter().any(|change| matches!(change, Change::Job(other) if other.id == job.id)) {
            return;
        }
        self.jobs.remove(job.id.as_str());
        changes.push(Change::ForgetJob(Box::new(job)));
    }

    fn commit(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for _ in 0..self.random.random_range(1..40) {
            match self.random.random_range(0..20) {
                0..6 => self.comes(&mut changes),
                6..14 => self.changes(&mut changes),
                14..16 => self.is_asked_for(&mut changes),
                16..18 => self.is_shared(&mut changes),
                _ => {
                    let at = self.number();
                    let (model, plan) = (["one", "two"][self.random.random_range(0..2)], format!("plan{at}"));
                    changes.extend(built(model, &plan, (at, at), "red"));
                    if self.random.random_bool(0.5) {
                        let words = format!(r#"{{"latency_ms":{{"median":{at}}},"windows":[]}}"#);
                        changes.push(measured(&plan, &words, at));
                    }
                }
            }
        }
        if self.random.random_bool(0.3) {
            self.goes(&mut changes);
        }
        changes
    }
}

#[tokio::test]
async fn rows_that_are_written_together_count_as_one_after_the_other() {
    let Some(server) = Server::start() else { return };
    for seed in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let (file, database) = (folder.path().join("farm.db"), format!("seed{seed}"));
        let sqlite = SqliteStore::open(&file).await.unwrap();
        let postgres = PostgresStore::open(&config(server.database(&database))).await.unwrap();
        let epochs = (sqlite.acquire("one", 1).await.unwrap(), postgres.acquire("one", 1).await.unwrap());
        let mut made = Made::new(seed);
        for commit in 0..40 {
            let changes = made.commit();
            sqlite.commit(epochs.0, changes.clone()).await.unwrap();
            postgres.commit(epochs.1, changes).await.unwrap();
            if commit % 8 == 7 {
                let (one, other) = (told(&sqlite).await, told(&postgres).await);
                let differs = one.lines().zip(other.lines()).find(|(one, other)| one != other);
                assert!(one == other, "seed {seed}, commit {commit}: {differs:?}");
                let (one, other) = (counted_by_sqlite(&file).await, counted(&server, &database));
                let alone =
                    |of: &BTreeSet<String>, not: &BTreeSet<String>| of.difference(not).cloned().collect::<Vec<_>>();
                let differs = (alone(&one, &other), alone(&other, &one));
                assert!(one == other, "seed {seed}, commit {commit}: {differs:?}");
            }
        }
        assert!(made.jobs.len() > 100, "something was written: {}", made.jobs.len());
        sqlite.close().await.unwrap();
        postgres.close().await.unwrap();
    }
}

/// What is counted of everything, a line each: lists show of most counts only whether there is one.
const COUNTED: &str = "SELECT 'jobs ' || project || ' ' || sku || ' ' || state || ' ' || n AS line FROM job_counts WHERE n <> 0 \
     UNION ALL SELECT 'places ' || project || ' ' || model_name || ' ' || sku || ' ' || n FROM coverage_places \
     UNION ALL SELECT 'models ' || project || ' ' || model_name || ' ' || n FROM coverage_models \
     UNION ALL SELECT 'engines ' || project || ' ' || sku || ' ' || n FROM engine_counts WHERE n <> 0 \
     UNION ALL SELECT 'named ' || project || ' ' || model_digest || ' ' || model_name FROM project_models \
     UNION ALL SELECT 'states ' || project || ' ' || job || ' ' || state FROM job_projects";

fn counted(server: &Server, database: &str) -> BTreeSet<String> {
    server.sql(database, COUNTED).lines().map(str::to_owned).collect()
}

async fn counted_by_sqlite(file: &Path) -> BTreeSet<String> {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let lines: Vec<String> = sqlx::query_scalar(COUNTED).fetch_all(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    lines.into_iter().collect()
}

#[tokio::test]
async fn writing_reads_no_table_whole_however_small_the_farm_was_when_it_began() {
    let Some(server) = Server::start() else { return };
    let store = PostgresStore::open(&config(server.database("farm"))).await.unwrap();
    let epoch = store.acquire("one", 1).await.unwrap();
    let before = read_whole(&server);
    for at in 0..200 {
        let id = format!("job{at:04}");
        let mut changes = asked(&id, "red", MODELS[0], JobState::Queued, at);
        changes.push(request_of(&format!("request{at:04}"), "red", &[&id], at));
        store.commit(epoch, changes).await.unwrap();
        store.commit(epoch, vec![Change::Job(Arc::new(job(&id, JobState::Succeeded, at)))]).await.unwrap();
        store.commit(epoch, built(&id, &format!("plan{at}"), (at, at), "red")).await.unwrap();
    }
    // What a connection has read is counted when it ends, at the latest.
    store.close().await.unwrap();
    assert_eq!(read_whole(&server), before);
    assert_eq!(server.sql("farm", "SELECT COUNT(*) FROM jobs"), "200");
}

/// How often tables of many rows were read from end to end.
fn read_whole(server: &Server) -> String {
    let sql = "SELECT string_agg(relname || ' ' || seq_scan, ', ' ORDER BY relname) FROM pg_stat_user_tables \
               WHERE relname IN ('jobs', 'job_projects', 'requests', 'request_jobs', 'engines', 'reports', 'events')";
    server.sql("farm", sql)
}
