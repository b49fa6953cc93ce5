//! Everything in memory, with the same promises as a database as long as the process lives.

mod coverage;
mod faults;
mod past;

pub use faults::Faults;

use super::{
    Answer, AuditFilter, BuildName, Count, Coverage, CoverageFilter, CoveredModels, DeclarationFilter, EngineFilter,
    EventFilter, EventListFilter, Heap, HistoryFilter, JobFilter, LATEST_MAX, ListedRequest, Part, PastBuild,
    PastPlace, PinFilter, ReportFilter, RequestFilter, Store,
    answers::{ReportOf, engine_ref},
};
use crate::core::{
    Agent, AuditLine, BlobHolder, CacheRecord, Change, Covered, DeclarationId, DeclarationRecord, Engine, Event, Held,
    Hold, Job, JobId, JobState, Model, PauseId, PauseRecord, PinId, PinRecord, PluginRecord, PreparationRecord,
    ProjectRecord, Refusal, Report, RequestRecord, ShareRecord, Snapshot, Stored, Tenure, TokenRecord,
};
use planforge_blobs::Note;
use planforge_retention::Build;
use planforge_types::{Digest, EngineKey};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    future,
    sync::{Arc, Mutex, PoisonError},
};

#[derive(Debug, Default)]
struct Tables {
    epoch: u64,
    jobs: BTreeMap<JobId, Arc<Job>>,
    job_projects: BTreeSet<(JobId, String)>,
    /// Jobs that ended without success and are kept no more.
    lost: BTreeSet<JobId>,
    /// With their projects.
    job_tags: BTreeSet<(JobId, String, String)>,
    events: BTreeMap<u64, Event>,
    engines: BTreeMap<(EngineKey, Digest), Engine>,
    /// When an engine was used last.
    engines_used: BTreeMap<EngineKey, u64>,
    engine_projects: BTreeSet<(EngineKey, String)>,
    /// Builds that were measured, by their places in a history.
    past: BTreeMap<PastPlace, PastBuild>,
    blobs: BTreeMap<(Digest, BlobHolder), Hold>,
    reports: BTreeMap<Digest, Report>,
    agents: BTreeMap<String, Agent>,
    requests: BTreeMap<String, RequestRecord>,
    refusals: BTreeMap<EngineKey, Refusal>,
    preparations: BTreeMap<EngineKey, PreparationRecord>,
    caches: BTreeMap<Digest, CacheRecord>,
    plugins: BTreeMap<Digest, PluginRecord>,
    pauses: BTreeMap<PauseId, PauseRecord>,
    projects: BTreeMap<String, ProjectRecord>,
    pins: BTreeMap<PinId, PinRecord>,
    shares: BTreeMap<String, ShareRecord>,
    /// By kind and name: what it says, and when it was written.
    blob_notes: BTreeMap<(String, String), (String, u64)>,
    declarations: BTreeMap<DeclarationId, DeclarationRecord>,
    audit: Vec<AuditLine>,
    tokens: BTreeMap<String, TokenRecord>,
    faults: Faults,
}

/// Keeps everything in memory: tests and simulation.
#[derive(Debug, Default)]
pub struct MemStore {
    tables: Mutex<Tables>,
}

