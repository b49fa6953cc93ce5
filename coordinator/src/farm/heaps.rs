//! What is stored, by project and kind. Counting it goes through every row that holds a blob, so it is done beside whoever
//! asks, now and then, and told with its age.

use super::Farm;
use crate::{auth::Actor, store::Heap};
use planforge_proto::ApiError;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// What was counted is told for this long before it is counted again.
const COUNTED_FOR_MS: u64 = 10 * 60 * 1_000;
/// How long whoever asks waits for a count that has just begun: a small farm's is done by then.
const WAITED_FOR: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
struct Counted {
    at_ms: u64,
    mono_ms: u64,
    heaps: Vec<Heap>,
}

#[derive(Debug, Default)]
struct Known {
    counted: Option<Counted>,
    is_counting: bool,
}

/// The latest count.
#[derive(Debug, Default)]
pub(super) struct Heaps(Mutex<Known>);

impl Heaps {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Farm {
    /// What of the caller's projects is stored, by project and kind, and when it was counted; `None`: it is being counted
    /// for the first time.
    ///
    /// # Errors
    /// For an agent's token.
    pub async fn stored_by_kind(&self, actor: &Actor) -> Result<Option<(u64, Vec<Heap>)>, ApiError> {
        let project = super::requests::visible_project(actor, "")?;
        if self.must_count() {
            let (farm, now_ms) = (self.clone(), self.clock().wall_ms());
            let count = tokio::spawn(async move {
                let counted = farm.timed("heaps", farm.store().heaps()).await;
                let mono_ms = farm.clock().mono_ms();
                let mut known = farm.inner.heaps.known();
                known.is_counting = false;
                match counted {
                    Ok(heaps) => known.counted = Some(Counted { at_ms: now_ms, mono_ms, heaps }),
                    Err(error) => tracing::warn!(%error, "what is stored cannot be counted"),
                }
            });
            // Whoever goes away meanwhile leaves it to the next one.
            let _ = tokio::time::timeout(WAITED_FOR, count).await;
        }
        let counted = self.inner.heaps.known().counted.clone();
        let own = |heap: &Heap| project.as_ref().is_none_or(|project| heap.project == *project);
        Ok(counted.map(|counted| (counted.at_ms, counted.heaps.into_iter().filter(own).collect())))
    }

    /// Whether somebody has to count now: whoever hears so does it.
    fn must_count(&self) -> bool {
        let now_ms = self.clock().mono_ms();
        let mut known = self.inner.heaps.known();
        let is_old = known.counted.as_ref().is_none_or(|counted| now_ms >= counted.mono_ms + COUNTED_FOR_MS);
        if !is_old || known.is_counting {
            return false;
        }
        known.is_counting = true;
        true
    }
}
