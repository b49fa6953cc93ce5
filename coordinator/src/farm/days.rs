//! What devices did within the last day, hour by hour: told from attempts, as their leases, phases and ends become durable.
//!
//! Nothing of it is stored. At start it is told anew from the jobs that ended last, with their events; what came before
//! those is not known, and [`Days::known_since_ms`] says so.

use super::Farm;
use crate::{
    core::{Attempt, Event, Failure, Job, JobState, Outcome},
    store::{EventFilter, Store},
};
use planforge_page::day::{DAY_HOURS, Day, HOUR_MS, Hour};
use planforge_types::FailureClass;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Devices that are kept in mind; a farm that had more in a day forgets those that were quiet for longest.
const DEVICES_MAX: usize = 20_000;
/// How many more of them are forgotten then than have to be.
const FORGOTTEN_AT_ONCE: usize = DEVICES_MAX / 8;
/// Jobs whose events are read at once at start, and the most events of each of them.
const JOBS_AT_ONCE: usize = 64;
const EVENTS_OF_JOB: usize = 60;

/// A device, by its agent's name and its own id, as lists of devices name both.
pub type DeviceName = (String, String);

#[derive(Clone, Copy, Debug)]
struct Open {
    since_ms: u64,
    is_measuring: bool,
}

#[derive(Clone, Debug, Default)]
struct Kept {
    open: Option<Open>,
    /// By the number of the hour since 1970.
    hours: BTreeMap<u64, Hour>,
}

impl Kept {
    fn close(&mut self, until_ms: u64) {
        if let Some(open) = self.open.take() {
            self.add(open, until_ms);
        }
    }

    fn add(&mut self, open: Open, until_ms: u64) {
        // A lease that outlasts a day fills a day.
        let mut from_ms = open.since_ms.max(until_ms.saturating_sub((DAY_HOURS as u64 + 1) * HOUR_MS));
        while from_ms < until_ms {
            let number = from_ms / HOUR_MS;
            let end_ms = until_ms.min((number + 1) * HOUR_MS);
            let hour = self.hours.entry(number).or_default();
            let spent = if open.is_measuring { &mut hour.measuring_ms } else { &mut hour.building_ms };
            *spent += end_ms - from_ms;
            from_ms = end_ms;
        }
        let first = (until_ms / HOUR_MS).saturating_sub(DAY_HOURS as u64);
        self.hours = self.hours.split_off(&first);
    }
}

#[derive(Debug, Default)]
struct Book {
    devices: BTreeMap<DeviceName, Kept>,
    known_since_ms: u64,
}

/// The day of every device.
#[derive(Debug, Default)]
pub(super) struct Days(Mutex<Book>);

impl Days {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with the attempts that are under way; nothing is known from before `now_ms` yet.
    pub fn begin<'a>(live: impl Iterator<Item = &'a Arc<Job>>, now_ms: u64) -> Self {
        let days = Self(Mutex::new(Book { known_since_ms: now_ms, ..Book::default() }));
        for job in live.filter(|job| matches!(job.state, JobState::Leased | JobState::Running)) {
            if let Some(attempt) = job.attempts.last() {
                let open = Open { since_ms: attempt.started_ms, is_measuring: is_measuring(&job.phase) };
                let name = (attempt.agent_name.clone(), attempt.device.clone());
                days.book().devices.entry(name).or_default().open = Some(open);
            }
        }
        days
    }

    /// Something became durable of a job.
    pub fn note(&self, event: &Event, job: &Job) {
        self.book().note(event, job);
    }

    /// Adds what ended jobs did before this process began.
    pub fn learn(&self, past: Days, known_since_ms: u64) {
        let past = past.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut book = self.book();
        book.known_since_ms = book.known_since_ms.min(known_since_ms);
        for (name, kept) in past.devices {
            let own = book.devices.entry(name).or_default();
            for (number, hour) in kept.hours {
                let known = own.hours.entry(number).or_default();
                known.building_ms += hour.building_ms;
                known.measuring_ms += hour.measuring_ms;
                known.faults += hour.faults;
            }
        }
    }
}

/// Whether an attempt ended by what its device, its agent or its host did, rather than by what was asked of them.
fn is_fault(attempt: &Attempt) -> bool {
    let of_farm = |failure: &Failure| failure.class == FailureClass::Infrastructure;
    match attempt.outcome {
        Outcome::Lost => !attempt.taken_back,
        Outcome::Failed => attempt.failure.as_ref().is_some_and(of_farm),
        _ => false,
    }
}

fn is_measuring(phase: &str) -> bool {
    phase.starts_with("measure")
}