impl MemStore {
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(&self, work: impl FnOnce(&mut Tables) -> T) -> T {
        work(&mut self.tables.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn answer<T: Send + 'static>(&self, work: impl FnOnce(&mut Tables) -> T) -> Answer<'static, T> {
        Box::pin(future::ready(Ok(self.with(work))))
    }
}

impl Tables {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Job(job) => {
                for project in job.projects() {
                    let holder = BlobHolder::Project(project.to_owned());
                    job.blobs().into_iter().for_each(|(digest, hold)| self.hold(digest, holder.clone(), hold));
                }
                for want in &job.wants {
                    let tagged = want.tags.iter().map(|tag| (job.id.clone(), tag.clone(), want.project.clone()));
                    self.job_tags.extend(tagged);
                }
                self.jobs.insert(job.id.clone(), job);
            }
            Change::JobProject { project, job, .. } => drop(self.job_projects.insert((job, project))),
            Change::Event(event) => drop(self.events.insert(event.seq, event)),
            Change::Engine(engine) => {
                engine.blobs().for_each(|(digest, hold)| self.hold(digest, BlobHolder::Engine(engine.key), hold));
                self.remember(&engine);
                self.engines.insert((engine.key, engine.plan.digest), *engine);
            }
            Change::EngineProject { key, project } => drop(self.engine_projects.insert((key, project))),
            Change::Report(report) => {
                if let Some(key) = report.key {
                    report.blobs().for_each(|(digest, hold)| self.hold(digest, BlobHolder::Engine(key), hold));
                }
                if let Some(job) = self.jobs.get(&report.job).cloned() {
                    for project in job.projects() {
                        let holder = BlobHolder::Project(project.to_owned());
                        report.blobs().for_each(|(digest, hold)| self.hold(digest, holder.clone(), hold));
                    }
                }
                let (plan, digest) = (report.plan, report.digest);
                self.reports.insert(digest, *report);
                let own: Vec<Engine> =
                    self.engines.values().filter(|engine| engine.plan.digest == plan).cloned().collect();
                own.iter().for_each(|engine| self.remember(engine));
            }
            Change::Blob { digest, holder, hold } => self.hold(digest, holder, hold),
            Change::Agent(agent) => drop(self.agents.insert(agent.id.clone(), *agent)),
            Change::ForgetAgent(id) => drop(self.agents.remove(&id)),
            Change::Request(request) => drop(self.requests.insert(request.id.clone(), request)),
            Change::Refusal(refusal) => drop(self.refusals.insert(refusal.key, refusal)),
            Change::ForgetRefusal(key) => drop(self.refusals.remove(&key)),
            Change::Preparation(record) => drop(self.preparations.insert(record.key, *record)),
            Change::Cache(cache) => drop(self.caches.insert(cache.scope, *cache)),
            Change::Plugin(plugin) => drop(self.plugins.insert(plugin.digest, plugin)),
            Change::ForgetPlugin(digest) => drop(self.plugins.remove(&digest)),
            Change::Pause(record) => drop(self.pauses.insert(record.id(), *record)),
            Change::Resume(id) => drop(self.pauses.remove(&id)),
            Change::Project(record) => drop(self.projects.insert(record.name.clone(), record)),
            Change::Pin(pin) => drop(self.pins.insert(pin.id(), *pin)),
            Change::Unpin(id) => drop(self.pins.remove(&id)),
            Change::PinsExpired { now_ms } => self.pins.retain(|_, pin| pin.expires_ms > now_ms),
            Change::Share(share) => drop(self.shares.entry(share.id.clone()).or_insert(*share)),
            Change::ShareOpened { id, at_ms } => {
                self.shares.entry(id).and_modify(|share| share.opened_ms = share.opened_ms.max(at_ms));
            }
            Change::BlobNote { kind, name, text: Some(text), at_ms } => {
                self.blob_notes.insert((kind, name), (text, at_ms));
            }
            Change::BlobNote { kind, name, text: None, .. } => drop(self.blob_notes.remove(&(kind, name))),
            Change::Unshare(id) => drop(self.shares.remove(&id)),
            Change::SharesExpired { now_ms } => self.shares.retain(|_, share| share.expires_ms > now_ms),
            Change::Declaration(record) => drop(self.declarations.insert(record.id(), *record)),
            Change::ForgetDeclaration(id) => drop(self.declarations.remove(&id)),
            Change::Audit(line) => {
                let seq = self.audit.last().map_or(1, |last| last.seq + 1);
                self.audit.push(AuditLine { seq, ..*line });
            }
            Change::EngineUsed { key, at_ms } => {
                let used_ms = self.engines_used.entry(key).or_default();
                *used_ms = at_ms.max(*used_ms);
            }
            Change::ForgetJob(job) => self.forget_job(&job),
            Change::ForgetBuild { key, plan } => self.forget_build(key, plan),
            Change::ForgetRequest(id) => drop(self.requests.remove(&id)),
            Change::Fallback { request, from, to } => {
                let jobs = self.requests.get_mut(&request).map(|request| &mut request.jobs).into_iter().flatten();
                jobs.filter(|job| **job == from).for_each(|job| *job = to.clone());
            }
            Change::ForgetHeld { held: Held { digest, project, tenure }, before_ms } => {
                let row = (digest, BlobHolder::Project(project));
                if self.blobs.get(&row).is_some_and(|hold| hold.tenure == tenure && hold.since_ms < before_ms) {
                    self.blobs.remove(&row);
                }
            }
            Change::EventsGone { until } => {
                let newest = self.events.last_key_value().map_or(0, |(seq, _)| *seq);
                self.events.retain(|seq, _| *seq > until || *seq == newest);
            }
            Change::ForgetReport(digest) => {
                if let Some(report) = self.reports.remove(&digest) {
                    let gone: BTreeSet<Digest> = report.blobs().map(|(digest, _)| digest).collect();
                    self.blobs.retain(|(digest, _), _| !gone.contains(digest));
                }
            }
            Change::AuditKept { kind, lines } => {
                let mut extra = self.audit.iter().filter(|line| line.kind == kind).count().saturating_sub(lines);
                self.audit.retain(|line| {
                    let goes = line.kind == kind && extra > 0;
                    extra -= usize::from(goes);
                    !goes
                });
            }
            Change::TokenMade(token) => drop(self.tokens.entry(token.id.clone()).or_insert(token)),
            Change::TokenRevoked { id } => {
                if let Some(token) = self.tokens.get_mut(&id) {
                    token.revoked = true;
                }
            }
            Change::TokenUsed { id, at_ms } => {
                if let Some(token) = self.tokens.get_mut(&id) {
                    token.last_used_ms = token.last_used_ms.max(at_ms);
                }
            }
            Change::TokenBound { id, agent } => {
                if let Some(token) = self.tokens.get_mut(&id) {
                    token.agent = agent;
                }
            }
        }
    }

    fn hold(&mut self, digest: Digest, holder: BlobHolder, hold: Hold) {
        let known = self.blobs.entry((digest, holder)).or_insert(hold);
        *known = Hold { size_bytes: known.size_bytes, ..known.and(hold) };
    }

