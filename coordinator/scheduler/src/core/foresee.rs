//! What a submission would come to: judged as a submission is, with nothing changed.

use super::{
    ask::{Asked, Expanded, expand},
    fallback,
    flight::Flight,
    graph::named,
    judge::{Chosen, Verdict},
    model::{JobId, JobKind},
    state::{State, Submit},
};
use planforge_proto::ApiError;
use planforge_types::{BuildSpec, Digest, EngineKey, Sku, Toolchain, preparation::PrepareAsk};
use std::collections::BTreeSet;

/// One combination, and what a submission of it would come to.
#[derive(Clone, Debug)]
pub struct Foreseen {
    pub model: Digest,
    pub sku: Sku,
    pub constraint: String,
    /// As resolved, else as asked.
    pub spec: BuildSpec,
    pub toolchain: Option<Toolchain>,
    pub key: Option<EngineKey>,
    /// As [`planforge_proto::v1::Foreseen`] spells it.
    pub would: &'static str,
    pub detail: String,
    pub hint: String,
    /// Of the stored engine that answers or is measured.
    pub plan: Option<Digest>,
    /// That it would join or wait behind.
    pub job: Option<JobId>,
}

/// What a whole request would come to.
#[derive(Clone, Debug)]
pub enum Foresight {
    /// Nobody looked yet whether these plans are still in the blob store.
    Look { plans: BTreeSet<Digest>, submit: Box<Submit> },
    /// Nobody looked yet what the store has under these keys.
    Ask { keys: BTreeSet<EngineKey>, as_of: u64, submit: Box<Submit> },
    Told {
        combinations: Vec<Foreseen>,
        missing: Vec<Digest>,
        /// Why nothing of it would be submitted.
        refusal: Option<ApiError>,
    },
}

