//! A farm's data folder as years leave it: engines, reports and events of jobs that ended, and a queue.
//!
//! Everything is written as a coordinator writes it, through the store, so that all of it agrees: keys with engines,
//! projects with what they may see, counts with rows. The same size gives the same farm, but for the times, which end at
//! `now_ms`. Model files and plans lie in the blob store only where they are asked for: a million files take longer than
//! all the rest.

use planforge_coordinator::{
    blobs::{BlobStore as _, LocalBlobs, LocalBlobsOptions},
    core::{
        Agent, Attempt, Change, Device, Engine, Event, Failure, Job, JobId, JobKind, JobState, JoinedBy, Model,
        ModelFile, Outcome, PlanRef, Report, RequestRecord, Want,
    },
    store::{SqliteStore, Store},
};
use planforge_types::{BuildSpec, Digest, EngineKey, FailureClass, Precision, Sku, Toolchain, order::MeasureAsk};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::{collections::BTreeMap, path::Path, sync::Arc};

pub type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// Device kinds, each with an agent that is away; the last three are levels of one processor.
pub const SKUS: [&str; 10] = [
    "t4",
    "l4",
    "a100-sxm4-40gb",
    "a100-pcie-80gb",
    "h100-pcie",
    "h100-sxm",
    "h200-sxm",
    "cpu-x86-64-v2",
    "cpu-x86-64-v3",
    "cpu-x86-64-v4",
];
pub const PROJECTS: [&str; 5] = ["default", "vision", "speech", "ranking", "research"];
/// As the coordinator's own ids.
const ID_CHARACTERS: usize = 12;
/// Jobs of one request.
const JOBS_OF_REQUEST: usize = 8;
/// Jobs of one transaction.
const JOBS_AT_ONCE: usize = 1_000;
/// The same where reports are as long as usual.
const BUILDS_AT_ONCE: usize = 200;
/// The model of [`grow_builds`].
pub const HISTORY_MODEL: &str = "net.onnx";
/// How long ago the first job was submitted, and over which time the queue grew.
const HISTORY_MS: u64 = 2 * 365 * 24 * 60 * 60 * 1_000;
const QUEUE_MS: u64 = 6 * 60 * 60 * 1_000;

/// How large a farm is to be.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub waiting: usize,
    pub finished: usize,
    /// Writes the files of models and plans, too; each plan has so many bytes.
    pub plan_bytes: Option<usize>,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grown {
    pub jobs: u64,
    pub engines: u64,
    pub reports: u64,
    pub events: u64,
}

/// Fills a data folder that holds nothing yet.
///
/// # Errors
/// When the folder takes no writes.
pub async fn grow(folder: &Path, size: Size, now_ms: u64, progress: impl Fn(&Grown)) -> Result<Grown, Trouble> {
    let store = SqliteStore::open(&folder.join("farm.db")).await?;
    grow_in(&store, folder, size, now_ms, progress).await
}

/// The same for a store that holds nothing yet, which is closed then; files lie in the folder.
///
/// # Errors
/// When the store or the folder takes no writes.
pub async fn grow_in(
    store: &dyn Store,
    folder: &Path,
    size: Size,
    now_ms: u64,
    progress: impl Fn(&Grown),
) -> Result<Grown, Trouble> {
    let blobs = match size.plan_bytes {
        Some(_) => Some(LocalBlobs::open(folder.join("blobs"), LocalBlobsOptions::default())?),
        None => None,
    };
    let epoch = store.acquire("grown", now_ms).await?;
    let mut farm = Farm::new(size, now_ms);
    store.commit(epoch, farm.agents()?).await?;
    for first in (0..size.finished + size.waiting).step_by(JOBS_AT_ONCE) {
        let last = (first + JOBS_AT_ONCE).min(size.finished + size.waiting);
        let mut changes = Vec::new();
        for number in first..last {
            farm.job(number, &mut changes)?;
        }
        if let Some(blobs) = &blobs {
            for bytes in farm.files.drain(..) {
                blobs.put(bytes.into()).await?;
            }
        }
        farm.files.clear();
        store.commit(epoch, changes).await?;
        progress(&farm.grown);
    }
    store.close().await?;
    Ok(farm.grown)
}

