//! Projects as their administrators see them: shares, limits, what they hold; and whether one may store more.

use super::{
    Farm, convert,
    pages::{in_hex, of_hex},
    tokens::{admin, some_admin},
};
use crate::{
    auth::{Actor, Role},
    blobs::ProjectRoom,
    core::{AuditKind, Input, ProjectRecord, ProjectView, SHARE_MAX},
};
use planforge_proto::{ApiError, ErrorCode, v1};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

/// Projects that one reply lists, and the page shows.
const LISTED_MAX: usize = 1_000;
/// Projects that may have limits of their own.
const PROJECTS_MAX: usize = 10_000;
/// For so long what a project stores is not counted again, where nothing came to it.
const COUNTED_FOR_MS: u64 = 5_000;
/// Neither is it for pages, which are made anew again and again: counting takes as long as there are rows.
const SHOWN_FOR_MS: u64 = 300_000;
/// Where something came to it meanwhile, counting for pages takes this part of the time at most.
const SHOWN_SHARE: u64 = 200;

/// What projects store, as it was counted last.
#[derive(Debug, Default)]
pub(super) struct StoredBytes(Mutex<BTreeMap<String, Counted>>);

#[derive(Clone, Copy, Debug)]
struct Counted {
    bytes: u64,
    at_ms: u64,
    took_ms: u64,
    /// Something came to it since.
    is_old: bool,
}

/// How new a count has to be.
#[derive(Clone, Copy, Debug)]
enum CountedFor {
    Callers,
    Pages,
}

impl Counted {
    fn is_good(&self, now_ms: u64, whom: CountedFor) -> bool {
        let good_for_ms = match (whom, self.is_old) {
            (CountedFor::Callers, true) => 0,
            (CountedFor::Callers, false) => COUNTED_FOR_MS,
            (CountedFor::Pages, true) => (self.took_ms * SHOWN_SHARE).min(SHOWN_FOR_MS),
            (CountedFor::Pages, false) => SHOWN_FOR_MS,
        };
        now_ms < self.at_ms + good_for_ms
    }
}

impl Farm {
    /// The caller's project, or every one that has limits, jobs or tokens, by name.
    ///
    /// # Errors
    /// For an agent's token, for a cursor that is none, or when the store cannot be asked.
    pub async fn list_projects(
        &self,
        actor: &Actor,
        request: v1::ListProjectsRequest,
    ) -> Result<v1::ListProjectsReply, ApiError> {
        self.projects_out(actor, request, CountedFor::Callers).await
    }

    /// The first of them, as a page shows them: what they store may have been counted some minutes ago.
    pub async fn shown_projects(&self, actor: &Actor) -> Result<v1::ListProjectsReply, ApiError> {
        self.projects_out(actor, v1::ListProjectsRequest::default(), CountedFor::Pages).await
    }

    async fn projects_out(
        &self,
        actor: &Actor,
        request: v1::ListProjectsRequest,
        whom: CountedFor,
    ) -> Result<v1::ListProjectsReply, ApiError> {
        super::confine::may_look(actor)?;
        let behind = Some(of_hex(&request.cursor)?).filter(|name| !name.is_empty());
        let limit = match request.limit as usize {
            0 => LISTED_MAX,
            limit => limit.min(LISTED_MAX),
        };
        let mut names: BTreeSet<String> = match &actor.project {
            Some(project) => BTreeSet::from([project.clone()]),
            None => self.timed("projects", self.store().project_names()).await?.into_iter().collect(),
        };
        let now_ms = self.clock().wall_ms();
        let mut tokens: BTreeMap<String, u32> = BTreeMap::new();
        self.tokens().with(|known| {
            let good = |expires_ms: u64| expires_ms == 0 || expires_ms > now_ms;
            for token in known.by_hash.values().filter(|token| !token.revoked && good(token.expires_ms)) {
                if let Some(project) = &token.project {
                    *tokens.entry(project.clone()).or_default() += 1;
                }
            }
        });
        let whole = actor.project.is_none();
        let (known, live_jobs, max_live_jobs) = self
            .ask(move |state, _| (state.projects(), state.live_count() as u64, state.max_live_jobs() as u64))
            .await?;
        if whole {
            names.extend(known.keys().chain(tokens.keys()).cloned());
        }
        let mut projects: Vec<v1::Project> = Vec::new();
        let mut next_cursor = String::new();
        for name in names.into_iter().filter(|name| behind.as_ref().is_none_or(|behind| name > behind)) {
            if projects.len() == limit {
                next_cursor = projects.last().map(|last| in_hex(&last.name)).unwrap_or_default();
                break;
            }
            let view = match known.get(&name) {
                Some(view) => view.clone(),
                None => self.project_view(&name).await?,
            };
            projects.push(self.project_out(view, tokens.get(&name).copied().unwrap_or_default(), whom).await?);
        }
        let all = |number: u64| if whole { number } else { 0 };
        let (live_jobs, max_live_jobs) = (all(live_jobs), all(max_live_jobs));
        Ok(v1::ListProjectsReply { projects, live_jobs, max_live_jobs, next_cursor })
    }

