//! Engines that are stale or outdated: found, told with the reason, and built again, on demand or on the coordinator's
//! schedule.
//!
//! | reason | what |
//! |---|---|
//! | `toolchain` | its request would be resolved to another toolchain now: a newer compiler, TensorRT, or library |
//! | `driver` | to one that differs by the driver's branch alone |
//! | `model` | a declaration of its project has another model of that name for its device kind |
//! | `disturbed` | every window of its measurement was disturbed |
//! | `unmeasured` | it was built, and nobody measured it |
//! | `age` | it was last measured longer ago than was asked about |
//!
//! Of a model's name, device kind, spec and backend only the newest engine is looked at. Where several engines of one
//! device kind get another toolchain, the smallest goes first: a canary. The others need it, and it only succeeds where it
//! is shown to be not slower than the engine that it would take the place of (`canary`). What is under way already is
//! told, and not asked for again.

use super::{
    Farm, canary, convert,
    convert::invalid,
    requests::{may_submit, visible_project},
};
use crate::{
    auth::Actor,
    core::{AuditKind, Covered, Engine, Job, JobKind},
    store::{DeclarationFilter, EngineFilter},
};
use planforge_proto::{ApiError, v1};
use planforge_report::figures::Figures;
use planforge_types::{BuildSpec, Digest, Sku, Toolchain};
use std::collections::{BTreeMap, BTreeSet};

/// Cells that one call looks at; it says when there are more.
const CELLS_MAX: usize = 4_096;
/// Engines that are read at once.
const PAGE: usize = 256;
/// Declarations of a farm that are looked at.
const DECLARATIONS_MAX: usize = 200;
/// By how much a canary may be slower where nobody says.
const USUAL_SLOWER_PERCENT: f64 = 5.0;
/// Jobs of a refresh have it, beside what else they are found by.
const TAG: &str = "refresh";

/// Why an engine is to be built again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Toolchain,
    Driver,
    Model,
    Disturbed,
    Unmeasured,
    Age,
}

impl Reason {
    const ALL: [Self; 6] = [Self::Toolchain, Self::Driver, Self::Model, Self::Disturbed, Self::Unmeasured, Self::Age];

    fn name(self) -> &'static str {
        match self {
            Self::Toolchain => "toolchain",
            Self::Driver => "driver",
            Self::Model => "model",
            Self::Disturbed => "disturbed",
            Self::Unmeasured => "unmeasured",
            Self::Age => "age",
        }
    }

    /// The reasons of these names; all where none is named.
    fn named(names: &[String]) -> Result<BTreeSet<Self>, ApiError> {
        if names.is_empty() {
            return Ok(Self::ALL.into());
        }
        let one = |name: &String| {
            let known = Self::ALL.into_iter().find(|reason| reason.name() == name);
            known.ok_or_else(|| {
                let all: Vec<&str> = Self::ALL.into_iter().map(Self::name).collect();
                invalid(format!("'{}' is no reason to refresh: {}", name.escape_debug(), all.join(", ")))
            })
        };
        names.iter().map(one).collect()
    }
}

/// An engine that is to be built again.
struct Stale {
    engine: Engine,
    /// What for, in words.
    reasons: BTreeMap<Reason, String>,
    /// As it is asked for again.
    request: v1::SubmitRequest,
    /// That it would be built with; empty where that is not known.
    toolchain_json: String,
    /// Why it cannot be built again now.
    refusal: String,
    /// A job that does it already.
    under_way: Option<String>,
    /// Its measurement can be held against another.
    is_measured: bool,
}

impl Stale {
    fn has_another_toolchain(&self) -> bool {
        self.reasons.contains_key(&Reason::Toolchain) || self.reasons.contains_key(&Reason::Driver)
    }

    fn is_open(&self) -> bool {
        self.refusal.is_empty() && self.under_way.is_none()
    }
}

impl Farm {
    /// Finds engines that are stale or outdated and has them built again. Needs role submit.
    ///
    /// # Errors
    /// Without the role, for a reason that is none, or when the store cannot be asked. What of it cannot be built again is
    /// told in the reply.
    pub async fn refresh(&self, actor: &Actor, request: v1::RefreshRequest) -> Result<v1::RefreshReply, ApiError> {
        let object = if request.dry_run { "dry run" } else { "" };
        let refreshed = self.find_and_refresh(actor, request);
        self.audited(actor, AuditKind::Use, "refresh", object, refreshed).await
    }