/// Fills a data folder that holds nothing yet with builds of one model, whose weights are others each time, for one device
/// kind by one spec; `document` is the report of each.
///
/// # Errors
/// When the folder takes no writes.
pub async fn grow_builds(
    folder: &Path,
    count: usize,
    now_ms: u64,
    document: impl Fn(usize) -> String,
) -> Result<(), Trouble> {
    let store = SqliteStore::open(&folder.join("farm.db")).await?;
    let epoch = store.acquire("grown", now_ms).await?;
    let size = Size { waiting: 0, finished: count, plan_bytes: None };
    let mut farm = Farm::new(size, now_ms);
    store.commit(epoch, farm.agents()?).await?;
    for first in (0..count).step_by(BUILDS_AT_ONCE) {
        let mut changes = Vec::new();
        for number in first..(first + BUILDS_AT_ONCE).min(count) {
            farm.build(number, document(number), &mut changes)?;
        }
        farm.files.clear();
        store.commit(epoch, changes).await?;
    }
    store.close().await?;
    Ok(())
}

/// An agent that is away, with one device.
fn host(number: usize, skus: Vec<Sku>, now_ms: u64) -> Change {
    let device = Device {
        prepares: Vec::new(),
        id: "dev0".into(),
        threads: if skus.iter().any(Sku::is_cpu) { 8 } else { 0 },
        skus,
        fingerprint: "{}".into(),
        offers: vec![toolchain()],
        abilities: BTreeMap::new(),
        draining: false,
        simulated: true,
        quarantined: false,
        quarantine_reason: String::new(),
    };
    Change::Agent(Box::new(Agent {
        id: format!("agent{number}"),
        name: format!("host{number}"),
        version: "0".into(),
        devices: vec![device],
        seen_ms: now_ms,
        joined_by: JoinedBy::Unknown,
        protocol: 0,
        drained: false,
        memory_bytes: 0,
        labels: BTreeMap::new(),
    }))
}

/// Lets a folder have as many hosts as `count` says, each with a device, where it has fewer.
///
/// # Errors
/// When the folder takes no writes.
pub async fn grow_hosts(folder: &Path, count: usize, now_ms: u64) -> Result<(), Trouble> {
    let store = SqliteStore::open(&folder.join("farm.db")).await?;
    let epoch = store.acquire("grown", now_ms).await?;
    let of = |number: usize| Ok(host(number, vec![SKUS[number % 7].parse()?], now_ms));
    // The first ones are those of the farm's own device kinds.
    let hosts: Result<Vec<Change>, Trouble> = (SKUS.len()..count).map(of).collect();
    store.commit(epoch, hosts?).await?;
    store.close().await?;
    Ok(())
}

struct Farm {
    size: Size,
    now_ms: u64,
    random: StdRng,
    models: Vec<Model>,
    skus: Vec<Sku>,
    request: Option<RequestRecord>,
    /// Bytes of blobs that are named by what was made since they were last written.
    files: Vec<Vec<u8>>,
    grown: Grown,
}

pub fn toolchain() -> Toolchain {
    Toolchain { backend: "native".into(), version: "1".into(), components: BTreeMap::new() }
}

/// The bytes of the file of a model, which are its identity.
pub fn model_file(number: usize) -> Vec<u8> {
    format!("model {number}").into_bytes()
}

impl Farm {
    fn new(size: Size, now_ms: u64) -> Self {
        let models = (0..(size.finished / 200).clamp(4, 5_000)).map(|number| {
            let bytes = model_file(number);
            let (name, digest) = (format!("model{number}.onnx"), Digest::of(&bytes));
            let file = ModelFile { name: name.clone(), digest, size_bytes: bytes.len() as u64 };
            Model { digest, graph_digest: None, structure_digest: None, name, files: vec![file] }
        });
        let models: Vec<Model> = models.collect();
        let files = (0..models.len()).map(model_file).collect();
        let skus = SKUS.iter().filter_map(|sku| sku.parse().ok()).collect();
        let random = StdRng::seed_from_u64(size.finished as u64);
        Self { size, now_ms, random, models, skus, request: None, files, grown: Grown::default() }
    }

    /// An agent for each GPU, and one with a processor.
    fn agents(&self) -> Result<Vec<Change>, Trouble> {
        let (cpus, gpus): (Vec<Sku>, Vec<Sku>) = self.skus.iter().cloned().partition(Sku::is_cpu);
        let hosts = gpus.into_iter().map(|sku| vec![sku]).chain([cpus]);
        Ok(hosts.enumerate().map(|(number, skus)| host(number, skus, self.now_ms)).collect())
    }

    /// Models are not asked for alike: most jobs are of a few.
    fn any_model(&mut self) -> usize {
        let share: f64 = self.random.random_range(0.0..1.0);
        ((share * share * self.models.len() as f64) as usize).min(self.models.len() - 1)
    }

