//! Loading the state anew: after the store refused a commit, and after the state broke its own rules. Whoever depended on
//! what is thrown away is told so.

use super::leader::{Batch, End, Leader, LiveEvent, Message, core_config, session_of};
use crate::{
    core::{Job, JobId, SessionId, Snapshot, State},
    store::{EventFilter, JobFilter, StoreError},
};
use planforge_proto::{ApiError, ErrorCode};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::sync::mpsc;

/// Pause between tries to load the store after it refused a commit.
const RELOAD_PAUSE: Duration = Duration::from_millis(500);
/// How often a state may break its own rules, and within which time, before the coordinator stops leading.
pub(super) const BROKEN_MAX: usize = 3;
const BROKEN_WITHIN_MS: u64 = 60 * 60 * 1_000;
/// Broken rules that an error names; the log names all.
const BROKEN_NAMED: usize = 3;

impl Leader {
    /// The store refused a commit, or nothing was heard of it: the state is what the store says.
    pub(super) async fn recover(
        &mut self,
        error: StoreError,
        lost: [Batch; 2],
        inbox: &mut mpsc::Receiver<Message>,
    ) -> Result<(), End> {
        if !std::mem::replace(&mut self.ailing, true) {
            tracing::error!(%error, "the store refused a commit; what depended on it was refused too");
        }
        let error = ApiError::from(error);
        self.shared.set_trouble(Some(error.clone()));
        let mut sessions = BTreeSet::new();
        for batch in lost {
            sessions.extend(batch.sessions.iter().copied());
            refuse(batch, &error);
        }
        let mut state = self.load(inbox, &mut sessions).await?;
        state.adopt_sessions(&self.state, &sessions);
        self.state = state;
        // What was broken went with the state.
        self.broken = None;
        // Who was not adopted says hello again.
        let adopted: BTreeSet<SessionId> = self.state.sessions().collect();
        self.outboxes.retain(|session, _| adopted.contains(session));
        Ok(())
    }

    /// The state as the store has it; `sessions` are those that said something meanwhile and were refused.
    async fn load(
        &mut self,
        inbox: &mut mpsc::Receiver<Message>,
        sessions: &mut BTreeSet<SessionId>,
    ) -> Result<State, End> {
        let (snapshot, unheard) = loop {
            match self.stored().await {
                Ok(stored) => break stored,
                // Waiting changes nothing about these.
                Err(
                    error @ (StoreError::Corrupt { .. } | StoreError::Damaged { .. } | StoreError::NewerSchema { .. }),
                ) => {
                    return Err(End::Fenced(error));
                }
                Err(error) => {
                    tracing::error!(%error, "the store cannot be read; trying again");
                    let error = ApiError::from(error);
                    self.shared.set_trouble(Some(error.clone()));
                    self.refuse_inbox(inbox, &error, sessions)?;
                    tokio::time::sleep(RELOAD_PAUSE).await;
                }
            }
        };
        let now = self.now();
        let state = State::new(core_config(&self.config), snapshot, now);
        tell_loaded(&state);
        unheard.into_iter().for_each(|event| self.tell(event));
        Ok(state)
    }

    /// What the store has, and the events in it that were told to nobody: a commit may have been done although nothing was
    /// heard of it. Jobs are as they stand now, as in every replay.
    async fn stored(&self) -> Result<(Snapshot, Vec<LiveEvent>), StoreError> {
        let snapshot = self.store.load().await?;
        let after = self.shared.last_event.load(Ordering::Relaxed);
        let limit = usize::try_from(snapshot.last_event.saturating_sub(after)).unwrap_or(usize::MAX);
        if limit == 0 {
            return Ok((snapshot, Vec::new()));
        }
        let events = self.store.events(EventFilter { after, limit, ..EventFilter::default() }).await?;
        let ids: BTreeSet<JobId> = events.iter().map(|event| event.job.clone()).collect();
        let filter = JobFilter { limit: ids.len(), ids: ids.into_iter().collect(), ..JobFilter::default() };
        let jobs = self.store.jobs(filter).await?.into_iter().map(|job| (job.id.clone(), Arc::new(job)));
        let jobs: BTreeMap<JobId, Arc<Job>> = jobs.collect();
        let told = events.into_iter().filter_map(|event| {
            let job = jobs.get(&event.job)?.clone();
            Some(LiveEvent { seq: event.seq, event: Some(event), job })
        });
        Ok((snapshot, told.collect()))
    }