    async fn find_and_refresh(&self, actor: &Actor, request: v1::RefreshRequest) -> Result<v1::RefreshReply, ApiError> {
        may_submit(actor)?;
        let wanted = Reason::named(&request.reasons)?;
        let usual = request.slower_percent == 0.0;
        let slower_percent = if usual { USUAL_SLOWER_PERCENT } else { request.slower_percent };
        canary::check_percent(slower_percent)?;
        let project = visible_project(actor, &request.project)?;
        let (engines, more) = self.newest_engines(&request, project.as_deref()).await?;
        let looked_at = engines.len() as u64;
        let declared = self.declared_models(project.as_deref()).await?;
        let oldest_ms = match request.older_than_s {
            0 => 0,
            age_s => self.clock().wall_ms().saturating_sub(age_s.saturating_mul(1_000)),
        };
        let mut stale = Vec::new();
        for engine in engines {
            stale.extend(self.look_at(actor, engine, &declared, oldest_ms, &wanted).await?);
        }
        let canaries = if request.no_canary { BTreeMap::new() } else { canaries(&stale) };
        let mut cells = Vec::with_capacity(stale.len());
        let mut jobs: BTreeMap<(Sku, String), Result<String, String>> = BTreeMap::new();
        // Canaries first: the others name their jobs.
        let mut order: Vec<usize> = (0..stale.len()).collect();
        order.sort_by_key(|index| !canaries.values().any(|canary| canary == index));
        for index in order {
            let one = &stale[index];
            let group = (one.engine.sku.clone(), one.engine.toolchain.backend.clone());
            let is_canary = canaries.get(&group) == Some(&index);
            let follows = canaries.contains_key(&group) && !is_canary && one.has_another_toolchain();
            let mut asked = one.request.clone();
            if is_canary {
                let plan_digest = one.engine.plan.digest.to_string();
                asked.canary = Some(v1::Canary { plan_digest, slower_percent });
            }
            let (mut job, mut refusal) = (one.under_way.clone().unwrap_or_default(), one.refusal.clone());
            if one.is_open() && !request.dry_run {
                match jobs.get(&group).filter(|_| follows) {
                    Some(Ok(canary)) => asked.needs.push(canary.clone()),
                    Some(Err(why)) => refusal = format!("its canary was not submitted: {why}"),
                    None => {}
                }
                if refusal.is_empty() {
                    match self.submit(actor, asked).await {
                        Ok(reply) if !reply.missing_blobs.is_empty() => {
                            refusal = "its model is not stored any more: submit the file again".into();
                        }
                        Ok(reply) => job = reply.jobs.first().map(|job| job.id.clone()).unwrap_or_default(),
                        Err(error) => refusal = error.message,
                    }
                }
                if is_canary {
                    jobs.insert(group, if refusal.is_empty() { Ok(job.clone()) } else { Err(refusal.clone()) });
                }
            }
            let view = convert::engine_out(&one.engine, String::new());
            let view = v1::Engine { unmeasured: one.reasons.contains_key(&Reason::Unmeasured), ..view };
            cells.push((
                index,
                v1::RefreshedCell {
                    engine: Some(self.as_its_own(actor, &one.engine, view).await?),
                    reasons: one.reasons.keys().map(|reason| reason.name().to_owned()).collect(),
                    details: one.reasons.values().cloned().collect(),
                    toolchain_json: one.toolchain_json.clone(),
                    canary: is_canary,
                    follows_canary: follows,
                    under_way: one.under_way.is_some(),
                    job,
                    refusal,
                },
            ));
        }
        cells.sort_by_key(|(index, _)| *index);
        let cells = cells.into_iter().map(|(_, cell)| cell).collect();
        Ok(v1::RefreshReply { cells, looked_at, more })
    }