    fn job(&mut self, number: usize, changes: &mut Vec<Change>) -> Result<(), Trouble> {
        let waits = number >= self.size.finished;
        let at_ms = if waits {
            let place = (number - self.size.finished) as u64;
            self.now_ms - QUEUE_MS + place * QUEUE_MS / self.size.waiting.max(1) as u64
        } else {
            let end_ms = self.now_ms - QUEUE_MS;
            end_ms - HISTORY_MS + number as u64 * HISTORY_MS / self.size.finished.max(1) as u64
        };
        let (model_number, sku_number) = (self.any_model(), self.random.random_range(0..self.skus.len()));
        let (model, sku) = (self.models[model_number].clone(), self.skus[sku_number].clone());
        let precision = [Precision::Fp32, Precision::Fp16][self.random.random_range(0..2)];
        let threads = sku.is_cpu().then_some(8);
        // A queue asks for what was not built before: every job of it has a spec of its own.
        let workspace_mib = waits.then_some(1_000 + number as u64);
        let spec = BuildSpec { precision, threads, workspace_mib, ..BuildSpec::default() };
        let id: JobId = Digest::of(format!("job {number}").as_bytes()).to_string()[..ID_CHARACTERS].into();
        let project = PROJECTS[self.random.random_range(0..PROJECTS.len())];
        let want = self.want(number, &id, project, at_ms, changes);
        let key = EngineKey::new(&model.digest, &sku, &toolchain(), &spec);
        let job = Job {
            key: Some(key),
            toolchain: Some(toolchain()),
            wait_for_device: true,
            ..Job::queued(id.clone(), model, sku, spec, want, at_ms)
        };
        changes.push(Change::JobProject { project: project.into(), job: id, created_ms: at_ms });
        self.event(&job, at_ms, "submitted", JobState::Queued, changes);
        let job = if waits { job } else { self.ended(job, number, (model_number, sku_number), changes)? };
        changes.push(Change::Job(Arc::new(job)));
        self.grown.jobs += 1;
        Ok(())
    }

    /// One of many builds of a model by its name.
    fn build(&mut self, number: usize, document: String, changes: &mut Vec<Change>) -> Result<(), Trouble> {
        let at_ms = self.now_ms - HISTORY_MS + number as u64 * HISTORY_MS / self.size.finished.max(1) as u64;
        let digest = Digest::of(format!("weights {number}").as_bytes());
        let file = ModelFile { name: HISTORY_MODEL.into(), digest, size_bytes: 1 };
        let model =
            Model { digest, graph_digest: None, structure_digest: None, name: HISTORY_MODEL.into(), files: vec![file] };
        let (sku, spec): (Sku, _) = (SKUS[0].parse()?, BuildSpec::default());
        let id: JobId = Digest::of(format!("build {number}").as_bytes()).to_string()[..ID_CHARACTERS].into();
        let want = self.want(number, &id, PROJECTS[0], at_ms, changes);
        let key = EngineKey::new(&model.digest, &sku, &toolchain(), &spec);
        let mut job = Job {
            key: Some(key),
            toolchain: Some(toolchain()),
            ..Job::queued(id.clone(), model, sku, spec, want, at_ms)
        };
        (job.state, job.accurate, job.ended_ms) = (JobState::Succeeded, true, at_ms + 1);
        changes.push(Change::JobProject { project: PROJECTS[0].into(), job: id, created_ms: at_ms });
        self.measured(&mut job, number, document, false, changes);
        changes.push(Change::Job(Arc::new(job)));
        Ok(())
    }

    /// The interest of the request that the job is of; a new one every few jobs.
    fn want(&mut self, number: usize, id: &JobId, project: &str, at_ms: u64, changes: &mut Vec<Change>) -> Want {
        let mut request = self.request.take().unwrap_or_else(|| RequestRecord {
            id: format!("r{number:011x}"),
            project: project.to_owned(),
            actor: format!("{project}-ci"),
            idempotency_key: format!("once-{number}"),
            fingerprint: Digest::of(&number.to_le_bytes()),
            jobs: Vec::new(),
            created_ms: at_ms,
        });
        request.jobs.push(id.clone());
        let tags = if number.is_multiple_of(50) { vec!["nightly".to_owned()] } else { Vec::new() };
        let want = Want {
            request: request.id.clone(),
            project: project.to_owned(),
            actor: request.actor.clone(),
            priority: 0,
            tags,
            no_fallback: false,
            require: planforge_types::Requirement::default(),
        };
        if request.jobs.len() == JOBS_OF_REQUEST {
            changes.push(Change::Request(request));
        } else {
            self.request = Some(request);
        }
        want
    }

    fn event(&mut self, job: &Job, at_ms: u64, what: &str, state: JobState, changes: &mut Vec<Change>) {
        self.grown.events += 1;
        changes.push(Change::Event(Event {
            seq: self.grown.events,
            at_ms,
            job: job.id.clone(),
            actor: "coordinator".into(),
            what: what.into(),
            state,
            attempt: job.attempt(),
            phase: String::new(),
            detail: String::new(),
        }));
    }

