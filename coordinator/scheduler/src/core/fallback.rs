//! The next toolchain, where one cannot build a model.
//!
//! Who names no toolchain gets the best that their device kind has. Where that says of a model that it cannot build it
//! ([`Reason::Unsupported`]), which is nothing against the model, the job ends so, and in the same transaction a second
//! job takes its place with the next backend: with a key of its own, for the requests that want that, and for whatever
//! needs the first one. Both name each other ([`Job::fallback`], [`Tried::job`]). Other versions of a backend are not
//! asked. What is remembered of refusals is gone through likewise before anything runs, so that the same request comes to
//! the second engine at once from then on.

use super::{
    ask::Asked,
    effects::Effects,
    graph::in_place_of,
    judge::Verdict,
    known::Lookup,
    model::{Change, Failure, Job, JobId, JobState, Want},
    state::{Now, State},
};
use planforge_types::{Digest, FailureClass, Reason, Toolchain, ToolchainConstraint};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Of each toolchain's reason, where several are told: a failure keeps so much that three of them fit.
const REASON_MAX_BYTES: usize = 2_000;
/// Characters of a job's name.
const ID_CHARACTERS: usize = 12;

/// A toolchain that refused a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    pub toolchain: Toolchain,
    /// That found out.
    pub job: JobId,
    pub message: String,
}

impl Tried {
    pub(super) fn new(toolchain: &Toolchain, job: &JobId, failure: &Failure) -> Self {
        Self { toolchain: toolchain.clone(), job: job.clone(), message: failure.message.clone() }
    }
}

/// In a sentence, which toolchains cannot build a model; empty where none was asked.
pub(super) fn named(tried: &[Tried]) -> String {
    let names: Vec<String> = tried.iter().map(|one| format!("{} (job {})", one.toolchain, one.job)).collect();
    if names.is_empty() { String::new() } else { format!("{} cannot build the model", names.join(" and ")) }
}

/// What is told where the last toolchain refused a model, too: all that was asked, and why each cannot.
pub(super) fn with_tried(tried: &[Tried], last: &Toolchain, failure: Failure) -> Failure {
    if tried.is_empty() || failure.class != FailureClass::Model {
        return failure;
    }
    let mut message = format!("{} toolchains were asked, and none gave an engine:", tried.len() + 1);
    for (toolchain, why) in tried.iter().map(|one| (&one.toolchain, &one.message)).chain([(last, &failure.message)]) {
        let (why, more) = match why.floor_char_boundary(REASON_MAX_BYTES) {
            end if end < why.len() => (&why[..end], "…"),
            _ => (&**why, ""),
        };
        message.push_str(&format!("\n  {toolchain}: {why}{more}"));
    }
    let hint = match failure.reason {
        Some(Reason::Unsupported) | None => {
            "'planforge ops' lists the operators of native engines: export the model with those, or add an agent whose \
             toolchain has the others ('planforge devices' lists toolchains)"
        }
        Some(Reason::Inaccurate) => &failure.hint,
    };
    Failure { lacked: failure.lacked, reason: failure.reason, ..Failure::new(failure.class, message, hint) }
}

impl Job {
    /// Interests that are served by another toolchain, too.
    fn wants_of_any_toolchain(&self) -> Vec<Want> {
        // The first one asked for the job's own constraint; an older version noted no more of it.
        let first_named = usize::from(!self.constraint.is_empty());
        self.wants.iter().skip(first_named).filter(|want| !want.no_fallback).cloned().collect()
    }
}

impl State {
    /// Ends a job whose attempt said what is final, and lets another take its place where that helps.
    pub(super) fn refuse_job(&mut self, id: &JobId, agent: &str, failure: Failure, now: Now, effects: &mut Effects) {
        let Some(job) = self.jobs.get(id).cloned() else { return };
        let (next, failure) = self.fall_back(&job, failure, now, effects);
        let detail = match &next {
            Some(next) => format!("{}; job {next} takes its place with another toolchain", failure.message),
            None => failure.message.clone(),
        };
        if let Some(job) = self.job_mut(id) {
            job.fallback = next;
        }
        self.end(id, JobState::Failed, Some(failure), agent, detail, now, effects);
    }

