//! Everything in memory, with the same promises as a database as long as the process lives.

use super::{
    Answer, AuditFilter, DeclarationFilter, EngineFilter, EventFilter, JobFilter, PinFilter, ReportFilter, Store,
    StoreError,
};
use crate::core::{
    Agent, AuditLine, BlobHolder, CacheRecord, Change, Covered, DeclarationId, DeclarationRecord, Engine, EngineRef,
    Event, Job, JobId, PinId, PinRecord, PluginRecord, ProjectRecord, Refusal, Report, RequestRecord, Snapshot,
    TokenRecord,
};
use planforge_types::{Digest, EngineKey, Sku};
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
    events: BTreeMap<u64, Event>,
    engines: BTreeMap<(EngineKey, Digest), Engine>,
    engine_projects: BTreeSet<(EngineKey, String)>,
    blobs: BTreeMap<(Digest, BlobHolder), u64>,
    reports: BTreeMap<Digest, Report>,
    agents: BTreeMap<String, Agent>,
    requests: BTreeMap<String, RequestRecord>,
    refusals: BTreeMap<EngineKey, Refusal>,
    caches: BTreeMap<Digest, CacheRecord>,
    plugins: BTreeMap<Digest, PluginRecord>,
    projects: BTreeMap<String, ProjectRecord>,
    pins: BTreeMap<PinId, PinRecord>,
    declarations: BTreeMap<DeclarationId, DeclarationRecord>,
    audit: Vec<AuditLine>,
    tokens: BTreeMap<String, TokenRecord>,
    /// Makes commits fail, for tests of what happens then.
    fault: Option<StoreError>,
    /// Makes loading fail, likewise.
    load_fault: Option<StoreError>,
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

    /// Lets every commit fail with `fault` until it is taken back.
    pub fn set_fault(&self, fault: Option<StoreError>) {
        self.with(|tables| tables.fault = fault);
    }

    /// Lets loading fail with `fault` until it is taken back.
    pub fn set_load_fault(&self, fault: Option<StoreError>) {
        self.with(|tables| tables.load_fault = fault);
    }

    fn with<T>(&self, work: impl FnOnce(&mut Tables) -> T) -> T {
        work(&mut self.tables.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn answer<T: Send + 'static>(&self, work: impl FnOnce(&mut Tables) -> T) -> Answer<'static, T> {
        Box::pin(future::ready(Ok(self.with(work))))
    }
}

impl Tables {
    fn may_write(&self, epoch: u64) -> Result<(), StoreError> {
        if self.epoch != epoch {
            return Err(StoreError::Fenced { mine: epoch, current: self.epoch });
        }
        self.fault.clone().map_or(Ok(()), Err)
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Job(job) => {
                for project in job.projects() {
                    let holder = BlobHolder::Project(project.to_owned());
                    job.blobs().into_iter().for_each(|(digest, size)| self.hold(digest, holder.clone(), size));
                }
                self.jobs.insert(job.id.clone(), job);
            }
            Change::JobProject { project, job, .. } => drop(self.job_projects.insert((job, project))),
            Change::Event(event) => drop(self.events.insert(event.seq, event)),
            Change::Engine(engine) => {
                engine.blobs().for_each(|(digest, size)| self.hold(digest, BlobHolder::Engine(engine.key), size));
                self.engines.insert((engine.key, engine.plan.digest), *engine);
            }
            Change::EngineProject { key, project } => drop(self.engine_projects.insert((key, project))),
            Change::Report(report) => {
                if let Some(key) = report.key {
                    report.blobs().for_each(|(digest, size)| self.hold(digest, BlobHolder::Engine(key), size));
                }
                if let Some(job) = self.jobs.get(&report.job).cloned() {
                    for project in job.projects() {
                        let holder = BlobHolder::Project(project.to_owned());
                        report.blobs().for_each(|(digest, size)| self.hold(digest, holder.clone(), size));
                    }
                }
                self.reports.insert(report.digest, *report);
            }
            Change::Blob { digest, holder, size_bytes } => self.hold(digest, holder, size_bytes),
            Change::Agent(agent) => drop(self.agents.insert(agent.id.clone(), *agent)),
            Change::ForgetAgent(id) => drop(self.agents.remove(&id)),
            Change::Request(request) => drop(self.requests.insert(request.id.clone(), request)),
            Change::Refusal(refusal) => drop(self.refusals.insert(refusal.key, refusal)),
            Change::ForgetRefusal(key) => drop(self.refusals.remove(&key)),
            Change::Cache(cache) => drop(self.caches.insert(cache.scope, *cache)),
            Change::Plugin(plugin) => drop(self.plugins.insert(plugin.digest, plugin)),
            Change::ForgetPlugin(digest) => drop(self.plugins.remove(&digest)),
            Change::Project(record) => drop(self.projects.insert(record.name.clone(), record)),
            Change::Pin(pin) => drop(self.pins.insert(pin.id(), *pin)),
            Change::Unpin(id) => drop(self.pins.remove(&id)),
            Change::PinsExpired { now_ms } => self.pins.retain(|_, pin| pin.expires_ms > now_ms),
            Change::Declaration(record) => drop(self.declarations.insert(record.id(), *record)),
            Change::ForgetDeclaration(id) => drop(self.declarations.remove(&id)),
            Change::Audit(line) => {
                let seq = self.audit.last().map_or(1, |last| last.seq + 1);
                self.audit.push(AuditLine { seq, ..*line });
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

    fn hold(&mut self, digest: Digest, holder: BlobHolder, size_bytes: u64) {
        self.blobs.entry((digest, holder)).or_insert(size_bytes);
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

    fn snapshot(&self) -> Snapshot {
        let mut engines = Vec::new();
        for (key, engine) in self.newest_engines() {
            let mut reports: Vec<&Report> =
                self.reports.values().filter(|r| r.key == Some(key) && r.plan == engine.plan.digest).collect();
            reports.sort_by_key(|report| (report.created_ms, report.digest));
            let reports = reports.into_iter().map(|report| ReportOf {
                digest: report.digest,
                covered: Covered::of(report),
                accurate: found_right(&report.document),
                sku: report.sku.clone(),
                job: report.job.clone(),
            });
            engines.push((key, engine_ref(engine, reports)));
        }
        Snapshot {
            jobs: self.jobs.values().filter(|job| !job.state.is_terminal()).map(|job| job.as_ref().clone()).collect(),
            agents: self.agents.values().cloned().collect(),
            engines,
            refusals: self.refusals.values().cloned().collect(),
            caches: self.caches.values().cloned().collect(),
            plugins: self.plugins.values().cloned().collect(),
            projects: self.projects.values().cloned().collect(),
            last_event: self.events.keys().next_back().copied().unwrap_or(0),
        }
    }
}

/// What the core must know of a plan's report.
#[derive(Clone)]
pub(super) struct ReportOf {
    pub digest: Digest,
    pub covered: Covered,
    /// As its document says.
    pub accurate: bool,
    pub sku: Sku,
    pub job: JobId,
}

/// What the core must know of an engine and its reports, given oldest first. Its own is that of the job that built it.
pub(super) fn engine_ref(engine: &Engine, reports: impl Iterator<Item = ReportOf>) -> EngineRef {
    let Engine { plan, accurate, inputs, .. } = engine.clone();
    let mut known = EngineRef { plan, accurate, inputs, report: None, reports: BTreeMap::new() };
    let (mut own, mut first) = (None, None);
    for report in reports.filter(|report| report.sku == engine.sku) {
        if report.job == engine.job {
            own.get_or_insert(report.digest);
        }
        if report.covered.measure.inputs.is_none() {
            first.get_or_insert(report.digest);
        }
        known.learn(report.covered, report.digest, report.accurate);
    }
    known.report = own.or(first);
    known
}

/// Whether the document of a report finds nothing wrong.
fn found_right(document: &str) -> bool {
    let document: serde_json::Value = serde_json::from_str(document).unwrap_or_default();
    document.get("accurate").and_then(serde_json::Value::as_bool) != Some(false)
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
        let loaded = self.with(|tables| tables.load_fault.clone().map_or_else(|| Ok(tables.snapshot()), Err));
        Box::pin(future::ready(loaded))
    }

    fn commit(&self, epoch: u64, mut changes: Vec<Change>) -> Answer<'_, ()> {
        let result = self.with(|tables| {
            tables.may_write(epoch)?;
            // Within one commit a token is there before anything happens to it.
            changes.sort_by_key(|change| !matches!(change, Change::TokenMade(_)));
            changes.into_iter().for_each(|change| tables.apply(change));
            Ok(())
        });
        Box::pin(future::ready(result))
    }

    fn check(&self, epoch: u64) -> Answer<'_, ()> {
        Box::pin(future::ready(self.with(|tables| tables.may_write(epoch))))
    }

    fn job<'a>(&'a self, id: &'a JobId) -> Answer<'a, Option<Job>> {
        self.answer(|tables| tables.jobs.get(id).map(|job| job.as_ref().clone()))
    }

    fn job_ids<'a>(&'a self, prefix: &'a str, limit: usize) -> Answer<'a, Vec<JobId>> {
        self.answer(|tables| {
            let from = tables.jobs.range(JobId::from(prefix)..);
            from.map(|(id, _)| id).take_while(|id| id.as_str().starts_with(prefix)).take(limit).cloned().collect()
        })
    }

    fn jobs(&self, filter: JobFilter) -> Answer<'_, Vec<Job>> {
        self.answer(|tables| {
            let fits = |job: &&Arc<Job>| {
                let project = filter.project.as_ref();
                project.is_none_or(|project| tables.job_projects.contains(&(job.id.clone(), project.clone())))
                    && (filter.states.is_empty() || filter.states.contains(&job.state))
                    && (filter.ids.is_empty() || filter.ids.contains(&job.id))
                    && filter.sku.as_ref().is_none_or(|sku| job.sku.as_str() == sku)
                    && is_model(&job.model.name, job.model.digest, filter.model.as_ref())
                    && filter.behind.as_ref().is_none_or(|(at, id)| (job.created_ms, &job.id) < (*at, id))
            };
            let mut jobs: Vec<&Arc<Job>> = tables.jobs.values().filter(fits).collect();
            jobs.sort_by_key(|job| Reverse((job.created_ms, job.id.clone())));
            jobs.into_iter().take(filter.limit).map(|job| job.as_ref().clone()).collect()
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

    fn engines(&self, filter: EngineFilter) -> Answer<'_, Vec<Engine>> {
        self.answer(|tables| {
            let all: Vec<&Engine> = match filter.plan {
                Some(plan) => tables.engines.values().filter(|engine| engine.plan.digest == plan).collect(),
                None => tables.newest_engines().into_values().collect(),
            };
            let fits = |engine: &&Engine| {
                let project = filter.project.as_ref();
                project.is_none_or(|project| tables.engine_projects.contains(&(engine.key, project.clone())))
                    && filter.key.is_none_or(|key| engine.key == key)
                    && filter.sku.as_ref().is_none_or(|sku| engine.sku.as_str() == sku)
                    && is_model(&engine.model.name, engine.model.digest, filter.model.as_ref())
                    && filter.behind.is_none_or(|row| (engine.created_ms, engine.key, engine.plan.digest) < row)
            };
            let mut engines: Vec<&Engine> = all.into_iter().filter(fits).collect();
            engines.sort_by_key(|engine| Reverse((engine.created_ms, engine.key, engine.plan.digest)));
            engines.into_iter().take(filter.limit).cloned().collect()
        })
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
            own.map(|(_, size_bytes)| size_bytes).sum()
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

    fn pin_count<'a>(&'a self, project: &'a str, now_ms: u64) -> Answer<'a, u64> {
        self.answer(|tables| {
            let live = |pin: &&PinRecord| pin.project == project && pin.expires_ms > now_ms;
            tables.pins.values().filter(live).count() as u64
        })
    }

    fn is_pinned(&self, plan: Digest, now_ms: u64) -> Answer<'_, bool> {
        self.answer(|tables| tables.pins.values().any(|pin| pin.plan == plan && pin.expires_ms > now_ms))
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

    fn close(&self) -> Answer<'_, ()> {
        self.answer(|_| ())
    }
}