    /// Of a hundred jobs 62 were built, 28 answered from the store, 6 failed, 4 cancelled.
    fn ended(
        &mut self,
        mut job: Job,
        number: usize,
        (model, sku): (usize, usize),
        changes: &mut Vec<Change>,
    ) -> Result<Job, Trouble> {
        let fate = self.random.random_range(0..100);
        let (built, state) = match fate {
            0..62 => (true, JobState::Succeeded),
            62..90 => (false, JobState::Succeeded),
            90..96 => (false, JobState::Failed),
            _ => (false, JobState::Cancelled),
        };
        job.state = state;
        job.cached = state == JobState::Succeeded && !built;
        job.accurate = state == JobState::Succeeded;
        job.ended_ms = job.created_ms + 1;
        if built {
            let wait_ms = self.random.random_range(50..600_000);
            let took_ms = self.duration_ms(model, sku);
            job.started_ms = job.created_ms + wait_ms;
            job.ended_ms = job.started_ms + took_ms;
            job.attempts.push(Attempt {
                number: 1,
                agent: format!("agent{}", sku.min(7)),
                agent_name: format!("host{}", sku.min(7)),
                device: "dev0".into(),
                started_ms: job.started_ms,
                ended_ms: job.ended_ms,
                outcome: Outcome::Succeeded,
                failure: None,
                log: None,
                suspects_cache: false,
                built: None,
                taken_back: false,
            });
            self.event(&job, job.started_ms, "leased", JobState::Leased, changes);
            self.event(&job, job.started_ms, "running", JobState::Running, changes);
            self.engine(&mut job, number, took_ms, changes);
        } else if job.cached {
            job.kind = JobKind::Build;
        } else if state == JobState::Failed {
            job.failure = Some(Failure::new(FailureClass::Resource, "out of device memory", "use a smaller workspace"));
        }
        self.event(&job, job.ended_ms, state.name(), state, changes);
        Ok(job)
    }

    fn engine(&mut self, job: &mut Job, number: usize, took_ms: u64, changes: &mut Vec<Change>) {
        let document = format!(
            r#"{{"accurate":true,"simulated":true,"job":"{}","build_ms":{took_ms},"latency_ms":{{"median":{:.4}}}}}"#,
            job.id,
            took_ms as f64 / 10_000.0
        );
        self.measured(job, number, document, true, changes);
    }

    /// The engine that a job built, with its report.
    fn measured(&mut self, job: &mut Job, number: usize, document: String, simulated: bool, changes: &mut Vec<Change>) {
        let mut plan_bytes = format!("plan {number}").into_bytes();
        plan_bytes.resize(plan_bytes.len().max(self.size.plan_bytes.unwrap_or_default()), b' ');
        let plan =
            PlanRef { digest: Digest::of(&plan_bytes), size_bytes: plan_bytes.len() as u64, card: None, builds: 1 };
        let (Some(key), project) = (job.key, job.project().to_owned()) else { return };
        let report = Report {
            digest: Digest::of(document.as_bytes()),
            plan: plan.digest,
            key: Some(key),
            job: job.id.clone(),
            sku: job.sku.clone(),
            eval: None,
            measure: MeasureAsk::default(),
            artifacts: Vec::new(),
            created_ms: job.ended_ms,
            document,
        };
        job.plan = Some(plan.clone());
        job.report = Some(report.digest);
        changes.push(Change::Engine(Box::new(Engine {
            unmeasured: false,
            from: None,
            key,
            plan,
            model: job.model.clone(),
            sku: job.sku.clone(),
            toolchain: toolchain(),
            spec: job.spec.clone(),
            accurate: true,
            inputs: None,
            created_ms: job.ended_ms,
            seq: self.grown.events.max(number as u64),
            job: job.id.clone(),
            simulated,
            project: project.clone(),
        })));
        changes.push(Change::EngineProject { key, project });
        self.files.push(plan_bytes);
        self.files.push(report.document.clone().into_bytes());
        changes.push(Change::Report(Box::new(report)));
        self.grown.engines += 1;
        self.grown.reports += 1;
    }

    /// Models differ by a factor of a hundred, device kinds by ten, one build from the next by a fifth.
    fn duration_ms(&mut self, model: usize, sku: usize) -> u64 {
        let noise: f64 = (0..12).map(|_| self.random.random_range(0.0..1.0)).sum::<f64>() - 6.0;
        let log = 3.0 + (model % 47) as f64 / 10.0 + (sku % 10) as f64 / 4.0 + 0.2 * noise;
        (1_000.0 * log.exp() / 20.0) as u64
    }
}
