//! How much of the coordinator the calls of one token get, so that one that asks without end delays itself alone.
//!
//! Few calls of a token are worked on at once and the others wait for their turn, so that at no time more than these few
//! stand before somebody else's. Calls have a rate, and submissions one of their own, because each is work for the whole
//! farm long after its call is answered; a caller that is ahead of its rate waits. Open streams are counted, for each event is
//! sent on every one of them. Administrators of the farm and its owner have no limits; agents have those of their own
//! (`farm::gate`), and transfers of blobs those of uploads.

use crate::rate::Rate;
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::{
    Digest,
    auth::{Actor, Proof, Role},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Calls of one token that are worked on at once.
pub const CALLS_AT_ONCE: usize = 4;
/// Calls of one token that may wait for their turn.
pub const CALLS_WAITING_MAX: usize = 256;
/// Calls of one token at once, and how many more each second.
const CALLS_BURST: u32 = 1_024;
const CALLS_PER_S: u32 = 256;
/// Submissions of one token at once, and how many more each second. One that asks for many jobs counts as several, which
/// the next ones wait for.
pub const SUBMISSIONS_BURST: u32 = 256;
pub const SUBMISSIONS_PER_S: u32 = 16;
/// So many jobs count as a submission.
pub const JOBS_OF_A_SUBMISSION: usize = 16;
/// A caller that would have to wait longer for its rate is refused.
const WAIT_MAX_MS: u64 = 30_000;
/// Open streams of one token: people and pipelines that watch jobs or follow logs.
pub const STREAMS_MAX: usize = 256;
/// Those of them that name no job, and so are sent every event of the farm.
pub const WATCHES_OF_ALL_MAX: usize = 16;

#[derive(Debug)]
struct OfToken {
    calls: Arc<Semaphore>,
    waiting: AtomicUsize,
    streams: Arc<Semaphore>,
    watches_of_all: Arc<Semaphore>,
    rates: Mutex<Rates>,
}

#[derive(Debug)]
struct Rates {
    calls: Rate,
    submissions: Rate,
}

impl OfToken {
    fn new() -> Self {
        Self {
            calls: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            waiting: AtomicUsize::new(0),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            watches_of_all: Arc::new(Semaphore::new(WATCHES_OF_ALL_MAX)),
            rates: Mutex::new(Rates {
                calls: Rate::new(CALLS_BURST, CALLS_PER_S),
                submissions: Rate::new(SUBMISSIONS_BURST, SUBMISSIONS_PER_S),
            }),
        }
    }

    fn rates<T>(&self, work: impl FnOnce(&mut Rates) -> T) -> T {
        work(&mut self.rates.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One call's turn, until this is dropped.
#[derive(Debug, Default)]
pub struct Turn {
    _call: Option<OwnedSemaphorePermit>,
}

/// One open stream's place, until this is dropped.
#[derive(Debug)]
pub struct StreamPlace {
    _held: Vec<OwnedSemaphorePermit>,
}

/// Counts a call that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The calls of every token. Only tokens that are there get an entry, so there are at most as many.
#[derive(Debug)]
pub struct Turns {
    tokens: Mutex<BTreeMap<Digest, Arc<OfToken>>>,
    begin: Instant,
}

impl Default for Turns {
    fn default() -> Self {
        Self { tokens: Mutex::default(), begin: Instant::now() }
    }
}

impl Turns {
    /// Whether a caller has limits here.
    pub fn limits(actor: &Actor, proof: Proof) -> bool {
        let free = match actor.role {
            Role::Admin => actor.is_farm_admin(),
            Role::Agent | Role::Enroll => true,
            Role::Read | Role::Submit => false,
        };
        !free && matches!(proof, Proof::Token(_))
    }

    fn of(&self, actor: &Actor, proof: Proof) -> Option<Arc<OfToken>> {
        match proof {
            Proof::Token(token) if Self::limits(actor, proof) => {
                let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
                Some(tokens.entry(token).or_insert_with(|| Arc::new(OfToken::new())).clone())
            }
            Proof::Token(_) | Proof::Owner => None,
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits for a call's turn. A submission waits until those before it are paid for, too.
    pub async fn call(&self, actor: &Actor, proof: Proof, submits: bool) -> Result<Turn, ApiError> {
        let Some(token) = self.of(actor, proof) else { return Ok(Turn::default()) };
        if token.waiting.fetch_add(1, Ordering::Relaxed) >= CALLS_WAITING_MAX {
            token.waiting.fetch_sub(1, Ordering::Relaxed);
            let message = format!(
                "the token '{}' has {CALLS_WAITING_MAX} calls waiting already, the limit of one token",
                actor.name
            );
            return Err(ApiError::new(ErrorCode::ResourceExhausted, message)
                .with_hint("call less at once, or use several tokens"));
        }
        let _waiting = Waiting(&token.waiting);
        loop {
            let now_ms = self.now_ms();
            let early = token.rates(|rates| {
                if submits {
                    let rate = &rates.submissions;
                    rate.look(now_ms).map_err(|ms| (ms, "submissions", SUBMISSIONS_BURST, SUBMISSIONS_PER_S))?;
                }
                rates.calls.take(now_ms).map_err(|ms| (ms, "calls", CALLS_BURST, CALLS_PER_S))
            });
            let Err((wait_ms, what, burst, per_s)) = early else { break };
            if wait_ms > WAIT_MAX_MS {
                let message = format!(
                    "the token '{}' is far ahead of its rate of {burst} {what} at once and {per_s} more each second",
                    actor.name
                );
                return Err(ApiError::new(ErrorCode::ResourceExhausted, message)
                    .with_hint(format!("try again in {} s, or use several tokens", wait_ms.div_ceil(1_000))));
            }
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        }
        // It is never closed.
        let call = token.calls.clone().acquire_owned().await.ok();
        Ok(Turn { _call: call })
    }

    /// A place for a stream; `of_all` are those that name no job.
    pub fn stream(&self, actor: &Actor, proof: Proof, of_all: bool) -> Result<StreamPlace, ApiError> {
        let mut held = Vec::new();
        if let Some(token) = self.of(actor, proof) {
            let all = of_all.then_some((&token.watches_of_all, WATCHES_OF_ALL_MAX, "watches of all jobs"));
            for (places, most, what) in all.into_iter().chain([(&token.streams, STREAMS_MAX, "open streams")]) {
                let place = places.clone().try_acquire_owned().map_err(|_| {
                    let message =
                        format!("the token '{}' has {most} {what} already, the limit of one token", actor.name);
                    ApiError::new(ErrorCode::ResourceExhausted, message).with_hint(
                        "name the jobs, several in one command (planforge watch JOB JOB), or use several tokens",
                    )
                })?;
                held.push(place);
            }
        }
        Ok(StreamPlace { _held: held })
    }

    /// A submission of so many jobs was taken.
    pub fn submitted(&self, actor: &Actor, proof: Proof, jobs: usize) {
        if let Some(token) = self.of(actor, proof) {
            let count = u32::try_from(jobs.div_ceil(JOBS_OF_A_SUBMISSION).max(1)).unwrap_or(u32::MAX);
            let now_ms = self.now_ms();
            token.rates(|rates| rates.submissions.charge(count, now_ms));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn caller(name: &str, role: Role, project: Option<&str>) -> (Actor, Proof) {
        let actor = Actor::named(name, role, project.map(str::to_owned));
        (actor, Proof::Token(Digest::of(name.as_bytes())))
    }

    #[tokio::test]
    async fn few_calls_of_a_token_run_at_once_and_others_tokens_do_not_wait_for_them() {
        let turns = Turns::default();
        let (greedy, its) = caller("greedy", Role::Submit, None);
        let mut running = Vec::new();
        for _ in 0..CALLS_AT_ONCE {
            running.push(turns.call(&greedy, its, false).await.unwrap());
        }
        let mut next = Box::pin(turns.call(&greedy, its, false));
        assert!(next.as_mut().now_or_never().is_none(), "a fifth call at once");
        let (other, others) = caller("other", Role::Submit, None);
        assert!(turns.call(&other, others, true).now_or_never().is_some_and(|turn| turn.is_ok()));
        running.pop();
        assert!(next.await.is_ok());
    }

    #[tokio::test]
    async fn calls_that_wait_are_bounded_and_those_that_give_up_wait_no_longer() {
        let turns = Turns::default();
        let (greedy, its) = caller("greedy", Role::Read, None);
        let mut running = Vec::new();
        for _ in 0..CALLS_AT_ONCE {
            running.push(turns.call(&greedy, its, false).await.unwrap());
        }
        let mut waiting: Vec<_> = (0..CALLS_WAITING_MAX).map(|_| Box::pin(turns.call(&greedy, its, false))).collect();
        for call in &mut waiting {
            assert!(call.as_mut().now_or_never().is_none());
        }
        let refused = turns.call(&greedy, its, false).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::ResourceExhausted);
        assert!(refused.message.contains("256 calls waiting"), "{refused:?}");
        waiting.pop();
        let mut instead = Box::pin(turns.call(&greedy, its, false));
        assert!(instead.as_mut().now_or_never().is_none(), "it waits where another gave up");
    }

    #[tokio::test(start_paused = true)]
    async fn submissions_wait_for_those_before_them_and_other_calls_do_not() {
        let turns = Turns::default();
        let (greedy, its) = caller("greedy", Role::Submit, Some("red"));
        let jobs_of_s =
            |seconds: u32| (SUBMISSIONS_BURST + SUBMISSIONS_PER_S * seconds) as usize * JOBS_OF_A_SUBMISSION;
        drop(turns.call(&greedy, its, true).await.unwrap());
        turns.submitted(&greedy, its, jobs_of_s(20));
        assert!(turns.call(&greedy, its, false).now_or_never().is_some(), "a question waits for no submission");
        let mut next = Box::pin(turns.call(&greedy, its, true));
        assert!(next.as_mut().now_or_never().is_none());
        drop(next);
        turns.submitted(&greedy, its, jobs_of_s(20));
        let refused = turns.call(&greedy, its, true).await.unwrap_err();
        assert!(refused.message.contains("'greedy'") && refused.message.contains("16 more each second"), "{refused:?}");
        assert!(refused.hint.contains("try again in "), "{refused:?}");
    }

    #[tokio::test]
    async fn streams_are_counted_as_long_as_they_are_open() {
        let turns = Turns::default();
        let (watcher, its) = caller("watcher", Role::Read, None);
        let mut of_all: Vec<_> = (0..WATCHES_OF_ALL_MAX).map(|_| turns.stream(&watcher, its, true).unwrap()).collect();
        let refused = turns.stream(&watcher, its, true).unwrap_err();
        assert!(refused.message.contains("16 watches of all jobs"), "{refused:?}");
        let left = STREAMS_MAX - WATCHES_OF_ALL_MAX;
        let _open: Vec<_> = (0..left).map(|_| turns.stream(&watcher, its, false).unwrap()).collect();
        let refused = turns.stream(&watcher, its, false).unwrap_err();
        assert!(refused.message.contains("256 open streams"), "{refused:?}");
        of_all.pop();
        let again = turns.stream(&watcher, its, true);
        assert!(again.is_ok());
        assert!(turns.stream(&watcher, its, true).is_err());
    }

    #[tokio::test]
    async fn administrators_of_the_farm_its_owner_and_agents_have_no_limits_here() {
        let turns = Turns::default();
        let (admin, its) = caller("admin", Role::Admin, None);
        let (agent, agents) = caller("agent", Role::Agent, None);
        for (actor, proof) in [(&admin, its), (&agent, agents), (&Actor::local(), Proof::Owner)] {
            turns.submitted(actor, proof, 1_000_000);
            let calls: Vec<_> = (0..2 * CALLS_AT_ONCE).map(|_| turns.call(actor, proof, true).now_or_never()).collect();
            assert!(calls.iter().all(Option::is_some));
        }
        let (of_project, its) = caller("project admin", Role::Admin, Some("red"));
        turns.submitted(&of_project, its, 1_000_000);
        assert!(turns.call(&of_project, its, true).await.is_err(), "a project's administrator is no farm's");
    }
}