impl Book {
    fn note(&mut self, event: &Event, job: &Job) {
        let Some(attempt) = job.attempts.iter().find(|attempt| attempt.number == event.attempt) else { return };
        let name = (attempt.agent_name.clone(), attempt.device.clone());
        let works = matches!(event.state, JobState::Leased | JobState::Running);
        if !works && !self.devices.contains_key(&name) {
            return;
        }
        let kept = self.devices.entry(name).or_default();
        // What was asked of a job meanwhile ends no part of its attempt.
        let is_measuring = is_measuring(&event.phase);
        if works && kept.open.is_some_and(|open| open.is_measuring == is_measuring) {
            return;
        }
        // The event that ends a lease is the one that tells why.
        if kept.open.is_some() && !works && is_fault(attempt) {
            kept.hours.entry(event.at_ms / HOUR_MS).or_default().faults += 1;
        }
        kept.close(event.at_ms);
        if works {
            kept.open = Some(Open { since_ms: event.at_ms, is_measuring });
        }
        if self.devices.len() > DEVICES_MAX {
            self.forget_quiet();
        }
    }

    /// Forgets the devices that were quiet for longest: many at once, because all are looked at for that.
    fn forget_quiet(&mut self) {
        let last = |kept: &Kept| (kept.open.is_some(), kept.hours.keys().next_back().copied());
        let mut devices: Vec<_> = self.devices.iter().map(|(name, kept)| (last(kept), name.clone())).collect();
        devices.sort_unstable();
        for (_, name) in devices.into_iter().take(self.devices.len() - DEVICES_MAX + FORGOTTEN_AT_ONCE) {
            self.devices.remove(&name);
        }
    }

    fn day(&self, name: &DeviceName, now_ms: u64) -> Day {
        let mut kept = self.devices.get(name).cloned().unwrap_or_default();
        kept.close(now_ms);
        let last = now_ms / HOUR_MS;
        let first = last.saturating_sub(DAY_HOURS as u64 - 1);
        let hours = (first..=last).map(|number| kept.hours.get(&number).copied().unwrap_or_default()).collect();
        let from_ms = self.known_since_ms.max(first * HOUR_MS);
        Day { begins_ms: first * HOUR_MS, known_ms: now_ms.saturating_sub(from_ms), hours }
    }
}

/// Tells the day of the jobs that ended last from their events.
pub(super) async fn read(store: Arc<dyn Store>, days: impl Fn(Days, u64), ended: Vec<Job>, is_all: bool, now_ms: u64) {
    let day_ms = DAY_HOURS as u64 * HOUR_MS;
    let begun = |job: &Job| job.attempts.first().map_or(job.ended_ms, |attempt| attempt.started_ms);
    let known_since_ms = match is_all {
        true => now_ms.saturating_sub(day_ms),
        false => ended.iter().map(|job| job.ended_ms).min().unwrap_or(now_ms),
    };
    let ended: Vec<Job> = ended.into_iter().filter(|job| begun(job) > 0 && job.ended_ms + day_ms > now_ms).collect();
    let past = Days::default();
    for jobs in ended.chunks(JOBS_AT_ONCE) {
        let limit = JOBS_AT_ONCE * EVENTS_OF_JOB;
        let filter =
            EventFilter { after: 0, project: None, jobs: jobs.iter().map(|job| job.id.clone()).collect(), limit };
        let events = match store.events(filter).await {
            Ok(events) => events,
            Err(error) => return tracing::warn!(%error, "what devices did within the last day cannot be read"),
        };
        let by_id: BTreeMap<_, _> = jobs.iter().map(|job| (&job.id, job)).collect();
        // One job after another, so that each device's attempts follow each other.
        let mut order: Vec<&Event> = events.iter().collect();
        order.sort_by_key(|event| (event.job.clone(), event.seq));
        for event in order {
            if let Some(job) = by_id.get(&event.job) {
                past.note(event, job);
            }
        }
    }
    days(past, known_since_ms);
}

