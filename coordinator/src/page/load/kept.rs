//! What a page that is made again and again was made of, for as long as nothing happened that shows in it.

use super::{
    ENDED,
    activity::ended_list,
    coverage::{Covered, Totals},
};
use crate::{app::App, auth::Actor};
use planforge_proto::{ApiError, v1};
use std::time::{Duration, Instant};

/// What no event tells of, such as what came to be declared, shows after this time.
const KEPT_FOR: Duration = Duration::from_secs(5);

/// What a page was made of, and need not be read again where nothing happened that shows in it.
#[derive(Default)]
pub(in crate::page) struct Kept {
    pub(super) covered: Option<Covered>,
    pub(super) totals: Option<Totals>,
    /// Jobs that ended last.
    ended: Option<Vec<v1::Job>>,
    since: Option<Instant>,
}

impl Kept {
    /// Forgets what an event may have changed.
    pub(in crate::page) fn note(&mut self, event: &v1::JobEvent) {
        match &event.job {
            Some(job) if !ENDED.contains(&job.state()) => {
                if self.covered.as_mut().is_some_and(|covered| !covered.note(job)) {
                    self.covered = None;
                }
            }
            _ => self.forget(),
        }
    }

    pub(in crate::page) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Forgets what is kept for too long.
    pub(super) fn begin(&mut self) {
        if self.since.is_none_or(|since| since.elapsed() >= KEPT_FOR) {
            *self = Self { since: Some(Instant::now()), ..Self::default() };
        }
    }

    /// The jobs that ended last, as lists show them.
    pub(super) async fn ended(&mut self, app: &App, actor: &Actor) -> Result<Vec<v1::Job>, ApiError> {
        self.begin();
        if let Some(ended) = &self.ended {
            return Ok(ended.clone());
        }
        let ended = app.farm.list_jobs(actor, ended_list()).await?.jobs;
        self.ended = Some(ended.clone());
        Ok(ended)
    }
}
