//! PostgreSQL as the farm's store: the suite that every store passes, what only a server that several coordinators share
//! can go through, and what is refused before anything is written.

use crate::{
    coverage_store, history, kept_store, past_store, store,
    store::{event, job},
    support::until,
};
use planforge_coordinator::{
    core::{Change, JobState},
    server::move_to_postgres,
    store::{
        EngineFilter, EventFilter, JobFilter, MovedTable, PostgresConfig, PostgresStore, ReportFilter, RequestFilter,
        SqliteStore, Store, StoreError,
    },
};
use planforge_postgres_server::Server;
use std::{fs, path::Path, sync::Arc};

pub(crate) fn config(url: String) -> PostgresConfig {
    PostgresConfig { url, address: "http://here:7400".into(), farm: None, may_begin: true }
}

async fn open(url: String) -> PostgresStore {
    PostgresStore::open(&config(url)).await.unwrap()
}

#[tokio::test]
async fn postgres_conforms() {
    let Some(server) = Server::start() else { return };
    let store = open(server.database("whole")).await;
    store::conforms(&store).await;
    store.close().await.unwrap();
    let store = open(server.database("standing")).await;
    coverage_store::conforms(&store).await;
    store.close().await.unwrap();
    let store = open(server.database("past")).await;
    history::conforms(&store).await;
    store.close().await.unwrap();
    let store = open(server.database("builds")).await;
    past_store::conforms(&store).await;
    store.close().await.unwrap();
    let store = open(server.database("aging")).await;
    kept_store::ages(&store).await;
    store.close().await.unwrap();
}

#[tokio::test]
async fn what_waits_is_committed_together_and_in_order_and_any_text_is_taken() {
    let Some(server) = Server::start() else { return };
    let store = open(server.database("farm")).await;
    let epoch = store.acquire("one", 1).await.unwrap();
    let commits = (1..=300).map(|seq| store.commit(epoch, vec![event(seq, "aa1")]));
    for result in futures::future::join_all(commits).await {
        result.unwrap();
    }
    let events = store.events(EventFilter { limit: 1_000, ..EventFilter::default() }).await.unwrap();
    assert!(events.iter().map(|event| event.seq).eq(1..=300));
    // PostgreSQL has no text with this character.
    let mut odd = job("aa2", JobState::Queued, 1);
    odd.model.name = "a\0b".into();
    odd.constraint = "c\0d".into();
    store.commit(epoch, vec![Change::Job(Arc::new(odd.clone()))]).await.unwrap();
    assert_eq!(store.job(&odd.id).await.unwrap().as_ref(), Some(&odd), "documents are as they were");
    store.close().await.unwrap();
}