    /// The caller's project, or those that have limits or live jobs, and how many more there are.
    ///
    /// # Errors
    /// For an agent's token, or when the store cannot be asked.
    pub async fn busy_projects(&self, actor: &Actor) -> Result<(Vec<v1::Project>, usize), ApiError> {
        super::confine::may_look(actor)?;
        let own = actor.project.clone();
        let mut views: Vec<ProjectView> = self
            .ask(move |state, _| match own {
                Some(project) => vec![state.project_view(&project)],
                None => state.projects().into_values().collect(),
            })
            .await?;
        let unseen = views.len().saturating_sub(LISTED_MAX);
        views.truncate(LISTED_MAX);
        let mut projects = Vec::with_capacity(views.len());
        for view in views {
            projects.push(self.project_out(view, 0, CountedFor::Pages).await?);
        }
        Ok((projects, unseen))
    }

    /// Sets a project's share and limits. Needs role admin; an administrator of the project alone sets limits of its own,
    /// below the farm's.
    ///
    /// # Errors
    /// Without the role, for a share that is out of bounds, or when the store takes no writes.
    pub async fn set_project(
        &self,
        actor: &Actor,
        request: v1::SetProjectRequest,
    ) -> Result<v1::SetProjectReply, ApiError> {
        let v1::SetProjectRequest { name, share, max_jobs, max_stored_bytes } = &request;
        let limit = |what: &str, limit: Option<u64>| {
            limit.map(|limit| format!("{what} {}", if limit == 0 { "none".to_owned() } else { limit.to_string() }))
        };
        let share = share.map(|share| format!("share {share}"));
        let set = [share, limit("jobs", *max_jobs), limit("bytes", *max_stored_bytes)];
        let words = format!("{name}: {}", set.into_iter().flatten().collect::<Vec<_>>().join(", "));
        let set = self.set_project_now(actor, request);
        self.audited(actor, AuditKind::Admin, "project.set", &words, set).await
    }

    async fn set_project_now(
        &self,
        actor: &Actor,
        request: v1::SetProjectRequest,
    ) -> Result<v1::SetProjectReply, ApiError> {
        some_admin(actor)?;
        let name = convert::project(&request.name)?;
        if actor.project.as_ref().is_some_and(|own| *own != name)
            || (actor.project.is_some() && request.share.is_some())
        {
            // Another project, or what a project gets of the farm.
            admin(actor)?;
        }
        let asked = name.clone();
        let (mut record, count) = self.ask(move |state, _| (state.project(&asked), state.projects().len())).await?;
        if record.changed_ms == 0 && count >= PROJECTS_MAX {
            let message = format!("{PROJECTS_MAX} projects have limits or jobs already");
            return Err(ApiError::new(ErrorCode::ResourceExhausted, message));
        }
        if let Some(share) = request.share {
            if !(1..=SHARE_MAX).contains(&share) {
                return Err(convert::invalid(format!("a share is 1 to {SHARE_MAX}, not {share}")));
            }
            record.share = share;
        }
        let limit = |asked: Option<u64>, known: &mut Option<u64>| {
            if let Some(limit) = asked {
                *known = (limit > 0).then_some(limit);
            }
        };
        let whole = actor.project.is_none();
        limit(request.max_jobs, if whole { &mut record.max_jobs } else { &mut record.own_max_jobs });
        let bytes = if whole { &mut record.max_stored_bytes } else { &mut record.own_max_stored_bytes };
        limit(request.max_stored_bytes, bytes);
        record.changed_by.clone_from(&actor.name);
        record.changed_ms = self.clock().wall_ms().max(1);
        self.input(Input::SetProject(record)).await?;
        tracing::info!(project = name, actor = actor.name, "a project's share or limits were set");
        let view = self.project_view(&name).await?;
        Ok(v1::SetProjectReply { project: Some(self.project_out(view, 0, CountedFor::Callers).await?) })
    }

    async fn project_view(&self, name: &str) -> Result<ProjectView, ApiError> {
        let name = name.to_owned();
        self.ask(move |state, _| state.project_view(&name)).await
    }

