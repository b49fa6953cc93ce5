//! Lists in pages, read from the store: the leader is asked only about the jobs that are shown.

use super::{
    Farm, convert,
    convert::invalid,
    pages::{self, Cursor, Page},
    requests::{NAMED_MAX, bounded, visible_project},
};
use crate::{
    auth::Actor,
    core::JobState,
    store::{Count, EngineFilter, JobFilter, JobOrder, Part},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use planforge_metrics::FarmStats;
use planforge_proto::{ApiError, v1};
use planforge_report::figures::Figures;
use std::collections::BTreeSet;

/// Parts of a list that are looked through for the first row of a page; a client that stops at an empty page loses
/// nothing before a list is this sparse.
pub(super) const PARTS_MAX: usize = 8;
/// Rows of a list whose reports are read at once.
const READ_AT_ONCE: usize = 16;
/// Device kinds that nobody offers among which the oldest waiting job is looked for.
const OTHER_SKUS_MAX: usize = 64;
/// The label of all of them.
const OTHER_SKUS: &str = "other";

/// Jobs that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveCounts {
    /// On a device, or on their way to it.
    pub running: usize,
    pub waiting: usize,
}

impl LiveCounts {
    /// With so many jobs more.
    fn and(self, state: JobState, count: usize) -> Self {
        match state {
            JobState::Leased | JobState::Running => Self { running: self.running + count, ..self },
            _ => Self { waiting: self.waiting + count, ..self },
        }
    }
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn order(order: i32) -> Result<JobOrder, ApiError> {
    match v1::JobOrder::try_from(order) {
        Ok(v1::JobOrder::Unspecified | v1::JobOrder::Newest) => Ok(JobOrder::Newest),
        Ok(v1::JobOrder::Oldest) => Ok(JobOrder::Oldest),
        Ok(v1::JobOrder::Ended) => Ok(JobOrder::Ended),
        Err(_) => Err(invalid(format!("this coordinator does not know the order {order} of jobs"))),
    }
}

/// What cursors of an order begin with: one of another order is none.
fn mark(order: JobOrder) -> &'static str {
    match order {
        JobOrder::Newest => "",
        JobOrder::Oldest => "o",
        JobOrder::Ended => "e",
    }
}