    /// The newest engine of each model's name, device kind, spec and backend, and whether there are more than are looked at.
    async fn newest_engines(
        &self,
        request: &v1::RefreshRequest,
        project: Option<&str>,
    ) -> Result<(Vec<Engine>, bool), ApiError> {
        let skus = request.skus.iter().map(|sku| convert::sku(sku)).collect::<Result<BTreeSet<_>, _>>()?;
        let is_named = |engine: &Engine| {
            let digest = engine.model.digest.to_string();
            let named = |text: &String| engine.model.name == *text || text.len() >= 4 && digest.starts_with(text);
            (request.models.is_empty() || request.models.iter().any(named))
                && (skus.is_empty() || skus.contains(&engine.sku))
        };
        let mut filter = EngineFilter { project: project.map(Into::into), limit: PAGE, ..EngineFilter::default() };
        let mut seen = BTreeSet::new();
        let mut newest = Vec::new();
        loop {
            let found = self.timed("engines", self.store().engines(filter.clone())).await?;
            let full = found.len() == filter.limit;
            filter.behind = found.last().map(|last| (last.created_ms, last.key, last.plan.digest));
            for engine in found.into_iter().filter(is_named) {
                let spec = serde_json::to_string(&engine.spec).unwrap_or_default();
                let cell = (engine.project.clone(), engine.model.name.clone(), engine.sku.clone(), spec);
                if !seen.insert((cell, engine.toolchain.backend.clone())) {
                    continue;
                }
                if newest.len() == CELLS_MAX {
                    return Ok((newest, true));
                }
                newest.push(engine);
            }
            if !full {
                return Ok((newest, false));
            }
        }
    }

    /// Models that declarations have, by project, name and device kind.
    async fn declared_models(
        &self,
        project: Option<&str>,
    ) -> Result<BTreeMap<(String, String, Sku), Digest>, ApiError> {
        let filter =
            DeclarationFilter { project: project.map(Into::into), name: None, limit: DECLARATIONS_MAX, behind: None };
        let mut models = BTreeMap::new();
        // Newest first: what was said last counts.
        for record in self.timed("declarations", self.store().declarations(filter)).await? {
            for cell in record.cells {
                models.entry((record.project.clone(), cell.model, cell.sku)).or_insert(cell.digest);
            }
        }
        Ok(models)
    }

    /// Why an engine is stale; `None`: it is not.
    async fn look_at(
        &self,
        actor: &Actor,
        engine: Engine,
        declared: &BTreeMap<(String, String, Sku), Digest>,
        oldest_ms: u64,
        wanted: &BTreeSet<Reason>,
    ) -> Result<Option<Stale>, ApiError> {
        let sku = engine.sku.to_string();
        let report = self.answering_report(engine.plan.digest, &sku, &Covered::default()).await?;
        let figures = report.as_ref().and_then(|report| Figures::parse(&report.document).ok());
        let disturbed = figures.as_ref().and_then(|figures| figures.wholly_disturbed()).is_some();
        let seen_ms = report.as_ref().map_or(engine.created_ms, |report| report.created_ms);
        let mut reasons = BTreeMap::new();
        if engine.unmeasured && report.is_none() {
            reasons.insert(Reason::Unmeasured, "it was built and never measured".to_owned());
        }
        if disturbed {
            reasons.insert(Reason::Disturbed, "every window of its measurement was disturbed".to_owned());
        }
        if seen_ms < oldest_ms {
            const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
            let days = self.clock().wall_ms().saturating_sub(seen_ms) / DAY_MS;
            reasons.insert(Reason::Age, format!("it was last measured {days} days ago"));
        }
        let place = (engine.project.clone(), engine.model.name.clone(), engine.sku.clone());
        let other = declared.get(&place).filter(|digest| **digest != engine.model.digest);
        if let Some(digest) = other {
            reasons
                .insert(Reason::Model, format!("its project declares another model of that name, {}", digest.short()));
        }
        let job = self.timed("job", self.store().job(&engine.job)).await?;
        let mut request = again(&engine, job.as_ref());
        // As long as the job is kept that prepared its model, it is said where that comes from.
        if let Some(from) = &engine.from {
            let by = self.timed("job", self.store().job(&from.job.as_str().into())).await?;
            request.needs.extend(by.filter(|job| job.made.is_some()).map(|job| job.id.as_str().to_owned()));
        }
        let seen_by = Actor { project: Some(engine.project.clone()), ..actor.clone() };
        let foreseen = self.foresee(&seen_by, request.clone()).await;
        let (mut refusal, mut toolchain_json) = (String::new(), String::new());
        match foreseen.map(|reply| reply.combinations.into_iter().next()) {
            Ok(Some(one)) => {
                let now: Option<Toolchain> = serde_json::from_str(&one.toolchain_json).ok();
                if let Some(now) = now.filter(|now| *now != engine.toolchain) {
                    let reason = if driver_alone(&engine.toolchain, &now) { Reason::Driver } else { Reason::Toolchain };
                    reasons.insert(reason, format!("{} would be {now} now", engine.toolchain));
                }
                toolchain_json = one.toolchain_json;
                if matches!(one.would.as_str(), "refuse" | "wait" | "fail") {
                    refusal = one.detail;
                }
            }
            Ok(None) => {}
            Err(error) => refusal = error.message,
        }
        reasons.retain(|reason, _| wanted.contains(reason));
        if reasons.is_empty() {
            return Ok(None);
        }
        request.force = reasons.contains_key(&Reason::Age);
        request.refresh_disturbed = reasons.contains_key(&Reason::Disturbed);
        let only_model = reasons.keys().all(|reason| *reason == Reason::Model);
        if let Some(digest) = other.filter(|_| reasons.contains_key(&Reason::Model)) {
            match self.blobs().size(*digest).await? {
                Some(size_bytes) => {
                    let name = engine.model.name.clone();
                    let file = v1::ModelFile { name: name.clone(), digest: digest.to_string(), size_bytes };
                    let digest = digest.to_string();
                    request.models = vec![v1::Model { digest, name, files: vec![file], ..v1::Model::default() }];
                }
                // With external data, or never sent: the repository has it.
                None if only_model => refusal = "the declared model is not stored here: planforge sync sends it".into(),
                None => {}
            }
        }
        let under_way = self.under_way(&request, &engine).await?;
        let is_measured = figures.is_some() && !disturbed;
        Ok(Some(Stale { engine, reasons, request, toolchain_json, refusal, under_way, is_measured }))
    }

