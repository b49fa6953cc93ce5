//! When a farm is tidied: once a day, counted over all the processes that run it. A farm that only lives for the length of
//! a build is tidied at the end of one.
//!
//! Crash safety: `tidied` is written after a collection, so that one that broke off is begun again; a collection may
//! break off anywhere (`farm/gc.rs`).

use crate::{auth::Actor, farm::Farm};
use planforge_proto::{ApiError, v1};
use planforge_types::durable;
use std::{fs, path::PathBuf, time::Duration};
use tokio::time::{sleep, timeout};

/// Between two collections.
const EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// A coordinator that starts has others to serve first.
const FIRST_AFTER: Duration = Duration::from_secs(20);
/// After one that failed.
const AGAIN_AFTER: Duration = Duration::from_secs(60 * 60);

/// Tidies one farm; clones share its data folder.
#[derive(Clone, Debug)]
pub(super) struct Tidy {
    farm: Farm,
    /// Holds when the last collection ended, in milliseconds of the coordinator's clock.
    mark: PathBuf,
}

impl Tidy {
    pub fn new(farm: Farm, mark: PathBuf) -> Self {
        Self { farm, mark }
    }

    /// How long until the next collection. A mark from the future is none: the clock was set back.
    fn due_in(&self) -> Duration {
        let ended_ms = fs::read_to_string(&self.mark).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let age_ms = ended_ms.and_then(|ended_ms| self.farm.clock().wall_ms().checked_sub(ended_ms));
        age_ms.map_or(Duration::ZERO, |age_ms| EVERY.saturating_sub(Duration::from_millis(age_ms)))
    }

    async fn tidy(&self) -> Result<(), ApiError> {
        let told = self.farm.collect_garbage(&Actor::local(), v1::CollectGarbageRequest::default()).await?;
        if told.jobs + told.engines + told.blobs > 0 {
            let (jobs, engines, blobs, bytes) = (told.jobs, told.engines, told.blobs, told.blob_bytes);
            tracing::info!(jobs, engines, blobs, bytes, "what nobody needs any more is gone");
        }
        let now = self.farm.clock().wall_ms().to_string();
        if let Err(error) = durable::write_private(&self.mark, now.as_bytes()) {
            tracing::warn!(path = %self.mark.display(), %error, "cannot note that the farm was tidied");
        }
        Ok(())
    }

    /// Tidies where that is due, and breaks off after a while: the next one goes on.
    pub async fn if_due(&self, within: Duration) {
        if !self.due_in().is_zero() {
            return;
        }
        match timeout(within, self.tidy()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "nothing could be taken away; trying again later"),
            Err(_) => tracing::info!("what nobody needs any more is not all gone yet; going on next time"),
        }
    }

    pub async fn for_ever(self) {
        let mut pause = FIRST_AFTER;
        loop {
            sleep(self.due_in().max(pause)).await;
            pause = match self.tidy().await {
                Ok(()) => FIRST_AFTER,
                Err(error) => {
                    tracing::warn!(%error, "nothing could be taken away; trying again later");
                    AGAIN_AFTER
                }
            };
        }
    }
}