    /// The job that takes the place of one that failed, and what is said of that one.
    fn fall_back(&mut self, job: &Job, failure: Failure, now: Now, effects: &mut Effects) -> (Option<JobId>, Failure) {
        let Some(toolchain) = &job.toolchain else { return (None, failure) };
        let told = with_tried(&job.tried, toolchain, failure.clone());
        let wants = job.wants_of_any_toolchain();
        let may = failure.class == FailureClass::Model
            && failure.reason == Some(Reason::Unsupported)
            && job.makes_engine()
            && job.cancelling.is_none();
        let Some(mut asked) = Asked::of(job).filter(|_| may && !wants.is_empty()) else { return (None, told) };
        (asked.constraint, asked.matches) = (String::new(), ToolchainConstraint::default());
        (asked.falls_back, asked.stale) = (true, std::sync::Arc::default());
        asked.tried.push(Tried::new(toolchain, &job.id, &failure));
        let next = match self.judge(&asked, &Lookup::default()) {
            Err(_) | Ok(Verdict::Wait(_)) => return (None, told),
            Ok(Verdict::Fail { failure, .. }) => return (None, failure),
            Ok(Verdict::Join(other)) => {
                for want in &wants {
                    self.join(other.clone(), want.clone(), &asked, now, effects);
                }
                self.pass_on(&job.id, &other, effects);
                other
            }
            Ok(verdict) => {
                let next = self.enter_in_place(job, asked, &wants, now, effects);
                self.pass_on(&job.id, &next, effects);
                self.settle(&next, verdict, "coordinator", "resolved", now, effects);
                next
            }
        };
        let requests: BTreeSet<String> = wants.into_iter().map(|want| want.request).collect();
        self.replace_in_requests(&requests, &job.id, &next);
        let change = |request| Change::Fallback { request, from: job.id.clone(), to: next.clone() };
        effects.changes.extend(requests.into_iter().map(change));
        (Some(next), failure)
    }

    /// Makes the job that takes another's place; nothing is decided about it yet.
    fn enter_in_place(&mut self, job: &Job, asked: Asked, wants: &[Want], now: Now, effects: &mut Effects) -> JobId {
        let digest = Digest::of(format!("in place of {}", job.id).as_bytes()).to_string();
        let id = JobId::from(&digest[..ID_CHARACTERS]);
        let kind = asked.makes();
        let detail = named(&asked.tried);
        // For people, until it is decided.
        let likely = self.likely_toolchain(&asked);
        let next = Job {
            kind,
            toolchain: likely,
            from: asked.from.map(Box::new),
            // It waits for nobody but for what is to be decided about it: see `State::new`.
            state: JobState::Blocked,
            wants: wants.to_vec(),
            force: asked.force,
            follow_toolchain: job.follow_toolchain,
            wait_for_device: job.wait_for_device,
            allow_inaccurate: asked.allow_inaccurate,
            eval: asked.covered.eval,
            builds: asked.builds,
            measure: asked.covered.measure,
            needed: job.needed.clone(),
            canary: asked.canary,
            tried: asked.tried,
            trace: job.trace,
            ..Job::queued(id.clone(), asked.model, asked.sku, asked.spec, wants[0].clone(), now.wall_ms)
        };
        let project = |project: &str| Change::JobProject {
            project: project.to_owned(),
            job: id.clone(),
            created_ms: now.wall_ms,
        };
        effects.changes.extend(next.projects().into_iter().map(project));
        self.charge(next.project(), 1);
        self.jobs.insert(id.clone(), std::sync::Arc::new(next));
        self.record(effects, now, &id, "coordinator", "submitted", detail);
        id
    }

    /// Whoever needs `from` needs `to` from now on.
    fn pass_on(&mut self, from: &JobId, to: &JobId, effects: &mut Effects) {
        for id in self.release_needs(from) {
            let Some(job) = self.job_mut(&id) else { continue };
            job.needed = in_place_of(&job.needed, from, to);
            let needs = in_place_of(&job.needs, from, to);
            self.wait_for(&id, needs, effects);
            effects.changes.extend(self.jobs.get(&id).cloned().map(Change::Job));
        }
    }
}
