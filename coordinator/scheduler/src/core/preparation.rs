//! Prepare jobs: models of other number types, made on data, and the builds that wait for them.
//!
//! A prepare job needs no device: it runs on a processor whose agent offers to prepare, and is found under a key of its
//! model's digest, what it is to become (data by digest) and the preparer's revision. A build's key is made of the digest
//! of the model that it is built from, which nobody knows before that is prepared. So a build that wants a prepared model
//! is there from the beginning, names the model that it is made from, and needs the prepare job: when that has succeeded
//! the build's model becomes the prepared one, in the same transaction, and the build is decided about as if it were
//! submitted then. A build that only wants the ranges keeps its model, and the document that has them becomes its
//! calibration.
//!
//! | a request's | prepare job | builds |
//! |---|---|---|
//! | model was prepared in that way before | answered from the store | decided about at once |
//! | model is being prepared, for whomever | joined | wait for it |
//! | preparation is known to fail | fails at once | are skipped |
//! | needs name a job that prepares just that | that job, no other | wait for it |
//!
//! Invariant: nothing is decided about a build, and it has no key, before its model is prepared.

use super::{
    ask::Asked,
    compile::ANYWHERE,
    effects::Effects,
    effects::JobRef,
    fallback::Tried,
    graph::skipped_by,
    model::{Change, Covered, Failure, Job, JobId, JobKind, JobState, Made, Model, Outcome, PreparationRecord},
    state::{FinishedIn, Now, SpecAsk, State, Submit},
};
use planforge_proto::{ApiError, ErrorCode};
use planforge_types::{
    BuildSpec, Digest, FailureClass, Precision, Requirement, Sku, Toolchain, ToolchainConstraint,
    preparation::{Kind, PREPARER, PrepareAsk, PreparedFrom},
    toolchain::compare_versions,
};
use std::sync::Arc;

/// A job that a request needs, where it is one that prepares a model.
#[derive(Clone, Debug)]
pub struct Preparing {
    pub source: Digest,
    pub source_name: String,
    pub ask: PrepareAsk,
    /// `None`: it has not succeeded.
    pub made: Option<Made>,
}

impl Preparing {
    /// `None` where the job prepares no model.
    pub fn of(job: &Job) -> Option<Self> {
        Some(Self {
            source: job.model.digest,
            source_name: job.model.name.clone(),
            ask: job.prepare.as_deref()?.clone(),
            made: job.made.as_deref().filter(|_| job.state == JobState::Succeeded).cloned(),
        })
    }

    fn origin(&self, job: &JobId) -> PreparedFrom {
        PreparedFrom {
            source: self.source,
            source_name: self.source_name.clone(),
            ask: self.ask.clone(),
            job: job.as_str().to_owned(),
            document: self.made.as_ref().map(|made| made.document),
            as_calibration: false,
        }
    }
}

/// The preparations of a request, each once, but for those that a job makes which it needs.
pub(super) fn of_request(models: &[Model], specs: &[SpecAsk], submit: &Submit) -> Vec<Asked> {
    let mut prepares: Vec<Asked> = Vec::new();
    for model in models {
        for ask in specs.iter().filter_map(|spec| spec.prepare.as_ref()) {
            let known = prepares.iter().any(|one| one.makes_for(model.digest, ask));
            if known || needed(model, ask, submit).is_some() {
                continue;
            }
            let Ok(sku) = ANYWHERE.parse::<Sku>() else { continue };
            prepares.push(Asked {
                model: model.clone(),
                sku,
                spec: BuildSpec::default(),
                constraint: String::new(),
                matches: ToolchainConstraint::default(),
                force: submit.force,
                allow_inaccurate: false,
                builds: 1,
                covered: Covered::default(),
                stale: Arc::default(),
                existing: None,
                canary: None,
                compile_only: false,
                require: Requirement::default(),
                falls_back: false,
                tried: Vec::<Tried>::new(),
                prepare: Some(ask.clone()),
                from: None,
            });
        }
    }
    prepares
}

/// The needed job that prepares just that.
fn needed<'a>(model: &Model, ask: &PrepareAsk, submit: &'a Submit) -> Option<(&'a JobId, &'a Preparing)> {
    let preparing = submit.needs.iter().filter_map(|need| Some((&need.job, need.prepares.as_ref()?)));
    let mut alike = preparing.filter(|(_, one)| one.source == model.digest && one.ask == *ask);
    alike.next_back()
}