impl Farm {
    pub(super) async fn jobs_out(
        &self,
        actor: &Actor,
        request: v1::ListJobsRequest,
    ) -> Result<v1::ListJobsReply, ApiError> {
        if request.ids.len() > NAMED_MAX {
            return Err(invalid(format!("a list names at most {NAMED_MAX} jobs")));
        }
        let project = visible_project(actor, &request.project)?;
        let mut ids = Vec::with_capacity(request.ids.len());
        for id in &request.ids {
            ids.push(self.find_job(actor, id).await?.id);
        }
        let named = !ids.is_empty();
        let mut limit = if named { ids.len() } else { bounded(request.limit) };
        if !request.request_id.is_empty() {
            let of_request = self.jobs_of_request(project.as_deref(), &request.request_id).await?;
            ids = match named {
                true => of_request.into_iter().filter(|id| ids.contains(id)).collect(),
                false => of_request,
            };
            if request.limit == 0 {
                limit = ids.len();
            }
            if ids.is_empty() {
                return Ok(v1::ListJobsReply::default());
            }
        }
        let order = order(request.order)?;
        let behind = match request.cursor.strip_prefix(mark(order)) {
            Some(cursor) => Cursor::read(cursor)?.map(|Cursor { created_ms, names: [id] }| (created_ms, id.into())),
            None if request.cursor.is_empty() => None,
            None => return Err(pages::bad_cursor()),
        };
        let filter = JobFilter {
            project: project.clone(),
            states: request.states.iter().map(|state| convert::state(*state)).collect::<Result<_, _>>()?,
            limit,
            ids,
            sku: some(request.sku),
            model: some(request.model),
            tags: convert::tags(&request.tags)?,
            since_ms: Some(request.since_ms).filter(|at_ms| *at_ms > 0),
            until_ms: Some(request.until_ms).filter(|at_ms| *at_ms > 0),
            order,
            behind,
        };
        let total = match request.with_total {
            true => self.timed("count_jobs", self.store().count_jobs(filter.clone())).await?,
            false => Count::default(),
        };
        let Part { items: jobs, rest } = self.next_jobs(filter.clone()).await?;
        let mut views: Vec<v1::Job> = jobs.iter().map(|job| convert::job_out(job, project.as_deref())).collect();
        if !named {
            views.iter_mut().for_each(|job| job.attempts.clear());
        }
        self.fill_live(&mut views).await?;
        let mut page = Page::new();
        'page: for some in views.chunks_mut(READ_AT_ONCE) {
            if request.with_reports {
                self.fill_reports(some).await?;
            }
            for view in some {
                if !page.push(std::mem::take(view)) {
                    break 'page;
                }
            }
        }
        let cut = jobs.get(page.len().wrapping_sub(1)).filter(|_| page.len() < jobs.len());
        let next = cut.map(|last| filter.place(last)).or(rest);
        let next_cursor = next
            .map(|(created_ms, id)| format!("{}{}", mark(order), Cursor { created_ms, names: [id.as_str()] }.write()));
        Ok(v1::ListJobsReply {
            jobs: page.into_items(),
            next_cursor: next_cursor.unwrap_or_default(),
            total: total.count,
            more_than_total: request.with_total && !total.is_exact,
        })
    }

    /// The next part of a list that has something in it, within bounds.
    async fn next_jobs(
        &self,
        mut filter: JobFilter,
    ) -> Result<Part<crate::core::Job, (u64, crate::core::JobId)>, ApiError> {
        for _ in 1..PARTS_MAX {
            let part = self.timed("jobs", self.store().part_of_jobs(filter.clone())).await?;
            if !part.items.is_empty() || part.rest.is_none() {
                return Ok(part);
            }
            filter.behind = part.rest;
        }
        self.timed("jobs", self.store().part_of_jobs(filter)).await
    }

    pub(super) async fn engines_out(
        &self,
        actor: &Actor,
        request: v1::ListEnginesRequest,
    ) -> Result<v1::ListEnginesReply, ApiError> {
        let behind = match Cursor::read(&request.cursor)? {
            Some(Cursor { created_ms, names: [key, plan] }) => {
                let key = key.parse().map_err(|_| pages::bad_cursor())?;
                Some((created_ms, key, plan.parse().map_err(|_| pages::bad_cursor())?))
            }
            None => None,
        };
        let mut filter = EngineFilter {
            project: visible_project(actor, &request.project)?,
            model: some(request.model),
            sku: some(request.sku),
            behind,
            limit: bounded(request.limit),
            ..EngineFilter::default()
        };
        let total = match request.with_total {
            true => self.timed("count_engines", self.store().count_engines(filter.clone())).await?,
            false => Count::default(),
        };
        let mut part = self.timed("engines", self.store().part_of_engines(filter.clone())).await?;
        for _ in 1..PARTS_MAX {
            if !part.items.is_empty() || part.rest.is_none() {
                break;
            }
            filter.behind = part.rest;
            part = self.timed("engines", self.store().part_of_engines(filter.clone())).await?;
        }
        let Part { items: engines, rest } = part;
        let views: Vec<_> = engines.iter().map(|engine| self.engine_view(actor, engine)).collect();
        let (mut page, mut views) = (Page::new(), stream::iter(views).buffered(READ_AT_ONCE));
        while let Some(mut view) = views.try_next().await? {
            if request.brief_reports {
                view.report_json = Figures::brief(&view.report_json).unwrap_or_default();
            }
            if !page.push(view) {
                break;
            }
        }
        drop(views);
        let cut = engines.get(page.len().wrapping_sub(1)).filter(|_| page.len() < engines.len());
        let next = cut.map(|last| (last.created_ms, last.key, last.plan.digest)).or(rest);
        let next_cursor = next.map(|(created_ms, key, plan)| {
            let names = [key.to_string(), plan.to_string()];
            Cursor { created_ms, names: names.each_ref().map(String::as_str) }.write()
        });
        Ok(v1::ListEnginesReply {
            engines: page.into_items(),
            next_cursor: next_cursor.unwrap_or_default(),
            total: total.count,
            more_than_total: request.with_total && !total.is_exact,
        })
    }

    /// How many of the caller's jobs run and wait.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn live_counts(&self, actor: &Actor) -> Result<LiveCounts, ApiError> {
        let counts = self.timed("job_counts", self.store().job_counts(actor.project.as_deref())).await?;
        let live = counts.into_iter().filter(|((_, state), _)| !state.is_terminal());
        Ok(live.fold(LiveCounts::default(), |counts, ((_, state), count)| counts.and(state, count as usize)))
    }

    /// Adds what the store counts: live jobs, and since when the oldest of a device kind waits. `labels` are the device
    /// kinds that are told apart: a request may invent others, and so may an agent.
    pub(super) async fn add_waiting(
        &self,
        stats: &mut FarmStats,
        labels: &BTreeSet<planforge_types::Sku>,
    ) -> Result<(), ApiError> {
        let counts = self.timed("job_counts", self.store().job_counts(None)).await?;
        let mut waiting = BTreeSet::new();
        for ((sku, state), count) in counts {
            if !state.is_terminal() {
                *stats.live_jobs.entry(state.name()).or_default() += count;
            }
            if matches!(state, JobState::Queued | JobState::Unplaceable) {
                waiting.insert(sku);
            }
        }
        let is_label = |sku: &String| labels.iter().any(|label| label.as_str() == sku);
        let (known, others): (Vec<String>, Vec<String>) = waiting.into_iter().partition(is_label);
        let now_ms = self.clock().wall_ms();
        let asked = known.into_iter().chain(others.into_iter().take(OTHER_SKUS_MAX)).collect();
        let states = &[JobState::Queued, JobState::Unplaceable];
        for (sku, since_ms) in self.timed("oldest_waiting", self.store().oldest_waiting(asked, states)).await? {
            let label = if is_label(&sku) { sku.as_str() } else { OTHER_SKUS };
            let oldest_ms = stats.oldest_pending_ms.entry(label.to_owned()).or_default();
            *oldest_ms = now_ms.saturating_sub(since_ms).max(*oldest_ms);
        }
        Ok(())
    }
}
