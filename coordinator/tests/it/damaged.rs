//! What a damaged database hides, and what is said of it.

use crate::store::{engine, job, report};
use planforge_coordinator::{
    core::{Change, JobState},
    store::{EngineFilter, EventFilter, JobFilter, ReportFilter, SqliteStore, Store, StoreError},
};
use planforge_proto::{ApiError, ErrorCode};
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Arc,
};

/// Changes a closed database behind the store's back.
async fn alter(file: &Path, sql: &'static str) {
    let options = SqliteConnectOptions::new().filename(file);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// A database with `count` jobs, each with an engine and its report, closed again.
async fn filled(file: &Path, count: u64) {
    let store = SqliteStore::open(file).await.unwrap();
    let epoch = store.acquire("me", 1).await.unwrap();
    for number in 0..count {
        let id = format!("job{number}");
        let (plan, text) = (format!("plan{number}"), format!("{{\"report\":{number}}}"));
        let state = if number % 2 == 0 { JobState::Queued } else { JobState::Succeeded };
        let changes = vec![
            Change::Job(Arc::new(job(&id, state, number + 1))),
            Change::JobProject { project: "red".into(), job: id.as_str().into(), created_ms: number + 1 },
            crate::store::event(number + 1, &id),
            Change::Engine(Box::new(engine(&id, &plan, number + 1))),
            Change::Report(Box::new(report(&id, &plan, &text, number + 1, None))),
        ];
        store.commit(epoch, changes).await.unwrap();
    }
    store.close().await.unwrap();
}

#[tokio::test]
async fn one_bad_row_hides_one_row() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    filled(&file, 8).await;
    alter(
        &file,
        "UPDATE jobs SET doc = '{\"id\":\"job2\"}' WHERE id = 'job2'; UPDATE jobs SET doc = x'00ff' WHERE id = 'job5'; \
         UPDATE events SET state = 'asleep' WHERE seq = 4; UPDATE engines SET doc = 'x' WHERE created_ms = 3; \
         UPDATE reports SET sku = 'No Sku' WHERE created_ms = 2",
    )
    .await;
    let store = SqliteStore::open(&file).await.unwrap();
    let snapshot = store.load().await.unwrap();
    let live: Vec<&str> = snapshot.jobs.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(live, ["job0", "job4", "job6"], "of the live ones job2 cannot be read");
    assert_eq!(snapshot.last_event, 8);

    // A page is as full as it was asked for: nothing behind a bad row is taken for the end of the list.
    let jobs = |limit| store.jobs(JobFilter { limit, ..JobFilter::default() });
    let ids = |jobs: Vec<planforge_coordinator::core::Job>| jobs.into_iter().map(|job| String::from(job.id)).collect();
    let found: Vec<String> = ids(jobs(4).await.unwrap());
    assert_eq!(found, ["job7", "job6", "job4", "job3"]);
    let found: Vec<String> = ids(jobs(100).await.unwrap());
    assert_eq!(found, ["job7", "job6", "job4", "job3", "job1", "job0"]);
    let events = store.events(EventFilter { limit: 4, ..EventFilter::default() }).await.unwrap();
    assert!(events.iter().map(|event| event.seq).eq([1, 2, 3, 5]));
    let engines = store.engines(EngineFilter { limit: 7, ..EngineFilter::default() }).await.unwrap();
    assert_eq!(engines.len(), 7);
    let reports = store.reports(ReportFilter { limit: 7, ..ReportFilter::default() }).await.unwrap();
    assert_eq!(reports.len(), 7);

    // Who asks for that one job hears why there is none.
    let error = store.job(&"job2".into()).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    assert_eq!(ApiError::from(error).code.exit_code(), 70);
    assert!(store.job(&"job4".into()).await.unwrap().is_some());
    assert_eq!(store.unreadable_rows(), 5);
}

/// Names the file, the check and what to do, and is no reason to try again.
fn says_damaged(error: &ApiError, file: &Path) {
    assert_eq!(error.code, ErrorCode::Internal, "{}", error.message);
    assert!(error.message.contains(&file.display().to_string()), "{}", error.message);
    assert!(error.message.contains("is damaged"), "{}", error.message);
    assert!(error.hint.contains("planforge admin restore"), "{}", error.hint);
}

#[tokio::test]
async fn a_damaged_file_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.db");
    filled(&whole, 60).await;
    let size = fs::metadata(&whole).unwrap().len();
    let file = folder.path().join("farm.db");
    type Damage<'a> = (&'a str, &'a dyn Fn(&File));
    let damages: [Damage<'_>; 4] = [
        ("its head", &|f| f.write_all_at(b"not a database at all", 0).unwrap()),
        ("its schema", &|f| f.write_all_at(&[0xa5; 512], 100).unwrap()),
        ("a page in its middle", &|f| f.write_all_at(&[0xa5; 4096], size / 2 / 4096 * 4096).unwrap()),
        ("its second half", &|f| f.set_len(size / 2).unwrap()),
    ];
    for (what, damage) in damages {
        fs::copy(&whole, &file).unwrap();
        damage(&File::options().write(true).open(&file).unwrap());
        let damaged = fs::read(&file).unwrap();
        let error = SqliteStore::open(&file).await.err().unwrap_or_else(|| panic!("opened without {what}"));
        says_damaged(&error, &file);
        assert_eq!(fs::read(&file).unwrap(), damaged, "{what}: nothing was changed");
        let _ = fs::remove_file(file.with_extension("db-wal"));
        let _ = fs::remove_file(file.with_extension("db-shm"));
    }
}

/// Damage that comes while the database is open is told to whoever meets it.
#[tokio::test]
async fn damage_of_an_open_database_is_no_reason_to_try_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("farm.db");
    filled(&file, 400).await;
    let store = SqliteStore::open(&file).await.unwrap();
    let size = fs::metadata(&file).unwrap().len();
    // Every page but the first: the readers have none of them in memory.
    let pages = File::options().write(true).open(&file).unwrap();
    (4096..size).step_by(4096).for_each(|at| pages.write_all_at(&[0xa5; 4096], at).unwrap());
    let error = store.jobs(JobFilter { limit: 1_000, ..JobFilter::default() }).await.unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    says_damaged(&error.into(), &file);
}