#[tokio::test]
async fn one_leads_and_who_was_superseded_writes_nothing() {
    let Some(server) = Server::start() else { return };
    let url = server.database("farm");
    let (first, second) = (open(url.clone()).await, open(url.clone()).await);
    let old = first.acquire("first", 1).await.unwrap();
    let change = |id: &str| vec![Change::Job(Arc::new(job(id, JobState::Queued, 1)))];
    first.commit(old, change("aa1")).await.unwrap();
    let refused = second.acquire("second", 2).await.unwrap_err();
    let led = StoreError::Led { owner: "first".into(), address: "http://here:7400".into() };
    assert_eq!(refused, led);
    assert_eq!(refused.to_string(), "another coordinator leads this farm: first, at http://here:7400");
    let leadership = second.leadership().await.unwrap();
    assert_eq!((leadership.epoch, leadership.owner.as_str(), leadership.is_free), (old, "first", false));

    // As if the first had been paused past its lease.
    server.sql("farm", "UPDATE leader SET expires_at = '-infinity', epoch = epoch + 1, holder = ''");
    let new = second.acquire("second", 3).await.unwrap();
    assert!(new > old);
    let fenced = StoreError::Fenced { mine: old, current: new };
    assert_eq!(first.commit(old, change("aa2")).await.unwrap_err(), fenced);
    assert_eq!(first.check(old).await.unwrap_err(), fenced);
    let told = first.superseded(old).await;
    assert!(matches!(told, StoreError::Fenced { mine, .. } if mine == old), "{told}");
    second.commit(new, change("aa3")).await.unwrap();
    assert_eq!(second.load().await.unwrap().jobs.len(), 2, "nothing of the first's last commit");

    // Closed, it gives the lease back; dropped, the lease runs out.
    second.close().await.unwrap();
    assert!(first.leadership().await.unwrap().is_free);
    let third = open(url).await;
    third.acquire("third", 4).await.unwrap();
    drop(third);
    until("a free lease", || async { first.leadership().await.unwrap().is_free.then_some(()) }).await;
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_crash_of_the_server_and_writing_goes_on() {
    let Some(mut server) = Server::start() else { return };
    let store = open(server.database("farm")).await;
    let epoch = store.acquire("one", 1).await.unwrap();
    store.commit(epoch, vec![event(1, "aa1")]).await.unwrap();
    server.crash();
    let refused = store.commit(epoch, vec![event(2, "aa1")]).await.unwrap_err();
    assert!(matches!(refused, StoreError::Failed { .. }), "{refused:?}");
    server.begin();
    until("writes again", || async { store.check(epoch).await.ok() }).await;
    assert_eq!(store.load().await.unwrap().last_event, 1);
    store.commit(epoch, vec![event(2, "aa1")]).await.unwrap();
    store.close().await.unwrap();
}

/// What a database says of its own shape.
fn shape(server: &Server, database: &str) -> String {
    server.sql(database, "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relkind IN ('r', 'v')")
}

#[tokio::test]
async fn what_cannot_be_the_farms_store_is_refused_before_anything_is_written() {
    let Some(server) = Server::start() else { return };
    let refused = async |config: PostgresConfig| PostgresStore::open(&config).await.map(drop).unwrap_err().to_string();
    let says = |said: String, words: &str| assert!(said.contains(words), "'{words}' in '{said}'");
    says(refused(config("mysql://me@db/farm".into())).await, "its URL is none of PostgreSQL");
    says(refused(config(server.url("postgres", "nowhere"))).await, "\"nowhere\" does not exist");
    says(refused(config(server.url("nobody_here", "postgres"))).await, "\"nobody_here\" does not exist");
    let away = format!(
        "postgres://me@localhost/farm?host={}%2Fno",
        server.socket_folder().display().to_string().replace('/', "%2F")
    );
    says(refused(config(away)).await, "cannot open the database farm at ");

    server.sql("postgres", "CREATE ROLE guest LOGIN");
    let url = server.database("closed");
    let before = shape(&server, "closed");
    says(
        refused(config(server.url("guest", "closed"))).await,
        "the user guest may not make tables in its schema public",
    );
    let no_begin = PostgresConfig { may_begin: false, ..config(url.clone()) };
    says(refused(no_begin).await, "it is empty, and the folders of this coordinator are a farm's");
    assert_eq!(shape(&server, "closed"), before);
    let store = open(url.clone()).await;
    let farm = store.farm().to_owned();
    store.close().await.unwrap();
    says(
        refused(config(server.url("guest", "closed"))).await,
        "the user guest may not read and write its tables: agents,",
    );
    let of = |farm: &str| PostgresConfig { farm: Some(farm.into()), ..config(url.clone()) };
    PostgresStore::open(&of(&farm)).await.unwrap().close().await.unwrap();
    says(
        refused(of("another")).await,
        &format!("it is another farm's ({farm}) than the folders of this coordinator (another)"),
    );
    server.sql("closed", "INSERT INTO schema_versions VALUES (99, 0)");
    says(refused(config(url)).await, "was written by a newer planforge: it has schema version 99, this one knows 26");

    let url = server.database("theirs");
    server.sql("theirs", "CREATE TABLE customers (id INT)");
    says(refused(config(url)).await, "its schema public holds another program's tables: customers");
    assert_eq!(server.sql("theirs", "SELECT COUNT(*) FROM pg_class WHERE relname = 'jobs'"), "0");

    let url = server.database("still");
    server.sql("postgres", "ALTER DATABASE still SET default_transaction_read_only = on");
    says(refused(config(url)).await, "it takes no writes from this user");
    server.sql("postgres", "CREATE DATABASE older ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    says(refused(config(server.url("postgres", "older"))).await, "its texts are LATIN1");

    let replica = server.replica();
    says(refused(config(replica.url("postgres", "theirs"))).await, "its server is a replica");
}

/// What a store says of everything that is listed, and goes on with.
pub(crate) async fn told(store: &dyn Store) -> String {
    let limit = 1_000;
    let jobs = store.jobs(JobFilter { limit, ..JobFilter::default() }).await.unwrap();
    let events = store.events(EventFilter { limit, ..EventFilter::default() }).await.unwrap();
    let engines = store.engines(EngineFilter { limit, ..EngineFilter::default() }).await.unwrap();
    let reports = store.reports(ReportFilter { limit, ..ReportFilter::default() }).await.unwrap();
    let requests = store.part_of_requests(RequestFilter { limit, ..RequestFilter::default() }).await.unwrap();
    let (tokens, heaps) = (store.tokens().await.unwrap(), store.heaps().await.unwrap());
    let (counts, projects) = (store.job_counts(None).await.unwrap(), store.project_names().await.unwrap());
    let coverage = coverage_store::everything(store).await;
    let mut loaded = store.load().await.unwrap();
    // In whatever order.
    loaded.jobs.sort_by(|one, other| one.id.cmp(&other.id));
    format!(
        "{jobs:#?}{events:#?}{engines:#?}{reports:#?}{requests:#?}{tokens:#?}{heaps:#?}{counts:#?}{projects:#?}{coverage:#?}{loaded:#?}"
    )
}

async fn moved(data: &Path, url: &str) -> Result<Vec<MovedTable>, String> {
    let mut told = Vec::new();
    let moved = move_to_postgres(data, url, &mut |table| told.push(*table)).await.map_err(|error| error.to_string())?;
    assert_eq!(moved.tables, told);
    Ok(told)
}

#[tokio::test]
async fn a_farm_is_moved_from_sqlite_whole_and_goes_on_where_it_was_broken_off() {
    let Some(server) = Server::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    assert!(moved(data, "postgres://nowhere").await.unwrap_err().contains("there is no farm in "));
    let sqlite = SqliteStore::open(&data.join("farm.db")).await.unwrap();
    store::conforms(&sqlite).await;
    let before = told(&sqlite).await;
    let known = sqlite.tokens().await.unwrap().len();
    assert!(before.len() > 10_000 && known > 0, "something is moved");
    sqlite.close().await.unwrap();

    let url = server.database("farm");
    let tables = moved(data, &url).await.unwrap();
    let rows = |name: &str| tables.iter().find(|moved| moved.table == name).unwrap().rows;
    assert!(tables.iter().all(|moved| !moved.was_there || moved.rows == 0), "{tables:?}");
    assert!(["jobs", "events", "engines", "tokens", "coverage_places"].iter().all(|name| rows(name) > 0), "{tables:?}");
    let after = open(url.clone()).await;
    assert_eq!(told(&after).await, before);
    // It is written to as before, and what triggers keep is kept.
    let epoch = after.acquire("next", 1).await.unwrap();
    let counted = after.count_jobs(JobFilter::default()).await.unwrap().count;
    after.commit(epoch, vec![Change::Job(Arc::new(job("moved", JobState::Queued, 1)))]).await.unwrap();
    assert_eq!(after.count_jobs(JobFilter::default()).await.unwrap().count, counted + 1);
    after.close().await.unwrap();
    assert!(moved(data, &url).await.unwrap_err().contains("is of a farm whose store is PostgreSQL"));

    // Broken off behind some tables: the rest is copied, and what is there is left alone.
    let farm = fs::read_to_string(data.join("farm.name")).unwrap();
    fs::rename(data.join("farm.name"), data.join("farm.moving")).unwrap();
    server.sql("farm", "DELETE FROM events");
    let again = moved(data, &url).await.unwrap();
    let copied: Vec<&str> = again.iter().filter(|moved| !moved.was_there).map(|moved| moved.table).collect();
    assert!(copied.contains(&"events") && copied.contains(&"jobs") && !copied.contains(&"engines"), "{copied:?}");
    let after = open(url).await;
    assert_eq!(told(&after).await, before, "nothing of what came between");
    after.close().await.unwrap();
    assert_eq!(fs::read_to_string(data.join("farm.name")).unwrap(), farm);

    // Another farm's database is left alone.
    fs::remove_file(data.join("farm.name")).unwrap();
    let other = server.database("other");
    let theirs = open(other.clone()).await;
    let epoch = theirs.acquire("theirs", 1).await.unwrap();
    theirs.commit(epoch, vec![event(1, "aa1")]).await.unwrap();
    theirs.close().await.unwrap();
    assert!(moved(data, &other).await.unwrap_err().contains("is a farm's already"));
    assert_eq!(server.sql("other", "SELECT COUNT(*) FROM events"), "1");
}
