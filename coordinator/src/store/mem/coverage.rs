//! How models stand, told from everything that there is.

use super::Tables;
use crate::{
    core::{Engine, Job, JobState, Report},
    store::{Coverage, CoverageFilter, CoveredModels, Standing, StandingJob},
};
use planforge_report::figures::Figures;
use planforge_types::EngineKey;
use std::{cmp::Reverse, collections::BTreeMap};

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

impl Tables {
    /// The newest build of each key.
    fn newest_builds(&self) -> Vec<&Engine> {
        let mut newest: BTreeMap<EngineKey, &Engine> = BTreeMap::new();
        for engine in self.engines.values() {
            let known = newest.entry(engine.key).or_insert(engine);
            if known.age_order() < engine.age_order() {
                *known = engine;
            }
        }
        newest.into_values().collect()
    }

    /// What a project calls the model of an engine: as its own jobs do, where another project had it built.
    fn called(&self, engine: &Engine, project: Option<&String>) -> String {
        let digest = engine.model.digest;
        let own = match project {
            Some(project) if *project != engine.project => {
                let of_model = |job: &&Job| job.model.digest == digest && !job.model.name.is_empty();
                let own = |job: &&Job| self.job_projects.contains(&(job.id.clone(), project.clone()));
                let jobs = self.jobs.values().map(AsRef::as_ref).filter(of_model).filter(own);
                jobs.max_by_key(|job| job.created_ms).map(|job| job.model.name.clone())
            }
            _ => Some(engine.model.name.clone()),
        };
        own.filter(|name| !name.is_empty()).unwrap_or_else(|| digest.to_string()[..12].to_owned())
    }

    /// The report that is shown of an engine.
    fn shown_report(&self, engine: &Engine) -> Option<&Report> {
        let own = |report: &&Report| report.plan == engine.plan.digest && report.sku == engine.sku;
        let usual = |report: &Report| report.measure.inputs.is_none() && !report.measure.time_inputs;
        let reports = self.reports.values().filter(own);
        reports.max_by_key(|report| (usual(report), report.created_ms, report.digest))
    }

    /// How all models stand.
    pub(super) fn coverage_of(&self, filter: &CoverageFilter, apart: bool) -> Coverage {
        let project = filter.project.as_ref();
        let sees = |engine: &&Engine| {
            project.is_none_or(|project| self.engine_projects.contains(&(engine.key, project.clone())))
        };
        let standing = |engine: &Engine| {
            let figures = self.shown_report(engine).and_then(|report| Figures::parse(&report.document).ok());
            Standing {
                model: self.called(engine, project),
                model_digest: engine.model.digest.to_string(),
                sku: engine.sku.to_string(),
                plan: engine.plan.digest.to_string(),
                created_ms: engine.created_ms,
                spec_json: json(&engine.spec),
                toolchain_json: json(&engine.toolchain),
                accurate: engine.accurate,
                simulated: engine.simulated || figures.as_ref().is_some_and(|figures| figures.simulated),
                median_ms: figures.as_ref().and_then(|figures| figures.latency_ms.median),
                disturbed: figures.is_some_and(|figures| figures.wholly_disturbed().is_some()),
            }
        };
        let is_asked = |standing: &Standing| {
            filter.is_of_sku(&standing.sku) && filter.is_of_model(&standing.model, &standing.model_digest)
        };
        let mut engines: Vec<Standing> =
            self.newest_builds().into_iter().filter(sees).map(standing).filter(is_asked).collect();
        engines.sort_by_key(|standing| Reverse((standing.created_ms, standing.plan.clone())));
        let jobs = |lives: bool| {
            let fits = |job: &&Job| {
                let own = |project: &String| self.job_projects.contains(&(job.id.clone(), project.clone()));
                (if lives { job.ended_ms == 0 } else { job.state == JobState::Failed })
                    && job.is_of_a_device()
                    && project.is_none_or(own)
                    && filter.is_of_sku(job.sku.as_str())
                    && filter.is_of_model(&job.model.name, &job.model.digest.to_string())
            };
            let standing = |job: &Job| StandingJob {
                id: job.id.clone(),
                model: job.model.name.clone(),
                sku: job.sku.to_string(),
                state: job.state,
                at_ms: if lives { job.created_ms } else { job.ended_ms },
                why: match lives {
                    true => job.phase.clone(),
                    false => job.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default(),
                },
                spec_json: if apart { json(&job.spec) } else { String::new() },
                toolchain_json: job.toolchain.as_ref().filter(|_| apart).map(json).unwrap_or_default(),
                constraint: if apart { job.constraint.clone() } else { String::new() },
            };
            let mut jobs: Vec<StandingJob> = self.jobs.values().map(AsRef::as_ref).filter(fits).map(standing).collect();
            jobs.sort_by_key(|job| Reverse((job.at_ms, job.id.clone())));
            jobs
        };
        let (mut live, mut failed) = (jobs(true), jobs(false));
        if !apart {
            newest(&mut live);
            newest(&mut failed);
            failed.retain(|job| {
                let is_later = |engine: &Standing| {
                    (&engine.model, &engine.sku) == (&job.model, &job.sku) && engine.created_ms >= job.at_ms
                };
                let is_replaced = self.jobs.get(&job.id).is_some_and(|job| job.fallback.is_some());
                !is_replaced && !engines.iter().any(is_later)
            });
        }
        Coverage { engines, live, failed, is_cut: false }
    }

    /// Models of which something stands anywhere.
    pub(super) fn models_of(&self, filter: &CoverageFilter, from: u64, limit: usize) -> CoveredModels {
        let Coverage { engines, live, failed, .. } = self.coverage_of(filter, true);
        let engines = engines.into_iter().map(|engine| (engine.model, engine.sku));
        let jobs = live.into_iter().chain(failed).map(|job| (job.model, job.sku));
        let (mut names, mut skus): (Vec<String>, Vec<String>) = engines.chain(jobs).unzip();
        for list in [&mut names, &mut skus] {
            list.sort();
            list.dedup();
        }
        let count = names.len() as u64;
        CoveredModels { names: names.into_iter().skip(from as usize).take(limit).collect(), count, skus }
    }
}

/// The first of each model on each device kind.
fn newest(jobs: &mut Vec<StandingJob>) {
    let mut seen = std::collections::BTreeSet::new();
    jobs.retain(|job| seen.insert((job.model.clone(), job.sku.clone())));
}
