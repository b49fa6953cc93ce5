//! Which of several coordinators leads: a lease as a database keeps it, by the simulation's own clock.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// How long a coordinator leads without renewing that, how often it does, and how often one that does not lead asks.
const LEASE: Duration = Duration::from_millis(800);
pub const RENEWAL: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
struct State {
    /// Who leads, and until when.
    holder: Option<(usize, Duration)>,
    /// Until when each is stopped: it renews nothing, and goes on as if it led when it wakes.
    stopped: Vec<(usize, Duration)>,
    /// How often the lease went from one to another.
    handed_over: u64,
    last: Option<usize>,
}

#[derive(Clone, Debug, Default)]
pub struct Leads(Arc<Mutex<State>>);

fn now() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}

impl Leads {
    /// Takes the lease, or renews it; `false` while another's holds, or while it is stopped.
    fn takes(&self, index: usize) -> bool {
        let mut state = self.0.lock().unwrap();
        let now = now();
        if state.stopped.iter().any(|(who, until)| *who == index && *until > now) {
            return false;
        }
        if state.holder.is_some_and(|(who, until)| who != index && until > now) {
            return false;
        }
        if state.last.is_some_and(|last| last != index) {
            state.handed_over += 1;
        }
        state.last = Some(index);
        state.holder = Some((index, now + LEASE));
        true
    }

    /// Ends when it leads.
    pub async fn begin(&self, index: usize) {
        while !self.takes(index) {
            tokio::time::sleep(RENEWAL).await;
        }
    }

    /// Renews until another leads.
    pub async fn lost(&self, index: usize) {
        loop {
            tokio::time::sleep(RENEWAL).await;
            if !self.takes(index) && self.0.lock().unwrap().holder.is_some_and(|(who, _)| who != index) {
                return;
            }
        }
    }

    /// Stops whoever leads for as long as told.
    pub fn stop(&self, how_long: Duration, now: Duration) {
        let mut state = self.0.lock().unwrap();
        if let Some((who, _)) = state.holder {
            state.stopped.push((who, now + how_long));
        }
    }

    pub fn handed_over(&self) -> u64 {
        self.0.lock().unwrap().handed_over
    }
}
