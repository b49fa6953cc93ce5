//! One connection's place: how long it may be kept, and what runs on it.

use super::{Doors, Full, Holder, Kind, ledger::Id};
use planforge_types::auth::{Actor, Proof, Role};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

/// From the moment a connection is accepted to its first whole request, TLS handshake and headers included.
pub const FIRST_REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// How long a connection without a request is kept.
const KNOWN_IDLE_MAX: Duration = Duration::from_secs(75);
const STRANGER_IDLE_MAX: Duration = Duration::from_secs(15);
/// More than any certificate of a connection holds.
const KEEP_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// How long an answer may lie here that its reader does not take.
const UNREAD_MAX: Duration = Duration::from_secs(60);
/// How often a connection is looked at on which something runs, or whose token may end.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Why a connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Somebody else needs its place.
    Displaced,
    /// It did not bring a whole request in time.
    NoRequest,
    /// Nothing was asked on it for long.
    Idle,
    /// Its reader does not take what it asked for.
    Unread,
    /// What made it known is worth nothing any more.
    ProofOver,
    /// The certificate that was shown on it has ended.
    CertificateOver,
}

impl Ending {
    /// Whether what runs on it may end first.
    pub fn is_gentle(self) -> bool {
        matches!(self, Self::Idle | Self::ProofOver)
    }
}

#[derive(Debug)]
struct State {
    opened: Instant,
    /// Whole requests so far.
    requests: u64,
    /// Requests whose answers have not left.
    running: usize,
    idle_since: Instant,
    /// Pieces of answers that their reader has not asked beyond, and since when.
    unread: BTreeMap<u64, Instant>,
}

/// A connection's place, given back when this is dropped.
#[derive(Debug)]
pub struct Place {
    doors: Doors,
    id: Id,
    over: CancellationToken,
    state: Mutex<State>,
    proof: OnceLock<Proof>,
    /// When the certificate ends that was shown.
    until: OnceLock<Instant>,
    /// What strangers hold beside their place: so many connections are open at most, those that were told to go included.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.doors.leave(self.id);
    }
}

impl Place {
    pub(super) fn new(doors: Doors, id: Id, over: CancellationToken) -> Self {
        let now = Instant::now();
        let state = State { opened: now, requests: 0, running: 0, idle_since: now, unread: BTreeMap::new() };
        Self {
            doors,
            id,
            over,
            state: Mutex::new(state),
            proof: OnceLock::new(),
            until: OnceLock::new(),
            permit: Mutex::new(None),
        }
    }