impl State {
    /// # Errors
    /// When the request is no such, or too large.
    pub fn foresee(&mut self, submit: Submit) -> Result<Foresight, ApiError> {
        // As in a submission: rows whose plans are gone answer nothing. It is found again as it is asked for.
        if let Some(missing) = submit.missing_plans.as_ref().filter(|missing| !missing.is_empty()) {
            self.known.lost(missing.iter());
        }
        let Expanded { prepares, mut builds } = expand(&submit)?;
        let (mut combinations, mut plans) = (Vec::with_capacity(prepares.len() + builds.len()), BTreeSet::new());
        let mut refusals: Vec<ApiError> = Vec::new();
        let mut first = BTreeSet::new();
        let (mut runs, mut wants_bytes) = (0, false);
        let mut keys = BTreeSet::new();
        let waits = match self.unmet(&submit.needs) {
            // One of them ended this moment: how, a submission finds out.
            Ok(waits) => waits.unwrap_or_else(|| submit.needs.iter().map(|need| need.job.clone()).collect()),
            Err(error) => {
                let refused = |one: &Asked| Foreseen {
                    would: "refuse",
                    detail: error.message.clone(),
                    hint: error.hint.clone(),
                    ..unjudged(one)
                };
                let combinations = prepares.iter().chain(&builds).map(refused).collect();
                return Ok(Foresight::Told { combinations, missing: Vec::new(), refusal: Some(error) });
            }
        };
        // What is built from a model that was prepared before is told as it would be built.
        for one in &prepares {
            if let (true, Ok(Verdict::Made { record, .. })) = (waits.is_empty(), self.judge(one, &submit.lookup)) {
                let waiting = builds.iter_mut().filter(|build| build.is_of(one));
                waiting.for_each(|build| build.take_made(&record.made));
            }
        }
        for one in prepares.iter().chain(&builds) {
            let mut told = unjudged(one);
            if submit.unseen {
                told.would = "upload";
                told.detail = "its bytes are asked for first; what comes then is decided with them".into();
                wants_bytes = true;
                combinations.push(told);
                continue;
            }
            match self.judge_new(one, &submit.lookup) {
                Ok(verdict)
                    if !waits.is_empty() && (submit.wait_for_device || !matches!(verdict, Verdict::Wait(_))) =>
                {
                    told.would = "block";
                    told.detail = format!("decided once what it needs has succeeded: {}", named(&waits));
                    told.job = waits.first().cloned();
                    (runs, wants_bytes) = (runs + 1, true);
                }
                Ok(verdict) if one.is_open() && (submit.wait_for_device || !matches!(verdict, Verdict::Wait(_))) => {
                    told.would = "block";
                    told.detail = "decided once its model is prepared".into();
                    (runs, wants_bytes) = (runs + 1, true);
                }
                Ok(Verdict::Ask(key)) => drop(keys.insert(key)),
                Ok(Verdict::Made { chosen, record }) => {
                    plans.extend(record.made.model.files.iter().map(|file| file.digest));
                    told.would = "answer";
                    told.detail = format!("job {} prepared it", record.job);
                    told.settle(chosen);
                }
                Err(error) => {
                    (told.would, told.detail, told.hint) = ("refuse", error.message.clone(), error.hint.clone());
                    refusals.push(error);
                }
                Ok(Verdict::Wait(error)) => {
                    told.would = if submit.wait_for_device { "wait" } else { "refuse" };
                    (told.detail, told.hint) = (error.message.clone(), error.hint.clone());
                    if submit.wait_for_device {
                        (runs, wants_bytes) = (runs + 1, true);
                    } else {
                        refusals.push(error);
                    }
                }
                Ok(Verdict::Answer { chosen, engine, .. }) => {
                    plans.insert(engine.plan.digest);
                    told.would = "answer";
                    told.plan = Some(engine.plan.digest);
                    told.detail = fallback::named(&chosen.tried);
                    told.settle(chosen);
                }
                Ok(Verdict::Fail { chosen, failure }) => {
                    (told.would, told.detail, told.hint) = ("fail", failure.message, failure.hint);
                    told.settle(chosen);
                }
                Ok(Verdict::Join(id)) => {
                    told.would = "join";
                    let job = self.jobs.get(&id);
                    if let Some((job, key, toolchain)) =
                        job.and_then(|job| Some((job, job.key?, job.toolchain.clone()?)))
                    {
                        told.settle(Chosen { key, toolchain, spec: job.spec.clone(), tried: Vec::new() });
                    }
                    told.detail = format!("job {id} does the same");
                    told.job = Some(id);
                }
                Ok(Verdict::Run { chosen, kind, plan, behind, .. }) => {
                    let key = chosen.key;
                    plans.extend(plan.as_ref().map(|plan| plan.digest));
                    let flight = match (&plan, kind) {
                        (Some(plan), JobKind::Benchmark) => {
                            let covered = one.covered.clone();
                            Flight::Measure { plan: plan.digest, sku: one.sku.clone(), covered }
                        }
                        _ => Flight::of_key(kind, &one.sku, key),
                    };
                    // Of several combinations that come to the same, the first runs.
                    let repeats = !one.force && !first.insert(flight);
                    told.would = match kind {
                        _ if repeats => "join",
                        JobKind::Build => "build",
                        JobKind::Benchmark => "measure",
                        JobKind::Compile => "compile",
                        JobKind::Prepare => "prepare",
                    };
                    told.detail = match (&behind, repeats) {
                        (_, true) => "another combination of this request does the same".into(),
                        (Some(other), _) => format!("after job {other}, which does nearly the same"),
                        (None, _) if kind == JobKind::Compile && !one.sku.is_cpu() => {
                            "made ready without the device; a build that needs it times and decides there".into()
                        }
                        (None, _) if kind == JobKind::Compile => "built and verified, not measured".into(),
                        (None, _) if kind == JobKind::Prepare => {
                            one.prepare.as_ref().map(PrepareAsk::words).unwrap_or_default()
                        }
                        (None, _) => self.prospect(&one.sku, &chosen.toolchain),
                    };
                    let parts = [fallback::named(&chosen.tried), std::mem::take(&mut told.detail)];
                    told.detail = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
                    (told.plan, told.job) = (plan.map(|plan| plan.digest), behind);
                    told.settle(chosen);
                    (runs, wants_bytes) = (runs + usize::from(!repeats), true);
                }
            }
            combinations.push(told);
        }
        if !keys.is_empty() {
            return Ok(Foresight::Ask { keys, as_of: self.known_durable(), submit: Box::new(submit) });
        }
        if submit.missing_plans.is_none() && !plans.is_empty() {
            return Ok(Foresight::Look { plans, submit: Box::new(submit) });
        }
        let over_quota = submit.over_quota.filter(|_| runs > 0);
        let refusal = refusals.into_iter().next().or(over_quota);
        let refusal = refusal.or_else(|| self.admission(&submit.project, runs).err());
        let missing = if wants_bytes { submit.missing } else { Vec::new() };
        Ok(Foresight::Told { combinations, missing, refusal })
    }

    /// What a job for these devices would meet, where that is worth a word.
    fn prospect(&self, sku: &Sku, toolchain: &Toolchain) -> String {
        let target = super::queue::Target { sku: sku.clone(), toolchain: toolchain.clone() };
        let mut devices = self.offers.get(&target).into_iter().flatten();
        let online = devices.any(|key| self.agents.get(&key.agent).is_some_and(|agent| agent.session.is_some()));
        if online { String::new() } else { "it waits until an agent with such a device is back".into() }
    }
}

fn unjudged(asked: &Asked) -> Foreseen {
    Foreseen {
        model: asked.model.digest,
        sku: asked.sku.clone(),
        constraint: asked.constraint.clone(),
        spec: asked.spec.clone(),
        toolchain: None,
        key: None,
        would: "",
        detail: String::new(),
        hint: String::new(),
        plan: None,
        job: None,
    }
}

impl Foreseen {
    fn settle(&mut self, chosen: Chosen) {
        let Chosen { key, toolchain, spec, .. } = chosen;
        (self.key, self.toolchain, self.spec) = (Some(key), Some(toolchain), spec);
    }
}