/// A build with where its model comes from: as a spec asks for, or from a job that the request needs and that made it.
pub(super) fn with_origin(asked: Asked, spec: &SpecAsk, submit: &Submit) -> Asked {
    match &spec.prepare {
        Some(ask) => {
            let needed = needed(&asked.model, ask, submit);
            let from = needed.map(|(job, one)| one.origin(job)).unwrap_or_else(|| PreparedFrom {
                source: asked.model.digest,
                source_name: asked.model.name.clone(),
                ask: ask.clone(),
                job: String::new(),
                document: None,
                as_calibration: false,
            });
            let from = PreparedFrom { as_calibration: spec.calibrates, ..from };
            let made = needed.and_then(|(_, one)| one.made.as_ref());
            let mut asked = Asked { from: Some(from), ..asked };
            if let Some(made) = made {
                asked.take_made(made);
            }
            asked
        }
        None => {
            let made = |one: &Preparing| one.made.as_ref().is_some_and(|made| made.model.digest == asked.model.digest);
            let preparing = submit.needs.iter().filter_map(|need| Some((&need.job, need.prepares.as_ref()?)));
            let from = preparing.filter(|(_, one)| made(one)).map(|(job, one)| one.origin(job)).next_back();
            Asked { from, ..asked }
        }
    }
}

/// What a build of a prepared model is told of precision: its types are the model's own. TensorRT wants to be told all the
/// same.
pub(super) fn told_precision(toolchain: &Toolchain, from: &PreparedFrom, asked: Precision) -> Precision {
    if from.as_calibration {
        return asked;
    }
    let of_model = match from.ask.precision {
        Kind::Int8 => Precision::Int8,
        Kind::Fp16 => Precision::Fp16,
        Kind::Bf16 => Precision::Bf16,
        Kind::Int8Weights | Kind::Int4Weights => return asked,
    };
    if toolchain.backend == planforge_tensorrt_rules::BACKEND { of_model } else { Precision::Fp32 }
}

impl Asked {
    /// Whether it prepares this model in this way.
    pub fn makes_for(&self, source: Digest, ask: &PrepareAsk) -> bool {
        self.model.digest == source && self.prepare.as_ref() == Some(ask)
    }

    /// Whether it is to be of what `prepare` makes, or is already, and nobody said yet by whom.
    pub fn is_of(&self, prepare: &Self) -> bool {
        self.from.as_ref().is_some_and(|from| from.job.is_empty() && prepare.makes_for(from.source, &from.ask))
    }

    /// Takes what was made of its model.
    pub fn take_made(&mut self, made: &Made) {
        take(made, self.from.as_mut(), &mut self.model, &mut self.spec);
    }
}

/// Gives an engine what was made for it: the model, or the ranges as its calibration.
fn take(made: &Made, from: Option<&mut PreparedFrom>, model: &mut Model, spec: &mut BuildSpec) {
    match from {
        Some(from) if from.as_calibration => {
            spec.calibration = Some(made.document);
            from.document = Some(made.document);
        }
        Some(from) => {
            *model = made.model.clone();
            from.document = Some(made.document);
        }
        None => *model = made.model.clone(),
    }
}

impl State {
    /// The newest preparer that known agents offer.
    pub(super) fn preparer(&self) -> Result<Toolchain, ApiError> {
        let preparers =
            self.offers.keys().filter(|target| !target.is_a_device() && target.toolchain.backend == PREPARER);
        let newest = preparers.map(|target| &target.toolchain).max_by(|a, b| compare_versions(&a.version, &b.version));
        newest.cloned().ok_or_else(|| {
            let message = "no known agent prepares models";
            let hint = "any agent of this release does, on its host's processor: start one, or update those that are \
                        there; 'planforge prepare' makes the model on this machine, to be submitted as it is";
            ApiError::new(ErrorCode::Refused, message).with_hint(hint)
        })
    }

