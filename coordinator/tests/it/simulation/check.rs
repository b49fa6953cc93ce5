//! What must be true of the store when everything has ended.

use super::World;
use futures::executor::block_on;
use planforge_coordinator::{
    core::{Event, Job, JobId, JobKind, JobState, Outcome, invariants::History},
    store::{EngineFilter, EventFilter, JobFilter, ReportFilter, Store as _},
};
use planforge_types::Digest;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

fn jobs(world: &World) -> BTreeMap<JobId, Job> {
    let filter = JobFilter { limit: usize::MAX, ..JobFilter::default() };
    block_on(world.store.jobs(filter)).unwrap().into_iter().map(|job| (job.id.clone(), job)).collect()
}

pub fn open_jobs(world: &World) -> Vec<Job> {
    jobs(world).into_values().filter(|job| !job.state.is_terminal()).collect()
}

/// Checks the promises and returns a fingerprint of the history.
pub fn promises(world: &World) -> Result<String, String> {
    let filter = EventFilter { limit: usize::MAX, ..EventFilter::default() };
    let events = block_on(world.store.events(filter)).unwrap();
    let jobs = jobs(world);
    let mut history = History::default();
    for event in &events {
        history.add(event)?;
    }
    for id in world.acknowledged.lock().unwrap().keys() {
        // No acknowledged submission is lost, and each ends in exactly one way.
        let job = jobs.get(&JobId::from(id.as_str())).ok_or_else(|| format!("acknowledged job {id} is lost"))?;
        if !job.state.is_terminal() {
            return Err(format!("job {id} is {} when everything has ended", job.state.name()));
        }
    }
    for (id, state) in history.jobs() {
        let stored = jobs.get(id).map(|job| job.state);
        if stored != Some(state) {
            return Err(format!("the events of {id} end with {}, the job is {stored:?}", state.name()));
        }
    }
    needs(&events, &jobs)?;
    engines(world, &jobs)?;
    one_job_per_device(&events, &jobs)?;
    let rescued = world.rescued.load(Ordering::Relaxed);
    if rescued > 0 {
        return Err(format!("the sweep had to rescue {rescued} wake-ups"));
    }
    let trace: Vec<String> = events.iter().map(|e| format!("{} {} {} {}", e.seq, e.job, e.what, e.attempt)).collect();
    Ok(Digest::of(trace.join("\n").as_bytes()).to_string())
}

/// Nothing ran before what it needs had succeeded, and only what needs a job that ended otherwise was skipped.
fn needs(events: &[Event], jobs: &BTreeMap<JobId, Job>) -> Result<(), String> {
    let mut succeeded = BTreeSet::new();
    for event in events {
        let job = &jobs[&event.job];
        let unmet = job.needed.iter().find(|need| !succeeded.contains(need));
        match (event.what.as_str(), unmet) {
            ("leased", Some(need)) => return Err(format!("{} was leased before {need} had succeeded", job.id)),
            ("skipped", None) => return Err(format!("{} was skipped, all that it needs succeeded", job.id)),
            ("succeeded", Some(need)) => return Err(format!("{} succeeded before {need}", job.id)),
            ("succeeded", None) => drop(succeeded.insert(&job.id)),
            _ => {}
        }
    }
    Ok(())
}

/// At most one engine per key unless it was forced, made by the newest attempt of its job, with its bytes there.
fn engines(world: &World, jobs: &BTreeMap<JobId, Job>) -> Result<(), String> {
    let (mut built, mut made) = (BTreeMap::new(), BTreeMap::new());
    let forced: BTreeSet<_> = jobs.values().filter(|job| job.force).map(|job| job.key).collect();
    for job in jobs.values().filter(|job| job.state == JobState::Succeeded && !job.cached) {
        let builds = job.plan.as_ref().map_or(0, |plan| plan.builds);
        if builds < job.builds && !job.prepares() && job.kind != JobKind::Prepare {
            return Err(format!("job {} was to build {} times and has {builds}", job.id, job.builds));
        }
        // Another engine of the same key only from more builds; a forced one may have taken the place of such.
        if job.makes_engine()
            && !job.force
            && !forced.contains(&job.key)
            && let Some(other) = built.insert((job.key, builds), &job.id)
        {
            return Err(format!("jobs {other} and {} both built one key", job.id));
        }
        let last = job.attempts.last().ok_or_else(|| format!("{} succeeded without an attempt", job.id))?;
        if last.outcome != Outcome::Succeeded {
            return Err(format!("{} succeeded, its newest attempt is {}", job.id, last.outcome.name()));
        }
        if job.attempts.iter().filter(|attempt| attempt.outcome == Outcome::Succeeded).count() != 1 {
            return Err(format!("{} succeeded more than once", job.id));
        }
        let filter = ReportFilter { job: Some(job.id.clone()), limit: 10, ..ReportFilter::default() };
        let reports = block_on(world.store.reports(filter)).unwrap();
        if job.kind == JobKind::Prepare {
            if !reports.is_empty() || job.made.is_none() {
                return Err(format!("{} prepares: {} reports, made {:?}", job.id, reports.len(), job.made));
            }
            if let Some(other) = made.insert(job.key, &job.id).filter(|_| !job.force && !forced.contains(&job.key)) {
                return Err(format!("jobs {other} and {} both prepared one model in one way", job.id));
            }
            continue;
        }
        if job.kind == JobKind::Compile {
            if !reports.is_empty() || job.prepares() != job.prepared.is_some() {
                return Err(format!("{} compiles: {} reports, prepared {:?}", job.id, reports.len(), job.prepared));
            }
            continue;
        }
        let mine = format!(r#""attempt":{},"#, last.number);
        if reports.len() != 1 || !reports[0].document.contains(&mine) {
            return Err(format!("{} has {} reports, or one by a superseded attempt", job.id, reports.len()));
        }
    }
    for job in jobs.values().filter(|job| !job.attempts.is_empty()) {
        let Some(from) = &job.from else { continue };
        let by = jobs.get(&JobId::from(from.job.as_str())).and_then(|by| by.made.as_ref());
        if by.is_none_or(|made| made.model.digest != job.model.digest) {
            return Err(format!("{} ran with another model than {} prepared", job.id, from.job));
        }
    }
    let filter = EngineFilter { limit: usize::MAX, ..EngineFilter::default() };
    for engine in block_on(world.store.engines(filter)).unwrap() {
        let bytes = world.blobs.get(engine.plan.digest);
        if bytes.map(|bytes| bytes.len() as u64) != Some(engine.plan.size_bytes) {
            return Err(format!("the plan of {} is not what its row says", engine.key));
        }
        if jobs.get(&engine.job).is_none_or(|job| job.state != JobState::Succeeded) {
            return Err(format!("engine {} was published by a job that did not succeed", engine.key));
        }
    }
    Ok(())
}

/// No device was given a job while the coordinator thought that it had another.
fn one_job_per_device(events: &[Event], jobs: &BTreeMap<JobId, Job>) -> Result<(), String> {
    let mut holders: BTreeMap<(String, String), JobId> = BTreeMap::new();
    for event in events {
        if ["leased", "requeued", "succeeded", "failed", "cancelled"].contains(&event.what.as_str()) {
            holders.retain(|_, holder| *holder != event.job);
        }
        if event.what == "leased" {
            let attempt = &jobs[&event.job].attempts[event.attempt as usize - 1];
            let device = (attempt.agent.clone(), attempt.device.clone());
            if let Some(other) = holders.insert(device.clone(), event.job.clone()) {
                return Err(format!("{device:?} was given {} while it had {other}", event.job));
            }
        }
    }
    Ok(())
}
