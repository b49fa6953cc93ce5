//! Work on a farm's store while nobody leads it: the lease is taken for it and given back however it ends.
use super::StartError;
use crate::store::{LEASE, Store, StoreError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often a lease that another one holds is looked at.
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// Does `work` in an epoch of its own and closes the store. Whoever died with the lease is waited for; a coordinator that
/// lives renews it.
///
/// # Errors
/// Another one leads, `work` fails, or the store cannot be closed.
pub(super) async fn alone<T>(
    store: &dyn Store,
    name: &str,
    work: impl AsyncFnOnce(u64) -> Result<T, StartError>,
) -> Result<T, StartError> {
    let of_store = |error: StoreError| StartError::Farm(error.into());
    let until = Instant::now() + LEASE + 2 * LOOKS_EVERY;
    let epoch = loop {
        match store.acquire(name, 0).await {
            Err(StoreError::Led { .. }) if Instant::now() < until => sleep(LOOKS_EVERY).await,
            taken => break taken.map_err(of_store)?,
        }
    };
    let done = work(epoch).await;
    // A process that ends at once would leave the lease to run out.
    let closed = store.close().await.map_err(of_store);
    let done = done?;
    closed.map(|()| done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{PostgresConfig, PostgresStore};
    use planforge_postgres_server::Server;

    async fn open(url: &str) -> PostgresStore {
        let config = PostgresConfig { url: url.into(), may_begin: true, ..PostgresConfig::default() };
        PostgresStore::open(&config).await.unwrap()
    }

    /// As `admin export` and the rest do it: whatever went wrong in the middle.
    async fn broken_off(store: &dyn Store) -> Result<(), StartError> {
        alone(store, "one", async |_| Err(StartError::NoFarm { folder: "here".into() })).await
    }

    #[tokio::test]
    async fn work_that_fails_gives_the_lease_back() {
        let Some(server) = Server::start() else { return };
        let url = server.database("farm");
        let (store, next) = (open(&url).await, open(&url).await);
        let failed = broken_off(&store).await.unwrap_err();
        assert!(matches!(failed, StartError::NoFarm { .. }), "{failed}");
        next.acquire("next", 0).await.unwrap();
    }

    #[tokio::test]
    async fn who_leads_is_not_disturbed_and_who_died_is_waited_for() {
        let Some(server) = Server::start() else { return };
        let url = server.database("farm");
        let leader = open(&url).await;
        leader.acquire("leader", 0).await.unwrap();
        let refused = alone(&open(&url).await, "tool", async |_| Ok(())).await.unwrap_err();
        assert!(refused.to_string().contains("another coordinator leads this farm: leader"), "{refused}");
        leader.close().await.unwrap();
        // Nobody gives this one back, and nobody renews it.
        let sql = "UPDATE leader SET owner = 'dead', holder = 'dead', \
                   expires_at = clock_timestamp() + interval '1500 milliseconds'";
        server.sql("farm", sql);
        alone(&open(&url).await, "tool", async |_| Ok(())).await.unwrap();
    }
}
