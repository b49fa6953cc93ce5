//! Lists of requests and of events, in pages.

use super::{
    Farm, convert,
    convert::invalid,
    lists::PARTS_MAX,
    pages::{self, Cursor, Page},
    requests::{NAMED_MAX, bounded, visible_project},
};
use crate::{
    auth::Actor,
    core::{Event, Job, JobId},
    store::{Count, EventListFilter, JobFilter, ListedRequest, Part, RequestFilter, RequestState},
};
use planforge_proto::{ApiError, v1};
use std::collections::{BTreeMap, BTreeSet};

/// Kinds of events that one list names.
const KINDS_MAX: usize = 64;

fn state(state: i32) -> Result<RequestState, ApiError> {
    match v1::RequestState::try_from(state) {
        Ok(v1::RequestState::Open) => Ok(RequestState::Open),
        Ok(v1::RequestState::Succeeded) => Ok(RequestState::Succeeded),
        Ok(v1::RequestState::Failed) => Ok(RequestState::Failed),
        Ok(v1::RequestState::Unspecified) | Err(_) => {
            Err(invalid(format!("this coordinator does not know the state {state} of requests")))
        }
    }
}

fn request_out(listed: &ListedRequest) -> v1::SubmittedRequest {
    let state = match listed.state() {
        RequestState::Open => v1::RequestState::Open,
        RequestState::Succeeded => v1::RequestState::Succeeded,
        RequestState::Failed => v1::RequestState::Failed,
    };
    v1::SubmittedRequest {
        id: listed.request.id.clone(),
        project: listed.request.project.clone(),
        actor: listed.request.actor.clone(),
        created_ms: listed.request.created_ms,
        state: state.into(),
        jobs: listed.jobs,
        live_jobs: listed.live,
        failed_jobs: listed.lost,
    }
}

impl Farm {
    /// Requests of the caller's, newest first.
    ///
    /// # Errors
    /// For an agent's token, for another project than the caller's, for a cursor that is none, or when the store cannot be
    /// asked.
    pub async fn list_requests(
        &self,
        actor: &Actor,
        request: v1::ListRequestsRequest,
    ) -> Result<v1::ListRequestsReply, ApiError> {
        let project = visible_project(actor, &request.project)?;
        // Each once, so that none of its requests is counted twice.
        let states: BTreeSet<i32> = request.states.iter().copied().collect();
        let states: Vec<RequestState> = states.into_iter().map(state).collect::<Result<_, _>>()?;
        let filter = RequestFilter {
            project,
            states,
            since_ms: Some(request.since_ms).filter(|at_ms| *at_ms > 0),
            until_ms: Some(request.until_ms).filter(|at_ms| *at_ms > 0),
            behind: Cursor::read(&request.cursor)?
                .map(|Cursor { created_ms, names: [id] }| (created_ms, id.to_owned())),
            limit: bounded(request.limit),
        };
        let total = match request.with_total {
            true => self.timed("count_requests", self.store().count_requests(filter.clone())).await?,
            false => Count::default(),
        };
        let Part { items, rest } = self.timed("requests", self.store().part_of_requests(filter)).await?;
        let mut page = Page::new();
        for listed in &items {
            if !page.push(request_out(listed)) {
                break;
            }
        }
        let cut = items.get(page.len().wrapping_sub(1)).filter(|_| page.len() < items.len());
        let next = cut.map(ListedRequest::place).or(rest);
        let next_cursor = next.map(|(created_ms, id)| Cursor { created_ms, names: [id.as_str()] }.write());
        Ok(v1::ListRequestsReply {
            requests: page.into_items(),
            next_cursor: next_cursor.unwrap_or_default(),
            total: total.count,
            more_than_total: request.with_total && !total.is_exact,
        })
    }

    /// Events of the caller's jobs, the latest first.
    ///
    /// # Errors
    /// For an agent's token, for another project than the caller's, for a job that is not the caller's, for a cursor that is
    /// none, or when the store cannot be asked.
    pub async fn list_events(
        &self,
        actor: &Actor,
        request: v1::ListEventsRequest,
    ) -> Result<v1::ListEventsReply, ApiError> {
        let project = visible_project(actor, &request.project)?;
        if request.jobs.len() > NAMED_MAX {
            return Err(invalid(format!("a list names at most {NAMED_MAX} jobs")));
        }
        let kinds: BTreeSet<String> = request.kinds.into_iter().collect();
        if kinds.len() > KINDS_MAX {
            return Err(invalid(format!("a list names at most {KINDS_MAX} kinds of events")));
        }
        let mut jobs = BTreeSet::new();
        for id in &request.jobs {
            jobs.insert(self.find_job(actor, id).await?.id);
        }
        let before = match request.cursor.as_str() {
            "" => None,
            cursor => Some(cursor.parse().map_err(|_| pages::bad_cursor())?),
        };
        let filter = EventListFilter {
            after: request.after,
            project: project.clone(),
            jobs: jobs.into_iter().collect(),
            kinds: kinds.into_iter().collect(),
            before,
            limit: bounded(request.limit),
        };
        let total = match request.with_total {
            true => self.timed("count_events", self.store().count_events(filter.clone())).await?,
            false => Count::default(),
        };
        let Part { items, rest } = self.next_events(filter).await?;
        let known = self.jobs_of_events(&items).await?;
        let mut page = Page::new();
        // Of what comes after the last that fits.
        let mut cut = None;
        for event in &items {
            if !page.push(convert::event_record_out(event, known.get(&event.job), project.as_deref())) {
                break;
            }
            cut = Some(event.seq);
        }
        let next = cut.filter(|_| page.len() < items.len()).or(rest);
        Ok(v1::ListEventsReply {
            events: page.into_items(),
            next_cursor: next.map(|seq| seq.to_string()).unwrap_or_default(),
            total: total.count,
            more_than_total: request.with_total && !total.is_exact,
        })
    }

    /// The next part of a list that has something in it, within bounds.
    async fn next_events(&self, mut filter: EventListFilter) -> Result<Part<Event, u64>, ApiError> {
        for _ in 1..PARTS_MAX {
            let part = self.timed("events", self.store().part_of_events(filter.clone())).await?;
            if !part.items.is_empty() || part.rest.is_none() {
                return Ok(part);
            }
            filter.before = part.rest;
        }
        self.timed("events", self.store().part_of_events(filter)).await
    }

    async fn jobs_of_events(&self, events: &[Event]) -> Result<BTreeMap<JobId, Job>, ApiError> {
        let ids: BTreeSet<JobId> = events.iter().map(|event| event.job.clone()).collect();
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let filter = JobFilter { limit: ids.len(), ids: ids.into_iter().collect(), ..JobFilter::default() };
        let jobs = self.timed("jobs", self.store().jobs(filter)).await?;
        Ok(jobs.into_iter().map(|job| (job.id.clone(), job)).collect())
    }
}