    pub(super) fn known_by(self, proof: Proof) -> Self {
        let _ = self.proof.set(proof);
        self
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Holds a permit until the connection is known.
    pub fn hold(&self, permit: OwnedSemaphorePermit) {
        *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
    }

    /// The connection may be kept so long at most.
    pub fn keep_for(&self, most: Duration) {
        let _ = self.until.set(Instant::now() + most.min(KEEP_MAX));
    }

    /// Makes the connection known by what its request showed.
    pub fn prove(&self, proof: Proof, actor: &Actor) -> Result<(), Full> {
        if self.proof.get().is_some() {
            return Ok(());
        }
        let kind = match actor.role {
            Role::Admin => Kind::Operator,
            Role::Agent => Kind::Agent,
            Role::Read | Role::Submit | Role::Enroll => Kind::Person,
        };
        let holder = match proof {
            Proof::Owner => Holder::Owner,
            Proof::Token(hash) => Holder::Token(hash),
        };
        self.doors.prove(self.id, holder, kind)?;
        let _ = self.proof.set(proof);
        drop(self.permit.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(())
    }

    /// Counts a whole request as long as the value lives.
    pub fn begin(self: &Arc<Self>) -> Activity {
        let (number, first) = self.with(|state| {
            state.requests += 1;
            state.running += 1;
            (state.requests, state.running == 1)
        });
        if first {
            self.doors.set_busy(self.id, true);
        }
        Activity { place: self.clone(), number }
    }

    /// Completes when somebody else needs the place.
    pub async fn displaced(&self) {
        self.over.cancelled().await;
    }

    /// Completes when the connection has to end.
    pub async fn ending(&self, stands: impl Fn(Proof) -> bool) -> Ending {
        loop {
            let look_at = match self.judge(Instant::now(), &stands) {
                Ok(look_at) => look_at,
                Err(ending) => return ending,
            };
            tokio::select! {
                biased;
                () = self.over.cancelled() => return Ending::Displaced,
                () = sleep_until(look_at) => {}
            }
        }
    }

    /// When to look again, or why the connection ends.
    fn judge(&self, now: Instant, stands: impl Fn(Proof) -> bool) -> Result<Instant, Ending> {
        let (proof, until) = (self.proof.get(), self.until.get().copied());
        if until.is_some_and(|until| now >= until) {
            return Err(Ending::CertificateOver);
        }
        let next = self.with(|state| {
            if state.requests == 0 && proof.is_none() {
                let until = state.opened + self.doors.first_request_within;
                return if now < until { Ok(until) } else { Err(Ending::NoRequest) };
            }
            if state.running > 0 {
                let unread = state.unread.values().any(|since| now.duration_since(*since) >= UNREAD_MAX);
                return if unread { Err(Ending::Unread) } else { Ok(now + LOOK_AGAIN) };
            }
            if proof.is_some_and(|proof| !stands(*proof)) {
                return Err(Ending::ProofOver);
            }
            let most = if proof.is_some() { KNOWN_IDLE_MAX } else { STRANGER_IDLE_MAX };
            let until = state.idle_since + most;
            if now >= until { Err(Ending::Idle) } else { Ok(until.min(now + LOOK_AGAIN)) }
        })?;
        Ok(until.map_or(next, |until| until.min(next)))
    }
}

/// A request from its headers to the last byte of its answer.
#[derive(Debug)]
pub struct Activity {
    place: Arc<Place>,
    number: u64,
}

impl Activity {
    /// A piece of the answer was handed on.
    pub fn handed_on(&self) {
        self.place.with(|state| state.unread.insert(self.number, Instant::now()));
    }

    /// The reader has room for more.
    pub fn asked_for_more(&self) {
        self.place.with(|state| state.unread.remove(&self.number));
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        let last = self.place.with(|state| {
            state.unread.remove(&self.number);
            state.running -= 1;
            state.idle_since = Instant::now();
            state.running == 0
        });
        if last {
            self.place.doors.set_busy(self.place.id, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors::{Places, Source};
    use planforge_types::Digest;
    use std::net::IpAddr;

    fn enter(doors: &Doors) -> Arc<Place> {
        doors.enter(Source::from(IpAddr::from([127, 0, 0, 1])))
    }

    fn submit(name: &str) -> (Proof, Actor) {
        let actor = Actor::named(name, Role::Submit, None);
        (Proof::Token(Digest::of(name.as_bytes())), actor)
    }

    async fn ends(place: &Place, stands: bool) -> (Ending, Duration) {
        let begin = Instant::now();
        let ending = place.ending(|_| stands).await;
        (ending, begin.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_ends_and_so_does_one_on_which_nothing_is_asked() {
        let doors = Doors::new(Places::of(64), FIRST_REQUEST_WITHIN);
        let place = enter(&doors);
        assert_eq!(ends(&place, true).await, (Ending::NoRequest, FIRST_REQUEST_WITHIN));

        let place = enter(&doors);
        drop(place.begin());
        assert_eq!(ends(&place, true).await, (Ending::Idle, STRANGER_IDLE_MAX));

        let place = enter(&doors);
        let (proof, actor) = submit("ci");
        let request = place.begin();
        place.prove(proof, &actor).unwrap();
        drop(request);
        assert_eq!(ends(&place, true).await, (Ending::Idle, KNOWN_IDLE_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn what_runs_is_left_alone_as_long_as_it_is_read() {
        let doors = Doors::new(Places::of(64), FIRST_REQUEST_WITHIN);
        let place = enter(&doors);
        let request = place.begin();
        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, place.ending(|_| true)).await.is_err(), "an answer that is waited for");
        request.handed_on();
        request.asked_for_more();
        assert!(tokio::time::timeout(hour, place.ending(|_| true)).await.is_err());
        request.handed_on();
        let (ending, took) = ends(&place, true).await;
        assert_eq!(ending, Ending::Unread);
        assert!(took >= UNREAD_MAX && took <= UNREAD_MAX + LOOK_AGAIN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_ends_takes_its_idle_connections_with_it() {
        let doors = Doors::new(Places::of(64), FIRST_REQUEST_WITHIN);
        let place = enter(&doors);
        let (proof, actor) = submit("ci");
        place.prove(proof, &actor).unwrap();
        drop(place.begin());
        assert_eq!(ends(&place, false).await.0, Ending::ProofOver);
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_ends_takes_its_connection_with_it_whatever_runs_on_it() {
        let doors = Doors::new(Places::of(64), FIRST_REQUEST_WITHIN);
        let place = enter(&doors);
        let _session = place.begin();
        place.keep_for(Duration::from_secs(33));
        assert_eq!(ends(&place, true).await, (Ending::CertificateOver, Duration::from_secs(33)));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_displaced_hears_it_at_once_and_leaves_its_place() {
        let doors = Doors::new(Places::of(64), FIRST_REQUEST_WITHIN);
        let first = enter(&doors);
        let others: Vec<_> = (0..doors.places().strangers_of_one_address).map(|_| enter(&doors)).collect();
        assert_eq!(ends(&first, true).await, (Ending::Displaced, Duration::ZERO));
        assert_eq!(doors.counts().strangers, others.len());
        drop((first, others));
        assert_eq!(doors.counts().strangers, 0);
    }
}
