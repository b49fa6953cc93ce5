//! What the page asks beside lists: the queue by device kind, and what happened to a job.

use super::{Farm, convert, requests::visible_project};
use crate::{
    auth::Actor,
    core::JobState,
    store::{EventFilter, JobFilter, JobOrder},
};
use futures::future::try_join_all;
use planforge_page::lists::Depth;
use planforge_proto::{ApiError, v1};
use std::collections::BTreeMap;

/// Device kinds that are looked at for the age of their oldest job.
const DEPTHS_MAX: usize = 32;
/// States in which a job stands in the queue.
const WAITING: [JobState; 3] = [JobState::Queued, JobState::Unplaceable, JobState::Blocked];
/// Events of one job that are shown: more than a job that was tried as often as it may be has.
const HISTORY_MAX: usize = 300;

impl Farm {
    /// How much of the caller's runs and waits, by device kind: those first for which most waits.
    ///
    /// # Errors
    /// For an agent's token, or when the store cannot be asked.
    pub async fn queue_depths(&self, actor: &Actor) -> Result<Vec<Depth>, ApiError> {
        let project = visible_project(actor, "")?;
        let counts = self.timed("job_counts", self.store().job_counts(project.as_deref())).await?;
        let mut depths: BTreeMap<String, Depth> = BTreeMap::new();
        for ((sku, state), count) in counts {
            if state.is_terminal() {
                continue;
            }
            let empty = || Depth { sku: sku.clone(), running: 0, waiting: 0, oldest_ms: 0, online: 0, busy: 0 };
            let depth = depths.entry(sku.clone()).or_insert_with(empty);
            match state {
                JobState::Leased | JobState::Running => depth.running += count,
                _ => depth.waiting += count,
            }
        }
        let mut depths: Vec<Depth> = depths.into_values().filter(|depth| depth.running + depth.waiting > 0).collect();
        depths.sort_by(|left, right| right.waiting.cmp(&left.waiting).then(left.sku.cmp(&right.sku)));
        depths.truncate(DEPTHS_MAX);
        let skus: Vec<String> = depths.iter().map(|depth| depth.sku.clone()).collect();
        let devices = self.ask(move |state, _| state.online_and_busy(&skus)).await?;
        for (depth, (online, busy)) in depths.iter_mut().zip(devices) {
            (depth.online, depth.busy) = (online, busy);
        }
        if project.is_none() {
            let waiting = depths.iter().filter(|depth| depth.waiting > 0).map(|depth| depth.sku.clone()).collect();
            let oldest = self.timed("oldest_waiting", self.store().oldest_waiting(waiting, &WAITING)).await?;
            for depth in &mut depths {
                depth.oldest_ms = oldest.get(&depth.sku).copied().unwrap_or_default();
            }
            return Ok(depths);
        }
        // No index has a project's jobs by device kind and age: its list is walked for each.
        let oldest = depths.iter_mut().filter(|depth| depth.waiting > 0).map(async |depth| {
            let oldest = JobFilter {
                project: project.clone(),
                states: WAITING.to_vec(),
                sku: Some(depth.sku.clone()),
                order: JobOrder::Oldest,
                limit: 1,
                ..JobFilter::default()
            };
            let part = self.timed("jobs", self.store().part_of_jobs(oldest)).await?;
            depth.oldest_ms = part.items.first().map(|job| job.created_ms).unwrap_or_default();
            Ok::<(), ApiError>(())
        });
        try_join_all(oldest).await?;
        Ok(depths)
    }

    /// The first events of a job of the caller's.
    ///
    /// # Errors
    /// When there is no such job, or the store cannot be asked.
    pub async fn history(&self, actor: &Actor, id: &str) -> Result<Vec<v1::JobEvent>, ApiError> {
        let job = self.find_job(actor, id).await?;
        let project = visible_project(actor, "")?;
        let of_job = EventFilter { after: 0, project: project.clone(), jobs: vec![job.id.clone()], limit: HISTORY_MAX };
        let events = self.timed("events", self.store().events(of_job)).await?;
        Ok(events.iter().map(|event| convert::event_out(event, &job, project.as_deref())).collect())
    }
}
