//! What PostgreSQL undoes, for another transaction or because it ended the session, is written all the same and once.

use crate::{
    postgres::config,
    store::{event, job},
    support::until,
};
use planforge_coordinator::{
    core::{Change, JobState},
    store::{EventFilter, PostgresStore, Store, StoreError},
};
use planforge_postgres_server::Server;
use sqlx::{Connection as _, Executor as _, PgConnection};
use std::sync::Arc;

/// How many sessions of the farm wait for another's lock.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'farm' AND wait_event_type = 'Lock'";
const END_WHO_WAITS: &str =
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'farm' AND wait_event_type = 'Lock'";

const END_ALL_OTHERS: &str =
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'farm' AND pid <> pg_backend_pid()";

/// A store that leads, the address of its database, and its epoch.
async fn led(server: &Server) -> (Arc<PostgresStore>, String, u64) {
    let url = server.database("farm");
    let store = Arc::new(PostgresStore::open(&config(url.clone())).await.unwrap());
    let epoch = store.acquire("one", 1).await.unwrap();
    (store, url, epoch)
}

async fn sequences(store: &PostgresStore) -> Vec<u64> {
    let events = store.events(EventFilter { limit: 100, ..EventFilter::default() }).await.unwrap();
    events.iter().map(|event| event.seq).collect()
}

/// The commit of a job and an event while another session holds the job's row; `meanwhile` ends that, and the commit
/// holds, once.
async fn commit_behind_a_lock(server: &Server, meanwhile: impl AsyncFnOnce(&Server, &mut PgConnection)) {
    let (store, url, epoch) = led(server).await;
    store.commit(epoch, vec![Change::Job(Arc::new(job("aa1", JobState::Queued, 1)))]).await.unwrap();
    let mut other = PgConnection::connect(&url).await.unwrap();
    other.execute("BEGIN; SELECT 1 FROM jobs FOR UPDATE").await.unwrap();
    let changed = job("aa1", JobState::Succeeded, 1);
    let changes = vec![Change::Job(Arc::new(changed.clone())), event(1, "aa1")];
    let commit = tokio::spawn({
        let store = store.clone();
        async move { store.commit(epoch, changes).await }
    });
    until("a commit that waits", || async { (server.sql("farm", WAITING).trim() == "1").then_some(()) }).await;
    meanwhile(server, &mut other).await;
    commit.await.unwrap().unwrap();
    assert_eq!(store.job(&changed.id).await.unwrap(), Some(changed));
    assert_eq!(sequences(&store).await, [1]);
    store.check(epoch).await.unwrap();
}

#[tokio::test]
async fn sessions_that_the_server_ended_are_replaced_and_no_commit_is_refused() {
    let Some(server) = Server::start() else { return };
    let (store, _, epoch) = led(&server).await;
    for seq in 1..=3 {
        server.sql("farm", END_ALL_OTHERS);
        store.commit(epoch, vec![event(seq, "aa1")]).await.unwrap();
        assert_eq!(sequences(&store).await.len() as u64, seq);
    }
}

#[tokio::test]
async fn a_commit_whose_session_was_ended_before_it_was_asked_to_hold_is_made_again() {
    let Some(server) = Server::start() else { return };
    commit_behind_a_lock(&server, async |server, other| {
        server.sql("farm", END_WHO_WAITS);
        other.execute("ROLLBACK").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_commit_that_was_undone_to_end_a_deadlock_is_made_again() {
    let Some(server) = Server::start() else { return };
    // The commit looks for deadlocks first, and not before there is one.
    server.sql("postgres", "ALTER ROLE CURRENT_USER SET deadlock_timeout = '3s'");
    commit_behind_a_lock(&server, async |server, other| {
        other.execute("SET deadlock_timeout = '1min'").await.unwrap();
        other.execute("UPDATE leader SET owner = owner").await.unwrap();
        assert!(server.log().contains("deadlock detected"));
        other.execute("COMMIT").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_commit_that_cannot_be_serialized_is_made_again_and_given_up_in_words() {
    let Some(server) = Server::start() else { return };
    let (store, _, epoch) = led(&server).await;
    let conflicts = |times: u32, trigger: &str| {
        let sql = format!(
            "CREATE SEQUENCE tries; CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF nextval('tries') <= {times} THEN RAISE 'could not serialize' USING ERRCODE = '40001'; END IF; \
             RETURN NEW; END $$; {trigger} FOR EACH ROW EXECUTE FUNCTION conflict()"
        );
        server.sql("farm", &sql);
    };
    let no_more = "DROP FUNCTION conflict() CASCADE; DROP SEQUENCE tries";
    // While it is written, and when it is to hold.
    let written = "CREATE TRIGGER conflict BEFORE INSERT ON events";
    let held = "CREATE CONSTRAINT TRIGGER conflict AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED";
    for (seq, trigger) in [(1, written), (2, held)] {
        conflicts(2, trigger);
        store.commit(epoch, vec![event(seq, "aa1")]).await.unwrap();
        server.sql("farm", no_more);
    }
    assert_eq!(sequences(&store).await, [1, 2]);

    for trigger in [written, held] {
        conflicts(1_000, trigger);
        let refused = store.commit(epoch, vec![event(3, "aa1")]).await.unwrap_err();
        assert!(matches!(refused, StoreError::Conflict { .. }), "{refused:?}");
        assert_eq!(server.sql("farm", "SELECT last_value FROM tries").trim(), "4", "the tries");
        server.sql("farm", no_more);
        assert_eq!(sequences(&store).await, [1, 2], "nothing of a commit that was refused");
    }
    store.commit(epoch, vec![event(3, "aa1")]).await.unwrap();
    assert_eq!(sequences(&store).await, [1, 2, 3]);
}