impl Farm {
    /// What devices did within the last day.
    pub fn days_of(&self, devices: &[DeviceName]) -> Vec<Day> {
        let now_ms = self.clock().wall_ms();
        let book = self.shared().days.book();
        devices.iter().map(|name| book.day(name, now_ms)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Attempt, Model, Outcome, Want};
    use planforge_types::{BuildSpec, Digest};

    const START_MS: u64 = 1_000_000 * HOUR_MS;

    fn job(device: &str) -> Job {
        let digest = Digest::of(b"m");
        let model = Model { digest, graph_digest: None, structure_digest: None, name: "m".into(), files: Vec::new() };
        let want = Want {
            request: "r".into(),
            actor: "a".into(),
            project: "p".into(),
            priority: 0,
            tags: Vec::new(),
            no_fallback: false,
            require: planforge_types::Requirement::default(),
        };
        let mut job = Job::queued("j".into(), model, "t4".parse().unwrap(), BuildSpec::default(), want, START_MS);
        job.attempts.push(Attempt {
            number: 1,
            agent: "id".into(),
            agent_name: "host".into(),
            device: device.into(),
            started_ms: START_MS,
            ended_ms: 0,
            outcome: Outcome::Running,
            failure: None,
            log: None,
            suspects_cache: false,
            built: None,
            taken_back: false,
        });
        job
    }

    fn event(at_ms: u64, what: &str, state: JobState, phase: &str) -> Event {
        let (what, phase) = (what.into(), phase.into());
        Event {
            seq: at_ms,
            at_ms,
            job: "j".into(),
            actor: "a".into(),
            what,
            state,
            attempt: 1,
            phase,
            detail: "".into(),
        }
    }

    fn hours(days: &Days, now_ms: u64) -> Vec<(u64, u64)> {
        let day = days.book().day(&("host".into(), "gpu".into()), now_ms);
        day.hours.iter().map(|hour| (hour.building_ms, hour.measuring_ms)).collect()
    }

    #[test]
    fn an_attempt_fills_the_hours_that_it_lasts_and_phases_tell_measuring_from_building() {
        let (days, job) = (Days::default(), job("gpu"));
        let minute = 60_000;
        days.note(&event(START_MS + 30 * minute, "leased", JobState::Leased, ""), &job);
        days.note(&event(START_MS + 40 * minute, "phase", JobState::Running, "compile"), &job);
        days.note(&event(START_MS + 45 * minute, "priority", JobState::Running, "compile"), &job);
        days.note(&event(START_MS + 70 * minute, "phase", JobState::Running, "measure"), &job);
        let now_ms = START_MS + 80 * minute;
        let told = hours(&days, now_ms);
        assert_eq!(told.len(), DAY_HOURS);
        assert_eq!(told[DAY_HOURS - 2..], [(30 * minute, 0), (10 * minute, 10 * minute)]);
        days.note(&event(now_ms, "succeeded", JobState::Succeeded, "measure"), &job);
        // It has ended: time goes on, and nothing else does.
        assert_eq!(
            hours(&days, now_ms + HOUR_MS)[DAY_HOURS - 3..],
            [(30 * minute, 0), (10 * minute, 10 * minute), (0, 0)]
        );
        assert!(hours(&days, now_ms + 25 * HOUR_MS).iter().all(|hour| *hour == (0, 0)), "a day later");
        assert!(
            days.book().day(&("host".into(), "other".into()), now_ms).hours.iter().all(|hour| *hour == Hour::default())
        );
    }

    #[test]
    fn a_lease_that_never_ends_fills_a_day_and_no_more() {
        let (days, job) = (Days::default(), job("gpu"));
        days.note(&event(START_MS, "leased", JobState::Leased, ""), &job);
        let now_ms = START_MS + 100 * HOUR_MS + 1;
        let told = hours(&days, now_ms);
        assert!(
            told[..DAY_HOURS - 1].iter().all(|hour| *hour == (HOUR_MS, 0)) && told[DAY_HOURS - 1] == (1, 0),
            "{told:?}"
        );
        days.note(&event(now_ms, "requeued", JobState::Queued, ""), &job);
        let kept = days.book().devices.values().map(|kept| kept.hours.len()).max();
        assert!(kept <= Some(DAY_HOURS + 1), "{kept:?}");
    }

    #[test]
    fn what_came_before_the_start_is_added_and_what_is_not_known_is_said() {
        let job = job("gpu");
        let (now, past) = (Days::begin([].iter(), START_MS + 2 * HOUR_MS), Days::default());
        past.note(&event(START_MS, "leased", JobState::Leased, ""), &job);
        past.note(&event(START_MS + 1_000, "failed", JobState::Failed, ""), &job);
        let known_ms = |days: &Days| days.book().day(&("host".into(), "gpu".into()), START_MS + 3 * HOUR_MS).known_ms;
        assert_eq!(known_ms(&now), HOUR_MS);
        now.learn(past, START_MS);
        assert_eq!(known_ms(&now), 3 * HOUR_MS);
        assert_eq!(hours(&now, START_MS + 2 * HOUR_MS)[DAY_HOURS - 3], (1_000, 0));
    }

    #[test]
    fn of_too_many_devices_those_are_remembered_that_did_something_last() {
        let (days, first) = (Days::default(), job("first"));
        days.note(&event(START_MS, "leased", JobState::Leased, ""), &first);
        for number in 0..DEVICES_MAX {
            let job = job(&format!("gpu{number}"));
            let at_ms = START_MS + HOUR_MS * (number * 4 / DEVICES_MAX) as u64;
            days.note(&event(at_ms, "leased", JobState::Leased, ""), &job);
            days.note(&event(at_ms + 1, "succeeded", JobState::Succeeded, ""), &job);
        }
        let book = days.book();
        assert_eq!(book.devices.len(), DEVICES_MAX - FORGOTTEN_AT_ONCE);
        let knows = |device: &str| book.devices.contains_key(&("host".to_owned(), device.to_owned()));
        assert!(knows("first"), "it works still");
        assert!(knows(&format!("gpu{}", DEVICES_MAX - 1)));
        assert!(!knows("gpu0"));
    }
}