    /// A job that builds the same again already.
    async fn under_way(&self, request: &v1::SubmitRequest, engine: &Engine) -> Result<Option<String>, ApiError> {
        let model = request.models.first().map(|model| model.digest.clone()).unwrap_or_default();
        let (sku, spec, backend) = (engine.sku.clone(), engine.spec.clone(), engine.toolchain.backend.clone());
        self.ask(move |state, _| {
            let same = |job: &&std::sync::Arc<Job>| {
                let threads = job.spec.threads.or(spec.threads);
                let toolchain = job.toolchain.as_ref().is_none_or(|toolchain| toolchain.backend == backend);
                job.kind != JobKind::Compile
                    && job.wants.iter().any(|want| want.tags.iter().any(|tag| tag == TAG))
                    && job.model.digest.to_string() == model
                    && job.sku == sku
                    && toolchain
                    && BuildSpec { threads, ..job.spec.clone() } == spec
            };
            state.live_jobs().find(same).map(|job| job.id.as_str().to_owned())
        })
        .await
    }
}

/// What an engine's job asked for, where that is still known, else what the engine says of itself.
fn again(engine: &Engine, job: Option<&Job>) -> v1::SubmitRequest {
    let asked = job.map(|job| job.constraint.clone()).filter(|constraint| !constraint.is_empty());
    let threads = job.map_or(engine.spec.threads, |job| job.asked_threads);
    let spec = BuildSpec { threads, ..engine.spec.clone() };
    v1::SubmitRequest {
        project: engine.project.clone(),
        models: vec![convert::model_out(&engine.model)],
        skus: vec![engine.sku.to_string()],
        specs_json: serde_json::to_string(&spec).into_iter().collect(),
        toolchains: vec![asked.unwrap_or_else(|| engine.toolchain.backend.clone())],
        allow_inaccurate: !engine.accurate,
        builds: engine.plan.builds,
        kind: v1::JobKind::Build.into(),
        tags: vec![TAG.into()],
        requires: job.map(|job| job.requirement().texts()).unwrap_or_default(),
        ..v1::SubmitRequest::default()
    }
}

fn driver_alone(then: &Toolchain, now: &Toolchain) -> bool {
    const DRIVER: &str = "driver_branch";
    let without = |toolchain: &Toolchain| {
        let mut toolchain = toolchain.clone();
        toolchain.components.remove(DRIVER);
        toolchain
    };
    without(then) == without(now)
}

/// Of each device kind and backend whose engines get another toolchain, the one that goes first: the smallest that can be
/// held against what it was.
fn canaries(stale: &[Stale]) -> BTreeMap<(Sku, String), usize> {
    let mut first: BTreeMap<(Sku, String), usize> = BTreeMap::new();
    let fit = |one: &Stale| one.has_another_toolchain() && one.is_measured && one.is_open();
    for (index, one) in stale.iter().enumerate().filter(|(_, one)| fit(one)) {
        let group = (one.engine.sku.clone(), one.engine.toolchain.backend.clone());
        let canary = first.entry(group).or_insert(index);
        if one.engine.plan.size_bytes < stale[*canary].engine.plan.size_bytes {
            *canary = index;
        }
    }
    first
}