    async fn project_out(&self, view: ProjectView, tokens: u32, whom: CountedFor) -> Result<v1::Project, ApiError> {
        let ProjectView { record, live_jobs, running_jobs, jobs_limit } = view;
        let stored_bytes = self.stored_bytes_of(&record.name, whom).await?;
        let ProjectRecord { name, share, max_jobs, max_stored_bytes, own_max_jobs, own_max_stored_bytes, .. } = record;
        Ok(v1::Project {
            name,
            share,
            max_jobs: max_jobs.unwrap_or_default(),
            max_stored_bytes: max_stored_bytes.unwrap_or_default(),
            own_max_jobs: own_max_jobs.unwrap_or_default(),
            own_max_stored_bytes: own_max_stored_bytes.unwrap_or_default(),
            live_jobs,
            running_jobs,
            jobs_limit,
            stored_bytes,
            tokens,
        })
    }

    /// What a project stores, counted anew where what is known is too old.
    async fn stored_bytes_of(&self, project: &str, whom: CountedFor) -> Result<u64, ApiError> {
        let now_ms = self.clock().mono_ms();
        let cache = &self.inner.stored_bytes.0;
        let known = cache.lock().unwrap_or_else(PoisonError::into_inner).get(project).copied();
        if let Some(known) = known.filter(|known| known.is_good(now_ms, whom)) {
            return Ok(known.bytes);
        }
        let bytes = self.timed("stored_bytes", self.store().stored_bytes(project)).await?;
        let counted =
            Counted { bytes, at_ms: now_ms, took_ms: self.clock().mono_ms().saturating_sub(now_ms), is_old: false };
        let mut known = cache.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, counted| now_ms < counted.at_ms + SHOWN_FOR_MS);
        known.insert(project.to_owned(), counted);
        Ok(bytes)
    }

    /// Something came to what a project stores.
    pub(super) fn forget_stored_bytes(&self, project: &str) {
        let mut known = self.inner.stored_bytes.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counted) = known.get_mut(project) {
            counted.is_old = true;
        }
    }

    /// The quota of a project and what it stores, where it has one.
    async fn bytes_quota(&self, project: &str) -> Result<Option<ProjectRoom>, ApiError> {
        let name = project.to_owned();
        let Some(quota_bytes) = self.ask(move |state, _| state.project(&name).bytes_quota()).await? else {
            return Ok(None);
        };
        let stored_bytes = self.stored_bytes_of(project, CountedFor::Callers).await?;
        Ok(Some(ProjectRoom { quota_bytes, stored_bytes }))
    }

    /// What a caller's project may store and does, where it has a quota.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn project_room(&self, actor: &Actor) -> Result<Option<ProjectRoom>, ApiError> {
        match &actor.project {
            Some(project) if actor.role != Role::Agent => self.bytes_quota(project).await,
            _ => Ok(None),
        }
    }

    /// Why a project may build nothing new: what it stores is its quota already.
    pub(super) async fn over_bytes_quota(&self, project: &str) -> Result<Option<ApiError>, ApiError> {
        let over = self.bytes_quota(project).await?.filter(|over| over.stored_bytes >= over.quota_bytes);
        Ok(over.map(|ProjectRoom { quota_bytes, stored_bytes }| {
            let message = format!(
                "project {project} stores {stored_bytes} bytes, its quota is {quota_bytes}: it may build nothing new"
            );
            ApiError::new(ErrorCode::ResourceExhausted, message)
                .with_hint("have an administrator raise the quota: planforge projects set NAME --max-bytes SIZE")
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_told_what_is_and_pages_count_for_little_of_the_time() {
        let counted = Counted { bytes: 1, at_ms: 1_000, took_ms: 40, is_old: false };
        let good_until = |counted: Counted, whom| {
            (0_u64..).step_by(1_000).find(|after_ms| !counted.is_good(counted.at_ms + after_ms, whom)).unwrap()
        };
        assert_eq!(good_until(counted, CountedFor::Callers), COUNTED_FOR_MS);
        assert_eq!(good_until(counted, CountedFor::Pages), SHOWN_FOR_MS);
        let old = Counted { is_old: true, ..counted };
        assert_eq!(good_until(old, CountedFor::Callers), 0);
        assert_eq!(good_until(old, CountedFor::Pages), 8_000, "200 times what it took");
        assert_eq!(good_until(Counted { took_ms: 0, ..old }, CountedFor::Pages), 0);
        assert_eq!(good_until(Counted { took_ms: 60_000, ..old }, CountedFor::Pages), SHOWN_FOR_MS);
    }
}
