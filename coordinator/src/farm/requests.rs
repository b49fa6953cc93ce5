//! What people and pipelines ask: checked, bounded and restricted to the caller's project.

use super::{
    Farm,
    confine::may_look,
    convert,
    convert::invalid,
    pages::{self, Cursor, Page},
    traces,
};
use crate::{
    auth::{Actor, Role},
    core::{
        self, Cancel, Covered, Foresight, Input, Job, JobId, JobRef, Lookup, Outlook, Reply, Report, SpecAsk, Submit,
        SubmitWhat, Submitted,
    },
    store::{EngineFilter, ReportFilter},
};
use planforge_proto::{ApiError, ErrorCode, v1};
use planforge_report::figures::Figures;
use planforge_types::{
    BuildSpec, Digest, EngineKey, ToolchainConstraint, TraceContext,
    preparation::{Kind, PrepareAsk},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The project of requests that name none.
pub(super) const DEFAULT_PROJECT: &str = "default";
/// Rows of a list that asks for no number, and the most that are given.
const LIST_DEFAULT: u32 = 100;
const LIST_MAX: u32 = 5_000;
/// Jobs that one call may cancel or list by name.
pub(super) const NAMED_MAX: usize = 1_024;
/// How far a priority may be from the usual one, either way.
pub(super) const PRIORITY_MAX: i32 = 1_000;
/// Jobs whose ids begin alike that are counted, and up to which each of them is looked at.
const ALIKE_MAX: usize = 10_000;
const LOOKED_AT_MAX: usize = 100;
/// Engines that are read from the store at once for a `find`.
const FIND_PAGE: usize = 1_000;
/// How often one request is decided anew because of what was found in the store.
const LOOKS_MAX: usize = 16;
/// Jobs of a job's `needed_by`.
const NEEDED_BY_MAX: usize = 100;
/// Models, SKUs, specs or constraints in one request.
const AXIS_MAX: usize = 1_024;
const TEXT_MAX_BYTES: usize = 1_024;

pub(super) fn bounded(limit: u32) -> usize {
    (if limit == 0 { LIST_DEFAULT } else { limit.min(LIST_MAX) }) as usize
}

/// The project a caller may look at: `None` for all of them.
pub(super) fn visible_project(actor: &Actor, asked: &str) -> Result<Option<String>, ApiError> {
    may_look(actor)?;
    match (&actor.project, asked) {
        (None, "") => Ok(None),
        (None, asked) => convert::project(asked).map(Some),
        (Some(own), asked) if asked.is_empty() || own == asked => Ok(Some(own.clone())),
        (Some(own), asked) => {
            let message = format!("token '{}' belongs to project {own}, not to {}", actor.name, asked.escape_debug());
            Err(ApiError::new(ErrorCode::PermissionDenied, message))
        }
    }
}

pub(super) fn may_submit(actor: &Actor) -> Result<(), ApiError> {
    if matches!(actor.role, Role::Submit | Role::Admin) {
        return Ok(());
    }
    let message = format!("token '{}' has role {}; this needs role submit", actor.name, actor.role);
    Err(ApiError::new(ErrorCode::PermissionDenied, message).with_hint("use a token with role submit or admin"))
}

fn text(what: &str, text: String) -> Result<String, ApiError> {
    if text.len() > TEXT_MAX_BYTES || text.contains(char::is_control) {
        return Err(invalid(format!("{what} must be at most {TEXT_MAX_BYTES} bytes without control characters")));
    }
    Ok(text)
}

fn asked_too_often() -> ApiError {
    let message = "what the store has for this request changed again and again while it was being decided";
    ApiError::new(ErrorCode::Unavailable, message).with_hint("try again")
}

fn axis(what: &str, count: usize) -> Result<(), ApiError> {
    if count > AXIS_MAX {
        return Err(invalid(format!("a request has at most {AXIS_MAX} {what}, not {count}")));
    }
    Ok(())
}

/// What the leader knows of a job that has not ended.
struct Live {
    state: i32,
    progress: f32,
    outlook: Outlook,
    needed_by: Vec<String>,
}

/// What a baseline is built with when its request names nothing else.
const BASELINE_TOOLCHAIN: &str = "onnxruntime";

/// Kinds that may be submitted, in words.
const KINDS: &str = "build, benchmark, baseline, compile and prepare";

/// Places of specs whose engines take the ranges of their preparation as a calibration.
fn calibrating(places: &[u32], prepares: &[Option<PrepareAsk>]) -> Result<BTreeSet<usize>, ApiError> {
    let of = |place: u32| {
        let ask = prepares.get(place as usize).and_then(Option::as_ref);
        match ask.map(|ask| (ask.precision, ask.target)) {
            Some((Kind::Int8, target)) if target.has_cache() => Ok(place as usize),
            Some((Kind::Int8, target)) => {
                let target = target.name();
                Err(invalid(format!("a preparation for {target} finds no ranges for TensorRT to calibrate by")))
            }
            Some((other, _)) => {
                Err(invalid(format!("a preparation to {} finds no ranges to calibrate by", other.name())))
            }
            None => Err(invalid(format!("spec {place} is to be calibrated by a preparation, and names none"))),
        }
    };
    places.iter().map(|place| of(*place)).collect()
}

impl Farm {
    /// `caller`: the place of a trace that the request came with.
    pub(super) async fn accept(
        &self,
        actor: &Actor,
        request: v1::SubmitRequest,
        caller: Option<TraceContext>,
    ) -> Result<v1::SubmitReply, ApiError> {
        may_submit(actor)?;
        let began = planforge_trace::unix_ns();
        let fingerprint = {
            let mut same = request.clone();
            same.idempotency_key.clear();
            Digest::of(&prost::Message::encode_to_vec(&same))
        };
        let project = visible_project(actor, &request.project)?.unwrap_or_else(|| DEFAULT_PROJECT.into());
        let idempotency_key = text("an idempotency key", request.idempotency_key.clone())?;
        let known = if idempotency_key.is_empty() {
            None
        } else {
            self.timed("request", self.store().request(&project, &idempotency_key)).await?
        };
        if let Some(known) = known {
            let submitted = core::repeat(&known, fingerprint, |id| JobRef::Stored(id.clone()))?;
            return self.submit_reply(submitted, &project).await;
        }
        let submit = self.prepared(actor, &request, (project.clone(), idempotency_key, fingerprint)).await?;
        let trace = traces::place_of_request(&submit.request, caller);
        let submit = Submit { audit: Some(Box::new(self.audit_of_submission(actor))), trace: Some(trace), ..submit };
        let refresh = request.refresh_disturbed;
        let mut submit = self.looked_up(submit).await?;
        for _ in 0..LOOKS_MAX {
            submit = match self.submitted(submit).await? {
                Submitted::Needs { submit } => self.needs_looked_up(*submit).await?,
                Submitted::Look { plans, submit } => self.looked(plans, *submit, refresh).await?,
                // Somebody else changed what was found before it was taken.
                Submitted::Ask { keys, as_of, submit } => self.look_up(*submit, keys, as_of).await?,
                done => {
                    let reply = self.submit_reply(done, &project).await?;
                    traces::accepted(trace, caller, began, &reply);
                    return Ok(reply);
                }
            };
        }
        Err(asked_too_often())
    }

    /// What a submission would come to; changes nothing. Needs role submit.
    ///
    /// # Errors
    /// A wrong request; what would be refused for what the farm has, or lacks, is told in the reply.
    pub(super) async fn foresee(&self, actor: &Actor, request: v1::SubmitRequest) -> Result<v1::DryRunReply, ApiError> {
        may_submit(actor)?;
        let project = visible_project(actor, &request.project)?.unwrap_or_else(|| DEFAULT_PROJECT.into());
        let submit = self.prepared(actor, &request, (project.clone(), String::new(), Digest::of(b""))).await?;
        let mut submit = self.looked_up(submit).await?;
        for _ in 0..LOOKS_MAX {
            submit = match self.ask(move |state, _| state.foresee(submit)).await?? {
                Foresight::Look { plans, submit } => self.looked(plans, *submit, request.refresh_disturbed).await?,
                Foresight::Ask { keys, as_of, submit } => self.look_up(*submit, keys, as_of).await?,
                Foresight::Told { combinations, missing, refusal } => {
                    return Ok(convert::foreseen_out(combinations, &missing, refusal));
                }
            };
        }
        Err(asked_too_often())
    }

    /// A request as the scheduler takes it: read, bounded, with what is known of its blobs.
    async fn prepared(
        &self,
        actor: &Actor,
        request: &v1::SubmitRequest,
        (project, idempotency_key, fingerprint): (String, String, Digest),
    ) -> Result<Submit, ApiError> {
        axis("models", request.models.len())?;
        axis("SKUs", request.skus.len())?;
        axis("specs", request.specs_json.len())?;
        axis("preparations", request.prepares_json.len())?;
        axis("toolchain constraints", request.toolchains.len())?;
        let skus = request.skus.iter().map(|sku| convert::sku(sku)).collect::<Result<Vec<_>, _>>()?;
        let prepare_only = request.kind == i32::from(v1::JobKind::Prepare);
        if skus.is_empty() != prepare_only {
            if prepare_only {
                return Err(invalid("a model is prepared for no device kind: leave the SKUs out, or submit builds"));
            }
            return Err(invalid("the request names no SKU").with_hint("'planforge devices' shows the SKUs that exist"));
        }
        let eval = convert::optional_digest("the test set's digest", &request.eval_digest)?;
        let builds = convert::builds(request.builds)?;
        let measure = convert::measure(request.measure.clone())?;
        let needs = self.needs(actor, &project, &request.needs).await?;
        let what = self.what(actor, request).await?;
        let (jobs, prepares) = match &what {
            SubmitWhat::Build { models, specs, constraints } => {
                let prepared = specs.iter().filter(|spec| spec.prepare.is_some()).count();
                (models.len() * skus.len() * specs.len() * constraints.len(), models.len() * prepared)
            }
            SubmitWhat::Benchmark(_) => (skus.len(), 0),
        };
        if builds > 1 && matches!(what, SubmitWhat::Benchmark(_)) {
            return Err(invalid("a benchmark measures a plan that exists and builds nothing; leave the builds out"));
        }
        if request.refresh_disturbed && matches!(what, SubmitWhat::Benchmark(_)) {
            return Err(invalid("a benchmark measures anew whatever is stored; leave the refresh out"));
        }
        let compile_only = request.kind == i32::from(v1::JobKind::Compile);
        if compile_only && (builds > 1 || eval.is_some() || !measure.is_empty()) {
            let message = "a compile job measures nothing; leave builds, test set and measurements out";
            return Err(invalid(message).with_hint("a build measures; it finds what was compiled"));
        }
        let canary = match &request.canary {
            None => None,
            Some(_) if jobs != 1 || compile_only || prepares > 0 || !matches!(what, SubmitWhat::Build { .. }) => {
                return Err(invalid("a canary is the build of one engine"));
            }
            Some(canary) => Some(super::canary::asked(canary)?),
        };
        let (missing, unseen) = self.missing_blobs(actor, &what, eval.into_iter().chain(measure.files())).await?;
        let over_quota = self.over_bytes_quota(&project).await?.or(self.blobs().room_for_work().err());
        Ok(Submit {
            actor: actor.name.clone(),
            project,
            request: self.fresh_id(),
            idempotency_key,
            fingerprint,
            what,
            skus,
            priority: request.priority.clamp(-PRIORITY_MAX, PRIORITY_MAX),
            tags: convert::tags(&request.tags)?,
            force: request.force,
            wait_for_device: request.wait_for_device,
            follow_toolchain: request.follow_toolchain,
            allow_inaccurate: request.allow_inaccurate,
            eval,
            builds,
            measure,
            canary,
            compile_only,
            no_fallback: request.no_fallback,
            require: convert::requirement(&request.requires)?,
            needs,
            missing,
            unseen,
            over_quota,
            missing_plans: None,
            disturbed_plans: Arc::default(),
            lookup: Lookup::default(),
            ids: (0..(jobs + prepares).min(core::JOBS_PER_REQUEST_MAX)).map(|_| JobId::from(self.fresh_id())).collect(),
            audit: None,
            trace: None,
        })
    }

    /// A request with what the store has under the keys that it comes to.
    async fn looked_up(&self, submit: Submit) -> Result<Submit, ApiError> {
        if submit.force {
            return Ok(submit);
        }
        let (keys, as_of, submit) = self
            .ask(move |state, _| {
                let (keys, as_of) = state.asks(&submit);
                (keys, as_of, submit)
            })
            .await?;
        self.look_up(submit, keys, as_of).await
    }

    async fn look_up(&self, submit: Submit, mut keys: BTreeSet<EngineKey>, as_of: u64) -> Result<Submit, ApiError> {
        if keys.is_empty() {
            return Ok(submit);
        }
        // All of one time.
        keys.extend(submit.lookup.stored.keys());
        let stored = self.timed("stored", self.store().stored(keys.into_iter().collect())).await?;
        Ok(Submit { lookup: Lookup { stored, as_of }, ..submit })
    }

    /// A request whose stored plans were looked for.
    async fn looked(&self, plans: BTreeSet<Digest>, submit: Submit, refresh: bool) -> Result<Submit, ApiError> {
        let asked = Covered { eval: submit.eval, measure: submit.measure.clone() };
        let disturbed = if refresh { self.disturbed_of(&plans, &asked).await? } else { BTreeSet::new() };
        let (missing_plans, disturbed_plans) = (Some(self.missing_of(plans).await?), Arc::new(disturbed));
        Ok(Submit { missing_plans, disturbed_plans, ..submit })
    }

    async fn what(&self, actor: &Actor, request: &v1::SubmitRequest) -> Result<SubmitWhat, ApiError> {
        match v1::JobKind::try_from(request.kind) {
            Ok(
                v1::JobKind::Unspecified
                | v1::JobKind::Build
                | v1::JobKind::Baseline
                | v1::JobKind::Compile
                | v1::JobKind::Prepare,
            ) => {}
            Ok(v1::JobKind::Benchmark) => {
                let plan = convert::digest("the plan's digest", &request.plan_digest)?;
                return Ok(SubmitWhat::Benchmark(Box::new(self.engine_of_plan(actor, plan).await?)));
            }
            Ok(other) => {
                let name = other.as_str_name().trim_start_matches("JOB_KIND_").to_lowercase();
                return Err(invalid(format!("this coordinator runs no {name} jobs, only {KINDS} jobs")));
            }
            Err(_) => {
                let message = format!("this coordinator does not know job kind {}", request.kind);
                return Err(invalid(format!("{message}, only {KINDS} jobs")));
            }
        }
        if request.models.is_empty() {
            return Err(invalid("the request names no model"));
        }
        let models = request.models.iter().cloned().map(convert::model).collect::<Result<_, _>>()?;
        let mut specs = request.specs_json.iter().map(|spec| convert::spec(spec)).collect::<Result<Vec<_>, _>>()?;
        let prepares = request.prepares_json.iter().map(|ask| convert::prepare(ask)).collect::<Result<Vec<_>, _>>()?;
        if request.kind == i32::from(v1::JobKind::Prepare) {
            if prepares.iter().all(Option::is_none) {
                return Err(invalid("the request is to prepare models and does not say how (prepares_json)"));
            }
            // Nothing is built by them.
            specs = vec![BuildSpec::default(); prepares.len()];
        }
        if specs.is_empty() {
            specs.push(BuildSpec::default());
        }
        if prepares.len() > specs.len() {
            let (ways, specs) = (prepares.len(), specs.len());
            return Err(invalid(format!("the request names {ways} ways to prepare models for {specs} specs")));
        }
        let calibrates = calibrating(&request.calibrates, &prepares)?;
        let prepares = prepares.into_iter().chain(std::iter::repeat(None));
        let specs = specs.into_iter().zip(prepares).enumerate();
        let specs = specs.map(|(place, (spec, prepare))| {
            let calibrates = calibrates.contains(&place);
            SpecAsk { spec, prepare, calibrates }
        });
        let specs = specs.collect();
        let mut constraints = Vec::new();
        for constraint in &request.toolchains {
            let parsed: ToolchainConstraint = constraint.parse().map_err(|error| invalid(format!("{error}")))?;
            constraints.push((constraint.clone(), parsed));
        }
        if constraints.is_empty() {
            // A baseline is an engine like any other, made by the runtime that engines are held against.
            let baseline = request.kind == i32::from(v1::JobKind::Baseline);
            let usual = if baseline { BASELINE_TOOLCHAIN } else { "" };
            let parsed = usual.parse().map_err(|error| invalid(format!("{error}")))?;
            constraints.push((usual.to_owned(), parsed));
        }
        Ok(SubmitWhat::Build { models, specs, constraints })
    }

    async fn engine_of_plan(&self, actor: &Actor, plan: Digest) -> Result<core::Engine, ApiError> {
        let filter =
            EngineFilter { plan: Some(plan), project: actor.project.clone(), limit: 1, ..EngineFilter::default() };
        let engine = self.timed("engines", self.store().engines(filter)).await?.pop();
        let engine =
            engine.ok_or_else(|| ApiError::new(ErrorCode::NotFound, format!("no engine has the plan {plan}")))?;
        self.must_be_stored(&engine).await?;
        Ok(engine)
    }

    /// Refuses an engine whose bytes were deleted, or set aside as damaged.
    async fn must_be_stored(&self, engine: &core::Engine) -> Result<(), ApiError> {
        if self.blobs().size(engine.plan.digest).await?.is_some() {
            return Ok(());
        }
        let message = format!(
            "the plan {} of {} for {} is gone: it was built by job {}, but then deleted or set aside as damaged",
            engine.plan.digest, engine.model.name, engine.sku, engine.job
        );
        Err(ApiError::new(ErrorCode::Gone, message).with_hint("'planforge submit' builds it again"))
    }

    async fn submitted(&self, submit: Submit) -> Result<Submitted, ApiError> {
        match self.input(Input::Submit(Box::new(submit))).await? {
            Reply::Submitted(submitted) => submitted,
            _ => Err(ApiError::new(ErrorCode::Internal, "the leader answered something else")),
        }
    }

    /// Those of `plans` that the blob store has no more.
    async fn missing_of(&self, plans: BTreeSet<Digest>) -> Result<Vec<Digest>, ApiError> {
        let mut missing = Vec::new();
        for plan in plans {
            if self.blobs().size(plan).await?.is_none() {
                tracing::warn!(%plan, "a stored engine's plan is gone; its engine is built again");
                missing.push(plan);
            }
        }
        Ok(missing)
    }

    /// Those of `plans` whose answer to `asked` is a measurement of which every window was disturbed.
    async fn disturbed_of(&self, plans: &BTreeSet<Digest>, asked: &Covered) -> Result<BTreeSet<Digest>, ApiError> {
        let mut disturbed = BTreeSet::new();
        for plan in plans {
            let filter = EngineFilter { plan: Some(*plan), limit: 1, ..EngineFilter::default() };
            let Some(engine) = self.timed("engines", self.store().engines(filter)).await?.pop() else { continue };
            let report = self.answering_report(*plan, engine.sku.as_str(), asked).await?;
            let figures = report.and_then(|report| Figures::parse(&report.document).ok());
            if figures.is_some_and(|figures| figures.wholly_disturbed().is_some()) {
                disturbed.insert(*plan);
            }
        }
        Ok(disturbed)
    }

    /// The report that is shown of a plan where the store answers: on its own SKU, the newest that has everything that was
    /// asked for, else the newest that compared and timed the same inputs.
    pub(super) async fn answering_report(
        &self,
        plan: Digest,
        sku: &str,
        asked: &Covered,
    ) -> Result<Option<Report>, ApiError> {
        let (plan, sku) = (Some(plan), Some(sku.to_owned()));
        let filter = ReportFilter { plan, sku, limit: LIST_DEFAULT as usize, ..ReportFilter::default() };
        let mut found = self.timed("reports", self.store().reports(filter)).await?;
        let covers = |report: &Report| Covered::of(report).covers(asked);
        let alike = |report: &Report| report.measure.same_inputs(&asked.measure);
        let at = found.iter().position(covers).or_else(|| found.iter().position(alike));
        Ok(at.map(|at| found.swap_remove(at)))
    }

    /// Blobs of a request that have to be sent first, and whether any of them was never shown by the caller's project.
    async fn missing_blobs(
        &self,
        actor: &Actor,
        what: &SubmitWhat,
        attached: impl Iterator<Item = Digest>,
    ) -> Result<(Vec<Digest>, bool), ApiError> {
        let mut wanted: BTreeSet<Digest> = attached.collect();
        // Plugins are the whole farm's: an administrator allowed them.
        let mut plugins = BTreeSet::new();
        if let SubmitWhat::Build { models, specs, .. } = what {
            wanted.extend(models.iter().flat_map(|model| &model.files).map(|file| file.digest));
            wanted.extend(specs.iter().filter_map(|spec| spec.spec.calibration));
            wanted.extend(specs.iter().filter_map(|spec| spec.prepare.as_ref()).flat_map(PrepareAsk::files));
            plugins.extend(specs.iter().flat_map(|spec| spec.spec.plugins.iter().copied()));
        }
        let (mut missing, mut unseen) = (BTreeSet::new(), false);
        for digest in wanted.union(&plugins) {
            let shown = !wanted.contains(digest) || self.has_shown(actor, *digest).await?;
            unseen |= !shown;
            if !shown || self.blobs().size(*digest).await?.is_none() {
                missing.insert(*digest);
            }
        }
        Ok((missing.into_iter().collect(), unseen))
    }

    async fn submit_reply(&self, submitted: Submitted, project: &str) -> Result<v1::SubmitReply, ApiError> {
        let (request_id, jobs) = match submitted {
            Submitted::Missing(digests) => {
                let missing_blobs = digests.iter().map(Digest::to_string).collect();
                return Ok(v1::SubmitReply { missing_blobs, ..v1::SubmitReply::default() });
            }
            Submitted::Look { .. } | Submitted::Ask { .. } | Submitted::Needs { .. } => return Err(asked_too_often()),
            Submitted::Jobs { request, jobs } => (request, jobs),
        };
        let mut views = Page::new();
        for job in jobs {
            let mut view = [self.job_ref(job, Some(project)).await?];
            if !views.is_full() {
                self.fill_reports(&mut view).await?;
            }
            let [view] = view;
            views.push_or_shorten(view);
        }
        Ok(v1::SubmitReply { request_id, jobs: views.into_items(), missing_blobs: Vec::new() })
    }

    pub(super) async fn job_ref(&self, job: JobRef, project: Option<&str>) -> Result<v1::Job, ApiError> {
        match job {
            JobRef::Live(job) => Ok(convert::job_out(&job, project)),
            JobRef::Stored(id) => match self.timed("job", self.store().job(&id)).await? {
                Some(job) => Ok(convert::job_out(&job, project)),
                None => Err(ApiError::new(ErrorCode::NotFound, format!("no job {id}"))),
            },
        }
    }

    /// The reports of jobs that were measured.
    pub(super) async fn fill_reports(&self, jobs: &mut [v1::Job]) -> Result<(), ApiError> {
        let lacks = |job: &&mut v1::Job| !job.plan_digest.is_empty() && job.report_json.is_empty();
        let ids: Vec<JobId> = jobs.iter_mut().filter(lacks).map(|job| job.id.as_str().into()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let newest = self.timed("reports", self.store().newest_reports(ids)).await?;
        let mut newest: BTreeMap<JobId, Report> =
            newest.into_iter().map(|report| (report.job.clone(), report)).collect();
        for job in jobs.iter_mut().filter(lacks) {
            let mut found = newest.remove(&JobId::from(job.id.as_str()));
            if let (None, true, Ok(plan)) = (&found, job.cached, job.plan_digest.parse()) {
                let asked = Covered {
                    eval: job.eval_digest.parse().ok(),
                    measure: convert::measure(job.measure.clone()).unwrap_or_default(),
                };
                found = self.answering_report(plan, &job.sku, &asked).await?;
            }
            if let Some(report) = found {
                job.artifacts = convert::artifacts_out(&report.artifacts);
                job.report_json = report.document;
            }
        }
        Ok(())
    }

    /// What the store does not know of jobs that live: how far they are and why they wait.
    pub(super) async fn fill_live(&self, jobs: &mut [v1::Job]) -> Result<(), ApiError> {
        let ids: Vec<(JobId, String)> = jobs
            .iter()
            .filter(|job| job.ended_ms == 0)
            .map(|job| (JobId::from(job.id.as_str()), job.project.clone()))
            .collect();
        if ids.is_empty() {
            return Ok(());
        }
        let mut live: BTreeMap<JobId, Live> = self
            .ask(move |state, now| {
                let mut lookout = state.lookout(now);
                let seen = ids.into_iter().filter_map(|(id, project)| Some((state.job(&id)?, project)));
                let told = |(job, project): (&Arc<Job>, String)| {
                    let now = Live {
                        state: convert::state_out(job.state).into(),
                        progress: job.progress,
                        outlook: lookout.outlook(job),
                        needed_by: state
                            .needed_by(&job.id)
                            .filter(|other| other.is_in(&project))
                            .take(NEEDED_BY_MAX)
                            .map(|job| job.id.to_string())
                            .collect(),
                    };
                    (job.id.clone(), now)
                };
                seen.map(told).collect()
            })
            .await?;
        for job in jobs {
            // Only of a state that is durable; the next one is not told before it is.
            if let Some(Live { state, progress, outlook, needed_by }) = live.remove(&JobId::from(job.id.as_str()))
                && state == job.state
            {
                job.progress = progress;
                job.needed_by = needed_by;
                job.waiting_reason = outlook.reason;
                job.jobs_ahead = outlook.jobs_ahead.map(|ahead| ahead as u64);
                job.eta = outlook.eta.map(convert::eta_out);
            }
        }
        Ok(())
    }

    /// A job of the caller's by id or unique prefix.
    pub(super) async fn find_job(&self, actor: &Actor, id: &str) -> Result<Job, ApiError> {
        may_look(actor)?;
        let prefix = convert::job_id(id)?;
        let own = |job: &Job| actor.project.as_ref().is_none_or(|project| job.is_in(project));
        if let Some(job) = self.timed("job", self.store().job(&prefix)).await?.filter(own) {
            return Ok(job);
        }
        // One more tells whether there are more than are counted.
        let found = self.store().job_ids(prefix.as_str(), actor.project.as_deref(), ALIKE_MAX + 1);
        let found = self.timed("job_ids", found).await?;
        let mut jobs = Vec::new();
        let many = found.len() > LOOKED_AT_MAX;
        for id in found.iter().filter(|_| !many) {
            jobs.extend(self.timed("job", self.store().job(id)).await?.filter(own));
        }
        let alike = match (many, found.len()) {
            (false, _) => jobs.len().to_string(),
            (true, count) if count > ALIKE_MAX => format!("more than {ALIKE_MAX}"),
            (true, count) => count.to_string(),
        };
        match jobs.pop() {
            None if !many => Err(ApiError::new(ErrorCode::NotFound, format!("no job {}", id.escape_debug()))
                .with_hint("'planforge jobs' lists them")),
            Some(job) if jobs.is_empty() => Ok(job),
            _ => Err(invalid(format!("{alike} jobs begin with {id}")).with_hint("give more characters of the id")),
        }
    }

    /// Ids of the jobs of a request that the caller may see.
    pub(super) async fn jobs_of_request(&self, project: Option<&str>, id: &str) -> Result<Vec<JobId>, ApiError> {
        let request = self.timed("request", self.store().request_of_id(id)).await?;
        let visible = request.filter(|request| project.is_none_or(|project| request.project == project));
        visible.map(|request| request.jobs).ok_or_else(|| {
            ApiError::new(ErrorCode::NotFound, format!("no request {}", id.escape_debug()))
                .with_hint("'planforge submit --json' and 'planforge jobs --json' name requests as request_id")
        })
    }

    pub(super) async fn job_out(&self, actor: &Actor, id: &str) -> Result<v1::Job, ApiError> {
        let job = self.find_job(actor, id).await?;
        let mut view = [convert::job_out(&job, actor.project.as_deref())];
        self.fill_live(&mut view).await?;
        self.fill_reports(&mut view).await?;
        let [view] = view;
        Ok(view)
    }

    pub(super) async fn cancel(
        &self,
        actor: &Actor,
        request: v1::CancelJobsRequest,
    ) -> Result<v1::CancelJobsReply, ApiError> {
        may_submit(actor)?;
        if request.ids.is_empty() || request.ids.len() > NAMED_MAX {
            return Err(invalid(format!("name 1 to {NAMED_MAX} jobs to cancel")));
        }
        let mut jobs = Vec::with_capacity(request.ids.len());
        for id in &request.ids {
            jobs.push(self.find_job(actor, id).await?.id);
        }
        let of_request = Some(request.request_id).filter(|id| !id.is_empty());
        let reason = text("a reason", request.reason)?;
        let mut views = Page::new();
        while !jobs.is_empty() {
            let (request, reason) = (of_request.clone(), reason.clone());
            let cancel = Cancel { actor: actor.clone(), jobs: std::mem::take(&mut jobs), request, reason };
            let Reply::Cancelled(replies) = self.input(Input::Cancel(cancel)).await? else {
                return Err(ApiError::new(ErrorCode::Internal, "the leader answered something else"));
            };
            for (job, remark) in replies? {
                let mut view = self.job_ref(job, actor.project.as_deref()).await?;
                // Another one took its place: that is what goes on.
                if let Some(next) = self.stand_in(actor, &view).await? {
                    jobs.push(next);
                    continue;
                }
                view.waiting_reason = remark;
                views.push_or_shorten(view);
            }
        }
        Ok(v1::CancelJobsReply { jobs: views.into_items() })
    }

    /// The job that took the place of one with another toolchain, where it is kept and the caller's.
    async fn stand_in(&self, actor: &Actor, job: &v1::Job) -> Result<Option<JobId>, ApiError> {
        if job.fallback.is_empty() {
            return Ok(None);
        }
        let next = self.timed("job", self.store().job(&job.fallback.as_str().into())).await?;
        let own = |next: &Job| actor.project.as_ref().is_none_or(|project| next.is_in(project));
        Ok(next.filter(own).map(|next| next.id))
    }

    pub(super) async fn engine_view(&self, actor: &Actor, engine: &core::Engine) -> Result<v1::Engine, ApiError> {
        let sku = engine.sku.to_string();
        let mut own = self.answering_report(engine.plan.digest, &sku, &Covered::default()).await?;
        if own.is_none() {
            // Of given inputs alone, which it says.
            let (plan, sku) = (Some(engine.plan.digest), Some(sku));
            let filter = ReportFilter { plan, sku, limit: 1, ..ReportFilter::default() };
            own = self.timed("reports", self.store().reports(filter)).await?.pop();
        }
        let view = convert::engine_out(engine, own.map(|report| report.document).unwrap_or_default());
        self.as_its_own(actor, engine, view).await
    }

    pub(super) async fn find(&self, actor: &Actor, request: v1::FindEngineRequest) -> Result<v1::Engine, ApiError> {
        let project = visible_project(actor, &request.project)?;
        let mut filter = EngineFilter { project, limit: FIND_PAGE, ..EngineFilter::default() };
        let mut what;
        if !request.engine_key.is_empty() {
            let key: EngineKey = request.engine_key.parse().map_err(|error| invalid(format!("the key: {error}")))?;
            what = format!("key {key}");
            filter.key = Some(key);
        } else if !request.plan_digest.is_empty() {
            let plan = convert::digest("the plan's digest", &request.plan_digest)?;
            what = format!("plan {plan}");
            filter.plan = Some(plan);
        } else {
            let model = convert::digest("the model's digest", &request.model_digest)?;
            // One kind of device or another: a model alone names no engine.
            convert::sku(&request.sku)?;
            what = format!("model {}", model.short());
            filter.model = Some(model.to_string());
        }
        // However an engine is named, one for another device kind is not what was asked for.
        if !request.sku.is_empty() {
            let sku = convert::sku(&request.sku)?;
            what.push_str(&format!(" on {sku}"));
            filter.sku = Some(sku.to_string());
        }
        let spec = match request.spec_json.as_str() {
            "" => None,
            text => Some(convert::spec(text)?),
        };
        let constraint: ToolchainConstraint = request.toolchain.parse().map_err(|error| invalid(format!("{error}")))?;
        let mut engines = Vec::new();
        loop {
            let found = self.timed("engines", self.store().engines(filter.clone())).await?;
            let full = found.len() == filter.limit;
            filter.behind = found.last().map(|last| (last.created_ms, last.key, last.plan.digest));
            engines.extend(found);
            if !full {
                break;
            }
        }
        let fits = |engine: &&core::Engine| {
            // A spec that names no threads was resolved to some; it finds them all.
            let same_spec = spec.as_ref().is_none_or(|spec| {
                let threads = spec.threads.or(engine.spec.threads);
                BuildSpec { threads, ..spec.clone() } == engine.spec
            });
            same_spec && constraint.matches(&engine.toolchain)
        };
        let found: Vec<&core::Engine> = engines.iter().filter(fits).collect();
        let fine = |engine: &&&core::Engine| engine.accurate || request.allow_inaccurate;
        match (found.iter().find(fine), found.is_empty()) {
            (Some(engine), _) => {
                self.must_be_stored(engine).await?;
                self.note_use(engine.key);
                self.engine_view(actor, engine).await
            }
            (None, false) => Err(ApiError::new(
                ErrorCode::Refused,
                format!("the engine of {what} is inaccurate: its outputs are too far from the reference's"),
            )
            .with_hint("--allow-inaccurate takes it anyway")),
            (None, true) => Err(ApiError::new(ErrorCode::NotFound, format!("no engine of {what} is stored"))
                .with_hint("build it with 'planforge submit', or list what exists with 'planforge engines'")),
        }
    }

    pub(super) async fn reports_out(
        &self,
        actor: &Actor,
        request: v1::ListReportsRequest,
    ) -> Result<v1::ListReportsReply, ApiError> {
        may_look(actor)?;
        let mut filter = ReportFilter { limit: LIST_DEFAULT as usize, ..ReportFilter::default() };
        let mut answered = None;
        if !request.plan_digest.is_empty() {
            filter.plan = Some(convert::digest("the plan's digest", &request.plan_digest)?);
        }
        if !request.engine_key.is_empty() {
            filter.key = Some(request.engine_key.parse().map_err(|error| invalid(format!("the key: {error}")))?);
        }
        if !request.job.is_empty() {
            let job = self.find_job(actor, &request.job).await?;
            filter.job = Some(job.id.clone());
            if job.cached {
                // Nothing ran for it: the reports are those of the plan it was answered with, on its own inputs.
                filter.job = None;
                filter.plan = job.plan.map(|plan| plan.digest);
                answered = Some(job.measure);
            }
        }
        if filter.plan.is_none() && filter.key.is_none() && filter.job.is_none() {
            return Err(invalid("name a plan, an engine key or a job whose reports are wanted"));
        }
        filter.behind = match Cursor::read(&request.cursor)? {
            Some(Cursor { created_ms, names: [digest] }) => {
                Some((created_ms, digest.parse().map_err(|_| pages::bad_cursor())?))
            }
            None => None,
        };
        let mut page = Page::new();
        let mut next_cursor = String::new();
        'pages: loop {
            let found = self.timed("reports", self.store().reports(filter.clone())).await?;
            let full = found.len() == filter.limit;
            for report in found {
                let here = (report.created_ms, report.digest);
                let fits = answered.as_ref().is_none_or(|asked| report.measure.same_inputs(asked));
                if fits && self.may_see(actor, &report).await? && !page.push(report) {
                    if let Some((created_ms, digest)) = filter.behind {
                        next_cursor = Cursor { created_ms, names: [&*digest.to_string()] }.write();
                    }
                    break 'pages;
                }
                filter.behind = Some(here);
            }
            if !full {
                break;
            }
        }
        let reports = page.into_items();
        let facts = reports.iter().map(convert::report_facts).collect();
        let reports_json = reports.into_iter().map(|report| report.document).collect();
        Ok(v1::ListReportsReply { reports_json, facts, next_cursor })
    }

    /// Reports that the caller may see: of engines and jobs of its project.
    pub(super) async fn visible_reports(&self, actor: &Actor, filter: ReportFilter) -> Result<Vec<Report>, ApiError> {
        let mut own = Vec::new();
        for report in self.timed("reports", self.store().reports(filter)).await? {
            if self.may_see(actor, &report).await? {
                own.push(report);
            }
        }
        Ok(own)
    }

    async fn may_see(&self, actor: &Actor, report: &Report) -> Result<bool, ApiError> {
        let Some(project) = &actor.project else { return Ok(true) };
        if let Some(key) = report.key {
            let filter =
                EngineFilter { key: Some(key), project: Some(project.clone()), limit: 1, ..EngineFilter::default() };
            if !self.timed("engines", self.store().engines(filter)).await?.is_empty() {
                return Ok(true);
            }
        }
        let job = self.timed("job", self.store().job(&report.job)).await?;
        Ok(job.is_some_and(|job| job.is_in(project)))
    }
}