    /// The state broke its own rules: only the store is believed. Stops leading when it happens again and again.
    pub(super) async fn begin_anew(
        &mut self,
        error: ApiError,
        lost: Batch,
        inbox: &mut mpsc::Receiver<Message>,
    ) -> Result<(), End> {
        refuse(lost, &error);
        // Who is connected is part of what cannot be believed: everybody says hello again.
        self.outboxes.clear();
        let now_ms = self.clock.mono_ms();
        self.broken_at_ms.retain(|at_ms| now_ms.saturating_sub(*at_ms) < BROKEN_WITHIN_MS);
        self.broken_at_ms.push_back(now_ms);
        self.shared.broken.fetch_add(1, Ordering::Relaxed);
        if self.broken_at_ms.len() >= BROKEN_MAX {
            let hint = "this is a bug that does not pass: report it with the coordinator's log, and restart it";
            return Err(End::Broken(ApiError::new(error.code, error.message).with_hint(hint)));
        }
        self.state = self.load(inbox, &mut BTreeSet::new()).await?;
        self.shared.set_trouble(None);
        tracing::warn!(live_jobs = self.state.live_jobs().count(), "the scheduler's state was loaded anew");
        Ok(())
    }

    /// Refuses what came while there is no state to apply it to; `sessions` are those that said something.
    fn refuse_inbox(
        &mut self,
        inbox: &mut mpsc::Receiver<Message>,
        error: &ApiError,
        sessions: &mut BTreeSet<SessionId>,
    ) -> Result<(), End> {
        while let Ok(message) = inbox.try_recv() {
            match message {
                Message::Close { answer } => return Err(End::Closed(answer)),
                Message::Input { input, answer } => {
                    sessions.extend(session_of(&input));
                    refuse_message(Message::Input { input, answer }, error);
                }
                message => refuse_message(message, error),
            }
        }
        Ok(())
    }
}

/// Rules are broken: the error that whoever depended on it gets.
pub(super) fn broken_rules(rules: Vec<String>) -> ApiError {
    let count = rules.len();
    tracing::error!(
        rules = rules.join("; "),
        "the scheduler's state breaks its own rules; nothing of it is acknowledged"
    );
    let named = rules.into_iter().take(BROKEN_NAMED).collect::<Vec<_>>().join("; ");
    let more = if count > BROKEN_NAMED { format!(" and {} more", count - BROKEN_NAMED) } else { String::new() };
    ApiError::new(ErrorCode::Internal, format!("the coordinator's scheduler broke its own rules: {named}{more}"))
        .with_hint("this is a bug: nothing of the request holds; report it with the coordinator's log, then try again")
}

/// Refuses what waited for a commit.
pub(super) fn refuse(batch: Batch, error: &ApiError) {
    for (answer, _) in batch.replies {
        let _ = answer.send(Err(error.clone()));
    }
    for answer in batch.commits {
        let _ = answer.send(Err(error.clone()));
    }
}

/// Refuses what came while there is no state to apply it to.
pub(super) fn refuse_message(message: Message, error: &ApiError) {
    match message {
        Message::Input { answer: Some(answer), .. } => drop(answer.send(Err(error.clone()))),
        Message::Commit { answer, .. } => drop(answer.send(Err(error.clone()))),
        Message::Close { answer } => drop(answer.send(())),
        // A session that attaches now is not adopted and connects again; who asks hears the trouble.
        Message::Input { .. } | Message::Attach { .. } | Message::Ask(_) => {}
    }
}

/// Names what was wrong with the jobs that were loaded: it is left as it is, and somebody should look.
pub(super) fn tell_loaded(state: &State) {
    for rule in state.loaded_broken() {
        tracing::error!(rule, "the store holds a job that breaks a rule; it is left as it is");
    }
}