    /// Enters the jobs that prepare models, and tells the builds that wait for them which those are. Returns them, and
    /// those of them that failed at once.
    pub(super) fn admit_prepares(
        &mut self,
        prepares: Vec<Asked>,
        builds: &mut [Asked],
        submit: &Submit,
        waits: &[JobId],
        now: Now,
        effects: &mut Effects,
    ) -> Result<(Vec<JobRef>, Vec<Arc<Job>>), ApiError> {
        let (mut refs, mut failed) = (Vec::with_capacity(prepares.len()), Vec::new());
        for (one, id) in prepares.into_iter().zip(&submit.ids) {
            let mut waiting: Vec<&mut Asked> = builds.iter_mut().filter(|build| build.is_of(&one)).collect();
            let job = if waits.is_empty() {
                let verdict = self.judge(&one, &submit.lookup)?;
                self.admit(one, verdict, id.clone(), submit, now, effects)
            } else {
                self.admit_blocked(one, id.clone(), submit, waits, now, effects)
            };
            let JobRef::Live(job) = job else {
                return Err(ApiError::new(ErrorCode::Internal, "a preparation that was just taken is not known"));
            };
            for build in &mut waiting {
                if let Some(from) = &mut build.from {
                    from.job = job.id.as_str().to_owned();
                }
                if let Some(made) = job.made.as_deref().filter(|_| job.state == JobState::Succeeded) {
                    build.take_made(made);
                }
            }
            if job.state.is_terminal() && job.state != JobState::Succeeded {
                failed.push(job.clone());
            }
            refs.push(JobRef::Live(job));
        }
        Ok((refs, failed))
    }

    /// Enters a build whose model is known to be none that can be prepared: it is skipped at once.
    pub(super) fn admit_skipped(
        &mut self,
        asked: Asked,
        id: JobId,
        submit: &Submit,
        ended: &Job,
        now: Now,
        effects: &mut Effects,
    ) -> JobRef {
        self.enter(asked, id.clone(), submit, now, effects);
        self.end(&id, JobState::Skipped, Some(skipped_by(ended)), "coordinator", "", now, effects);
        let told = effects.snapshots.iter().rev().find(|job| job.id == id).cloned();
        told.map_or(JobRef::Stored(id), JobRef::Live)
    }

    /// Takes what a job made of its model.
    pub(super) fn take_made(&mut self, id: &JobId, agent: &str, finished: FinishedIn, now: Now, effects: &mut Effects) {
        let FinishedIn { made, log, .. } = finished;
        let key = self.jobs.get(id).and_then(|job| job.key);
        let (Some(made), Some(key)) = (made, key) else {
            let message = format!("agent {agent} reported success without the model that it was to prepare");
            let failure = Failure::new(FailureClass::Infrastructure, message, "");
            self.close_attempt(id, Outcome::Failed, Some(failure.clone()), log, now, effects);
            return self.retry(id, &failure, now, effects);
        };
        self.close_attempt(id, Outcome::Succeeded, None, log, now, effects);
        if let Some(job) = self.jobs.get(id).cloned() {
            self.learn_duration(&job);
        }
        effects.changes.push(Change::ForgetRefusal(key));
        let bytes: u64 = made.model.files.iter().map(|file| file.size_bytes).sum();
        let detail = format!("prepared {} of {bytes} bytes", made.model.digest.short());
        self.keep_made(id, PreparationRecord { key, job: id.clone(), made }, effects);
        if let Some(job) = self.job_mut(id) {
            job.progress = 1.0;
        }
        self.end(id, JobState::Succeeded, None, agent, detail, now, effects);
    }

    /// Notes what a job came to, for those that wait for it and for those that ask for the same later.
    pub(super) fn keep_made(&mut self, id: &JobId, record: PreparationRecord, effects: &mut Effects) {
        if let Some(job) = self.job_mut(id) {
            job.made = Some(Box::new(record.made.clone()));
        }
        self.known.prepared(record.clone());
        effects.changes.push(Change::Preparation(Box::new(record)));
    }

    /// Gives a build the model that it waited for.
    pub(super) fn give_made(&mut self, id: &JobId, by: &JobId, made: &Made) {
        let waits = |job: &&mut Job| {
            let from = job.from.as_ref();
            job.kind != JobKind::Prepare && from.is_some_and(|from| from.document.is_none() && from.job == by.as_str())
        };
        if let Some(job) = self.job_mut(id).filter(waits) {
            take(made, job.from.as_deref_mut(), &mut job.model, &mut job.spec);
        }
    }
}