    fn forget_job(&mut self, job: &Job) {
        self.jobs.remove(&job.id);
        if job.state != JobState::Succeeded {
            self.lost.insert(job.id.clone());
        }
        self.job_projects.retain(|(id, _)| *id != job.id);
        self.job_tags.retain(|(id, ..)| *id != job.id);
        let newest = self.events.last_key_value().map_or(0, |(seq, _)| *seq);
        self.events.retain(|seq, event| event.job != job.id || *seq == newest);
        let plans: BTreeSet<Digest> = self.engines.keys().map(|(_, plan)| *plan).collect();
        self.reports.retain(|_, report| report.job != job.id || plans.contains(&report.plan));
        if let Some(key) = job.key {
            let own = self.refusals.get(&key).is_some_and(|refusal| refusal.job == job.id);
            self.refusals.retain(|known, _| !(own && *known == key));
        }
        let logs: BTreeSet<Digest> = job.attempts.iter().filter_map(|attempt| attempt.log).collect();
        self.blobs.retain(|(digest, holder), _| !(logs.contains(digest) && matches!(holder, BlobHolder::Project(_))));
        if let Some(plan) = job.plan.as_ref().filter(|plan| !plans.contains(&plan.digest)) {
            let gone = [Some(plan.digest), plan.card, job.report];
            self.blobs.retain(|(digest, _), _| !gone.contains(&Some(*digest)));
        }
        self.preparations.retain(|_, record| record.job != job.id);
        self.forget_model(&job.model, job.from.as_ref().and_then(|from| from.document));
        if let Some(made) = &job.made {
            self.forget_model(&made.model, Some(made.document));
        }
    }

    fn forget_build(&mut self, key: EngineKey, plan: Digest) {
        let Some(engine) = self.engines.remove(&(key, plan)) else { return };
        if !self.engines.keys().any(|(known, _)| *known == key) {
            self.engine_projects.retain(|(known, _)| *known != key);
        }
        if !self.engines.keys().any(|(_, known)| *known == plan) {
            let mut gone: BTreeSet<Digest> = engine.blobs().map(|(digest, _)| digest).collect();
            for report in self.reports.values().filter(|report| report.plan == plan) {
                gone.extend(report.blobs().map(|(digest, _)| digest));
            }
            self.reports.retain(|_, report| report.plan != plan);
            self.blobs.retain(|(digest, _), _| !gone.contains(digest));
        }
        self.forget_model(&engine.model, engine.from.as_ref().and_then(|from| from.document));
    }

    /// Bytes of a model that neither a job nor an engine is of any more, nor what was prepared, belong to nobody.
    fn forget_model(&mut self, model: &Model, document: Option<Digest>) {
        let known = self.jobs.values().map(|job| &job.model).chain(self.engines.values().map(|engine| &engine.model));
        let known = known.chain(self.preparations.values().map(|record| &record.made.model));
        if known.map(|known| known.digest).all(|known| known != model.digest) {
            let files: BTreeSet<Digest> = model.files.iter().map(|file| file.digest).chain(document).collect();
            self.blobs.retain(|(digest, _), _| !files.contains(digest));
        }
    }

