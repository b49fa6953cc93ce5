//! When a farm looks for stale engines by itself: as often as its operator says, counted over all the processes that run it.

use crate::{auth::Actor, farm::Farm};
use planforge_proto::{ApiError, v1};
use planforge_types::durable;
use std::{fs, path::PathBuf, time::Duration};
use tokio::time::sleep;

/// A coordinator that starts lets its agents join first: what they offer decides what is stale.
const FIRST_AFTER: Duration = Duration::from_secs(60);

/// How often, and what for.
#[derive(Clone, Debug)]
pub struct RefreshSchedule {
    pub every: Duration,
    /// Also engines that were last measured longer ago; `None`: age is no reason.
    pub older_than: Option<Duration>,
}

/// Refreshes one farm.
#[derive(Debug)]
pub(super) struct Refresher {
    pub farm: Farm,
    pub schedule: RefreshSchedule,
    /// Holds when the last look ended, in milliseconds of the coordinator's clock.
    pub mark: PathBuf,
}

impl Refresher {
    fn due_in(&self) -> Duration {
        let ended_ms = fs::read_to_string(&self.mark).ok().and_then(|text| text.trim().parse::<u64>().ok());
        // A mark from the future is none: the clock was set back.
        let age_ms = ended_ms.and_then(|ended_ms| self.farm.clock().wall_ms().checked_sub(ended_ms));
        age_ms.map_or(Duration::ZERO, |age_ms| self.schedule.every.saturating_sub(Duration::from_millis(age_ms)))
    }

    async fn refresh(&self) -> Result<(), ApiError> {
        let older_than_s = self.schedule.older_than.map_or(0, |age| age.as_secs());
        let request = v1::RefreshRequest { older_than_s, ..v1::RefreshRequest::default() };
        let reply = self.farm.refresh(&Actor::local(), request).await?;
        let submitted = reply.cells.iter().filter(|cell| !cell.job.is_empty() && !cell.under_way).count();
        let refused = reply.cells.iter().filter(|cell| !cell.refusal.is_empty()).count();
        if submitted + refused > 0 {
            tracing::info!(looked_at = reply.looked_at, submitted, refused, "stale engines are built again");
        }
        let now = self.farm.clock().wall_ms().to_string();
        if let Err(error) = durable::write_private(&self.mark, now.as_bytes()) {
            tracing::warn!(path = %self.mark.display(), %error, "cannot note that the farm was refreshed");
        }
        Ok(())
    }

    pub async fn for_ever(self) {
        loop {
            sleep(self.due_in().max(FIRST_AFTER.min(self.schedule.every))).await;
            if let Err(error) = self.refresh().await {
                tracing::warn!(%error, "stale engines could not be looked for; trying again later");
            }
        }
    }
}
