//! What a request needs, looked up: jobs by name, and how those ended that have.

use super::{Farm, convert::invalid, requests::NAMED_MAX};
use crate::{
    auth::Actor,
    core::{JobId, Need, Prepared, Preparing, Submit},
};
use planforge_proto::{ApiError, ErrorCode};
use std::collections::BTreeSet;

impl Farm {
    /// The jobs that a request of `project` names, by id, unique prefix or request, each once.
    pub(super) async fn needs(&self, actor: &Actor, project: &str, named: &[String]) -> Result<Vec<Need>, ApiError> {
        let too_many = || invalid(format!("a request needs at most {NAMED_MAX} jobs"));
        if named.len() > NAMED_MAX {
            return Err(too_many());
        }
        let mut ids = BTreeSet::new();
        for name in named {
            match self.jobs_of_request(Some(project), name).await {
                Ok(jobs) => ids.extend(jobs),
                Err(error) if error.code == ErrorCode::NotFound => {
                    // What others do is nobody's to wait for, even where one may look at it.
                    let within = Actor { project: Some(project.to_owned()), ..actor.clone() };
                    let job = self.find_job(&within, name).await.map_err(|error| match error.code {
                        ErrorCode::NotFound => ApiError::new(
                            ErrorCode::NotFound,
                            format!("no job and no request {} in project {project}", name.escape_debug()),
                        )
                        .with_hint("'planforge jobs' lists jobs; 'planforge submit --json' names requests"),
                        _ => error,
                    })?;
                    ids.insert(job.id);
                }
                Err(error) => return Err(error),
            }
        }
        if ids.len() > NAMED_MAX {
            return Err(too_many());
        }
        let mut needs = Vec::with_capacity(ids.len());
        for job in ids {
            needs.push(self.need(job).await?);
        }
        Ok(needs)
    }

    async fn need(&self, mut job: JobId) -> Result<Need, ApiError> {
        loop {
            let stored = self.timed("job", self.store().job(&job)).await?;
            let stored = stored.ok_or_else(|| {
                ApiError::new(ErrorCode::Gone, format!("job {job}, which the request needs, is kept no more"))
            })?;
            let (prepared, prepares) = (Prepared::of(&stored), Preparing::of(&stored));
            // What took its place counts.
            match stored.fallback {
                Some(next) => job = next,
                None => {
                    let ended = Some(stored.state).filter(|state| state.is_terminal());
                    return Ok(Need { job, ended, prepared, prepares });
                }
            }
        }
    }

    /// A request with how what it needs stands now.
    pub(super) async fn needs_looked_up(&self, submit: Submit) -> Result<Submit, ApiError> {
        let mut needs = Vec::with_capacity(submit.needs.len());
        for need in &submit.needs {
            needs.push(self.need(need.job.clone()).await?);
        }
        Ok(Submit { needs, ..submit })
    }
}