    /// Builds as a policy weighs them.
    fn builds(&self, now_ms: u64) -> impl Iterator<Item = Build<BuildName>> + '_ {
        self.engines.values().map(move |engine| {
            let newer =
                self.engines.values().filter(|other| other.key == engine.key && other.age_order() > engine.age_order());
            let superseded_ms = newer.map(|other| other.created_ms).min();
            let used_ms = self.engines_used.get(&engine.key).copied().filter(|_| superseded_ms.is_none());
            let mut projects =
                self.engine_projects.iter().filter(|(key, _)| *key == engine.key).map(|(_, project)| project);
            let project = projects.next().filter(|_| projects.next().is_none());
            Build {
                name: (engine.key, engine.plan.digest),
                bytes: engine.plan.size_bytes,
                built_ms: engine.created_ms,
                used_ms: used_ms.unwrap_or(0).max(engine.created_ms),
                superseded_ms,
                project: project.cloned(),
                is_pinned: self.is_pinned(engine.plan.digest, now_ms),
            }
        })
    }

    fn is_pinned(&self, plan: Digest, now_ms: u64) -> bool {
        self.pins.values().any(|pin| pin.plan == plan && pin.expires_ms > now_ms)
    }

    /// Jobs of the filter's project and tags.
    fn jobs_of<'a>(&'a self, filter: &'a JobFilter) -> impl Iterator<Item = &'a Job> + 'a {
        let project = filter.project.as_ref();
        let own = move |job: &&Arc<Job>| {
            project.is_none_or(|project| self.job_projects.contains(&(job.id.clone(), project.clone())))
        };
        let tagged = move |job: &&Arc<Job>| {
            filter.tags.iter().all(|tag| {
                let from = (job.id.clone(), tag.clone(), String::new());
                let mut tags = self.job_tags.range(from..).take_while(|(id, known, _)| *id == job.id && known == tag);
                tags.any(|(_, _, of)| project.is_none_or(|project| of == project))
            })
        };
        self.jobs.values().filter(own).filter(tagged).map(Arc::as_ref)
    }

    /// Events of a list, wherever a part begins: the latest first.
    fn events_of<'a>(&'a self, filter: &'a EventListFilter) -> impl Iterator<Item = &'a Event> + 'a {
        let fits = |event: &&Event| {
            let project = filter.project.as_ref();
            project.is_none_or(|project| self.job_projects.contains(&(event.job.clone(), project.clone())))
                && (filter.jobs.is_empty() || filter.jobs.contains(&event.job))
                && (filter.kinds.is_empty() || filter.kinds.contains(&event.what))
        };
        self.events.range(filter.after + 1..).map(|(_, event)| event).rev().filter(fits)
    }

    /// Requests of a list, wherever a part begins: newest first.
    fn requests_of(&self, filter: &RequestFilter) -> Vec<ListedRequest> {
        let listed = |request: &RequestRecord| {
            let ids: BTreeSet<&JobId> = request.jobs.iter().collect();
            let states: Vec<JobState> = ids.iter().filter_map(|id| Some(self.jobs.get(*id)?.state)).collect();
            let ended = states.iter().filter(|state| state.is_terminal() && **state != JobState::Succeeded);
            let gone = ids.iter().filter(|id| !self.jobs.contains_key(**id) && self.lost.contains(**id));
            ListedRequest {
                request: request.clone(),
                jobs: ids.len() as u64,
                live: states.iter().filter(|state| !state.is_terminal()).count() as u64,
                lost: (ended.count() + gone.count()) as u64,
            }
        };
        let fits = |listed: &ListedRequest| {
            let ListedRequest { request, .. } = listed;
            filter.project.as_ref().is_none_or(|project| request.project == *project)
                && (filter.states.is_empty() || filter.states.contains(&listed.state()))
                && filter.since_ms.is_none_or(|since| request.created_ms >= since)
                && filter.until_ms.is_none_or(|until| request.created_ms <= until)
        };
        let mut requests: Vec<ListedRequest> = self.requests.values().map(listed).filter(fits).collect();
        requests.sort_by_key(|listed| Reverse(listed.place()));
        requests
    }

    /// Engines of a filter, wherever a part begins: newest first.
    fn engines_of(&self, filter: &EngineFilter) -> Vec<&Engine> {
        let all: Vec<&Engine> = match filter.plan {
            Some(plan) => self.engines.values().filter(|engine| engine.plan.digest == plan).collect(),
            None => self.newest_engines().into_values().collect(),
        };
        let fits = |engine: &&Engine| {
            let project = filter.project.as_ref();
            project.is_none_or(|project| self.engine_projects.contains(&(engine.key, project.clone())))
                && filter.key.is_none_or(|key| engine.key == key)
                && filter.sku.as_ref().is_none_or(|sku| engine.sku.as_str() == sku)
                && is_model(&engine.model.name, engine.model.digest, filter.model.as_ref())
        };
        let mut engines: Vec<&Engine> = all.into_iter().filter(fits).collect();
        engines.sort_by_key(|engine| Reverse(place(engine)));
        engines
    }

    fn newest_engines(&self) -> BTreeMap<EngineKey, &Engine> {
        let mut newest: BTreeMap<EngineKey, &Engine> = BTreeMap::new();
        for engine in self.engines.values() {
            let known = newest.entry(engine.key).or_insert(engine);
            if engine.age_order() > known.age_order() {
                *known = engine;
            }
        }
        newest
    }

    fn stored(&self, keys: &[EngineKey]) -> BTreeMap<EngineKey, Stored> {
        let newest = self.newest_engines();
        let stored = |key: &EngineKey| {
            let engine = newest.get(key).map(|engine| {
                let mut reports: Vec<&Report> =
                    self.reports.values().filter(|r| r.key == Some(*key) && r.plan == engine.plan.digest).collect();
                reports.sort_by_key(|report| (report.created_ms, report.digest));
                let reports = reports.into_iter().map(|report| ReportOf {
                    digest: report.digest,
                    covered: Covered::of(report),
                    accurate: found_right(&report.document),
                    sku: report.sku.clone(),
                    job: report.job.clone(),
                });
                engine_ref(engine, reports)
            });
            let (refusal, preparation) = (self.refusals.get(key).cloned(), self.preparations.get(key).cloned());
            (*key, Stored { engine, refusal, preparation })
        };
        keys.iter().map(stored).collect()
    }

    fn snapshot(&self) -> Snapshot {
        let mut ended: Vec<&Arc<Job>> = self.jobs.values().filter(|job| job.ended_ms > 0).collect();
        ended.sort_by_key(|job| (job.ended_ms, job.id.clone()));
        let latest = ended.split_off(ended.len().saturating_sub(LATEST_MAX));
        Snapshot {
            jobs: self.jobs.values().filter(|job| !job.state.is_terminal()).map(|job| job.as_ref().clone()).collect(),
            latest: latest.into_iter().map(|job| job.as_ref().clone()).collect(),
            agents: self.agents.values().cloned().collect(),
            caches: self.caches.values().cloned().collect(),
            plugins: self.plugins.values().cloned().collect(),
            pauses: self.pauses.values().cloned().collect(),
            projects: self.projects.values().cloned().collect(),
            last_event: self.events.keys().next_back().copied().unwrap_or(0),
        }
    }
}

/// Whether the document of a report finds nothing wrong.
fn found_right(document: &str) -> bool {
    let document: serde_json::Value = serde_json::from_str(document).unwrap_or_default();
    document.get("accurate").and_then(serde_json::Value::as_bool) != Some(false)
}

/// Where an engine stands in lists.
fn place(engine: &Engine) -> (u64, EngineKey, Digest) {
    (engine.created_ms, engine.key, engine.plan.digest)
}

fn is_model(name: &str, digest: Digest, asked: Option<&String>) -> bool {
    asked.is_none_or(|asked| name == asked || (!asked.is_empty() && digest.to_string().starts_with(asked.as_str())))
}

impl Store for MemStore {
    fn acquire<'a>(&'a self, _owner: &'a str, _now_ms: u64) -> Answer<'a, u64> {
        self.answer(|tables| {
            tables.epoch += 1;
            tables.epoch
        })
    }

    fn load(&self) -> Answer<'_, Snapshot> {
        Box::pin(future::ready(self.with(|tables| tables.loaded())))
    }

    fn commit(&self, epoch: u64, changes: Vec<Change>) -> Answer<'_, ()> {
        Box::pin(self.commit_faultily(epoch, changes))
    }

    fn check(&self, epoch: u64) -> Answer<'_, ()> {
        Box::pin(future::ready(self.with(|tables| tables.may_write(epoch))))
    }

    fn job<'a>(&'a self, id: &'a JobId) -> Answer<'a, Option<Job>> {
        self.answer(|tables| tables.jobs.get(id).map(|job| job.as_ref().clone()))
    }

    fn job_ids<'a>(&'a self, prefix: &'a str, project: Option<&'a str>, limit: usize) -> Answer<'a, Vec<JobId>> {
        self.answer(|tables| {
            let from = tables.jobs.range(JobId::from(prefix)..);
            let ids = from.map(|(id, _)| id).take_while(|id| id.as_str().starts_with(prefix));
            let own = |id: &&JobId| {
                project.is_none_or(|project| tables.job_projects.contains(&((*id).clone(), project.to_owned())))
            };
            ids.filter(own).take(limit).cloned().collect()
        })
    }

    fn stored(&self, keys: Vec<EngineKey>) -> Answer<'_, BTreeMap<EngineKey, Stored>> {
        self.answer(|tables| tables.stored(&keys))
    }

    fn part_of_jobs(&self, filter: JobFilter) -> Answer<'_, Part<Job, (u64, JobId)>> {
        self.answer(|tables| filter.part_of(tables.jobs_of(&filter)))
    }

    fn count_jobs(&self, filter: JobFilter) -> Answer<'_, Count> {
        self.answer(|tables| {
            let all = JobFilter { behind: None, limit: usize::MAX, ..filter };
            Count { count: all.part_of(tables.jobs_of(&all)).items.len() as u64, is_exact: true }
        })
    }

    fn job_counts<'a>(&'a self, project: Option<&'a str>) -> Answer<'a, BTreeMap<(String, JobState), u64>> {
        self.answer(|tables| {
            let filter = JobFilter { project: project.map(str::to_owned), ..JobFilter::default() };
            let mut counts = BTreeMap::new();
            for job in tables.jobs_of(&filter) {
                *counts.entry((job.sku.to_string(), job.state)).or_default() += 1;
            }
            counts
        })
    }

    fn oldest_waiting<'a>(&'a self, skus: Vec<String>, states: &'a [JobState]) -> Answer<'a, BTreeMap<String, u64>> {
        self.answer(|tables| {
            let mut oldest: BTreeMap<String, u64> = BTreeMap::new();
            for job in tables.jobs.values().filter(|job| states.contains(&job.state)) {
                if let Some(sku) = skus.iter().find(|sku| job.sku.as_str() == *sku) {
                    let known = oldest.entry(sku.clone()).or_insert(job.created_ms);
                    *known = job.created_ms.min(*known);
                }
            }
            oldest
        })
    }

    fn events(&self, filter: EventFilter) -> Answer<'_, Vec<Event>> {
        self.answer(|tables| {
            let fits = |event: &&Event| {
                let project = filter.project.as_ref();
                project.is_none_or(|project| tables.job_projects.contains(&(event.job.clone(), project.clone())))
                    && (filter.jobs.is_empty() || filter.jobs.contains(&event.job))
            };
            tables.events.range(filter.after + 1..).map(|(_, e)| e).filter(fits).take(filter.limit).cloned().collect()
        })
    }

    fn part_of_events(&self, filter: EventListFilter) -> Answer<'_, Part<Event, u64>> {
        self.answer(|tables| {
            let behind = |event: &&Event| filter.before.is_none_or(|before| event.seq < before);
            let mut items: Vec<Event> =
                tables.events_of(&filter).filter(behind).take(filter.limit + 1).cloned().collect();
            let more = items.len() > filter.limit;
            items.truncate(filter.limit);
            let rest = items.last().map(|last| last.seq).or(filter.before).filter(|_| more);
            Part { items, rest }
        })
    }

    fn count_events(&self, filter: EventListFilter) -> Answer<'_, Count> {
        self.answer(|tables| Count { count: tables.events_of(&filter).count() as u64, is_exact: true })
    }

    fn part_of_requests(&self, filter: RequestFilter) -> Answer<'_, Part<ListedRequest, (u64, String)>> {
        self.answer(|tables| {
            let mut items = tables.requests_of(&filter);
            items.retain(|listed| filter.behind.as_ref().is_none_or(|behind| listed.place() < *behind));
            let more = items.len() > filter.limit;
            items.truncate(filter.limit);
            let rest = items.last().map(ListedRequest::place).or_else(|| filter.behind.clone()).filter(|_| more);
            Part { items, rest }
        })
    }

    fn count_requests(&self, filter: RequestFilter) -> Answer<'_, Count> {
        self.answer(|tables| Count { count: tables.requests_of(&filter).len() as u64, is_exact: true })
    }

    fn part_of_engines(&self, filter: EngineFilter) -> Answer<'_, Part<Engine, (u64, EngineKey, Digest)>> {
        self.answer(|tables| {
            let mut engines = tables.engines_of(&filter);
            let behind = |engine: &&Engine| filter.behind.is_none_or(|behind| place(engine) < behind);
            engines.retain(behind);
            let rest = (engines.len() > filter.limit).then(|| {
                let last = filter.limit.checked_sub(1).and_then(|last| engines.get(last));
                last.map(|engine| place(engine)).or(filter.behind)
            });
            Part { items: engines.into_iter().take(filter.limit).cloned().collect(), rest: rest.flatten() }
        })
    }

    fn count_engines(&self, filter: EngineFilter) -> Answer<'_, Count> {
        self.answer(|tables| Count { count: tables.engines_of(&filter).len() as u64, is_exact: true })
    }

    fn covered_models(&self, filter: CoverageFilter, from: u64, limit: usize) -> Answer<'_, CoveredModels> {
        self.answer(|tables| tables.models_of(&filter, from, limit))
    }

    fn covered_among(&self, filter: CoverageFilter, names: Vec<String>) -> Answer<'_, BTreeSet<String>> {
        self.answer(|tables| {
            let known = tables.models_of(&CoverageFilter { model: None, ..filter }, 0, usize::MAX).names;
            names.into_iter().filter(|name| known.contains(name)).collect()
        })
    }

    fn model_names(&self, project: Option<String>, digests: Vec<String>) -> Answer<'_, BTreeMap<String, String>> {
        self.answer(|tables| {
            let engines = tables.coverage_of(&CoverageFilter { project, ..CoverageFilter::default() }, true).engines;
            let named = engines.into_iter().rev().filter(|engine| digests.contains(&engine.model_digest));
            named.map(|engine| (engine.model_digest, engine.model)).collect()
        })
    }

    fn coverage(&self, filter: CoverageFilter, models: Vec<String>, apart: bool) -> Answer<'_, Coverage> {
        self.answer(|tables| {
            let mut coverage = tables.coverage_of(&filter, apart);
            coverage.engines.retain(|engine| models.contains(&engine.model));
            coverage.live.retain(|job| models.contains(&job.model));
            coverage.failed.retain(|job| models.contains(&job.model));
            coverage
        })
    }

    fn history(&self, filter: HistoryFilter) -> Answer<'_, Part<PastBuild, PastPlace>> {
        self.answer(|tables| tables.history_of(&filter))
    }

    fn reports(&self, filter: ReportFilter) -> Answer<'_, Vec<Report>> {
        self.answer(|tables| {
            let fits = |report: &&Report| {
                filter.digest.is_none_or(|digest| report.digest == digest)
                    && filter.plan.is_none_or(|plan| report.plan == plan)
                    && filter.key.is_none_or(|key| report.key == Some(key))
                    && filter.job.as_ref().is_none_or(|job| report.job == *job)
                    && filter.sku.as_ref().is_none_or(|sku| report.sku.as_str() == sku)
                    && filter.behind.is_none_or(|row| (report.created_ms, report.digest) < row)
            };
            let mut reports: Vec<&Report> = tables.reports.values().filter(fits).collect();
            reports.sort_by_key(|report| Reverse((report.created_ms, report.digest)));
            reports.into_iter().take(filter.limit).cloned().collect()
        })
    }

    fn newest_reports(&self, jobs: Vec<JobId>) -> Answer<'_, Vec<Report>> {
        self.answer(|tables| {
            let newest = |job: &JobId| {
                let own = tables.reports.values().filter(|report| report.job == *job);
                own.max_by_key(|report| (report.created_ms, report.digest)).cloned()
            };
            jobs.iter().filter_map(newest).collect()
        })
    }

    fn request<'a>(&'a self, project: &'a str, idempotency_key: &'a str) -> Answer<'a, Option<RequestRecord>> {
        self.answer(|tables| {
            let fits = |r: &&RequestRecord| {
                !idempotency_key.is_empty() && r.project == project && r.idempotency_key == idempotency_key
            };
            tables.requests.values().find(fits).cloned()
        })
    }

    fn request_of_id<'a>(&'a self, id: &'a str) -> Answer<'a, Option<RequestRecord>> {
        self.answer(|tables| tables.requests.values().find(|request| request.id == id).cloned())
    }

    fn tokens(&self) -> Answer<'_, Vec<TokenRecord>> {
        self.answer(|tables| tables.tokens.values().cloned().collect())
    }

    fn may_see_blob<'a>(&'a self, project: &'a str, digest: Digest) -> Answer<'a, bool> {
        self.answer(|tables| {
            let sees = |key: &EngineKey| tables.engine_projects.contains(&(*key, project.to_owned()));
            let first = (digest, BlobHolder::Project(String::new()));
            let mut holders = tables.blobs.range(first..).map(|(held, _)| held).take_while(|held| held.0 == digest);
            holders.any(|(_, holder)| match holder {
                BlobHolder::Project(name) => name == project,
                BlobHolder::Engine(key) => sees(key),
            })
        })
    }

    fn stored_bytes<'a>(&'a self, project: &'a str) -> Answer<'a, u64> {
        self.answer(|tables| {
            let own = tables.blobs.iter().filter(|((_, holder), _)| *holder == BlobHolder::Project(project.to_owned()));
            own.map(|(_, hold)| hold.size_bytes).sum()
        })
    }

    fn project_names(&self) -> Answer<'_, Vec<String>> {
        self.answer(|tables| {
            let names: BTreeSet<&String> = tables.job_projects.iter().map(|(_, project)| project).collect();
            names.into_iter().cloned().collect()
        })
    }

    fn audit(&self, filter: AuditFilter) -> Answer<'_, Vec<AuditLine>> {
        self.answer(|tables| {
            let fits = |line: &&AuditLine| {
                filter.before.is_none_or(|before| line.seq < before)
                    && filter.since_ms.is_none_or(|since| line.at_ms >= since)
                    && filter.until_ms.is_none_or(|until| line.at_ms <= until)
                    && filter.project.as_ref().is_none_or(|project| line.project == *project)
                    && filter.actor.as_ref().is_none_or(|actor| line.actor == *actor)
                    && filter.what.as_ref().is_none_or(|what| line.what.starts_with(what.as_str()))
            };
            tables.audit.iter().rev().filter(fits).take(filter.limit).cloned().collect()
        })
    }

    fn heaps(&self) -> Answer<'_, Vec<Heap>> {
        self.answer(|tables| {
            let mut heaps: BTreeMap<(String, &str), (u64, u64)> = BTreeMap::new();
            for ((digest, holder), hold) in &tables.blobs {
                let BlobHolder::Project(project) = holder else { continue };
                let kind = match hold.tenure {
                    Tenure::Log => "logs",
                    Tenure::Sent => "uploads",
                    Tenure::Given => "inputs",
                    Tenure::Record if tables.engines.values().any(|engine| engine.plan.digest == *digest) => "plans",
                    Tenure::Record if tables.reports.contains_key(digest) => "reports",
                    Tenure::Record => "models and cards",
                };
                let (blobs, bytes) = heaps.entry((project.clone(), kind)).or_default();
                *blobs += 1;
                *bytes += hold.size_bytes;
            }
            let heap = |((project, kind), (blobs, bytes)): ((String, &str), (u64, u64))| Heap {
                project,
                kind: kind.into(),
                blobs,
                bytes,
            };
            heaps.into_iter().map(heap).collect()
        })
    }

    fn pins(&self, filter: PinFilter) -> Answer<'_, Vec<PinRecord>> {
        self.answer(|tables| {
            let fits = |pin: &&PinRecord| {
                pin.expires_ms > filter.now_ms
                    && filter.project.as_ref().is_none_or(|project| pin.project == *project)
                    && filter.owner.as_ref().is_none_or(|owner| pin.owner == *owner)
                    && (filter.plans.is_empty() || filter.plans.contains(&pin.plan))
                    && filter.behind.as_ref().is_none_or(|(at, id)| (pin.created_ms, &pin.id()) < (*at, id))
            };
            let mut pins: Vec<&PinRecord> = tables.pins.values().filter(fits).collect();
            pins.sort_by_key(|pin| Reverse((pin.created_ms, pin.id())));
            pins.into_iter().take(filter.limit).cloned().collect()
        })
    }

    fn shares<'a>(&'a self, project: Option<&'a str>) -> Answer<'a, Vec<ShareRecord>> {
        self.answer(|tables| {
            let is_asked =
                |share: &&ShareRecord| project.is_none_or(|project| share.project.as_deref() == Some(project));
            let mut shares: Vec<ShareRecord> = tables.shares.values().filter(is_asked).cloned().collect();
            shares.sort_by_key(|share| Reverse((share.created_ms, share.id.clone())));
            shares
        })
    }

    fn blob_notes(&self, kind: &'static str) -> Answer<'_, Vec<Note>> {
        self.answer(move |tables| {
            let notes = tables.blob_notes.iter().filter(|((of, _), _)| of == kind);
            let note = |((_, name), (text, at_ms)): (&(String, String), &(String, u64))| Note {
                kind,
                name: name.clone(),
                text: text.clone(),
                at_ms: *at_ms,
            };
            notes.map(note).collect()
        })
    }

    fn commit_notes(&self, changes: Vec<Change>) -> Answer<'_, ()> {
        let epoch = self.with(|tables| tables.epoch);
        self.commit(epoch, changes)
    }

    fn share_of(&self, secret_hash: Digest) -> Answer<'_, Option<ShareRecord>> {
        self.answer(|tables| tables.shares.values().find(|share| share.secret_hash == secret_hash).cloned())
    }

    fn pin_count<'a>(&'a self, project: &'a str, now_ms: u64) -> Answer<'a, u64> {
        self.answer(|tables| {
            let live = |pin: &&PinRecord| pin.project == project && pin.expires_ms > now_ms;
            tables.pins.values().filter(live).count() as u64
        })
    }

    fn is_pinned(&self, plan: Digest, now_ms: u64) -> Answer<'_, bool> {
        self.answer(|tables| tables.is_pinned(plan, now_ms))
    }

    fn declarations(&self, filter: DeclarationFilter) -> Answer<'_, Vec<DeclarationRecord>> {
        self.answer(|tables| {
            let fits = |record: &&DeclarationRecord| {
                filter.project.as_ref().is_none_or(|project| record.project == *project)
                    && filter.name.as_ref().is_none_or(|name| record.name == *name)
                    && filter.behind.as_ref().is_none_or(|(at, id)| (record.declared_ms, &record.id()) < (*at, id))
            };
            let mut records: Vec<&DeclarationRecord> = tables.declarations.values().filter(fits).collect();
            records.sort_by_key(|record| Reverse((record.declared_ms, record.id())));
            records.into_iter().take(filter.limit).cloned().collect()
        })
    }

    fn other_declarations<'a>(&'a self, id: &'a DeclarationId) -> Answer<'a, u64> {
        self.answer(|tables| {
            let others = tables.declarations.keys().filter(|other| other.project == id.project && *other != id);
            others.count() as u64
        })
    }

    fn builds_unused_since(
        &self,
        before_ms: u64,
        behind: Option<(u64, BuildName)>,
        limit: usize,
        now_ms: u64,
    ) -> Answer<'_, Vec<Build<BuildName>>> {
        self.answer(|tables| {
            let old = |build: &Build<BuildName>| {
                build.used_ms < before_ms && behind.is_none_or(|behind| (build.used_ms, build.name) > behind)
            };
            let mut found: Vec<_> = tables.builds(now_ms).filter(old).collect();
            found.sort_by_key(|build| (build.used_ms, build.name));
            found.truncate(limit);
            found
        })
    }

    fn plan_bytes(&self) -> Answer<'_, u64> {
        self.answer(|tables| tables.engines.values().map(|engine| engine.plan.size_bytes).sum())
    }

    fn plan_bytes_of<'a>(&'a self, project: &'a str) -> Answer<'a, u64> {
        self.answer(|tables| {
            let own = tables.builds(0).filter(|build| build.project.as_deref() == Some(project));
            own.map(|build| build.bytes).sum()
        })
    }

    fn jobs_ended_before(&self, before_ms: u64, limit: usize) -> Answer<'_, Vec<Job>> {
        self.answer(|tables| {
            let ended = |job: &&Arc<Job>| job.ended_ms > 0 && job.ended_ms < before_ms;
            let mut found: Vec<&Arc<Job>> = tables.jobs.values().filter(ended).collect();
            found.sort_by_key(|job| (job.ended_ms, job.id.clone()));
            found.into_iter().take(limit).map(|job| job.as_ref().clone()).collect()
        })
    }

    fn count_jobs_ended_before(&self, before_ms: u64) -> Answer<'_, u64> {
        self.answer(|tables| {
            tables.jobs.values().filter(|job| job.ended_ms > 0 && job.ended_ms < before_ms).count() as u64
        })
    }

    fn requests_without_jobs(&self, before_ms: u64, limit: usize) -> Answer<'_, Vec<String>> {
        self.answer(|tables| {
            let empty = |request: &&RequestRecord| {
                request.created_ms < before_ms && request.jobs.iter().all(|id| !tables.jobs.contains_key(id))
            };
            tables.requests.values().filter(empty).take(limit).map(|request| request.id.clone()).collect()
        })
    }

    fn unnamed_blobs(&self, digests: Vec<Digest>) -> Answer<'_, Vec<Digest>> {
        self.answer(|tables| {
            let named = |digest: &Digest| {
                let first = (*digest, BlobHolder::Project(String::new()));
                let held = tables.blobs.range(first..).next().is_some_and(|((known, _), _)| known == digest);
                held || tables.plugins.contains_key(digest)
            };
            digests.into_iter().filter(|digest| !named(digest)).collect()
        })
    }

    fn held_since_before(&self, tenure: Tenure, before_ms: u64, limit: usize) -> Answer<'_, Vec<Held>> {
        self.answer(|tables| {
            let old = tables.blobs.iter().filter_map(|((digest, holder), hold)| match holder {
                BlobHolder::Project(project) if hold.tenure == tenure && hold.since_ms < before_ms => {
                    Some((hold.since_ms, *digest, project.clone()))
                }
                _ => None,
            });
            let mut old: Vec<_> = old.collect();
            old.sort();
            old.into_iter().take(limit).map(|(_, digest, project)| Held { digest, project, tenure }).collect()
        })
    }

    fn count_held_since_before(&self, tenure: Tenure, before_ms: u64) -> Answer<'_, u64> {
        self.answer(|tables| {
            let old = tables.blobs.iter().filter(|((_, holder), hold)| {
                matches!(holder, BlobHolder::Project(_)) && hold.tenure == tenure && hold.since_ms < before_ms
            });
            old.count() as u64
        })
    }

    fn events_before(&self, before_ms: u64, limit: usize) -> Answer<'_, Option<(u64, u64)>> {
        self.answer(|tables| {
            let newest = tables.events.last_key_value().map_or(0, |(seq, _)| *seq);
            let old = |event: &&Event| event.at_ms < before_ms && event.seq < newest;
            let seqs: Vec<u64> = tables.events.values().take(limit).filter(old).map(|event| event.seq).collect();
            seqs.last().map(|last| (seqs.len() as u64, *last))
        })
    }

    fn older_reports(
        &self,
        before_ms: u64,
        behind: Option<(u64, Digest)>,
        limit: usize,
    ) -> Answer<'_, Vec<(u64, Digest)>> {
        self.answer(|tables| {
            let of = |report: &Report| (report.plan, report.sku.clone(), report.eval);
            let at = |report: &Report| (report.created_ms, report.digest);
            let built_with = |report: &Report| {
                tables.engines.values().any(|engine| engine.plan.digest == report.plan && engine.job == report.job)
            };
            let goes = |report: &&Report| {
                report.created_ms < before_ms
                    && behind.is_none_or(|behind| at(report) > behind)
                    && tables.reports.values().any(|newer| of(newer) == of(report) && at(newer) > at(report))
                    && !built_with(report)
            };
            let mut found: Vec<(u64, Digest)> = tables.reports.values().filter(goes).map(at).collect();
            found.sort_unstable();
            found.truncate(limit);
            found
        })
    }

    fn close(&self) -> Answer<'_, ()> {
        self.answer(|_| ())
    }
}
